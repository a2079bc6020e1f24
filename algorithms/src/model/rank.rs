//! Places of ranks among those that compute with one model.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

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

/// The layers of each stage of a pipeline, where they are not as many as of any other or one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct StageLayers {
    lengths: [u8; Self::STAGES_MAX],
    stages: u8,
}

impl StageLayers {
    /// The most stages that can be told.
    pub const STAGES_MAX: usize = 64;

    /// The most layers of a stage that can be told.
    pub const LAYERS_MAX: usize = 255;

    /// So many layers for each stage, in their order; `None` for more stages or layers than can be told.
    #[must_use]
    pub fn new(told: &[usize]) -> Option<Self> {
        if told.len() > Self::STAGES_MAX {
            return None;
        }
        let mut lengths = [0; Self::STAGES_MAX];
        for (length, told) in lengths.iter_mut().zip(told) {
            *length = u8::try_from(*told).ok()?;
        }
        Some(Self {
            lengths,
            stages: told.len() as u8,
        })
    }

    /// The layers of each stage.
    #[must_use]
    pub fn lengths(&self) -> &[u8] {
        &self.lengths[..self.stages.into()]
    }

    /// Layers of all stages.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.lengths().iter().map(|it| usize::from(*it)).sum()
    }

    /// The layers of one stage.
    fn of(&self, stage: usize) -> Range<usize> {
        let before = self.lengths().iter().take(stage);
        let begin = before.map(|it| usize::from(*it)).sum();
        let length = self.lengths().get(stage).copied().unwrap_or(0);
        begin..begin + usize::from(length)
    }
}

impl TryFrom<Vec<u8>> for StageLayers {
    type Error = String;

    fn try_from(told: Vec<u8>) -> Result<Self, String> {
        let lengths: Vec<usize> = told.into_iter().map(usize::from).collect();
        Self::new(&lengths).ok_or_else(|| format!("at most {} stages are told", Self::STAGES_MAX))
    }
}

impl From<StageLayers> for Vec<u8> {
    fn from(layers: StageLayers) -> Self {
        layers.lengths().to_vec()
    }
}

/// The place of a rank in a pipeline. It has one stage or several: stages `rank`, `ranks + rank` and so on, of which each
/// has some layers: as many as any other or one more, unless it is told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StagePlace {
    /// Its place among the ranks of the pipeline.
    pub rank: RankOf,
    /// Stages of each rank.
    pub chunks: usize,
    /// Layers of each stage, where that is told.
    pub layers: Option<StageLayers>,
}

impl StagePlace {
    /// The only rank.
    pub const ALONE: Self = Self {
        rank: RankOf::ALONE,
        chunks: 1,
        layers: None,
    };

    /// Number of stages.
    #[must_use]
    pub const fn stages(self) -> usize {
        self.rank.ranks * self.chunks
    }

    /// The number of one of its stages.
    #[must_use]
    pub const fn stage(self, chunk: usize) -> usize {
        chunk * self.rank.ranks + self.rank.rank
    }

    /// The layers of one of its stages, of so many.
    #[must_use]
    pub fn layers(self, chunk: usize, layers: usize) -> Range<usize> {
        match &self.layers {
            Some(told) => told.of(self.stage(chunk)),
            None => RankOf::new(self.stage(chunk), self.stages()).piece(layers),
        }
    }

    /// True where it has the first stage, which embeds tokens.
    #[must_use]
    pub const fn is_first(self) -> bool {
        self.rank.rank == 0
    }

    /// True where it has the last stage, which scores rows.
    #[must_use]
    pub const fn is_last(self) -> bool {
        self.rank.rank + 1 == self.rank.ranks
    }
}

/// The place of a rank among those that share the parameters of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartPlace {
    /// Among those that each have a part of every matrix.
    pub tensor: RankOf,
    /// Among those that each have some of the experts.
    pub experts: RankOf,
    /// Among those that each have some of the layers.
    pub stage: StagePlace,
}

impl PartPlace {
    /// The place of a rank that has all.
    pub const WHOLE: Self = Self {
        tensor: RankOf::ALONE,
        experts: RankOf::ALONE,
        stage: StagePlace::ALONE,
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

/// The flat parameters of a part, by the ranks that have the same: those add up their gradients. Neighbours are one
/// range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartRanges {
    /// All ranks have them, and tensor ranks each an addend of their gradient; none where these are not shared.
    pub(crate) everywhere: Vec<Range<usize>>,
    /// Those that have other samples or rows have them.
    pub(crate) data: Vec<Range<usize>>,
    /// Those of these that have the same experts have them.
    pub(crate) experts: Vec<Range<usize>>,
}

impl PartRanges {
    /// Those of a whole model of so many parameters.
    pub(crate) fn whole(len: usize) -> Self {
        Self {
            data: std::iter::once(0..len).collect(),
            ..Self::default()
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
    /// Each has some of the layers.
    Stage,
}

impl fmt::Display for RankKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tensor => "tensor",
            Self::Expert => "expert",
            Self::Context => "context",
            Self::Shard => "sharding",
            Self::Stage => "pipeline",
        })
    }
}

/// The way in which ranks that share rows attend to those of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextKind {
    /// They exchange rows for heads: for no more ranks than heads.
    #[default]
    Ulysses,
    /// Keys and values go from rank to rank: for any number of ranks.
    Ring,
}

impl fmt::Display for ContextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ulysses => "ulysses",
            Self::Ring => "ring",
        })
    }
}

impl ContextKind {
    /// Parts of rows that a rank has.
    const fn parts(self) -> usize {
        match self {
            Self::Ulysses => 1,
            Self::Ring => 2,
        }
    }

    /// The least number of rows, so many at least, that ranks can share: each has as many as any other, and a multiple
    /// of those that share them again.
    pub(super) fn shared(self, rows: usize, ranks: usize, again: usize) -> usize {
        let parts = self.parts();
        let step = match again.is_multiple_of(parts) {
            true => again / parts,
            false => again,
        };
        rows.div_ceil(ranks * parts).next_multiple_of(step) * parts * ranks
    }

    /// The rows of a rank among those of all: runs that lie one behind the other with it.
    pub(super) fn runs(self, own: RankOf, rows: usize) -> Vec<Range<usize>> {
        let part = rows / (own.ranks * self.parts());
        let run = |number: usize| number * part..(number + 1) * part;
        match self {
            Self::Ulysses => vec![run(own.rank)],
            Self::Ring => vec![run(own.rank), run(2 * own.ranks - 1 - own.rank)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_dealt_out_from_both_ends_of_a_ring() {
        let of = |kind: ContextKind| (0..2).map(move |rank| kind.runs(RankOf::new(rank, 2), 12));
        assert!(of(ContextKind::Ring).eq([vec![0..3, 9..12], vec![3..6, 6..9]]));
        assert!(of(ContextKind::Ulysses).flatten().eq([0..6, 6..12]));
    }

    #[test]
    fn shared_rows_are_the_least_that_all_can_share() {
        let (ulysses, ring) = (ContextKind::Ulysses, ContextKind::Ring);
        for (kind, rows, ranks, again, shared) in [
            (ulysses, 5, 3, 1, 6),
            (ulysses, 5, 2, 2, 8),
            (ring, 5, 3, 1, 6),
            (ring, 7, 3, 1, 12),
            (ring, 5, 2, 2, 8),
            (ring, 9, 2, 4, 16),
            (ring, 9, 2, 3, 12),
            (ring, 13, 2, 3, 24),
        ] {
            assert_eq!(kind.shared(rows, ranks, again), shared, "{kind} {rows}");
        }
    }
}
