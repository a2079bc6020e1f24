//! The questions about worker processes, which nodes start and end for others.

use serde::{Deserialize, Serialize};

use crate::actor::placing::{Launched, LeaseId};
use crate::base::failure::Failure;
use crate::base::id::ProcessId;
use crate::net::service::{Notice, Service};
use crate::net::wire::ServiceId;

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

/// The words of a process that leads a job, to its node: why it is about to end without success.
pub(crate) struct LastWords;

impl Service for LastWords {
    const ID: ServiceId = ServiceId(7);
    const NAME: &'static str = "the last words of a process";
    type Request = String;
    type Answer = ();
}

/// The worker processes of a job on its driver's node, with the operating system's numbers: a node tells
/// its drivers whenever there are others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobWorkers(pub(crate) Vec<(ProcessId, u32)>);

impl Notice for JobWorkers {
    const SERVICE: ServiceId = LastWords::ID;
}
