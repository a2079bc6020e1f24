//! Balancing: indivisible items of known cost into bins, so that the largest bin is small.
//!
//! An iteration ends with its slowest rank, so what counts is the *makespan*, the cost of the
//! fullest bin. To find the best one is NP-hard; these ways come near it:
//!
//! | way | at most | time for `n` items in `k` bins |
//! | --- | --- | --- |
//! | [`deal`] | whatever comes | `n` |
//! | [`greedy`], longest processing time first | `4/3 - 1/(3k)` of the best (Graham 1969) | `n log n + n log k` |
//! | [`karmarkar_karp`], largest differencing | as good, in practice much nearer | `n log n + n k log k` |
//! | [`greedy_equal`], [`karmarkar_karp_equal`] | nothing is promised: counts differ by one at most | the same |
//!
//! [`greedy_within`] heeds a cap of items and of weight (memory) in each bin. [`grouped`] balances
//! inside of groups of bins alone, as Seed1.5-VL does inside of 128 to 256 ranks, so that nothing
//! moves further than its group.
//!
//! All are pure, and ties go to the earlier item and the earlier bin, so whoever computes a
//! partition gets the same one.
//!
//! ```
//! use odeon_algorithms::balance::{greedy, karmarkar_karp};
//!
//! let costs = [8, 7, 6, 5, 4];
//! assert_eq!(greedy(&costs, 2).makespan(), 17);
//! assert_eq!(karmarkar_karp(&costs, 2).makespan(), 16);
//! ```

mod differencing;
mod greedy;

#[cfg(test)]
mod tests;

use thiserror::Error;

pub use differencing::{karmarkar_karp, karmarkar_karp_equal};
pub use greedy::{Caps, first_fit, greedy, greedy_equal, greedy_within};

/// Which items each bin has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// For each bin the numbers of its items, ascending.
    pub bins: Vec<Vec<usize>>,
    /// For each bin the cost of its items.
    pub loads: Vec<u64>,
}

impl Partition {
    /// Of bins whose items are given.
    #[must_use]
    pub fn of(mut bins: Vec<Vec<usize>>, costs: &[u64]) -> Self {
        for bin in &mut bins {
            bin.sort_unstable();
        }
        let load = |bin: &Vec<usize>| bin.iter().map(|item| costs[*item]).sum();
        let loads = bins.iter().map(load).collect();
        Self { bins, loads }
    }

    /// The cost of the fullest bin.
    #[must_use]
    pub fn makespan(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// The makespan over the mean of all bins: 1 is perfect, and nothing to do is perfect.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        imbalance(&self.loads)
    }
}

/// The largest over the mean; 1 where there is nothing.
#[must_use]
pub fn imbalance(loads: &[u64]) -> f64 {
    let sum: u128 = loads.iter().map(|load| u128::from(*load)).sum();
    let max = loads.iter().copied().max().unwrap_or(0);
    if sum == 0 {
        1.0
    } else {
        max as f64 * loads.len() as f64 / sum as f64
    }
}

/// The largest item over the mean bin. Above 1 this item alone is the makespan, and no way of
/// balancing gains more than the mean's distance from it.
#[must_use]
pub fn largest_over_mean(costs: &[u64], bins: usize) -> f64 {
    let sum: u128 = costs.iter().map(|cost| u128::from(*cost)).sum();
    let max = costs.iter().copied().max().unwrap_or(0);
    if sum == 0 {
        0.0
    } else {
        max as f64 * bins as f64 / sum as f64
    }
}

/// An item that no bin has room for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("item {item} of weight {weight} fits in none of {bins} bins")]
pub struct Full {
    /// The item.
    pub item: usize,
    /// Its weight.
    pub weight: u64,
    /// Number of bins.
    pub bins: usize,
}

/// No balancing: item `i` into bin `i % bins`.
#[must_use]
pub fn deal(costs: &[u64], bins: usize) -> Partition {
    let mut dealt = vec![vec![]; bins];
    if bins > 0 {
        for item in 0..costs.len() {
            dealt[item % bins].push(item);
        }
    }
    Partition::of(dealt, costs)
}

/// Balances inside of groups of `group` neighbouring bins, of which the last may be smaller. Items
/// are dealt to the groups in their order, to each as many as it has bins.
///
/// # Panics
/// Where `group` is 0.
#[must_use]
pub fn grouped(
    costs: &[u64],
    bins: usize,
    group: usize,
    balance: impl Fn(&[u64], usize) -> Partition,
) -> Partition {
    assert!(group > 0, "a group has bins");
    if group >= bins {
        return balance(costs, bins);
    }
    let mut items: Vec<Vec<usize>> = vec![vec![]; bins.div_ceil(group)];
    for item in 0..costs.len() {
        items[item % bins / group].push(item);
    }
    let mut all = Vec::with_capacity(bins);
    for (number, items) in items.iter().enumerate() {
        let own: Vec<u64> = items.iter().map(|item| costs[*item]).collect();
        let inside = balance(&own, group.min(bins - number * group));
        let named = |bin: Vec<usize>| bin.into_iter().map(|item| items[item]).collect();
        all.extend(inside.bins.into_iter().map(named));
    }
    Partition::of(all, costs)
}

/// The items from the costliest on, equal ones in their order.
fn descending(costs: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|item| std::cmp::Reverse(costs[*item]));
    order
}
