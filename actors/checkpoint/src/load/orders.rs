//! The orders of a load: which checkpoint it is, and which rank reads what of it for whom.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::{Load, LoadError, WantedReader, read_blob, text};
use crate::checkpointer::Checkpointer;
use crate::commit::{self, Entry, Which};
use crate::loader_state::{self, ReaderState, blob_name};
use crate::manifest::{Blob, Manifest};
use crate::peers::Kept;
use crate::plan::Census;
use crate::plan::load::{RankLoad, Readers, plan};
use crate::ranks::{RanksError, deal, read, up, written};
use crate::storage::Storage;

/// Orders from rank 0 to a rank.
#[derive(Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) entry: Entry,
    /// The files that it reads; its reads name them by their places here.
    pub(super) files: Vec<String>,
    pub(super) load: RankLoad,
    pub(super) blobs: Vec<BlobOrder>,
    /// The states of readers of data loaders.
    pub(super) readers: Vec<BlobOrder>,
    pub(super) block_bytes: usize,
    /// Bytes that follow the orders in the message.
    #[serde(skip)]
    pub(super) tail: Bytes,
}

/// A blob: where it lies, or which bytes behind the orders it is: where it was in the memory of a
/// rank, or where readers have become more or fewer.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum BlobOrder {
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

/// A checkpoint that rank 0 has found.
struct Found<'a> {
    storage: &'a Storage,
    entry: Entry,
    manifest: &'a Manifest,
    blobs: Blobs,
}

/// Where rank 0 finds blobs.
enum Blobs {
    Storage,
    Memory(HashMap<String, Bytes>),
}

/// The states of loaders' readers that have become more or fewer, by loader.
type Dealt = BTreeMap<String, Vec<ReaderState>>;

