//! The holder's side: the right of this process to read a blob of another.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use futures::FutureExt;
use futures::future::Shared;
use odeon_shm::{MapError, Mapped};
use tokio::sync::{OnceCell, oneshot};

use super::handle::Handle;
use super::protocol::{LendRequest, Lending};
use super::{Blob, BlobError, BlobView, stream};
use crate::actor::engine::Engine;
use crate::base::clock::Clock;
use crate::net::service::Answered;
use crate::net::wire::codec;

/// One per process and blob; handles and views share it, and its drop gives the lease back.
pub(crate) struct Lease {
    handle: Handle,
    engine: Weak<Engine>,
    /// The owner's answer; `None` when it could not be asked.
    granted: Option<Shared<oneshot::Receiver<Answered<Lending>>>>,
    mapped: OnceLock<Mapped>,
    /// The copy on this node of a blob of another one.
    copy: OnceCell<Blob>,
    /// The end of the owner, in words.
    died: OnceLock<String>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// Takes a lease in exchange for the pin of the journey, or shares the one that is there.
    pub(super) fn take(engine: &Arc<Engine>, handle: Handle) -> Arc<Self> {
        let serial = handle.serial();
        let mut leases = engine.blobs().leases.lock();
        let known = leases.get(&(handle.owner, serial)).and_then(Weak::upgrade);
        if let Some(lease) = known.as_ref().filter(|lease| !lease.is_refused()) {
            drop(leases);
            if handle.ticket != 0 {
                let arrived = LendRequest::Arrived {
                    ticket: handle.ticket,
                };
                engine.tell::<Lending>(handle.owner, &arrived);
            }
            return Arc::clone(lease);
        }
        // Asked under the lock, so that no other handle can be shared before its lease is asked
        // for.
        let hold = LendRequest::Hold {
            serial,
            ticket: handle.ticket,
        };
        let granted = engine
            .begin_request::<Lending>(handle.owner, &hold)
            .map(FutureExt::shared);
        let lease = Arc::new(Self {
            handle,
            engine: Arc::downgrade(engine),
            granted,
            mapped: OnceLock::new(),
            copy: OnceCell::new(),
            died: OnceLock::new(),
        });
        leases.insert((handle.owner, serial), Arc::downgrade(&lease));
        drop(leases);
        // Only now, because the drop of a refused lease looks into the table as well.
        drop(known);
        lease
    }

    pub(super) const fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn owner_died(&self, status: &str) {
        self.died.get_or_init(|| status.to_owned());
    }

    fn is_refused(&self) -> bool {
        self.died.get().is_some()
            || match self.granted.clone().map(FutureExt::now_or_never) {
                None => true,
                Some(Some(answer)) => !matches!(answer, Ok(Ok(Ok(())))),
                Some(None) => false,
            }
    }

    /// See [`Blob::open`](super::Blob::open).
    pub(super) async fn open(self: &Arc<Self>) -> Result<BlobView, BlobError> {
        if let Some(mapped) = self.mapped.get() {
            return Ok(BlobView::mapped(mapped.clone(), self));
        }
        let engine = self.engine.upgrade().ok_or(BlobError::NoSystem)?;
        if self.handle.domain != engine.domain() {
            return Box::pin(self.brought(&engine).await?.open()).await;
        }
        if !self.is_pinned_for_now(&engine) {
            self.wait_until_granted(&engine).await?;
        }
        let mapped = self.map(&engine).await?;
        let mapped = self.mapped.get_or_init(|| mapped);
        Ok(BlobView::mapped(mapped.clone(), self))
    }

    /// The copy of this node, which is made when it is not there yet.
    pub(super) async fn brought(&self, engine: &Arc<Engine>) -> Result<&Blob, BlobError> {
        let bringing = || async {
            let brought = Box::pin(stream::bring(engine, self.handle)).await;
            brought.map_err(|error| match error {
                BlobError::Gone { why, .. } => self.gone(&why),
                other => other,
            })
        };
        self.copy.get_or_try_init(bringing).await
    }

    /// Returns true if the pin of the journey lasts until the owner has surely heard of our lease,
    /// so that its answer need not be waited for. A link that is silent for longer than the margin
    /// is lost.
    fn is_pinned_for_now(&self, engine: &Engine) -> bool {
        let margin = engine.limits.link_idle_timeout;
        let now = Clock::unix_time() + margin;
        self.granted.is_some() && now.as_micros() < u128::from(self.handle.pinned_until)
    }

