//! Ranks that hold up the others, by what is seen of their processes: the lines that they print, the processor time
//! that they use, and how often they were seen to wait.
//!
//! Ranks of one program wait for each other, so a rank that stops soon stops all. Three looks tell them apart: whoever
//! sleeps, is stopped or works while the others wait for it is to blame; whoever waits as the others do is not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Display};
use std::time::Duration;

use crate::{Action, Detector, Finding, FindingCause, Observation};

/// The work of a rank up to a moment. Numbers only grow, unless its program began anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankLook {
    /// The process of its program.
    pub pid: u32,
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
    /// Lines that it has printed.
    pub lines: u64,
    /// The last step that it has named in a line.
    pub step: Option<u64>,
    /// Times that its main thread was looked at, and how many of these it waited for somebody: for data of a socket or
    /// a pipe, or for another thread. Sleep is no such wait.
    pub samples: u64,
    /// See `samples`.
    pub waiting: u64,
    /// The loss that it printed last, where that is no number.
    pub odd_number: Option<OddNumber>,
}

/// A number that a rank has printed and that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddNumber {
    /// Its name.
    pub name: String,
    /// The last step that was named before.
    pub step: Option<u64>,
    /// When the first of them was printed, in microseconds since 1970.
    pub at_us: u64,
}

/// The look is at all ranks of a gang; of those that do not answer or have ended there is nothing. Moments are times
/// since a clock began.
impl Observation for [Option<RankLook>] {
    type Subject = usize;
    type Moment = Duration;
    type Cause = RankTrouble;
}

/// The trouble with a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum RankTrouble {
    /// It has neither printed nor worked for so long.
    Still {
        /// The time since it last did.
        lasts: Duration,
        /// The doing of the others meanwhile.
        others: Others,
    },
    /// It makes fewer steps than the others, or these wait for it.
    Slow {
        /// Its time for a step as a multiple of that of the others, where that is known.
        times: Option<f64>,
        /// The part of the time that the others wait, in hundredths, where they wait for it.
        others_wait: Option<u32>,
    },
    /// It printed a loss that is no number, before any other rank did.
    NotFinite {
        /// The number.
        number: OddNumber,
        /// Others that have printed one since.
        others: usize,
    },
}

/// The doing of the other ranks while one stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They work or print.
    Work,
    /// They wait, as for a peer.
    Wait,
    /// They stand still, and did so later.
    StoppedLater,
}

impl Display for RankTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Still { lasts, others } => {
                let seconds = lasts.as_secs();
                write!(
                    f,
                    "stands still: it has neither printed nor worked for {seconds} s, {others}"
                )
            }
            Self::Slow {
                times: Some(times),
                others_wait: _,
            } => {
                write!(
                    f,
                    "is slow: it takes {times:.1} times as long for a step as the median rank (limit {SLOW_TIMES})"
                )
            }
            Self::Slow {
                times: None,
                others_wait,
            } => {
                let percent = others_wait.unwrap_or_default();
                write!(
                    f,
                    "is slow: the others wait for {percent} % of the time, and it hardly ever does"
                )
            }
            Self::NotFinite { number, others } => {
                write!(f, "printed a {} that is no number", number.name)?;
                if let Some(step) = number.step {
                    write!(f, ", first in step {step}")?;
                }
                match others {
                    0 => Ok(()),
                    1 => f.write_str(", and another rank has since"),
                    others => write!(f, ", and {others} other ranks have since"),
                }
            }
        }
    }
}

impl Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Work => "while others have",
            Self::Wait => "and does not wait for anybody, while the others do",
            Self::StoppedLater => "and neither have the others since",
        })
    }
}

impl FindingCause for RankTrouble {
    fn action(&self) -> Action {
        Action::Tell
    }
}

type Ranks = [Option<RankLook>];

/// Finds ranks that stand still, in each look as long as they do. Where all are quiet alike, as at their start or while
/// one thing is waited for together, nobody is named.
#[derive(Clone, Debug)]
pub struct StillRanks {
    limit: Duration,
    always_names: bool,
    ranks: Vec<Watched>,
}

/// A rank that is watched.
#[derive(Clone, Debug)]
struct Watched {
    last: Option<(Duration, RankLook)>,
    /// Set once it was seen.
    came: bool,
    /// Since when it stands still.
    since: Duration,
    /// When it was seen to move last, and the time before. Whoever comes or answers again was not seen to.
    moves: [Option<Duration>; 2],
    /// Samples and waits when that began.
    from: (u64, u64),
}

