//! Tests of the solver.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn gpus(count: u64) -> Resources {
    Resources::new().gpus(count)
}

fn demand(bundle: Resources) -> Demand {
    Demand::new("job", "me", bundle)
}

/// Bundles per node, as `a=2 b=1`.
#[track_caller]
fn check(view: &View, demand: &Demand, expect: &str) {
    let plan = solve(view, demand).unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    plan.leases
        .iter()
        .for_each(|lease| *counts.entry(&lease.node).or_default() += 1);
    let told: Vec<String> = counts
        .iter()
        .map(|(node, count)| format!("{node}={count}"))
        .collect();
    assert_eq!(told.join(" "), expect);
    let ranks: Vec<u32> = plan.leases.iter().map(|lease| lease.rank).collect();
    assert_eq!(ranks, (0..demand.gang).collect::<Vec<_>>());
}

#[track_caller]
fn check_refused(view: &View, demand: &Demand, expect: &str) -> Refusal {
    let refusal = solve(view, demand).unwrap_err();
    assert_eq!(refusal.to_string(), expect);
    refusal
}

#[test]
fn a_single_bundle_goes_where_least_is_left_over_or_most_is_free() {
    let view = View::new([
        Node::new("big", gpus(8)),
        Node::new("half", gpus(4)).held("other", gpus(2)),
        Node::new("small", gpus(1)),
    ]);
    check(&view, &demand(gpus(1)), "small=1");
    check(&view, &demand(gpus(2)), "half=1");
    check(&view, &demand(gpus(1)).arrange(Arrange::Spread), "big=1");
}

#[test]
fn a_gang_is_packed_on_few_nodes_or_spread_over_many() {
    let view = View::new([
        Node::new("a", gpus(2)),
        Node::new("b", gpus(4)),
        Node::new("c", gpus(8)),
    ]);
    let gang = |size| demand(gpus(1)).gang(size);
    check(&view, &gang(3), "b=3");
    check(&view, &gang(10), "a=2 c=8");
    check(&view, &gang(14), "a=2 b=4 c=8");
    check(&view, &gang(6).arrange(Arrange::Spread), "a=2 b=2 c=2");
    check(&view, &gang(8).arrange(Arrange::Spread), "a=2 b=3 c=3");
    check(&view, &gang(8).arrange(Arrange::OneNode), "c=8");
    check(
        &view,
        &gang(3).arrange(Arrange::DistinctNodes),
        "a=1 b=1 c=1",
    );
    check(&view, &gang(0), "");
}

#[test]
fn demands_without_devices_leave_device_nodes_alone() {
    let cores = Resources::new().cpu_milli(4_000);
    let view = View::new([Node::new("a", cores.clone().gpus(8)), Node::new("z", cores)]);
    let light = demand(Resources::new().cpu_milli(1_000));
    check(&view, &light, "z=1");
    check(&view, &light.gang(5), "a=1 z=4");
}

#[test]
fn affinity_is_a_requirement() {
    let view = View::new([
        Node::new("a", gpus(2))
            .held("critic", gpus(1))
            .label("zone", "x"),
        Node::new("b", gpus(2)).label("zone", "y"),
        Node::new("c", gpus(2)),
    ]);
    let one = demand(gpus(1));
    check(&view, &one.clone().near("critic"), "a=1");
    check(&view, &one.clone().apart_from("critic").gang(4), "b=2 c=2");
    check(&view, &one.clone().on_node("c"), "c=1");
    check_refused(
        &view,
        &one.clone().on_node("a").gang(2),
        "no place for me (2 x 1 gpu, 1 would fit): \
         a takes 1, then has 0 of 2 gpu free (critic holds 1)",
    );
    check_refused(
        &view,
        &one.clone().on_node("d"),
        "no place for me (1 gpu): the cluster has no node d",
    );
    check(
        &view,
        &one.clone()
            .require(Affinity::Label("zone".into(), "y".into())),
        "b=1",
    );
    check_refused(
        &view,
        &one.clone().near("critic").gang(2),
        "no place for me (2 x 1 gpu, 1 would fit): \
         a takes 1, then has 0 of 2 gpu free (critic holds 1); \
         b does not have critic; c does not have critic",
    );
    check_refused(
        &view,
        &one.require(Affinity::Label("zone".into(), "z".into()))
            .apart_from("critic"),
        "no place for me (1 gpu): a has zone=x, not zone=z; b has zone=y, not zone=z; \
         c lacks zone=z. It would not fit on idle nodes either",
    );
}

