//! The shape of a transformer, and what follows from it.

use serde::{Deserialize, Serialize};

use super::{CostError, all_positive};

/// A decoder-only transformer with grouped queries, a dense gated feed-forward part and an output
/// matrix of its own, in bf16. Mixtures of experts are not among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSize {
    /// The name that people know it by.
    pub name: String,
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream, elements.
    pub hidden: u64,
    /// Heads of the queries.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head: u64,
    /// Width of the feed-forward part, elements.
    pub ffn: u64,
    /// Tokens in the vocabulary.
    pub vocabulary: u64,
    /// Elements of a layer beside its matrices: norms, and biases where there are some.
    pub vectors: u64,
}

impl ModelSize {
    /// Qwen2.5 7B: 7,615,616,512 parameters (`config.json` of Qwen/Qwen2.5-7B).
    #[must_use]
    pub fn qwen2_5_7b() -> Self {
        Self::qwen2_5("Qwen2.5-7B", [28, 3_584, 28, 4, 18_944])
    }

    /// Qwen2.5 32B: 32,763,876,352 parameters (`config.json` of Qwen/Qwen2.5-32B).
    #[must_use]
    pub fn qwen2_5_32b() -> Self {
        Self::qwen2_5("Qwen2.5-32B", [64, 5_120, 40, 8, 27_648])
    }

    /// Qwen2.5 72B: 72,706,203,648 parameters (`config.json` of Qwen/Qwen2.5-72B).
    #[must_use]
    pub fn qwen2_5_72b() -> Self {
        Self::qwen2_5("Qwen2.5-72B", [80, 8_192, 64, 8, 29_568])
    }

    fn qwen2_5(name: &str, [layers, hidden, heads, kv_heads, ffn]: [u64; 5]) -> Self {
        let head = 128;
        Self {
            name: name.to_owned(),
            layers,
            hidden,
            heads,
            kv_heads,
            head,
            ffn,
            vocabulary: 152_064,
            vectors: 2 * hidden + (heads + 2 * kv_heads) * head,
        }
    }

    /// Number of parameters.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads);
        let layer = attention + 3 * self.hidden * self.ffn + self.vectors;
        self.layers * layer + 2 * self.vocabulary * self.hidden + self.hidden
    }

    /// Bytes of the weights.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        2 * self.parameters()
    }

    /// Bytes of keys and values of one token in all layers: `4 layers kv_heads head`.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> u64 {
        4 * self.layers * self.kv_heads * self.head
    }

    /// Operations of all layers' and the output's matrices for one token forward: two for each
    /// parameter but those of the embedding.
    #[must_use]
    pub fn flops_per_token(&self) -> f64 {
        2.0 * (self.parameters() - self.vocabulary * self.hidden) as f64
    }

    pub(super) fn check(&self) -> Result<(), CostError> {
        all_positive(
            &self.name,
            &[
                ("layers", self.layers as f64),
                ("hidden", self.hidden as f64),
                ("heads", self.heads as f64),
                ("kv_heads", self.kv_heads as f64),
                ("head", self.head as f64),
                ("ffn", self.ffn as f64),
                ("vocabulary", self.vocabulary as f64),
            ],
        )
    }
}
