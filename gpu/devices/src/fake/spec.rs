//! Specifications of fake devices and of their faults: a file, or built in code.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::Spanned;

use crate::topology::{Element, Level, Topology, TopologyError};

/// Fake devices: their models, where they are, and scripted faults.
///
/// ```
/// use odeon_devices::fake::Spec;
///
/// let spec = Spec::from_toml(r#"
///     [model.small]
///     memory_bytes = 1_073_741_824
///
///     [[element]]
///     name = "a"
///     level = "node"
///
///     [[element]]
///     name = "a/0"
///     level = "device"
///     parent = "a"
///     model = "small"
///
///     [[fault]]
///     device = "a/0"
///     at = { ms = 1500 }
///     what = { xid = 79 }
/// "#)?;
/// assert_eq!(spec.elements.len(), 2);
///
/// let error = Spec::from_toml("[[element]]\nname = \"a\"\nlevel = \"node\"\nparent = \"b\"");
/// assert_eq!(error.unwrap_err().to_string(), "line 1: a lies in b, which is not there");
/// # Ok::<(), odeon_devices::fake::SpecError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Models of devices, by name.
    #[serde(default, rename = "model")]
    pub models: BTreeMap<String, Model>,
    /// Parts of the cluster, devices among them. Those of a node are numbered in this order.
    #[serde(default, rename = "element")]
    pub elements: Vec<Element>,
    /// Scripted faults of the devices.
    #[serde(default, rename = "fault")]
    pub faults: Vec<Scripted>,
}

/// The capacities and speeds of a device. The defaults are those of an H200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Host memory that each context can pin, in bytes.
    pub pinned_bytes: u64,
    /// Of a copy inside device memory, in bytes a second.
    pub memory_bytes_per_second: u64,
    /// To and from host memory, one direction, in bytes a second.
    pub pcie_bytes_per_second: u64,
    /// To another device of the NVLink domain, one direction, in bytes a second.
    pub nvlink_bytes_per_second: u64,
    /// From the call to the first byte, in nanoseconds.
    pub latency_ns: u64,
    /// The time that the memory of a killed process stays held, in milliseconds.
    pub release_ms: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            memory_bytes: 141 << 30,
            pinned_bytes: 64 << 30,
            memory_bytes_per_second: 4_300_000_000_000,
            pcie_bytes_per_second: 55_000_000_000,
            nvlink_bytes_per_second: 450_000_000_000,
            latency_ns: 8_000,
            release_ms: 2_000,
        }
    }
}

/// One scripted fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    /// Name of the device.
    pub device: String,
    /// When it strikes.
    pub at: When,
    /// The fault that strikes.
    pub what: Strike,
}

/// When a scripted fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At this virtual time since the start, in milliseconds.
    Ms(u64),
    /// Before the operation of this number on the device, allocations and copies counted from 1.
    Operation(u64),
}

/// A scripted fault of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strike {
    /// The driver reports this Xid. By its [remedy](crate::fault::xid_remedy) it breaks the
    /// contexts that are open, or the device; 79 takes it off the bus.
    Xid(u64),
    /// The contexts that are open break: each later operation of their processes fails.
    Sticky,
    /// Memory loses data: every operation of every process fails from now on.
    Ecc,
    /// A process from outside takes all memory that is free.
    Oom,
    /// Operations under way and later ones of the processes there are never end.
    Hang,
    /// Operations submitted from now on take this many times as long.
    Slow(f64),
    /// The device falls off the bus.
    Lost,
}

/// An error in a specification. Nothing was made of it.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{}{kind}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct SpecError {
    /// Line of the file, from 1; none when the specification is not from a file.
    pub line: Option<usize>,
    /// The kind of error.
    pub kind: SpecErrorKind,
}

