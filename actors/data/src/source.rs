//! Sources: files whose records come as samples, in an order that follows from a seed.
//!
//! ```text
//!  files ── blocks ──> permuted by seed and epoch ──> cells of several blocks ──> samples, mixed
//! ```
//!
//! A [`Source`] is opened once: it finds its files and learns where their records are, which is kept
//! on disk, so that others who open it need not look again. A *block* is what is read at once, about
//! 256 KiB. The blocks of a source are permuted anew each epoch; a few in a row are a *cell*, whose
//! samples are mixed. What a cell holds is a function of the specification, the files, the epoch and
//! its number: whoever asks for it, and however often, gets the same bytes. So a source is divided
//! among its readers by cells, and dividing it differently changes no order.
//!
//! Where more files, or more records of a file, came since a run has read a source, they are cells of
//! their own behind those that there were, and mixed with them in later epochs alone. So nothing is read
//! twice, and nothing never.
//!
//! A file that is not what it was at opening is an error and never other samples. A record that cannot
//! be read is skipped with a reason, or its cell fails, as the specification says.

mod fault;
mod file_state;
mod finding;
mod format;
mod index;
mod left_out;
mod on_disk;
pub(crate) mod order;
pub(crate) mod pattern;
mod reading;
mod spec;
mod spool;
mod storage;

use std::{
    borrow::Cow,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use odeon_algorithms::tokenizer::Tokenizer;
use tokio::{sync::Semaphore, task};

pub(crate) use self::format::{Pixels, Raw, foreign::foreign_bytes};
pub use self::{
    fault::{SkipReason, Skipped, SourceError},
    file_state::{Earlier, FileState, difference},
    left_out::LeftOut,
    on_disk::{OnDisk, on_disk},
    spec::{
        Captions, Compression, Csv, Document, Fields, Format, Idx, Images, Longer, Markup, OnBad,
        Order, Part, Pictures, SourceSpec, Text, Webdataset,
    },
};
use self::{
    file_state::Kept,
    format::pictures,
    index::{Files, Index},
    order::{Before, Cells},
    reading::Made,
    spool::Spool,
    storage::Storage,
};
use crate::sample::{SampleMeta, SourceNumber};

/// The means to open sources of a process: the tokenizer, the cache, and the threads.
#[derive(Clone, Debug)]
pub struct Opening {
    tokenizer: Arc<Tokenizer>,
    tokenizer_hash: blake3::Hash,
    cache: PathBuf,
    spool_bytes: u64,
    threads: Arc<Semaphore>,
}

/// Files whose records come as samples. Clones are the same source.
#[derive(Clone, Debug)]
pub struct Source {
    inner: Arc<Inner>,
}

/// The samples of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The metadata of each, and its bytes, which [`Sample::decode`](crate::sample::Sample::decode)
    /// reads. They are parts of one allocation.
    pub samples: Vec<(SampleMeta, Bytes)>,
    /// The records that became no sample.
    pub skipped: Vec<Skipped>,
    /// The records that the cell has, skipped ones too.
    pub records: u32,
}

#[derive(Debug)]
struct Inner {
    number: SourceNumber,
    spec: SourceSpec,
    opening: Opening,
    storage: Storage,
    /// As it was each time that it is known of, the oldest first.
    known: Vec<Kept>,
    /// The folder that its files are below.
    root: String,
    files: Files,
    captions: pictures::Listing,
    /// Files that were found and are not read.
    left_out: LeftOut,
    index: Index,
    cells: Cells,
    identity: blake3::Hash,
    spool: Spool,
    /// Whoever decompresses.
    spooling: Mutex<()>,
}

impl Opening {
    /// Checks a specification, and that there is what its records are read with.
    fn check(&self, spec: &SourceSpec) -> Result<(), SourceError> {
        let fault = |reason| {
            let name = spec.name.clone();
            Err(SourceError::Spec { name, reason })
        };
        if let Err(reason) = spec.check() {
            return fault(reason);
        }
        match spec.format.has_conversations() && self.tokenizer.chat().is_none() {
            false => Ok(()),
            true => fault(
                "`messages` are rendered by a chat template, and the tokenizer has none".to_owned(),
            ),
        }
    }

