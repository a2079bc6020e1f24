//! A role's model as a folder that Hugging Face's libraries load.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use odeon_algorithms::parallel::Region;
use odeon_algorithms::weights::{FileTensor, file_tensors};
use safetensors::Dtype;

use crate::assemble::{AssembleError, Stored};
use crate::commit::{Entry, FindError, Which, find};
use crate::file::header;
use crate::load::read_blob;
use crate::local::{MODEL, TensorName, element_bytes};
use crate::manifest::{Manifest, Tensor};
use crate::storage::{Storage, StorageError};

/// Blobs whose names begin so are files of the exported folder: `hf/config.json`.
pub const FOLDER_BLOBS: &str = "hf/";

/// The model to export, and the form in which it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Whose model.
    pub role: String,
    /// The type in which numbers are stored; `None` leaves them as they are. Only `F32`, `F16` and
    /// `BF16` become each other; whole numbers stay.
    pub dtype: Option<Dtype>,
    /// A file ends before the tensor with which it would be larger.
    pub file_bytes: usize,
    /// Files that are copied into the folder: `config.json`, those of the tokenizer. They come
    /// before what the checkpoint has of the same name.
    pub files: Vec<PathBuf>,
}

/// Files and parameters that were exported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// Of which checkpoint.
    pub entry: Entry,
    /// The files of the folder, with their sizes.
    pub files: Vec<(String, u64)>,
    /// Parameters.
    pub parameters: u64,
}

/// Why nothing was exported. The folder does not exist, unless it did before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// There is no such checkpoint.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It could not be read.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// It has no model of that role.
    #[error("{entry} has no model of role `{role}`; it has: {there}")]
    NoRole {
        /// The checkpoint.
        entry: Entry,
        /// The role.
        role: String,
        /// The roles that it has.
        there: String,
    },
    /// There is no `config.json`, so nobody could load it.
    #[error(
        "{entry} holds no `hf/config.json`, without which nothing loads its model; name a folder \
         that has one"
    )]
    NoConfig {
        /// The checkpoint.
        entry: Entry,
    },
    /// Numbers cannot become others.
    #[error("tensor `{name}` is {found:?} and cannot become {wanted:?}")]
    Dtype {
        /// The tensor.
        name: String,
        /// Its elements.
        found: Dtype,
        /// The type that was asked for.
        wanted: Dtype,
    },
    /// The folder exists already.
    #[error("{} exists already", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Default for Export {
    fn default() -> Self {
        Self {
            role: "actor".into(),
            dtype: None,
            file_bytes: 5_000_000_000,
            files: vec![],
        }
    }
}

/// Writes the model of a role into a folder that is not there yet. One tensor at a time is in
/// memory.
///
/// # Errors
/// [`ExportError`].
#[odeon_macros::boxed]
pub async fn export(
    storage: &Storage,
    which: Which,
    target: &Path,
    options: &Export,
) -> Result<Exported, ExportError> {
    let (entry, manifest) = find(storage, which).await?;
    if target.symlink_metadata().is_ok() {
        return Err(ExportError::Exists {
            path: target.into(),
        });
    }
    let model = manifest
        .roles
        .get(&options.role)
        .and_then(|states| states.get(MODEL));
    let model = model.ok_or_else(|| {
        let roles: Vec<&str> = manifest.roles.keys().map(String::as_str).collect();
        ExportError::NoRole {
            entry: entry.clone(),
            role: options.role.clone(),
            there: roles.join(", "),
        }
    })?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(at(parent))?;
    let partial = tempfile::Builder::new()
        .prefix(".partial-")
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(parent)
        .map_err(at(parent))?;
    let folder = partial.path();
    let stored = Stored {
        storage,
        entry: &entry,
        manifest: &manifest,
    };
    beside(&stored, folder, &options.files).await?;
    if !folder.join("config.json").exists() {
        return Err(ExportError::NoConfig {
            entry: entry.clone(),
        });
    }
    let dtype = match options.dtype {
        Some(dtype) => {
            name_dtype(folder, dtype)?;
            Some(dtype)
        }
        None => named_dtype(folder)?,
    };
    let files = assigned(model, &model_type(folder)?, options, dtype)?;
    let mut index = BTreeMap::new();
    for (number, tensors) in files.iter().enumerate() {
        let name = if files.len() == 1 {
            "model.safetensors".to_owned()
        } else {
            format!("model-{:05}-of-{:05}.safetensors", number + 1, files.len())
        };
        write_file(&stored, &folder.join(&name), tensors, options).await?;
        index.extend(
            tensors
                .iter()
                .map(|(tensor, ..)| (tensor.name.clone(), name.clone())),
        );
    }
    let sizes = files
        .iter()
        .flatten()
        .map(|(tensor, _, dtype)| bytes_as(tensor, *dtype));
    let total: usize = sizes.sum();
    if files.len() > 1 {
        let text = serde_json::json!({
            "metadata": { "total_size": total },
            "weight_map": index,
        });
        let path = folder.join("model.safetensors.index.json");
        fs::write(&path, format!("{text:#}\n")).map_err(at(&path))?;
    }
    let mut written = vec![];
    for item in fs::read_dir(folder).map_err(at(folder))? {
        let item = item.map_err(at(folder))?;
        let file = File::open(item.path()).map_err(at(&item.path()))?;
        file.sync_all().map_err(at(&item.path()))?;
        let bytes = file.metadata().map_err(at(&item.path()))?.len();
        written.push((item.file_name().to_string_lossy().into_owned(), bytes));
    }
    written.sort_unstable();
    fs::rename(folder, target).map_err(at(target))?;
    // Renamed: there is nothing left to remove.
    let _moved = partial.keep();
    let elements = model
        .values()
        .map(|tensor| tensor.shape.iter().product::<usize>() as u64);
    Ok(Exported {
        parameters: elements.sum(),
        files: written,
        entry,
    })
}