/// A kind of error in a specification.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SpecErrorKind {
    /// The text is not TOML, a field is unknown, missing, or of another type.
    #[error("{0}")]
    Syntax(String),
    /// The elements contradict each other.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A device has no model.
    #[error("{device} has no `model`")]
    NoModel {
        /// The device.
        device: String,
    },
    /// A device names a model that is not there.
    #[error("{device} is of model {model}, which is not there")]
    UnknownModel {
        /// The device.
        device: String,
        /// The name.
        model: String,
    },
    /// A quantity that must not be zero.
    #[error("model {model} has {field} = 0")]
    Zero {
        /// The model.
        model: String,
        /// The field.
        field: &'static str,
    },
    /// A fault befalls something that is no device.
    #[error("a fault befalls {device}, which is no device")]
    UnknownDevice {
        /// The name.
        device: String,
    },
    /// Operations are numbered from 1.
    #[error("a fault of {device} strikes before operation 0: they are numbered from 1")]
    OperationZero {
        /// The device.
        device: String,
    },
    /// A slow device takes longer by a number of at least one.
    #[error("a fault slows {device} by {factor}: the factor is a number from 1 up")]
    Factor {
        /// The device.
        device: String,
        /// The number that stands there.
        factor: f64,
    },
}

/// Which part of a specification an error is about.
#[derive(Clone, Debug)]
enum Part {
    Element(usize),
    Model(String),
    Fault(usize),
}

/// Where the parts stand in the text.
#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    model: BTreeMap<String, Spanned<IgnoredAny>>,
    #[serde(default)]
    element: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    fault: Vec<Spanned<IgnoredAny>>,
}

impl Spec {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    ///
    /// [`SpecError`] with the line.
    pub fn from_toml(text: &str) -> Result<Self, SpecError> {
        let spec: Self = toml::from_str(text).map_err(|error| SpecError {
            line: error.span().map(|span| line_of(text, span.start)),
            kind: SpecErrorKind::Syntax(error.message().to_owned()),
        })?;
        match spec.find_error() {
            Ok(_) => Ok(spec),
            Err((part, kind)) => Err(SpecError {
                line: place(text, &part),
                kind,
            }),
        }
    }

    /// Machines of eight devices of the default model, alike: four PCIe switches, two sockets, one
    /// NVLink domain, 50 GB/s between machines. Machine `n` is `node{n}`, its devices
    /// `node{n}/gpu0` and so on.
    #[must_use]
    pub fn cluster(nodes: usize, model: Model) -> Self {
        let mut elements = vec![Element::new(Level::Cluster, "cluster", None)];
        for n in 0..nodes {
            let node = format!("node{n}");
            elements.push(Element {
                bytes_per_second: Some(50_000_000_000),
                ..Element::new(Level::Node, &node, Some("cluster"))
            });
            let domain = format!("{node}/nvlink");
            elements.push(Element::new(Level::Nvlink, &domain, Some(&node)));
            for socket in 0..2 {
                let numa = format!("{node}/numa{socket}");
                elements.push(Element::new(Level::Numa, &numa, Some(&node)));
                for pair in 0..2 {
                    let switch = format!("{node}/switch{}", socket * 2 + pair);
                    elements.push(Element::new(Level::Switch, &switch, Some(&numa)));
                    for one in 0..2 {
                        let gpu = format!("{node}/gpu{}", socket * 4 + pair * 2 + one);
                        elements.push(Element {
                            model: Some("model".to_owned()),
                            nvlink: Some(domain.clone()),
                            ..Element::new(Level::Device, gpu, Some(&switch))
                        });
                    }
                }
            }
        }
        Self {
            models: BTreeMap::from([("model".to_owned(), model)]),
            elements,
            faults: vec![],
        }
    }

    /// The same with one more fault.
    #[must_use]
    pub fn fault(mut self, device: impl Into<String>, at: When, what: Strike) -> Self {
        let device = device.into();
        self.faults.push(Scripted { device, at, what });
        self
    }

    /// Checks it.
    pub(super) fn check(&self) -> Result<Topology, SpecError> {
        self.find_error()
            .map_err(|(_, kind)| SpecError { line: None, kind })
    }

