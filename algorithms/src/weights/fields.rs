//! The fields of a decoder-only architecture, and Hugging Face's `config.json`.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::gpt2;
use crate::model::block::Widths;
use crate::model::{
    AttentionWindow, Gelu, LayerBlock, RopeScaling, VirtualWidth, VisionConfig, next_token_tensors,
};
use crate::setting::Chosen;
use crate::tokenizer::Tokenizer;

/// A family of decoder-only models, by which `config.json` tells what its layers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Family {
    /// Llama and SmolLM2, and Mixtral.
    Llama,
    /// Mistral: all layers may have a window.
    Mistral,
    /// Qwen 2 and 2.5: queries, keys and values have a bias.
    Qwen2,
    /// Qwen 3: queries and keys are normalised per head.
    Qwen3,
    /// GPT-2: layer norms, learned positions, GELU, biases everywhere.
    Gpt2,
}

/// The description of a decoder-only architecture, as files have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFields {
    /// The family.
    pub family: Family,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_width: usize,
    /// Inner width of the feed-forward blocks.
    pub feed_forward: usize,
    /// The feed-forward blocks.
    #[serde(default)]
    pub block: LayerBlock,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Base of the rotary embedding's frequencies.
    pub rope_theta: f64,
    /// The way in which positions are stretched.
    #[serde(default)]
    pub rope_scaling: RopeScaling,
    /// The layers that see the last tokens alone, where there are some.
    #[serde(default)]
    pub window: Option<AttentionWindow>,
    /// True when queries, keys and values have a bias.
    #[serde(default)]
    pub qkv_bias: bool,
    /// True when the product behind attention has a bias.
    #[serde(default)]
    pub out_bias: bool,
    /// True when the products of the feed-forward part have a bias.
    pub mlp_bias: bool,
    /// The number that is added to the mean square in RMS norms.
    pub norm_epsilon: f64,
    /// True when the output projection is the embedding.
    pub tied: bool,
    /// True when there is a value head beside the output projection, as critics have: the tensors
    /// `value_head.weight` and `value_head.bias`, which other libraries ignore.
    pub value_head: bool,
    /// The encoder that reads pictures, where the model has one: `vision_config`.
    #[serde(default)]
    pub vision: Option<VisionConfig>,
    /// The residual stream, where it is wider than layers or made of segments: `virtual_width`.
    #[serde(default)]
    pub width: Option<VirtualWidth>,
    /// True when there is a head that predicts one token further: one of `num_nextn_predict_layers`.
    #[serde(default)]
    pub next_token: bool,
    /// The `config.json` that it was read from. What that says beside the architecture is written again.
    #[serde(default)]
    pub config: Option<String>,
}

impl ModelFields {
    /// True when queries and keys are normed per head.
    #[must_use]
    pub fn head_norms(&self) -> bool {
        self.family == Family::Qwen3
    }

    /// Rows of the table of positions, where they are learned.
    #[must_use]
    pub fn learned_positions(&self) -> Option<usize> {
        (self.family == Family::Gpt2).then_some(self.context)
    }