#[test]
fn the_jobs_shared_worker_is_joined_and_isolated_bundles_get_their_own() {
    let cores = Resources::new().cpu_milli(8_000);
    let view = View::new([
        Node::new("a", cores.clone()).worker(3, "other", Isolation::Shared),
        Node::new("b", cores.clone())
            .worker(7, "job", Isolation::Process)
            .worker(9, "job", Isolation::Shared),
    ]);
    let processes = |demand: &Demand| {
        let plan = solve(&view, demand).unwrap();
        plan.leases
            .into_iter()
            .map(|lease| (lease.node, lease.process))
            .collect::<Vec<_>>()
    };
    let light = demand(Resources::new().cpu_milli(100));
    let on = |node: &str, process| (node.to_owned(), process);
    assert_eq!(
        processes(&light.clone().gang(2)),
        vec![on("b", Process::Existing(9)); 2]
    );
    assert_eq!(
        processes(&light.clone().on_node("a").gang(2)),
        vec![on("a", Process::New(0)); 2],
        "a new shared worker serves both",
    );
    assert_eq!(
        processes(&light.isolated().gang(2)),
        [on("a", Process::New(0)), on("a", Process::New(1))],
    );
}

#[test]
fn the_worker_limit_holds_and_says_who_fills_it() {
    let node = Node::new("a", Resources::new().cpu_milli(8_000))
        .worker_limit(3)
        .worker(0, "old", Isolation::Process)
        .worker(1, "old", Isolation::Shared);
    let view = View::new([node]);
    let light = demand(Resources::new().cpu_milli(1));
    check(&view, &light.clone().isolated(), "a=1");
    check(&view, &light.clone().gang(5), "a=5");
    let refusal = check_refused(
        &view,
        &light.clone().isolated().gang(2),
        "no place for me (2 x 0.001 cpu, 1 would fit): \
         a takes 1, then is at its limit of 3 worker processes (old has 2)",
    );
    assert!(!refusal.hopeless);
    let full = view.with(&solve(&view, &light.clone().isolated()).unwrap());
    check_refused(
        &full,
        &light,
        "no place for me (0.001 cpu): \
         a is at its limit of 3 worker processes (old has 2, job has 1)",
    );
}

#[test]
fn a_refusal_names_the_nearest_node_first_and_who_holds_what() {
    let node = |name: &str| Node::new(name, gpus(4).memory_bytes(64 << 30));
    let view = View::new([
        node("a").liveness(Liveness::Draining),
        node("b").held("critic", gpus(1)).held("rollout", gpus(3)),
        Node::new("c", Resources::new().memory_bytes(1 << 30)),
        node("d").held("loader", Resources::new().memory_bytes(60 << 30)),
    ]);
    let refusal = check_refused(
        &view,
        &Demand::new("job", "trainer", gpus(2).memory_bytes(8 << 30)),
        "no place for trainer (2 gpu + 8 GiB memory): \
         b has 0 of 4 gpu free (rollout holds 3, critic holds 1); \
         d has 4 GiB of 64 GiB memory free (loader holds 60 GiB); \
         c has no gpu, 2 needed; a is draining",
    );
    assert_eq!(refusal.nearest().unwrap().node, "b");
    assert!(!refusal.hopeless);
    check_refused(
        &View::default(),
        &demand(gpus(1)),
        "no place for me (1 gpu): the cluster has no nodes",
    );
    let json = serde_json::to_string(&refusal).unwrap();
    assert_eq!(serde_json::from_str::<Refusal>(&json).unwrap(), refusal);
}

#[test]
fn a_refusal_of_a_large_cluster_stays_short() {
    let view = View::new((0..1024).map(|i| Node::new(format!("n{i:04}"), gpus(8))));
    check(
        &view,
        &demand(gpus(8)).gang(1024).arrange(Arrange::Spread),
        &{
            (0..1024)
                .map(|i| format!("n{i:04}=1"))
                .collect::<Vec<_>>()
                .join(" ")
        },
    );
    let refusal = check_refused(
        &view,
        &demand(gpus(1)).gang(9).arrange(Arrange::OneNode),
        "no place for me (9 x 1 gpu, 8 would fit): \
         n0000 takes 8, then has 0 of 8 gpu free; n0001 takes 8, then has 0 of 8 gpu free; \
         n0002 takes 8, then has 0 of 8 gpu free; n0003 takes 8, then has 0 of 8 gpu free; \
         and 1020 other nodes. It would not fit on idle nodes either",
    );
    assert_eq!(refusal.nodes.len(), 1024);
}

