//! The tree of a cluster: which device is in which machine, rack and zone.
//!
//! An element lies in a parent of a wider [`Level`]; levels may be left out. NVLink crosses the
//! tree: the eight devices of a machine hang below several PCIe switches and share one NVLink
//! domain. So a domain is no level between switch and device, but an element of its own that
//! devices name, and that lies where all of its devices are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Level, Link, TopologyError};

/// A part of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Element {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Its level.
    pub level: Level,
    /// The name of the element that it lies in; nothing for the widest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The link between what lies in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Of a device: the name of its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Of a device: its NVLink domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<String>,
    /// Of what leads out of it to its parent, in bytes a second; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

impl Element {
    /// An element in a parent.
    #[must_use]
    pub fn new(level: Level, name: impl Into<String>, parent: Option<&str>) -> Self {
        Self {
            name: name.into(),
            level,
            parent: parent.map(str::to_owned),
            link: None,
            model: None,
            nvlink: None,
            bytes_per_second: None,
        }
    }
}

/// A tree without contradictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    elements: Vec<Element>,
    by_name: BTreeMap<String, usize>,
}

impl Topology {
    /// Checks the elements, which may stand in any order.
    ///
    /// # Errors
    ///
    /// The first contradiction, with the index of the element that has it.
    pub fn new(elements: Vec<Element>) -> Result<Self, (usize, TopologyError)> {
        let mut by_name = BTreeMap::new();
        for (index, element) in elements.iter().enumerate() {
            if by_name.insert(element.name.clone(), index).is_some() {
                let name = element.name.clone();
                return Err((index, TopologyError::Twice { name }));
            }
        }
        let topology = Self { elements, by_name };
        for (index, element) in topology.elements.iter().enumerate() {
            topology.check_parents(element).map_err(|e| (index, e))?;
        }
        // Only now does every walk upwards end.
        for (index, element) in topology.elements.iter().enumerate() {
            topology.check_place(element).map_err(|e| (index, e))?;
        }
        Ok(topology)
    }

    /// The elements, in the order given.
    #[must_use]
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// The element of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Element> {
        self.elements.get(*self.by_name.get(name)?)
    }

    /// The element and what it lies in, up to the widest.
    pub fn upwards<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Element> + use<'a> {
        std::iter::successors(self.get(name), |element| self.get(element.parent.as_ref()?))
    }

    /// The element of this level that the named one lies in, or is.
    #[must_use]
    pub fn around(&self, name: &str, level: Level) -> Option<&Element> {
        self.upwards(name).find(|element| element.level == level)
    }

    /// The smallest element that holds both.
    #[must_use]
    pub fn common(&self, a: &str, b: &str) -> Option<&Element> {
        self.upwards(a)
            .find(|element| self.upwards(b).any(|other| other.name == element.name))
    }

    fn check_parents(&self, element: &Element) -> Result<(), TopologyError> {
        let mut path = vec![element.name.clone()];
        let mut at = element;
        while let Some(parent) = &at.parent {
            let Some(above) = self.get(parent) else {
                return Err(TopologyError::UnknownParent {
                    child: at.name.clone(),
                    parent: parent.clone(),
                });
            };
            path.push(parent.clone());
            if path[..path.len() - 1].contains(parent) {
                return Err(TopologyError::Cycle { path });
            }
            at = above;
        }
        Ok(())
    }

    fn check_place(&self, element: &Element) -> Result<(), TopologyError> {
        let name = || element.name.clone();
        if let Some(above) = element.parent.as_ref().and_then(|parent| self.get(parent))
            && (above.level >= element.level || above.level == Level::Nvlink)
        {
            if above.level == Level::Nvlink && element.level == Level::Device {
                let (child, domain) = (name(), above.name.clone());
                return Err(TopologyError::InDomain { child, domain });
            }
            return Err(TopologyError::WrongLevel {
                child: name(),
                level: element.level,
                parent: above.name.clone(),
                parent_level: above.level,
            });
        }
        if element.bytes_per_second == Some(0) {
            return Err(TopologyError::ZeroBandwidth { element: name() });
        }
        if element.level != Level::Device {
            let field = match (&element.model, &element.nvlink) {
                (Some(_), _) => "model",
                (_, Some(_)) => "nvlink",
                _ => return Ok(()),
            };
            let element = name();
            return Err(TopologyError::NotADevice { element, field });
        }
        if self.around(&element.name, Level::Node).is_none() {
            return Err(TopologyError::NoNode { device: name() });
        }
        let Some(domain) = &element.nvlink else {
            return Ok(());
        };
        let Some(found) = self.get(domain).filter(|it| it.level == Level::Nvlink) else {
            return Err(TopologyError::UnknownDomain {
                device: name(),
                domain: domain.clone(),
            });
        };
        match &found.parent {
            Some(place) if !self.upwards(&element.name).any(|it| it.name == *place) => {
                Err(TopologyError::OutsideDomain {
                    device: name(),
                    domain: domain.clone(),
                    place: place.clone(),
                })
            }
            _ => Ok(()),
        }
    }
}
