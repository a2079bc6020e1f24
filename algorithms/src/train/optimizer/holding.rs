//! The tensors of which a rank keeps moments, and where their numbers are.

use std::ops::Range;

use odeon_gpu::{Layout, STATES_ALIGN, TensorEntry};

use crate::model::{ModelShard, SetKind};

/// Parameters as an optimiser moves them on one rank.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    /// The elements of the buffers of parameters and of gradients whose moments the rank keeps.
    pub(super) part: Range<usize>,
    /// The tensors of the model, in their order.
    pub(super) tensors: Vec<HeldTensor>,
}

/// A tensor, and the elements of it whose moments a rank keeps.
#[derive(Clone, Debug)]
pub(super) struct HeldTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Elements of the tensor: none, or one run.
    pub(super) elements: Range<usize>,
    /// Where these begin in the buffers of parameters and of gradients.
    pub(super) at: usize,
    /// The ranks that keep it, where the parameters themselves are shared.
    pub(super) keepers: Option<TensorKeepers>,
}

/// The ranks that keep a tensor together.
#[derive(Clone, Debug)]
pub(super) struct TensorKeepers {
    pub(super) kind: SetKind,
    /// Which of them this is.
    pub(super) rank: usize,
    /// The elements of the tensor that each keeps, in the order of ranks.
    pub(super) parts: Vec<Range<usize>>,
}

impl HeldTensor {
    /// True of a matrix, which has the weight decay.
    pub(super) fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }

    /// Rows and columns. A vector has rows of one number.
    pub(super) fn rows_and_columns(&self) -> [usize; 2] {
        let rows = self.shape.first().copied().unwrap_or(1);
        [rows, self.shape.get(1).copied().unwrap_or(1)]
    }
}

impl Holding {
    /// A part of parameters that lie like this.
    pub(crate) fn of_part(layout: &Layout, part: Range<usize>) -> Self {
        let tensor = |entry: &TensorEntry| {
            let Range { start, end } = entry.range;
            let from = part.start.clamp(start, end);
            HeldTensor {
                name: entry.name.clone(),
                shape: entry.shape.clone(),
                elements: from - start..part.end.clamp(from, end) - start,
                at: from,
                keepers: None,
            }
        };
        Self {
            tensors: layout.entries().iter().map(tensor).collect(),
            part,
        }
    }

    /// A shard of parameters that lie like this.
    pub(crate) fn of_shard(shard: &ModelShard, layout: &Layout) -> Self {
        let tensor = |(number, entry): (usize, &TensorEntry)| {
            let (held, begin) = (shard.held(number), entry.range.start);
            let of_tensor = |flat: Range<usize>| flat.start - begin..flat.end - begin;
            let keepers = shard.keepers(&entry.range);
            HeldTensor {
                name: entry.name.clone(),
                shape: entry.shape.clone(),
                at: match held.is_empty() {
                    true => 0,
                    false => shard.kept_at(held.start),
                },
                elements: of_tensor(held),
                keepers: keepers.map(|(kind, rank, parts)| TensorKeepers {
                    kind,
                    rank,
                    parts: parts.into_iter().map(of_tensor).collect(),
                }),
            }
        };
        let layout = layout.entries().iter().enumerate();
        Self {
            tensors: layout.map(tensor).collect(),
            part: 0..shard.layout().len(),
        }
    }

    /// The parameter that the buffers of its part begin with: cards read vectors.
    pub(super) fn begin(&self) -> usize {
        self.part.start - self.part.start % STATES_ALIGN
    }
}
