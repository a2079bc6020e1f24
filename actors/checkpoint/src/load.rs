//! Loading, in whatever layout: each byte is read once, checked, and given to whom it belongs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, future, stream};
use odeon_algorithms::parallel::{Region, Window};
use serde::{Deserialize, Serialize};

use crate::checkpointer::Checkpointer;
use crate::commit::{self, Entry, FindError, Which};
use crate::loader_state::{self, ReaderState, blob_name};
use crate::local::{Local, Target};
use crate::manifest::{Blob, Manifest};
use crate::peers::Kept;
use crate::plan::Census;
use crate::plan::load::{Block, Copied, LoadPlanError, RankLoad, Read, Readers, plan};
use crate::ranks::{RanksError, deal, down, read, up, written};
use crate::stage::{Stage, StageTime, Watch};
use crate::storage::{OnDisk, Storage, StorageError};

/// Everything that a rank wants of a checkpoint.
#[derive(Debug, Default)]
pub struct Load {
    /// Of which checkpoint; all ranks mean the same.
    pub which: Which,
    /// The parts of tensors that it wants.
    pub local: Local,
    /// Blobs that it wants, by name.
    pub blobs: Vec<String>,
    /// The readers of data loaders that it runs from now on.
    pub readers: Vec<WantedReader>,
}

/// A reader of a data loader that is to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedReader {
    /// The loader's name.
    pub loader: String,
    /// Which of its readers.
    pub index: usize,
    /// Of how many there are from now on.
    pub of: usize,
}

/// The result of a load, without the tensors themselves.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// Of which checkpoint.
    pub entry: Entry,
    /// The blobs, in the order in which they were wanted.
    pub blobs: Vec<Bytes>,
    /// The readers, in the order in which they were wanted.
    pub readers: Vec<ReaderState>,
    /// Bytes of tensors that this rank read itself.
    pub read_bytes: u64,
    /// Time that each stage took on this rank.
    pub stages: Vec<StageTime>,
}

/// Why nothing was loaded. Buffers hold anything; the checkpoint is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LoadError {
    /// Ranks could not agree.
    #[error("nothing was loaded: {0}")]
    Ranks(#[from] RanksError),
    /// There is no such checkpoint, or its manifest cannot be read.
    #[error("nothing was loaded: {detail}")]
    Find {
        /// Why not.
        detail: String,
    },
    /// The checkpoint does not hold what is wanted.
    #[error("{folder} cannot be loaded like this: {source}")]
    Plan {
        /// Where the checkpoint lies.
        folder: String,
        /// Why not.
        source: LoadPlanError,
    },
    /// A rank could not do its part.
    #[error("nothing was loaded: rank {rank}: {detail}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Why not, with the file and the byte.
        detail: String,
    },
}

/// Orders from rank 0 to a rank.
#[derive(Serialize, Deserialize)]
struct Orders {
    entry: Entry,
    /// The files that it reads; its reads name them by their places here.
    files: Vec<String>,
    load: RankLoad,
    blobs: Vec<BlobOrder>,
    /// The states of readers of data loaders.
    readers: Vec<BlobOrder>,
    block_bytes: usize,
    /// Bytes that follow the orders in the message.
    #[serde(skip)]
    tail: Bytes,
}

/// A blob: where it lies, or which bytes behind the orders it is: where it was in the memory of a
/// rank, or where readers have become more or fewer.
#[derive(Clone, Serialize, Deserialize)]
enum BlobOrder {
    At(Blob),
    Is(Range<usize>),
}

/// Requests of one or more ranks, on their way to rank 0.
#[derive(Serialize, Deserialize)]
struct Asked {
    census: Census,
    others: Vec<(usize, Vec<String>, Vec<WantedReader>)>,
    /// Checkpoints that each rank has in its memory, where the load is to come from there.
    kept: Vec<(usize, Vec<Held>)>,
}

/// A checkpoint of which a rank has files in its memory.
#[derive(Serialize, Deserialize)]
struct Held {
    entry: Entry,
    files: Vec<String>,
    blobs: Vec<(String, Bytes)>,
    /// The manifest, of one rank that has it: whoever takes the place of rank 0 has none.
    manifest: Option<String>,
}

/// Where the bytes come from.
enum Supply {
    Storage(Storage),
    Memory(Option<Arc<Kept>>),
}

