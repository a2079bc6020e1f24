//! The buffer of a group: tensors that ranks share, gathered and reduced together.
//!
//! Each of `m` ranks keeps `S` consecutive elements, its shard, of a buffer of `m S` in which every tensor
//! is one interval. A gather of the shards thus is the buffer itself, and tensors are views into it, without
//! a copy. No boundary of shards cuts a block that must stay whole. Between tensors there may be padding; the
//! planner looks for the shortest shard.
//!
//! ```text
//!  rank    0                 1                 2
//!  shard   |----------------||----------------||----------------|
//!  buffer  wwwwwwWWWWWWwwwwwwWWWWWWbbb..vvvvvvvVVVVVVVvvvvvvv....    . is padding
//! ```
//!
//! ```
//! use odeon_sharding::group_buffer::{GroupBuffer, GroupTensor};
//!
//! let [w, b, v] = [("w", 24, 6), ("b", 3, 1), ("v", 21, 7)].map(|(name, elements, block)| {
//!     GroupTensor::new(name, elements, block)
//! });
//! let buffer = GroupBuffer::plan(vec![w, b, v], 3, 1)?;
//! assert_eq!((buffer.shard_len(), buffer.padding()), (18, 6));
//! assert_eq!(buffer.interval(2), Some(29..50));
//! assert_eq!(buffer.cuts(2), Some(vec![1]));
//! # Ok::<(), odeon_sharding::group_buffer::GroupBufferError>(())
//! ```
//!
//! Parameters, gradients and states of the optimiser have one plan: which of them are cut makes the stages of
//! ZeRO. With hybrid sharding the ranks of the plan are those that share one replica, and each replica
//! has the same plan.
//!
//! The formulation, its constraints and the search are those of veScale-FSDP (arXiv 2602.22437, section 4).

mod error;
mod granularity;
mod planner;
mod roots;
mod tensor;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;

pub use error::{BlockError, GroupBufferError, MatrixRootsError};
pub use granularity::block_beside_shard;
pub use roots::{MatrixRoots, MatrixShape, newton_schulz_flops};
pub use tensor::GroupTensor;

use granularity::gcd;
use planner::Search;

/// The plan of a buffer: where each tensor of the group lies, and what each rank holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupBuffer {
    tensors: Vec<GroupTensor>,
    starts: Vec<usize>,
    ranks: usize,
    shard: usize,
    shortest: bool,
}

/// A part of a tensor that one rank holds: always one interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldPart {
    /// The number of the tensor in the group.
    pub tensor: usize,
    /// The elements of the tensor.
    pub elements: Range<usize>,
    /// Where they lie in the rank's shard, in elements.
    pub at: Range<usize>,
}

impl GroupBuffer {
    /// Plans the buffer of tensors over ranks. They lie in the order in which they are given: that of the
    /// model's definition is near the best and easiest to follow. `alignment` is the number of elements of
    /// which the collective wants shards to be multiples, 1 for none.
    ///
    /// # Errors
    /// [`GroupBufferError`]: nothing to hold or nobody to hold it, blocks that do not divide their tensor,
    /// a name that comes twice, or sizes that overflow.
    pub fn plan(
        tensors: Vec<GroupTensor>,
        ranks: usize,
        alignment: usize,
    ) -> Result<Self, GroupBufferError> {
        let elements = check(&tensors, ranks, alignment)?;
        let search = Search {
            tensors: &tensors,
            ranks,
            alignment,
            elements,
        };
        let (shard, shortest) = search.shortest();
        let starts = search
            .starts(shard)
            .expect("the search ends at a length that fits");
        Ok(Self {
            tensors,
            starts,
            ranks,
            shard,
            shortest,
        })
    }

    /// The tensors of the group in their order.
    #[must_use]
    pub fn tensors(&self) -> &[GroupTensor] {
        &self.tensors
    }

    /// The number of ranks that share the buffer.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// The elements that each rank keeps, padding among them.
    #[must_use]
    pub const fn shard_len(&self) -> usize {
        self.shard
    }

    /// The elements of the gathered buffer.
    #[must_use]
    pub const fn buffer_len(&self) -> usize {
        self.shard * self.ranks
    }

    /// The elements of the buffer that belong to no tensor.
    #[must_use]
    pub fn padding(&self) -> usize {
        self.buffer_len() - self.elements()
    }

