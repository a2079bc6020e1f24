//! Several models of one architecture as one: the weighted sum of their parameters.
//!
//! Of two fine-tuned models and the base they come from this is Balanced Actor Initialization
//! (arXiv 2509.00309), with which reinforcement learning begins from a model that has seen both
//! instructions and long reasoning and has not left its base too far:
//!
//! `θ = α θ_base + (1 - α) Σ_i w_i θ_i` with `Σ_i w_i = 1`,
//!
//! which is one sum with the weights `α` and `(1 - α) w_i`.
//!
//! Tensors are read, summed and written one at a time, so a merge holds one of them however large
//! the models are. Each element is summed in `f32` in the order of the parts, so the result is the
//! same to the bit whatever the number of threads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, View};
use serde::Serialize;

use super::folder::directory_fields;
use super::safetensors::{
    CONFIG, INDEX, SUMS, StoredType, map, read_json, sha256, shards, verify, write_directory,
};
use super::{
    error::{LoadError, SaveError},
    fields::ModelFields,
};

/// One of the models that are merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// A directory with `config.json` and safetensors.
    pub directory: PathBuf,
    /// The model, as `merge.json` and errors name it: where it lay before it was put into the directory.
    pub origin: PathBuf,
    /// The factor on its parameters.
    pub weight: f64,
}

/// Counts of the merged parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Tensors.
    pub tensors: usize,
    /// Parameters in them.
    pub parameters: usize,
    /// Bytes that were read of all parts.
    pub bytes_read: u64,
}

/// Why models could not be merged. The target does not exist.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There is nothing to merge.
    #[error("name two models at least: {0} is given")]
    Parts(usize),
    /// The weights do not add up to the weight of one model.
    #[error("the weights add up to {sum}, not to 1: {weights:?}")]
    Weights {
        /// Their sum.
        sum: f64,
        /// All of them.
        weights: Vec<f64>,
    },
    /// A model is of another architecture than the first.
    #[error("{} is of another architecture than {}: its {what} differs", of.display(), first.display())]
    Architecture {
        /// The model.
        of: PathBuf,
        /// The first one.
        first: PathBuf,
        /// The property that differs.
        what: String,
    },
    /// A model could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The result could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
}

/// The most that the sum of the weights may differ from 1: they are written in decimals.
const SUM_ERROR: f64 = 1e-6;
/// Elements that a thread takes at least: fewer are summed sooner than a thread begins. In tests, few
/// enough for small models to need several.
const THREAD_ELEMENTS: usize = if cfg!(test) { 64 } else { 1 << 18 };
/// The name of the file that names a merged model's parts, in its directory.
pub const PROVENANCE: &str = "merge.json";

/// Merges models into a new directory, in the type of the first unless another is asked for. It has
/// the configuration and the tokenizer of the first, and `merge.json`, which says what went into it.
///
/// # Errors
/// [`MergeError`]; the target does not exist then, unless it existed before.
pub fn merge(
    parts: &[Part],
    target: &Path,
    stored_type: Option<StoredType>,
    threads: usize,
) -> Result<Merged, MergeError> {
    if parts.len() < 2 {
        return Err(MergeError::Parts(parts.len()));
    }
    let weights: Vec<f64> = parts.iter().map(|part| part.weight).collect();
    let sum: f64 = weights.iter().sum();
    if !sum.is_finite() || (sum - 1.0).abs() > SUM_ERROR {
        return Err(MergeError::Weights { sum, weights });
    }
    if target.symlink_metadata().is_ok() {
        return Err(SaveError::Exists {
            path: target.to_owned(),
        }
        .into());
    }
    let opened: Result<Vec<_>, _> = parts.iter().map(Opened::open).collect();
    let opened = opened?;
    let read: Result<Vec<_>, _> = opened.iter().map(Opened::tensors).collect();
    let read = read?;
    let stored_type = stored_type.unwrap_or_else(|| stored_type_of(&read[0]));
    let sums = sums(parts, &read, stored_type, threads)?;
    let merged = Merged {
        tensors: sums.len(),
        parameters: sums.values().map(Sum::len).sum(),
        bytes_read: sums.values().map(Sum::bytes_read).sum(),
    };
    let mut texts = texts(&parts[0].directory, stored_type)?;
    texts.push((PROVENANCE.to_owned(), provenance(&opened)?));
    write_directory(target, sums, &texts)?;
    Ok(merged)
}

