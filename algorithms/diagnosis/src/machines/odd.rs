//! The machine that differs from the others, by medians over machines.

use std::fmt;
use std::num::NonZero;
use std::thread;
use std::time::Duration;

use super::MachineSamples;
use crate::{Action, Detector, Finding, FindingCause};

/// Metrics in the order in which they are looked at, as Minder publishes it; others come after them.
pub const PRIORITY: [&str; 7] = [
    "pfc_tx_packets",
    "cpu_usage",
    "gpu_duty_cycle",
    "gpu_power",
    "gpu_graphics_engine",
    "gpu_tensor_engine",
    "nvlink_bandwidth",
];

/// Medians of deviations in one standard deviation of a normal distribution.
const MAD: f32 = 1.4826;

/// A machine differs from the others in a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Differs {
    /// The metric.
    pub metric: String,
    /// The greatest deviation from the median of all machines, in robust standard deviations.
    pub deviation: f32,
    /// For how long.
    pub lasts: Duration,
    /// The mean of the machine over that time.
    pub value: f32,
    /// The mean of the medians of all machines over that time.
    pub median: f32,
}

impl fmt::Display for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} has been {:.3} for {} s where the median of the machines is {:.3}: up to {:.1} robust standard deviations",
            self.metric,
            self.value,
            self.lasts.as_secs(),
            self.median,
            self.deviation
        )
    }
}

impl FindingCause for Differs {
    fn action(&self) -> Action {
        Action::Avoid
    }
}

/// Finds the machine that differs from the others for minutes.
///
/// Of each metric in turn: numbers are smoothed by a median over five moments and a mean over a window; the deviation
/// of a machine is `|y - median| / (1.4826 MAD + floor)` over the machines at that moment, where the floor is a part of
/// the range of the metric, and the whole is such that what is within the [`Margin`](super::Margin) of the metric stays
/// below the limit.
/// A machine that passes a limit for long enough, but for short gaps, is named, with the first
/// metric that says so. Of several at the same time it is the one with the greatest mean deviation, if that passes the
/// second by a factor; else nobody: peers of a faulty machine follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct OddMachine {
    /// Metrics that are looked at first, in this order.
    pub priority: Vec<String>,
    /// Set where others are looked at after them.
    pub all_metrics: bool,
    /// The deviation from which a machine differs.
    pub limit: f32,
    /// Times by which it passes the second that differs for as long.
    pub lead: f32,
    /// The part of the range of a metric, between its hundredths, below which deviations are noise.
    pub floor: f32,
    /// The window of the mean.
    pub window: Duration,
    /// The time for which a machine is to differ.
    pub lasting: Duration,
    /// The part of that time in which it may not.
    pub gaps: f32,
    /// Machines below which comparing them says nothing.
    pub machines_min: usize,
    /// Set where a machine is named only while it differs: up to the last moment, but for a gap.
    pub ongoing: bool,
}

impl Default for OddMachine {
    fn default() -> Self {
        Self {
            priority: PRIORITY.map(str::to_owned).to_vec(),
            all_metrics: true,
            limit: 3.0,
            lead: 1.5,
            floor: 0.01,
            window: Duration::from_secs(8),
            lasting: Duration::from_secs(240),
            gaps: 0.05,
            machines_min: 4,
            ongoing: false,
        }
    }
}

impl Detector<MachineSamples> for OddMachine {
    /// Judges each look anew: what goes on is found again.
    fn observe(&mut self, seen: &MachineSamples, _at: Duration) -> Vec<Finding<MachineSamples>> {
        let order = self.order(seen.metrics());
        if seen.machines() < self.machines_min.max(1) || seen.moments() == 0 {
            return vec![];
        }
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        // As many metrics at a time as there are threads, so that the first that finds something ends it.
        for some in order.chunks(threads) {
            if let [metric] = some {
                match self.of_metric(seen, *metric) {
                    Some(found) => return vec![found],
                    None => continue,
                }
            }
            let found: Vec<Option<Finding<MachineSamples>>> = thread::scope(|scope| {
                let tasks: Vec<_> = (some.iter())
                    .map(|metric| scope.spawn(|| self.of_metric(seen, *metric)))
                    .collect();
                let ended = tasks.into_iter().map(|task| task.join().ok().flatten());
                ended.collect()
            });
            let found = found.into_iter().flatten().next();
            if let Some(found) = found {
                return vec![found];
            }
        }
        vec![]
    }
}

impl OddMachine {
    /// The places of metrics, in the order of their priority.
    fn order(&self, metrics: &[String]) -> Vec<usize> {
        let first = self.priority.iter();
        let first = first.filter_map(|name| metrics.iter().position(|it| it == name));
        let mut order: Vec<usize> = first.collect();
        if self.all_metrics {
            let others = (0..metrics.len()).filter(|it| !self.priority.contains(&metrics[*it]));
            order.extend(others);
        }
        order
    }