    /// With a tokenizer, and a folder in which indices and decompressed files are kept; several
    /// processes may share it.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, cache: impl Into<PathBuf>) -> Self {
        let spec = serde_json::to_vec(&tokenizer).expect("strings and numbers are JSON");
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            tokenizer_hash: blake3::hash(&spec),
            tokenizer: Arc::new(tokenizer),
            cache: cache.into(),
            spool_bytes: 64 << 30,
            threads: Arc::new(Semaphore::new(threads)),
        }
    }

    /// So many threads read and decode at once, for all sources that are opened with this or a clone
    /// of it; as many as there are cores where nothing is said.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(threads.max(1))),
            ..self
        }
    }

    /// Decompressed files may take so many bytes; 64 GiB where nothing is said.
    #[must_use]
    pub fn with_spool_bytes(self, spool_bytes: u64) -> Self {
        Self {
            spool_bytes,
            ..self
        }
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The token that stands for a visual token: one beyond the tokenizer's, so that no text has it.
    #[must_use]
    pub fn placeholder(&self) -> u32 {
        self.tokenizer.vocabulary() as u32
    }
}

impl Cell {
    /// The account of the records that became no sample.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        let mut account = LeftOut::default();
        for skipped in &self.skipped {
            account.record(skipped.clone());
        }
        account
    }
}

impl Source {
    /// Finds the files of a source and learns where their records are.
    ///
    /// # Errors
    /// [`SourceError`] when there are none, when they cannot be read, and when one is damaged and the
    /// source does not skip what is bad. Nothing is left behind but what is kept in the cache.
    pub async fn open(
        number: SourceNumber,
        spec: &SourceSpec,
        cx: &Opening,
    ) -> Result<Self, SourceError> {
        Self::open_behind(number, spec, &[], cx).await
    }

    /// The same for one that was read before, with what has come since behind that: as it was each time,
    /// the oldest first.
    ///
    /// # Errors
    /// As [`Source::open`], and [`SourceError::Differs`] where what was read is not there any more as it
    /// was.
    #[odeon::boxed]
    pub async fn open_behind(
        number: SourceNumber,
        spec: &SourceSpec,
        earlier: &[Earlier],
        cx: &Opening,
    ) -> Result<Self, SourceError> {
        cx.check(spec)?;
        let (storage, path) = Storage::of(&spec.path, &spec.storage)?;
        let mut inner = Inner {
            number,
            spec: spec.clone(),
            spool: Spool::new(cx.cache.join("plain"), cx.spool_bytes),
            opening: cx.clone(),
            storage,
            known: earlier.iter().map(Kept::of).collect(),
            root: String::new(),
            files: Files::default(),
            captions: pictures::Listing::default(),
            left_out: LeftOut::default(),
            index: Index::default(),
            cells: Cells {
                blocks: 0,
                earlier: Vec::new(),
                part: spec.part,
                cell_blocks: spec.cell_blocks,
                order: spec.order,
                seed: spec.seed,
            },
            identity: blake3::Hash::from_bytes([0; 32]),
            spooling: Mutex::default(),
        };
        inner = blocking(&path.clone(), move || {
            inner.find(&path)?;
            Ok(inner)
        })
        .await?;
        let (folder, key) = (cx.cache.join("index"), inner.key());
        let mut inner = Arc::new(inner);
        let kept = {
            let folder = folder.clone();
            blocking(&spec.path, move || Ok(Index::kept(&folder, &key))).await?
        };
        let index = match kept {
            Some(index) => index,
            None => {
                let index = Inner::scan(&inner).await?;
                blocking(&spec.path, move || {
                    index.keep(&folder, &key);
                    Ok(index)
                })
                .await?
            }
        };
        if spec.on_bad == OnBad::Fail
            && let Some(damage) = index.left_out.first_bad()
        {
            return Err(SourceError::Damaged {
                file: damage.file.clone(),
                offset: damage.offset,
                reason: damage.reason.to_string(),
            });
        }
        let own = Arc::get_mut(&mut inner).expect("whoever scanned is done");
        own.cells.blocks = index.blocks.len() as u32;
        let times = own.earlier().zip(&index.earlier);
        let times = times.map(|(known, blocks)| Before {
            blocks: *blocks,
            until: known.until,
        });
        own.cells.earlier = times.collect();
        own.left_out.add(&index.left_out);
        own.index = index;
        own.identity = own.identify();
        own.check_same()?;
        Ok(Self { inner })
    }

