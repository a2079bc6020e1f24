//! A whole checkpoint, read by names.

use std::path::Path;

use bytes::Bytes;
use odeon_algorithms::parallel::Region;

use crate::assemble::{AssembleError, Stored};
use crate::commit::{Entry, FindError, Which, find, manifest};
use crate::load::read_blob;
use crate::local::TensorName;
use crate::manifest::Manifest;
use crate::storage::{Storage, StorageError};

/// A checkpoint that is open: its blobs and tensors can be read by their names, one at a time, and each
/// is checked.
#[derive(Debug)]
pub struct Opened {
    storage: Storage,
    entry: Entry,
    manifest: Manifest,
}

impl Opened {
    /// Opens a checkpoint of a place; `None` where the place holds none that is whole.
    ///
    /// # Errors
    /// [`FindError`].
    #[odeon_macros::boxed]
    pub async fn of(storage: &Storage, which: Which) -> Result<Option<Self>, FindError> {
        match find(storage, which).await {
            Ok((entry, manifest)) => Ok(Some(Self {
                storage: storage.clone(),
                entry,
                manifest,
            })),
            Err(FindError::Nothing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens one of the complete checkpoints that a place has.
    ///
    /// # Errors
    /// [`FindError`].
    #[odeon_macros::boxed]
    pub async fn of_entry(storage: &Storage, entry: &Entry) -> Result<Self, FindError> {
        Ok(Self {
            storage: storage.clone(),
            manifest: manifest(storage, entry).await?,
            entry: entry.clone(),
        })
    }

    /// Opens the checkpoint that lies in this folder, such as `place/00000012-step-400`; `None` where the
    /// folder is none of a checkpoint.
    ///
    /// # Errors
    /// [`FindError`].
    #[odeon_macros::boxed]
    pub async fn at(folder: &Path) -> Result<Option<Self>, FindError> {
        let name = folder.file_name().and_then(|name| name.to_str());
        let Some(entry) = name.and_then(Entry::read) else {
            return Ok(None);
        };
        let place = folder
            .parent()
            .filter(|place| !place.as_os_str().is_empty());
        let storage = Storage::folder(place.unwrap_or_else(|| Path::new(".")))?;
        let manifest = manifest(&storage, &entry).await?;
        let entry = Entry {
            complete: true,
            ..entry
        };
        Ok(Some(Self {
            storage,
            entry,
            manifest,
        }))
    }

    /// Which checkpoint it is.
    #[must_use]
    pub const fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Where it lies.
    #[must_use]
    pub const fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Its folder as errors call it.
    #[must_use]
    pub fn shown(&self) -> String {
        self.storage.shown(&self.entry.folder())
    }

    /// All that it holds.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads a blob; `None` where it has none of that name.
    ///
    /// # Errors
    /// [`StorageError`].
    #[odeon_macros::boxed]
    pub async fn blob(&self, name: &str) -> Result<Option<Bytes>, StorageError> {
        let Some(blob) = self.manifest.blobs.get(name) else {
            return Ok(None);
        };
        let block_bytes = self.manifest.block_bytes;
        let bytes = read_blob(&self.storage, &self.entry, blob, block_bytes).await?;
        Ok(Some(bytes))
    }

    /// Reads a tensor, row by row; `None` where it has none of that name.
    ///
    /// # Errors
    /// [`AssembleError`].
    #[odeon_macros::boxed]
    pub async fn tensor(&self, name: &TensorName) -> Result<Option<Vec<u8>>, AssembleError> {
        let TensorName {
            role,
            state,
            tensor,
        } = name;
        match self.manifest.tensor(role, state, tensor) {
            Some(tensor) => self.region(name, &Region::whole(&tensor.shape)).await,
            None => Ok(None),
        }
    }

    /// Reads a region of a tensor, row by row: the blocks of files that it lies in. `None` where it has none of that name.
    ///
    /// # Errors
    /// [`AssembleError`].
    #[odeon_macros::boxed]
    pub async fn region(
        &self,
        name: &TensorName,
        region: &Region,
    ) -> Result<Option<Vec<u8>>, AssembleError> {
        let TensorName {
            role,
            state,
            tensor,
        } = name;
        let Some(tensor) = self.manifest.tensor(role, state, tensor) else {
            return Ok(None);
        };
        let stored = Stored {
            storage: &self.storage,
            entry: &self.entry,
            manifest: &self.manifest,
        };
        Ok(Some(stored.region(name, tensor, region).await?))
    }
}
