//! Curves of right against wrong answers over all limits, of the detector and its peers: of made-up machines, and of
//! each worker in the minutes of a published job.

use std::time::Duration;

use odeon_skip::{Need, skip};

use super::super::{MachineSamples, OddMachine};
use super::{PUBLISHED, cases, mahalanobis, minder, published_job};

/// The greatest limit at which each machine would be named.
type Scores<'a> = &'a dyn Fn(&MachineSamples) -> Vec<f32>;

/// Scores of machines with a fault, and of those without.
#[derive(Clone, Debug, Default)]
struct Curve {
    faulty: Vec<f32>,
    sound: Vec<f32>,
}

impl Curve {
    fn add(&mut self, scores: &[f32], faulty: Option<usize>) {
        for (machine, score) in scores.iter().enumerate() {
            match faulty == Some(machine) {
                true => self.faulty.push(*score),
                false => self.sound.push(*score),
            }
        }
    }

    /// The area below the curve: how often a machine with a fault has more than one without, half of it where both have
    /// the same.
    fn area(&self) -> f64 {
        let pairs = self
            .faulty
            .iter()
            .flat_map(|a| self.sound.iter().map(move |b| (a, b)));
        let won: f64 = pairs
            .map(|(a, b)| {
                if a > b {
                    1.0
                } else if a == b {
                    0.5
                } else {
                    0.0
                }
            })
            .sum();
        won / (self.faulty.len() * self.sound.len()) as f64
    }

    /// The part of the faults that are found where no more than this part of the sound are named.
    fn found_at(&self, named: f64) -> f64 {
        let mut sound = self.sound.clone();
        sound.sort_by(|a, b| b.total_cmp(a));
        let may = (named * sound.len() as f64) as usize;
        let limit = sound.get(may).copied().unwrap_or(0.0);
        let found = self.faulty.iter().filter(|it| **it > limit).count();
        found as f64 / self.faulty.len() as f64
    }
}

/// The greatest value that all of so many in a row reach, but for some.
pub(super) fn lasting(values: impl Iterator<Item = f32>, needed: usize, may: usize) -> f32 {
    let values: Vec<f32> = values.collect();
    let windows = values.windows(needed.min(values.len()));
    let least = windows.map(|window| {
        let mut sorted = window.to_vec();
        *sorted.select_nth_unstable_by(may, f32::total_cmp).1
    });
    least.fold(0.0, f32::max)
}

/// By the distance from the mean of a metric over all, as a part of it, for so many moments.
fn thresholds(samples: &MachineSamples, needed: usize) -> Vec<f32> {
    let machines = samples.machines();
    let mut scores = vec![0.0_f32; machines];
    for metric in 0..samples.metrics().len() {
        let values = samples.of(metric);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        for (machine, score) in scores.iter_mut().enumerate() {
            let own = values.iter().skip(machine).step_by(machines);
            let far = own.map(|it| (it - mean).abs() / mean);
            *score = score.max(lasting(far, needed, 0));
        }
    }
    scores
}

/// By Mahalanobis distances of means over so many moments, for so many of these but some.
fn distances(samples: &MachineSamples, window: usize, needed: usize, may: usize) -> Vec<f32> {
    let (machines, metrics) = (samples.machines(), samples.metrics().len());
    let mut far: Vec<Vec<f32>> = vec![vec![]; machines];
    for begin in (0..samples.moments() / window).map(|it| it * window) {
        let mut rows = vec![vec![0.0; metrics]; machines];
        let mut add = |metric: usize| {
            let values = &samples.of(metric)[begin * machines..][..window * machines];
            for (place, value) in values.iter().enumerate() {
                rows[place % machines][metric] += f64::from(*value) / window as f64;
            }
        };
        (0..metrics).for_each(&mut add);
        for (far, distance) in far.iter_mut().zip(mahalanobis(&mut rows)) {
            far.push(distance as f32);
        }
    }
    far.into_iter()
        .map(|it| lasting(it.into_iter(), needed, may))
        .collect()
}

