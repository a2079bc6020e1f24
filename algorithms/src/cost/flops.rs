//! A model's arithmetic by its `config.json`, counted as VeOmni counts it.
//!
//! ```text
//!  6 T weights + 12 elements pairs + 15 k v heads T
//! ```
//!
//! Each weight of a matrix that a token meets costs six operations: two forward, four on the way back. An embedding is
//! looked up and costs none; the head does. Of experts those count that a token passes. A pair of a token with one
//! that it attends to costs twelve for each element of a head. **The causal mask halves nothing**: a layer with full
//! attention has all `s * s` pairs of a sequence of `s` tokens. Layers with a window have `w` pairs a token, or
//! fewer where there are not as many before it. The delta rule of a linear layer costs 15 operations for each element
//! of its state and token. Convolutions count as weights; norms, positions and the optimiser are left out.
//!
//! After VeOmni (arXiv 2508.02317; `count_flops` of ByteDance-Seed/VeOmni, Apache-2.0), whose published values the
//! tests hold to nine digits. What a `config.json` does not say has the default of its family in Hugging Face's
//! transformers.
//!
//! Steps of this project tell operations by
//! [`Model::training_flops`](crate::model::Model::training_flops), which counts what is computed: it has
//! `s (s + 1) / 2` pairs, a head for predicted tokens alone, and nothing for the last token of a sequence, which no
//! pass reads. Weights are the same. So utilisation by VeOmni's count is the larger of the two: for Llama 3 8B by 2 % at
//! 1,024 tokens, 13 % at 8,192.
//!
//! ```
//! use odeon_algorithms::cost::{ModelFlops, utilisation};
//!
//! let config = r#"{ "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
//!     "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336 }"#;
//! let flops = ModelFlops::from_config(config)?.training(&[8_192], &[]);
//! assert!((flops / 8_192.0 / 57.9e9 - 1.0).abs() < 0.01);
//! // 6,667 tokens a second on an H100.
//! assert!((utilisation(flops, 8_192.0 / 6_667.0, 989e12) - 0.39).abs() < 0.01);
//! # Ok::<(), odeon_algorithms::cost::FlopsError>(())
//! ```

mod families;
mod fields;

#[cfg(test)]
mod tests;

/// A `config.json` whose arithmetic cannot be counted. Nothing was counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlopsError {
    /// It is no JSON object.
    #[error("the configuration is no JSON object: {0}")]
    NotJson(String),
    /// Nobody has said how models of this family are counted.
    #[error("operations of `model_type` \"{0}\" are not counted: known are {known}", known = families::KNOWN.join(", "))]
    Family(String),
    /// A field is missing, or is no number that such a field can have.
    #[error("`{field}` of a {family} model must be {wanted}")]
    Field {
        /// The family.
        family: String,
        /// The field.
        field: &'static str,
        /// The value that is wanted, in words.
        wanted: &'static str,
    },
    /// There are not as many kinds of layers as layers.
    #[error(
        "`layer_types` names {named} layers, and `num_hidden_layers` is {layers}: name each once"
    )]
    Layers {
        /// Layers that are named.
        named: usize,
        /// Layers that there are.
        layers: usize,
    },
    /// A layer of a kind that this family has not.
    #[error("`layer_types` has \"{kind}\", which is not counted in a {family} model")]
    Kind {
        /// The family.
        family: String,
        /// The kind.
        kind: String,
    },
}

/// The arithmetic of a model, apart from how many tokens there are.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFlops {
    /// Weights in matrices of layers that each token meets.
    pub weights: f64,
    /// Weights of the head.
    pub head: f64,
    /// Multiplications of a token's own streams with each other, two of which are an operation of a weight.
    pub mixing: f64,
    /// Products of tokens with tokens, layers of one kind together.
    pub attention: Vec<AttentionFlops>,
    /// Elements of the states of all linear layers.
    pub states: f64,
    /// The encoder of pictures, where there is one.
    pub vision: Option<VisionFlops>,
}

/// Products of tokens with tokens in layers of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionFlops {
    /// The pairs of tokens.
    pub pairs: Pairs,
    /// Elements of a head times heads times layers.
    pub elements: f64,
    /// Set where there are scores alone and no values are added up: half of the operations.
    pub scores_alone: bool,
}

/// The pairs of tokens that a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Each token with all.
    All,
    /// Each with itself and those before it, at most so many together.
    Window(u64),
    /// Each with the complete blocks of so many tokens that lie before its end, at most so many blocks.
    Blocks {
        /// Tokens of a block.
        block: u64,
        /// The most blocks.
        most: u64,
    },
}

/// An encoder of pictures; its tokens are patches before any are merged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VisionFlops {
    /// Weights that each patch meets, with those of the merger, which is counted for each patch.
    pub weights: f64,
    /// Elements of a head times heads times layers, for pairs of all patches of a picture.
    pub elements: f64,
}

impl ModelFlops {
    /// Counts the model of a `config.json`.
    ///
    /// # Errors
    /// See [`FlopsError`].
    pub fn from_config(json: &str) -> Result<Self, FlopsError> {
        families::read(json)
    }

    /// Operations of a training step over sequences of these lengths, and pictures of so many patches each.
    #[must_use]
    pub fn training(&self, lengths: &[u64], patches: &[u64]) -> f64 {
        let tokens = lengths.iter().sum::<u64>() as f64;
        let weights = 6.0 * (self.weights + self.head + self.mixing) * tokens;
        let attention = self.attention.iter().map(|it| it.training(lengths));
        let text = weights + attention.sum::<f64>() + 15.0 * self.states * tokens;
        text + self.vision.map_or(0.0, |vision| vision.training(patches))
    }
}

impl AttentionFlops {
    fn training(&self, lengths: &[u64]) -> f64 {
        let pairs: f64 = lengths.iter().map(|length| self.pairs.of(*length)).sum();
        let each = if self.scores_alone { 6.0 } else { 12.0 };
        each * self.elements * pairs
    }
}

impl Pairs {
    /// Pairs in a sequence of so many tokens.
    #[must_use]
    pub fn of(self, length: u64) -> f64 {
        let tokens = length as f64;
        match self {
            Self::All => tokens * tokens,
            Self::Window(window) => {
                let ramp = length.min(window) as f64;
                ramp * (ramp + 1.0) / 2.0 + (tokens - ramp) * ramp
            }
            Self::Blocks { block, most } => {
                // Token `i`, from 0, has `(i + 1) / block` blocks, rounded down: as many tokens have each number.
                let blocks = (length / block).min(most);
                let before = block as f64 * (blocks as f64) * (blocks as f64 - 1.0) / 2.0;
                let rest = (length + 1 - blocks * block) as f64;
                if blocks == 0 {
                    0.0
                } else {
                    before + rest * blocks as f64
                }
            }
        }
    }
}

impl VisionFlops {
    fn training(&self, patches: &[u64]) -> f64 {
        let all = patches.iter().sum::<u64>() as f64;
        let pairs: f64 = patches.iter().map(|count| Pairs::All.of(*count)).sum();
        6.0 * self.weights * all + 12.0 * self.elements * pairs
    }
}

/// The share of its arithmetic that a device used: so many operations in so many seconds, of a peak in FLOP/s.
#[must_use]
pub fn utilisation(flops: f64, seconds: f64, peak: f64) -> f64 {
    flops / (seconds * peak)
}