/// Where rank 0 finds blobs.
enum Blobs {
    Storage,
    Memory(HashMap<String, Bytes>),
}

/// Blocks that are there to be read, or read.
enum Got {
    Disk(OnDisk),
    Bytes(Bytes),
}

/// A read of a rank on its way through a thread.
struct Job {
    read: Read,
    got: Got,
    shown: String,
    rank: usize,
    target: Arc<dyn Target>,
    /// Memory for blocks, used again.
    scratch: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A rank and the reason why it failed.
type Failed = (usize, String);

impl Checkpointer {
    /// Loads what each rank wants into its `target`, from the storage: each byte that somebody
    /// wants is read once, by one rank, and with it its block, which is checked.
    ///
    /// # Errors
    /// [`LoadError`]; when one rank fails, all do.
    pub async fn load(
        &mut self,
        load: Load,
        target: &Arc<impl Target + 'static>,
    ) -> Result<Loaded, LoadError> {
        let target: Arc<dyn Target> = target.clone();
        self.load_from(load, target, false).await
    }

    /// As [`load`](Self::load), out of the memory of ranks: the newest checkpoint that these have
    /// all of between them, whatever of it a lost rank had.
    ///
    /// # Errors
    /// [`LoadError`]; then one may be in the storage.
    pub async fn recover(
        &mut self,
        load: Load,
        target: &Arc<impl Target + 'static>,
    ) -> Result<Loaded, LoadError> {
        let target: Arc<dyn Target> = target.clone();
        self.load_from(load, target, true).await
    }

    async fn load_from(
        &mut self,
        load: Load,
        target: Arc<dyn Target>,
        memory: bool,
    ) -> Result<Loaded, LoadError> {
        if let Err(error) = self.settle().await {
            tracing::warn!("{error}");
        }
        let inner = self.inner.clone();
        let (ranks, tree) = (&*inner.ranks, &inner.tree);
        let rank = ranks.rank();
        let planning = Watch::begin(rank);
        let peers = inner.peers.as_ref().filter(|_| memory);
        let kept = peers.map(|peers| peers.kept()).unwrap_or_default();
        let asked = Asked {
            census: Census::of(rank, load.local),
            others: vec![(rank, load.blobs, load.readers)],
            kept: vec![(rank, kept.iter().map(|kept| Held::of(kept)).collect())],
        };
        let asked = up(ranks, tree, asked, |own, other| {
            own.census.join(other.census);
            own.others.extend(other.others);
            own.keep(other.kept);
        });
        let orders = match asked.await? {
            None => None,
            Some(asked) => {
                let found = match asked {
                    Ok(asked) if memory => self.choose(asked, &kept).await,
                    Ok(asked) => self.find(load.which, asked).await,
                    Err(lost) => Err(lost.into()),
                };
                Some(match found {
                    Ok(orders) => orders
                        .into_iter()
                        .map(|of| Orders::packed(Ok(of)))
                        .collect(),
                    Err(error) => vec![Orders::packed(Err(error)); ranks.ranks()],
                })
            }
        };
        let orders = deal(ranks, tree, orders).await?;
        let mut orders = Orders::unpacked(orders)??;
        let step = orders.entry.step;
        let read_bytes = orders.load.read_bytes();
        let mut stages = vec![inner.tell(step, planning.end(Stage::Plan, 0))];

        let supply = if memory {
            Supply::Memory(kept.into_iter().find(|kept| kept.entry == orders.entry))
        } else {
            Supply::Storage(inner.storage.clone())
        };
        let (times, mut outcome) = self.carry_out(&mut orders, &supply, &target).await;
        stages.extend(times.into_iter().map(|time| inner.tell(step, time)));
        let mut beside = None;
        if outcome.is_ok() {
            match self.beside(&orders).await {
                Ok(found) => beside = Some(found),
                Err(detail) => outcome = Err((rank, detail)),
            }
        }

        // All or nobody.
        let all = up(ranks, tree, outcome, |own, other| {
            if own.is_ok() {
                *own = other;
            }
        });
        let verdict = all.await?.map(|all| match all {
            Ok(Ok(())) => Ok(()),
            Ok(Err((rank, detail))) => Err(LoadError::Rank { rank, detail }),
            Err(lost) => Err(lost.into()),
        });
        let verdict: Result<(), LoadError> = down(ranks, tree, verdict).await?;
        verdict?;
        let (blobs, readers) = beside.unwrap_or_default();
        Ok(Loaded {
            entry: orders.entry,
            blobs,
            readers,
            read_bytes: read_bytes as u64,
            stages,
        })
    }

