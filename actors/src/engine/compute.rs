//! The real engines: a transformer that trains and samples on this machine's processor.

mod checkpoint;
mod rollout;
mod score;
mod trainer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};
use odeon_algorithms::model::{LoraConfig, Model, ModelConfig, Sequence};
use odeon_algorithms::objective::PolicyObjective;
use odeon_algorithms::task::{PromptStyle, Task, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::weights::{self, Family, Gguf, LoadedModel, LoadedTensor, ModelFields};
use odeon_gpu::Cpu;

pub use checkpoint::latest_model;
pub use rollout::{Rollout, Sampler};
pub use score::{Critic, Reference};
pub use trainer::Trainer;

use crate::trajectory::Trajectory;

/// Everything a real engine is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ComputeSpec {
    /// The policy's weights.
    pub source: ModelSource,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// What is learnt.
    pub task: TaskSpec,
    /// Everything random follows from it.
    pub seed: u64,
    /// Compute threads of this engine.
    pub threads: usize,
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
    /// Learning rate of the reinforcement.
    pub lr: f32,
    /// Learning rate of the critic.
    pub critic_lr: f32,
    /// Passes over a batch.
    pub epochs: usize,
    /// The loss.
    pub objective: PolicyObjective,
    /// How responses are drawn.
    pub sampling: Sampling,
    /// Responses that a rollout works on at once.
    pub slots: usize,
    /// Where the policy before the reinforcement is saved, for the reference.
    pub base: PathBuf,
}

/// Where weights come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum ModelSource {
    /// New random ones.
    Fresh(ModelConfig),
    /// A `.gguf` file, or a folder with `config.json` and `model.safetensors`.
    Load(PathBuf),
}

/// How responses are drawn.
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

impl ComputeSpec {
    /// The model with its first weights, with or without a value head.
    fn model(&self, source: &ModelSource, value_head: bool) -> Result<Model, Failure> {
        let cpu = Cpu::new(self.threads);
        match source {
            ModelSource::Fresh(config) => {
                let config = ModelConfig {
                    value_head,
                    ..config.clone()
                };
                Model::init(cpu, config, self.seed).map_err(Failure::error)
            }
            ModelSource::Load(path) => build(&read_model(path)?, cpu, value_head),
        }
    }

    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        self.task.build().map_err(Failure::error)
    }

    fn adapters(&self) -> Option<LoraConfig> {
        (self.lora_rank > 0).then(|| LoraConfig {
            rank: self.lora_rank,
            ..LoraConfig::default()
        })
    }

    /// Tokens of a prompt as the model sees it.
    fn prompt(&self, style: PromptStyle, prompt: &str) -> Result<Vec<u32>, Failure> {
        crate::rl::store::encode_prompt(&self.tokenizer, style, prompt).map_err(Failure::error)
    }
}

/// Reads a model from a file or folder.
///
/// # Errors
/// It is not there, or broken.
pub fn read_model(path: &Path) -> Result<LoadedModel, Failure> {
    if path
        .extension()
        .is_some_and(|extension| extension == "gguf")
    {
        let gguf = Gguf::open(path).map_err(Failure::error)?;
        weights::load_gguf(&gguf).map_err(Failure::error)
    } else {
        weights::load_directory(path).map_err(Failure::error)
    }
}

/// Reads the tokenizer that belongs to a model.
///
/// # Errors
/// It is not there, or of an unknown kind.
pub fn read_tokenizer(path: &Path) -> Result<Tokenizer, Failure> {
    if path
        .extension()
        .is_some_and(|extension| extension == "gguf")
    {
        let gguf = Gguf::open(path).map_err(Failure::error)?;
        Tokenizer::from_gguf(&gguf).map_err(Failure::error)
    } else {
        Tokenizer::from_directory(path).map_err(Failure::error)
    }
}

/// Puts loaded weights into a model.
///
/// # Errors
/// Tensors are missing or have other shapes.
pub fn build(loaded: &LoadedModel, cpu: Cpu, value_head: bool) -> Result<Model, Failure> {
    let config = ModelConfig {
        value_head,
        ..config_of(&loaded.fields)
    };
    let mut model = Model::zeros(cpu, config).map_err(Failure::error)?;
    for (name, tensor) in &loaded.tensors {
        model
            .load_tensor(name, &tensor.values)
            .map_err(Failure::error)?;
    }
    Ok(model)
}

/// The architecture that a file describes.
fn config_of(fields: &ModelFields) -> ModelConfig {
    ModelConfig {
        vocab: fields.vocabulary,
        dim: fields.hidden,
        layers: fields.layers,
        heads: fields.heads,
        kv_heads: fields.kv_heads,
        head_dim: fields.head_width,
        ffn: fields.feed_forward,
        rope_theta: fields.rope_theta as f32,
        norm_eps: fields.norm_epsilon as f32,
        tied_head: fields.tied,
        qkv_bias: fields.family == Family::Qwen2,
        ..ModelConfig::default()
    }
}

/// A model's weights as files hold them.
fn export(model: &Model, flat: &[f32], context: usize) -> LoadedModel {
    let config = model.config();
    let fields = ModelFields {
        family: if config.qkv_bias {
            Family::Qwen2
        } else {
            Family::Llama
        },
        vocabulary: config.vocab,
        hidden: config.dim,
        layers: config.layers,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_width: config.head_dim,
        feed_forward: config.ffn,
        context,
        rope_theta: f64::from(config.rope_theta),
        norm_epsilon: f64::from(config.norm_eps),
        tied: config.tied_head,
        value_head: config.value_head,
    };
    let tensors: BTreeMap<String, LoadedTensor> = model
        .layout()
        .entries()
        .iter()
        .map(|entry| {
            let values = flat[entry.range.clone()].to_vec();
            (
                entry.name.clone(),
                LoadedTensor {
                    shape: entry.shape.clone(),
                    values,
                },
            )
        })
        .collect();
    LoadedModel { fields, tensors }
}

/// Prompt and response in one row of tokens.
fn tokens_of(trajectory: &Trajectory) -> Vec<u32> {
    [trajectory.prompt.as_slice(), trajectory.response.as_slice()].concat()
}

/// Groups of sequences whose tokens together stay below a bound, so that activations do.
fn micro_batches(lengths: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut batches = vec![];
    let (mut start, mut tokens) = (0, 0);
    for (index, length) in lengths.iter().enumerate() {
        if index > start && tokens + length > MICRO_BATCH_TOKENS {
            batches.push(start..index);
            (start, tokens) = (index, 0);
        }
        tokens += length;
    }
    if start < lengths.len() {
        batches.push(start..lengths.len());
    }
    batches
}

/// Packs rows of (tokens, length of the prompt).
fn pack(rows: &[(Vec<u32>, usize)]) -> Result<odeon_algorithms::model::Batch, Failure> {
    let sequences: Vec<Sequence<'_>> = rows
        .iter()
        .map(|(tokens, prompt)| Sequence {
            tokens,
            prompt: *prompt,
        })
        .collect();
    odeon_algorithms::model::Batch::pack(&sequences).map_err(Failure::error)
}

const MICRO_BATCH_TOKENS: usize = 4096;