    fn find_error(&self) -> Result<Topology, (Part, SpecErrorKind)> {
        for (name, model) in &self.models {
            if let Some(field) = model.zero_field() {
                let model = name.clone();
                let kind = SpecErrorKind::Zero { model, field };
                return Err((Part::Model(name.clone()), kind));
            }
        }
        let topology = Topology::new(self.elements.clone())
            .map_err(|(index, error)| (Part::Element(index), error.into()))?;
        for (index, element) in self.elements.iter().enumerate() {
            self.check_model(element)
                .map_err(|kind| (Part::Element(index), kind))?;
        }
        for (index, fault) in self.faults.iter().enumerate() {
            fault
                .check(&topology)
                .map_err(|kind| (Part::Fault(index), kind))?;
        }
        Ok(topology)
    }

    fn check_model(&self, element: &Element) -> Result<(), SpecErrorKind> {
        if element.level != Level::Device {
            return Ok(());
        }
        let device = element.name.clone();
        match &element.model {
            None => Err(SpecErrorKind::NoModel { device }),
            Some(model) if !self.models.contains_key(model) => Err(SpecErrorKind::UnknownModel {
                device,
                model: model.clone(),
            }),
            Some(_) => Ok(()),
        }
    }
}

impl Model {
    fn zero_field(&self) -> Option<&'static str> {
        [
            (self.memory_bytes, "memory_bytes"),
            (self.pinned_bytes, "pinned_bytes"),
            (self.memory_bytes_per_second, "memory_bytes_per_second"),
            (self.pcie_bytes_per_second, "pcie_bytes_per_second"),
            (self.nvlink_bytes_per_second, "nvlink_bytes_per_second"),
        ]
        .into_iter()
        .find_map(|(value, field)| (value == 0).then_some(field))
    }

    /// The time that the memory of a killed process stays held.
    pub(super) fn release(&self) -> Duration {
        Duration::from_millis(self.release_ms)
    }
}

impl Scripted {
    fn check(&self, topology: &Topology) -> Result<(), SpecErrorKind> {
        let device = || self.device.clone();
        let known = topology.get(&self.device);
        if known.is_none_or(|element| element.level != Level::Device) {
            return Err(SpecErrorKind::UnknownDevice { device: device() });
        }
        if self.at == When::Operation(0) {
            return Err(SpecErrorKind::OperationZero { device: device() });
        }
        match self.what {
            // A factor beyond this would make a time that no clock holds.
            Strike::Slow(factor) if !(1.0..=1e9).contains(&factor) => Err(SpecErrorKind::Factor {
                device: device(),
                factor,
            }),
            _ => Ok(()),
        }
    }
}

fn place(text: &str, part: &Part) -> Option<usize> {
    // The text was read once already, so this finds what it looks for.
    let places: Places = toml::from_str(text).ok()?;
    let span = match part {
        Part::Element(index) => places.element.get(*index)?.span(),
        Part::Model(name) => places.model.get(name)?.span(),
        Part::Fault(index) => places.fault.get(*index)?.span(),
    };
    Some(line_of(text, span.start))
}

