//! Engines between the role actors and the arithmetic: some train, and some generate. The actors
//! know these traits; what computes is chosen by an [`EngineSpec`].

pub mod compute;
pub mod modelled;
pub mod scripted;
pub mod served;

use std::path::{Path, PathBuf};
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Clock, Failure, GrantedDevice, Shape};

use crate::trajectory::{Batch, Order, SampleId, Trajectory, Used, Version};

/// Which engine an actor builds for itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum EngineSpec {
    /// Real training and generation.
    Compute(Box<compute::ComputeSpec>),
    /// A script in place of a model, with real time costs: for tests of the graph itself.
    Scripted(scripted::Script),
    /// Costs in place of a model, under virtual time: for graphs as large as no machine here.
    Modelled(Box<modelled::Modelled>),
    /// A server of somebody else generates; whatever trains or rates is as with `Compute`.
    Served(Box<served::ServedSpec>),
}

/// Results of one optimiser step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct StepStats {
    /// The loss.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// Norm of the gradient before clipping.
    #[serde(with = "crate::number")]
    pub grad_norm: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Floating point operations of the model in all of its passes, as its shape asks for them.
    pub flops: f64,
    /// Mean entropy per response token, in nats.
    #[serde(with = "crate::number")]
    pub entropy: f64,
    /// Mean divergence from the sampling policy, in nats.
    #[serde(with = "crate::number")]
    pub approximate_kl: f64,
    /// Part of the tokens whose gradient the trust region stopped.
    pub clip_fraction: f64,
    /// Mean weight of a token for the age of its data; 1 without that correction.
    #[serde(default, with = "crate::number")]
    pub importance_mean: f64,
    /// Part of the tokens whose weight was cut off.
    #[serde(default)]
    pub importance_capped_fraction: f64,
    /// The largest distance, in nats, of what training computes for a token from what generation said when it
    /// sampled it, over the replies of the weights that the step begins with; `None` where it has none. They
    /// are computed by different code: 0 where every sum has one order, more where weights are rounded.
    #[serde(default)]
    pub sampling_gap: Option<f64>,
}

/// Per-token inputs that other actors contribute to a step, in the order of the batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Signals {
    /// Log-probabilities of the response tokens under the reference; empty without one.
    pub reference: Vec<Vec<f32>>,
    /// Advantages of the response tokens.
    pub advantages: Vec<Vec<f32>>,
}

/// The result of answering held-out problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct EvalStats {
    /// Problems answered.
    pub problems: u64,
    /// Of these, right.
    pub correct: u64,
}

impl EvalStats {
    /// Part of the problems answered right, from 0 to 1.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        if self.problems == 0 {
            0.0
        } else {
            self.correct as f64 / self.problems as f64
        }
    }
}

/// Trains the policy.
pub trait TrainEngine: Send + Sync {
    /// One supervised step on worked solutions; `step` counts from 1.
    ///
    /// # Errors
    /// The step cannot be computed.
    fn warm_up(&mut self, step: u64) -> Result<StepStats, Failure>;

    /// One step of the objective on a batch.
    ///
    /// # Errors
    /// The step cannot be computed.
    fn train(&mut self, batch: &Batch, signals: &Signals) -> Result<StepStats, Failure>;

    /// Answers held-out problems greedily with the present weights.
    ///
    /// # Errors
    /// Generation failed.
    fn evaluate(&mut self, problems: usize) -> Result<EvalStats, Failure>;

    /// Floating point operations per second that what it computes on reaches in a large product, as
    /// a short trial now shows; `None` where nothing is computed.
    fn reachable_flops(&self) -> Option<f64>;

    /// The number of bytes of the weights that rollouts load.
    fn weight_bytes(&self) -> usize;

    /// Writes the weights that rollouts load.
    ///
    /// # Errors
    /// The weights cannot be made.
    fn write_weights(&mut self, out: &mut [u8]) -> Result<(), Failure>;

