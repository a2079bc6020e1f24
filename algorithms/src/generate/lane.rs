//! A share of the batch that one task runs through the whole network: its sequences, their caches
//! and its activations.

use odeon_gpu::{Backend, CacheRow, Store};

use super::sample::{draw, uniform};
use super::weights::PackedModel;
use super::{Finish, Request, Sampled};
use crate::model::ModelConfig;

/// A running sequence.
#[derive(Debug)]
struct Running {
    request: Request,
    /// Prompt and sampled tokens.
    tokens: Vec<u32>,
    /// Tokens whose keys and values are in the cache.
    cached: usize,
    sampled: Sampled,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lane<B: Backend> {
    slots: Vec<Option<Running>>,
    max_tokens: usize,
    prefill: usize,
    /// One a block of the network.
    caches: Vec<B::Buffer>,
    memory: Memory<B>,
    rows: Rows,
    pub(super) done: Vec<Sampled>,
}

/// What the rows of a step are.
#[derive(Debug, Default)]
struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    places: Vec<CacheRow>,
    /// Rows that are the last of their sequence, and its slot: they draw a token.
    last: Vec<u32>,
    slots: Vec<usize>,
    scales: Vec<f32>,
}

/// Activations of the largest step.
#[derive(Debug)]
struct Memory<B: Backend> {
    x: B::Buffer,
    normed: B::Buffer,
    inv_rms: B::Buffer,
    qkv: B::Buffer,
    attended: B::Buffer,
    gate_up: B::Buffer,
    gated: B::Buffer,
    logits: B::Buffer,
    probs: B::Buffer,
    logsumexp: B::Buffer,
    host_logits: Vec<f32>,
    host_probs: Vec<f32>,
    host_logsumexp: Vec<f32>,
    order: Vec<u32>,
}

impl<B: Backend> Lane<B> {
    pub(super) fn new(
        backend: &B,
        config: &ModelConfig,
        slots: usize,
        max_tokens: usize,
        prefill: usize,
    ) -> Self {
        let attention = config.attention();
        let cache = slots * backend.cache_len(attention, max_tokens);
        let rows = slots + prefill;
        let alloc = |cols: usize| backend.alloc(rows * cols);
        let memory = Memory {
            x: alloc(config.dim),
            normed: alloc(config.dim),
            inv_rms: alloc(1),
            qkv: alloc(attention.qkv_cols()),
            attended: alloc(attention.out_cols()),
            gate_up: alloc(2 * config.ffn),
            gated: alloc(config.ffn),
            logits: backend.alloc(slots * config.vocab),
            probs: backend.alloc(slots * config.vocab),
            logsumexp: backend.alloc(slots),
            host_logits: vec![0.0; slots * config.vocab],
            host_probs: vec![0.0; slots * config.vocab],
            host_logsumexp: vec![0.0; slots],
            order: Vec::new(),
        };
        Self {
            slots: (0..slots).map(|_| None).collect(),
            max_tokens,
            prefill,
            caches: (0..config.layers).map(|_| backend.alloc(cache)).collect(),
            memory,
            rows: Rows::default(),
            done: Vec::new(),
        }
    }

