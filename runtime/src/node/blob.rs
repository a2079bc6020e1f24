//! Bulk bytes: written once, read in place by whoever gets the handle.
//!
//! ```text
//!  owner process                                    reader process, same node
//!  Blobs ── writer(len) ──> BlobWriter (&mut [u8])
//!                               │ seal()
//!                             Blob ──── handle in a message ────> Blob ── open() ──> BlobView (&[u8])
//!                               │                                            one mapping per slab
//!                             region in shared memory <──────────────────────────┘
//! ```
//!
//! A [`Blob`] is a small handle that travels as a field of messages; the bytes never visit a
//! mailbox. Opening it gives a [`BlobView`]: in the owner's process the bytes themselves, in other
//! processes of its node a mapping of the same memory, on other nodes a copy that is fetched once
//! per node.
//!
//! # How long a blob lives
//!
//! 1. A blob lives while any process has a handle or a view of it. A process that receives a handle
//!    takes a lease from the owner at once, and gives it back with its last handle and view.
//! 2. A handle on its way is protected by a pin, made at the owner when the handle is encoded. A
//!    message or reply has one receiver, and its arrival ends the pin; a pin whose message is lost,
//!    or whose number of receivers is not known, ends after [`Limits::blob_transit`].
//! 3. A process that passes on a handle of another's blob keeps its own lease until the owner has
//!    confirmed the pin.
//! 4. The end of a process ends its leases and, unless they were copied or mapped before, the blobs
//!    that it owns: views stay valid, and opening gives [`BlobError::Gone`].
//!
//! So a handle that is kept as bytes (in a file, in the arguments of an actor that starts again) is
//! valid only while some process keeps a living one.
//!
//! [`Limits::blob_transit`]: crate::Limits::blob_transit

mod book;
mod error;
mod handle;
mod lease;
pub(crate) mod protocol;
mod quota;
mod service;
mod store;
mod stream;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use odeon_shm::Mapped;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::actor::engine::Engine;
use crate::actor::task_context;
use crate::base::id::ProcessId;
use crate::base::shape::{self, Shape};

pub use error::BlobError;
pub(crate) use handle::Handle;
use lease::Lease;
pub(crate) use quota::{AccountHandoff, Share};
use store::Own;
pub(crate) use store::Store;

/// A handle on immutable bytes. Small, cheap to clone, and a field of messages; its bytes live as
/// `SEMANTICS.md` 27 to 30 say.
#[derive(Clone)]
pub struct Blob {
    keep: Keep,
}

#[derive(Clone)]
enum Keep {
    /// A region of this process.
    Own(Arc<Own>),
    /// Another process's, leased.
    Foreign(Arc<Lease>),
    /// Decoded outside of any system, or at its owner after it was freed.
    Adrift(Handle),
}

impl Blob {
    /// Bytes that it holds.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.keep {
            Keep::Own(own) => own.bytes().len() as u64,
            Keep::Foreign(lease) => lease.handle().region.len,
            Keep::Adrift(handle) => handle.region.len,
        }
    }

    /// Returns true if it holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The process that holds the bytes.
    #[must_use]
    pub fn owner(&self) -> ProcessId {
        match &self.keep {
            Keep::Own(own) => own.owner(),
            Keep::Foreign(lease) => lease.handle().owner,
            Keep::Adrift(handle) => handle.owner,
        }
    }

    /// Gives the bytes: at once in the owner's process and, as a rule, in the owner's node; after
    /// they were fetched on another node.
    ///
    /// # Errors
    /// [`BlobError`]; another attempt makes sense after [`BlobError::Timeout`] only.
    pub async fn open(&self) -> Result<BlobView, BlobError> {
        match &self.keep {
            Keep::Own(own) => Ok(BlobView::own(own)),
            Keep::Foreign(lease) => lease.open().await,
            Keep::Adrift(handle) => {
                let engine = task_context::engine_for(handle.owner).ok_or(BlobError::NoSystem)?;
                let arrived = Self::arrived(&engine, *handle);
                match arrived.keep {
                    Keep::Adrift(_) => Err(engine.blobs().freed()),
                    _ => Box::pin(arrived.open()).await,
                }
            }
        }
    }

    /// A handle that has come to this process.
    fn arrived(engine: &Arc<Engine>, handle: Handle) -> Self {
        let keep = if handle.owner == engine.process {
            engine
                .blobs()
                .came_home(handle)
                .map_or(Keep::Adrift(handle), Keep::Own)
        } else {
            Keep::Foreign(Lease::take(engine, handle))
        };
        Self { keep }
    }

    fn own(own: Arc<Own>) -> Self {
        Self {
            keep: Keep::Own(own),
        }
    }

    /// A handle that may leave this process now.
    fn depart(&self) -> Handle {
        match &self.keep {
            Keep::Own(own) => own.depart(),
            Keep::Foreign(lease) => lease.depart(),
            Keep::Adrift(handle) => *handle,
        }
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes of {})", self.len(), self.owner())
    }
}

impl Shape for Blob {
    const SHAPE: u64 = shape::name("odeon.Blob");
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.depart().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let handle = Handle::deserialize(deserializer)?;
        Ok(match task_context::engine_for(handle.owner) {
            Some(engine) => Self::arrived(&engine, handle),
            None => Self {
                keep: Keep::Adrift(handle),
            },
        })
    }
}

