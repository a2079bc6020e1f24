//! The first steps of a run, trained by its ranks and by one rank, and what the two differ in.
//!
//! Both train as any run does, in a place of their own, and keep a checkpoint before the first step and after each. A
//! checkpoint loads in any layout, so the two are read tensor by tensor. The first moments of the first step are its
//! gradients times a constant, once it is known by how much each run has clipped them.

use std::path::Path;

use odeon::{Failure, System};
use odeon_algorithms::model::PartTensor;
use odeon_algorithms::train::{Optimizer, TrainConfig};
use odeon_checkpoint::{MODEL, Opened, Storage, TensorName, Which};
use odeon_diagnosis::run::Watch;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::compare::{Comparison, Mismatch, PartMismatch, Quantity, TensorPair, part_of};
use super::plan::PretrainPlan;
use super::report::{Report, StepReport};
use super::run::{Desk, run};
use crate::engine::compute::state::{ACTOR, storage};
use crate::ranks::standbys::StandbyCount;

/// Two ways of training the same steps.
#[derive(Clone, Debug)]
pub struct Verification {
    /// With the ranks of the run.
    pub plan: PretrainPlan,
    /// With one rank.
    pub one: PretrainPlan,
    /// Names of the parameters, in the order of a forward pass.
    pub parameters: Vec<String>,
    /// Of each rank of the plan the names of its parameters, and its part of each.
    pub parts: Vec<Vec<(String, PartTensor)>>,
    /// The largest difference that counts as rounding.
    pub tolerance: f64,
}

impl Verification {
    /// Says of a number which ranks compute with it.
    fn with_ranks(&self, mut mismatch: Mismatch) -> Mismatch {
        let Some(name) = &mismatch.tensor else {
            return mismatch;
        };
        let is_of = |parts: &[(String, PartTensor)]| {
            let own = parts.iter().find(|(own, _)| own == name);
            own.is_some_and(|(_, tensor)| {
                let mut spans = tensor.part.iter().zip(&mismatch.index);
                spans.all(|(span, index)| span.contains(index))
            })
        };
        let ranks = self.parts.iter().enumerate();
        mismatch.ranks = ranks
            .filter(|(_, parts)| is_of(parts))
            .map(|(rank, _)| rank)
            .collect();
        mismatch
    }
}

/// A step as both have made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPair {
    /// Steps that are done with it.
    pub step: u64,
    /// Nats per predicted token: of the plan's ranks, and of one rank.
    pub loss: [f64; 2],
    /// The norm of the gradient, likewise.
    pub grad_norm: [f64; 2],
}

/// The difference between two ways of training the same steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// Steps that were compared.
    pub steps: Vec<StepPair>,
    /// The largest difference that counts as rounding.
    pub tolerance: f64,
    /// True where all losses, norms, weights and states of the optimiser are the same to the bit.
    pub equal: bool,
    /// The first number that is not.
    pub first: Option<Mismatch>,
    /// The first number that differs by more than rounding.
    pub beyond: Option<Mismatch>,
    /// The largest differences by part of the model, in the order of a forward pass.
    pub parts: Vec<PartMismatch>,
    /// Parameters that were compared, of the model as a whole.
    pub parameters: u64,
    /// Those of them that rounding alone may have moved one way or the other, see [`Comparison::moved`]: they are
    /// compared, and decide nothing.
    pub in_doubt: u64,
}

/// One of the two that train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The ranks of the run.
    Plan,
    /// One rank.
    One,
}

/// The plan of the first steps alone, with a checkpoint before each of them and behind the last, in this place.
#[must_use]
pub fn first_steps(plan: &PretrainPlan, steps: u64, checkpoint: &Path) -> PretrainPlan {
    let steps = steps.min(plan.steps);
    PretrainPlan {
        steps,
        checkpoint_first: true,
        checkpoint_every: 1,
        memory_every: 0,
        keep: steps as usize + 1,
        checkpoint: checkpoint.to_owned(),
        held_out: None,
        watch: Watch::new(steps),
        drills: vec![],
        standbys: StandbyCount::NONE,
        ..plan.clone()
    }
}

/// Trains the steps in both ways, one after the other, and compares them. `told` hears of each step.
///
/// # Errors
/// The steps cannot be made in one of the two ways, or their checkpoints not be read.
pub async fn verify(
    system: &System,
    verification: &Verification,
    mut told: impl FnMut(Side, &StepReport),
) -> Result<Verified, Failure> {
    let Verification { plan, one, .. } = verification;
    let by_plan = trained(system, plan, |step| told(Side::Plan, step)).await;
    let by_plan = by_plan.map_err(|failure| failed(failure, "with the ranks of the plan"))?;
    let by_one = trained(system, one, |step| told(Side::One, step)).await;
    let by_one = by_one.map_err(|failure| failed(failure, "with one rank"))?;
    compared(verification, &by_plan, &by_one).await
}

