//! Lives of the ranks of a run: what is left of the last, and how often they were lost.

use std::collections::BTreeMap;

use odeon::{Failure, FailureKind, Ref, Timestamp};

use super::rank::PretrainRank;

/// Losses of a rank between two checkpoints, after which a run ends.
const LOSSES_MAX: u32 = 3;

/// State that is left from before a life of the ranks.
#[derive(Default)]
pub(super) struct Before {
    /// Number of lives.
    pub(super) lives: u32,
    /// Set where there was room for the ranks of one.
    pub(super) placed: bool,
    /// Those of the last that are still there.
    pub(super) members: BTreeMap<usize, Ref<PretrainRank>>,
    /// Steps of the last checkpoint that is durable.
    pub(super) saved: Option<u64>,
    /// When it was over.
    pub(super) since: Option<Timestamp>,
}

/// Losses of ranks in a row.
#[derive(Debug, Default)]
pub(super) struct Tries {
    pub(super) life: u32,
    /// Set once there was room for all ranks.
    pub(super) placed: bool,
    losses: u32,
    /// Steps of the checkpoint that was saved when they were lost last.
    pub(super) saved: Option<u64>,
}

impl Tries {
    /// Returns true when it makes sense to make the ranks again.
    pub(super) fn again(&mut self, failure: &Failure, saved: Option<u64>) -> bool {
        self.losses = if saved == self.saved {
            self.losses + 1
        } else {
            1
        };
        self.saved = saved;
        self.losses <= LOSSES_MAX && failure.kind != FailureKind::Fatal
    }
}
