//! Steps of every engine that trains: pretraining, the policy, critics and reward models differ in their
//! work alone.

use odeon::{Clock, Failure};
use odeon_algorithms::train::{StepOperation, StepOutcome, StepShape, StepWork, plan};

use super::Optimizer;
use super::peers::Gang;

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

/// One step of an optimiser, alone or with others.
///
/// # Errors
/// The work cannot be computed, or another rank is lost. The weights are as they were, unless only the last
/// collective was left to do, or, where ranks share the optimiser, the one before. This rank has left the
/// others then.
pub(crate) fn step<W: StepWork<Error = Failure>>(
    optimizer: &mut Optimizer,
    work: &mut W,
    mut peers: Option<&mut Gang>,
    learning: Learning,
) -> Result<Stepped, Failure> {
    let plan = plan(&StepShape {
        shares_optimizer: optimizer.is_shared(),
        ..StepShape::of(work, peers.is_some(), learning == Learning::Yes)
    });
    let (mut compute_seconds, mut reduce_seconds, mut last) = (0.0, 0.0, Clock::now());
    let mut after = |operation: StepOperation| {
        let now = Clock::now();
        let seconds = now.since(last).as_secs_f64();
        match operation.is_collective() {
            true => reduce_seconds += seconds,
            false => compute_seconds += seconds,
        }
        last = now;
    };
    let backend = optimizer.model().backend().clone();
    let done = match &mut peers {
        Some(gang) => gang
            .on(&backend)
            .and_then(|peers| optimizer.run(&plan, work, Some(peers), &mut after)),
        None => optimizer.run(&plan, work, None::<&mut Gang>, &mut after),
    };
    if let (Err(_), Some(gang)) = (&done, peers) {
        gang.leave();
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
