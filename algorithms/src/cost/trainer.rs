//! Trainers: a model in training on many tensor groups.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::shard::Shard;
use super::transfer::NETWORK_SHARE;
use super::{Card, CostError, ModelSize, Sequences, seconds};

/// The part of the forward pass that is computed again on the way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing: all activations stay in memory.
    Nothing,
    /// All of it: only the layers' inputs stay. Usual where responses are long.
    #[default]
    Layers,
}

/// A model that is trained on a number of cards: tensor groups inside machines, everything else
/// sharded over all of them (parameters are gathered for each micro-batch, gradients scattered once
/// an update).
#[derive(Clone, Debug, PartialEq)]
pub struct Trainer {
    shard: Shard,
    gpus: u32,
    recompute: Recompute,
}

impl Trainer {
    /// A model on `gpus` cards in tensor groups of `tensor`. 18 B a parameter are spread over all
    /// of them: the parameter in bf16, its gradient, master copy and two moments in f32.
    ///
    /// # Errors
    /// [`CostError::Split`] and [`CostError::Groups`] when the model or the cards cannot be split
    /// so; [`CostError::Memory`] when it does not fit; [`CostError::NotPositive`] when the card or
    /// the model has no sense.
    pub fn new(card: &Card, model: &ModelSize, gpus: u32, tensor: u32) -> Result<Self, CostError> {
        let shard = Shard::new(card, model, tensor)?;
        if gpus == 0 || !gpus.is_multiple_of(tensor) {
            return Err(CostError::Groups { gpus, tensor });
        }
        let usable = (card.device.memory_bytes as f64 * STATE_SHARE) as u64;
        let needed = (STATE_BYTES * model.parameters()).div_ceil(u64::from(gpus));
        if needed > usable {
            return Err(CostError::Memory {
                model: model.name.clone(),
                card: card.name.clone(),
                gpus,
                needed,
                usable,
            });
        }
        Ok(Self {
            shard,
            gpus,
            recompute: Recompute::default(),
        })
    }

    /// Sets what is computed again.
    #[must_use]
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// Time of one pass over the sequences forward and back, with so many optimizer updates on the
    /// way. The groups have equal work.
    ///
    /// Arithmetic is `6 P` for each token and attention, `8 P` with recomputation, at the speed of
    /// products of a micro-batch's size, and a third more for all that whole steps add to their
    /// kernels. All-reduces of activations are not hidden; gathering parameters and scattering
    /// gradients is, as far as arithmetic lasts.
    #[must_use]
    pub fn train_step(&self, sequences: Sequences, updates: u32) -> Duration {
        if sequences.tokens == 0 {
            return Duration::ZERO;
        }
        let updates = f64::from(updates.max(1));
        let passes = match self.recompute {
            Recompute::Nothing => 3.0,
            Recompute::Layers => 4.0,
        };
        // The way back computes two products for each one, and in attention five for two
        // (FlashAttention, arXiv 2205.14135).
        let attention_passes = passes + 0.5;
        // A reduction for each all-reduce forward, again backward, and again where recomputed.
        let reduces = passes - 1.0;
        let micro = self.micro_batches(sequences, updates);
        let rows = micro.rows;
        let shard = &self.shard;
        let micro_seconds = passes * (shard.layer_products(rows) + shard.elementwise(rows))
            + 3.0 * shard.output(rows)
            + reduces * shard.layer_reduces(rows);
        let compute = micro.count * micro_seconds + attention_passes * self.attention(sequences);
        let gathers = 2.0 * micro.count * self.exchange(PARAMETER_BYTES);
        let scatters = updates * self.exchange(GRADIENT_BYTES);
        let compute = self.shard.card.sustained * compute;
        seconds(compute.max(gathers + scatters) + updates * self.optimizer())
    }

    /// Time to compute the log-probabilities of all tokens of the sequences: one pass forward.
    #[must_use]
    pub fn log_probs(&self, sequences: Sequences) -> Duration {
        if sequences.tokens == 0 {
            return Duration::ZERO;
        }
        let micro = self.micro_batches(sequences, 1.0);
        let rows = micro.rows;
        let shard = &self.shard;
        let micro_seconds = shard.layer_products(rows)
            + shard.elementwise(rows)
            + shard.output(rows)
            + shard.layer_reduces(rows);
        let compute =
            self.shard.card.sustained * (micro.count * micro_seconds + self.attention(sequences));
        seconds(compute.max(micro.count * self.exchange(PARAMETER_BYTES)))
    }

