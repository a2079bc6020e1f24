//! The silence of each node, as the node sees it that leads. Pure: time comes as an argument.
//!
//! Silence counts from what was last heard of a node, and of one that nothing was heard of yet from the
//! moment since which the leader expects something: when it began to lead, or when it saw the node say
//! that it is up. Time in which the leader itself did not run does not count for anybody.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::Timestamp;

use crate::unix::Unix;

/// The time of the last sign of each node that says it is up.
#[derive(Debug)]
pub struct Silence {
    /// A longer pause between two looks was none of the nodes'.
    pause_max: Duration,
    looked: Timestamp,
    /// Since when this leader listens.
    since: Timestamp,
    rows: BTreeMap<String, Row>,
}

/// The known times of a node that says it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Which life, and since when that is up.
    life: (u64, Unix),
    /// Since when something of it is expected.
    expected: Timestamp,
    /// When it was looked at while it was linked, and how long it was silent then.
    seen: Option<(Timestamp, Duration)>,
}

/// A node that says it is up.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Which life of it, and since when that is up.
    pub life: (u64, Unix),
    /// The time for which nothing has come over the link to it, if there is one; no time for the
    /// node itself.
    pub silent_for: Option<Duration>,
}

impl Silence {
    /// That of a node which begins to lead.
    #[must_use]
    pub const fn new(now: Timestamp, pause_max: Duration) -> Self {
        Self {
            pause_max,
            looked: now,
            since: now,
            rows: BTreeMap::new(),
        }
    }

    /// The time that each has been silent; at least `doubt` where nothing was heard yet. `None`
    /// when this node did not run for a while: it has to listen anew.
    pub fn look(
        &mut self,
        nodes: &[Known],
        doubt: Duration,
        now: Timestamp,
    ) -> Option<BTreeMap<String, Duration>> {
        let paused = now.since(self.looked) > self.pause_max;
        self.looked = now;
        if paused {
            self.since = now;
            self.rows.clear();
            return None;
        }
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
            if let Some(silent_for) = node.silent_for
                && silent_for < now.since(self.since).max(Duration::from_nanos(1))
            {
                row.seen = Some((now, silent_for));
            }
            let silent_for = match row.seen {
                Some((at, before)) => now.since(at) + before,
                None => now.since(row.expected).max(doubt),
            };
            silent.insert(node.name.clone(), silent_for);
            self.rows.insert(node.name.clone(), row);
        }
        Some(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOUBT: Duration = Duration::from_secs(3);
    const PAUSE_MAX: Duration = Duration::from_secs(7);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn node(name: &str, life: u64, silent_for: Option<u64>) -> Known {
        Known {
            name: name.to_owned(),
            life: (life, Unix(life)),
            silent_for: silent_for.map(Duration::from_secs),
        }
    }

    fn seconds(silence: &mut Silence, nodes: &[Known], now: u64) -> Vec<u64> {
        let silent = silence.look(nodes, DOUBT, at(now)).unwrap();
        silent.values().map(Duration::as_secs).collect()
    }

    /// SEMANTICS 60.
    #[test]
    fn a_node_that_has_just_said_that_it_is_up_is_no_older_than_that() {
        let mut silence = Silence::new(at(100), PAUSE_MAX);
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
        let mut silence = Silence::new(at(0), PAUSE_MAX);
        let heard = |ago| [node("a", 1, Some(ago))];
        assert_eq!(seconds(&mut silence, &heard(0), 1), [0]);
        // Stopped for forty seconds, its links look as silent.
        assert_eq!(silence.look(&heard(40), DOUBT, at(41)), None);
        assert_eq!(seconds(&mut silence, &heard(41), 42), [3]);
        assert_eq!(seconds(&mut silence, &heard(0), 43), [0]);
    }
}