    /// Saves all that is needed to go on.
    ///
    /// # Errors
    /// The folder cannot be written.
    fn save(&mut self, folder: &Path, progress: &Progress, run: &RunState) -> Result<(), Failure>;

    /// Goes back to what was saved; `None` when nothing was.
    ///
    /// # Errors
    /// The folder is there, but broken.
    fn restore(&mut self, folder: &Path) -> Result<Option<(Progress, RunState)>, Failure>;

    /// Simulated time of the work since the last call, beyond the time that it took. Zero where
    /// nothing is simulated.
    fn takes(&mut self) -> Duration {
        Duration::ZERO
    }
}

/// State that a run needs to go on, beside its weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct RunState {
    /// The prompts that were used.
    pub used: Used,
    /// The price of cost, where there is one.
    pub price: Option<f32>,
}

/// Steps that a run has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Progress {
    /// Supervised steps done.
    pub warmup: u64,
    /// Optimiser steps of the reinforcement done; the version of the weights.
    pub version: Version,
}

/// Rates sequences token by token: the reference (log-probabilities) and the critic (values).
pub trait ScoreEngine: Send + Sync {
    /// One number per response token for each trajectory of the batch.
    ///
    /// # Errors
    /// The scores cannot be computed.
    fn score(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Failure>;

    /// Learns the returns, one per response token; gives the loss. A reference does not learn.
    ///
    /// # Errors
    /// The step cannot be computed.
    fn learn(&mut self, batch: &Batch, returns: &[Vec<f32>]) -> Result<f64, Failure>;

    /// Saves all that is needed to go on after the step `learnt`. What was saved before stays until
    /// the next time.
    ///
    /// # Errors
    /// The folder cannot be written.
    fn save(&mut self, folder: &Path, learnt: Version) -> Result<(), Failure>;

    /// Goes back to the newest that was saved, at or before the step `at_most` if there is one, and
    /// forgets for good what was saved later: the last step that it had learnt. `None` when nothing
    /// such was saved; it has not changed then.
    ///
    /// # Errors
    /// The folder is there, but broken.
    fn restore(
        &mut self,
        folder: &Path,
        at_most: Option<Version>,
    ) -> Result<Option<Version>, Failure>;
}

/// Settings that a reward model is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RewardModelSpec {
    /// The question that it answers.
    pub kind: RewardKind,
    /// Steps in which it learns.
    pub steps: u64,
    /// Pairs in a step.
    pub batch: usize,
    /// Its peak learning rate.
    pub lr: f32,
    /// The folder of one that has learnt already, in place of that.
    pub load: Option<PathBuf>,
    /// Where it is saved.
    pub folder: PathBuf,
}

/// The question that a reward model answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde", rename_all = "lowercase")]
pub enum RewardKind {
    /// The quality of a reply; the reward is the probability that it beats a reply of the mean
    /// score.
    #[default]
    Scalar,
    /// Which of two replies is better; the reward is the probability that it beats the reply that the
    /// policy thought likeliest before the reinforcement.
    Pairwise,
}

/// Results of the training of a reward model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Learnt {
    /// The question that it answers.
    pub kind: RewardKind,
    /// Steps in which it learnt.
    pub steps: u64,
    /// The mean loss of the last of them, in nats a pair.
    pub loss: f64,
    /// Pairs of replies to held-out problems that it has seen after that.
    pub pairs: u64,
    /// Of these, those whose right reply it thinks better.
    pub ordered: u64,
}

impl Learnt {
    /// Part of the held-out pairs whose right reply it thinks better, from 0 to 1.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.ordered as f64 / self.pairs.max(1) as f64
    }
}

/// Says how good replies are, by what it has learnt from pairs of which one is right.
pub trait RewardEngine: Send + Sync {
    /// Learns, or reads what was learnt before. The policy's supervised steps are over by then.
    ///
    /// # Errors
    /// There is nothing to learn from, or the folder cannot be read or written.
    fn prepare(&mut self) -> Result<Learnt, Failure>;

