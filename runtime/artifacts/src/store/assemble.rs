//! Programs put together from their pieces.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{ContentKind, FOLDERS, Full, GetError, Store, digests};
use crate::disk::{self, Draft};
use crate::{Bundle, BundleFile, Digest, DiskError, Listing, Piece};

/// A bundle in a folder, ready to be started.
///
/// Only the files of the bundle are looked after there; what a program writes beside them goes when
/// the folder goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// The folder.
    pub folder: PathBuf,
    /// The file that is started. A process that was being started in another thread while the file
    /// was written may hold it open for a moment, and the system refuses to start it meanwhile
    /// (`ETXTBSY`): try again then.
    pub entry: PathBuf,
}

impl Store {
    /// The bundle in its folder, put together unless it was before, and noted as used at `now`.
    ///
    /// It stays there while it is live or [pinned](Store::pin), else until the next
    /// [`collect`](Store::collect).
    ///
    /// What lies there already is looked at from outside: kind, length, permissions and time of each
    /// file. [`verify`](Self::verify) reads it.
    ///
    /// # Errors
    /// When pieces are missing or damaged, the listing is wrong, or there is no room. Nothing has
    /// the bundle's name then.
    pub fn assemble(&self, bundle: &Bundle, now: SystemTime) -> Result<Assembled, AssembleError> {
        let folder = self.assembled_path(&bundle.digest());
        if !self.is_assembled(bundle)? {
            self.build(bundle, &folder, now).map_err(|error| {
                let AssembleError::Lacks(pieces) = error else {
                    return error;
                };
                match self.remove_damaged(&pieces) {
                    Ok(()) => AssembleError::Lacks(pieces),
                    Err(error) => error,
                }
            })?;
        }
        disk::touch(&folder, now)?;
        for piece in bundle.pieces() {
            disk::touch(&self.piece_path(&piece.digest), now)?;
        }
        Ok(Assembled {
            entry: folder.join(bundle.entry()),
            folder,
        })
    }

    /// Returns true where something lies at the place at which the bundle is put together. Whether
    /// it is right, its next [`assemble`](Self::assemble) sees.
    #[must_use]
    pub fn has_assembled(&self, bundle: &Digest) -> bool {
        self.assembled_path(bundle).is_dir()
    }

    /// Reads all files of an assembled bundle.
    ///
    /// # Errors
    /// When it was not assembled. When a file is not what it was, its folder is removed, so that
    /// the next [`assemble`](Self::assemble) builds it anew.
    pub fn verify(&self, bundle: &Bundle) -> Result<(), VerifyError> {
        let folder = self.assembled_path(&bundle.digest());
        if !folder.is_dir() {
            return Err(VerifyError::NotAssembled(bundle.digest()));
        }
        match self.discard_unless(bundle, || read(bundle, &folder))? {
            None => Ok(()),
            Some((path, why)) => Err(VerifyError::Damaged { path, why }),
        }
    }

    /// Returns true where the bundle lies in its folder and looks right. What looks wrong is
    /// removed.
    fn is_assembled(&self, bundle: &Bundle) -> Result<bool, DiskError> {
        let folder = self.assembled_path(&bundle.digest());
        let found = disk::if_there(fs::symlink_metadata(&folder));
        if found.map_err(DiskError::at("look at", &folder))?.is_none() {
            return Ok(false);
        }
        let wrong = self.discard_unless(bundle, || look(bundle, &folder))?;
        Ok(wrong.is_none())
    }

    /// Removes an assembled bundle in which `find` finds a fault, and gives the fault.
    fn discard_unless(
        &self,
        bundle: &Bundle,
        find: impl Fn() -> Result<Option<Fault>, DiskError>,
    ) -> Result<Option<Fault>, DiskError> {
        {
            let _gate = self.gate.shared()?;
            if find()?.is_none() {
                return Ok(None);
            }
        }
        // Alone, and once more, since somebody may have mended it in between.
        let _alone = self.gate.alone()?;
        let fault = find()?;
        if fault.is_some() {
            self.discard(&bundle.digest())?;
            // What it was counted as is not what it had.
            self.count()?;
        }
        Ok(fault)
    }

