//! Longest processing time first, with and without caps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Full, Partition, descending};

/// Limits on the items and the weight of a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caps<'a> {
    /// The most items in a bin; `None` for any number.
    pub items: Option<usize>,
    /// The weight of each item, and the most weight in a bin; `None` for any weight. An item that
    /// is heavier than that gets a bin of its own.
    pub weight: Option<(&'a [u64], u64)>,
}

impl Caps<'_> {
    fn weigh(&self, item: usize) -> u64 {
        self.weight.map_or(0, |(weights, _)| weights[item])
    }

    /// Returns true when a bin of `items` with `weight` in all has room for one more of weight
    /// `more`.
    fn has_room(&self, items: usize, weight: u64, more: u64) -> bool {
        let light = self
            .weight
            .is_none_or(|(_, cap)| items == 0 || weight.saturating_add(more) <= cap);
        light && self.items.is_none_or(|cap| items < cap)
    }
}

/// Each item, from the costliest on, into the bin that has least.
#[must_use]
pub fn greedy(costs: &[u64], bins: usize) -> Partition {
    let mut filled = vec![vec![]; bins];
    let mut least: BinaryHeap<_> = (0..bins).map(|bin| Reverse((0u64, bin))).collect();
    for item in descending(costs) {
        let Some(mut top) = least.peek_mut() else {
            break;
        };
        let Reverse((load, bin)) = *top;
        filled[bin].push(item);
        *top = Reverse((load + costs[item], bin));
    }
    Partition::of(filled, costs)
}

/// Each item, from the costliest on, into the bin that has least among those with room for it.
///
/// # Errors
/// An item that no bin has room for; more bins would.
pub fn greedy_within(costs: &[u64], bins: usize, caps: &Caps<'_>) -> Result<Partition, Full> {
    let mut filled = vec![vec![]; bins];
    let mut weights = vec![0u64; bins];
    let mut least: BinaryHeap<_> = (0..bins).map(|bin| Reverse((0u64, bin))).collect();
    let mut passed = vec![];
    for item in descending(costs) {
        let weight = caps.weigh(item);
        let found = loop {
            let Some(Reverse((load, bin))) = least.pop() else {
                return Err(Full { item, weight, bins });
            };
            if caps.has_room(filled[bin].len(), weights[bin], weight) {
                break (load, bin);
            }
            // A bin that has its number of items never has room again.
            if caps.items.is_none_or(|cap| filled[bin].len() < cap) {
                passed.push(Reverse((load, bin)));
            }
        };
        let (load, bin) = found;
        filled[bin].push(item);
        weights[bin] += weight;
        least.push(Reverse((load + costs[item], bin)));
        least.extend(passed.drain(..));
    }
    Ok(Partition::of(filled, costs))
}

/// Greedy with counts that differ by one at most.
#[must_use]
pub fn greedy_equal(costs: &[u64], bins: usize) -> Partition {
    let mut filled = vec![vec![]; bins];
    let each = costs.len() / bins.max(1);
    // So many bins get one more than the others.
    let mut larger = costs.len() % bins.max(1);
    let mut least: BinaryHeap<_> = (0..bins).map(|bin| Reverse((0u64, bin))).collect();
    for item in descending(costs) {
        // What is taken out here is full: there is room for exactly all items.
        while let Some(Reverse((load, bin))) = least.pop() {
            let has = filled[bin].len();
            if has > each || (has == each && larger == 0) {
                continue;
            }
            if has == each {
                larger -= 1;
            }
            filled[bin].push(item);
            least.push(Reverse((load + costs[item], bin)));
            break;
        }
    }
    Partition::of(filled, costs)
}

/// The bins that first-fit decreasing fills, each of weight `cap` at most: their number is at most
/// 11/9 of the fewest and one more. An item that is heavier than `cap` gets a bin of its own.
#[must_use]
pub fn first_fit(weights: &[u64], cap: u64) -> Vec<Vec<usize>> {
    // One more than the room left in each bin, as a tree of maxima over a power of two of them. So
    // a bin with nothing is closed even to what weighs nothing.
    let leaves = weights.len().next_power_of_two().max(1);
    let mut room = vec![cap.saturating_add(1); 2 * leaves];
    let mut bins: Vec<Vec<usize>> = vec![];
    for item in descending(weights) {
        let weight = weights[item];
        let mut at = 1;
        if weight > cap {
            at = leaves + bins.len();
        } else {
            while at < leaves {
                at *= 2;
                if room[at] <= weight {
                    at += 1;
                }
            }
        }
        let bin = at - leaves;
        if bin == bins.len() {
            bins.push(vec![]);
        }
        bins[bin].push(item);
        room[at] = room[at].saturating_sub(weight);
        while at > 1 {
            at /= 2;
            room[at] = room[2 * at].max(room[2 * at + 1]);
        }
    }
    for bin in &mut bins {
        bin.sort_unstable();
    }
    bins
}
