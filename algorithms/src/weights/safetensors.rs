//! Hugging Face directories: `config.json` and safetensors, in one file or in shards.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use half::bf16;
use memmap2::Mmap;
use safetensors::{Dtype, View};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    error::{LoadError, SaveError},
    fields::ModelFields,
    loaded::{ModelView, TensorView},
    names::{FileTensor, file_tensors},
};
use crate::tokenizer::Tokenizer;
use crate::{json, lfs};

/// The type in which a checkpoint stores its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoredType {
    /// Four bytes, exact.
    F32,
    /// Two bytes, rounded to nearest.
    Bf16,
}

/// Writes a directory that [`load_directory`](super::load_directory) and Hugging Face's libraries
/// read: `config.json`, `model.safetensors`, the tokenizer's files if one is given, and `SHA256SUMS`.
///
/// All or nothing: files are written to a temporary directory beside the target, flushed to the
/// disk, and renamed.
///
/// # Errors
/// [`SaveError`]; the target does not exist then, unless it existed before.
pub fn save(
    target: &Path,
    model: &ModelView<'_>,
    stored_type: StoredType,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), SaveError> {
    for (&name, &TensorView { shape, values }) in &model.tensors {
        if shape.iter().product::<usize>() != values.len() {
            return Err(SaveError::Shape {
                name: name.to_owned(),
                shape: shape.to_vec(),
                values: values.len(),
            });
        }
    }
    let texts = texts(&model.fields, Some(stored_type), tokenizer);
    let shapes = model.tensors.iter();
    let shapes = shapes.map(|(name, tensor)| ((*name).to_owned(), tensor.shape.to_vec()));
    let files = file_tensors(model.fields.naming(), shapes);
    let views = files.into_iter().map(|file| {
        let parts = file
            .parts
            .iter()
            .map(|(name, _)| model.tensors[name.as_str()]);
        let parts = parts.collect();
        let stored = Stored {
            shape: file.shape(),
            parts,
            stored_type,
            file: file.clone(),
        };
        (file.name, stored)
    });
    write_directory(target, views, &texts)
}

/// The files of a model's directory beside its weights, by name: its configuration, and the tokenizer's
/// if one is given. Without a type, the configuration names the one in which the model that this one
/// was made from was stored.
#[must_use]
pub fn texts(
    fields: &ModelFields,
    stored_type: Option<StoredType>,
    tokenizer: Option<&Tokenizer>,
) -> Vec<(String, String)> {
    let named = stored_type.map(StoredType::torch_name);
    let config = format!("{:#}\n", fields.to_config(named, tokenizer));
    let tokenizer = tokenizer.map(Tokenizer::files).unwrap_or_default();
    let tokenizer = tokenizer
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text));
    [(CONFIG.to_owned(), config)]
        .into_iter()
        .chain(tokenizer)
        .collect()
}

/// Writes tensors, each as its turn comes, and texts into a directory, with a checksum for each file.
/// All or nothing.
pub(super) fn write_directory(
    target: &Path,
    tensors: impl IntoIterator<Item = (impl AsRef<str> + Ord + std::fmt::Display, impl View)>,
    texts: &[(String, String)],
) -> Result<(), SaveError> {
    if target.symlink_metadata().is_ok() {
        return Err(SaveError::Exists {
            path: target.into(),
        });
    }
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |source| SaveError::Write { path, source }
    };
    fs::create_dir_all(parent).map_err(refused(parent))?;
    let partial = tempfile::Builder::new()
        .prefix(".partial-")
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(parent)
        .map_err(refused(parent))?;

    let format = [("format".to_owned(), "pt".to_owned())].into();
    let path = partial.path().join(WEIGHTS);
    safetensors::serialize_to_file(tensors, Some(format), &path)
        .map_err(|error| refused(&path)(io::Error::other(error)))?;

    let mut names = vec![WEIGHTS];
    for (name, text) in texts {
        let path = partial.path().join(name);
        fs::write(&path, text).map_err(refused(&path))?;
        names.push(name);
    }
    let mut sums = String::new();
    for name in &names {
        let path = partial.path().join(name);
        sums.push_str(&format!(
            "{}  {name}\n",
            sha256(&path).map_err(refused(&path))?
        ));
    }
    let path = partial.path().join(SUMS);
    File::create(&path)
        .and_then(|mut file| file.write_all(sums.as_bytes()))
        .map_err(refused(&path))?;
    names.push(SUMS);
    for name in names {
        let path = partial.path().join(name);
        File::open(&path)
            .and_then(|file| file.sync_all())
            .map_err(refused(&path))?;
    }
    sync_directory(partial.path()).map_err(refused(partial.path()))?;
    fs::rename(partial.path(), target).map_err(refused(target))?;
    // Renamed: there is nothing left to remove.
    let _moved = partial.keep();
    sync_directory(parent).map_err(refused(parent))
}

impl StoredType {
    pub(super) const fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
        }
    }

    /// Bytes of one number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Writes numbers, little-endian, as far as there is room for them.
    pub fn write(self, numbers: &[f32], out: &mut [u8]) {
        match self {
            Self::F32 => {
                let pairs = out.as_chunks_mut().0.iter_mut().zip(numbers);
                pairs.for_each(|(out, number)| *out = number.to_le_bytes());
            }
            Self::Bf16 => {
                let pairs = out.as_chunks_mut().0.iter_mut().zip(numbers);
                pairs.for_each(|(out, number)| *out = bf16::from_f32(*number).to_le_bytes());
            }
        }
    }

    /// Reads whole numbers and puts them behind the others.
    pub fn read(self, bytes: &[u8], numbers: &mut Vec<f32>) {
        match self {
            Self::F32 => {
                let all = bytes.as_chunks().0.iter();
                numbers.extend(all.map(|bytes| f32::from_le_bytes(*bytes)));
            }
            Self::Bf16 => {
                let all = bytes.as_chunks().0.iter();
                numbers.extend(all.map(|bytes| bf16::from_le_bytes(*bytes).to_f32()));
            }
        }
    }

    pub(super) const fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// A parameter on its way into a file, encoded when its turn comes.
