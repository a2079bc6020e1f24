//! Links between parts of a cluster.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Level;

/// A way between parts of a cluster. A message takes `latency + bytes / bandwidth` (Hockney 1994).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The technology of the link.
    pub kind: LinkKind,
    /// Bytes per second in one direction.
    pub bytes_per_second: f64,
    /// Seconds before the first byte arrives; zero where it is left out.
    #[serde(default)]
    pub latency_s: f64,
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
    /// Main memory that processes of a node share.
    Memory,
}

impl Link {
    /// A link without latency.
    #[must_use]
    pub const fn new(kind: LinkKind, bytes_per_second: f64) -> Self {
        Self {
            kind,
            bytes_per_second,
            latency_s: 0.0,
        }
    }

    /// Sets the seconds before the first byte arrives.
    #[must_use]
    pub const fn latency(mut self, seconds: f64) -> Self {
        self.latency_s = seconds;
        self
    }

    /// Seconds of one message of so many bytes.
    #[must_use]
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.latency_s + bytes / self.bytes_per_second
    }

    /// The field that no link can have, with its value: a rate that is not above zero, or a latency below
    /// it; `None` where all is well.
    #[must_use]
    pub fn flaw(&self) -> Option<(&'static str, f64)> {
        if !(self.bytes_per_second.is_finite() && self.bytes_per_second > 0.0) {
            return Some(("bytes_per_second", self.bytes_per_second));
        }
        let latency = self.latency_s;
        (!(latency.is_finite() && latency >= 0.0)).then_some(("latency_s", latency))
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LinkKind::Nvlink => "NVLink",
            LinkKind::Pcie => "PCIe",
            LinkKind::Numa => "processor link",
            LinkKind::Infiniband => "InfiniBand",
            LinkKind::Ethernet => "Ethernet",
            LinkKind::Memory => "shared memory",
        };
        write!(f, "{kind} at {} GB/s", self.bytes_per_second / 1e9)
    }
}

/// The links of a cluster, by level and group.
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

    /// Sets the link inside one group by its name.
    #[must_use]
    pub fn group(mut self, level: Level, name: impl Into<String>, link: Link) -> Self {
        let links = self.0.entry(level).or_default();
        links.named.insert(name.into(), link);
        self
    }

    /// The link inside a group: its own, else that of its level.
    #[must_use]
    pub fn of(&self, level: Level, name: &str) -> Option<Link> {
        let links = self.0.get(&level)?;
        links.named.get(name).copied().or(links.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_its_latency_and_its_bytes() {
        let link = Link::new(LinkKind::Ethernet, 1e9).latency(5e-5);
        assert_eq!(link.seconds(0.0), 5e-5);
        assert_eq!(link.seconds(1e9), 1.00005);
        assert_eq!(link.to_string(), "Ethernet at 1 GB/s");
    }

    #[test]
    fn a_group_of_its_own_name_comes_before_its_level() {
        let (own, other) = (
            Link::new(LinkKind::Infiniband, 5e10),
            Link::new(LinkKind::Ethernet, 1e9),
        );
        let links = Links::default()
            .level(Level::Rack, other)
            .group(Level::Rack, "r1", own);
        assert_eq!(links.of(Level::Rack, "r1"), Some(own));
        assert_eq!(links.of(Level::Rack, "r2"), Some(other));
        assert_eq!(links.of(Level::Zone, "r1"), None);
    }
}
