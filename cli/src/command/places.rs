//! The places of a run's processes, as it writes them into its folder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use odeon::ActorId;
use odeon::inspect::{NodeView, Why};
use serde::{Deserialize, Serialize};

use super::processes::replace;

/// Where a run writes down what its nodes have and who waits.
pub(crate) const FILE: &str = "placement.json";

/// The places of a run's actors, as far as it knows.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Places {
    /// The actors by role; those that wait to be started have none yet.
    pub(crate) roles: BTreeMap<String, ActorId>,
    /// The mesh of ranks that share a model, where there are several.
    #[serde(default)]
    pub(crate) mesh: Option<String>,
    pub(crate) nodes: Vec<NodeView>,
}

impl Places {
    /// Writes it into the folder of the run.
    pub(crate) fn write(&self, run: &Path) -> Result<()> {
        replace(&run.join(FILE), &serde_json::to_string(self)?)
    }

    /// Why an actor is where it is.
    pub(crate) fn why(&self, actor: ActorId) -> Option<Why> {
        self.nodes.iter().find_map(|node| node.why(actor))
    }
}
