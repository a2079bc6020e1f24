//! Places of ranks among those that compute with one model.

use std::fmt;
use std::ops::Range;

/// One of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankOf {
    /// Its number among them, from 0.
    pub rank: usize,
    /// Number of them.
    pub ranks: usize,
}

impl RankOf {
    /// The only one.
    pub const ALONE: Self = Self { rank: 0, ranks: 1 };

    /// Rank `rank` of `ranks`.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub const fn new(rank: usize, ranks: usize) -> Self {
        assert!(rank < ranks, "a rank is one of all");
        Self { rank, ranks }
    }

    /// Its piece of so many things: pieces differ by one at most, and larger ones come first.
    #[must_use]
    pub fn piece(self, count: usize) -> Range<usize> {
        let Self { rank, ranks } = self;
        let begin = |rank: usize| rank * (count / ranks) + rank.min(count % ranks);
        begin(rank)..begin(rank + 1)
    }
}

/// The place of a rank among those that share the parameters of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartPlace {
    /// Among those that each have a part of every matrix.
    pub tensor: RankOf,
    /// Among those that each have some of the experts.
    pub experts: RankOf,
}

impl PartPlace {
    /// The place of a rank that has all.
    pub const WHOLE: Self = Self {
        tensor: RankOf::ALONE,
        experts: RankOf::ALONE,
    };

    /// Tensor rank `rank` of `ranks`.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub const fn of_tensor(rank: usize, ranks: usize) -> Self {
        Self {
            tensor: RankOf::new(rank, ranks),
            ..Self::WHOLE
        }
    }

    /// Expert rank `rank` of `ranks`.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub const fn of_experts(rank: usize, ranks: usize) -> Self {
        Self {
            experts: RankOf::new(rank, ranks),
            ..Self::WHOLE
        }
    }
}

/// The ways in which ranks compute passes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankKind {
    /// Each has a part of every matrix.
    Tensor,
    /// Each has some of the experts.
    Expert,
    /// Each has some of the rows of a sequence.
    Context,
    /// Each keeps a shard of the parameters.
    Shard,
}

impl fmt::Display for RankKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tensor => "tensor",
            Self::Expert => "expert",
            Self::Context => "context",
            Self::Shard => "sharding",
        })
    }
}
