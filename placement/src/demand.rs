//! Demands: the bundles of resources and devices that are to be placed.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::resources::{bytes, thousandths};
use crate::{Level, Resources, Talk, TalkEnd};

/// A gang of equal bundles that is placed whole or not at all; most often a gang of one.
///
/// Gangs of unequal bundles are several demands, solved together and tied by [`Affinity`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Owner of the worker processes: those of other jobs are never shared.
    pub job: String,
    /// The name of the lease holder, for people and for [`Affinity`].
    pub holder: String,
    /// Resources of each bundle, without devices.
    pub bundle: Resources,
    /// The devices that each bundle needs.
    pub devices: Option<DeviceAsk>,
    /// Number of bundles. A gang of zero has the empty plan.
    pub gang: u32,
    /// Which processes the bundles run in.
    pub isolation: Isolation,
    /// Requirements on each bundle's node; all must hold.
    pub affinity: Vec<Affinity>,
    /// Wishes for the nodes of the bundles, each with a weight. Where the gang fits on better liked
    /// nodes, it goes there.
    pub preferences: Vec<(Affinity, u32)>,
    /// The arrangement of the bundles on the nodes.
    pub arrange: Arrange,
    /// All bundles lie inside one group of this level.
    pub within: Option<Level>,
    /// Bundles that follow each other and lie on one node: the gang is so many of them, again and again.
    #[serde(default = "one")]
    pub unit: u32,
    /// Bundles that talk to each other. They are placed near each other, and ranks follow the order of the
    /// topology on each node alone then.
    #[serde(default)]
    pub talks: Vec<Talk>,
    /// A set of devices of the job that several roles share in turn: a later demand of the same set
    /// gets the devices of the earlier one, rank by rank.
    pub device_set: Option<String>,
    /// Higher ones are placed first, and may take the place of lower ones ([`preempt`](crate::preempt)).
    pub priority: i32,
}

/// The devices of one bundle, all on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAsk {
    /// Whole devices, or a part of one.
    pub share: Share,
    /// Memory of each device in bytes. A whole device must have as much, and nobody else gets the
    /// rest; of a part it is what is reserved, if not given the same part of the memory.
    pub memory: Option<u64>,
    /// Models that will do; any if empty.
    pub models: Vec<String>,
    /// The devices of a bundle lie inside one group of this level.
    pub within: Option<Level>,
}

/// The part of devices that a bundle has to itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Share {
    /// So many devices, alone.
    Whole(u32),
    /// So many thousandths of one device, fewer than a thousand; zero for memory alone.
    Part(u32),
    /// One hardware slice of this profile, such as `1g.10gb`.
    Slice(String),
}

/// Which processes the bundles of a demand run in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Isolation {
    /// The job's worker on the node with the same devices (light actors: with none), started if
    /// there is none.
    #[default]
    Shared,
    /// A new process for each bundle.
    Process,
}

/// A requirement on the place of each bundle, or a wish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Affinity {
    /// The node with this name.
    Node(String),
    /// Any node but the one with this name, for instance where this actor has just failed.
    NotNode(String),
    /// A node whose label has this value.
    Label(String, String),
    /// A node that has devices, of whatever kind.
    Accelerated,
    /// In the same group of this level as a lease of this holder; with [`Level::Node`], on the same
    /// node.
    Near(String, Level),
    /// In no group of this level in which this holder has a lease.
    Apart(String, Level),
}

/// The arrangement of a gang's bundles on nodes, and the choice of a node for a single one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Arrange {
    /// On as few nodes as possible, of those on nodes near each other, and there where least is left
    /// over.
    #[default]
    Pack,
    /// As evenly as possible, and first where most is free.
    Spread,
    /// Requires a single node.
    StrictPack,
    /// Requires as many nodes as bundles.
    StrictSpread,
}