    /// At rank 0: orders for all, from the storage.
    async fn find(&self, which: Which, asked: Asked) -> Result<Vec<Orders>, LoadError> {
        let storage = &self.inner.storage;
        let (entry, manifest) = commit::find(storage, which)
            .await
            .map_err(LoadError::from)?;
        self.orders(entry, &manifest, asked, Readers::Any, &Blobs::Storage)
            .await
    }

    /// At rank 0: orders for all, from the memory of ranks. The newest checkpoint of which every
    /// file is somewhere.
    async fn choose(&self, mut asked: Asked, kept: &[Arc<Kept>]) -> Result<Vec<Orders>, LoadError> {
        // A rank that took the place of rank 0 has nothing; then another tells what there is.
        let mut known: Vec<(Entry, Arc<Manifest>)> = kept
            .iter()
            .map(|kept| (kept.entry.clone(), kept.manifest.clone()))
            .collect();
        for (_, held) in &asked.kept {
            for held in held {
                if let Some(bytes) = held.manifest.as_ref()
                    && let Ok(manifest) = Manifest::decode(bytes.as_bytes(), "in memory")
                {
                    known.push((held.entry.clone(), Arc::new(manifest)));
                }
            }
        }
        known.sort_unstable_by_key(|(entry, _)| std::cmp::Reverse(entry.sequence));
        known.dedup_by(|a, b| a.0 == b.0);
        let mut why = "no rank has one".to_owned();
        for (entry, manifest) in known {
            let mut holders = vec![vec![]; manifest.files.len()];
            let places = manifest.files.iter().enumerate();
            let places: HashMap<&str, usize> =
                places.map(|(at, file)| (file.name.as_str(), at)).collect();
            let mut blobs = HashMap::new();
            for (rank, held) in &asked.kept {
                for held in held.iter().filter(|held| held.entry == entry) {
                    let files = held.files.iter();
                    for at in files.filter_map(|file| places.get(file.as_str())) {
                        holders[*at].push(*rank);
                    }
                    blobs.extend(held.blobs.iter().cloned());
                }
            }
            if let Some(at) = holders.iter().position(Vec::is_empty) {
                why = format!("no rank has {} of {entry}", manifest.files[at].name);
                continue;
            }
            asked.kept.clear();
            let (readers, blobs) = (Readers::These(&holders), Blobs::Memory(blobs));
            return self.orders(entry, &manifest, asked, readers, &blobs).await;
        }
        Err(LoadError::Find {
            detail: format!("no checkpoint is whole in the memory of the ranks: {why}"),
        })
    }

