//! The choice of holders to end, so that a demand of higher priority finds room.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Affinity, Demand, Lease, Plan, Refusal, View, solve};

/// Room made for a demand at the cost of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// Holders that lose all their leases, lowest priority first; none if there is room as it is.
    /// A gang goes as a whole: a part of one is of no use to it.
    pub victims: Vec<String>,
    /// Where the demand goes when they are gone.
    pub plan: Plan,
}

/// Finds room for a demand by ending holders of lower priority, if it must.
///
/// No smaller choice among the victims would do: each of them is needed. The lowest priorities go
/// first; of equal ones the smallest holder, then by name. Quotas are not lifted, and whom the demand
/// must be near, or shares a device set with, stays.
///
/// # Errors
/// The [`Refusal`] that stands even when all of lower priority are gone.
pub fn preempt(view: &View, demand: &Demand) -> Result<Preemption, Refusal> {
    let demands = std::slice::from_ref(demand);
    let candidates = candidates(view, demand);
    let without = |gone: &[String]| {
        let mut view = view.clone();
        for holder in gone {
            view.release(holder);
        }
        solve(&view, demands)
    };
    if let Ok(plan) = solve(view, demands) {
        return Ok(Preemption {
            victims: Vec::new(),
            plan,
        });
    }
    without(&candidates)?;
    // Releasing more of these never makes a single demand harder to place, so the shortest prefix
    // that does is found by halving.
    let (mut too_few, mut enough) = (0, candidates.len());
    while too_few + 1 < enough {
        let middle = usize::midpoint(too_few, enough);
        match without(&candidates[..middle]) {
            Ok(_) => enough = middle,
            Err(_) => too_few = middle,
        }
    }
    // Then whoever can stay stays, the highest priority first.
    let mut victims = candidates[..enough].to_vec();
    let mut plan = without(&victims)?;
    for at in (0..victims.len()).rev() {
        let mut fewer = victims.clone();
        fewer.remove(at);
        if let Ok(other) = without(&fewer) {
            (victims, plan) = (fewer, other);
        }
    }
    Ok(Preemption { victims, plan })
}

