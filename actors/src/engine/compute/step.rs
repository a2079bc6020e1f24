//! Steps of every engine that trains: pretraining, the policy, critics and reward models differ in their
//! work alone.

use std::sync::Arc;

use odeon::{Clock, Failure};
use odeon_algorithms::train::{
    Peers, StepOperation, StepOutcome, StepPeers, StepShape, StepWork, plan,
};
use odeon_gpu::Any;

use super::Optimizer;
use super::peers::{Gang, TensorGang};

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
}

/// The ranks that a rank trains with.
#[derive(Debug, Default)]
pub(crate) struct StepGangs<'a> {
    /// Those that have other samples and the same parameters.
    pub(crate) data: Option<&'a mut Gang>,
    /// Those that compute each pass together with this one.
    pub(crate) tensor: Option<Arc<TensorGang>>,
    /// All ranks, where passes are computed together and learnt from.
    pub(crate) all: Option<&'a mut Gang>,
}

impl<'a> StepGangs<'a> {
    /// Those that have other samples, if there are any.
    pub(crate) fn data(data: Option<&'a mut Gang>) -> Self {
        Self {
            data,
            ..Self::default()
        }
    }

    /// Leaves all of them.
    fn leave(self) {
        if let Some(tensor) = self.tensor {
            tensor.leave();
        }
        for gang in self.all.into_iter().chain(self.data) {
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
        has_part: gangs.tensor.is_some(),
        ..StepShape::of(work, gangs.data.is_some(), learning == Learning::Yes)
    });
    let tensor = gangs.tensor.clone();
    let (mut compute_seconds, mut reduce_seconds, mut last) = (0.0, 0.0, Clock::now());
    let mut after = |operation: StepOperation| {
        let now = Clock::now();
        let seconds = now.since(last).as_secs_f64();
        // Passes of a part add up rows in between.
        let sums = tensor.as_ref().map_or(0.0, |tensor| tensor.take_seconds());
        let reducing = if operation.is_collective() {
            seconds
        } else {
            sums
        };
        reduce_seconds += reducing;
        compute_seconds += seconds - reducing;
        last = now;
        tensor.as_ref().map_or(Ok(()), |tensor| tensor.check())
    };
    let done =
        met(optimizer, &mut gangs).and_then(|peers| optimizer.run(&plan, work, peers, &mut after));
    if done.is_err() {
        gangs.leave();
    }
    let outcome = done?;
    if outcome.update.is_some_and(|update| !update.applied) {
        tracing::warn!("the gradient was not finite; the step changed nothing");
    }
    Ok(Stepped {
        outcome,
        compute_seconds,
        reduce_seconds,
    })
}

/// The ranks, joined where they compute; a part of a model computes with its own from now on.
fn met<'a>(
    optimizer: &mut Optimizer,
    gangs: &'a mut StepGangs<'_>,
) -> Result<StepPeers<'a, dyn Peers<Any, Error = Failure> + 'a>, Failure> {
    let backend = optimizer.model().backend().clone();
    if let Some(tensor) = gangs.tensor.clone() {
        optimizer.model_mut().meet(tensor);
    }
    let data = gangs.data.as_mut().map(|data| data.on(&backend));
    let all = gangs.all.as_mut().map(|all| all.on(&backend));
    Ok(StepPeers {
        data: data.transpose()?,
        all: all.transpose()?,
    })
}
