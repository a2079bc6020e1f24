//! Nodes that are silent, as the node sees it that leads.
//!
//! Silence counts from what was last heard of a node, and of one that nothing was heard of yet from the
//! moment since which the leader expects something: when it began to lead, or when it saw the node say
//! that it is up. Time in which the leader itself did not run does not count for anybody.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use crate::{Action, Detector, Finding, FindingCause, Observation};

/// A node that says it is up. The look is at all of them; its moments are times since the clock of the
/// leader began.
#[derive(Clone, Debug)]
pub struct WatchedNode {
    /// Its name.
    pub name: String,
    /// Which life of it, and since when that is up.
    pub life: (u64, u64),
    /// The time for which nothing has come over the link to it, if there is one; no time for the
    /// node itself.
    pub silent_for: Option<Duration>,
}

impl Observation for [WatchedNode] {
    type Subject = String;
    type Moment = Duration;
    type Cause = Silent;
}

/// Nothing is heard of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// For so long.
    pub silent_for: Duration,
    /// From here on it is taken for lost.
    pub lost_after: Duration,
}

impl Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.silent_for.as_secs();
        write!(f, "nothing was heard from it for {secs} s")
    }
}

impl FindingCause for Silent {
    fn action(&self) -> Action {
        match self.silent_for > self.lost_after {
            true => Action::LoseNode,
            false => Action::Avoid,
        }
    }
}

/// Limits of silence.
#[derive(Clone, Copy, Debug)]
pub struct SilenceLimits {
    /// A node that is silent for longer gets no work.
    pub doubted_after: Duration,
    /// One of which nothing was heard yet is taken to be silent for so long at least.
    pub unheard: Duration,
    /// A node that is silent for longer is lost.
    pub lost_after: Duration,
}

impl SilenceLimits {
    /// The finding about a node that has been silent for so long; none while that is no reason to doubt it.
    #[must_use]
    pub fn judge(&self, silent_for: Duration) -> Option<Silent> {
        (silent_for > self.doubted_after).then_some(Silent {
            silent_for,
            lost_after: self.lost_after,
        })
    }
}

/// Finds nodes that are silent, in each look again until they are heard.
#[derive(Debug)]
pub struct Silence {
    limits: SilenceLimits,
    looked: Duration,
    /// Since when this leader listens.
    since: Duration,
    /// Set while nothing can be said of anybody: the last look came after a pause.
    is_deaf: bool,
    rows: BTreeMap<String, Row>,
}

/// The known times of a node that says it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Which life, and since when that is up.
    life: (u64, u64),
    /// Since when something of it is expected.
    expected: Duration,
    /// When it was looked at while it was linked, and how long it was silent then.
    seen: Option<(Duration, Duration)>,
}

impl Silence {
    /// That of a node which begins to lead at this moment.
    #[must_use]
    pub const fn new(now: Duration, limits: SilenceLimits) -> Self {
        Self {
            limits,
            looked: now,
            since: now,
            is_deaf: false,
            rows: BTreeMap::new(),
        }
    }

    /// Returns true when the last look said nothing of anybody, since this node did not run for half the
    /// time after which a node is lost: it listens anew.
    #[must_use]
    pub const fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    /// The time that each node has been silent.
    fn listen(&mut self, nodes: &[WatchedNode], now: Duration) -> BTreeMap<String, Duration> {
        let mut silent = BTreeMap::new();
        let known = std::mem::take(&mut self.rows);
        for node in nodes {
            let before = known.get(&node.name).filter(|row| row.life == node.life);
            let mut row = before.copied().unwrap_or(Row {
                life: node.life,
                expected: now,
                seen: None,
            });
            // What was heard before this one listened may be of another life.
            let listened = now.saturating_sub(self.since);
            if let Some(silent_for) = node.silent_for
                && silent_for < listened.max(Duration::from_nanos(1))
            {
                row.seen = Some((now, silent_for));
            }
            let silent_for = match row.seen {
                Some((at, before)) => now.saturating_sub(at) + before,
                None => now.saturating_sub(row.expected).max(self.limits.unheard),
            };
            silent.insert(node.name.clone(), silent_for);
            self.rows.insert(node.name.clone(), row);
        }
        silent
    }
}

