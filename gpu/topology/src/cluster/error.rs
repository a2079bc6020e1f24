//! Errors in the description of a cluster.

use thiserror::Error;

use super::Places;
use super::quantity::QuantityError;
use crate::Level;

/// An error in the description of a cluster. Nothing was made of it.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{}{error}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct ClusterError {
    /// Line of the file, from 1; none when the description is not from a file.
    pub line: Option<usize>,
    /// The part that has it; none when the text could not be read.
    pub part: Option<ClusterPart>,
    /// The error.
    pub error: TopologyError,
}

/// A part of a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterPart {
    /// An element, by its index.
    Element(usize),
    /// Nodes of one kind, by their index.
    Node(usize),
    /// The link of a level.
    Link(Level),
}

/// A kind of error in the description of a cluster.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The text is not TOML; or a field is unknown, missing, or of another type.
    #[error("{0}")]
    Syntax(String),
    /// Two parts have one name.
    #[error("{name} stands there twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A part lies in something that is not there.
    #[error("{child} lies in {parent}, which is not there")]
    UnknownParent {
        /// The part.
        child: String,
        /// The name that is missing.
        parent: String,
    },
    /// Parts that lie in one another.
    #[error("parts lie in one another: {}: take the parent from one of them", path.join(" in "))]
    Cycle {
        /// From a part back to itself.
        path: Vec<String>,
    },
    /// The parent is of no wider level.
    #[error(
        "{child} ({level}) cannot lie in {parent} ({parent_level}): a parent is of a wider level"
    )]
    WrongLevel {
        /// The part.
        child: String,
        /// Its level.
        level: Level,
        /// What it lies in.
        parent: String,
        /// The level of that.
        parent_level: Level,
    },
    /// A device names a domain that is not there, or something that is no domain.
    #[error("{device} names the NVLink domain {domain}, which is not there")]
    UnknownDomain {
        /// The device.
        device: String,
        /// The name.
        domain: String,
    },
    /// A device names a domain of another part of the cluster.
    #[error(
        "{device} names the NVLink domain {domain}, but does not lie in {place}, where that is"
    )]
    OutsideDomain {
        /// The device.
        device: String,
        /// The domain.
        domain: String,
        /// The part that the domain lies in.
        place: String,
    },
    /// A device that is in no node.
    #[error("{device} lies in no node")]
    NoNode {
        /// The device.
        device: String,
    },
    /// A device has no model.
    #[error("{device} has no `model`")]
    NoModel {
        /// The device.
        device: String,
    },
    /// A device, or nodes, of a model that is not there.
    #[error(
        "{device} is of model {model}, which is not there: describe it under `[devices.{model}]`"
    )]
    UnknownModel {
        /// The device, or the name of the nodes.
        device: String,
        /// The name of the model.
        model: String,
    },
    /// A field that a part of this level does not have.
    #[error("{element} is no device and has no `{field}`")]
    NotADevice {
        /// The element.
        element: String,
        /// The field.
        field: &'static str,
    },
    /// What leads out of a part carries nothing.
    #[error("{element} has bytes_per_second = 0: leave it out for a link without a limit")]
    ZeroBandwidth {
        /// The element.
        element: String,
    },
    /// A rate or latency that no link can have.
    #[error("{what} of the link of {of} is {value}: a rate is above zero, a latency zero or more")]
    Rate {
        /// Whose.
        of: String,
        /// The field.
        what: &'static str,
        /// The number that stands there.
        value: f64,
    },
    /// A node of which the file says neither processors nor memory, and something is to be placed on it.
    #[error(
        "{0} is a node without processors and memory: write it under `[[nodes]]` to place on it"
    )]
    NoCapacity(String),
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
    /// There is none of something that has to be.
    #[error("{of} has 0 {what}: {instead}")]
    Zero {
        /// The name of the node in the file.
        of: String,
        /// Of what.
        what: &'static str,
        /// A way out.
        instead: &'static str,
    },
    /// Something lies in an NVLink domain, which holds devices that lie elsewhere.
    #[error(
        "{child} cannot lie in the NVLink domain {domain}: put it into its node, and write nvlink = \"{domain}\""
    )]
    InDomain {
        /// The element.
        child: String,
        /// The domain.
        domain: String,
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
    #[error("{of} has {count} devices, which cannot be divided into {what}")]
    Division {
        /// The node, or each NUMA node of it.
        of: String,
        /// The devices.
        count: u32,
        /// Into what.
        what: String,
    },
    /// NVLink reaches a node or a rack.
    #[error("NVLink of {0} reaches a {1}: it can reach a node or a rack")]
    Nvlink(String, Level),
}

impl ClusterError {
    pub(super) const fn of(part: ClusterPart, error: TopologyError) -> Self {
        Self {
            line: None,
            part: Some(part),
            error,
        }
    }

    pub(super) fn syntax(text: &str, error: &toml::de::Error) -> Self {
        Self {
            line: error.span().map(|span| line_of(text, span.start)),
            part: None,
            error: TopologyError::Syntax(error.message().to_owned()),
        }
    }

    /// The same with the line at which its part stands in a text that describes the cluster, among other
    /// things perhaps.
    #[must_use]
    pub fn at_its_line(mut self, text: &str) -> Self {
        // A text that was read once already is read again.
        let places: Option<Places> = toml::from_str(text).ok();
        let span = places.and_then(|places| match self.part? {
            ClusterPart::Element(index) => Some(places.elements.get(index)?.span()),
            ClusterPart::Node(index) => Some(places.nodes.get(index)?.span()),
            ClusterPart::Link(level) => Some(places.links.get(&level)?.span()),
        });
        self.line = span.map(|span| line_of(text, span.start)).or(self.line);
        self
    }
}

fn line_of(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1
}
