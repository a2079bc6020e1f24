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
//! A file that is not what it was at opening is an error and never other samples. A record that cannot
//! be read is skipped with a reason, or its cell fails, as the specification says.

mod fault;
mod format;
mod index;
pub(crate) mod order;
pub(crate) mod pattern;
mod spec;
mod spool;
mod storage;

use std::{
    borrow::Cow,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use odeon_algorithms::tokenizer::Tokenizer;
use tokio::{sync::Semaphore, task};

pub(crate) use self::format::{Pixels, Raw};
pub use self::{
    fault::{SkipReason, Skipped, SourceError},
    spec::{
        Captions, Compression, Document, Fields, Format, Idx, Images, Longer, Markup, OnBad, Order,
        Part, Pictures, SourceSpec, Text, Webdataset,
    },
};
use self::{
    format::{At, Block, Scanned, idx, lines, parquet, pictures, webdataset},
    index::{Files, Index},
    order::Cells,
    pattern::Pattern,
    spool::{Spool, plain_name},
    storage::{Content, Listed, Storage},
};
use crate::{
    sample::{Image, SampleId, SampleMeta, SourceNumber},
    transform::Transform,
};

/// The means to open sources of a process: the tokenizer, the cache, and the threads.
#[derive(Clone, Debug)]
pub struct Opening {
    tokenizer: Arc<Tokenizer>,
    tokenizer_hash: blake3::Hash,
    cache: PathBuf,
    spool_bytes: u64,
    threads: Arc<Semaphore>,
    placeholder: u32,
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
    files: Files,
    captions: pictures::Listing,
    index: Index,
    cells: Cells,
    identity: blake3::Hash,
    spool: Spool,
    /// Whoever decompresses.
    spooling: Mutex<()>,
}

/// The bytes or rows that a block's records are read from.
enum Fetched {
    Range { start: u64, file: u32, bytes: Bytes },
    Documents(Vec<(u32, Bytes)>),
    Pictures(Vec<pictures::Pictured>),
    Rows(Box<parquet::Rows>),
    Items(idx::Items),
}

/// The samples of a block.
#[derive(Default)]
struct Made {
    bytes: Vec<u8>,
    samples: Vec<(Range<usize>, u32, Vec<u32>)>,
    skipped: Vec<Skipped>,
    records: u32,
}

impl Opening {
    /// With a tokenizer, and a folder in which indices and decompressed files are kept; several
    /// processes may share it.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, cache: impl Into<PathBuf>) -> Self {
        let spec = serde_json::to_vec(&tokenizer).expect("strings and numbers are JSON");
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            placeholder: tokenizer.vocabulary() as u32,
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

    /// The token that stands for a visual token. Where nothing is said it is one beyond the tokenizer's,
    /// so that no text has it.
    #[must_use]
    pub fn with_placeholder(self, placeholder: u32) -> Self {
        Self {
            placeholder,
            ..self
        }
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The token that stands for a visual token.
    #[must_use]
    pub fn placeholder(&self) -> u32 {
        self.placeholder
    }
}

impl Source {
    /// Finds the files of a source and learns where their records are.
    ///
    /// # Errors
    /// [`SourceError`] when there are none, when they cannot be read, and when one is damaged and the
    /// source does not skip what is bad. Nothing is left behind but what is kept in the cache.
    #[odeon::boxed]
    pub async fn open(
        number: SourceNumber,
        spec: &SourceSpec,
        cx: &Opening,
    ) -> Result<Self, SourceError> {
        spec.check().map_err(|reason| SourceError::Spec {
            name: spec.name.clone(),
            reason,
        })?;
        let (storage, path) = Storage::of(&spec.path, &spec.storage)?;
        let mut inner = Inner {
            number,
            spec: spec.clone(),
            spool: Spool::new(cx.cache.join("plain"), cx.spool_bytes),
            opening: cx.clone(),
            storage,
            files: Files::default(),
            captions: pictures::Listing::default(),
            index: Index::default(),
            cells: Cells {
                blocks: 0,
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
            && let Some(damage) = index.damages.first()
        {
            return Err(SourceError::Damaged {
                file: damage.file.clone(),
                offset: damage.offset,
                reason: damage.reason.to_string(),
            });
        }
        let own = Arc::get_mut(&mut inner).expect("whoever scanned is done");
        own.cells.blocks = index.blocks.len() as u32;
        own.index = index;
        own.identity = own.identify();
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

    /// From where on files cannot be read, which is as if the rest were not there.
    #[must_use]
    pub fn damages(&self) -> &[Skipped] {
        &self.inner.index.damages
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

    /// The records of a cell; none beyond the last.
    #[must_use]
    pub fn cell_records(&self, epoch: u32, cell: u32) -> u64 {
        let blocks = self.inner.cells.blocks_of(epoch, cell);
        let records = blocks.map(|block| self.inner.index.blocks[block as usize].records);
        records.map(u64::from).sum()
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

impl Inner {
    /// Finds the files.
    fn find(&mut self, path: &str) -> Result<(), SourceError> {
        let mut listed = self.storage.list(path)?;
        let exact = matches!(&listed[..], [one] if one.name == path);
        match &self.spec.format {
            Format::Images(images) => {
                let captions = images.captions.clone();
                listed = self.pictures(path, listed, &captions)?;
            }
            Format::Idx(idx) => {
                let (storage, labels) = Storage::of(&idx.labels, &self.spec.storage)?;
                listed.truncate(1);
                if !listed.is_empty() {
                    listed.extend(storage.list(&labels)?.into_iter().take(1));
                    if listed.len() < 2 {
                        return Err(SourceError::Nothing {
                            path: idx.labels.clone(),
                        });
                    }
                }
            }
            _ if exact => {}
            format => {
                let mut files = Vec::with_capacity(listed.len());
                let plain = Pattern::new(path).is_plain();
                listed.retain(|file| !plain || takes(format, &file.name));
                files.append(&mut listed);
                listed = files;
            }
        }
        if listed.is_empty() {
            return Err(SourceError::Nothing {
                path: self.spec.path.clone(),
            });
        }
        self.files = Files::new(&listed);
        Ok(())
    }

    /// Pictures, and behind them their captions' files, one each, or that which lists all.
    fn pictures(
        &mut self,
        path: &str,
        listed: Vec<Listed>,
        captions: &Captions,
    ) -> Result<Vec<Listed>, SourceError> {
        let (mut pictures, others): (Vec<Listed>, Vec<Listed>) = listed
            .into_iter()
            .partition(|file| pictures::is_picture(&file.name));
        match captions {
            Captions::Beside(ending) => {
                let stem = |name: &str| {
                    name.rsplit_once('.')
                        .map_or(name.len(), |(stem, _)| stem.len())
                };
                let beside: Vec<Listed> = pictures
                    .iter()
                    .map(|picture| {
                        let name = format!("{}.{ending}", &picture.name[..stem(&picture.name)]);
                        let found = others.binary_search_by(|other| other.name.cmp(&name));
                        let absent = Listed {
                            name: String::new(),
                            stamp: storage::Stamp {
                                size: 0,
                                version: 0,
                            },
                        };
                        found.map_or(absent, |at| others[at].clone())
                    })
                    .collect();
                pictures.extend(beside);
            }
            Captions::Listed {
                path: list,
                image,
                caption,
            } => {
                let (storage, name) = Storage::of(list, &self.spec.storage)?;
                let stamp = storage
                    .stat(&name)?
                    .ok_or_else(|| SourceError::Nothing { path: list.clone() })?;
                let bytes = storage.read(&name, stamp, 0..stamp.size)?;
                let skip = Pattern::new(path).root().len();
                self.captions =
                    pictures::Listing::read(&bytes, (image, caption), &mut pictures, skip)
                        .map_err(|reason| SourceError::Damaged {
                            file: storage.shown(&name),
                            offset: 0,
                            reason,
                        })?;
                if !pictures.is_empty() {
                    pictures.push(Listed { name, stamp });
                }
            }
        }
        Ok(pictures)
    }

    /// Number of the files that are read as such, and not with others.
    fn own_files(&self) -> u32 {
        match &self.spec.format {
            Format::Images(images) => match images.captions {
                Captions::Beside(_) => self.files.count() / 2,
                Captions::Listed { .. } => self.files.count() - 1,
            },
            Format::Idx(_) => 1,
            _ => self.files.count(),
        }
    }

    /// The name under which the index is kept: all that it follows from.
    fn key(&self) -> blake3::Hash {
        let spec = &self.spec;
        let mut hasher = blake3::Hasher::new();
        let said = (&spec.format, spec.compression, spec.block_bytes);
        hasher.update(&serde_json::to_vec(&said).expect("strings and numbers are JSON"));
        for file in 0..self.files.count() {
            let (name, stamp) = (self.files.name(file), self.files.stamp(file));
            hasher.update(self.storage.shown(&name).as_bytes());
            hasher.update(&[0]);
            hasher.update(&stamp.size.to_le_bytes());
            hasher.update(&stamp.version.to_le_bytes());
        }
        hasher.finalize()
    }

    fn identify(&self) -> blake3::Hash {
        let said = SourceSpec {
            name: String::new(),
            path: String::new(),
            storage: std::collections::BTreeMap::new(),
            ..self.spec.clone()
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&serde_json::to_vec(&said).expect("strings and numbers are JSON"));
        hasher.update(self.opening.tokenizer_hash.as_bytes());
        hasher.update(&self.opening.placeholder.to_le_bytes());
        for file in 0..self.files.count() {
            hasher.update(&self.files.stamp(file).size.to_le_bytes());
        }
        let blocks = Index {
            blocks: self.index.blocks.clone(),
            damages: vec![],
        };
        hasher.update(&blocks.encode());
        hasher.finalize()
    }

    /// Learns where the records are.
    async fn scan(inner: &Arc<Self>) -> Result<Index, SourceError> {
        let whole_files = match &inner.spec.format {
            Format::Images(_) => true,
            Format::Text(text) => text.document == Document::File,
            _ => false,
        };
        if whole_files {
            let sizes = (0..inner.own_files()).map(|file| inner.files.stamp(file).size);
            return Ok(Index {
                blocks: pictures::blocks(sizes, inner.spec.block_bytes),
                damages: vec![],
            });
        }
        let scanned: Vec<Scanned> = stream::iter(0..inner.own_files())
            .map(|file| Self::scan_file(inner, file))
            .buffered(FILES_AT_ONCE)
            .try_collect()
            .await?;
        let mut index = Index::default();
        for file in scanned {
            index.blocks.extend(file.blocks);
            index.damages.extend(file.damage);
        }
        index.blocks.shrink_to_fit();
        Ok(index)
    }

    async fn scan_file(inner: &Arc<Self>, file: u32) -> Result<Scanned, SourceError> {
        let _thread = inner.thread().await;
        let name = inner.files.name(file);
        let inner = Arc::clone(inner);
        blocking(&name, move || {
            let mut cut = None;
            let content = inner.fresh(file, &mut cut)?;
            let block_bytes = inner.spec.block_bytes;
            let mut scanned = match &inner.spec.format {
                Format::Jsonl(_) => {
                    lines::scan(&content, lines::Splitting::LINE, file, block_bytes)
                }
                Format::Text(text) => {
                    let splitting = lines::Splitting::of(&text.document);
                    let splitting = splitting.unwrap_or(lines::Splitting::LINE);
                    lines::scan(&content, splitting, file, block_bytes)
                }
                Format::Parquet(fields) => parquet::scan(&content, file, fields, block_bytes),
                Format::Webdataset(_) => webdataset::scan(&content, file, block_bytes),
                Format::Idx(_) => idx::scan(&content, &inner.fresh(1, &mut cut)?, block_bytes),
                Format::Images(_) => Ok(Scanned::default()),
            }?;
            // What a compressed file lacks is said of it, and not that its text ends too early.
            if let Some((offset, reason)) = cut {
                scanned.broken(content.shown, offset, reason);
            }
            Ok(scanned)
        })
        .await
    }

    /// Makes the samples of a block.
    async fn make(inner: &Arc<Self>, epoch: u32, block: u32) -> Result<Made, SourceError> {
        let own = inner.index.blocks[block as usize];
        let name = inner.files.name(own.file);
        // A bucket answers slowly, and no thread should wait for it that could decode meanwhile.
        let early = match inner.storage {
            Storage::Disk => None,
            Storage::Objects { .. } => {
                let inner = Arc::clone(inner);
                Some(blocking(&name, move || inner.fetch(&own)).await?)
            }
        };
        let _thread = inner.thread().await;
        let inner = Arc::clone(inner);
        blocking(&name, move || {
            let fetched = match early {
                Some(fetched) => fetched,
                None => inner.fetch(&own)?,
            };
            inner.decode(epoch, block, &fetched)
        })
        .await
    }

    /// Leave to use a thread. There is none if nobody gives leave any more, which nobody says.
    async fn thread(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        Arc::clone(&self.opening.threads).acquire_owned().await.ok()
    }

    /// A file as it is read: one that is compressed is decompressed before, if it is not there.
    fn content(&self, file: u32) -> Result<Content, SourceError> {
        let (origin, compression) = self.origin(file);
        if compression == Compression::None {
            return Ok(origin);
        }
        let is = origin.storage.stat(&origin.name)?;
        if is != Some(origin.stamp) {
            return Err(SourceError::Changed {
                file: origin.shown,
                was: origin.stamp.to_string(),
                is: is.map_or_else(|| "gone".into(), |is| is.to_string()),
            });
        }
        match self.spool.find(&origin.shown, origin.stamp) {
            Some(path) => self.spooled(origin, &path),
            None => self.fresh(file, &mut None),
        }
    }

    /// A file as it is read, decompressed again; and where it was cut off.
    fn fresh(&self, file: u32, cut: &mut Option<(u64, String)>) -> Result<Content, SourceError> {
        let (origin, compression) = self.origin(file);
        if compression == Compression::None {
            return Ok(origin);
        }
        let _one = self.spooling.lock().unwrap_or_else(PoisonError::into_inner);
        let spooled = self.spool.fill(&origin, compression)?;
        *cut = spooled.damage;
        self.spooled(origin, &spooled.path)
    }

    fn origin(&self, file: u32) -> (Content, Compression) {
        let name = self.files.name(file);
        let compression = match self.spec.format {
            // They are not compressed as files.
            Format::Parquet(_) | Format::Images(_) => Compression::None,
            _ => self.spec.compression.of(&name),
        };
        let content = Content {
            shown: self.storage.shown(&name),
            stamp: self.files.stamp(file),
            storage: self.storage.clone(),
            name,
        };
        (content, compression)
    }

    fn spooled(&self, origin: Content, path: &Path) -> Result<Content, SourceError> {
        let name = path.to_string_lossy().into_owned();
        let stamp = Storage::Disk.stat(&name)?;
        Ok(Content {
            // One that was removed meanwhile is missed when it is read.
            stamp: stamp.unwrap_or(storage::Stamp {
                size: 0,
                version: 0,
            }),
            storage: Storage::Disk,
            name,
            shown: origin.shown,
        })
    }

    /// Reads what a block needs.
    fn fetch(&self, block: &Block) -> Result<Fetched, SourceError> {
        match self.fetch_once(block) {
            // Another process may have taken the room of a decompressed file; then it is made again.
            Err(SourceError::Changed { .. }) if self.origin(block.file).1 != Compression::None => {
                self.fetch_once(block)
            }
            fetched => fetched,
        }
    }

    fn fetch_once(&self, block: &Block) -> Result<Fetched, SourceError> {
        let files = || block.file..block.file + block.part;
        match &self.spec.format {
            Format::Text(text) if text.document == Document::File => {
                let document = |file| Ok((file, self.content(file)?.whole()?));
                files()
                    .map(document)
                    .collect::<Result<_, _>>()
                    .map(Fetched::Documents)
            }
            Format::Jsonl(_) | Format::Text(_) | Format::Webdataset(_) => {
                let content = self.content(block.file)?;
                let range = block.start..block.start + u64::from(block.len);
                Ok(Fetched::Range {
                    start: block.start,
                    file: block.file,
                    bytes: content.part(range)?,
                })
            }
            Format::Parquet(fields) => {
                let rows = parquet::fetch(block, &self.content(block.file)?, fields)?;
                Ok(Fetched::Rows(Box::new(rows)))
            }
            Format::Images(images) => {
                let pictured = |file| {
                    let caption = match images.captions {
                        Captions::Listed { .. } => self.captions.caption(file),
                        Captions::Beside(_) => self.caption_beside(file)?,
                    };
                    Ok(pictures::Pictured {
                        file,
                        picture: self.content(file)?.whole()?,
                        caption,
                    })
                };
                files()
                    .map(pictured)
                    .collect::<Result<_, _>>()
                    .map(Fetched::Pictures)
            }
            Format::Idx(_) => {
                idx::fetch(block, &self.content(0)?, &self.content(1)?).map(Fetched::Items)
            }
        }
    }

    fn caption_beside(&self, picture: u32) -> Result<Option<String>, SourceError> {
        let file = picture + self.own_files();
        let content = self.content(file)?;
        if self.files.stamp(file)
            == (storage::Stamp {
                size: 0,
                version: 0,
            })
        {
            return Ok(None);
        }
        let line = pictures::first_line(&content.whole()?);
        line.map(Some).map_err(|reason| SourceError::Damaged {
            file: content.shown,
            offset: 0,
            reason,
        })
    }

    /// Makes samples of what was read. Pure.
    fn decode(&self, epoch: u32, block: u32, fetched: &Fetched) -> Result<Made, SourceError> {
        let transform = Transform::new(
            &self.spec,
            &self.opening.tokenizer,
            self.opening.placeholder,
        );
        let mut made = Made::default();
        let mut bad = None;
        let mut emit = |at: At, raw: Result<Raw<'_>, String>| {
            let seed = order::hash(&[
                self.spec.seed,
                u64::from(epoch),
                u64::from(block),
                u64::from(made.records),
            ]);
            made.records += 1;
            let samples = raw
                .map_err(SkipReason::Bad)
                .and_then(|raw| transform.samples(&raw, seed));
            match samples {
                Ok(samples) => {
                    for sample in samples {
                        let start = made.bytes.len();
                        sample.encode_into(&mut made.bytes);
                        made.samples.push((
                            start..made.bytes.len(),
                            sample.tokens.len() as u32,
                            sample.images.iter().map(Image::patches).collect(),
                        ));
                    }
                }
                Err(reason) => {
                    let skipped = Skipped {
                        file: self.storage.shown(&self.files.name(at.file)),
                        offset: at.offset,
                        record: at.record,
                        reason,
                    };
                    if self.spec.on_bad == OnBad::Fail && skipped.reason.is_bad() {
                        bad.get_or_insert(skipped);
                    } else {
                        made.skipped.push(skipped);
                    }
                }
            }
        };
        match (&self.spec.format, fetched) {
            (Format::Jsonl(fields), Fetched::Range { start, file, bytes }) => {
                lines::json_records(bytes, *start, *file, fields, &mut emit);
            }
            (Format::Text(text), Fetched::Range { start, file, bytes }) => {
                let splitting = lines::Splitting::of(&text.document);
                let splitting = splitting.unwrap_or(lines::Splitting::LINE);
                lines::text_records(bytes, *start, *file, splitting, text.markup, &mut emit);
            }
            (Format::Text(text), Fetched::Documents(documents)) => {
                for (file, document) in documents {
                    let at = At {
                        file: *file,
                        offset: 0,
                        record: 0,
                    };
                    emit(at, lines::text(document, text.markup));
                }
            }
            (Format::Webdataset(options), Fetched::Range { start, file, bytes }) => {
                webdataset::records(bytes, *start, *file, options, &mut emit);
            }
            (_, Fetched::Rows(rows)) => parquet::records(rows, &mut emit),
            (_, Fetched::Pictures(all)) => pictures::records(all, &mut emit),
            (Format::Idx(idx), Fetched::Items(items)) => {
                idx::records(items, &idx.names, &mut emit);
            }
            _ => {}
        }
        match bad {
            Some(bad) => Err(SourceError::Bad(bad)),
            None => Ok(made),
        }
    }

    /// Mixes the samples of a cell's blocks, in one allocation.
    fn put_together(&self, epoch: u32, cell: u32, made: Vec<Made>) -> Result<Cell, SourceError> {
        let records: u32 = made.iter().map(|made| made.records).sum();
        let bad = made
            .iter()
            .flat_map(|made| &made.skipped)
            .filter(|skipped| skipped.reason.is_bad());
        let count = bad.clone().count() as u32;
        let allowed = (f64::from(records) * self.spec.bad_part) as u32;
        if count > allowed.max(self.spec.bad_records)
            && let Some(first) = bad.clone().next()
        {
            return Err(SourceError::TooManyBad {
                bad: count,
                records,
                first: Box::new(first.clone()),
            });
        }
        let samples: Vec<_> = made
            .iter()
            .flat_map(|made| made.samples.iter().map(|sample| (&made.bytes, sample)))
            .collect();
        let mut all = BytesMut::with_capacity(made.iter().map(|made| made.bytes.len()).sum());
        let order = self.cells.mixed(epoch, cell, samples.len() as u32);
        let metas: Vec<SampleMeta> = (0..)
            .zip(order)
            .map(|(nth, from)| {
                let (bytes, (range, tokens, patches)) = samples[from as usize];
                all.extend_from_slice(&bytes[range.clone()]);
                SampleMeta {
                    id: SampleId {
                        source: self.number,
                        epoch,
                        cell,
                        nth,
                    },
                    tokens: *tokens,
                    patches: patches.clone(),
                    bytes: range.len() as u32,
                }
            })
            .collect();
        let mut all = all.freeze();
        let samples = metas
            .into_iter()
            .map(|meta| {
                let own = all.split_to(meta.bytes as usize);
                (meta, own)
            })
            .collect();
        Ok(Cell {
            samples,
            skipped: made.into_iter().flat_map(|made| made.skipped).collect(),
            records,
        })
    }
}

/// Returns true where a file of a folder is of a format, as its name says.
fn takes(format: &Format, name: &str) -> bool {
    let name = plain_name(name);
    let any = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    match format {
        Format::Jsonl(_) => any(&[".jsonl", ".ndjson", ".json"]),
        Format::Parquet(_) => any(&[".parquet"]),
        Format::Webdataset(_) => any(&[".tar", ".tgz"]),
        Format::Text(text) => {
            let mut suffixes = text.suffixes.iter();
            text.suffixes.is_empty() || suffixes.any(|suffix| name.ends_with(suffix))
        }
        Format::Images(_) | Format::Idx(_) => true,
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
const FILES_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests;
