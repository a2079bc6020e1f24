//! Why a demand has no place, for people and for the scheduler.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Demand, Liveness, Resource, Resources};

/// No placement exists at present. Says for each node what stands in the way first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", self.text())]
pub struct Refusal {
    /// Who asked.
    pub holder: String,
    /// What each bundle needs.
    pub bundle: Resources,
    /// How many bundles were asked for.
    pub gang: u32,
    /// How many of them could be placed.
    pub would_fit: u32,
    /// Whether the nodes that are up would not do even if they were empty. Waiting for others to
    /// finish does not help then; a smaller demand or another node does.
    pub hopeless: bool,
    /// All nodes, nearest to a fit first.
    pub nodes: Vec<NodeRefusal>,
}

/// What stands in the way on one node.
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
    /// A holder that must be here is not.
    NotNear {
        /// That holder.
        holder: String,
    },
    /// A holder that must not be here is.
    NotApart {
        /// That holder.
        holder: String,
    },
    /// The node is too small, even when empty.
    TooSmall {
        /// What it has too little of.
        resource: Resource,
        /// What one bundle needs.
        asked: u64,
        /// All that the node has.
        capacity: u64,
    },
    /// Others hold too much.
    Busy {
        /// What there is too little of.
        resource: Resource,
        /// What one bundle needs.
        asked: u64,
        /// What is free, after the bundles that fit.
        free: u64,
        /// All that the node has.
        capacity: u64,
        /// Who holds how much, most first.
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
    pub(crate) fn new(
        demand: &Demand,
        would_fit: u32,
        hopeless: bool,
        mut nodes: Vec<NodeRefusal>,
    ) -> Self {
        nodes.sort_by_cached_key(|node| {
            (
                std::cmp::Reverse(node.room_for),
                node.reason.distance(),
                node.node.clone(),
            )
        });
        let Demand {
            holder,
            bundle,
            gang,
            ..
        } = demand;
        let (holder, bundle) = (holder.clone(), bundle.clone());
        Self {
            holder,
            bundle,
            gang: *gang,
            would_fit,
            hopeless,
            nodes,
        }
    }

    /// The node that is nearest to a fit, if there are nodes at all.
    #[must_use]
    pub fn nearest(&self) -> Option<&NodeRefusal> {
        self.nodes.first()
    }

    fn text(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            let Self {
                holder,
                bundle,
                gang,
                would_fit,
                hopeless,
                nodes,
            } = self;
            match gang {
                1 => write!(f, "no place for {holder} ({bundle}): ")?,
                _ => write!(
                    f,
                    "no place for {holder} ({gang} x {bundle}, {would_fit} would fit): "
                )?,
            }
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
                0 => {}
                1 => f.write_str("; and one other node")?,
                more => write!(f, "; and {more} other nodes")?,
            }
            if *hopeless {
                f.write_str(". It would not fit on idle nodes either")?;
            }
            Ok(())
        })
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
    /// How far from a fit, for sorting: first what passes with time, then what doesn't.
    fn distance(&self) -> u8 {
        match self {
            Self::Others => 0,
            Self::Busy { .. } => 1,
            Self::Workers { .. } => 2,
            Self::NotApart { .. } => 3,
            Self::NotNear { .. } => 4,
            Self::TooSmall { .. } => 5,
            Self::NotUp(_) => 6,
            Self::Label { .. } => 7,
            Self::NotTheNode { .. } => 8,
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
            Self::NotNear { holder } => write!(f, "does not have {holder}"),
            Self::NotApart { holder } => write!(f, "has {holder}, which must be apart"),
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
