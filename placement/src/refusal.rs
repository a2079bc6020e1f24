//! Why a demand has no place, for people and for the scheduler.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::resources::{bytes, thousandths};
use crate::{Demand, DemandError, Level, Liveness, Resource};

/// No place at present, and why. Nothing was placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", self.text())]
pub struct Refusal {
    /// The holder whose demand was refused.
    pub holder: String,
    /// The needs of each bundle, as people read them.
    pub asked: String,
    /// Number of bundles in the gang.
    pub gang: u32,
    /// The obstacle to a placement.
    pub cause: Box<Cause>,
}

/// Why a demand has no place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// It cannot be meant so.
    Invalid(DemandError),
    /// The job would hold more than it may.
    Quota {
        /// The job, or `namespace/` for all jobs of one.
        job: String,
        /// The limited resource.
        resource: String,
        /// The most that it may hold.
        limit: String,
        /// The amount that it holds.
        held: String,
        /// The amount that the demand adds.
        asked: String,
    },
    /// The roles that share a device set must have as many ranks, and devices a rank.
    DeviceSet {
        /// The set.
        set: String,
        /// The holder that has it.
        holder: String,
        /// Ranks of that holder.
        ranks: u32,
        /// Devices of each of its ranks.
        devices: u32,
    },
    /// There is not enough room.
    Room {
        /// Number of bundles that could be placed.
        would_fit: u32,
        /// True when the nodes that are up would not do even if they were empty. Waiting for others
        /// to finish does not help then; a smaller demand or another node does.
        hopeless: bool,
        /// The best group, if all bundles had to lie in one.
        group: Option<String>,
        /// All nodes, nearest to a fit first.
        nodes: Vec<NodeRefusal>,
    },
}

/// The obstacle on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRefusal {
    /// The node.
    pub node: String,
    /// Bundles that it has room for, before `reason` stops the next one.
    pub room_for: u32,
    /// The first thing that did not fit.
    pub reason: Reason,
}

/// The first thing that did not fit on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It takes no new work.
    NotUp(Liveness),
    /// Another node was required.
    NotTheNode {
        /// The required one.
        wanted: String,
    },
    /// A label is missing or different.
    Label {
        /// The label.
        key: String,
        /// The required value.
        wanted: String,
        /// Its value here.
        found: Option<String>,
    },
    /// This node was to be avoided.
    Avoided,
    /// It has no devices, and one that has some was required.
    NotAccelerated,
    /// A holder that must be in the same group of a level is not.
    NotNear {
        /// That holder.
        holder: String,
        /// That level.
        level: Level,
    },
    /// A holder that must not be in the same group of a level is.
    NotApart {
        /// That holder.
        holder: String,
        /// That level.
        level: Level,
    },
    /// The node is too small, even when empty.
    TooSmall {
        /// The resource that it has too little of.
        resource: Resource,
        /// The amount that one bundle needs.
        asked: u64,
        /// All that the node has.
        capacity: u64,
    },
    /// Others hold too much.
    Busy {
        /// The resource that there is too little of.
        resource: Resource,
        /// The amount that is needed: by one bundle, or, where a device set is held already, by all
        /// bundles that must lie on this node with it.
        asked: u64,
        /// The amount that is free: after the bundles that fit, or, where a device set is held
        /// already, before any of them.
        free: u64,
        /// All that the node has.
        capacity: u64,
        /// The holders and their amounts, most first.
        holders: Vec<(String, u64)>,
    },
    /// Its devices are of other kinds, or too small.
    OtherDevices {
        /// The kinds that it has.
        found: Vec<String>,
    },
    /// It has too few devices of the kind in all.
    TooFewDevices {
        /// Devices that one bundle needs.
        asked: u32,
        /// Healthy devices of the kind.
        have: u32,
        /// One that is out of service, and why.
        quarantined: Option<(u32, String)>,
    },
    /// Enough devices are free, but not in one group of the level.
    NotTogether {
        /// Devices that one bundle needs.
        asked: u32,
        /// Free devices of the kind.
        free: u32,
        /// The level.
        level: Level,
    },
    /// Others hold too many devices.
    DevicesBusy {
        /// Free devices of the kind.
        free: u32,
        /// Healthy devices of the kind.
        have: u32,
        /// The holders and their devices, in thousandths, most first.
        holders: Vec<(String, u64)>,
        /// One that is out of service, and why.
        quarantined: Option<(u32, String)>,
    },
    /// Even the device with most room has too little.
    DeviceBusy {
        /// That device.
        device: u32,
        /// Its free time, in thousandths.
        free_milli: u32,
        /// Its free memory, in bytes.
        free_memory: u64,
        /// All its memory, in bytes.
        memory: u64,
        /// The holders and their memory on it, in bytes, most first.
        holders: Vec<(String, u64)>,
    },
    /// No further worker process may be started.
    Workers {
        /// The node's limit.
        limit: u32,
        /// Jobs that have workers here, and how many, most first.
        jobs: Vec<(String, u32)>,
    },
    /// It has room for all that may lie on it; the others have not.
    Others,
}