    /// Hugging Face's `model_type` where it names tensors in its own way, else an empty text.
    #[must_use]
    pub fn naming(&self) -> &'static str {
        match self.family {
            Family::Gpt2 => "gpt2",
            _ => "",
        }
    }

    /// Tokens behind which it has no positions, where they end: they are learned, or stretched in a way
    /// that has a last one.
    #[must_use]
    pub fn positions(&self) -> Option<usize> {
        let learned = self.learned_positions();
        learned.or_else(|| self.rope_scaling.longest())
    }

    /// The longest sequence that it was made for, in tokens.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.context.min(self.positions().unwrap_or(usize::MAX))
    }

    /// Names and shapes of all parameters, by Hugging Face's names.
    #[must_use]
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = self.hidden;
        let widths = Widths::new(hidden, self.feed_forward);
        let queries = self.heads * self.head_width;
        let keys = self.kv_heads * self.head_width;
        let layer_norms = self.family == Family::Gpt2;
        let rows = self.width.map_or(hidden, |it| it.row(hidden));
        let mut layer: Vec<(String, Vec<usize>)> = [
            ("input_layernorm.weight", vec![hidden]),
            ("self_attn.q_proj.weight", vec![queries, hidden]),
            ("self_attn.k_proj.weight", vec![keys, hidden]),
            ("self_attn.v_proj.weight", vec![keys, hidden]),
            ("self_attn.o_proj.weight", vec![hidden, queries]),
            ("post_attention_layernorm.weight", vec![hidden]),
        ]
        .map(|(name, shape)| (name.to_owned(), shape))
        .into();
        layer.extend(self.width.iter().flat_map(|it| it.layer_tensors(hidden)));
        let block = self.block.tensors(widths).into_iter();
        layer.extend(block.map(|(name, shape, _)| (name, shape)));
        if self.head_norms() {
            for name in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
                layer.push((name.to_owned(), vec![self.head_width]));
            }
        }
        if layer_norms {
            for name in ["input_layernorm.bias", "post_attention_layernorm.bias"] {
                layer.push((name.to_owned(), vec![hidden]));
            }
        }
        let mut shapes = vec![(
            "model.embed_tokens.weight".into(),
            vec![self.vocabulary, if self.tied { hidden } else { rows }],
        )];
        shapes.extend(self.beside_layers());
        let positions = self.learned_positions().into_iter();
        shapes.extend(
            positions.map(|rows| ("model.embed_positions.weight".into(), vec![rows, hidden])),
        );
        for index in 0..self.layers + usize::from(self.next_token) {
            for (name, shape) in &layer {
                shapes.push((format!("model.layers.{index}.{name}"), shape.clone()));
            }
            let biases = [("q", queries), ("k", keys), ("v", keys)];
            let biases = biases.into_iter().filter(|_| self.qkv_bias);
            let behind = self.out_bias.then_some(("o", hidden));
            for (name, width) in biases.chain(behind) {
                let name = format!("model.layers.{index}.self_attn.{name}_proj.bias");
                shapes.push((name, vec![width]));
            }
            let matrices = self.block.tensors(widths).into_iter();
            for (name, shape, _) in matrices.filter(|_| self.mlp_bias) {
                let module = name.trim_end_matches(".weight");
                let name = format!("model.layers.{index}.{module}.bias");
                shapes.push((name, vec![shape[0]]));
            }
        }
        shapes.push(("model.norm.weight".into(), vec![hidden]));
        if layer_norms {
            shapes.push(("model.norm.bias".into(), vec![hidden]));
        }
        if !self.tied {
            shapes.push(("lm_head.weight".into(), vec![self.vocabulary, hidden]));
        }
        if self.value_head {
            shapes.push(("value_head.weight".into(), vec![1, hidden]));
            shapes.push(("value_head.bias".into(), vec![1]));
        }
        if let Some(vision) = &self.vision {
            shapes.extend(vision.tensor_shapes(hidden));
        }
        shapes
    }

    /// What makes rows wider and narrower, and what a head for one token further has beside its layer.
    fn beside_layers(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, width) = (self.hidden, self.width.iter());
        let expanded = width.clone().flat_map(|it| it.expansion(hidden, self.tied));
        let ends = expanded.chain(width.flat_map(|it| it.reduction(hidden)));
        let ends = ends.map(|(name, shape)| (name.to_owned(), shape));
        let further = self.next_token.then(|| next_token_tensors(hidden));
        let further = further.into_iter().flatten();
        let further =
            further.map(|(name, shape)| (format!("model.layers.{}.{name}", self.layers), shape));
        ends.chain(further).collect()
    }

    /// Reads Hugging Face's `config.json`, with the rotary base as `rope_theta` or, from
    /// transformers 5 on, inside `rope_parameters`.
    pub(super) fn from_config(config: &Value) -> Result<Self, String> {
        let said = Said(config);
        let (family, block) = kind(said)?;
        let width = width(said)?;
        if family == Family::Gpt2 {
            return gpt2::read(config)?.consistent();
        }
        let of_mixture = block != LayerBlock::default();
        let (qkv_bias, out_bias) = biases(said, family, of_mixture)?;
        match said.get("hidden_act") {
            None => {}
            Some(found) if found == "silu" => {}
            Some(other) => return Err(format!("activation {other}")),
        }
        let rope = config.get("rope_parameters").filter(|rope| !rope.is_null());
        let theta = rope
            .and_then(|rope| rope.get("rope_theta"))
            .or_else(|| config.get("rope_theta"));
        let defaults = Defaults::of(family, of_mixture);
        let layers = said.needed("num_hidden_layers")?;
        let context = said.number("max_position_embeddings")?;
        let context = context.unwrap_or(defaults.context);
        let hidden = said.needed("hidden_size")?;
        let heads = said.needed("num_attention_heads")?;
        Self {
            family,
            vocabulary: said.needed("vocab_size")?,
            hidden,
            layers,
            heads,
            kv_heads: match config.get("num_key_value_heads") {
                None => defaults.kv_heads.unwrap_or(heads),
                Some(_) => said.number("num_key_value_heads")?.unwrap_or(heads),
            },
            head_width: match said.number("head_dim")? {
                Some(width) => width,
                None => defaults.head_width.unwrap_or(hidden / heads),
            },
            feed_forward: said.needed("intermediate_size")?,
            block,
            context,
            rope_theta: positive("rope_theta", theta)?.unwrap_or(10_000.0),
            rope_scaling: RopeScaling::read(config, context)?,
            window: window(said, family, of_mixture, layers)?,
            qkv_bias,
            out_bias,
            mlp_bias: said.flag("mlp_bias")?,
            norm_epsilon: positive("rms_norm_eps", config.get("rms_norm_eps"))?.unwrap_or(1e-6),
            tied: said.flag("tie_word_embeddings")?,
            value_head: said.flag("value_head")?,
            vision: match config.get("vision_config").filter(|it| !it.is_null()) {
                Some(vision) => Some(
                    serde_json::from_value(vision.clone())
                        .map_err(|error| format!("`vision_config`: {error}"))?,
                ),
                None => None,
            },
            width,
            next_token: next_token(said)?,
            config: Some(config.to_string()),
        }
        .consistent()
    }

    /// Writes `config.json` for transformers before and after version 5: the one that it was read from,
    /// where that still describes it, and else a new one.
    pub(super) fn to_config(
        &self,
        stored_type: Option<&str>,
        tokenizer: Option<&Tokenizer>,
    ) -> Value {
        if let Some(config) = self.kept(stored_type) {
            return config;
        }
        let mut config = match self.family {
            Family::Llama => self.rotary("llama", "LlamaForCausalLM"),
            Family::Mistral => self.rotary("mistral", "MistralForCausalLM"),
            Family::Qwen2 => self.rotary("qwen2", "Qwen2ForCausalLM"),
            Family::Qwen3 => self.rotary("qwen3", "Qwen3ForCausalLM"),
            Family::Gpt2 => gpt2::write(self),
        };
        config["value_head"] = json!(self.value_head);
        config["torch_dtype"] = json!(stored_type.unwrap_or("float32"));
        if let Some(vision) = &self.vision {
            config["vision_config"] = json!(vision);
        }
        if self.next_token {
            config[NEXT_TOKEN] = json!(1);
        }
        if let Some(width) = &self.width {
            config["virtual_width"] = json!(width);
            config["backbone_type"] = config["model_type"].take();
            config["model_type"] = json!(VIRTUAL_WIDTH);
            config["architectures"] = json!(["VirtualWidthForCausalLM"]);
        }
        if let Some(tokenizer) = tokenizer {
            config["bos_token_id"] = json!(tokenizer.bos());
            config["eos_token_id"] = match tokenizer.ends() {
                [one] => json!(one),
                several => json!(several),
            };
            config["pad_token_id"] = json!(tokenizer.pad());
        }
        config
    }

    /// The configuration of a model with rotary positions: with this type and class, unless its block
    /// says others.
    fn rotary(&self, model_type: &str, class: &str) -> Value {
        let mut rope = self.rope_scaling.write();
        rope.insert("rope_theta".into(), json!(self.rope_theta));
        let mut config = json!({
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "intermediate_size": self.feed_forward,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "rms_norm_eps": self.norm_epsilon,
            "hidden_act": "silu",
            "attention_bias": self.out_bias,
            "mlp_bias": self.mlp_bias,
            "tie_word_embeddings": self.tied,
        });
        if self.rope_scaling != RopeScaling::None {
            // Libraries before version 5 of transformers read this one.
            config["rope_scaling"] = config["rope_parameters"].clone();
        }
        let told = self.block.write(&mut config);
        let (model_type, class) = told.unwrap_or((model_type, class));
        config["model_type"] = json!(model_type);
        config["architectures"] = json!([class]);
        if self.family == Family::Mistral {
            config["sliding_window"] = Value::Null;
        }
        if let Some(window) = self.window {
            config["sliding_window"] = json!(window.tokens);
            if matches!(self.family, Family::Qwen2 | Family::Qwen3) {
                config["use_sliding_window"] = json!(true);
                config["max_window_layers"] = json!(window.from_layer);
            }
        }
        config
    }

    /// The configuration that it was read from, where that describes it but for a value head and the type
    /// in which numbers are stored.
    fn kept(&self, stored_type: Option<&str>) -> Option<Value> {
        let mut config: Value = serde_json::from_str(self.config.as_ref()?).ok()?;
        let read = Self::from_config(&config).ok()?;
        let own = Self {
            value_head: read.value_head,
            config: read.config.clone(),
            ..self.clone()
        };
        if own != read {
            return None;
        }
        if let Some(stored_type) = stored_type {
            let there = ["dtype", "torch_dtype"].into_iter();
            let mut keys: Vec<&str> = there.filter(|key| config.get(key).is_some()).collect();
            if keys.is_empty() {
                keys.push("torch_dtype");
            }
            for key in keys {
                config[key] = json!(stored_type);
            }
        }
        if self.value_head != read.value_head {
            config["value_head"] = json!(self.value_head);
        }
        Some(config)
    }

    /// Checks what later arithmetic relies on.
    pub(super) fn consistent(self) -> Result<Self, String> {
        let sizes = [
            self.vocabulary,
            self.hidden,
            self.layers,
            self.heads,
            self.kv_heads,
        ];
        let inner = [self.head_width, self.feed_forward, self.context];
        if sizes
            .iter()
            .chain(&inner)
            .any(|&size| size == 0 || size > SIZE_MAX)
        {
            return Err(format!("a size outside 1..={SIZE_MAX}"));
        }
        if self.layers > LAYERS_MAX {
            return Err(format!("{} layers", self.layers));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "{} heads over {} key heads",
                self.heads, self.kv_heads
            ));
        }
        self.block.check().map_err(|error| error.to_string())?;
        let widths = Widths::new(self.hidden, self.feed_forward);
        let matrices = self.layers * self.block.matrices(widths).len();
        if matrices > MATRICES_MAX {
            return Err(format!(
                "{} layers of {matrices} matrices in all, more than {MATRICES_MAX}",
                self.layers
            ));
        }
        if let Some(width) = self.width {
            width.check(self.hidden)?;
        }
        self.rope_scaling.check(self.head_width)?;
        if !self.head_width.is_multiple_of(2) {
            return Err(format!("heads of odd width {}", self.head_width));
        }
        Ok(self)
    }
}

