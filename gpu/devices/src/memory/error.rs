//! Why memory was not given.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fault::GpuFault;

/// A pool refused. Nothing was allocated or changed unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The owner would hold more than it reserved. Others are not affected: give it a larger
    /// budget or let it use less.
    #[error(
        "{owner} asked for {asked} bytes and holds {used} of its budget of {budget}: give it a \
         larger budget or let it use less"
    )]
    OverBudget {
        /// The owner that asked.
        owner: String,
        /// Memory that the block would take, in bytes.
        asked: u64,
        /// Memory that the owner holds, in bytes.
        used: u64,
        /// The most that it may hold, in bytes.
        budget: u64,
    },
    /// The device has not that much memory left: somebody outside of the pool holds it, or the
    /// pool's rounding. Cached memory was given back before this was said.
    #[error(
        "the device is full: {asked} bytes asked, {free} free, {largest} in one piece of the pool; held by {owners}"
    )]
    DeviceFull {
        /// Memory that the block would take, in bytes.
        asked: u64,
        /// Free in the pool and outside, in bytes.
        free: u64,
        /// Largest free piece of the pool, in bytes.
        largest: u64,
        /// The shares of all owners, the largest first.
        owners: Shares,
    },
    /// There is enough free memory, but not in one piece. Cached memory was given back before this
    /// was said. Free large blocks, or allocate them before small ones.
    #[error(
        "free memory is in pieces: {asked} bytes asked, {free} free, {largest} in one piece of the pool; held \
         by {owners}"
    )]
    Fragmented {
        /// Memory that the block would take, in bytes.
        asked: u64,
        /// Free in the pool and outside, in bytes.
        free: u64,
        /// Largest free piece of the pool, in bytes.
        largest: u64,
        /// The shares of all owners, the largest first.
        owners: Shares,
    },
    /// All budgets together would be more than the device has.
    #[error(
        "{owner} wants to reserve {asked} bytes of {capacity}, others have reserved {reserved}: \
         {owners}"
    )]
    Overcommitted {
        /// The owner that wants to reserve.
        owner: String,
        /// Memory that it asked for, in bytes.
        asked: u64,
        /// Memory that others have reserved, in bytes.
        reserved: u64,
        /// All memory of the device, in bytes.
        capacity: u64,
        /// The shares of all owners, the largest first.
        owners: Shares,
    },
    /// The new budget is less than the owner holds already.
    #[error("{owner} holds {used} bytes, more than the new budget of {budget}: free some first")]
    BudgetBelowUse {
        /// Whose budget.
        owner: String,
        /// Memory that it holds, in bytes.
        used: u64,
        /// The new budget, in bytes.
        budget: u64,
    },
    /// Nobody of this name has reserved memory.
    #[error("{owner} has reserved no memory on this device: reserve before allocating")]
    Unreserved {
        /// The owner that asked.
        owner: String,
    },
    /// A block or a reservation of no bytes.
    #[error("{owner} asked for 0 bytes")]
    Zero {
        /// The owner that asked.
        owner: String,
    },
    /// The block is not one of this pool's, or was freed when its owner was released.
    #[error("the block at {address:#x} is not allocated in this pool")]
    Stale {
        /// Where the block was.
        address: u64,
    },
    /// The device failed under the pool.
    #[error(transparent)]
    Fault(#[from] GpuFault),
}

/// The shares of a device's memory, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares(pub Vec<Share>);

/// The share of one owner in a device's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its name.
    pub owner: String,
    /// Memory that it holds, in bytes.
    pub used_bytes: u64,
    /// The most that it may hold, in bytes.
    pub budget_bytes: u64,
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nobody");
        }
        for (i, share) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let Share {
                owner,
                used_bytes,
                budget_bytes,
            } = share;
            write!(f, "{comma}{owner} ({used_bytes} of {budget_bytes})")?;
        }
        Ok(())
    }
}
