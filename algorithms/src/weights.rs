//! Model files: GGUF, and Hugging Face directories with safetensors.
//!
//! Both are read into the same [`LoadedModel`]: fields of the architecture, and tensors in `f32`
//! under Hugging Face's names for the Llama family (`model.embed_tokens.weight`,
//! `model.layers.N.self_attn.q_proj.weight`, ..., `model.norm.weight`, and `lm_head.weight` unless
//! tied). Matrices are `[out, in]`, row by row. Rotary embeddings are in the half-split order: the
//! interleaved rows of GGUF files are put back in order on loading.
//!
//! [`save`] writes a directory that both this module and Hugging Face's libraries read, all or
//! nothing, with a checksum for every file.

mod fields;
mod gguf;
mod gguf_llama;
mod merge;
mod model;
mod quantised;
mod safetensors;

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

pub use self::{
    fields::{Family, ModelFields},
    gguf::{Gguf, GgufTensor, GgufValue},
    gguf_llama::{gguf_fields, load_gguf},
    merge::{MergeError, Merged, PROVENANCE, Part, merge},
    model::{BuildError, FlatModel},
    quantised::Encoding,
    safetensors::{StoredType, directory_fields, load_directory, save, texts},
};

pub(crate) use self::safetensors::sha256;

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

/// A model's parameters where they lie, for [`save`]: nothing is copied.
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

/// Why a model could not be loaded. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file's contents break its format: it is damaged or cut off. Fetch or copy it again.
    #[error("{} is damaged: {detail}; fetch or copy it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error, and its place.
        detail: String,
    },
    /// A file's checksum is not the recorded one. Restore it from another copy, or fall back to an
    /// earlier checkpoint.
    #[error(
        "{} has sha256 {found} where {expected} is recorded; restore it or use another checkpoint",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The recorded checksum.
        expected: String,
        /// The file's checksum.
        found: String,
    },
    /// The file is sound, but holds something that is not supported.
    #[error("{}: {detail} is not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The thing that is not supported.
        detail: String,
    },
    /// A parameter of the architecture is not in the files.
    #[error("tensor `{name}` is missing in {}; the download or checkpoint is incomplete", path.display())]
    Missing {
        /// The file or directory.
        path: PathBuf,
        /// The Hugging Face name.
        name: String,
    },
    /// A parameter has other extents than the configuration says.
    #[error("tensor `{name}` in {} has shape {found:?}, not {expected:?}; weights and configuration do not belong together", path.display())]
    Shape {
        /// The file or directory.
        path: PathBuf,
        /// The Hugging Face name.
        name: String,
        /// The extents in the file.
        found: Vec<usize>,
        /// The extents by the configuration.
        expected: Vec<usize>,
    },
}

/// Why a checkpoint was not written. The target does not exist; unfinished files are removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The target exists already: checkpoints are never overwritten. Choose another name.
    #[error("{} exists already; checkpoints are never overwritten", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// Writing failed, most likely for want of space.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A tensor has another number of elements than its shape says.
    #[error("tensor `{name}` has {values} values for shape {shape:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its extents.
        shape: Vec<usize>,
        /// The number of its elements.
        values: usize,
    },
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

    /// Checks that every parameter of the architecture is there with its shape, and drops others,
    /// such as a tied head stored all the same.
    fn checked(mut self, path: &std::path::Path) -> Result<Self, LoadError> {
        let mut tensors = BTreeMap::new();
        for (name, expected) in self.fields.tensor_shapes() {
            let Some(tensor) = self.tensors.remove(&name) else {
                return Err(LoadError::Missing {
                    path: path.into(),
                    name,
                });
            };
            if tensor.shape != expected {
                let found = tensor.shape;
                return Err(LoadError::Shape {
                    path: path.into(),
                    name,
                    found,
                    expected,
                });
            }
            tensors.insert(name, tensor);
        }
        self.tensors = tensors;
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