/// The bytes of a blob. Cheap to clone; the bytes stay while any clone is left, also when the owner
/// is gone.
#[derive(Clone)]
pub struct BlobView {
    bytes: Source,
}

#[derive(Clone)]
enum Source {
    Own(Arc<Own>),
    Mapped { mapped: Mapped, _lease: Arc<Lease> },
}

impl BlobView {
    fn own(own: &Arc<Own>) -> Self {
        Self {
            bytes: Source::Own(Arc::clone(own)),
        }
    }

    fn mapped(mapped: Mapped, lease: &Arc<Lease>) -> Self {
        Self {
            bytes: Source::Mapped {
                mapped,
                _lease: Arc::clone(lease),
            },
        }
    }
}

impl Deref for BlobView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Source::Own(own) => own.bytes(),
            Source::Mapped { mapped, .. } => mapped,
        }
    }
}

impl AsRef<[u8]> for BlobView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<BlobView> for Bytes {
    /// Without a copy.
    fn from(view: BlobView) -> Self {
        Self::from_owner(view)
    }
}

impl fmt::Debug for BlobView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobView({} bytes)", self.len())
    }
}

/// Makes blobs in the shared memory of this process. Cheap to clone.
#[derive(Clone)]
pub struct Blobs {
    engine: Arc<Engine>,
}

impl fmt::Debug for Blobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blobs")
            .field("process", &self.engine.process)
            .finish_non_exhaustive()
    }
}

impl Blobs {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::clone(engine),
        }
    }

    /// Gives `len` bytes to write to; their content is unspecified until written.
    ///
    /// Takes microseconds in memory that earlier blobs have left behind. Fresh memory is faulted in
    /// on the calling thread at some GB/s; [`Blobs::warm_up`] does it ahead and elsewhere.
    ///
    /// # Errors
    /// [`BlobError::Quota`] or [`BlobError::Memory`]; nothing was taken.
    pub fn writer(&self, len: usize) -> Result<BlobWriter, BlobError> {
        self.engine.blobs().writer(len)
    }

    /// Copies `bytes` into a new blob.
    ///
    /// # Errors
    /// As for [`Blobs::writer`].
    pub fn copy_in(&self, bytes: &[u8]) -> Result<Blob, BlobError> {
        let mut writer = self.writer(bytes.len())?;
        writer.copy_from_slice(bytes);
        Ok(writer.seal())
    }

    /// Prepares memory for a blob of `len` bytes, so that the first one is made at full speed.
    ///
    /// # Errors
    /// As for [`Blobs::writer`].
    pub async fn warm_up(&self, len: usize) -> Result<(), BlobError> {
        let engine = Arc::clone(&self.engine);
        let warmed = tokio::task::spawn_blocking(move || engine.blobs().writer(len).map(drop));
        warmed.await.unwrap_or(Err(BlobError::NoSystem))
    }

    /// Counts the blobs that this process holds at present.
    #[must_use]
    pub fn stats(&self) -> BlobStats {
        self.engine.blobs().stats()
    }

    /// Waits until `fact` is true of the [`stats`](Self::stats): room for the next blob, or the end
    /// of a lease.
    pub async fn when(&self, mut fact: impl FnMut(&BlobStats) -> bool + Send) -> BlobStats {
        loop {
            let changed = self.engine.blobs().changed();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let stats = self.stats();
            if fact(&stats) {
                return stats;
            }
            changed.await;
        }
    }
}

/// Counts of the blobs that a process holds, and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlobStats {
    /// Blobs and writers of this process that are alive.
    pub blobs: usize,
    /// Their bytes, as counted against the quota.
    pub bytes: u64,
    /// Those of them that other processes have leased.
    pub leased: usize,
    /// Handles of them that are on their way.
    pub in_transit: usize,
    /// Blobs of other processes that this one has leased.
    pub foreign: usize,
    /// Slabs of other processes that are mapped.
    pub mapped_slabs: usize,
    /// Memory kept for the next blobs.
    pub warm_bytes: u64,
    /// Bytes that the whole node's processes hold in blobs of this job.
    pub node_bytes: u64,
    /// The bound on `node_bytes`.
    pub quota_bytes: u64,
}

impl Shape for BlobStats {
    const SHAPE: u64 = shape::name("odeon.BlobStats");
}

/// Bytes being written: invisible to others until [`BlobWriter::seal`]. Dropped without sealing,
/// the memory goes back.
pub struct BlobWriter {
    writer: odeon_shm::BlobWriter,
    charge: quota::Charge,
    store: Arc<Store>,
}

impl BlobWriter {
    /// Shortens the blob to `len` bytes, when less was written than was asked for.
    ///
    /// # Panics
    /// If `len` is more than the present length.
    pub fn truncate(&mut self, len: usize) {
        self.writer.truncate(len);
    }

    /// Ends writing; from here on the bytes never change.
    #[must_use]
    pub fn seal(self) -> Blob {
        Blob::own(self.seal_own())
    }

    fn seal_own(self) -> Arc<Own> {
        Own::new(self.writer.seal(), self.charge, &self.store)
    }
}

impl Deref for BlobWriter {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.writer
    }
}

impl DerefMut for BlobWriter {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.writer
    }
}

impl fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobWriter")
            .field("len", &self.writer.len())
            .finish_non_exhaustive()
    }
}
