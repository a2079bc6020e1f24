//! Facts: what the catalog is told. Each kind of row has one writer, which a fact names.

use std::fmt;

use odeon_artifacts::Digest;
use odeon_placement::{Device, Quota, Resources};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::access::KeyRole;
use crate::job::{Event, Job, JobId, JobSpec, Outcome, State};
use crate::unix::Unix;

/// A fact on its way into the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Random; one that was written already is not written again.
    pub id: u64,
    /// When it was said.
    pub at: Unix,
    /// The node, or the leader, that says it.
    pub writer: Writer,
    /// The fact itself.
    pub fact: Fact,
}

/// The author of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// The leader of the voters, for itself or for people who have asked it to.
    Leader,
    /// A node, about itself and what it runs.
    Node(String),
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => f.write_str("the leader"),
            Self::Node(node) => write!(f, "node `{node}`"),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The description that a node gives of itself when it comes up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Its name; its certificate says so too.
    pub name: String,
    /// Which life of it this is: the number of its process.
    pub boot: u64,
    /// Where other nodes reach it.
    pub address: String,
    /// The release of Odeon that it runs.
    pub release: String,
    /// Processors.
    pub cpus: u32,
    /// Main memory, in bytes.
    pub memory: u64,
    /// Devices, by their models.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Set where it has a disk for the log of the voters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub votes: bool,
    /// Where its HTTP API is, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// The life of it that the catalog knew when this one said that it is up. When it knows another
    /// by now, what was said comes late, from a life that may be over.
    #[serde(default)]
    pub follows: Option<u64>,
    /// The fingerprint of its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Number of times that it has become another program in this life.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub upgrades: u32,
    /// Its devices as they are placed on, each by its number; an older release names models alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inventory: Vec<Device>,
    /// Why it does not hold jobs to the processors and the memory that they have reserved; none where
    /// it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<String>,
    /// Why the disk of its folder is about to be full; none where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_disk: Option<String>,
}

/// A change that the catalog is told of, as its writer states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "a fact is written, read and gone: few are there at a time"
)]
pub enum Fact {
    /// A node has come up. Written by itself.
    NodeUp(NodeSpec),
    /// A node leaves in order; none of its processes is left. Written by itself.
    NodeLeft {
        /// Which.
        node: String,
        /// Which life of it.
        boot: u64,
    },
    /// A node is not heard of any more. Written by the leader.
    NodeLost {
        /// Which.
        node: String,
        /// Which life of it.
        boot: u64,
        /// The sign by which that was seen.
        why: String,
    },
    /// A node gets no new jobs from now on, or gets some again. Written by the leader.
    NodeDrained {
        /// Which.
        node: String,
        /// True for drained, false for jobs again.
        drained: bool,
        /// The name of whoever wants that.
        by: String,
    },
    /// Nothing is placed on a node from now on. Written by the leader.
    NodeRefused {
        /// Which.
        node: String,
        /// The fault of it, in words.
        why: String,
        /// The name of whoever wants that.
        by: String,
    },
    /// A check has found that a refused node is not to be let back. Written by the leader.
    NodeChecked {
        /// Which.
        node: String,
        /// The faults that it has found, in words.
        found: String,
        /// The name of whoever wanted the check.
        by: String,
        /// The refusal that stood when the check began; see [`NodeBan::number`](crate::tables::NodeBan).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u64>,
    },
    /// A node that was refused may get work again. Written by the leader.
    NodeLetBack {
        /// Which.
        node: String,
        /// Why, in words; may be empty.
        why: String,
        /// The name of whoever wants that.
        by: String,
        /// Set where a check of it has found nothing wrong.
        passed: bool,
        /// Of a check: the refusal that stood when it began. One that was said meanwhile stays.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u64>,
    },
    /// A node that is gone is to be forgotten. Written by the leader.
    NodeForgotten {
        /// Which.
        node: String,
    },
    /// A token with which nodes may join. Written by the leader.
    TokenMade {
        /// The hash of its secret.
        id: String,
        /// Number of nodes that may use it.
        uses: u32,
        /// Until when.
        until: Unix,
        /// The name of whoever wants that.
        by: String,
    },
    /// A node has joined with a token. Written by the leader.
    TokenUsed {
        /// The hash of its secret.
        id: String,
        /// Which node.
        node: String,
    },
    /// A key with which people use the API. Written by the leader.
    KeyMade {
        /// The hash of its secret.
        id: String,
        /// Whose it is.
        name: String,
        /// The rights that it gives.
        role: KeyRole,
        /// The name of whoever wants that.
        by: String,
    },
    /// A key is not good any more. Written by the leader.
    KeyRevoked {
        /// Whose it was.
        name: String,
        /// The name of whoever wants that.
        by: String,
    },
    /// The number of nodes that shall vote. Written by the leader.
    VotersSet {
        /// An odd number; as many as there are nodes for.
        count: u32,
        /// The name of whoever wants that.
        by: String,
    },
    /// The bounds of a namespace. Written by the leader.
    NamespaceSet {
        /// Which.
        name: String,
        /// Its bounds; `None` removes them.
        quota: Option<NamespaceQuota>,
        /// The name of whoever wants that.
        by: String,
    },
    /// A job was submitted, and its files are here. Written by the leader.
    JobSubmitted {
        /// The job to run.
        spec: JobSpec,
        /// The name of whoever wants that.
        by: String,
    },
    /// All jobs of an array to which that can be done are to end, or to be run again. Written by the
    /// leader.
    Array {
        /// The first of them, or any.
        first: JobId,
        /// The act.
        act: ArrayAct,
        /// The name of whoever wants that.
        by: String,
    },
    /// A node installs an environment for all others. Written by itself.
    EnvironmentClaimed {
        /// Of which key.
        key: Digest,
        /// Which node.
        node: String,
        /// In which life of it.
        boot: u64,
        /// A number that it has drawn.
        claim: u64,
        /// The snapshot that is nowhere whole any more, where there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lost: Option<Digest>,
    },
    /// The node that installs an environment is done with that. Written by itself.
    EnvironmentSettled {
        /// Of which key.
        key: Digest,
        /// Which node.
        node: String,
        /// The number under which it has claimed it.
        claim: u64,
        /// All files of it, in its store; none where it has given up, or its setup has failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bundle: Option<Digest>,
        /// Why its setup has failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Something happened to a job. Written by the node of its present try when it is about that;
    /// else by the leader.
    Job {
        /// Which.
        job: JobId,
        /// The event.
        event: Event,
    },
}

/// An act on all jobs of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayAct {
    /// Those that wait never begin.
    Cancel,
    /// Those that wait never begin, and the others end in order.
    Stop,
    /// Those that wait never begin, and the others are killed.
    Kill,
    /// Those that are over and have not succeeded are run again.
    Retry,
}