/// Values of fields that `config.json` leaves out, as `transformers` has them.
struct Defaults {
    context: usize,
    /// As many as there are query heads where there is none.
    kv_heads: Option<usize>,
    /// What is left of the width for each head where there is none.
    head_width: Option<usize>,
}

impl Defaults {
    fn of(family: Family, mixture: bool) -> Self {
        let (context, kv_heads) = match family {
            _ if mixture => (4_096 * 32, Some(8)),
            Family::Llama | Family::Gpt2 => (2_048, None),
            Family::Mistral => (4_096 * 32, Some(8)),
            Family::Qwen2 | Family::Qwen3 => (32_768, Some(32)),
        };
        Self {
            context,
            kv_heads,
            head_width: (family == Family::Qwen3).then_some(128),
        }
    }
}

/// The family, and the feed-forward part of its layers.
fn kind(said: Said<'_>) -> Result<(Family, LayerBlock), String> {
    let quantised = said.get("quantization_config");
    if let Some(method) = quantised.map(|it| it.get("quant_method").unwrap_or(it)) {
        return Err(format!("weights quantised by {method}"));
    }
    if said.get("text_config").is_some_and(Value::is_object) {
        return Err("a model with more than text (`text_config`)".to_owned());
    }
    let writes = |name: &str| {
        let ends = ["ForCausalLM", "LMHeadModel", "Model"];
        ends.iter().any(|end| name.ends_with(end))
    };
    let architecture = said.0["architectures"][0].as_str();
    if let Some(other) = architecture.filter(|name| !writes(name)) {
        return Err(format!("architecture `{other}`, which predicts no tokens,"));
    }
    let model_type = said.0.get("model_type").and_then(Value::as_str);
    let own = model_type.ok_or("configuration without `model_type`")?;
    let backbone = said.0.get("backbone_type").and_then(Value::as_str);
    let own = backbone.filter(|_| own == VIRTUAL_WIDTH).unwrap_or(own);
    let family = match own {
        "llama" => Family::Llama,
        "mistral" => Family::Mistral,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        "gpt2" => return Ok((Family::Gpt2, LayerBlock::Gelu(Gelu::default()))),
        _ => match LayerBlock::read(own, said.0) {
            Some(block) => return Ok((Family::Llama, block?)),
            None => {
                return Err(format!(
                    "model type `{own}` (gpt2, llama, mistral, mixtral, qwen2, qwen3 are)"
                ));
            }
        },
    };
    Ok((family, LayerBlock::default()))
}

