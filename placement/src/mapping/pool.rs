//! The devices that models are mapped to.

use serde::{Deserialize, Serialize};

use super::{
    error::MappingError,
    parallel::{Parallel, divisors},
};

/// A kind of device: what a cost model needs to know of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceModel {
    /// The name that people know it by.
    pub name: String,
    /// Dense bf16 arithmetic, FLOP/s.
    pub flops: f64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Memory bandwidth, B/s.
    pub bandwidth: f64,
}

/// Equal devices behind equal links. A mixed cluster is several pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// Unique among the pools.
    pub name: String,
    /// The model of each device.
    pub device: DeviceModel,
    /// Number of devices.
    pub devices: u32,
    /// Number of devices that share a node.
    pub devices_per_node: u32,
    /// Bandwidth from one device to others of its node, B/s.
    pub node_link: f64,
    /// Bandwidth from one node to other nodes, B/s; its devices share it.
    pub cross_link: f64,
}

impl DeviceModel {
    /// A device with `flops` FLOP/s (dense bf16), `memory_bytes` and `bandwidth` B/s.
    pub fn new(name: impl Into<String>, flops: f64, memory_bytes: u64, bandwidth: f64) -> Self {
        Self {
            name: name.into(),
            flops,
            memory_bytes,
            bandwidth,
        }
    }
}

impl Pool {
    /// A pool of nodes of eight, with 300 GB/s inside a node and 25 GB/s between nodes (NVLink of
    /// the A100 in one direction, and a 200 Gbit/s network).
    pub fn new(name: impl Into<String>, device: DeviceModel, devices: u32) -> Self {
        Self {
            name: name.into(),
            device,
            devices,
            devices_per_node: 8,
            node_link: 300e9,
            cross_link: 25e9,
        }
    }

    /// Sets how many devices share a node.
    #[must_use]
    pub fn nodes_of(mut self, devices: u32) -> Self {
        self.devices_per_node = devices;
        self
    }

    /// Sets the links: B/s of a device inside its node, and of a node to others.
    #[must_use]
    pub fn links(mut self, node: f64, cross: f64) -> Self {
        self.node_link = node;
        self.cross_link = cross;
        self
    }

    /// The numbers of devices that a set of models may get: powers of two that divide a node, and
    /// whole nodes. Sets laid side by side, largest first, then never straddle a node unless they
    /// fill it. A larger pool allows all that a smaller one does.
    pub(super) fn allotments(&self) -> Vec<u32> {
        let node = self.devices_per_node;
        let parts = (0..u32::BITS)
            .map(|power| 1 << power)
            .take_while(|&part| part < node && node.is_multiple_of(part));
        let nodes = (1..=self.devices / node).map(|count| count * node);
        parts
            .filter(|&part| part <= self.devices)
            .chain(nodes)
            .collect()
    }

    /// All ways to spread a model of `layers` over exactly `devices` of the pool, fewest shards
    /// first: tensor groups are parts of a node (or all of it), pipelines have at most a stage for
    /// each layer, replicas take the rest.
    pub(super) fn ways(&self, devices: u32, layers: u32) -> Vec<Parallel> {
        let tensors = self
            .allotments()
            .into_iter()
            .filter(|&tensor| tensor <= self.devices_per_node && devices.is_multiple_of(tensor));
        let mut found: Vec<Parallel> = tensors
            .flat_map(|tensor| {
                let groups = devices / tensor;
                divisors(groups)
                    .filter(move |&pipeline| pipeline <= layers)
                    .map(move |pipeline| Parallel {
                        data: groups / pipeline,
                        tensor,
                        pipeline,
                    })
            })
            .collect();
        found.sort_by_key(|parallel| (parallel.shards(), parallel.pipeline));
        found
    }

    pub(super) fn check(&self) -> Result<(), MappingError> {
        let speeds = [
            ("device.flops", self.device.flops),
            ("device.bandwidth", self.device.bandwidth),
            ("node_link", self.node_link),
            ("cross_link", self.cross_link),
        ];
        for (field, value) in speeds {
            if !(value.is_finite() && value > 0.0) {
                return Err(MappingError::Speed {
                    pool: self.name.clone(),
                    field,
                    value,
                });
            }
        }
        let counts = [
            ("device.memory_bytes", self.device.memory_bytes),
            ("devices_per_node", u64::from(self.devices_per_node)),
        ];
        match counts.into_iter().find(|&(_, value)| value == 0) {
            None => Ok(()),
            Some((field, _)) => Err(MappingError::Zero {
                of: format!("pool {}", self.name),
                field,
            }),
        }
    }
}