impl Refusal {
    pub(crate) fn of(demand: &Demand, cause: Cause) -> Self {
        Self {
            holder: demand.holder.clone(),
            asked: demand.asked(),
            gang: demand.gang,
            cause: Box::new(cause),
        }
    }

    /// All nodes and what stands in the way on each, nearest to a fit first; none if the cause is
    /// not one of room.
    #[must_use]
    pub fn nodes(&self) -> &[NodeRefusal] {
        match &*self.cause {
            Cause::Room { nodes, .. } => nodes,
            _ => &[],
        }
    }

    /// The node that is nearest to a fit, if there is one.
    #[must_use]
    pub fn nearest(&self) -> Option<&NodeRefusal> {
        self.nodes().first()
    }

    /// Returns true when it does not help to wait until others finish.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        match &*self.cause {
            Cause::Room { hopeless, .. } => *hopeless,
            Cause::Quota { .. } => false,
            Cause::Invalid(_) | Cause::DeviceSet { .. } => true,
        }
    }

    fn text(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            let Self {
                holder,
                asked,
                gang,
                cause,
            } = self;
            let times = fmt::from_fn(|f| match gang {
                1 => write!(f, "{holder} ({asked}"),
                _ => write!(f, "{holder} ({gang} x {asked}"),
            });
            match &**cause {
                Cause::Invalid(error) => write!(f, "{times}) cannot be placed: {error}"),
                Cause::Quota {
                    job,
                    resource,
                    limit,
                    held,
                    asked,
                } => {
                    let who = match job.strip_suffix('/') {
                        Some(namespace) => &format!("the jobs of {namespace} together"),
                        None => job,
                    };
                    write!(
                        f,
                        "no place for {times}): {who} may hold {limit} {resource}, holds {held} \
                         and asks for {asked} more"
                    )
                }
                Cause::DeviceSet {
                    set,
                    holder,
                    ranks,
                    devices,
                } => write!(
                    f,
                    "no place for {times}): the device set {set} has {ranks} ranks with {devices} \
                     devices each ({holder}); ask for the same, or for another set"
                ),
                Cause::Room {
                    would_fit,
                    hopeless,
                    group,
                    nodes,
                } => {
                    write!(f, "no place for {times}")?;
                    match (group, *gang) {
                        (Some(group), _) => write!(f, ", {would_fit} would fit in {group}): ")?,
                        (None, 1) => f.write_str("): ")?,
                        (None, _) => write!(f, ", {would_fit} would fit): ")?,
                    }
                    write_nodes(f, nodes)?;
                    if *hopeless && !nodes.is_empty() {
                        f.write_str(". It would not fit on idle nodes either")?;
                    }
                    Ok(())
                }
            }
        })
    }
}

fn write_nodes(f: &mut fmt::Formatter<'_>, nodes: &[NodeRefusal]) -> fmt::Result {
    // Where one node was required, the others are no news.
    let named = |node: &&NodeRefusal| !matches!(node.reason, Reason::NotTheNode { .. });
    let told: Vec<&NodeRefusal> = nodes.iter().filter(named).collect();
    match (told.is_empty(), nodes.first().map(|node| &node.reason)) {
        (_, None) => return f.write_str("the cluster has no nodes"),
        (true, Some(Reason::NotTheNode { wanted })) => {
            return write!(f, "the cluster has no node {wanted}");
        }
        _ => {}
    }
    for (i, node) in told.iter().take(NODES_TOLD).enumerate() {
        write!(f, "{}{node}", if i > 0 { "; " } else { "" })?;
    }
    match told.len().saturating_sub(NODES_TOLD) {
        0 => Ok(()),
        1 => f.write_str("; and one other node"),
        more => write!(f, "; and {more} other nodes"),
    }
}

impl fmt::Display for NodeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.room_for, &self.reason) {
            (room, Reason::Others) => write!(f, "{} takes {room}", self.node),
            (0, reason) => write!(f, "{} {reason}", self.node),
            (room, reason) => write!(f, "{} takes {room}, then {reason}", self.node),
        }
    }
}

