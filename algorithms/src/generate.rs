//! Samples from a model with continuous batching: a finished sequence's place in the batch is taken
//! by the next request in the same call of [`Generator::step`].
//!
//! Every sampled token comes with its log-probability under the model itself (temperature 1, whole
//! vocabulary: what [`Scorer::logprobs`](crate::model::Scorer::logprobs) computes, equal to within
//! 1e-4) and under the distribution it was drawn from (after temperature and top-p).
//! A sequence depends on its prompt, seed, sampling settings and the weights only: not on the other
//! sequences of the batch, nor on when it was admitted, on whose keys and values it shares, or on
//! whether it had to wait for memory.
//!
//! Keys and values lie in blocks of some tokens, as in vLLM (Kwon et al. 2023). Sequences that begin
//! alike, such as the samples of a group, share the blocks of what they have in common and compute it
//! once; of a block that is partly filled they take a copy. What ended sequences leave is kept until
//! the room is needed. New weights make all of that unknown. When blocks run out, the youngest
//! sequence of a lane gives its own to the older ones, waits, and is computed again.
//!
//! ```
//! use odeon_algorithms::generate::{Generator, GeneratorConfig, Request, Sampling};
//! use odeon_algorithms::model::{Model, ModelConfig};
//! use odeon_gpu::Cpu;
//!
//! let config = ModelConfig { dim: 32, layers: 1, ..ModelConfig::default() };
//! let model = Model::init(Cpu::new(1), config.clone(), 7)?;
//! let options = GeneratorConfig { slots: 4, max_tokens: 64, ..GeneratorConfig::default() };
//! let mut generator = Generator::new(Cpu::new(1), config, options)?;
//! generator.load_flat(&model.to_flat())?;
//!
//! let sampling = Sampling { temperature: 0.8, stop: vec![10], ..Sampling::default() };
//! for id in 0..8 {
//!     generator.submit(Request {
//!         id,
//!         prompt: vec![1, 2, 3],
//!         max_new_tokens: 16,
//!         sampling: sampling.clone(),
//!         seed: id,
//!         resumed: 0,
//!     })?;
//! }
//! let mut done = Vec::new();
//! while !generator.is_idle() {
//!     done.extend(generator.step()); // between steps: load_flat, submit, evict
//! }
//! assert_eq!(done.len(), 8);
//! assert!(done.iter().all(|s| s.tokens.len() == s.logprobs.len()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
mod lane;
mod sample;
mod slots;
mod weights;
mod width;

use std::cmp::Reverse;
use std::collections::VecDeque;

use odeon_gpu::{Backend, Cpu};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::{ConfigError, ModelConfig, TensorError};
use crate::weights::StoredType;
use lane::{Lane, LaneSize};
use slots::Slots;
use weights::PackedModel;

/// Size of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GeneratorConfig {
    /// Sequences sampled at the same time.
    pub slots: usize,
    /// Tokens of the longest sequence, prompt included.
    pub max_tokens: usize,
    /// Prompt tokens taken in a step beside the sequences that sample; longer prompts take several
    /// steps, so that they do not hold up the batch.
    pub prefill_tokens: usize,
    /// Tokens whose keys and values there is memory for, never less than `max_tokens`; without a
    /// number what all slots can need at most. With less, more short sequences run in the same
    /// memory, and when it runs out the youngest wait and are computed again.
    pub cache_tokens: Option<usize>,
    /// Tokens of a block of the cache, rounded up to what the backend takes: what sequences share
    /// is whole blocks.
    pub block_tokens: usize,
}

impl Default for GeneratorConfig {
    fn default() -> Self {
        Self {
            slots: 32,
            max_tokens: 512,
            prefill_tokens: 512,
            cache_tokens: None,
            block_tokens: 16,
        }
    }
}

