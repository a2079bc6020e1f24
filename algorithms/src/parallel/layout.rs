//! Layouts of a model over ranks while it is trained.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// A training layout: `data` replicas, each of `pipeline` stages, each of `tensor` ranks.
///
/// Shown as `pipeline-tensor-data`. Ranks of a tensor group are consecutive, then come the stages
/// of a replica, then the replicas: `rank = (data * p + stage) * t + tensor`. A replica is one
/// block of ranks, as in HybridFlow's figures (arXiv 2409.19256). Megatron's default puts the
/// replicas between tensor rank and stage; that is another numbering of the same coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Sizes", into = "Sizes")]
pub struct Layout {
    pipeline: usize,
    tensor: usize,
    data: usize,
}

/// Where a rank stands in a [`Layout`]; each number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Coordinates {
    /// Which replica.
    pub data: usize,
    /// Which stage of it.
    pub pipeline: usize,
    /// Which rank of the stage.
    pub tensor: usize,
}

/// Why ranks cannot be laid out like this. Nothing has happened; the numbers have to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A size is zero.
    #[error("{0} parallelism of 0; it must be at least 1")]
    Zero(&'static str),
    /// A layout has more ranks than are planned for.
    #[error("a layout of {pipeline}-{tensor}-{data} has more than {RANKS_MAX} ranks")]
    TooLarge {
        /// Stages.
        pipeline: usize,
        /// Ranks of a stage.
        tensor: usize,
        /// Replicas.
        data: usize,
    },
    /// The generation groups do not divide those of training.
    #[error(
        "{what} parallelism of {generation} for generation does not divide the {training} of \
         training ({layout}); choose a divisor"
    )]
    NotDivided {
        /// `tensor` or `pipeline`; `model` where both are meant.
        what: &'static str,
        /// Ranks of a group in generation.
        generation: usize,
        /// Ranks of a group in training.
        training: usize,
        /// The training layout.
        layout: Layout,
    },
    /// The layout has no such rank.
    #[error("there is no rank {rank} in {layout}, which has {}", layout.ranks())]
    NoRank {
        /// The rank.
        rank: usize,
        /// The layout.
        layout: Layout,
    },
}

impl Layout {
    /// `data` replicas of `pipeline` stages of `tensor` ranks.
    ///
    /// # Errors
    /// [`LayoutError::Zero`] or [`LayoutError::TooLarge`].
    pub fn new(pipeline: usize, tensor: usize, data: usize) -> Result<Self, LayoutError> {
        let named = [("pipeline", pipeline), ("tensor", tensor), ("data", data)];
        if let Some((what, _)) = named.iter().find(|(_, size)| *size == 0) {
            return Err(LayoutError::Zero(what));
        }
        let ranks = pipeline
            .checked_mul(tensor)
            .and_then(|shards| shards.checked_mul(data));
        if ranks.is_none_or(|ranks| ranks > RANKS_MAX) {
            return Err(LayoutError::TooLarge {
                pipeline,
                tensor,
                data,
            });
        }
        Ok(Self {
            pipeline,
            tensor,
            data,
        })
    }

    /// Stages of a replica, `p`.
    #[must_use]
    pub const fn pipeline(self) -> usize {
        self.pipeline
    }

    /// Ranks of a stage, `t`.
    #[must_use]
    pub const fn tensor(self) -> usize {
        self.tensor
    }

    /// Replicas, `d`.
    #[must_use]
    pub const fn data(self) -> usize {
        self.data
    }

    /// Ranks of a replica, `p * t`.
    #[must_use]
    pub const fn replica_ranks(self) -> usize {
        self.pipeline * self.tensor
    }

    /// All ranks, `N = p * t * d`.
    #[must_use]
    pub const fn ranks(self) -> usize {
        self.replica_ranks() * self.data
    }

    /// Where a rank stands.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn coordinates(self, rank: usize) -> Result<Coordinates, LayoutError> {
        if rank >= self.ranks() {
            return Err(LayoutError::NoRank { rank, layout: self });
        }
        Ok(self.place(rank))
    }

    /// Where a rank stands that is known to be there.
    pub(super) const fn place(self, rank: usize) -> Coordinates {
        Coordinates {
            data: rank / self.replica_ranks(),
            pipeline: rank / self.tensor % self.pipeline,
            tensor: rank % self.tensor,
        }
    }

    /// The rank at these coordinates.
    ///
    /// # Panics
    /// When a coordinate is outside of the layout.
    #[must_use]
    pub fn rank(self, at: Coordinates) -> usize {
        let inside = at.data < self.data && at.pipeline < self.pipeline && at.tensor < self.tensor;
        assert!(inside, "{at:?} is outside of {self}");
        (at.data * self.pipeline + at.pipeline) * self.tensor + at.tensor
    }

    /// The ranks that share each layer with this one, itself among them, in order.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn tensor_group(self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let at = self.coordinates(rank)?;
        let peers = (0..self.tensor).map(|tensor| self.rank(Coordinates { tensor, ..at }));
        Ok(peers.collect())
    }

    /// The ranks with the same part of the other stages, itself among them, in order of the stages.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn pipeline_group(self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let at = self.coordinates(rank)?;
        let peers = (0..self.pipeline).map(|pipeline| self.rank(Coordinates { pipeline, ..at }));
        Ok(peers.collect())
    }

    /// The ranks with the same shard, itself among them, in order.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn data_group(self, rank: usize) -> Result<Vec<usize>, LayoutError> {
        let at = self.coordinates(rank)?;
        let peers = (0..self.data).map(|data| self.rank(Coordinates { data, ..at }));
        Ok(peers.collect())
    }

    /// The ranks of this one's replica: one block.
    ///
    /// # Errors
    /// [`LayoutError::NoRank`].
    pub fn replica(self, rank: usize) -> Result<Range<usize>, LayoutError> {
        let first = self.coordinates(rank)?.data * self.replica_ranks();
        Ok(first..first + self.replica_ranks())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}-{}-{}", self.pipeline, self.tensor, self.data);
        f.pad(&text)
    }
}

/// A layout as it is sent, not checked yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Sizes {
    pipeline: usize,
    tensor: usize,
    data: usize,
}

impl TryFrom<Sizes> for Layout {
    type Error = LayoutError;

    fn try_from(sizes: Sizes) -> Result<Self, LayoutError> {
        Self::new(sizes.pipeline, sizes.tensor, sizes.data)
    }
}

impl From<Layout> for Sizes {
    fn from(layout: Layout) -> Self {
        let Layout {
            pipeline,
            tensor,
            data,
        } = layout;
        Self {
            pipeline,
            tensor,
            data,
        }
    }
}

/// Keeps what is allocated for a layout small, and products of its sizes far from overflow.
const RANKS_MAX: usize = 1 << 20;