    async fn orders(
        &self,
        entry: Entry,
        manifest: &Manifest,
        asked: Asked,
        readers: Readers<'_>,
        stored: &Blobs,
    ) -> Result<Vec<Orders>, LoadError> {
        let wanted = asked.census.sorted();
        let folder = self.inner.storage.shown(&entry.folder());
        let plan = plan(manifest, &wanted, self.inner.options.read_bytes, readers)
            .map_err(|source| LoadError::Plan { folder, source })?;
        let others = asked.others.into_iter();
        let mut others: BTreeMap<usize, _> = others
            .map(|(rank, blobs, readers)| (rank, (blobs, readers)))
            .collect();
        let mut dealt: BTreeMap<String, Vec<ReaderState>> = BTreeMap::new();
        let mut orders = vec![];
        for (rank, mut load) in plan.ranks.into_iter().enumerate() {
            let (names, wanted) = others.remove(&rank).unwrap_or_default();
            let mut tail = BytesMut::new();
            let mut order = |name: &str| stored.order(&entry, manifest, name, &mut tail);
            let blobs = names
                .iter()
                .map(|name| order(name))
                .collect::<Result<_, _>>()?;
            let mut readers = vec![];
            for WantedReader { loader, index, of } in wanted {
                let refused = |detail: String| LoadError::Find { detail };
                let before = manifest.loaders.get(&loader).copied();
                let before = before
                    .ok_or_else(|| refused(format!("{entry} has no data loader `{loader}`")))?;
                if index >= of {
                    return Err(refused(format!(
                        "`{loader}` cannot have reader {index} of {of}"
                    )));
                }
                if before == of {
                    readers.push(stored.order(
                        &entry,
                        manifest,
                        &blob_name(&loader, index),
                        &mut tail,
                    )?);
                    continue;
                }
                if dealt.get(&loader).is_none_or(|states| states.len() != of) {
                    let mut states = vec![];
                    for index in 0..before {
                        let name = blob_name(&loader, index);
                        let state = self.reader(&entry, manifest, &name, stored).await;
                        states.push(state.map_err(|detail| LoadError::Rank { rank: 0, detail })?);
                    }
                    dealt.insert(loader.clone(), loader_state::reshard(states, of));
                }
                let start = tail.len();
                tail.put_slice(&dealt[&loader][index].encode());
                readers.push(BlobOrder::Is(start..tail.len()));
            }
            // Only the files that it reads.
            let files: BTreeSet<usize> = load.reads.iter().map(|read| read.file).collect();
            let places: HashMap<usize, usize> = files
                .iter()
                .enumerate()
                .map(|(at, file)| (*file, at))
                .collect();
            for read in &mut load.reads {
                read.file = places[&read.file];
            }
            let name = |file: usize| manifest.files[file].name.clone();
            orders.push(Orders {
                entry: entry.clone(),
                files: files.into_iter().map(name).collect(),
                load,
                blobs,
                readers,
                block_bytes: manifest.block_bytes,
                tail: tail.freeze(),
            });
        }
        Ok(orders)
    }

    /// Reads and sends what this rank is to read, and takes what others send.
    async fn carry_out(
        &self,
        orders: &mut Orders,
        supply: &Supply,
        target: &Arc<dyn Target>,
    ) -> (Vec<StageTime>, Result<(), Failed>) {
        let ranks = &*self.inner.ranks;
        let rank = ranks.rank();
        let read_bytes = orders.load.read_bytes();
        let receivers: BTreeSet<usize> =
            orders.load.reads.iter().flat_map(Read::receivers).collect();
        let reads = std::mem::take(&mut orders.load.reads);
        let reading = async {
            let watch = Watch::begin(rank);
            let done = self.read_all(reads, orders, supply, target).await;
            if let Err(detail) = &done {
                // Those who wait for something of this rank must not wait for ever.
                let message = refusal(detail);
                let others = receivers.into_iter().filter(|to| *to != rank);
                future::join_all(others.map(|to| ranks.send(to, message.clone()))).await;
            }
            (done, watch.end(Stage::Read, read_bytes))
        };
        let taking = async {
            let watch = Watch::begin(rank);
            let senders = orders.load.senders.iter();
            let taken = senders.map(|(from, messages)| self.take(*from, *messages, target));
            let taken = future::join_all(taken).await;
            let bytes = taken.iter().map(|(bytes, _)| bytes).sum();
            let outcome = taken.into_iter().map(|(_, outcome)| outcome);
            (
                outcome.fold(Ok(()), Result::and),
                watch.end(Stage::Exchange, bytes),
            )
        };
        let ((done, read), (taken, exchanged)) = future::join(reading, taking).await;
        let done = done.map_err(|detail| (rank, detail));
        // What another rank says of itself says more than that this one waited for it.
        (vec![read, exchanged], done.and(taken))
    }

    async fn read_all(
        &self,
        reads: Vec<Read>,
        orders: &Orders,
        supply: &Supply,
        target: &Arc<dyn Target>,
    ) -> Result<(), String> {
        let ranks = &*self.inner.ranks;
        let scratch = Arc::default();
        let done = reads.into_iter().map(|read| {
            let scratch = Arc::clone(&scratch);
            async move {
                let file = orders.files.get(read.file);
                let file = file.ok_or("the plan is of another checkpoint")?;
                let (got, shown) = supply.get(&orders.entry, file, &read).await?;
                let job = Job {
                    read,
                    got,
                    shown,
                    rank: ranks.rank(),
                    target: target.clone(),
                    scratch,
                };
                let messages = tokio::task::spawn_blocking(move || job.run());
                for (to, message) in messages.await.map_err(text)?? {
                    ranks.send(to, message).await.map_err(text)?;
                }
                Ok::<_, String>(())
            }
        });
        let most = self.inner.options.reads.max(1);
        stream::iter(done)
            .buffer_unordered(most)
            .try_collect()
            .await
    }

