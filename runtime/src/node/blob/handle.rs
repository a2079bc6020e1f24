//! A blob as it travels.

use odeon_shm::RegionName;
use serde::{Deserialize, Serialize};

use crate::base::id::ProcessId;

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