impl Checkpointer {
    /// Says what this rank wants, and hears what it is to do. The checkpoint is one of the storage,
    /// or of the memory of ranks, of which this one has `kept`.
    pub(super) async fn ordered(
        &self,
        load: Load,
        kept: Option<&[Arc<Kept>]>,
    ) -> Result<Orders, LoadError> {
        let (ranks, tree) = (&*self.inner.ranks, &self.inner.tree);
        let rank = ranks.rank();
        let held = kept.unwrap_or_default().iter();
        let asked = Asked {
            census: Census::of(rank, load.local),
            others: vec![(rank, load.blobs, load.readers)],
            kept: vec![(rank, held.map(|kept| Held::of(kept)).collect())],
        };
        let asked = up(ranks, tree, asked, |own, other| {
            own.census.join(other.census);
            own.others.extend(other.others);
            own.keep(other.kept);
        });
        let orders = match asked.await? {
            None => None,
            Some(asked) => {
                let found = match (asked, kept) {
                    (Ok(asked), Some(kept)) => self.choose(asked, kept).await,
                    (Ok(asked), None) => self.find(load.which, asked).await,
                    (Err(lost), _) => Err(lost.into()),
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
        Orders::unpacked(deal(ranks, tree, orders).await?)?
    }

    /// At rank 0: orders for all, from the storage.
    async fn find(&self, which: Which, asked: Asked) -> Result<Vec<Orders>, LoadError> {
        let storage = &self.inner.storage;
        let (entry, manifest) = commit::find(storage, which)
            .await
            .map_err(LoadError::from)?;
        let found = Found {
            storage,
            entry,
            manifest: &manifest,
            blobs: Blobs::Storage,
        };
        self.orders(&found, asked, Readers::Any).await
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
            let found = Found {
                storage: &self.inner.storage,
                entry,
                manifest: &manifest,
                blobs: Blobs::Memory(blobs),
            };
            return self.orders(&found, asked, Readers::These(&holders)).await;
        }
        Err(LoadError::Find {
            detail: format!("no checkpoint is whole in the memory of the ranks: {why}"),
        })
    }

    /// Orders for all: their reads of a checkpoint, and the places of their blobs.
    async fn orders(
        &self,
        found: &Found<'_>,
        asked: Asked,
        readers: Readers<'_>,
    ) -> Result<Vec<Orders>, LoadError> {
        let wanted = asked.census.sorted();
        let read_bytes = self.inner.options.read_bytes;
        let folder = found.storage.shown(&found.entry.folder());
        let plan = plan(found.manifest, &wanted, read_bytes, readers)
            .map_err(|source| LoadError::Plan { folder, source })?;
        let others = asked.others.into_iter();
        let mut others: BTreeMap<usize, _> = others
            .map(|(rank, blobs, readers)| (rank, (blobs, readers)))
            .collect();
        let mut dealt = Dealt::new();
        let mut orders = vec![];
        for (rank, mut load) in plan.ranks.into_iter().enumerate() {
            let (names, wanted) = others.remove(&rank).unwrap_or_default();
            let mut tail = BytesMut::new();
            let blobs = names.iter().map(|name| found.order(name, &mut tail));
            let blobs = blobs.collect::<Result<_, _>>()?;
            let mut readers = vec![];
            for wanted in wanted {
                readers.push(found.order_reader(wanted, &mut dealt, &mut tail).await?);
            }
            orders.push(Orders {
                entry: found.entry.clone(),
                files: files_of(&mut load, found.manifest),
                load,
                blobs,
                readers,
                block_bytes: found.manifest.block_bytes,
                tail: tail.freeze(),
            });
        }
        Ok(orders)
    }
}

/// The names of the files that a rank reads, by whose places its reads name them from then on.
fn files_of(load: &mut RankLoad, manifest: &Manifest) -> Vec<String> {
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
    files.into_iter().map(name).collect()
}

impl Found<'_> {
    /// The place of a blob; one of a rank's memory is put behind the orders.
    fn order(&self, name: &str, tail: &mut BytesMut) -> Result<BlobOrder, LoadError> {
        let (entry, blob) = (&self.entry, self.manifest.blobs.get(name));
        let blob = blob.ok_or_else(|| LoadError::Find {
            detail: format!("{entry} has no blob `{name}`"),
        })?;
        match &self.blobs {
            Blobs::Storage => Ok(BlobOrder::At(blob.clone())),
            Blobs::Memory(blobs) => {
                let bytes = blobs.get(&blob.file).ok_or_else(|| LoadError::Find {
                    detail: format!("no rank has {} of {entry} in its memory", blob.file),
                })?;
                Ok(BlobOrder::behind(tail, bytes))
            }
        }
    }

    /// The place of a reader's state. Where readers have become more or fewer, it is made of those of
    /// all, and put behind the orders.
    async fn order_reader(
        &self,
        wanted: WantedReader,
        dealt: &mut Dealt,
        tail: &mut BytesMut,
    ) -> Result<BlobOrder, LoadError> {
        let WantedReader { loader, index, of } = wanted;
        let refused = |detail: String| LoadError::Find { detail };
        let before = self.manifest.loaders.get(&loader).copied();
        let before = before
            .ok_or_else(|| refused(format!("{} has no data loader `{loader}`", self.entry)))?;
        if index >= of {
            return Err(refused(format!(
                "`{loader}` cannot have reader {index} of {of}"
            )));
        }
        if before == of {
            return self.order(&blob_name(&loader, index), tail);
        }
        if dealt.get(&loader).is_none_or(|states| states.len() != of) {
            let mut states = vec![];
            for index in 0..before {
                let state = self.reader(&blob_name(&loader, index)).await;
                states.push(state.map_err(|detail| LoadError::Rank { rank: 0, detail })?);
            }
            dealt.insert(loader.clone(), loader_state::reshard(states, of));
        }
        Ok(BlobOrder::behind(tail, &dealt[&loader][index].encode()))
    }

    /// The state of a reader as it was saved.
    async fn reader(&self, name: &str) -> Result<ReaderState, String> {
        let mut tail = BytesMut::new();
        let bytes = match self.order(name, &mut tail).map_err(text)? {
            BlobOrder::Is(_) => tail.freeze(),
            BlobOrder::At(blob) => {
                let block_bytes = self.manifest.block_bytes;
                read_blob(self.storage, &self.entry, &blob, block_bytes)
                    .await
                    .map_err(text)?
            }
        };
        ReaderState::decode(&bytes).map_err(|detail| format!("{name}: {detail}"))
    }
}

impl BlobOrder {
    /// Puts bytes behind the orders.
    fn behind(tail: &mut BytesMut, bytes: &[u8]) -> Self {
        let start = tail.len();
        tail.put_slice(bytes);
        Self::Is(start..tail.len())
    }
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
