//! Snapshots of installed folders: a folder as two files of a bundle, so that it travels as programs do.
//!
//! One file is the list of what there is, with a digest of each file; the other is the content of all files, one behind
//! the other, since an environment of Python has many small ones. A folder that is taken on one machine lies on others
//! under another path, which some of its files name: where these are text, they name the new one. So do links.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::bundle::check_path;
use crate::{
    Bundle, BundleError, BundleFile, Digest, DiskError, GetError, Listing, PutError, Store,
};

/// The list of what there is, which is the entry of the bundle.
const LIST: &str = "list.json";
/// The content of all files.
const CONTENT: &str = "content";
/// A longer file that begins with `#!` is no script.
const SCRIPT_BYTES_MAX: u64 = 1 << 20;

/// A snapshot that was taken: its pieces are in the store.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// As which it travels.
    pub bundle: Bundle,
    /// Number of files in the folder.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The list of what is in a folder.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct List {
    /// Where the folder was.
    prefix: String,
    folders: Vec<String>,
    /// In the order of their content.
    files: Vec<ListedFile>,
    /// By path, the target.
    links: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ListedFile {
    path: String,
    bytes: u64,
    digest: Digest,
    executable: bool,
    /// When it was changed, in seconds since 1970: Python keeps what it has compiled beside it, and compares this.
    modified_s: u64,
}

/// The look of a folder from outside: its files, with the length and the time of the last change of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderLook {
    files: BTreeMap<String, (u64, i64, i64)>,
}

/// Why there is no snapshot, or no folder of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Something in the folder cannot travel.
    #[error("{path:?} cannot be part of a snapshot: {why}")]
    Unfit {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It is larger than a bundle can be.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A piece is not kept.
    #[error(transparent)]
    Put(#[from] PutError),
    /// A piece is not here, or is not what its name says.
    #[error(transparent)]
    Get(#[from] GetError),
    /// The disk of the store.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The bundle is no snapshot.
    #[error("it is no snapshot of a folder: {0}")]
    NoSnapshot(String),
    /// A file is not what the list says.
    #[error("{0:?} is not what the snapshot says")]
    Wrong(String),
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError + '_ {
    move |source| SnapshotError::Io {
        path: path.to_owned(),
        source,
    }
}

impl Snapshot {
    /// Takes one of a folder into a store, where its pieces stay until then. Nothing has its name before all of them are
    /// there.
    ///
    /// # Errors
    /// A file has no plain name or is neither file, folder nor link; or is changed meanwhile; or the store is full.
    pub fn take(
        folder: &Path,
        store: &Store,
        now: SystemTime,
        until: SystemTime,
    ) -> Result<Self, SnapshotError> {
        let list = list_of(folder)?;
        let content = Listing::of(Content::new(folder, &list)).map_err(io_at(folder))?;
        let text = serde_json::to_vec(&list).expect("names and numbers can be written as JSON");
        let listed = Listing::of(text.as_slice()).map_err(io_at(folder))?;
        let file = |executable, listing: &Listing| BundleFile {
            executable,
            listing: listing.clone(),
        };
        let files = [
            (LIST.to_owned(), file(true, &listed)),
            (CONTENT.to_owned(), file(false, &content)),
        ];
        let bundle = Bundle::new(LIST, files)?;
        // So that nobody takes them for what no job needs.
        store.pin(&bundle, until)?;
        let put = |source: &mut dyn Read, listing: &Listing| {
            for piece in listing.pieces() {
                let mut bytes = vec![0; piece.bytes as usize];
                source.read_exact(&mut bytes).map_err(io_at(folder))?;
                store.put(&piece.digest, &bytes, now)?;
            }
            Ok::<_, SnapshotError>(())
        };
        put(&mut text.as_slice(), &listed)?;
        put(&mut Content::new(folder, &list), &content)?;
        store.keep(&bundle)?;
        Ok(Self {
            files: list.files.len(),
            bytes: content.bytes(),
            bundle,
        })
    }

    /// Puts the folder of a snapshot at a place where nothing is, out of a store that has all pieces. Each file is
    /// compared with its digest, and nothing is there before all are.
    ///
    /// # Errors
    /// A piece is missing or damaged, which removes it from the store; or the bundle is no snapshot.
    pub fn restore(bundle: &Bundle, store: &Store, place: &Path) -> Result<(), SnapshotError> {
        let list = read_list(bundle, store)?;
        let part = place.with_extension("part");
        remove(&part)?;
        fs::create_dir_all(&part).map_err(io_at(&part))?;
        let mut content = Pieces::new(file_of(bundle, CONTENT)?, store);
        for folder in &list.folders {
            let path = part.join(folder);
            fs::create_dir_all(&path).map_err(io_at(&path))?;
        }
        for file in &list.files {
            let path = part.join(&file.path);
            let moved = (list.prefix.as_str(), place);
            content.write(file, &path, moved)?;
        }
        // Last, so that nothing is written through one.
        for (path, target) in &list.links {
            let path = part.join(path);
            let target = moved(Path::new(target), &list.prefix, place);
            symlink(target, &path).map_err(io_at(&path))?;
        }
        fs::rename(&part, place).map_err(io_at(place))
    }
}

impl FolderLook {
    /// Looks at a folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn at(folder: &Path) -> Result<Self, SnapshotError> {
        let mut files = BTreeMap::new();
        walk(folder, &mut |name, path, meta| {
            if meta.is_file() {
                let look = (meta.len(), meta.mtime(), meta.mtime_nsec());
                files.insert(text_of(name, path)?, look);
            }
            Ok(())
        })?;
        Ok(Self { files })
    }

    /// Returns true where all files of then are as they were. What has come is not looked at.
    #[must_use]
    pub fn is_still(&self, folder: &Path) -> bool {
        self.files.iter().all(|(path, look)| {
            fs::symlink_metadata(folder.join(path)).is_ok_and(|meta| {
                meta.is_file() && (meta.len(), meta.mtime(), meta.mtime_nsec()) == *look
            })
        })
    }
}

/// Removes a folder and what is in it, if it is there.
fn remove(folder: &Path) -> Result<(), SnapshotError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(folder)(error)),
        _ => Ok(()),
    }
}

