//! Loading, in whatever layout: each byte is read once, checked, and given to whom it belongs.

mod orders;
mod shares;

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::orders::{BlobOrder, Orders};
use self::shares::Supply;
use crate::checkpointer::Checkpointer;
use crate::commit::{Entry, FindError, Which};
use crate::loader_state::ReaderState;
use crate::local::{Local, Target};
use crate::manifest::Blob;
use crate::plan::load::LoadPlanError;
use crate::ranks::{RanksError, down, up};
use crate::stage::{Stage, StageTime, Watch};
use crate::storage::{Storage, StorageError};

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
        let rank = inner.ranks.rank();
        let planning = Watch::begin(rank);
        let own = || inner.peers.as_ref().map(|peers| peers.kept());
        let kept = memory.then(|| own().unwrap_or_default());
        let mut orders = self.ordered(load, kept.as_deref()).await?;
        let step = orders.entry.step;
        let read_bytes = orders.load.read_bytes();
        let mut stages = vec![inner.tell(step, planning.end(Stage::Plan, 0))];

        let supply = if memory {
            let mut kept = kept.into_iter().flatten();
            Supply::Memory(kept.find(|kept| kept.entry == orders.entry))
        } else {
            Supply::Storage(inner.storage.clone())
        };
        let (times, outcome) = self.carry_out(&mut orders, &supply, &target).await;
        stages.extend(times.into_iter().map(|time| inner.tell(step, time)));
        let beside = match outcome {
            Ok(()) => self.beside(&orders).await.map_err(|detail| (rank, detail)),
            Err(failed) => Err(failed),
        };
        let (blobs, readers) = self.all_or_nobody(beside).await?;
        Ok(Loaded {
            entry: orders.entry,
            blobs,
            readers,
            read_bytes: read_bytes as u64,
            stages,
        })
    }

    /// Gives what this rank has loaded, once all ranks have done their part; else nobody has anything.
    async fn all_or_nobody<T: Default>(&self, loaded: Result<T, Failed>) -> Result<T, LoadError> {
        let (ranks, tree) = (&*self.inner.ranks, &self.inner.tree);
        let (loaded, outcome) = match loaded {
            Ok(loaded) => (Some(loaded), Ok(())),
            Err(failed) => (None, Err(failed)),
        };
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
        Ok(loaded.unwrap_or_default())
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
