//! The sums of one run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::rungs::Rung;

/// A use of a run's time. Each second is in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// Steps that were not made before.
    Productive,
    /// Checkpoints and copies that steps wait for.
    Stall,
    /// A fault is there and not seen yet.
    Detect,
    /// It is looked for.
    Localise,
    /// There are fewer machines than the job needs.
    Wait,
    /// The run starts again, and loads its state.
    Recover,
    /// Steps that were made before and are lost.
    Recompute,
}

impl RunPhase {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Productive,
        Self::Stall,
        Self::Detect,
        Self::Localise,
        Self::Wait,
        Self::Recover,
        Self::Recompute,
    ];
}

/// The effective training time ratio at some time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioPoint {
    /// Days since the beginning.
    pub day: f64,
    /// The ratio: of all time until then, or of the hour before.
    pub ratio: f64,
}

impl RatioPoint {
    /// Rounded to what can be seen, so that files stay small.
    fn new(seconds: f64, ratio: f64) -> Self {
        let rounded = |it: f64| (it * 1e4).round() / 1e4;
        Self {
            day: rounded(seconds / DAY),
            ratio: rounded(ratio),
        }
    }
}

/// Times until faults of one class were over.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Resolutions {
    pub(super) count: u64,
    pub(super) seconds: f64,
    pub(super) most: f64,
}

impl Resolutions {
    pub(super) fn add(&mut self, seconds: f64) {
        self.count += 1;
        self.seconds += seconds;
        self.most = self.most.max(seconds);
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.seconds += other.seconds;
        self.most = self.most.max(other.most);
    }
}

/// The sums of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunSums {
    phases: BTreeMap<RunPhase, f64>,
    /// Productive seconds of each stretch of [`BIN_SECONDS`].
    bins: Vec<f64>,
    pub(super) incidents: u64,
    pub(super) restarts: BTreeMap<Rung, u64>,
    pub(super) resolved: BTreeMap<Rung, u64>,
    pub(super) resolutions: Vec<Resolutions>,
    pub(super) evicted: u64,
    pub(super) over_evicted: u64,
    pub(super) merged: u64,
    pub(super) shortages: u64,
    pub(super) lost_seconds: f64,
    pub(super) standby_seconds: f64,
    pub(super) seconds: f64,
}

impl RunSums {
    pub(super) fn new(classes: usize, seconds: f64) -> Self {
        Self {
            phases: BTreeMap::new(),
            bins: vec![0.0; (seconds / BIN_SECONDS).ceil().max(1.0) as usize],
            incidents: 0,
            restarts: BTreeMap::new(),
            resolved: BTreeMap::new(),
            resolutions: vec![Resolutions::default(); classes],
            evicted: 0,
            over_evicted: 0,
            merged: 0,
            shortages: 0,
            lost_seconds: 0.0,
            standby_seconds: 0.0,
            seconds,
        }
    }

    pub(super) fn add(&mut self, phase: RunPhase, seconds: f64) {
        *self.phases.entry(phase).or_default() += seconds;
    }

    pub(super) fn phase(&self, phase: RunPhase) -> f64 {
        self.phases.get(&phase).copied().unwrap_or(0.0)
    }

    /// Adds productive seconds that were spread over a stretch of the run.
    pub(super) fn add_productive(&mut self, [from, to]: [f64; 2], seconds: f64) {
        self.add(RunPhase::Productive, seconds);
        let (first, last) = (bin(from), bin(to).min(self.bins.len() - 1));
        for at in first..=last {
            let [begin, end] = [at, at + 1].map(|it| it as f64 * BIN_SECONDS);
            let part =
                (to.min(end) - from.max(begin)).max(0.0) / (to - from).max(f64::MIN_POSITIVE);
            self.bins[at] += seconds * part;
        }
    }

    /// The part of the time up to then that was productive, at the end of each hour.
    pub(super) fn cumulative(&self) -> Vec<RatioPoint> {
        let mut sum = 0.0;
        let all = self.bins.iter().enumerate().map(|(at, seconds)| {
            sum += seconds;
            let end = ((at + 1) as f64 * BIN_SECONDS).min(self.seconds);
            RatioPoint::new(end, sum / end)
        });
        all.skip(BINS_AN_HOUR - 1).step_by(BINS_AN_HOUR).collect()
    }

    /// The part of the last hour that was productive, every ten minutes.
    pub(super) fn sliding(&self) -> Vec<RatioPoint> {
        let windows = self.bins.windows(BINS_AN_HOUR).enumerate();
        let all = windows.map(|(at, bins)| {
            let end = (at + BINS_AN_HOUR) as f64 * BIN_SECONDS;
            let part = bins.iter().sum::<f64>() / (BINS_AN_HOUR as f64 * BIN_SECONDS);
            RatioPoint::new(end, part)
        });
        // The last stretch may be cut short.
        all.filter(|it| it.day * DAY <= self.seconds + 10.0)
            .collect()
    }
}

fn bin(seconds: f64) -> usize {
    (seconds / BIN_SECONDS) as usize
}

const BIN_SECONDS: f64 = 600.0;
pub(super) const BINS_AN_HOUR: usize = 6;
pub(super) const DAY: f64 = 86_400.0;