    /// The greatest limit at which each machine would still differ for long enough in some metric, whoever else does:
    /// what curves of right against wrong answers are made of.
    #[must_use]
    pub fn scores(&self, seen: &MachineSamples) -> Vec<f32> {
        let mut scores = vec![0.0_f32; seen.machines()];
        if seen.machines() < self.machines_min.max(1) || seen.moments() == 0 {
            return scores;
        }
        for metric in self.order(seen.metrics()) {
            let looks = self.looks(seen, metric);
            for (machine, score) in scores.iter_mut().enumerate() {
                *score = score.max(looks.lasting(machine, self.gaps));
            }
        }
        scores
    }

    /// The deviations of all machines in a metric, look by look.
    fn looks(&self, seen: &MachineSamples, metric: usize) -> Looks {
        let (machines, every) = (seen.machines(), seen.every());
        let window = (self.window.as_secs_f64() / every.as_secs_f64()) as usize;
        let window = window.clamp(1, seen.moments());
        let smooth = means(&smoothed(seen.of(metric), machines), machines, window);
        let stride = window.div_ceil(2);
        let needed = self.lasting.as_secs_f64() / (every.as_secs_f64() * stride as f64);
        let margin = seen.margin(metric);
        let floor = noise(&smooth, self.floor);
        let (mut scratch, mut apart) = (vec![], vec![]);
        let mut deviations = Vec::with_capacity(smooth.len() / stride + machines);
        for row in smooth.chunks_exact(machines).step_by(stride) {
            let middle = median(row, &mut scratch);
            apart.clear();
            apart.extend(row.iter().map(|it| (it - middle).abs()));
            let unit = MAD * median(&apart, &mut scratch) + floor;
            // What is within the margin does not pass the limit.
            let unit = unit.max(margin.beside(middle) / self.limit);
            let unit = unit.max(f32::MIN_POSITIVE);
            deviations.extend(apart.iter().map(|apart| apart / unit));
        }
        Looks {
            smooth,
            machines,
            window,
            stride,
            needed: needed.ceil().max(1.0) as usize,
            deviations,
        }
    }

    fn of_metric(&self, seen: &MachineSamples, metric: usize) -> Option<Finding<MachineSamples>> {
        let every = seen.every();
        let looks = self.looks(seen, metric);
        let run = self.longest(&looks)?;
        let Looks {
            smooth,
            machines,
            window,
            stride,
            ..
        } = &looks;
        let (machines, window, stride) = (*machines, *window, *stride);
        let (first, last) = (run.first * stride, run.last * stride);
        let rows = || {
            smooth[first * machines..]
                .chunks_exact(machines)
                .take(last - first + 1)
        };
        let count = (last - first + 1) as f32;
        let mut scratch = vec![];
        Some(Finding {
            who: vec![run.machine],
            cause: Differs {
                metric: seen.metrics()[metric].clone(),
                deviation: run.deviation,
                lasts: every * (last - first + window) as u32,
                value: rows().map(|row| row[run.machine]).sum::<f32>() / count,
                median: rows().map(|row| median(row, &mut scratch)).sum::<f32>() / count,
            },
            since: every * first as u32,
        })
    }
}

/// The median of five moments of each machine, so that one that jumps is left out.
fn smoothed(values: &[f32], machines: usize) -> Vec<f32> {
    let moments = values.len() / machines;
    let row = |moment: usize| &values[moment.min(moments - 1) * machines..][..machines];
    let mut smooth = vec![0.0; values.len()];
    for (moment, into) in smooth.chunks_exact_mut(machines).enumerate() {
        let rows = [
            row(moment.saturating_sub(2)),
            row(moment.saturating_sub(1)),
            row(moment),
            row(moment + 1),
            row(moment + 2),
        ];
        for (machine, into) in into.iter_mut().enumerate() {
            *into = median_of_five(rows.map(|row| row[machine]));
        }
    }
    smooth
}

/// By comparisons alone, so that it is done for many at once.
fn median_of_five([a, b, c, d, e]: [f32; 5]) -> f32 {
    let (a, b) = (a.min(b), a.max(b));
    let (c, d) = (c.min(d), c.max(d));
    // The least and the greatest of four are out.
    let low = a.max(c);
    let high = b.min(d);
    let (low, high) = (low.min(high), low.max(high));
    low.max(e.min(high))
}

