//! A plan as data: what a recipe says in `[plan]`, and what the fluent methods put together.

use odeon_mesh::{MeshError, mesh};
use std::collections::BTreeMap;

use odeon_algorithms::balance::{self, Partition};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cost::CostSpec;
use super::fetch::{Axis, Slicing};
use super::schedule::Schedule;

/// The plan of a run: how steps are put together and placed.
///
/// `PlanSpec::mix(..).distribute(..).cost(..).balance(..).broadcast_at(..)` makes the same as a
/// recipe's table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// The size of a step.
    pub step: Budget,
    /// Whose samples it has.
    pub mixture: Mixture,
    /// A bound on the length of samples that changes over the steps.
    #[serde(default)]
    pub curriculum: Option<Curriculum>,
    /// Steps of short and of long samples. None: each step has both.
    #[serde(default)]
    pub contexts: Vec<ContextSpec>,
    /// The most samples of a source that may wait for a step that wants their length. Each is told
    /// of in the planner's state.
    #[serde(default = "default_waiting")]
    pub waiting: u32,
    /// The ranks that get samples of their own.
    #[serde(default)]
    pub distribute: Distribute,
    /// The cost of samples.
    #[serde(default)]
    pub cost: CostSpec,
    /// The method of balancing costs over buckets, and inside of each over micro-batches.
    #[serde(default)]
    pub balance: Method,
    /// The size of micro-batches.
    #[serde(default)]
    pub microbatch: MicrobatchSpec,
    /// Balances pictures over all ranks, apart from the backbone. None: they are encoded where
    /// their sample is.
    #[serde(default)]
    pub encoder: Option<EncoderSpec>,
    /// Along these dimensions the first rank alone fetches, and feeds the others.
    #[serde(default)]
    pub broadcast_at: Vec<String>,
    /// The way in which sequences are cut over context-parallel ranks.
    #[serde(default)]
    pub slicing: Slicing,
    /// The lead with which cells are asked for before they are needed.
    #[serde(default)]
    pub ahead: Ahead,
}

fn default_waiting() -> u32 {
    1024
}

/// The size of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// At most so many tokens: the sample that would exceed them opens the next step. One that is
    /// longer by itself has a step of its own.
    Tokens(u64),
    /// So many samples.
    Samples(u32),
}

/// The unit that shares are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Tokens: a source of long samples gives fewer of them.
    #[default]
    Tokens,
    /// Samples.
    Samples,
}

/// The rule for a source that has given its last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(rename_all = "snake_case")]
pub enum AtEnd {
    /// Its weight goes to those that are left, in proportion, and the run ends with the last.
    #[default]
    Others,
    /// The run ends with the step that has its last sample.
    Stop,
}

/// Whose samples steps have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct Mixture {
    /// The unit of which weights are shares.
    #[serde(default)]
    pub by: Unit,
    /// The rule for a source that ends.
    #[serde(default)]
    pub at_end: AtEnd,
    /// The sources by name.
    pub sources: BTreeMap<String, MixedSource>,
}

/// A source in a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct MixedSource {
    /// Its weight; its share is that over the sum of all.
    pub weight: Schedule,
    /// Number of times that it is gone through. None: again and again.
    #[serde(default)]
    pub epochs: Option<u32>,
}

/// A bound on the length of samples.
///
/// A longer sample waits until the bound has grown, and then comes before what was read later.
/// It is not cut, since what a cut sample lacks is lost to it; and it is not dropped. No more
/// wait than [`PlanSpec::waiting`] says: for one more, the one that has waited longest is given
/// although it is too long. So a curriculum over more samples than can wait is one of sources:
/// sort samples into sources by their length, and let the weights change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct Curriculum {
    /// The bound, in tokens.
    pub tokens: Schedule,
}

/// Steps whose samples are packed to one context.
///
/// A sample belongs to the smallest context that it fits into, and to the largest if it fits into
/// none; there it has a micro-batch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct ContextSpec {
    /// The context, in tokens: the cap of a micro-batch in these steps.
    pub tokens: u32,
    /// The share of steps. Where it is not that of the samples, samples wait, and when no more may
    /// wait, the steps are theirs.
    pub share: f64,
}

/// The ranks that get samples of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct Distribute {
    /// The axis whose places have a bucket each.
    pub axis: Axis,
    /// Balances inside of groups of so many neighbouring buckets. None: over all.
    #[serde(default)]
    pub group: Option<u32>,
}

