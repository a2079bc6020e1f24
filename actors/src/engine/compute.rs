//! The real engines: a transformer that trains and samples on this machine's processor or cards.

pub(crate) mod checkpoint;
mod damaged;
mod dealing;
mod description;
mod first_weights;
mod legacy_checkpoint;
mod model_folder;
pub(crate) mod models;
pub(crate) mod parcels;
mod peak;
pub(crate) mod peers;
mod reward;
mod rollout;
mod rows;
mod score;
pub(crate) mod stages;
pub(crate) mod state;
pub(crate) mod step;
mod stored;
mod trainer;

use std::path::{Path, PathBuf};

use odeon::serde::{Deserialize, Serialize};
use odeon::{Failure, GrantedDevice};
use odeon_algorithms::environment::EnvironmentConfig;
use odeon_algorithms::model::{LoraConfig, ModelConfig, Recompute};
use odeon_algorithms::objective::PolicyObjective;
use odeon_algorithms::task::{PromptStyle, Task, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::{self, Schedule, TrainConfig, ZeroStage};
use odeon_algorithms::weights::{self, Gguf, LoadedModel, ModelFields, ModelFolder, StoredType};
use odeon_gpu::cuda::GpuOptions;
use odeon_gpu::{Any, Cpu, CpuOptions, Cuda};

pub use checkpoint::saved_progress;
pub use damaged::{Damaged, complete_checkpoints, damaged_checkpoints};
pub use dealing::RankPlace;
pub use description::ModelDescription;
pub use odeon_gpu::{Device, Precision};
pub use parcels::{HeldModel, NamedTensor, TensorBox};
pub use peers::{Cards, Joined};
pub(crate) use reward::{PairModel, PairPart, write_whole};
pub use reward::{RewardModel, check_reward_model};
pub use rollout::{Rollout, RunCalls, Sampler};
pub(crate) use rows::largest_micro_batches;
pub use score::{Critic, Reference};
pub use stored::{is_checkpoint, latest_model};
pub use trainer::{Trainer, policy_optimizer};

use self::models::{Generator, Model, Optimizer};
use self::stored::StoredModel;
use crate::rl::referee::ProgramSpec;

/// Everything a real engine is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ComputeSpec {
    /// The policy's weights.
    pub source: ModelSource,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// The task to learn.
    pub task: TaskSpec,
    /// Settings for running programs in replies, where the task has some.
    pub programs: ProgramSpec,
    /// The tool that replies can call, if there is one, and its limits.
    pub environment: Option<EnvironmentConfig>,
    /// Everything random follows from it.
    pub seed: u64,
    /// The device that computes. A card is opened by the process that the engine runs in.
    pub device: Device,
    /// Compute threads of this engine, on the processor.
    pub threads: usize,
    /// Set for sums of forward passes in one order ([`Cpu::deterministic`]); for the processor alone.
    #[serde(default)]
    pub deterministic: bool,
    /// To what factors of products are rounded, those of attention among them.
    #[serde(default)]
    pub products: Precision,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Rank of low-rank adapters; 0 trains all parameters.
    pub lora_rank: usize,
    /// Problems in a supervised step.
    pub warmup_batch: usize,
    /// Supervised steps.
    pub warmup_steps: u64,
    /// Peak learning rate of the supervised steps.
    pub warmup_lr: f32,
    /// Peak learning rate of the reinforcement.
    pub lr: f32,
    /// The learning rate after its peak.
    pub schedule: Schedule,
    /// The optimiser of the reinforcement.
    pub optimizer: train::Optimizer,
    /// The part of passes of the policy and of critics that is computed again on the way back.
    pub recompute: Recompute,
    /// Set where what their layers keep for that waits in memory of the host.
    pub offload: bool,
    /// Learning rate of the critic.
    pub critic_lr: f32,
    /// Passes over a batch.
    pub epochs: usize,
    /// Updates in a pass, each with an equal part of the batch.
    pub minibatches: usize,
    /// Weight of the likelihood of worked solutions, beside the loss.
    pub pretrain: f32,
    /// The loss.
    pub objective: PolicyObjective,
    /// Sampling of responses.
    pub sampling: Sampling,
    /// The type in which weights are written for rollouts.
    pub weights: StoredType,
    /// Responses that a rollout works on at once.
    pub slots: usize,
    /// Where the policy before the reinforcement is saved, for the reference.
    pub base: PathBuf,
    /// The share of a device that was granted to the role; see
    /// [`EngineSpec::within`](super::EngineSpec::within).
    pub share: Option<Share>,
}

