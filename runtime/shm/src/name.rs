//! The name of a region, by which another process reads it in place.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a sealed region for every process of this machine (and pid namespace).
///
/// A name does not keep its region alive: whoever sends one holds the [`Region`](crate::Region)
/// until the receiver has given it back (see [`Leases`](crate::Leases)). A name that outlived its
/// region is refused by [`Mapper::map`](crate::Mapper::map), never read as other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RegionName {
    /// Process that owns the slab.
    pub owner_pid: u32,
    /// Random identity of the slab, also part of the memfd's name; tells a reused descriptor apart.
    pub slab: u64,
    /// The slab's descriptor in the owner.
    pub fd: i32,
    /// Identity of the region; tells a reused offset apart.
    pub region: u64,
    /// First byte inside the slab.
    pub offset: u64,
    /// Bytes of the region.
    pub len: u64,
}

impl fmt::Display for RegionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            owner_pid,
            slab,
            offset,
            len,
            ..
        } = self;
        write!(
            f,
            "{len} bytes at {offset} of slab {slab:016x} of process {owner_pid}"
        )
    }
}