impl Default for Distribute {
    fn default() -> Self {
        Self {
            axis: Axis::Data,
            group: None,
        }
    }
}

/// A way of balancing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// As samples come.
    None,
    /// The costliest first, to whoever has least.
    #[default]
    Greedy,
    /// Largest differencing.
    KarmarkarKarp,
    /// Largest differencing, with as many items for each as for all others.
    KarmarkarKarpEqual,
}

impl Method {
    /// The partition that this way makes.
    #[must_use]
    pub fn partition(self, costs: &[u64], bins: usize) -> Partition {
        match self {
            Self::None => balance::deal(costs, bins),
            Self::Greedy => balance::greedy(costs, bins),
            Self::KarmarkarKarp => balance::karmarkar_karp(costs, bins),
            Self::KarmarkarKarpEqual => balance::karmarkar_karp_equal(costs, bins),
        }
    }

    /// The same inside of groups of bins.
    #[must_use]
    pub fn partition_in(self, group: Option<u32>, costs: &[u64], bins: usize) -> Partition {
        match group {
            Some(group) => balance::grouped(costs, bins, group as usize, |costs, bins| {
                self.partition(costs, bins)
            }),
            None => self.partition(costs, bins),
        }
    }
}

/// The size of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields, default)]
pub struct MicrobatchSpec {
    /// The most tokens, by what a rank's memory holds. A longer sample has a micro-batch of its
    /// own. Where steps have contexts, these are the caps.
    pub tokens: u32,
    /// At least so many for each bucket: the stages of a pipeline stand idle with fewer.
    pub at_least: u32,
    /// Their number is a multiple of this, which interleaved pipelines need.
    pub multiple_of: u32,
}

impl Default for MicrobatchSpec {
    fn default() -> Self {
        Self {
            tokens: 8192,
            at_least: 1,
            multiple_of: 1,
        }
    }
}

/// The balancing of pictures over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields, default)]
pub struct EncoderSpec {
    /// The way.
    pub method: Method,
    /// Inside of groups of so many neighbouring ranks, so that pictures and their features do not
    /// go further; Seed1.5-VL has 128 to 256. None: over all.
    pub group: Option<u32>,
}

/// The lead with which cells are asked for before they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields, default)]
pub struct Ahead {
    /// Enough for so many steps.
    pub steps: u32,
    /// No more cells of one source than this are asked for or kept.
    pub cells: u32,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            steps: 4,
            cells: 64,
        }
    }
}

impl Mixture {
    /// Equal shares of tokens, again and again.
    pub fn even<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let source = |name: N| {
            let mixed = MixedSource {
                weight: Schedule::Constant(1.0),
                epochs: None,
            };
            (name.into(), mixed)
        };
        Self {
            by: Unit::default(),
            at_end: AtEnd::default(),
            sources: names.into_iter().map(source).collect(),
        }
    }
}

impl PlanSpec {
    /// Steps of this size from this mixture. All else has defaults.
    #[must_use]
    pub fn mix(mixture: Mixture, step: Budget) -> Self {
        Self {
            step,
            mixture,
            curriculum: None,
            contexts: vec![],
            waiting: default_waiting(),
            distribute: Distribute::default(),
            cost: CostSpec::default(),
            balance: Method::default(),
            microbatch: MicrobatchSpec::default(),
            encoder: None,
            broadcast_at: vec![],
            slicing: Slicing::default(),
            ahead: Ahead::default(),
        }
    }

    /// Gives each place along the axis samples of its own, balanced in groups of so many.
    #[must_use]
    pub fn distribute(mut self, axis: Axis, group: Option<u32>) -> Self {
        self.distribute = Distribute { axis, group };
        self
    }

    /// Takes this for the cost of samples.
    #[must_use]
    pub fn cost(mut self, cost: impl Into<CostSpec>) -> Self {
        self.cost = cost.into();
        self
    }

    /// Balances costs in this way.
    #[must_use]
    pub fn balance(mut self, method: Method) -> Self {
        self.balance = method;
        self
    }

    /// Balances pictures over all ranks, apart from the backbone.
    #[must_use]
    pub fn encoder(mut self, encoder: EncoderSpec) -> Self {
        self.encoder = Some(encoder);
        self
    }