    /// Share of the cards' arithmetic that a [step](Self::train_step) uses, counting `6 P` for each
    /// token and the attention, and nothing that is computed again.
    #[must_use]
    pub fn utilisation(&self, sequences: Sequences, updates: u32) -> f64 {
        let model = &self.shard.model;
        let heads = (model.layers * model.heads * model.head) as f64;
        let forward =
            sequences.tokens as f64 * model.flops_per_token() + 2.0 * heads * sequences.squares;
        let peak = f64::from(self.gpus) * self.shard.card.device.flops;
        let took = self.train_step(sequences, updates).as_secs_f64();
        if took == 0.0 {
            return 0.0;
        }
        3.0 * forward / (peak * took)
    }

    /// GPUs of the trainer.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Its model.
    #[must_use]
    pub fn model(&self) -> &ModelSize {
        &self.shard.model
    }

    /// The tokens that one tensor group computes at once, and the number of such passes until it is
    /// through.
    fn micro_batches(&self, sequences: Sequences, updates: f64) -> Micro {
        let tokens = sequences.tokens as f64 / self.groups();
        let rows = (tokens / updates).min(MICRO_TOKENS);
        Micro {
            rows,
            count: tokens / rows,
        }
    }

    /// Attention forward, of one group's part.
    fn attention(&self, sequences: Sequences) -> f64 {
        let groups = self.groups();
        let (tokens, squares) = (sequences.tokens as f64, sequences.squares);
        self.shard
            .prefill_attention(tokens / groups, squares / groups)
    }

    /// Gathering or scattering so many bytes a parameter, over groups that each have all of them.
    fn exchange(&self, bytes: f64) -> f64 {
        let groups = self.groups();
        let card = &self.shard.card;
        let link = match self.gpus > card.device.per_node {
            true => card.device.network_bytes_per_second * NETWORK_SHARE,
            false => card.device.nvlink_bytes_per_second * NVLINK_SHARE,
        };
        let part = bytes * self.shard.model.parameters() as f64 / f64::from(self.shard.tensor);
        part * (groups - 1.0) / groups / link
    }

    /// One optimizer step: every GPU reads and writes its part of the states.
    fn optimizer(&self) -> f64 {
        let card = &self.shard.card;
        let bytes = UPDATE_BYTES * self.shard.model.parameters() as f64 / f64::from(self.gpus);
        bytes / (card.device.memory_bytes_per_second * card.kernels.product.bandwidth)
    }

    /// Tensor groups.
    fn groups(&self) -> f64 {
        f64::from(self.gpus / self.shard.tensor)
    }
}

struct Micro {
    rows: f64,
    count: f64,
}

impl Card {
    /// The time of whole training steps relative to that of their kernels alone, which were measured
    /// one by one on cool cards. With it 72B in groups of 4 use 47 % of the arithmetic of H100 without
    /// recomputation, the most that NVIDIA reports of Megatron-Core (NVIDIA/Megatron-LM, README).
    pub const SUSTAINED: f64 = 1.3;
}

/// Bytes of all states of a parameter.
const STATE_BYTES: u64 = 18;

/// The part of the memory for states; activations and buffers have the rest.
const STATE_SHARE: f64 = 0.7;

/// A parameter in bf16.
const PARAMETER_BYTES: f64 = 2.0;

/// A gradient in f32.
const GRADIENT_BYTES: f64 = 4.0;

/// Gradient, master copy and two moments read, the last three and the parameter written.
const UPDATE_BYTES: f64 = 30.0;

/// Tokens of a tensor group's micro-batch: one response of the longest kind.
const MICRO_TOKENS: f64 = 16_384.0;

/// The share of NVLink that all-gathers and reduce-scatters reach: 0.76 to 0.78 on H100 among
/// eight, for 256 MiB and more (NCCL 2.29, from the same tables).
const NVLINK_SHARE: f64 = 0.75;
