//! Engines that only think: what they do takes the time that a [cost model](odeon_algorithms::cost)
//! says, and replies are as long as a [workload](odeon_algorithms::workload) says. The role actors
//! around them are the real ones, under virtual time, so that a graph can be tried at a size that no
//! machine here has.
//!
//! A token here stands for [`quantum`](Modelled::quantum) tokens, since a thousand cards make more of
//! them than can be counted one by one.

mod cache;
mod rollout;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Clock, Failure, Timestamp};

use odeon_algorithms::cost::{Card, CostError, ModelSize, Replica, Sequences, Trainer};
use odeon_algorithms::workload::{Workload, WorkloadError, WorkloadSpec};

pub use self::rollout::ModelledRollout;
use super::{EvalStats, Progress, RunState, Signals, StepStats, TrainEngine};
use crate::trajectory::Batch;

/// Settings of the engines of a simulated run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Modelled {
    /// The work: lengths of prompts and replies, turns, and times of the environment.
    pub workload: WorkloadSpec,
    /// Tokens that one token of a reply here stands for.
    pub quantum: u32,
    /// The cards.
    pub card: Card,
    /// The model.
    pub model: ModelSize,
    /// Cards of one rollout.
    pub rollout_gpus: u32,
    /// Replies that a rollout works on at once.
    pub slots: usize,
    /// Cards of the trainer.
    pub trainer_gpus: u32,
    /// Of these, how many share each layer.
    pub trainer_tensor: u32,
    /// Optimiser updates with one batch, each with an equal part of it.
    pub updates: u32,
    /// The way in which rollouts get new weights.
    pub delivery: Delivery,
    /// Sharing of keys and values among replies to one prompt.
    pub prefixes: Prefixes,
    /// Time that a rollout takes to start, before its first weights.
    pub starts: Duration,
}

/// Sharing of a prompt's keys and values among the replies to it, on one rollout and with the same
/// weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde", rename_all = "snake_case")]
pub enum Prefixes {
    /// They are computed once and take room once.
    #[default]
    Shared,
    /// Each reply has its own.
    Own,
}

/// The way of new weights from the trainer to a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum Delivery {
    /// The trainer hands them to its relay and goes on; a chain of so many relays has them a little
    /// later, and each rollout takes them from its machine's.
    Relays(u32),
    /// The trainer sends them to the cards of so many machines, and stands still meanwhile.
    Broadcast(u32),
    /// They are where they are needed: rollouts and trainer have the same cards.
    Colocated,
}

impl Modelled {
    /// Seconds for which the trainer stands still to hand over new weights.
    fn publish_s(&self) -> f64 {
        let bytes = self.model.weight_bytes();
        let takes = match self.delivery {
            Delivery::Relays(_) => self.card.publish(bytes),
            Delivery::Broadcast(machines) => self.card.global_broadcast(bytes, machines),
            Delivery::Colocated => Duration::ZERO,
        };
        takes.as_secs_f64()
    }

    /// Time from the moment at which the trainer has handed them over until a rollout can take new
    /// weights: the way along the relays, on which nobody waits who has something to do.
    fn way(&self) -> Duration {
        match self.delivery {
            Delivery::Relays(relays) => self.card.relay_chain(self.model.weight_bytes(), relays),
            Delivery::Broadcast(_) | Delivery::Colocated => Duration::ZERO,
        }
    }

    /// Seconds for which a rollout stands still to take in weights that are there.
    fn load_s(&self, replica: &Replica) -> f64 {
        let bytes = self.model.weight_bytes();
        let takes = match self.delivery {
            Delivery::Relays(_) => replica.pull(),
            Delivery::Broadcast(machines) => self.card.global_broadcast(bytes, machines),
            // Gathered over the links between the cards of a machine.
            Delivery::Colocated => {
                Duration::from_secs_f64(bytes as f64 / self.card.device.nvlink_bytes_per_second)
            }
        };
        takes.as_secs_f64()
    }
}

