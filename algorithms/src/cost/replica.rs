//! Rollout replicas: a model that generates on one tensor group.

use std::time::Duration;

use super::shard::Shard;
use super::{Card, CostError, ModelSize, Sequences, seconds};

/// A rollout replica: one copy of a model on a tensor group, as a serving engine runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    shard: Shard,
    kv_bytes: u64,
}

impl Replica {
    /// A model on `tensor` cards of one machine. The weights leave the rest of
    /// [`MEMORY_SHARE`](Self::MEMORY_SHARE) of the memory to keys and values, but for a
    /// [workspace](Self::WORKSPACE_BYTES).
    ///
    /// # Errors
    /// [`CostError::Split`] when the model cannot be split so; [`CostError::Memory`] when it does
    /// not fit with one token; [`CostError::NotPositive`] when the card or the model has no sense.
    pub fn new(card: &Card, model: &ModelSize, tensor: u32) -> Result<Self, CostError> {
        let shard = Shard::new(card, model, tensor)?;
        let usable = (card.device.memory_bytes as f64 * Self::MEMORY_SHARE) as u64;
        let each = u64::from(tensor);
        let needed = Self::WORKSPACE_BYTES
            + model.weight_bytes().div_ceil(each)
            + model.kv_bytes_per_token().div_ceil(each);
        if needed > usable {
            return Err(CostError::Memory {
                model: model.name.clone(),
                card: card.name.clone(),
                gpus: tensor,
                needed,
                usable,
            });
        }
        let fixed = each * Self::WORKSPACE_BYTES + model.weight_bytes();
        Ok(Self {
            shard,
            kv_bytes: each * usable - fixed,
        })
    }

    /// Time until each of `batch` sequences has its next token, with `kv_tokens` tokens of keys and
    /// values in all of them together.
    #[must_use]
    pub fn decode_step(&self, batch: u64, kv_tokens: u64) -> Duration {
        self.decode_step_with(&SERVER, batch, kv_tokens)
    }

    pub(super) fn decode_step_with(&self, server: &Server, batch: u64, kv_tokens: u64) -> Duration {
        if batch == 0 {
            return Duration::ZERO;
        }
        let (shard, rows) = (&self.shard, batch as f64);
        let kernels = shard.layer_products(rows)
            + shard.decode_attention(rows, kv_tokens as f64)
            + shard.elementwise(rows)
            + shard.layer_reduces(rows)
            + shard.output(rows);
        let layers = shard.model.layers as f64;
        seconds(kernels + layers * server.layer + server.step + rows * server.sequence)
    }

    /// Time until all tokens of these sequences have keys and values, and each its next token:
    /// prompts, or partial responses that come from elsewhere. [`CHUNK`](Self::CHUNK) tokens at a
    /// time.
    #[must_use]
    pub fn prefill(&self, sequences: Sequences) -> Duration {
        self.prefill_with(&SERVER, sequences)
    }

    pub(super) fn prefill_with(&self, server: &Server, sequences: Sequences) -> Duration {
        if sequences.tokens == 0 {
            return Duration::ZERO;
        }
        let tokens = sequences.tokens as f64;
        let rows = tokens.min(Self::CHUNK as f64);
        let chunks = tokens / rows;
        let shard = &self.shard;
        let chunk =
            shard.layer_products(rows) + shard.elementwise(rows) + shard.layer_reduces(rows);
        let attention = shard.prefill_attention(tokens, sequences.squares);
        let output = shard.output(sequences.count as f64);
        let layers = shard.model.layers as f64;
        let launches = layers * server.layer + server.step;
        seconds(chunks * (chunk + launches) + attention + output)
    }

    /// Bytes for keys and values on all cards of the replica together.
    #[must_use]
    pub fn kv_capacity_bytes(&self) -> u64 {
        self.kv_bytes
    }

    /// Tokens whose keys and values fit.
    #[must_use]
    pub fn kv_capacity_tokens(&self) -> u64 {
        self.kv_bytes / self.shard.model.kv_bytes_per_token()
    }

    /// The largest decode batch whose products are still bound by reading the weights: where
    /// `2 P batch / flops = 2 P / bandwidth`, with what the kernels reach of both. Larger batches
    /// take longer nearly in proportion; reading keys and values only makes the memory's part
    /// larger. This is the bound `B` of Laminar's repacking (arXiv 2510.12633).
    #[must_use]
    pub fn roofline_batch(&self) -> u64 {
        let card = &self.shard.card;
        let product = &card.kernels.product;
        let flops = card.device.flops * product.flops;
        (flops / (card.device.memory_bytes_per_second * product.bandwidth)) as u64
    }

    /// Time to load the weights of the replica from its machine's memory, each card its part, all
    /// at once.
    #[must_use]
    pub fn pull(&self) -> Duration {
        let bytes = self.shard.model.weight_bytes();
        self.shard.card.pull(bytes, self.shard.tensor)
    }

    /// GPUs of the replica.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.shard.tensor
    }

    /// Its model.
    #[must_use]
    pub fn model(&self) -> &ModelSize {
        &self.shard.model
    }

    /// Its kind of card.
    #[must_use]
    pub fn card(&self) -> &Card {
        &self.shard.card
    }

    /// The part of a card's memory that a server takes: the default of vLLM's
    /// `gpu_memory_utilization`.
    pub const MEMORY_SHARE: f64 = 0.9;

    /// Bytes on each card for activations, captured graphs and libraries: 3 GB, somewhat less than
    /// the 3.5 GiB that `aiconfigurator-core` assumes to be safe.
    pub const WORKSPACE_BYTES: u64 = 3_000_000_000;

    /// Prompt tokens that are computed together: vLLM's default for servers on such cards.
    pub const CHUNK: u64 = 8_192;
}

/// The overheads of a server, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Kernels of a layer that are neither product, attention nor all-reduce, however small.
    pub(super) layer: f64,
    /// Scheduling and sampling of one step.
    pub(super) step: f64,
    /// Scheduling, sampling and detokenizing of each sequence in a step.
    pub(super) sequence: f64,
}

/// Fitted to whole runs of Qwen3-32B on 2 to 8 H100 (see the module `cost`). The same fit to
/// Llama-3.1-8B in TensorRT-LLM gives the same for a layer and a third for a sequence: that is the
/// server's own.
pub(super) const SERVER: Server = Server {
    layer: 18e-6,
    step: 0.5e-3,
    sequence: 40e-6,
};
