//! Seconds of a restart, by what is kept of the run and by the number of machines.
//!
//! A restart is over when the last machine is there, so it grows with their number: each takes a time with a lognormal
//! distribution, and a restart the longest of all. Three things add up: a scheduler's turn, pods on machines that are new,
//! and processes on all.
//!
//! | restart | scheduler | pods | processes |
//! | --- | --- | --- | --- |
//! | requeue: all is torn down | once | of all machines | on all |
//! | reschedule: machines are replaced | once | of the new ones | on all |
//! | standbys are woken | | | on all, after the waking |
//! | in place | | | on all |

use odeon_algorithms::workload::normal_quantile;
use odeon_diagnosis::standbys::{StandbyError, failing_in_a_day, standbys};
use serde::{Deserialize, Serialize};

/// `[restart]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RestartSection {
    /// Seconds of a scheduler's turn.
    pub schedule_seconds: f64,
    /// Median of the seconds in which a machine has its pod.
    pub pod_seconds: f64,
    /// Spread of their logarithm.
    pub pod_sigma: f64,
    /// Median of the seconds in which the processes of a machine are there and know each other.
    pub process_seconds: f64,
    /// Spread of their logarithm.
    pub process_sigma: f64,
    /// Seconds until a standby is awake.
    pub wake_seconds: f64,
}

impl Default for RestartSection {
    fn default() -> Self {
        Self {
            schedule_seconds: 150.0,
            pod_seconds: 6.81,
            pod_sigma: 1.332,
            process_seconds: 13.89,
            process_sigma: 0.454,
            wake_seconds: 1.0,
        }
    }
}

/// The part of a run that is kept where it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartKind {
    /// Nothing: all is torn down and waits for a scheduler.
    Requeue,
    /// All but so many machines, which a scheduler replaces.
    Reschedule(u32),
    /// All but machines that standbys replace.
    Standby,
    /// All machines.
    InPlace,
}

impl RestartSection {
    /// Seconds of a restart of so many machines, of two numbers in (0, 1): for pods, and for processes.
    pub(super) fn drawn(
        &self,
        kind: RestartKind,
        machines: u32,
        [pods, processes]: [f64; 2],
    ) -> f64 {
        let processes = slowest(
            self.process_seconds,
            self.process_sigma,
            machines,
            processes,
        );
        let pods = |machines| slowest(self.pod_seconds, self.pod_sigma, machines, pods);
        processes
            + match kind {
                RestartKind::Requeue => self.schedule_seconds + pods(machines),
                RestartKind::Reschedule(new) => self.schedule_seconds + pods(new),
                RestartKind::Standby => self.wake_seconds,
                RestartKind::InPlace => 0.0,
            }
    }

    /// Seconds of a restart of so many machines, on average.
    #[must_use]
    pub fn mean(&self, kind: RestartKind, machines: u32) -> f64 {
        let at = |point: u32| (f64::from(point) + 0.5) / f64::from(POINTS);
        let sum: f64 = (0..POINTS)
            .map(|point| self.drawn(kind, machines, [at(point); 2]))
            .sum();
        sum / f64::from(POINTS)
    }

    /// Mean seconds until machines that failed are replaced, for jobs of some sizes: each beside what the paper reports.
    ///
    /// # Errors
    /// The rate is none. See [`standbys`].
    pub fn sizes(&self, faults: &ReplacedMachines) -> Result<Vec<RestartRow>, StandbyError> {
        let row = |(machines, requeue_s, in_place_s, pool): (u32, f64, f64, u32)| {
            let replaced =
                |replace: &dyn Fn(u32) -> RestartKind| self.replaced(machines, faults, replace);
            let requeue = self.mean(RestartKind::Requeue, machines);
            let standbys = standbys(machines, faults.daily, faults.quantile)?;
            Ok(RestartRow {
                machines,
                requeue_s: requeue,
                in_place_s: self.mean(RestartKind::InPlace, machines),
                reschedule_s: replaced(&RestartKind::Reschedule)?,
                standby_s: replaced(&|failed| match failed > standbys {
                    true => RestartKind::Reschedule(failed - standbys),
                    false => RestartKind::Standby,
                })?,
                oracle_s: replaced(&|_| RestartKind::Standby)?,
                standbys,
                reported_requeue_s: requeue_s,
                reported_in_place_s: in_place_s,
                reported_standbys: pool,
            })
        };
        REPORTED.into_iter().map(row).collect()
    }

    /// The mean over the numbers of machines that fail at once: the binomial distribution of a day with failures, and with
    /// the share of switches all of one.
    fn replaced(
        &self,
        machines: u32,
        faults: &ReplacedMachines,
        replace: &dyn Fn(u32) -> RestartKind,
    ) -> Result<f64, StandbyError> {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (failed, probability) in failing_in_a_day(machines, faults.daily)?.skip(1) {
            // The rest changes nothing that is shown.
            if failed > 64 || (failed > 8 && probability < 1e-9) {
                break;
            }
            sum += probability * self.mean(replace(failed), machines);
            weights += probability;
        }
        let single = sum / f64::max(weights, f64::MIN_POSITIVE);
        let switch = self.mean(replace(faults.switch_machines), machines);
        Ok((1.0 - faults.switch_share) * single + faults.switch_share * switch)
    }
}

/// The machines that are to be replaced: how often, and how many at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplacedMachines {
    /// The probability that a machine fails on a day.
    pub daily: f64,
    /// The part of all days on which standbys are to be enough.
    pub quantile: f64,
    /// The part of the events that a switch is to blame for.
    pub switch_share: f64,
    /// Machines of a switch.
    pub switch_machines: u32,
}

/// Mean seconds of the restarts of a job of some size, here and reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RestartRow {
    /// Machines of the job.
    pub machines: u32,
    /// All is torn down.
    pub requeue_s: f64,
    /// All machines are kept.
    pub in_place_s: f64,
    /// Machines that failed are replaced by a scheduler.
    pub reschedule_s: f64,
    /// They are replaced by standbys, as many as there are.
    pub standby_s: f64,
    /// They are replaced by as many standbys as it takes.
    pub oracle_s: f64,
    /// Standbys.
    pub standbys: u32,
    /// The paper's requeueing.
    pub reported_requeue_s: f64,
    /// The paper's update in place.
    pub reported_in_place_s: f64,
    /// The paper's standbys.
    pub reported_standbys: u32,
}

/// The longest of so many lognormal times, at a quantile of its own distribution.
fn slowest(median: f64, sigma: f64, machines: u32, quantile: f64) -> f64 {
    if machines == 0 {
        return 0.0;
    }
    let each = quantile.powf(1.0 / f64::from(machines));
    // Rounding must not make it certain.
    let normal = normal_quantile(each.min(1.0 - f64::EPSILON));
    median * (sigma * normal).exp()
}

/// Machines of 16 cards, and the paper's seconds of requeueing and of an update in place, and its standbys.
const REPORTED: [(u32, f64, f64, u32); 4] = [
    (128, 454.0, 46.0, 2),
    (256, 545.0, 51.0, 2),
    (512, 635.0, 54.0, 3),
    (1024, 768.0, 65.0, 4),
];

/// Of the mean over a distribution.
const POINTS: u32 = 1000;