    /// Rates the quality of each of these replies, from 0 to 1. What one earns does not depend on
    /// the others.
    ///
    /// # Errors
    /// It has not learnt yet, or the scores cannot be computed.
    fn rate(&mut self, replies: &[Trajectory]) -> Result<Vec<f32>, Failure>;
}

/// A response that a rollout engine has finished, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// Which sample.
    pub id: SampleId,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities under the weights that made them, in nats.
    pub log_probs: Vec<f32>,
    /// Set when it stands at a token at which a call of a tool may close: it is no more under way,
    /// and may be [resumed](RolloutEngine::resume).
    pub paused: bool,
}

/// Generates responses, many at once.
pub trait RolloutEngine: Send + Sync {
    /// Returns true when new weights can be taken now: those before the last are in use no more,
    /// not by responses that have paused either.
    fn can_load(&self) -> bool;

    /// Takes new weights, for what is admitted from now on: what is under way ends with the weights
    /// that it began with. Only called when it [can](Self::can_load).
    ///
    /// # Errors
    /// The bytes are no weights of this model.
    fn load(&mut self, weights: &[u8]) -> Result<(), Failure>;

    /// Number of orders that can be worked on at once, beside those under way.
    fn free_slots(&self) -> usize;

    /// Responses under way.
    fn active(&self) -> usize;

    /// Begins a response.
    ///
    /// # Errors
    /// The prompt does not fit.
    fn admit(&mut self, order: &Order) -> Result<(), Failure>;

    /// Goes on with a response that has paused, with the weights that it has; `order` says all that
    /// there is of it.
    ///
    /// # Errors
    /// It does not fit.
    fn resume(&mut self, order: &Order) -> Result<(), Failure> {
        self.admit(order)
    }

    /// Takes a response for one that has paused, with the newest weights, before it is admitted.
    fn pause(&mut self, _id: SampleId) {}

    /// A response that has paused is not resumed.
    fn leave(&mut self, _id: SampleId) {}

    /// Moves all active responses on by one token; gives those that are finished or have paused,
    /// without what was there of them when they were admitted or resumed.
    ///
    /// # Errors
    /// Generation failed.
    fn step(&mut self) -> Result<Vec<Response>, Failure>;

    /// Takes new weights for everything, what is under way too: its keys and values are computed anew
    /// with them.
    ///
    /// # Errors
    /// The bytes are no weights of this model.
    fn interrupt(&mut self, weights: &[u8]) -> Result<(), Failure>;

    /// Tokens and log-probabilities of all active responses, from the `from`th new token of each
    /// on.
    fn under_way(&self, from: &dyn Fn(SampleId) -> usize) -> Vec<Response>;

    /// Ends all responses, active and paused. What there was of them is forgotten here.
    fn withdraw(&mut self);

    /// Bytes of keys and values.
    fn cache(&self) -> CacheUse;

    /// Tokens of each active response between two looks into the mailbox: few enough that news is
    /// heard soon, many enough that looking costs nothing.
    fn burst(&self) -> usize {
        8
    }

    /// As [`TrainEngine::takes`].
    fn takes(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Of what was last told to [take](Self::takes) longer, the part in which nothing was computed,
    /// since all replies waited for what is outside.
    fn waited(&mut self) -> Duration {
        Duration::ZERO
    }
}

/// Does what keeps a thread busy where other tasks can go on meanwhile; in a simulation, which has one
/// thread, right here.
pub(crate) fn in_place<T>(work: impl FnOnce() -> T) -> T {
    odeon::block_in_place(work)
}

/// Waits for what only takes time in thought.
pub(crate) async fn rest(takes: Duration) {
    if !takes.is_zero() {
        Clock::sleep(takes).await;
    }
}

/// Another life would make the same steps and stand before the same full disk.
pub(crate) fn unsaved(failure: Failure) -> Failure {
    Failure::error("the checkpoint could not be saved")
        .because(failure)
        .fatal()
}

/// Memory that a rollout engine uses for keys and values of tokens that it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct CacheUse {
    /// Bytes in use.
    pub used: u64,
    /// The most.
    pub capacity: u64,
}