/// A contradiction in a demand, or a quantity that makes no sense. Nothing was placed; correct the
/// demand.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DemandError {
    /// No device is asked for, or no memory, or no weight.
    #[error("it asks for zero {0}: leave it out, or ask for at least one")]
    Zero(String),
    /// A part of a device is a whole one or more.
    #[error("it asks for {} of a device as a part: ask for whole devices", thousandths(u64::from(*.0)))]
    PartTooLarge(u32),
    /// More bundles than any cluster takes.
    #[error("it asks for a gang of {0}: a gang has at most {GANG_MAX} bundles")]
    GangTooLarge(u32),
    /// A level that only devices have, without devices.
    #[error("it names a {0}, but asks for no device")]
    LevelWithoutDevices(Level),
    /// Two requirements exclude each other.
    #[error("{0} and {1} exclude each other")]
    Contradiction(String, String),
    /// A shared device set needs whole devices and a memory figure.
    #[error(
        "it shares the device set {0}, so it must ask for whole devices and say how much memory it \
         needs on each"
    )]
    DeviceSet(String),
    /// The bundles cannot be cut into runs that lie on one node.
    #[error("{gang} bundles are no runs of {unit}, each of which lies on one node")]
    Unit {
        /// Number of bundles.
        gang: u32,
        /// Bundles of a run.
        unit: u32,
    },
    /// A bundle that the gang has not talks to others.
    #[error(
        "bundle {bundle} of a gang of {gang} is said to talk to others: they are numbered from 0"
    )]
    NoBundle {
        /// The bundle.
        bundle: u32,
        /// Number of bundles that there are.
        gang: u32,
    },
    /// Two demands of one call have the same holder.
    #[error("{0} stands twice among the demands: give each a name of its own")]
    Twice(String),
}

impl Demand {
    /// One bundle in the job's shared worker, anywhere.
    #[must_use]
    pub fn new(job: impl Into<String>, holder: impl Into<String>, bundle: Resources) -> Self {
        Self {
            job: job.into(),
            holder: holder.into(),
            bundle,
            devices: None,
            gang: 1,
            isolation: Isolation::default(),
            affinity: Vec::new(),
            preferences: Vec::new(),
            arrange: Arrange::default(),
            within: None,
            unit: 1,
            talks: Vec::new(),
            device_set: None,
            priority: 0,
        }
    }

    /// Asks for `count` whole devices for each bundle.
    #[must_use]
    pub fn gpus(self, count: u32) -> Self {
        self.ask(Share::Whole(count))
    }

    /// Asks for a part of one device for each bundle, in thousandths.
    #[must_use]
    pub fn gpu_milli(self, milli: u32) -> Self {
        self.ask(Share::Part(milli))
    }

    /// Asks for one hardware slice of this profile for each bundle.
    #[must_use]
    pub fn slice(self, profile: impl Into<String>) -> Self {
        self.ask(Share::Slice(profile.into()))
    }

    /// Asks for memory on each device, in bytes. Without a share it is a part of a device's memory
    /// alone.
    #[must_use]
    pub fn device_memory(mut self, bytes: u64) -> Self {
        self.devices_mut().memory = Some(bytes);
        self
    }

