//! Quotas of the bytes that a job may hold in blobs on a node: one account for all its processes,
//! in memory that they share, so that no one asks anyone for room.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use odeon_shm::{LEDGER_SLOTS, Ledger, LedgerName};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::BlobError;
use crate::base::id::ProcessId;
use odeon_shm::take_open;

/// The account as one process sees it.
#[derive(Clone)]
pub(crate) struct Account {
    book: Arc<Book>,
    changed: Arc<Notify>,
}

enum Book {
    Shared(Ledger, Mutex<Slots>),
    /// Where no memory can be shared, each process counts for itself.
    Alone {
        used: AtomicU64,
        quota: u64,
    },
}

/// Which process has which slot, as the node knows it.
#[derive(Debug, Default)]
struct Slots {
    of: Vec<Option<ProcessId>>,
}

/// A worker's part in its node's account; travels as text in the worker's environment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    name: LedgerName,
    slot: usize,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.name, self.slot)
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, slot) = text.rsplit_once('-').ok_or("it has no slot")?;
        let name = name.parse().map_err(|_| "it names no ledger")?;
        let slot = slot.parse().ok().filter(|slot| *slot < LEDGER_SLOTS);
        Ok(Self {
            name,
            slot: slot.ok_or("it has no such slot")?,
        })
    }
}

/// The state of an account that another program has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AccountHandoff {
    pub(super) job: String,
    ledger: LedgerName,
    slots: Vec<Option<ProcessId>>,
}

impl AccountHandoff {
    pub(crate) const fn descriptor(&self) -> RawFd {
        self.ledger.fd
    }
}

/// A share of the quota; given back on drop.
#[derive(Debug)]
pub(super) struct Charge {
    account: Account,
    bytes: u64,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("used", &self.used())
            .field("quota", &self.quota())
            .finish_non_exhaustive()
    }
}

impl Account {
    /// An account that tells `changed` when a charge ends: a part of the node's, or a new one.
    pub(super) fn new(share: Option<Share>, quota: u64, changed: Arc<Notify>) -> Self {
        let ledger = match share {
            Some(share) => Ledger::open(&share.name, share.slot).map_err(|e| e.to_string()),
            None => Ledger::create(quota).map_err(|e| e.to_string()),
        };
        let book = match ledger {
            Ok(ledger) => Book::Shared(ledger, Mutex::default()),
            Err(why) => {
                tracing::warn!(why, "this process counts its blobs apart from its node's");
                Book::Alone {
                    used: AtomicU64::new(0),
                    quota,
                }
            }
        };
        Self {
            book: Arc::new(book),
            changed,
        }
    }

    /// The state that another program has to know.
    pub(super) fn handoff(&self, job: &str) -> Option<AccountHandoff> {
        let Book::Shared(ledger, slots) = &*self.book else {
            return None;
        };
        Some(AccountHandoff {
            job: job.to_owned(),
            ledger: ledger.name()?,
            slots: slots.lock().of.clone(),
        })
    }

    /// An account that another program of this process has kept before.
    pub(super) fn of_handoff(handoff: AccountHandoff, changed: Arc<Notify>) -> io::Result<Self> {
        let fd = take_open(handoff.descriptor())?;
        let ledger = Ledger::take_over(handoff.ledger, fd)?;
        let slots = Slots { of: handoff.slots };
        Ok(Self {
            book: Arc::new(Book::Shared(ledger, Mutex::new(slots))),
            changed,
        })
    }

    /// A part of this account for a new worker.
    pub(super) fn share(&self, worker: ProcessId) -> Option<Share> {
        let Book::Shared(ledger, slots) = &*self.book else {
            return None;
        };
        let name = ledger.name()?;
        let mut slots = slots.lock();
        let free = slots
            .of
            .iter()
            .position(Option::is_none)
            .unwrap_or_else(|| {
                slots.of.push(None);
                slots.of.len() - 1
            });
        // The first slot is the node's own.
        let slot = free + 1;
        (slot < LEDGER_SLOTS).then(|| {
            slots.of[free] = Some(worker);
            Share { name, slot }
        })
    }

    /// A worker has died: its part comes back.
    pub(super) fn process_down(&self, worker: ProcessId) {
        let Book::Shared(ledger, slots) = &*self.book else {
            return;
        };
        let mut slots = slots.lock();
        if let Some(place) = slots.of.iter().position(|of| *of == Some(worker)) {
            ledger.clear(place + 1);
            slots.of[place] = None;
        }
    }

    /// Returns true if a worker has a part of it.
    pub(super) fn is_shared(&self) -> bool {
        match &*self.book {
            Book::Shared(_, slots) => slots.lock().of.iter().any(Option::is_some),
            Book::Alone { .. } => false,
        }
    }

    pub(super) fn charge(&self, len: usize) -> Result<Charge, BlobError> {
        let asked = len as u64;
        let bytes = asked.max(1).next_multiple_of(64);
        let taken = match &*self.book {
            Book::Shared(ledger, _) => ledger.take(bytes),
            Book::Alone { used, quota } => {
                let fits = |used: u64| used.checked_add(bytes).filter(|sum| sum <= quota);
                used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
                    .map(drop)
            }
        };
        match taken {
            Ok(()) => Ok(Charge {
                account: self.clone(),
                bytes,
            }),
            Err(used) => Err(BlobError::Quota {
                asked,
                used,
                quota: self.quota(),
            }),
        }
    }

    pub(super) fn used(&self) -> u64 {
        match &*self.book {
            Book::Shared(ledger, _) => ledger.used_bytes(),
            Book::Alone { used, .. } => used.load(Ordering::Acquire),
        }
    }

    pub(super) fn quota(&self) -> u64 {
        match &*self.book {
            Book::Shared(ledger, _) => ledger.quota_bytes(),
            Book::Alone { quota, .. } => *quota,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        match &*self.account.book {
            Book::Shared(ledger, _) => ledger.give(self.bytes),
            Book::Alone { used, .. } => {
                used.fetch_sub(self.bytes, Ordering::AcqRel);
            }
        }
        self.account.changed.notify_waiters();
    }
}
