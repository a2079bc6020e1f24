//! Check of a checkpoint against its checksums: every byte of every file.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::assemble::Stored;
use crate::commit::{Entry, FindError, Which, find, manifest};
use crate::manifest::{MANIFEST, Manifest, ManifestError};
use crate::plan::save::gap;
use crate::storage::{Storage, StorageError};

/// Result of the check of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Of which checkpoint.
    pub entry: Entry,
    /// Files that were read.
    pub files: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// Faults that were found, in the order of the files.
    pub faults: Vec<Fault>,
    /// Files that do not belong there. They do no harm.
    pub foreign: Vec<String>,
}

/// Something that is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The byte from which on it is, where it is of some bytes.
    pub offset: Option<u64>,
    /// Description of the fault, with the file and the byte.
    pub detail: String,
}

/// Bytes with a checksum.
struct Span {
    file: String,
    start: u64,
    bytes: usize,
    crc: u32,
}

/// Reads all of a checkpoint, a block at a time, and compares it with its manifest.
///
/// # Errors
/// [`FindError`] when there is no such checkpoint, or its manifest is damaged itself.
pub async fn verify(storage: &Storage, which: Which) -> Result<Report, FindError> {
    let (entry, manifest) = find(storage, which).await?;
    let mut faults = sizes(storage, &entry, &manifest).await?;
    let cut: BTreeSet<String> = faults.iter().map(|fault| fault.file.clone()).collect();
    let spans = spans(&manifest);
    let bytes = spans.iter().map(|span| span.bytes as u64).sum();
    let stored = Stored {
        storage,
        entry: &entry,
        manifest: &manifest,
    };
    let seen = spans.into_iter().map(|span| async move {
        let file = stored.entry.file(&span.file);
        let seen = stored.block(&file, span.start, span.bytes, span.crc).await;
        Fault::of(&storage.shown(&file), seen.map(drop))
    });
    let seen: Vec<Option<Fault>> = stream::iter(seen)
        .buffer_unordered(READS)
        .map(Ok::<_, FindError>)
        .try_collect()
        .await?;
    // Of a file that is cut off it was said already.
    faults.extend(
        seen.into_iter()
            .flatten()
            .filter(|fault| !cut.contains(&fault.file)),
    );
    for (name, tensor) in manifest.tensors() {
        let boxes = tensor.pieces.iter().map(|piece| &piece.region);
        if let Some(gap) = gap(&tensor.shape, boxes) {
            faults.push(Fault {
                file: storage.shown(&entry.file(MANIFEST)),
                offset: None,
                detail: format!("tensor `{name}` is not whole: {gap} is in no file"),
            });
        }
    }
    faults.sort_unstable();
    let known: BTreeSet<&str> = names(&manifest).chain([MANIFEST]).collect();
    let there = storage.files(&entry.folder()).await?;
    let foreign = there.into_iter().map(|(name, _)| name);
    Ok(Report {
        files: known.len(),
        bytes,
        faults,
        foreign: foreign
            .filter(|name| !known.contains(name.as_str()))
            .collect(),
        entry,
    })
}

