//! The report of a process to its node on threads that its actors block.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::id::ActorId;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The node's part: it keeps the last report of each process.
pub(crate) struct Blocking;

/// An actor that blocks a thread of the process that tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockingReport {
    pub(crate) actor: ActorId,
    /// The name of its type.
    pub(crate) name: String,
    /// The message that it handles; empty for none.
    pub(crate) message: String,
    /// The time for which it has.
    pub(crate) lasts: Duration,
}

impl Service for Blocking {
    const ID: ServiceId = ServiceId(22);
    const NAME: &'static str = "threads that actors block";
    /// All of them, in the place of those before. Not answered.
    type Request = Vec<BlockingReport>;
    type Answer = ();
}
