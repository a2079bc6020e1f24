//! Tries that do nothing: whether one has printed a line or used a processor. [`IdleWatch`] is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use odeon::{Clock, Timestamp};

use super::Agent;
use super::actor::{ORDER_PATIENCE, Used, reach};
use crate::job::JobId;
use crate::orphan_processes;

/// The work of a try up to a moment, over all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// Processor time of its processes that live, in milliseconds, each by its node and its number there.
    pub(super) cpu_ms: BTreeMap<(String, u64), u64>,
    /// Lines that it has printed.
    pub(super) lines: u64,
}

impl Activity {
    /// That of one node.
    fn at(node: &str, used: Vec<(u64, u64)>, lines: u64) -> Self {
        let used = used.into_iter();
        let cpu_ms = used.map(|(pid, ms)| ((node.to_owned(), pid), ms)).collect();
        Self { cpu_ms, lines }
    }
}

/// Watches one try for as long as it does nothing.
#[derive(Debug)]
pub(super) struct IdleWatch {
    limit: Duration,
    last: (Timestamp, Activity),
    /// Since when it does nothing.
    since: Timestamp,
}

/// The part of a processor that a process which waits uses at most, in hundredths: what looks at a clock now
/// and then is not at work, as the processes that host the ranks of a gang. On a slow machine the driver of a
/// gang was seen to use 1.2.
const WAITING_PERCENT: u128 = 3;
/// The longest pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

impl IdleWatch {
    pub(super) fn new(limit: Duration, now: Timestamp, activity: Activity) -> Self {
        Self {
            limit,
            last: (now, activity),
            since: now,
        }
    }

    /// A look at it. Returns true where it has done nothing for as long as it may. One whose processes
    /// cannot all be looked at is taken to work.
    pub(super) fn look(&mut self, now: Timestamp, seen: Option<Activity>) -> bool {
        let Some(seen) = seen else {
            self.since = now;
            return false;
        };
        let (at, before) = std::mem::replace(&mut self.last, (now, seen));
        let seen = &self.last.1;
        let printed = seen.lines != before.lines;
        let ended = before.cpu_ms.keys().any(|it| !seen.cpu_ms.contains_key(it));
        let most = now.since(at).as_millis() * WAITING_PERCENT;
        let worked = seen.cpu_ms.iter().any(|(process, used)| {
            let known = before.cpu_ms.get(process).copied().unwrap_or(0);
            u128::from(used.saturating_sub(known)) * 100 > most
        });
        if printed || ended || worked {
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
        there.into_iter().try_fold(here, |mut sum, it| {
            let it = it?;
            sum.cpu_ms.extend(it.cpu_ms);
            sum.lines += it.lines;
            Some(sum)
        })
    }

    async fn activity_at(&self, node: &str, tag: &str) -> Option<Activity> {
        let agent = reach(&self.inner.system, node).await.ok()?;
        let tag = tag.to_owned();
        let (used, lines) = agent.ask(Used { tag }).timeout(ORDER_PATIENCE).await.ok()?;
        Some(Activity::at(node, used, lines))
    }

    /// That of the processes on this node.
    pub(super) async fn activity_here(&self, of: (JobId, u32), tag: &str) -> Activity {
        let mark = self.mark(tag);
        let used = tokio::task::spawn_blocking(move || orphan_processes::cpu_ms(&mark)).await;
        let lines = self.inner.forward.lines(of);
        Activity::at(&self.inner.node, used.unwrap_or_default(), lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn did(cpu_ms: u64, lines: u64) -> Option<Activity> {
        Some(Activity::at("a", vec![(7, cpu_ms)], lines))
    }

    /// SEMANTICS 123.
    #[test]
    fn whoever_prints_or_works_is_not_idle() {
        let limit = Duration::from_secs(20);
        let begin = || IdleWatch::new(limit, at(0), Activity::default());
        // Three hundredths of a processor are no work, and more is.
        let mut waits = begin();
        let looks: Vec<bool> = (1..=4)
            .map(|n| waits.look(at(n * 5), did(n * 150, 0)))
            .collect();
        assert_eq!(looks, [false, false, false, true]);
        let mut works = begin();
        assert!((1..=40).all(|n| !works.look(at(n * 5), did(n * 151, 0))));
        let mut prints = begin();
        assert!((1..=40).all(|n| !prints.look(at(n * 5), did(0, n / 3))));
        // A process that ends, and a node that does not say, are signs of life.
        let mut ends = begin();
        assert!(!ends.look(at(5), did(900, 0)));
        let gone = || Some(Activity::default());
        assert!(!ends.look(at(24), gone()));
        assert!(!ends.look(at(43), gone()));
        assert!(ends.look(at(44), gone()));
        // Many that wait do not work together, and one that works is enough.
        let many = |ms: u64, last: u64| {
            let waiting = (0..99).map(|pid| (pid, ms));
            Some(Activity::at("a", waiting.chain([(99, last)]).collect(), 0))
        };
        let mut gang = begin();
        let looks: Vec<bool> = (1..=4)
            .map(|n| gang.look(at(n * 5), many(n * 140, n * 140)))
            .collect();
        assert_eq!(looks, [false, false, false, true]);
        let mut gang = begin();
        assert!((1..=40).all(|n| !gang.look(at(n * 5), many(0, n * 160))));
        let mut away = begin();
        assert!(!away.look(at(19), None));
        assert!(!away.look(at(38), did(0, 0)));
        assert!(away.look(at(39), did(0, 0)));
    }
}
