//! The fastest way in which the ranks of a run can share its model, by a prediction of each.
//!
//! All ways that so many ranks have are tried by the check that a run makes; those that pass are priced, and the
//! quickest whose memory fits is taken. Nothing is measured, so that a recipe has one plan on machines of one size.

use std::collections::BTreeMap;
use std::fmt;

use odeon::Failure;
use odeon_algorithms::cost::training::{Machine, SharedStep, SharedStepTime};
use odeon_algorithms::model::{ContextKind, ModelConfig};
use odeon_algorithms::setting::{Chosen, SettingError, spelled};
use odeon_algorithms::train::{Footprint, PipelineKind};
use odeon_data::plan::Budget;
use odeon_gpu::Device;
use serde::{Deserialize, Deserializer, Serialize};

use super::parallel::{ParallelSection, field_of};
use super::{Fault, PretrainRecipe};

/// `pretrain.parallel`: whoever finds the plan that `[parallel]` would say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ParallelChoice {
    /// The fastest plan that fits, as is predicted.
    #[serde(rename = "auto")]
    Auto(AutoPlan),
}

/// Settings of the search for a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoPlan {
    /// The card that each rank has, with `run.device = "cuda"`; an H100 where nothing is said.
    pub card: Option<PlannedCard>,
    /// Memory of each rank. Without it that of the card, or an equal part of the machine's.
    pub memory_gib: Option<f32>,
}

/// Cards whose kernels were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedCard {
    /// A100 SXM with 80 GB.
    A100,
    /// H100 SXM.
    H100,
    /// H800 SXM.
    H800,
}

impl Chosen for ParallelChoice {
    const WORDS: &'static [&'static str] = &["auto"];

    fn named(word: &str) -> Option<Self> {
        (word == "auto").then(|| Self::Auto(AutoPlan::default()))
    }

    fn check(&self) -> Result<(), SettingError> {
        let Self::Auto(auto) = self;
        match auto.memory_gib {
            Some(found) if !(found > 0.0 && found.is_finite()) => Err(SettingError {
                of: "auto",
                field: "memory_gib",
                found,
                expected: "a number above 0",
            }),
            _ => Ok(()),
        }
    }
}

/// Reads a choice where there is one.
pub(super) fn chosen<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ParallelChoice>, D::Error> {
    spelled(deserializer).map(Some)
}

/// A way to share the model, with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidatePlan {
    /// The way.
    pub parallel: ParallelSection,
    /// Predicted seconds of a step.
    pub time: SharedStepTime,
    /// The largest rank's memory in bytes, as far as it is known.
    pub bytes: usize,
}

/// Ways to share the model that are refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedPlans {
    /// The reason, as a run would tell it of the first of them.
    pub why: String,
    /// The first of them.
    pub first: ParallelSection,
    /// Number of them.
    pub count: usize,
}

/// All ways in which the ranks of a run could share its model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arranged {
    /// Those that a run would accept and that fit, the quickest first; no more than are shown.
    pub fitting: Vec<CandidatePlan>,
    /// Quicker ones than the last of these, which do not fit.
    pub too_large: Vec<CandidatePlan>,
    /// Those that cannot be, by reason.
    pub refused: Vec<RefusedPlans>,
    /// Number of all that a run would accept.
    pub accepted: usize,
    /// Memory of each rank, in bytes.
    pub memory: u64,
}

/// Ways that are shown beside the best.
const SHOWN: usize = 5;

/// No way fits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NothingFits {
    memory: u64,
    least: Option<(ParallelSection, usize)>,
}

impl fmt::Display for NothingFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let memory = gib(self.memory as f64);
        match &self.least {
            None => {
                f.write_str("pretrain.parallel = \"auto\": no way to share the model is accepted")
            }
            Some((parallel, bytes)) => write!(
                f,
                "pretrain.parallel = \"auto\": no way to share the model fits into {memory:.3} GiB of each rank; the \
                 least takes {:.3} GiB ({}): let there be more ranks or smaller micro-batches, or \
                 pretrain.recompute = \"layers\"",
                gib(*bytes as f64),
                parallel.told()
            ),
        }
    }
}

impl PretrainRecipe {
    /// Checks `pretrain.parallel`, as far as the file tells.
    pub(super) fn check_choice(&self) -> Result<(), Fault> {
        let fault = |what: String| {
            Err(Fault {
                table: "pretrain",
                field: "parallel",
                what,
            })
        };
        let Some(choice) = &self.pretrain.parallel else {
            return Ok(());
        };
        if let Err(error) = choice.check() {
            return fault(error.to_string());
        }
        let ParallelChoice::Auto(auto) = choice;
        if auto.card.is_some() && !self.is_on_cards() {
            let what = format!(
                "auto.card is for ranks on cards, and run.device = \"{}\": leave it out",
                self.run.device
            );
            return fault(what);
        }
        match self.parallel == ParallelSection::default() {
            true => Ok(()),
            false => fault(format!(
                "\"auto\" finds a plan, and [parallel] says one ({}): leave one of them out",
                self.parallel.told()
            )),
        }
    }