    async fn wait_until_granted(&self, engine: &Engine) -> Result<(), BlobError> {
        let owner = self.handle.owner;
        let waited = engine.limits.ask_timeout;
        let Some(granted) = self.granted.clone() else {
            return Err(self.gone("no link leads to it"));
        };
        match Clock::timeout(waited, granted).await {
            Some(Ok(Ok(outcome))) => outcome,
            Some(Ok(Err(_))) => Err(self.gone("no way leads to it")),
            Some(Err(_)) => Err(self.gone("it ended before it gave a lease")),
            None => Err(BlobError::Timeout { owner, waited }),
        }
    }

    async fn map(self: &Arc<Self>, engine: &Arc<Engine>) -> Result<Mapped, BlobError> {
        let name = self.handle.region;
        let warm = engine
            .blobs()
            .mapper
            .map_if_warm(&name)
            .map_err(|error| self.explain(&error))?;
        if let Some(mapped) = warm {
            return Ok(mapped);
        }
        if name.len <= SMALL_BYTES {
            return engine
                .blobs()
                .mapper
                .map(&name)
                .map_err(|error| self.explain(&error));
        }
        let (mapping, lease) = (Arc::clone(engine), Arc::clone(self));
        let mapped = tokio::task::spawn_blocking(move || {
            mapping
                .blobs()
                .mapper
                .map(&name)
                .map_err(|error| lease.explain(&error))
        });
        mapped.await.unwrap_or(Err(BlobError::NoSystem))
    }

    fn explain(&self, error: &MapError) -> BlobError {
        match error {
            MapError::OwnerGone { .. } => self.gone("its process has ended"),
            MapError::Stale { .. } => self.gone("its memory was freed"),
            other => {
                let source = std::error::Error::source(other);
                let why = source.map_or_else(String::new, |source| format!(": {source}"));
                BlobError::Unreadable {
                    owner: self.handle.owner,
                    why: format!("{other}{why}"),
                }
            }
        }
    }

    fn gone(&self, why: &str) -> BlobError {
        let why = match self.died.get() {
            Some(status) => format!("its process ended: {status}"),
            None => why.to_owned(),
        };
        BlobError::Gone {
            owner: self.handle.owner,
            why,
        }
    }

    /// A handle that may leave this process now. The owner is asked to pin it for the journey;
    /// until it has confirmed, this process keeps its own lease.
    pub(super) fn depart(self: &Arc<Self>) -> Handle {
        // A copy is nearer to whoever is near to us.
        if let Some(copy) = self.copy.get() {
            return copy.depart();
        }
        let adrift = Handle {
            ticket: 0,
            pinned_until: 0,
            ..self.handle
        };
        let Some(engine) = self.engine.upgrade() else {
            return adrift;
        };
        let ticket = crate::base::random::number() | 1;
        let lasts = engine.limits.blob_transit;
        let pin = LendRequest::Pin {
            serial: self.handle.serial(),
            ticket,
            arrivals: codec::arrivals(),
            lasts,
        };
        let Some(pinned) = engine.begin_request::<Lending>(self.handle.owner, &pin) else {
            return adrift;
        };
        let (keep, patience) = (Arc::clone(self), engine.limits.ask_timeout);
        engine.spawn_task(async move {
            // However it ends, the lease has done what it could.
            let _ = Clock::timeout(patience, pinned).await;
            drop(keep);
        });
        let pinned_until = (Clock::unix_time() + lasts).as_micros() as u64;
        Handle {
            ticket,
            pinned_until,
            ..self.handle
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        let key = (self.handle.owner, self.handle.serial());
        {
            let mut leases = engine.blobs().leases.lock();
            // A new lease may have taken the place.
            if leases
                .get(&key)
                .is_some_and(|lease| lease.strong_count() == 0)
            {
                leases.remove(&key);
            }
        }
        if !self.is_refused() {
            let release = LendRequest::Release {
                serial: self.handle.serial(),
            };
            engine.tell::<Lending>(self.handle.owner, &release);
        }
        engine.blobs().note_change();
    }
}

/// Mapping up to this many bytes takes less than handing the work to another thread.
const SMALL_BYTES: u64 = 2 << 20;
