//! The mesh of ranks as a tree: who works on what, and who is fed by whom.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A way in which a model or its work is cut over ranks.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, odeon::Shape,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Dimension {
    /// Layers, stage by stage. All stages work on the same micro-batches.
    Pipeline,
    /// Samples: each has its own.
    Data,
    /// One sequence, slice by slice.
    Context,
    /// Matrices. All work on the same tokens.
    Tensor,
}

/// The axis whose places get samples of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Axis {
    /// Each place along the data dimension.
    Data,
    /// Each along data and context: whole sequences on each rank of a context group.
    Context,
    /// Each rank.
    World,
}

/// A mesh of ranks. A rank is a leaf; its number counts the leaves, the last dimension first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct PlaceTree {
    /// Dimensions with their sizes, from the outermost on.
    levels: Vec<(Dimension, u32)>,
}

impl PlaceTree {
    /// Of dimensions with their sizes, from the outermost on. Those that are left out have size 1.
    ///
    /// # Errors
    /// A size of 0, a dimension that is there twice, or more ranks than can be numbered.
    pub fn new(levels: &[(Dimension, u32)]) -> Result<Self, TreeError> {
        for (at, (dimension, size)) in levels.iter().enumerate() {
            if *size == 0 {
                return Err(TreeError::Empty(*dimension));
            }
            if levels[..at].iter().any(|(other, _)| other == dimension) {
                return Err(TreeError::Twice(*dimension));
            }
        }
        let ranks = levels
            .iter()
            .try_fold(1u32, |all, (_, size)| all.checked_mul(*size));
        ranks.ok_or(TreeError::Large)?;
        Ok(Self {
            levels: levels.to_vec(),
        })
    }

    /// So many data-parallel ranks and nothing else.
    ///
    /// # Errors
    /// None at all.
    pub fn data(ranks: u32) -> Result<Self, TreeError> {
        Self::new(&[(Dimension::Data, ranks)])
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.levels.iter().map(|(_, size)| size).product()
    }

    /// The size of a dimension.
    #[must_use]
    pub fn size(&self, dimension: Dimension) -> u32 {
        let found = self.levels.iter().find(|(other, _)| *other == dimension);
        found.map_or(1, |(_, size)| *size)
    }

    /// The place of a rank along a dimension.
    #[must_use]
    pub fn place(&self, rank: u32, dimension: Dimension) -> u32 {
        let (stride, size) = self.stride(dimension);
        rank / stride % size
    }

    /// The rank that is like this one but stands at `place` along a dimension.
    #[must_use]
    pub fn at(&self, rank: u32, dimension: Dimension, place: u32) -> u32 {
        let (stride, size) = self.stride(dimension);
        rank - self.place(rank, dimension) * stride + place.min(size - 1) * stride
    }

    /// Number of buckets of samples along an axis.
    #[must_use]
    pub fn buckets(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Data => self.size(Dimension::Data),
            Axis::Context => self.size(Dimension::Data) * self.size(Dimension::Context),
            Axis::World => self.ranks(),
        }
    }

    /// The bucket that a rank works on. Ranks with different ones need different micro-batches.
    #[must_use]
    pub fn bucket(&self, axis: Axis, rank: u32) -> u32 {
        let data = self.place(rank, Dimension::Data);
        match axis {
            Axis::Data => data,
            Axis::Context => {
                data * self.size(Dimension::Context) + self.place(rank, Dimension::Context)
            }
            Axis::World => rank,
        }
    }

    /// The slice of each sequence of its bucket that a rank works on.
    #[must_use]
    pub fn slice(&self, axis: Axis, rank: u32) -> Slice {
        match axis {
            Axis::Data => Slice {
                part: self.place(rank, Dimension::Context),
                of: self.size(Dimension::Context),
            },
            Axis::Context | Axis::World => Slice::WHOLE,
        }
    }

    fn stride(&self, dimension: Dimension) -> (u32, u32) {
        let mut stride = 1;
        for (other, size) in self.levels.iter().rev() {
            if *other == dimension {
                return (stride, *size);
            }
            stride *= size;
        }
        (1, 1)
    }
}

/// A mesh that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A dimension of size 0: leave it out, or give it 1.
    #[error("{0:?} has size 0")]
    Empty(Dimension),
    /// A dimension that is there twice.
    #[error("{0:?} is there twice")]
    Twice(Dimension),
    /// More ranks than 32 bits count.
    #[error("there are more than 2^32 ranks")]
    Large,
}

/// A part of each sequence.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, odeon::Shape,
)]
pub struct Slice {
    /// Which part, from 0.
    pub part: u32,
    /// Of how many.
    pub of: u32,
}

