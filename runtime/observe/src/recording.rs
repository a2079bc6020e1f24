//! Recordings of all that an observer was shown, as a file: the same pages again, at any other
//! time.
//!
//! ```text
//!  "odeonrec" | version u16 | length u32 | crc u32 | head          what it is of, and since when
//!  length u32 | crc u32 | first u64 | last u64 | frames, deflated  again and again, each written at once
//!  0 u32      | crc u32 | 0 u64     | 0 u64                        it was ended in order
//! ```
//!
//! Numbers are little-endian. A frame is its length and its MessagePack with names of fields, so that
//! files outlive fields that are added with a default. All blocks are pieces of one deflate stream,
//! each flushed: one that is cut short, by whatever, replays up to the last block that is whole.

mod read;
mod write;

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use odeon::Timestamp;
use odeon::inspect::NodeSight;
use serde::{Deserialize, Serialize};

use crate::cluster_view::{ClusterView, LowDisk, RefusedNode, WaitingJob};
use crate::date::Date;
use crate::event::Event;

pub use read::{Frames, Recording};
pub use write::Recorder;

/// The bytes that each file begins with.
const MAGIC: [u8; 8] = *b"odeonrec";
/// The version of the layout above and of what the frames mean.
const VERSION: u16 = 2;
/// Bytes of a block's own head.
const BLOCK_HEAD: usize = 24;
/// Bytes of a file: hours of a small system. What does not fit is not recorded, and that is said.
pub const BYTES_MAX: u64 = 256 << 20;
/// The first date of the empty block behind the last of one that has no room for more.
const FULL: Date = Date(1);
/// Bytes of one frame, and of the head. More is taken for damage.
const FRAME_MAX: usize = 64 << 20;

/// One thing that a cluster view is told, or that faces note beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Frame<'a> {
    /// [`ClusterView::look`].
    Look {
        /// The node's own view.
        sight: Cow<'a, NodeSight>,
        /// The observer's clock...
        at: Timestamp,
        /// ... at this date.
        date: Date,
        /// By how much the node's clock was ahead, and how sure that is.
        clock: Option<(i64, Duration)>,
    },
    /// [`ClusterView::node_gone`].
    NodeGone {
        /// Which.
        name: Cow<'a, str>,
        /// When.
        date: Date,
        /// It did not leave in order.
        #[serde(default)]
        lost: bool,
    },
    /// [`ClusterView::forget_node`].
    Forgotten {
        /// Which.
        name: Cow<'a, str>,
        /// When.
        date: Date,
    },
    /// [`ClusterView::tick`].
    Tick {
        /// When.
        date: Date,
    },
    /// [`ClusterView::note`].
    Happened {
        /// When it was told.
        date: Date,
        /// The event.
        event: Cow<'a, Event>,
    },
    /// [`ClusterView::jobs_waiting`].
    JobsWaiting {
        /// When.
        date: Date,
        /// All of them.
        jobs: Cow<'a, [WaitingJob]>,
    },
    /// A note of what a face shows beside what is observed, in words of its own.
    Note {
        /// When.
        date: Date,
        /// Its subject.
        about: Cow<'a, str>,
        /// JSON.
        json: Cow<'a, str>,
    },
    /// [`ClusterView::disks_low`].
    DisksLow {
        /// When.
        date: Date,
        /// All of them.
        disks: Cow<'a, [LowDisk]>,
    },
    /// [`ClusterView::nodes_refused`].
    NodesRefused {
        /// When.
        date: Date,
        /// All of them.
        nodes: Cow<'a, [RefusedNode]>,
    },
}

impl Frame<'_> {
    /// When it was.
    #[must_use]
    pub const fn date(&self) -> Date {
        match self {
            Self::Look { date, .. }
            | Self::NodeGone { date, .. }
            | Self::Forgotten { date, .. }
            | Self::Tick { date }
            | Self::Happened { date, .. }
            | Self::JobsWaiting { date, .. }
            | Self::DisksLow { date, .. }
            | Self::NodesRefused { date, .. }
            | Self::Note { date, .. } => *date,
        }
    }

    /// Tells it to a cluster view; a note is handed to `note` with what it is about.
    pub fn tell(self, seen: &mut ClusterView, mut note: impl FnMut(&str, &str)) {
        match self {
            Self::Look {
                sight,
                at,
                date,
                clock,
            } => seen.look(sight.into_owned(), (at, date), clock),
            Self::NodeGone { name, date, lost } => seen.node_gone(&name, date, lost),
            Self::Forgotten { name, .. } => seen.forget_node(&name),
            Self::Tick { date } => seen.tick(date),
            Self::Happened { event, .. } => seen.note(event.into_owned()),
            Self::JobsWaiting { jobs, .. } => seen.jobs_waiting(jobs.into_owned()),
            Self::DisksLow { disks, .. } => seen.disks_low(disks.into_owned()),
            Self::NodesRefused { nodes, .. } => seen.nodes_refused(nodes.into_owned()),
            Self::Note { about, json, .. } => note(&about, &json),
        }
    }
}

/// The head of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The name for people of what was looked at.
    pub name: String,
    /// The release that recorded it.
    pub release: String,
    /// When it began.
    pub began: Date,
}

/// The way in which a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    InOrder,
    /// At [`BYTES_MAX`]: what came later is not in it.
    Full,
    /// In the middle of something: whoever recorded was killed, or its disk was full.
    Cut,
    /// At a block that is not as it was written; what follows it cannot be read.
    Damaged,
}

/// A recording that cannot be made, or not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The disk did not take it.
    #[error("the recording cannot be written: {0}")]
    Io(#[from] io::Error),
    /// Its file is not there, or cannot be read.
    #[error("the file cannot be read: {0}")]
    Unread(#[source] io::Error),
    /// It is another kind of file.
    #[error(
        "this is no recording of odeon: it does not begin as one; `odeon run --record FILE` makes them"
    )]
    Foreign,
    /// It was made by a newer release.
    #[error(
        "the recording has version {found}, and this release reads up to {VERSION}: replay it with \
         the release that recorded it, or a newer one"
    )]
    Newer {
        /// The version of the file.
        found: u16,
    },
    /// Its head is not as it was written.
    #[error("the head of the recording is damaged: nothing of it can be shown")]
    Head,
    /// A frame is whole, and this release does not understand it.
    #[error("the recording, of release {release}, holds what this one does not understand: {why}")]
    Strange {
        /// The release that recorded it.
        release: String,
        /// The part that it does not understand.
        why: String,
    },
    /// It has reached its bound.
    #[error("the recording has reached {} MiB and ends there", BYTES_MAX >> 20)]
    Full,
    /// Nothing is in it.
    #[error("the recording is empty: it was cut before anything was seen")]
    Empty,
}

#[cfg(test)]
mod tests;
