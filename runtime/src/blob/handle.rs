//! A blob as it travels.

use std::cell::Cell;

use odeon_shm::RegionName;
use serde::{Deserialize, Serialize};

use crate::id::ProcessId;

/// A blob as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handle {
    /// The process that holds the bytes and keeps the book about them.
    pub(crate) owner: ProcessId,
    /// The owner's node. Processes of one node map each other's memory; others ask the node for it.
    pub(crate) domain: ProcessId,
    pub(crate) region: RegionName,
    /// The pin that protects this copy of the handle on its way; 0 for none.
    pub(crate) ticket: u64,
    /// When that pin ends by itself, in microseconds since 1970: comparable on one machine.
    pub(crate) pinned_until: u64,
}

impl Handle {
    /// Tells a blob from all others of its owner.
    pub(crate) const fn serial(&self) -> u64 {
        self.region.region
    }
}

thread_local!(static ARRIVALS: Cell<u32> = const { Cell::new(0) });

/// Encodes something that will be decoded `arrivals` times, so that the pins of the handles in it
/// end with the last arrival. Outside of this, or with 0, they end by time only.
pub(crate) fn arriving<T>(arrivals: u32, encode: impl FnOnce() -> T) -> T {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            ARRIVALS.set(self.0);
        }
    }
    let _restore = Restore(ARRIVALS.replace(arrivals));
    encode()
}

/// The number of times that what is encoded now will arrive; 0 when nobody knows.
pub(super) fn arrivals() -> u32 {
    ARRIVALS.get()
}
