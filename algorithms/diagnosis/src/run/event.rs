//! Events of a run, and what its detectors answer with.

use crate::{Alert, Evidence, Finding, Observation, Severity};

/// An event of a run. Its moments are numbers of steps, from 1; who is to blame is a rank, or nobody where
/// it is the run as a whole.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEvent {
    /// A step of reinforcement learning.
    Step(RlStep),
    /// Held-out problems were answered.
    Evaluated {
        /// So many of them right,
        correct: u64,
        /// of so many.
        problems: u64,
    },
    /// The loss of each rank over its own part of a step's batch, before they are put together; `None` of
    /// a rank that had nothing to learn from.
    Losses(Vec<Option<f64>>),
    /// A step was computed twice, since its first gradient was not taken.
    Repeated(RepeatedStep),
}

/// The numbers of one step of reinforcement learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RlStep {
    /// Mean of what is trained on.
    pub reward: f64,
    /// Part of the replies that the checker calls right.
    pub right: f64,
    /// Mean length of a reply, in tokens.
    pub length: f64,
    /// Mean entropy of a token, in nats; `None` in steps in which the policy does not learn.
    pub entropy: Option<f64>,
}

impl Observation for RunEvent {
    type Subject = u32;
    type Moment = u64;
    type Cause = Alert;
}

/// A step whose gradient was not finite or far larger than usual, and that was computed once more from the same weights
/// and samples.
#[derive(Clone, Debug, PartialEq)]
pub struct RepeatedStep {
    /// The norm of the gradient of all ranks, each time.
    pub norms: [f64; 2],
    /// The largest norm that is taken; `None` where all are that are finite.
    pub norm_max: Option<f64>,
    /// The own gradient of each rank, each time.
    pub ranks: Vec<[RankGradient; 2]>,
    /// Set where the second gradient changed the weights.
    pub is_taken: bool,
}

/// The gradient of one rank before that of others is added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankGradient {
    /// Its norm.
    pub norm: f64,
    /// The tensor at which it went wrong, where it did.
    pub tensor: Option<String>,
}

pub(super) fn named((name, value): (&'static str, f64)) -> Evidence {
    (name.to_owned(), value)
}

/// A finding of a run as a whole.
pub(super) fn finding(
    rule: &'static str,
    since: u64,
    sentence: String,
    evidence: Vec<(&'static str, f64)>,
) -> Finding<RunEvent> {
    Finding {
        who: vec![],
        cause: Alert {
            rule,
            severity: Severity::Warning,
            sentence,
            part: String::new(),
            evidence: evidence.into_iter().map(named).collect(),
        },
        since,
    }
}

/// Less of a rise is nothing, whatever its noise.
pub(super) const RISE: f64 = 0.05;

/// Errors that are no chance.
pub(super) const ERRORS: f64 = 5.0;
