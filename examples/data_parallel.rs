//! Data-parallel training between processes: each worker computes the gradient of its rows, and an
//! all-reduce in shared memory makes it the gradient of all. No number goes through the driver, and
//! the line that comes out is the one that a single process finds. Each rank tells what its stages
//! take, so that who looks on sees the rank that holds up the others.

use anyhow::ensure;
use odeon::collective::{Collective, Reduce};
use odeon::group::{Communicator, Seat};
use odeon::prelude::*;

const WORKERS: usize = 3;
const ROWS: usize = 600;
const FEATURES: usize = 64;
const STEPS: u32 = 60;
const RATE: f32 = 0.5;

/// Takes a seat and trains; the answer is the loss after each step.
#[derive(Clone)]
#[odeon::message(reply = Result<Vec<f32>, String>)]
struct Train {
    seat: Seat,
}

struct Worker {
    rank: Rank,
}

#[odeon::actor(name = "demo.DataParallelWorker")]
impl Worker {
    fn start(rank: Rank) -> Self {
        Self { rank }
    }

    #[handler(message = Train)]
    async fn train(&mut self, train: Train, cx: &mut Context<Self>) -> Result<Vec<f32>, String> {
        let comm = train.seat.take(cx).map_err(|error| error.to_string())?;
        let each = ROWS / train.seat.world();
        let first = self.rank.index() * each;
        fit(first..first + each, Some(comm)).map_err(|error| error.to_string())
    }
}

/// Between -1 and 1, the same everywhere.
fn noise(x: u32) -> f32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    ((x ^ (x >> 16)) % 2001) as f32 / 1000.0 - 1.0
}

/// A row and what a known model says of it.
fn row(i: usize) -> ([f32; FEATURES], f32) {
    let features = std::array::from_fn(|j| noise((i * FEATURES + j) as u32));
    let target = features
        .iter()
        .enumerate()
        .map(|(j, x)| x * (j % 7) as f32 / 7.0)
        .sum();
    (features, target)
}

/// Fits a linear model to some rows; with a communicator, to those of all ranks.
fn fit(
    rows: std::ops::Range<usize>,
    mut comm: Option<Communicator>,
) -> Result<Vec<f32>, odeon::collective::CollectiveError> {
    let rows: Vec<_> = rows.map(row).collect();
    let mut weights = [0.0f32; FEATURES];
    let mut losses = vec![];
    for step in 0..STEPS {
        let begun = Clock::now();
        // The gradient, and the loss behind it.
        let mut sums = [0.0f32; FEATURES + 1];
        for (features, target) in &rows {
            let guess: f32 = features.iter().zip(&weights).map(|(x, w)| x * w).sum();
            let error = guess - target;
            for (sum, x) in sums.iter_mut().zip(features) {
                *sum += 2.0 * error * x / rows.len() as f32;
            }
            sums[FEATURES] += error * error / rows.len() as f32;
        }
        let computed = Clock::now();
        if let Some(comm) = &mut comm {
            comm.all_reduce(&mut sums, Reduce::Mean)?;
            let rank = comm.membership().rank;
            let told = |stage, seconds| {
                let took = telemetry::gauge("train.stage_s", seconds).with("rank", rank);
                took.with("stage", stage).with("step", step).record();
            };
            told("gradient", computed.since(begun).as_secs_f64());
            told("all-reduce", Clock::now().since(computed).as_secs_f64());
            if rank == 0 {
                let loss = telemetry::gauge("train.loss", f64::from(sums[FEATURES]));
                loss.with("step", step).record();
            }
        }
        for (weight, gradient) in weights.iter_mut().zip(&sums) {
            *weight -= RATE * gradient;
        }
        losses.push(sums[FEATURES]);
    }
    Ok(losses)
}

async fn story(system: System) -> anyhow::Result<()> {
    let workers = system
        .spawn_group::<Worker>(mesh! { dp: WORKERS }, |rank| rank)
        .isolated()
        .await?;
    let formation = workers.form().await?;
    let orders = formation.seats().map(|seat| Train { seat }).collect();
    let mut losses = vec![];
    for answer in workers.scatter(orders).await? {
        losses.push(answer.map_err(anyhow::Error::msg)?);
    }
    let (first, last) = (losses[0][0], losses[0][STEPS as usize - 1]);
    println!("{WORKERS} processes: loss {first:.4} falls to {last:.6}");
    ensure!(
        losses.iter().all(|other| *other == losses[0]),
        "all ranks see the same bits"
    );
    ensure!(last < first / 100.0, "it learns");

    let alone = fit(0..ROWS, None)?;
    let apart = |(a, b): (&f32, &f32)| (a - b).abs() / a.max(1e-3);
    let worst = alone.iter().zip(&losses[0]).map(apart).fold(0.0, f32::max);
    println!("one process finds the same, but for {worst:.1e} of rounding");
    ensure!(worst < 1e-3, "the same model to rounding");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon::job![Worker].run(story)
}
