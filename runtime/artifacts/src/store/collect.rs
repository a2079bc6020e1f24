//! Removing what nobody needs.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::assemble::tree_bytes;
use super::sweep::{Item, sweep};
use super::{BUNDLES, ContentKind, FOLDERS, Footprint, GetError, PIECES, PINS, Store, digests};
use crate::disk;
use crate::{Bundle, Digest, DiskError};

/// Pieces, folders and bundles that a collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Pieces.
    pub pieces: usize,
    /// Their bytes.
    pub piece_bytes: u64,
    /// Folders in which bundles were put together.
    pub folders: usize,
    /// Their bytes.
    pub folder_bytes: u64,
    /// Bundles that are no longer known by name, since pieces of theirs are gone.
    pub bundles: usize,
}

impl Store {
    /// Removes what belongs to no bundle that is `live` or pinned at `now`, first what has not been
    /// used for longest, until the store holds no more than `down_to` (nothing, to remove all of
    /// it).
    ///
    /// Waits until nobody is adding, and lets nobody add meanwhile.
    ///
    /// # Errors
    /// When a live bundle is not [kept](Self::keep), in which case nothing was removed; or when the
    /// disk fails, in which case some may be.
    pub fn collect(
        &self,
        live: &[Digest],
        down_to: Footprint,
        now: SystemTime,
    ) -> Result<Freed, CollectError> {
        let _alone = self.gate.alone()?;
        let bundles = self.marked(live, now)?;
        let marked: HashSet<Digest> = bundles.iter().map(Bundle::digest).collect();
        let needed: HashSet<Digest> = bundles
            .iter()
            .flat_map(Bundle::pieces)
            .map(|piece| piece.digest)
            .collect();
        // What other processes did is seen here.
        self.count()?;
        let mut freed = Freed::default();
        for item in sweep(&self.held_folders()?, &marked, down_to.folder_bytes) {
            self.discard(&item.digest)?;
            freed.folders += 1;
            freed.folder_bytes += item.bytes;
        }
        let pieces = self.held_pieces()?;
        let mut here: HashSet<Digest> = pieces.iter().map(|item| item.digest).collect();
        for item in sweep(&pieces, &needed, down_to.piece_bytes) {
            disk::remove(&self.piece_path(&item.digest))?;
            self.account.release(ContentKind::Pieces, item.bytes);
            here.remove(&item.digest);
            freed.pieces += 1;
            freed.piece_bytes += item.bytes;
        }
        freed.bundles = self.forget(&marked, &here)?;
        self.cool()?;
        Ok(freed)
    }

    /// The bundles that stay. Pins that are over go.
    fn marked(&self, live: &[Digest], now: SystemTime) -> Result<Vec<Bundle>, CollectError> {
        let mut bundles = vec![];
        for digest in live {
            match self.bundle(digest) {
                Ok(bundle) => bundles.push(bundle),
                Err(GetError::Disk(error)) => return Err(error.into()),
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => {
                    return Err(CollectError::NotKept(*digest));
                }
            }
        }
        for digest in digests(&self.folder.join(PINS))? {
            let path = self.pin_path(&digest);
            if pinned_until(&path)?.is_none_or(|until| until <= now) {
                disk::remove(&path)?;
                continue;
            }
            match self.bundle(&digest) {
                Ok(bundle) => bundles.push(bundle),
                Err(GetError::Disk(error)) => return Err(error.into()),
                // Damaged since: whoever uploads it pins it again when pieces are missing.
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => {
                    disk::remove(&path)?;
                }
            }
        }
        Ok(bundles)
    }

    /// Removes bundles that are neither marked nor assembled and lack pieces.
    fn forget(&self, marked: &HashSet<Digest>, here: &HashSet<Digest>) -> Result<usize, DiskError> {
        let mut forgotten = 0;
        for digest in digests(&self.folder.join(BUNDLES))? {
            if marked.contains(&digest) || self.assembled_path(&digest).exists() {
                continue;
            }
            let whole = match self.bundle(&digest) {
                Ok(bundle) => bundle.pieces().all(|piece| here.contains(&piece.digest)),
                Err(GetError::Disk(error)) => return Err(error),
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => false,
            };
            if !whole {
                disk::remove(&self.bundle_path(&digest))?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }

    /// All pieces on the disk.
    pub(super) fn held_pieces(&self) -> Result<Vec<Item>, DiskError> {
        let mut items = vec![];
        for folder in disk::entries(&self.folder.join(PIECES))? {
            if !folder.path().is_dir() {
                continue;
            }
            for digest in digests(&folder.path())? {
                let path = self.piece_path(&digest);
                let found = disk::if_there(fs::symlink_metadata(&path));
                // A piece that lies in the folder of others is not found by its name.
                if let Some(found) = found.map_err(DiskError::at("look at", &path))? {
                    items.push(item(digest, found.len(), &found, &path)?);
                }
            }
        }
        Ok(items)
    }

    /// All assembled bundles on the disk.
    fn held_folders(&self) -> Result<Vec<Item>, DiskError> {
        let mut items = vec![];
        for digest in digests(&self.folder.join(FOLDERS))? {
            let path = self.assembled_path(&digest);
            let found = disk::if_there(fs::symlink_metadata(&path));
            if let Some(found) = found.map_err(DiskError::at("look at", &path))? {
                items.push(item(digest, tree_bytes(&path)?, &found, &path)?);
            }
        }
        Ok(items)
    }

    /// Takes the account anew from the disk, while nobody adds.
    pub(super) fn count(&self) -> Result<(), DiskError> {
        let sum = |items: Vec<Item>| items.iter().map(|item| item.bytes).sum();
        let held = Footprint {
            piece_bytes: sum(self.held_pieces()?),
            folder_bytes: sum(self.held_folders()?),
        };
        *self.account.held() = held;
        Ok(())
    }
}

fn item(digest: Digest, bytes: u64, found: &fs::Metadata, path: &Path) -> Result<Item, DiskError> {
    let used = found.modified().map_err(DiskError::at("look at", path))?;
    Ok(Item {
        digest,
        bytes,
        used,
    })
}

/// A pin as it is written: milliseconds since 1970, for people to read.
pub(super) fn encode_pin(until: SystemTime) -> Vec<u8> {
    let since = until.duration_since(SystemTime::UNIX_EPOCH);
    // Before 1970 is over whenever it was.
    let ms = since.unwrap_or_default().as_millis();
    format!("{ms}\n").into_bytes()
}

/// Until when a pin holds; `None` when there is none that can be read.
pub(super) fn pinned_until(path: &Path) -> Result<Option<SystemTime>, DiskError> {
    let read = disk::if_there(fs::read(path)).map_err(DiskError::at("read", path))?;
    let text = read.and_then(|bytes| String::from_utf8(bytes).ok());
    let ms = text.and_then(|text| text.trim_end().parse().ok());
    Ok(ms.and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))))
}

/// Nothing, or not all, was collected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// The pieces of this bundle are not known here, so they could not be told from others. Nothing
    /// was removed: keep it, or leave it out.
    #[error("bundle {0} is live and not kept in this store: its pieces cannot be told from others")]
    NotKept(Digest),
    /// The disk failed. What went away is gone for good, the rest is there.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
