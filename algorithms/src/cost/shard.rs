//! The part of a model that one GPU of a tensor group has, and what each kernel on it takes.

use super::{Card, CostError, ModelSize};

/// A model on a tensor group of equal cards. All times are seconds, for all GPUs of the group at
/// once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shard {
    pub(super) card: Card,
    pub(super) model: ModelSize,
    pub(super) tensor: u32,
}

impl Shard {
    pub(super) fn new(card: &Card, model: &ModelSize, tensor: u32) -> Result<Self, CostError> {
        card.check()?;
        model.check()?;
        let heads = |count: u64| count.is_multiple_of(u64::from(tensor));
        let why = if !tensor.is_power_of_two() || tensor > TENSOR_MAX {
            Some("groups of 1, 2, 4 and 8 were measured")
        } else if tensor > card.device.per_node {
            Some("a group does not leave its machine")
        } else if !heads(model.heads) || !heads(model.kv_heads) {
            Some("each GPU has the same number of heads")
        } else {
            None
        };
        match why {
            None => Ok(Self {
                card: card.clone(),
                model: model.clone(),
                tensor,
            }),
            Some(why) => Err(CostError::Split {
                model: model.name.clone(),
                tensor,
                why,
            }),
        }
    }

    /// The four products of all layers for `rows` tokens.
    pub(super) fn layer_products(&self, rows: f64) -> f64 {
        let model = &self.model;
        let hidden = model.hidden as f64;
        let products = [
            (
                self.split(model.heads + 2 * model.kv_heads) * model.head as f64,
                hidden,
            ),
            (hidden, self.split(model.heads) * model.head as f64),
            (2.0 * self.split(model.ffn), hidden),
            (hidden, self.split(model.ffn)),
        ];
        let layer: f64 = products
            .into_iter()
            .map(|(n, k)| product(&self.card, rows, n, k))
            .sum();
        model.layers as f64 * layer
    }

    /// The output's product for `rows` tokens.
    pub(super) fn output(&self, rows: f64) -> f64 {
        let vocabulary = self.split(self.model.vocabulary);
        product(&self.card, rows, vocabulary, self.model.hidden as f64)
    }

    /// Norms, rotation, cache writes and the gate of all layers for `rows` tokens: what they read
    /// and write, beside their launches.
    pub(super) fn elementwise(&self, rows: f64) -> f64 {
        let model = &self.model;
        // Each norm and residual reads and writes the stream; heads and gate are read, changed
        // and written once.
        let elements = 8.0 * model.hidden as f64
            + 3.0 * self.split(model.heads + 2 * model.kv_heads) * model.head as f64
            + 3.0 * self.split(model.ffn);
        let bytes = model.layers as f64 * rows * elements * ELEMENT_BYTES;
        bytes / (self.card.device.memory_bytes_per_second * self.card.kernels.product.bandwidth)
    }

    /// Two all-reduces in each layer for `rows` tokens.
    pub(super) fn layer_reduces(&self, rows: f64) -> f64 {
        let bytes = rows * self.model.hidden as f64 * ELEMENT_BYTES;
        2.0 * self.model.layers as f64 * all_reduce(&self.card, self.tensor, bytes)
    }

    /// Attention of all layers in a decode step of `batch` sequences with `kv_tokens` tokens.
    pub(super) fn decode_attention(&self, batch: f64, kv_tokens: f64) -> f64 {
        let heads = self.split(self.model.kv_heads);
        let one = decode_attention(&self.card, batch, kv_tokens, heads, self.model.head as f64);
        self.model.layers as f64 * one
    }

    /// Causal attention of all layers over prompts with so many tokens and squared lengths.
    pub(super) fn prefill_attention(&self, tokens: f64, squares: f64) -> f64 {
        let [heads, kv_heads] = [self.model.heads, self.model.kv_heads].map(|all| self.split(all));
        let head = self.model.head as f64;
        let one = prefill_attention(&self.card, tokens, squares, [heads, kv_heads], head);
        self.model.layers as f64 * one
    }

    fn split(&self, all: u64) -> f64 {
        all as f64 / f64::from(self.tensor)
    }
}

/// A product of `m x k` by `k x n`.
pub(super) fn product(card: &Card, m: f64, n: f64, k: f64) -> f64 {
    let kernel = &card.kernels.product;
    let bytes = ELEMENT_BYTES * (m * k + n * k + m * n);
    let memory = bytes / (card.device.memory_bytes_per_second * kernel.bandwidth);
    let arithmetic = 2.0 * m * n * k / (card.device.flops * kernel.flops);
    kernel.floor + norm(memory, arithmetic, kernel.knee)
}

/// One layer's attention in a decode step, for `kv_heads` heads of `head` elements.
pub(super) fn decode_attention(
    card: &Card,
    batch: f64,
    kv_tokens: f64,
    kv_heads: f64,
    head: f64,
) -> f64 {
    let kernel = &card.kernels.decode;
    let bytes = 2.0 * ELEMENT_BYTES * kv_tokens * kv_heads * head;
    let memory = bytes / (card.device.memory_bytes_per_second * kernel.bandwidth);
    kernel.floor + norm(memory, batch * kv_heads * kernel.head, kernel.knee)
}

/// One layer's causal attention over prompts, for heads of queries and of keys and values.
pub(super) fn prefill_attention(
    card: &Card,
    tokens: f64,
    squares: f64,
    [heads, kv_heads]: [f64; 2],
    head: f64,
) -> f64 {
    let kernel = &card.kernels.prefill;
    let arithmetic = 2.0 * heads * head * squares / (card.device.flops * kernel.flops);
    let bytes = ELEMENT_BYTES * tokens * (2.0 * heads + 2.0 * kv_heads) * head;
    kernel.floor + arithmetic + bytes / (card.device.memory_bytes_per_second * kernel.bandwidth)
}

/// An all-reduce of so many bytes among `members` GPUs of a machine.
pub(super) fn all_reduce(card: &Card, members: u32, bytes: f64) -> f64 {
    if members < 2 {
        return 0.0;
    }
    let kernel = &card.kernels.all_reduce;
    let at = (members.ilog2() as usize - 1).min(kernel.start.len() - 1);
    let members = f64::from(members);
    let sent = 2.0 * (members - 1.0) / members * bytes;
    let wire = sent / (card.device.nvlink_bytes_per_second * kernel.nvlink[at]);
    kernel.start[at] + wire + (wire * kernel.ramp).sqrt()
}

/// Of two bounds: nearly the larger, and more where they are alike.
fn norm(one: f64, other: f64, knee: f64) -> f64 {
    let larger = one.max(other);
    if larger == 0.0 {
        return 0.0;
    }
    // Scaled, so that no power underflows.
    larger * ((one / larger).powf(knee) + (other / larger).powf(knee)).powf(knee.recip())
}

/// The largest tensor group whose all-reduces were measured.
const TENSOR_MAX: u32 = 8;

/// A bf16 element.
pub(super) const ELEMENT_BYTES: f64 = 2.0;
