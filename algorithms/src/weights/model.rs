//! Between files and [`Model`]s.

use odeon_gpu::{Backend, Cpu, Layout, TensorEntry};

use super::{
    fields::{Family, ModelFields},
    loaded::{LoadedModel, LoadedTensor, ModelView, TensorView},
};
use crate::model::{ConfigError, LayerBlock, Model, ModelConfig, Rope};

/// Why a loaded model could not become a [`Model`]. The loaded model is dropped.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The sizes contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor of the network was not loaded, or has another number of elements.
    #[error("tensor `{0}` of the network was not loaded")]
    Tensor(String),
}

impl ModelFields {
    /// A network's architecture, as files name it. `context` is the longest sequence, in tokens.
    ///
    /// # Panics
    /// When its rotary embedding is not [`Rope::HalfSplit`], which files have.
    #[must_use]
    pub fn of(config: &ModelConfig, context: usize) -> Self {
        assert_eq!(
            config.rope,
            Rope::HalfSplit,
            "checkpoints are in the half-split order"
        );
        Self {
            family: if config.learned_positions.is_some() {
                Family::Gpt2
            } else if config.block != LayerBlock::default() {
                Family::Llama
            } else if config.head_norms {
                Family::Qwen3
            } else if config.qkv_bias && !config.out_bias {
                Family::Qwen2
            } else if config.window.is_some() {
                Family::Mistral
            } else {
                Family::Llama
            },
            vocabulary: config.vocab,
            hidden: config.dim,
            layers: config.layers,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_width: config.head_dim,
            feed_forward: config.ffn,
            block: config.block,
            context: config.learned_positions.unwrap_or(context),
            rope_theta: config.rope_theta.into(),
            rope_scaling: config.rope_scaling.clone(),
            window: config.window,
            qkv_bias: config.qkv_bias,
            out_bias: config.out_bias,
            mlp_bias: config.mlp_bias,
            norm_epsilon: config.norm_eps.into(),
            tied: config.tied_head,
            value_head: config.value_head,
            vision: config.vision.clone(),
            width: config.width,
            next_token: config.next_token,
            config: None,
        }
    }

    /// Takes over what the files of the model that it was made from say beside the network: the family,
    /// the longest sequence, and the rest of `config.json`.
    #[must_use]
    pub fn made_from(self, source: &Self) -> Self {
        // A network has these in 32 bits; files may say more of them.
        let told = |own: f64, source: f64| match own as f32 == source as f32 {
            true => source,
            false => own,
        };
        Self {
            family: source.family,
            context: source.context,
            rope_theta: told(self.rope_theta, source.rope_theta),
            norm_epsilon: told(self.norm_epsilon, source.norm_epsilon),
            config: source.config.clone(),
            ..self
        }
    }

    /// The same architecture as a network's configuration.
    #[must_use]
    pub fn model_config(&self) -> ModelConfig {
        ModelConfig {
            vocab: self.vocabulary,
            dim: self.hidden,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_width,
            ffn: self.feed_forward,
            block: self.block,
            rope_theta: self.rope_theta as f32,
            rope: Rope::HalfSplit,
            rope_scaling: self.rope_scaling.clone(),
            window: self.window,
            learned_positions: self.learned_positions(),
            layer_norms: self.family == Family::Gpt2,
            norm_eps: self.norm_epsilon as f32,
            tied_head: self.tied,
            qkv_bias: self.qkv_bias,
            out_bias: self.out_bias,
            mlp_bias: self.mlp_bias,
            head_norms: self.head_norms(),
            value_head: self.value_head,
            vision: self.vision.clone(),
            width: self.width,
            next_token: self.next_token,
            own_experts: None,
            own_stages: None,
        }
    }
}

impl LoadedModel {
    /// Moves the parameters to a device as a [`Model`].
    ///
    /// # Errors
    /// [`BuildError`] when the network does not have this architecture.
    pub fn into_model<B: Backend>(self, backend: B) -> Result<Model<B>, BuildError> {
        let mut model = Model::zeros(backend, self.fields.model_config())?;
        self.load_into(&mut model)?;
        Ok(model)
    }

