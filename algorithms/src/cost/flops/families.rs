//! Families of models, each with the matrices that its tokens meet.

use serde_json::Value;

use super::fields::Fields;
use super::{AttentionFlops, FlopsError, ModelFlops, Pairs, VisionFlops};

/// The families that are counted, by their `model_type`.
pub(super) const KNOWN: [&str; 11] = [
    "llama",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_5",
    "qwen3_5_text",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v4",
    "gpt2",
];

/// Counts the model of a `config.json`.
pub(super) fn read(json: &str) -> Result<ModelFlops, FlopsError> {
    let value: Value =
        serde_json::from_str(json).map_err(|it| FlopsError::NotJson(it.to_string()))?;
    if !value.is_object() {
        return Err(FlopsError::NotJson("it is no object".to_owned()));
    }
    let family = value.get("model_type").and_then(Value::as_str);
    let family = family.unwrap_or_default();
    let fields = Fields::new(family, &value);
    match family {
        "llama" | "qwen2" | "qwen3" | "gemma3_text" => decoder(&fields, gated(&fields)?),
        "mixtral" | "gpt_oss" => {
            let routed = experts(
                &fields,
                "num_local_experts",
                fields.number("intermediate_size")?,
            )?;
            decoder(&fields, routed)
        }
        "qwen3_moe" => {
            let routed = experts(
                &fields,
                "num_experts",
                fields.number("moe_intermediate_size")?,
            )?;
            decoder(&fields, routed)
        }
        "gpt2" => gpt2(&fields),
        "qwen3_5" | "qwen3_5_text" => qwen3_5(&fields),
        "deepseek_v4" => deepseek_v4(&fields),
        other => Err(FlopsError::Family(other.to_owned())),
    }
}

/// Weights of a gated feed-forward part: into it twice, and out of it.
fn gated(fields: &Fields<'_>) -> Result<f64, FlopsError> {
    Ok(3.0 * fields.number("hidden_size")? * fields.number("intermediate_size")?)
}

/// Weights that a token meets of a router and gated experts of so much width.
fn experts(fields: &Fields<'_>, count: &'static str, width: f64) -> Result<f64, FlopsError> {
    let hidden = fields.number("hidden_size")?;
    let passed = fields.number("num_experts_per_tok")?;
    Ok(hidden * fields.number(count)? + 3.0 * hidden * width * passed)
}

/// Attention with grouped queries and a feed-forward part of so many weights, in each layer.
fn decoder(fields: &Fields<'_>, feed_forward: f64) -> Result<ModelFlops, FlopsError> {
    let hidden = fields.number("hidden_size")?;
    let layers = fields.number("num_hidden_layers")?;
    let heads = fields.number("num_attention_heads")?;
    let kv_heads = fields.number_or("num_key_value_heads", heads)?;
    let head = fields.number_or("head_dim", (hidden / heads).floor())?;
    let queries = heads * head;
    let attention = hidden * (2.0 * queries + 2.0 * kv_heads * head);
    Ok(ModelFlops {
        weights: layers * (attention + feed_forward),
        head: hidden * fields.number("vocab_size")?,
        mixing: 0.0,
        attention: windows(fields, layers, queries)?,
        states: 0.0,
        vision: None,
    })
}

/// Layers with full attention and with a window. One that is not named has full attention.
fn windows(
    fields: &Fields<'_>,
    layers: f64,
    queries: f64,
) -> Result<Vec<AttentionFlops>, FlopsError> {
    let names = fields.layer_types(layers as usize)?.unwrap_or_default();
    let mut sliding = 0.0;
    for kind in &names {
        match *kind {
            "full_attention" => {}
            "sliding_attention" => sliding += 1.0,
            other => return Err(unknown_kind(fields, other)),
        }
    }
    let mut attention = vec![attends(Pairs::All, queries * (layers - sliding))];
    if sliding > 0.0 {
        let window = fields.whole("sliding_window")?;
        let window = window.ok_or_else(|| fields.wrong("sliding_window", "a number of tokens"))?;
        attention.push(attends(Pairs::Window(window), queries * sliding));
    }
    Ok(attention)
}

