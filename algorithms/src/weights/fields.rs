//! The fields of a decoder-only architecture, and Hugging Face's `config.json`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::model::block::Widths;
use crate::model::{LayerBlock, VisionConfig};
use crate::setting::Chosen;

/// A family of decoder-only models: they differ in which projections have a bias or a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Family {
    /// Llama and SmolLM2, and Mixtral without a window.
    Llama,
    /// Qwen 2 and 2.5: queries, keys and values have a bias.
    Qwen2,
    /// Qwen 3: queries and keys are normalised per head.
    Qwen3,
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
}

impl ModelFields {
    /// Names and shapes of all parameters, by Hugging Face's names.
    #[must_use]
    pub fn tensor_shapes(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = self.hidden;
        let widths = Widths {
            dim: hidden,
            ffn: self.feed_forward,
        };
        let queries = self.heads * self.head_width;
        let keys = self.kv_heads * self.head_width;
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
        let block = self.block.tensors(widths).into_iter();
        layer.extend(block.map(|(name, shape, _)| (name, shape)));
        if self.family == Family::Qwen3 {
            for name in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
                layer.push((name.to_owned(), vec![self.head_width]));
            }
        }
        let mut shapes = vec![(
            "model.embed_tokens.weight".into(),
            vec![self.vocabulary, hidden],
        )];
        for index in 0..self.layers {
            for (name, shape) in &layer {
                shapes.push((format!("model.layers.{index}.{name}"), shape.clone()));
            }
            if self.family == Family::Qwen2 {
                for (name, width) in [("q", queries), ("k", keys), ("v", keys)] {
                    let name = format!("model.layers.{index}.self_attn.{name}_proj.bias");
                    shapes.push((name, vec![width]));
                }
            }
        }
        shapes.push(("model.norm.weight".into(), vec![hidden]));
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

    /// Reads Hugging Face's `config.json`, with the rotary base as `rope_theta` or, from
    /// transformers 5 on, inside `rope_parameters`.
    pub(super) fn from_config(config: &Value) -> Result<Self, String> {
        let said = Said(config);
        let model_type = config.get("model_type").and_then(Value::as_str);
        let dense = LayerBlock::default();
        let (family, block) = match model_type {
            Some("llama") => (Family::Llama, dense),
            Some("qwen2") => (Family::Qwen2, dense),
            Some("qwen3") => (Family::Qwen3, dense),
            other => match other.and_then(|own| LayerBlock::read(own, config)) {
                Some(block) => (Family::Llama, block?),
                None => {
                    let lacks = || "configuration without `model_type`".to_owned();
                    return Err(other.map_or_else(lacks, |own| format!("model type `{own}`")));
                }
            },
        };
        for key in ["attention_bias", "mlp_bias", "use_sliding_window"] {
            if said.flag(key)? {
                return Err(format!("`{key}`"));
            }
        }
        match said.get("hidden_act") {
            None => {}
            Some(found) if found == "silu" => {}
            Some(other) => return Err(format!("activation {other}")),
        }
        let rope = config.get("rope_parameters").filter(|rope| !rope.is_null());
        for scaling in [rope, config.get("rope_scaling")].into_iter().flatten() {
            let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
            if let Some(kind) = kind
                .and_then(Value::as_str)
                .filter(|&kind| kind != "default")
            {
                return Err(format!("scaling {kind:?} of the rotary embedding"));
            }
        }
        let theta = rope
            .and_then(|rope| rope.get("rope_theta"))
            .or_else(|| config.get("rope_theta"));
        let hidden = said.needed("hidden_size")?;
        let heads = said.needed("num_attention_heads")?;
        Self {
            family,
            vocabulary: said.needed("vocab_size")?,
            hidden,
            layers: said.needed("num_hidden_layers")?,
            heads,
            kv_heads: said.number("num_key_value_heads")?.unwrap_or(heads),
            head_width: said.number("head_dim")?.unwrap_or(hidden / heads),
            feed_forward: said.needed("intermediate_size")?,
            block,
            context: said.needed("max_position_embeddings")?,
            rope_theta: positive("rope_theta", theta)?.unwrap_or(10_000.0),
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
        }
        .consistent()
    }

    /// Writes `config.json` for transformers before and after version 5.
    pub(super) fn to_config(&self, stored_type: &str) -> Value {
        let dense = match self.family {
            Family::Llama => ("llama", "LlamaForCausalLM"),
            Family::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Family::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
        };
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
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rms_norm_eps": self.norm_epsilon,
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
            "tie_word_embeddings": self.tied,
            "value_head": self.value_head,
            "torch_dtype": stored_type,
        });
        let (model_type, class) = self.block.write(&mut config).unwrap_or(dense);
        config["model_type"] = json!(model_type);
        config["architectures"] = json!([class]);
        if let Some(vision) = &self.vision {
            config["vision_config"] = json!(vision);
        }
        config
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
        let widths = Widths {
            dim: self.hidden,
            ffn: self.feed_forward,
        };
        let matrices = self.layers * self.block.matrices(widths).len();
        if matrices > MATRICES_MAX {
            return Err(format!(
                "{} layers of {matrices} matrices in all, more than {MATRICES_MAX}",
                self.layers
            ));
        }
        if !self.head_width.is_multiple_of(2) {
            return Err(format!("heads of odd width {}", self.head_width));
        }
        Ok(self)
    }
}

/// Bounds what is allocated for a file before its tensors are seen.
const LAYERS_MAX: usize = 4_096;
/// The same of mixtures, which have some matrices for each expert.
const MATRICES_MAX: usize = 1 << 18;
/// Keeps products of two sizes far from overflow.
const SIZE_MAX: usize = 1 << 28;

/// The fields of a configuration; `null` is as one that is left out.
#[derive(Clone, Copy)]
struct Said<'a>(&'a Value);

impl<'a> Said<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|it| !it.is_null())
    }

    /// A whole number above zero.
    fn number(self, key: &str) -> Result<Option<usize>, String> {
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
    fn flag(self, key: &str) -> Result<bool, String> {
        let read = |found: &Value| found.as_bool().ok_or_else(|| strange(key, found));
        self.get(key).map_or(Ok(false), read)
    }
}

/// A number above zero, where there is one.
fn positive(key: &str, found: Option<&Value>) -> Result<Option<f64>, String> {
    let read = |found: &Value| {
        let number = found.as_f64().filter(|it| *it > 0.0);
        number.ok_or_else(|| strange(key, found))
    };
    found.map(read).transpose()
}

fn strange(key: &str, found: &Value) -> String {
    format!("`{key}` of {found}")
}