    fn is_on_cards(&self) -> bool {
        self.run
            .device
            .parse::<Device>()
            .is_ok_and(|it| it != Device::Cpu)
    }

    fn auto(&self) -> AutoPlan {
        match self.pretrain.parallel {
            Some(ParallelChoice::Auto(auto)) => auto,
            None => AutoPlan::default(),
        }
    }

    /// The machines that a step is predicted for: the card of each rank, or its threads.
    #[must_use]
    pub fn predicted_machine(&self) -> Machine {
        match (self.is_on_cards(), self.auto().card) {
            (false, _) => Machine::processor(self.processes.threads),
            (true, Some(PlannedCard::A100)) => Machine::a100(),
            (true, Some(PlannedCard::H800)) => Machine::h800(),
            (true, Some(PlannedCard::H100) | None) => Machine::h100(),
        }
    }

    /// Predicted seconds of a step, as `[parallel]` has it.
    ///
    /// # Errors
    /// The tokenizer or the model cannot be read, or the ranks cannot share it.
    pub fn predicted(&self) -> Result<SharedStepTime, Failure> {
        let config = self.model_config()?;
        let machine = self.predicted_machine();
        self.priced(&config, &machine).map_err(Failure::error)
    }

    fn priced(
        &self,
        config: &ModelConfig,
        machine: &Machine,
    ) -> Result<SharedStepTime, odeon_algorithms::cost::training::SharedStepError> {
        let sharing = self.sharing();
        let longest = self.longest_sample();
        let step = SharedStep {
            machine,
            config,
            train: &self.train(),
            sharing,
            micro: self.micro_batches(sharing),
            tokens: match self.plan.step {
                Budget::Tokens(tokens) => tokens,
                Budget::Samples(samples) => u64::from(samples) * u64::from(longest),
            },
        };
        step.time()
    }

    /// The recipe as it is run: with the stages that its patterns ask for; and where it leaves its plan open, with the
    /// one that is predicted to be fastest, and with what that was chosen from.
    ///
    /// # Errors
    /// The tokenizer or the model cannot be read, parameters cannot be where they are to be, or no plan fits into the
    /// memory.
    pub fn arranged(&self) -> Result<(Self, Option<Arranged>), Failure> {
        if self.pretrain.parallel.is_none() {
            let placed = match self.parallel.place.is_empty() {
                true => self.clone(),
                false => self.placed_or_failed(&self.model_config()?)?,
            };
            return Ok((placed, None));
        }
        let config = self.model_config()?;
        let arranged = self.choose(&config, &self.predicted_machine(), self.memory_of_rank());
        let arranged = arranged.map_err(|none| Failure::error(none.to_string()).fatal())?;
        let mut recipe = self.clone();
        recipe.pretrain.parallel = None;
        recipe.parallel = arranged.fitting[0].parallel.clone();
        Ok((recipe, Some(arranged)))
    }

    /// Memory that a rank may take, in bytes.
    fn memory_of_rank(&self) -> u64 {
        let gib = |gib: f64| (gib * f64::from(1 << 30)) as u64;
        match (self.auto().memory_gib, self.placement.device_memory_gib) {
            (Some(memory), _) => gib(f64::from(memory)),
            (None, memory) if self.is_on_cards() && memory > 0 => gib(memory as f64),
            (None, _) if self.is_on_cards() => self.predicted_machine().card.device.memory_bytes,
            (None, _) => memory_of_machine() / u64::from(self.processes.ranks),
        }
    }

    /// The choice, by the model, the machine and the bytes of each rank alone.
    fn choose(
        &self,
        config: &ModelConfig,
        machine: &Machine,
        memory: u64,
    ) -> Result<Arranged, NothingFits> {
        let mut refused: BTreeMap<String, RefusedPlans> = BTreeMap::new();
        let mut accepted: Vec<(Self, SharedStepTime)> = vec![];
        for parallel in ways(self.processes.ranks, config.layers) {
            let recipe = self.with(&parallel);
            let priced = recipe.accepted(config).and_then(|()| {
                let priced = recipe.priced(config, machine);
                priced.map_err(|error| (error.to_string(), error.to_string()))
            });
            match priced {
                Ok(time) => accepted.push((recipe, time)),
                Err((kind, why)) => {
                    let known = refused.entry(kind).or_insert(RefusedPlans {
                        why,
                        first: parallel,
                        count: 0,
                    });
                    known.count += 1;
                }
            }
        }
        accepted.sort_by(|(_, a), (_, b)| a.seconds().total_cmp(&b.seconds()));
        let count = accepted.len();
        let mut arranged = Arranged {
            fitting: vec![],
            too_large: vec![],
            refused: refused.into_values().collect(),
            accepted: count,
            memory,
        };
        arranged
            .refused
            .sort_by_key(|it| std::cmp::Reverse(it.count));
        for (recipe, time) in accepted {
            let Some(bytes) = recipe.largest_rank(config, memory) else {
                continue;
            };
            let candidate = CandidatePlan {
                parallel: recipe.parallel,
                time,
                bytes,
            };
            match bytes as u64 <= memory {
                true => arranged.fitting.push(candidate),
                false => arranged.too_large.push(candidate),
            }
            if arranged.fitting.len() == SHOWN {
                break;
            }
        }
        match arranged.fitting.is_empty() {
            false => Ok(arranged),
            true => {
                let least = arranged.too_large.into_iter().min_by_key(|it| it.bytes);
                let least = least.map(|it| (it.parallel, it.bytes));
                Err(NothingFits { memory, least })
            }
        }
    }

