//! Engines that only think: what they do takes the time that a [cost model](odeon_algorithms::cost)
//! says, and replies are as long as a [workload](odeon_algorithms::workload) says. The role actors
//! around them are the real ones, under virtual time, so that a graph can be tried at a size that no
//! machine here has.
//!
//! A token here stands for [`quantum`](Modelled::quantum) tokens, since a thousand cards make more of
//! them than can be counted one by one.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};

use odeon_algorithms::cost::{Card, CostError, ModelSize, Replica, Sequences, Trainer};
use odeon_algorithms::workload::{SampleKey, Workload, WorkloadError, WorkloadSpec};

use super::{
    CacheUse, EvalStats, Progress, Response, RolloutEngine, RunState, Signals, StepStats,
    TrainEngine,
};
use crate::trajectory::{Batch, Order, SampleId};

/// What the engines of a simulated run are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Modelled {
    /// What is worked on.
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
    /// How rollouts get new weights.
    pub delivery: Delivery,
}

/// How new weights come from the trainer to a rollout.
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
    /// How long the trainer stands still to hand over new weights, in seconds.
    fn publish_s(&self) -> f64 {
        let bytes = self.model.weight_bytes();
        let takes = match self.delivery {
            Delivery::Relays(_) => self.card.publish(bytes),
            Delivery::Broadcast(machines) => self.card.global_broadcast(bytes, machines),
            Delivery::Colocated => Duration::ZERO,
        };
        takes.as_secs_f64()
    }

    /// How long a rollout stands still to take them in, in seconds. The way along the relays counts
    /// here, though the rollout could go on meanwhile.
    fn load_s(&self, replica: &Replica) -> f64 {
        let bytes = self.model.weight_bytes();
        let takes = match self.delivery {
            Delivery::Relays(relays) => self.card.relay_chain(bytes, relays) + replica.pull(),
            Delivery::Broadcast(machines) => self.card.global_broadcast(bytes, machines),
            // Gathered over the links between the cards of a machine.
            Delivery::Colocated => Duration::from_secs_f64(bytes as f64 / self.card.nvlink),
        };
        takes.as_secs_f64()
    }
}

