//! The questions about records of collectives.

use odeon_diagnosis::flows::RankLook;
use odeon_shm::FlowLogName;
use serde::{Deserialize, Serialize};

use crate::base::id::ProcessId;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The name of the log in which a process records its collectives; nothing where it has made none yet.
pub(crate) struct NamingFlowLog;

impl Service for NamingFlowLog {
    const ID: ServiceId = ServiceId(24);
    const NAME: &'static str = "the name of a log of collectives";
    type Request = ();
    type Answer = Option<FlowLogName>;
}

/// The ranks of some processes of a node, since the same asker's question before.
pub(crate) struct LookingAtRanks;

/// A question to [`LookingAtRanks`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RanksRequest {
    /// Whoever asks again and again.
    pub(crate) subscriber: u64,
    /// Processes of the node that is asked.
    pub(crate) processes: Vec<ProcessId>,
}

/// Ranks of a node between two looks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRanks {
    /// The node's name.
    pub node: String,
    /// The ranks of each process that is there, also of one that is stopped; none of one that has recorded no collective.
    pub ranks: Vec<(ProcessId, Vec<RankLook>)>,
}

impl Service for LookingAtRanks {
    const ID: ServiceId = ServiceId(25);
    const NAME: &'static str = "a look at ranks";
    type Request = RanksRequest;
    type Answer = NodeRanks;
}
