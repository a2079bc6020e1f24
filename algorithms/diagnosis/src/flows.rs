//! Flows of collectives: who is to blame that a job of many ranks stands still or has become slow (arXiv 2509.03018).
//!
//! Each process records how far its calls have got ([`odeon_collective::FlowRecorder`]). A node reduces the records of a
//! rank between two looks to a [`RankLook`] ([`FlowSummary`]), and a [`RankWindow`] keeps those of the last seconds.
//! [`FlowWatch`] looks at ten ranks at most, whatever the size of the job, since a rank that stands still soon stops all
//! others; only when these have stopped or become slow it goes through all to find the cause.

mod cause;
mod look;
mod pace;
mod ranks;
#[cfg(test)]
mod simulated;
mod stall;
#[cfg(test)]
mod tests;
mod trigger;

use std::time::Duration;

pub use odeon_collective::FlowMember;

pub use cause::{FlowCause, FlowFault};
pub use look::{FlowSummary, GroupLook, RankLook, RankWindow};
pub use ranks::FlowRanks;
pub use trigger::{FlowTrigger, SAMPLE_RANKS, TriggerKind};

use crate::{Detector, Finding, Observation};

/// All ranks of a job.
#[derive(Clone, Copy, Debug)]
pub struct FlowJob<'a> {
    /// In an order that stays as long as the ranks do.
    pub ranks: &'a [RankWindow],
}

impl Observation for FlowJob<'_> {
    type Subject = FlowMember;
    /// Time since any moment that stays.
    type Moment = Duration;
    type Cause = FlowCause;
}

/// Finds the rank, and its flow, that the others of a job wait for. A finding is told when two looks in a row say the
/// same, and goes on until a look says otherwise.
#[derive(Clone, Debug, Default)]
pub struct FlowWatch {
    trigger: FlowTrigger,
    /// The fault and ranks of the last judgement, and since when.
    suspected: Option<(FlowFault, Vec<FlowMember>, Duration)>,
}

impl FlowWatch {
    /// One that takes a rank of which nothing is known of what is usual for standing still after so long, 30 s at most.
    #[must_use]
    pub fn still_first(limit: Duration) -> Self {
        Self {
            trigger: FlowTrigger::default().still_first(limit),
            suspected: None,
        }
    }

    /// Its trigger, with the count of what that has read.
    #[must_use]
    pub const fn trigger(&self) -> &FlowTrigger {
        &self.trigger
    }
}

impl<'a> Detector<FlowJob<'a>> for FlowWatch {
    fn observe(&mut self, seen: &FlowJob<'a>, at: Duration) -> Vec<Finding<FlowJob<'a>>> {
        let kind = self.trigger.observe(seen.ranks, at);
        let found = kind.and_then(|kind| {
            let stalled = || stall::cause(seen.ranks, at);
            match kind {
                TriggerKind::Stalled => stalled().or_else(|| pace::cause(seen.ranks, at)),
                TriggerKind::Slow => pace::cause(seen.ranks, at),
            }
        });
        let before = self.suspected.take();
        let Some((cause, who)) = found else {
            return vec![];
        };
        let same = before.filter(|(fault, ranks, _)| *fault == cause.fault && *ranks == who);
        let since = match &same {
            Some((_, _, since)) => *since,
            None => at.saturating_sub(cause.lasts),
        };
        self.suspected = Some((cause.fault, who.clone(), since));
        // Calls that differ stay so, and a job may end with them.
        if same.is_none() && cause.fault != FlowFault::Mismatch {
            return vec![];
        }
        vec![Finding { who, cause, since }]
    }
}
