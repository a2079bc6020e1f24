//! A sketch of durations, as counts in buckets whose bounds grow by half octaves.
//!
//! One writer and any number of readers, without a lock. A bucket that is full has all of them
//! halved, so what was long ago fades: of an actor's messages, whose counts are narrow since there are
//! many of them, after some 65,000, and of a process's asks never in practice.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Two to an octave, from 512 ns to about 70 s; what is longer is in the last.
pub(crate) const BUCKETS: usize = 54;
/// The smallest exponent that has buckets of its own.
const FIRST_OCTAVE: u32 = 9;

/// The bucket of a time in nanoseconds.
const fn bucket_of(nanos: u64) -> usize {
    let octave = 63 - (nanos | 1).leading_zeros();
    if octave < FIRST_OCTAVE {
        return 0;
    }
    let upper_half = (nanos >> (octave - 1)) & 1;
    let bucket = 2 * (octave - FIRST_OCTAVE) as usize + upper_half as usize;
    if bucket < BUCKETS {
        bucket
    } else {
        BUCKETS - 1
    }
}

/// The times that a bucket begins and ends at, in nanoseconds.
const fn bounds_of(bucket: usize) -> (u64, u64) {
    const fn begin(bucket: usize) -> u64 {
        let octave = 1u64 << (FIRST_OCTAVE + bucket as u32 / 2);
        octave + (bucket as u64 % 2) * (octave / 2)
    }
    let from = if bucket == 0 { 0 } else { begin(bucket) };
    (from, begin(bucket + 1))
}

/// A count of some width, with relaxed order.
pub(crate) trait Count: Default {
    /// The largest count.
    const MOST: u32;

    fn load(&self) -> u32;
    fn store(&self, count: u32);
}

impl Count for AtomicU16 {
    const MOST: u32 = u16::MAX as u32;

    fn load(&self) -> u32 {
        self.load(Ordering::Relaxed).into()
    }

    fn store(&self, count: u32) {
        self.store(count as u16, Ordering::Relaxed);
    }
}

impl Count for AtomicU32 {
    const MOST: u32 = u32::MAX;

    fn load(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    fn store(&self, count: u32) {
        self.store(count, Ordering::Relaxed);
    }
}

/// Counts that one thread at a time adds to.
#[derive(Debug)]
pub(crate) struct Sketch<C = AtomicU16> {
    counts: [C; BUCKETS],
}

impl<C: Count> Default for Sketch<C> {
    fn default() -> Self {
        Self {
            counts: std::array::from_fn(|_| C::default()),
        }
    }
}

impl<C: Count> Sketch<C> {
    /// Adds one. Whoever calls it is the only one who does.
    pub(crate) fn add(&self, nanos: u64) {
        let count = &self.counts[bucket_of(nanos)];
        let present = count.load();
        if present == C::MOST {
            self.halve();
            return count.store(C::MOST / 2 + 1);
        }
        count.store(present + 1);
    }

    fn halve(&self) {
        for count in &self.counts {
            count.store(count.load() / 2);
        }
    }

    pub(crate) fn view(&self) -> Times {
        let counts = self.counts.each_ref().map(C::load);
        let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let last = counts.iter().rposition(|count| *count > 0);
        Times {
            first: first as u8,
            counts: last.map_or(vec![], |last| counts[first..=last].to_vec()),
        }
    }
}

/// A histogram of durations: counts in buckets that each begin by half an octave above the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// The bucket of the first count.
    first: u8,
    counts: Vec<u32>,
}

impl Times {
    /// The number of durations. What was long ago may have faded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The time that this part of all, from 0 to 1, does not exceed: within a fifth of the true one
    /// between 512 ns and 70 s. `None` when there are none.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let all = self.count();
        if all == 0 {
            return None;
        }
        let rank = (part.clamp(0.0, 1.0) * all as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (at, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            if below >= rank {
                let (from, to) = bounds_of(usize::from(self.first) + at);
                return Some(Duration::from_nanos(from.midpoint(to)));
            }
        }
        None
    }

    /// The bounds of the buckets that have counts, upper ones, and how many do not exceed each: rising
    /// in both. What is longer than the last, some 70 s, counts there.
    pub fn up_to(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut all = 0;
        let counts = self.counts.iter().enumerate();
        counts.map(move |(at, count)| {
            all += u64::from(*count);
            let (_, to) = bounds_of(usize::from(self.first) + at);
            (Duration::from_nanos(to), all)
        })
    }

