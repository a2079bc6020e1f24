//! Results of a policy over all seeds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::class::FaultClass;
use super::rungs::Rung;
use super::scenario::{FaultPolicy, FaultScenario};
use super::sums::{BINS_AN_HOUR, RatioPoint, Resolutions, RunPhase, RunSums};

/// A number over several seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverSeeds {
    /// Its mean.
    pub mean: f64,
    /// Its standard deviation, of as many as there are; 0 of one.
    pub deviation: f64,
}

impl OverSeeds {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
        Self {
            mean,
            deviation: (squares / (count - 1.0).max(1.0)).sqrt(),
        }
    }
}

/// The results of a policy on a long run, over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultOutcome {
    /// The policy.
    pub policy: FaultPolicy,
    /// Machines of the job.
    pub machines: u32,
    /// Standbys that it keeps.
    pub standbys: u32,
    /// The effective training time ratio: the part of all time in which steps were made that were not made before.
    pub ettr: OverSeeds,
    /// The least of it over any hour.
    pub sliding_least: OverSeeds,
    /// The part of all hours in which it is below 0.5.
    pub sliding_below_half: OverSeeds,
    /// Incidents that began.
    pub incidents: OverSeeds,
    /// Times that training stopped and started again.
    pub restarts: OverSeeds,
    /// Steps that were made again.
    pub lost_steps: OverSeeds,
    /// Machines that were evicted.
    pub evicted: OverSeeds,
    /// Those of them that were sound.
    pub over_evicted: OverSeeds,
    /// Standbys that had nothing to do, on average.
    pub idle_standbys: OverSeeds,
    /// Times that standbys were not enough.
    pub shortages: OverSeeds,
    /// Changes of code that another restart has taken along.
    pub merged_updates: OverSeeds,
    /// The part of all time in each phase.
    pub phases: BTreeMap<RunPhase, OverSeeds>,
    /// Restarts by the rung that stopped at it.
    pub restarts_by_rung: BTreeMap<Rung, OverSeeds>,
    /// Incidents by the rung that ended them.
    pub resolved_by_rung: BTreeMap<Rung, OverSeeds>,
    /// Seconds until faults were over, by class.
    pub resolutions: Vec<ResolutionRow>,
    /// The ratio since the beginning, every hour, with the first seed.
    pub cumulative: Vec<RatioPoint>,
    /// The ratio of the last hour, every hour, with the first seed.
    pub sliding: Vec<RatioPoint>,
}

/// Seconds for which a run stood for the faults of a class, until it was known which machine to evict, or ran again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResolutionRow {
    /// The class.
    pub class: String,
    /// Faults that were over, in all seeds.
    pub count: u64,
    /// On average.
    pub mean_s: f64,
    /// At most.
    pub most_s: f64,
    /// The numbers of the paper.
    pub reported: Option<ReportedResolution>,
}

/// Seconds of the paper, for one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReportedResolution {
    /// On average.
    pub mean_s: f64,
    /// At most.
    pub most_s: f64,
    /// With selective stress tests in its place; never, if there are none.
    pub stress_test_s: Option<f64>,
}

impl FaultOutcome {
    pub(super) fn of(
        scenario: &FaultScenario,
        classes: &[FaultClass],
        policy: &FaultPolicy,
        runs: &[RunSums],
    ) -> Self {
        let over = |of: &dyn Fn(&RunSums) -> f64| OverSeeds::of(runs.iter().map(of));
        let least = |run: &RunSums| run.sliding().iter().map(|it| it.ratio).fold(1.0, f64::min);
        let below = |run: &RunSums| {
            let sliding = run.sliding();
            let below = sliding.iter().filter(|it| it.ratio < 0.5).count();
            below as f64 / (sliding.len() as f64).max(1.0)
        };
        let phase = |phase: RunPhase| {
            let part = over(&|run| run.phase(phase) / run.seconds);
            (phase, part)
        };
        let by_rung = |of: fn(&RunSums) -> &BTreeMap<Rung, u64>| {
            let row = |rung: Rung| {
                let count = over(&|run| of(run).get(&rung).copied().unwrap_or(0) as f64);
                (count.mean > 0.0).then_some((rung, count))
            };
            Rung::ALL.into_iter().filter_map(row).collect()
        };
        let step = scenario.training.step_seconds;
        Self {
            policy: policy.clone(),
            machines: scenario.machines(),
            standbys: if policy.standbys { scenario.pool() } else { 0 },
            ettr: over(&|run| run.phase(RunPhase::Productive) / run.seconds),
            sliding_least: over(&least),
            sliding_below_half: over(&below),
            incidents: over(&|run| run.incidents as f64),
            restarts: over(&|run| run.restarts.values().sum::<u64>() as f64),
            lost_steps: over(&|run| run.lost_seconds / step),
            evicted: over(&|run| run.evicted as f64),
            over_evicted: over(&|run| run.over_evicted as f64),
            idle_standbys: over(&|run| run.standby_seconds / run.seconds),
            shortages: over(&|run| run.shortages as f64),
            merged_updates: over(&|run| run.merged as f64),
            phases: RunPhase::ALL.into_iter().map(phase).collect(),
            restarts_by_rung: by_rung(|run| &run.restarts),
            resolved_by_rung: by_rung(|run| &run.resolved),
            resolutions: resolutions(classes, runs),
            cumulative: runs.first().map(RunSums::cumulative).unwrap_or_default(),
            sliding: runs.first().map(hourly).unwrap_or_default(),
        }
    }

    /// The part of the incidents that a rung has ended.
    #[must_use]
    pub fn resolved_share(&self, rung: Rung) -> f64 {
        let all: f64 = self.resolved_by_rung.values().map(|it| it.mean).sum();
        let one = self.resolved_by_rung.get(&rung).map_or(0.0, |it| it.mean);
        one / all.max(f64::MIN_POSITIVE)
    }
}

fn hourly(run: &RunSums) -> Vec<RatioPoint> {
    run.sliding().into_iter().step_by(BINS_AN_HOUR).collect()
}

fn resolutions(classes: &[FaultClass], runs: &[RunSums]) -> Vec<ResolutionRow> {
    let row = |(at, class): (usize, &FaultClass)| {
        let mut all = Resolutions::default();
        for run in runs {
            all.join(&run.resolutions[at]);
        }
        let reported = REPORTED.iter().find(|(name, _)| *name == class.name);
        ResolutionRow {
            class: class.name.clone(),
            count: all.count,
            mean_s: all.seconds / (all.count as f64).max(1.0),
            most_s: all.most,
            reported: reported.map(|(_, reported)| *reported),
        }
    };
    classes.iter().enumerate().map(row).collect()
}

const fn reported(mean_s: f64, most_s: f64, stress_test_s: Option<f64>) -> ReportedResolution {
    ReportedResolution {
        mean_s,
        most_s,
        stress_test_s,
    }
}

/// The table of ByteRobust (arXiv 2509.16293).
const REPORTED: [(&str, ReportedResolution); 8] = [
    ("cuda_error", reported(93.0, 600.0, Some(518.0))),
    ("infiniband", reported(60.0, 60.0, Some(288.0))),
    ("hdfs", reported(58.0, 65.0, None)),
    ("kernel_panic", reported(109.0, 120.0, Some(168.0))),
    ("gpu_memory", reported(10.0, 10.0, Some(600.0))),
    ("nan", reported(4289.0, 7200.0, Some(7200.0))),
    ("gpu_unavailable", reported(10.0, 10.0, Some(120.0))),
    ("code_update", reported(57.0, 64.0, None)),
];
