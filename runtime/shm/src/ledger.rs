//! One quota for several processes: a page of counters that all of them map.
//!
//! Each process counts in a slot of its own, so that its death costs one slot, which the creator of
//! the ledger clears. A process adds what it wants to its slot first and then looks at the sum;
//! over the quota it takes it back. Two that ask at the same moment may thus both be refused what
//! one of them could have had, but together they never get more than there is.

use std::{
    fmt, io,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::{
    MapError,
    mapping::{Access, Mapping},
    slab::{HEADER, Purpose, SharedName, create_shared, open_shared},
};

/// Slots of a ledger. The first is its creator's.
pub const LEDGER_SLOTS: usize = 1024;

/// Whole pages for the quota's line and one line for each slot.
const LEDGER_BYTES: usize = ((LEDGER_SLOTS + 1) * HEADER).next_multiple_of(4096);

/// A shared account of bytes, seen from one process. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    page: Arc<Page>,
    slot: usize,
}

struct Page {
    mapping: Mapping,
    /// The creator's descriptor, by which others open the page.
    name: Option<LedgerName>,
    _fd: Option<std::os::fd::OwnedFd>,
}

/// The name by which another process takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerName {
    /// Process that made the ledger.
    pub owner_pid: u32,
    /// Random identity, also part of the memfd's name.
    pub ledger: u64,
    /// The descriptor in that process.
    pub fd: i32,
}

impl Ledger {
    /// A ledger with the quota `quota_bytes`, in which this process has the first slot.
    ///
    /// # Errors
    ///
    /// The system gives no memory or descriptor.
    pub fn create(quota_bytes: u64) -> io::Result<Self> {
        let (fd, mapping, name) = create_shared(Purpose::Ledger, LEDGER_BYTES)?;
        let name = LedgerName {
            owner_pid: name.owner_pid,
            ledger: name.id,
            fd: name.fd,
        };
        mapping.word(0).store(quota_bytes, Ordering::Release);
        let page = Page {
            mapping,
            name: Some(name),
            _fd: Some(fd),
        };
        Ok(Self {
            page: Arc::new(page),
            slot: 0,
        })
    }

    /// Goes on with a ledger that another program has made in this process, and whose descriptor this
    /// one has taken over.
    ///
    /// # Errors
    ///
    /// The descriptor is none of a ledger.
    pub fn take_over(name: LedgerName, fd: std::os::fd::OwnedFd) -> io::Result<Self> {
        let mapping = Mapping::new(fd.as_fd(), LEDGER_BYTES, Access::Write)?;
        let page = Page {
            mapping,
            name: Some(name),
            _fd: Some(fd),
        };
        Ok(Self {
            page: Arc::new(page),
            slot: 0,
        })
    }

    /// Takes part in another process's ledger, with the slot that it gave to this one.
    ///
    /// # Errors
    ///
    /// [`MapError`]: its creator is gone, or the name means something else.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn open(name: &LedgerName, slot: usize) -> Result<Self, MapError> {
        assert!(slot < LEDGER_SLOTS, "slot {slot} of {LEDGER_SLOTS}");
        let shared = SharedName {
            owner_pid: name.owner_pid,
            fd: name.fd,
            id: name.ledger,
        };
        let mapping = open_shared(Purpose::Ledger, shared, LEDGER_BYTES)?;
        let page = Page {
            mapping,
            name: None,
            _fd: None,
        };
        Ok(Self {
            page: Arc::new(page),
            slot,
        })
    }

    /// The name by which others open it; `None` where it was itself opened.
    #[must_use]
    pub fn name(&self) -> Option<LedgerName> {
        self.page.name
    }

    /// The bound on what all processes hold together.
    #[must_use]
    pub fn quota_bytes(&self) -> u64 {
        self.page.mapping.word(0).load(Ordering::Acquire)
    }

    /// Bytes that all processes hold together.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        (0..LEDGER_SLOTS).fold(0, |sum: u64, slot| {
            sum.saturating_add(self.word(slot).load(Ordering::SeqCst))
        })
    }

    /// Takes `bytes` for this process.
    ///
    /// # Errors
    ///
    /// What all processes hold already, when `bytes` more would be too many. Nothing was taken.
    pub fn take(&self, bytes: u64) -> Result<(), u64> {
        let mine = self.word(self.slot);
        let add = |held: u64| held.checked_add(bytes);
        if mine
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, add)
            .is_err()
        {
            return Err(self.used_bytes());
        }
        let used = self.used_bytes();
        if used <= self.quota_bytes() {
            return Ok(());
        }
        self.give(bytes);
        Err(used.saturating_sub(bytes))
    }

    /// Gives back what [`Self::take`] gave.
    pub fn give(&self, bytes: u64) {
        let less = |held: u64| Some(held.saturating_sub(bytes));
        let outcome = self
            .word(self.slot)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        debug_assert!(outcome.is_ok(), "a subtraction that saturates");
    }

    /// Gives back everything of a process that has died.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn clear(&self, slot: usize) {
        assert!(slot < LEDGER_SLOTS, "slot {slot} of {LEDGER_SLOTS}");
        self.word(slot).store(0, Ordering::SeqCst);
    }

    /// One cache line for each slot, after the one of the quota.
    fn word(&self, slot: usize) -> &std::sync::atomic::AtomicU64 {
        self.page.mapping.word((slot + 1) * HEADER)
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("slot", &self.slot)
            .field("used_bytes", &self.used_bytes())
            .field("quota_bytes", &self.quota_bytes())
            .finish()
    }
}

