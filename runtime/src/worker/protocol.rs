//! The questions about worker processes, which nodes start and end for others.

use odeon_devices::fault::GpuFault;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::hardware::protocol::{Ask, Granted, Launched, LeaseId};
use crate::id::ProcessId;
use crate::service::Service;
use crate::wire::ServiceId;

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

/// The process of a lease of the node that is asked, started unless it runs; nothing when the lease
/// is over.
pub(crate) struct LeaseLaunching;

impl Service for LeaseLaunching {
    const ID: ServiceId = ServiceId(5);
    const NAME: &'static str = "a worker process that starts";
    type Request = LeaseId;
    type Answer = Result<Option<Launched>, Failure>;

    fn failed(failure: Failure) -> Option<Self::Answer> {
        Some(Err(failure))
    }
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

/// The words of a process that leads a job, to its node: why it is about to end without success.
pub(crate) struct LastWords;

impl Service for LastWords {
    const ID: ServiceId = ServiceId(7);
    const NAME: &'static str = "the last words of a process";
    type Request = String;
    type Answer = ();
}