    pub(super) fn active(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    pub(super) fn sampled(&self, id: u64) -> Option<&[u32]> {
        let mut running = self.slots.iter().flatten();
        let found = running.find(|running| running.request.id == id);
        found.map(|running| &*running.sampled.tokens)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Sampled> {
        self.slots.iter().flatten().map(|running| &running.sampled)
    }

    pub(super) fn cached_tokens(&self) -> usize {
        let running = self.slots.iter().flatten();
        running.map(|running| running.cached).sum()
    }

    pub(super) fn has_room(&self) -> bool {
        self.slots.iter().any(Option::is_none)
    }

    pub(super) fn admit(&mut self, request: Request) {
        let slot = self
            .slots
            .iter_mut()
            .find(|s| s.is_none())
            .expect("the caller saw room");
        let sampled = Sampled::new(request.id, Finish::Evicted);
        *slot = Some(Running {
            tokens: request.prompt.clone(),
            request,
            cached: 0,
            sampled,
        });
    }

    pub(super) fn evict(&mut self) -> Vec<Sampled> {
        self.slots
            .iter_mut()
            .filter_map(Option::take)
            .map(|r| r.sampled)
            .collect()
    }

    pub(super) fn forget_caches(&mut self) {
        self.slots.iter_mut().flatten().for_each(|r| r.cached = 0);
    }

    /// One pass of the network over the rows that are due.
    pub(super) fn step(&mut self, backend: &B, weights: &PackedModel<B>) {
        self.collect_rows();
        if self.rows.tokens.is_empty() {
            return;
        }
        self.forward(backend, weights);
        if !self.rows.last.is_empty() {
            self.score(backend, weights);
            self.draw(weights.config().vocab);
        }
    }

    /// Every sequence that samples gives one row; prompts give what the budget allows.
    fn collect_rows(&mut self) {
        let rows = &mut self.rows;
        rows.tokens.clear();
        rows.positions.clear();
        rows.places.clear();
        rows.last.clear();
        rows.slots.clear();
        rows.scales.clear();
        let mut budget = self.prefill;
        for (slot, running) in self.slots.iter_mut().enumerate() {
            let Some(running) = running else { continue };
            let due = running.tokens.len() - running.cached;
            let take = if due == 1 { 1 } else { due.min(budget) };
            if take == 0 {
                continue;
            }
            if due > 1 {
                budget -= take;
            }
            for position in running.cached..running.cached + take {
                rows.tokens.push(running.tokens[position]);
                rows.positions.push(position as u32);
                rows.places.push(CacheRow {
                    slot: slot as u32,
                    position: position as u32,
                });
            }
            running.cached += take;
            if take == due {
                rows.last.push(rows.tokens.len() as u32 - 1);
                rows.slots.push(slot);
                let temperature = running.request.sampling.temperature;
                rows.scales.push(if temperature == 0.0 {
                    1.0
                } else {
                    1.0 / temperature
                });
            }
        }
    }

    fn forward(&mut self, backend: &B, weights: &PackedModel<B>) {
        let config = weights.config();
        let (attention, rope) = (config.attention(), config.rope_shape());
        let (dim, ffn, eps) = (config.dim, config.ffn, config.norm_eps);
        let rows = self.rows.tokens.len();
        let (n_x, n_qkv) = (rows * dim, rows * attention.qkv_cols());
        let (n_out, n_gate, n_ffn) = (rows * attention.out_cols(), rows * 2 * ffn, rows * ffn);
        let Rows {
            tokens,
            positions,
            places,
            ..
        } = &self.rows;
        let m = &mut self.memory;
        let embed = weights.param(&weights.places().embed);
        backend.gather(dim, tokens, embed, B::view_mut(&mut m.x, 0..n_x));
        for ((place, layer), cache) in weights.blocks().zip(&mut self.caches) {
            let whole = 0..B::len(cache);
            backend.rms_norm(
                eps,
                B::view(&m.x, 0..n_x),
                weights.param(&place.attention_norm),
                B::view_mut(&mut m.normed, 0..n_x),
                B::view_mut(&mut m.inv_rms, 0..rows),
            );
            let qkv = B::view_mut(&mut m.qkv, 0..n_qkv);
            backend.packed_linear(B::view(&m.normed, 0..n_x), &layer.qkv, qkv, Store::Set);
            if let Some(bias) = &place.qkv_bias {
                backend.add_bias(weights.param(bias), B::view_mut(&mut m.qkv, 0..n_qkv));
            }
            backend.rope(rope, positions, B::view_mut(&mut m.qkv, 0..n_qkv));
            let qkv = B::view(&m.qkv, 0..n_qkv);
            let dst = B::view_mut(cache, whole.clone());
            backend.cache_append(attention, self.max_tokens, places, qkv, dst);
            backend.cache_attention(
                attention,
                self.max_tokens,
                places,
                qkv,
                B::view(cache, whole),
                B::view_mut(&mut m.attended, 0..n_out),
            );
            let x = B::view_mut(&mut m.x, 0..n_x);
            backend.packed_linear(B::view(&m.attended, 0..n_out), &layer.out, x, Store::Add);
            backend.rms_norm(
                eps,
                B::view(&m.x, 0..n_x),
                weights.param(&place.ffn_norm),
                B::view_mut(&mut m.normed, 0..n_x),
                B::view_mut(&mut m.inv_rms, 0..rows),
            );
            let gate_up = B::view_mut(&mut m.gate_up, 0..n_gate);
            backend.packed_linear(
                B::view(&m.normed, 0..n_x),
                &layer.gate_up,
                gate_up,
                Store::Set,
            );
            let gated = B::view_mut(&mut m.gated, 0..n_ffn);
            backend.swiglu(ffn, B::view(&m.gate_up, 0..n_gate), gated);
            let x = B::view_mut(&mut m.x, 0..n_x);
            backend.packed_linear(B::view(&m.gated, 0..n_ffn), &layer.down, x, Store::Add);
        }
    }

    /// Logits, probabilities and log-sum-exps of the rows that draw, on the host.
    fn score(&mut self, backend: &B, weights: &PackedModel<B>) {
        let config = weights.config();
        let (dim, vocab, count) = (config.dim, config.vocab, self.rows.last.len());
        let (n_x, n_logits) = (count * dim, count * vocab);
        let rows = self.rows.tokens.len();
        let m = &mut self.memory;
        let selected = B::view_mut(&mut m.normed, 0..n_x);
        backend.gather(dim, &self.rows.last, B::view(&m.x, 0..rows * dim), selected);
        backend.rms_norm(
            config.norm_eps,
            B::view(&m.normed, 0..n_x),
            weights.param(&weights.places().norm),
            B::view_mut(&mut m.x, 0..n_x),
            B::view_mut(&mut m.inv_rms, 0..count),
        );
        let logits = B::view_mut(&mut m.logits, 0..n_logits);
        backend.packed_linear(B::view(&m.x, 0..n_x), &weights.head, logits, Store::Set);
        backend.read(
            B::view(&m.logits, 0..n_logits),
            &mut m.host_logits[..n_logits],
        );
        // Once as they are, for the model's own log-probabilities; once more where a temperature
        // changes the probabilities.
        let plain = vec![1.0; count];
        let mut softmax = |scales: &[f32], logsumexp: &mut [f32], probs: &mut [f32]| {
            let dst = B::view_mut(&mut m.probs, 0..n_logits);
            let sums = B::view_mut(&mut m.logsumexp, 0..count);
            backend.softmax(scales, B::view(&m.logits, 0..n_logits), dst, sums);
            backend.read(B::view(&m.logsumexp, 0..count), logsumexp);
            backend.read(B::view(&m.probs, 0..n_logits), probs);
        };
        let probs = &mut m.host_probs[..n_logits];
        softmax(&plain, &mut m.host_logsumexp[..count], probs);
        if self.rows.scales != plain {
            softmax(&self.rows.scales, &mut vec![0.0; count], probs);
        }
    }

    fn draw(&mut self, vocab: usize) {
        let m = &mut self.memory;
        for (i, &slot) in self.rows.slots.iter().enumerate() {
            let running = self.slots[slot]
                .as_mut()
                .expect("a row's slot holds its sequence");
            let Running {
                request,
                tokens,
                sampled,
                ..
            } = running;
            let index = request.resumed + sampled.tokens.len();
            let uniform = uniform(request.seed, index as u64);
            let probs = &m.host_probs[i * vocab..][..vocab];
            let drawn = draw(probs, &request.sampling, uniform, &mut m.order);
            let token = drawn.token as u32;
            sampled
                .logprobs
                .push(m.host_logits[i * vocab + drawn.token] - m.host_logsumexp[i]);
            sampled.sampling_logprobs.push(drawn.logprob);
            sampled.tokens.push(token);
            tokens.push(token);
            let finish = if request.sampling.stop.contains(&token) {
                Some(Finish::Stop)
            } else if sampled.tokens.len() >= request.max_new_tokens {
                Some(Finish::Length)
            } else if tokens.len() >= self.max_tokens {
                Some(Finish::Full)
            } else {
                None
            };
            if let Some(finish) = finish {
                let running = self.slots[slot].take().expect("it was just here");
                self.done.push(Sampled {
                    finish,
                    ..running.sampled
                });
            }
        }
    }
}
