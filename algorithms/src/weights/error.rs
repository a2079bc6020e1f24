//! Why model files cannot be read or written.

use std::path::PathBuf;

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
    /// What is there is a pointer of Git LFS and not the file itself.
    #[error("{} is a pointer of Git LFS and not the file itself: fetch that with `git lfs pull`", path.display())]
    Pointer {
        /// The file.
        path: PathBuf,
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
    /// A number is none, or infinite. Training that went wrong writes such files; take an earlier
    /// checkpoint.
    #[error("tensor `{name}` in {} has {value} at element {at}; use another checkpoint", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor's name there.
        name: String,
        /// The number.
        value: f32,
        /// Its place in the tensor, row by row.
        at: usize,
    },
    /// The directory has no weights in a format that is read.
    #[error(
        "{} has neither model.safetensors nor model.safetensors.index.json{}", path.display(),
        match others.as_str() {
            "" => "; the download is incomplete".to_owned(),
            others => format!(
                ", but {others}; convert it: load it with transformers and call \
                 `save_pretrained(.., safe_serialization=True)`"
            ),
        }
    )]
    NoWeights {
        /// The directory.
        path: PathBuf,
        /// Weights of other formats that are there.
        others: String,
    },
    /// A parameter of the architecture is not in the files.
    #[error("tensor `{name}` is missing in {}; the weights are incomplete, or of another architecture", path.display())]
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
