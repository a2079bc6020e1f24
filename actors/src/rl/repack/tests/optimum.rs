//! The planner against exact bin packing.

use proptest::prelude::*;

use super::*;

/// A replica for the exact search: capacity, KV bytes with growth, requests.
type Item = (u64, u64, u32);

/// The fewest replicas that the candidates can be packed into: all ways to part them into groups
/// are tried, and the requests of a group must fit one of its own members.
fn fewest(items: &[Item], batch_max: u32) -> usize {
    fn search(items: &[Item], batch_max: u32, groups: &mut Vec<Vec<Item>>, best: &mut usize) {
        let Some((first, rest)) = items.split_first() else {
            let feasible = groups.iter().all(|group| {
                let requests: u32 = group.iter().map(|(_, _, requests)| requests).sum();
                let bytes: u64 = group.iter().map(|(_, bytes, _)| bytes).sum();
                let largest = group.iter().map(|(capacity, ..)| *capacity).max();
                // Who is alone stays as it is.
                group.len() == 1 || (requests <= batch_max && Some(bytes) <= largest)
            });
            if feasible {
                *best = (*best).min(groups.len());
            }
            return;
        };
        for at in 0..groups.len() {
            groups[at].push(*first);
            search(rest, batch_max, groups, best);
            groups[at].pop();
        }
        groups.push(vec![*first]);
        search(rest, batch_max, groups, best);
        groups.pop();
    }
    let mut best = items.len();
    search(items, batch_max, &mut vec![], &mut best);
    best
}

fn items(replicas: &[Replica], limits: &RepackLimits) -> Vec<Item> {
    let item = |replica: &Replica| {
        let growth = limits.growth_bytes * u64::from(replica.running);
        (
            replica.kv_capacity,
            replica.kv_used + growth,
            replica.running,
        )
    };
    replicas.iter().map(item).collect()
}

fn few(capacity: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Replica>> {
    let one = (1..100_u64, 1..8_u32, capacity);
    prop::collection::vec(one, 0..8).prop_map(|replicas| {
        let named = (1_u64..).zip(replicas);
        let replica = |(id, (kv_used, running, kv_capacity)): (u64, (u64, u32, u64))| Replica {
            kv_capacity,
            ..candidate(id, kv_used.min(kv_capacity - 1), running)
        };
        named.map(replica).collect()
    })
}

proptest! {
    #[test]
    fn a_plan_empties_at_most_what_is_possible(replicas in few(20..120), batch_max in 8..16_u32) {
        let limits = RepackLimits::new(batch_max);
        let plan = plan(&snapshot(replicas.clone()), &limits);
        let possible = replicas.len() - fewest(&items(&replicas, &limits), batch_max);
        prop_assert!(plan.moves.len() <= possible);
    }

    /// The bound that the module promises: pairs that remain pass a limit together, so twice the
    /// sum of their shares of both limits is more than their number.
    #[test]
    fn fewer_than_four_times_the_fewest_remain(replicas in few(100..101), batch_max in 8..16_u32) {
        let limits = RepackLimits::new(batch_max);
        let remaining = replicas.len() - plan(&snapshot(replicas.clone()), &limits).moves.len();
        let fewest = fewest(&items(&replicas, &limits), batch_max);
        prop_assert!(replicas.is_empty() || remaining < 4 * fewest);
    }

    #[test]
    fn fewer_than_twice_the_fewest_remain_when_bytes_alone_bind(replicas in few(100..101)) {
        let limits = RepackLimits::new(1_000);
        let remaining = replicas.len() - plan(&snapshot(replicas.clone()), &limits).moves.len();
        let fewest = fewest(&items(&replicas, &limits), limits.batch_max);
        prop_assert!(replicas.is_empty() || remaining < 2 * fewest);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// The mean over seeds of what is emptied as a share of what could be, for caches filled up to
/// `kv_max` of 100, and how often it is all.
fn shares(kv_max: u64) -> (f64, f64) {
    let (mut sum, mut full, mut seeds) = (0.0, 0, 0);
    for seed in 0..1_000 {
        let mut dice = Dice(seed);
        let count = 2 + dice.below(7);
        let replicas: Vec<_> = (0..count)
            .map(|id| candidate(id, 1 + dice.below(kv_max), 1 + dice.below(7) as u32))
            .collect();
        let limits = RepackLimits::new(16);
        let possible = replicas.len() - fewest(&items(&replicas, &limits), limits.batch_max);
        if possible == 0 {
            continue;
        }
        let emptied = plan(&snapshot(replicas), &limits).moves.len();
        sum += emptied as f64 / possible as f64;
        full += u32::from(emptied == possible);
        seeds += 1;
    }
    (sum / f64::from(seeds), f64::from(full) / f64::from(seeds))
}

/// Measured: 0.994 of the possible and all of it in 97 of 100 cases with caches up to 99 of 100
/// bytes; 0.982 and 92 with caches up to half.
#[test]
fn in_the_mean_nearly_all_that_is_possible_is_emptied() {
    for (kv_max, mean_min, full_min) in [(99, 0.98, 0.95), (50, 0.97, 0.89)] {
        let (mean, full) = shares(kv_max);
        assert!(mean >= mean_min, "{mean} of the possible in the mean");
        assert!(
            full >= full_min,
            "all of the possible in {full} of the cases"
        );
    }
}
