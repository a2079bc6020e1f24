//! The tensors of models of the Llama and Qwen families.

use serde::{Deserialize, Serialize};

use super::spec::{Cut, Home, ModelSpec, SpecError, TensorSpec};
use crate::model::LayerBlock;
use crate::model::block::{Cutting, Widths};
use crate::setting::Chosen;

/// The numbers of a decoder-only model with RMS norms, grouped-query attention and SwiGLU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llama {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of the feed-forward blocks.
    pub intermediate: usize,
    /// The feed-forward blocks.
    #[serde(default)]
    pub block: LayerBlock,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; often `hidden / heads`.
    pub head_width: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Bytes of one element, of all tensors.
    pub element_bytes: usize,
    /// True when the output head is the embedding.
    pub tied: bool,
    /// True when queries, keys and values have a bias (Qwen 2).
    #[serde(default)]
    pub qkv_bias: bool,
    /// True when the product behind attention has a bias, too.
    #[serde(default)]
    pub out_bias: bool,
    /// True when the products of the feed-forward part have a bias.
    pub mlp_bias: bool,
    /// True when queries and keys are normalised per head (Qwen 3).
    #[serde(default)]
    pub head_norms: bool,
    /// True when there is a value head beside the output head (critics).
    #[serde(default)]
    pub value_head: bool,
}

impl Llama {
    /// The tensors by Hugging Face's names, in the order of
    /// [`ModelFields::tensor_shapes`](crate::weights::ModelFields::tensor_shapes). Matrices are
    /// `[out, in]`.
    ///
    /// | tensors | cut (Megatron-LM, arXiv 1909.08053) |
    /// | --- | --- |
    /// | `q_proj` | rows, by heads |
    /// | `k_proj`, `v_proj` | rows, by heads, shared where there are fewer than ranks |
    /// | `gate_proj`, `up_proj` | rows |
    /// | `o_proj` | columns, by heads |
    /// | `down_proj` | columns |
    /// | `w1`, `w3` of each expert | rows |
    /// | `w2` of each expert | columns |
    /// | the router | whole |
    /// | `embed_tokens`, `lm_head` | rows: the vocabulary |
    /// | norms, value head | whole |
    ///
    /// Biases are cut like the rows of their matrices. A tied embedding is with the first and the
    /// last stage.
    ///
    /// # Errors
    /// [`SpecError`] when a number is zero, or heads cannot be shared evenly.
    pub fn spec(&self) -> Result<ModelSpec, SpecError> {
        let &Self {
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_width,
            vocabulary,
            ..
        } = self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(SpecError::Heads { heads, kv_heads });
        }
        self.block.check()?;
        let rows = |unit| Cut::Split { dim: 0, unit };
        let columns = |unit| Cut::Split { dim: 1, unit };
        let shared = Cut::Cover {
            dim: 0,
            unit: head_width,
        };
        // What is too large is refused below.
        let [queries, keys] = [heads, kv_heads].map(|heads| heads.saturating_mul(head_width));
        let mut layer = vec![
            ("input_layernorm.weight", vec![hidden], Cut::Whole),
            (
                "self_attn.q_proj.weight",
                vec![queries, hidden],
                rows(head_width),
            ),
            ("self_attn.k_proj.weight", vec![keys, hidden], shared),
            ("self_attn.v_proj.weight", vec![keys, hidden], shared),
            (
                "self_attn.o_proj.weight",
                vec![hidden, queries],
                columns(head_width),
            ),
            ("post_attention_layernorm.weight", vec![hidden], Cut::Whole),
        ];
        let widths = Widths::new(hidden, intermediate);
        let block = self.block.tensors(widths);
        layer.extend(block.iter().map(|(name, shape, cutting)| {
            let cut = match cutting {
                Cutting::Whole => Cut::Whole,
                Cutting::Outputs => rows(1),
                Cutting::Inputs => columns(1),
            };
            (name.as_str(), shape.clone(), cut)
        }));
        if self.head_norms {
            layer.push(("self_attn.q_norm.weight", vec![head_width], Cut::Whole));
            layer.push(("self_attn.k_norm.weight", vec![head_width], Cut::Whole));
        }
        if self.qkv_bias {
            layer.push(("self_attn.q_proj.bias", vec![queries], rows(head_width)));
            layer.push(("self_attn.k_proj.bias", vec![keys], shared));
            layer.push(("self_attn.v_proj.bias", vec![keys], shared));
        }
        if self.out_bias {
            layer.push(("self_attn.o_proj.bias", vec![hidden], Cut::Whole));
        }
        if self.mlp_bias {
            layer.push(("mlp.gate_proj.bias", vec![intermediate], rows(1)));
            layer.push(("mlp.up_proj.bias", vec![intermediate], rows(1)));
            layer.push(("mlp.down_proj.bias", vec![hidden], Cut::Whole));
        }
        let table = || vec![vocabulary, hidden];
        let embedding = if self.tied { Home::Ends } else { Home::First };
        let mut tensors = vec![];
        let mut push = |name: String, shape, cut, home| {
            tensors.push(TensorSpec {
                name,
                shape,
                element_bytes: self.element_bytes,
                cut,
                home,
            });
        };
        push(
            "model.embed_tokens.weight".into(),
            table(),
            rows(1),
            embedding,
        );
        for index in 0..self.layers {
            for (name, shape, cut) in &layer {
                let name = format!("model.layers.{index}.{name}");
                push(name, shape.clone(), *cut, Home::Layer(index));
            }
        }
        push(
            "model.norm.weight".into(),
            vec![hidden],
            Cut::Whole,
            Home::Last,
        );
        if !self.tied {
            push("lm_head.weight".into(), table(), rows(1), Home::Last);
        }
        if self.value_head {
            push(
                "value_head.weight".into(),
                vec![1, hidden],
                Cut::Whole,
                Home::Last,
            );
            push("value_head.bias".into(), vec![1], Cut::Whole, Home::Last);
        }
        ModelSpec::new(self.layers, tensors)
    }
}

