//! Where checkpoints lie: a folder, a bucket, or memory, all through `object_store`.
//!
//! A file is there whole or not at all. What fails in a way that may pass is tried again; what does
//! not pass is an error with the file and, where it is known, the byte.

mod error;

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, FuturesUnordered};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

pub use self::error::StorageError;
use self::error::{classify, io};

/// A place of checkpoints.
#[derive(Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// As people call it.
    place: Arc<str>,
    /// Where files are read without a detour, for a folder.
    folder: Option<Arc<FilePath>>,
    tuning: Tuning,
}

/// Settings for access to a storage: parallel parts and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Files that are larger are sent in parts of so many bytes, and longer ranges read in as many; S3 wants 5 MiB at
    /// least.
    pub part_bytes: usize,
    /// Number of parts of a file, or of a range, that are on the way at a time.
    pub parts: usize,
    /// Number of tries of an operation whose failure may pass, before it is an error.
    pub tries: u32,
    /// Pause after the first failure; it doubles with each further one.
    pub pause: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            part_bytes: 8 << 20,
            parts: 8,
            tries: 4,
            pause: Duration::from_millis(100),
        }
    }
}

impl Storage {
    /// A place by its name: a folder, `file:///folder`, or `s3://bucket/folder`. What S3 needs else
    /// it takes from the usual variables: `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL`, and
    /// `AWS_ALLOW_HTTP` for an endpoint without TLS.
    ///
    /// # Errors
    /// [`StorageError::Place`], or [`StorageError::Missing`] when there is no such folder.
    pub fn open(place: &str) -> Result<Self, StorageError> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name
                .into_string()
                .ok()
                .filter(|name| name.starts_with("AWS_"))?;
            Some((name, value.into_string().ok()?))
        });
        Self::open_with(place, variables)
    }

    /// As [`open`](Self::open), with these variables in the place of those of the process.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        place: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, StorageError> {
        let refused = |detail: String| StorageError::Place {
            place: place.into(),
            detail,
        };
        if let Some(folder) = place.strip_prefix("file://") {
            return Self::folder(FilePath::new(folder));
        }
        let Some(rest) = place.strip_prefix("s3://") else {
            if let Some((scheme, _)) = place.split_once("://") {
                return Err(refused(format!(
                    "`{scheme}` is no kind of place; there are folders and s3://bucket/folder"
                )));
            }
            return Self::folder(FilePath::new(place));
        };
        // Somebody else may have chosen one before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let mut store = AmazonS3Builder::new().with_bucket_name(bucket);
        for (name, value) in variables {
            // Others mean nothing to a store.
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                store = store.with_config(key, value);
            }
        }
        let store = store.build().map_err(|error| refused(error.to_string()))?;
        let prefix = Path::parse(folder).map_err(|error| refused(error.to_string()))?;
        Ok(Self {
            store: Arc::new(store),
            prefix,
            place: place.trim_end_matches('/').into(),
            folder: None,
            tuning: Tuning::default(),
        })
    }

    /// As [`open`](Self::open), where a folder that is not there is made.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn create(place: &str) -> Result<Self, StorageError> {
        let folder = place.strip_prefix("file://").unwrap_or(place);
        if !folder.contains("://") {
            std::fs::create_dir_all(folder).map_err(|error| io(&error, folder, None))?;
        }
        Self::open(place)
    }

    /// A folder that is there.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn folder(folder: &FilePath) -> Result<Self, StorageError> {
        let place = folder.display().to_string();
        let found = folder
            .canonicalize()
            .map_err(|error| io(&error, &place, None))?;
        let store = LocalFileSystem::new_with_prefix(&found)
            .map_err(|error| classify(&error, &place, None).0)?
            .with_fsync(true);
        Ok(Self {
            store: Arc::new(store),
            prefix: Path::default(),
            place: place.into(),
            folder: Some(found.into()),
            tuning: Tuning::default(),
        })
    }

    /// Memory of this process.
    #[must_use]
    pub fn memory() -> Self {
        Self::of(Arc::new(InMemory::new()), "memory")
    }

    /// Any store, under the name by which errors call it.
    #[must_use]
    pub fn of(store: Arc<dyn ObjectStore>, place: &str) -> Self {
        Self {
            store,
            prefix: Path::default(),
            place: place.into(),
            folder: None,
            tuning: Tuning::default(),
        }
    }

    /// The same place, used otherwise.
    #[must_use]
    pub const fn tuned(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// The place, as people call it.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// A file as errors call it.
    #[must_use]
    pub fn shown(&self, file: &str) -> String {
        format!("{}/{file}", self.place)
    }

    /// Writes a file, put together of pieces, and has it survive a loss of power.
    ///
    /// # Errors
    /// [`StorageError`]; the file is not there then, or as it was, but for
    /// [`StorageError::Unavailable`] of a place over a network, where that is not known.
    #[odeon_macros::boxed]
    pub async fn put(&self, file: &str, pieces: &[Bytes]) -> Result<(), StorageError> {
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        if bytes <= self.tuning.part_bytes {
            return self
                .again(file, None, || async {
                    let payload: PutPayload = pieces.iter().cloned().collect();
                    self.store.put(&self.path(file), payload).await.map(drop)
                })
                .await;
        }
        let mut tried = 1;
        loop {
            let (error, passing) = match self.put_parts(file, pieces).await {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            if !passing || tried >= self.tuning.tries {
                return Err(error);
            }
            self.rest(tried, &error).await;
            tried += 1;
        }
    }

    async fn put_parts(&self, file: &str, pieces: &[Bytes]) -> Result<(), (StorageError, bool)> {
        let path = self.path(file);
        let failed = |error, at| classify(&error, &self.shown(file), at);
        let upload = self.store.put_multipart(&path).await;
        let mut upload = upload.map_err(|error| failed(error, Some(0)))?;
        let mut under_way = FuturesUnordered::new();
        let mut result = Ok(());
        let parts: Vec<_> = parts(pieces, self.tuning.part_bytes).collect();
        for (start, part) in parts {
            let sent = upload.put_part(part.into_iter().collect());
            under_way.push(async move { sent.await.map_err(|error| (error, start)) });
            if under_way.len() >= self.tuning.parts.max(1)
                && let Some(Err(error)) = under_way.next().await
            {
                result = Err(error);
                break;
            }
        }
        while let Some(sent) = under_way.next().await {
            result = result.and(sent);
        }
        let result = match result {
            Ok(()) => upload
                .complete()
                .await
                .map(drop)
                .map_err(|error| failed(error, None)),
            Err((error, start)) => Err(failed(error, Some(start))),
        };
        if result.is_err() {
            // What is left of it takes room and nothing else.
            let _ = upload.abort().await;
        }
        result
    }

    /// All of a file.
    ///
    /// # Errors
    /// [`StorageError`].
    #[odeon_macros::boxed]
    pub async fn get(&self, file: &str) -> Result<Bytes, StorageError> {
        self.again(file, Some(0), || async {
            self.store.get(&self.path(file)).await?.bytes().await
        })
        .await
    }

    /// These bytes of a file, all of them. Many are read in stripes of [`Tuning::part_bytes`], [`Tuning::parts`] at a
    /// time: one stream of a store has a part of what its many machines give (Bootseer, arXiv 2507.12619).
    ///
    /// # Errors
    /// [`StorageError`]; [`StorageError::Short`] when the file ends before them.
    #[odeon_macros::boxed]
    pub async fn read(&self, file: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        let unit = self.tuning.part_bytes.max(1);
        let bytes = range.end.saturating_sub(range.start);
        if bytes <= unit as u64 {
            return self.read_stripe(file, range).await;
        }
        let starts = range.clone().step_by(unit);
        let stripes = stream::iter(starts).map(|start| {
            let end = range.end.min(start + unit as u64);
            self.read_stripe(file, start..end)
        });
        let mut stripes = stripes.buffered(self.tuning.parts.max(1));
        let mut whole = BytesMut::with_capacity(usize::try_from(bytes).unwrap_or_default());
        while let Some(stripe) = stripes.next().await {
            let stripe = stripe.map_err(|error| match error {
                StorageError::Short { file, offset, .. } => StorageError::Short {
                    file,
                    offset,
                    expected: range.end,
                },
                error => error,
            });
            whole.extend_from_slice(&stripe?);
        }
        Ok(whole.freeze())
    }

    /// These bytes of a file, in one stream.
    async fn read_stripe(&self, file: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let bytes = self
            .again(file, Some(range.start), || {
                let range = range.clone();
                async move { self.store.get_range(&self.path(file), range).await }
            })
            .await;
        let found = match bytes {
            Ok(bytes) if bytes.len() as u64 == range.end - range.start => return Ok(bytes),
            Ok(bytes) => range.start + bytes.len() as u64,
            // Stores refuse what begins behind the end in many words.
            Err(error @ StorageError::Unavailable { .. }) => match self.size(file).await {
                Ok(size) if size < range.end => size,
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        };
        Err(StorageError::Short {
            file: self.shown(file),
            offset: found,
            expected: range.end,
        })
    }

    /// The file on a disk of this machine, where that is how it is read.
    pub(crate) fn on_disk(&self, file: &str) -> Option<OnDisk> {
        self.folder.as_deref().map(|folder| OnDisk {
            path: folder.join(file),
            shown: self.shown(file),
        })
    }

    /// Size of a file in bytes.
    ///
    /// # Errors
    /// [`StorageError`].
    #[odeon_macros::boxed]
    pub async fn size(&self, file: &str) -> Result<u64, StorageError> {
        let found = self
            .again(file, None, || async {
                self.store.head(&self.path(file)).await
            })
            .await;
        found.map(|meta| meta.size)
    }

    /// Returns true when a file is there.
    ///
    /// # Errors
    /// [`StorageError`], when that cannot be told.
    #[odeon_macros::boxed]
    pub async fn has(&self, file: &str) -> Result<bool, StorageError> {
        match self.size(file).await {
            Ok(_) => Ok(true),
            Err(StorageError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The folders in this place, in order.
    ///
    /// # Errors
    /// [`StorageError`].
    #[odeon_macros::boxed]
    pub async fn folders(&self) -> Result<Vec<String>, StorageError> {
        let prefix = Some(&self.prefix).filter(|prefix| !prefix.as_ref().is_empty());
        let listed = self
            .again("", None, || async {
                self.store.list_with_delimiter(prefix).await
            })
            .await?;
        let prefixes = listed.common_prefixes.into_iter();
        let mut folders: Vec<String> = prefixes
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect();
        folders.sort_unstable();
        Ok(folders)
    }

    /// The files of a folder, with their sizes, in order.
    ///
    /// # Errors
    /// [`StorageError`].
    #[odeon_macros::boxed]
    pub async fn files(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let path = self.path(folder);
        let listed = self
            .again(folder, None, || async {
                self.store.list(Some(&path)).try_collect::<Vec<_>>().await
            })
            .await?;
        let mut files: Vec<(String, u64)> = listed
            .into_iter()
            .filter_map(|meta| Some((meta.location.filename()?.to_owned(), meta.size)))
            .collect();
        files.sort_unstable();
        Ok(files)
    }

    /// Removes a file; one that is not there is removed already.
    ///
    /// # Errors
    /// [`StorageError`].
    #[odeon_macros::boxed]
    pub async fn remove(&self, file: &str) -> Result<(), StorageError> {
        let removed = self
            .again(file, None, || async {
                self.store.delete(&self.path(file)).await
            })
            .await;
        match removed {
            Err(StorageError::Missing { .. }) => Ok(()),
            other => other,
        }
    }

    /// Removes a folder with all in it, also what a crash has left of files that never were there.
    ///
    /// # Errors
    /// [`StorageError`]; some of it may be gone then.
    #[odeon_macros::boxed]
    pub async fn remove_folder(&self, folder: &str) -> Result<(), StorageError> {
        for (file, _) in self.files(folder).await? {
            self.remove(&format!("{folder}/{file}")).await?;
        }
        let Some(path) = self.folder.as_ref().map(|root| root.join(folder)) else {
            return Ok(());
        };
        match tokio::fs::remove_dir_all(&path).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io(&error, &self.shown(folder), None))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, file: &str) -> Path {
        let parts = self.prefix.parts();
        let own = file.split('/').filter(|part| !part.is_empty());
        parts
            .chain(own.map(object_store::path::PathPart::from))
            .collect()
    }

    /// Does something that may pass when it fails, until it does not or was tried often enough.
    async fn again<T, F>(
        &self,
        file: &str,
        offset: Option<u64>,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, StorageError>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut tried = 1;
        loop {
            let error = match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let (error, passing) = classify(&error, &self.shown(file), offset);
            if !passing || tried >= self.tuning.tries {
                return Err(error);
            }
            self.rest(tried, &error).await;
            tried += 1;
        }
    }

    async fn rest(&self, tried: u32, error: &StorageError) {
        let pause = self.tuning.pause * 2_u32.saturating_pow(tried - 1);
        tracing::debug!("{error}; again in {pause:?}");
        tokio::time::sleep(pause).await;
    }
}

/// A file that is read where it lies.
#[derive(Debug)]
pub(crate) struct OnDisk {
    path: PathBuf,
    shown: String,
}

impl OnDisk {
    /// Fills `into` with the file's bytes from `start` on. Blocks.
    pub(crate) fn read(&self, start: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let file = File::open(&self.path).map_err(|error| io(&error, &self.shown, Some(start)))?;
        let mut filled = 0;
        while filled < into.len() {
            let at = start + filled as u64;
            match file.read_at(&mut into[filled..], at) {
                Ok(0) => {
                    return Err(StorageError::Short {
                        file: self.shown.clone(),
                        offset: at,
                        expected: start + into.len() as u64,
                    });
                }
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io(&error, &self.shown, Some(at))),
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage({})", self.place)
    }
}

/// Pieces cut and joined into parts of `part_bytes`, each with where it begins; nothing is copied.
fn parts(pieces: &[Bytes], part_bytes: usize) -> impl Iterator<Item = (u64, Vec<Bytes>)> {
    let mut rest = pieces.iter().filter(|piece| !piece.is_empty()).cloned();
    let mut open: Option<Bytes> = None;
    let mut start = 0;
    std::iter::from_fn(move || {
        let (mut part, mut bytes) = (vec![], 0);
        while bytes < part_bytes {
            let Some(mut piece) = open.take().or_else(|| rest.next()) else {
                break;
            };
            if piece.len() > part_bytes - bytes {
                open = Some(piece.split_off(part_bytes - bytes));
            }
            bytes += piece.len();
            part.push(piece);
        }
        let at = start;
        start += bytes as u64;
        (bytes > 0).then_some((at, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_the_pieces_cut_elsewhere(
            sizes in prop::collection::vec(0_usize..50, 0..10),
            part_bytes in 1_usize..40,
        ) {
            let mut next = 0_u8;
            let pieces: Vec<Bytes> = sizes.iter().map(|size| {
                (0..*size).map(|_| { next = next.wrapping_add(1); next }).collect()
            }).collect();
            let (mut all, mut last) = (vec![], part_bytes);
            for (start, part) in parts(&pieces, part_bytes) {
                prop_assert_eq!(start, all.len() as u64);
                prop_assert_eq!(last, part_bytes, "only the last is shorter");
                last = part.iter().map(Bytes::len).sum();
                all.extend(part.concat());
            }
            prop_assert_eq!(all, pieces.concat());
        }
    }

    /// SEMANTICS 193.
    #[tokio::test]
    async fn a_long_range_is_read_in_stripes_and_is_the_same_bytes() {
        let tuning = Tuning {
            part_bytes: 10,
            parts: 3,
            ..Tuning::default()
        };
        let storage = Storage::memory().tuned(tuning);
        let bytes: Vec<u8> = (0..95).collect();
        storage.put("a", &[bytes.clone().into()]).await.unwrap();
        for range in [0..95, 3..4, 5..15, 5..16, 7..7, 0..90, 94..95] {
            let read = storage.read("a", range.clone()).await.unwrap();
            let expect = &bytes[range.start as usize..range.end as usize];
            assert_eq!(read, expect, "{range:?}");
        }
        let short = storage.read("a", 20..120).await.unwrap_err();
        let is_told = matches!(
            &short,
            StorageError::Short {
                offset: 95,
                expected: 120,
                ..
            }
        );
        assert!(is_told, "{short}");
    }

    #[test]
    fn a_place_that_cannot_be_is_refused_by_its_name() {
        let error = Storage::open("ftp://host/there").unwrap_err();
        assert!(
            error.to_string().contains("`ftp` is no kind of place"),
            "{error}"
        );
        let error = Storage::open("/nowhere/at/all").unwrap_err();
        assert!(matches!(error, StorageError::Missing { .. }), "{error}");
    }
}
