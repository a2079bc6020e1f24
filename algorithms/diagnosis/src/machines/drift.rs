//! Launches that drift apart: machines that work together come to their collectives at more and more different times.
//!
//! In a collective all wait for the one that comes last, so that the seconds they spend in it differ by how much earlier
//! each of them came: no clocks are compared. Where these waits grow while passes take as long as before, and each time
//! another machine is last, something irregular goes on on all of them, as collections of garbage that nobody has planned
//! (MegaScale, arXiv 2402.15627).

use std::fmt;
use std::time::Duration;

use super::samples::{MachineSamples, SamplesError};
use crate::{Action, Detector, Finding, FindingCause, Observation};

/// Seconds of the steps of machines that add up together, over some minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSeconds(MachineSamples);

/// Places of the numbers among the metrics.
const COMPUTE: usize = 0;
const EXCHANGE: usize = 1;

impl StepSeconds {
    /// Takes the seconds of computing and those of exchanging, each in the order `[moments][machines]`. One that was not
    /// measured is `NaN`: it counts as the last that was.
    ///
    /// # Errors
    /// [`SamplesError::Shape`] and [`SamplesError::NoInterval`].
    pub fn new(
        machines: usize,
        every: Duration,
        compute: Vec<f32>,
        exchange: &[f32],
    ) -> Result<Self, SamplesError> {
        let metrics = ["compute", "exchange"].map(str::to_owned).to_vec();
        if compute.len() != exchange.len() {
            return Err(SamplesError::Shape {
                metrics: metrics.len(),
                machines,
                moments: compute.len().checked_div(machines).unwrap_or(0),
                expected: 2 * compute.len(),
                found: compute.len() + exchange.len(),
            });
        }
        let mut values = compute;
        values.extend_from_slice(exchange);
        MachineSamples::new(metrics, machines, every, values).map(Self)
    }
}

impl Observation for StepSeconds {
    /// The place of a machine; nobody is to blame alone.
    type Subject = usize;
    /// The time since the first moment.
    type Moment = Duration;
    type Cause = Drifts;
}

/// Launches of machines drift apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Drifts {
    /// Seconds of a step for which a machine waited for the last one, on average, at the begin.
    pub before: f32,
    /// The same in the end.
    pub now: f32,
    /// Seconds of a step in the end: the median of computing, and of exchanging.
    pub step: f32,
    /// The part of the moments in the end at which the machine was last that was so most often.
    pub most_often_last: f32,
    /// The time over which the waits have grown.
    pub lasts: Duration,
}

impl fmt::Display for Drifts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "wait {:.0} ms of a step of {:.0} ms for the last of them to exchange, {:.0} ms {} min before; they compute \
             as long as then, and no machine is last more often than in {:.0} % of the steps",
            self.now * 1e3,
            self.step * 1e3,
            self.before * 1e3,
            (self.lasts.as_secs() + 30) / 60,
            self.most_often_last * 100.0,
        )
    }
}

impl FindingCause for Drifts {
    fn action(&self) -> Action {
        Action::Tell
    }
}

/// Finds launches that drift apart.
///
/// The wait of a moment is the mean over the machines of their seconds of exchanging, less the least of these. Over means
/// of a minute it has to rise by the test of Mann and Kendall, from the first three to the last three by a factor and by
/// a part of a step, while the median of computing stays, and while no machine is the last one half of the time: that
/// would be a slow machine. Each look is judged anew.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchDrift {
    /// Moments are averaged over so long.
    pub bucket: Duration,
    /// Buckets below which nothing is said; six at least.
    pub buckets_min: usize,
    /// Standard deviations of the test for a trend.
    pub confidence: f64,
    /// Times by which the wait grows.
    pub growth: f32,
    /// The part of a step by which it does.
    pub part: f32,
    /// The part by which the seconds of computing may grow meanwhile.
    pub compute: f32,
    /// The part of the moments at which one machine may be last.
    pub last: f32,
    /// Machines below which nothing is said.
    pub machines_min: usize,
}

impl Default for LaunchDrift {
    fn default() -> Self {
        Self {
            bucket: Duration::from_mins(1),
            buckets_min: 10,
            confidence: 2.5,
            growth: 2.0,
            part: 0.02,
            compute: 0.1,
            last: 0.5,
            machines_min: 3,
        }
    }
}

