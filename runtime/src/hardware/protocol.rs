//! The questions about devices and leases: room for actors is looked at, claimed and made.

use std::fmt;
use std::time::Duration;

use odeon_placement::{Lease, Node, Refusal};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::id::{ActorId, ProcessId};
use crate::needs::Needs;
use crate::service::{Notice, Service};
use crate::wire::ServiceId;

/// The number of a lease, on its node.
pub(crate) type LeaseId = u64;

/// A lease of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) node: ProcessId,
    pub(crate) lease: LeaseId,
}

/// A worker process for an actor, and what the actor was granted there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Launched {
    pub(crate) process: ProcessId,
    pub(crate) lease: Option<Granted>,
    pub(crate) devices: Vec<GrantedDevice>,
}

/// Actors with equal needs that are to be placed, all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// The job that they belong to.
    pub(crate) job: String,
    /// Their name on leases and in refusals.
    pub(crate) holder: String,
    /// With their ranks.
    pub(crate) actors: Vec<(ActorId, u32)>,
    pub(crate) needs: Needs,
    /// Set if they have had a place before: then waiting may help where it seems not to, since
    /// others may be between two places as well.
    pub(crate) again: bool,
}

/// A device that an actor was granted, as the actor sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedDevice {
    /// The number that its process opens it by: `CUDA_VISIBLE_DEVICES` lets it see its own only.
    pub ordinal: u32,
    /// Its number on the node.
    pub index: u32,
    /// Model, as the vendor writes it.
    pub model: String,
    /// Bytes of its memory that are the actor's.
    pub memory: u64,
    /// The actor's share of its time, in thousandths.
    pub milli: u32,
}

/// A node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Picture {
    pub(crate) node: Node,
    pub(crate) version: u64,
    /// The actors that hold its leases, with the names on those and their processes.
    pub(crate) actors: Vec<(ActorId, String, ProcessId)>,
    pub(crate) waiting: Vec<Waiting>,
}

/// Actors that wait for room, and what is in the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Their name.
    pub holder: String,
    /// Their job.
    #[serde(default)]
    pub job: String,
    /// The actors, in the order of their ranks.
    pub actors: Vec<ActorId>,
    /// Higher ones come first.
    pub priority: i32,
    /// The time that they have waited.
    pub waited: Duration,
    /// The obstacle; `None` before the first look.
    pub refusal: Option<Refusal>,
    /// The holder that must be placed before them.
    pub behind: Option<String>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it has waited for {} s: ", self.waited.as_secs())?;
        match (&self.behind, &self.refusal) {
            (Some(first), _) => write!(f, "{first} comes before it"),
            (None, Some(refusal)) => refusal.fmt(f),
            (None, None) => f.write_str("nobody has looked for a place yet"),
        }
    }
}

/// Room that is found for actors, all or none.
pub(crate) struct Scheduling;

impl Service for Scheduling {
    const ID: ServiceId = ServiceId(8);
    const NAME: &'static str = "an actor that is being placed";
    type Request = Vec<Ask>;
    type Answer = Result<Vec<Granted>, Failure>;

    fn failed(failure: Failure) -> Option<Self::Answer> {
        Some(Err(failure))
    }
}

/// The notice that a node's room for actors has changed: whoever waits for some may look again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoomChanged;

impl Notice for RoomChanged {
    const SERVICE: ServiceId = Scheduling::ID;
}

/// The hardware of a node, and who holds it.
pub(crate) struct Picturing;

impl Service for Picturing {
    const ID: ServiceId = ServiceId(9);
    const NAME: &'static str = "a look at what nodes have";
    type Request = ();
    type Answer = Picture;
}

/// The hardware of all nodes that a node reaches.
pub(crate) struct PicturingAll;

impl Service for PicturingAll {
    const ID: ServiceId = ServiceId(10);
    const NAME: &'static str = "a look at what nodes have";
    type Request = ();
    type Answer = Vec<(ProcessId, Picture)>;
}

/// Leases that a node holds for a scheduler; none when its picture of the node is out of date.
pub(crate) struct Claiming;

/// A question to [`Claiming`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ClaimRequest {
    /// Hold these leases for the actors, if your picture is still this one.
    Claim {
        version: u64,
        leases: Vec<(Lease, ActorId)>,
    },
    /// Nobody will come for these leases. Not answered.
    Unclaim(Vec<LeaseId>),
}

impl Service for Claiming {
    const ID: ServiceId = ServiceId(11);
    const NAME: &'static str = "an actor that is being placed";
    type Request = ClaimRequest;
    type Answer = Option<Vec<LeaseId>>;
}

/// A lease and its process that belong to another actor from now on; false when they are gone.
pub(crate) struct HandingOver;

/// The order to hand a lease over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandOver {
    pub(crate) lease: LeaseId,
    pub(crate) actor: ActorId,
    pub(crate) holder: String,
    pub(crate) rank: u32,
    pub(crate) priority: i32,
}

impl Service for HandingOver {
    const ID: ServiceId = ServiceId(12);
    const NAME: &'static str = "an actor that is being placed";
    type Request = HandOver;
    type Answer = bool;
}

/// The end of holders, to make room for another. It is told alone.
pub(crate) struct Evicting;

/// The order to end holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Eviction {
    pub(crate) holders: Vec<String>,
    pub(crate) by: String,
}

impl Service for Evicting {
    const ID: ServiceId = ServiceId(13);
    const NAME: &'static str = "an actor that makes room";
    type Request = Eviction;
    type Answer = ();
}
