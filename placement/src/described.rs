//! The view of a cluster that a file describes, and the links between its devices.

use odeon_topology::{
    Cluster, ClusterError, ClusterPart, ClusterSpec, Level, Link, NodeSpec, TopologyError,
};
use odeon_topology::{gib, milli};
use std::collections::{BTreeMap, BTreeSet};

use crate::{Device, Node, Resources, View};

impl View {
    /// A cluster that a file describes, empty.
    ///
    /// ```
    /// use odeon_placement::View;
    /// use odeon_topology::ClusterSpec;
    ///
    /// # let json = serde_json::json!({
    /// #   "devices": { "H200": { "memory_gib": 141 } },
    /// #   "nodes": [{ "name": "node", "count": 2, "cpus": 96, "memory_gib": 2048,
    /// #               "gpus": { "model": "H200", "count": 8, "numa": 2, "switch": 2, "nvlink": "node" } }],
    /// # });
    /// let spec: ClusterSpec = serde_json::from_value(json)?;
    /// let view = View::described(&spec)?;
    /// assert_eq!(view.node("node-1").unwrap().free_devices(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first thing that is wrong with the description; a node that stands among the elements alone,
    /// of which nobody knows the processors, is one.
    pub fn described(spec: &ClusterSpec) -> Result<Self, ClusterError> {
        let cluster = spec.cluster()?;
        let lines: BTreeSet<&str> = cluster.nodes.iter().map(|(name, _)| &**name).collect();
        let nodes = spec.elements.iter().enumerate();
        let mut nodes = nodes.filter(|(_, element)| element.level == Level::Node);
        if let Some((index, bare)) = nodes.find(|(_, node)| !lines.contains(&*node.name)) {
            return Err(ClusterError {
                line: None,
                part: Some(ClusterPart::Element(index)),
                error: TopologyError::NoCapacity(bare.name.clone()),
            });
        }
        let mut devices = devices(spec, &cluster);
        let nodes = cluster.nodes.iter().map(|(name, line)| {
            let around = |level| {
                let element = cluster.topology.around(name, level);
                element.map(|element| element.name.clone())
            };
            let line = &spec.nodes[*line];
            let mut node = Node::new(name.clone(), capacity(line));
            (node.zone, node.rack) = (around(Level::Zone), around(Level::Rack));
            node.labels = line.labels.clone();
            node.devices = devices.remove(&**name).unwrap_or_default();
            node
        });
        let nodes: Vec<Node> = nodes.collect();
        Ok(Self::new(nodes).with_links(cluster.links))
    }

    /// The link over which two devices, each a node and its number there, reach each other: that of
    /// the nearest group that holds both. `None` if there is no such device, it is one and the same,
    /// or the link is not known.
    #[must_use]
    pub fn link(&self, a: (&str, u32), b: (&str, u32)) -> Option<Link> {
        let find = |(name, index): (&str, u32)| {
            let node = self.node(name)?;
            let device = node.devices.iter().find(|device| device.index == index)?;
            Some((node, device))
        };
        let ((node_a, a), (node_b, b)) = (find(a)?, find(b)?);
        let same_node = node_a.name == node_b.name;
        if same_node && a.index == b.index {
            return None;
        }
        let same_zone = node_a.zone == node_b.zone;
        let named = |name: &Option<String>| name.clone().unwrap_or_default();
        let groups = [
            (
                Level::Nvlink,
                a.nvlink.is_some() && a.nvlink == b.nvlink,
                named(&a.nvlink),
            ),
            (
                Level::Switch,
                same_node && a.switch.is_some() && a.switch == b.switch,
                node_a.name.clone(),
            ),
            (
                Level::Numa,
                same_node && a.numa == b.numa,
                node_a.name.clone(),
            ),
            (Level::Node, same_node, node_a.name.clone()),
            (
                Level::Rack,
                same_zone && node_a.rack == node_b.rack,
                named(&node_a.rack),
            ),
            (Level::Zone, same_zone, named(&node_a.zone)),
            (Level::Cluster, true, String::new()),
        ];
        let shared = groups.iter().filter(|(_, shared, _)| *shared);
        shared
            .filter_map(|(level, _, name)| self.links().of(*level, name))
            .next()
    }
}

/// What nodes of a line offer beside devices. Its numbers were checked.
fn capacity(line: &NodeSpec) -> Resources {
    let number = |number: f64| milli(number).unwrap_or_default();
    let memory = gib(line.memory_gib).unwrap_or_default();
    let resources = Resources::new()
        .cpu_milli(number(line.cpus))
        .memory_bytes(memory);
    let custom = line.custom.iter();
    custom.fold(resources, |resources, (name, quantity)| {
        resources.custom_milli(name, number(*quantity))
    })
}

/// The devices of each node, in the order of the elements.
fn devices<'c>(spec: &ClusterSpec, cluster: &'c Cluster) -> BTreeMap<&'c str, Vec<Device>> {
    let topology = &cluster.topology;
    let mut found: BTreeMap<&str, Vec<Device>> = BTreeMap::new();
    // Sockets and switches of a node are numbered as they come.
    let mut numbers: BTreeMap<(&str, Level), Vec<&str>> = BTreeMap::new();
    let all = topology.elements().iter();
    for element in all.filter(|element| element.level == Level::Device) {
        let known = element.model.as_ref().and_then(|name| {
            let model = spec.devices.get(name)?;
            Some((name, model, topology.around(&element.name, Level::Node)?))
        });
        // A checked tree has no device without a model or a node.
        let Some((name, model, node)) = known else {
            continue;
        };
        let mut number = |level| {
            let part = topology.around(&element.name, level)?;
            let parts = numbers.entry((&*node.name, level)).or_default();
            let at = parts.iter().position(|known| *known == part.name);
            Some(at.unwrap_or_else(|| {
                parts.push(&part.name);
                parts.len() - 1
            }) as u32)
        };
        let (numa, switch) = (number(Level::Numa), number(Level::Switch));
        let devices = found.entry(&node.name).or_default();
        let mut device = Device::new(devices.len() as u32, name, model.memory_bytes);
        device.numa = numa.unwrap_or_default();
        device.switch = switch;
        device.nvlink.clone_from(&element.nvlink);
        devices.push(device);
    }
    found
}

#[cfg(test)]
mod tests;