fn any_resources(max: u64) -> impl Strategy<Value = Resources> {
    (0..=max, 0..=max, 0..=max).prop_map(|(gpu, cpu, custom)| {
        Resources::new()
            .gpus(gpu)
            .cpu_milli(cpu)
            .custom_milli("x", custom)
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let isolation = prop_oneof![Just(Isolation::Shared), Just(Isolation::Process)];
    (
        any_resources(6),
        prop_oneof![5 => Just(Liveness::Up), 1 => Just(Liveness::Draining)],
        prop::collection::vec((0..3u8, any_resources(2)), 0..3),
        prop::collection::vec((prop_oneof![Just("job"), Just("other")], isolation), 0..3),
        0..5u32,
        0..2u8,
    )
        .prop_map(|(capacity, liveness, held, workers, limit, zone)| {
            let mut node = Node::new("", capacity)
                .liveness(liveness)
                .worker_limit(limit)
                .label("zone", zone.to_string());
            for (holder, resources) in held {
                node = node.held(format!("h{holder}"), resources);
            }
            for (id, (job, isolation)) in (0..).zip(workers) {
                node = node.worker(id, job, isolation);
            }
            node
        })
}

fn any_view() -> impl Strategy<Value = Vec<Node>> {
    prop::collection::vec(any_node(), 0..5).prop_map(|mut nodes| {
        nodes
            .iter_mut()
            .enumerate()
            .for_each(|(i, node)| node.name = format!("n{i}"));
        nodes
    })
}

fn any_demand() -> impl Strategy<Value = Demand> {
    let affinity = prop_oneof![
        (0..4u8).prop_map(|n| Affinity::Node(format!("n{n}"))),
        (0..2u8).prop_map(|z| Affinity::Label("zone".into(), z.to_string())),
        (0..3u8).prop_map(|h| Affinity::Near(format!("h{h}"))),
        (0..3u8).prop_map(|h| Affinity::Apart(format!("h{h}"))),
    ];
    let arrange = prop_oneof![
        Just(Arrange::Pack),
        Just(Arrange::Spread),
        Just(Arrange::OneNode),
        Just(Arrange::DistinctNodes)
    ];
    let wishes = prop::collection::vec(affinity, 0..2);
    (any_resources(3), 1..5u32, any::<bool>(), wishes, arrange).prop_map(
        |(bundle, gang, isolated, affinity, arrange)| {
            let demand = demand(bundle).gang(gang).arrange(arrange);
            let demand = if isolated { demand.isolated() } else { demand };
            Demand { affinity, ..demand }
        },
    )
}

/// Whether these bundles may lie on these nodes (by index), told from the definitions alone.
fn is_valid(nodes: &[Node], demand: &Demand, places: &[usize]) -> bool {
    let per_node = |at| places.iter().filter(|&&place| place == at).count();
    let arranged = match demand.arrange {
        Arrange::OneNode => places.windows(2).all(|pair| pair[0] == pair[1]),
        Arrange::DistinctNodes => (0..nodes.len()).all(|at| per_node(at) <= 1),
        Arrange::Pack | Arrange::Spread => true,
    };
    arranged
        && nodes.iter().enumerate().all(|(at, node)| {
            let count = per_node(at);
            let mut used = BTreeMap::new();
            let bundles = std::iter::repeat_n(&demand.bundle, count);
            for resources in node
                .held
                .iter()
                .map(|held| &held.resources)
                .chain(bundles.clone())
            {
                for (resource, quantity) in resources.iter() {
                    *used.entry(resource).or_insert(0) += quantity;
                }
            }
            let room = bundles
                .take(1)
                .flat_map(Resources::iter)
                .all(|(resource, _)| used[resource] <= node.capacity.get(resource));
            let joins = node
                .workers
                .iter()
                .any(|worker| worker.job == demand.job && worker.isolation == Isolation::Shared);
            let started = match demand.isolation {
                Isolation::Process => count,
                Isolation::Shared => usize::from(count > 0 && !joins),
            };
            let suits = demand.affinity.iter().all(|affinity| match affinity {
                Affinity::Node(name) => node.name == *name,
                Affinity::Label(key, value) => node.labels.get(key) == Some(value),
                Affinity::Near(holder) => node.held.iter().any(|held| held.holder == *holder),
                Affinity::Apart(holder) => node.held.iter().all(|held| held.holder != *holder),
            });
            let limit = node.worker_limit as usize;
            let staffed = started == 0 || node.workers.len() + started <= limit;
            count == 0 || (room && staffed && suits && node.liveness == Liveness::Up)
        })
}

/// Tries every assignment of bundles to nodes.
fn brute_force(nodes: &[Node], demand: &Demand, places: &mut Vec<usize>) -> bool {
    if places.len() == demand.gang as usize {
        return is_valid(nodes, demand, places);
    }
    (0..nodes.len()).any(|at| {
        places.push(at);
        let found = brute_force(nodes, demand, places);
        places.pop();
        found
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// All or nothing, within capacity, limits and wishes; refused only when nothing is possible.
    #[test]
    fn plans_are_valid_and_refusals_are_right(nodes in any_view(), demand in any_demand()) {
        let view = View::new(nodes.clone());
        match solve(&view, &demand) {
            Ok(plan) => {
                prop_assert_eq!(plan.leases.len(), demand.gang as usize);
                let at = |lease: &Lease| nodes.iter().position(|node| node.name == lease.node);
                let places: Option<Vec<usize>> = plan.leases.iter().map(at).collect();
                prop_assert!(is_valid(&nodes, &demand, &places.unwrap()), "{plan:?}");
                let mut after = view.with(&plan);
                for (node, before) in after.nodes().zip(&nodes) {
                    prop_assert!(node.workers.len() <= before.workers.len().max(node.worker_limit as usize));
                }
                // The plan uses up what it took: in the end the demand is refused.
                for _ in 0..40 {
                    let Ok(next) = solve(&after, &demand) else { break };
                    after = after.with(&next);
                }
                for node in after.nodes() {
                    for (resource, _) in demand.bundle.iter() {
                        let held = node.held.iter().map(|held| held.resources.get(resource));
                        let before = view.node(&node.name).unwrap();
                        let held_before = before.held.iter().map(|held| held.resources.get(resource));
                        let bound = node.capacity.get(resource).max(held_before.sum());
                        prop_assert!(held.sum::<u64>() <= bound);
                    }
                }
            }
            Err(refusal) => {
                prop_assert!(!brute_force(&nodes, &demand, &mut Vec::new()), "{refusal}");
                prop_assert_eq!(refusal.nodes.len(), nodes.len());
                prop_assert!(refusal.would_fit < demand.gang);
                let fewer = demand.clone().gang(refusal.would_fit);
                prop_assert!(solve(&view, &fewer).is_ok(), "{refusal}");
                if refusal.hopeless {
                    let idle = nodes.into_iter().map(|mut node| {
                        node.workers.clear();
                        node.held.clear();
                        node
                    });
                    prop_assert!(solve(&View::new(idle), &demand).is_err());
                }
            }
        }
    }

    #[test]
    fn the_order_of_nodes_does_not_matter(mut nodes in any_view(), demand in any_demand()) {
        let first = solve(&View::new(nodes.clone()), &demand);
        nodes.reverse();
        prop_assert_eq!(first, solve(&View::new(nodes), &demand));
    }

    /// Packing uses the fewest nodes possible, spreading leaves the counts as even as rooms allow.
    #[test]
    fn arrangements_keep_their_promise(nodes in any_view(), demand in any_demand()) {
        let view = View::new(nodes.clone());
        let counts = |plan: &Plan| {
            let mut counts = vec![0usize; nodes.len()];
            for lease in &plan.leases {
                counts[nodes.iter().position(|node| node.name == lease.node).unwrap()] += 1;
            }
            counts
        };
        if let Ok(plan) = solve(&view, &demand.clone().arrange(Arrange::Pack)) {
            let used = counts(&plan).iter().filter(|&&count| count > 0).count();
            let mut rooms: Vec<u32> =
                view.nodes().map(|node| Room::of(node, &demand.clone().arrange(Arrange::Pack)).count).collect();
            rooms.sort_unstable_by_key(|count| Reverse(*count));
            prop_assert!(used == 1 || rooms[..used - 1].iter().sum::<u32>() < demand.gang);
        }
        let even = demand.arrange(Arrange::Spread);
        if let Ok(plan) = solve(&view, &even) {
            let counts = counts(&plan);
            for (at, &count) in counts.iter().enumerate() {
                let room = Room::of(&nodes[at], &even).count as usize;
                let most = counts.iter().max().copied().unwrap_or(0);
                prop_assert!(count == room || count + 1 >= most, "{counts:?}");
            }
        }
    }
}
