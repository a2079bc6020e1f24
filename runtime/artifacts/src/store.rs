//! Pieces on a disk, and the programs that are put together from them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::disk::{self, Draft};
use crate::{Bundle, Digest, DiskError, Piece};

mod assemble;
mod budget;
mod collect;
mod drafts;
mod gate;
mod heat;
mod sweep;
#[cfg(test)]
mod tests;

pub use assemble::{AssembleError, Assembled, VerifyError};
pub use budget::{ContentKind, Footprint, Full};
pub use collect::{CollectError, Freed};

use budget::Account;
use drafts::Drafts;
use gate::Gate;

/// A data folder with pieces of programs, and the programs themselves.
///
/// ```text
/// pieces/ab/<digest>   a piece; its time is that of its last use
/// bundles/<digest>     a bundle, as it is encoded
/// heat/<digest>        which pieces of the bundle of this name are read first
/// pins/<digest>        until when the bundle of this name is being uploaded
/// folders/<digest>     the bundle of this name, put together; its time is that of its last use
/// drafts/<n>/          what a process has not finished, locked while that process lives
/// lock                 held together by those who add, alone by those who remove
/// ```
///
/// - Nothing has its name before it is complete and on the disk, so a process may be killed at any
///   moment. What it left is removed by the next one that opens the store.
/// - Nothing is believed: a piece is compared with its name when it comes and whenever it is read.
/// - Threads and processes may use one folder at the same time. The budget is exact among the
///   threads of a process; what other processes add is counted when the store is opened and when it
///   is collected.
/// - What the disk says is waited for, so calls block: asynchronous callers use `spawn_blocking`.
///
/// An upload goes: [`pin`](Self::pin) the bundle, ask what is [`missing`](Self::missing),
/// [`put`](Self::put) that, [`assemble`](Self::assemble), [`unpin`](Self::unpin).
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    account: Account,
    drafts: Drafts,
    gate: Gate,
    recovered: Recovered,
}

/// Leftovers of earlier processes that opening a store found and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Processes that ended without removing what they had not finished.
    pub drafts: usize,
    /// Pieces of a length that they cannot have.
    pub pieces: usize,
    /// Bundles that cannot be read.
    pub bundles: usize,
}

/// The result of storing a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It was written.
    Written,
    /// It was there already.
    Here,
}

