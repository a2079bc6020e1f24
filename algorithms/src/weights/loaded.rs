//! Parameters of a model by name: as read from files, and where they lie to be written.

use std::{collections::BTreeMap, ops::Range, path::Path};

use serde::{Deserialize, Serialize};

use super::{error::LoadError, fields::ModelFields};
use crate::model::box_runs;

/// A model as read from files, before any engine has seen it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedModel {
    /// The architecture.
    pub fields: ModelFields,
    /// The parameters by Hugging Face name.
    pub tensors: BTreeMap<String, LoadedTensor>,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadedTensor {
    /// The extents, outermost first.
    pub shape: Vec<usize>,
    /// The elements, innermost extent contiguous.
    pub values: Vec<f32>,
}

/// A model's parameters where they lie, for [`save`](super::save): nothing is copied.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView<'a> {
    /// The architecture.
    pub fields: ModelFields,
    /// The parameters by Hugging Face name.
    pub tensors: BTreeMap<&'a str, TensorView<'a>>,
}

/// One parameter where it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorView<'a> {
    /// The extents, outermost first.
    pub shape: &'a [usize],
    /// The elements, innermost extent contiguous.
    pub values: &'a [f32],
}

impl LoadedTensor {
    /// The elements of a box, row by row: the interval of each dimension.
    ///
    /// # Panics
    /// If it is of other dimensions, or not within the tensor.
    #[must_use]
    pub fn part(&self, part: &[Range<usize>]) -> Vec<f32> {
        let cols = self.shape[1..].iter().product();
        let runs = box_runs(cols, part).map(|run| &self.values[run]);
        runs.flatten().copied().collect()
    }
}

impl LoadedModel {
    /// The number of parameters; a tied head counts once.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.tensors
            .values()
            .map(|tensor| tensor.values.len())
            .sum()
    }
}

/// Checks that numbers of a tensor are some.
pub(super) fn finite(path: &Path, name: &str, values: &[f32]) -> Result<(), LoadError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => Err(LoadError::NotFinite {
            path: path.into(),
            name: name.into(),
            value: values[at],
            at,
        }),
    }
}