impl fmt::Display for LedgerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}-{}", self.owner_pid, self.ledger, self.fd)
    }
}

impl std::str::FromStr for LedgerName {
    type Err = Errno;

    fn from_str(text: &str) -> Result<Self, Errno> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(Errno::INVAL);
        let (pid, ledger, fd) = (next()?, next()?, next()?);
        Ok(Self {
            owner_pid: pid.parse().map_err(|_| Errno::INVAL)?,
            ledger: u64::from_str_radix(ledger, 16).map_err(|_| Errno::INVAL)?,
            fd: fd.parse().map_err(|_| Errno::INVAL)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_share_one_quota_and_a_death_gives_back() {
        let node = Ledger::create(100).unwrap();
        let name: LedgerName = node.name().unwrap().to_string().parse().unwrap();
        assert_eq!(Some(name), node.name());
        let worker = Ledger::open(&name, 7).unwrap();
        assert_eq!(worker.quota_bytes(), 100);
        assert_eq!(node.take(60), Ok(()));
        assert_eq!(worker.take(50), Err(60));
        assert_eq!(worker.take(40), Ok(()));
        assert_eq!((node.used_bytes(), worker.used_bytes()), (100, 100));
        assert_eq!(node.take(1), Err(100));
        assert_eq!(node.take(u64::MAX), Err(100));
        node.clear(7);
        assert_eq!(node.used_bytes(), 60);
        worker.give(40);
        assert_eq!(
            node.used_bytes(),
            60,
            "what was cleared is not given back again"
        );
        node.give(60);
        assert_eq!(node.used_bytes(), 0);
    }

    #[test]
    fn a_name_that_means_something_else_is_refused() {
        let node = Ledger::create(100).unwrap();
        let name = node.name().unwrap();
        assert!(Ledger::open(&LedgerName { ledger: 1, ..name }, 1).is_err());
        assert!(Ledger::open(&LedgerName { fd: 0, ..name }, 1).is_err());
        assert!("12-zz-3".parse::<LedgerName>().is_err());
    }

    #[test]
    fn racing_processes_never_get_more_than_there_is() {
        let node = Ledger::create(1000).unwrap();
        let name = node.name().unwrap();
        let racers = (1..5).map(|slot| {
            let mine = Ledger::open(&name, slot).unwrap();
            std::thread::spawn(move || {
                for _ in 0..2000 {
                    if mine.take(400).is_ok() {
                        mine.give(400);
                    }
                }
                (0..10).filter(|_| mine.take(150).is_ok()).count() as u64
            })
        });
        let racers: Vec<_> = racers.collect();
        let got: u64 = racers.into_iter().map(|racer| racer.join().unwrap()).sum();
        assert!(got <= 6, "{got} times 150 of 1000");
        assert_eq!(node.used_bytes(), got * 150);
    }
}