fn told(name: &str, curve: &Curve) {
    let points = [0.0, 0.001, 0.01, 0.05].map(|named| format!("{:.3}", curve.found_at(named)));
    println!("| {name} | {:.4} | {} |", curve.area(), points.join(" | "));
}

/// `cargo test -p odeon-diagnosis --lib machines::tests::roc -- --nocapture` prints the rows of docs/diagnosis.md.
#[test]
fn faults_are_told_from_sound_machines_better_than_by_peers_at_every_limit() {
    let cases = cases(60);
    let over = |scores: Scores<'_>| {
        let mut curve = Curve::default();
        for case in &cases {
            curve.add(&scores(&case.samples), case.fault.map(|it| it.0));
        }
        curve
    };
    let own = over(&|it| OddMachine::default().scores(it));
    let fixed = over(&|it| thresholds(it, 60));
    let far = over(&|it| distances(it, 8, 30, 1));
    let mut published = Curve::default();
    for (case, looks) in cases.iter().zip(PUBLISHED.iter()) {
        let scores = minder::over_limits(looks, case.samples.machines());
        published.add(&scores, case.fault.map(|it| it.0));
    }
    told("odd machine", &own);
    told("the published model", &published);
    told("fixed threshold", &fixed);
    told("Mahalanobis distance", &far);
    assert_eq!((own.faulty.len(), own.sound.len()), (30, 1_170));
    assert!(own.area() > 0.999, "{}", own.area());
    // Its distances are as good; that it follows one machine at a time is what it loses by.
    assert!(own.area() >= published.area());
    for peer in [&fixed, &far] {
        assert!(own.area() > peer.area() && own.found_at(0.001) > peer.found_at(0.001));
    }
}

/// Each worker in the minute from each moment of the published job on; worker 6 is slow from 1,811 s on, up to 1,941 s.
#[test]
fn the_slow_minutes_of_a_published_job_are_told_from_all_others() {
    let (begin, samples) = match published_job() {
        Ok(job) => job,
        Err(error) => return skip(Need::Oracles, error),
    };
    let workers = samples.machines();
    let over = |scores: Scores<'_>| {
        let mut curve = Curve::default();
        for moment in 0..samples.moments() - 5 {
            let values = samples.of(0)[moment * workers..][..6 * workers].to_vec();
            let names = samples.metrics().to_vec();
            let part = MachineSamples::new(names, workers, samples.every(), values).unwrap();
            let first = begin + 10 * moment as u64;
            let is_slow = first >= 1_811 && first + 50 <= 1_941;
            let touches = first + 50 >= 1_811 && first <= 1_941;
            // A minute in which it turns is neither.
            if is_slow || !touches {
                curve.add(&scores(&part), is_slow.then_some(6));
            }
        }
        curve
    };
    let rule = OddMachine {
        window: Duration::from_secs(10),
        lasting: Duration::from_secs(60),
        ..OddMachine::default()
    };
    let own = over(&|it| rule.scores(it));
    let fixed = over(&|it| thresholds(it, 6));
    let far = over(&|it| distances(it, 1, 6, 0));
    told("odd machine", &own);
    told("fixed threshold", &fixed);
    told("Mahalanobis distance", &far);
    println!("{} slow, {} others", own.faulty.len(), own.sound.len());
    assert!(!own.faulty.is_empty() && own.area() >= fixed.area().max(far.area()));
}

#[test]
fn the_area_is_one_where_all_faults_are_above_and_a_half_where_nothing_tells() {
    let mut curve = Curve::default();
    curve.add(&[1.0, 3.0, 2.0], Some(1));
    curve.add(&[1.0, 2.5, 2.0], Some(1));
    assert_eq!((curve.area(), curve.found_at(0.0)), (1.0, 1.0));
    let mut blind = Curve::default();
    blind.add(&[1.0, 1.0], Some(0));
    assert_eq!((blind.area(), blind.found_at(0.0)), (0.5, 0.0));
    assert_eq!(lasting([1.0, 5.0, 4.0, 0.5, 6.0].into_iter(), 3, 1), 4.0);
}
