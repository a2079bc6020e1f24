//! Models out of checkpoints, as out of model folders.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon_algorithms::parallel::{Region, Span};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::weights::{
    LoadedModel, LoadedTensor, ModelFields, StoredType, directory_fields,
};
use odeon_checkpoint::export::FOLDER_BLOBS;
use odeon_checkpoint::manifest::{MANIFEST, Tensor};
use odeon_checkpoint::{Dtype, MODEL, Opened, TensorName, Which};
use tempfile::TempDir;

use super::state::{ACTOR, apart};
use super::{checkpoint, legacy_checkpoint};

/// The folder of a run's newest policy, as [`read_model`](super::read_model) takes it; `None` when there is no
/// checkpoint.
///
/// # Errors
/// The checkpoint is broken.
pub fn latest_model(folder: &Path) -> Result<Option<PathBuf>, Failure> {
    if let Some(opened) = checkpoint::opened(folder, Which::Latest)? {
        return Ok(Some(folder.join(opened.entry().folder())));
    }
    Ok(legacy_checkpoint::latest(folder)?.map(|legacy| legacy.model()))
}

/// Returns true when a path is the folder of one checkpoint.
#[must_use]
pub fn is_checkpoint(path: &Path) -> bool {
    // Other tools have model folders with a file of that name.
    path.join(MANIFEST).is_file() && !path.join("config.json").is_file()
}

/// A checkpoint with a policy.
pub(super) struct StoredModel {
    path: PathBuf,
    opened: Opened,
    /// The files that belong to the model.
    files: TempDir,
}

impl StoredModel {
    /// Opens a checkpoint by its folder; `None` where the path is none of a checkpoint.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, Failure> {
        if !is_checkpoint(path) {
            return Ok(None);
        }
        let files = tempfile::tempdir().map_err(Failure::error)?;
        let opened = apart(async {
            let opened = Opened::at(path).await.map_err(Failure::error)?;
            let opened = opened.ok_or_else(|| {
                Failure::error(format!(
                    "{} has another name than its checkpoint was given",
                    path.display()
                ))
            })?;
            for name in opened.manifest().blobs.keys() {
                let Some(file) = name.strip_prefix(FOLDER_BLOBS) else {
                    continue;
                };
                let Some(bytes) = opened.blob(name).await.map_err(Failure::error)? else {
                    continue;
                };
                let file = Path::new(file).file_name().unwrap_or_default();
                std::fs::write(files.path().join(file), bytes).map_err(Failure::error)?;
            }
            Ok(opened)
        })?;
        Ok(Some(Self {
            path: path.to_owned(),
            opened,
            files,
        }))
    }

    /// The architecture.
    pub(super) fn fields(&self) -> Result<ModelFields, Failure> {
        directory_fields(self.files.path()).map_err(|error| self.lacks("configuration", &error))
    }

    /// The tokenizer.
    pub(super) fn tokenizer(&self) -> Result<Tokenizer, Failure> {
        let read = Tokenizer::from_directory(self.files.path());
        read.map_err(|error| self.lacks("tokenizer", &error))
    }

    fn lacks(&self, what: &str, error: &dyn std::fmt::Display) -> Failure {
        let path = self.path.display();
        Failure::error(format!("{path} has no {what} that can be read: {error}"))
    }

    /// The tensors of the model, with its adapters merged.
    fn tensors(&self) -> Result<&BTreeMap<String, Tensor>, Failure> {
        let roles = &self.opened.manifest().roles;
        let model = roles.get(ACTOR).and_then(|states| states.get(MODEL));
        model.ok_or_else(|| {
            let path = self.path.display();
            Failure::error(format!("{path} holds no model of the role `{ACTOR}`"))
        })
    }

    /// The model, with its adapters merged.
    pub(super) fn model(&self) -> Result<LoadedModel, Failure> {
        let fields = self.fields()?;
        let mut tensors = BTreeMap::new();
        for (name, tensor) in self.tensors()? {
            let shape = tensor.shape.clone();
            let values = self.read(name, tensor, &Region::whole(&shape))?;
            tensors.insert(name.clone(), LoadedTensor { shape, values });
        }
        Ok(LoadedModel { fields, tensors })
    }

    /// A box of a tensor of it, row by row. Nothing else is read of its files but what lies in the same blocks.
    pub(super) fn part(&self, name: &str, part: &[Range<usize>]) -> Result<Vec<f32>, Failure> {
        let tensor = self.tensors()?.get(name).ok_or_else(|| {
            let path = self.path.display();
            Failure::error(format!("{path} has no tensor `{name}`"))
        })?;
        let spans = part.iter().cloned().map(Span::from);
        self.read(name, tensor, &Region::new(spans.collect()))
    }

    fn read(&self, name: &str, tensor: &Tensor, region: &Region) -> Result<Vec<f32>, Failure> {
        let stored = match tensor.dtype {
            Dtype::F32 => StoredType::F32,
            Dtype::BF16 => StoredType::Bf16,
            other => {
                let path = self.path.display();
                let what = format!("{path}: tensor `{name}` is of {other:?}, which no model is");
                return Err(Failure::error(what));
            }
        };
        let of = TensorName {
            role: ACTOR.into(),
            state: MODEL.into(),
            tensor: name.to_owned(),
        };
        let bytes = apart(async {
            let bytes = self.opened.region(&of, region).await;
            bytes.map_err(Failure::error)
        })?;
        let mut values = vec![];
        stored.read(&bytes.unwrap_or_default(), &mut values);
        Ok(values)
    }
}