impl Store {
    /// Opens the store in `folder`, which is made if need be, and mends what a crash left.
    ///
    /// Waits while another process is adding to the same folder.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn open(folder: impl Into<PathBuf>, budget: Footprint) -> Result<Self, DiskError> {
        let folder = folder.into();
        disk::create_folders(&folder)?;
        for part in [PIECES, BUNDLES, HEAT, PINS, FOLDERS, DRAFTS] {
            disk::create_folder(&folder.join(part))?;
        }
        let gate = Gate::at(folder.join("lock"));
        let alone = gate.alone()?;
        let (drafts, left) = Drafts::claim(&folder.join(DRAFTS))?;
        let mut store = Self {
            folder,
            account: Account::new(budget, Footprint::default()),
            drafts,
            gate,
            recovered: Recovered {
                drafts: left,
                ..Recovered::default()
            },
        };
        store.recover()?;
        drop(alone);
        Ok(store)
    }

    /// The folder that it lies in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes that it holds now, with those that are being written.
    #[must_use]
    pub fn held(&self) -> Footprint {
        *self.account.held()
    }

    /// The leftovers that opening it found and removed.
    #[must_use]
    pub const fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Keeps the bundle, and all of its pieces that are here or come, until `until`. A pin that
    /// lasts longer stays.
    ///
    /// # Errors
    /// When the disk fails. The bundle may be kept then, and is not pinned.
    pub fn pin(&self, bundle: &Bundle, until: SystemTime) -> Result<(), DiskError> {
        let _gate = self.gate.shared()?;
        self.write_bundle(bundle)?;
        let path = self.pin_path(&bundle.digest());
        if collect::pinned_until(&path)?.is_some_and(|pinned| pinned >= until) {
            return Ok(());
        }
        self.write(&path, &collect::encode_pin(until))
    }

    /// The upload is over. What pins another upload of the same bundle set go too.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn unpin(&self, bundle: &Digest) -> Result<(), DiskError> {
        disk::remove(&self.pin_path(bundle)).map(|_| ())
    }

    /// Gives up the uploads that a piece belongs to and that lack pieces: nothing pins them any more.
    /// Returns how many those were.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn abandon(&self, piece: &Digest) -> Result<usize, DiskError> {
        let mut abandoned = 0;
        for digest in digests(&self.folder.join(PINS))? {
            let bundle = match self.bundle(&digest) {
                Ok(bundle) => bundle,
                Err(GetError::Disk(error)) => return Err(error),
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => continue,
            };
            let is_of_it = bundle.pieces().any(|it| it.digest == *piece);
            if is_of_it && !self.missing(bundle.pieces())?.is_empty() {
                self.unpin(&digest)?;
                abandoned += 1;
            }
        }
        Ok(abandoned)
    }

    /// Writes down what a bundle consists of, so that its name is enough from now on.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn keep(&self, bundle: &Bundle) -> Result<(), DiskError> {
        let _gate = self.gate.shared()?;
        self.write_bundle(bundle)
    }

    /// The bundle of this name, if it was [kept](Self::keep).
    ///
    /// # Errors
    /// When it is not here, or not what was written, or the disk fails.
    pub fn bundle(&self, digest: &Digest) -> Result<Bundle, GetError> {
        let path = self.bundle_path(digest);
        let read = disk::if_there(fs::read(&path)).map_err(DiskError::at("read", &path))?;
        let bytes = read.ok_or(GetError::Missing(*digest))?;
        if Digest::of(&bytes) != *digest {
            return Err(GetError::Corrupt(*digest));
        }
        Bundle::decode(&bytes).map_err(|_| GetError::Corrupt(*digest))
    }

    /// The names of all bundles that are kept, in order.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn bundles(&self) -> Result<Vec<Digest>, DiskError> {
        digests(&self.folder.join(BUNDLES)).map(|mut found| {
            found.sort_unstable();
            found
        })
    }

    /// Those of `pieces` that are not here, each once. One of another length is not the piece.
    ///
    /// A piece that is here stays only while its bundle is [pinned](Self::pin) or live, so pin
    /// first and ask then.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn missing<'a>(
        &self,
        pieces: impl IntoIterator<Item = &'a Piece>,
    ) -> Result<Vec<Piece>, DiskError> {
        let mut seen = HashSet::new();
        let mut missing = vec![];
        for piece in pieces {
            if !seen.insert(piece) {
                continue;
            }
            let length = disk::length(&self.piece_path(&piece.digest))?;
            if length != Some(u64::from(piece.bytes)) {
                missing.push(*piece);
            }
        }
        Ok(missing)
    }

    /// Takes a piece, and notes that it was used at `now`. When this returns the piece is on the
    /// disk.
    ///
    /// # Errors
    /// When the bytes are not those of this name, are too many, or do not fit. Nothing was written
    /// then.
    pub fn put(&self, digest: &Digest, bytes: &[u8], now: SystemTime) -> Result<Put, PutError> {
        if !(1..=Piece::BYTES_MAX).contains(&bytes.len()) {
            return Err(PutError::Length { bytes: bytes.len() });
        }
        let found = Digest::of(bytes);
        if found != *digest {
            return Err(PutError::Mismatch {
                digest: *digest,
                found,
            });
        }
        let len = bytes.len() as u64;
        let path = self.piece_path(digest);
        if disk::length(&path)?.is_some_and(|there| there != len)
            && let Err(GetError::Disk(error)) = self.get(digest)
        {
            // What was damaged on the disk would have gone away.
            return Err(error.into());
        }
        let _gate = self.gate.shared()?;
        if disk::length(&path)? == Some(len) {
            disk::touch(&path, now)?;
            return Ok(Put::Here);
        }
        let room = self.account.reserve(ContentKind::Pieces, len)?;
        let mut draft = Draft::create(self.drafts.path())?;
        draft.write(bytes)?;
        draft.sync(now)?;
        disk::create_folder(disk::parent(&path))?;
        {
            // One at a time, so that of two that bring the same piece one is counted.
            let _held = self.account.held();
            if disk::length(&path)? == Some(len) {
                return Ok(Put::Here);
            }
            draft.place(&path)?;
        }
        room.keep();
        disk::sync_folder(disk::parent(&path))?;
        Ok(Put::Written)
    }

    /// The bytes of a piece, compared with its name.
    ///
    /// # Errors
    /// When it is not here. When it is [corrupt](GetError::Corrupt), it is removed, so that it is
    /// missing and can be brought again.
    pub fn get(&self, digest: &Digest) -> Result<Vec<u8>, GetError> {
        match self.read(digest) {
            Err(GetError::Corrupt(_)) => {
                // Alone, so that what somebody puts in its place meanwhile is not what goes.
                let _alone = self.gate.alone()?;
                let again = self.read(digest);
                if matches!(again, Err(GetError::Corrupt(_))) {
                    disk::remove(&self.piece_path(digest))?;
                    // What it was counted as is not what it has now.
                    self.count()?;
                }
                again
            }
            read => read,
        }
    }

    /// Reads all pieces of a bundle that are here, and removes the damaged ones, so that they are
    /// missing and can be brought again. Returns how many those were.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn scrub(&self, bundle: &Bundle) -> Result<usize, DiskError> {
        let mut seen = HashSet::new();
        let mut damaged = vec![];
        for piece in bundle.pieces().filter(|piece| seen.insert(piece.digest)) {
            match self.read(&piece.digest) {
                Err(GetError::Corrupt(digest)) => damaged.push(digest),
                Err(GetError::Disk(error)) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        if damaged.is_empty() {
            return Ok(0);
        }
        // Alone, and once more, since somebody may have mended some in between.
        let _alone = self.gate.alone()?;
        damaged.retain(|digest| matches!(self.read(digest), Err(GetError::Corrupt(_))));
        for digest in &damaged {
            disk::remove(&self.piece_path(digest))?;
        }
        self.count()?;
        Ok(damaged.len())
    }

    /// The bytes of a piece, which stays where it is whatever it holds.
    fn read(&self, digest: &Digest) -> Result<Vec<u8>, GetError> {
        let path = self.piece_path(digest);
        let failed = |error| DiskError::at("read", &path)(error);
        let file = disk::if_there(fs::File::open(&path)).map_err(failed)?;
        let file = file.ok_or(GetError::Missing(*digest))?;
        // A file of any length may lie there; one byte more shows that it is too long.
        let len = file.metadata().map_err(failed)?.len();
        let bound = len.min(Piece::BYTES_MAX as u64 + 1);
        let mut bytes = Vec::with_capacity(bound as usize);
        file.take(bound).read_to_end(&mut bytes).map_err(failed)?;
        if Digest::of(&bytes) == *digest {
            Ok(bytes)
        } else {
            Err(GetError::Corrupt(*digest))
        }
    }

    /// Removes what cannot be what its name says, and counts the rest.
    fn recover(&mut self) -> Result<(), DiskError> {
        let mut lengths = HashMap::new();
        for digest in self.bundles()? {
            match self.bundle(&digest) {
                Ok(bundle) => {
                    let known = bundle
                        .pieces()
                        .map(|piece| (piece.digest, u64::from(piece.bytes)));
                    lengths.extend(known);
                }
                Err(GetError::Disk(error)) => return Err(error),
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => {
                    disk::remove(&self.bundle_path(&digest))?;
                    self.recovered.bundles += 1;
                }
            }
        }
        for item in self.held_pieces()? {
            let right = match lengths.get(&item.digest) {
                Some(length) => item.bytes == *length,
                None => (1..=Piece::BYTES_MAX as u64).contains(&item.bytes),
            };
            if right {
                continue;
            }
            // A bundle may be wrong about a piece, so the piece has the last word.
            match self.read(&item.digest) {
                Ok(_) | Err(GetError::Missing(_)) => {}
                Err(GetError::Disk(error)) => return Err(error),
                Err(GetError::Corrupt(_)) => {
                    disk::remove(&self.piece_path(&item.digest))?;
                    self.recovered.pieces += 1;
                }
            }
        }
        self.count()
    }

    fn write_bundle(&self, bundle: &Bundle) -> Result<(), DiskError> {
        match self.bundle(&bundle.digest()) {
            Ok(_) => Ok(()),
            Err(GetError::Disk(error)) => Err(error),
            Err(GetError::Missing(_) | GetError::Corrupt(_)) => {
                self.write(&self.bundle_path(&bundle.digest()), &bundle.encode())
            }
        }
    }

    /// Writes a small file in place of what has its name.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
        let mut draft = Draft::create(self.drafts.path())?;
        draft.write(bytes)?;
        // What it records carries its own time.
        draft.sync(SystemTime::UNIX_EPOCH)?;
        draft.place(path)?;
        disk::sync_folder(disk::parent(path))
    }

    fn piece_path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.folder.join(PIECES).join(&name[..2]).join(&name)
    }

    fn bundle_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(BUNDLES).join(digest.to_string())
    }

    fn pin_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(PINS).join(digest.to_string())
    }

    fn assembled_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(FOLDERS).join(digest.to_string())
    }
}

