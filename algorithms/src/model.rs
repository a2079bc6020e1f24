//! Decoder-only transformers of the Llama, Mistral, Qwen2, Qwen3 and Mixtral families over the fused operations of
//! [`odeon_gpu`].
//!
//! A [`Model`] is a configuration and one flat buffer of parameters with Hugging Face names. It can
//! be initialised by seed, filled tensor by tensor ([`Model::load_tensor`]) or as a whole
//! ([`Model::load_flat`]), and read back the same ways. [`Scorer`] runs it forward over packed
//! sequences; [`Trainer`](crate::train::Trainer) trains it;
//! [`Generator`](crate::generate::Generator) samples from it.

mod arithmetic;
mod batch;
pub(crate) mod block;
mod config;
mod context;
mod dropout;
mod first;
mod lora;
mod network;
mod next_token;
mod normal;
mod outputs;
mod own_gradient;
mod part;
mod rank;
mod recompute;
mod rope;
mod rounded;
mod scorer;
mod shard;
mod shard_moves;
mod sharded;
mod stage;
mod vision;
mod width;

use std::borrow::Cow;
use std::collections::HashSet;
use std::convert::Infallible;
use std::ops::Range;

use odeon_gpu::{Backend, Cpu, Layout};
use thiserror::Error;

pub use batch::{Batch, BatchError, Sequence};
pub use block::{ExpertRange, Gelu, LayerBlock, Mlp, Moe};
pub use config::{AttentionWindow, ConfigError, ModelConfig};
pub use dropout::Dropout;
pub use first::SeededValues;
pub use lora::LoraConfig;
pub(crate) use own_gradient::ShardGuard;
pub use own_gradient::{GradientFault, GradientLook, WorstTensor};
pub use part::{ModelPart, PartError, PartTensor, PassGroups, ShardGroups};
pub use rank::{ContextKind, PartPlace, RankKind, RankOf, StageLayers, StagePlace};
pub use recompute::Recompute;
pub use rope::{Rope, RopeScaling, Yarn};
pub use scorer::{Scorer, ScoresRead, TokenScores};
pub use shard::{ModelShard, ShardCopies, ShardPlace, ShardTime};
pub use sharded::{RankKeeps, RankModelError};
pub use stage::{StageGroups, StageLetter, StageLinks};
pub use vision::{Pictures, VisionConfig};
pub use width::VirtualWidth;

use block::Cutting;
pub(crate) use first::box_runs;
use first::{ValueKind, Values};
pub(crate) use lora::Adapters;
pub(crate) use network::{LayerPlaces, NormPlaces, Places};
pub(crate) use next_token::{NextTargets, tensors as next_token_tensors};
pub(crate) use outputs::{Outputs, StageOutput, StageVars, Wanted};
pub(crate) use rank::PartRanges;
pub(crate) use shard::SetKind;
pub(crate) use sharded::{Gathered, Keepers, over_sets};
pub(crate) use stage::Stage;
pub(crate) use width::{Coefficients, ConnectionPlaces, Mixing};

/// Parameters of a decoder-only transformer on a device, or a rank's [part](Self::into_part) of them, or the
/// [shard](Self::into_shard) of either that it keeps.
#[derive(Debug)]
pub struct Model<B: Backend = Cpu> {
    backend: B,
    config: ModelConfig,
    layout: Layout,
    places: Places,
    /// In the order of the layout, or of the shard.
    params: B::Buffer,
    adapters: Option<Adapters<B>>,
    part: Option<ModelPart>,
    shard: Option<ModelShard>,
    /// Those that it computes passes with.
    groups: PassGroups<B>,
}

/// Why parameters were not loaded. The model is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The model has no tensor of this name.
    #[error("the model has no tensor {0}")]
    UnknownTensor(String),
    /// The tensor has another number of elements.
    #[error("{name}: {got} elements given, the model has {want}")]
    Length {
        /// Tensor, or "the flat buffer".
        name: String,
        /// Elements that were given.
        got: usize,
        /// Elements the model has.
        want: usize,
    },
}

impl SeededValues {
    /// Those of a whole model.
    #[must_use]
    pub fn new(config: &ModelConfig, seed: u64) -> Self {
        let residual = 0.02 / (2.0 * config.layers as f32).sqrt();
        let tensors = config.block.tensors(config.widths()).into_iter();
        let ends: HashSet<String> = tensors
            .filter(|(.., cutting)| *cutting == Cutting::Inputs)
            .map(|(name, ..)| name)
            .collect();
        let ends_block = |name: &str| {
            let of_layer = name.strip_prefix("model.layers.");
            let own = of_layer.and_then(|name| name.split_once('.'));
            own.is_some_and(|(_, own)| ends.contains(own))
        };
        let (layout, _) = network::layout(config);
        let mut drawn = 0;
        let tensors = layout.entries().iter().map(|entry| {
            let (name, len) = (entry.name.as_str(), entry.range.len());
            let told = config
                .width
                .and_then(|it| it.first_values(name, config.dim));
            let kind = if let Some(values) = told {
                assert_eq!(values.len(), len, "{name} is whole");
                ValueKind::Told(values)
            } else if name.ends_with("norm.weight") {
                ValueKind::Same(1.0)
            } else if name.ends_with(".bias") || name == "value_head.weight" {
                ValueKind::Same(0.0)
            } else {
                let is_residual_end = ends_block(name)
                    || name.ends_with("o_proj.weight")
                    || name.ends_with("down_proj.weight");
                let first = drawn;
                drawn += len as u64;
                ValueKind::Drawn {
                    first,
                    deviation: if is_residual_end { residual } else { 0.02 },
                }
            };
            let cols = entry.shape[1..].iter().product();
            (entry.name.clone(), Values { cols, kind })
        });
        Self::of(tensors.collect(), seed)
    }
}