impl Detector<[WatchedNode]> for Silence {
    fn observe(&mut self, seen: &[WatchedNode], at: Duration) -> Vec<Finding<[WatchedNode]>> {
        self.is_deaf = at.saturating_sub(self.looked) > self.limits.lost_after / 2;
        self.looked = at;
        if self.is_deaf {
            self.since = at;
            self.rows.clear();
            return vec![];
        }
        let silent = self.listen(seen, at).into_iter();
        let found = silent.filter_map(|(name, silent_for)| {
            Some(Finding {
                who: vec![name],
                cause: self.limits.judge(silent_for)?,
                since: at.saturating_sub(silent_for),
            })
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SilenceLimits = SilenceLimits {
        doubted_after: Duration::from_millis(500),
        unheard: Duration::from_secs(3),
        lost_after: Duration::from_secs(14),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn node(name: &str, life: u64, silent_for: Option<u64>) -> WatchedNode {
        WatchedNode {
            name: name.to_owned(),
            life: (life, life),
            silent_for: silent_for.map(Duration::from_secs),
        }
    }

    /// For how long each is silent, and the action where it is.
    fn seconds(silence: &mut Silence, nodes: &[WatchedNode], now: u64) -> Vec<u64> {
        let found = silence.observe(nodes, at(now));
        assert!(!silence.is_deaf());
        for it in &found {
            assert_eq!(it.since + it.cause.silent_for, at(now));
        }
        let of = |node: &WatchedNode| {
            let mut found = found.iter();
            let found = found.find(|it| it.who == [node.name.clone()]);
            found.map_or(0, |it| it.cause.silent_for.as_secs())
        };
        nodes.iter().map(of).collect()
    }

    /// SEMANTICS 60.
    #[test]
    fn a_node_that_has_just_said_that_it_is_up_is_no_older_than_that() {
        let mut silence = Silence::new(at(100), LIMITS);
        for now in 101..130 {
            assert_eq!(seconds(&mut silence, &[node("a", 1, Some(0))], now), [0]);
        }
        // It joins where this node leads for long, and is linked a while later.
        let both = |linked| [node("a", 1, Some(0)), node("z", 2, linked)];
        assert_eq!(seconds(&mut silence, &both(None), 130), [0, 3]);
        assert_eq!(seconds(&mut silence, &both(None), 135), [0, 5]);
        assert_eq!(seconds(&mut silence, &both(Some(1)), 136), [0, 1]);
        assert_eq!(seconds(&mut silence, &both(None), 140), [0, 5]);
        // A new life of it counts anew, and so does one that was taken for lost.
        let anew = [node("a", 1, Some(0)), node("z", 3, None)];
        assert_eq!(seconds(&mut silence, &anew, 146), [0, 3]);
        assert_eq!(seconds(&mut silence, &anew[..1], 147), [0]);
        assert_eq!(seconds(&mut silence, &anew, 148), [0, 3]);
    }

    /// SEMANTICS 60.
    #[test]
    fn a_leader_that_did_not_run_takes_nobody_for_lost_because_of_that() {
        let mut silence = Silence::new(at(0), LIMITS);
        let heard = |ago| [node("a", 1, Some(ago))];
        assert_eq!(seconds(&mut silence, &heard(0), 1), [0]);
        // Stopped for forty seconds, its links look as silent.
        assert_eq!(silence.observe(&heard(40), at(41)), []);
        assert!(silence.is_deaf());
        assert_eq!(seconds(&mut silence, &heard(41), 42), [3]);
        assert_eq!(seconds(&mut silence, &heard(0), 43), [0]);
    }

    #[test]
    fn one_that_is_silent_gets_no_work_and_later_is_lost() {
        let mut silence = Silence::new(at(0), LIMITS);
        silence.observe(&[node("a", 1, Some(0))], at(1));
        let mut action = |now: u64| {
            let found = silence.observe(&[node("a", 1, None)], at(now));
            let cause = found.first().map(|it| it.cause);
            cause.map(|cause| (cause.action(), cause.to_string()))
        };
        let said = |seconds: u64| format!("nothing was heard from it for {seconds} s");
        assert_eq!(action(1), None);
        assert_eq!(action(6), Some((Action::Avoid, said(5))));
        assert_eq!(action(11), Some((Action::Avoid, said(10))));
        assert_eq!(action(15), Some((Action::Avoid, said(14))), "just within");
        assert_eq!(action(16), Some((Action::LoseNode, said(15))));
    }
}
