//! Recipes: a run as a TOML file. Every field has a default, a range and a sentence; a wrong one is
//! refused with file, line and what was expected, before anything starts.

mod algorithm;
mod assign;
mod check;
mod environment;
mod fields;
mod placement;
mod pretrain;
mod recovery;
mod sandbox;
mod source;

use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon_algorithms::environment::Tool;
use odeon_algorithms::model::{LayerBlock, ModelConfig, Recompute, VirtualWidth};
use odeon_algorithms::objective::{Blend, KlEstimator, Surrogate};
use odeon_algorithms::setting::{Chosen, spelled};
use odeon_algorithms::task::TaskSpec;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{Optimizer, Sharing, TrainConfig};
use odeon_algorithms::weights::StoredType;
use odeon_gpu::Precision;
use serde::{Deserialize, Deserializer, Serialize};

use crate::engine::compute::{ComputeSpec, policy_optimizer};
use crate::engine::served::{Dialect, Patience, ServedSpec};
use crate::engine::{RewardKind, RewardModelSpec};
use crate::hybrid::Choice;
use crate::rl::chain::Forms;
use crate::rl::chain::delta::Word;
use crate::rl::ledger::sampler::SamplerSpec;
use crate::rl::referee::ProgramSpec;
use crate::rl::reward_model::LearnedReward;
use crate::rl::rollout::Swap;
use crate::rl::run::Acting;
use crate::simulate::CardName;

pub use algorithm::Algorithm;
pub use environment::EnvironmentSection;
pub use placement::RankPlacement;
pub use pretrain::{
    Arranged, AutoPlan, CandidatePlan, DataSection, HeldOutSection, ParallelChoice,
    ParallelSection, PlaceSection, PlannedCard, PretrainRecipe, PretrainSection, RanksSection,
    RefusedPlans, TokenizerSection,
};
pub use recovery::{FaultResponse, RecoverySection, StandbyWish};
pub use sandbox::SandboxSection;
pub use source::{RecipeError, Source};

/// A reinforcement-learning run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name, seed and place of the run.
    pub run: RunSection,
    /// The policy: built from scratch, or loaded.
    pub model: ModelSection,
    /// The task to learn.
    pub task: TaskSpec,
    /// Limits and isolation of programs in replies.
    #[serde(default)]
    pub sandbox: Option<SandboxSection>,
    /// The tool that replies can call.
    #[serde(default)]
    pub environment: Option<EnvironmentSection>,
    /// Supervised steps before the reinforcement.
    #[serde(default)]
    pub warmup: WarmupSection,
    /// The reinforcement.
    pub rl: RlSection,
    /// The measure of harm, and its price.
    #[serde(default)]
    pub cost: Option<CostSection>,
    /// The source of rewards: the checker, a model, or both.
    #[serde(default)]
    pub reward: RewardSection,
    /// The engine that generates replies.
    #[serde(default)]
    pub rollout: RolloutSection,
    /// Which actors get a process of their own.
    #[serde(default)]
    pub processes: ProcessesSection,
    /// The way in which ranks share the models that learn or rate.
    #[serde(default)]
    pub parallel: ParallelSection,
    /// Resources that the processes reserve.
    #[serde(default)]
    pub placement: PlacementSection,
    /// The response to ranks that hold up the others.
    #[serde(default)]
    pub recovery: RecoverySection,
    /// Evaluation on held-out problems.
    #[serde(default)]
    pub eval: EvalSection,
}

/// `[run]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSection {
    /// The run's name; its files lie in `<out>/<name>`.
    pub name: String,
    /// Everything random follows from it.
    #[serde(default)]
    pub seed: u64,
    /// The folder for runs.
    #[serde(default = "default_out")]
    pub out: PathBuf,
    /// `cpu`; `cuda` is refused by builds without it.
    #[serde(default = "default_device")]
    pub device: String,
    /// Set for sums of forward passes in one order, so that training, scoring and generation say the same of
    /// a token to the bit.
    #[serde(default)]
    pub deterministic: bool,
    /// To what factors of products are rounded, where it is not as the device has it.
    pub products: Option<Precision>,
}