/// The distribution that tokens are drawn from, and the tokens that end a sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Divisor of the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Smallest set of most likely tokens with at least this probability (Holtzman et al. 2020); 1
    /// takes all.
    pub top_p: f32,
    /// Tokens that end a sequence; the token is part of the result.
    pub stop: Vec<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            stop: Vec::new(),
        }
    }
}

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The caller's name for it.
    pub id: u64,
    /// Tokens to continue, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to sample.
    pub max_new_tokens: usize,
    /// The distribution that they are drawn from.
    pub sampling: Sampling,
    /// Draws of the sequence follow from this seed.
    pub seed: u64,
    /// Number of the prompt's last tokens that were sampled before an eviction: the draws go on
    /// from there, as if there had been none.
    pub resumed: usize,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Finish {
    /// It drew a stop token.
    Stop,
    /// It has as many new tokens as asked for.
    Length,
    /// It fills the generator's `max_tokens`.
    Full,
    /// [`Generator::evict`] took it out.
    Evicted,
}

/// A sampled sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// The request's name.
    pub id: u64,
    /// New tokens.
    pub tokens: Vec<u32>,
    /// Log-probability of each under the model: temperature 1, whole vocabulary.
    pub logprobs: Vec<f32>,
    /// Log-probability of each under the distribution it was drawn from; 0 for greedy choices.
    pub sampling_logprobs: Vec<f32>,
    /// Why it ended.
    pub finish: Finish,
}

/// The treatment of running sequences' caches when weights change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Old tokens keep the keys and values of the old weights (Piché et al. 2025, PipelineRL), but
    /// for sequences that have to wait for memory: these are computed again.
    Keep,
    /// Keys and values of all tokens are computed again in the next steps.
    Recompute,
}

/// Counts of the blocks in a generator's cache of keys and values. A block is some tokens in all
/// layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Blocks that there are.
    pub blocks: usize,
    /// Blocks of running sequences.
    pub held: usize,
    /// Those of them that several sequences share.
    pub shared: usize,
    /// Blocks that no running sequence has, kept for a prompt that begins like them until the room
    /// is needed.
    pub kept: usize,
    /// Tokens in the blocks of running sequences, those that several share once.
    pub tokens: usize,
    /// Tokens since the start that were found in blocks and not computed.
    pub reused: u64,
    /// Number of times that a sequence lost its blocks to an older one and waited.
    pub preempted: u64,
}

/// Why a request was refused. Nothing was queued.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is no token to continue.
    #[error("request {0}: the prompt is empty")]
    EmptyPrompt(u64),
    /// The prompt leaves no room for a new token.
    #[error("request {id}: a prompt of {tokens} tokens leaves no room within {max_tokens}")]
    LongPrompt {
        /// Request.
        id: u64,
        /// Tokens of the prompt.
        tokens: usize,
        /// The generator's limit.
        max_tokens: usize,
    },
    /// A token is not in the vocabulary.
    #[error("request {id}: token {token} is not in the vocabulary")]
    UnknownToken {
        /// Request.
        id: u64,
        /// The token.
        token: u32,
    },
    /// More of the prompt was to be resumed than there is.
    #[error("request {0}: more resumed tokens than prompt tokens")]
    Resumed(u64),
}

/// Samples many sequences at a time from one set of weights.
#[derive(Debug)]
pub struct Generator<B: Backend = Cpu> {
    backend: B,
    options: GeneratorConfig,
    weights: PackedModel<B>,
    lanes: Vec<Lane<B>>,
    queue: VecDeque<Request>,
    /// Sequences that ended outside a step.
    done: Vec<Sampled>,
}

impl<B: Backend> Generator<B> {
    /// A generator whose weights are all zero, to be loaded.
    ///
    /// # Errors
    /// If the model's configuration contradicts itself, or has fewer positions than the options tokens.
    pub fn new(
        backend: B,
        config: ModelConfig,
        options: GeneratorConfig,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        config.check_tokens(options.max_tokens)?;
        let weights = PackedModel::zeros(&backend, config);
        let block_tokens = backend.cache_block(options.block_tokens);
        // A lane's cache takes the longest sequence at least, so that the oldest always goes on.
        let most = options.max_tokens.div_ceil(block_tokens);
        let blocks = match options.cache_tokens {
            Some(tokens) => (tokens / block_tokens).max(most),
            None => options.slots.max(1) * most,
        };
        let count = backend
            .lanes(options.slots)
            .min(blocks / most.max(1))
            .max(1);
        let share = |total: usize, i: usize| (i + 1) * total / count - i * total / count;
        let lanes = (0..count)
            .map(|i| {
                let size = LaneSize {
                    slots: share(options.slots.max(1), i),
                    max_tokens: options.max_tokens,
                    prefill: share(options.prefill_tokens, i).max(1),
                    blocks: share(blocks, i),
                    block_tokens,
                };
                Lane::new(&backend, weights.config(), size)
            })
            .collect();
        Ok(Self {
            backend,
            options,
            weights,
            lanes,
            queue: VecDeque::new(),
            done: Vec::new(),
        })
    }

