//! A cluster as a file describes it.

mod error;
mod layout;
pub(crate) mod quantity;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::{DeviceModel, Element, Level, Link, Links, Topology};

pub use error::{ClusterError, ClusterPart, TopologyError};

/// A cluster as a file describes it: models of devices, then zones and racks, then nodes with their
/// devices, then links.
///
/// Nodes of one kind are one [`NodeSpec`]. What no such line says, as an NVLink domain over half of a
/// machine, stands in elements of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSpec {
    /// Models of devices, by name.
    pub devices: BTreeMap<String, DeviceModel>,
    /// Parts of the cluster: zones, racks, and what nodes do not say of themselves. Devices of a node are
    /// numbered in this order.
    pub elements: Vec<Element>,
    /// Nodes.
    pub nodes: Vec<NodeSpec>,
    /// The link inside every group of a level that has none of its own.
    pub links: BTreeMap<Level, Link>,
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

/// A cluster without contradictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Its parts. The devices of a [`NodeSpec`] are `NODE/gpu0` and so on; those of one node are numbered
    /// in the order of the elements.
    pub topology: Topology,
    /// The links inside its groups.
    pub links: Links,
    /// The nodes of each [`NodeSpec`] by name, with its index in the file.
    pub nodes: Vec<(String, usize)>,
}

/// Where parts stand in a text.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Places {
    devices: BTreeMap<String, Spanned<IgnoredAny>>,
    elements: Vec<Spanned<IgnoredAny>>,
    nodes: Vec<Spanned<IgnoredAny>>,
    links: BTreeMap<Level, Spanned<IgnoredAny>>,
}

impl ClusterSpec {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// [`ClusterError`] with the line.
    pub fn from_toml(text: &str) -> Result<Self, ClusterError> {
        let spec: Self =
            toml::from_str(text).map_err(|error| ClusterError::syntax(text, &error))?;
        spec.cluster().map_err(|error| error.at_its_line(text))?;
        Ok(spec)
    }

    /// `count` nodes of eight devices of a model, alike: four PCIe switches, two sockets, one NVLink
    /// domain. Node `n` is `node{n}`, its devices `node{n}/gpu0` and so on; 50 GB/s lead out of each.
    #[must_use]
    pub fn uniform(count: usize, model: DeviceModel) -> Self {
        let gpus = GpuSpec {
            model: "model".to_owned(),
            count: 8,
            numa: Some(2),
            switch: Some(2),
            nvlink: Some(Level::Node),
        };
        let mut elements = vec![Element::new(Level::Cluster, "cluster", None)];
        for n in 0..count {
            let node = format!("node{n}");
            elements.push(Element {
                bytes_per_second: Some(50_000_000_000),
                ..Element::new(Level::Node, &node, Some("cluster"))
            });
            layout::lay(&node, None, &gpus, &mut elements);
        }
        Self {
            devices: BTreeMap::from([("model".to_owned(), model)]),
            elements,
            ..Self::default()
        }
    }

    /// The cluster that it describes.
    ///
    /// # Errors
    /// The first thing that is wrong with the description, and which part of it has that.
    pub fn cluster(&self) -> Result<Cluster, ClusterError> {
        let wrong = |part, kind| Err(ClusterError::of(part, kind));
        let mut links = Links::default();
        for (level, link) in &self.links {
            if let Some((what, value)) = link.flaw() {
                let of = level.to_string();
                return wrong(
                    ClusterPart::Link(*level),
                    TopologyError::Rate { of, what, value },
                );
            }
            links = links.level(*level, *link);
        }
        for (index, element) in self.elements.iter().enumerate() {
            let Some(link) = element.link else { continue };
            if let Some((what, value)) = link.flaw() {
                let of = element.name.clone();
                return wrong(
                    ClusterPart::Element(index),
                    TopologyError::Rate { of, what, value },
                );
            }
            links = links.group(element.level, &element.name, link);
        }
        let (elements, nodes) = self.laid_out()?;
        let topology = Topology::new(elements).map_err(|(index, kind)| {
            let part = match index < self.elements.len() {
                true => ClusterPart::Element(index),
                false => self.part_of(index, &nodes),
            };
            ClusterError::of(part, kind)
        })?;
        for (index, element) in self.elements.iter().enumerate() {
            self.check_model(element)
                .map_err(|kind| ClusterError::of(ClusterPart::Element(index), kind))?;
        }
        let nodes = nodes.into_iter().map(|(name, spec, _)| (name, spec));
        Ok(Cluster {
            topology,
            links,
            nodes: nodes.collect(),
        })
    }

    fn check_model(&self, element: &Element) -> Result<(), TopologyError> {
        if element.level != Level::Device {
            return Ok(());
        }
        let device = element.name.clone();
        match &element.model {
            None => Err(TopologyError::NoModel { device }),
            Some(model) if !self.devices.contains_key(model) => {
                let model = model.clone();
                Err(TopologyError::UnknownModel { device, model })
            }
            Some(_) => Ok(()),
        }
    }
}
