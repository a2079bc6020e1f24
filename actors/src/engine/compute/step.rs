//! Steps of every engine that trains: pretraining, the policy, critics and reward models differ in their
//! work alone.

use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, Failure};
use odeon_algorithms::model::{PassGroups, ShardGroups, ShardTime, StageGroups, StageLinks};
use odeon_algorithms::train::{
    Peers, PipelineKind, StepOperation, StepOutcome, StepPeers, StepShape, StepWork, plan,
};
use odeon_gpu::{Any, PassRanks};

use super::models::Optimizer;
use super::peers::{Gang, PassGang};
use super::stages::{StageGang, record_pass};
use crate::ranks::metrics::StepSeconds;

/// A choice between a step that changes the weights and one that rates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learning {
    /// It changes the weights.
    Yes,
    /// It rates them.
    No,
}

/// Results of a step, and where its time went.
#[derive(Clone, Debug)]
pub(crate) struct Stepped {
    pub(crate) outcome: StepOutcome,
    /// Seconds of passes and of the update.
    pub(crate) compute_seconds: f64,
    /// Seconds in collectives: for the numbers of others, and for those who are late.
    pub(crate) reduce_seconds: f64,
    /// Time in which shards were moved, and for which passes waited for that.
    pub(crate) moves: ShardTime,
}

impl Stepped {
    /// Its seconds; nobody has waited for the batch here.
    pub(crate) const fn seconds(&self) -> StepSeconds {
        StepSeconds {
            compute: self.compute_seconds,
            exchange: self.reduce_seconds,
            wait: 0.0,
        }
    }
}

/// The ranks that a rank trains with.
#[derive(Debug, Default)]
pub(crate) struct StepGangs<'a> {
    /// Those that have other samples or rows.
    pub(crate) data: Option<&'a mut Gang>,
    /// All ranks, where matrices are shared and learnt from.
    pub(crate) all: Option<&'a mut Gang>,
    /// Those of `data` with the same experts, where these are shared and learnt from.
    pub(crate) same_experts: Option<&'a mut Gang>,
    /// Those of `data` that keep the same shard, where there are several and these are learnt from.
    pub(crate) replicas: Option<&'a mut Gang>,
    /// Those that compute each pass together with this one.
    pub(crate) passes: PassGangs,
}

/// Ranks that compute passes together, by what they share.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassGangs {
    /// Every matrix.
    pub(crate) tensor: Option<Arc<PassGang>>,
    /// The experts.
    pub(crate) experts: Option<Arc<PassGang>>,
    /// The rows of a batch.
    pub(crate) context: Option<Arc<PassGang>>,
    /// Those that keep shards of the same tensors.
    pub(crate) shards: ShardGangs,
    /// The layers.
    pub(crate) stages: StageGangs,
}

/// Ranks of a pipeline, as [`StageGroups`] has them, and the order of their passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageGangs {
    pub(crate) all: Option<Arc<PassGang>>,
    pub(crate) tied: Option<Arc<PassGang>>,
    pub(crate) links: Option<Arc<StageGang>>,
    pub(crate) kind: PipelineKind,
    /// The step whose passes are recorded as spans, where those of this one are.
    pub(crate) recorded: Option<u64>,
}

/// Ranks that keep shards of the same tensors, as [`ShardGroups`] has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardGangs {
    pub(crate) everywhere: Option<Arc<PassGang>>,
    pub(crate) data: Option<Arc<PassGang>>,
    pub(crate) experts: Option<Arc<PassGang>>,
}

impl PassGangs {
    fn all(&self) -> impl Iterator<Item = &Arc<PassGang>> {
        let Self {
            tensor,
            experts,
            context,
            shards,
            stages,
        } = self;
        let shards = [&shards.everywhere, &shards.data, &shards.experts];
        [tensor, experts, context, &stages.all, &stages.tied]
            .into_iter()
            .chain(shards)
            .flatten()
    }

    /// Leaves all of them.
    pub(crate) fn leave(&self) {
        self.all().for_each(|gang| gang.leave());
        self.stages.links.iter().for_each(|links| links.leave());
    }

    /// The seconds in their collectives since this was asked last.
    fn take_seconds(&self) -> f64 {
        self.all().map(|gang| gang.take_seconds()).sum()
    }

    /// The time in which shards were moved, and for which passes waited for it, since this was asked last.
    fn take_moves(&self) -> ShardTime {
        self.all().map(|gang| gang.take_moves()).sum()
    }

    /// The time for which neighbours in a pipeline were waited for since this was asked last.
    fn take_waited(&self) -> Duration {
        let links = self.stages.links.iter();
        links.map(|links| links.take_waited()).sum()
    }

