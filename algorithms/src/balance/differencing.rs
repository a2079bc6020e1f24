//! The largest differencing method of Karmarkar and Karp, for any number of bins.
//!
//! A *tuple* holds sums for all bins without saying yet which bin each is. At first each item is a
//! tuple of its own. The two tuples with the largest spread (largest sum less smallest) are merged,
//! the largest sum of one with the smallest of the other, until one tuple is left. The form is that
//! of verl's `seqlen_balancing` (Apache-2.0); here only sums that are not empty are stored, and items
//! are chained in place, so that a million of them take megabytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Partition, descending, greedy_equal};

/// Items chained one after the other, and what they cost together.
#[derive(Clone, Copy, Debug)]
struct Chain {
    sum: u64,
    first: usize,
    last: usize,
}

/// The chains that are not empty, from the largest sum on.
type Tuple = Vec<Chain>;

/// No item comes after this one.
const END: usize = usize::MAX;

/// Largest differencing, with any number of items in a bin.
#[must_use]
pub fn karmarkar_karp(costs: &[u64], bins: usize) -> Partition {
    let single = |item| vec![Chain::of(item, costs[item])];
    merge_all((0..costs.len()).map(single).collect(), costs, bins)
}

/// Largest differencing among partitions whose bins have equally many items, give or take one: it
/// begins with tuples of `bins` items of nearly equal cost, as verl does.
///
/// So each bin has one item of each such tuple, and what an item of a heavy tail costs more than its
/// neighbours cannot be made up for by small ones. Where [`greedy_equal`] comes out better, it is
/// that.
#[must_use]
pub fn karmarkar_karp_equal(costs: &[u64], bins: usize) -> Partition {
    let order = descending(costs);
    let tuple = |items: &[usize]| {
        let chains = items.iter().map(|item| Chain::of(*item, costs[*item]));
        chains.collect::<Tuple>()
    };
    let tuples = order.chunks(bins.max(1)).map(tuple).collect();
    let differenced = merge_all(tuples, costs, bins);
    let greedy = greedy_equal(costs, bins);
    if greedy.makespan() < differenced.makespan() {
        greedy
    } else {
        differenced
    }
}

impl Chain {
    fn of(item: usize, cost: u64) -> Self {
        Self {
            sum: cost,
            first: item,
            last: item,
        }
    }
}

fn merge_all(mut tuples: Vec<Tuple>, costs: &[u64], bins: usize) -> Partition {
    let mut filled = vec![vec![]; bins];
    if bins == 0 || costs.is_empty() {
        return Partition::of(filled, costs);
    }
    let mut next = vec![END; costs.len()];
    let key = |tuples: &[Tuple], at: usize| (spread(&tuples[at], bins), Reverse(at));
    let mut widest: BinaryHeap<_> = (0..tuples.len()).map(|at| key(&tuples, at)).collect();
    while let Some((_, Reverse(one))) = widest.pop() {
        let Some((_, Reverse(other))) = widest.pop() else {
            let last = std::mem::take(&mut tuples[one]);
            for (bin, chain) in last.into_iter().enumerate() {
                let mut item = chain.first;
                while item != END {
                    filled[bin].push(item);
                    item = next[item];
                }
            }
            break;
        };
        let other = std::mem::take(&mut tuples[other]);
        merge(&mut tuples[one], &other, bins, &mut next);
        widest.push(key(&tuples, one));
    }
    Partition::of(filled, costs)
}

/// The largest sum less the smallest, which is nothing where a bin is empty.
fn spread(tuple: &[Chain], bins: usize) -> u64 {
    let largest = tuple.first().map_or(0, |chain| chain.sum);
    let smallest = tuple.get(bins - 1).map_or(0, |chain| chain.sum);
    largest - smallest
}

/// The largest of `one` with the smallest of `other`, and so on. Position `i` of one meets position
/// `bins - 1 - i` of the other, and where either has none, the other's chain stays as it is.
fn merge(one: &mut Tuple, other: &[Chain], bins: usize, next: &mut [usize]) {
    let own = one.len();
    for (at, chain) in other.iter().enumerate() {
        let facing = bins - 1 - at;
        if facing < own {
            let met = &mut one[facing];
            next[met.last] = chain.first;
            met.last = chain.last;
            met.sum += chain.sum;
        } else {
            one.push(*chain);
        }
    }
    one.sort_by_key(|chain| Reverse(chain.sum));
}