/// The type of models whose rows are wider than layers. Other libraries do not know it, and so do not read such a model
/// as if it were its backbone.
const VIRTUAL_WIDTH: &str = "virtual_width";

/// The residual stream, where it is wider than layers.
fn width(said: Said<'_>) -> Result<Option<VirtualWidth>, String> {
    let is_wide = said.get("model_type").is_some_and(|it| it == VIRTUAL_WIDTH);
    match (said.get(VIRTUAL_WIDTH), is_wide) {
        (None, false) => Ok(None),
        (None, true) => Err(format!("configuration without `{VIRTUAL_WIDTH}`")),
        (Some(_), false) => Err(format!("`{VIRTUAL_WIDTH}` of another model type")),
        (Some(found), true) => serde_json::from_value(found.clone())
            .map(Some)
            .map_err(|error| format!("`{VIRTUAL_WIDTH}`: {error}")),
    }
}

/// The number of heads that predict further tokens, as DeepSeek-V3's configurations name it.
const NEXT_TOKEN: &str = "num_nextn_predict_layers";

/// True where there is a head that predicts one token further.
fn next_token(said: Said<'_>) -> Result<bool, String> {
    match said.get(NEXT_TOKEN).map(Value::as_u64) {
        None | Some(Some(0)) => Ok(false),
        Some(Some(1)) => Ok(true),
        Some(_) => Err(format!("more than one of `{NEXT_TOKEN}`")),
    }
}