impl RunSection {
    /// To what factors of products are rounded: a card rounds them to bf16 if nothing is said, a processor not at all.
    #[must_use]
    pub fn products(&self) -> Precision {
        let own = match self.device == default_device() {
            true => Precision::F32,
            false => Precision::Bf16,
        };
        self.products.unwrap_or(own)
    }

    /// Checks that sums can have one order, where they are to.
    fn check_deterministic(&self) -> Result<(), String> {
        match self.deterministic && self.device != default_device() {
            true => Err(format!(
                "deterministic = true is for the processor, whose sums can have one order: expected device = \
                 \"cpu\" with it, and not \"{}\"",
                self.device
            )),
            false => Ok(()),
        }
    }
}

/// `[model]`: either `load`, or the sizes of a new one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// A name that `odeon fetch` knows, a `.gguf` file, or a folder with `model.safetensors`.
    pub load: Option<String>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads; must divide `hidden` into heads of an even size.
    pub heads: usize,
    /// Key and value heads; must divide `heads`.
    pub kv_heads: usize,
    /// Inner width of the feed-forward part; of a mixture that of each expert.
    pub ffn: usize,
    /// The feed-forward part.
    #[serde(deserialize_with = "spelled")]
    pub block: LayerBlock,
    /// The residual stream, where it is wider than layers or made of segments.
    pub width: Option<VirtualWidth>,
    /// The longest sequence, prompt and response together, in tokens.
    pub context: usize,
    /// Rank of low-rank adapters on the linear layers; 0 trains all parameters.
    pub lora_rank: usize,
}

impl Default for ModelSection {
    fn default() -> Self {
        Self {
            load: None,
            hidden: 128,
            layers: 4,
            heads: 4,
            kv_heads: 4,
            ffn: 344,
            block: LayerBlock::default(),
            width: None,
            context: 64,
            lora_rank: 0,
        }
    }
}

/// `[warmup]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmupSection {
    /// Supervised steps on worked solutions; 0 for none.
    pub steps: u64,
    /// Problems in a step.
    pub batch: usize,
    /// Peak learning rate.
    pub lr: f32,
}

impl Default for WarmupSection {
    fn default() -> Self {
        Self {
            steps: 0,
            batch: 64,
            lr: 1e-3,
        }
    }
}

/// The course of the learning rate of the reinforcement, after it has grown to its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrSchedule {
    /// It stays there.
    #[default]
    Constant,
    /// It falls to a tenth along a cosine, over the steps of the run.
    Cosine,
}

