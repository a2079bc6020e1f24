//! The questions about streams of replies, which the process that reads one puts to the one that writes it.

use serde::{Deserialize, Serialize};

use crate::base::failure::Down;
use crate::base::id::{ActorId, ProcessId};
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The writer's part.
pub(crate) struct Streaming;

/// A stream of replies as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamHandle {
    /// The process that writes it.
    pub(crate) process: ProcessId,
    /// Its number there.
    pub(crate) number: u64,
    /// Whose replies these are.
    pub(crate) actor: ActorId,
}

/// A question to [`Streaming`] about the stream of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StreamRequest {
    /// Its handle has arrived here. Not answered.
    Arrived(u64),
    /// More of it, as soon as there is some.
    Next(u64),
    /// Nobody reads it here any more. Not answered.
    Drop(u64),
}

/// Some replies, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// Each as it was encoded.
    pub(crate) replies: Vec<serde_bytes::ByteBuf>,
    /// The end behind them.
    pub(crate) end: Option<StreamEnd>,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StreamEnd {
    /// All was written.
    Finished,
    /// The actor ended before.
    Died(Down),
    /// A reply could not be encoded, or is too large.
    BadReply(String),
    /// The writer knows no such stream: nobody has come for it in time.
    Unknown,
}

impl Service for Streaming {
    const ID: ServiceId = ServiceId(21);
    const NAME: &'static str = "a stream of replies";
    type Request = StreamRequest;
    type Answer = Batch;
}
