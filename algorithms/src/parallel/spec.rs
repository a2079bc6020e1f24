//! A model's tensors, and how each may be cut.

use std::collections::BTreeSet;

use crate::setting::SettingError;
use serde::{Deserialize, Serialize};

/// The tensors of a model in their order. Elsewhere a tensor is its place in this list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct ModelSpec {
    layers: usize,
    tensors: Vec<TensorSpec>,
    /// Elements before each tensor, and all of them.
    starts: Vec<usize>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Its name; no two of a model are the same.
    pub name: String,
    /// Its extents, outermost first.
    pub shape: Vec<usize>,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// The part of it that each rank of a stage has.
    pub cut: Cut,
    /// Which stage has it.
    pub home: Home,
}

/// The part of a tensor that each of `n` tensor ranks has.
///
/// A unit is what must not be cut, such as the rows of a head. Of `u` units along the dimension,
/// rank `i` has
///
/// - split: units `floor(i u / n)` to `floor((i + 1) u / n)`. Each unit is with one rank; where `n`
///   does not divide `u`, parts differ by one unit.
/// - cover: units `floor(i u / n)` to `ceil((i + 1) u / n)`, all that the rank's share of the
///   dimension touches. Where `n` divides `u` that is the same; else some units are with several
///   ranks. Key and value heads are cut like this, since the query heads of a rank need theirs
///   whole: 2 heads over 8 ranks are 4 copies of each.
///
/// Parts for a divisor of `n` are unions of parts for `n`, with both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// All of it: norms.
    Whole,
    /// A part of its own.
    Split {
        /// The dimension that is cut. For matrices `[out, in]` 0 is what Megatron-LM calls
        /// column-parallel, and 1 row-parallel.
        dim: usize,
        /// Indices that stay together.
        unit: usize,
    },
    /// A part that may overlap those of its neighbours.
    Cover {
        /// The dimension that is cut.
        dim: usize,
        /// Indices that stay together.
        unit: usize,
    },
}

/// Which stages of a pipeline have a tensor. Of `L` layers, stage `s` of `p` has layers
/// `floor(s L / p)` to `floor((s + 1) L / p)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Home {
    /// The first, as the embedding.
    First,
    /// That of a layer, from 0.
    Layer(usize),
    /// The last, as the final norm and the output head.
    Last,
    /// The first and the last, each: an embedding that is also the output head.
    Ends,
}

/// Why a list of tensors is not a model. Nothing has happened; the list has to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A setting of the feed-forward blocks means nothing.
    #[error(transparent)]
    Block(#[from] SettingError),
    /// Pipelines are cut between layers.
    #[error("the model has no layers")]
    NoLayers,
    /// Two tensors could not be told apart.
    #[error("two tensors are named `{name}`")]
    Duplicate {
        /// The name they share.
        name: String,
    },
    /// A tensor has no elements.
    #[error("tensor `{name}` of shape {shape:?} with {element_bytes} bytes an element is empty")]
    Empty {
        /// The tensor.
        name: String,
        /// Its extents.
        shape: Vec<usize>,
        /// Bytes of one element.
        element_bytes: usize,
    },
    /// A tensor's bytes cannot be counted.
    #[error("up to tensor `{name}` the model is larger than memory")]
    TooLarge {
        /// The tensor.
        name: String,
    },
    /// A tensor is to be cut along a dimension that it does not have.
    #[error("tensor `{name}` of shape {shape:?} has no dimension {dim} to be cut along")]
    NoDimension {
        /// The tensor.
        name: String,
        /// Its extents.
        shape: Vec<usize>,
        /// The dimension.
        dim: usize,
    },
    /// A dimension is not made of whole units.
    #[error("dimension {dim} of tensor `{name}` has extent {extent}, which is not units of {unit}")]
    Unit {
        /// The tensor.
        name: String,
        /// The dimension.
        dim: usize,
        /// Its extent.
        extent: usize,
        /// Indices that are to stay together.
        unit: usize,
    },
    /// A tensor belongs to a layer that is not there.
    #[error("tensor `{name}` is of layer {layer}, and the model has {layers}, from 0 on")]
    NoLayer {
        /// The tensor.
        name: String,
        /// Its layer.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Query heads cannot share key and value heads evenly.
    #[error("{heads} query heads cannot share {kv_heads} key-value heads evenly")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
}

impl ModelSpec {
    /// A model of `layers` layers with these tensors.
    ///
    /// # Errors
    /// [`SpecError`] names the tensor at fault.
    pub fn new(layers: usize, tensors: Vec<TensorSpec>) -> Result<Self, SpecError> {
        if layers == 0 {
            return Err(SpecError::NoLayers);
        }
        let (mut starts, mut bytes) = (vec![0], 0_usize);
        let mut names = BTreeSet::new();
        for tensor in &tensors {
            tensor.check(layers)?;
            let name = || tensor.name.clone();
            if !names.insert(tensor.name.as_str()) {
                return Err(SpecError::Duplicate { name: name() });
            }
            let size = tensor
                .shape
                .iter()
                .try_fold(tensor.element_bytes, |a, &b| a.checked_mul(b));
            let sum = size.and_then(|size| bytes.checked_add(size));
            bytes = sum.ok_or_else(|| SpecError::TooLarge { name: name() })?;
            starts.push(starts[starts.len() - 1] + tensor.elements());
        }
        Ok(Self {
            layers,
            tensors,
            starts,
        })
    }

    /// Number of layers.
    #[must_use]
    pub const fn layers(&self) -> usize {
        self.layers
    }

    /// The tensors in order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Number of elements of all tensors.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.starts[self.tensors.len()]
    }

    /// Bytes of all tensors, each counted once: `M`.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(TensorSpec::bytes).sum()
    }

    /// Elements before each tensor, and all of them.
    pub(super) fn starts(&self) -> &[usize] {
        &self.starts
    }
}

impl TensorSpec {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.element_bytes
    }

    fn check(&self, layers: usize) -> Result<(), SpecError> {
        let name = || self.name.clone();
        if self.element_bytes == 0 || self.shape.contains(&0) {
            return Err(SpecError::Empty {
                name: name(),
                shape: self.shape.clone(),
                element_bytes: self.element_bytes,
            });
        }
        match self.home {
            Home::Layer(layer) if layer >= layers => {
                return Err(SpecError::NoLayer {
                    name: name(),
                    layer,
                    layers,
                });
            }
            _ => {}
        }
        let (Cut::Split { dim, unit } | Cut::Cover { dim, unit }) = self.cut else {
            return Ok(());
        };
        let Some(&extent) = self.shape.get(dim) else {
            return Err(SpecError::NoDimension {
                name: name(),
                shape: self.shape.clone(),
                dim,
            });
        };
        if unit == 0 || !extent.is_multiple_of(unit) {
            return Err(SpecError::Unit {
                name: name(),
                dim,
                extent,
                unit,
            });
        }
        Ok(())
    }
}

/// A model as it is sent, not checked yet.
#[derive(Serialize, Deserialize)]
struct Raw {
    layers: usize,
    tensors: Vec<TensorSpec>,
}

impl TryFrom<Raw> for ModelSpec {
    type Error = SpecError;

    fn try_from(raw: Raw) -> Result<Self, SpecError> {
        Self::new(raw.layers, raw.tensors)
    }
}

impl From<ModelSpec> for Raw {
    fn from(model: ModelSpec) -> Self {
        Self {
            layers: model.layers,
            tensors: model.tensors,
        }
    }
}
