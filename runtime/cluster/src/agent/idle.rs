//! Tries that do nothing: whether one has printed a line or used a processor. [`IdleWatch`] is pure.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use odeon::{Clock, Timestamp};

use super::Agent;
use super::actor::{ORDER_PATIENCE, Used, reach};
use crate::job::JobId;
use crate::orphan_processes;

/// The work of a try up to a moment, over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// Processor time of its processes that live, in milliseconds.
    pub(super) cpu_ms: u64,
    /// Lines that it has printed.
    pub(super) lines: u64,
}

/// Watches one try for as long as it does nothing.
#[derive(Debug)]
pub(super) struct IdleWatch {
    limit: Duration,
    last: (Timestamp, Activity),
    /// Since when it does nothing.
    since: Timestamp,
}

/// The part of a processor that whoever waits uses at most, in hundredths: what looks at a clock now and
/// then is not at work.
const WAITING_PERCENT: u128 = 1;
/// The longest pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

impl IdleWatch {
    pub(super) const fn new(limit: Duration, now: Timestamp, activity: Activity) -> Self {
        Self {
            limit,
            last: (now, activity),
            since: now,
        }
    }

    /// A look at it. Returns true where it has done nothing for as long as it may. One whose processes
    /// cannot all be looked at is taken to work.
    pub(super) fn look(&mut self, now: Timestamp, seen: Option<Activity>) -> bool {
        let (at, before) = self.last;
        let Some(seen) = seen else {
            self.since = now;
            return false;
        };
        self.last = (now, seen);
        let printed = seen.lines != before.lines;
        // A process that has ended takes its time along.
        let worked = match seen.cpu_ms.checked_sub(before.cpu_ms) {
            None => true,
            Some(used) => u128::from(used) * 100 > now.since(at).as_millis() * WAITING_PERCENT,
        };
        if printed || worked {
            self.since = now;
        }
        now.since(self.since) >= self.limit
    }
}

impl Agent {
    /// Resolves when a try has neither printed anything nor used a processor for so long.
    pub(super) async fn idles(&self, of: (JobId, u32), tag: &str, limit: Duration) {
        let begun = self.activity(of, tag).await.unwrap_or_default();
        let mut watch = IdleWatch::new(limit, Clock::now(), begun);
        loop {
            Clock::sleep(LOOK_PAUSE.min(limit / 4)).await;
            let seen = self.activity(of, tag).await;
            if watch.look(Clock::now(), seen) {
                return;
            }
        }
    }

    /// The work of a try up to now; nothing where a node does not say.
    async fn activity(&self, of: (JobId, u32), tag: &str) -> Option<Activity> {
        let places: BTreeSet<String> = {
            let book = self.inner.book.lock();
            book.places.get(&of).cloned().unwrap_or_default()
        };
        let there = places.iter().map(|node| self.activity_at(node, tag));
        let (here, there) = tokio::join!(self.activity_here(of, tag), join_all(there));
        there.into_iter().try_fold(here, |sum, it| {
            let it = it?;
            Some(Activity {
                cpu_ms: sum.cpu_ms + it.cpu_ms,
                lines: sum.lines + it.lines,
            })
        })
    }

    async fn activity_at(&self, node: &str, tag: &str) -> Option<Activity> {
        let agent = reach(&self.inner.system, node).await.ok()?;
        let tag = tag.to_owned();
        let (cpu_ms, lines) = agent.ask(Used { tag }).timeout(ORDER_PATIENCE).await.ok()?;
        Some(Activity { cpu_ms, lines })
    }

    /// That of the processes on this node.
    pub(super) async fn activity_here(&self, of: (JobId, u32), tag: &str) -> Activity {
        let mark = self.mark(tag);
        let used = tokio::task::spawn_blocking(move || orphan_processes::cpu_ms(&mark)).await;
        Activity {
            cpu_ms: used.unwrap_or(0),
            lines: self.inner.forward.lines(of),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn did(cpu_ms: u64, lines: u64) -> Option<Activity> {
        Some(Activity { cpu_ms, lines })
    }

    /// SEMANTICS 123.
    #[test]
    fn whoever_prints_or_works_is_not_idle() {
        let limit = Duration::from_secs(20);
        let begin = || IdleWatch::new(limit, at(0), Activity::default());
        // A hundredth of a processor is no work, and more is.
        let mut waits = begin();
        let looks: Vec<bool> = (1..=4)
            .map(|n| waits.look(at(n * 5), did(n * 50, 0)))
            .collect();
        assert_eq!(looks, [false, false, false, true]);
        let mut works = begin();
        assert!((1..=40).all(|n| !works.look(at(n * 5), did(n * 51, 0))));
        let mut prints = begin();
        assert!((1..=40).all(|n| !prints.look(at(n * 5), did(0, n / 3))));
        // A process that ends, and a node that does not say, are signs of life.
        let mut ends = begin();
        assert!(!ends.look(at(5), did(900, 0)));
        assert!(!ends.look(at(24), did(10, 0)));
        assert!(!ends.look(at(43), did(10, 0)));
        assert!(ends.look(at(44), did(10, 0)));
        let mut away = begin();
        assert!(!away.look(at(19), None));
        assert!(!away.look(at(38), did(0, 0)));
        assert!(away.look(at(39), did(0, 0)));
    }
}
