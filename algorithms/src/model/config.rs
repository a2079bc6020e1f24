//! The shape of a model.

use std::num::NonZeroU32;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use odeon_gpu::{AttentionShape, HeadNormShape, Param, RopeShape, RopeStyle};

use super::block::{ExpertRange, Gelu, LayerBlock, Widths};
use super::rank::StagePlace;
use super::rope::{Rope, RopeScaling};
use super::stage::Stage;
use super::vision::VisionConfig;
use super::width::{VirtualWidth, WidthRecorder};
use crate::setting::{Chosen, SettingError};

/// Architecture of a decoder-only transformer: norms, rotary or learned positions, grouped-query
/// attention, and a [`LayerBlock`].
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
    /// The way in which positions are stretched.
    pub rope_scaling: RopeScaling,
    /// The layers that see the last tokens alone, where there are some.
    pub window: Option<AttentionWindow>,
    /// Rows of a table of positions that is added to the embedding (GPT-2). Nothing is turned then.
    pub learned_positions: Option<usize>,
    /// True when norms subtract the mean and have a bias (GPT-2); else they are RMSNorms.
    pub layer_norms: bool,
    /// Added to the mean square or the variance in norms.
    pub norm_eps: f32,
    /// True when the output head is the embedding table.
    pub tied_head: bool,
    /// True when queries, keys and values have a bias (Qwen2).
    pub qkv_bias: bool,
    /// True when the product behind attention has a bias, too (Llama with `attention_bias`).
    pub out_bias: bool,
    /// True when the products of the feed-forward part have a bias (Llama with `mlp_bias`).
    pub mlp_bias: bool,
    /// True when queries and keys are normed per head (Qwen3).
    pub head_norms: bool,
    /// True when there is a value head beside the output head (critics).
    pub value_head: bool,
    /// The encoder that reads pictures, where the model has one.
    pub vision: Option<VisionConfig>,
    /// The residual stream, where it is wider than layers or made of segments.
    pub width: Option<VirtualWidth>,
    /// True when there is a head that predicts one token further, for training (multi-token prediction).
    pub next_token: bool,
    /// Experts of each layer that are there, in the settings of a rank's [part](ModelConfig::part) of a model whose
    /// experts are shared; `None`: all.
    #[serde(skip)]
    pub own_experts: Option<ExpertRange>,
    /// The stages that are there, in the settings of a pipeline rank's [part](ModelConfig::part); `None`: all layers,
    /// and what is before and behind them.
    #[serde(skip)]
    pub own_stages: Option<StagePlace>,
}