    /// Moves the parameters into a model that is there.
    ///
    /// # Errors
    /// [`BuildError::Tensor`] when one of the model's tensors is not among them; those before it in
    /// the model's layout are replaced then.
    pub fn load_into<B: Backend>(mut self, model: &mut Model<B>) -> Result<(), BuildError> {
        let names: Vec<String> = model
            .layout()
            .entries()
            .iter()
            .map(|entry| entry.name.clone())
            .collect();
        for name in names {
            let loaded = self.tensors.remove(&name).is_some_and(|tensor| {
                // Dropped right after, so that the parameters are never held twice.
                model.load_tensor(&name, &tensor.values).is_ok()
            });
            if !loaded {
                return Err(BuildError::Tensor(name));
            }
        }
        Ok(())
    }

    /// Adds a value head of zeros, with which a critic begins; one that is there stays.
    pub fn add_value_head(&mut self) {
        if self.fields.value_head {
            return;
        }
        self.fields.value_head = true;
        let width = self.fields.hidden;
        for (name, shape) in [
            ("value_head.weight", vec![1, width]),
            ("value_head.bias", vec![1]),
        ] {
            let values = vec![0.0; shape.iter().product()];
            self.tensors
                .insert(name.to_owned(), LoadedTensor { shape, values });
        }
    }

    /// The same, borrowed, for [`save`](super::save).
    #[must_use]
    pub fn view(&self) -> ModelView<'_> {
        ModelView {
            fields: self.fields.clone(),
            tensors: self
                .tensors
                .iter()
                .map(|(name, tensor)| {
                    let LoadedTensor { shape, values } = tensor;
                    (name.as_str(), TensorView { shape, values })
                })
                .collect(),
        }
    }
}

/// An architecture whose parameters lie in a buffer of somebody else, in the order of
/// [`Model::to_flat`]: what weights are as they travel.
#[derive(Clone, Debug)]
pub struct FlatModel {
    config: ModelConfig,
    layout: Layout,
}

impl FlatModel {
    /// Names and places of an architecture's parameters; nothing is allocated for them.
    ///
    /// # Errors
    /// [`ConfigError`] when the sizes contradict each other.
    pub fn new(config: ModelConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let (layout, _) = Model::<Cpu>::describe(&config);
        Ok(Self { config, layout })
    }

    /// The number of parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.layout.len()
    }

    /// The parameters `flat` by name; see [`ModelView::of`].
    ///
    /// # Panics
    /// As [`ModelView::of`] and [`ModelFields::of`].
    #[must_use]
    pub fn view<'a>(&'a self, flat: &'a [f32], context: usize) -> ModelView<'a> {
        let fields = ModelFields::of(&self.config, context);
        ModelView::of_flat(fields, &self.layout, flat)
    }
}

impl<'a> ModelView<'a> {
    /// A model's architecture with the parameters `flat`, in the order of its layout:
    /// [`Model::flat`], or [`Model::to_flat`] with adapters merged. `fields` describe it.
    ///
    /// # Panics
    /// When `flat` has another number of elements than the model.
    #[must_use]
    pub fn of<B: Backend>(model: &'a Model<B>, flat: &'a [f32], fields: ModelFields) -> Self {
        Self::of_flat(fields, model.layout(), flat)
    }

    fn of_flat(fields: ModelFields, layout: &'a Layout, flat: &'a [f32]) -> Self {
        assert_eq!(flat.len(), layout.len(), "one number a parameter");
        let view = |entry: &'a TensorEntry| TensorView {
            shape: &entry.shape,
            values: &flat[entry.range.clone()],
        };
        let entries = layout.entries().iter();
        let tensors = entries
            .map(|entry| (entry.name.as_str(), view(entry)))
            .collect();
        Self { fields, tensors }
    }
}