    /// The sum of all, each as long as the middle of its bucket.
    #[must_use]
    pub fn sum(&self) -> Duration {
        let counts = self.counts.iter().enumerate();
        let sum: f64 = counts
            .map(|(at, count)| {
                let (from, to) = bounds_of(usize::from(self.first) + at);
                f64::from(*count) * from.midpoint(to) as f64
            })
            .sum();
        Duration::from_nanos(sum as u64)
    }

    /// Those of them that came after `before`, an earlier look at the same. `None` when some of what
    /// was there then has faded.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let at = |times: &Self, bucket: usize| {
            let at = bucket.checked_sub(usize::from(times.first));
            at.and_then(|at| times.counts.get(at)).copied().unwrap_or(0)
        };
        let counts: Option<Vec<u32>> = (0..BUCKETS)
            .map(|bucket| at(self, bucket).checked_sub(at(before, bucket)))
            .collect();
        let counts = counts?;
        let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let last = counts.iter().rposition(|count| *count > 0);
        Some(Self {
            first: first as u8,
            counts: last.map_or(vec![], |last| counts[first..=last].to_vec()),
        })
    }

    /// Both together.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        if other.counts.is_empty() {
            return self.clone();
        }
        if self.counts.is_empty() {
            return other.clone();
        }
        let end = |times: &Self| usize::from(times.first) + times.counts.len();
        let first = self.first.min(other.first);
        let mut counts = vec![0u32; end(self).max(end(other)) - usize::from(first)];
        for times in [self, other] {
            let at = usize::from(times.first - first);
            for (sum, count) in counts[at..].iter_mut().zip(&times.counts) {
                *sum = sum.saturating_add(*count);
            }
        }
        Self { first, counts }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_lie_side_by_side() {
        let mut end = 0;
        for bucket in 0..BUCKETS {
            let (from, to) = bounds_of(bucket);
            assert_eq!(from, end, "bucket {bucket}");
            assert_eq!(bucket_of(from), bucket);
            assert_eq!(bucket_of(to - 1), bucket);
            end = to;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_was_long_ago_fades() {
        let sketch = Sketch::<AtomicU16>::default();
        for _ in 0..u32::from(u16::MAX) {
            sketch.add(1_000);
        }
        for _ in 0..3 * u32::from(u16::MAX) {
            sketch.add(1_000_000);
        }
        let times = sketch.view();
        assert!(times.quantile(0.2).unwrap() > Duration::from_micros(500));
        assert!(times.count() > 0);
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_a_fifth_of_the_true_one(
            mut nanos in proptest::collection::vec(512u64..60_000_000_000, 1..300),
            part in 0.0f64..1.0,
        ) {
            let sketch = Sketch::<AtomicU16>::default();
            let (half, rest) = nanos.split_at(nanos.len() / 2);
            half.iter().for_each(|it| sketch.add(*it));
            let other = Sketch::<AtomicU16>::default();
            rest.iter().for_each(|it| other.add(*it));
            let times = sketch.view().merge(&other.view());
            nanos.sort_unstable();
            let rank = ((part * nanos.len() as f64).ceil() as usize).max(1) - 1;
            let (told, truth) = (times.quantile(part).unwrap().as_nanos() as f64, nanos[rank] as f64);
            prop_assert!((told - truth).abs() <= truth / 4.0, "{told} for {truth}");
            prop_assert_eq!(times.count(), nanos.len() as u64);
        }

        #[test]
        fn what_came_later_is_the_difference(
            before in proptest::collection::vec(0u64..1 << 50, 0..100),
            later in proptest::collection::vec(0u64..1 << 50, 0..100),
        ) {
            let sketch = Sketch::<AtomicU16>::default();
            before.iter().for_each(|it| sketch.add(*it));
            let first = sketch.view();
            later.iter().for_each(|it| sketch.add(*it));
            let alone = Sketch::<AtomicU16>::default();
            later.iter().for_each(|it| alone.add(*it));
            prop_assert_eq!(sketch.view().since(&first), Some(alone.view()));
            let faded = later.is_empty().then(Times::default);
            prop_assert_eq!(first.since(&sketch.view()), faded);
        }
    }
}
