//! Balancing against brute force, bounds and itself.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// The least makespan of all partitions.
fn best(costs: &[u64], loads: &mut [u64]) -> u64 {
    let Some((first, rest)) = costs.split_first() else {
        return loads.iter().copied().max().unwrap_or(0);
    };
    let mut least = u64::MAX;
    for bin in 0..loads.len() {
        // Bins that are empty are alike.
        if loads[..bin].contains(&0) && loads[bin] == 0 {
            continue;
        }
        loads[bin] += first;
        least = least.min(best(rest, loads));
        loads[bin] -= first;
    }
    least
}

/// Each item is in one bin, and the loads are those of the items.
fn whole(partition: &Partition, costs: &[u64], bins: usize) {
    assert_eq!(partition.bins.len(), bins);
    let mut seen: Vec<usize> = partition.bins.concat();
    seen.sort_unstable();
    assert_eq!(seen, (0..costs.len()).collect::<Vec<_>>());
    for (bin, load) in partition.bins.iter().zip(&partition.loads) {
        assert_eq!(*load, bin.iter().map(|item| costs[*item]).sum::<u64>());
        assert!(bin.is_sorted());
    }
}

proptest! {
    #[test]
    fn greedy_is_within_a_third_of_the_best(costs in vec(1u64..100, 0..9), bins in 1usize..4) {
        let found = greedy(&costs, bins);
        whole(&found, &costs, bins);
        let best = best(&costs, &mut vec![0; bins]);
        let bins = bins as u64;
        prop_assert!(found.makespan() * 3 * bins <= best * (4 * bins - 1));
    }

    #[test]
    fn differencing_is_within_a_third_of_the_best(costs in vec(1u64..100, 0..9), bins in 1usize..4) {
        let found = karmarkar_karp(&costs, bins);
        whole(&found, &costs, bins);
        let best = best(&costs, &mut vec![0; bins]);
        let bins = bins as u64;
        prop_assert!(found.makespan() * 3 * bins <= best * (4 * bins - 1));
    }

    #[test]
    fn equal_ways_give_equal_counts(costs in vec(0u64..1_000_000, 0..300), bins in 1usize..17) {
        for found in [karmarkar_karp_equal(&costs, bins), greedy_equal(&costs, bins)] {
            whole(&found, &costs, bins);
            let counts: Vec<usize> = found.bins.iter().map(Vec::len).collect();
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn every_way_places_each_item_once(
        costs in vec(0u64..1 << 40, 0..200), bins in 1usize..40, group in 1usize..40,
    ) {
        whole(&deal(&costs, bins), &costs, bins);
        whole(&greedy(&costs, bins), &costs, bins);
        whole(&karmarkar_karp(&costs, bins), &costs, bins);
        whole(&grouped(&costs, bins, group, greedy), &costs, bins);
        whole(&grouped(&costs, bins, group, karmarkar_karp), &costs, bins);
        // What no way can beat.
        let sum: u64 = costs.iter().sum();
        let floor = sum.div_ceil(bins as u64).max(costs.iter().copied().max().unwrap_or(0));
        let largest = costs.iter().copied().max().unwrap_or(0);
        for found in [greedy(&costs, bins), karmarkar_karp(&costs, bins)] {
            prop_assert!(found.makespan() >= floor);
            prop_assert!(found.makespan() <= sum / bins as u64 + largest);
        }
    }

    #[test]
    fn caps_hold(
        items in vec((1u64..1000, 1u64..100), 0..80), bins in 1usize..12,
        count in 1usize..20, weight in 1u64..200,
    ) {
        let (costs, weights): (Vec<u64>, Vec<u64>) = items.into_iter().unzip();
        let caps = Caps { items: Some(count), weight: Some((&weights, weight)) };
        match greedy_within(&costs, bins, &caps) {
            Ok(found) => {
                whole(&found, &costs, bins);
                for bin in &found.bins {
                    let held: u64 = bin.iter().map(|item| weights[*item]).sum();
                    prop_assert!(bin.len() <= count && (held <= weight || bin.len() == 1));
                }
            }
            Err(full) => prop_assert_eq!(weights[full.item], full.weight),
        }
        // With a bin for each item there is room.
        prop_assert!(greedy_within(&costs, costs.len(), &caps).is_ok());
        let free = Caps::default();
        prop_assert_eq!(greedy_within(&costs, bins, &free), Ok(greedy(&costs, bins)));
    }

    #[test]
    fn first_fit_is_near_the_fewest(weights in vec(0u64..150, 0..60), cap in 1u64..120) {
        let bins = first_fit(&weights, cap);
        whole(&Partition::of(bins.clone(), &weights), &weights, bins.len());
        let held = |bin: &Vec<usize>| bin.iter().map(|item| weights[*item]).sum::<u64>();
        prop_assert!(bins.iter().all(|bin| held(bin) <= cap || bin.len() == 1));
        let over = weights.iter().filter(|weight| **weight > cap).count();
        let rest: u64 = weights.iter().filter(|weight| **weight <= cap).sum();
        // Any two bins hold more than a cap together, so twice the least is an easy bound.
        prop_assert!(bins.len() <= over + 1 + 2 * rest.div_ceil(cap) as usize);
    }
}

#[test]
fn differencing_is_as_the_textbook_has_it() {
    // Karmarkar and Karp's example: differences 8,7,6,5,4 -> 2, so 16 and 14.
    let found = karmarkar_karp(&[8, 7, 6, 5, 4], 2);
    let mut loads = found.loads;
    loads.sort_unstable();
    assert_eq!(loads, [14, 16]);
    assert_eq!(greedy(&[8, 7, 6, 5, 4], 2).makespan(), 17);
}

#[test]
fn the_bound_of_greedy_is_reached() {
    // Graham's worst case for two machines: 3,3,2,2,2 takes 7 where 6 is possible.
    assert_eq!(greedy(&[3, 3, 2, 2, 2], 2).makespan(), 7);
    assert_eq!(best(&[3, 3, 2, 2, 2], &mut [0, 0]), 6);
}

#[test]
fn groups_keep_their_items() {
    let costs: Vec<u64> = (1..=64).collect();
    let found = grouped(&costs, 8, 4, greedy);
    for (bin, items) in found.bins.iter().enumerate() {
        assert!(items.iter().all(|item| item % 8 / 4 == bin / 4));
    }
    assert!(found.imbalance() < 1.08);
}

#[test]
fn a_large_item_is_told() {
    assert_eq!(largest_over_mean(&[10, 1, 1], 3), 2.5);
    assert_eq!(greedy(&[10, 1, 1], 3).imbalance(), 2.5);
    assert_eq!(imbalance(&[]), 1.0);
}

#[test]
fn nothing_is_balanced_over_nothing() {
    assert!(greedy(&[], 0).bins.is_empty());
    assert!(karmarkar_karp(&[1], 0).bins.is_empty());
    assert_eq!(karmarkar_karp(&[], 2).bins.len(), 2);
    assert!(first_fit(&[], 4).is_empty());
}
