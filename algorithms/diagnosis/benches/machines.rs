//! A look at 1,500 machines with 21 metrics over 15 minutes, of which none differs: all metrics are gone through.

#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]

use std::time::Duration;

use divan::Bencher;
use odeon_diagnosis::Detector;
use odeon_diagnosis::machines::{MachineSamples, OddMachine};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

const MACHINES: usize = 1_500;
const METRICS: usize = 21;
const SECONDS: usize = 900;

fn main() {
    divan::main();
}

#[divan::bench(
    name = "1,500 machines, 21 metrics, 900 s",
    sample_count = 10,
    sample_size = 1
)]
fn machines(bencher: Bencher<'_, '_>) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let values = (0..METRICS * SECONDS * MACHINES).map(|_| rng.random_range(90.0..110.0_f32));
    let metrics = (0..METRICS).map(|it| format!("metric {it}")).collect();
    let every = Duration::from_secs(1);
    let samples = MachineSamples::new(metrics, MACHINES, every, values.collect()).unwrap();
    bencher.bench_local(|| {
        let found = OddMachine::default().observe(&samples, Duration::from_secs(SECONDS as u64));
        assert_eq!(found, []);
    });
}