impl ModelSpec {
    /// A model whose tensors are known by name, shape and bytes of an element alone: layers by the
    /// number in `layers.N.`, cut like those of [`Llama::spec`] where the name is one of these, but
    /// anywhere, and whole otherwise. Enough to say where bytes lie; heads may be cut.
    ///
    /// # Errors
    /// [`SpecError`] names the tensor at fault.
    pub fn named(
        tensors: impl IntoIterator<Item = (String, Vec<usize>, usize)>,
    ) -> Result<Self, SpecError> {
        let mut layers = 1;
        let tensors = tensors.into_iter().map(|(name, shape, element_bytes)| {
            let layer = layer_of(&name);
            layers = layer.map_or(layers, |layer| layers.max(layer.saturating_add(1)));
            let ends = name.contains("embed_tokens") || name.contains("embed_positions");
            TensorSpec {
                cut: cut_of(&name)
                    .filter(|dim| *dim < shape.len())
                    .map_or(Cut::Whole, |dim| Cut::Split { dim, unit: 1 }),
                home: match layer {
                    Some(layer) => Home::Layer(layer),
                    None if ends => Home::First,
                    None => Home::Last,
                },
                name,
                shape,
                element_bytes,
            }
        });
        let tensors = tensors.collect();
        Self::new(layers, tensors)
    }
}

/// Which layer a name says that it is of.
fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

/// Along which dimension tensors of such a name are cut.
fn cut_of(name: &str) -> Option<usize> {
    let module = name
        .strip_suffix(".weight")
        .or_else(|| name.strip_suffix(".bias"))?;
    match module.rsplit('.').next()? {
        "q_proj" | "k_proj" | "v_proj" | "gate_proj" | "up_proj" | "w1" | "w3" | "embed_tokens"
        | "lm_head" => Some(0),
        "o_proj" | "down_proj" | "w2" => Some(1),
        _ => None,
    }
}
