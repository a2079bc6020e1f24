//! A rank's end of the checkpoints of a job.

use std::fmt;
use std::sync::Arc;

use crate::commit::Retention;
use crate::file::FilePlan;
use crate::local::{Local, LocalTensor, TensorName};
use crate::peers::Peers;
use crate::plan::Tree;
use crate::pool::Pool;
use crate::ranks::Ranks;
use crate::save::Saving;
use crate::stage::{Observer, StageTime};
use crate::storage::Storage;

/// A rank's end of the checkpoints of a job in one place. All ranks have one, and each of them calls
/// the same methods in the same order.
///
/// One job writes to a place at a time; any number may read.
pub struct Checkpointer {
    pub(crate) inner: Arc<Inner>,
    /// The plan of the save before, which is good as long as all ranks have the same as then.
    pub(crate) cached: Option<Cached>,
    pub(crate) previous: Option<Saving>,
    /// At rank 0: the number of the next checkpoint.
    pub(crate) next: Option<u64>,
}

/// State shared with the part of a save that goes on while training does.
pub(crate) struct Inner {
    pub(crate) storage: Storage,
    pub(crate) ranks: Arc<dyn Ranks>,
    pub(crate) tree: Tree,
    pub(crate) options: Options,
    pub(crate) pool: Arc<Pool>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) peers: Option<Arc<Peers>>,
}

/// A plan for as long as it is good.
#[derive(Clone)]
pub(crate) struct Cached {
    /// Hash of the state of all ranks.
    pub(crate) key: [u8; 32],
    /// Hash of the state of this rank.
    pub(crate) own: [u8; 32],
    pub(crate) files: Arc<Vec<FilePlan>>,
    /// At rank 0.
    pub(crate) whole: Option<Arc<WholePlan>>,
}

/// The files that all ranks write.
pub(crate) struct WholePlan {
    pub(crate) ranks: Vec<Vec<FilePlan>>,
    pub(crate) empty: Vec<(TensorName, LocalTensor)>,
}

/// Settings for writing and reading checkpoints. All ranks have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A box that several ranks have is written by them in slices of so many bytes at most.
    pub slice_bytes: usize,
    /// Each piece is checked in blocks of so many bytes, a multiple of 16. What is loaded is read in
    /// whole blocks.
    pub block_bytes: usize,
    /// A rank begins another file when one is so large.
    pub file_bytes: usize,
    /// Bytes of one read, at most.
    pub read_bytes: usize,
    /// Number of files that a rank writes at a time.
    pub files: usize,
    /// Number of reads that a rank has under way at a time.
    pub reads: usize,
    /// Threads that copy into the pool.
    pub threads: usize,
    /// Which checkpoints stay.
    pub retention: Retention,
    /// Number of ranks on a machine, with consecutive numbers; they agree among themselves first.
    pub node_ranks: usize,
    /// Number of machines that one machine hears from.
    pub fan_out: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slice_bytes: 64 << 20,
            block_bytes: 4 << 20,
            file_bytes: 4 << 30,
            read_bytes: 8 << 20,
            files: 4,
            reads: 4,
            threads: 2,
            retention: Retention::default(),
            node_ranks: 8,
            fan_out: 16,
        }
    }
}

impl Checkpointer {
    /// The end of the rank that `ranks` is of, with a pool on the heap.
    #[must_use]
    pub fn new(storage: Storage, ranks: Arc<dyn Ranks>, options: Options) -> Self {
        let tree = Tree::new(ranks.ranks(), options.node_ranks, options.fan_out);
        Self {
            inner: Arc::new(Inner {
                storage,
                ranks,
                tree,
                options,
                pool: Pool::new(crate::pool::Heap),
                observer: None,
                peers: None,
            }),
            cached: None,
            previous: None,
            next: None,
        }
    }

    /// Takes snapshots into this pool, which may be pinned memory.
    #[must_use]
    pub fn with_pool(self, pool: Arc<Pool>) -> Self {
        self.with(|inner| inner.pool = pool)
    }

    /// Tells of each stage.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        self.with(|inner| inner.observer = Some(observer))
    }

    /// Keeps each checkpoint in memory, too: this rank's part here and that of a neighbour. All
    /// ranks do, or none.
    #[must_use]
    pub fn with_peers(self, peers: Arc<Peers>) -> Self {
        self.with(|inner| inner.peers = Some(peers))
    }

    /// Where the checkpoints are.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        // Nothing is under way before the first save.
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            change(inner);
        }
        self
    }
}

impl Inner {
    pub(crate) fn tell(&self, step: u64, time: StageTime) -> StageTime {
        if let Some(observer) = &self.observer {
            observer.stage(step, time);
        }
        time
    }
}

/// The hash of what a rank has, and of how checkpoints are made, which a plan depends on.
pub(crate) fn digest(local: &Local, options: &Options) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let how = (options.slice_bytes, options.block_bytes, options.file_bytes);
    hasher.update(&crate::ranks::written(&(local, how)));
    hasher.finalize().into()
}

impl fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpointer")
            .field("storage", &self.inner.storage)
            .field("ranks", &self.inner.ranks)
            .finish_non_exhaustive()
    }
}
