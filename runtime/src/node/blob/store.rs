//! The blobs of one process: its arena, its book, and what it has of others.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use odeon_shm::{Arena, ArenaError, ArenaOptions, Mapper, Region};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::book::{Book, Journey};
use super::handle::Handle;
use super::lease::Lease;
use super::quota::{Account, AccountHandoff, Charge, Share};
use super::stream::Streams;
use super::{BlobError, BlobStats, BlobWriter};
use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::clock::{Clock, Timestamp};
use crate::base::failure::ProcessExit;
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::net::wire::Chunk;
use crate::net::wire::codec;

/// The time for which memory without a blob stays, as the next one may come soon: twice as long at most. Taking it
/// anew costs some tenths of a second for each GB, so that only who rests for longer pays for it.
const WARM_FOR: Duration = Duration::from_secs(5);

/// The blobs that a process owns, and those of others that it has open.
pub(crate) struct Store {
    process: ProcessId,
    transit: Duration,
    arena: Arena,
    account: Account,
    /// Of the other jobs that a node serves.
    jobs: Mutex<HashMap<String, Account>>,
    book: Mutex<Book<Own>>,
    /// When the next journey in the book takes too long; a copy for the sweep.
    next_due: AtomicU64,
    pub(super) mapper: Mapper,
    /// When unused memory was last given back, and the arena's moment then.
    cooled: Mutex<(Timestamp, u64)>,
    pub(super) leases: Mutex<HashMap<(ProcessId, u64), Weak<Lease>>>,
    pub(super) streams: Streams,
    changed: Arc<Notify>,
    engine: OnceLock<Weak<Engine>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Store {
    pub(crate) fn new(process: ProcessId, limits: &Limits, share: Option<Share>) -> Self {
        // The quota is the node's, so the account keeps it and not the arena.
        let changed = Arc::new(Notify::new());
        let options = ArenaOptions {
            quota_bytes: u64::MAX,
            ..ArenaOptions::default()
        };
        Self {
            process,
            transit: limits.blob_transit,
            arena: Arena::new(options),
            account: Account::new(share, limits.blob_bytes_quota, Arc::clone(&changed)),
            jobs: Mutex::default(),
            book: Mutex::default(),
            next_due: AtomicU64::new(u64::MAX),
            mapper: Mapper::new(),
            cooled: Mutex::default(),
            leases: Mutex::default(),
            streams: Streams::default(),
            changed,
            engine: OnceLock::new(),
        }
    }

    /// A part of a job's account on this node for a new worker.
    pub(crate) fn share(&self, worker: ProcessId, job: &str) -> Option<Share> {
        let engine = self.engine.get()?.upgrade()?;
        if engine.job == job {
            return self.account.share(worker);
        }
        let mut jobs = self.jobs.lock();
        let account = jobs.entry(job.to_owned()).or_insert_with(|| {
            let quota = self.account.quota();
            Account::new(None, quota, Arc::clone(&self.changed))
        });
        account.share(worker)
    }

    /// A worker has ended, or did not start: its part comes back, and so does the account of a job
    /// that has none left.
    pub(crate) fn unshare(&self, worker: ProcessId) {
        self.account.process_down(worker);
        self.jobs.lock().retain(|_, account| {
            account.process_down(worker);
            account.is_shared()
        });
    }

    pub(super) fn writer(self: &Arc<Self>, len: usize) -> Result<BlobWriter, BlobError> {
        let charge = self.account.charge(len)?;
        let writer = self.arena.writer(len).map_err(|error| {
            let why = match error {
                ArenaError::Os { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            BlobError::Memory {
                asked: len as u64,
                why,
            }
        })?;
        Ok(BlobWriter {
            writer,
            charge,
            store: Arc::clone(self),
        })
    }

    /// Bytes of blobs that this process has made and that are still held.
    pub(crate) fn owned_bytes(&self) -> u64 {
        self.arena.stats().used_bytes
    }

    pub(super) fn stats(&self) -> BlobStats {
        let arena = self.arena.stats();
        let (leased, in_transit) = self.book.lock().counts();
        let foreign = self
            .leases
            .lock()
            .values()
            .filter(|lease| lease.strong_count() > 0)
            .count();
        BlobStats {
            blobs: arena.regions,
            bytes: arena.used_bytes,
            leased,
            in_transit,
            foreign,
            mapped_slabs: self.mapper.stats().slabs,
            warm_bytes: arena.warm_bytes,
            node_bytes: self.account.used(),
            quota_bytes: self.account.quota(),
        }
    }

    /// Resolves after the next change of the stats.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    pub(super) fn note_change(&self) {
        self.changed.notify_waiters();
    }

    // ---- the owner's side ----

    /// A handle of this process's own blob came back to it.
    pub(super) fn came_home(&self, handle: Handle) -> Option<Arc<Own>> {
        let mut book = self.book.lock();
        let own = book.find(handle.serial());
        let ended = book.arrived(handle.ticket);
        drop(book);
        drop(ended);
        own
    }

    /// A handle has arrived in another process: a lease for that, in exchange for the pin of the
    /// journey.
    pub(super) fn hold(
        &self,
        holder: ProcessId,
        serial: u64,
        ticket: u64,
    ) -> Result<(), BlobError> {
        let (alive, ended) = {
            let mut book = self.book.lock();
            (book.hold(serial, holder), book.arrived(ticket))
        };
        drop(ended);
        self.note_change();
        self.unless_freed(alive)
    }

    /// A further copy of a handle has arrived.
    pub(super) fn arrived(&self, ticket: u64) {
        let ended = self.book.lock().arrived(ticket);
        drop(ended);
        self.note_change();
    }

    /// Another process has let go of a blob.
    pub(super) fn release(&self, holder: ProcessId, serial: u64) {
        let ended = self.book.lock().release(serial, holder);
        drop(ended);
        self.note_change();
    }

    /// Another process passes a handle on.
    pub(super) fn pin(
        &self,
        serial: u64,
        ticket: u64,
        arrivals: u32,
        lasts: Duration,
    ) -> Result<(), BlobError> {
        let journey = Journey {
            ticket,
            arrivals,
            until: Clock::now().after(lasts.min(self.transit)),
        };
        let alive = {
            let mut book = self.book.lock();
            let alive = book.pin(serial, journey);
            self.note_due(&book);
            alive
        };
        self.note_change();
        self.unless_freed(alive)
    }

    fn unless_freed(&self, alive: bool) -> Result<(), BlobError> {
        alive.then_some(()).ok_or_else(|| self.freed())
    }

    /// Why a handle of a blob of this process may be of no use any more.
    pub(super) fn freed(&self) -> BlobError {
        let why = format!(
            "its owner has freed it: nobody held it, and the message was on its way for more than \
             {:?} or was read twice",
            self.transit
        );
        BlobError::Gone {
            owner: self.process,
            why,
        }
    }

    fn note_due(&self, book: &Book<Own>) {
        let due = book.next_due().map_or(u64::MAX, |due| due.0);
        self.next_due.store(due, Ordering::Release);
    }

    /// The state of the accounts of jobs that another program has to know.
    pub(crate) fn handoff(&self) -> Vec<AccountHandoff> {
        let jobs = self.jobs.lock();
        let accounts = jobs.iter();
        accounts
            .filter_map(|(job, account)| account.handoff(job))
            .collect()
    }

    /// Goes on with accounts that another program of this process has kept.
    pub(crate) fn inherit(&self, accounts: Vec<AccountHandoff>) -> std::io::Result<()> {
        for account in accounts {
            let job = account.job.clone();
            let account = Account::of_handoff(account, Arc::clone(&self.changed))?;
            self.jobs.lock().insert(job, account);
        }
        Ok(())
    }

    /// Gives memory back that has held no blob for a while, and lets go of that of others which they have given up.
    fn cool(&self, now: Timestamp) {
        let mut cooled = self.cooled.lock();
        let (last, moment) = *cooled;
        if now.since(last) >= WARM_FOR {
            *cooled = (now, self.arena.moment());
            drop(cooled);
            self.arena.cool(moment);
            self.mapper.sweep();
        }
    }

    /// The number of blobs of this process that others hold, or have on their way.
    pub(crate) fn lent(&self) -> usize {
        let (leased, in_transit) = self.book.lock().counts();
        leased + in_transit
    }
}

impl Component for Store {
    fn attach(&self, engine: &Arc<Engine>) {
        self.engine.get_or_init(|| Arc::downgrade(engine));
    }

    fn sweep(&self, _: &Arc<Engine>, now: Timestamp) {
        self.cool(now);
        if self.next_due.load(Ordering::Acquire) > now.0 {
            return;
        }
        let ended = {
            let mut book = self.book.lock();
            let ended = book.expire(now);
            self.note_due(&book);
            ended
        };
        drop(ended);
        self.note_change();
    }

    fn process_down(&self, _: &Arc<Engine>, exit: &ProcessExit) {
        let ended = self.book.lock().died(exit.process);
        drop(ended);
        self.streams.process_down(exit.process);
        self.unshare(exit.process);
        let lost: Vec<_> = {
            let leases = self.leases.lock();
            let of_it = leases
                .iter()
                .filter(|((owner, _), _)| *owner == exit.process);
            of_it.filter_map(|(_, lease)| lease.upgrade()).collect()
        };
        for lease in lost {
            lease.owner_died(&exit.status);
            self.mapper.forget(lease.handle().region.owner_pid);
        }
        self.note_change();
    }

    fn take_chunk(&self, chunk: &Chunk) -> bool {
        self.streams.take(chunk)
    }

    fn close(&self) {
        let book = std::mem::take(&mut *self.book.lock());
        drop(book);
        self.note_change();
    }
}

impl Engine {
    /// Its blobs.
    pub(crate) fn blobs(&self) -> &Arc<Store> {
        self.component()
    }
}

/// Sealed bytes of this process.
#[derive(Debug)]
pub(crate) struct Own {
    region: Region,
    _charge: Charge,
    /// Last, so that it tells of bytes that are free already.
    farewell: Farewell,
}

impl Own {
    pub(super) fn new(region: Region, charge: Charge, store: &Arc<Store>) -> Arc<Self> {
        let farewell = Farewell {
            serial: region.name().region,
            store: Arc::downgrade(store),
        };
        Arc::new(Self {
            region,
            _charge: charge,
            farewell,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.region
    }

    pub(super) fn owner(&self) -> ProcessId {
        self.farewell
            .store
            .upgrade()
            .map_or(ProcessId(0), |store| store.process)
    }

    /// A handle that may leave the process now, with a pin for its journey.
    pub(super) fn depart(self: &Arc<Self>) -> Handle {
        let region = self.region.name();
        let engine = self
            .farewell
            .store
            .upgrade()
            .and_then(|store| store.engine.get()?.upgrade());
        let Some(engine) = engine else {
            // Its system is over; whoever gets this will hear that the owner is gone.
            let owner = self.owner();
            return Handle {
                owner,
                domain: owner,
                region,
                ticket: 0,
                pinned_until: 0,
            };
        };
        let store = &engine.blobs();
        let (ticket, arrivals) = (crate::base::random::number() | 1, codec::arrivals());
        let until = Clock::now().after(store.transit);
        let pinned_until = (Clock::unix_time() + store.transit).as_micros() as u64;
        let mut book = store.book.lock();
        book.depart(
            region.region,
            Arc::clone(self),
            Journey {
                ticket,
                arrivals,
                until,
            },
        );
        store.note_due(&book);
        drop(book);
        Handle {
            owner: engine.process,
            domain: engine.domain(),
            region,
            ticket,
            pinned_until,
        }
    }
}

/// Tells the store when a blob is no more.
struct Farewell {
    serial: u64,
    store: Weak<Store>,
}

impl fmt::Debug for Farewell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blob {:016x}", self.serial)
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.book.lock().forget(self.serial);
            store.note_change();
        }
    }
}