/// Types by their names in `config.json`.
const NAMED: &[(&str, Dtype)] = &[
    ("float32", Dtype::F32),
    ("float16", Dtype::F16),
    ("bfloat16", Dtype::BF16),
];

/// The keys of the type in `config.json`, of transformers from version 5 on and before.
const DTYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// The type that `config.json` names.
fn named_dtype(folder: &Path) -> Result<Option<Dtype>, ExportError> {
    let path = folder.join("config.json");
    let text = fs::read(&path).map_err(at(&path))?;
    // What is no JSON is of no use to anybody, and goes out as it came.
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let name = DTYPE_KEYS.iter().find_map(|key| config.get(key)?.as_str());
    Ok(NAMED.iter().find(|it| Some(it.0) == name).map(|it| it.1))
}

/// Has `config.json` name a type.
fn name_dtype(folder: &Path, dtype: Dtype) -> Result<(), ExportError> {
    let path = folder.join("config.json");
    let text = fs::read(&path).map_err(at(&path))?;
    let name = NAMED.iter().find(|it| it.1 == dtype).map(|it| it.0);
    let config = serde_json::from_slice::<serde_json::Value>(&text);
    let (Some(name), Ok(mut config)) = (name, config) else {
        return Ok(());
    };
    let there = DTYPE_KEYS.iter().filter(|key| config.get(key).is_some());
    let keys: Vec<&str> = there.copied().collect();
    for key in keys {
        config[key] = name.into();
    }
    fs::write(&path, format!("{config:#}\n")).map_err(at(&path))
}

/// Writes the files that go into the folder beside the tensors.
async fn beside(stored: &Stored<'_>, folder: &Path, files: &[PathBuf]) -> Result<(), ExportError> {
    let Manifest {
        blobs, block_bytes, ..
    } = stored.manifest;
    for (name, blob) in blobs {
        let Some(name) = name
            .strip_prefix(FOLDER_BLOBS)
            .filter(|name| is_file_name(name))
        else {
            continue;
        };
        let bytes = read_blob(stored.storage, stored.entry, blob, *block_bytes).await;
        let path = folder.join(name);
        fs::write(&path, bytes.map_err(AssembleError::from)?).map_err(at(&path))?;
    }
    for file in files {
        if let Some(name) = file.file_name() {
            fs::copy(file, folder.join(name)).map_err(at(file))?;
        }
    }
    Ok(())
}

/// The `model_type` that `config.json` names.
fn model_type(folder: &Path) -> Result<String, ExportError> {
    let path = folder.join("config.json");
    let text = fs::read(&path).map_err(at(&path))?;
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    Ok(config["model_type"].as_str().unwrap_or_default().to_owned())
}

/// A tensor of the folder, those of the checkpoint that it is made of, and the type in which it is stored.
type Assigned<'a> = (FileTensor, Vec<&'a Tensor>, Dtype);