    /// Replaces all weights, given in the order of
    /// [`Model::to_flat`](crate::model::Model::to_flat). Running sequences keep their caches.
    ///
    /// # Errors
    /// If the number of elements is not the model's.
    pub fn load_flat(&mut self, flat: &[f32]) -> Result<(), TensorError> {
        self.load_flat_in_flight(flat, InFlight::Keep)
    }

    /// Replaces all weights, given as little-endian `f32` in the order of
    /// [`Model::to_flat`](crate::model::Model::to_flat), as they lie in shared memory. Running
    /// sequences keep their caches.
    ///
    /// # Errors
    /// If the number of bytes is not four for each of the model's parameters.
    pub fn load_bytes(&mut self, bytes: &[u8], stored: StoredType) -> Result<(), TensorError> {
        self.weights.load_bytes(&self.backend, bytes, stored)?;
        self.slots_mut().for_each(Slots::forget_kept);
        Ok(())
    }

    /// Replaces all weights and says what becomes of running sequences.
    ///
    /// # Errors
    /// If the number of elements is not the model's.
    pub fn load_flat_in_flight(
        &mut self,
        flat: &[f32],
        in_flight: InFlight,
    ) -> Result<(), TensorError> {
        self.weights.load(&self.backend, flat)?;
        self.slots_mut().for_each(Slots::forget_kept);
        if in_flight == InFlight::Recompute {
            self.forget_caches();
        }
        Ok(())
    }

    /// Queues a request; the next step admits it if a slot is free.
    ///
    /// # Errors
    /// If the prompt is empty, too long or not of this vocabulary.
    pub fn submit(&mut self, request: Request) -> Result<(), RequestError> {
        let (id, tokens) = (request.id, request.prompt.len());
        let max_tokens = self.options.max_tokens;
        if tokens == 0 {
            return Err(RequestError::EmptyPrompt(id));
        }
        if tokens >= max_tokens {
            return Err(RequestError::LongPrompt {
                id,
                tokens,
                max_tokens,
            });
        }
        if request.resumed > tokens {
            return Err(RequestError::Resumed(id));
        }
        let vocab = self.weights.config().vocab;
        if let Some(&token) = request.prompt.iter().find(|&&t| t as usize >= vocab) {
            return Err(RequestError::UnknownToken { id, token });
        }
        if request.max_new_tokens == 0 {
            self.done.push(Sampled::new(id, Finish::Length));
        } else {
            self.queue.push_back(request);
        }
        Ok(())
    }

    /// One pass of the network: admits queued requests to free slots, takes in prompts, draws one
    /// token for each sequence whose prompt is in. Returns the sequences that ended.
    pub fn step(&mut self) -> Vec<Sampled> {
        self.admit();
        let (weights, lanes) = (&self.weights, &mut self.lanes);
        let backend = &self.backend;
        backend.scope(|| backend.run_lanes(lanes, |backend, lane| lane.step(backend, weights)));
        let mut done = std::mem::take(&mut self.done);
        lanes
            .iter_mut()
            .for_each(|lane| done.append(&mut lane.done));
        done
    }

    /// Takes out every running sequence with what it has so far. To go on later, submit prompt and
    /// tokens as the prompt with `resumed` new tokens. Queued requests stay.
    pub fn evict(&mut self) -> Vec<Sampled> {
        self.slots_mut().flat_map(Slots::evict).collect()
    }