/// The mean over a window that begins at each moment.
fn means(values: &[f32], machines: usize, window: usize) -> Vec<f32> {
    let moments = values.len() / machines;
    let windows = moments + 1 - window;
    let mut sums = vec![0.0_f64; machines];
    let mut means = Vec::with_capacity(windows * machines);
    for moment in 0..moments {
        let row = &values[moment * machines..][..machines];
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
        if moment + 1 >= window {
            means.extend(sums.iter().map(|sum| (*sum / window as f64) as f32));
            let oldest = &values[(moment + 1 - window) * machines..][..machines];
            for (sum, value) in sums.iter_mut().zip(oldest) {
                *sum -= f64::from(*value);
            }
        }
    }
    means
}

/// Below which difference of smoothed numbers there is noise alone: a part of what lies between their hundredths.
fn noise(smooth: &[f32], part: f32) -> f32 {
    // A thousand numbers say it as well as all.
    let step = (smooth.len() / 1_000).max(1);
    let mut some: Vec<f32> = smooth.iter().copied().step_by(step).collect();
    some.sort_by(f32::total_cmp);
    let hundredth = some.len() / 100;
    part * (some[some.len() - 1 - hundredth] - some[hundredth])
}

/// The middle one; of two the lower.
fn median(row: &[f32], scratch: &mut Vec<f32>) -> f32 {
    scratch.clear();
    scratch.extend_from_slice(row);
    let half = (scratch.len() - 1) / 2;
    *scratch.select_nth_unstable_by(half, f32::total_cmp).1
}

/// A metric of all machines, smoothed, and how far each is from the others at some of the moments.
struct Looks {
    /// Of shape `[moments, machines]`.
    smooth: Vec<f32>,
    machines: usize,
    /// Moments of a mean.
    window: usize,
    /// Moments from one look to the next.
    stride: usize,
    /// Looks for which a machine is to differ.
    needed: usize,
    /// Of shape `[looks, machines]`.
    deviations: Vec<f32>,
}

impl Looks {
    /// The greatest deviation that a machine has at all looks in a row that are needed, but for a part of them.
    fn lasting(&self, machine: usize, gaps: f32) -> f32 {
        let may = (self.needed as f32 * gaps) as usize;
        let own = || self.deviations.iter().skip(machine).step_by(self.machines);
        // Those of the last looks, the least first.
        let mut sorted: Vec<f32> = Vec::with_capacity(self.needed + 1);
        let mut most = 0.0_f32;
        for (look, deviation) in own().enumerate() {
            sorted.insert(sorted.partition_point(|it| it < deviation), *deviation);
            if look + 1 < self.needed {
                continue;
            }
            most = most.max(sorted.get(may).copied().unwrap_or(0.0));
            if let Some(oldest) = own().nth(look + 1 - self.needed) {
                sorted.remove(sorted.partition_point(|it| it < oldest));
            }
        }
        most
    }
}

/// The time over which a machine differs, by places of looks.
#[derive(Clone, Copy)]
struct Run {
    machine: usize,
    first: usize,
    last: usize,
    /// The greatest deviation.
    deviation: f32,
    /// The sum of all, and how many.
    sum: f32,
    hits: usize,
}

impl Run {
    fn looks(&self) -> usize {
        self.last - self.first + 1
    }

    fn mean(&self) -> f32 {
        self.sum / self.hits as f32
    }
}

impl OddMachine {
    /// The machine that differs at as many looks as are needed, the earliest.
    fn longest(&self, looks: &Looks) -> Option<Run> {
        let needed = looks.needed;
        let mut open: Vec<Option<Run>> = vec![None; looks.machines];
        let mut long: Vec<Run> = vec![];
        let rows = looks.deviations.chunks_exact(looks.machines);
        for (look, row) in rows.enumerate() {
            for (machine, deviation) in row.iter().copied().enumerate() {
                let run = &mut open[machine];
                if deviation > self.limit {
                    let run = run.get_or_insert(Run {
                        machine,
                        first: look,
                        last: look,
                        deviation,
                        sum: 0.0,
                        hits: 0,
                    });
                    run.last = look;
                    run.deviation = run.deviation.max(deviation);
                    run.sum += deviation;
                    run.hits += 1;
                } else if let Some(it) = run {
                    let passed = look - it.first + 1;
                    let may = (passed.max(needed) as f32 * self.gaps) as usize;
                    if passed - it.hits > may {
                        let ended = run.take().filter(|it| it.looks() >= needed);
                        long.extend(ended.filter(|_| !self.ongoing));
                    }
                }
            }
        }
        long.extend(open.into_iter().flatten().filter(|it| it.looks() >= needed));
        long.sort_by_key(|it| it.first);
        let leads = |one: &&Run| {
            let same = long
                .iter()
                .filter(|it| it.first <= one.last && it.last >= one.first);
            let mut others = same.filter(|it| it.machine != one.machine);
            others.all(|other| one.mean() > self.lead * other.mean())
        };
        long.iter().find(leads).copied()
    }
}