impl StillRanks {
    /// One that begins to watch at this moment, and names who stands still for so long.
    #[must_use]
    pub fn new(ranks: usize, limit: Duration, now: Duration) -> Self {
        let watched = Watched {
            last: None,
            came: false,
            since: now,
            moves: [None; 2],
            from: (0, 0),
        };
        Self {
            limit,
            always_names: false,
            ranks: vec![watched; ranks],
        }
    }

    /// Names the rank that has stood still the longest where nothing tells who is to blame.
    #[must_use]
    pub const fn always_names(mut self) -> Self {
        self.always_names = true;
        self
    }

    /// The ranks to blame of those that stand still, and the doing of the others.
    fn blamed(&self, still: &[usize]) -> (Vec<usize>, Others) {
        let known = self.known().count();
        let waits = |rank: &&usize| self.ranks[**rank].waits();
        if 2 * still.len() < known {
            return (still.to_vec(), Others::Work);
        }
        // Most stand still: those for whom they wait are to blame. Half that waits may wait for the other half.
        if 2 * still.len() == known && still.iter().all(|rank| waits(&rank) == Some(false)) {
            return (still.to_vec(), Others::Work);
        }
        let awake: Vec<usize> = still
            .iter()
            .filter(|rank| waits(rank) == Some(false))
            .copied()
            .collect();
        let waiting = still
            .iter()
            .filter(|rank| waits(rank) == Some(true))
            .count();
        if !awake.is_empty() && 2 * awake.len() < known && 2 * waiting >= known {
            return (awake, Others::Wait);
        }
        let mut by_age: Vec<usize> = still.to_vec();
        by_age.sort_by_key(|rank| (self.ranks[*rank].since, *rank));
        let since = |at: usize| by_age.get(at).map(|rank| self.ranks[*rank].since);
        let is_far_ahead = match (since(0), since(1)) {
            (Some(first), Some(second)) => second.saturating_sub(first) >= self.limit / 2,
            _ => false,
        };
        // One that waits waits for who works.
        let is_far_ahead = is_far_ahead && waits(&&by_age[0]) != Some(true);
        match self.always_names || is_far_ahead {
            true => {
                by_age.truncate(1);
                let others = match still.len() == known {
                    true => Others::StoppedLater,
                    false => Others::Work,
                };
                (by_age, others)
            }
            false => (vec![], Others::StoppedLater),
        }
    }

    fn known(&self) -> impl Iterator<Item = (usize, &Watched)> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter(|(_, it)| it.last.is_some())
    }
}

impl Detector<Ranks> for StillRanks {
    fn observe(&mut self, seen: &Ranks, at: Duration) -> Vec<Finding<Ranks>> {
        let mut comes = false;
        for (watched, seen) in self.ranks.iter_mut().zip(seen) {
            watched.see(at, seen.as_ref());
            comes |= seen.is_some() && !std::mem::replace(&mut watched.came, true);
        }
        // Those that were there before have waited for it.
        for watched in self.ranks.iter_mut().filter(|_| comes) {
            watched.begin(at);
        }
        let lasts = |since: Duration| at.saturating_sub(since);
        let still = self.known().filter(|(_, it)| lasts(it.since) >= self.limit);
        let still: Vec<usize> = still.map(|(rank, _)| rank).collect();
        // Others that are quiet by now do not work: they may have begun to wait later, as those do that started last. And
        // all may begin to work between the look at this one and the looks at them: once is not enough.
        let twice = |it: &Watched| it.moves[1].is_some_and(|at| 8 * lasts(at) <= 3 * self.limit);
        let busy = self.known().filter(|(_, it)| twice(it));
        let is_early = 2 * busy.count() <= self.known().count() - still.len();
        let few = 2 * still.len() <= self.known().count();
        if still.is_empty() || (is_early && few && !self.always_names) {
            return vec![];
        }
        let (blamed, others) = self.blamed(&still);
        let found = blamed.into_iter().map(|rank| {
            let since = self.ranks[rank].since;
            Finding {
                who: vec![rank],
                cause: RankTrouble::Still {
                    lasts: lasts(since),
                    others,
                },
                since,
            }
        });
        found.collect()
    }
}

