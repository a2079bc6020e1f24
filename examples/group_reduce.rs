//! Data-parallel training in forty lines: a group on a mesh fits a line, and its gradients are
//! reduced to their mean.

use anyhow::ensure;
use odeon::group::{Collect, Mean, Sum};
use odeon::prelude::*;

/// Weights for everybody. The answer is the gradient of the squared error over the member's rows.
#[derive(Clone)]
#[odeon::message(reply = Vec<f64>)]
struct Step {
    weights: Vec<f64>,
}

#[derive(Clone)]
#[odeon::message(reply = (f64, u32))]
struct Loss {
    weights: Vec<f64>,
}

#[derive(Clone)]
#[odeon::message]
struct Load {
    rows: Vec<(f64, f64)>,
}

#[derive(Clone)]
#[odeon::message(reply = String)]
struct Name;

struct Worker {
    rank: Rank,
    rows: Vec<(f64, f64)>,
}

#[odeon::actor(name = "demo.Worker")]
impl Worker {
    fn start(rank: Rank) -> Self {
        Self { rank, rows: vec![] }
    }

    #[handler(message = Load)]
    fn load(&mut self, load: Load) {
        self.rows = load.rows;
    }

    #[handler(message = Step)]
    fn step(&mut self, step: Step) -> Vec<f64> {
        let n = self.rows.len() as f64;
        let mut gradient = vec![0.0, 0.0];
        for (x, y) in &self.rows {
            let error = step.weights[0] * x + step.weights[1] - y;
            gradient[0] += 2.0 * error * x / n;
            gradient[1] += 2.0 * error / n;
        }
        gradient
    }

    #[handler(message = Loss)]
    fn loss(&mut self, loss: Loss) -> (f64, u32) {
        let error = |(x, y): &(f64, f64)| (loss.weights[0] * x + loss.weights[1] - y).powi(2);
        (self.rows.iter().map(error).sum(), self.rows.len() as u32)
    }

    #[handler(message = Name)]
    fn name(&mut self, _: Name) -> String {
        self.rank.to_string()
    }
}

async fn story(system: System) -> anyhow::Result<()> {
    // Two worker processes, one for each half of the mesh.
    let workers = system
        .spawn_group::<Worker>(mesh! { dp: 4, tp: 2 }, |rank| rank)
        .each(|rank, spawn| spawn.in_worker(format!("node-{}", rank.along("dp") / 2)))
        .await?;
    println!(
        "{} actors on {} in {} processes",
        8,
        workers.mesh(),
        system.admin().workers().len()
    );
    println!(
        "a row of the mesh: {:?}",
        workers.slice(at!(dp = 1)).gather(Name).await?
    );

    // The line y = 3x - 1, sixteen points. Each data-parallel rank gets a quarter, its peers the
    // same.
    let line = |i: i32| (f64::from(i) / 8.0, 3.0 * f64::from(i) / 8.0 - 1.0);
    let quarters = (0..4).map(|q| Load {
        rows: (0..4).map(|i| line(4 * q + i)).collect(),
    });
    workers.scatter(quarters.collect()).along("dp").await?;

    // One answer for each data-parallel rank: that of the first peer.
    let one_each = || Collect::FirstOf("dp".to_owned());
    let mut weights = vec![0.0, 0.0];
    for step in 0..=400 {
        if step % 100 == 0 {
            let loss = workers
                .gather(Loss {
                    weights: weights.clone(),
                })
                .collect(one_each());
            let (sum, rows) = loss.reduce(Sum).await?;
            println!(
                "step {step:3}: loss {:.6} over {rows} rows",
                sum / f64::from(rows)
            );
            ensure!(rows == 16);
        }
        let step = workers
            .gather(Step {
                weights: weights.clone(),
            })
            .collect(one_each());
        let gradient = step.reduce(Mean).await?;
        for (weight, gradient) in weights.iter_mut().zip(gradient) {
            *weight -= 0.3 * gradient;
        }
    }
    println!("found y = {:.3}x + {:.3}", weights[0], weights[1]);
    ensure!((weights[0] - 3.0).abs() < 1e-3 && (weights[1] + 1.0).abs() < 1e-3);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon::job![Worker].run(story)
}
