//! A share of the batch that one task runs through the whole network: its sequences, their caches
//! and its activations.

use odeon_gpu::{Backend, HeadNormShape, Store};

use super::sample::{draw, uniform};
use super::slots::{Rows, Running, Slots};
use super::weights::PackedModel;
use super::width::{Connection, WideRows};
use super::{Finish, Sampled};
use crate::model::ModelConfig;
use crate::model::block::StepMemory;

/// The connection of attention.
const ATTENTION: usize = 0;
/// That of the feed-forward part.
const FEED_FORWARD: usize = 1;

/// One part of the batch that is computed by itself, with its caches and activations.
#[derive(Debug)]
pub(super) struct Lane<B: Backend> {
    slots: Slots,
    max_tokens: usize,
    /// One a layer.
    caches: Vec<B::Buffer>,
    memory: Memory<B>,
    rows: Rows,
    pub(super) done: Vec<Sampled>,
}

/// Activations of the largest step.
#[derive(Debug)]
struct Memory<B: Backend> {
    x: B::Buffer,
    /// The stream beside layers, where it is wider than these.
    wide: Option<WideRows<B>>,
    normed: B::Buffer,
    /// What norms keep of a row: nothing reads it.
    moments: B::Buffer,
    qkv: B::Buffer,
    /// The same with normed heads, and their norms, where the model has any.
    head_normed: B::Buffer,
    head_inv_rms: B::Buffer,
    attended: B::Buffer,
    /// What feed-forward parts use.
    block: Vec<B::Buffer>,
    logits: B::Buffer,
    probs: B::Buffer,
    logsumexp: B::Buffer,
    host_logits: Vec<f32>,
    host_probs: Vec<f32>,
    host_logsumexp: Vec<f32>,
    /// The same of logits after temperature.
    host_scaled_logsumexp: Vec<f32>,
    order: Vec<u32>,
}

impl<B: Backend> Memory<B> {
    /// Begins with the rows of tokens, and those of their positions where these are learnt.
    fn embed(&mut self, backend: &B, weights: &PackedModel<B>, tokens: &[u32], positions: &[u32]) {
        if let Some(wide) = &mut self.wide {
            return wide.embed(backend, weights, tokens, &mut self.x);
        }
        let dim = weights.config().dim;
        let all = 0..tokens.len() * dim;
        let table = weights.param(&weights.places().embed);
        backend.gather(dim, tokens, table, B::view_mut(&mut self.x, all.clone()));
        if let Some(table) = &weights.places().positions {
            let rows = B::view_mut(&mut self.normed, all.clone());
            backend.gather(dim, positions, weights.param(table), rows);
            let rows = B::view(&self.normed, all.clone());
            backend.axpy(1.0, rows, B::view_mut(&mut self.x, all));
        }
    }

    /// Norms what attention or the feed-forward part of a layer reads of so many rows. Of a wider stream `x` is what the
    /// part makes, zero at first, which [goes on](Self::go_on) into that.
    fn norm_into(
        &mut self,
        backend: &B,
        weights: &PackedModel<B>,
        (layer, part): (usize, usize),
        rows: usize,
    ) -> Option<Connection> {
        let Self {
            x,
            wide,
            normed,
            moments,
            ..
        } = self;
        let place = &weights.places().layers[layer];
        let norm = match part {
            ATTENTION => &place.attention_norm,
            _ => &place.ffn_norm,
        };
        let all = 0..rows * weights.config().dim;
        let wide = wide.as_mut();
        let connection = wide.map(|wide| wide.read(backend, weights, (layer, part), x));
        let (from, to) = (B::view(x, all.clone()), B::view_mut(normed, all.clone()));
        weights.norm(backend, norm, from, to, (moments, rows));
        if connection.is_some() {
            backend.fill(B::view_mut(x, all), 0.0);
        }
        connection
    }

    /// Puts what a part of a layer has made into a wider stream.
    fn go_on(&mut self, backend: &B, connection: Option<Connection>) {
        if let Some((wide, connection)) = self.wide.as_mut().zip(connection) {
            wide.write(backend, &connection, &self.x);
        }
    }

    /// Norms the query and key heads of so many rows.
    fn norm_heads(&mut self, backend: &B, shape: HeadNormShape, weight: B::View<'_>, rows: usize) {
        let (cols, heads) = (rows * shape.attention.qkv_cols(), rows * shape.heads());
        backend.head_norm(
            shape,
            B::view(&self.qkv, 0..cols),
            weight,
            B::view_mut(&mut self.head_normed, 0..cols),
            B::view_mut(&mut self.head_inv_rms, 0..heads),
        );
        std::mem::swap(&mut self.qkv, &mut self.head_normed);
    }
}

/// Size of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneSize {
    pub(super) slots: usize,
    pub(super) max_tokens: usize,
    pub(super) prefill: usize,
    /// Blocks of the cache.
    pub(super) blocks: usize,
    /// Tokens of a block.
    pub(super) block_tokens: usize,
}

