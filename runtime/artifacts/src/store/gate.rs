//! A lock on a store that decides which changes may happen at the same time.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::DiskError;

/// A lock on a store, between threads and between processes alike.
///
/// Those who add hold it together, who removes holds it alone: what was seen to be there stays
/// while something is built on it. The kernel releases it when a process ends.
#[derive(Debug)]
pub(super) struct Gate(PathBuf);

/// Held until it is dropped. Nobody who holds one asks for another.
#[derive(Debug)]
#[must_use]
pub(super) struct Held(#[expect(dead_code, reason = "closing the file is what releases it")] File);

impl Gate {
    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// To add.
    pub(super) fn shared(&self) -> Result<Held, DiskError> {
        self.hold(File::lock_shared)
    }

    /// To remove.
    pub(super) fn alone(&self) -> Result<Held, DiskError> {
        self.hold(File::lock)
    }

    fn hold(&self, lock: impl FnOnce(&File) -> std::io::Result<()>) -> Result<Held, DiskError> {
        // Locks belong to an opened file, so each holder opens its own.
        let file = lock_file(&self.0)?;
        lock(&file).map_err(DiskError::at("lock", &self.0))?;
        Ok(Held(file))
    }
}

/// The file that is locked, made if need be.
pub(super) fn lock_file(path: &Path) -> Result<File, DiskError> {
    let mut options = File::options();
    let opened = options.write(true).create(true).truncate(false).open(path);
    opened.map_err(DiskError::at("open", path))
}