/// Which tensors are in which file.
fn assigned<'a>(
    model: &'a BTreeMap<String, Tensor>,
    model_type: &str,
    options: &Export,
    dtype: Option<Dtype>,
) -> Result<Vec<Vec<Assigned<'a>>>, ExportError> {
    let mut files: Vec<Vec<Assigned<'_>>> = vec![vec![]];
    let mut filled = 0;
    let shapes = model.iter();
    let shapes = shapes.map(|(name, tensor)| (name.clone(), tensor.shape.clone()));
    for tensor in file_tensors(model_type, shapes) {
        let parts = tensor.parts.iter().map(|(name, _)| &model[name]);
        let parts: Vec<&Tensor> = parts.collect();
        let dtype = becomes(&tensor.name, parts[0].dtype, dtype)?;
        let bytes = bytes_as(&tensor, dtype);
        if filled > 0 && filled + bytes > options.file_bytes {
            files.push(vec![]);
            filled = 0;
        }
        filled += bytes;
        if let Some(file) = files.last_mut() {
            file.push((tensor, parts, dtype));
        }
    }
    for file in &mut files {
        // Wider elements first, so that each is aligned.
        file.sort_by_key(|(_, parts, dtype)| {
            let bytes = element_bytes(*dtype).unwrap_or_default();
            (std::cmp::Reverse(bytes), parts[0].dtype)
        });
    }
    Ok(files)
}

async fn write_file(
    stored: &Stored<'_>,
    path: &Path,
    tensors: &[Assigned<'_>],
    options: &Export,
) -> Result<(), ExportError> {
    let entries = tensors.iter().map(|(tensor, _, dtype)| {
        let bytes = bytes_as(tensor, *dtype);
        (tensor.name.clone(), *dtype, tensor.shape(), bytes)
    });
    let file = File::create(path).map_err(at(path))?;
    let mut file = BufWriter::new(file);
    file.write_all(&header(entries)).map_err(at(path))?;
    for (tensor, parts, dtype) in tensors {
        let mut own = Vec::with_capacity(parts.len());
        for ((name, shape), part) in tensor.parts.iter().zip(parts) {
            let name = TensorName {
                role: options.role.clone(),
                state: MODEL.into(),
                tensor: name.clone(),
            };
            let bytes = stored.region(&name, part, &Region::whole(shape)).await?;
            own.push(Cow::Owned(match *dtype == part.dtype {
                true => bytes,
                false => converted(&bytes, part.dtype, *dtype),
            }));
        }
        let bytes = tensor.joined(own, element_bytes(*dtype).unwrap_or_default());
        file.write_all(&bytes).map_err(at(path))?;
    }
    file.flush().map_err(at(path))
}

/// The type in which a tensor's elements are exported.
fn becomes(name: &str, found: Dtype, wanted: Option<Dtype>) -> Result<Dtype, ExportError> {
    let number = |dtype| matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
    match wanted {
        Some(wanted) if number(found) && number(wanted) => Ok(wanted),
        Some(wanted) if found != wanted && matches!(found, Dtype::F64) => Err(ExportError::Dtype {
            name: name.into(),
            found,
            wanted,
        }),
        _ => Ok(found),
    }
}

fn bytes_as(tensor: &FileTensor, dtype: Dtype) -> usize {
    tensor.shape().iter().product::<usize>() * element_bytes(dtype).unwrap_or_default()
}

/// Numbers, rounded to nearest.
fn converted(bytes: &[u8], from: Dtype, to: Dtype) -> Vec<u8> {
    let numbers: Vec<f32> = match from {
        Dtype::F32 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
        Dtype::F16 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|bytes| f16::from_le_bytes(*bytes).to_f32())
                .collect()
        }
        _ => {
            let all = bytes.as_chunks().0.iter();
            all.map(|bytes| bf16::from_le_bytes(*bytes).to_f32())
                .collect()
        }
    };
    let numbers = numbers.into_iter();
    match to {
        Dtype::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
        Dtype::F16 => numbers
            .flat_map(|number| f16::from_f32(number).to_le_bytes())
            .collect(),
        _ => numbers
            .flat_map(|number| bf16::from_f32(number).to_le_bytes())
            .collect(),
    }
}

fn is_file_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| file == name)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ExportError + use<> {
    let path = path.to_owned();
    move |source| ExportError::Io { path, source }
}

impl From<StorageError> for ExportError {
    fn from(error: StorageError) -> Self {
        Self::Assemble(error.into())
    }
}
