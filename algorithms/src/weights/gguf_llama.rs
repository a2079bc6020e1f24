//! GGUF files of the `llama` architecture under Hugging Face's names.

use std::collections::BTreeMap;

use super::{
    error::LoadError,
    fields::{Family, ModelFields},
    gguf::Gguf,
    loaded::{LoadedModel, LoadedTensor},
};
use crate::model::LayerBlock;

/// Loads a GGUF file of the `llama` architecture and decodes all its tensors to `f32`.
///
/// Converters to GGUF interleave the two halves of every query and key head, because llama.cpp
/// rotates neighbouring pairs; this puts the rows back in Hugging Face's order.
///
/// # Errors
/// [`LoadError`] when the architecture is another, or the file is incomplete.
pub fn load_gguf(gguf: &Gguf) -> Result<LoadedModel, LoadError> {
    let path = gguf.path();
    let fields = gguf_fields(gguf)?;
    let mut tensors = BTreeMap::new();
    for (name, shape) in fields.tensor_shapes() {
        let missing = || LoadError::Missing {
            path: path.into(),
            name: name.clone(),
        };
        let mut tensor = gguf_name(&name)
            .and_then(|name| gguf.tensor(&name))
            .ok_or_else(missing)?;
        // Before the rows are put in order, because that relies on the shape.
        if tensor.shape != shape {
            let (path, found) = (path.into(), tensor.shape);
            return Err(LoadError::Shape {
                path,
                name,
                found,
                expected: shape,
            });
        }
        if name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") {
            tensor = half_split(&tensor, fields.head_width);
        }
        tensors.insert(name, tensor);
    }
    Ok(LoadedModel { fields, tensors })
}

/// Reads the architecture alone.
///
/// # Errors
/// [`LoadError::Unsupported`] when it is not a `llama` that this crate knows.
pub fn gguf_fields(gguf: &Gguf) -> Result<ModelFields, LoadError> {
    fields(gguf).map_err(|detail| LoadError::Unsupported {
        path: gguf.path().into(),
        detail,
    })
}

fn fields(gguf: &Gguf) -> Result<ModelFields, String> {
    match gguf.string("general.architecture") {
        Some("llama") => {}
        other => return Err(format!("architecture {other:?}")),
    }
    let number = |key: &str| {
        gguf.integer(key)
            .and_then(|number| usize::try_from(number).ok())
    };
    let needed = |key: &str| number(key).ok_or_else(|| format!("metadata without `{key}`"));
    if let Some(kind) = gguf
        .string("llama.rope.scaling.type")
        .filter(|&kind| kind != "none")
    {
        return Err(format!("scaling {kind:?} of the rotary embedding"));
    }
    if let Some(experts) = number("llama.expert_count").filter(|&experts| experts > 0) {
        return Err(format!("a mixture of {experts} experts in a GGUF file"));
    }
    let hidden = needed("llama.embedding_length")?;
    let heads = needed("llama.attention.head_count")?;
    let head_width = match number("llama.attention.key_length") {
        Some(width) => width,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    if number("llama.rope.dimension_count").is_some_and(|rotated| rotated != head_width) {
        return Err("rotation of a part of each head".into());
    }
    ModelFields {
        family: Family::Llama,
        vocabulary: match gguf.tensors().get("token_embd.weight") {
            Some(embedding) => embedding.shape[0],
            None => needed("llama.vocab_size")?,
        },
        hidden,
        layers: needed("llama.block_count")?,
        heads,
        kv_heads: number("llama.attention.head_count_kv").unwrap_or(heads),
        head_width,
        feed_forward: needed("llama.feed_forward_length")?,
        block: LayerBlock::default(),
        context: needed("llama.context_length")?,
        rope_theta: gguf.float("llama.rope.freq_base").unwrap_or(10_000.0),
        norm_epsilon: gguf
            .float("llama.attention.layer_norm_rms_epsilon")
            .unwrap_or(1e-5),
        value_head: false,
        vision: None,
        tied: !gguf.tensors().contains_key("output.weight"),
    }
    .consistent()
}

/// The GGUF name of a parameter.
fn gguf_name(name: &str) -> Option<String> {
    Some(match name {
        "model.embed_tokens.weight" => "token_embd.weight".into(),
        "model.norm.weight" => "output_norm.weight".into(),
        "lm_head.weight" => "output.weight".into(),
        _ => {
            let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            let part = match rest.strip_suffix(".weight")? {
                "input_layernorm" => "attn_norm",
                "self_attn.q_proj" => "attn_q",
                "self_attn.k_proj" => "attn_k",
                "self_attn.v_proj" => "attn_v",
                "self_attn.o_proj" => "attn_output",
                "post_attention_layernorm" => "ffn_norm",
                "mlp.gate_proj" => "ffn_gate",
                "mlp.up_proj" => "ffn_up",
                "mlp.down_proj" => "ffn_down",
                _ => return None,
            };
            format!("blk.{layer}.{part}.weight")
        }
    })
}

/// Puts the rows of every head from pairs (0, 1), (2, 3), ... back into two halves: row `2 i + s`
/// becomes row `s head_width / 2 + i`.
fn half_split(tensor: &LoadedTensor, head_width: usize) -> LoadedTensor {
    let columns = tensor.shape[1];
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