fn text_of(name: &Path, path: &Path) -> Result<String, SnapshotError> {
    let unfit = |why| SnapshotError::Unfit {
        path: path.to_owned(),
        why,
    };
    let text = name
        .to_str()
        .ok_or_else(|| unfit("its name is not in UTF-8"))?;
    check_path(text).map_err(|_| unfit("its name is none that travels"))?;
    Ok(text.to_owned())
}

type Visit<'a> = dyn FnMut(&Path, &Path, &fs::Metadata) -> Result<(), SnapshotError> + 'a;

/// Visits what is in a folder, in the order of names; a folder before what is in it.
fn walk(top: &Path, visit: &mut Visit<'_>) -> Result<(), SnapshotError> {
    if !fs::symlink_metadata(top).map_err(io_at(top))?.is_dir() {
        return Err(SnapshotError::Unfit {
            path: top.to_owned(),
            why: "it is no folder, but a file or a link",
        });
    }
    let mut open = vec![top.to_owned()];
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).map_err(io_at(&path))?;
        if path != top {
            visit(path.strip_prefix(top).unwrap_or(&path), &path, &meta)?;
        }
        if meta.is_dir() {
            let entries = fs::read_dir(&path).map_err(io_at(&path))?;
            let entries: io::Result<Vec<_>> = entries.map(|it| Ok(it?.path())).collect();
            let mut entries = entries.map_err(io_at(&path))?;
            entries.sort_unstable_by(|a, b| b.cmp(a));
            open.extend(entries);
        }
    }
    Ok(())
}

