//! The levels of a cluster.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A level of a cluster, the widest first.
///
/// Levels above [`Node`](Self::Node) nest. Below it, groups need not: an NVLink domain may cover two
/// NUMA nodes, or, in machines of a whole rack, several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Everything.
    Cluster,
    /// Nodes that share a building or a spine.
    Zone,
    /// Nodes behind one switch.
    Rack,
    /// One machine.
    Node,
    /// A processor socket and its memory.
    Numa,
    /// A PCIe switch.
    Switch,
    /// Devices that reach each other over NVLink.
    Nvlink,
    /// An accelerator, whole or with its slices.
    Device,
}

impl Level {
    /// All of them, the widest first.
    pub const ALL: [Self; 8] = [
        Self::Cluster,
        Self::Zone,
        Self::Rack,
        Self::Node,
        Self::Numa,
        Self::Switch,
        Self::Nvlink,
        Self::Device,
    ];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Zone => "zone",
            Self::Rack => "rack",
            Self::Node => "node",
            Self::Numa => "NUMA node",
            Self::Switch => "PCIe switch",
            Self::Nvlink => "NVLink domain",
            Self::Device => "device",
        })
    }
}