/// `[rl]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RlSection {
    /// Where advantages come from, and what is done with them.
    pub algorithm: Algorithm,
    /// Optimiser steps.
    pub steps: u64,
    /// Prompts in a step.
    pub groups: usize,
    /// Samples of each prompt.
    pub group_size: u32,
    /// Peak learning rate.
    pub lr: f32,
    /// The learning rate after its peak.
    #[serde(default)]
    pub schedule: LrSchedule,
    /// The optimiser of the policy.
    #[serde(default = "policy_optimizer", deserialize_with = "spelled")]
    pub optimizer: Optimizer,
    /// The part of passes of the policy and of critics that is computed again on the way back, in place of being kept.
    #[serde(default)]
    pub recompute: Recompute,
    /// Set where what layers of the policy and of critics keep for the way back waits in memory of the host.
    #[serde(default)]
    pub offload: bool,
    /// The most steps between the weights that made a trajectory and those that it trains; 0 is
    /// synchronous.
    #[serde(default = "default_staleness")]
    pub staleness_max: u64,
    /// Which complete groups a step takes, when there are more than it needs.
    #[serde(default)]
    pub sampler: SamplerSpec,
    /// Steps between two versions of the weights that rollouts are given.
    #[serde(default = "one_u64")]
    pub publish_every: u64,
    /// The way in which rollouts change to newer weights.
    #[serde(default)]
    pub swap: Swap,
    /// Seconds between two looks for rollouts that run dry; 0 packs none together.
    #[serde(default)]
    pub repack_seconds: f32,
    /// Sampling temperature.
    #[serde(default = "one")]
    pub temperature: f32,
    /// Nucleus sampling; 1 for all tokens.
    #[serde(default = "one")]
    pub top_p: f32,
    /// The longest response, in tokens.
    pub response_max: usize,
    /// The surrogate of the policy's loss, if it is not that of the algorithm.
    #[serde(default, deserialize_with = "spelled_if")]
    pub objective: Option<Surrogate>,
    /// Trust region below 1, if it is not that of the algorithm.
    #[serde(default)]
    pub clip_low: Option<f32>,
    /// Trust region above 1, if it is not that of the algorithm.
    #[serde(default)]
    pub clip_high: Option<f32>,
    /// The most that a token weighs for the age of its data; 0 for no correction.
    #[serde(default)]
    pub importance_cap: f32,
    /// Weight of the likelihood of right replies, if it is not that of the algorithm.
    #[serde(default)]
    pub positive: Option<f32>,
    /// The last tokens before `response_max`, in which each costs more reward; 0 for none.
    #[serde(default)]
    pub overlong: Option<usize>,
    /// Times the prompts of a step that are tried for groups whose rewards differ; 0 keeps all.
    #[serde(default)]
    pub refill: Option<u32>,
    /// Weight of the divergence from the policy before the reinforcement; needs a reference actor
    /// when it is not 0.
    #[serde(default)]
    pub kl: f32,
    /// The estimator of that divergence, if not that of the algorithm.
    #[serde(default)]
    pub kl_estimator: Option<KlEstimator>,
    /// Weight of the entropy bonus.
    #[serde(default)]
    pub entropy: f32,
    /// Passes over a batch.
    #[serde(default = "one_usize")]
    pub epochs: usize,
    /// Updates in a pass, each with an equal part of the prompts.
    #[serde(default = "one_usize")]
    pub minibatches: usize,
    /// Weight of the likelihood of worked solutions, beside the objective.
    #[serde(default)]
    pub pretrain: f32,
    /// Discount of generalised advantage estimation.
    #[serde(default = "one")]
    pub gamma: f32,
    /// Lambda of generalised advantage estimation, if it is not that of the algorithm.
    #[serde(default)]
    pub lambda: Option<f32>,
    /// α of the length-adaptive lambda, which is `1 - 1 / (α l)` for a reply of `l` tokens.
    #[serde(default = "default_lambda_alpha")]
    pub lambda_alpha: f32,
    /// Steps in which the critic alone learns, if they are not those of the algorithm.
    #[serde(default)]
    pub value_steps: Option<u64>,
    /// Learning rate of the critic.
    #[serde(default = "default_critic_lr")]
    pub critic_lr: f32,
    /// Steps between checkpoints.
    #[serde(default = "default_checkpoint")]
    pub checkpoint_every: u64,
}

/// `[cost]`: for `safe_rlhf`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostSection {
    /// The measure of a reply's cost.
    pub rule: CostRule,
    /// The text that costs 1, for `text`.
    #[serde(default)]
    pub text: String,
    /// The mean cost that is allowed.
    pub limit: f32,
    /// The price of cost at first, in reward.
    #[serde(default = "one")]
    pub price: f32,
    /// The rate at which the price moves, η in `ln λ += η λ (cost - limit)`.
    #[serde(default = "default_price_rate")]
    pub rate: f32,
}

/// The measure of a reply's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostRule {
    /// Its length, in parts of the longest that is allowed.
    Length,
    /// 1 if some text is in it, else 0.
    Text,
}

/// `[reward]`. What is not said has its default where a reward is learnt.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardSection {
    /// The source of rewards.
    pub by: RewardBy,
    /// The question that the reward model answers.
    pub kind: Option<RewardKind>,
    /// Steps in which it learns.
    pub steps: Option<u64>,
    /// Pairs in such a step.
    pub batch: Option<usize>,
    /// Its peak learning rate.
    pub lr: Option<f32>,
    /// A reward model that has learnt already, or the folder of the run that has it.
    pub load: Option<String>,
    /// The model's part of the reward, where the checker has the other.
    pub weight: Option<f32>,
}

