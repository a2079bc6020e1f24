//! The ladder of a run: which rung a fault is met with, given what was tried already.
//!
//! With inspection it is that of ByteRobust (arXiv 2509.16293): a machine that is named is evicted, code that is plainly to
//! blame is rolled back, and of a hang the smallest group that is out of line is evicted. What else crashes is met with
//! self-checks, with a restart of the same, with a rollback, with two rounds of replays, and at last with a person. A rung
//! is tried only where those before it did not help. Without inspection a time-out ends the run, and it is queued again;
//! people read messages, then run a stress test, then look for themselves.

use serde::{Deserialize, Serialize};

use super::class::FaultClass;
use super::scenario::FaultPolicy;

/// A rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// The machine that inspection names is evicted.
    Eviction,
    /// The smallest group that stacks are out of line in is evicted.
    Aggregation,
    /// The machine that the suite of self-checks finds is evicted.
    SelfCheck,
    /// The same runs again.
    Reattempt,
    /// Code or data of before runs again.
    Rollback,
    /// The machines that two rounds of replays suspect are evicted.
    Replay,
    /// A person reads the message, and does what it says.
    Operator,
    /// The machine that a stress test finds is evicted.
    StressTest,
    /// A person finds what is wrong.
    Person,
    /// Code or data are changed, as people wish.
    Update,
}

impl Rung {
    /// All of them, in the order of the ladder.
    pub const ALL: [Self; 10] = [
        Self::Eviction,
        Self::Aggregation,
        Self::SelfCheck,
        Self::Reattempt,
        Self::Rollback,
        Self::Replay,
        Self::Operator,
        Self::StressTest,
        Self::Person,
        Self::Update,
    ];
}

/// What is told of a fault before anybody has looked for its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Inspection names the machine.
    pub(super) named: bool,
    /// The log says that code is to blame.
    pub(super) code: bool,
    /// The log says that no machine is to blame, and neither is code.
    pub(super) transient: bool,
}

/// The rung for a fault that was met so often before.
pub(super) fn next(policy: &FaultPolicy, class: &FaultClass, told: Told, tries: u64) -> Rung {
    if !policy.inspection {
        let is_told = told.named || told.code;
        return match tries {
            0 if is_told && !class.implicit => Rung::Operator,
            0 => Rung::Reattempt,
            1 => Rung::StressTest,
            _ => Rung::Person,
        };
    }
    let first = match told {
        Told { named: true, .. } => return Rung::Eviction,
        Told { code: true, .. } => return Rung::Rollback,
        Told {
            transient: true, ..
        } => return Rung::Reattempt,
        _ if class.aggregated => &[Rung::Aggregation][..],
        _ => &[],
    };
    let all = [Rung::SelfCheck, Rung::Rollback, Rung::Replay];
    let mut rungs = first.iter().chain(&all).skip(tries as usize);
    rungs.next().copied().unwrap_or(Rung::Person)
}
