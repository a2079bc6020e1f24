//! A line that a process has printed, and by what it is known: who has sent it, and which of theirs
//! it is.

use serde::{Deserialize, Serialize};

use crate::unix::Unix;

/// A line that a process of a job has printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The try that has printed it, counted from 1.
    pub attempt: u32,
    /// The life of the node that has sent it: its engine's number.
    pub sender: u64,
    /// Which of that source's lines it is, counted from 0. A number that is missing was lost.
    pub number: u64,
    /// When the node saw it; no earlier than the line before it from there.
    pub at: Unix,
    /// The node.
    pub node: String,
    /// Which process: `driver`, or the number of a worker in the cluster.
    pub process: String,
    /// On which of its two outputs.
    pub stream: Stream,
    /// Without its end; what is no UTF-8 is replaced.
    pub text: String,
    /// Set where this is how the line stood for a while: the process has written over it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
}

/// A source that numbers lines: a node in one of its lives, all that one try of a job prints there.
/// So a reader has one number to remember for each node, however many processes the job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LineSource {
    /// The try.
    pub attempt: u32,
    /// The life of the node.
    pub sender: u64,
}

/// The outputs of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl LogLine {
    /// The source that has numbered it.
    #[must_use]
    pub const fn source(&self) -> LineSource {
        LineSource {
            attempt: self.attempt,
            sender: self.sender,
        }
    }

    /// The place of a line among all of its job: by time, then by source, then by number. No two
    /// lines share one, and those of a source are in the order of their numbers.
    #[must_use]
    pub const fn place(&self) -> LinePlace {
        (self.at, self.source(), self.number)
    }
}

/// See [`LogLine::place`].
pub type LinePlace = (Unix, LineSource, u64);