/// The layers whose rows see the last tokens alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionWindow {
    /// Tokens that a row sees, its own among them.
    pub tokens: NonZeroU32,
    /// The first of these layers; those behind it are such, too.
    pub from_layer: usize,
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
            rope_scaling: RopeScaling::None,
            window: None,
            learned_positions: None,
            layer_norms: false,
            norm_eps: 1e-5,
            tied_head: true,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            head_norms: false,
            value_head: false,
            vision: None,
            width: None,
            next_token: false,
            own_experts: None,
            own_stages: None,
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
    #[error("model: no type of model has {0}")]
    Beside(&'static str),
    /// A sequence has more tokens than the table of positions has rows.
    #[error("model: {tokens} tokens are more than its {rows} learned positions")]
    Positions {
        /// Tokens of the sequence.
        tokens: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// Rows cannot be cut into segments like this.
    #[error("model: {0}")]
    Width(String),
    /// The scaling of positions means nothing.
    #[error("model: {0}")]
    Scaling(String),
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
        if self.learned_positions == Some(0) {
            return Err(ConfigError::Zero("learned_positions"));
        }
        self.block.check()?;
        if let Some(width) = self.width {
            width.check(self.dim).map_err(ConfigError::Width)?;
            if self.learned_positions.is_some() || self.layer_norms || self.vision.is_some() {
                let what =
                    "a virtual width, and learned positions, layer norms or an encoder of pictures";
                return Err(ConfigError::Beside(what));
            }
        }
        let is_other =
            self.learned_positions.is_some() || self.vision.is_some() || self.width.is_some();
        if self.next_token && is_other {
            let what = "a head for one token further, and learned positions, an encoder of pictures or a virtual width";
            return Err(ConfigError::Beside(what));
        }
        let scaling = self.rope_scaling.check(self.head_dim);
        scaling.map_err(ConfigError::Scaling)?;
        if let Some(beside) = self.beside() {
            return Err(ConfigError::Beside(beside));
        }
        self.vision.as_ref().map_or(Ok(()), VisionConfig::check)
    }

    /// Settings that no type of model has beside each other, if it has such.
    fn beside(&self) -> Option<&'static str> {
        let biased = self.qkv_bias || self.out_bias || self.mlp_bias;
        let gelu = matches!(self.block, LayerBlock::Gelu(_));
        if gelu || self.layer_norms || self.learned_positions.is_some() {
            let own = Self {
                dim: self.heads * self.head_dim,
                kv_heads: self.heads,
                rope_scaling: RopeScaling::None,
                window: None,
                vision: None,
                head_norms: false,
                ..self.clone().of_block(LayerBlock::Gelu(Gelu::default()), 1)
            };
            let positions = self.learned_positions;
            let whole = positions.is_some()
                && own
                    == Self {
                        learned_positions: own.learned_positions,
                        ..self.clone()
                    };
            (!whole).then_some(
                "layer norms, learned positions or GELU and is not GPT-2, which has all of these, \
                 biases, a key head for each query head, and no encoder of pictures",
            )
        } else if self.block != LayerBlock::default() && (biased || self.head_norms) {
            Some("biases or norms of heads beside another block than \"mlp\"")
        } else if self.out_bias && !self.qkv_bias {
            Some("a bias behind attention and none before it")
        } else if self.mlp_bias
            && (self.qkv_bias != self.out_bias || self.head_norms || self.window.is_some())
        {
            Some("biases of the feed-forward part and another attention than Llama's")
        } else if self.out_bias && self.window.is_some() {
            Some("a bias behind attention and a window")
        } else if self.head_norms && self.qkv_bias != self.out_bias {
            Some("norms of heads, and a bias on one side of attention")
        } else if self.window.is_some_and(|it| it.from_layer > 0)
            && !self.qkv_bias
            && !self.head_norms
        {
            Some("a window from a later layer on without biases or norms of heads")
        } else {
            None
        }
    }

    /// The same with another feed-forward part, and what the models that have that one have beside it:
    /// GELU has layer norms, a table of so many `positions`, and biases everywhere.
    #[must_use]
    pub fn of_block(self, block: LayerBlock, positions: usize) -> Self {
        let gpt2 = matches!(block, LayerBlock::Gelu(_));
        Self {
            block,
            learned_positions: gpt2.then_some(positions),
            layer_norms: gpt2,
            qkv_bias: gpt2 || self.qkv_bias,
            out_bias: gpt2 || self.out_bias,
            mlp_bias: gpt2 || self.mlp_bias,
            ..self
        }
    }

    /// Checks that sequences of so many tokens have positions.
    ///
    /// # Errors
    /// [`ConfigError::Positions`] where positions are learned, and fewer.
    pub fn check_tokens(&self, tokens: usize) -> Result<(), ConfigError> {
        match self.learned_positions {
            Some(rows) if tokens > rows => Err(ConfigError::Positions { tokens, rows }),
            _ => Ok(()),
        }
    }

    /// Numbers of a row of the residual stream.
    pub(crate) fn row(&self) -> usize {
        self.width.map_or(self.dim, |width| width.row(self.dim))
    }

    /// Columns of the embedding: those of a row, unless it is the head, too.
    pub(crate) fn embedding_columns(&self) -> usize {
        match self.tied_head {
            true => self.dim,
            false => self.row(),
        }
    }

    /// Records what rows that are wider than layers need, where there are such.
    pub(crate) fn recorder<'a>(
        &self,
        param: &'a dyn Fn(&Range<usize>) -> Param,
    ) -> Option<WidthRecorder<'a>> {
        self.width.map(|width| WidthRecorder {
            width,
            dim: self.dim,
            eps: self.norm_eps,
            param,
        })
    }

    /// One of the stages that are there.
    pub(crate) fn stage(&self, chunk: usize) -> Stage {
        let place = self.own_stages.unwrap_or(StagePlace::ALONE);
        let number = place.stage(chunk);
        Stage {
            number,
            layers: place.layers(chunk, self.layers),
            embeds: number == 0,
            scores: number + 1 == place.stages(),
        }
    }

    /// The layers that are there, of one stage after the other.
    pub(crate) fn own_layers(&self) -> Vec<Range<usize>> {
        let chunks = 0..self.own_stages.map_or(1, |place| place.chunks);
        chunks.map(|chunk| self.stage(chunk).layers).collect()
    }

    /// True where the first stage is there.
    pub(crate) fn embeds(&self) -> bool {
        self.own_stages.is_none_or(StagePlace::is_first)
    }

    /// True where the last stage is there.
    pub(crate) fn scores(&self) -> bool {
        self.own_stages.is_none_or(StagePlace::is_last)
    }

    /// True where the embedding is there as the head alone, and the first stage of another rank has it, too.
    pub(crate) fn has_embedding_of_another(&self) -> bool {
        self.tied_head && self.scores() && !self.embeds()
    }

    /// Elements of a row outside and inside of the feed-forward part.
    pub(crate) fn widths(&self) -> Widths {
        Widths {
            dim: self.dim,
            ffn: self.ffn,
            experts: self.own_experts,
        }
    }

    /// Attention of all layers, but for a window.
    pub(crate) fn attention(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: None,
        }
    }

    /// Attention of a layer.
    pub(crate) fn attention_of(&self, layer: usize) -> AttentionShape {
        let window = self.window.filter(|window| layer >= window.from_layer);
        AttentionShape {
            window: window.map(|window| window.tokens),
            ..self.attention()
        }
    }

    /// Norms of query and key heads, where there are some.
    pub(crate) fn head_norm(&self) -> Option<HeadNormShape> {
        self.head_norms.then(|| HeadNormShape {
            attention: self.attention(),
            eps: self.norm_eps,
        })
    }

    /// Rotary embedding of the queries and keys of a packed row, unless positions are learned.
    pub(crate) fn rope_shape(&self) -> Option<RopeShape> {
        if self.learned_positions.is_some() {
            return None;
        }
        let (frequencies, magnitude) = self
            .rope_scaling
            .frequencies(self.rope_theta, self.head_dim);
        Some(RopeShape {
            heads: self.heads + self.kv_heads,
            head_dim: self.head_dim,
            row_stride: self.attention().qkv_cols(),
            frequencies,
            magnitude,
            style: match self.rope {
                Rope::HalfSplit => RopeStyle::HalfSplit,
                Rope::Interleaved => RopeStyle::Interleaved,
            },
        })
    }
}