/// Holders of lower priority that the demand does not need, in the order in which they go.
fn candidates(view: &View, demand: &Demand) -> Vec<String> {
    let needed = |lease: &Lease| {
        let near = |affinity: &Affinity| matches!(affinity, Affinity::Near(holder, _) if *holder == lease.holder);
        let set = lease.device_set.is_some() && lease.device_set == demand.device_set;
        (set && lease.job == demand.job) || demand.affinity.iter().any(near)
    };
    let kept: BTreeSet<&str> = view
        .leases()
        .filter(|lease| needed(lease))
        .map(|lease| &*lease.holder)
        .collect();
    let mut holders: BTreeMap<&str, (i32, usize)> = BTreeMap::new();
    for lease in view.leases() {
        let (highest, size) = holders.entry(&lease.holder).or_insert((i32::MIN, 0));
        *highest = lease.priority.max(*highest);
        *size += 1;
    }
    let lower = holders
        .into_iter()
        .filter(|(holder, (highest, _))| *highest < demand.priority && !kept.contains(holder));
    let mut lower: Vec<_> = lower.collect();
    lower.sort_by_key(|(name, rank)| (*rank, *name));
    lower.into_iter().map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Node, Quota, Resources};

    fn named(name: &str, gpus: u32, priority: i32) -> Demand {
        let demand = Demand::new("job", name, Resources::new())
            .gpus(1)
            .gang(gpus);
        demand.priority(priority)
    }

    fn view(gpus: &[u32], held: &[Demand]) -> View {
        let nodes = gpus.iter().enumerate();
        let node = |(i, count): (usize, &u32)| {
            Node::new(format!("n{i}"), Resources::new()).gpus(*count, "H200", 1 << 30)
        };
        let mut view = View::new(nodes.map(node));
        for demand in held {
            if let Ok(plan) = solve(&view, std::slice::from_ref(demand)) {
                view.grant(&plan);
            }
        }
        view
    }

    #[test]
    fn the_lowest_go_first_and_no_more_than_needed() {
        let held = [
            named("batch", 4, -1),
            named("old", 2, 0),
            named("dear", 2, 5),
        ];
        let view = view(&[8], &held);
        let victims = |demand| preempt(&view, &demand).map(|made| made.victims);
        assert_eq!(victims(named("me", 2, 1)).unwrap(), ["batch"]);
        assert_eq!(victims(named("me", 6, 1)).unwrap(), ["batch", "old"]);
        assert!(victims(named("me", 7, 1)).is_err());
        assert!(
            victims(named("me", 1, -1)).is_err(),
            "equals are left alone"
        );
        assert_eq!(victims(named("me", 8, 9)).unwrap().len(), 3);
        assert!(victims(named("me", 0, 0)).unwrap().is_empty());
    }

    #[test]
    fn of_equal_priorities_who_holds_less_goes_first() {
        let cluster = view(&[3], &[named("a", 2, 0), named("b", 1, 0)]);
        assert_eq!(
            preempt(&cluster, &named("me", 1, 1)).unwrap().victims,
            ["b"]
        );
    }

    #[test]
    fn who_is_elsewhere_is_spared() {
        let mut cluster = view(&[4, 4], &[named("a", 4, 0)]);
        let b = named("b", 4, -5);
        let plan = solve(&cluster, &[b]).unwrap();
        cluster.grant(&plan);
        // The lowest priority sits on the other node: its end would not help.
        let made = preempt(&cluster, &named("me", 1, 1).on_node("n0")).unwrap();
        assert_eq!(made.victims, ["a"]);
    }

    #[test]
    fn a_holder_elsewhere_goes_when_the_quota_wants_it() {
        let mut cluster = view(&[2, 2], &[]);
        let old = Demand::new("own", "old", Resources::new()).gpus(2);
        cluster.grant(&solve(&cluster, &[old.on_node("n0")]).unwrap());
        let quota = Quota {
            gpu_milli: Some(2_000),
            ..Quota::default()
        };
        cluster.set_quota("own", quota);
        let me = Demand::new("own", "me", Resources::new()).gpus(1);
        let made = preempt(&cluster, &me.priority(1).on_node("n1")).unwrap();
        assert_eq!(made.victims, ["old"]);
        // Without a requirement as well.
        let me = Demand::new("own", "me", Resources::new()).gpus(1);
        let made = preempt(&cluster, &me.priority(1)).unwrap();
        assert_eq!(made.victims, ["old"]);
    }

    #[test]
    fn whom_the_demand_needs_is_spared() {
        let cluster = view(&[3], &[named("friend", 1, 0), named("other", 2, 0)]);
        let me = named("me", 1, 1).together_with("friend");
        assert_eq!(preempt(&cluster, &me).unwrap().victims, ["other"]);
        let role = |name: &str, memory| {
            let demand = named(name, 3, i32::from(name == "me")).device_memory(memory);
            demand.device_set("set")
        };
        let cluster = view(&[3], &[role("actor", 1 << 29)]);
        assert!(
            preempt(&cluster, &role("me", 1 << 29))
                .unwrap()
                .victims
                .is_empty()
        );
        assert!(
            preempt(&cluster, &role("me", 1 << 30)).is_err(),
            "nobody ends its own set"
        );
    }

    proptest! {
        /// SEMANTICS 44. The plan holds once the victims are gone, all are of lower priority, each is needed, and
        /// it is refused only if nothing helps.
        #[test]
        fn victims_are_necessary_and_sufficient(
            gpus in prop::collection::vec(1..5u32, 1..4),
            held in prop::collection::vec((1..5u32, -2..3i32), 0..6),
            (size, priority) in (1..8u32, -1..3i32),
            strict in any::<bool>(),
        ) {
            let held: Vec<Demand> = held
                .iter()
                .enumerate()
                .map(|(i, (size, priority))| named(&format!("h{i}"), *size, *priority))
                .collect();
            let view = view(&gpus, &held);
            let mut demand = named("me", size, priority);
            if strict {
                demand = demand.arrange(crate::Arrange::StrictPack);
            }
            let without = |gone: &[String]| {
                let mut view = view.clone();
                gone.iter().for_each(|holder| drop(view.release(holder)));
                solve(&view, std::slice::from_ref(&demand))
            };
            match preempt(&view, &demand) {
                Ok(made) => {
                    prop_assert_eq!(without(&made.victims), Ok(made.plan));
                    for (at, victim) in made.victims.iter().enumerate() {
                        let lower = view.leases().filter(|lease| lease.holder == *victim);
                        let lower: Vec<_> = lower.collect();
                        prop_assert!(!lower.is_empty());
                        prop_assert!(lower.iter().all(|lease| lease.priority < priority));
                        let mut fewer = made.victims.clone();
                        fewer.remove(at);
                        prop_assert!(without(&fewer).is_err(), "{victim} was not needed");
                    }
                }
                Err(_) => prop_assert!(without(&candidates(&view, &demand)).is_err()),
            }
        }
    }
}
