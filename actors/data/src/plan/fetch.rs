//! Ranks of a mesh and their batches: who works on what, who fetches it, and who is fed by whom.

use odeon_mesh::{CP, DP, Mesh};
use serde::{Deserialize, Serialize};
use std::ops::Range;

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

impl Axis {
    /// Number of buckets of samples along it.
    #[must_use]
    pub fn buckets(self, mesh: &Mesh) -> u32 {
        let size = |dim| mesh.size(dim) as u32;
        match self {
            Self::Data => size(DP),
            Self::Context => size(DP) * size(CP),
            Self::World => mesh.len() as u32,
        }
    }

    /// The bucket that a rank works on. Ranks with different ones need different micro-batches.
    #[must_use]
    pub fn bucket(self, mesh: &Mesh, rank: u32) -> u32 {
        let at = |dim| mesh.coordinate(rank as usize, dim) as u32;
        match self {
            Self::Data => at(DP),
            Self::Context => at(DP) * mesh.size(CP) as u32 + at(CP),
            Self::World => rank,
        }
    }

    /// The slice of each sequence of its bucket that a rank works on.
    #[must_use]
    pub fn slice(self, mesh: &Mesh, rank: u32) -> Slice {
        match self {
            Self::Data => Slice {
                part: mesh.coordinate(rank as usize, CP) as u32,
                of: mesh.size(CP) as u32,
            },
            Self::Context | Self::World => Slice::WHOLE,
        }
    }
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
    /// The mesh, of at most 2^32 ranks.
    pub mesh: Mesh,
    /// The axis whose places have a bucket each.
    pub axis: Axis,
    /// Dimensions along which the first rank alone fetches and feeds the others.
    pub broadcast_at: Vec<String>,
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
        let mesh = &self.mesh;
        let moved = |rank: u32, dim: &str, to| mesh.moved(rank as usize, dim, to) as u32;
        let first = |rank, dim: &String| moved(rank, dim, 0);
        let root = self.broadcast_at.iter().fold(rank, first);
        if root != rank {
            return Feed::From(root);
        }
        let mut fed = vec![rank];
        for dim in &self.broadcast_at {
            let others: Vec<u32> = fed
                .iter()
                .flat_map(|rank| (1..mesh.size(dim)).map(move |to| moved(*rank, dim, to)))
                .collect();
            fed.extend(others);
        }
        fed.remove(0);
        fed.sort_unstable();
        let slice = match self.feeds_whole() {
            true => Slice::WHOLE,
            false => self.axis.slice(mesh, rank),
        };
        Feed::Fetches(Fetch {
            rank,
            bucket: self.axis.bucket(mesh, rank),
            slice,
            feeds: fed,
        })
    }

    /// All ranks that fetch.
    pub fn fetches(&self) -> impl Iterator<Item = Fetch> + '_ {
        (0..self.mesh.len() as u32).filter_map(|rank| match self.of(rank) {
            Feed::Fetches(fetch) => Some(fetch),
            Feed::From(_) => None,
        })
    }

    /// Number of slices of each bucket that are fetched.
    #[must_use]
    pub fn slices(&self) -> u32 {
        match self.feeds_whole() {
            true => 1,
            false => self.axis.slice(&self.mesh, 0).of,
        }
    }

    /// Returns true when ranks with different parts of a sequence are fed by one.
    fn feeds_whole(&self) -> bool {
        self.broadcast_at.iter().any(|dim| dim == CP)
    }

    /// A dimension along which nothing can be broadcast, since its places have buckets of their
    /// own.
    pub(super) fn fault(&self) -> Option<&str> {
        let apart = |dim: &&String| match self.axis {
            Axis::World => true,
            Axis::Context => [DP, CP].contains(&dim.as_str()),
            Axis::Data => *dim == DP,
        };
        self.broadcast_at.iter().find(apart).map(String::as_str)
    }
}
