//! The questions that place an actor in another process: room is found for it, a worker process is
//! started there, and ended when it is not needed any more.

use odeon_devices::fault::GpuFault;
use serde::{Deserialize, Serialize};

use crate::base::failure::Failure;
use crate::base::id::{ActorId, ProcessId};
use crate::base::needs::Needs;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The number of a lease, on its node.
pub(crate) type LeaseId = u64;

/// A lease of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) node: ProcessId,
    pub(crate) lease: LeaseId,
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

/// A worker process for an actor.
pub(crate) struct Launching;

/// The order for a worker process, by the actor that wants it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaunchOrder {
    /// Of this job's program.
    pub(crate) job: String,
    /// Share the process of this name; `None` for a process of its own.
    pub(crate) shared: Option<String>,
    /// The node that should run it; `None` for the nearest with room.
    pub(crate) node: Option<String>,
    /// The actor's needs, when it has any; the rest is then left to the scheduler.
    pub(crate) ask: Option<Box<Ask>>,
    /// A lease that it has already.
    pub(crate) claim: Option<Granted>,
}

impl Service for Launching {
    const ID: ServiceId = ServiceId(4);
    const NAME: &'static str = "a worker process that starts";
    type Request = LaunchOrder;
    type Answer = Result<Launched, Failure>;

    fn failed(failure: Failure) -> Option<Self::Answer> {
        Some(Err(failure))
    }
}

/// A worker process for an actor, and what the actor was granted there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Launched {
    pub(crate) process: ProcessId,
    pub(crate) lease: Option<Granted>,
    pub(crate) devices: Vec<GrantedDevice>,
}

/// The end of a worker process, or of an actor's part in one. It has come when it is answered.
pub(crate) struct Dismissing;

/// A question to [`Dismissing`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum DismissRequest {
    /// A process of its own is not needed any more, or an actor's lease in one.
    Release {
        process: ProcessId,
        lease: Option<Granted>,
    },
    /// A process must not be used again: end it, and see to the device that failed.
    Retire {
        process: ProcessId,
        fault: Option<GpuFault>,
        why: String,
    },
}

impl Service for Dismissing {
    const ID: ServiceId = ServiceId(6);
    const NAME: &'static str = "a worker process that ends";
    type Request = DismissRequest;
    type Answer = ();
}
