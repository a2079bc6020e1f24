//! The questions about gangs: where their processes are, memory for ranks, and talk between ranks.

use odeon_shm::GangName;
use serde::{Deserialize, Serialize};

use crate::base::id::ProcessId;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The node that a process belongs to.
pub(crate) struct Domains;

impl Service for Domains {
    const ID: ServiceId = ServiceId(16);
    const NAME: &'static str = "a process whose node is looked up";
    type Request = ();
    type Answer = ProcessId;
}

/// Memory that a node makes for ranks of a gang whose home is elsewhere.
pub(crate) struct GangMemory;

/// A question to [`GangMemory`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GangMemoryRequest {
    /// Make memory for so many ranks, which are yours, and keep it.
    Keep { gang: u64, ranks: u32 },
    /// Nobody will ask for it any more. Not answered.
    Forget(u64),
}

impl Service for GangMemory {
    const ID: ServiceId = ServiceId(17);
    const NAME: &'static str = "memory for a gang";
    type Request = GangMemoryRequest;
    type Answer = Result<GangName, String>;
}

/// Talk between ranks of different nodes. It is told alone.
pub(crate) struct GangRanks;

/// One rank of one gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct RankId {
    pub(crate) gang: u64,
    pub(crate) rank: u32,
}

/// A message from a rank to one of another node. Not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GangNews {
    /// I am here, and take bytes of yours under this number. Tell me yours, unless this is it.
    Open {
        to: RankId,
        from: u32,
        transfer: u64,
        answer: bool,
    },
    /// I have read so many bytes.
    Room { to: RankId, from: u32, bytes: u64 },
    /// Somebody has found a fault.
    Report {
        to: RankId,
        from: u32,
        report: Vec<u8>,
    },
    /// The rank that you look for has left.
    Left { to: RankId, from: u32 },
}

impl GangNews {
    /// Whom it is for.
    pub(crate) const fn to(&self) -> RankId {
        let (Self::Open { to, .. }
        | Self::Room { to, .. }
        | Self::Report { to, .. }
        | Self::Left { to, .. }) = self;
        *to
    }

    /// The rank that tells it.
    pub(crate) const fn from(&self) -> u32 {
        let (Self::Open { from, .. }
        | Self::Room { from, .. }
        | Self::Report { from, .. }
        | Self::Left { from, .. }) = self;
        *from
    }
}

impl Service for GangRanks {
    const ID: ServiceId = ServiceId(18);
    const NAME: &'static str = "ranks that talk";
    type Request = GangNews;
    type Answer = ();
}
