//! Placements of a tensor along one dimension of a mesh.

use std::fmt;

use odeon_collective::Reduce;
use serde::{Deserialize, Serialize};

/// The part of a tensor that each rank along one dimension of a mesh holds, as in DTensor and veScale
/// (arXiv 2509.07003).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// All of it, the same on every rank.
    Replicate,
    /// A slice of this dimension of the tensor. Of `e` indices over `n` ranks, rank `r` holds those from
    /// `r * ceil(e / n)` on, `ceil(e / n)` of them: the last ranks may hold fewer, or none, as
    /// `torch.chunk` has it.
    Shard(usize),
    /// An addend of each element: the elements are those of all ranks, reduced.
    Partial(#[serde(with = "ReduceForm")] Reduce),
    /// A slice of each of several equal parts of a dimension, one behind the other: `parts` is 3 for
    /// queries, keys and values in one matrix.
    Interleaved {
        /// The dimension of the tensor.
        dim: usize,
        /// Number of equal parts of that dimension.
        parts: usize,
    },
    /// Rows in any shares: the leading dimensions are one, and rank `r` holds `units[r] / sum(units)` of
    /// its indices, behind those of the ranks before it (RaggedShard of arXiv 2602.22437). It cuts what
    /// the placements along all other dimensions of the mesh leave. A rank may have 0 units; one rank
    /// may have them all.
    Ragged {
        /// Number of leading dimensions of the tensor that are cut as one.
        dims: usize,
        /// The share of each rank.
        units: Vec<usize>,
    },
}

/// [`Reduce`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Reduce")]
enum ReduceForm {
    Sum,
    Mean,
    Max,
    Min,
}

impl Placement {
    /// Returns true when ranks hold different elements: no copies, and no addends.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        matches!(
            self,
            Self::Shard(_) | Self::Interleaved { .. } | Self::Ragged { .. }
        )
    }

    /// The dimension of the tensor that is cut by itself: none of [`Self::Ragged`].
    #[must_use]
    pub const fn cut_dim(&self) -> Option<usize> {
        match self {
            Self::Shard(dim) | Self::Interleaved { dim, .. } => Some(*dim),
            Self::Replicate | Self::Partial(_) | Self::Ragged { .. } => None,
        }
    }
}

/// As in Rust: `Shard(0)`, `Partial(sum)`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate => f.write_str("Replicate"),
            Self::Shard(dim) => write!(f, "Shard({dim})"),
            Self::Partial(reduce) => write!(f, "Partial({reduce})"),
            Self::Interleaved { dim, parts } => write!(f, "Interleaved(dim {dim}, {parts} parts)"),
            Self::Ragged { dims, units } => write!(f, "Ragged({dims} dims, units {units:?})"),
        }
    }
}