/// The files of a part, for as long as it is read.
struct Opened<'a> {
    part: &'a Part,
    files: Vec<(PathBuf, Mmap)>,
}

type Tensors<'a> = BTreeMap<String, safetensors::tensor::TensorView<'a>>;

impl<'a> Opened<'a> {
    fn open(part: &'a Part) -> Result<Self, LoadError> {
        verify(&part.directory)?;
        let mut files = vec![];
        for name in shards(&part.directory)? {
            let path = part.directory.join(name);
            let bytes = map(&path)?;
            files.push((path, bytes));
        }
        Ok(Self { part, files })
    }

    fn tensors(&self) -> Result<Tensors<'_>, LoadError> {
        let mut tensors = BTreeMap::new();
        for (path, bytes) in &self.files {
            let file = SafeTensors::deserialize(bytes).map_err(|error| LoadError::Damaged {
                path: path.clone(),
                detail: error.to_string(),
            })?;
            for (name, view) in file.tensors() {
                if !matches!(view.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16) {
                    return Err(LoadError::Unsupported {
                        path: path.clone(),
                        detail: format!("element type {:?} of tensor `{name}`", view.dtype()),
                    });
                }
                tensors.insert(name, view);
            }
        }
        Ok(tensors)
    }
}

/// The sum of a tensor over all parts, worked out when it is asked for.
struct Sum<'a> {
    shape: Vec<usize>,
    parts: Vec<(f32, Dtype, &'a [u8])>,
    stored_type: StoredType,
    threads: usize,
}

/// The type that holds all of a model's parameters as they are, or as nearly as two bytes do.
fn stored_type_of(tensors: &Tensors<'_>) -> StoredType {
    match tensors.values().all(|it| it.dtype() != Dtype::F32) {
        true => StoredType::Bf16,
        false => StoredType::F32,
    }
}

/// The tensors that are to be summed, if all parts are of one architecture.
fn sums<'a>(
    parts: &[Part],
    read: &[Tensors<'a>],
    stored_type: StoredType,
    threads: usize,
) -> Result<BTreeMap<String, Sum<'a>>, MergeError> {
    let (first, own) = (&parts[0].directory, &read[0]);
    let fields = directory_fields(first)?;
    for (part, tensors) in parts.iter().zip(read).skip(1) {
        let differs = |what: String| MergeError::Architecture {
            of: part.origin.clone(),
            first: parts[0].origin.clone(),
            what,
        };
        if let Some(name) = own.keys().find(|name| !tensors.contains_key(*name)) {
            return Err(differs(format!("set of tensors, which lacks `{name}`,")));
        }
        if let Some(name) = tensors.keys().find(|name| !own.contains_key(*name)) {
            return Err(differs(format!("set of tensors, which has `{name}` more,")));
        }
        for (name, view) in tensors {
            let (expected, found) = (own[name].shape(), view.shape());
            if expected != found {
                return Err(differs(format!(
                    "tensor `{name}`, of shape {found:?} instead of {expected:?},"
                )));
            }
        }
        // What was trained on longer text computes the same.
        let own = ModelFields {
            context: fields.context,
            config: fields.config.clone(),
            ..directory_fields(&part.directory)?
        };
        if own != fields {
            return Err(differs(format!("{CONFIG}, in what the layers compute,")));
        }
    }
    let names = own.iter().map(|(name, view)| {
        let parts = parts.iter().zip(read).map(|(part, tensors)| {
            let view = &tensors[name];
            (part.weight as f32, view.dtype(), view.data())
        });
        let sum = Sum {
            shape: view.shape().to_vec(),
            parts: parts.collect(),
            stored_type,
            threads,
        };
        (name.clone(), sum)
    });
    Ok(names.collect())
}