    /// Takes messages of another rank, and how many bytes these had.
    async fn take(
        &self,
        from: usize,
        messages: usize,
        target: &Arc<dyn Target>,
    ) -> (usize, Result<(), Failed>) {
        let ranks = &*self.inner.ranks;
        let (mut bytes, mut outcome) = (0, Ok(()));
        for _ in 0..messages {
            let message = match ranks.receive(from).await {
                Ok(message) => message,
                Err(lost) => return (bytes, outcome.and_then(|()| Err((from, lost.to_string())))),
            };
            bytes += message.len();
            match Parcel::read(&message) {
                // What cannot be written is taken all the same, so that nobody waits.
                Ok(parcel) if outcome.is_ok() => {
                    outcome = parcel
                        .place(&**target)
                        .map_err(|detail| (ranks.rank(), detail));
                }
                Ok(_) => {}
                Err(detail) => return (bytes, outcome.and(Err((from, detail)))),
            }
        }
        (bytes, outcome)
    }

    /// Loads blobs and readers' states: everything that is no tensor.
    async fn beside(&self, orders: &Orders) -> Result<(Vec<Bytes>, Vec<ReaderState>), String> {
        let mut blobs = vec![];
        for order in &orders.blobs {
            blobs.push(self.blob(orders, order).await?);
        }
        let mut readers = vec![];
        for order in &orders.readers {
            readers.push(ReaderState::decode(&self.blob(orders, order).await?)?);
        }
        Ok((blobs, readers))
    }

    async fn blob(&self, orders: &Orders, order: &BlobOrder) -> Result<Bytes, String> {
        match order {
            BlobOrder::Is(range) if range.end <= orders.tail.len() => {
                Ok(orders.tail.slice(range.clone()))
            }
            BlobOrder::Is(_) => Err("the orders are cut off".into()),
            BlobOrder::At(blob) => {
                let storage = &self.inner.storage;
                let bytes = read_blob(storage, &orders.entry, blob, orders.block_bytes).await;
                bytes.map_err(text)
            }
        }
    }

    /// At rank 0: the state of a reader as it was saved.
    async fn reader(
        &self,
        entry: &Entry,
        manifest: &Manifest,
        name: &str,
        stored: &Blobs,
    ) -> Result<ReaderState, String> {
        let mut tail = BytesMut::new();
        let order = stored
            .order(entry, manifest, name, &mut tail)
            .map_err(text)?;
        let bytes = match order {
            BlobOrder::Is(_) => tail.freeze(),
            BlobOrder::At(blob) => {
                let storage = &self.inner.storage;
                read_blob(storage, entry, &blob, manifest.block_bytes)
                    .await
                    .map_err(text)?
            }
        };
        ReaderState::decode(&bytes).map_err(|detail| format!("{name}: {detail}"))
    }
}

/// All of a blob, checked.
pub(crate) async fn read_blob(
    storage: &Storage,
    entry: &Entry,
    blob: &Blob,
    block_bytes: usize,
) -> Result<Bytes, StorageError> {
    let file = entry.file(&blob.file);
    let bytes = storage.read(&file, 0..blob.bytes).await?;
    for (index, (block, crc)) in bytes.chunks(block_bytes).zip(&blob.crcs).enumerate() {
        compare(
            block,
            *crc,
            &storage.shown(&file),
            (index * block_bytes) as u64,
        )?;
    }
    Ok(bytes)
}

/// That bytes are those that were written.
pub(crate) fn compare(bytes: &[u8], crc: u32, file: &str, offset: u64) -> Result<(), StorageError> {
    let found = crc32fast::hash(bytes);
    if found == crc {
        return Ok(());
    }
    Err(StorageError::Damaged {
        file: file.into(),
        offset,
        bytes: bytes.len() as u64,
        expected: crc,
        found,
    })
}

impl Orders {
    fn packed(orders: Result<Self, LoadError>) -> Bytes {
        let head = written(&orders);
        let tail = orders.map(|orders| orders.tail).unwrap_or_default();
        let mut message = BytesMut::with_capacity(8 + head.len() + tail.len());
        message.put_u64_le(head.len() as u64);
        message.put_slice(&head);
        message.put_slice(&tail);
        message.freeze()
    }