impl EngineSpec {
    /// For a role that has been granted devices: it computes on the first, and whatever it wants
    /// beyond the memory that it was granted there is refused in its name.
    #[must_use]
    pub fn within(mut self, role: &str, granted: &[GrantedDevice]) -> Self {
        if let Self::Compute(spec) = &mut self {
            spec.keep_within(role, granted);
        }
        self
    }

    /// For the rollout of this number, from 0: where each has a server, its own.
    #[must_use]
    pub fn of_rollout(mut self, index: usize) -> Self {
        if let Self::Served(spec) = &mut self {
            spec.take_server(index);
        }
        self
    }

    /// Builds a trainer's engine.
    ///
    /// # Errors
    /// The model cannot be made or loaded.
    pub fn trainer(&self) -> Result<Box<dyn TrainEngine>, Failure> {
        Ok(match self {
            Self::Compute(spec) => Box::new(compute::Trainer::new(spec)?),
            Self::Served(spec) => Box::new(compute::Trainer::new(&spec.compute)?),
            Self::Scripted(script) => Box::new(scripted::ScriptedTrainer::new(script)),
            Self::Modelled(model) => {
                let engine = modelled::ModelledTrainer::new(model);
                Box::new(engine.map_err(Failure::error)?)
            }
        })
    }

    /// Builds a rollout's engine.
    ///
    /// # Errors
    /// The model cannot be made.
    pub fn rollout(&self) -> Result<Box<dyn RolloutEngine>, Failure> {
        Ok(match self {
            Self::Compute(spec) => Box::new(compute::Rollout::new(spec)?),
            Self::Served(spec) => Box::new(served::Served::new(spec).map_err(Failure::error)?),
            Self::Scripted(script) => Box::new(scripted::ScriptedRollout::new(script)),
            Self::Modelled(model) => {
                let engine = modelled::ModelledRollout::new(model);
                Box::new(engine.map_err(Failure::error)?)
            }
        })
    }

    /// Builds a reference's engine.
    ///
    /// # Errors
    /// The model cannot be made or loaded.
    pub fn reference(&self) -> Result<Box<dyn ScoreEngine>, Failure> {
        Ok(match self {
            Self::Compute(spec) => Box::new(compute::Reference::new(spec)?),
            Self::Served(spec) => Box::new(compute::Reference::new(&spec.compute)?),
            Self::Scripted(_) | Self::Modelled(_) => Box::<scripted::ScriptedScores>::default(),
        })
    }

    /// Builds a reward model's engine.
    ///
    /// # Errors
    /// The task cannot be made.
    pub fn reward_model(&self, model: &RewardModelSpec) -> Result<Box<dyn RewardEngine>, Failure> {
        Ok(match self {
            Self::Compute(spec) => Box::new(compute::RewardModel::new(spec, model)),
            Self::Served(spec) => Box::new(compute::RewardModel::new(&spec.compute, model)),
            Self::Scripted(_) | Self::Modelled(_) => Box::<scripted::ScriptedRewards>::default(),
        })
    }

    /// Builds a critic's engine.
    ///
    /// # Errors
    /// The model cannot be made or loaded.
    pub fn critic(&self) -> Result<Box<dyn ScoreEngine>, Failure> {
        Ok(match self {
            Self::Compute(spec) => Box::new(compute::Critic::new(spec)),
            Self::Served(spec) => Box::new(compute::Critic::new(&spec.compute)),
            Self::Scripted(_) | Self::Modelled(_) => Box::<scripted::ScriptedScores>::default(),
        })
    }
}
