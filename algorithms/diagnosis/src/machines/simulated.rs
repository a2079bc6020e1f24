//! Metrics of made-up machines, of which one has a fault or none.
//!
//! Each of 21 metrics is a level, times a workload that all machines share (a sawtooth of the iterations, and phases in
//! which it is low, as for checkpoints), with an offset of each machine (2 % of the level, normal), noise that goes on
//! (an AR(1) process of 0.8, 1 %), and spikes of 1 to 30 s (one in ten minutes a machine, 10 to 60 %). A fault lasts 5
//! to 12 minutes and shows in the metrics of its kind with a probability each, by 15 to 60 % of the level. In a third of
//! the cases the machines of its group of eight follow by a quarter of that.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::{MachineSamples, PRIORITY};

/// Metrics beside those of [`PRIORITY`].
const OTHERS: [&str; 14] = [
    "cpu_temperature",
    "disk_usage",
    "gpu_clock",
    "gpu_fp_engine",
    "gpu_memory_bandwidth",
    "gpu_memory_used",
    "gpu_temperature",
    "memory_used",
    "network_connections",
    "nvlink_errors",
    "pcie_bandwidth",
    "pcie_usage",
    "tcp_retransmissions",
    "tcp_rdma_throughput",
];

/// Metrics, and the probability with which a fault shows in each.
type Shown = &'static [(&'static str, f64)];

/// Kinds of faults with their share in a hundred, and the probability with which each shows in metrics, as the paper has
/// the kinds. The probabilities are ours: the paper tells none.
const FAULTS: [(&str, u32, Shown); 7] = [
    (
        "ecc",
        39,
        &[
            ("cpu_usage", 0.8),
            ("gpu_duty_cycle", 0.7),
            ("gpu_power", 0.6),
            ("nvlink_errors", 0.3),
        ],
    ),
    (
        "pcie",
        8,
        &[
            ("pfc_tx_packets", 1.0),
            ("tcp_rdma_throughput", 0.6),
            ("pcie_bandwidth", 0.5),
        ],
    ),
    (
        "nic",
        8,
        &[
            ("cpu_usage", 1.0),
            ("gpu_duty_cycle", 1.0),
            ("tcp_rdma_throughput", 1.0),
        ],
    ),
    (
        "card",
        6,
        &[
            ("cpu_usage", 0.75),
            ("gpu_duty_cycle", 0.7),
            ("gpu_memory_used", 0.7),
        ],
    ),
    (
        "cuda",
        18,
        &[
            ("cpu_usage", 0.7),
            ("gpu_duty_cycle", 0.6),
            ("gpu_graphics_engine", 0.6),
        ],
    ),
    (
        "gpu",
        12,
        &[
            ("gpu_power", 0.6),
            ("gpu_tensor_engine", 0.7),
            ("gpu_duty_cycle", 0.5),
        ],
    ),
    (
        "unreachable",
        9,
        &[("cpu_usage", 0.9), ("gpu_power", 0.7), ("memory_used", 0.6)],
    ),
];

/// Seconds of a look: 15 minutes.
const SECONDS: usize = 900;

/// A look at machines of which one may have a fault.
pub(super) struct Case {
    pub samples: MachineSamples,
    /// The faulty machine, and since when.
    pub fault: Option<(usize, Duration)>,
}

/// Metrics of so many machines; every second case has a fault.
pub(super) fn case(machines: usize, seed: u64) -> Case {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let metrics: Vec<&str> = PRIORITY.into_iter().chain(OTHERS).collect();
    let fault = (seed % 2 == 1).then(|| {
        let lasts = rng.random_range(300..720);
        let begin = rng.random_range(0..SECONDS - lasts);
        (rng.random_range(0..machines), begin, lasts)
    });
    let shows = shows(&mut rng);
    let group_follows = rng.random_bool(1.0 / 3.0);
    let sign = if rng.random_bool(0.5) { -1.0 } else { 1.0 };
    let (period, low) = (rng.random_range(5..20), rng.random_range(0..SECONDS));
    let mut values = Vec::with_capacity(metrics.len() * SECONDS * machines);
    for metric in metrics {
        let level = rng.random_range(10.0..1000.0_f32);
        let swing = rng.random_range(0.0..0.3_f32);
        let strength = match shows.contains(&metric) {
            true => sign * rng.random_range(0.15..0.6_f32),
            false => 0.0,
        };
        let mut states: Vec<Machine> = (0..machines).map(|_| Machine::new(&mut rng)).collect();
        for second in 0..SECONDS {
            let saw = (second % period) as f32 / period as f32;
            let is_low = second.abs_diff(low) < 20;
            let workload = if is_low { 0.4 } else { 1.0 - swing * saw };
            for (machine, state) in states.iter_mut().enumerate() {
                let part = match fault {
                    Some((faulty, begin, lasts)) if (begin..begin + lasts).contains(&second) => {
                        if machine == faulty {
                            strength
                        } else if group_follows && machine / 8 == faulty / 8 {
                            strength / 4.0
                        } else {
                            0.0
                        }
                    }
                    _ => 0.0,
                };
                values.push(level * (workload + state.next(&mut rng) + part));
            }
        }
    }
    let names = PRIORITY.into_iter().chain(OTHERS).map(str::to_owned);
    let every = Duration::from_secs(1);
    Case {
        samples: MachineSamples::new(names.collect(), machines, every, values).unwrap(),
        fault: fault.map(|(machine, begin, _)| (machine, Duration::from_secs(begin as u64))),
    }
}

/// The metrics in which a fault shows: one at least.
fn shows(rng: &mut ChaCha8Rng) -> Vec<&'static str> {
    let mut place = rng.random_range(0..FAULTS.iter().map(|it| it.1).sum::<u32>());
    let kind = FAULTS.iter().find(|(_, share, _)| {
        let is_it = place < *share;
        place = place.saturating_sub(*share);
        is_it
    });
    let (_, _, metrics) = kind.unwrap();
    loop {
        let shown = metrics.iter().filter(|it| rng.random_bool(it.1));
        let shown: Vec<&str> = shown.map(|it| it.0).collect();
        if !shown.is_empty() {
            return shown;
        }
    }
}

/// What a machine adds to a metric by itself.
struct Machine {
    offset: f32,
    noise: f32,
    spike: f32,
    left: u32,
}

impl Machine {
    fn new(rng: &mut ChaCha8Rng) -> Self {
        Self {
            offset: 0.02 * normal(rng),
            noise: 0.0,
            spike: 0.0,
            left: 0,
        }
    }

    fn next(&mut self, rng: &mut ChaCha8Rng) -> f32 {
        self.noise = 0.8 * self.noise + 0.01 * normal(rng);
        if self.left > 0 {
            self.left -= 1;
        } else if rng.random_bool(1.0 / 600.0) {
            self.left = rng.random_range(1..30);
            self.spike = rng.random_range(0.1..0.6) * if rng.random_bool(0.5) { 1.0 } else { -1.0 };
        } else {
            self.spike = 0.0;
        }
        self.offset + self.noise + self.spike
    }
}

/// Of mean 0 and deviation 1, nearly: the sum of four even numbers.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let bits = rng.random::<u64>();
    let even = |part: u32| ((bits >> (16 * part)) & 0xffff) as f32 / 65_536.0;
    (even(0) + even(1) + even(2) + even(3) - 2.0) * 3.0_f32.sqrt()
}
