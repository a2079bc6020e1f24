//! A cluster described by a file, and the links between its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Device, Level, Node, QuantityError, Resources, View, milli};

/// A way between parts of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The technology of the link.
    pub kind: LinkKind,
    /// Bytes per second in one direction.
    pub bytes_per_second: f64,
}

/// The technology of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LinkKind {
    /// NVLink, with or without switches.
    Nvlink,
    /// PCI Express behind one switch or root port.
    Pcie,
    /// Between the processors of a node.
    Numa,
    /// InfiniBand.
    Infiniband,
    /// Ethernet, with or without RDMA.
    Ethernet,
}

/// The links of a view, by level and group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Links(BTreeMap<Level, LevelLinks>);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct LevelLinks {
    /// Of every group of the level that is not named.
    others: Option<Link>,
    named: BTreeMap<String, Link>,
}

impl Links {
    /// Sets the link inside every group of a level.
    #[must_use]
    pub fn level(mut self, level: Level, link: Link) -> Self {
        self.0.entry(level).or_default().others = Some(link);
        self
    }

    /// Sets the link inside one group: a zone, rack, node or NVLink domain by its name. Groups inside
    /// a node go by the name of the node.
    #[must_use]
    pub fn group(mut self, level: Level, name: impl Into<String>, link: Link) -> Self {
        let links = self.0.entry(level).or_default();
        links.named.insert(name.into(), link);
        self
    }

    fn of(&self, level: Level, name: &str) -> Option<Link> {
        let links = self.0.get(&level)?;
        links.named.get(name).copied().or(links.others)
    }
}

impl View {
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

/// A cluster as a file describes it: zones and racks, then nodes with their devices.
///
/// ```
/// # let json = serde_json::json!({
/// #   "devices": { "H200": { "memory_gib": 141 } },
/// #   "elements": [{ "name": "r1", "level": "rack", "link": { "kind": "infiniband", "bytes_per_second": 5e10 } }],
/// #   "nodes": [{ "name": "node", "count": 2, "parent": "r1", "cpus": 96, "memory_gib": 2048,
/// #               "gpus": { "model": "H200", "count": 8, "numa": 2, "switch": 2, "nvlink": "node" } }],
/// # });
/// let spec: odeon_placement::ClusterSpec = serde_json::from_value(json)?;
/// let view = spec.view()?;
/// assert_eq!(view.node("node-1").unwrap().free_devices(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSpec {
    /// Device models by name.
    pub devices: BTreeMap<String, DeviceSpec>,
    /// Zones and racks.
    pub elements: Vec<ElementSpec>,
    /// Nodes.
    pub nodes: Vec<NodeSpec>,
    /// The link inside every group of a level that has none of its own.
    pub links: BTreeMap<Level, Link>,
}

/// A device model of a [`ClusterSpec`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Memory that can be reserved.
    pub memory_gib: f64,
}

/// A zone or rack of a [`ClusterSpec`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElementSpec {
    /// Unique among elements and nodes.
    pub name: String,
    /// Zone or rack.
    pub level: Level,
    /// The element that it lies in; the cluster, if left out.
    #[serde(default)]
    pub parent: Option<String>,
    /// The link between its children.
    #[serde(default)]
    pub link: Option<Link>,
}

/// Nodes of one kind in a [`ClusterSpec`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Unique among elements and nodes; of several, followed by `-0`, `-1` and so on.
    pub name: String,
    /// Number of such nodes; one, if left out.
    #[serde(default)]
    pub count: Option<u32>,
    /// The rack or zone that it lies in; the cluster, if left out.
    #[serde(default)]
    pub parent: Option<String>,
    /// Cores.
    pub cpus: f64,
    /// Main memory.
    pub memory_gib: f64,
    /// Quantities of the cluster's own.
    #[serde(default)]
    pub custom: BTreeMap<String, f64>,
    /// Labels that demands may select it by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its devices.
    #[serde(default)]
    pub gpus: Option<GpuSpec>,
}

/// The devices of a node in a [`ClusterSpec`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// A model of the file.
    pub model: String,
    /// Number of devices.
    pub count: u32,
    /// NUMA nodes that they are spread over evenly; one, if left out.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Devices behind each PCIe switch; unknown, if left out.
    #[serde(default)]
    pub switch: Option<u32>,
    /// Reach of NVLink: `node` or `rack`; nowhere, if left out.
    #[serde(default)]
    pub nvlink: Option<Level>,
}