/// The source of rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RewardBy {
    /// The task's checker.
    #[default]
    Checker,
    /// A model that has learnt from what the checker says.
    Model,
    /// Both, each with its part.
    Both,
}

impl RewardSection {
    /// Returns true when a reward is learnt.
    #[must_use]
    pub fn is_learnt(&self) -> bool {
        self.by != RewardBy::Checker
    }

    /// The reward model to learn, and its part of the reward; the model is saved in `folder`, and
    /// `load` is where one lies that has learnt already. `None` where the checker's word is the
    /// reward.
    #[must_use]
    pub fn learned(&self, folder: PathBuf, load: Option<PathBuf>) -> Option<LearnedReward> {
        let model = match self.by {
            RewardBy::Checker => return None,
            RewardBy::Model => 1.0,
            RewardBy::Both => self.weight.unwrap_or(0.5),
        };
        Some(LearnedReward {
            model: RewardModelSpec {
                kind: self.kind.unwrap_or_default(),
                steps: self.steps.unwrap_or(200),
                batch: self.batch.unwrap_or(32),
                lr: self.lr.unwrap_or(1e-3),
                load,
                folder,
            },
            blend: Blend { model },
        })
    }
}

/// `[rollout]`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutSection {
    /// The engine that makes replies.
    pub engine: RolloutEngineKind,
    /// Servers, one for each rollout.
    pub urls: Vec<String>,
    /// The environment variable with the servers' key.
    pub api_key_env: Option<String>,
    /// The folder in which servers are given weights.
    pub weights_dir: Option<PathBuf>,
}

/// The engine that makes replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutEngineKind {
    /// The rollouts themselves.
    #[default]
    Own,
    /// Servers of vLLM.
    Vllm,
    /// Servers of SGLang.
    Sglang,
}

impl RolloutSection {
    /// The protocol that the servers speak; `None` where rollouts generate themselves.
    #[must_use]
    pub const fn dialect(&self) -> Option<Dialect> {
        match self.engine {
            RolloutEngineKind::Own => None,
            RolloutEngineKind::Vllm => Some(Dialect::Vllm),
            RolloutEngineKind::Sglang => Some(Dialect::Sglang),
        }
    }

    /// The rollouts' engine, where it is not that of `compute`: its model, sampling and slots.
    #[must_use]
    pub fn served(&self, compute: &ComputeSpec) -> Option<ServedSpec> {
        Some(ServedSpec {
            dialect: self.dialect()?,
            urls: self.urls.clone(),
            api_key_env: self.api_key_env.clone(),
            weights_dir: self.weights_dir.clone()?,
            patience: Patience::default(),
            compute: compute.clone(),
        })
    }
}

/// `[processes]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessesSection {
    /// Rollout processes.
    pub rollouts: usize,
    /// Relay processes on each node that has rollouts.
    pub relays: usize,
    /// The type in which weights are written for rollouts.
    pub weights: StoredType,
    /// The form in which they travel from relay to relay.
    pub send: Sent,
    /// Trajectories that one rollout generates at once.
    pub slots: usize,
    /// Compute threads of one rollout.
    pub rollout_threads: usize,
    /// Ranks that share the model of the trainer, and as many for each critic and the reference. With 1 these have
    /// their models to themselves.
    pub ranks: u32,
    /// Compute threads of the trainer, the critic and the reference, or of each of their ranks.
    pub trainer_threads: usize,
}

/// The form in which weights travel from relay to relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sent {
    /// As they are.
    Whole,
    /// As what has changed since the version that the next relay has.
    Changes,
}

impl ProcessesSection {
    /// The forms in which chunks of weights travel.
    #[must_use]
    pub const fn forms(&self) -> Forms {
        match (self.send, self.weights) {
            (Sent::Whole, _) => Forms::Full,
            (Sent::Changes, StoredType::Bf16) => Forms::Changes(Word::Two),
            (Sent::Changes, _) => Forms::Changes(Word::Four),
        }
    }
}

impl Default for ProcessesSection {
    fn default() -> Self {
        Self {
            rollouts: 2,
            relays: 1,
            weights: StoredType::F32,
            send: Sent::Whole,
            slots: 32,
            rollout_threads: 1,
            ranks: 1,
            trainer_threads: 1,
        }
    }
}