    /// Lets the first rank along the dimension alone fetch, and feed the others.
    #[must_use]
    pub fn broadcast_at(mut self, dimension: &str) -> Self {
        if !self.broadcast_at.iter().any(|other| other == dimension) {
            self.broadcast_at.push(dimension.to_owned());
        }
        self
    }

    /// Says what of the plan cannot be.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        let fault = |field: &str, expected: &'static str| {
            Err(PlanError::Field {
                field: field.to_owned(),
                expected,
            })
        };
        if matches!(self.step, Budget::Tokens(0) | Budget::Samples(0)) {
            return fault("step", "at least 1");
        }
        if self.mixture.sources.is_empty() {
            return fault("mixture.sources", "at least one source");
        }
        let mut weighty = false;
        for (name, source) in &self.mixture.sources {
            if let Some(expected) = source.weight.fault() {
                return fault(&format!("mixture.sources.{name}.weight"), expected);
            }
            if source.epochs == Some(0) {
                return fault(&format!("mixture.sources.{name}.epochs"), "at least 1");
            }
            weighty |= !source.weight.is_nothing();
        }
        if !weighty {
            return fault("mixture.sources", "a source with a weight above 0");
        }
        if let Some(curriculum) = &self.curriculum
            && let Some(expected) = curriculum.tokens.fault()
        {
            return fault("curriculum.tokens", expected);
        }
        let ascending = self
            .contexts
            .windows(2)
            .all(|pair| pair[0].tokens < pair[1].tokens);
        if !ascending || self.contexts.iter().any(|context| context.tokens == 0) {
            return fault("contexts", "tokens that ascend, each at least 1");
        }
        let fair = |context: &ContextSpec| context.share.is_finite() && context.share > 0.0;
        if !self.contexts.iter().all(fair) {
            return fault("contexts", "shares above 0");
        }
        for (field, value) in [
            ("distribute.group", self.distribute.group),
            (
                "encoder.group",
                self.encoder.and_then(|encoder| encoder.group),
            ),
            ("microbatch.tokens", Some(self.microbatch.tokens)),
            ("microbatch.at_least", Some(self.microbatch.at_least)),
            ("microbatch.multiple_of", Some(self.microbatch.multiple_of)),
            ("ahead.cells", Some(self.ahead.cells)),
        ] {
            if value == Some(0) {
                return fault(field, "at least 1");
            }
        }
        for (field, cost) in [
            ("cost.text", self.cost.text),
            ("cost.picture", self.cost.picture),
        ] {
            if let Some(expected) = cost.fault() {
                return fault(field, expected);
            }
        }
        let fetch = super::fetch::FetchPlan {
            mesh: mesh! {},
            axis: self.distribute.axis,
            broadcast_at: self.broadcast_at.clone(),
            slicing: self.slicing,
        };
        match fetch.fault() {
            Some(dimension) => Err(PlanError::Broadcast {
                dimension: dimension.to_owned(),
                axis: self.distribute.axis,
            }),
            None => Ok(()),
        }
    }
}

/// A plan that cannot be followed. Nothing was begun.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A field of the plan has a value that it cannot have.
    #[error("plan: `{field}` needs {expected}")]
    Field {
        /// Where it is.
        field: String,
        /// The values that it may have.
        expected: &'static str,
    },
    /// A source that the mixture does not name, or one that it names and that is not there: give it
    /// a weight (0 leaves it out), or take it from the mixture.
    #[error("plan: `{name}` is in the mixture or among the sources, and not in both")]
    Source {
        /// The source.
        name: String,
    },
    /// A source without cells, or more sources than can be numbered.
    #[error(
        "plan: `{name}` has no cells: it is empty, or has too few blocks to hold one out (make its \
         `block_bytes` smaller); or it comes after 65,536 others"
    )]
    Shape {
        /// The source.
        name: String,
    },
    /// Ranks along the dimension have samples of their own, so none can feed the others.
    #[error("plan: nothing can be broadcast along `{dimension}` where {axis:?} is distributed")]
    Broadcast {
        /// The dimension.
        dimension: String,
        /// The axis whose places have a bucket each.
        axis: Axis,
    },
    /// The mesh cannot be.
    #[error("plan: {0}")]
    Mesh(#[from] MeshError),
    /// The state is of other sources or of another plan: begin anew, or go on with that plan's.
    #[error("plan: the state does not fit: {0}")]
    State(String),
}