/// Why an engine cannot be thought. Nothing was made; the run is described wrongly.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelledError {
    /// The cards are too few for the model, or cannot be divided so.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// What is worked on is none.
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
        let takes = self.trainer.train_step(Sequences::of(&whole), 1);
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
        8
    }

    fn write_weights(&mut self, out: &mut [u8]) -> Result<(), Failure> {
        self.thought.pass(self.model.publish_s());
        out.copy_from_slice(&self.steps.to_le_bytes());
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

/// A reply under way.
#[derive(Debug)]
struct Reply {
    id: SampleId,
    weights: u64,
    prompt: u64,
    /// Tokens here that were there when it was admitted, and those made since.
    begun: usize,
    made: usize,
    /// After so many tokens the environment works for so many seconds.
    turns: VecDeque<(usize, f64)>,
    length: usize,
    /// When the environment is done.
    goes_on: f64,
}

impl Reply {
    fn tokens(&self) -> usize {
        self.begun + self.made
    }

    fn response(&self, from: usize) -> Response {
        let tokens = self.made.saturating_sub(from);
        Response {
            id: self.id,
            tokens: vec![0; tokens],
            log_probs: vec![0.0; tokens],
            paused: false,
        }
    }
}

/// Generates as many tokens as the distribution says, in the time that the model says.
#[derive(Debug)]
pub struct ModelledRollout {
    model: Modelled,
    replica: Replica,
    workload: Workload,
    weights: u64,
    active: Vec<Reply>,
    thought: Thought,
}

impl ModelledRollout {
    /// A rollout without weights.
    ///
    /// # Errors
    /// See [`ModelledError`].
    pub fn new(model: &Modelled) -> Result<Self, ModelledError> {
        Ok(Self {
            replica: Replica::new(&model.card, &model.model, model.rollout_gpus)?,
            workload: Workload::new(model.workload)?,
            model: model.clone(),
            weights: 0,
            active: vec![],
            thought: Thought::default(),
        })
    }

    /// Tokens that have keys and values, and how many replies they are of.
    fn load_of(&self, of: impl Fn(&Reply) -> bool) -> (u64, u64) {
        let quantum = u64::from(self.model.quantum);
        let all = self.active.iter().filter(|reply| of(reply));
        all.fold((0, 0), |(tokens, replies), reply| {
            let made = reply.tokens() as u64 * quantum;
            (tokens + reply.prompt + made, replies + 1)
        })
    }

    /// Takes tokens in that were there before.
    fn prefill(&mut self, lengths: &[u64]) {
        let takes = self.replica.prefill(Sequences::of(lengths));
        self.thought.pass(takes.as_secs_f64());
    }
}

impl RolloutEngine for ModelledRollout {
    fn can_load(&self) -> bool {
        let mut all = self.active.iter();
        all.all(|reply| reply.weights == self.weights)
    }

    fn load(&mut self, _weights: &[u8]) -> Result<(), Failure> {
        self.thought.pass(self.model.load_s(&self.replica));
        self.weights += 1;
        Ok(())
    }

    fn free_slots(&self) -> usize {
        // What is under way grows: a tenth is left for that.
        let cache = self.cache();
        if cache.used > cache.capacity / 10 * 9 {
            return 0;
        }
        self.model.slots.saturating_sub(self.active.len())
    }

    fn active(&self) -> usize {
        self.active.len()
    }

    fn admit(&mut self, order: &Order) -> Result<(), Failure> {
        let quantum = u64::from(self.model.quantum.max(1));
        // The same whichever weights begin it, so that all modes have the same work.
        let episode = self.workload.episode(SampleKey {
            group: order.id.group,
            sample: order.id.sample,
            version: 0,
        });
        let begun = order.partial.as_ref().map_or(0, |it| it.tokens.len());
        let (mut length, mut turns) = (0, VecDeque::new());
        for turn in &episode.turns {
            length += turn.tokens.div_ceil(quantum) as usize;
            if length > begun && !turn.environment.is_zero() {
                turns.push_back((length, turn.environment.as_secs_f64()));
            }
        }
        self.prefill(&[episode.prompt_tokens + begun as u64 * quantum]);
        self.active.push(Reply {
            id: order.id,
            weights: self.weights,
            prompt: episode.prompt_tokens,
            begun,
            made: 0,
            turns,
            length: length.max(begun + 1),
            goes_on: 0.0,
        });
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Response>, Failure> {
        let now = self.thought.at;
        let first = self.active.iter().map(|reply| reply.goes_on);
        let first = first.fold(f64::INFINITY, f64::min);
        if first > now && first.is_finite() {
            // All wait for their environments.
            self.thought.pass(first - now);
        }
        let (now, newest) = (self.thought.at, self.weights);
        let goes_on = |reply: &Reply| reply.goes_on <= now;
        // Each of two sets of weights is read in a step of its own.
        let with = self.load_of(|it| goes_on(it) && it.weights == newest);
        let before = self.load_of(|it| goes_on(it) && it.weights != newest);
        for (tokens, replies) in [with, before] {
            if replies > 0 {
                let step = self.replica.decode_step(replies, tokens);
                let steps = f64::from(self.model.quantum);
                self.thought.pass(steps * step.as_secs_f64());
            }
        }
        let after = self.thought.at;
        for reply in self.active.iter_mut().filter(|it| goes_on(it)) {
            reply.made += 1;
            if let Some((_, takes)) = reply
                .turns
                .pop_front_if(|(at, _)| reply.begun + reply.made >= *at)
            {
                reply.goes_on = after + takes;
            }
        }
        let ended = |reply: &mut Reply| reply.tokens() >= reply.length;
        let ended = self.active.extract_if(.., ended);
        Ok(ended.map(|reply| reply.response(0)).collect())
    }

    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure> {
        self.load(weights)?;
        let quantum = u64::from(self.model.quantum);
        let mut again = vec![];
        for reply in &mut self.active {
            reply.weights = self.weights;
            again.push(reply.prompt + reply.tokens() as u64 * quantum);
        }
        self.prefill(&again);
        Ok(())
    }

    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response> {
        let all = self.active.iter();
        all.map(|reply| reply.response(from(reply.id))).collect()
    }

    fn withdraw(&mut self) {
        self.active.clear();
    }

    fn cache(&self) -> CacheUse {
        let token = self.model.model.kv_bytes_per_token();
        let older = self.active.iter().any(|it| it.weights != self.weights);
        // A second set of weights takes its room from the cache.
        let weights = if older {
            self.model.model.weight_bytes()
        } else {
            0
        };
        CacheUse {
            used: self.load_of(|_| true).0 * token,
            capacity: self.replica.kv_capacity_bytes().saturating_sub(weights),
        }
    }

    fn burst(&self) -> usize {
        1
    }

    fn takes(&mut self) -> Duration {
        self.thought.take()
    }
}
