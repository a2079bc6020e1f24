//! Models as a step of training sees them: the matrices of a layer.

use super::super::shard::ELEMENT_BYTES;
use super::super::{ModelSize, Pairs};
use crate::model::{LayerBlock, ModelConfig};
use crate::weights::ModelFields;

/// The feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// Into it and out of it, as GPT has.
    Plain,
    /// Into it twice, once as a gate, as Llama has.
    Gated,
    /// A router and gated experts, of which a token passes some.
    Experts {
        /// Experts of a layer.
        experts: u64,
        /// Those that a token passes.
        passed: u64,
    },
}

impl FeedForward {
    const fn of(block: &LayerBlock) -> Self {
        match block {
            LayerBlock::Mlp(_) => Self::Gated,
            LayerBlock::Moe(moe) => Self::Experts {
                experts: moe.experts as u64,
                passed: moe.experts_per_token as u64,
            },
            LayerBlock::Gelu(_) => Self::Plain,
        }
    }
}

/// A model in training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainedModel {
    /// Its widths.
    pub size: ModelSize,
    /// The feed-forward parts of its layers.
    pub feed_forward: FeedForward,
    /// Set where the head is the embedding: both are stored once.
    pub tied: bool,
}

impl TrainedModel {
    /// The GPT of 175B parameters that MegaScale trains (arXiv 2402.15627, table 1).
    #[must_use]
    pub fn gpt_175b() -> Self {
        Self::gpt("GPT-175B", [96, 12_288, 128])
    }

    /// The GPT of 530B parameters, from there.
    #[must_use]
    pub fn gpt_530b() -> Self {
        Self::gpt("GPT-530B", [105, 20_480, 160])
    }

    /// ViT-22B (arXiv 2302.05442), the encoder of Optimus. The elements of a patch of 14 x 14 pixels are its
    /// vocabulary.
    #[must_use]
    pub fn vit_22b() -> Self {
        Self::vit("ViT-22B", [48, 6_144, 48])
    }

    /// A ViT of 10B parameters, as MegaScale-Omni has one whose widths are not told.
    #[must_use]
    pub fn vit_10b() -> Self {
        Self::vit("ViT-10B", [40, 4_608, 48])
    }

    fn vit(name: &str, [layers, hidden, heads]: [u64; 3]) -> Self {
        let patch = 3 * 14 * 14;
        let sizes = [
            layers,
            hidden,
            heads,
            heads,
            hidden / heads,
            4 * hidden,
            patch,
        ];
        Self {
            size: size(name, sizes),
            feed_forward: FeedForward::Plain,
            tied: true,
        }
    }

    /// Llama 3 8B (`config.json` of meta-llama/Meta-Llama-3-8B).
    #[must_use]
    pub fn llama3_8b() -> Self {
        Self::llama3("Llama-3-8B", [32, 4_096, 32, 14_336])
    }

    /// Llama 3 70B (`config.json` of meta-llama/Meta-Llama-3-70B).
    #[must_use]
    pub fn llama3_70b() -> Self {
        Self::llama3("Llama-3-70B", [80, 8_192, 64, 28_672])
    }

    /// GPT-OSS 120B, with full attention in all layers (`config.json` of openai/gpt-oss-120b).
    #[must_use]
    pub fn gpt_oss_120b() -> Self {
        let size = size("GPT-OSS-120B", [36, 2_880, 64, 8, 64, 2_880, 201_088]);
        Self {
            size,
            feed_forward: FeedForward::Experts {
                experts: 128,
                passed: 4,
            },
            tied: false,
        }
    }

    /// A model of grouped queries and gated feed-forward parts, as rollouts have it.
    #[must_use]
    pub fn gated(size: ModelSize) -> Self {
        Self {
            size,
            feed_forward: FeedForward::Gated,
            tied: false,
        }
    }

    /// The model of a `config.json`, without its encoder of pictures.
    #[must_use]
    pub fn of(name: &str, fields: &ModelFields) -> Self {
        let numbers = [
            fields.layers,
            fields.hidden,
            fields.heads,
            fields.kv_heads,
            fields.head_width,
            fields.feed_forward,
            fields.vocabulary,
        ];
        Self {
            size: size(name, numbers.map(|it| it as u64)),
            feed_forward: FeedForward::of(&fields.block),
            tied: fields.tied,
        }
    }

    /// The model of a run, without its encoder of pictures.
    #[must_use]
    pub fn of_config(config: &ModelConfig) -> Self {
        let numbers = [
            config.layers,
            config.dim,
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.ffn,
            config.vocab,
        ];
        Self {
            size: size("the model", numbers.map(|it| it as u64)),
            feed_forward: FeedForward::of(&config.block),
            tied: config.tied_head,
        }
    }

    fn gpt(name: &str, [layers, hidden, heads]: [u64; 3]) -> Self {
        let sizes = [
            layers,
            hidden,
            heads,
            heads,
            hidden / heads,
            4 * hidden,
            64_000,
        ];
        Self {
            size: size(name, sizes),
            feed_forward: FeedForward::Plain,
            tied: true,
        }
    }

