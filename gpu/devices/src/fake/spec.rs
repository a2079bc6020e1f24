//! Specifications of fake devices and of their faults: a file, or built in code.

use odeon_topology::{
    ClusterError, ClusterSpec, DeviceModel, Element, Level, Link, NodeSpec, Topology, TopologyError,
};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;
use toml::Spanned;

/// Fake devices: the cluster that they are in, and scripted faults. A file of them is that of a cluster
/// with `[[faults]]` besides.
///
/// ```
/// use odeon_devices::fake::Spec;
///
/// let spec = Spec::from_toml(r#"
///     [devices.small]
///     memory_gib = 1
///
///     [[nodes]]
///     name = "a"
///     cpus = 8
///     memory_gib = 32
///     gpus = { model = "small", count = 2 }
///
///     [[faults]]
///     device = "a/gpu0"
///     at = { ms = 1500 }
///     what = { xid = 79 }
/// "#)?;
/// assert_eq!(spec.faults.len(), 1);
///
/// let error = Spec::from_toml("[[elements]]\nname = \"a\"\nlevel = \"node\"\nparent = \"b\"");
/// assert_eq!(error.unwrap_err().to_string(), "line 1: a lies in b, which is not there");
/// # Ok::<(), odeon_devices::fake::SpecError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "SpecFile", into = "SpecFile")]
pub struct Spec {
    /// The cluster: models of devices, and where each device is.
    pub cluster: ClusterSpec,
    /// Scripted faults of the devices.
    pub faults: Vec<Scripted>,
}

/// All tables of a file.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SpecFile {
    devices: BTreeMap<String, DeviceModel>,
    elements: Vec<Element>,
    nodes: Vec<NodeSpec>,
    links: BTreeMap<Level, Link>,
    faults: Vec<Scripted>,
}

impl From<SpecFile> for Spec {
    fn from(file: SpecFile) -> Self {
        let SpecFile {
            devices,
            elements,
            nodes,
            links,
            faults,
        } = file;
        let cluster = ClusterSpec {
            devices,
            elements,
            nodes,
            links,
        };
        Self { cluster, faults }
    }
}

impl From<Spec> for SpecFile {
    fn from(spec: Spec) -> Self {
        let ClusterSpec {
            devices,
            elements,
            nodes,
            links,
        } = spec.cluster;
        Self {
            devices,
            elements,
            nodes,
            links,
            faults: spec.faults,
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
    /// The cluster cannot be as it is described.
    #[error(transparent)]
    Cluster(#[from] TopologyError),
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

/// Where faults stand in a text.
#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    faults: Vec<Spanned<IgnoredAny>>,
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
        let cluster = spec.cluster.cluster();
        let topology = cluster.map_err(|error| error.at_its_line(text))?.topology;
        spec.check_faults(&topology).map_err(|(index, kind)| {
            // The text was read once already, so this finds what it looks for.
            let places: Option<Places> = toml::from_str(text).ok();
            let span = places.and_then(|places| Some(places.faults.get(index)?.span()));
            SpecError {
                line: span.map(|span| line_of(text, span.start)),
                kind,
            }
        })?;
        Ok(spec)
    }

    /// Machines of eight devices of a model, alike: see [`ClusterSpec::uniform`].
    #[must_use]
    pub fn cluster(nodes: usize, model: DeviceModel) -> Self {
        Self {
            cluster: ClusterSpec::uniform(nodes, model),
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

    /// The parts of the cluster, when there is nothing wrong with any of it.
    pub(super) fn check(&self) -> Result<Topology, SpecError> {
        let topology = self.cluster.cluster()?.topology;
        self.check_faults(&topology)
            .map_err(|(_, kind)| SpecError { line: None, kind })?;
        Ok(topology)
    }

    fn check_faults(&self, topology: &Topology) -> Result<(), (usize, SpecErrorKind)> {
        let mut faults = self.faults.iter().enumerate();
        let wrong = faults.find_map(|(index, fault)| Some((index, fault.check(topology).err()?)));
        wrong.map_or(Ok(()), Err)
    }
}

impl From<ClusterError> for SpecError {
    fn from(error: ClusterError) -> Self {
        Self {
            line: error.line,
            kind: error.error.into(),
        }
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

fn line_of(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "[devices.m]\nmemory_gib = 1\n[[elements]]\nname = 'a'\nlevel = 'node'\n";

    #[track_caller]
    fn with(text: &str, expected: &str) {
        let error = Spec::from_toml(&format!("{NODE}{text}")).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_cluster_that_cannot_be_is_told_with_its_line() {
        with(
            "[[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'x'\n\
             [[faults]]\ndevice = 'd'\nat = { ms = 1 }\nwhat = 'ecc'",
            "line 6: d is of model x, which is not there: describe it under `[devices.x]`",
        );
    }

    #[test]
    fn faults_of_nothing_and_of_no_size_are_refused() {
        let fault = |device: &str, at: &str, what: &str| {
            format!(
                "[[elements]]\nname = 'd'\nlevel = 'device'\nparent = 'a'\nmodel = 'm'\n\
                 [[faults]]\ndevice = '{device}'\nat = {at}\nwhat = {what}\n"
            )
        };
        with(
            &fault("a", "{ ms = 1 }", "'ecc'"),
            "line 11: a fault befalls a, which is no device",
        );
        with(
            &fault("d", "{ operation = 0 }", "'ecc'"),
            "line 11: a fault of d strikes before operation 0: they are numbered from 1",
        );
        with(
            &fault("d", "{ ms = 1 }", "{ slow = nan }"),
            "line 11: a fault slows d by NaN: the factor is a number from 1 up",
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
            ("[devices.m]\nmemory = 1", 2, "unknown field `memory`"),
            (
                "[[elements]]\nname = 'a'\nlevel = 'attic'",
                3,
                "unknown variant `attic`",
            ),
            ("[devices.m]\nmemory_bytes = -1", 2, "-1"),
            ("[[node]]", 1, "unknown field `node`"),
            ("[devices", 1, "unclosed table"),
            (
                "[[faults]]\ndevice = 'a'\nat = { ms = 1 }\nwhat = { burn = 1 }",
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
        let spec = Spec::cluster(2, DeviceModel::default()).fault(
            "node1/gpu3",
            When::Operation(7),
            Strike::Xid(79),
        );
        let text = toml::to_string(&spec).unwrap();
        assert_eq!(Spec::from_toml(&text).unwrap(), spec);
    }
}