    /// Takes back all requests that have not been admitted, in order.
    pub fn take_queued(&mut self) -> Vec<Request> {
        self.queue.drain(..).collect()
    }

    /// The tokens of a running sequence so far; `None` before its first step and after its last.
    #[must_use]
    pub fn sampled(&self, id: u64) -> Option<&[u32]> {
        self.slots().find_map(|slots| slots.sampled(id))
    }

    /// The results of all running sequences so far.
    pub fn running(&self) -> impl Iterator<Item = &Sampled> {
        self.slots().flat_map(Slots::running)
    }

    /// Counts of the blocks in the cache.
    #[must_use]
    pub fn cache(&self) -> CacheCounts {
        let all = self.slots().map(Slots::counts);
        all.fold(CacheCounts::default(), CacheCounts::plus)
    }

    /// Bytes of a block of the cache, in all layers.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        let (config, backend) = (self.weights.config(), &self.backend);
        let tokens = backend.cache_block(self.options.block_tokens);
        let elements = config.layers * backend.cache_len(config.attention(), tokens);
        (elements * size_of::<f32>()) as u64
    }

    /// Has the keys and values of all tokens computed again in the next steps.
    pub fn forget_caches(&mut self) {
        self.slots_mut().for_each(Slots::forget_caches);
    }

    /// Sequences that have a slot, those that wait for memory among them.
    #[must_use]
    pub fn active(&self) -> usize {
        self.slots().map(Slots::active).sum()
    }

    /// Requests that wait for a slot.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Slots that neither a sequence nor a queued request will take.
    #[must_use]
    pub fn free(&self) -> usize {
        self.options
            .slots
            .saturating_sub(self.active() + self.queued())
    }

    /// Returns true when no request is queued or running and no result waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.active() == 0 && self.done.is_empty()
    }

    /// Size.
    #[must_use]
    pub fn options(&self) -> &GeneratorConfig {
        &self.options
    }

    /// Architecture.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        self.weights.config()
    }

    fn slots(&self) -> impl Iterator<Item = &Slots> {
        self.lanes.iter().map(Lane::slots)
    }

    fn slots_mut(&mut self) -> impl Iterator<Item = &mut Slots> {
        self.lanes.iter_mut().map(Lane::slots_mut)
    }

    /// Admits requests in their order, as long as there is room for the next one: where most of its
    /// prompt is known, unless that lane has many more sequences than the emptiest.
    fn admit(&mut self) {
        while let Some(request) = self.queue.pop_front() {
            let lanes = self.lanes.iter_mut().map(Lane::slots_mut);
            let lanes: Vec<&mut Slots> = lanes.filter(|it| it.takes(&request.prompt)).collect();
            let least = lanes.iter().map(|it| it.active()).min().unwrap_or(0);
            let best = lanes.into_iter().min_by_key(|it| {
                let near = it.active() < least + TOGETHER;
                let known = if near { it.known(&request.prompt) } else { 0 };
                (Reverse(known), it.active())
            });
            let Some(best) = best else {
                return self.queue.push_front(request);
            };
            best.admit(request);
        }
    }
}

impl Sampled {
    fn new(id: u64, finish: Finish) -> Self {
        let (tokens, logprobs, sampling_logprobs) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            id,
            tokens,
            logprobs,
            sampling_logprobs,
            finish,
        }
    }
}

impl CacheCounts {
    fn plus(self, other: Self) -> Self {
        Self {
            blocks: self.blocks + other.blocks,
            held: self.held + other.held,
            shared: self.shared + other.shared,
            kept: self.kept + other.kept,
            tokens: self.tokens + other.tokens,
            reused: self.reused + other.reused,
            preempted: self.preempted + other.preempted,
        }
    }

    /// Blocks that hold nothing.
    #[must_use]
    pub fn free(&self) -> usize {
        self.blocks - self.held - self.kept
    }
}

/// Sequences that a lane may have beyond the emptiest to keep those together that begin alike: with
/// as few rows as that a step costs little less than with none.
const TOGETHER: usize = 8;

#[cfg(test)]
mod tests;
