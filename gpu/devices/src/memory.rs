//! Device memory: a caching allocator with a byte budget for each owner.
//!
//! ```text
//!  owner "actor" ── budget ──┐
//!  owner "critic" ─ budget ──┴─ Pool ── segments ── RawMemory (a device, or a fake one)
//! ```
//!
//! A reservation is enforced: an owner that would exceed it gets an error with its own name, while
//! the card still has room for the others. Freed memory stays with the pool, and goes back to the
//! device when an allocation would fail otherwise.
//!
//! What a block takes is [`charge`]: up to 1 MiB a multiple of 512 bytes, beyond that of 64 KiB. It
//! depends on nothing but the size, so whether a budget is kept does not depend on what others do.
//! Blocks up to 1 MiB come from segments of 2 MiB of their own, which keeps them from cutting up
//! the room of large ones.
//!
//! All of this is bookkeeping, the same over a real device and over a fake one, and the same calls
//! give the same addresses.
//!
//! ```
//! use odeon_devices::fault::GpuFault;
//! use odeon_devices::memory::{MemoryError, Pool, RawBlock, RawError, RawMemory};
//!
//! /// A device of 64 MiB that gives one address after the other.
//! #[derive(Debug)]
//! struct Line(u64);
//!
//! impl RawMemory for Line {
//!     fn alloc(&mut self, bytes: u64) -> Result<RawBlock, RawError> {
//!         let (address, free) = (self.0, self.capacity() - self.0);
//!         if bytes > free {
//!             return Err(RawError::Full { free });
//!         }
//!         self.0 += bytes;
//!         Ok(RawBlock { address, bytes })
//!     }
//!     fn free(&mut self, _: RawBlock) -> Result<(), GpuFault> {
//!         Ok(())
//!     }
//!     fn capacity(&self) -> u64 {
//!         64 << 20
//!     }
//! }
//!
//! let mut pool = Pool::new(Line(0));
//! pool.reserve("actor", 8 << 20)?;
//! let weights = pool.alloc("actor", 6 << 20)?;
//! let refused = pool.alloc("actor", 3 << 20).unwrap_err();
//! assert!(matches!(refused, MemoryError::OverBudget { owner, .. } if owner == "actor"));
//! pool.free(weights)?;
//! assert_eq!(pool.owner("actor").map(|held| held.used_bytes), Some(0));
//! # Ok::<(), MemoryError>(())
//! ```

mod error;
mod pieces;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use error::{MemoryError, Share, Shares};
use pieces::{Class, Pieces, rounded, segment_sizes};

use crate::fault::GpuFault;

/// Memory as the device gives it: slow to get, in large blocks.
pub trait RawMemory: Debug + Send {
    /// A block of exactly this many bytes, aligned to 512 bytes.
    ///
    /// # Errors
    ///
    /// [`RawError`]; nothing is allocated then.
    fn alloc(&mut self, bytes: u64) -> Result<RawBlock, RawError>;

    /// Gives a block back. After an error the block must not be used either.
    ///
    /// # Errors
    ///
    /// The device's fault; the memory comes back when the process ends.
    fn free(&mut self, block: RawBlock) -> Result<(), GpuFault>;

    /// All memory of the device, in bytes.
    fn capacity(&self) -> u64;
}

/// A block as the device gave it. It is given back once, by value.
#[derive(Debug, PartialEq, Eq)]
pub struct RawBlock {
    /// Where it begins.
    pub address: u64,
    /// Its length, in bytes.
    pub bytes: u64,
}

/// Why the device gave no memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RawError {
    /// There is not that much, or not in one piece.
    #[error("the device has {free} bytes left, and not what was asked in one piece")]
    Full {
        /// Memory that is left, in bytes.
        free: u64,
    },
    /// The device is broken.
    #[error(transparent)]
    Fault(#[from] GpuFault),
}