impl Watched {
    fn see(&mut self, now: Duration, seen: Option<&RankLook>) {
        let before = std::mem::replace(&mut self.last, seen.map(|seen| (now, seen.clone())));
        let is_still = match (&before, seen) {
            (Some((at, before)), Some(seen)) => {
                let most = now.saturating_sub(*at).as_millis() * WAITING_PERCENT;
                let used = seen.cpu_ms.checked_sub(before.cpu_ms);
                // Less than before is a process that has ended.
                let rests = used.is_some_and(|used| u128::from(used) * 100 <= most);
                rests && seen.lines == before.lines
            }
            _ => false,
        };
        if !is_still {
            if before.is_some() && seen.is_some() {
                self.moves = [Some(now), self.moves[0]];
            }
            self.begin(now);
        }
    }

    /// Begins to stand still.
    fn begin(&mut self, now: Duration) {
        self.since = now;
        let last = self.last.as_ref();
        self.from = last.map_or((0, 0), |(_, seen)| (seen.samples, seen.waiting));
    }

    /// Returns true where it was seen to wait while it stood still; nothing where that is not known.
    fn waits(&self) -> Option<bool> {
        let (_, last) = self.last.as_ref()?;
        let taken = last.samples.checked_sub(self.from.0)?;
        let waiting = last.waiting.checked_sub(self.from.1)?;
        (taken >= STILL_SAMPLES).then_some(waiting * 100 >= taken * MOSTLY_PERCENT)
    }
}

/// Finds ranks that take much longer for their steps than the others, in each look as long as they do: by the steps
/// that they name, by their lines and their processor time together, or since the others wait and they do not.
#[derive(Clone, Debug)]
pub struct SlowRanks {
    window: Duration,
    looks: VecDeque<(Duration, Vec<Option<RankLook>>)>,
    /// The ranks that the last look found, and since when each is slow.
    found: BTreeMap<usize, Duration>,
}

impl SlowRanks {
    /// One that compares over a time of this length.
    #[must_use]
    pub const fn new(window: Duration) -> Self {
        Self {
            window,
            looks: VecDeque::new(),
            found: BTreeMap::new(),
        }
    }

    /// The ranks that are slow between the oldest look and this one.
    fn slow(&self, seen: &Ranks) -> Vec<(usize, RankTrouble)> {
        let Some((from, first)) = self.looks.front() else {
            return vec![];
        };
        let spans = spans(first, seen);
        let by_steps = slow_by_steps(&spans);
        if !by_steps.is_empty() {
            return by_steps;
        }
        let by_lines = slow_by_lines(&spans);
        if !by_lines.is_empty() {
            return by_lines;
        }
        // In each part of the time: a rank that works alone for a while fills one of them.
        let marks = (1..PARTS).map(|part| *from + self.window * part / PARTS);
        let between = marks.filter_map(|mark| self.looks.iter().find(|(at, _)| *at >= mark));
        let mut looks: Vec<&Ranks> = vec![first];
        looks.extend(between.map(|(_, look)| look.as_slice()));
        looks.push(seen);
        let mut parts = looks
            .windows(2)
            .map(|part| awaited(&self::spans(part[0], part[1])));
        let whole = awaited(&spans);
        let mut holds =
            |rank: usize| parts.all(|part| part.is_some_and(|(other, _)| other == rank));
        whole
            .filter(|(rank, _)| holds(*rank))
            .map(|(rank, percent)| {
                let trouble = RankTrouble::Slow {
                    times: None,
                    others_wait: Some(percent),
                };
                (rank, trouble)
            })
            .into_iter()
            .collect()
    }
}

impl Detector<Ranks> for SlowRanks {
    fn observe(&mut self, seen: &Ranks, at: Duration) -> Vec<Finding<Ranks>> {
        let is_old = |then: Duration| at.saturating_sub(then) > self.window + self.window / 4;
        while self.looks.front().is_some_and(|(then, _)| is_old(*then)) {
            self.looks.pop_front();
        }
        let from = self.looks.front().map(|(then, _)| *then);
        let slow = match from {
            Some(from) if at.saturating_sub(from) >= self.window => self.slow(seen),
            _ => vec![],
        };
        self.looks.push_back((at, seen.to_vec()));
        let before = std::mem::take(&mut self.found);
        let mut findings = vec![];
        for (rank, cause) in slow {
            let known = before.get(&rank).copied();
            let since = known.or(from).unwrap_or(at);
            self.found.insert(rank, since);
            // Once may be a hiccup of the machine.
            if known.is_some() {
                findings.push(Finding {
                    who: vec![rank],
                    cause,
                    since,
                });
            }
        }
        findings
    }
}

