//! Models in GGUF files under Hugging Face's names: the architectures `llama`, `qwen2` and `qwen3`.

use std::{collections::BTreeMap, num::NonZeroU32};

use super::{
    error::LoadError,
    fields::{Family, ModelFields},
    gguf::{Gguf, GgufValue},
    loaded::{LoadedModel, LoadedTensor, finite},
};
use crate::model::{AttentionWindow, LayerBlock, RopeScaling, Yarn};

/// Loads the model of a GGUF file and decodes all its tensors to `f32`.
///
/// Converters interleave the two halves of every query and key head of `llama`, because llama.cpp
/// rotates neighbouring pairs there; this puts the rows back in Hugging Face's order.
///
/// # Errors
/// [`LoadError`] when the architecture is another, the file is incomplete, or it has something that this
/// does not honour, which it names.
pub fn load_gguf(gguf: &Gguf) -> Result<LoadedModel, LoadError> {
    let fields = gguf_fields(gguf)?;
    let mut tensors = BTreeMap::new();
    for (name, shape) in fields.tensor_shapes() {
        let tensor = gguf_tensor(gguf, &fields, &name, shape)?;
        tensors.insert(name, tensor);
    }
    Ok(LoadedModel { fields, tensors })
}

/// Reads a tensor of a model of these fields, by its name and shape in the network.
///
/// # Errors
/// [`LoadError`] when it is not there, of another shape, or has a number that is none.
pub fn gguf_tensor(
    gguf: &Gguf,
    fields: &ModelFields,
    name: &str,
    shape: Vec<usize>,
) -> Result<LoadedTensor, LoadError> {
    let path = gguf.path();
    let missing = || LoadError::Missing {
        path: path.into(),
        name: name.to_owned(),
    };
    let own = gguf_name(name).ok_or_else(missing)?;
    let tensor = gguf.tensor(&own).ok_or_else(missing)?;
    // Before the rows are put in order, because that relies on the shape.
    if tensor.shape != shape {
        return Err(LoadError::Shape {
            path: path.into(),
            name: name.to_owned(),
            found: tensor.shape,
            expected: shape,
        });
    }
    finite(path, &own, &tensor.values)?;
    let turned = [
        "q_proj.weight",
        "k_proj.weight",
        "q_proj.bias",
        "k_proj.bias",
    ];
    let interleaved = fields.family == Family::Llama;
    Ok(match turned.iter().any(|end| name.ends_with(end)) {
        true if interleaved => half_split(&tensor, fields.head_width),
        _ => tensor,
    })
}

/// Reads the architecture alone, and checks that every tensor of it is in the file, and no other.
///
/// # Errors
/// [`LoadError`] names what is missing, or not honoured.
pub fn gguf_fields(gguf: &Gguf) -> Result<ModelFields, LoadError> {
    let path = gguf.path();
    let unsupported = |detail| LoadError::Unsupported {
        path: path.into(),
        detail,
    };
    let fields = Metadata::of(gguf)
        .and_then(|metadata| metadata.fields())
        .map_err(unsupported)?;
    let mut left: Vec<&str> = gguf.tensors().keys().map(String::as_str).collect();
    for (name, _) in fields.tensor_shapes() {
        let own = gguf_name(&name);
        let at = left
            .iter()
            .position(|tensor| Some(*tensor) == own.as_deref());
        let at = at.ok_or_else(|| LoadError::Missing {
            path: path.into(),
            name,
        })?;
        left.swap_remove(at);
    }
    left.retain(|name| !OF_ROTATION.contains(name));
    match left.iter().min() {
        None => Ok(fields),
        Some(name) => Err(unsupported(format!("tensor `{name}`"))),
    }
}

/// The metadata of an architecture.
struct Metadata<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
    family: Family,
}