/// `[placement]`: what each process reserves on its node. 0 reserves nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementSection {
    /// Which models share processes, in a run whose steps all models make together; without it the run
    /// is asynchronous.
    pub models: Option<Choice>,
    /// Ranks of each of these models; with `auto`, of all of them together.
    pub ranks: usize,
    /// The card that `auto` takes a rank for; without it, so many threads of a processor as the
    /// trainer has.
    pub card: Option<CardName>,
    /// Devices of the trainer.
    pub trainer_gpus: u32,
    /// Devices of each rollout.
    pub rollout_gpus: u32,
    /// Devices of the critic, and of the reference.
    pub scorer_gpus: u32,
    /// Memory that each of these devices must have.
    pub device_memory_gib: u64,
    /// Processor time of the trainer, in cores.
    pub trainer_cpus: f64,
    /// Processor time of each rollout, in cores.
    pub rollout_cpus: f64,
    /// The longest time that a process may wait for what it reserves, in seconds.
    pub wait_seconds: u64,
}

impl Default for PlacementSection {
    fn default() -> Self {
        Self {
            models: None,
            ranks: 1,
            card: None,
            trainer_gpus: 0,
            rollout_gpus: 0,
            scorer_gpus: 0,
            device_memory_gib: 0,
            trainer_cpus: 0.0,
            rollout_cpus: 0.0,
            wait_seconds: 60,
        }
    }
}

/// `[eval]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalSection {
    /// Held-out problems, answered greedily.
    pub problems: usize,
    /// Steps between evaluations; 0 only at start and end.
    pub every: u64,
}

impl Default for EvalSection {
    fn default() -> Self {
        Self {
            problems: 256,
            every: 0,
        }
    }
}

impl Recipe {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// See [`Source::recipe`].
    pub fn read(path: &Path) -> Result<Self, RecipeError> {
        Source::read(path)?.recipe()
    }

    /// [`Recipe::read`] from text; `path` is for messages.
    ///
    /// # Errors
    /// See [`Source::recipe`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, RecipeError> {
        Source::new(path, text).recipe()
    }

    /// The tokenizer of a new model: characters, those of arithmetic or, for programs, all that can
    /// be typed.
    #[must_use]
    pub fn tokenizer(&self) -> Tokenizer {
        let writes_programs = |environment: &EnvironmentSection| environment.tool == Tool::Python;
        match self.task {
            TaskSpec::Code(_) => Tokenizer::text(),
            _ if self.environment.as_ref().is_some_and(writes_programs) => Tokenizer::text(),
            _ => Tokenizer::arithmetic(),
        }
    }

    /// The tool that replies can call, and the latency that is added to its calls.
    #[must_use]
    pub fn acting(&self) -> Option<Acting> {
        let environment = self.environment.as_ref();
        environment.map(|it| it.acting(self.rl.response_max))
    }

    /// Settings for running programs in replies.
    #[must_use]
    pub fn programs(&self) -> ProgramSpec {
        let section = self.sandbox.as_ref();
        section.map_or_else(ProgramSpec::default, SandboxSection::programs)
    }

    /// The folder of this run.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.run.out.join(&self.run.name)
    }

    /// The recipe with the stages that `[[parallel.place]]` asks for said by `parallel.stages`, for a model like this.
    ///
    /// # Errors
    /// A parameter cannot be where it is to be.
    pub fn placed(&self, config: &ModelConfig) -> Result<Self, Failure> {
        let (_, ranks) = self.ranks_that_share();
        let placed = self.parallel.placed(ranks, config, &TrainConfig::default());
        Ok(Self {
            parallel: placed.map_err(|fault| Failure::error(fault.to_string()).fatal())?,
            ..self.clone()
        })
    }

    /// The way in which ranks share each model that learns or rates.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.parallel.sharing(self.ranks_that_share().1)
    }

    /// The number of ranks that share each model that learns or rates, and the field that says it. Models that are placed
    /// are whole on each of their ranks where `[parallel]` says nothing.
    fn ranks_that_share(&self) -> (&'static str, u32) {
        let placement = &self.placement;
        match placement.models {
            None => ("processes.ranks", self.processes.ranks),
            Some(_) if self.parallel == ParallelSection::default() => ("placement.ranks", 1),
            Some(_) => {
                let ranks = u32::try_from(placement.ranks).unwrap_or(u32::MAX);
                ("placement.ranks", ranks)
            }
        }
    }
}