fn list_of(folder: &Path) -> Result<List, SnapshotError> {
    let prefix = folder.to_str().ok_or_else(|| SnapshotError::Unfit {
        path: folder.to_owned(),
        why: "its name is not in UTF-8",
    })?;
    let mut list = List {
        prefix: prefix.to_owned(),
        folders: vec![],
        files: vec![],
        links: BTreeMap::new(),
    };
    walk(folder, &mut |name, path, meta| {
        let name = text_of(name, path)?;
        if meta.is_dir() {
            list.folders.push(name);
        } else if meta.is_symlink() {
            let target = fs::read_link(path).map_err(io_at(path))?;
            let target = target.to_str().ok_or_else(|| SnapshotError::Unfit {
                path: path.to_owned(),
                why: "it leads to a name that is not in UTF-8",
            })?;
            list.links.insert(name, target.to_owned());
        } else if meta.is_file() {
            let mut hasher = blake3::Hasher::new();
            let file = File::open(path).map_err(io_at(path))?;
            let mut file = file.take(meta.len());
            io::copy(&mut file, &mut hasher).map_err(io_at(path))?;
            list.files.push(ListedFile {
                path: name,
                bytes: meta.len(),
                digest: hasher.finalize().into(),
                executable: meta.mode() & 0o111 != 0,
                modified_s: u64::try_from(meta.mtime()).unwrap_or_default(),
            });
        } else {
            return Err(SnapshotError::Unfit {
                path: path.to_owned(),
                why: "it is neither a file, a folder nor a link",
            });
        }
        Ok(())
    })?;
    Ok(list)
}

/// The files of a folder, one behind the other.
struct Content<'a> {
    folder: &'a Path,
    files: std::slice::Iter<'a, ListedFile>,
    open: Option<io::Take<File>>,
}

impl<'a> Content<'a> {
    fn new(folder: &'a Path, list: &'a List) -> Self {
        Self {
            folder,
            files: list.files.iter(),
            open: None,
        }
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(file) = &mut self.open {
                let read = file.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
                if file.limit() > 0 {
                    let why = "a file has become shorter meanwhile";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
            }
            let Some(next) = self.files.next() else {
                return Ok(0);
            };
            let file = File::open(self.folder.join(&next.path))?;
            self.open = Some(file.take(next.bytes));
        }
    }
}

fn file_of<'a>(bundle: &'a Bundle, name: &str) -> Result<&'a Listing, SnapshotError> {
    let file = bundle.file(name);
    let file = file.ok_or_else(|| SnapshotError::NoSnapshot(format!("it has no file {name:?}")))?;
    Ok(&file.listing)
}

fn read_list(bundle: &Bundle, store: &Store) -> Result<List, SnapshotError> {
    let mut text = vec![];
    for piece in file_of(bundle, LIST)?.pieces() {
        text.extend(store.get(&piece.digest)?);
    }
    let list: List = serde_json::from_slice(&text)
        .map_err(|error| SnapshotError::NoSnapshot(error.to_string()))?;
    let files = list.files.iter().map(|file| &file.path);
    for path in files.chain(&list.folders).chain(list.links.keys()) {
        check_path(path)?;
    }
    Ok(list)
}

/// Pieces of a store, read one behind the other.
struct Pieces<'a> {
    store: &'a Store,
    left: std::slice::Iter<'a, crate::Piece>,
    bytes: Vec<u8>,
    at: usize,
}

impl<'a> Pieces<'a> {
    fn new(listing: &'a Listing, store: &'a Store) -> Self {
        Self {
            store,
            left: listing.pieces().iter(),
            bytes: vec![],
            at: 0,
        }
    }

