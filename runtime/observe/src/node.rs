//! Nodes and processes as they are seen.

use std::time::Duration;

use odeon::ProcessId;
use odeon::inspect::{LinkView, MachineView, NodeView, ProcessKind, Times, Usage};
use odeon::trace::SpanCounts;

use crate::date::Date;

/// A process as it is seen.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number in the cluster.
    pub id: ProcessId,
    /// The node that it is on.
    pub node: String,
    /// The operating system's number.
    pub pid: Option<u32>,
    /// What it is for.
    pub kind: ProcessKind,
    /// The job that it works for.
    pub job: String,
    /// When it was first seen.
    pub started: Date,
    /// When it was gone.
    pub ended: Option<Date>,
    /// How many spans it has recorded.
    pub spans: SpanCounts,
    /// Spans that were overwritten before anybody saw them.
    pub spans_lost: u64,
    /// How long its asks took.
    pub ask_times: Times,
    /// Messages without an answer that nobody handled.
    pub dead_letters: u64,
    /// Bytes in blobs that it owns.
    pub blob_bytes: u64,
    /// How many actors it has.
    pub hosted: u32,
    /// How far its clock may be from what is assumed.
    pub clock_error: Duration,
    /// What it uses of its machine, where the system tells.
    pub usage: Option<Usage>,
}

/// A node as it is seen.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The process that it is.
    pub process: ProcessId,
    /// When it was first seen, in its present life.
    pub since: Date,
    /// When it was last seen.
    pub seen: Date,
    /// It is known to be gone.
    pub gone: Option<Date>,
    /// Its links to other nodes.
    pub links: Vec<LinkView>,
    /// What it has, who holds it, who waits.
    pub hardware: Option<NodeView>,
    /// By how many nanoseconds its clock is ahead of the observer's, and how sure that is; `None` for
    /// the observer's own.
    pub clock: Option<(i64, Duration)>,
    /// What its machine is like.
    pub machine: MachineView,
}
