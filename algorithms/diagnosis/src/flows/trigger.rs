//! The trigger: a look at few ranks that says that something is wrong with the job, not what.

use std::collections::VecDeque;
use std::time::Duration;

use odeon_collective::{CallState, FlowMember};

use super::look::RankWindow;

/// Ranks that are looked at, whatever the size of the job.
pub const SAMPLE_RANKS: usize = 10;
/// The time over which the rate of calls is taken.
const LATELY: Duration = Duration::from_secs(4);
/// Rates that are remembered: of some minutes.
const RATES: usize = 60;
/// Rates from which on there is something to compare with.
const RATES_MIN: usize = 3;
/// Slower than this part of what is usual is slow.
const SLOW: f64 = 0.5;
/// One in so many slow rates is remembered, so that what goes on for many minutes becomes usual.
const SLOW_KEPT: u32 = 4;
/// Calls of the usual length without which a rank stands still, in any case after [`STILL_MIN`].
const STILL_CALLS: f64 = 5.0;
const STILL_MIN: Duration = Duration::from_secs(2);
/// The same where nothing is known of what is usual.
const STILL_FIRST: Duration = Duration::from_secs(30);

/// The kind of thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// No call ends, or one has ended with a fault.
    Stalled,
    /// Fewer calls end than usual.
    Slow,
}

/// Looks at [`SAMPLE_RANKS`] ranks at most.
#[derive(Clone, Debug)]
pub struct FlowTrigger {
    samples: Vec<Sample>,
    ranks: usize,
    read: u64,
    still_first: Duration,
}

impl Default for FlowTrigger {
    fn default() -> Self {
        Self {
            samples: vec![],
            ranks: 0,
            read: 0,
            still_first: STILL_FIRST,
        }
    }
}

/// A rank that is looked at.
#[derive(Clone, Debug)]
struct Sample {
    index: usize,
    member: FlowMember,
    /// Calls a second, as they were.
    rates: VecDeque<f64>,
    /// Slow ones so far.
    slow: u32,
}

impl FlowTrigger {
    /// Looks of ranks that it has read so far.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// Sets the time without a call that ends after which a rank stands still of which nothing is known of what is usual,
    /// 30 s at most.
    #[must_use]
    pub fn still_first(mut self, limit: Duration) -> Self {
        self.still_first = limit.min(STILL_FIRST);
        self
    }

    /// Looks at the sample.
    pub fn observe(&mut self, ranks: &[RankWindow], now: Duration) -> Option<TriggerKind> {
        let known = |it: &Sample| {
            ranks
                .get(it.index)
                .is_some_and(|at| at.member() == it.member)
        };
        if ranks.len() != self.ranks || !self.samples.iter().all(known) {
            self.sample(ranks);
        }
        let mut kind = None;
        for sample in &mut self.samples {
            let (of_sample, read) = sample.look(&ranks[sample.index], now, self.still_first);
            self.read += read;
            kind = match (kind, of_sample) {
                (Some(TriggerKind::Stalled), _) | (_, None) => kind,
                (_, found) => found,
            };
        }
        kind
    }

    /// Takes ranks that lie far apart, and so in different groups.
    fn sample(&mut self, ranks: &[RankWindow]) {
        let count = ranks.len().min(SAMPLE_RANKS);
        let samples = (0..count).map(|number| {
            // Another place in each part, so that not all are the first of their groups.
            let part = ranks.len() / count.max(1);
            let index = number * ranks.len() / count + number % part.max(1);
            let index = index.min(ranks.len() - 1);
            Sample {
                index,
                member: ranks[index].member(),
                rates: VecDeque::new(),
                slow: 0,
            }
        });
        self.samples = samples.collect();
        self.ranks = ranks.len();
    }
}

impl Sample {
    /// Says what is wrong with it, and how many looks were read.
    fn look(
        &mut self,
        rank: &RankWindow,
        now: Duration,
        still_first: Duration,
    ) -> (Option<TriggerKind>, u64) {
        let (mut completed, mut looks) = (0, 0);
        let (mut failed, mut called) = (false, false);
        for look in rank.lately(now, LATELY) {
            // A rank that had failed before may have gone on since.
            let is_newest = looks == 0;
            looks += 1;
            for group in &look.groups {
                completed += u64::from(group.completed);
                failed |= is_newest && group.state == CallState::Failed;
                called = true;
            }
        }
        if failed {
            return (Some(TriggerKind::Stalled), looks);
        }
        let usual = self.usual();
        let patience = match usual.filter(|usual| *usual > 0.0) {
            Some(usual) => Duration::from_secs_f64((STILL_CALLS / usual).min(600.0)).max(STILL_MIN),
            None => still_first,
        };
        if called && now.saturating_sub(rank.progressed()) > patience {
            return (Some(TriggerKind::Stalled), looks);
        }
        let rate = completed as f64 / LATELY.as_secs_f64();
        let slow = usual.is_some_and(|usual| rate < usual * SLOW);
        self.slow += u32::from(slow);
        if looks > 0 && (!slow || self.slow.is_multiple_of(SLOW_KEPT)) {
            self.rates.push_back(rate);
            if self.rates.len() > RATES {
                self.rates.pop_front();
            }
        }
        (slow.then_some(TriggerKind::Slow), looks)
    }

    /// The median of the rates before.
    fn usual(&self) -> Option<f64> {
        if self.rates.len() < RATES_MIN {
            return None;
        }
        let mut rates: Vec<f64> = self.rates.iter().copied().collect();
        rates.sort_by(f64::total_cmp);
        Some(rates[rates.len() / 2])
    }
}
