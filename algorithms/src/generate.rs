//! Samples from a model with continuous batching: a finished sequence's place in the batch is taken
//! by the next request in the same call of [`Generator::step`].
//!
//! Every sampled token comes with its log-probability under the model itself (temperature 1, whole
//! vocabulary: what [`Scorer::logprobs`](crate::model::Scorer::logprobs) computes, equal to within
//! 1e-4) and under the distribution it was drawn from (after temperature and top-p).
//! A sequence depends on its prompt, seed, sampling settings and the weights only: not on the other
//! sequences of the batch, nor on when it was admitted.
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

mod lane;
mod sample;
mod weights;

use std::collections::VecDeque;

use odeon_gpu::{Backend, Cpu};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::{ConfigError, LoadError, ModelConfig};
use lane::Lane;
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
}

impl Default for GeneratorConfig {
    fn default() -> Self {
        Self {
            slots: 32,
            max_tokens: 512,
            prefill_tokens: 512,
        }
    }
}

/// How tokens are drawn.
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
    /// How to draw them.
    pub sampling: Sampling,
    /// Draws of the sequence follow from this seed.
    pub seed: u64,
    /// How many of the prompt's last tokens were sampled before an eviction: the draws go on from
    /// there, as if there had been none.
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

/// What happens to the caches of running sequences when weights change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Old tokens keep the keys and values of the old weights (Piché et al. 2025, PipelineRL).
    Keep,
    /// Keys and values of all tokens are computed again in the next steps.
    Recompute,
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
    /// If the model's configuration contradicts itself.
    pub fn new(
        backend: B,
        config: ModelConfig,
        options: GeneratorConfig,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let weights = PackedModel::zeros(&backend, config);
        let count = backend.lanes(options.slots);
        let share = |total: usize, i: usize| (i + 1) * total / count - i * total / count;
        let lanes = (0..count)
            .map(|i| {
                let prefill = share(options.prefill_tokens, i).max(1);
                let slots = share(options.slots.max(1), i);
                Lane::new(
                    &backend,
                    weights.config(),
                    slots,
                    options.max_tokens,
                    prefill,
                )
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
    pub fn load_flat(&mut self, flat: &[f32]) -> Result<(), LoadError> {
        self.load_flat_in_flight(flat, InFlight::Keep)
    }

    /// Replaces all weights, given as little-endian `f32` in the order of
    /// [`Model::to_flat`](crate::model::Model::to_flat), as they lie in shared memory. Running
    /// sequences keep their caches.
    ///
    /// # Errors
    /// If the number of bytes is not four for each of the model's parameters.
    pub fn load_bytes(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        self.weights.load_bytes(&self.backend, bytes)
    }

    /// Replaces all weights and says what becomes of running sequences.
    ///
    /// # Errors
    /// If the number of elements is not the model's.
    pub fn load_flat_in_flight(
        &mut self,
        flat: &[f32],
        in_flight: InFlight,
    ) -> Result<(), LoadError> {
        self.weights.load(&self.backend, flat)?;
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
        self.lanes.iter_mut().flat_map(Lane::evict).collect()
    }

    /// Takes back all requests that have not been admitted, in order.
    pub fn take_queued(&mut self) -> Vec<Request> {
        self.queue.drain(..).collect()
    }

    /// What a running sequence has so far; `None` before its first step and after its last.
    #[must_use]
    pub fn sampled(&self, id: u64) -> Option<&[u32]> {
        self.lanes.iter().find_map(|lane| lane.sampled(id))
    }

    /// What all running sequences have so far.
    pub fn running(&self) -> impl Iterator<Item = &Sampled> {
        self.lanes.iter().flat_map(Lane::running)
    }

    /// Tokens whose keys and values are kept.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        self.lanes.iter().map(Lane::cached_tokens).sum()
    }

    /// Has the keys and values of all tokens computed again in the next steps.
    pub fn forget_caches(&mut self) {
        self.lanes.iter_mut().for_each(Lane::forget_caches);
    }

    /// Sequences in the batch.
    #[must_use]
    pub fn active(&self) -> usize {
        self.lanes.iter().map(Lane::active).sum()
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

    /// Whether no request is queued or running and no result waits.
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

    /// Fills free slots, the emptiest lane first.
    fn admit(&mut self) {
        while !self.queue.is_empty() {
            let Some(lane) = self
                .lanes
                .iter_mut()
                .filter(|l| l.has_room())
                .min_by_key(|l| l.active())
            else {
                return;
            };
            lane.admit(self.queue.pop_front().expect("the queue is not empty"));
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

#[cfg(test)]
mod tests;
