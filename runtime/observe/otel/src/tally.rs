//! Counts of actors by type that never go down, whoever comes and goes.
//!
//! An actor that is forgotten takes its row with it; what it has done stays counted here. Types are as
//! many as a program has; of each process only so many are told apart, and the rest is told as one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use odeon::{ActorId, ProcessId};
use odeon_observe::{ClusterView, Date};

/// Sums over the work of some actors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) handled: u64,
    pub(crate) failed: u64,
    pub(crate) restarts: u64,
    /// Nanoseconds.
    pub(crate) busy: u64,
    pub(crate) waited: u64,
}

/// Whose sums: a node's and job's, in one of its processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) process: ProcessId,
    /// The type; `None` for all that are more than are told apart.
    pub(crate) actor: Option<String>,
}

/// The same without the process, which goes while its sums stay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) node: String,
    pub(crate) job: String,
    pub(crate) actor: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    process: ProcessId,
    sums: Sums,
}

/// Sums over actors by type: of each process while it is told of, and of each node and job.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    last: HashMap<ActorId, Last>,
    by_process: BTreeMap<Key, Sums>,
    by_group: BTreeMap<Group, Sums>,
}

/// Types of a process, or of a node and job, that are told apart.
pub(crate) const TYPES_MAX: usize = 100;
/// Nodes and jobs that are told apart.
const GROUPS_MAX: usize = 10_000;
/// The time for which the sums of a process are told that has ended.
const ENDED_FOR: Duration = Duration::from_secs(60);

impl Sums {
    fn add(&mut self, more: &Self) {
        self.handled += more.handled;
        self.failed += more.failed;
        self.restarts += more.restarts;
        self.busy += more.busy;
        self.waited += more.waited;
    }

    /// The part that has come since `before`; all of it where something began anew.
    fn since(&self, before: &Self) -> Self {
        let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Self {
            handled: more(self.handled, before.handled),
            failed: more(self.failed, before.failed),
            restarts: more(self.restarts, before.restarts),
            busy: more(self.busy, before.busy),
            waited: more(self.waited, before.waited),
        }
    }
}

impl Tally {
    /// Counts what has come since the last time.
    pub(crate) fn take(&mut self, seen: &ClusterView, now: Date) {
        let mut present = HashSet::with_capacity(self.last.len());
        for row in seen.actors().iter() {
            present.insert(row.id());
            let sums = Sums {
                handled: row.handled,
                failed: row.view.failed,
                restarts: row.restarts().into(),
                busy: row.view.busy,
                waited: row.view.waited,
            };
            let process = row.view.process;
            let last = self.last.insert(row.id(), Last { process, sums });
            let before = match last {
                // What a process counts begins anew in the next one; what its supervisor counts does not.
                Some(last) if last.process != process => Sums {
                    handled: last.sums.handled,
                    restarts: last.sums.restarts,
                    ..Sums::default()
                },
                Some(last) => last.sums,
                None => Sums::default(),
            };
            let more = sums.since(&before);
            if more == Sums::default() && last.is_some() {
                continue;
            }
            let actor = row.view.actor.as_str();
            self.process_of(process, actor).add(&more);
            self.group_of(&row.node, &row.job, actor).add(&more);
        }
        self.last.retain(|id, _| present.contains(id));
        self.by_process.retain(|key, _| {
            let process = seen.process(key.process);
            process.is_some_and(|it| it.ended.is_none_or(|end| now.since(end) < ENDED_FOR))
        });
    }

    /// By process and type.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&Key, &Sums)> {
        self.by_process.iter()
    }

    /// By node, job and type, of processes that have ended too.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&Group, &Sums)> {
        self.by_group.iter()
    }

    fn process_of(&mut self, process: ProcessId, actor: &str) -> &mut Sums {
        let mut key = Key {
            process,
            actor: Some(actor.to_owned()),
        };
        if !self.by_process.contains_key(&key) {
            let first = Key {
                process,
                actor: None,
            };
            let own = self.by_process.range(first..);
            let own = own.take_while(|(key, _)| key.process == process);
            if own.count() >= TYPES_MAX {
                key.actor = None;
            }
        }
        self.by_process.entry(key).or_default()
    }

    fn group_of(&mut self, node: &str, job: &str, actor: &str) -> &mut Sums {
        let mut group = Group {
            node: node.to_owned(),
            job: job.to_owned(),
            actor: Some(actor.to_owned()),
        };
        if !self.by_group.contains_key(&group) {
            let first = Group {
                actor: None,
                ..group.clone()
            };
            let own = self.by_group.range(first..);
            let own = own.take_while(|(it, _)| (&it.node, &it.job) == (&group.node, &group.job));
            if own.count() >= TYPES_MAX {
                group.actor = None;
            }
            if self.by_group.len() >= GROUPS_MAX {
                group.actor = None;
                group.job = String::new();
            }
        }
        self.by_group.entry(group).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_types_than_are_told_apart_are_told_as_one() {
        let mut tally = Tally::default();
        let one = Sums {
            handled: 1,
            ..Sums::default()
        };
        for n in 0..TYPES_MAX + 5 {
            tally.process_of(ProcessId(1), &format!("t{n}")).add(&one);
            tally.group_of("n", "j", &format!("t{n}")).add(&one);
        }
        tally.process_of(ProcessId(1), "t0").add(&one);
        tally.process_of(ProcessId(2), "t0").add(&one);
        let rest = tally.processes().find(|(key, _)| key.actor.is_none());
        assert_eq!(rest.map(|(_, sums)| sums.handled), Some(5));
        assert_eq!(tally.processes().count(), TYPES_MAX + 2);
        let rest = tally.groups().find(|(group, _)| group.actor.is_none());
        assert_eq!(rest.map(|(_, sums)| sums.handled), Some(5));
    }

    #[test]
    fn what_begins_anew_counts_whole() {
        let of = |handled| Sums {
            handled,
            ..Sums::default()
        };
        assert_eq!(of(5).since(&of(3)), of(2));
        assert_eq!(of(2).since(&of(3)), of(2));
    }
}
