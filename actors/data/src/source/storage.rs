//! Where files are: on a disk or in a bucket. Calls block; they are made on threads that may.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Once},
    time::UNIX_EPOCH,
};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, aws::AmazonS3Builder,
    path::Path as ObjectPath,
};
use tokio::runtime::Handle;

use super::{
    fault::SourceError,
    index::Digest,
    pattern::{Pattern, braces},
};

/// A place with files.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    /// The file system.
    Disk,
    /// A bucket.
    Objects {
        /// It.
        store: Arc<dyn ObjectStore>,
        /// `s3://bucket`, before a name.
        bucket: String,
        /// Of the runtime that its requests run on.
        handle: Handle,
    },
}

/// A file as its storage lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its path, or its name in the bucket.
    pub(crate) name: String,
    pub(crate) stamp: Stamp,
}

/// The files that a path names.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Those that are read, sorted.
    pub(crate) files: Vec<Listed>,
    /// Those below a folder that are not, and folders that were not looked into: name and reason.
    pub(crate) others: Vec<(String, String)>,
}

/// The stamp by which a file is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Its bytes.
    pub(crate) size: u64,
    /// Of its modification or its tag.
    pub(crate) version: u64,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, version {:x}", self.size, self.version)
    }
}

impl Storage {
    /// The storage that a path or URL names, and the path inside it.
    pub(crate) fn of(
        path: &str,
        options: &BTreeMap<String, String>,
    ) -> Result<(Self, String), SourceError> {
        let refused = |reason: String| SourceError::Read {
            file: path.to_owned(),
            source: io::Error::other(reason),
        };
        let Some((scheme, rest)) = path.split_once("://") else {
            let absolute = std::path::absolute(path).map_err(|error| refused(error.to_string()))?;
            let absolute = absolute.into_os_string().into_string();
            let absolute = absolute.map_err(|_| refused("the path is not UTF-8".into()))?;
            return Ok((Self::Disk, absolute));
        };
        match scheme {
            "file" => Ok((Self::Disk, rest.to_owned())),
            "s3" => {
                let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                for (key, value) in options {
                    let key = key
                        .parse()
                        .map_err(|_| refused(format!("`{key}` is no option of its storage")))?;
                    builder = builder.with_config(key, value);
                }
                install_cryptography();
                let store = builder
                    .build()
                    .map_err(|error| refused(error.to_string()))?;
                let storage = Self::Objects {
                    store: Arc::new(store),
                    bucket: format!("s3://{bucket}"),
                    handle: Handle::current(),
                };
                Ok((storage, key.to_owned()))
            }
            _ => Err(refused(format!("`{scheme}` is neither a path nor s3"))),
        }
    }

    /// The name of a file for people.
    pub(crate) fn shown(&self, name: &str) -> String {
        match self {
            Self::Disk => name.to_owned(),
            Self::Objects { bucket, .. } => format!("{bucket}/{name}"),
        }
    }

    /// The files that a path names: itself, those below it of which `takes` finds that their names are
    /// of the format, or those that match it.
    pub(crate) fn list(
        &self,
        path: &str,
        takes: &dyn Fn(&str) -> bool,
    ) -> Result<Found, SourceError> {
        let mut found = Found::default();
        if self.named(path, &mut found)? {
            return Ok(found);
        }
        let all = braces(path).map_err(|reason| SourceError::Pattern {
            path: path.to_owned(),
            reason,
        })?;
        let each = all.len() > 1;
        for path in &all {
            let pattern = Pattern::new(path);
            if !pattern.is_plain() {
                let below = self.below(pattern.root())?;
                let matching = below.files.into_iter();
                found
                    .files
                    .extend(matching.filter(|file| pattern.matches(&file.name)));
                found.others.extend(below.others);
                continue;
            }
            if each && self.named(path, &mut found)? {
                continue;
            }
            let below = self.below(pattern.root())?;
            if each && below.files.is_empty() {
                return Err(SourceError::Nothing {
                    path: path.clone(),
                    others: String::new(),
                });
            }
            found.others.extend(below.others);
            for file in below.files {
                match takes(&file.name) {
                    true => found.files.push(file),
                    false => {
                        let reason = "it is not read: its name is not one of the format's";
                        found.others.push((file.name, reason.to_owned()));
                    }
                }
            }
        }
        found.files.sort_by(|a, b| a.name.cmp(&b.name));
        found.files.dedup_by(|a, b| a.name == b.name);
        Ok(found)
    }