impl Reason {
    /// The distance from a fit, for sorting: first what passes with time, then what doesn't.
    pub(crate) fn distance(&self) -> u8 {
        match self {
            Self::Others => 0,
            Self::Busy { .. } => 1,
            Self::DevicesBusy { .. } | Self::DeviceBusy { .. } | Self::NotTogether { .. } => 1,
            Self::Workers { .. } => 2,
            Self::NotApart { .. } => 3,
            Self::NotNear { .. } => 4,
            Self::TooSmall { .. } | Self::TooFewDevices { .. } => 5,
            Self::OtherDevices { .. } => 6,
            Self::NotUp(_) => 7,
            Self::Label { .. } | Self::Avoided | Self::NotAccelerated => 8,
            Self::NotTheNode { .. } => 9,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUp(liveness) => write!(f, "is {liveness}"),
            Self::NotTheNode { wanted } => write!(f, "is not {wanted}"),
            Self::Label {
                key,
                wanted,
                found: Some(found),
            } => {
                write!(f, "has {key}={found}, not {key}={wanted}")
            }
            Self::Label {
                key,
                wanted,
                found: None,
            } => write!(f, "lacks {key}={wanted}"),
            Self::Avoided => f.write_str("is to be avoided"),
            Self::NotAccelerated => f.write_str("has no devices"),
            Self::NotNear {
                holder,
                level: Level::Node,
            } => write!(f, "does not have {holder}"),
            Self::NotNear { holder, level } => write!(f, "is in no {level} with {holder}"),
            Self::NotApart {
                holder,
                level: Level::Node,
            } => write!(f, "has {holder}, which must be apart"),
            Self::NotApart { holder, level } => {
                write!(f, "is in a {level} with {holder}, which must be apart")
            }
            Self::OtherDevices { found } => {
                write!(f, "has other devices ({})", found.join(", "))
            }
            Self::TooFewDevices {
                asked,
                have,
                quarantined,
            } => {
                match have {
                    0 => write!(f, "has no gpu, {asked} needed")?,
                    _ => write!(f, "has only {have} gpu in all, {asked} needed")?,
                }
                write_quarantined(f, quarantined.as_ref())
            }
            Self::NotTogether { asked, free, level } => {
                write!(f, "has {free} gpu free, but not {asked} in one {level}")
            }
            Self::DevicesBusy {
                free,
                have,
                holders,
                quarantined,
            } => {
                write!(f, "has {free} of {have} gpu free")?;
                let told = holders
                    .iter()
                    .map(|(who, n)| (who, thousandths(*n).to_string()));
                write_holders(f, told, "holds")?;
                write_quarantined(f, quarantined.as_ref())
            }
            Self::DeviceBusy {
                device,
                free_milli,
                free_memory,
                memory,
                holders,
            } => {
                let (free, memory) = (bytes(*free_memory), bytes(*memory));
                write!(f, "has at best {free} of {memory} free")?;
                if *free_milli < 1000 {
                    write!(
                        f,
                        " and {} of the time",
                        thousandths(u64::from(*free_milli))
                    )?;
                }
                write!(f, " on gpu {device}")?;
                let told = holders.iter().map(|(who, n)| (who, bytes(*n).to_string()));
                write_holders(f, told, "holds")
            }
            Self::TooSmall {
                resource,
                asked,
                capacity: 0,
            } => {
                write!(f, "has no {resource}, {} needed", resource.quantity(*asked))
            }
            Self::TooSmall {
                resource,
                asked,
                capacity,
            } => {
                let (asked, capacity) = (resource.quantity(*asked), resource.quantity(*capacity));
                write!(f, "has only {capacity} {resource} in all, {asked} needed")
            }
            Self::Busy {
                resource,
                free,
                capacity,
                holders,
                ..
            } => {
                let (free, capacity) = (resource.quantity(*free), resource.quantity(*capacity));
                write!(f, "has {free} of {capacity} {resource} free")?;
                let told = holders
                    .iter()
                    .map(|(who, n)| (who, resource.quantity(*n).to_string()));
                write_holders(f, told, "holds")
            }
            Self::Workers { limit, jobs } => {
                write!(f, "is at its limit of {limit} worker processes")?;
                let told = jobs.iter().map(|(job, count)| (job, count.to_string()));
                write_holders(f, told, "has")
            }
            Self::Others => f.write_str("has room"),
        }
    }
}

fn write_quarantined(
    f: &mut fmt::Formatter<'_>,
    quarantined: Option<&(u32, String)>,
) -> fmt::Result {
    match quarantined {
        Some((device, why)) => write!(f, ", gpu {device} is {why}"),
        None => Ok(()),
    }
}

/// ` (a holds 3, b holds 1 and 2 more)`, or nothing.
fn write_holders<'h>(
    f: &mut fmt::Formatter<'_>,
    holders: impl ExactSizeIterator<Item = (&'h String, String)>,
    verb: &str,
) -> fmt::Result {
    let count = holders.len();
    for (i, (who, quantity)) in holders.take(HOLDERS_TOLD).enumerate() {
        write!(
            f,
            "{}{who} {verb} {quantity}",
            if i > 0 { ", " } else { " (" }
        )?;
    }
    match count.saturating_sub(HOLDERS_TOLD) {
        _ if count == 0 => Ok(()),
        0 => f.write_str(")"),
        more => write!(f, " and {more} more)"),
    }
}

/// Nodes in the text of a refusal; the value has them all.
const NODES_TOLD: usize = 4;

/// Holders per node in the text of a refusal; the value has them all.
const HOLDERS_TOLD: usize = 3;