    fn with(&self, parallel: &ParallelSection) -> Self {
        let mut recipe = self.clone();
        recipe.pretrain.parallel = None;
        recipe.parallel = parallel.clone();
        recipe
    }

    /// The check that a run makes, and that no rank is idle; else the kind of what is wrong, and what it is.
    fn accepted(&self, config: &ModelConfig) -> Result<(), (String, String)> {
        self.check_parallel()
            .map_err(|fault| (format!("{}.{}", fault.table, fault.field), fault.what))?;
        self.shared_out(config).map_err(|why| {
            let field = field_of(why.kind());
            (
                format!("parallel.{field}, {:?}", std::mem::discriminant(&why)),
                why.to_string(),
            )
        })?;
        let buckets = u64::from(
            self.processes.ranks / (self.parallel.tp * self.parallel.cp * self.parallel.pp),
        );
        let (batch, least) = match self.plan.step {
            Budget::Tokens(tokens) => (tokens, u64::from(self.longest_sample())),
            Budget::Samples(samples) => (samples.into(), 1),
        };
        match batch >= buckets * least {
            true => Ok(()),
            false => {
                let what = format!(
                    "{buckets} ranks with samples of their own would be idle now and then: plan.step is {batch}, and each \
                     should get {least} at least"
                );
                Err(("plan.step".to_owned(), what))
            }
        }
    }

    /// Bytes of the largest rank. Where those that stay are too many, activations are not counted.
    fn largest_rank(&self, config: &ModelConfig, memory: u64) -> Option<usize> {
        let (train, sharing) = (self.train(), self.sharing());
        let micro = self.micro_batches(sharing);
        let mut largest = 0;
        for rank in 0..sharing.ranks() {
            let own = Footprint::of(config, &train, sharing, rank).ok()?;
            let mut bytes = own.bytes();
            if bytes as u64 <= memory {
                let known = micro.activations(config, &train, sharing, rank).ok()?;
                let known = known.unwrap_or_default();
                bytes += known.device;
                // A processor's memory is the host's.
                bytes += if self.is_on_cards() { 0 } else { known.host };
            }
            largest = largest.max(bytes);
            if largest as u64 > memory {
                break;
            }
        }
        Some(largest)
    }
}

/// All ways in which so many ranks may share a model of so many layers; which of them can be is another matter. Simpler
/// ones come first, and are taken where others are not quicker.
fn ways(ranks: u32, layers: usize) -> Vec<ParallelSection> {
    let divisors = |of: u32| (1..=of).filter(move |it| of.is_multiple_of(*it));
    let mut ways = vec![];
    for pp in divisors(ranks) {
        for ep in divisors(ranks / pp) {
            for cp in divisors(ranks / pp / ep) {
                for tp in divisors(ranks / pp / ep / cp) {
                    let copies = ranks / pp / ep / cp / tp;
                    let whole = ParallelSection {
                        tp,
                        cp,
                        ep,
                        pp,
                        pp_schedule: PipelineKind::OneForwardOneBackward,
                        ..ParallelSection::default()
                    };
                    for cp_kind in kinds(cp) {
                        for pp_chunks in chunks(pp, layers) {
                            for (zero, fsdp) in shards(copies) {
                                ways.push(ParallelSection {
                                    cp_kind,
                                    pp_chunks,
                                    zero,
                                    fsdp,
                                    ..whole.clone()
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    ways
}

fn kinds(cp: u32) -> Vec<ContextKind> {
    match cp {
        1 => vec![ContextKind::Ulysses],
        _ => vec![ContextKind::Ulysses, ContextKind::Ring],
    }
}

/// Stages of each pipeline rank: powers of two.
fn chunks(pp: u32, layers: usize) -> Vec<u32> {
    let most = match pp {
        1 => 1,
        _ => (layers as u32 / pp).max(1),
    };
    std::iter::successors(Some(1), |chunks| Some(chunks * 2))
        .take_while(|chunks| *chunks <= most)
        .collect()
}

/// Stages of ZeRO, and copies that keep one set of shards.
fn shards(copies: u32) -> Vec<(u8, u32)> {
    let mut ways = vec![(0, 0), (1, 0)];
    let sets = (2..copies).filter(|set| copies.is_multiple_of(*set));
    let sets: Vec<u32> = std::iter::once(0).chain(sets).collect();
    for zero in [2, 3] {
        ways.extend(sets.iter().map(|set| (zero, *set)));
    }
    ways
}

/// Main memory of this machine, in bytes; without end where nobody says it.
fn memory_of_machine() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = told.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|it| it.trim().strip_suffix("kB"));
    let kib = kib.and_then(|it| it.trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

#[cfg(test)]
mod tests;