    /// Finds the file of this very name.
    fn named(&self, path: &str, found: &mut Found) -> Result<bool, SourceError> {
        let name = path.trim_end_matches('/');
        let Some(stamp) = self.stat(name)? else {
            return Ok(false);
        };
        let name = name.to_owned();
        found.files.push(Listed { name, stamp });
        Ok(true)
    }

    /// The stamp of a file now; none if there is no such file.
    pub(crate) fn stat(&self, name: &str) -> Result<Option<Stamp>, SourceError> {
        match self {
            Self::Disk => match fs::metadata(name) {
                Ok(metadata) => Ok(metadata.is_file().then(|| stamp(&metadata))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(self.refused(name, error)),
            },
            Self::Objects { store, handle, .. } => {
                if name.is_empty() {
                    return Ok(None);
                }
                let location = self.location(name)?;
                match handle.block_on(store.head(&location)) {
                    Ok(meta) => Ok(Some(stamp_of(&meta))),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(self.refused(name, error.into())),
                }
            }
        }
    }

    /// Reads a part of a file that must still be the one with this stamp.
    pub(crate) fn read(
        &self,
        name: &str,
        expected: Stamp,
        range: Range<u64>,
    ) -> Result<Bytes, SourceError> {
        let changed = |is: String| SourceError::Changed {
            file: self.shown(name),
            was: expected.to_string(),
            is,
        };
        let (stamp, bytes) = match self {
            Self::Disk => match read_file(name, range.clone()) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(changed("gone".into()));
                }
                // Cut off between the look at its size and the read.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(changed("shorter".into()));
                }
                Err(error) => return Err(self.refused(name, error)),
            },
            Self::Objects { store, handle, .. } => {
                let location = self.location(name)?;
                let options = GetOptions::default().with_range(
                    // A request cannot ask for nothing.
                    (!range.is_empty()).then(|| range.clone()),
                );
                let read = async {
                    let found = store.get_opts(&location, options).await?;
                    let stamp = stamp_of(&found.meta);
                    if stamp != expected || range.is_empty() {
                        return Ok((stamp, Bytes::new()));
                    }
                    Ok((stamp, found.bytes().await?))
                };
                match handle.block_on(read) {
                    Ok(read) => read,
                    Err(object_store::Error::NotFound { .. }) => {
                        return Err(changed("gone".into()));
                    }
                    Err(error) => return Err(self.refused_or_changed(name, expected, error)),
                }
            }
        };
        if stamp != expected {
            return Err(changed(stamp.to_string()));
        }
        if bytes.len() as u64 != range.end.saturating_sub(range.start) {
            return Err(changed(format!(
                "{} bytes from {}",
                bytes.len(),
                range.start
            )));
        }
        Ok(bytes)
    }

    /// A range that a shorter object does not have is refused by its server before the object's
    /// stamp is seen.
    fn refused_or_changed(
        &self,
        name: &str,
        expected: Stamp,
        error: object_store::Error,
    ) -> SourceError {
        match self.stat(name) {
            Ok(Some(is)) if is != expected => SourceError::Changed {
                file: self.shown(name),
                was: expected.to_string(),
                is: is.to_string(),
            },
            _ => self.refused(name, error.into()),
        }
    }

    /// All files below a folder, sorted; those whose names or folders begin with a dot are left out.
    fn below(&self, root: &str) -> Result<Found, SourceError> {
        let mut found = match self {
            Self::Disk => {
                let mut walk = Walk::default();
                walk.folder(Path::new(root))
                    .map_err(|(path, error)| self.refused(&path.to_string_lossy(), error))?;
                walk.found
            }
            Self::Objects { store, handle, .. } => {
                let prefix = self.location(root)?;
                let all = store.list(Some(&prefix)).try_collect::<Vec<ObjectMeta>>();
                let all = handle
                    .block_on(all)
                    .map_err(|error| self.refused(root, error.into()))?;
                let listed = |meta: ObjectMeta| Listed {
                    stamp: stamp_of(&meta),
                    name: meta.location.into(),
                };
                let shown = |file: &Listed| {
                    let own = file.name.strip_prefix(root).unwrap_or(&file.name);
                    let hidden = |name: &str| name.starts_with('.') || NO_DATA.contains(&name);
                    !own.split('/').any(hidden)
                };
                Found {
                    files: all.into_iter().map(listed).filter(shown).collect(),
                    others: vec![],
                }
            }
        };
        found.files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn location(&self, name: &str) -> Result<ObjectPath, SourceError> {
        ObjectPath::parse(name).map_err(|error| self.refused(name, io::Error::other(error)))
    }

    fn refused(&self, name: &str, source: io::Error) -> SourceError {
        SourceError::Read {
            file: self.shown(name),
            source,
        }
    }
}

