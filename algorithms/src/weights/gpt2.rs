//! GPT-2 as Hugging Face stores it: its `config.json`, and the tensors of its files.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fields::{Family, ModelFields, Said, positive};
use super::names::FileTensor;
use crate::model::{Gelu, LayerBlock, RopeScaling};

/// Reads `config.json` of the model type `gpt2`. Sizes may stand under the names of other models,
/// which `transformers` takes as well.
pub(super) fn read(config: &Value) -> Result<ModelFields, String> {
    let said = Said(config);
    for (key, expected) in EXPECTED {
        if said.flag_if(key)?.is_some_and(|found| found != *expected) {
            return Err(format!("`{key}` of {}", config[key]));
        }
    }
    match said.get("activation_function") {
        None => {}
        Some(found) if found == "gelu_new" || found == "gelu_pytorch_tanh" => {}
        Some(other) => return Err(format!("activation {other} (gelu_new is)")),
    }
    let either = |own: &str, other: &str, default| -> Result<usize, String> {
        let found = match said.number(own)? {
            Some(found) => Some(found),
            None => said.number(other)?,
        };
        Ok(found.unwrap_or(default))
    };
    let hidden = either("n_embd", "hidden_size", 768)?;
    let heads = either("n_head", "num_attention_heads", 12)?;
    if !hidden.is_multiple_of(heads) {
        return Err(format!("{heads} heads over a width of {hidden}"));
    }
    let epsilon = positive("layer_norm_epsilon", said.get("layer_norm_epsilon"))?;
    Ok(ModelFields {
        family: Family::Gpt2,
        vocabulary: said.number("vocab_size")?.unwrap_or(50_257),
        hidden,
        layers: either("n_layer", "num_hidden_layers", 12)?,
        heads,
        kv_heads: heads,
        head_width: hidden / heads,
        feed_forward: said.number("n_inner")?.unwrap_or(4 * hidden),
        block: LayerBlock::Gelu(Gelu::default()),
        context: either("n_positions", "max_position_embeddings", 1_024)?,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        window: None,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        norm_epsilon: epsilon.unwrap_or(1e-5),
        tied: said.flag_if("tie_word_embeddings")?.unwrap_or(true),
        value_head: said.flag("value_head")?,
        vision: None,
        width: None,
        next_token: false,
        config: Some(config.to_string()),
    })
}

/// Settings that change what is computed, each with the value that is computed.
const EXPECTED: &[(&str, bool)] = &[
    ("scale_attn_weights", true),
    ("scale_attn_by_inverse_layer_idx", false),
    ("add_cross_attention", false),
];

/// Writes what [`read`] reads.
pub(super) fn write(fields: &ModelFields) -> Value {
    json!({
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": fields.vocabulary,
        "n_embd": fields.hidden,
        "n_layer": fields.layers,
        "n_head": fields.heads,
        "n_inner": fields.feed_forward,
        "n_positions": fields.context,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": fields.norm_epsilon,
        "tie_word_embeddings": fields.tied,
    })
}

/// The tensor of a file that one of the network's is, or is a part of: its name, and true where it
/// lies `[inputs, outputs]`.
fn stored(name: &str) -> (String, bool) {
    let fixed = [
        ("model.embed_tokens.weight", "transformer.wte.weight"),
        ("model.embed_positions.weight", "transformer.wpe.weight"),
        ("model.norm.weight", "transformer.ln_f.weight"),
        ("model.norm.bias", "transformer.ln_f.bias"),
    ];
    if let Some((_, own)) = fixed.iter().find(|(it, _)| *it == name) {
        return ((*own).to_owned(), false);
    }
    let of_layer = || {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (module, kind) = rest.rsplit_once('.')?;
        let (own, matrix) = match module {
            "input_layernorm" => ("ln_1", false),
            "self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj" => ("attn.c_attn", true),
            "self_attn.o_proj" => ("attn.c_proj", true),
            "post_attention_layernorm" => ("ln_2", false),
            "mlp.up_proj" => ("mlp.c_fc", true),
            "mlp.down_proj" => ("mlp.c_proj", true),
            _ => return None,
        };
        let transposed = matrix && kind == "weight";
        Some((format!("transformer.h.{layer}.{own}.{kind}"), transposed))
    };
    of_layer().unwrap_or_else(|| (name.to_owned(), false))
}

/// The tensors of a file with these of the network, by name.
pub(super) fn file_tensors(
    tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
) -> Vec<FileTensor> {
    let mut all: BTreeMap<String, FileTensor> = BTreeMap::new();
    for (part, shape) in tensors {
        let (name, transposed) = stored(&part);
        let file = all.entry(name.clone()).or_insert_with(|| FileTensor {
            name,
            parts: vec![],
            transposed,
        });
        file.parts.push((part, shape));
    }
    let mut all: Vec<FileTensor> = all.into_values().collect();
    let order = ["q_proj", "k_proj", "v_proj"];
    let place = |(part, _): &(String, Vec<usize>)| order.iter().position(|it| part.contains(it));
    for file in &mut all {
        file.parts.sort_by_key(place);
    }
    all
}
