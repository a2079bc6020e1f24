//! Ranks that stand still: which program of a gang has neither printed nor worked, and since when. Pure.

use std::time::Duration;

use odeon::Timestamp;

use crate::exec::Activity;

/// Watches the ranks of one life.
#[derive(Debug)]
pub(super) struct Stillness {
    limit: Duration,
    ranks: Vec<Watched>,
}

/// A rank that is watched.
#[derive(Clone, Copy, Debug)]
struct Watched {
    last: Option<(Timestamp, Activity)>,
    /// Since when it stands still.
    since: Timestamp,
}

/// A rank that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Still {
    pub(super) rank: usize,
    /// The process of its program.
    pub(super) pid: u32,
    /// For how long.
    pub(super) lasts: Duration,
    /// Set where another rank has worked or printed meanwhile.
    pub(super) alone: bool,
}

/// The part of a processor that a program which waits uses at most, in hundredths.
const WAITING_PERCENT: u128 = 1;

impl Stillness {
    pub(super) fn new(ranks: usize, limit: Duration, now: Timestamp) -> Self {
        let watched = Watched {
            last: None,
            since: now,
        };
        Self {
            limit,
            ranks: vec![watched; ranks],
        }
    }

    /// A look at all ranks, of which those that do not answer or have ended are nothing. Returns the one
    /// that has stood still the longest, where that is as long as the limit.
    pub(super) fn look(&mut self, now: Timestamp, seen: &[Option<Activity>]) -> Option<Still> {
        for (watched, seen) in self.ranks.iter_mut().zip(seen) {
            watched.see(now, *seen);
        }
        let known = self.ranks.iter().enumerate();
        let known = known.filter_map(|(rank, it)| Some((rank, it.since, it.last?.1.pid)));
        let (rank, since, pid) = known.min_by_key(|(rank, since, _)| (*since, *rank))?;
        let lasts = now.since(since);
        let is_still = |it: &Watched| it.last.is_some() && now.since(it.since) >= self.limit;
        let alone = !self.ranks.iter().all(is_still);
        (lasts >= self.limit).then_some(Still {
            rank,
            pid,
            lasts,
            alone,
        })
    }
}

impl Watched {
    fn see(&mut self, now: Timestamp, seen: Option<Activity>) {
        let before = std::mem::replace(&mut self.last, seen.map(|seen| (now, seen)));
        let is_still = match (before, seen) {
            (Some((at, before)), Some(seen)) => {
                let most = now.since(at).as_millis() * WAITING_PERCENT;
                let used = seen.cpu_ms.checked_sub(before.cpu_ms);
                // Less than before is a process that has ended.
                let waits = used.is_some_and(|used| u128::from(used) * 100 <= most);
                waits && seen.lines == before.lines
            }
            _ => false,
        };
        if !is_still {
            self.since = now;
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
        Some(Activity {
            pid: 7,
            cpu_ms,
            lines,
        })
    }

    /// SEMANTICS 128.
    #[test]
    fn the_rank_that_stands_still_is_found_and_no_other() {
        let begin = || Stillness::new(3, Duration::from_secs(20), at(0));
        let mut gang = begin();
        // Rank 0 works, rank 1 prints, rank 2 uses a hundredth of a processor at most.
        let looks: Vec<_> = (1..=6)
            .map(|n| gang.look(at(n * 5), &[did(n * 1000, 0), did(0, n), did(n * 50, 0)]))
            .collect();
        assert_eq!(looks[..4], [None; 4]);
        let still = |lasts, alone| Still {
            rank: 2,
            pid: 7,
            lasts: Duration::from_secs(lasts),
            alone,
        };
        assert_eq!(looks[4..], [Some(still(20, true)), Some(still(25, true))]);
        // It prints again, and is no news any more.
        let moves = [did(9000, 0), did(0, 9), did(300, 1)];
        assert_eq!(gang.look(at(35), &moves), None);
        // Where the others wait for it, it is the one that has stopped first.
        let mut gang = begin();
        let step = |n: u64| [did(n.min(2) * 1000, 0), did(n.min(2) * 1000, 0), did(0, 0)];
        let looks: Vec<_> = (1..=7).map(|n| gang.look(at(n * 5), &step(n))).collect();
        assert_eq!(looks[3], None);
        assert_eq!(looks[4], Some(still(20, true)));
        assert_eq!(looks[6], Some(still(30, false)));
        // Whoever does not answer, has ended, or has a process less is not still.
        let mut gang = begin();
        for n in 1..=40 {
            let ends = did(if n % 3 == 0 { 0 } else { 500 }, 0);
            let away = did(0, 0).filter(|_| n % 3 > 0);
            assert_eq!(gang.look(at(n * 5), &[away, None, ends]), None);
        }
    }
}
