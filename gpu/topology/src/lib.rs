//! The one vocabulary of hardware: models of devices, levels of a cluster, links with bandwidth and
//! latency, and the file that describes a cluster.
//!
//! ```text
//!  file ─> ClusterSpec ─> Cluster { Topology: the tree of elements, Links, NodeSpec of each node }
//!                            ├─ odeon-placement: a View, which the solver places on
//!                            ├─ odeon-devices:   fake devices, with a script of faults
//!                            └─ cost models:     DeviceModel and Link, for seconds and bytes
//! ```
//!
//! Rates are in bytes a second of one direction. This crate knows nothing of what runs on the hardware,
//! what is free of it and what is broken.
//!
//! # Example
//!
//! ```
//! use odeon_topology::{ClusterSpec, Level, LinkKind};
//!
//! let spec = ClusterSpec::from_toml(r#"
//!     [devices.H200]
//!     memory_gib = 141
//!
//!     [[elements]]
//!     name = "r1"
//!     level = "rack"
//!     link = { kind = "infiniband", bytes_per_second = 5e10 }
//!
//!     [[nodes]]
//!     name = "node"
//!     count = 2
//!     parent = "r1"
//!     cpus = 96
//!     memory_gib = 2048
//!     gpus = { model = "H200", count = 8, numa = 2, switch = 2, nvlink = "node" }
//! "#)?;
//! let cluster = spec.cluster()?;
//! let near = cluster.topology.common("node-0/gpu2", "node-0/gpu3").expect("both are there");
//! assert_eq!((near.name.as_str(), near.level), ("node-0/switch1", Level::Switch));
//! let far = cluster.topology.common("node-0/gpu0", "node-1/gpu0").expect("both are there");
//! assert_eq!(cluster.links.of(far.level, &far.name).map(|link| link.kind), Some(LinkKind::Infiniband));
//! # Ok::<(), odeon_topology::ClusterError>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `level` | the levels of a cluster, the widest first |
//! | `link` | a link: its technology, bandwidth and latency; the links of a cluster by level and group |
//! | `device_model` | what a model of devices has and can do; data sheets |
//! | `tree` | the tree of a cluster: which device is in which machine, rack and zone |
//! | `cluster`, `cluster/*` | the file: models, elements, nodes and links; the elements that nodes stand for (`layout`); quantities in thousandths (`quantity`); errors in it (`error`) |

#![forbid(unsafe_code)]

mod cluster;
mod device_model;
mod level;
mod link;
mod tree;

pub use cluster::quantity::{QuantityError, gib, milli};
pub use cluster::{
    Cluster, ClusterError, ClusterPart, ClusterSpec, GpuSpec, NodeSpec, TopologyError,
};
pub use device_model::DeviceModel;
pub use level::Level;
pub use link::{Link, LinkKind, Links};
pub use tree::{Element, Topology};