/// A file that is read: itself, or what it decompresses to.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) storage: Storage,
    pub(crate) name: String,
    pub(crate) stamp: Stamp,
    /// The name of it for people.
    pub(crate) shown: String,
    /// Where it ended each time before more was added, in ascending order.
    pub(crate) ends: Vec<u64>,
}

impl Content {
    /// Its length.
    pub(crate) fn len(&self) -> u64 {
        self.stamp.size
    }

    /// A part of it.
    pub(crate) fn part(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        self.storage.read(&self.name, self.stamp, range)
    }

    /// All of it.
    pub(crate) fn whole(&self) -> Result<Bytes, SourceError> {
        self.part(0..self.len())
    }
}

/// A file from its begin to its end, window by window.
#[derive(Debug)]
pub(crate) struct Windows<'a> {
    content: &'a Content,
    /// Of all that was read, and where.
    hasher: blake3::Hasher,
    at: u64,
    window: Bytes,
    begin: u64,
    /// The digest that it had at each of its earlier ends that were read.
    earlier: Vec<Digest>,
}

impl<'a> Windows<'a> {
    pub(crate) fn new(content: &'a Content) -> Self {
        Self {
            content,
            hasher: blake3::Hasher::new(),
            at: 0,
            window: Bytes::new(),
            begin: 0,
            earlier: Vec::new(),
        }
    }

    /// The place up to which it is read.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The next window of it: nothing at its end.
    pub(crate) fn next(&mut self) -> Result<Bytes, SourceError> {
        let end = self.content.len().min(self.at.saturating_add(WINDOW));
        let window = self.content.part(self.at.min(end)..end)?;
        if !window.is_empty() {
            let ends = self.content.ends.iter().skip(self.earlier.len());
            for end in ends.copied().take_while(|last| *last <= end) {
                let mut hasher = self.hasher.clone();
                let read = end.saturating_sub(self.at) as usize;
                if read > 0 {
                    hasher.update(&self.at.to_le_bytes());
                    hasher.update(&window[..read]);
                }
                self.earlier.push(digest(&hasher));
            }
            self.hasher.update(&self.at.to_le_bytes());
            self.hasher.update(&window);
        }
        self.at = end;
        Ok(window)
    }

    /// A hash of what was read, and where that is in the file.
    pub(crate) fn digest(&self) -> Digest {
        digest(&self.hasher)
    }

    /// The same at each end that the file had before, as far as it was read.
    pub(crate) fn earlier(&self) -> &[Digest] {
        &self.earlier
    }
}