impl<B: Backend> Lane<B> {
    pub(super) fn new(backend: &B, config: &ModelConfig, size: LaneSize) -> Self {
        let slots = size.slots;
        let (attention, head_norm) = (config.attention(), config.head_norm());
        let cache = size.blocks * backend.cache_len(attention, size.block_tokens);
        let rows = slots + size.prefill;
        let alloc = |cols: usize| backend.alloc(rows * cols);
        let memory = Memory {
            x: alloc(config.dim),
            wide: WideRows::new(backend, config, rows),
            normed: alloc(config.dim),
            moments: alloc(2),
            qkv: alloc(attention.qkv_cols()),
            head_normed: alloc(head_norm.map_or(0, |_| attention.qkv_cols())),
            head_inv_rms: alloc(head_norm.map_or(0, HeadNormShape::heads)),
            attended: alloc(attention.out_cols()),
            block: config
                .block
                .scratch(config.widths())
                .into_iter()
                .map(alloc)
                .collect(),
            logits: backend.alloc(slots * config.vocab),
            probs: backend.alloc(slots * config.vocab),
            logsumexp: backend.alloc(slots),
            host_logits: vec![0.0; slots * config.vocab],
            host_probs: vec![0.0; slots * config.vocab],
            host_logsumexp: vec![0.0; slots],
            host_scaled_logsumexp: vec![0.0; slots],
            order: Vec::new(),
        };
        Self {
            slots: Slots::new(size),
            max_tokens: size.max_tokens,
            caches: (0..config.layers).map(|_| backend.alloc(cache)).collect(),
            memory,
            rows: Rows::default(),
            done: Vec::new(),
        }
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(super) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    /// One pass of the network over the rows that are due.
    pub(super) fn step(&mut self, backend: &B, weights: &PackedModel<B>) {
        self.slots.schedule(&mut self.rows);
        if self.rows.tokens.is_empty() {
            return;
        }
        self.forward(backend, weights);
        self.slots.computed();
        if !self.rows.last.is_empty() {
            self.score(backend, weights);
            self.draw(weights.config().vocab);
        }
    }

    fn forward(&mut self, backend: &B, weights: &PackedModel<B>) {
        let config = weights.config();
        let (attention, rope) = (config.attention(), config.rope_shape());
        let dim = config.dim;
        let rows = self.rows.tokens.len();
        let (n_x, n_qkv) = (rows * dim, rows * attention.qkv_cols());
        let n_out = rows * attention.out_cols();
        let Rows {
            tokens,
            positions,
            places,
            copies,
            ..
        } = &self.rows;
        let table = self.slots.table();
        let block = backend.cache_len(attention, table.tokens());
        let m = &mut self.memory;
        m.embed(backend, weights, tokens, positions);
        let layers = weights.layers().zip(&mut self.caches);
        for (number, ((place, layer), cache)) in layers.enumerate() {
            let whole = 0..B::len(cache);
            let connection = m.norm_into(backend, weights, (number, ATTENTION), rows);
            let qkv = B::view_mut(&mut m.qkv, 0..n_qkv);
            backend.packed_linear(B::view(&m.normed, 0..n_x), &layer.qkv, qkv, Store::Set);
            if let Some(bias) = &place.qkv_bias {
                backend.add_bias(weights.param(bias), B::view_mut(&mut m.qkv, 0..n_qkv));
            }
            if let (Some(weight), Some(shape)) = (&place.head_norms, config.head_norm()) {
                m.norm_heads(backend, shape, weights.param(weight), rows);
            }
            if let Some(rope) = &rope {
                backend.rope(rope, positions, B::view_mut(&mut m.qkv, 0..n_qkv));
            }
            let qkv = B::view(&m.qkv, 0..n_qkv);
            if !copies.is_empty() {
                backend.cache_copy(block, copies, B::view_mut(cache, whole.clone()));
            }
            // All rows' keys and values are there before any row reads them, so that a sequence may
            // share blocks that another one fills in this step.
            let dst = B::view_mut(cache, whole.clone());
            backend.cache_append(attention, table, places, qkv, dst);
            backend.cache_attention(
                config.attention_of(number),
                table,
                places,
                qkv,
                B::view(cache, whole),
                B::view_mut(&mut m.attended, 0..n_out),
            );
            let x = B::view_mut(&mut m.x, 0..n_x);
            backend.packed_linear(B::view(&m.attended, 0..n_out), &layer.out, x, Store::Add);
            if let Some(bias) = &place.out_bias {
                backend.add_bias(weights.param(bias), B::view_mut(&mut m.x, 0..n_x));
            }
            m.go_on(backend, connection);
            let connection = m.norm_into(backend, weights, (number, FEED_FORWARD), rows);
            let memory = StepMemory {
                rows,
                h: B::view(&m.normed, 0..n_x),
                x: &mut m.x,
                biases: weights.params(&place.block_biases),
                scratch: &mut m.block,
            };
            let block = config.block;
            block.step(backend, config.widths(), &layer.block, memory);
            m.go_on(backend, connection);
        }
        if let Some(wide) = &mut m.wide {
            wide.narrow(backend, weights, &mut m.x);
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
        let (x, dst) = (B::view(&m.normed, 0..n_x), B::view_mut(&mut m.x, 0..n_x));
        weights.norm(
            backend,
            &weights.places().norm,
            x,
            dst,
            (&mut m.moments, count),
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
        let scaled = &mut m.host_scaled_logsumexp[..count];
        match self.rows.scales == plain {
            true => scaled.copy_from_slice(&m.host_logsumexp[..count]),
            false => softmax(&self.rows.scales, scaled, probs),
        }
    }

    fn draw(&mut self, vocab: usize) {
        let m = &mut self.memory;
        for (i, &slot) in self.rows.slots.iter().enumerate() {
            let running = self.slots.running_mut(slot);
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
            let logit = m.host_logits[i * vocab + drawn.token];
            sampled.logprobs.push(logit - m.host_logsumexp[i]);
            let scaled = self.rows.scales[i] * logit - m.host_scaled_logsumexp[i];
            sampled
                .sampling_logprobs
                .push(match request.sampling.temperature {
                    // The only choice.
                    0.0 => 0.0,
                    _ => scaled - drawn.mass.ln() as f32,
                });
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
                let sampled = self.slots.end(slot);
                self.done.push(Sampled { finish, ..sampled });
            }
        }
    }
}
