//! The vision encoder: pictures, cut into patches, become features that stand in for tokens.
//!
//! After Seed1.5-VL (arXiv 2505.07062): the patches of several pictures are packed one after the other
//! and attend within their own picture, four of them (two by two) are averaged to a visual token, and a
//! gated adapter brings those into the width of the backbone. Patches attend to those before them, as
//! in AIM (arXiv 2401.08541), and not to all: so the kernels are those of the backbone, on processors
//! and cards alike. Positions are sines and cosines of row and column (arXiv 2111.06377).
//!
//! The encoder is a pass of its own. What it gives is an input of the backbone's pass, which gives
//! back the gradient with respect to it; so whoever encodes a picture need not be who reads it.

use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{AttentionShape, Backend, Layout, LinearExtras, Param, RowSpans, Tape, Var};
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::network::BASE;

/// The shape of a vision encoder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisionConfig {
    /// Pixels along a patch.
    pub patch: usize,
    /// Elements of a patch's hidden state, and of a feature.
    pub dim: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Heads; they divide `dim`, and what each has is even.
    pub heads: usize,
    /// Elements inside the feed-forward network.
    pub ffn: usize,
}

impl VisionConfig {
    /// Checks that there can be such an encoder.
    ///
    /// # Errors
    /// [`ConfigError`] with the field that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        let named = [
            ("vision.patch", self.patch),
            ("vision.dim", self.dim),
            ("vision.layers", self.layers),
            ("vision.heads", self.heads),
            ("vision.ffn", self.ffn),
        ];
        if let Some((name, _)) = named.iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Zero(name));
        }
        if !self.dim.is_multiple_of(4 * self.heads) {
            return Err(ConfigError::VisionHeads {
                dim: self.dim,
                heads: self.heads,
            });
        }
        Ok(())
    }

    /// Numbers of a patch: its pixels in three colours.
    #[must_use]
    pub fn patch_len(&self) -> usize {
        self.patch * self.patch * 3
    }

    fn attention(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.heads,
            head_dim: self.dim / self.heads,
            window: None,
        }
    }

    /// Names and shapes of its tensors, and of the adapter into a backbone of this width, in their
    /// order.
    #[must_use]
    pub fn tensor_shapes(&self, hidden: usize) -> Vec<(String, Vec<usize>)> {
        let &Self { dim, ffn, .. } = self;
        let mut shapes = vec![];
        let mut push = |name: String, shape: &[usize]| shapes.push((name, shape.to_vec()));
        let tower = |name: &str| format!("vision_tower.{name}");
        push(tower("patch_embedding.weight"), &[dim, self.patch_len()]);
        push(tower("patch_embedding.bias"), &[dim]);
        for layer in 0..self.layers {
            let own = |name: &str| tower(&format!("layers.{layer}.{name}.weight"));
            push(own("input_layernorm"), &[dim]);
            for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
                push(own(&format!("self_attn.{name}")), &[dim, dim]);
            }
            push(own("post_attention_layernorm"), &[dim]);
            push(own("mlp.gate_proj"), &[ffn, dim]);
            push(own("mlp.up_proj"), &[ffn, dim]);
            push(own("mlp.down_proj"), &[dim, ffn]);
        }
        let projector = |name: &str| format!("multi_modal_projector.{name}.weight");
        push(projector("input_layernorm"), &[dim]);
        push(projector("gate_proj"), &[dim, dim]);
        push(projector("up_proj"), &[dim, dim]);
        push(projector("out_proj"), &[hidden, dim]);
        shapes
    }

    /// Floating point operations of a forward pass over pictures of so many patches each: as for the
    /// backbone, two for each weight and row, four for each element of a head and pair of patches.
    #[must_use]
    pub fn forward_flops(&self, patches: impl Iterator<Item = usize>) -> f64 {
        let (dim, ffn) = (self.dim as f64, self.ffn as f64);
        let block = 4.0 * dim * dim + 3.0 * dim * ffn;
        let each = dim * self.patch_len() as f64 + self.layers as f64 * block;
        let of = |patches: usize| {
            let n = patches as f64;
            let pairs = n * (n + 1.0) / 2.0;
            let adapter = n / 4.0 * 2.0 * dim * dim;
            2.0 * (n * each + adapter) + 4.0 * dim * self.layers as f64 * pairs
        };
        patches.map(of).sum()
    }
}

/// Where the tensors lie.
#[derive(Clone, Debug)]
pub(crate) struct VisionPlaces {
    embedding: Range<usize>,
    bias: Range<usize>,
    layers: Vec<BlockPlaces>,
    norm: Range<usize>,
    gate_up: Range<usize>,
    /// From a feature into the backbone.
    pub(crate) out: Range<usize>,
}

#[derive(Clone, Debug)]
struct BlockPlaces {
    attention_norm: Range<usize>,
    qkv: Range<usize>,
    out: Range<usize>,
    ffn_norm: Range<usize>,
    gate_up: Range<usize>,
    down: Range<usize>,
}