    /// The padding in percent of the elements of all tensors.
    #[must_use]
    pub fn padding_percent(&self) -> f64 {
        100.0 * self.padding() as f64 / self.elements() as f64
    }

    /// Returns true if no shorter shard is possible with the tensors in this order. False where there were
    /// too many lengths to try them all.
    #[must_use]
    pub const fn is_shortest(&self) -> bool {
        self.shortest
    }

    /// The elements of the buffer that a tensor takes; `None` where the group has no tensor of this number.
    #[must_use]
    pub fn interval(&self, tensor: usize) -> Option<Range<usize>> {
        let start = *self.starts.get(tensor)?;
        Some(start..start + self.tensors[tensor].elements())
    }

    /// The part of a tensor that a rank holds; `None` where it holds nothing of it.
    #[must_use]
    pub fn part(&self, tensor: usize, rank: usize) -> Option<HeldPart> {
        if rank >= self.ranks {
            return None;
        }
        let whole = self.interval(tensor)?;
        let first = rank * self.shard;
        let (from, to) = (whole.start.max(first), whole.end.min(first + self.shard));
        (from < to).then(|| HeldPart {
            tensor,
            elements: from - whole.start..to - whole.start,
            at: from - first..to - first,
        })
    }

    /// All parts that a rank holds, in the order of the buffer; none where there is no such rank.
    #[must_use]
    pub fn held(&self, rank: usize) -> Vec<HeldPart> {
        let first = rank.saturating_mul(self.shard);
        // Tensors in front of the shard end before it.
        let from = self.starts.partition_point(|start| *start <= first);
        let to = self
            .starts
            .partition_point(|start| *start < first.saturating_add(self.shard));
        (from.saturating_sub(1)..to)
            .filter_map(|tensor| self.part(tensor, rank))
            .collect()
    }

    /// The ragged placement of a tensor: for each rank the number of its units, of which all together make
    /// up the tensor. A unit is a block; where the last block is short it is the greatest divisor of both.
    #[must_use]
    pub fn units(&self, tensor: usize) -> Option<Vec<usize>> {
        let of = self.tensors.get(tensor)?;
        let unit = gcd(of.block(), of.elements());
        let units = |rank| {
            self.part(tensor, rank)
                .map_or(0, |part| part.elements.len() / unit)
        };
        Some((0..self.ranks).map(units).collect())
    }

    /// The boundaries of shards inside of a tensor, each as the number of the tensor's blocks in front of it.
    #[must_use]
    pub fn cuts(&self, tensor: usize) -> Option<Vec<usize>> {
        let (whole, block) = (self.interval(tensor)?, self.tensors[tensor].block());
        let first = (whole.start / self.shard + 1) * self.shard;
        let boundaries = (first..whole.end).step_by(self.shard);
        Some(boundaries.map(|at| (at - whole.start) / block).collect())
    }

    /// The elements of all tensors.
    fn elements(&self) -> usize {
        self.tensors.iter().map(GroupTensor::elements).sum()
    }
}

/// Refuses a group that cannot be; else the elements of all tensors.
fn check(
    tensors: &[GroupTensor],
    ranks: usize,
    alignment: usize,
) -> Result<usize, GroupBufferError> {
    if ranks == 0 {
        return Err(GroupBufferError::NoRanks);
    }
    if alignment == 0 {
        return Err(GroupBufferError::NoAlignment);
    }
    if tensors.is_empty() {
        return Err(GroupBufferError::NoTensors);
    }
    let mut names = BTreeSet::new();
    let mut elements = 0usize;
    for tensor in tensors {
        tensor.check()?;
        if !names.insert(tensor.name()) {
            let name = tensor.name().to_owned();
            return Err(GroupBufferError::RepeatedTensor { name });
        }
        elements = elements.saturating_add(tensor.elements());
    }
    // Each rank with the whole group is the longest buffer that the search looks at.
    let longest = elements.checked_next_multiple_of(alignment);
    let all = longest.and_then(|shard| shard.checked_mul(ranks));
    if all.is_none_or(|all| isize::try_from(all).is_err()) {
        return Err(GroupBufferError::TooLarge {
            elements,
            ranks,
            alignment,
        });
    }
    Ok(elements)
}
