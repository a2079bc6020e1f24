//! The devices that models are mapped to.

use odeon_topology::{DeviceModel, Link, LinkKind};
use serde::{Deserialize, Serialize};

use super::{
    degrees::{Degrees, divisors},
    error::MappingError,
};

/// Equal devices behind equal links. A mixed cluster is several pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    /// Unique among the pools.
    pub name: String,
    /// The model of each device.
    pub device: DeviceModel,
    /// Number of devices.
    pub devices: u32,
    /// From one device to others of its node.
    pub node_link: Link,
    /// From one node to other nodes; its devices share it.
    pub cross_link: Link,
}

impl Pool {
    /// A pool of devices with the links of their model: NVLink inside a node, and the network of the
    /// whole node between nodes.
    pub fn new(name: impl Into<String>, device: DeviceModel, devices: u32) -> Self {
        Self {
            name: name.into(),
            node_link: Link::new(LinkKind::Nvlink, device.nvlink_bytes_per_second),
            cross_link: Link::new(LinkKind::Infiniband, device.node_network_bytes_per_second()),
            device,
            devices,
        }
    }

    /// Sets how many devices share a node, whose network stays as it is.
    #[must_use]
    pub fn nodes_of(mut self, devices: u32) -> Self {
        self.device.per_node = devices;
        self
    }

    /// Sets the links: of a device inside its node, and of a node to others.
    #[must_use]
    pub fn links(mut self, node: Link, cross: Link) -> Self {
        self.node_link = node;
        self.cross_link = cross;
        self
    }

    /// The numbers of devices that a set of models may get: powers of two that divide a node, and
    /// whole nodes. Sets laid side by side, largest first, then never straddle a node unless they
    /// fill it. A larger pool allows all that a smaller one does.
    pub(super) fn allotments(&self) -> Vec<u32> {
        let node = self.device.per_node;
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
    pub(super) fn ways(&self, devices: u32, layers: u32) -> Vec<Degrees> {
        let tensors = self
            .allotments()
            .into_iter()
            .filter(|&tensor| tensor <= self.device.per_node && devices.is_multiple_of(tensor));
        let mut found: Vec<Degrees> = tensors
            .flat_map(|tensor| {
                let groups = devices / tensor;
                divisors(groups)
                    .filter(move |&pipeline| pipeline <= layers)
                    .map(move |pipeline| Degrees {
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
            (
                "device.memory_bytes_per_second",
                self.device.memory_bytes_per_second,
            ),
            ("node_link", self.node_link.bytes_per_second),
            ("cross_link", self.cross_link.bytes_per_second),
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
            ("device.per_node", u64::from(self.device.per_node)),
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