/// A hash of as many bytes as tell files apart.
pub(crate) fn digest(hasher: &blake3::Hasher) -> Digest {
    let hash = hasher.finalize();
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

impl Read for Windows<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let within = |at: u64, begin: u64, window: &Bytes| {
            at.checked_sub(begin)
                .filter(|&skip| skip < window.len() as u64)
        };
        let skip = match within(self.at, self.begin, &self.window) {
            Some(skip) => skip,
            None => {
                let at = self.at;
                let window = Self::next(self).map_err(io::Error::other)?;
                (self.window, self.begin, self.at) = (window, at, at);
                0
            }
        };
        let left = &self.window[skip as usize..];
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Windows<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.content.len().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

fn read_file(name: &str, range: Range<u64>) -> io::Result<(Stamp, Bytes)> {
    let file = File::open(name)?;
    let stamp = stamp(&file.metadata()?);
    // So that nothing is allocated for what is not there.
    let end = range.end.min(stamp.size);
    let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok((stamp, bytes.into()))
}

/// Names of folders in which Spark and Delta keep what is under way, and their notes.
const NO_DATA: [&str; 3] = ["_temporary", "_delta_log", "_spark_metadata"];

/// A walk through folders, of which each is looked into once, however many links lead to it.
#[derive(Default)]
struct Walk {
    found: Found,
    seen: HashSet<(u64, u64)>,
}

impl Walk {
    fn folder(&mut self, folder: &Path) -> Result<(), (PathBuf, io::Error)> {
        let refused = |error| (folder.to_owned(), error);
        match fs::metadata(folder) {
            Ok(own) if !own.is_dir() => {
                return Err(refused(io::Error::other(
                    "it is neither a file nor a folder",
                )));
            }
            Ok(own) => self.seen.insert((own.dev(), own.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(refused(error)),
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(refused)? {
            paths.push(entry.map_err(refused)?.path());
        }
        // The order of a folder is its file system's.
        paths.sort();
        let linked = |path: &Path| path.symlink_metadata().is_ok_and(|it| it.is_symlink());
        // A folder is where it stands before it is where a link says.
        paths.sort_by_key(|path| linked(path) && path.is_dir());
        for path in paths {
            let hidden = path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !hidden {
                self.entry(path)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: PathBuf) -> Result<(), (PathBuf, io::Error)> {
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) => {
                let reason = format!("it is not read: {error}");
                let name = path.to_string_lossy().into_owned();
                self.found.others.push((name, reason));
                return Ok(());
            }
        };
        let folder_name = path.file_name().unwrap_or_default().to_string_lossy();
        if metadata.is_dir() && NO_DATA.contains(&&*folder_name) {
            let reason = format!("`{folder_name}` holds what is not finished, or no data");
            let name = path.to_string_lossy().into_owned();
            self.found.others.push((name, reason));
            return Ok(());
        }
        if metadata.is_dir() {
            if self.seen.contains(&(metadata.dev(), metadata.ino())) {
                let reason = "it leads to a folder that is read already".to_owned();
                let name = path.to_string_lossy().into_owned();
                self.found.others.push((name, reason));
                return Ok(());
            }
            return self.folder(&path);
        }
        if metadata.is_file() {
            let stamp = stamp(&metadata);
            let name = path.into_os_string().into_string();
            let name = name.map_err(|name| {
                let reason = "the name of a file is not UTF-8";
                (PathBuf::from(name), io::Error::other(reason))
            })?;
            self.found.files.push(Listed { name, stamp });
        } else {
            let name = path.to_string_lossy().into_owned();
            let reason = "it is neither a file nor a folder".to_owned();
            self.found.others.push((name, reason));
        }
        Ok(())
    }
}

fn stamp(metadata: &fs::Metadata) -> Stamp {
    let modified = metadata.modified().ok();
    let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    Stamp {
        size: metadata.len(),
        version: since.map_or(0, |since| since.as_nanos() as u64),
    }
}

fn stamp_of(meta: &ObjectMeta) -> Stamp {
    let version = match &meta.e_tag {
        Some(tag) => {
            let hash = blake3::hash(tag.as_bytes());
            u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
        }
        None => meta.last_modified.timestamp_micros() as u64,
    };
    Stamp {
        size: meta.size,
        version,
    }
}

/// A process has one library of cryptography, whoever comes first.
fn install_cryptography() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// Enough that a read's own cost does not count, and little enough for many at once.
const WINDOW: u64 = 1 << 20;