    /// Accepts this device model, beside others that were named.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.devices_mut().models.push(model.into());
        self
    }

    /// Requires that the devices of a bundle lie inside one group of a level.
    #[must_use]
    pub fn devices_within(mut self, level: Level) -> Self {
        self.devices_mut().within = Some(level);
        self
    }

    /// Shares a set of devices with the other roles of the job that name it.
    #[must_use]
    pub fn device_set(mut self, name: impl Into<String>) -> Self {
        self.device_set = Some(name.into());
        self
    }

    /// Asks for `size` bundles, all or none.
    #[must_use]
    pub fn gang(mut self, size: u32) -> Self {
        self.gang = size;
        self
    }

    /// Asks for a process of its own for each bundle.
    #[must_use]
    pub fn isolated(mut self) -> Self {
        self.isolation = Isolation::Process;
        self
    }

    /// Requires the node `name`.
    #[must_use]
    pub fn on_node(self, name: impl Into<String>) -> Self {
        self.require(Affinity::Node(name.into()))
    }

    /// Requires the node of a lease of `holder`.
    #[must_use]
    pub fn together_with(self, holder: impl Into<String>) -> Self {
        self.require(Affinity::Near(holder.into(), Level::Node))
    }

    /// Requires the same group of a level as a lease of `holder`.
    #[must_use]
    pub fn near(self, holder: impl Into<String>, level: Level) -> Self {
        self.require(Affinity::Near(holder.into(), level))
    }

    /// Requires nodes where `holder` has no lease.
    #[must_use]
    pub fn apart_from(self, holder: impl Into<String>) -> Self {
        self.require(Affinity::Apart(holder.into(), Level::Node))
    }

    /// Adds a requirement.
    #[must_use]
    pub fn require(mut self, affinity: Affinity) -> Self {
        self.affinity.push(affinity);
        self
    }

    /// Adds a wish.
    #[must_use]
    pub fn prefer(mut self, affinity: Affinity, weight: u32) -> Self {
        self.preferences.push((affinity, weight));
        self
    }

    /// Chooses how the bundles lie to each other.
    #[must_use]
    pub fn arrange(mut self, arrange: Arrange) -> Self {
        self.arrange = arrange;
        self
    }

    /// Requires that all bundles lie inside one group of a level.
    #[must_use]
    pub fn within(mut self, level: Level) -> Self {
        self.within = Some(level);
        self
    }

    /// Requires that each run of so many bundles lies on one node.
    #[must_use]
    pub fn unit(mut self, bundles: u32) -> Self {
        self.unit = bundles;
        self
    }

    /// Says which bundles talk to each other, so that they are placed near each other.
    #[must_use]
    pub fn talks(mut self, talks: impl IntoIterator<Item = Talk>) -> Self {
        self.talks.extend(talks);
        self
    }

    /// Sets the priority; others have zero.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// The needs of one bundle, as people read them: `2 gpu with 40 GiB each + 1 cpu`.
    pub(crate) fn asked(&self) -> String {
        let each = match &self.devices {
            None => self.bundle.to_string(),
            Some(devices) if self.bundle.is_empty() => devices.to_string(),
            Some(devices) => format!("{devices} + {}", self.bundle),
        };
        match self.unit {
            1 => each,
            unit => format!("{each}, each {unit} on one node"),
        }
    }

    /// Checks that its quantities make sense and that its requirements do not exclude each other.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), DemandError> {
        if self.gang > GANG_MAX {
            return Err(DemandError::GangTooLarge(self.gang));
        }
        self.check_units()?;
        let levels = [self.within, self.devices.as_ref().and_then(|d| d.within)];
        let holders = self.affinity.iter().filter_map(|affinity| match affinity {
            Affinity::Near(_, level) | Affinity::Apart(_, level) => Some(*level),
            _ => None,
        });
        let mut levels = levels.into_iter().flatten().chain(holders);
        let level = levels.find(|level| *level > Level::Node);
        let Some(devices) = &self.devices else {
            if let Some(set) = &self.device_set {
                return Err(DemandError::DeviceSet(set.clone()));
            }
            return match level {
                Some(level) => Err(DemandError::LevelWithoutDevices(level)),
                None => self.check_affinity(),
            };
        };
        match devices.share {
            Share::Whole(0) => return Err(DemandError::Zero("devices".into())),
            Share::Part(0) if devices.memory.is_none() => {
                return Err(DemandError::Zero("of a device".into()));
            }
            Share::Part(milli) if milli >= 1000 => return Err(DemandError::PartTooLarge(milli)),
            _ => {}
        }
        if devices.memory == Some(0) {
            return Err(DemandError::Zero("device memory".into()));
        }
        if let Some(set) = &self.device_set
            && (devices.memory.is_none() || !matches!(devices.share, Share::Whole(_)))
        {
            return Err(DemandError::DeviceSet(set.clone()));
        }
        self.check_affinity()
    }

    fn check_units(&self) -> Result<(), DemandError> {
        let Self { gang, unit, .. } = *self;
        if unit == 0 || !gang.is_multiple_of(unit) {
            return Err(DemandError::Unit { gang, unit });
        }
        let run = || format!("{unit} bundles on one node");
        let contradiction = |other: String| Err(DemandError::Contradiction(run(), other));
        match (self.arrange, &self.device_set) {
            _ if unit == 1 => {}
            (Arrange::Spread | Arrange::StrictSpread, _) => {
                return contradiction("bundles that are spread over nodes".to_owned());
            }
            (_, Some(set)) => return contradiction(format!("sharing the device set {set}")),
            _ => {}
        }
        let ends = self.talks.iter().flat_map(|talk| {
            let other = match talk.with {
                TalkEnd::Bundle(other) => other,
                TalkEnd::Node(_) => talk.bundle,
            };
            [talk.bundle, other]
        });
        match ends.into_iter().find(|bundle| *bundle >= gang) {
            Some(bundle) => Err(DemandError::NoBundle { bundle, gang }),
            None => Ok(()),
        }
    }

    fn check_affinity(&self) -> Result<(), DemandError> {
        if self.preferences.iter().any(|(_, weight)| *weight == 0) {
            return Err(DemandError::Zero("weight of a preference".into()));
        }
        let contradiction = |a: &dyn fmt::Display, b: &dyn fmt::Display| {
            Err(DemandError::Contradiction(a.to_string(), b.to_string()))
        };
        if self.gang > 1 && self.arrange == Arrange::StrictSpread {
            let node = |a: &&Affinity| matches!(a, Affinity::Node(_));
            if let Some(node) = self.affinity.iter().find(node) {
                return contradiction(&"one node a bundle", node);
            }
            if let Some(level) = self.within.filter(|level| *level == Level::Node) {
                return contradiction(&"one node a bundle", &format!("all within one {level}"));
            }
        }
        for (i, a) in self.affinity.iter().enumerate() {
            if let Some(b) = self.affinity[..i].iter().find(|b| a.excludes(b)) {
                return contradiction(b, a);
            }
        }
        Ok(())
    }

    fn ask(mut self, share: Share) -> Self {
        self.devices_mut().share = share;
        self
    }

    fn devices_mut(&mut self) -> &mut DeviceAsk {
        self.devices.get_or_insert(DeviceAsk {
            share: Share::Part(0),
            memory: None,
            models: Vec::new(),
            within: None,
        })
    }
}