/// Memory of one owner, until it is given to [`Pool::free`] or the owner is released.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a block that is dropped stays allocated until its owner is released"]
pub struct Block {
    address: u64,
    bytes: u64,
    serial: u64,
}

impl Block {
    /// Where it begins on the device, a multiple of 512.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size, in bytes: at least as much as was asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The bytes of a budget that a block of this many bytes takes; `None` when no device can hold it.
#[must_use]
pub fn charge(bytes: u64) -> Option<u64> {
    rounded(bytes)
}

/// State of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    /// Taken from the device, in bytes.
    pub mapped_bytes: u64,
    /// In blocks, in bytes.
    pub used_bytes: u64,
    /// Most ever taken from the device at once, in bytes.
    pub mapped_peak_bytes: u64,
    /// Most ever in blocks at once, in bytes.
    pub used_peak_bytes: u64,
    /// Reserved by all owners, in bytes.
    pub reserved_bytes: u64,
    /// Blocks given so far.
    pub allocations: u64,
    /// Segments taken from the device so far.
    pub raw_allocations: u64,
    /// Segments given back so far.
    pub raw_frees: u64,
    /// Blocks refused so far.
    pub refusals: u64,
}

impl PoolStats {
    /// Taken from the device and in no block, in bytes.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.mapped_bytes - self.used_bytes
    }
}

/// State of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerStats {
    /// The most that it may hold, in bytes.
    pub budget_bytes: u64,
    /// Memory that it holds, in bytes.
    pub used_bytes: u64,
    /// Most it ever held at once, in bytes.
    pub used_peak_bytes: u64,
    /// Number of blocks that it holds.
    pub blocks: u64,
    /// Blocks that its budget refused.
    pub refusals: u64,
}

#[derive(Debug)]
struct Live {
    owner: String,
    address: u64,
    bytes: u64,
}

/// A caching allocator over one device's memory. See the [module](self).
#[derive(Debug)]
pub struct Pool<R: RawMemory> {
    raw: R,
    pieces: Pieces,
    owners: BTreeMap<String, OwnerStats>,
    /// Blocks by serial number.
    live: BTreeMap<u64, Live>,
    stats: PoolStats,
    next_serial: u64,
}

impl<R: RawMemory> Pool<R> {
    /// An empty pool, which takes nothing from the device yet.
    pub fn new(raw: R) -> Self {
        Self {
            raw,
            pieces: Pieces::default(),
            owners: BTreeMap::new(),
            live: BTreeMap::new(),
            stats: PoolStats::default(),
            next_serial: 0,
        }
    }

    /// Lets an owner hold up to `budget` bytes, or changes what it may hold.
    ///
    /// # Errors
    ///
    /// [`Overcommitted`](MemoryError::Overcommitted),
    /// [`BudgetBelowUse`](MemoryError::BudgetBelowUse) or [`Zero`](MemoryError::Zero).
    pub fn reserve(&mut self, owner: &str, budget: u64) -> Result<(), MemoryError> {
        if budget == 0 {
            return Err(MemoryError::Zero {
                owner: owner.to_owned(),
            });
        }
        let before = self.owners.get(owner).copied().unwrap_or_default();
        if budget < before.used_bytes {
            return Err(MemoryError::BudgetBelowUse {
                owner: owner.to_owned(),
                used: before.used_bytes,
                budget,
            });
        }
        let others = self.stats.reserved_bytes - before.budget_bytes;
        let capacity = self.raw.capacity();
        let Some(sum) = others.checked_add(budget).filter(|sum| *sum <= capacity) else {
            return Err(MemoryError::Overcommitted {
                owner: owner.to_owned(),
                asked: budget,
                reserved: others,
                capacity,
                owners: self.shares(),
            });
        };
        self.stats.reserved_bytes = sum;
        let entry = self.owners.entry(owner.to_owned()).or_default();
        entry.budget_bytes = budget;
        Ok(())
    }