/// Where weights come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum ModelSource {
    /// New random ones.
    Fresh(Box<ModelConfig>),
    /// A `.gguf` file, a folder with `config.json` and `model.safetensors`, or that of a checkpoint.
    Load(PathBuf),
}

impl ModelSource {
    /// The sizes of the model.
    ///
    /// # Errors
    /// Its files cannot be read.
    pub fn config(&self) -> Result<ModelConfig, Failure> {
        match self {
            Self::Fresh(config) => Ok(ModelConfig::clone(config)),
            Self::Load(path) => Ok(read_fields(path)?.model_config()),
        }
    }

    /// What the files of a model say that was made from this. `context` is the longest sequence of a new
    /// one, in tokens.
    pub(crate) fn fields(
        &self,
        config: &ModelConfig,
        context: usize,
    ) -> Result<ModelFields, Failure> {
        let fields = ModelFields::of(config, context);
        match self {
            Self::Fresh(_) => Ok(fields),
            Self::Load(path) => Ok(fields.made_from(&read_fields(path)?)),
        }
    }
}

/// Settings for sampling responses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Sampling {
    /// Divides the logits.
    pub temperature: f32,
    /// The part of the distribution that is drawn from.
    pub top_p: f32,
    /// The longest response, in tokens.
    pub response_max: usize,
}

/// The share of a device that a role was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Share {
    /// The role, which errors name.
    pub role: String,
    /// The device, as its process numbers it.
    pub device: u32,
    /// Memory of the device that was granted, in bytes.
    pub bytes: u64,
}

/// Where a model is computed.
#[derive(Clone, Debug)]
pub(crate) struct ComputePlace {
    /// The device that computes.
    pub(crate) device: Device,
    /// Compute threads, on the processor.
    pub(crate) threads: usize,
    /// Set for sums of forward passes in one order.
    pub(crate) deterministic: bool,
    /// To what factors of products are rounded.
    pub(crate) products: Precision,
    /// The share that was granted of a card.
    pub(crate) share: Option<Share>,
}

#[cfg(test)]
impl ComputePlace {
    /// One thread of the processor.
    pub(crate) const PROCESSOR: Self = Self {
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        share: None,
    };
}

impl ComputePlace {
    /// The device: the granted one, where there is one.
    fn backend(&self) -> Result<Any, Failure> {
        let (index, options) = match (self.device, &self.share) {
            (Device::Cuda(_), Some(share)) => {
                let options = GpuOptions {
                    owner: share.role.clone(),
                    budget_bytes: Some(share.bytes),
                    ..GpuOptions::default()
                };
                (share.device, options)
            }
            (Device::Cuda(index), None) => (index, GpuOptions::default()),
            (_, _) => {
                let cpu = Cpu::open(&CpuOptions {
                    threads: self.threads,
                    deterministic: self.deterministic,
                    products: self.products,
                });
                // No restart gives the processor instructions.
                return cpu
                    .map(Any::Cpu)
                    .map_err(|error| Failure::error(error).fatal());
            }
        };
        let cuda = Cuda::open(index, self.products, &options);
        cuda.map(Any::Cuda).map_err(Failure::error)
    }

    /// A model with its first weights, with or without a value head.
    fn model(&self, source: &ModelSource, seed: u64, value_head: bool) -> Result<Model, Failure> {
        self.part((source, seed), value_head, (&RankPlace::ALONE, 1))
    }
}

impl RankPlace {
    /// The optimiser of a rank among those that share a model, for what it keeps of that.
    pub(crate) fn optimizer(&self, part: Model, train: TrainConfig) -> Optimizer {
        let optimizer = match self.sharing.zero {
            ZeroStage::Off | ZeroStage::Parameters => Optimizer::new(part, train),
            ZeroStage::Optimizer => {
                Optimizer::sharing(part, train, self.rank, self.sharing.ranks())
            }
            ZeroStage::Gradients => Optimizer::new(part, train).with_parameters_that_stay(),
        };
        let optimizer = optimizer.with_parameters_in(self.sharing.params);
        optimizer.with_layers_ahead(self.sharing.ahead)
    }