impl ModelSection {
    /// Checks that the sizes of a new model fit together; else names the fields at fault, and says why.
    fn check(&self) -> Result<(), (Vec<&'static str>, String)> {
        let (hidden, heads, kv_heads) = (self.hidden, self.heads, self.kv_heads);
        let blame = |fields: &[&'static str], what: String| Err((fields.to_vec(), what));
        if heads == 0 || !hidden.is_multiple_of(heads) || !(hidden / heads).is_multiple_of(2) {
            let what =
                format!("{heads} heads do not divide hidden = {hidden} into heads of an even size");
            return blame(&["heads", "hidden"], what);
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let what = format!("kv_heads = {kv_heads} must divide heads = {heads}");
            return blame(&["kv_heads", "heads"], what);
        }
        if let Err(error) = self.block.check() {
            return blame(&["block"], error.to_string());
        }
        if let Some(width) = self.width {
            if let Err(what) = width.check(hidden) {
                return blame(&["width"], what);
            }
            if matches!(self.block, LayerBlock::Gelu(_)) {
                let what = "the block \"gelu\" has learned positions, which are as wide as a layer: a virtual width needs \
                            another block";
                return blame(&["width"], what.to_owned());
            }
        }
        if matches!(self.block, LayerBlock::Gelu(_)) && kv_heads != heads {
            let what = format!(
                "kv_heads = {kv_heads} must be heads = {heads} with the block \"gelu\", as in GPT-2"
            );
            return blame(&["kv_heads", "heads", "block"], what);
        }
        Ok(())
    }

    /// A new model of these sizes.
    #[must_use]
    pub fn config(&self, vocabulary: usize) -> ModelConfig {
        let sizes = ModelConfig {
            vocab: vocabulary,
            dim: self.hidden,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.hidden / self.heads,
            ffn: self.ffn,
            width: self.width,
            ..ModelConfig::default()
        };
        sizes.of_block(self.block, self.context)
    }

    /// Parameters of a new model of these sizes.
    #[must_use]
    pub fn parameters(&self, vocabulary: usize) -> u64 {
        let config = self.config(vocabulary);
        let hidden = self.hidden as u64;
        let keys = hidden / self.heads as u64 * self.kv_heads as u64;
        let attention = 2 * hidden * hidden + 2 * hidden * keys;
        let mut layer = attention + self.block.parameters(self.hidden, self.ffn) + 2 * hidden;
        let mut ends = vocabulary as u64 * hidden + hidden;
        if let Some(positions) = config.learned_positions {
            // Biases of two norms, of all products, and of the last norm.
            layer += 2 * hidden + 2 * hidden + 2 * keys + self.ffn as u64 + hidden;
            ends += positions as u64 * hidden + hidden;
        }
        let of_width = self.width.map_or(0, |width| {
            width.parameters(self.hidden, self.layers, vocabulary, config.tied_head)
        });
        self.layers as u64 * layer + ends + of_width as u64
    }
}

/// A choice that has no default of its own.
fn spelled_if<'de, T: Chosen, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    spelled(deserializer).map(Some)
}

fn default_out() -> PathBuf {
    PathBuf::from("runs")
}
fn default_device() -> String {
    "cpu".to_owned()
}
const fn default_staleness() -> u64 {
    2
}
const fn default_lambda_alpha() -> f32 {
    0.05
}
const fn default_price_rate() -> f32 {
    0.1
}
const fn default_critic_lr() -> f32 {
    1e-3
}
const fn default_checkpoint() -> u64 {
    10
}
const fn one() -> f32 {
    1.0
}
const fn one_u64() -> u64 {
    1
}
const fn one_usize() -> usize {
    1
}

#[cfg(test)]
mod tests;