    /// Writes the next file, where it named the first of these paths with the second one in its place.
    fn write(
        &mut self,
        listed: &ListedFile,
        path: &Path,
        moved: (&str, &Path),
    ) -> Result<(), SnapshotError> {
        let mut file = File::create_new(path).map_err(io_at(path))?;
        let mut hasher = blake3::Hasher::new();
        let mut small = vec![];
        let mut left = listed.bytes;
        while left > 0 {
            if self.at == self.bytes.len() {
                let wrong = || SnapshotError::Wrong(listed.path.clone());
                let piece = self.left.next().ok_or_else(wrong)?;
                (self.bytes, self.at) = (self.store.get(&piece.digest)?, 0);
            }
            let rest = &self.bytes[self.at..];
            let now = &rest[..rest.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            hasher.update(now);
            if listed.bytes <= SCRIPT_BYTES_MAX {
                small.extend_from_slice(now);
            } else {
                file.write_all(now).map_err(io_at(path))?;
            }
            left -= now.len() as u64;
            self.at += now.len();
        }
        if Digest::from(hasher.finalize()) != listed.digest {
            return Err(SnapshotError::Wrong(listed.path.clone()));
        }
        let renamed = renamed(&listed.path, &small, moved);
        file.write_all(renamed.as_deref().unwrap_or(&small))
            .map_err(io_at(path))?;
        let mode = if listed.executable { 0o755 } else { 0o644 };
        file.set_permissions(fs::Permissions::from_mode(mode))
            .map_err(io_at(path))?;
        let modified = UNIX_EPOCH + Duration::from_secs(listed.modified_s);
        file.set_modified(modified).map_err(io_at(path))
    }
}

/// The target of a link: one in a folder that was moved is at its new place.
fn moved(target: &Path, before: &str, now: &Path) -> PathBuf {
    match target.strip_prefix(before) {
        Ok(_) if before.is_empty() => target.to_owned(),
        // Nothing behind it, not even a slash.
        Ok(rest) if rest.as_os_str().is_empty() => now.to_owned(),
        Ok(rest) => now.join(rest),
        Err(_) => target.to_owned(),
    }
}

/// A script, or the settings of an environment of Python, that names another folder than before; `None` where it
/// names none.
fn renamed(path: &str, bytes: &[u8], (before, now): (&str, &Path)) -> Option<Vec<u8>> {
    let is_named = path.starts_with("bin/") || path == "pyvenv.cfg" || bytes.starts_with(b"#!");
    let now = now.to_str()?;
    if !is_named || before == now || before.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    text.contains(before)
        .then(|| text.replace(before, now).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Footprint;

    fn store(at: &Path) -> Store {
        let budget = Footprint {
            piece_bytes: 1 << 30,
            folder_bytes: 0,
        };
        Store::open(at.join("store"), budget).unwrap()
    }

    fn made(at: &Path) -> PathBuf {
        let folder = at.join("made");
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::create_dir_all(folder.join("lib/empty")).unwrap();
        let script = format!("#!{}/bin/python3\nprint(1)\n", folder.display());
        fs::write(folder.join("bin/tool"), script).unwrap();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.join("bin/tool"), mode).unwrap();
        fs::write(folder.join("lib/a.py"), "a = 1\n").unwrap();
        fs::write(folder.join("lib/none"), "").unwrap();
        fs::write(folder.join("lib/large"), vec![7_u8; 3 << 20]).unwrap();
        symlink("lib", folder.join("lib64")).unwrap();
        symlink("/usr/bin/python3", folder.join("bin/python3")).unwrap();
        symlink(folder.join("lib/a.py"), folder.join("bin/a")).unwrap();
        symlink(&folder, folder.join("lib/top")).unwrap();
        let beside = format!("{}-2/lib", folder.display());
        symlink(beside, folder.join("lib/beside")).unwrap();
        folder
    }

    /// SEMANTICS 190.
    #[test]
    fn a_folder_is_restored_under_another_path_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, store) = (made(dir.path()), store(dir.path()));
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let taken = Snapshot::take(&folder, &store, now, now + Duration::from_secs(60)).unwrap();
        assert_eq!(taken.files, 4);
        let place = dir.path().join("place");
        Snapshot::restore(&taken.bundle, &store, &place).unwrap();
        let script = fs::read_to_string(place.join("bin/tool")).unwrap();
        assert_eq!(
            script,
            format!("#!{}/bin/python3\nprint(1)\n", place.display())
        );
        assert_eq!(
            fs::metadata(place.join("bin/tool")).unwrap().mode() & 0o777,
            0o755
        );
        assert_eq!(
            fs::read(place.join("lib64/large")).unwrap(),
            vec![7; 3 << 20]
        );
        assert_eq!(
            fs::read_link(place.join("lib64")).unwrap(),
            Path::new("lib")
        );
        let leads_to = |link: &str| fs::read_link(place.join(link)).unwrap();
        assert_eq!(leads_to("bin/a"), place.join("lib/a.py"));
        assert_eq!(leads_to("lib/top").as_os_str(), place.as_os_str());
        assert!(leads_to("lib/beside").ends_with("made-2/lib"), "elsewhere");
        assert!(place.join("lib/empty").is_dir());
        let time = |at: &Path| fs::metadata(at.join("lib/a.py")).unwrap().mtime();
        assert_eq!(time(&place), time(&folder));
        // The same folder once more is the same snapshot, and one that changes is seen.
        let again = Snapshot::take(&folder, &store, now, now + Duration::from_secs(60)).unwrap();
        assert_eq!(again.bundle.digest(), taken.bundle.digest());
        let look = FolderLook::at(&place).unwrap();
        assert!(look.is_still(&place));
        fs::write(place.join("lib/a.py"), "a = 22\n").unwrap();
        assert!(!look.is_still(&place));
    }

    /// SEMANTICS 190.
    #[test]
    fn a_damaged_piece_is_refused_and_nothing_is_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, store) = (made(dir.path()), store(dir.path()));
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let taken = Snapshot::take(&folder, &store, now, now + Duration::from_secs(60)).unwrap();
        let bundle = taken.bundle;
        let piece = bundle.file(CONTENT).unwrap().listing.pieces()[0];
        let held = store.get(&piece.digest).unwrap();
        let name = piece.digest.to_string();
        let mut found = vec![];
        walk(store.folder(), &mut |_, path, meta| {
            let is_it = meta.is_file() && path.to_string_lossy().replace('/', "").contains(&name);
            if is_it {
                found.push(path.to_owned());
            }
            Ok(())
        })
        .unwrap();
        let [path] = &found[..] else {
            panic!("{found:?}")
        };
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(path, mode).unwrap();
        fs::write(path, "damaged").unwrap();
        let place = dir.path().join("place");
        let refused = Snapshot::restore(&bundle, &store, &place).unwrap_err();
        assert!(matches!(refused, SnapshotError::Get(_)), "{refused}");
        assert!(!place.exists());
        // It is missing now, and right once it has come again.
        let missing = store.missing(bundle.pieces()).unwrap();
        assert_eq!(missing.len(), 1);
        store.put(&piece.digest, &held, now).unwrap();
        Snapshot::restore(&bundle, &store, &place).unwrap();
        assert!(place.join("bin/tool").is_file());
    }

    #[test]
    fn what_cannot_travel_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, store) = (made(dir.path()), store(dir.path()));
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("lib/s")).unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let refused = Snapshot::take(&folder, &store, now, now).unwrap_err();
        assert!(refused.to_string().contains("lib/s"), "{refused}");
        let link = dir.path().join("link");
        symlink(&folder, &link).unwrap();
        let refused = Snapshot::take(&link, &store, now, now).unwrap_err();
        assert!(refused.to_string().contains("a link"), "{refused}");
        assert!(FolderLook::at(&link).is_err());
        let program = Bundle::new(
            "x",
            [(
                "x".to_owned(),
                BundleFile {
                    executable: true,
                    listing: Listing::of(b"x".as_slice()).unwrap(),
                },
            )],
        );
        let refused = Snapshot::restore(&program.unwrap(), &store, &dir.path().join("p"));
        assert!(matches!(refused, Err(SnapshotError::NoSnapshot(_))));
    }
}