    /// Checks that all ranks have had their part in each collective so far.
    ///
    /// # Errors
    /// The first that has failed.
    fn check(&self) -> Result<(), Failure> {
        let links = self.stages.links.as_ref();
        links.map_or(Ok(()), |links| links.check())?;
        self.all().try_for_each(|gang| gang.check())
    }

    /// As a model takes them.
    fn groups(&self) -> PassGroups<Any> {
        let group = |gang: &Option<Arc<PassGang>>| {
            let gang = gang.clone();
            gang.map(|gang| gang as Arc<dyn PassRanks<Any>>)
        };
        let links = self.stages.links.clone();
        PassGroups {
            tensor: group(&self.tensor),
            experts: group(&self.experts),
            context: group(&self.context),
            shards: ShardGroups {
                everywhere: group(&self.shards.everywhere),
                data: group(&self.shards.data),
                experts: group(&self.shards.experts),
            },
            stages: StageGroups {
                all: group(&self.stages.all),
                tied: group(&self.stages.tied),
                links: links.map(|links| links as Arc<dyn StageLinks>),
            },
        }
    }
}

impl StepGangs<'_> {
    /// Leaves all of them.
    fn leave(self) {
        self.passes.leave();
        let others = self.all.into_iter().chain(self.data);
        for gang in others.chain(self.same_experts).chain(self.replicas) {
            gang.leave();
        }
    }
}

/// One step of an optimiser, alone or with others.
///
/// # Errors
/// The work cannot be computed, or another rank is lost. The weights are as they were, unless only the last
/// collective was left to do, or, where ranks share the optimiser, the one before. This rank has left the
/// others then.
pub(crate) fn step<W: StepWork<Error = Failure>>(
    optimizer: &mut Optimizer,
    work: &mut W,
    mut gangs: StepGangs<'_>,
    learning: Learning,
) -> Result<Stepped, Failure> {
    let plan = plan(&StepShape {
        shares_optimizer: optimizer.is_shared(),
        has_tensor_part: gangs.passes.tensor.is_some(),
        has_expert_part: gangs.passes.experts.is_some(),
        has_same_experts: gangs.same_experts.is_some(),
        has_shard: optimizer.model().shard().is_some(),
        is_guarded: optimizer.is_guarded(),
        has_replicas: gangs.replicas.is_some(),
        pipeline: optimizer.pipeline(gangs.passes.stages.kind),
        ..StepShape::of(work, gangs.data.is_some(), learning == Learning::Yes)
    });
    let passes = gangs.passes.clone();
    let mut moves = ShardTime::default();
    let (mut compute_seconds, mut reduce_seconds, mut last) = (0.0, 0.0, Clock::now());
    let mut after = |operation: StepOperation| {
        let now = Clock::now();
        let seconds = now.since(last).as_secs_f64();
        // Passes that are computed together have collectives in between.
        let waited = passes.take_waited();
        let moved = passes.take_moves();
        moves = moves + moved;
        let between = passes.take_seconds() + (moved.waited + waited).as_secs_f64();
        let reducing = if operation.is_collective() {
            seconds
        } else {
            between
        };
        reduce_seconds += reducing;
        compute_seconds += seconds - reducing;
        // The next one begins when this one is told of.
        last = match passes.stages.recorded {
            Some(step) => record_pass(step, operation, last.after(waited)),
            None => now,
        };
        passes.check()
    };
    let done =
        met(optimizer, &mut gangs).and_then(|peers| optimizer.run(&plan, work, peers, &mut after));
    if done.is_err() {
        gangs.leave();
    }
    let outcome = done?;
    if outcome.update.is_some_and(|update| !update.applied) {
        tracing::warn!("the gradient was not taken; the step changed nothing");
    }
    Ok(Stepped {
        outcome,
        compute_seconds,
        reduce_seconds,
        moves,
    })
}

/// The ranks, joined where they compute; the model computes passes with its own from now on.
fn met<'a>(
    optimizer: &mut Optimizer,
    gangs: &'a mut StepGangs<'_>,
) -> Result<StepPeers<'a, dyn Peers<Any, Error = Failure> + 'a>, Failure> {
    let backend = optimizer.model().backend().clone();
    optimizer.model_mut().meet(gangs.passes.groups());
    let data = gangs.data.as_mut().map(|gang| gang.on(&backend));
    let all = gangs.all.as_mut().map(|gang| gang.on(&backend));
    let same_experts = gangs.same_experts.as_mut().map(|gang| gang.on(&backend));
    let replicas = gangs.replicas.as_mut().map(|gang| gang.on(&backend));
    Ok(StepPeers {
        replicas: replicas.transpose()?,
        data: data.transpose()?,
        all: all.transpose()?,
        same_experts: same_experts.transpose()?,
    })
}
