//! Hugging Face directories, opened: what they hold, before any number is read.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use super::{
    error::LoadError,
    fields::ModelFields,
    loaded::{LoadedModel, LoadedTensor},
    names::{FileTensor, file_tensors},
    safetensors::{CONFIG, INDEX, WEIGHTS, map, read_json, shards, verify},
};
use crate::lfs;
use crate::model::box_runs;

/// A directory with `config.json` and `model.safetensors`, or the shards that
/// `model.safetensors.index.json` names. Every tensor of the architecture is there, with its shape.
#[derive(Debug)]
pub struct ModelFolder {
    directory: PathBuf,
    fields: ModelFields,
    shards: Vec<(PathBuf, Mmap)>,
    /// Where each tensor of the architecture lies.
    places: BTreeMap<String, PartPlace>,
    /// Elements of each type, of the tensors that are used.
    stored: BTreeMap<String, usize>,
    notes: Vec<String>,
}

/// Bytes of a tensor.
#[derive(Clone, Debug)]
struct Place {
    /// Its name in the file.
    name: String,
    shard: usize,
    shape: Vec<usize>,
    dtype: Dtype,
}

/// Where a tensor of the architecture lies: a part of a tensor of a file.
#[derive(Clone, Debug)]
struct PartPlace {
    place: Place,
    file: Arc<FileTensor>,
    part: usize,
}

impl ModelFolder {
    /// Opens a directory. Numbers and checksums are not looked at.
    ///
    /// # Errors
    /// [`LoadError`] names the file or tensor at fault.
    pub fn open(directory: &Path) -> Result<Self, LoadError> {
        let mut fields = directory_fields(directory)?;
        let mut mapped = vec![];
        for name in shards(directory)? {
            let path = directory.join(name);
            let bytes = map(&path)?;
            mapped.push((path, bytes));
        }
        let mut found = BTreeMap::new();
        for (shard, (path, bytes)) in mapped.iter().enumerate() {
            for (name, view) in parsed(path, bytes)?.tensors() {
                let place = Place {
                    name: name.clone(),
                    shard,
                    shape: view.shape().to_vec(),
                    dtype: view.dtype(),
                };
                found.insert(name, place);
            }
        }
        let mut notes = unwrapped(&mut found);
        notes.extend(prefixed(&mut found));
        if directory.join(ADAPTER).exists() {
            notes.push(format!(
                "`{ADAPTER}` lies beside the weights: the adapter is not applied; merge it first where it is wanted"
            ));
        }
        if !directory.join(WEIGHTS).exists() && !directory.join(INDEX).exists() {
            notes.push(format!(
                "`{INDEX}` is not there: shards are taken by their numbers"
            ));
        }
        let head = found.get(HEAD);
        if let (true, Some(head)) = (fields.tied, head) {
            let embedding = found.get(EMBEDDING).or_else(|| found.get(GPT2_EMBEDDING));
            let same = embedding.is_some_and(|it| same(&mapped, it, head));
            if !same {
                notes.push(format!(
                    "`tie_word_embeddings` is true, and `{HEAD}` is stored with other numbers than \
                     the embedding: the stored head is used, as transformers does"
                ));
                fields.tied = false;
            }
        }
        let mut folder = Self {
            directory: directory.into(),
            places: BTreeMap::new(),
            stored: BTreeMap::new(),
            shards: mapped,
            fields,
            notes,
        };
        folder.place(found)?;
        Ok(folder)
    }