impl Sum<'_> {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn bytes_read(&self) -> u64 {
        self.parts
            .iter()
            .map(|(.., bytes)| bytes.len() as u64)
            .sum()
    }

    /// Sums so many elements from one on, and encodes them.
    fn encoded(&self, from: usize, out: &mut [u8]) {
        let len = out.len() / self.stored_type.bytes();
        let mut sum = vec![0.0; len];
        for (weight, dtype, bytes) in &self.parts {
            let size = dtype.bitsize() / 8;
            let bytes = &bytes[from * size..(from + len) * size];
            let halves = || bytes.chunks_exact(2).map(|it| [it[0], it[1]]);
            let pairs = sum.iter_mut();
            match dtype {
                Dtype::BF16 => pairs
                    .zip(halves())
                    .for_each(|(sum, it)| *sum += weight * bf16::from_le_bytes(it).to_f32()),
                Dtype::F16 => pairs
                    .zip(halves())
                    .for_each(|(sum, it)| *sum += weight * f16::from_le_bytes(it).to_f32()),
                // No others are let in.
                _ => pairs.zip(bytes.chunks_exact(4)).for_each(|(sum, it)| {
                    *sum += weight * f32::from_le_bytes([it[0], it[1], it[2], it[3]]);
                }),
            }
        }
        self.stored_type.write(&sum, out);
    }
}

impl View for Sum<'_> {
    fn dtype(&self) -> Dtype {
        self.stored_type.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut out = vec![0; self.data_len()];
        let share = self
            .len()
            .div_ceil(self.threads.max(1))
            .max(THREAD_ELEMENTS);
        let pieces = out.chunks_mut(share * self.stored_type.bytes());
        thread::scope(|scope| {
            for (number, piece) in pieces.enumerate() {
                let mut sum = move || self.encoded(number * share, piece);
                match share < self.len() {
                    true => drop(scope.spawn(sum)),
                    false => sum(),
                }
            }
        });
        Cow::Owned(out)
    }

    fn data_len(&self) -> usize {
        self.len() * self.stored_type.bytes()
    }
}

/// Everything of a model's directory but its parameters, with the type that is stored now.
fn texts(directory: &Path, stored_type: StoredType) -> Result<Vec<(String, String)>, LoadError> {
    let read = |source| LoadError::Read {
        path: directory.to_owned(),
        source,
    };
    let path = directory.join(CONFIG);
    let mut config = read_json(&path)?;
    for key in ["torch_dtype", "dtype"] {
        if let Some(dtype) = config.get_mut(key) {
            *dtype = stored_type.torch_name().into();
        }
    }
    let mut texts = vec![(CONFIG.to_owned(), format!("{config:#}\n"))];
    let mut entries = fs::read_dir(directory)
        .and_then(Iterator::collect::<io::Result<Vec<_>>>)
        .map_err(read)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let kind = Path::new(name).extension().and_then(|it| it.to_str());
        let is_text = matches!(kind, Some("json" | "txt" | "jinja"));
        if !is_text || [CONFIG, INDEX, SUMS, PROVENANCE].contains(&name) {
            continue;
        }
        let path = entry.path();
        let text = fs::read_to_string(&path).map_err(|source| LoadError::Read { path, source })?;
        texts.push((name.to_owned(), text));
    }
    Ok(texts)
}

/// The parts of a merged model, as they are written down.
#[derive(Serialize)]
struct Provenance {
    parts: Vec<Origin>,
}

#[derive(Serialize)]
struct Origin {
    model: PathBuf,
    weight: f64,
    /// Of each file with parameters.
    sha256: BTreeMap<String, String>,
}

fn provenance(opened: &[Opened<'_>]) -> Result<String, LoadError> {
    let origin = |opened: &'_ Opened<'_>| {
        let sums = opened.files.iter().map(|(path, _)| {
            let sum = sha256(path).map_err(|source| LoadError::Read {
                path: path.clone(),
                source,
            })?;
            let name = path.file_name().unwrap_or_default();
            Ok((name.to_string_lossy().into_owned(), sum))
        });
        Ok(Origin {
            model: opened.part.origin.clone(),
            weight: opened.part.weight,
            sha256: sums.collect::<Result<_, LoadError>>()?,
        })
    };
    let parts = opened
        .iter()
        .map(origin)
        .collect::<Result<_, LoadError>>()?;
    // Names and numbers: it can be written down.
    let text = serde_json::to_string_pretty(&Provenance { parts });
    Ok(text.unwrap_or_default() + "\n")
}