struct Stored<'a> {
    file: FileTensor,
    shape: Vec<usize>,
    parts: Vec<TensorView<'a>>,
    stored_type: StoredType,
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.stored_type.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let width = self.stored_type.bytes();
        let parts = self.parts.iter().map(|part| {
            let mut bytes = vec![0; part.values.len() * width];
            self.stored_type.write(part.values, &mut bytes);
            Cow::Owned(bytes)
        });
        self.file.joined(parts.collect(), width)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.stored_type.bytes()
    }
}

/// A file as it lies, for as long as it is read.
pub(super) fn map(path: &Path) -> Result<Mmap, LoadError> {
    let read = |source| LoadError::Read {
        path: path.into(),
        source,
    };
    let file = File::open(path).map_err(read)?;
    // SAFETY: the mapping is private, read-only, and dropped by who reads it before they are done.
    // Soundness needs that nobody writes to the file meanwhile: checkpoints are renamed into place
    // complete and never changed, and the module's documentation asks the same of other files.
    unsafe { Mmap::map(&file) }.map_err(read)
}

/// The names of the files that hold the tensors.
pub(super) fn shards(directory: &Path) -> Result<BTreeSet<String>, LoadError> {
    let path = directory.join(INDEX);
    // Where there are both, the one file counts, as in `transformers`.
    if directory.join(WEIGHTS).exists() {
        return Ok(BTreeSet::from([WEIGHTS.to_owned()]));
    }
    if !path.exists() {
        let numbered = numbered(directory);
        if !numbered.is_empty() {
            return Ok(numbered);
        }
        let found = |name: &&str| directory.join(name).exists();
        let others: Vec<&str> = OTHER_WEIGHTS.iter().copied().filter(found).collect();
        return Err(LoadError::NoWeights {
            path: directory.into(),
            others: others.join(", "),
        });
    }
    let index = read_json(&path)?;
    let damaged = |detail: &str| LoadError::Damaged {
        path: path.clone(),
        detail: detail.into(),
    };
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| damaged("no `weight_map`"))?;
    map.values()
        .map(|shard| match shard.as_str() {
            // The index must not lead out of the directory.
            Some(name) if is_file_name(name) => Ok(name.to_owned()),
            _ => Err(damaged("`weight_map` holds something else than file names")),
        })
        .collect()
}

/// The names of shards by the number that theirs have, such as `model-00001-of-00002.safetensors`, where there
/// are some: with those that are not there.
fn numbered(directory: &Path) -> BTreeSet<String> {
    let count = |name: &str| {
        let middle = name.strip_prefix("model-")?.strip_suffix(".safetensors")?;
        let (number, count) = middle.split_once("-of-")?;
        let digits = number.len() == 5 && count.len() == 5;
        number.parse::<u32>().ok().filter(|_| digits)?;
        count.parse::<u32>().ok()
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let count = names.filter_map(|name| count(&name)).max().unwrap_or(0);
    let name = |number| format!("model-{number:05}-of-{count:05}.safetensors");
    (1..=count).map(name).collect()
}

/// Compares every file that `SHA256SUMS` names with its checksum, if there is such a file.
///
/// # Errors
/// [`LoadError::Checksum`] names a file that differs; or the list or a file cannot be read.
pub fn verify(directory: &Path) -> Result<(), LoadError> {
    let path = directory.join(SUMS);
    let sums = match fs::read_to_string(&path) {
        Ok(sums) => sums,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(LoadError::Read { path, source }),
    };
    for line in sums.lines() {
        let Some((expected, name)) = line.split_once("  ").filter(|(_, name)| is_file_name(name))
        else {
            return Err(LoadError::Damaged {
                path,
                detail: format!("line {line:?}"),
            });
        };
        let file = directory.join(name);
        let found = sha256(&file).map_err(|source| LoadError::Read {
            path: file.clone(),
            source,
        })?;
        if found != expected {
            return Err(LoadError::Checksum {
                path: file,
                expected: expected.into(),
                found,
            });
        }
    }
    Ok(())
}

fn is_file_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| file == name)
}

pub(super) fn read_json(path: &PathBuf) -> Result<Value, LoadError> {
    let text = fs::read(path).map_err(|source| LoadError::Read {
        path: path.clone(),
        source,
    })?;
    if lfs::is_pointer(&text) {
        return Err(LoadError::Pointer { path: path.clone() });
    }
    let read = serde_json::from_slice(&text);
    // Python writes numbers that are none, which are no JSON.
    let finite = || serde_json::from_slice(&json::finite(&text)?).ok();
    read.or_else(|error| finite().ok_or(error))
        .map_err(|error| LoadError::Damaged {
            path: path.clone(),
            detail: error.to_string(),
        })
}

/// The SHA-256 of a file's contents in lower-case hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            length => hash.update(&piece[..length]),
        }
    }
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(super) const CONFIG: &str = "config.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Weights of other formats, which are named where there are no others.
const OTHER_WEIGHTS: &[&str] = &[
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "tf_model.h5",
    "flax_model.msgpack",
];
pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const SUMS: &str = "SHA256SUMS";