/// Why a file describes no cluster. Nothing was made of it.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Elements lie in each other in a ring.
    #[error("{} lie in each other: take a parent from one of them", .0.join(", "))]
    Cycle(Vec<String>),
    /// A parent is not in the file.
    #[error("{child} lies in {parent}, which the file does not describe")]
    UnknownParent {
        /// The element or node that names it.
        child: String,
        /// The name.
        parent: String,
    },
    /// A parent is not of a wider level than its child.
    #[error("{child} ({level}) lies in {parent} ({parent_level}): a parent must be wider")]
    Level {
        /// The child.
        child: String,
        /// Its level.
        level: Level,
        /// The parent.
        parent: String,
        /// Its level.
        parent_level: Level,
    },
    /// An element is neither a zone nor a rack.
    #[error("{0} is a {1}: elements are zones and racks, the rest belongs to nodes")]
    NoElement(String, Level),
    /// Two elements or nodes have the same name.
    #[error("{0} stands twice in the file")]
    Twice(String),
    /// A device model is not in the file.
    #[error("{node} has devices of the model {model}, which the file does not describe")]
    UnknownModel {
        /// The node.
        node: String,
        /// The model.
        model: String,
    },
    /// There are more of something than can be.
    #[error("{of} has {count} {what}: {most} is the most")]
    TooMany {
        /// The name of the node in the file.
        of: String,
        /// Of what.
        what: String,
        /// Their number.
        count: u32,
        /// The most that there may be.
        most: u32,
    },
    /// A quantity is zero, negative or no number.
    #[error("{what} of {of}: {error}")]
    Quantity {
        /// Which one.
        what: String,
        /// Whose.
        of: String,
        /// The fault in the quantity.
        error: QuantityError,
    },
    /// Devices cannot be divided as the file says.
    #[error("{node} has {count} devices, which cannot be divided into {what}")]
    Division {
        /// The node.
        node: String,
        /// Its devices.
        count: u32,
        /// Into what.
        what: String,
    },
    /// NVLink reaches a node or a rack.
    #[error("NVLink of {0} reaches a {1}: it can reach a node or a rack")]
    Nvlink(String, Level),
}

impl ClusterSpec {
    /// The cluster that it describes, empty.
    ///
    /// # Errors
    /// The first thing that is wrong with the description.
    pub fn view(&self) -> Result<View, TopologyError> {
        let mut names = BTreeSet::new();
        let all = self.elements.iter().map(|element| &element.name);
        if let Some(twice) = all
            .chain(self.nodes.iter().map(|n| &n.name))
            .find(|n| !names.insert(*n))
        {
            return Err(TopologyError::Twice(twice.clone()));
        }
        let mut links = Links::default();
        for (level, link) in &self.links {
            bandwidth(&level.to_string(), link)?;
            links = links.level(*level, *link);
        }
        for element in &self.elements {
            if !matches!(element.level, Level::Zone | Level::Rack) {
                return Err(TopologyError::NoElement(
                    element.name.clone(),
                    element.level,
                ));
            }
            self.ancestors(&element.name, element.level, element.parent.as_ref())?;
            if let Some(link) = &element.link {
                bandwidth(&element.name, link)?;
                links = links.group(element.level, &element.name, *link);
            }
        }
        let mut nodes = Vec::new();
        for spec in &self.nodes {
            nodes.extend(self.nodes_of(spec)?);
        }
        let mut made = BTreeSet::new();
        if let Some(twice) = nodes.iter().find(|node| !made.insert(&node.name)) {
            return Err(TopologyError::Twice(twice.name.clone()));
        }
        Ok(View::new(nodes).with_links(links))
    }

