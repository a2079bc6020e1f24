//! The shape of a model.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use odeon_gpu::{AttentionShape, RopeShape, RopeStyle};

use super::block::{LayerBlock, Widths};
use super::vision::VisionConfig;
use crate::setting::{Chosen, SettingError};

/// Architecture of a decoder-only transformer: RMSNorm, rotary positions, grouped-query attention,
/// and a [`LayerBlock`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// Entries of the vocabulary.
    pub vocab: usize,
    /// Elements of a token's hidden state.
    pub dim: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head, even.
    pub head_dim: usize,
    /// Elements inside the feed-forward part; of a mixture inside each expert.
    pub ffn: usize,
    /// The feed-forward part.
    pub block: LayerBlock,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Which pairs the rotary embedding turns.
    pub rope: Rope,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// True when the output head is the embedding table.
    pub tied_head: bool,
    /// True when queries, keys and values have a bias (Qwen2).
    pub qkv_bias: bool,
    /// True when there is a value head beside the output head (critics).
    pub value_head: bool,
    /// The encoder that reads pictures, where the model has one.
    pub vision: Option<VisionConfig>,
}

/// Pairing of the rotary embedding, as files name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rope {
    /// Element `i` with `i + head_dim/2` (Hugging Face).
    #[default]
    HalfSplit,
    /// Element `2i` with `2i + 1` (GGUF files of Llama).
    Interleaved,
}

impl Default for ModelConfig {
    /// A small model over bytes: 0.8 million parameters.
    fn default() -> Self {
        Self {
            vocab: 256,
            dim: 128,
            layers: 4,
            heads: 4,
            kv_heads: 4,
            head_dim: 32,
            ffn: 344,
            block: LayerBlock::default(),
            rope_theta: 10_000.0,
            rope: Rope::HalfSplit,
            norm_eps: 1e-5,
            tied_head: true,
            qkv_bias: false,
            value_head: false,
            vision: None,
        }
    }
}

/// A contradiction in a [`ModelConfig`].
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A dimension is zero.
    #[error("model: {0} is zero")]
    Zero(&'static str),
    /// Query heads cannot be shared out evenly.
    #[error("model: {heads} query heads cannot share {kv_heads} key-value heads evenly")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// The heads of a vision encoder cannot be cut out of its width in pairs of pairs.
    #[error("model: vision.dim {dim} is no multiple of 4 times vision.heads {heads}")]
    VisionHeads {
        /// Its width.
        dim: usize,
        /// Its heads.
        heads: usize,
    },
    /// Rotary embedding turns pairs.
    #[error("model: head_dim {0} is odd")]
    OddHead(usize),
    /// A setting of the feed-forward part means nothing.
    #[error("model: {0}")]
    Block(#[from] SettingError),
    /// There is no type of model that has both, so it could not be saved.
    #[error("model: queries, keys and values have a bias only beside the block \"mlp\"")]
    BlockBeside,
}

impl ModelConfig {
    /// Checks that the dimensions fit together.
    ///
    /// # Errors
    /// If a dimension is zero or heads do not divide.
    pub fn check(&self) -> Result<(), ConfigError> {
        let named = [
            ("vocab", self.vocab),
            ("dim", self.dim),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("ffn", self.ffn),
        ];
        if let Some((name, _)) = named.iter().find(|(_, v)| *v == 0) {
            return Err(ConfigError::Zero(name));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(ConfigError::Heads {
                heads: self.heads,
                kv_heads: self.kv_heads,
            });
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ConfigError::OddHead(self.head_dim));
        }
        self.block.check()?;
        if self.qkv_bias && self.block != LayerBlock::default() {
            return Err(ConfigError::BlockBeside);
        }
        self.vision.as_ref().map_or(Ok(()), VisionConfig::check)
    }

    /// Elements of a row outside and inside of the feed-forward part.
    pub(crate) fn widths(&self) -> Widths {
        Widths {
            dim: self.dim,
            ffn: self.ffn,
        }
    }

    pub(crate) fn attention(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    /// Rotary embedding of the queries and keys of a packed row.
    pub(crate) fn rope_shape(&self) -> RopeShape {
        RopeShape {
            heads: self.heads + self.kv_heads,
            head_dim: self.head_dim,
            row_stride: self.attention().qkv_cols(),
            theta: self.rope_theta,
            style: match self.rope {
                Rope::HalfSplit => RopeStyle::HalfSplit,
                Rope::Interleaved => RopeStyle::Interleaved,
            },
        }
    }
}