    fn unpacked(mut message: Bytes) -> Result<Result<Self, LoadError>, RanksError> {
        let garbled = || RanksError::Garbled {
            rank: 0,
            detail: "its orders are cut off".into(),
        };
        let head = message.split_first_chunk().ok_or_else(garbled)?;
        let length = u64::from_le_bytes(*head.0) as usize;
        let mut rest = message.split_off(8);
        if rest.len() < length {
            return Err(garbled());
        }
        let tail = rest.split_off(length);
        let orders: Result<Self, LoadError> = read(0, &rest)?;
        Ok(orders.map(|orders| Self { tail, ..orders }))
    }
}

impl Asked {
    /// Takes in what others have in memory; of each checkpoint one manifest is enough.
    fn keep(&mut self, others: Vec<(usize, Vec<Held>)>) {
        for (rank, mut held) in others {
            for held in &mut held {
                let mut known = self.kept.iter().flat_map(|(_, known)| known);
                if known.any(|known| known.entry == held.entry && known.manifest.is_some()) {
                    held.manifest = None;
                }
            }
            self.kept.push((rank, held));
        }
    }
}

impl Held {
    fn of(kept: &Kept) -> Self {
        let blobs = kept.blobs.iter();
        Self {
            entry: kept.entry.clone(),
            files: kept.files.keys().cloned().collect(),
            blobs: blobs
                .map(|(name, bytes)| (name.clone(), bytes.clone()))
                .collect(),
            manifest: String::from_utf8(kept.manifest.encode()).ok(),
        }
    }
}

impl Supply {
    async fn get(&self, entry: &Entry, file: &str, read: &Read) -> Result<(Got, String), String> {
        let range = read.start..read.start + read.bytes() as u64;
        match self {
            Self::Storage(storage) => {
                let path = entry.file(file);
                let shown = storage.shown(&path);
                let got = match storage.on_disk(&path) {
                    Some(disk) => Got::Disk(disk),
                    None => Got::Bytes(storage.read(&path, range).await.map_err(text)?),
                };
                Ok((got, shown))
            }
            Self::Memory(kept) => {
                let shown = format!("{entry}/{file} in memory");
                let bytes = kept.as_ref().and_then(|kept| kept.read(file, range));
                let bytes = bytes.ok_or_else(|| format!("{shown} is not there"))?;
                Ok((Got::Bytes(bytes), shown))
            }
        }
    }
}

impl Blobs {
    fn order(
        &self,
        entry: &Entry,
        manifest: &Manifest,
        name: &str,
        tail: &mut BytesMut,
    ) -> Result<BlobOrder, LoadError> {
        let blob = manifest.blobs.get(name).ok_or_else(|| LoadError::Find {
            detail: format!("{entry} has no blob `{name}`"),
        })?;
        match self {
            Self::Storage => Ok(BlobOrder::At(blob.clone())),
            Self::Memory(blobs) => {
                let bytes = blobs.get(&blob.file).ok_or_else(|| LoadError::Find {
                    detail: format!("no rank has {} of {entry} in its memory", blob.file),
                })?;
                let start = tail.len();
                tail.put_slice(bytes);
                Ok(BlobOrder::Is(start..tail.len()))
            }
        }
    }
}

impl Job {
    /// Checks the blocks, writes what is this rank's own, and makes messages for others.
    fn run(self) -> Result<Vec<(usize, Bytes)>, String> {
        let mut messages = vec![];
        let mut at = 0;
        let mut scratch = vec![];
        if matches!(self.got, Got::Disk(_)) {
            let mut free = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            scratch = free.pop().unwrap_or_default();
        }
        for block in &self.read.blocks {
            let start = self.read.start + at as u64;
            match &self.got {
                Got::Bytes(bytes) => {
                    let bytes = bytes.get(at..at + block.bytes);
                    let bytes = bytes.ok_or_else(|| format!("{} is too short", self.shown))?;
                    self.share(block, bytes, start, &mut messages)?;
                }
                Got::Disk(disk) if let Some((tensor, range)) = self.own(block) => {
                    self.target.fill(tensor, range, &mut |out| {
                        disk.read(start, out).map_err(text)?;
                        compare(out, block.crc, &self.shown, start).map_err(text)
                    })?;
                }
                Got::Disk(disk) => {
                    // A block is small enough to stay in the caches until it is copied out.
                    if scratch.len() < block.bytes {
                        scratch.resize(block.bytes, 0);
                    }
                    disk.read(start, &mut scratch[..block.bytes])
                        .map_err(text)?;
                    self.share(block, &scratch[..block.bytes], start, &mut messages)?;
                }
            }
            at += block.bytes;
        }
        self.scratch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(scratch);
        Ok(messages)
    }