fn failed(failure: Failure, who: &str) -> Failure {
    Failure {
        message: format!("{who}: {}", failure.message),
        ..failure
    }
}

/// Trains, and answers for the steps.
async fn trained(
    system: &System,
    plan: &PretrainPlan,
    mut told: impl FnMut(&StepReport),
) -> Result<Vec<StepReport>, Failure> {
    let (reports, mut news) = mpsc::unbounded_channel();
    let (_halt, halt) = watch::channel(false);
    let (_ranks, ranks) = watch::channel(None);
    let desk = Desk {
        reports,
        members: watch::channel(vec![]).0,
        halt,
        ranks,
    };
    let mut steps: Vec<StepReport> = vec![];
    let mut hear = |report| {
        if let Report::Step(step) = report {
            told(&step);
            // Ranks that were lost make a step again.
            steps.retain(|before| before.step < step.step);
            steps.push(step);
        }
    };
    let mut running = Box::pin(run(system, plan, desk));
    let done = loop {
        tokio::select! {
            biased;
            Some(report) = news.recv() => hear(report),
            done = &mut running => break done,
        }
    };
    while let Ok(report) = news.try_recv() {
        hear(report);
    }
    done?;
    Ok(steps)
}

/// The differences of two runs whose checkpoints are there.
///
/// # Errors
/// One of them cannot be read.
async fn compared(
    verification: &Verification,
    by_plan: &[StepReport],
    by_one: &[StepReport],
) -> Result<Verified, Failure> {
    let train = &verification.one.train;
    let checkpoints = Checkpoints {
        plan: storage(&verification.plan.checkpoint)?,
        one: storage(&verification.one.checkpoint)?,
        parameters: &verification.parameters,
        train,
    };
    let mut comparison = Comparison::new(verification.tolerance);
    // So that they are told in this order.
    let mut forward: Vec<&str> = verification
        .parameters
        .iter()
        .map(|it| part_of(it))
        .collect();
    forward.dedup();
    let mut before = checkpoints.at(0).await?;
    let parameters = checkpoints.weights(0, &before, &mut comparison).await?;
    for (plan, one) in by_plan.iter().zip(by_one) {
        let step = plan.step;
        comparison.number(
            step,
            Quantity::Tokens,
            plan.tokens as f64,
            one.tokens as f64,
        );
        comparison.number(step, Quantity::Loss, plan.loss, one.loss);
        let now = checkpoints.at(step).await?;
        let norms = [plan.grad_norm, one.grad_norm];
        checkpoints
            .moments(step, &now, norms, &mut comparison)
            .await?;
        comparison.number(step, Quantity::GradientNorm, plan.grad_norm, one.grad_norm);
        checkpoints.moved(&before, &now, &mut comparison).await?;
        checkpoints.weights(step, &now, &mut comparison).await?;
        before = now;
    }
    let steps = by_plan.iter().zip(by_one).map(|(plan, one)| StepPair {
        step: plan.step,
        loss: [plan.loss, one.loss],
        grad_norm: [plan.grad_norm, one.grad_norm],
    });
    let in_doubt = comparison.in_doubt();
    let mut parts = comparison.parts;
    parts.sort_by_key(|it| forward.iter().position(|part| *part == it.part));
    Ok(Verified {
        steps: steps.collect(),
        tolerance: verification.tolerance,
        equal: comparison.first.is_none(),
        first: comparison.first.map(|it| verification.with_ranks(it)),
        beyond: comparison.beyond.map(|it| verification.with_ranks(it)),
        parts,
        parameters,
        in_doubt,
    })
}

/// The checkpoints of both, before and after each step.
struct Checkpoints<'a> {
    plan: Storage,
    one: Storage,
    /// In the order of a forward pass.
    parameters: &'a [String],
    train: &'a TrainConfig,
}

/// The checkpoints of both after a step.
struct Both {
    plan: Opened,
    one: Opened,
}