/// The work of a rank between two looks.
#[derive(Clone, Copy, Debug)]
struct Span {
    cpu_ms: u64,
    lines: u64,
    steps: Option<u64>,
    samples: u64,
    waiting: u64,
}

impl Span {
    fn between(then: &RankLook, now: &RankLook) -> Option<Self> {
        if then.pid != now.pid {
            return None;
        }
        Some(Self {
            cpu_ms: now.cpu_ms.checked_sub(then.cpu_ms)?,
            lines: now.lines.checked_sub(then.lines)?,
            // Less than before is another epoch.
            steps: now
                .step
                .zip(then.step)
                .and_then(|(now, then)| now.checked_sub(then)),
            samples: now.samples.checked_sub(then.samples)?,
            waiting: now.waiting.checked_sub(then.waiting)?,
        })
    }

    /// The part of the samples in which it waited, in hundredths.
    fn waiting_percent(&self) -> Option<u32> {
        (self.samples >= SLOW_SAMPLES).then(|| (self.waiting * 100 / self.samples) as u32)
    }
}

/// The work of all ranks that are the same in both looks.
fn spans(first: &Ranks, last: &Ranks) -> BTreeMap<usize, Span> {
    let both = first.iter().zip(last).enumerate();
    both.filter_map(|(rank, (then, now))| {
        let span = Span::between(then.as_ref()?, now.as_ref()?)?;
        Some((rank, span))
    })
    .collect()
}

/// Ranks that have made less than half as many steps as the median rank.
fn slow_by_steps(spans: &BTreeMap<usize, Span>) -> Vec<(usize, RankTrouble)> {
    let steps = spans
        .iter()
        .filter_map(|(rank, it)| Some((*rank, it.steps?)));
    let steps: Vec<(usize, u64)> = steps.collect();
    let Some(median) = median(steps.iter().map(|(_, steps)| *steps)) else {
        return vec![];
    };
    if median < STEPS_MIN {
        return vec![];
    }
    behind(&steps, median)
}

/// Ranks that have printed less than half as many lines as the median rank, and used less than half of its processor
/// time: one that prints less alone may have less to say.
fn slow_by_lines(spans: &BTreeMap<usize, Span>) -> Vec<(usize, RankTrouble)> {
    if spans.values().any(|it| it.steps.is_some() || it.lines == 0) {
        return vec![];
    }
    let lines: Vec<(usize, u64)> = spans.iter().map(|(rank, it)| (*rank, it.lines)).collect();
    let both = median(lines.iter().map(|(_, lines)| *lines))
        .zip(median(spans.values().map(|it| it.cpu_ms)));
    let Some((median_lines, median_cpu)) = both.filter(|(lines, _)| *lines >= LINES_MIN) else {
        return vec![];
    };
    let mut slow = behind(&lines, median_lines);
    slow.retain(|(rank, _)| spans[rank].cpu_ms as f64 * SLOW_TIMES < median_cpu as f64);
    slow
}

/// Those that have less than half of what the median rank has.
fn behind(all: &[(usize, u64)], median: u64) -> Vec<(usize, RankTrouble)> {
    let slow = all
        .iter()
        .filter(|(_, own)| *own as f64 * SLOW_TIMES < median as f64);
    let slow = slow.map(|(rank, own)| {
        let trouble = RankTrouble::Slow {
            times: Some(median as f64 / (*own).max(1) as f64),
            others_wait: None,
        };
        (*rank, trouble)
    });
    slow.collect()
}

