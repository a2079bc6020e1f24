//! The verdict over a failure: a pure function of policies, history, the failure and the time.
//!
//! A family is a supervisor and its children in start order. [`Family::judge`] says which children
//! halt (in reverse start order), how long to wait, and which start again (in start order), or that
//! the failure goes up. Nothing here runs anything; the engine carries verdicts out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::clock::Timestamp;
use crate::base::failure::{Failure, FailureKind, Reason};
use crate::base::id::ActorId;

/// Which siblings share a child's fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// Only the child that failed restarts.
    #[default]
    OneForOne,
    /// All children restart together.
    OneForAll,
    /// The child that failed and those started after it restart.
    RestForOne,
}

/// When a child is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// Always, also after it stopped in order.
    Permanent,
    /// After a failure.
    #[default]
    Transient,
    /// Never. Its failure is told to watchers and otherwise forgotten.
    Temporary,
}

/// The fate of an actor when the process that supervises it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Orphans {
    /// It stops at once: nobody could restart it any more.
    #[default]
    Stop,
    /// It stops when nobody came back within this time.
    StopAfter(Duration),
    /// It runs on, unsupervised.
    Keep,
}

/// The number of restarts that a supervisor may use up before it fails itself: at most `restarts`
/// within any `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// The most restarts.
    pub restarts: u32,
    /// Within this time.
    pub window: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            restarts: 5,
            window: Duration::from_secs(30),
        }
    }
}

/// The wait before the n-th restart of a child within the window of the budget: `first`, doubled
/// each time up to `max`, then shortened at random by at most `jitter` (a part of 1), so that many
/// do not come back at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// Before the first restart.
    pub first: Duration,
    /// Never longer than this.
    pub max: Duration,
    /// 0 to 1.
    pub jitter: f32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(10),
            max: Duration::from_secs(5),
            jitter: 0.2,
        }
    }
}

impl Backoff {
    /// The wait before restart number `nth` (from 0), with `random` drawn from 0..1.
    #[must_use]
    pub fn wait(&self, nth: u32, random: f32) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1u32.checked_shl(nth.min(20)).unwrap_or(u32::MAX));
        let capped = doubled.min(self.max.max(self.first));
        // Rounding must not lift it above the cap.
        capped
            .mul_f32(1.0 - self.jitter.clamp(0.0, 1.0) * random.clamp(0.0, 1.0))
            .min(capped)
    }
}

/// The policy of a supervisor for its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Supervision {
    /// The children that share a failure.
    pub strategy: Strategy,
    /// When it is too much.
    pub budget: Budget,
    /// The wait before a restart.
    pub backoff: Backoff,
}

impl Supervision {
    /// Only the failed child restarts; five restarts in 30 s; 10 ms to 5 s of back-off.
    #[must_use]
    pub fn one_for_one() -> Self {
        Self::default()
    }

    /// All children restart together.
    #[must_use]
    pub fn one_for_all() -> Self {
        Self {
            strategy: Strategy::OneForAll,
            ..Self::default()
        }
    }

    /// The failed child and all that were started after it restart.
    #[must_use]
    pub fn rest_for_one() -> Self {
        Self {
            strategy: Strategy::RestForOne,
            ..Self::default()
        }
    }

    /// Sets the most restarts within a window.
    #[must_use]
    pub const fn budget(mut self, restarts: u32, window: Duration) -> Self {
        self.budget = Budget { restarts, window };
        self
    }

    /// Sets the first and the longest wait before a restart.
    #[must_use]
    pub const fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff.first = first;
        self.backoff.max = max;
        self
    }
}

/// The verdict after a child ended: the action that the engine is to take.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing starts again; the child is gone and forgotten.
    Forget,
    /// Halt these children (reverse start order), wait, start those (start order).
    Restart {
        /// Living children to halt first.
        halt: Vec<ActorId>,
        /// Children to start.
        start: Vec<ActorId>,
        /// The back-off.
        wait: Duration,
    },
    /// The supervisor itself fails with this.
    Escalate(Failure),
}