    /// Puts the bundle together beside its place, and moves it there when all is on the disk.
    fn build(&self, bundle: &Bundle, place: &Path, now: SystemTime) -> Result<(), AssembleError> {
        let _gate = self.gate.shared()?;
        let missing = self.missing(bundle.pieces())?;
        if !missing.is_empty() {
            return Err(AssembleError::Lacks(missing));
        }
        let room = self.account.reserve(ContentKind::Folders, bundle.bytes())?;
        let draft = Tree(self.drafts.path());
        self.build_tree(bundle, &draft.0)?;
        disk::touch(&draft.0, now)?;
        if disk::move_folder(&draft.0, place)? {
            room.keep();
        }
        // Otherwise somebody else did the same meanwhile, and the room goes back.
        Ok(())
    }

    /// Removes those of `pieces` that are not what their names say.
    fn remove_damaged(&self, pieces: &[Piece]) -> Result<(), AssembleError> {
        for piece in pieces {
            match self.get(&piece.digest) {
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => {}
                Err(GetError::Disk(error)) => return Err(error.into()),
                Ok(bytes) if bytes.len() != piece.bytes as usize => {
                    return Err(AssembleError::Length {
                        piece: *piece,
                        found: bytes.len(),
                    });
                }
                // Somebody brought it meanwhile.
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Writes the files of a bundle into a new folder, all durable before this returns.
    fn build_tree(&self, bundle: &Bundle, tree: &Path) -> Result<(), AssembleError> {
        disk::create_folder(tree)?;
        let mut folders = BTreeSet::from([tree.to_owned()]);
        for (path, file) in bundle.files() {
            let inner = path
                .match_indices('/')
                .map(|(at, _)| tree.join(&path[..at]));
            for folder in inner {
                if !folders.contains(&folder) {
                    disk::create_folder(&folder)?;
                    folders.insert(folder);
                }
            }
            self.build_file(bundle, path, file, &tree.join(path))?;
        }
        for folder in folders {
            disk::sync_folder(&folder)?;
        }
        Ok(())
    }

    fn build_file(
        &self,
        bundle: &Bundle,
        path: &str,
        file: &BundleFile,
        place: &Path,
    ) -> Result<(), AssembleError> {
        if file.listing.bytes() >= SHARED_BYTES_MIN && self.share_file(bundle, file, place)? {
            return Ok(());
        }
        let mut draft = Draft::create(self.drafts.path())?;
        let mut whole = blake3::Hasher::new();
        for piece in file.listing.pieces() {
            let bytes = match self.read(&piece.digest) {
                Ok(bytes) => bytes,
                Err(GetError::Disk(error)) => return Err(error.into()),
                Err(GetError::Missing(_) | GetError::Corrupt(_)) => {
                    return Err(self.lacking(bundle, piece));
                }
            };
            whole.update(&bytes);
            draft.write(&bytes)?;
        }
        let found = Digest::from(whole.finalize());
        if found != file.listing.digest() {
            return Err(AssembleError::Listing {
                path: path.to_owned(),
                digest: file.listing.digest(),
                found,
            });
        }
        draft.permit(mode(file))?;
        draft.sync(time())?;
        draft.place(place)?;
        Ok(())
    }

    /// Has a file be the same one on the disk as in another bundle that lies here. Returns false where
    /// there is none, or it cannot be shared.
    fn share_file(
        &self,
        bundle: &Bundle,
        file: &BundleFile,
        place: &Path,
    ) -> Result<bool, DiskError> {
        let folders = digests(&self.folder.join(FOLDERS))?;
        for digest in folders.into_iter().filter(|it| *it != bundle.digest()) {
            let Ok(other) = self.bundle(&digest) else {
                continue;
            };
            let alike = other.files().filter(|(_, it)| *it == file);
            for (path, _) in alike {
                let there = self.assembled_path(&digest).join(path);
                // It may have been damaged since, or go in this moment: then it is written anew.
                let is_whole = Listing::of_file(&there)
                    .is_ok_and(|listing| listing.digest() == file.listing.digest());
                let permits = fs::symlink_metadata(&there)
                    .is_ok_and(|found| found.permissions().mode() & 0o777 == mode(file));
                if is_whole && permits && fs::hard_link(&there, place).is_ok() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// `damaged` cannot be used, and perhaps others.
    fn lacking(&self, bundle: &Bundle, damaged: &Piece) -> AssembleError {
        match self.missing(bundle.pieces()) {
            Ok(mut pieces) => {
                if !pieces.contains(damaged) {
                    pieces.push(*damaged);
                }
                AssembleError::Lacks(pieces)
            }
            Err(error) => error.into(),
        }
    }

    /// Takes an assembled bundle away. It loses its name first, so half of it is never seen.
    pub(super) fn discard(&self, bundle: &Digest) -> Result<(), DiskError> {
        let folder = self.assembled_path(bundle);
        let bytes = tree_bytes(&folder)?;
        let gone = Tree(self.drafts.path());
        if disk::move_folder(&folder, &gone.0)? {
            self.account.release(ContentKind::Folders, bytes);
        }
        disk::remove_tree(&gone.0)
    }
}

/// A folder that goes away unless it was moved.
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        // Whoever opens the store next removes what stays.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Files of fewer bytes are written for each bundle: looking for them elsewhere costs more.
const SHARED_BYTES_MIN: u64 = 1 << 20;

/// A file that is not what it should be, and what is wrong with it.
type Fault = (String, &'static str);

/// The first fault that is seen from outside.
fn look(bundle: &Bundle, folder: &Path) -> Result<Option<Fault>, DiskError> {
    for (path, file) in bundle.files() {
        let whole = folder.join(path);
        let wrong = |why| Ok(Some((path.to_owned(), why)));
        let found = disk::if_there(fs::symlink_metadata(&whole));
        let Some(found) = found.map_err(DiskError::at("look at", &whole))? else {
            return wrong("it is gone");
        };
        if !found.is_file() {
            return wrong("it is not a regular file");
        }
        if found.len() != file.listing.bytes() {
            return wrong("its length is another");
        }
        if found.permissions().mode() & 0o7777 != mode(file) {
            return wrong("its permissions are others");
        }
        if found.modified().ok() != Some(time()) {
            return wrong("it was written to");
        }
    }
    Ok(None)
}

/// The first fault, bytes included.
fn read(bundle: &Bundle, folder: &Path) -> Result<Option<Fault>, DiskError> {
    if let Some(fault) = look(bundle, folder)? {
        return Ok(Some(fault));
    }
    for (path, file) in bundle.files() {
        if digest_of(&folder.join(path))? != file.listing.digest() {
            return Ok(Some((path.to_owned(), "its bytes are others")));
        }
    }
    Ok(None)
}

fn digest_of(path: &Path) -> Result<Digest, DiskError> {
    let failed = |error| DiskError::at("read", path)(error);
    let mut file = fs::File::open(path).map_err(failed)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            return Ok(hasher.finalize().into());
        }
        hasher.update(&buffer[..read]);
    }
}

/// Bytes of all files below a folder; 0 when there is none.
pub(super) fn tree_bytes(path: &Path) -> Result<u64, DiskError> {
    let found = disk::if_there(fs::symlink_metadata(path));
    let Some(found) = found.map_err(DiskError::at("look at", path))? else {
        return Ok(0);
    };
    if !found.is_dir() {
        return Ok(found.len());
    }
    let mut sum = 0;
    for entry in disk::entries(path)? {
        sum += tree_bytes(&entry.path())?;
    }
    Ok(sum)
}

/// Nobody writes to a program.
const fn mode(file: &BundleFile) -> u32 {
    if file.executable { 0o555 } else { 0o444 }
}

/// The time that all files of a program carry. Whoever writes to one changes it.
fn time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1)
}

/// A bundle that could not be put together. Nothing has its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// Pieces are missing, or were damaged and are removed: bring them and try again.
    #[error("{} pieces of the bundle are not here", .0.len())]
    Lacks(Vec<Piece>),
    /// Every piece is right, but not the file: whoever made the listing is wrong, and the same
    /// pieces will give the same again.
    #[error("the pieces of {path:?} make up {found}, and its listing says {digest}")]
    Listing {
        /// The file.
        path: String,
        /// As the listing has it.
        digest: Digest,
        /// The digest of the file that the pieces make up.
        found: Digest,
    },
    /// A piece is right, and the listing gives it another length: whoever made the listing is
    /// wrong.
    #[error("piece {} has {found} bytes, and the listing says {}", piece.digest, piece.bytes)]
    Length {
        /// As the listing has it.
        piece: Piece,
        /// Bytes of the piece.
        found: usize,
    },
    /// The budget for folders is used up.
    #[error(transparent)]
    Full(#[from] Full),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// An assembled bundle that is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It was never put together here, or was collected.
    #[error("bundle {0} is not assembled here")]
    NotAssembled(Digest),
    /// A file was changed since. The folder is removed: assemble the bundle again.
    #[error("{path:?} of the bundle was changed since it was put together: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// The way in which it was changed.
        why: &'static str,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