impl Slice {
    /// All of it.
    pub const WHOLE: Self = Self { part: 0, of: 1 };
}

/// The way in which sequences are cut for context parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(rename_all = "snake_case")]
pub enum Slicing {
    /// One run of tokens for each part. Under a causal mask the last has most work.
    Contiguous,
    /// Two runs for each part, one from the front and its mirror from the back, so that all parts
    /// have the same work under a causal mask.
    #[default]
    Zigzag,
}

impl Slicing {
    /// The tokens of a slice of a sequence of `tokens`; empty ranges are left out. Over all parts
    /// they cover the sequence once.
    #[must_use]
    pub fn ranges(self, tokens: u32, slice: Slice) -> Vec<Range<u32>> {
        let runs = match self {
            Self::Contiguous => slice.of,
            Self::Zigzag => 2 * slice.of,
        };
        let cut = |at: u32| (u64::from(tokens) * u64::from(at) / u64::from(runs)) as u32;
        let run = |at: u32| cut(at)..cut(at + 1);
        let mut ranges = vec![run(slice.part)];
        if self == Self::Zigzag {
            let back = run(runs - 1 - slice.part);
            // In the middle the two runs touch.
            if ranges[0].end == back.start {
                ranges[0].end = back.end;
            } else {
                ranges.push(back);
            }
        }
        ranges.retain(|range| !range.is_empty());
        ranges
    }
}

/// The ranks that fetch, and those that are fed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct FetchPlan {
    /// The mesh.
    pub tree: PlaceTree,
    /// The axis whose places have a bucket each.
    pub axis: Axis,
    /// Dimensions along which the first rank alone fetches and feeds the others.
    pub broadcast_at: Vec<Dimension>,
    /// The way in which sequences are cut.
    pub slicing: Slicing,
}

/// The batch that a rank fetches, and the ranks that it feeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The rank.
    pub rank: u32,
    /// The bucket.
    pub bucket: u32,
    /// The part of each sequence. It is whole where ranks with different parts are fed.
    pub slice: Slice,
    /// The ranks that it feeds, itself not among them.
    pub feeds: Vec<u32>,
}

/// The way in which a rank comes by its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feed {
    /// It fetches.
    Fetches(Fetch),
    /// This rank feeds it.
    From(u32),
}

impl FetchPlan {
    /// The way in which a rank comes by its samples.
    #[must_use]
    pub fn of(&self, rank: u32) -> Feed {
        let first = |rank, dimension: &Dimension| self.tree.at(rank, *dimension, 0);
        let root = self.broadcast_at.iter().fold(rank, first);
        if root != rank {
            return Feed::From(root);
        }
        let mut fed = vec![rank];
        for dimension in &self.broadcast_at {
            let places = 1..self.tree.size(*dimension);
            let along = |rank: u32| places.clone().map(move |place| (rank, place));
            let others: Vec<u32> = fed
                .iter()
                .flat_map(|rank| along(*rank))
                .map(|(rank, place)| self.tree.at(rank, *dimension, place))
                .collect();
            fed.extend(others);
        }
        fed.remove(0);
        fed.sort_unstable();
        let slice = if self.broadcast_at.contains(&Dimension::Context) {
            Slice::WHOLE
        } else {
            self.tree.slice(self.axis, rank)
        };
        Feed::Fetches(Fetch {
            rank,
            bucket: self.tree.bucket(self.axis, rank),
            slice,
            feeds: fed,
        })
    }

    /// All ranks that fetch.
    pub fn fetches(&self) -> impl Iterator<Item = Fetch> + '_ {
        (0..self.tree.ranks()).filter_map(|rank| match self.of(rank) {
            Feed::Fetches(fetch) => Some(fetch),
            Feed::From(_) => None,
        })
    }

    /// Number of slices of each bucket that are fetched.
    #[must_use]
    pub fn slices(&self) -> u32 {
        let whole = self.broadcast_at.contains(&Dimension::Context);
        if whole {
            1
        } else {
            self.tree.slice(self.axis, 0).of
        }
    }

    /// A dimension along which nothing can be broadcast, since its places have buckets of their
    /// own.
    pub(super) fn fault(&self) -> Option<Dimension> {
        let apart = |dimension: &&Dimension| match self.axis {
            Axis::World => true,
            Axis::Context => matches!(dimension, Dimension::Data | Dimension::Context),
            Axis::Data => matches!(dimension, Dimension::Data),
        };
        self.broadcast_at.iter().find(apart).copied()
    }
}