    /// Takes the tensors of the architecture out of all.
    fn place(&mut self, mut found: BTreeMap<String, Place>) -> Result<(), LoadError> {
        let path = || self.directory.clone();
        for file in file_tensors(self.fields.naming(), self.fields.tensor_shapes()) {
            let (name, expected) = (file.name.clone(), file.shape());
            let Some(place) = found.remove(&name) else {
                return Err(LoadError::Missing { path: path(), name });
            };
            if place.shape != expected {
                return Err(LoadError::Shape {
                    path: path(),
                    name,
                    found: place.shape,
                    expected,
                });
            }
            if element_bytes(place.dtype).is_none() {
                let detail = format!("element type {:?} of tensor `{name}`", place.dtype);
                let path = self.shards[place.shard].0.clone();
                return Err(LoadError::Unsupported { path, detail });
            }
            let elements: usize = place.shape.iter().product();
            let stored = format!("{:?}", place.dtype);
            *self.stored.entry(stored).or_default() += elements;
            let file = Arc::new(file);
            for (part, (name, _)) in file.parts.iter().enumerate() {
                let (place, file) = (place.clone(), file.clone());
                let own = PartPlace { place, file, part };
                self.places.insert(name.clone(), own);
            }
        }
        // A head that is the embedding's is stored by some.
        found.remove(HEAD);
        let in_layers = |name: &str| {
            let rest = name.strip_prefix("model.layers.");
            let rest = rest.or_else(|| name.strip_prefix("transformer.h."));
            let layer = rest.and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            layer.is_some_and(|layer| layer < self.fields.layers)
                && !MASKS.iter().any(|mask| name.ends_with(mask))
        };
        // Masks and angles that some versions store, which every model has.
        found.retain(|name, _| !MASKS.iter().any(|mask| name.ends_with(mask)));
        if let Some(name) = found.keys().find(|name| in_layers(name)) {
            let detail = format!("tensor `{name}`, which `{CONFIG}` says nothing of,");
            return Err(LoadError::Unsupported {
                path: path(),
                detail,
            });
        }
        if !found.is_empty() {
            let names: Vec<&str> = found.keys().map(String::as_str).take(4).collect();
            let more = if found.len() > 4 { ", ..." } else { "" };
            self.notes.push(format!(
                "tensors that the model has no use for are left out: {}{more} ({} in all)",
                names.join(", "),
                found.len()
            ));
        }
        Ok(())
    }

    /// The architecture.
    #[must_use]
    pub fn fields(&self) -> &ModelFields {
        &self.fields
    }

    /// Elements stored in each type, by its name in safetensors.
    #[must_use]
    pub fn stored(&self) -> &BTreeMap<String, usize> {
        &self.stored
    }

    /// Oddities that do not keep the model from being used.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads a box of a tensor of the architecture, row by row: the interval of each dimension. Where the file has the
    /// matrix as it is, nothing else of it is looked at.
    ///
    /// # Errors
    /// [`LoadError::Missing`] when the architecture has no such tensor; [`LoadError::NotFinite`] when a number of the box is
    /// none, with its place there.
    pub fn read(&self, name: &str, own: &[Range<usize>]) -> Result<Vec<f32>, LoadError> {
        let missing = || LoadError::Missing {
            path: self.directory.clone(),
            name: name.to_owned(),
        };
        let PartPlace { place, file, part } = self.places.get(name).ok_or_else(missing)?;
        let (path, bytes) = &self.shards[place.shard];
        let files = parsed(path, bytes)?;
        let view = files.tensor(&place.name);
        let view = view.map_err(|error| damaged(path, &error))?;
        let width = element_bytes(place.dtype).unwrap_or(4);
        let bytes = file.part(*part, view.data(), width);
        let cols = file.parts[*part].1[1..].iter().product();
        let mut values = vec![];
        for run in box_runs(cols, own) {
            let bytes = &bytes[run.start * width..run.end * width];
            values.extend(numbers(place.dtype, bytes));
        }
        super::loaded::finite(path, &place.name, &values)?;
        Ok(values)
    }

    /// Reads all numbers.
    ///
    /// # Errors
    /// [`LoadError::NotFinite`] names a tensor in which one is none.
    pub fn load(self) -> Result<LoadedModel, LoadError> {
        let mut tensors = BTreeMap::new();
        let files: Vec<SafeTensors<'_>> = self
            .shards
            .iter()
            .map(|(path, bytes)| parsed(path, bytes))
            .collect::<Result<_, _>>()?;
        for (name, PartPlace { place, file, part }) in &self.places {
            let path = &self.shards[place.shard].0;
            let view = files[place.shard].tensor(&place.name);
            let view = view.map_err(|error| damaged(path, &error))?;
            let width = element_bytes(place.dtype).unwrap_or(4);
            let values = numbers(place.dtype, &file.part(*part, view.data(), width));
            super::loaded::finite(path, &place.name, &values)?;
            let shape = file.parts[*part].1.clone();
            tensors.insert(name.clone(), LoadedTensor { shape, values });
        }
        let fields = self.fields;
        Ok(LoadedModel { fields, tensors })
    }
}

/// Loads a model from a directory. Where that has a `SHA256SUMS` file, every file in it is verified
/// first.
///
/// # Errors
/// [`LoadError`] names the file or tensor at fault.
pub fn load_directory(directory: &Path) -> Result<LoadedModel, LoadError> {
    verify(directory)?;
    ModelFolder::open(directory)?.load()
}

