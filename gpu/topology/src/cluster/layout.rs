//! The elements that nodes of one kind stand for.

use super::quantity::{gib, milli};
use super::{ClusterError, ClusterPart, ClusterSpec, GpuSpec, NodeSpec, TopologyError};
use crate::{Element, Level};

/// More are a mistake, or more than the solver's masks have bits for.
const NODES_MAX: u32 = 100_000;
const DEVICES_MAX: u32 = 128;

/// A node by its name, its line of the file, and the index of its first element.
pub(super) type Laid = (String, usize, usize);

impl ClusterSpec {
    /// All elements, those of the file first, and the nodes of the file's lines.
    pub(super) fn laid_out(&self) -> Result<(Vec<Element>, Vec<Laid>), ClusterError> {
        let mut elements = self.elements.clone();
        let mut nodes = vec![];
        for (index, spec) in self.nodes.iter().enumerate() {
            let names = self
                .checked(spec)
                .map_err(|kind| ClusterError::of(ClusterPart::Node(index), kind))?;
            for name in names {
                nodes.push((name.clone(), index, elements.len()));
                elements.push(Element::new(Level::Node, &name, spec.parent.as_deref()));
                if let Some(gpus) = &spec.gpus {
                    let rack = self.rack_of(spec);
                    lay(&name, rack, gpus, &mut elements);
                }
            }
        }
        self.lay_rack_domains(&mut elements);
        Ok((elements, nodes))
    }

    /// The part of the file that an element which it does not name is of.
    pub(super) fn part_of(&self, element: usize, nodes: &[Laid]) -> ClusterPart {
        let before = nodes.partition_point(|(_, _, first)| *first <= element);
        match before.checked_sub(1).and_then(|nth| nodes.get(nth)) {
            Some((_, spec, _)) => ClusterPart::Node(*spec),
            None => ClusterPart::Element(element),
        }
    }

    /// The names of the nodes of a line.
    fn checked(&self, spec: &NodeSpec) -> Result<Vec<String>, TopologyError> {
        let quantity = |what: &str, number: f64| {
            milli(number).map_err(|error| TopologyError::Quantity {
                what: what.to_owned(),
                of: spec.name.clone(),
                error,
            })
        };
        quantity("cpus", spec.cpus)?;
        gib(spec.memory_gib).map_err(|error| TopologyError::Quantity {
            what: "memory_gib".to_owned(),
            of: spec.name.clone(),
            error,
        })?;
        for (name, number) in &spec.custom {
            quantity(name, *number)?;
        }
        if let Some(gpus) = &spec.gpus {
            self.check_gpus(spec, gpus)?;
        }
        match spec.count {
            None => Ok(vec![spec.name.clone()]),
            Some(count) => {
                if count == 0 {
                    let (of, what) = (spec.name.clone(), "nodes");
                    let instead = "give one at least, or leave the line out";
                    return Err(TopologyError::Zero { of, what, instead });
                }
                bounded(&spec.name, "nodes", count, NODES_MAX)?;
                Ok((0..count).map(|i| format!("{}-{i}", spec.name)).collect())
            }
        }
    }

    fn check_gpus(&self, spec: &NodeSpec, gpus: &GpuSpec) -> Result<(), TopologyError> {
        let node = || spec.name.clone();
        if !self.devices.contains_key(&gpus.model) {
            let (device, model) = (node(), gpus.model.clone());
            return Err(TopologyError::UnknownModel { device, model });
        }
        if gpus.count == 0 {
            let (of, what) = (node(), "devices");
            let instead = "leave `gpus` out";
            return Err(TopologyError::Zero { of, what, instead });
        }
        bounded(&spec.name, "devices on a node", gpus.count, DEVICES_MAX)?;
        let divided = |of: String, count: u32, by: u32, what: String| {
            let whole = by > 0 && count > 0 && count.is_multiple_of(by);
            let division = TopologyError::Division { of, count, what };
            whole.then_some(()).ok_or(division)
        };
        let sockets = gpus.numa.unwrap_or(1);
        divided(node(), gpus.count, sockets, format!("{sockets} NUMA nodes"))?;
        if let Some(each) = gpus.switch {
            let switches = || format!("switches of {each}");
            divided(node(), gpus.count, each, switches())?;
            // A switch is of one socket.
            let socket = format!("each NUMA node of {}", spec.name);
            divided(socket, gpus.count / sockets, each, switches())?;
        }
        match gpus.nvlink {
            None | Some(Level::Node | Level::Rack) => Ok(()),
            Some(level) => Err(TopologyError::Nvlink(node(), level)),
        }
    }

    /// The rack that nodes lie in, whose name an NVLink domain of the rack has.
    fn rack_of(&self, spec: &NodeSpec) -> Option<&str> {
        let mut next = spec.parent.as_deref();
        // A ring is found by who checks the tree.
        for _ in 0..=self.elements.len() {
            let element = self.elements.iter().find(|it| Some(&*it.name) == next)?;
            if element.level == Level::Rack {
                return Some(&element.name);
            }
            next = element.parent.as_deref();
        }
        None
    }

    /// NVLink domains of whole racks, once each.
    fn lay_rack_domains(&self, elements: &mut Vec<Element>) {
        let mut racks: Vec<Option<&str>> = vec![];
        for spec in &self.nodes {
            let reaches = |gpus: &GpuSpec| gpus.nvlink == Some(Level::Rack);
            let rack = self.rack_of(spec);
            if spec.gpus.as_ref().is_some_and(reaches) && !racks.contains(&rack) {
                racks.push(rack);
                elements.push(Element::new(Level::Nvlink, rack_domain(rack), rack));
            }
        }
    }
}

fn rack_domain(rack: Option<&str>) -> String {
    format!("{}/nvlink", rack.unwrap_or("cluster"))
}

/// Lays the devices of a node below it, and what they share. The numbers divide one another.
pub(super) fn lay(node: &str, rack: Option<&str>, gpus: &GpuSpec, elements: &mut Vec<Element>) {
    let domain = match gpus.nvlink {
        None => None,
        Some(Level::Rack) => Some(rack_domain(rack)),
        Some(_) => {
            let domain = format!("{node}/nvlink");
            elements.push(Element::new(Level::Nvlink, &domain, Some(node)));
            Some(domain)
        }
    };
    let per_socket = gpus.numa.map(|sockets| (gpus.count / sockets).max(1));
    for gpu in 0..gpus.count {
        let socket = per_socket.map(|each| format!("{node}/numa{}", gpu / each));
        if let (Some(socket), Some(each)) = (&socket, per_socket)
            && gpu % each == 0
        {
            elements.push(Element::new(Level::Numa, socket, Some(node)));
        }
        let inside = socket.as_deref().unwrap_or(node);
        let switch = gpus
            .switch
            .map(|each| format!("{node}/switch{}", gpu / each));
        if let (Some(switch), Some(each)) = (&switch, gpus.switch)
            && gpu % each == 0
        {
            elements.push(Element::new(Level::Switch, switch, Some(inside)));
        }
        elements.push(Element {
            model: Some(gpus.model.clone()),
            nvlink: domain.clone(),
            ..Element::new(
                Level::Device,
                format!("{node}/gpu{gpu}"),
                Some(switch.as_deref().unwrap_or(inside)),
            )
        });
    }
}

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
