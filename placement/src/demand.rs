//! What is to be placed.

use serde::{Deserialize, Serialize};

use crate::Resources;

/// A gang of equal bundles that is placed whole or not at all; most often a gang of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Owner of the worker processes: those of other jobs are never shared.
    pub job: String,
    /// Who will hold the leases, as people and [`Affinity`] name it.
    pub holder: String,
    /// What each bundle needs.
    pub bundle: Resources,
    /// Number of bundles. A gang of zero has the empty plan.
    pub gang: u32,
    /// Which processes the bundles run in.
    pub isolation: Isolation,
    /// Requirements on each bundle's node; all must hold.
    pub affinity: Vec<Affinity>,
    /// How the bundles lie to each other.
    pub arrange: Arrange,
}

/// Which processes the bundles of a demand run in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Isolation {
    /// The job's shared worker on the node, started if there is none.
    #[default]
    Shared,
    /// A new process for each bundle.
    Process,
}

/// A requirement on the node of each bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Affinity {
    /// The node with this name.
    Node(String),
    /// A node whose label has this value.
    Label(String, String),
    /// A node on which this holder has a lease.
    Near(String),
    /// A node on which this holder has no lease.
    Apart(String),
}

/// How the bundles of a gang lie to each other, and which node is preferred for a single one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Arrange {
    /// On as few nodes as possible, and there where least is left over.
    #[default]
    Pack,
    /// As evenly as possible, and first where most is free.
    Spread,
    /// Requires a single node.
    OneNode,
    /// Requires as many nodes as bundles.
    DistinctNodes,
}

impl Demand {
    /// One bundle in the job's shared worker, anywhere.
    #[must_use]
    pub fn new(job: impl Into<String>, holder: impl Into<String>, bundle: Resources) -> Self {
        Self {
            job: job.into(),
            holder: holder.into(),
            bundle,
            gang: 1,
            isolation: Isolation::default(),
            affinity: Vec::new(),
            arrange: Arrange::default(),
        }
    }

    /// Asks for `size` bundles, all or none.
    #[must_use]
    pub fn gang(mut self, size: u32) -> Self {
        self.gang = size;
        self
    }

    /// Asks for a process of its own for each bundle.
    #[must_use]
    pub fn isolated(mut self) -> Self {
        self.isolation = Isolation::Process;
        self
    }

    /// Requires the node `name`.
    #[must_use]
    pub fn on_node(self, name: impl Into<String>) -> Self {
        self.require(Affinity::Node(name.into()))
    }

    /// Requires nodes where `holder` has a lease.
    #[must_use]
    pub fn near(self, holder: impl Into<String>) -> Self {
        self.require(Affinity::Near(holder.into()))
    }

    /// Requires nodes where `holder` has no lease.
    #[must_use]
    pub fn apart_from(self, holder: impl Into<String>) -> Self {
        self.require(Affinity::Apart(holder.into()))
    }

    /// Adds a requirement.
    #[must_use]
    pub fn require(mut self, affinity: Affinity) -> Self {
        self.affinity.push(affinity);
        self
    }

    /// Chooses how the bundles lie to each other.
    #[must_use]
    pub fn arrange(mut self, arrange: Arrange) -> Self {
        self.arrange = arrange;
        self
    }
}
