//! The questions about blobs, which owners lend and nodes bring to others.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::BlobError;
use super::handle::Handle;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The owner's part, or that of its node where nothing else is said.
pub(crate) struct Lending;

/// A question to [`Lending`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LendRequest {
    /// The handle has arrived: a lease for me, in exchange for the pin of the journey.
    Hold { serial: u64, ticket: u64 },
    /// A further copy of the handle has arrived: end its pin. Not answered.
    Arrived { ticket: u64 },
    /// I have let go of it. Not answered.
    Release { serial: u64 },
    /// I am passing the handle on: pin it for the journey.
    Pin {
        serial: u64,
        ticket: u64,
        arrivals: u32,
        lasts: Duration,
    },
    /// To the owner's node: send me these chunks.
    Read(ReadOrder),
    /// To the owner's node: I need no more of it. Not answered.
    Fetched { transfer: u64 },
}

/// The order for some chunks of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadOrder {
    pub(crate) origin: Handle,
    pub(crate) transfer: u64,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) chunk_bytes: u64,
}

impl Service for Lending {
    const ID: ServiceId = ServiceId(14);
    const NAME: &'static str = "a blob that is lent";
    type Request = LendRequest;
    type Answer = Result<(), BlobError>;
}

/// A copy of another node's blob, which a node makes for a worker of its own to map.
pub(crate) struct Bringing;

impl Service for Bringing {
    const ID: ServiceId = ServiceId(15);
    const NAME: &'static str = "a blob that is brought from another node";
    type Request = Handle;
    type Answer = Result<Handle, BlobError>;
}