fn gpt2(fields: &Fields<'_>) -> Result<ModelFlops, FlopsError> {
    let hidden = fields.number("n_embd")?;
    let layers = fields.number("n_layer")?;
    let inner = fields.number_or("n_inner", 4.0 * hidden)?;
    Ok(ModelFlops {
        weights: layers * (4.0 * hidden * hidden + 2.0 * hidden * inner),
        head: hidden * fields.number("vocab_size")?,
        mixing: 0.0,
        attention: vec![attends(Pairs::All, hidden * layers)],
        states: 0.0,
        vision: None,
    })
}

/// Layers with full attention, whose output has a gate, and layers with the gated delta rule behind a short
/// convolution.
fn qwen3_5(whole: &Fields<'_>) -> Result<ModelFlops, FlopsError> {
    let fields = &whole.part("text_config").unwrap_or(*whole);
    let mut model = decoder_without_kinds(fields)?;
    let hidden = fields.number("hidden_size")?;
    let layers = fields.number("num_hidden_layers")?;
    let queries = fields.number("num_attention_heads")? * fields.number("head_dim")?;
    let linear = linear_layers(fields, layers as usize)?;
    let full = layers - linear;
    let feed_forward = gated(fields)?;
    let attention = model.weights / layers - feed_forward;
    let gate = if fields.is_true("attn_output_gate") {
        hidden * queries
    } else {
        0.0
    };
    let key_width = fields.number("linear_key_head_dim")?;
    let value_width = fields.number("linear_value_head_dim")?;
    let value_heads = fields.number("linear_num_value_heads")?;
    let keys = fields.number("linear_num_key_heads")? * key_width;
    let values = value_heads * value_width;
    // Queries, keys, values, gate and output, and two numbers a head; the convolution is over the first three.
    let delta = hidden * (2.0 * keys + 3.0 * values + 2.0 * value_heads)
        + fields.number("linear_conv_kernel_dim")? * (2.0 * keys + values);
    model.weights = layers * feed_forward + full * (attention + gate) + linear * delta;
    model.attention = vec![attends(Pairs::All, queries * full)];
    model.states = linear * key_width * value_width * value_heads;
    model.vision = whole
        .part("vision_config")
        .map(|it| vision(&it))
        .transpose()?;
    Ok(model)
}

/// The same as a decoder's, whatever its layers are.
fn decoder_without_kinds(fields: &Fields<'_>) -> Result<ModelFlops, FlopsError> {
    let hidden = fields.number("hidden_size")?;
    let layers = fields.number("num_hidden_layers")?;
    let head = fields.number("head_dim")?;
    let queries = fields.number("num_attention_heads")? * head;
    let keys = fields.number("num_key_value_heads")? * head;
    Ok(ModelFlops {
        weights: layers * (hidden * (2.0 * queries + 2.0 * keys) + gated(fields)?),
        head: hidden * fields.number("vocab_size")?,
        mixing: 0.0,
        attention: vec![],
        states: 0.0,
        vision: None,
    })
}

/// Layers with linear attention: those that are named so, else all but each fourth, or as the interval says.
fn linear_layers(fields: &Fields<'_>, layers: usize) -> Result<f64, FlopsError> {
    let Some(names) = fields.layer_types(layers)? else {
        let interval = fields.whole("full_attention_interval")?.unwrap_or(4);
        return Ok(layers as f64 - (layers as u64 / interval) as f64);
    };
    let mut linear = 0.0;
    for kind in names {
        match kind {
            "full_attention" => {}
            "linear_attention" => linear += 1.0,
            other => return Err(unknown_kind(fields, other)),
        }
    }
    Ok(linear)
}

/// A vision transformer with a plain feed-forward part, and mergers of neighbouring patches: one behind the last
/// layer, and one behind each of the layers that the language model sees besides.
fn vision(fields: &Fields<'_>) -> Result<VisionFlops, FlopsError> {
    let hidden = fields.number("hidden_size")?;
    let depth = fields.number("depth")?;
    let merge = fields.number("spatial_merge_size")?;
    let patch = fields.number("patch_size")?;
    let merged = hidden * merge * merge;
    let embedding = hidden
        * fields.number("in_channels")?
        * fields.number("temporal_patch_size")?
        * patch
        * patch;
    let layer = 4.0 * hidden * hidden + 2.0 * hidden * fields.number("intermediate_size")?;
    let merger = merged * (merged + fields.number("out_hidden_size")?);
    let mergers = 1.0 + fields.length("deepstack_visual_indexes");
    Ok(VisionFlops {
        weights: embedding + depth * layer + mergers * merger,
        elements: depth * hidden,
    })
}