/// Weights that are thought: where they would lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Weights {
    /// Steps behind them.
    steps: u64,
    /// When the last rollout can take them.
    there: Timestamp,
}

impl Weights {
    const BYTES: usize = 16;

    fn write(self, out: &mut [u8]) {
        let (steps, there) = out.split_at_mut(Self::BYTES / 2);
        steps.copy_from_slice(&self.steps.to_le_bytes());
        there.copy_from_slice(&self.there.0.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Result<Self, Failure> {
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        match (number(0), number(8)) {
            (Some(steps), Some(there)) => Ok(Self {
                steps,
                there: Timestamp(there),
            }),
            _ => Err(Failure::error(format!(
                "weights of {} bytes are not those of a trainer that is thought, of {}",
                bytes.len(),
                Self::BYTES
            ))),
        }
    }
}

/// Why an engine cannot be thought. Nothing was made; the run is described wrongly.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelledError {
    /// The cards are too few for the model, or cannot be divided so.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The workload is invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// Time that was thought, in seconds.
#[derive(Debug, Default)]
struct Thought {
    /// In all.
    at: f64,
    /// Not yet told of.
    untold: f64,
}

impl Thought {
    fn pass(&mut self, takes: f64) {
        self.at += takes;
        self.untold += takes;
    }

    fn take(&mut self) -> Duration {
        Duration::from_secs_f64(std::mem::take(&mut self.untold))
    }
}

/// Trains nothing; its weights are the number of steps.
#[derive(Debug)]
pub struct ModelledTrainer {
    model: Modelled,
    trainer: Trainer,
    workload: Workload,
    steps: u64,
    thought: Thought,
}

impl ModelledTrainer {
    /// A trainer before its first step.
    ///
    /// # Errors
    /// See [`ModelledError`].
    pub fn new(model: &Modelled) -> Result<Self, ModelledError> {
        let (gpus, tensor) = (model.trainer_gpus, model.trainer_tensor);
        Ok(Self {
            trainer: Trainer::new(&model.card, &model.model, gpus, tensor)?,
            workload: Workload::new(model.workload)?,
            model: model.clone(),
            steps: 0,
            thought: Thought::default(),
        })
    }
}

impl TrainEngine for ModelledTrainer {
    fn warm_up(&mut self, _step: u64) -> Result<StepStats, Failure> {
        Ok(StepStats::default())
    }

    fn train(&mut self, batch: &Batch, _signals: &Signals) -> Result<StepStats, Failure> {
        let quantum = u64::from(self.model.quantum);
        let (mut tokens, mut whole) = (0, vec![]);
        for trajectory in &batch.trajectories {
            let reply = trajectory.response.len() as u64 * quantum;
            whole.push(self.workload.prompt_tokens(trajectory.id.group) + reply);
            tokens += reply;
        }
        let takes = self
            .trainer
            .train_step(Sequences::of(&whole), self.model.updates);
        self.thought.pass(takes.as_secs_f64());
        self.steps += 1;
        Ok(StepStats {
            tokens,
            ..StepStats::default()
        })
    }

    fn evaluate(&mut self, _problems: usize) -> Result<EvalStats, Failure> {
        Ok(EvalStats::default())
    }

    fn reachable_flops(&self) -> Option<f64> {
        None
    }

    fn weight_bytes(&self) -> usize {
        Weights::BYTES
    }

    fn write_weights(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        self.thought.pass(self.model.publish_s());
        let handed_over = Clock::now().after(Duration::from_secs_f64(self.thought.untold));
        let weights = Weights {
            steps: self.steps,
            there: handed_over.after(self.model.way()),
        };
        weights.write(out);
        Ok(())
    }

    fn save(&mut self, _: &Path, _: &Progress, _: &RunState) -> Result<(), Failure> {
        Ok(())
    }

    fn restore(&mut self, _folder: &Path) -> Result<Option<(Progress, RunState)>, Failure> {
        Ok(None)
    }

    fn takes(&mut self) -> Duration {
        self.thought.take()
    }
}