impl Affinity {
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Node(a), Self::Node(b)) => a != b,
            (Self::Node(a), Self::NotNode(b)) | (Self::NotNode(a), Self::Node(b)) => a == b,
            (Self::Label(a, x), Self::Label(b, y)) => a == b && x != y,
            // Within a group that the holder is in means within all the wider ones, too.
            (Self::Near(a, near), Self::Apart(b, apart))
            | (Self::Apart(b, apart), Self::Near(a, near)) => a == b && near >= apart,
            _ => false,
        }
    }
}

impl DeviceAsk {
    /// Devices of a bundle.
    pub(crate) fn count(&self) -> u32 {
        match self.share {
            Share::Whole(count) => count,
            Share::Part(_) | Share::Slice(_) => 1,
        }
    }

    /// Of one device, in thousandths.
    pub(crate) fn milli(&self) -> u32 {
        match self.share {
            Share::Whole(_) | Share::Slice(_) => 1000,
            Share::Part(milli) => milli,
        }
    }
}

impl fmt::Display for DeviceAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.share, self.memory) {
            (Share::Whole(count), None) => write!(f, "{count} gpu")?,
            (Share::Whole(1), Some(memory)) => write!(f, "1 gpu of {}", bytes(memory))?,
            (Share::Whole(count), Some(memory)) => {
                write!(f, "{count} gpu of {} each", bytes(memory))?;
            }
            (Share::Part(0), Some(memory)) => write!(f, "{} of a gpu", bytes(memory))?,
            (Share::Part(milli), None) => write!(f, "{} gpu", thousandths(u64::from(*milli)))?,
            (Share::Part(milli), Some(memory)) => {
                let part = thousandths(u64::from(*milli));
                write!(f, "{part} gpu with {}", bytes(memory))?;
            }
            (Share::Slice(profile), _) => write!(f, "1 gpu slice {profile}")?,
        }
        if !self.models.is_empty() {
            write!(f, " ({})", self.models.join(" or "))?;
        }
        match self.within {
            Some(level) => write!(f, " in one {level}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "on {node}"),
            Self::NotNode(node) => write!(f, "not on {node}"),
            Self::Label(key, value) => write!(f, "{key}={value}"),
            Self::Near(holder, level) => write!(f, "in a {level} with {holder}"),
            Self::Accelerated => f.write_str("on a node with devices"),
            Self::Apart(holder, level) => write!(f, "in a {level} without {holder}"),
        }
    }
}

const fn one() -> u32 {
    1
}

/// Most bundles of a gang, so that a slip of the pen does not fill the memory with leases.
const GANG_MAX: u32 = 1 << 20;