/// Buckets at the begin and in the end that are compared.
const ENDS: usize = 3;
/// Times the wait of the begin above which it has begun to grow.
const GROWS: f32 = 1.25;

impl Detector<StepSeconds> for LaunchDrift {
    fn observe(&mut self, seen: &StepSeconds, _at: Duration) -> Vec<Finding<StepSeconds>> {
        self.found(&seen.0).into_iter().collect()
    }
}

impl LaunchDrift {
    fn found(&self, seen: &MachineSamples) -> Option<Finding<StepSeconds>> {
        let machines = seen.machines();
        let bucket = self.bucket.as_secs_f64() / seen.every().as_secs_f64();
        let bucket = (bucket as usize).max(1);
        let count = seen.moments() / bucket;
        if machines < self.machines_min.max(2) || count < self.buckets_min.max(2 * ENDS) {
            return None;
        }
        // The newest are whole buckets.
        let first = (seen.moments() - count * bucket) * machines;
        let compute = &seen.of(COMPUTE)[first..];
        let exchange = &seen.of(EXCHANGE)[first..];
        let waits: Vec<f32> = exchange
            .chunks_exact(bucket * machines)
            .map(|of_bucket| {
                of_bucket.chunks_exact(machines).map(wait).sum::<f32>() / bucket as f32
            })
            .collect();
        let mean = |some: &[f32]| some.iter().sum::<f32>() / some.len() as f32;
        let (before, now) = (mean(&waits[..ENDS]), mean(&waits[count - ENDS..]));
        let ends = ENDS * bucket * machines;
        let tail = compute.len() - ends;
        let (computed, computes) = (median(&compute[..ends]), median(&compute[tail..]));
        let step = computes + median(&exchange[tail..]);
        let grows = now > self.growth * before && now - before > self.part * step;
        if !grows || computes > computed * (1.0 + self.compute) || trend(&waits) < self.confidence {
            return None;
        }
        let most_often_last = most_often_last(&exchange[tail..], machines);
        if most_often_last > self.last {
            return None;
        }
        let stays = waits.iter().rposition(|it| *it <= GROWS * before);
        let begins = stays.map_or(0, |it| it + 1);
        let begins = (first / machines + begins * bucket) as u32;
        Some(Finding {
            who: vec![],
            cause: Drifts {
                before,
                now,
                step,
                most_often_last,
                lasts: seen.every() * (seen.moments() as u32 - begins),
            },
            since: seen.every() * begins,
        })
    }
}

/// The mean wait for the machine that comes last.
fn wait(row: &[f32]) -> f32 {
    let least = row.iter().copied().fold(f32::INFINITY, f32::min);
    row.iter().sum::<f32>() / row.len() as f32 - least
}

/// The part of the moments at which the machine is last that is so most often.
fn most_often_last(exchange: &[f32], machines: usize) -> f32 {
    let mut times = vec![0_usize; machines];
    for row in exchange.chunks_exact(machines) {
        let last = row.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        if let Some((machine, _)) = last {
            times[machine] += 1;
        }
    }
    let most = times.iter().max().copied().unwrap_or(0);
    most as f32 / (exchange.len() / machines) as f32
}

/// How clearly numbers rise, in standard deviations of numbers that do not (Mann 1945, Kendall 1975).
fn trend(numbers: &[f32]) -> f64 {
    let later = |at: usize| numbers[at + 1..].iter();
    let rises = numbers.iter().enumerate();
    let rises = rises.flat_map(|(at, one)| later(at).map(move |other| other.total_cmp(one) as i64));
    let rises: i64 = rises.sum();
    let n = numbers.len() as f64;
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    (rises - rises.signum()) as f64 / deviation
}