pub(super) fn layout(config: &VisionConfig, hidden: usize, layout: &mut Layout) -> VisionPlaces {
    let shapes = config.tensor_shapes(hidden);
    let mut ranges = shapes.iter().map(|(name, shape)| layout.push(name, shape));
    let mut next = || ranges.next().unwrap_or_default();
    let (embedding, bias) = (next(), next());
    let mut joined = |count: usize| {
        let first = next();
        (1..count).fold(first, |all, _| all.start..next().end)
    };
    let block = |_| BlockPlaces {
        attention_norm: joined(1),
        qkv: joined(3),
        out: joined(1),
        ffn_norm: joined(1),
        gate_up: joined(2),
        down: joined(1),
    };
    let layers = (0..config.layers).map(block).collect();
    VisionPlaces {
        embedding,
        bias,
        layers,
        norm: joined(1),
        gate_up: joined(2),
        out: joined(1),
    }
}

/// Pictures as an encoder reads them, packed one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pictures {
    /// Pixels of all patches, -1 to 1.
    pixels: Vec<f32>,
    /// Row and column of each patch.
    places: Vec<(u32, u32)>,
    /// Where pictures begin, and where the last ends, in patches.
    bounds: Vec<u32>,
}

impl Pictures {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bounds: vec![0],
            ..Self::default()
        }
    }

    /// One more: `pixels` of its patches, one patch after the other, and where each is. Four in a row
    /// become a visual token.
    ///
    /// # Panics
    /// If the patches are no multiple of four.
    pub fn push(&mut self, pixels: &[u8], places: impl IntoIterator<Item = (u32, u32)>) {
        let scaled = pixels.iter().map(|value| f32::from(*value) / 127.5 - 1.0);
        self.pixels.extend(scaled);
        self.places.extend(places);
        assert!(self.places.len().is_multiple_of(4), "four patches a token");
        self.bounds.push(self.places.len() as u32);
    }

    /// Number of patches.
    #[must_use]
    pub fn patches(&self) -> usize {
        self.places.len()
    }

    /// Number of visual tokens that they become.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.patches() / 4
    }

    /// The patches of each.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        let pairs = self.bounds.array_windows();
        pairs.map(|[from, to]| (to - from) as usize)
    }

    /// Sines and cosines of row and column, for a hidden state of `dim`.
    fn positions(&self, dim: usize) -> Vec<f32> {
        let quarter = dim / 4;
        let mut all = Vec::with_capacity(self.places.len() * dim);
        for &(row, column) in &self.places {
            for place in [row, column] {
                let angle = |at: usize| {
                    let frequency = 10_000f64.powf(-(at as f64) / quarter as f64);
                    f64::from(place) * frequency
                };
                all.extend((0..quarter).map(|at| angle(at).sin() as f32));
                all.extend((0..quarter).map(|at| angle(at).cos() as f32));
            }
        }
        all
    }
}

/// A recorded pass of the encoder.
pub(crate) struct Encoded {
    inputs: [(Var, Vec<f32>); 2],
    quarters: Var,
    /// A row a visual token.
    pub(crate) features: Var,
}

impl Encoded {
    /// Writes what is read: an arena keeps nothing of the recording itself.
    pub(crate) fn write<B: Backend>(
        &self,
        backend: &B,
        tape: &Tape<B>,
        arena: &mut odeon_gpu::Arena<B>,
        plan: &odeon_gpu::Plan,
        pictures: &Pictures,
    ) {
        for (input, values) in &self.inputs {
            let values = if values.is_empty() {
                &pictures.pixels
            } else {
                values
            };
            tape.write(backend, arena, plan, *input, values);
        }
        let quarters = vec![0.25; pictures.patches()];
        tape.write(backend, arena, plan, self.quarters, &quarters);
    }
}

pub(super) fn record<B: Backend>(
    tape: &mut Tape<B>,
    config: &VisionConfig,
    places: &VisionPlaces,
    norm_eps: f32,
    pictures: &Pictures,
) -> Encoded {
    let base = |range: &Range<usize>| Param::new(BASE, range.clone());
    let &VisionConfig { dim, ffn, .. } = config;
    let patches = pictures.patches();
    let spans = RowSpans::apart(pictures.bounds.clone());
    let pixels = tape.input(patches, config.patch_len());
    let positions = tape.input(patches, dim);
    let quarters = tape.input(patches, 1);
    let residual = |var| LinearExtras {
        residual: Some(var),
        ..LinearExtras::default()
    };
    let extras = LinearExtras {
        bias: Some(base(&places.bias)),
        ..residual(positions)
    };
    let mut x = tape.linear_with(pixels, base(&places.embedding), dim, extras);
    for block in &places.layers {
        let h = tape.rms_norm(x, base(&block.attention_norm), norm_eps);
        let qkv = tape.linear(h, base(&block.qkv), 3 * dim);
        let a = tape.attention(qkv, config.attention(), spans.clone());
        x = tape.linear_with(a, base(&block.out), dim, residual(x));
        let h = tape.rms_norm(x, base(&block.ffn_norm), norm_eps);
        let gate_up = tape.linear(h, base(&block.gate_up), 2 * ffn);
        let s = tape.swiglu(gate_up);
        x = tape.linear_with(s, base(&block.down), dim, residual(x));
    }
    let token_of: Arc<[u32]> = (0..patches as u32).map(|patch| patch / 4).collect();
    let x = tape.combine(x, quarters, token_of, patches / 4);
    let h = tape.rms_norm(x, base(&places.norm), norm_eps);
    let gate_up = tape.linear(h, base(&places.gate_up), 2 * dim);
    Encoded {
        inputs: [(pixels, vec![]), (positions, pictures.positions(dim))],
        quarters,
        features: tape.swiglu(gate_up),
    }
}
