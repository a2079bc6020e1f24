//! The constraints of a buffer checked one element at a time, and the shortest shard found by trying all.
//! Nothing here calls the planner.

use std::ops::Range;

/// A tensor of a small group: its elements and those of its block.
pub(super) type Sizes = (usize, usize);

/// The first constraint that a plan breaks: tensors are intervals of the buffer, apart from one another, and
/// no block has elements on two ranks.
pub(super) fn broken(
    tensors: &[Sizes],
    intervals: &[Range<usize>],
    ranks: usize,
    shard: usize,
) -> Option<String> {
    let mut owners = vec![None; ranks * shard];
    for (tensor, (&(elements, block), interval)) in tensors.iter().zip(intervals).enumerate() {
        if interval.len() != elements {
            return Some(format!("{tensor} has {interval:?} for {elements}"));
        }
        let mut homes = vec![None; elements.div_ceil(block)];
        for (element, at) in interval.clone().enumerate() {
            match owners.get_mut(at) {
                None => return Some(format!("{tensor} lies outside at {at}")),
                Some(Some(other)) => return Some(format!("{tensor} lies on {other} at {at}")),
                Some(owner) => *owner = Some(tensor),
            }
            let home = homes[element / block].get_or_insert(at / shard);
            if *home != at / shard {
                return Some(format!("block {} of {tensor} is cut", element / block));
            }
        }
    }
    None
}

/// The same for a buffer that is too long to look at each element: only at tensors and boundaries.
pub(super) fn broken_at_boundaries(
    tensors: &[Sizes],
    intervals: &[Range<usize>],
    ranks: usize,
    shard: usize,
) -> Option<String> {
    let mut before = 0;
    for (tensor, (&(elements, block), interval)) in tensors.iter().zip(intervals).enumerate() {
        let is_apart = interval.start >= before && interval.end <= ranks * shard;
        if interval.len() != elements || !is_apart {
            return Some(format!("{tensor} has {interval:?} behind {before}"));
        }
        before = interval.end;
        let mut inside = (1..ranks)
            .map(|rank| rank * shard)
            .filter(|at| *at > interval.start && *at < interval.end);
        if inside.any(|at| (at - interval.start) % block != 0) {
            return Some(format!("a block of {tensor} at {interval:?} is cut"));
        }
    }
    None
}

/// Returns true if the tensors have places in their order, by trying all: a set of the ends that are possible
/// after each tensor.
fn has_places(tensors: &[Sizes], ranks: usize, shard: usize) -> bool {
    let capacity = ranks * shard;
    let mut ends = vec![false; capacity + 1];
    ends[0] = true;
    for &(elements, block) in tensors {
        let mut next = vec![false; capacity + 1];
        let mut any_before = false;
        for (start, before) in ends.into_iter().enumerate() {
            any_before |= before;
            let end = start + elements;
            if !any_before || end > capacity {
                continue;
            }
            let cuts = (1..ranks).map(|rank| rank * shard);
            let mut inside = cuts.filter(|cut| *cut > start && *cut < end);
            if inside.all(|cut| (cut - start) % block == 0) {
                next[end] = true;
            }
        }
        ends = next;
    }
    ends.into_iter().any(|end| end)
}

/// The shortest shard for tensors in their order.
pub(super) fn shortest(tensors: &[Sizes], ranks: usize, alignment: usize) -> usize {
    let mut lengths = (1..).map(|times| times * alignment);
    lengths
        .find(|shard| has_places(tensors, ranks, *shard))
        .unwrap()
}
