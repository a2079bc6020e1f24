//! Time that each stage of a save or a load takes.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A stage of a save or a load, as a rank passes through it. The first three keep the caller of a
/// save waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Waiting for the save before.
    Wait,
    /// Agreeing on who writes or reads what.
    Plan,
    /// Copying into the pool.
    Snapshot,
    /// Adding up checksums and making headers.
    Serialise,
    /// Writing to the storage.
    Upload,
    /// Waiting for all ranks, and writing the manifest.
    Commit,
    /// Removing what is no longer kept.
    Collect,
    /// Reading, and giving others what is theirs.
    Read,
    /// Taking from others, until all have everything.
    Exchange,
}

/// One stage of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageTime {
    /// The rank.
    pub rank: usize,
    /// The stage.
    pub stage: Stage,
    /// Number of bytes that passed.
    pub bytes: u64,
    /// Duration, in seconds.
    pub seconds: f64,
}

/// Hears of each stage when it ends: what the pages of a run are told, for example.
pub trait Observer: Send + Sync {
    /// A stage of the save or the load of a step has ended.
    fn stage(&self, step: u64, time: StageTime);
}

/// Measures one stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    rank: usize,
    begun: Instant,
}

impl Watch {
    pub(crate) fn begin(rank: usize) -> Self {
        Self {
            rank,
            begun: Instant::now(),
        }
    }

    pub(crate) fn end(self, stage: Stage, bytes: usize) -> StageTime {
        StageTime {
            rank: self.rank,
            stage,
            bytes: bytes as u64,
            seconds: self.begun.elapsed().as_secs_f64(),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wait => "wait",
            Self::Plan => "plan",
            Self::Snapshot => "snapshot",
            Self::Serialise => "serialise",
            Self::Upload => "upload",
            Self::Commit => "commit",
            Self::Collect => "collect",
            Self::Read => "read",
            Self::Exchange => "exchange",
        })
    }
}