    /// Its number in the run.
    #[must_use]
    pub fn number(&self) -> SourceNumber {
        self.inner.number
    }

    /// The spec that it was opened by.
    #[must_use]
    pub fn spec(&self) -> &SourceSpec {
        &self.inner.spec
    }

    /// The cells of an epoch; none where the files have no record.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.inner.cells.count()
    }

    /// The cells of them that there were before more came; all where nothing came.
    #[must_use]
    pub fn cells_before(&self) -> u32 {
        let last = self.inner.known.last();
        match last.is_some_and(|last| last.has_grown) {
            true => self.inner.cells.count_before(),
            false => self.inner.cells.count(),
        }
    }

    /// Checks that there is something to read.
    ///
    /// # Errors
    /// [`SourceError::NoRecords`], with the reason and the first file that it is of.
    pub fn check_records(&self) -> Result<(), SourceError> {
        self.inner.check_records()
    }

    /// The records of an epoch.
    #[must_use]
    pub fn records(&self) -> u64 {
        let records = self
            .inner
            .index
            .blocks
            .iter()
            .map(|block| u64::from(block.records));
        records.sum()
    }

    /// The blocks of an epoch.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.inner.cells.blocks
    }

    /// Its files.
    #[must_use]
    pub fn files(&self) -> u32 {
        self.inner.files.count()
    }

    /// The account of what opening it has found that is not read: files, the ends of files, and
    /// records that are too long. What is wrong with a record is known when its cell is read.
    #[must_use]
    pub fn left_out(&self) -> &LeftOut {
        &self.inner.left_out
    }

    /// Its files as they are, by which who goes on with it later knows them again.
    #[must_use]
    pub fn file_states(&self) -> Vec<FileState> {
        let inner = &self.inner;
        let own = (0..inner.own_files()).map(|file| inner.file_state(file));
        own.collect()
    }

    /// The same for all who would get the same samples from the same cells: of the specification, the
    /// tokenizer, and the names and sizes of files and what is in them, as far as the index says.
    #[must_use]
    pub fn identity(&self) -> [u8; 32] {
        *self.inner.identity.as_bytes()
    }

    /// The bytes of memory that the open source takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let inner = &self.inner;
        size_of::<Inner>() + inner.index.memory(&inner.files) + inner.captions.memory()
    }

    /// Reads a cell. Those who ask for several at once get them sooner; how much is done at once is
    /// bounded by [`Opening::with_threads`] all the same.
    ///
    /// # Errors
    /// [`SourceError`] for a file that has changed or cannot be read, and for what is bad as far as the
    /// source does not skip it. Asking again is safe.
    #[odeon::boxed]
    pub async fn cell(&self, epoch: u32, cell: u32) -> Result<Cell, SourceError> {
        let inner = &self.inner;
        let cells = inner.cells.count();
        if cell >= cells {
            return Err(SourceError::NoCell { cell, cells });
        }
        let at_once = inner.spec.cell_blocks.min(BLOCKS_AT_ONCE) as usize;
        let made: Vec<Made> = stream::iter(inner.cells.blocks_of(epoch, cell))
            .map(|block| Inner::make(inner, epoch, block))
            .buffered(at_once)
            .try_collect()
            .await?;
        inner.put_together(epoch, cell, made)
    }
}

/// Does what blocks on a thread for that. A decoder that panics is a damaged file.
async fn blocking<T: Send + 'static>(
    file: &str,
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    match task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            let reason = match error.try_into_panic() {
                Ok(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                    Cow::Owned(format!(
                        "its decoder gave up: {}",
                        text.unwrap_or("no reason")
                    ))
                }
                Err(_) => Cow::Borrowed("the runtime is ending"),
            };
            Err(SourceError::Damaged {
                file: file.to_owned(),
                offset: 0,
                reason: reason.into_owned(),
            })
        }
    }
}

/// Enough to keep the threads of a process busy, and a bucket.
const BLOCKS_AT_ONCE: u32 = 32;

#[cfg(test)]
mod tests;