    /// A block of at least this many bytes.
    ///
    /// # Errors
    ///
    /// [`MemoryError`], which names the owner that is over its budget, or all owners when the
    /// device is full.
    pub fn alloc(&mut self, owner: &str, bytes: u64) -> Result<Block, MemoryError> {
        let given = self.try_alloc(owner, bytes);
        if given.is_err() {
            self.stats.refusals += 1;
        }
        given
    }

    fn try_alloc(&mut self, owner: &str, bytes: u64) -> Result<Block, MemoryError> {
        let Some(held) = self.owners.get_mut(owner) else {
            return Err(MemoryError::Unreserved {
                owner: owner.to_owned(),
            });
        };
        if bytes == 0 {
            return Err(MemoryError::Zero {
                owner: owner.to_owned(),
            });
        }
        let size = rounded(bytes).filter(|size| {
            let sum = held.used_bytes.checked_add(*size);
            sum.is_some_and(|sum| sum <= held.budget_bytes)
        });
        let Some(size) = size else {
            held.refusals += 1;
            return Err(MemoryError::OverBudget {
                owner: owner.to_owned(),
                asked: rounded(bytes).unwrap_or(u64::MAX),
                used: held.used_bytes,
                budget: held.budget_bytes,
            });
        };
        let address = self.place(size)?;
        self.stats.allocations += 1;
        self.stats.used_bytes += size;
        self.stats.used_peak_bytes = self.stats.used_peak_bytes.max(self.stats.used_bytes);
        if let Some(held) = self.owners.get_mut(owner) {
            held.blocks += 1;
            held.used_bytes += size;
            held.used_peak_bytes = held.used_peak_bytes.max(held.used_bytes);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        self.live.insert(
            serial,
            Live {
                owner: owner.to_owned(),
                address,
                bytes: size,
            },
        );
        Ok(Block {
            address,
            bytes: size,
            serial,
        })
    }

    /// Takes a block back. Its memory stays with the pool.
    ///
    /// # Errors
    ///
    /// [`Stale`](MemoryError::Stale) when it is not this pool's or its owner was released.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a block is given back once, and is gone then"
    )]
    pub fn free(&mut self, block: Block) -> Result<(), MemoryError> {
        let known = self
            .live
            .get(&block.serial)
            .is_some_and(|live| (live.address, live.bytes) == (block.address, block.bytes));
        if !known {
            return Err(MemoryError::Stale {
                address: block.address,
            });
        }
        self.drop_live(block.serial);
        Ok(())
    }

    /// Takes back all blocks of an owner and its reservation; says how many bytes it held.
    ///
    /// # Errors
    ///
    /// [`Unreserved`](MemoryError::Unreserved) when there is no such owner.
    pub fn release(&mut self, owner: &str) -> Result<u64, MemoryError> {
        let Some(held) = self.owners.get(owner).copied() else {
            return Err(MemoryError::Unreserved {
                owner: owner.to_owned(),
            });
        };
        let serials: Vec<u64> = self
            .live
            .iter()
            .filter(|(_, live)| live.owner == owner)
            .map(|(serial, _)| *serial)
            .collect();
        for serial in serials {
            self.drop_live(serial);
        }
        self.owners.remove(owner);
        self.stats.reserved_bytes -= held.budget_bytes;
        Ok(held.used_bytes)
    }

    /// Gives every segment without a block back to the device; says how many bytes that were.
    ///
    /// # Errors
    ///
    /// The device's first fault. Segments that it did not take are forgotten all the same.
    pub fn trim(&mut self) -> Result<u64, GpuFault> {
        let (mut bytes, mut first) = (0, Ok(()));
        while let Some(raw) = self.pieces.remove_unused() {
            bytes += raw.bytes;
            self.stats.mapped_bytes -= raw.bytes;
            self.stats.raw_frees += 1;
            let freed = self.raw.free(raw);
            first = first.and(freed);
        }
        first.map(|()| bytes)
    }

    /// State of the pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    /// State of an owner.
    #[must_use]
    pub fn owner(&self, owner: &str) -> Option<OwnerStats> {
        self.owners.get(owner).copied()
    }

    /// The shares of all owners, the largest first.
    #[must_use]
    pub fn shares(&self) -> Shares {
        let mut shares: Vec<Share> = self
            .owners
            .iter()
            .map(|(owner, held)| Share {
                owner: owner.clone(),
                used_bytes: held.used_bytes,
                budget_bytes: held.budget_bytes,
            })
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.used_bytes));
        Shares(shares)
    }

    /// The device's memory below.
    pub fn raw(&self) -> &R {
        &self.raw
    }

    fn drop_live(&mut self, serial: u64) {
        let Some(live) = self.live.remove(&serial) else {
            return;
        };
        self.pieces.give(live.address);
        self.stats.used_bytes -= live.bytes;
        if let Some(held) = self.owners.get_mut(&live.owner) {
            held.used_bytes -= live.bytes;
            held.blocks -= 1;
        }
    }

    /// Finds a place: in the pool, in a new segment, in the other class, and last in what the
    /// device has after it got back what is cached.
    fn place(&mut self, size: u64) -> Result<u64, MemoryError> {
        let class = Class::of(size);
        if let Some(address) = self.pieces.take(class, size) {
            return Ok(address);
        }
        let mut raw_free = match self.map(size) {
            Ok(()) => return self.taken(class, size, 0),
            Err(RawError::Full { free }) => free,
            Err(RawError::Fault(fault)) => return Err(fault.into()),
        };
        if let Some(address) = self.pieces.take_elsewhere(size) {
            return Ok(address);
        }
        if self.trim()? > 0 {
            raw_free = match self.map(size) {
                Ok(()) => return self.taken(class, size, 0),
                Err(RawError::Full { free }) => free,
                Err(RawError::Fault(fault)) => return Err(fault.into()),
            };
        }
        self.taken(class, size, raw_free)
    }

    /// A piece of the pool, or what to say when there is none.
    fn taken(&mut self, class: Class, size: u64, raw_free: u64) -> Result<u64, MemoryError> {
        if let Some(address) = self.pieces.take(class, size) {
            return Ok(address);
        }
        let (pool_free, pool_largest) = self.pieces.free_bytes();
        let (asked, free) = (size, pool_free.saturating_add(raw_free));
        let (largest, owners) = (pool_largest, self.shares());
        Err(if free >= size {
            MemoryError::Fragmented {
                asked,
                free,
                largest,
                owners,
            }
        } else {
            MemoryError::DeviceFull {
                asked,
                free,
                largest,
                owners,
            }
        })
    }

    /// Takes a segment from the device in which a piece of this size fits.
    fn map(&mut self, size: u64) -> Result<(), RawError> {
        let mut failed = RawError::Full { free: 0 };
        for bytes in segment_sizes(size) {
            match self.raw.alloc(bytes) {
                Ok(raw) => {
                    self.stats.raw_allocations += 1;
                    self.stats.mapped_bytes += raw.bytes;
                    self.stats.mapped_peak_bytes =
                        self.stats.mapped_peak_bytes.max(self.stats.mapped_bytes);
                    self.pieces.add(raw, Class::of(size));
                    return Ok(());
                }
                Err(RawError::Full { free }) => failed = RawError::Full { free },
                Err(fault @ RawError::Fault(_)) => return Err(fault),
            }
        }
        Err(failed)
    }
}

impl<R: RawMemory> Drop for Pool<R> {
    /// Gives everything back. A device that is broken takes nothing; its memory comes back when
    /// the process ends, so its fault needs no answer here.
    fn drop(&mut self) {
        for raw in self.pieces.remove_all() {
            let _ = self.raw.free(raw);
        }
    }
}