/// Biases before and behind attention.
fn biases(said: Said<'_>, family: Family, mixture: bool) -> Result<(bool, bool), String> {
    if said.flag("mlp_bias")? && (family != Family::Llama || mixture) {
        return Err("`mlp_bias` of another family than llama".to_owned());
    }
    let biased = said.flag("attention_bias")?;
    match family {
        Family::Qwen2 => Ok((true, false)),
        Family::Llama | Family::Qwen3 if !mixture => Ok((biased, biased)),
        _ if biased => Err("`attention_bias`".to_owned()),
        _ => Ok((false, false)),
    }
}

/// The layers that see the last tokens alone.
fn window(
    said: Said<'_>,
    family: Family,
    mixture: bool,
    layers: usize,
) -> Result<Option<AttentionWindow>, String> {
    let qwen = matches!(family, Family::Qwen2 | Family::Qwen3);
    let used = match family {
        _ if mixture => true,
        Family::Llama | Family::Gpt2 => false,
        Family::Mistral => true,
        Family::Qwen2 | Family::Qwen3 => said.flag("use_sliding_window")?,
    };
    let tokens = said.number("sliding_window")?;
    let left_out = said.0.get("sliding_window").is_none();
    let tokens = match tokens.filter(|_| used) {
        Some(tokens) => tokens,
        None if used && left_out && (family == Family::Mistral || qwen) => 4_096,
        None => return Ok(None),
    };
    let tokens = u32::try_from(tokens).ok().and_then(NonZeroU32::new);
    let tokens = tokens.ok_or("`sliding_window` is too large")?;
    let first = match said.get("max_window_layers") {
        None if qwen => 28,
        Some(found) if qwen => {
            let number = found.as_u64().and_then(|it| usize::try_from(it).ok());
            number.ok_or_else(|| strange("max_window_layers", found))?
        }
        _ => 0,
    };
    let from_layer = match said.get("layer_types").and_then(Value::as_array) {
        None => first,
        Some(types) => {
            let first = types.iter().position(|kind| kind == "sliding_attention");
            let first = first.unwrap_or(layers);
            let all = types.iter().skip(first);
            if types.len() != layers || all.clone().any(|kind| kind != "sliding_attention") {
                return Err("`layer_types` that go to and fro".to_owned());
            }
            first
        }
    };
    Ok((from_layer < layers).then_some(AttentionWindow { tokens, from_layer }))
}

