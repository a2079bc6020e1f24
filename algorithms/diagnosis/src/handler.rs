//! Handlers that hang: they run for longer than their actor says that they may.

use std::fmt::{self, Debug, Display};
use std::time::Duration;

use odeon_devices::fault::FaultKind;

use crate::{Action, Detector, Finding, FindingCause, Observation};

/// A handler that runs, of an actor with a limit. The look is at all of them in a process; its moments are
/// times since the clock of that process began.
#[derive(Clone, Debug)]
pub struct Running<A> {
    /// The life of the actor.
    pub actor: A,
    /// The message that is handled.
    pub message: &'static str,
    /// When that began.
    pub since: Duration,
    /// The longest time that it may take.
    pub limit: Duration,
}

impl<A: Clone + Debug + PartialEq> Observation for [Running<A>] {
    type Subject = A;
    type Moment = Duration;
    type Cause = Hang;
}

/// A handler takes too long. Its process is ended, since a thread cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hang {
    /// The message that is handled.
    pub message: &'static str,
    /// The time that it has taken so far.
    pub waited: Duration,
    /// The longest that it may take.
    pub limit: Duration,
}

impl Hang {
    /// The same, as a fault of the device that the handler works on.
    #[must_use]
    pub const fn fault(self) -> FaultKind {
        FaultKind::Hang {
            waited: self.waited,
            predicted: self.limit,
        }
    }
}

impl Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hangs: {}", self.message, self.fault())
    }
}

impl FindingCause for Hang {
    fn action(&self) -> Action {
        Action::EndProcess
    }
}

/// Finds handlers that hang, each once: its process is then ended.
#[derive(Clone, Debug, Default)]
pub struct Hangs<A> {
    told: Vec<(A, Duration)>,
}

impl<A: Clone + Debug + PartialEq + Send + Sync> Detector<[Running<A>]> for Hangs<A> {
    fn observe(&mut self, seen: &[Running<A>], at: Duration) -> Vec<Finding<[Running<A>]>> {
        let runs = |(actor, since): &(A, Duration)| {
            let same = |it: &Running<A>| it.actor == *actor && it.since == *since;
            seen.iter().any(same)
        };
        self.told.retain(runs);
        let mut found = vec![];
        for it in seen {
            let waited = at.saturating_sub(it.since);
            let key = (it.actor.clone(), it.since);
            if waited <= it.limit || self.told.contains(&key) {
                continue;
            }
            self.told.push(key);
            found.push(Finding {
                who: vec![it.actor.clone()],
                cause: Hang {
                    message: it.message,
                    waited,
                    limit: it.limit,
                },
                since: it.since,
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_passes_its_limit_is_found_once() {
        let second = Duration::from_secs;
        let running = |actor, since| Running {
            actor,
            message: "Train",
            since: second(since),
            limit: second(10),
        };
        let mut hangs = Hangs::default();
        let both = [running(1, 0), running(2, 5)];
        assert_eq!(hangs.observe(&both, second(10)), [], "just within");
        let found = hangs.observe(&both, second(11));
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].who, found[0].since), (&[1][..], second(0)));
        assert_eq!(found[0].cause.action(), Action::EndProcess);
        let said = found[0].cause.to_string();
        assert_eq!(
            said,
            "Train hangs: no progress after 11s, where 10s was predicted"
        );
        assert_eq!(hangs.observe(&both, second(12)), [], "it is told");
        assert_eq!(hangs.observe(&both, second(16))[0].who, [2]);
        // Another handler of the same may hang, too.
        let next = [running(1, 20), running(2, 5)];
        assert_eq!(hangs.observe(&next, second(31))[0].who, [1]);
    }
}
