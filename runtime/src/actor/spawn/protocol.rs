//! Spawns as they travel.

use serde::{Deserialize, Serialize};

use crate::actor::engine::lives::HostName;
use crate::actor::placing::LaunchOrder;
use crate::base::supervise::{Orphans, Restart, Supervision};

/// A spawn as it travels to the process that carries it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpawnOrder {
    pub(crate) actor: String,
    #[serde(with = "serde_bytes")]
    pub(crate) args: Vec<u8>,
    pub(crate) restart: Restart,
    pub(super) supervision: Supervision,
    pub(super) orphans: Orphans,
    pub(super) on: HostName,
    pub(super) away: Option<LaunchOrder>,
}