/// Bounds what is allocated for a file before its tensors are seen.
const LAYERS_MAX: usize = 4_096;
/// The same of mixtures, which have some matrices for each expert.
const MATRICES_MAX: usize = 1 << 18;
/// Keeps products of two sizes far from overflow.
const SIZE_MAX: usize = 1 << 28;

/// The fields of a configuration; `null` is as one that is left out.
#[derive(Clone, Copy)]
pub(super) struct Said<'a>(pub(super) &'a Value);

impl<'a> Said<'a> {
    pub(super) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|it| !it.is_null())
    }

    /// A whole number above zero.
    pub(super) fn number(self, key: &str) -> Result<Option<usize>, String> {
        let read = |found: &Value| {
            let number = found.as_u64().and_then(|it| usize::try_from(it).ok());
            let number = number.filter(|number| *number > 0);
            number.ok_or_else(|| strange(key, found))
        };
        self.get(key).map(read).transpose()
    }

    fn needed(self, key: &str) -> Result<usize, String> {
        let number = self.number(key)?;
        number.ok_or_else(|| format!("configuration without `{key}`"))
    }

    /// False where it is left out.
    pub(super) fn flag(self, key: &str) -> Result<bool, String> {
        Ok(self.flag_if(key)?.unwrap_or(false))
    }

    pub(super) fn flag_if(self, key: &str) -> Result<Option<bool>, String> {
        let read = |found: &Value| found.as_bool().ok_or_else(|| strange(key, found));
        self.get(key).map(read).transpose()
    }
}

/// A number above zero, where there is one.
pub(super) fn positive(key: &str, found: Option<&Value>) -> Result<Option<f64>, String> {
    let read = |found: &Value| {
        let number = found.as_f64().filter(|it| *it > 0.0);
        number.ok_or_else(|| strange(key, found))
    };
    found.map(read).transpose()
}

fn strange(key: &str, found: &Value) -> String {
    format!("`{key}` of {found}")
}