impl<B: Backend> Model<B> {
    /// A model with random weights: [`SeededValues`].
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn init(backend: B, config: ModelConfig, seed: u64) -> Result<Self, ConfigError> {
        let mut model = Self::zeros(backend, config)?;
        let mut values = SeededValues::new(&model.config, seed);
        let read = |name: &str, part: &[Range<usize>]| Ok::<_, Infallible>(values.read(name, part));
        let Ok(()) = model.fill(read);
        Ok(model)
    }

    /// A model whose weights are all zero, to be loaded.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    pub fn zeros(backend: B, config: ModelConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::of_parts(backend, config))
    }

    /// The same of settings that are known to be good, or a part of such.
    fn of_parts(backend: B, config: ModelConfig) -> Self {
        let described = network::layout(&config);
        let mut model = Self::without_parameters(backend, config, described);
        model.params = model.backend.parameters(model.layout.len());
        model
    }

    /// The same without memory for parameters.
    fn without_parameters(
        backend: B,
        config: ModelConfig,
        (layout, places): (Layout, Places),
    ) -> Self {
        Self {
            backend,
            config,
            layout,
            places,
            params: B::Buffer::default(),
            adapters: None,
            part: None,
            shard: None,
            groups: PassGroups::default(),
        }
    }

    /// Names, shapes and places of a configuration's tensors.
    pub(crate) fn describe(config: &ModelConfig) -> (Layout, Places) {
        network::layout(config)
    }

    /// Architecture.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Names, shapes and order of the tensors in the flat buffer.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of parameters, adapters not counted.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.layout.len()
    }

    /// All parameters in layout order, with adapters merged in: what is published.
    #[must_use]
    pub fn to_flat(&self) -> Vec<f32> {
        match &self.adapters {
            None => self.backend.to_vec(&self.params),
            Some(adapters) => adapters.merged(&self.backend, &self.params),
        }
    }

    /// Replaces all parameters; adapters stay.
    ///
    /// # Errors
    /// If the number of elements is not the model's.
    pub fn load_flat(&mut self, flat: &[f32]) -> Result<(), TensorError> {
        let want = self.layout.len();
        check_length("the flat buffer", flat.len(), want)?;
        self.backend
            .write(B::view_mut(&mut self.params, 0..want), flat);
        Ok(())
    }

    /// Replaces one tensor, given row-major.
    ///
    /// # Errors
    /// If the model has no tensor of that name, or it has another number of elements.
    pub fn load_tensor(&mut self, name: &str, values: &[f32]) -> Result<(), TensorError> {
        let entry = self
            .layout
            .get(name)
            .ok_or_else(|| TensorError::UnknownTensor(name.to_owned()))?;
        check_length(name, values.len(), entry.range.len())?;
        self.backend
            .write(B::view_mut(&mut self.params, entry.range.clone()), values);
        Ok(())
    }

    /// Freezes the weights and adds trainable low-rank adapters to every linear layer of attention,
    /// and of feed-forward parts that are dense: routers and experts have none. They start as the
    /// identity.
    pub fn add_lora(&mut self, config: LoraConfig, seed: u64) {
        self.adapters = Some(Adapters::init(
            &self.backend,
            &self.config,
            &self.places,
            config,
            seed,
        ));
    }

    /// Returns true when the weights are frozen under adapters.
    #[must_use]
    pub fn has_adapters(&self) -> bool {
        self.adapters.is_some()
    }

    /// Parameters a trainer changes: the adapters if there are any, else all.
    #[must_use]
    pub fn trainable_parameters(&self) -> usize {
        self.adapters
            .as_ref()
            .map_or(self.layout.len(), |a| a.layout().len())
    }
}

impl<B: Backend> Model<B> {
    /// All parameters in layout order, with adapters merged in: [`Model::to_flat`], copied only
    /// where there are adapters or the host cannot read the device's memory.
    #[must_use]
    pub fn merged(&self) -> Cow<'_, [f32]> {
        match (&self.adapters, B::host(&self.params)) {
            (None, Some(flat)) => Cow::Borrowed(flat),
            _ => Cow::Owned(self.to_flat()),
        }
    }
}

impl Model<Cpu> {
    /// All parameters in layout order, adapters not merged.
    #[must_use]
    pub fn flat(&self) -> &[f32] {
        self.params.as_slice()
    }

    /// Name, shape and row-major elements of each tensor, in layout order, adapters not merged.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        let flat = self.flat();
        self.layout
            .entries()
            .iter()
            .map(|e| (e.name.as_str(), e.shape.as_slice(), &flat[e.range.clone()]))
    }
}

pub(crate) fn check_length(name: &str, got: usize, want: usize) -> Result<(), TensorError> {
    if got == want {
        Ok(())
    } else {
        Err(TensorError::Length {
            name: name.to_owned(),
            got,
            want,
        })
    }
}