/// The entries of a folder that are named by a digest. Anything else is not ours and is left alone.
fn digests(folder: &Path) -> Result<Vec<Digest>, DiskError> {
    let entries = disk::entries(folder)?;
    let names = entries
        .iter()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(names.collect())
}

const PIECES: &str = "pieces";
const BUNDLES: &str = "bundles";
const HEAT: &str = "heat";
const PINS: &str = "pins";
const FOLDERS: &str = "folders";
const DRAFTS: &str = "drafts";

/// A piece that was not taken. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// Empty, or longer than any piece.
    #[error("a piece has 1 to {} bytes, not {bytes}", Piece::BYTES_MAX)]
    Length {
        /// Bytes that came.
        bytes: usize,
    },
    /// Other bytes: they were damaged on the way, or whoever sent them is wrong.
    #[error("the bytes that came as piece {digest} are {found}: send it again")]
    Mismatch {
        /// The name under which they came.
        digest: Digest,
        /// Their own name.
        found: Digest,
    },
    /// The budget is used up.
    #[error(transparent)]
    Full(#[from] Full),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl PutError {
    /// Returns true if there is no room for it, in the budget or on the disk.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Disk(DiskError::DiskFull(_)))
    }
}

/// A piece or a bundle that cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// It is not here: bring it.
    #[error("{0} is not in the store")]
    Missing(Digest),
    /// The piece here holds other bytes: it was damaged on the disk. Bring it again.
    #[error("{0} was damaged on the disk")]
    Corrupt(Digest),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