fn median(numbers: &[f32]) -> f32 {
    let mut sorted = numbers.to_vec();
    let half = (sorted.len() - 1) / 2;
    *sorted.select_nth_unstable_by(half, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const SECONDS: usize = 900;

    /// Steps of a second of machines that pause at random: `pauses` says with which probability, at this part of the time,
    /// `slow` by how much each machine computes longer. `counted` has pauses counted as computing.
    fn steps(
        machines: usize,
        seed: u64,
        counted: bool,
        pauses: impl Fn(f64) -> f64,
        slow: impl Fn(usize, f64) -> f32,
    ) -> StepSeconds {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut compute, mut exchange) = (vec![], vec![]);
        for second in 0..SECONDS {
            let at = second as f64 / SECONDS as f64;
            let mut came = vec![];
            for machine in 0..machines {
                let noise = 1.0 + 0.01 * rng.random_range(-1.0..1.0_f32);
                let computes = 0.8 * noise * slow(machine, at);
                let pause = match rng.random_bool(pauses(at)) {
                    // Exponential, 0.1 s on average.
                    true => -0.1 * (1.0 - rng.random::<f32>()).ln(),
                    false => 0.0,
                };
                compute.push(computes + if counted { pause } else { 0.0 });
                came.push(computes + pause);
            }
            let last = came.iter().copied().fold(0.0, f32::max);
            exchange.extend(came.iter().map(|it| 0.05 + last - it));
        }
        StepSeconds::new(machines, Duration::from_secs(1), compute, &exchange).unwrap()
    }

    fn found(seen: &StepSeconds) -> Vec<Finding<StepSeconds>> {
        LaunchDrift::default().observe(seen, Duration::ZERO)
    }

    /// SEMANTICS 208.
    #[test]
    fn pauses_that_come_more_and_more_often_on_all_machines_are_found() {
        for (machines, counted) in [(4, false), (16, false), (16, true), (64, true)] {
            let mut right = 0;
            for seed in 0..20 {
                let rising = |at: f64| 0.8 / machines as f64 * at;
                let found = found(&steps(machines, seed, counted, rising, |_, _| 1.0));
                let [one] = &found[..] else { continue };
                right += 1;
                assert!(one.who.is_empty() && one.cause.most_often_last < 0.5);
                assert!(one.since < Duration::from_mins(8), "{:?}", one.since);
                assert!(one.cause.now > 2.0 * one.cause.before);
            }
            assert!(right >= 19, "{right} of 20 with {machines} machines");
        }
    }

    /// SEMANTICS 208.
    #[test]
    fn pauses_that_stay_a_slow_machine_and_longer_work_are_no_drift() {
        for seed in 0..100 {
            for pauses in [0.0, 0.001, 0.02, 0.1] {
                let clean = steps(8, seed, true, |_| pauses, |_, _| 1.0);
                assert_eq!(found(&clean), [], "{pauses}");
            }
            let one = |machine: usize, at: f64| 1.0 + f32::from(machine == 3) * 0.3 * at as f32;
            assert_eq!(found(&steps(8, seed, true, |_| 0.01, one)), []);
            let all = |_: usize, at: f64| 1.0 + 0.5 * at as f32;
            let longer = steps(8, seed, true, |at| 0.02 + 0.2 * at, all);
            assert_eq!(found(&longer), []);
        }
    }

    #[test]
    fn few_machines_short_times_and_numbers_that_do_not_fit_say_nothing() {
        let rising = |at: f64| 0.2 * at;
        assert_eq!(found(&steps(2, 1, true, rising, |_, _| 1.0)), []);
        let every = Duration::from_secs(1);
        let short = StepSeconds::new(3, every, vec![1.0; 300], &[0.1; 300]).unwrap();
        assert_eq!(found(&short), []);
        let none = StepSeconds::new(3, every, vec![], &[]).unwrap();
        assert_eq!(found(&none), []);
        let unlike = StepSeconds::new(3, every, vec![1.0; 6], &[0.1; 3]).unwrap_err();
        let says = "2 metrics of 3 machines at 2 moments are 12 numbers, and 9 were given";
        assert_eq!(unlike.to_string(), says);
    }

    #[test]
    fn the_test_for_a_trend_has_its_published_values() {
        let rising: Vec<f32> = (0..10).map(|it| it as f32).collect();
        assert!((trend(&rising) - 44.0 / 125.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(trend(&[1.0; 10]), 0.0);
        let falling: Vec<f32> = rising.iter().map(|it| -it).collect();
        assert!((trend(&falling) + 44.0 / 125.0_f64.sqrt()).abs() < 1e-9);
    }
}
