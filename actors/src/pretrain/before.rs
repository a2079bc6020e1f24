//! State that is left of the ranks of a run from their life before, how that ended, and the end of one that has not begun.

use std::collections::BTreeMap;

use odeon::{Failure, FailureKind, Ref, Timestamp};
use odeon_algorithms::train::Sharing;

use super::rank::PretrainRank;

/// State that is left from before a life of the ranks.
#[derive(Default)]
pub(super) struct Before {
    /// Number of lives.
    pub(super) lives: u32,
    /// Set where there was room for the ranks of one.
    pub(super) placed: bool,
    /// Set where some of the last were lost.
    pub(super) lost: bool,
    /// Those of the last that are still there.
    pub(super) members: BTreeMap<usize, Ref<PretrainRank>>,
    /// Steps of the last checkpoint that is durable.
    pub(super) saved: Option<u64>,
    /// When it was over.
    pub(super) since: Option<Timestamp>,
}

/// The good ends of a life of the ranks.
pub(super) enum End {
    /// All steps are done, or it was asked to halt.
    Done,
    /// The ranks should be these from now on.
    Resized(Sharing),
}

/// The end of ranks that have not begun.
pub(super) struct Unbegun {
    pub(super) failure: Failure,
    /// Those whose processes are gone.
    pub(super) lost: Vec<usize>,
}

impl Unbegun {
    /// Returns true where others would end the same way, or no room was there for any.
    pub(super) const fn is_final(&self, placed: bool) -> bool {
        match self.failure.kind {
            FailureKind::Fatal => true,
            FailureKind::NotPlaced => !placed,
            _ => false,
        }
    }
}

impl From<Failure> for Unbegun {
    fn from(failure: Failure) -> Self {
        let lost = vec![];
        Self { failure, lost }
    }
}
