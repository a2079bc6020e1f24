//! The questions about devices and leases: room for actors is looked at, claimed and made.

use std::fmt;
use std::time::Duration;

use odeon_placement::{Lease, Node, Refusal};
use serde::{Deserialize, Serialize};

use crate::actor::placing::{LeaseId, Scheduling};
use crate::base::id::{ActorId, ProcessId};
use crate::net::service::{Notice, Service};
use crate::net::wire::ServiceId;

/// A node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeSnapshot {
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

/// The notice that a node's room for actors has changed: whoever waits for some may look again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoomChanged;

impl Notice for RoomChanged {
    const SERVICE: ServiceId = Scheduling::ID;
}

/// The hardware of a node, and who holds it.
pub(crate) struct Surveying;

impl Service for Surveying {
    const ID: ServiceId = ServiceId(9);
    const NAME: &'static str = "a look at what nodes have";
    type Request = ();
    type Answer = NodeSnapshot;
}

/// The hardware of all nodes that a node reaches.
pub(crate) struct SurveyingAll;

impl Service for SurveyingAll {
    const ID: ServiceId = ServiceId(10);
    const NAME: &'static str = "a look at what nodes have";
    type Request = ();
    type Answer = Vec<(ProcessId, NodeSnapshot)>;
}

/// Leases that a node holds for a scheduler; none when its snapshot of the node is out of date.
pub(crate) struct Claiming;

/// A question to [`Claiming`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ClaimRequest {
    /// Hold these leases for the actors, if your snapshot is still this one.
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