/// One head of keys, which are the values too, behind a window; blocks of older tokens compressed to one, all of
/// them or those that an indexer chooses; an output in groups of low rank; experts; and residual streams that are
/// mixed.
fn deepseek_v4(fields: &Fields<'_>) -> Result<ModelFlops, FlopsError> {
    let hidden = fields.number("hidden_size")?;
    let layers = fields.number("num_hidden_layers")?;
    let head = fields.number("head_dim")?;
    let queries = fields.number("num_attention_heads")? * head;
    let query_rank = fields.number("q_lora_rank")?;
    let output_rank = fields.number("o_lora_rank")?;
    let attention = query_rank * (hidden + queries)
        + hidden * head
        + output_rank * (queries + fields.number("o_groups")? * hidden);
    let width = fields.number("moe_intermediate_size")?;
    let shared = 3.0 * hidden * width * fields.number_or("n_shared_experts", 1.0)?;
    let feed_forward = experts(fields, "n_routed_experts", width)? + shared;
    let streams = fields.number("hc_mult")?;
    // Before attention and before the feed-forward part, all streams say how each is read, written and mixed.
    let mappings = 2.0 * streams * hidden * streams * (streams + 2.0);
    let kinds = compressed_kinds(fields, layers as usize)?;
    let count = |kind| kinds.iter().filter(|it| **it == kind).count() as f64;
    let (heavy, sparse) = (count(HEAVILY), count(SPARSELY));
    let index_width = fields.number("index_head_dim")?;
    let index_queries = index_width * fields.number("index_n_heads")?;
    let indexer = 4.0 * hidden * index_width
        + query_rank * index_queries
        + hidden * fields.number("index_n_heads")?;
    let rates = fields.part("compress_rates");
    let rate = |kind, usual| match rates {
        Some(rates) => Ok(rates.whole(kind)?.unwrap_or(usual)),
        None => Ok(usual),
    };
    let blocks = |block, most| Pairs::Blocks { block, most };
    let window = fields.number("sliding_window")? as u64;
    let chosen = fields.number("index_topk")? as u64;
    let sparse_rate = rate(SPARSELY, 4)?;
    Ok(ModelFlops {
        weights: layers * (attention + feed_forward + mappings)
            + heavy * 2.0 * hidden * head
            + sparse * (4.0 * hidden * head + indexer)
            + streams * streams * hidden,
        head: hidden * fields.number("vocab_size")?,
        mixing: 2.0 * layers * streams * streams * hidden,
        attention: vec![
            attends(Pairs::Window(window), queries * layers),
            attends(blocks(rate(HEAVILY, 128)?, u64::MAX), queries * heavy),
            attends(blocks(sparse_rate, chosen), queries * sparse),
            AttentionFlops {
                pairs: blocks(sparse_rate, u64::MAX),
                elements: index_queries * sparse,
                scores_alone: true,
            },
        ],
        states: 0.0,
        vision: None,
    })
}

/// The kinds of DeepSeek V4's layers: where they are not named, two that compress heavily, then by turns.
fn compressed_kinds<'a>(fields: &Fields<'a>, layers: usize) -> Result<Vec<&'a str>, FlopsError> {
    let Some(names) = fields.layer_types(layers)? else {
        let kind = |layer: usize| match layer >= 2 && !layer.is_multiple_of(2) {
            true => SPARSELY,
            false => HEAVILY,
        };
        return Ok((0..layers).map(kind).collect());
    };
    match names
        .iter()
        .find(|it| ![HEAVILY, SPARSELY, "sliding_attention"].contains(*it))
    {
        Some(other) => Err(unknown_kind(fields, other)),
        None => Ok(names),
    }
}

const HEAVILY: &str = "heavily_compressed_attention";
const SPARSELY: &str = "compressed_sparse_attention";

const fn attends(pairs: Pairs, elements: f64) -> AttentionFlops {
    AttentionFlops {
        pairs,
        elements,
        scores_alone: false,
    }
}

fn unknown_kind(fields: &Fields<'_>, kind: &str) -> FlopsError {
    FlopsError::Kind {
        family: fields.family.to_owned(),
        kind: kind.to_owned(),
    }
}