impl ArrayAct {
    /// Returns true where it can be done to a job.
    pub(crate) fn is_for(self, job: &Job) -> bool {
        match self {
            Self::Cancel => matches!(job.state, State::Waiting { .. }),
            Self::Stop | Self::Kill => !job.is_over(),
            Self::Retry => job.outcome().is_some_and(|it| *it != Outcome::Succeeded),
        }
    }

    /// What is said of an array of which none is such.
    pub(crate) const fn lacks(self) -> &'static str {
        match self {
            Self::Cancel => "waits: those that run are ended with `odeon stop`",
            Self::Stop | Self::Kill => "runs or waits: all are over",
            Self::Retry => "has failed or was ended: there is nothing to run again",
        }
    }
}

/// The bounds of a namespace; what is missing has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceQuota {
    /// Jobs that have a node at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_max: Option<u32>,
    /// Devices that their actors hold at the same time, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u64>,
    /// Processor time that they hold, in thousandths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// Main memory that they hold, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl NamespaceQuota {
    /// So many jobs.
    #[must_use]
    pub fn running(most: u32) -> Self {
        Self {
            running_max: Some(most),
            ..Self::default()
        }
    }

    /// The part of it that the nodes keep when they place actors; nothing, if that is without
    /// bounds.
    pub(crate) fn of_actors(self) -> Option<Quota> {
        let mut resources = Resources::new();
        if let Some(milli) = self.cpu_milli {
            resources = resources.cpu_milli(milli);
        }
        if let Some(bytes) = self.memory_bytes {
            resources = resources.memory_bytes(bytes);
        }
        let gpu_milli = self.gpu_milli;
        let bounds = gpu_milli.is_some() || !resources.is_empty();
        bounds.then_some(Quota {
            resources,
            gpu_milli,
        })
    }
}

/// The result of writing a fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// It is in the catalog.
    Done,
    /// So is the job, under this number.
    Job(JobId),
}

/// A fact that the catalog does not take. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{why}")]
pub struct Refusal {
    /// The kind of trouble it is.
    pub kind: RefusalKind,
    /// In words.
    pub why: String,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// There is no such row.
    Unknown,
    /// It does not fit what is known by now.
    Conflict,
    /// It cannot be meant.
    Invalid,
    /// Another writes this row.
    NotYours,
}

impl Refusal {
    pub(crate) fn new(kind: RefusalKind, why: impl fmt::Display) -> Self {
        let why = why.to_string();
        Self { kind, why }
    }
}
