//! Where unfinished things lie, so that whose they were is known after a crash.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::gate::lock_file;
use crate::DiskError;
use crate::disk;

/// A folder of this store's own, locked while the process lives.
///
/// What nobody has locked was left by a process that is gone. No clock and no process number says
/// so, both of which may repeat.
#[derive(Debug)]
pub(super) struct Drafts {
    folder: PathBuf,
    next: AtomicU64,
    // Locked until it is closed.
    _lock: File,
}

impl Drafts {
    /// Removes what processes left that are gone, takes a folder, and says how many left one. Only
    /// one process at a time does this.
    pub(super) fn claim(all: &Path) -> Result<(Self, usize), DiskError> {
        let mut left = 0;
        let mut taken = vec![];
        for entry in disk::entries(all)? {
            let lock = entry.path().join(LOCK);
            match lock_file(&lock).map(|file| file.try_lock()) {
                Ok(Err(TryLockError::WouldBlock)) => taken.push(entry.file_name()),
                Ok(Err(TryLockError::Error(error))) => {
                    return Err(DiskError::at("lock", &lock)(error));
                }
                // Without its lock file it was left before it was taken, or while it was removed.
                Ok(Ok(())) | Err(_) => {
                    disk::remove_tree(&entry.path())?;
                    left += 1;
                }
            }
        }
        let free = (0..).map(|n: u64| n.to_string());
        let name = free
            .into_iter()
            .find(|name| !taken.iter().any(|it| it == name.as_str()))
            .expect("there are more numbers than processes");
        let folder = all.join(name);
        disk::create_folder(&folder)?;
        let lock = folder.join(LOCK);
        let file = lock_file(&lock)?;
        file.lock().map_err(DiskError::at("lock", &lock))?;
        let drafts = Self {
            folder,
            next: AtomicU64::new(0),
            _lock: file,
        };
        Ok((drafts, left))
    }

    /// A path that nothing has.
    pub(super) fn path(&self) -> PathBuf {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.folder.join(n.to_string())
    }
}

impl Drop for Drafts {
    fn drop(&mut self) {
        // Whoever opens the store next removes what stays.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

const LOCK: &str = "lock";