    /// Where a block belongs that is all this rank's own, and lies there as it lies in the file.
    fn own(&self, block: &Block) -> Option<(usize, Range<usize>)> {
        let [delivery] = &*block.wanted else {
            return None;
        };
        let [copy] = &*delivery.copies else {
            return None;
        };
        let first = copy.from.runs_into(&copy.to).ok()?.next()?;
        let whole = delivery.rank == self.rank && first.bytes == block.bytes;
        whole.then(|| (copy.tensor, first.target..first.target + first.bytes))
    }

    fn share(
        &self,
        block: &Block,
        bytes: &[u8],
        start: u64,
        messages: &mut Vec<(usize, Bytes)>,
    ) -> Result<(), String> {
        compare(bytes, block.crc, &self.shown, start).map_err(text)?;
        for delivery in &block.wanted {
            if delivery.rank != self.rank {
                messages.push((delivery.rank, Parcel::pack(&delivery.copies, bytes)));
                continue;
            }
            for copy in &delivery.copies {
                let mut runs = copy.from.runs_into(&copy.to).map_err(text)?;
                self.target.write(copy.tensor, bytes, &mut runs)?;
            }
        }
        Ok(())
    }
}

/// Boxes that one rank has read for another.
struct Parcel<'a> {
    /// Where the boxes belong, one behind the other.
    boxes: Vec<(usize, Window)>,
    bytes: &'a [u8],
}

impl Parcel<'_> {
    fn pack(copies: &[Copied], bytes: &[u8]) -> Bytes {
        let boxes: Vec<(usize, &Window)> =
            copies.iter().map(|copy| (copy.tensor, &copy.to)).collect();
        let head = written(&boxes);
        let sizes = copies.iter().map(|copy| copy.from.bytes());
        let mut message = BytesMut::with_capacity(9 + head.len() + sizes.sum::<usize>());
        message.put_u8(GOOD);
        message.put_u64_le(head.len() as u64);
        message.put_slice(&head);
        for range in copies.iter().flat_map(|copy| copy.from.ranges()) {
            message.put_slice(&bytes[range]);
        }
        message.freeze()
    }

    /// Decodes a parcel; an error is the reason why the sender had nothing to pack.
    fn read(message: &[u8]) -> Result<Parcel<'_>, String> {
        let garbled = || "what it has sent cannot be read".to_owned();
        let (&kind, rest) = message.split_first().ok_or_else(garbled)?;
        if kind != GOOD {
            return Err(String::from_utf8_lossy(rest).into_owned());
        }
        let (length, rest) = rest.split_first_chunk().ok_or_else(garbled)?;
        let length = u64::from_le_bytes(*length) as usize;
        let (head, bytes) = rest.split_at_checked(length).ok_or_else(garbled)?;
        let boxes = serde_json::from_slice(head).map_err(text)?;
        Ok(Parcel { boxes, bytes })
    }

    fn place(&self, target: &dyn Target) -> Result<(), String> {
        let mut start = 0;
        for (tensor, to) in &self.boxes {
            let lengths = to.region().lengths();
            let whole = Region::whole(&lengths);
            let from = Window::new(start, to.element_bytes(), lengths, whole).map_err(text)?;
            let mut runs = from.runs_into(to).map_err(text)?;
            target.write(*tensor, self.bytes, &mut runs)?;
            start += from.bytes();
        }
        Ok(())
    }
}

fn refusal(detail: &str) -> Bytes {
    let mut message = BytesMut::with_capacity(1 + detail.len());
    message.put_u8(BAD);
    message.put_slice(detail.as_bytes());
    message.freeze()
}

impl From<FindError> for LoadError {
    fn from(error: FindError) -> Self {
        Self::Find {
            detail: error.to_string(),
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const GOOD: u8 = 0;
const BAD: u8 = 1;
