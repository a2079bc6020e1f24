//! Between files and [`Model`]s.

use std::collections::BTreeMap;

use odeon_gpu::{Backend, Cpu};

use super::{Family, LoadedModel, LoadedTensor, ModelFields};
use crate::model::{ConfigError, Model, ModelConfig, Rope};

/// Why a loaded model could not become a [`Model`]. The loaded model is dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The network has no such layers yet.
    #[error("models of the family {0:?} cannot be run")]
    Family(Family),
    /// The sizes contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor of the network was not loaded, or has another number of elements.
    #[error("tensor `{0}` of the network was not loaded")]
    Tensor(String),
}

impl ModelFields {
    /// The same architecture as a network's configuration.
    ///
    /// # Errors
    /// [`BuildError::Family`] for a family that the network does not have.
    pub fn model_config(&self) -> Result<ModelConfig, BuildError> {
        let qkv_bias = match self.family {
            Family::Llama => false,
            Family::Qwen2 => true,
            other @ Family::Qwen3 => return Err(BuildError::Family(other)),
        };
        Ok(ModelConfig {
            vocab: self.vocabulary,
            dim: self.hidden,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_width,
            ffn: self.feed_forward,
            rope_theta: self.rope_theta as f32,
            rope: Rope::HalfSplit,
            norm_eps: self.norm_epsilon as f32,
            tied_head: self.tied,
            qkv_bias,
            value_head: self.value_head,
        })
    }
}

impl LoadedModel {
    /// Moves the parameters to a device as a [`Model`].
    ///
    /// # Errors
    /// [`BuildError`] when the network does not have this architecture.
    pub fn into_model<B: Backend>(mut self, backend: B) -> Result<Model<B>, BuildError> {
        let mut model = Model::zeros(backend, self.fields.model_config()?)?;
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
        Ok(model)
    }

    /// Copies a model's parameters, adapters not merged, for [`save`](super::save). `context` is
    /// the longest sequence that the checkpoint's configuration is to name, in tokens.
    ///
    /// # Panics
    /// When the model's rotary embedding is not [`Rope::HalfSplit`], which checkpoints have.
    #[must_use]
    pub fn from_model(model: &Model<Cpu>, context: usize) -> Self {
        let config = model.config();
        assert_eq!(
            config.rope,
            Rope::HalfSplit,
            "checkpoints are in the half-split order"
        );
        let fields = ModelFields {
            family: if config.qkv_bias {
                Family::Qwen2
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
            context,
            rope_theta: config.rope_theta.into(),
            norm_epsilon: config.norm_eps.into(),
            tied: config.tied_head,
            value_head: config.value_head,
        };
        let tensor = |shape: &[usize], values: &[f32]| LoadedTensor {
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        let tensors: BTreeMap<_, _> = model
            .tensors()
            .map(|(name, shape, values)| (name.to_owned(), tensor(shape, values)))
            .collect();
        Self { fields, tensors }
    }
}