impl Report {
    /// Returns true when nothing is wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

impl Fault {
    fn of(file: &str, seen: Result<(), StorageError>) -> Option<Self> {
        let error = seen.err()?;
        let offset = match &error {
            StorageError::Short { offset, .. } | StorageError::Damaged { offset, .. } => {
                Some(*offset)
            }
            StorageError::Unavailable { offset, .. } | StorageError::Denied { offset, .. } => {
                *offset
            }
            _ => None,
        };
        Some(Self {
            file: file.into(),
            offset,
            detail: error.to_string(),
        })
    }
}

/// Files that are not there, or shorter or longer than they were.
async fn sizes(
    storage: &Storage,
    entry: &Entry,
    manifest: &Manifest,
) -> Result<Vec<Fault>, StorageError> {
    let files = manifest.files.iter().map(|file| (&file.name, file.bytes));
    let blobs = manifest.blobs.values().map(|blob| (&blob.file, blob.bytes));
    let sizes = files.chain(blobs).map(|(name, bytes)| async move {
        let file = entry.file(name);
        let size = size(storage, &file, bytes).await;
        size.unwrap_or_else(|error| Fault::of(&storage.shown(&file), Err(error)))
    });
    let faults: Vec<Option<Fault>> = stream::iter(sizes).buffer_unordered(READS).collect().await;
    Ok(faults.into_iter().flatten().collect())
}

/// The fault of a file that is shorter or longer than it was.
async fn size(storage: &Storage, file: &str, bytes: u64) -> Result<Option<Fault>, StorageError> {
    let (found, shown) = (storage.size(file).await?, storage.shown(file));
    Ok(match found.cmp(&bytes) {
        Ordering::Equal => None,
        Ordering::Less => Fault::of(
            &shown,
            Err(StorageError::Short {
                file: shown.clone(),
                offset: found,
                expected: bytes,
            }),
        ),
        Ordering::Greater => Some(Fault {
            detail: format!(
                "{shown} from byte {bytes} on: {} bytes too many",
                found - bytes
            ),
            file: shown,
            offset: Some(bytes),
        }),
    })
}

/// Looks for what is wrong with a checkpoint that somebody wants to go on from: its manifest, a file that is
/// gone or of another size, and bytes that changed where it has no more than `bytes_max` in all. `None` where
/// nothing is found.
///
/// # Errors
/// [`FindError`] when the place cannot be read, or a later release wrote it: then nothing is known.
#[odeon_macros::boxed]
pub async fn damage(
    storage: &Storage,
    entry: &Entry,
    bytes_max: u64,
) -> Result<Option<String>, FindError> {
    let manifest = match manifest(storage, entry).await {
        Ok(manifest) => manifest,
        Err(error @ FindError::Manifest(ManifestError::Newer { .. })) => return Err(error),
        Err(FindError::Manifest(error)) => return Ok(Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let files = manifest.files.iter().map(|file| (&file.name, file.bytes));
    let blobs = manifest.blobs.values().map(|blob| (&blob.file, blob.bytes));
    for (name, bytes) in files.chain(blobs) {
        match size(storage, &entry.file(name), bytes).await {
            Ok(None) => {}
            Ok(Some(fault)) => return Ok(Some(fault.detail)),
            Err(error @ StorageError::Missing { .. }) => return Ok(Some(error.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
    let spans = spans(&manifest);
    let bytes: u64 = spans.iter().map(|span| span.bytes as u64).sum();
    if bytes > bytes_max {
        return Ok(None);
    }
    let stored = Stored {
        storage,
        entry,
        manifest: &manifest,
    };
    let read = spans.into_iter().map(|span| async move {
        let file = stored.entry.file(&span.file);
        let read = stored.block(&file, span.start, span.bytes, span.crc).await;
        read.map(drop)
    });
    let mut read = stream::iter(read).buffered(READS);
    while let Some(read) = read.next().await {
        match read {
            Ok(()) => {}
            Err(error @ (StorageError::Short { .. } | StorageError::Damaged { .. })) => {
                return Ok(Some(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn names(manifest: &Manifest) -> impl Iterator<Item = &str> {
    let files = manifest.files.iter().map(|file| file.name.as_str());
    files.chain(manifest.blobs.values().map(|blob| blob.file.as_str()))
}

/// All bytes of all files.
fn spans(manifest: &Manifest) -> Vec<Span> {
    let headers = manifest.files.iter().map(|file| Span {
        file: file.name.clone(),
        start: 0,
        bytes: file.header_bytes as usize,
        crc: file.header_crc,
    });
    let mut spans: Vec<Span> = headers.collect();
    for (_, tensor) in manifest.tensors() {
        for piece in &tensor.pieces {
            let file = &manifest.files[piece.file].name;
            let blocks = piece.blocks(tensor.element_bytes(), manifest.block_bytes);
            spans.extend(blocks.map(|(range, crc)| Span {
                file: file.clone(),
                start: piece.start + range.start as u64,
                bytes: range.len(),
                crc,
            }));
        }
    }
    for blob in manifest.blobs.values() {
        spans.extend(blob.crcs.iter().enumerate().map(|(index, crc)| {
            let start = index as u64 * manifest.block_bytes as u64;
            Span {
                file: blob.file.clone(),
                start,
                bytes: (blob.bytes - start).min(manifest.block_bytes as u64) as usize,
                crc: *crc,
            }
        }));
    }
    spans.sort_unstable_by(|a, b| (&a.file, a.start).cmp(&(&b.file, b.start)));
    spans
}

const READS: usize = 8;