    fn llama3(name: &str, [layers, hidden, heads, ffn]: [u64; 4]) -> Self {
        Self::gated(size(name, [layers, hidden, heads, 8, 128, ffn, 128_256]))
    }

    /// Weights of attention in a layer.
    pub(super) fn attention_weights(&self) -> u64 {
        let size = &self.size;
        size.hidden * size.head * (2 * size.heads + 2 * size.kv_heads)
    }

    /// Weights of a layer, all experts among them.
    #[must_use]
    pub fn layer_weights(&self) -> u64 {
        self.layer_weights_with(|experts, _| experts)
    }

    /// Weights of a layer that a token meets.
    #[must_use]
    pub fn met_weights(&self) -> u64 {
        self.layer_weights_with(|_, passed| passed)
    }

    fn layer_weights_with(&self, counted: impl Fn(u64, u64) -> u64) -> u64 {
        let ModelSize { hidden, ffn, .. } = self.size;
        let feed_forward = match self.feed_forward {
            FeedForward::Plain => 2 * hidden * ffn,
            FeedForward::Gated => 3 * hidden * ffn,
            FeedForward::Experts { experts, passed } => {
                hidden * experts + counted(experts, passed) * 3 * hidden * ffn
            }
        };
        self.attention_weights() + feed_forward
    }

    /// Weights of the embedding, and as many of the head.
    #[must_use]
    pub fn vocabulary_weights(&self) -> u64 {
        self.size.vocabulary * self.size.hidden
    }

    /// Number of parameters.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let ends = if self.tied { 1 } else { 2 };
        self.size.layers * (self.layer_weights() + self.size.vectors)
            + ends * self.vocabulary_weights()
            + self.size.hidden
    }

    /// Operations of a training step for each token of sequences of this length, as papers count them: `6 N` with the
    /// head and without the embedding, and attention to all `s` tokens (`12 l h s`). A window leaves the part of the
    /// pairs that the causal mask and it leave together.
    #[must_use]
    pub fn flops_per_token(&self, sequence: u64, window: Option<u64>) -> f64 {
        let size = &self.size;
        let weights = size.layers * self.met_weights() + self.vocabulary_weights();
        let heads = (size.layers * size.heads * size.head) as f64;
        let pairs = Pairs::All.of(sequence) * attended(sequence, window);
        6.0 * weights as f64 + 12.0 * heads * pairs / sequence as f64
    }

    /// The products of one layer for `rows` tokens on one of `tensor` cards: `m x k` by `k x n` as `[m, n, k]`. In a
    /// parallel block what has the same input is one product, and so is what is added up.
    pub(super) fn products(&self, rows: f64, tensor: f64, parallel: bool) -> Vec<[f64; 3]> {
        let size = &self.size;
        let hidden = size.hidden as f64;
        let part = |all: u64| all as f64 / tensor;
        let queries = part(size.heads * size.head);
        let qkv = part((size.heads + 2 * size.kv_heads) * size.head);
        let ffn = part(size.ffn);
        let (into, width, rows_in) = match self.feed_forward {
            FeedForward::Plain => (ffn, ffn, rows),
            FeedForward::Gated => (2.0 * ffn, ffn, rows),
            // Tokens are spread evenly over the experts, whose products are one grouped one.
            FeedForward::Experts { passed, .. } => (2.0 * ffn, ffn, rows * passed as f64),
        };
        match parallel {
            true => vec![[rows, qkv + into, hidden], [rows, hidden, queries + width]],
            false => vec![
                [rows, qkv, hidden],
                [rows, hidden, queries],
                [rows_in, into, hidden],
                [rows_in, hidden, width],
            ],
        }
    }

    /// Bytes of activations of one layer and token that a backward pass needs, before any are split: 34 times the width
    /// in a GPT (Korthikanti et al., arXiv 2205.05198, without scores).
    pub(super) fn activation_bytes(&self) -> f64 {
        let size = &self.size;
        let heads = ((2 * size.heads + 2 * size.kv_heads) * size.head) as f64;
        let ffn = match self.feed_forward {
            FeedForward::Plain => 2 * size.ffn,
            FeedForward::Gated => 3 * size.ffn,
            FeedForward::Experts { passed, .. } => 3 * passed * size.ffn,
        };
        ELEMENT_BYTES * (4.0 * size.hidden as f64 + heads + ffn as f64) + 2.0 * size.hidden as f64
    }
}

/// The part of the pairs under the causal mask that a window leaves.
pub(super) fn attended(sequence: u64, window: Option<u64>) -> f64 {
    let all = Pairs::Window(sequence).of(sequence);
    window.map_or(1.0, |window| Pairs::Window(window).of(sequence) / all)
}

fn size(name: &str, numbers: [u64; 7]) -> ModelSize {
    let [layers, hidden, heads, kv_heads, head, ffn, vocabulary] = numbers;
    ModelSize {
        name: name.to_owned(),
        layers,
        hidden,
        heads,
        kv_heads,
        head,
        ffn,
        vocabulary,
        vectors: 2 * hidden,
    }
}
