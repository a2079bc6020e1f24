//! A link, as it is looked at.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::id::ProcessId;

/// A link of a process to a neighbour: another node, or a worker process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkView {
    /// The process at its other end.
    pub peer: ProcessId,
    /// The node that this belongs to.
    pub node: String,
    /// It is a worker process of this node.
    pub is_worker: bool,
    /// The time that a message there and one back take, at best; `None` before both sides have
    /// heard of each other's clock.
    pub round_trip: Option<Duration>,
    /// By how many nanoseconds a [`Timestamp`](crate::Timestamp) of the peer is ahead of one that
    /// is taken here at the same moment.
    pub clock_offset: Option<i64>,
    /// The true offset is no further away than this: half the round trip, and what the clocks may
    /// have drifted since.
    pub offset_error: Option<Duration>,
    /// The number of times that the link went on over another connection.
    pub resumed: u32,
    /// Why the last connection that ended did, while the link went on.
    pub last_break: Option<String>,
    /// The time since the peer was last heard.
    pub silent_for: Duration,
    /// Bytes that were sent to the peer so far, with what was sent again.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Bytes that wait to be sent, apart from bulk.
    pub queued_bytes: u64,
    /// Bytes that were sent and that the peer has not said it has taken in; 0 for a worker.
    pub unacknowledged_bytes: u64,
}