impl Checkpoints<'_> {
    async fn at(&self, step: u64) -> Result<Both, Failure> {
        let open = async |storage: &Storage| {
            let opened = Opened::of(storage, Which::Step(step)).await;
            let opened = opened.map_err(Failure::error)?;
            let lacks = || {
                Failure::error(format!(
                    "{} has no checkpoint of step {step}",
                    storage.place()
                ))
            };
            opened.ok_or_else(lacks)
        };
        Ok(Both {
            plan: open(&self.plan).await?,
            one: open(&self.one).await?,
        })
    }

    /// The parameters by layers, in the order of a forward pass.
    fn layers(&self) -> Vec<&[String]> {
        let layers = self.parameters.chunk_by(|a, b| part_of(a) == part_of(b));
        layers.collect()
    }

    /// Compares all weights, and answers how many there are.
    async fn weights(
        &self,
        step: u64,
        at: &Both,
        comparison: &mut Comparison,
    ) -> Result<u64, Failure> {
        let mut count = 0;
        for layer in self.layers() {
            let pairs = pairs(at, MODEL, layer).await?;
            count += pairs.iter().map(|pair| pair.one.len() as u64).sum::<u64>();
            comparison.layer(step, Quantity::Weights, &pairs, [1.0; 2]);
        }
        Ok(count)
    }

    /// Compares what the optimiser keeps, in the order of a backward pass: of the first step as gradients.
    async fn moments(
        &self,
        step: u64,
        at: &Both,
        norms: [f64; 2],
        comparison: &mut Comparison,
    ) -> Result<(), Failure> {
        for (number, state) in self.train.optimizer.state().iter().enumerate() {
            let (quantity, factors) = match (step, number) {
                (1, 0) => (
                    Quantity::Gradient,
                    norms.map(|norm| self.gradient_of_first(norm)),
                ),
                // Squares of gradients, which are clipped twice.
                (1, _) => (
                    Quantity::Moments,
                    norms.map(|norm| self.clipped(norm).powi(-2)),
                ),
                _ => (Quantity::Moments, [1.0; 2]),
            };
            for layer in self.layers().into_iter().rev() {
                let mut pairs = pairs(at, state, layer).await?;
                pairs.reverse();
                comparison.layer(step, quantity, &pairs, factors);
            }
        }
        Ok(())
    }

    /// The factor by which a gradient of this norm is clipped.
    fn clipped(&self, norm: f64) -> f64 {
        let clip = self.train.clip.map_or(f64::INFINITY, f64::from);
        (clip / norm).min(1.0)
    }

    /// The gradient as a part of the first moment that the first step leaves of it.
    fn gradient_of_first(&self, norm: f64) -> f64 {
        let kept = match &self.train.optimizer {
            Optimizer::AdamW(adamw) => 1.0 - adamw.beta1,
            Optimizer::Lion(lion) => 1.0 - lion.beta2,
            // Of matrices it is the gradient, and a part of it of others.
            _ => 1.0,
        };
        1.0 / (f64::from(kept) * self.clipped(norm))
    }

    /// Tells in which direction a step has moved weights, but for those of which that is no matter of one number.
    async fn moved(
        &self,
        before: &Both,
        now: &Both,
        comparison: &mut Comparison,
    ) -> Result<(), Failure> {
        let Some(first) = self.train.optimizer.state().first() else {
            return Ok(());
        };
        for layer in self.layers() {
            let mut directions = pairs(now, first, layer).await?;
            if let Optimizer::Lion(lion) = &self.train.optimizer {
                let of_gradient = (1.0 - lion.beta1) / (1.0 - lion.beta2);
                for (now, before) in directions
                    .iter_mut()
                    .zip(pairs(before, first, layer).await?)
                {
                    for (now, before) in [(&mut now.plan, before.plan), (&mut now.one, before.one)]
                    {
                        for (moment, earlier) in now.iter_mut().zip(before) {
                            let gradient = of_gradient * (*moment - lion.beta2 * earlier);
                            *moment = lion.beta1 * earlier + gradient;
                        }
                    }
                }
            }
            comparison.moved(&directions);
        }
        Ok(())
    }
}

/// Tensors of a state as both have them.
async fn pairs(at: &Both, state: &str, names: &[String]) -> Result<Vec<TensorPair>, Failure> {
    let mut pairs = vec![];
    for name in names {
        let (plan, shape) = numbers(&at.plan, state, name).await?;
        let (one, of_one) = numbers(&at.one, state, name).await?;
        if shape != of_one {
            return Err(Failure::error(format!(
                "{state}/{name} has shape {shape:?} with the ranks of the plan, and {of_one:?} with one rank"
            )));
        }
        pairs.push(TensorPair {
            name: name.clone(),
            shape,
            plan,
            one,
        });
    }
    Ok(pairs)
}

/// The numbers of a tensor, and its shape.
async fn numbers(of: &Opened, state: &str, name: &str) -> Result<(Vec<f32>, Vec<usize>), Failure> {
    let lacks = || Failure::error(format!("{} has no {state}/{name}", of.shown()));
    let tensor = of.manifest().tensor(ACTOR, state, name).ok_or_else(lacks)?;
    let named = TensorName {
        role: ACTOR.to_owned(),
        state: state.to_owned(),
        tensor: name.to_owned(),
    };
    let bytes = of.tensor(&named).await.map_err(Failure::error)?;
    let bytes = bytes.ok_or_else(lacks)?;
    let words = bytes.as_chunks::<4>().0.iter();
    let numbers = words.map(|word| f32::from_le_bytes(*word)).collect();
    Ok((numbers, tensor.shape.clone()))
}