    /// The elements that something lies in, nearest first.
    fn ancestors<'s>(
        &'s self,
        child: &'s str,
        level: Level,
        parent: Option<&'s String>,
    ) -> Result<Vec<&'s ElementSpec>, TopologyError> {
        let mut path: Vec<&ElementSpec> = Vec::new();
        let (mut inner, mut inner_level, mut next) = (child, level, parent);
        while let Some(parent) = next {
            let Some(element) = self.elements.iter().find(|e| e.name == *parent) else {
                return Err(TopologyError::UnknownParent {
                    child: inner.to_owned(),
                    parent: parent.clone(),
                });
            };
            // A ring is told as one, though its levels are wrong as well.
            if let Some(start) = path.iter().position(|e| e.name == element.name) {
                let ring = path[start..].iter().map(|e| e.name.clone());
                return Err(TopologyError::Cycle(ring.collect()));
            }
            if element.name == child {
                let ring = path.iter().map(|e| e.name.clone());
                return Err(TopologyError::Cycle(
                    std::iter::once(child.to_owned()).chain(ring).collect(),
                ));
            }
            if element.level >= inner_level && !self.is_in_ring(element) {
                return Err(TopologyError::Level {
                    child: inner.to_owned(),
                    level: inner_level,
                    parent: element.name.clone(),
                    parent_level: element.level,
                });
            }
            path.push(element);
            (inner, inner_level, next) = (&element.name, element.level, element.parent.as_ref());
        }
        Ok(path)
    }

    /// Returns true when the parents of an element never end.
    fn is_in_ring(&self, element: &ElementSpec) -> bool {
        let mut next = element.parent.as_ref();
        for _ in 0..=self.elements.len() {
            let Some(name) = next else {
                return false;
            };
            next = self
                .elements
                .iter()
                .find(|e| e.name == *name)
                .and_then(|e| e.parent.as_ref());
        }
        true
    }

    fn nodes_of(&self, spec: &NodeSpec) -> Result<Vec<Node>, TopologyError> {
        let path = self.ancestors(&spec.name, Level::Node, spec.parent.as_ref())?;
        let at = |level| {
            let element = path.iter().find(|element| element.level == level);
            element.map(|element| element.name.clone())
        };
        let quantity = |what: &str, number: f64| {
            milli(number).map_err(|error| TopologyError::Quantity {
                what: what.to_owned(),
                of: spec.name.clone(),
                error,
            })
        };
        let memory = gib(&spec.name, "memory_gib", spec.memory_gib)?;
        let mut capacity = Resources::new().cpu_milli(quantity("cpus", spec.cpus)?);
        capacity = capacity.memory_bytes(memory);
        for (name, number) in &spec.custom {
            capacity = capacity.custom_milli(name, quantity(name, *number)?);
        }
        let names = match spec.count {
            None => vec![spec.name.clone()],
            Some(count) => {
                quantity("count", f64::from(count))?;
                bounded(&spec.name, "nodes", count, NODES_MAX)?;
                (0..count).map(|i| format!("{}-{i}", spec.name)).collect()
            }
        };
        let node = |name: String| {
            let mut node = Node::new(name, capacity.clone());
            (node.zone, node.rack) = (at(Level::Zone), at(Level::Rack));
            node.labels = spec.labels.clone();
            if let Some(gpus) = &spec.gpus {
                node.devices = self.devices_of(&node, gpus)?;
            }
            Ok(node)
        };
        names.into_iter().map(node).collect()
    }

    fn devices_of(&self, node: &Node, spec: &GpuSpec) -> Result<Vec<Device>, TopologyError> {
        let name = &node.name;
        let model = self.devices.get(&spec.model);
        let model = model.ok_or_else(|| TopologyError::UnknownModel {
            node: name.clone(),
            model: spec.model.clone(),
        })?;
        let memory = gib(&spec.model, "memory_gib", model.memory_gib)?;
        bounded(name, "devices on a node", spec.count, DEVICES_MAX)?;
        let divided = |parts: u32, what: &str| {
            let whole = parts > 0 && spec.count > 0 && spec.count.is_multiple_of(parts);
            whole
                .then_some(spec.count / parts.max(1))
                .ok_or_else(|| TopologyError::Division {
                    node: name.clone(),
                    count: spec.count,
                    what: format!("{parts} {what}"),
                })
        };
        let per_numa = divided(spec.numa.unwrap_or(1), "NUMA nodes")?;
        if let Some(switch) = spec.switch {
            divided(switch, "a switch")?;
        }
        let domain = match spec.nvlink {
            None => None,
            Some(Level::Node) => Some(format!("{name}/nvlink")),
            Some(Level::Rack) => {
                let rack = node.rack.as_deref().unwrap_or("cluster");
                Some(format!("{rack}/nvlink"))
            }
            Some(level) => return Err(TopologyError::Nvlink(name.clone(), level)),
        };
        let device = |index: u32| {
            let mut device = Device::new(index, &spec.model, memory).numa(index / per_numa);
            device.switch = spec.switch.map(|each| index / each);
            device.nvlink = domain.clone();
            device
        };
        Ok((0..spec.count).map(device).collect())
    }
}

/// More are a mistake, or more than the solver's masks have bits for.
const NODES_MAX: u32 = 100_000;
const DEVICES_MAX: u32 = 128;

fn bounded(of: &str, what: &str, count: u32, most: u32) -> Result<(), TopologyError> {
    if count <= most {
        return Ok(());
    }
    Err(TopologyError::TooMany {
        of: of.to_owned(),
        what: what.to_owned(),
        count,
        most,
    })
}

/// Bytes of a number of GiB.
fn gib(of: &str, what: &str, number: f64) -> Result<u64, TopologyError> {
    let scaled = milli(number).map_err(|error| TopologyError::Quantity {
        what: what.to_owned(),
        of: of.to_owned(),
        error,
    })?;
    Ok(u64::try_from(u128::from(scaled) * (1 << 30) / 1000).unwrap_or(u64::MAX))
}

fn bandwidth(of: &str, link: &Link) -> Result<(), TopologyError> {
    let good = link.bytes_per_second.is_finite() && link.bytes_per_second > 0.0;
    good.then_some(()).ok_or_else(|| TopologyError::Quantity {
        what: "bytes_per_second".to_owned(),
        of: of.to_owned(),
        error: QuantityError(link.bytes_per_second),
    })
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LinkKind::Nvlink => "NVLink",
            LinkKind::Pcie => "PCIe",
            LinkKind::Numa => "processor link",
            LinkKind::Infiniband => "InfiniBand",
            LinkKind::Ethernet => "Ethernet",
        };
        write!(f, "{kind} at {} GB/s", self.bytes_per_second / 1e9)
    }
}

#[cfg(test)]
mod tests;