/// Reads the architecture alone, from a directory's `config.json`. Checksums are not compared.
///
/// # Errors
/// [`LoadError`] when the file is not there, broken, or describes another kind of model.
pub fn directory_fields(directory: &Path) -> Result<ModelFields, LoadError> {
    let path = directory.join(CONFIG);
    ModelFields::from_config(&read_json(&path)?)
        .map_err(|detail| LoadError::Unsupported { path, detail })
}

fn damaged(path: &Path, error: &safetensors::SafeTensorError) -> LoadError {
    LoadError::Damaged {
        path: path.into(),
        detail: error.to_string(),
    }
}

fn parsed<'a>(path: &Path, bytes: &'a Mmap) -> Result<SafeTensors<'a>, LoadError> {
    SafeTensors::deserialize(bytes).map_err(|error| match lfs::is_pointer(bytes) {
        true => LoadError::Pointer { path: path.into() },
        false => damaged(path, &error),
    })
}

/// Names without what wrappers of training put in front of them.
fn unwrapped(found: &mut BTreeMap<String, Place>) -> Vec<String> {
    let mut notes = vec![];
    while !found.is_empty()
        && let Some(wrapper) = WRAPPERS
            .iter()
            .find(|wrapper| found.keys().all(|name| name.starts_with(**wrapper)))
    {
        let all = std::mem::take(found).into_iter();
        found.extend(all.map(|(name, place)| (name[wrapper.len()..].to_owned(), place)));
        notes.push(format!(
            "tensors are named with `{wrapper}` in front, as a wrapper of training writes them"
        ));
    }
    notes
}

/// Names as they are with a head: files that were saved from the bare model lack `model.` in front.
fn prefixed(found: &mut BTreeMap<String, Place>) -> Vec<String> {
    let bare = [(PREFIX, EMBEDDING), (GPT2_PREFIX, GPT2_EMBEDDING)];
    let bare = bare.into_iter().find(|(prefix, embedding)| {
        !found.contains_key(*embedding) && found.contains_key(&embedding[prefix.len()..])
    });
    let Some((prefix, _)) = bare else {
        return vec![];
    };
    let all = std::mem::take(found);
    found.extend(all.into_iter().map(|(name, place)| match name.as_str() {
        HEAD => (name, place),
        own if own.starts_with("value_head.") => (name, place),
        _ => (format!("{prefix}{name}"), place),
    }));
    // The files of GPT-2 that everybody has are so.
    match prefix {
        GPT2_PREFIX => vec![],
        _ => vec![format!(
            "tensors are named without `{prefix}` in front, as the bare model writes them"
        )],
    }
}

/// Returns true when two tensors have the same bytes.
fn same(shards: &[(PathBuf, Mmap)], one: &Place, other: &Place) -> bool {
    let bytes = |place: &Place| {
        let (path, bytes) = &shards[place.shard];
        let file = parsed(path, bytes).ok()?;
        Some(file.tensor(&place.name).ok()?.data())
    };
    (one.dtype, &one.shape) == (other.dtype, &other.shape) && bytes(one) == bytes(other)
}

/// Bytes of a number, of types that are read.
fn element_bytes(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        _ => None,
    }
}

fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F64 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|bytes| f64::from_le_bytes(*bytes) as f32).collect()
        }
        Dtype::F16 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|bytes| f16::from_le_bytes(*bytes).to_f32())
                .collect()
        }
        Dtype::BF16 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|bytes| bf16::from_le_bytes(*bytes).to_f32())
                .collect()
        }
        _ => {
            let all = bytes.as_chunks().0.iter();
            all.map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
    }
}

/// What `torch.compile`, parallel data and adapters write in front of names.
const WRAPPERS: [&str; 4] = [
    "_orig_mod.",
    "module.",
    "base_model.model.",
    "_fsdp_wrapped_module.",
];
const ADAPTER: &str = "adapter_config.json";
const PREFIX: &str = "model.";
const EMBEDDING: &str = "model.embed_tokens.weight";
const GPT2_PREFIX: &str = "transformer.";
const GPT2_EMBEDDING: &str = "transformer.wte.weight";
/// What follows from the architecture, and is stored by some.
const MASKS: [&str; 3] = ["rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"];
const HEAD: &str = "lm_head.weight";
