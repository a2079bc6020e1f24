//! The search for the shortest shard, for tensors in a fixed order.
//!
//! With `S` elements on each of `m` ranks, a tensor of `e` elements that begins at `l` of the buffer of
//! `m S` must have `(k S - l) mod g = 0` at each boundary `k S` inside of it, where `g` is its block. To
//! find the least `S` is NP-hard in general (arXiv 2602.22437, by reduction from Partition); for one order
//! and one `S`, putting each tensor at the first place where it may lie decides it, as an earlier
//! end never takes a place from those behind it.
//!
//! A tensor that contains a whole shard needs `S mod g = 0`. For those tensors that do, take the least common
//! multiple `L` of their blocks and of the alignment: where `S` is feasible, so is `S + L`, since
//! each tensor over a boundary moves with it. Multiples of `L` can thus be searched by halving. It is not
//! known in front which tensors will contain a shard, so two rows of guesses are tried, and the best is kept:
//!
//! - blocks from the smallest on: one, two, and so on, as the paper has it;
//! - blocks of tensors from the largest on. At the optimum each that is twice as long as a shard contains one,
//!   and none that is no longer than it. So only tensors of a size between can make this inexact.
//!
//! Where few lengths below the best are left, all of them are tried.

use std::cmp::Reverse;

use super::granularity::lcm;
use super::tensor::GroupTensor;

/// The most first places that are computed to try all lengths below the one that was found: about a
/// millisecond, so that the groups of a whole model take less than the 0.3 s of the paper.
const PLACES_TRIED_MAX: usize = 1 << 16;

/// A group over ranks, of sizes that were checked.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub(super) tensors: &'a [GroupTensor],
    pub(super) ranks: usize,
    pub(super) alignment: usize,
    /// The elements of all tensors. The buffers of all ranks, if each held as many in multiples of the
    /// alignment, are at most `isize::MAX`: no sum here overflows.
    pub(super) elements: usize,
}

impl Search<'_> {
    /// The shortest shard that was found, and whether none is shorter.
    pub(super) fn shortest(&self) -> (usize, bool) {
        let found = self.by_largest_tensors(self.by_smallest_blocks());
        let least = self.least(self.alignment);
        let lengths = (found - least) / self.alignment;
        if lengths.saturating_mul(self.tensors.len()) > PLACES_TRIED_MAX {
            return (found, false);
        }
        let mut shorter = (least..found).step_by(self.alignment);
        (
            shorter.find(|shard| self.fits(*shard)).unwrap_or(found),
            true,
        )
    }

    /// The shortest shard among multiples of common multiples of the smallest blocks.
    pub(super) fn by_smallest_blocks(&self) -> usize {
        let mut blocks: Vec<usize> = self.tensors.iter().map(GroupTensor::block).collect();
        blocks.sort_unstable();
        let all_on_the_first = self.elements.next_multiple_of(self.alignment);
        let best = self.by_halving(self.alignment, all_on_the_first);
        self.by_common_multiples(blocks, best)
    }

    /// The shortest shard among multiples of common multiples of the blocks of the largest tensors, if it is
    /// shorter than `best`.
    pub(super) fn by_largest_tensors(&self, best: usize) -> usize {
        let mut tensors: Vec<&GroupTensor> = self.tensors.iter().collect();
        tensors.sort_by_key(|tensor| Reverse(tensor.elements()));
        self.by_common_multiples(tensors.into_iter().map(GroupTensor::block), best)
    }

    /// The shortest shard among multiples of the common multiple of the first block, of the first two, and
    /// so on, if it is shorter than `best`.
    fn by_common_multiples(
        &self,
        blocks: impl IntoIterator<Item = usize>,
        mut best: usize,
    ) -> usize {
        let mut unit = self.alignment;
        for block in blocks {
            let Some(common) = lcm(unit, block).filter(|common| *common < best) else {
                break;
            };
            if common > unit {
                unit = common;
                best = self.by_halving(unit, best);
            }
        }
        best
    }

    /// A multiple of a unit that fits, below which the next one does not; `best` where none was found.
    fn by_halving(&self, unit: usize, best: usize) -> usize {
        let (mut low, mut high) = (self.least(unit) / unit, best / unit);
        let mut found = best;
        while low <= high {
            let middle = low + (high - low) / 2;
            if self.fits(middle * unit) {
                found = middle * unit;
                high = middle - 1;
            } else {
                low = middle + 1;
            }
        }
        found
    }

    /// The least multiple of a unit that may do: an equal share of all, and the longest block.
    fn least(&self, unit: usize) -> usize {
        let share = self.elements.div_ceil(self.ranks);
        let longest = self.tensors.iter().map(GroupTensor::block).max();
        share.max(longest.unwrap_or(0)).next_multiple_of(unit)
    }

    /// Returns true if all tensors find a place in shards of this length.
    fn fits(&self, shard: usize) -> bool {
        let mut tensors = self.tensors.iter();
        tensors
            .try_fold(0, |cursor, tensor| self.end(cursor, tensor, shard))
            .is_some()
    }

    /// Where each tensor begins in shards of this length: as early as it may, in their order.
    pub(super) fn starts(&self, shard: usize) -> Option<Vec<usize>> {
        let mut cursor = 0;
        let tensors = self.tensors.iter();
        tensors
            .map(|tensor| {
                cursor = self.end(cursor, tensor, shard)?;
                Some(cursor - tensor.elements())
            })
            .collect()
    }

    /// The end of a tensor that begins at the first place, from the cursor on, where it may lie.
    fn end(&self, cursor: usize, tensor: &GroupTensor, shard: usize) -> Option<usize> {
        let capacity = shard * self.ranks;
        let end = first_place(cursor, tensor, shard, capacity)? + tensor.elements();
        (end <= capacity).then_some(end)
    }
}

/// The first place, from the cursor on, where no boundary of shards cuts a block of the tensor. It may
/// end behind the buffer.
fn first_place(
    cursor: usize,
    tensor: &GroupTensor,
    shard: usize,
    capacity: usize,
) -> Option<usize> {
    let (elements, block) = (tensor.elements(), tensor.block());
    let boundary = (cursor / shard + 1) * shard;
    if cursor + elements <= boundary {
        return Some(cursor);
    }
    // A tensor over two boundaries contains a shard, which is then whole blocks.
    let rest = shard % block;
    let blocks_before = (boundary - cursor) / block;
    if blocks_before > 0 {
        let start = boundary - blocks_before * block;
        if rest == 0 || start + elements <= boundary + shard {
            return Some(start);
        }
    }
    if boundary >= capacity {
        return None;
    }
    if elements <= shard {
        return Some(boundary);
    }
    let fits = rest == 0 || rest + elements <= 2 * shard;
    fits.then_some(boundary + rest)
}