/// The rank for which all others wait much of the time, while they work, too, and that itself hardly waits; with the mean
/// of their waits, in hundredths.
fn awaited(spans: &BTreeMap<usize, Span>) -> Option<(usize, u32)> {
    let waiting: Option<BTreeMap<usize, u32>> = spans
        .iter()
        .map(|(rank, it)| Some((*rank, it.waiting_percent()?)))
        .collect();
    let waiting = waiting.filter(|it| it.len() >= RANKS_MIN)?;
    let busiest = waiting
        .iter()
        .min_by_key(|(rank, percent)| (**percent, **rank))?;
    let others: Vec<u32> = waiting
        .iter()
        .filter(|(rank, _)| *rank != busiest.0)
        .map(|(_, percent)| *percent)
        .collect();
    let all_wait = others.iter().all(|percent| *percent >= AWAITED_PERCENT);
    let some_work = others.iter().any(|percent| *percent <= AWAITED_PERCENT_MAX);
    let mean = others.iter().sum::<u32>() / others.len() as u32;
    let found = *busiest.1 <= BUSY_PERCENT && all_wait && some_work;
    found.then_some((*busiest.0, mean))
}

/// The median of as many numbers as it takes to say that one is odd.
fn median(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    (numbers.len() >= RANKS_MIN).then(|| numbers[numbers.len() / 2])
}

/// Finds the rank that was the first to print a loss that is no number, as long as it prints no other.
#[derive(Clone, Debug, Default)]
pub struct OddNumbers;

impl Detector<Ranks> for OddNumbers {
    fn observe(&mut self, seen: &Ranks, at: Duration) -> Vec<Finding<Ranks>> {
        let odd = seen.iter().enumerate();
        let odd = odd.filter_map(|(rank, it)| Some((it.as_ref()?.odd_number.as_ref()?, rank)));
        let odd: Vec<(&OddNumber, usize)> = odd.collect();
        let Some((number, rank)) = odd
            .iter()
            .min_by_key(|(number, rank)| (number.at_us, *rank))
        else {
            return vec![];
        };
        vec![Finding {
            who: vec![*rank],
            cause: RankTrouble::NotFinite {
                number: (*number).clone(),
                others: odd.len() - 1,
            },
            since: at,
        }]
    }
}

/// All that is wrong with ranks, by detectors that are given the same looks.
#[derive(Debug)]
pub struct RankDetectors {
    still: StillRanks,
    slow: SlowRanks,
}

impl RankDetectors {
    /// Those of so many ranks, which name one after so long, from a moment on.
    #[must_use]
    pub fn new(ranks: usize, limit: Duration, now: Duration) -> Self {
        Self {
            still: StillRanks::new(ranks, limit, now),
            slow: SlowRanks::new(limit),
        }
    }
}

impl Detector<Ranks> for RankDetectors {
    /// Answers one trouble a rank: that it stands still before that it is slow.
    fn observe(&mut self, seen: &Ranks, at: Duration) -> Vec<Finding<Ranks>> {
        let mut found = self.still.observe(seen, at);
        let slow = self.slow.observe(seen, at);
        if found.is_empty() {
            found = slow;
        }
        let named: BTreeSet<usize> = found.iter().flat_map(|it| it.who.clone()).collect();
        let odd = OddNumbers.observe(seen, at);
        found.extend(odd.into_iter().filter(|it| !named.contains(&it.who[0])));
        found
    }
}

/// The part of a processor that a program which rests uses at most, in hundredths.
const WAITING_PERCENT: u128 = 1;
/// Samples from which on it is said whether a rank that stands still waits.
const STILL_SAMPLES: u64 = 4;
/// The part of its samples in which a rank that stands still waits, in hundredths.
const MOSTLY_PERCENT: u64 = 80;
/// The least time of a slow rank as a multiple of that of the median rank.
const SLOW_TIMES: f64 = 2.0;
/// Steps of the median rank from which on others are compared with it.
const STEPS_MIN: u64 = 4;
/// Lines of the median rank from which on others are compared with it.
const LINES_MIN: u64 = 8;
/// Parts of the time in each of which the others wait for a slow rank.
const PARTS: u32 = 3;
/// Samples of a rank in such a part from which on it is compared with others.
const SLOW_SAMPLES: u64 = 12;
/// The fewest ranks of which one can be odd.
const RANKS_MIN: usize = 3;
/// The part of the time that all others wait for a slow rank, in hundredths: whoever waits for longer does not work at
/// all, as while one rank evaluates.
const AWAITED_PERCENT: u32 = 40;
const AWAITED_PERCENT_MAX: u32 = 97;
/// The part of the time that a slow rank waits at most, in hundredths.
const BUSY_PERCENT: u32 = 20;

#[cfg(test)]
mod tests;