/// A supervisor's children and the restarts it has spent.
#[derive(Clone, Debug, Default)]
pub struct Family {
    supervision: Supervision,
    /// Ordered by serial number, which is the order they were started in.
    children: BTreeMap<ActorId, Restart>,
    /// When, and by whose end.
    restarts: VecDeque<(Timestamp, ActorId)>,
}

impl Family {
    /// A family without children.
    #[must_use]
    pub fn new(supervision: Supervision) -> Self {
        Self {
            supervision,
            ..Self::default()
        }
    }

    /// Adds the youngest child.
    pub fn adopt(&mut self, child: ActorId, restart: Restart) {
        self.children.insert(child, restart);
    }

    /// Forgets a child. Returns true if it was one.
    pub fn remove(&mut self, child: ActorId) -> bool {
        self.children.remove(&child).is_some()
    }

    /// The children in start order.
    pub fn children(&self) -> impl DoubleEndedIterator<Item = ActorId> + '_ {
        self.children.keys().copied()
    }

    /// Decides what follows from the end of `child`. `random` is drawn from 0..1 for the jitter.
    ///
    /// A child that [`Reason::Sibling`] ended is forgotten: it went down with its parent.
    pub fn judge(
        &mut self,
        child: ActorId,
        reason: &Reason,
        now: Timestamp,
        random: f32,
    ) -> Verdict {
        let Some(restart) = self.children.get(&child) else {
            return Verdict::Forget;
        };
        let again = match (restart, reason) {
            (_, Reason::Sibling | Reason::Unknown) | (Restart::Temporary, _) => false,
            (Restart::Permanent, _) => true,
            (Restart::Transient, reason) => matches!(reason, Reason::Failed(_)),
        };
        if !again {
            self.children.remove(&child);
            return Verdict::Forget;
        }
        if let Reason::Failed(failure) = reason
            && failure.kind == FailureKind::Fatal
        {
            let escalated = Failure::new(FailureKind::Escalated, "no restart would help");
            return Verdict::Escalate(escalated.because(failure.clone()));
        }
        let Budget { restarts, window } = self.supervision.budget;
        while self
            .restarts
            .front()
            .is_some_and(|(at, _)| now.since(*at) >= window)
        {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= restarts as usize {
            let failure = Failure::new(
                FailureKind::Escalated,
                format!("{restarts} restarts within {window:?} did not help"),
            );
            return Verdict::Escalate(match reason {
                Reason::Failed(cause) => failure.because(cause.clone()),
                _ => failure,
            });
        }
        let own = self.restarts.iter().filter(|(_, whose)| *whose == child);
        let wait = self.supervision.backoff.wait(own.count() as u32, random);
        self.restarts.push_back((now, child));
        self.share_fate(child, wait)
    }

    /// Halts and starts the children that share the fate of `child`. Temporary siblings go down
    /// with the others and do not come back.
    fn share_fate(&mut self, child: ActorId, wait: Duration) -> Verdict {
        let fate: Vec<(ActorId, Restart)> = match self.supervision.strategy {
            Strategy::OneForOne => vec![(child, self.children[&child])],
            Strategy::OneForAll => self.children.iter().map(|(id, r)| (*id, *r)).collect(),
            Strategy::RestForOne => self
                .children
                .range(child..)
                .map(|(id, r)| (*id, *r))
                .collect(),
        };
        let halt = fate
            .iter()
            .rev()
            .map(|(id, _)| *id)
            .filter(|id| *id != child)
            .collect();
        let (gone, kept): (Vec<_>, Vec<_>) = fate
            .into_iter()
            .partition(|(_, restart)| *restart == Restart::Temporary);
        for (id, _) in gone {
            self.children.remove(&id);
        }
        let start = kept.into_iter().map(|(id, _)| id).collect();
        Verdict::Restart { halt, start, wait }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, TestCaseError, any, prop, prop_assert, prop_assert_eq};
    use proptest::{prop_oneof, proptest};

    use super::*;
    use crate::base::id::ProcessId;

    fn id(serial: u64) -> ActorId {
        ActorId {
            home: ProcessId(1),
            serial,
        }
    }

    fn failed() -> Reason {
        Reason::Failed(Failure::error("boom"))
    }

    fn family(strategy: Strategy, restarts: &[Restart]) -> Family {
        let mut family = Family::new(Supervision {
            strategy,
            ..Supervision::default()
        });
        for (i, restart) in restarts.iter().enumerate() {
            family.adopt(id(i as u64 + 1), *restart);
        }
        family
    }

    fn any_restart() -> impl proptest::strategy::Strategy<Value = Restart> {
        prop_oneof![
            Just(Restart::Permanent),
            Just(Restart::Transient),
            Just(Restart::Temporary)
        ]
    }

    fn any_strategy() -> impl proptest::strategy::Strategy<Value = Strategy> {
        prop_oneof![
            Just(Strategy::OneForOne),
            Just(Strategy::OneForAll),
            Just(Strategy::RestForOne)
        ]
    }

    /// SEMANTICS 18.
    #[test]
    fn each_way_of_supervision_has_its_strategy() {
        let ways = [
            (Supervision::one_for_one(), Strategy::OneForOne),
            (Supervision::one_for_all(), Strategy::OneForAll),
            (Supervision::rest_for_one(), Strategy::RestForOne),
        ];
        assert!(ways.iter().all(|(way, strategy)| way.strategy == *strategy));
        let second = Duration::from_secs(1);
        let way = Supervision::rest_for_one().budget(1, second);
        let way = way.backoff(second, 9 * second);
        assert_eq!(
            (way.strategy, way.budget.restarts),
            (Strategy::RestForOne, 1)
        );
        assert_eq!((way.backoff.first, way.backoff.max), (second, 9 * second));
    }

    #[test]
    fn a_child_that_was_removed_is_none() {
        let mut family = family(Strategy::OneForAll, &[Restart::Permanent; 2]);
        assert!(family.remove(id(1)) && !family.remove(id(1)));
        assert!(family.children().eq([id(2)]));
    }

    /// SEMANTICS 18.
    #[test]
    fn the_failures_of_one_child_make_no_other_wait() {
        let mut family = family(Strategy::OneForOne, &[Restart::Permanent; 2]);
        let mut wait = |child| match family.judge(id(child), &failed(), Timestamp(0), 0.5) {
            Verdict::Restart { wait, .. } => wait,
            other => panic!("{other:?}"),
        };
        let (first, again, other) = (wait(1), wait(1), wait(2));
        assert!(first < again);
        assert_eq!(other, first);
    }

    proptest! {
        /// SEMANTICS 18.
        #[test]
        fn a_verdict_is_ordered_and_only_touches_who_shares_the_fate(
            strategy in any_strategy(),
            restarts in prop::collection::vec(any_restart(), 1..9),
            pick in any::<prop::sample::Index>(),
        ) {
            let index = pick.index(restarts.len());
            let mut family = family(strategy, &restarts);
            let verdict = family.judge(id(index as u64 + 1), &failed(), Timestamp(0), 0.5);
            if restarts[index] == Restart::Temporary {
                prop_assert_eq!(verdict, Verdict::Forget);
                prop_assert_eq!(family.children().count(), restarts.len() - 1);
                return Ok(());
            }
            let Verdict::Restart { halt, start, .. } = verdict else {
                return Err(TestCaseError::fail("expected a restart"));
            };
            let failed_child = id(index as u64 + 1);
            prop_assert!(start.contains(&failed_child));
            prop_assert!(!halt.contains(&failed_child));
            prop_assert!(start.is_sorted());
            prop_assert!(halt.is_sorted_by(|a, b| a > b));
            for (i, restart) in restarts.iter().enumerate() {
                let child = id(i as u64 + 1);
                let shares = match strategy {
                    Strategy::OneForOne => i == index,
                    Strategy::OneForAll => true,
                    Strategy::RestForOne => i >= index,
                };
                prop_assert_eq!(halt.contains(&child), shares && i != index);
                prop_assert_eq!(start.contains(&child), shares && *restart != Restart::Temporary);
                let stays = !(shares && *restart == Restart::Temporary);
                prop_assert_eq!(family.children().any(|c| c == child), stays);
            }
        }

        /// SEMANTICS 18.
        #[test]
        fn the_budget_is_a_sliding_window(
            gaps in prop::collection::vec(0u64..4_000, 1..60), most in 1u32..6,
        ) {
            let window = Duration::from_millis(5_000);
            let mut family = Family::new(Supervision::one_for_one().budget(most, window));
            family.adopt(id(1), Restart::Permanent);
            let mut now = Timestamp(0);
            let mut granted: Vec<Timestamp> = vec![];
            for gap in gaps {
                now = now.after(Duration::from_millis(gap));
                let recent = granted.iter().filter(|at| now.since(**at) < window).count();
                match family.judge(id(1), &failed(), now, 0.0) {
                    Verdict::Restart { .. } => {
                        prop_assert!(recent < most as usize);
                        granted.push(now);
                    }
                    Verdict::Escalate(failure) => {
                        prop_assert!(recent >= most as usize);
                        prop_assert_eq!(&failure.root_cause().message, "boom");
                    }
                    Verdict::Forget => return Err(TestCaseError::fail("forgot a child")),
                }
            }
        }

        /// SEMANTICS 18.
        #[test]
        fn what_no_restart_mends_is_not_tried(
            strategy in any_strategy(), restarts in prop::collection::vec(any_restart(), 1..6),
            child in any::<prop::sample::Index>(),
        ) {
            let mut family = family(strategy, &restarts);
            let child = child.index(restarts.len());
            let reason = Reason::Failed(Failure::error("damaged").fatal());
            match family.judge(id(child as u64 + 1), &reason, Timestamp(0), 0.0) {
                Verdict::Escalate(failure) => {
                    prop_assert!(restarts[child] != Restart::Temporary);
                    prop_assert_eq!(failure.kind, FailureKind::Escalated);
                    prop_assert_eq!(&failure.root_cause().message, "damaged");
                }
                Verdict::Forget => prop_assert_eq!(restarts[child], Restart::Temporary),
                Verdict::Restart { .. } => return Err(TestCaseError::fail("it was tried")),
            }
        }

        /// SEMANTICS 18.
        #[test]
        fn backoff_grows_and_stays_within_bounds(
            first in 1u64..1_000, max in 1u64..100_000, jitter in 0f32..1.0, random in 0f32..1.0,
        ) {
            let backoff = Backoff {
                first: Duration::from_millis(first),
                max: Duration::from_millis(max),
                jitter,
            };
            let mut before = Duration::ZERO;
            for nth in 0..70 {
                let full = backoff.wait(nth, 0.0);
                prop_assert!(full >= before);
                prop_assert!(full <= backoff.max.max(backoff.first));
                let jittered = backoff.wait(nth, random);
                prop_assert!(jittered <= full);
                prop_assert!(jittered >= full.mul_f32((1.0 - jitter) * 0.999));
                before = full;
            }
        }
    }

    #[test]
    fn an_orderly_end_restarts_only_permanent_children() {
        for (restart, expected) in [
            (Restart::Permanent, true),
            (Restart::Transient, false),
            (Restart::Temporary, false),
        ] {
            let mut family = family(Strategy::OneForOne, &[restart]);
            let verdict = family.judge(id(1), &Reason::Stopped, Timestamp(0), 0.0);
            assert_eq!(
                matches!(verdict, Verdict::Restart { .. }),
                expected,
                "{restart:?}"
            );
        }
    }
}