fn line_of(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "[model.m]\n[[element]]\nname = 'a'\nlevel = 'node'\n";

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let error = Spec::from_toml(text).unwrap_err().to_string();
        assert_eq!(error, expected);
    }

    fn with(text: &str, expected: &str) {
        check(&format!("{NODE}{text}"), expected);
    }

    #[test]
    fn contradictions_are_told_with_their_line() {
        with(
            "[[element]]\nname = 'a'\nlevel = 'rack'",
            "line 5: there are two elements named a",
        );
        with(
            "[[element]]\nname = 'd'\nlevel = 'device'\nparent = 'b'",
            "line 5: d lies in b, which is not there",
        );
        with(
            "[[element]]\nname = 'r'\nlevel = 'rack'\nparent = 'a'",
            "line 5: r (rack) cannot lie in a (node): a parent is of a wider level",
        );
        with(
            "[[element]]\nname = 'b'\nlevel = 'rack'\nparent = 'c'\n\
             [[element]]\nname = 'c'\nlevel = 'zone'\nparent = 'b'",
            "line 5: elements lie in one another: b in c in b",
        );
        with(
            "[[element]]\nname = 'd'\nlevel = 'device'\nmodel = 'm'",
            "line 5: d lies in no node",
        );
        with(
            "[[element]]\nname = 'd'\nlevel = 'device'\nparent = 'a'",
            "line 5: d has no `model`",
        );
        with(
            "[[element]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'x'",
            "line 5: d is of model x, which is not there",
        );
        with(
            "[[element]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'm'\nnvlink = 'a'",
            "line 5: d names the NVLink domain a, which is not there",
        );
        with(
            "[[element]]\nname = 'n'\nlevel = 'numa'\nparent = 'a'\nmodel = 'm'",
            "line 5: n is no device and has no `model`",
        );
        with(
            "[[element]]\nname = 'n'\nlevel = 'numa'\nparent = 'a'\nbytes_per_second = 0",
            "line 5: n has bytes_per_second = 0: leave it out for a link without a limit",
        );
        with(
            "[[element]]\nname = 'b'\nlevel = 'node'\n[[element]]\nname = 'l'\nlevel = 'nvlink'\n\
             parent = 'b'\n[[element]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'm'\n\
             nvlink = 'l'",
            "line 12: d names the NVLink domain l, but does not lie in b, where that is",
        );
        with(
            "[model.n]\nmemory_bytes = 0",
            "line 5: model n has memory_bytes = 0",
        );
    }

    #[test]
    fn faults_of_nothing_and_of_no_size_are_refused() {
        let fault = |device: &str, at: &str, what: &str| {
            format!(
                "[[element]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'm'\n\
                 [[fault]]\ndevice = '{device}'\nat = {at}\nwhat = {what}\n"
            )
        };
        with(
            &fault("a", "{ ms = 1 }", "'ecc'"),
            "line 10: a fault befalls a, which is no device",
        );
        with(
            &fault("d", "{ operation = 0 }", "'ecc'"),
            "line 10: a fault of d strikes before operation 0: they are numbered from 1",
        );
        with(
            &fault("d", "{ ms = 1 }", "{ slow = nan }"),
            "line 10: a fault slows d by NaN: the factor is a number from 1 up",
        );
        let good = format!("{NODE}{}", fault("d", "{ ms = 1 }", "{ slow = 2.0 }"));
        assert_eq!(
            Spec::from_toml(&good).unwrap().faults[0].what,
            Strike::Slow(2.0)
        );
    }

    #[test]
    fn text_that_does_not_fit_is_told_with_its_line() {
        for (text, line, word) in [
            ("[model.m]\nmemory = 1", 2, "unknown field `memory`"),
            (
                "[[element]]\nname = 'a'\nlevel = 'attic'",
                3,
                "unknown variant `attic`",
            ),
            ("[model.m]\nmemory_bytes = -1", 2, "-1"),
            ("[[node]]", 1, "unknown field `node`"),
            ("[model", 1, "unclosed table"),
            (
                "[[fault]]\ndevice = 'a'\nat = { ms = 1 }\nwhat = { burn = 1 }",
                4,
                "unknown variant `burn`",
            ),
        ] {
            let error = Spec::from_toml(text).unwrap_err();
            assert_eq!(error.line, Some(line), "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn a_specification_survives_the_file() {
        let spec = Spec::cluster(2, Model::default()).fault(
            "node1/gpu3",
            When::Operation(7),
            Strike::Xid(79),
        );
        let text = toml::to_string(&spec).unwrap();
        assert_eq!(Spec::from_toml(&text).unwrap(), spec);
    }
}