    /// The same of a model that never learns.
    fn rating(&self, part: Model) -> Optimizer {
        let rating = Optimizer::rating(part).with_parameters_in(self.sharing.params);
        rating.with_layers_ahead(self.sharing.ahead)
    }
}

/// The share that a role was granted of the first device that it has.
pub(crate) fn share_of(role: &str, granted: &[GrantedDevice]) -> Option<Share> {
    granted.first().map(|device| Share {
        role: role.to_owned(),
        device: device.ordinal,
        bytes: device.memory,
    })
}

impl ComputeSpec {
    /// See [`EngineSpec::within`](super::EngineSpec::within).
    pub(crate) fn keep_within(&mut self, role: &str, granted: &[GrantedDevice]) {
        if let Some(share) = share_of(role, granted) {
            self.share = Some(share);
        }
    }

    /// The model with its first weights, with or without a value head.
    fn model(&self, source: &ModelSource, value_head: bool) -> Result<Model, Failure> {
        self.place().model(source, self.seed, value_head)
    }

    /// What a rank keeps of it, with so many rows of each matrix together.
    fn part(
        &self,
        source: &ModelSource,
        value_head: bool,
        (place, rows): (&RankPlace, usize),
    ) -> Result<Model, Failure> {
        let first = (source, self.seed);
        self.place().part(first, value_head, (place, rows))
    }

    /// Opens the device: the granted one, where a role has one.
    fn backend(&self) -> Result<Any, Failure> {
        self.place().backend()
    }

    fn place(&self) -> ComputePlace {
        ComputePlace {
            device: self.device,
            threads: self.threads,
            deterministic: self.deterministic,
            products: self.products,
            share: self.share.clone(),
        }
    }

    /// The policy as it was before the reinforcement: as the trainer saved it after its supervised
    /// steps, or with its first weights where there were none.
    fn before(&self) -> ModelSource {
        if self.base.exists() {
            ModelSource::Load(self.base.clone())
        } else {
            self.source.clone()
        }
    }

    pub(crate) fn task(&self) -> Result<Box<dyn Task>, Failure> {
        self.task.build().map_err(Failure::error)
    }

    fn adapters(&self) -> Option<LoraConfig> {
        (self.lora_rank > 0).then(|| LoraConfig {
            rank: self.lora_rank,
            ..LoraConfig::default()
        })
    }

    /// Tokens of a prompt as the model sees it.
    pub(crate) fn prompt(&self, style: PromptStyle, prompt: &str) -> Result<Vec<u32>, Failure> {
        crate::rl::prompt::encode_prompt(&self.tokenizer, style, prompt).map_err(Failure::error)
    }
}

/// Reads a model from a file, a folder, or the folder of a checkpoint.
///
/// # Errors
/// It is not there, or broken.
pub fn read_model(path: &Path) -> Result<LoadedModel, Failure> {
    if is_gguf(path) {
        let gguf = Gguf::open(path).map_err(Failure::error)?;
        weights::load_gguf(&gguf).map_err(Failure::error)
    } else if let Some(stored) = StoredModel::open(path)? {
        stored.model()
    } else {
        weights::load_directory(path).map_err(Failure::error)
    }
}

/// Reads a model's architecture, from where [`read_model`] reads models. That all its tensors are there is
/// seen, without a look at their numbers.
///
/// # Errors
/// It is not there, broken, or of an unknown kind.
pub fn read_fields(path: &Path) -> Result<ModelFields, Failure> {
    if is_gguf(path) {
        let gguf = Gguf::open(path).map_err(Failure::error)?;
        weights::gguf_fields(&gguf).map_err(Failure::error)
    } else if let Some(stored) = StoredModel::open(path)? {
        stored.fields()
    } else {
        let folder = ModelFolder::open(path).map_err(Failure::error)?;
        Ok(folder.fields().clone())
    }
}

/// Reads the tokenizer that belongs to a model.
///
/// # Errors
/// It is not there, or of an unknown kind.
pub fn read_tokenizer(path: &Path) -> Result<Tokenizer, Failure> {
    if is_gguf(path) {
        let gguf = Gguf::open(path).map_err(Failure::error)?;
        Tokenizer::from_gguf(&gguf).map_err(Failure::error)
    } else if let Some(stored) = StoredModel::open(path)? {
        stored.tokenizer()
    } else {
        Tokenizer::from_directory(path).map_err(Failure::error)
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "gguf")
}