impl<'a> Metadata<'a> {
    fn of(gguf: &'a Gguf) -> Result<Self, String> {
        if let Some(kind) = gguf.string("general.type").filter(|kind| *kind != "model") {
            return Err(format!(
                "a file of the kind `{kind}` (`general.type`) and not `model`"
            ));
        }
        if gguf.tensors().is_empty() {
            return Err("a file of a vocabulary without weights".to_owned());
        }
        let architecture = gguf.string("general.architecture");
        let (architecture, family) = match architecture {
            Some(own @ "llama") => (own, Family::Llama),
            Some(own @ "qwen2") => (own, Family::Qwen2),
            Some(own @ "qwen3") => (own, Family::Qwen3),
            Some(other) => {
                return Err(format!("architecture `{other}` (llama, qwen2, qwen3 are)"));
            }
            None => return Err("a file without `general.architecture`".to_owned()),
        };
        Ok(Self {
            gguf,
            architecture,
            family,
        })
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn number(&self, key: &str) -> Result<Option<usize>, String> {
        let key = self.key(key);
        let Some(found) = self.gguf.metadata().get(&key) else {
            return Ok(None);
        };
        let number = match found {
            GgufValue::Integer(number) => usize::try_from(*number).ok(),
            _ => None,
        };
        number.map(Some).ok_or_else(|| strange(&key, found))
    }

    fn needed(&self, key: &str) -> Result<usize, String> {
        let number = self.number(key)?;
        number.ok_or_else(|| format!("metadata without `{}`", self.key(key)))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, String> {
        let key = self.key(key);
        match self.gguf.metadata().get(&key) {
            None => Ok(None),
            Some(GgufValue::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(other) => Err(strange(&key, other)),
        }
    }

    fn fields(&self) -> Result<ModelFields, String> {
        if let Some(experts) = self.number("expert_count")?.filter(|count| *count > 0) {
            return Err(format!(
                "a mixture of {experts} experts (`{}`) in a GGUF file",
                self.key("expert_count")
            ));
        }
        let hidden = self.needed("embedding_length")?;
        let heads = self.needed("attention.head_count")?;
        let head_width = match self.number("attention.key_length")? {
            Some(width) => width,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        let values = self.number("attention.value_length")?;
        if values.is_some_and(|width| width != head_width) {
            return Err("values of another width than keys".into());
        }
        let rotated = self.number("rope.dimension_count")?;
        if rotated.is_some_and(|rotated| rotated != head_width) {
            return Err("rotation of a part of each head".into());
        }
        self.nothing_else()?;
        let there = |name: &str| self.gguf.tensors().contains_key(name);
        let out_bias = there("blk.0.attn_output.bias");
        let context = self.needed("context_length")?;
        ModelFields {
            family: self.family,
            vocabulary: match self.gguf.tensors().get("token_embd.weight") {
                Some(embedding) => embedding.shape[0],
                None => self.needed("vocab_size")?,
            },
            hidden,
            layers: self.needed("block_count")?,
            heads,
            kv_heads: self.number("attention.head_count_kv")?.unwrap_or(heads),
            head_width,
            feed_forward: self.needed("feed_forward_length")?,
            block: LayerBlock::default(),
            context,
            rope_theta: self.float("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: self.scaling(context, head_width)?,
            window: self.window()?,
            qkv_bias: there("blk.0.attn_q.bias"),
            out_bias,
            mlp_bias: there("blk.0.ffn_down.bias"),
            norm_epsilon: self
                .float("attention.layer_norm_rms_epsilon")?
                .unwrap_or(1e-5),
            value_head: false,
            vision: None,
            width: None,
            next_token: false,
            tied: !there("output.weight"),
            config: None,
        }
        .consistent()
    }

    /// Refuses metadata that would change what the model computes and that nothing here reads.
    fn nothing_else(&self) -> Result<(), String> {
        let prefix = self.key("");
        let own = self.gguf.metadata().iter();
        let own = own.filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, key, value)));
        for (key, whole, value) in own {
            let plain = match value {
                GgufValue::Integer(number) => *number == 0,
                GgufValue::Float(number) => *number == 0.0,
                GgufValue::Bool(flag) => !*flag,
                _ => false,
            };
            if !KEYS.contains(&key) && !plain {
                return Err(format!("metadata `{whole}`"));
            }
        }
        Ok(())
    }

    fn window(&self) -> Result<Option<AttentionWindow>, String> {
        let tokens = self.number("attention.sliding_window")?.unwrap_or(0);
        let tokens = u32::try_from(tokens).ok().and_then(NonZeroU32::new);
        Ok(tokens.map(|tokens| AttentionWindow {
            tokens,
            from_layer: 0,
        }))
    }

    /// Scaling of positions, by keys of both generations and by a tensor of divisors.
    fn scaling(&self, context: usize, head_width: usize) -> Result<RopeScaling, String> {
        let kind = self.key("rope.scaling.type");
        let kind = self.gguf.string(&kind);
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        let factor = factor.filter(|factor| *factor != 0.0 && *factor != 1.0);
        let original = self.number("rope.scaling.original_context_length")?;
        let original = original.unwrap_or(context);
        let divisors = |name: &str| {
            let tensor = self.gguf.tensor(name);
            tensor.map(|it| it.values.into_iter().map(f64::from).collect::<Vec<_>>())
        };
        let stretched = self.float("rope.scaling.attn_factor")?;
        let each = divisors("rope_freqs.weight");
        let of_lengths =
            divisors("rope_factors_short.weight").zip(divisors("rope_factors_long.weight"));
        match (kind, factor, each, of_lengths) {
            (None | Some("none"), None, None, None) => Ok(RopeScaling::None),
            (Some("none"), Some(_), None, None) => Ok(RopeScaling::None),
            // Without a type it is linear.
            (None | Some("linear"), Some(factor), None, None) => Ok(RopeScaling::Linear { factor }),
            (Some("linear"), None, None, None) => Ok(RopeScaling::None),
            (Some("yarn"), Some(factor), None, None) => {
                let or =
                    |key: &str, otherwise| Ok::<_, String>(self.float(key)?.unwrap_or(otherwise));
                Ok(RopeScaling::Yarn(Yarn {
                    factor,
                    original,
                    fast: or("rope.scaling.yarn_beta_fast", 32.0)?,
                    slow: or("rope.scaling.yarn_beta_slow", 1.0)?,
                    truncate: true,
                    magnitude: stretched.unwrap_or(1.0) * (1.0 + 0.1 * factor.ln()),
                }))
            }
            (None | Some("none"), None, Some(each), None) => {
                if each.len() != head_width / 2 {
                    return Err(format!(
                        "tensor `rope_freqs.weight` of {} numbers for heads of width {head_width}",
                        each.len()
                    ));
                }
                Ok(RopeScaling::Longrope {
                    short: each.clone(),
                    long: each,
                    original: context,
                    magnitude: 1.0,
                })
            }
            (None | Some("none" | "longrope"), _, None, Some((short, long))) => {
                Ok(RopeScaling::Longrope {
                    short,
                    long,
                    original,
                    magnitude: stretched.unwrap_or(1.0),
                })
            }
            (kind, factor, each, _) => Err(format!(
                "scaling {:?} of the rotary embedding{}{}",
                kind.unwrap_or("none"),
                factor.map_or_else(String::new, |factor| format!(" by {factor}")),
                each.map_or("", |_| " together with `rope_freqs.weight`"),
            )),
        }
    }
}

fn strange(key: &str, found: &GgufValue) -> String {
    format!("`{key}` of {found:?}")
}

/// Metadata that is read, or says nothing of what is computed.
const KEYS: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",
    "vocab_size",
];

/// Tensors that say how positions are stretched.
const OF_ROTATION: &[&str] = &[
    "rope_freqs.weight",
    "rope_factors_short.weight",
    "rope_factors_long.weight",
];

/// The GGUF name of a parameter.
fn gguf_name(name: &str) -> Option<String> {
    Some(match name {
        "model.embed_tokens.weight" => "token_embd.weight".into(),
        "model.norm.weight" => "output_norm.weight".into(),
        "lm_head.weight" => "output.weight".into(),
        _ => {
            let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            let (part, kind) = rest.rsplit_once('.')?;
            let part = match part {
                "input_layernorm" => "attn_norm",
                "self_attn.q_proj" => "attn_q",
                "self_attn.k_proj" => "attn_k",
                "self_attn.v_proj" => "attn_v",
                "self_attn.o_proj" => "attn_output",
                "self_attn.q_norm" => "attn_q_norm",
                "self_attn.k_norm" => "attn_k_norm",
                "post_attention_layernorm" => "ffn_norm",
                "mlp.gate_proj" => "ffn_gate",
                "mlp.up_proj" => "ffn_up",
                "mlp.down_proj" => "ffn_down",
                _ => return None,
            };
            format!("blk.{layer}.{part}.{kind}")
        }
    })
}

/// Puts the rows of every head from pairs (0, 1), (2, 3), ... back into two halves: row `2 i + s`
/// becomes row `s head_width / 2 + i`. A bias has rows of one number.
fn half_split(tensor: &LoadedTensor, head_width: usize) -> LoadedTensor {
    let columns = tensor.shape.get(1).copied().unwrap_or(1);
    let half = head_width / 2;
    let mut values = vec![0.0; tensor.values.len()];
    for (row, from) in tensor.values.chunks_exact(columns).enumerate() {
        let (head, within) = (row / head_width, row % head_width);
        let to = head * head_width + (within % 2) * half + within / 2;
        values[to * columns..][..columns].copy_from_slice(from);
    }
    LoadedTensor {
        shape: tensor.shape.clone(),
        values,
    }
}
