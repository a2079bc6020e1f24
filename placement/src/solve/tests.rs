//! Tests of the solver.

use std::collections::BTreeMap;

use super::*;
use crate::{Affinity, Arrange, Device, Liveness, Node, Quota, Reason};

mod near;
mod oracle;

const GIB: u64 = 1 << 30;

fn cores(count: u64) -> Resources {
    Resources::new().cpu_milli(1000 * count)
}

fn gpus(name: &str, count: u32) -> Node {
    Node::new(name, Resources::new()).gpus(count, "H200", 80 * GIB)
}

fn demand(bundle: Resources) -> Demand {
    Demand::new("job", "me", bundle)
}

fn one_gpu() -> Demand {
    demand(Resources::new()).gpus(1)
}

fn place(view: &View, demand: &Demand) -> Result<Plan, Refusal> {
    solve(view, std::slice::from_ref(demand))
}

/// Grants `holder` whole devices of a node.
fn hold(view: &mut View, holder: &str, node: &str, devices: u32) {
    let demand = Demand::new("other", holder, Resources::new())
        .gpus(devices)
        .on_node(node);
    let plan = place(view, &demand).unwrap();
    view.grant(&plan);
}

/// Bundles per node, as `a=2 b=1`.
#[track_caller]
fn check(view: &View, demand: &Demand, expect: &str) -> Plan {
    let plan = place(view, demand).unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    plan.leases
        .iter()
        .for_each(|lease| *counts.entry(&lease.node).or_default() += 1);
    let told = counts.iter().map(|(node, count)| format!("{node}={count}"));
    assert_eq!(told.collect::<Vec<_>>().join(" "), expect);
    let ranks: Vec<u32> = plan.leases.iter().map(|lease| lease.rank).collect();
    assert_eq!(ranks, (0..demand.gang).collect::<Vec<_>>());
    plan
}

#[track_caller]
fn check_refused(view: &View, demand: &Demand, expect: &str) -> Refusal {
    let refusal = place(view, demand).unwrap_err();
    assert_eq!(refusal.to_string(), expect);
    let json = serde_json::to_string(&refusal).unwrap();
    assert_eq!(serde_json::from_str::<Refusal>(&json).unwrap(), refusal);
    refusal
}

/// Devices by rank, as `0 1|2 3`.
fn devices(plan: &Plan) -> String {
    let told = plan.leases.iter().map(|lease| {
        let devices = lease.devices.iter().map(|d| d.index.to_string());
        devices.collect::<Vec<_>>().join(" ")
    });
    told.collect::<Vec<_>>().join("|")
}

#[test]
fn a_single_bundle_goes_where_least_is_left_over_or_most_is_free() {
    let mut view = View::new([gpus("big", 8), gpus("half", 4), gpus("small", 1)]);
    hold(&mut view, "other", "half", 2);
    check(&view, &one_gpu(), "small=1");
    check(&view, &one_gpu().gpus(2), "half=1");
    check(&view, &one_gpu().arrange(Arrange::Spread), "big=1");
}

#[test]
fn a_gang_is_packed_on_few_nodes_or_spread_over_many() {
    let view = View::new([gpus("a", 2), gpus("b", 4), gpus("c", 8)]);
    let gang = |size| one_gpu().gang(size);
    check(&view, &gang(3), "b=3");
    check(&view, &gang(10), "a=2 c=8");
    check(&view, &gang(14), "a=2 b=4 c=8");
    check(&view, &gang(6).arrange(Arrange::Spread), "a=2 b=2 c=2");
    check(&view, &gang(8).arrange(Arrange::Spread), "a=2 b=3 c=3");
    check(&view, &gang(8).arrange(Arrange::StrictPack), "c=8");
    check(
        &view,
        &gang(3).arrange(Arrange::StrictSpread),
        "a=1 b=1 c=1",
    );
    check(&view, &gang(0), "");
}

#[test]
fn of_the_fewest_nodes_those_near_each_other_are_taken() {
    let rack = |names: [&str; 2], rack| names.map(|name| gpus(name, 8).at("z", rack));
    let mut nodes: Vec<Node> = rack(["a1", "a2"], "r1").into();
    nodes.extend(rack(["b1", "b2"], "r2"));
    let mut view = View::new(nodes);
    hold(&mut view, "x", "a2", 3);
    // Each pair of nodes would do; only rack r2 has two that are near.
    check(&view, &one_gpu().gang(16), "b1=8 b2=8");
    // Three nodes are needed: they cannot lie in one rack.
    check(&view, &one_gpu().gang(20), "a1=8 a2=4 b1=8");
    check(&view, &one_gpu().gang(9).within(Level::Rack), "a1=8 a2=1");
    check_refused(
        &view,
        &one_gpu().gang(17).within(Level::Rack),
        "no place for me (17 x 1 gpu, 16 would fit in rack r2): \
         a1 takes 8, then has 0 of 8 gpu free; b1 takes 8, then has 0 of 8 gpu free; \
         b2 takes 8, then has 0 of 8 gpu free; \
         a2 takes 5, then has 0 of 8 gpu free (x holds 3). \
         It would not fit on idle nodes either",
    );
}

/// Eight devices: two NUMA nodes, four switches of two, two NVLink domains that cross the NUMA nodes.
fn islands() -> Node {
    (0..8).fold(Node::new("a", cores(8)), |node, i| {
        let device = Device::new(i, "A100", 40 * GIB).numa(i / 4).switch(i / 2);
        node.device(device.nvlink(format!("nv{}", i / 2 % 2)))
    })
}

#[test]
fn the_devices_of_a_bundle_and_of_a_gang_lie_near_each_other() {
    let view = View::new([islands()]);
    let ask = |count| demand(Resources::new()).gpus(count);
    assert_eq!(devices(&check(&view, &ask(2), "a=1")), "0 1");
    // Four: an NVLink domain is nearer than a NUMA node.
    assert_eq!(devices(&check(&view, &ask(4), "a=1")), "0 1 4 5");
    assert_eq!(devices(&check(&view, &ask(2).gang(2), "a=2")), "0 1|4 5");
    let in_numa = ask(3).devices_within(Level::Numa).gang(2);
    assert_eq!(devices(&check(&view, &in_numa, "a=2")), "0 1 2|4 5 6");
    let gang = ask(1).gang(4).within(Level::Numa);
    assert_eq!(devices(&check(&view, &gang, "a=4")), "0|1|2|3");
    check_refused(
        &view,
        &ask(3).devices_within(Level::Switch),
        "no place for me (3 gpu in one PCIe switch): \
         a has 8 gpu free, but not 3 in one PCIe switch. It would not fit on idle nodes either",
    );
    let mut taken = view.clone();
    hold(&mut taken, "x", "a", 1);
    // The broken pair is used up before a whole one is broken.
    assert_eq!(devices(&check(&taken, &ask(1), "a=1")), "1");
    assert_eq!(devices(&check(&taken, &ask(2), "a=1")), "4 5");
}

/// SEMANTICS 43.
#[test]
fn an_nvlink_domain_may_cover_nodes_of_a_rack() {
    let node = |name: &str, domain: &str| {
        (0..4).fold(Node::new(name, cores(8)), |node, i| {
            node.device(Device::new(i, "GB200", 192 * GIB).nvlink(domain))
        })
    };
    let view = View::new([node("n1", "x"), node("n2", "y"), node("n10", "y")]);
    let gang = one_gpu().gang(8).within(Level::Nvlink);
    let plan = check(&view, &gang, "n10=4 n2=4");
    // Numbers in names count by value: ranks 0 to 3 lie on n2.
    assert_eq!(
        (&*plan.leases[0].node, &*plan.leases[7].node),
        ("n2", "n10")
    );
    assert!(place(&view, &gang.gang(9)).is_err());
}

/// SEMANTICS 43.
#[test]
fn ranks_follow_zones_racks_and_nodes_by_name_with_numbers_by_value() {
    let node = |zone: &str, rack: &str, name: &str| gpus(name, 1).at(zone, rack);
    let view = View::new([
        node("z10", "r1", "a1"),
        node("z2", "r10", "a2"),
        node("z2", "r9", "b10"),
        node("z2", "r9", "b9"),
        node("z2", "r9", "c1"),
    ]);
    let plan = place(&view, &one_gpu().gang(5)).unwrap();
    let nodes: Vec<&str> = plan.leases.iter().map(|lease| &*lease.node).collect();
    assert_eq!(nodes, ["b9", "b10", "c1", "a2", "a1"]);
}

/// SEMANTICS 43.
#[test]
fn ranks_of_a_node_follow_numa_node_switch_domain_and_number() {
    let device = |index, numa, switch, domain: &str| {
        let device = Device::new(index, "H200", 80 * GIB).numa(numa);
        device.switch(switch).nvlink(domain)
    };
    let node = [
        device(0, 1, 0, "x"),
        device(1, 0, 3, "x"),
        device(2, 0, 2, "y"),
        device(3, 0, 2, "x"),
        device(5, 0, 2, "w"),
        device(4, 0, 2, "x"),
    ];
    let node = node
        .into_iter()
        .fold(Node::new("a", cores(8)), Node::device);
    let plan = check(&View::new([node]), &one_gpu().gang(6), "a=6");
    assert_eq!(devices(&plan), "5|3|4|2|1|0");
}

#[test]
fn parts_of_devices_are_counted_in_time_and_memory() {
    let mut view = View::new([gpus("a", 2)]);
    let part = |milli| demand(Resources::new()).gpu_milli(milli);
    // Proportional memory, packed on one device before the next is opened.
    let plan = check(&view, &part(500).gang(3), "a=3");
    assert_eq!(devices(&plan), "0|0|1");
    assert_eq!(plan.leases[0].devices[0].memory, 40 * GIB);
    let spread = check(&view, &part(500).gang(3).arrange(Arrange::Spread), "a=3");
    assert_eq!(devices(&spread), "0|0|1");
    view.grant(&check(&view, &part(250).device_memory(60 * GIB), "a=1"));
    check_refused(
        &view,
        &part(0).device_memory(81 * GIB),
        "no place for me (81 GiB of a gpu): a has other devices (H200 of 80 GiB). \
         It would not fit on idle nodes either",
    );
    view.grant(&check(&view, &one_gpu().on_node("a"), "a=1"));
    check_refused(
        &view,
        &part(0).device_memory(41 * GIB),
        "no place for me (41 GiB of a gpu): \
         a has at best 20 GiB of 80 GiB free and 0.75 of the time on gpu 0 (me holds 60 GiB)",
    );
    check(&view, &part(0).device_memory(20 * GIB), "a=1");
    check_refused(
        &view,
        &one_gpu(),
        "no place for me (1 gpu): a has 0 of 2 gpu free (me holds 1.25)",
    );
}

#[test]
fn a_node_without_room_in_the_domain_gets_no_rank_of_it() {
    // What is free on the first node is of another domain than what is broken there.
    let device = |i, domain: &str| Device::new(i, "H200", 80 * GIB).nvlink(domain);
    let view = View::new([
        Node::new("a", Resources::new())
            .device(device(1, "x").quarantined("Xid 79"))
            .device(device(0, "y")),
        Node::new("b", Resources::new()).device(device(0, "x")),
    ]);
    let demand = demand(Resources::new())
        .gpu_milli(500)
        .within(Level::Nvlink)
        .arrange(Arrange::Spread);
    for gang in [1, 2] {
        let plan = place(&view, &demand.clone().gang(gang)).unwrap();
        assert_eq!(plan.leases.len(), gang as usize);
        assert!(plan.leases.iter().all(|lease| lease.devices.len() == 1));
    }
}

#[test]
fn models_slices_and_quarantine_are_told_apart() {
    let view = View::new([
        Node::new("a", cores(8))
            .device(Device::new(0, "A100", 40 * GIB))
            .device(Device::new(1, "A100", 40 * GIB).quarantined("Xid 79: fell off the bus")),
        Node::new("b", cores(8))
            .device(Device::new(0, "H100", 10 * GIB).slice_of(0, "1g.10gb"))
            .device(Device::new(1, "H100", 10 * GIB).slice_of(0, "1g.10gb")),
    ]);
    check(&view, &one_gpu(), "a=1");
    check(
        &view,
        &demand(Resources::new()).slice("1g.10gb").gang(2),
        "b=2",
    );
    let same_card = demand(Resources::new()).slice("1g.10gb").gang(2);
    check(&view, &same_card.within(Level::Device), "b=2");
    check_refused(
        &view,
        &one_gpu().model("H200"),
        "no place for me (1 gpu (H200)): a has other devices (A100 of 40 GiB); \
         b has other devices (slice 1g.10gb of H100). It would not fit on idle nodes either",
    );
    check_refused(
        &view,
        &one_gpu().gpus(2),
        "no place for me (2 gpu): a has only 1 gpu in all, 2 needed, \
         gpu 1 is quarantined: Xid 79: fell off the bus; \
         b has other devices (slice 1g.10gb of H100). It would not fit on idle nodes either",
    );
}

/// SEMANTICS 40.
#[test]
fn roles_share_a_device_set_rank_by_rank() {
    let mut view = View::new([gpus("a", 4), gpus("b", 4)]);
    let role = |name: &str, memory| {
        let demand = Demand::new("rl", name, Resources::new()).gpus(1).gang(6);
        demand.device_memory(memory * GIB).device_set("train")
    };
    let actor = place(&view, &role("actor", 50)).unwrap();
    view.grant(&actor);
    let critic = place(&view, &role("critic", 20)).unwrap();
    view.grant(&critic);
    let lies = |plan: &Plan| -> Vec<(String, u32)> {
        let lies = plan.leases.iter();
        lies.map(|lease| (lease.node.clone(), lease.devices[0].index))
            .collect()
    };
    assert_eq!(lies(&actor), lies(&critic));
    let process = |plan: &Plan| plan.leases[0].process;
    assert_eq!(
        (process(&actor), process(&critic)),
        (Process::New(0), Process::Existing(0))
    );
    check_refused(
        &view,
        &role("reward", 20),
        "no place for reward (6 x 1 gpu of 20 GiB, 0 would fit): \
         a has at best 10 GiB of 80 GiB free on gpu 0 (actor holds 50 GiB, critic holds 20 GiB); \
         b has at best 10 GiB of 80 GiB free on gpu 0 (actor holds 50 GiB, critic holds 20 GiB)",
    );
    check_refused(
        &view,
        &role("reward", 1).gang(5),
        "no place for reward (5 x 1 gpu of 1 GiB): the device set train has 6 ranks with 1 devices \
         each (actor); ask for the same, or for another set",
    );
    let other_job = Demand {
        job: "x".into(),
        ..role("x", 1)
    };
    assert!(
        place(&view, &other_job.gang(3)).is_err(),
        "sets belong to a job"
    );
    // The devices stay taken until the last role has gone.
    assert_eq!(view.release("actor").len(), 6);
    assert!(place(&view, &one_gpu().gang(3)).is_err());
    view.release("critic");
    check(&view, &one_gpu().gang(8), "a=4 b=4");
}

#[test]
fn wishes_are_followed_where_they_can_be() {
    let view = View::new([
        gpus("a", 2).label("disk", "hdd"),
        gpus("b", 2).label("disk", "ssd"),
        gpus("c", 2).label("disk", "ssd"),
    ]);
    let ssd = Affinity::Label("disk".into(), "ssd".into());
    let wish = one_gpu()
        .prefer(ssd, 1)
        .prefer(Affinity::Node("c".into()), 1);
    check(&view, &wish.clone().gang(2), "c=2");
    check(&view, &wish.clone().gang(4), "b=2 c=2");
    check(&view, &wish.gang(5), "a=1 b=2 c=2");
}

#[test]
fn demands_without_devices_leave_device_nodes_alone() {
    let view = View::new([
        Node::new("a", cores(4)).gpus(8, "H200", GIB),
        Node::new("z", cores(4)),
    ]);
    let light = demand(cores(1));
    check(&view, &light, "z=1");
    check(&view, &light.gang(5), "a=1 z=4");
}

/// SEMANTICS 108.
#[test]
fn those_that_wish_to_be_beside_devices_are_as_long_as_there_is_room() {
    let view = View::new([
        Node::new("a", cores(4)).gpus(8, "H200", GIB),
        Node::new("z", cores(4)),
    ]);
    let beside = demand(cores(1)).prefer(Affinity::Accelerated, 1);
    check(&view, &beside, "a=1");
    check(&view, &beside.gang(6), "a=4 z=2");
    let only = demand(cores(1)).require(Affinity::Accelerated).gang(5);
    let refusal = solve(&view, &[only]).unwrap_err().to_string();
    assert!(refusal.contains("has no devices"), "{refusal}");
}

#[test]
fn affinity_is_a_requirement() {
    let mut view = View::new([
        gpus("a", 2).label("zone", "x"),
        gpus("b", 2).label("zone", "y"),
        gpus("c", 2),
    ]);
    hold(&mut view, "critic", "a", 1);
    check(&view, &one_gpu().together_with("critic"), "a=1");
    check(&view, &one_gpu().apart_from("critic").gang(4), "b=2 c=2");
    check(&view, &one_gpu().on_node("c"), "c=1");
    let not = |name: &str| Affinity::NotNode(name.into());
    check(&view, &one_gpu().require(not("a")).require(not("b")), "c=1");
    check_refused(
        &view,
        &one_gpu().on_node("a").gang(2),
        "no place for me (2 x 1 gpu, 1 would fit): \
         a takes 1, then has 0 of 2 gpu free (critic holds 1)",
    );
    check_refused(
        &view,
        &one_gpu().on_node("d"),
        "no place for me (1 gpu): the cluster has no node d. \
         It would not fit on idle nodes either",
    );
    let label = |value: &str| Affinity::Label("zone".into(), value.into());
    check(&view, &one_gpu().require(label("y")), "b=1");
    check_refused(
        &view,
        &one_gpu().together_with("critic").gang(2),
        "no place for me (2 x 1 gpu, 1 would fit): \
         a takes 1, then has 0 of 2 gpu free (critic holds 1); \
         b does not have critic; c does not have critic",
    );
    check_refused(
        &view,
        &one_gpu().require(label("z")).apart_from("critic"),
        "no place for me (1 gpu): a has zone=x, not zone=z; b has zone=y, not zone=z; \
         c lacks zone=z. It would not fit on idle nodes either",
    );
    let switch = one_gpu().near("critic", Level::Numa);
    assert_eq!(devices(&check(&view, &switch, "a=1")), "1");
    let apart = one_gpu().require(Affinity::Apart("critic".into(), Level::Device));
    check(&view, &apart.gang(5), "a=1 b=2 c=2");
}

#[test]
fn the_jobs_shared_worker_is_joined_and_isolated_bundles_get_their_own() {
    let view = View::new([
        Node::new("a", cores(8)).worker(3, "other", Isolation::Shared),
        Node::new("b", cores(8))
            .worker(7, "job", Isolation::Process)
            .worker(9, "job", Isolation::Shared),
        gpus("g", 2),
    ]);
    let processes = |demand: &Demand| {
        let plan = place(&view, demand).unwrap();
        let processes = plan
            .leases
            .into_iter()
            .map(|lease| (lease.node, lease.process));
        processes.collect::<Vec<_>>()
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
    let quarter = demand(Resources::new()).gpu_milli(250).gang(5);
    let expected = [0, 0, 0, 0, 1].map(|nth| on("g", Process::New(nth)));
    assert_eq!(processes(&quarter), expected, "one process a device");
}

#[test]
fn the_worker_limit_holds_and_says_who_fills_it() {
    let node = Node::new("a", cores(8))
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
    assert!(!refusal.is_hopeless());
    let full = view.with(&place(&view, &light.clone().isolated()).unwrap());
    check_refused(
        &full,
        &light,
        "no place for me (0.001 cpu): \
         a is at its limit of 3 worker processes (old has 2, job has 1)",
    );
}

/// SEMANTICS 42.
#[test]
fn a_refusal_names_the_nearest_node_first_and_who_holds_what() {
    let memory = |gib| Resources::new().memory_bytes(gib * GIB);
    let node = |name: &str| Node::new(name, memory(64)).gpus(4, "H200", GIB);
    let mut view = View::new([
        node("a").liveness(Liveness::Draining),
        node("b"),
        Node::new("c", memory(1)),
        node("d"),
    ]);
    hold(&mut view, "critic", "b", 1);
    hold(&mut view, "rollout", "b", 3);
    let loader = Demand::new("other", "loader", memory(60)).on_node("d");
    let plan = place(&view, &loader).unwrap();
    view.grant(&plan);
    let refusal = check_refused(
        &view,
        &Demand::new("job", "trainer", memory(8)).gpus(2),
        "no place for trainer (2 gpu + 8 GiB memory): \
         b has 0 of 4 gpu free (rollout holds 3, critic holds 1); \
         d has 4 GiB of 64 GiB memory free (loader holds 60 GiB); \
         c has no gpu, 2 needed; a is draining",
    );
    assert_eq!(refusal.nearest().unwrap().node, "b");
    assert!(!refusal.is_hopeless());
    check_refused(
        &View::default(),
        &one_gpu(),
        "no place for me (1 gpu): the cluster has no nodes",
    );
}

#[test]
fn a_refusal_of_a_large_cluster_stays_short() {
    let view = View::new((0..1024).map(|i| gpus(&format!("n{i}"), 8)));
    let spread = place(
        &view,
        &one_gpu().gpus(8).gang(1024).arrange(Arrange::Spread),
    )
    .unwrap();
    assert!((0..1024).all(|i| spread.leases[i].node == format!("n{i}")));
    let refusal = check_refused(
        &view,
        &one_gpu().gang(9).arrange(Arrange::StrictPack),
        "no place for me (9 x 1 gpu, 8 would fit): \
         n0 takes 8, then has 0 of 8 gpu free; n1 takes 8, then has 0 of 8 gpu free; \
         n2 takes 8, then has 0 of 8 gpu free; n3 takes 8, then has 0 of 8 gpu free; \
         and 1020 other nodes. It would not fit on idle nodes either",
    );
    assert_eq!(refusal.nodes().len(), 1024);
}

/// SEMANTICS 40.
#[test]
fn a_job_stays_within_its_quota() {
    let mut view = View::new([Node::new("a", cores(8)).gpus(8, "H200", GIB)]);
    let quota = Quota {
        resources: cores(2),
        gpu_milli: Some(2_500),
    };
    view.set_quota("job", quota);
    view.grant(&place(&view, &one_gpu().gang(2)).unwrap());
    let more = Demand::new("job", "more", Resources::new());
    check(&view, &more.clone().gpu_milli(500), "a=1");
    check_refused(
        &view,
        &more.gpus(1),
        "no place for more (1 gpu): job may hold 2.5 gpu, holds 2 and asks for 1 more",
    );
    check_refused(
        &view,
        &demand(cores(1)).gang(3),
        "no place for me (3 x 1 cpu): job may hold 2 cpu, holds 0 and asks for 3 more",
    );
    check(&view, &Demand::new("free", "x", cores(3)).gpus(3), "a=1");
    // All of it may be held.
    check(&view, &demand(cores(1)).gang(2), "a=2");
    // Who holds more than a bound that was lowered still gets what counts for nothing.
    view.grant(&check(&view, &demand(cores(2)), "a=1"));
    let lowered = Quota {
        resources: cores(1),
        gpu_milli: Some(1_000),
    };
    view.set_quota("job", lowered);
    check(&view, &Demand::new("job", "light", Resources::new()), "a=1");
}

/// SEMANTICS 40. Nor does who joins a device set take a device.
#[test]
fn who_joins_a_device_set_stays_within_a_quota_that_is_used_up() {
    let mut view = View::new([gpus("a", 2)]);
    let role = |name: &str| {
        let demand = Demand::new("job", name, Resources::new()).gpus(2);
        demand.device_memory(GIB).device_set("train")
    };
    view.grant(&check(&view, &role("first"), "a=1"));
    let lowered = Quota {
        gpu_milli: Some(1_000),
        ..Quota::default()
    };
    view.set_quota("job", lowered);
    let plan = check(&view, &role("second"), "a=1");
    assert_eq!(devices(&plan), "0 1");
}

/// SEMANTICS 42.
#[test]
fn what_cannot_be_meant_is_refused_with_a_reason() {
    let light = || demand(cores(1));
    let near = || Affinity::Near("x".into(), Level::Node);
    let apart = |level| Affinity::Apart("x".into(), level);
    let not = |node: &str| Affinity::NotNode(node.into());
    for (demand, reason) in [
        (
            light().gpus(0),
            "it asks for zero devices: leave it out, or ask for at least one",
        ),
        (light().gpu_milli(0), "it asks for zero of a device"),
        (
            light().gpus(1).device_memory(0),
            "it asks for zero device memory",
        ),
        (
            light().gpu_milli(1500),
            "it asks for 1.5 of a device as a part: ask for whole devices",
        ),
        (
            light().within(Level::Nvlink),
            "it names a NVLink domain, but asks for no device",
        ),
        (
            light().near("x", Level::Numa),
            "it names a NUMA node, but asks for no device",
        ),
        (
            light().device_set("s"),
            "it shares the device set s, so it must ask for whole devices",
        ),
        (light().gpus(1).device_set("s"), "and say how much memory"),
        (
            light().on_node("a").on_node("b"),
            "on a and on b exclude each other",
        ),
        (
            light().on_node("a").require(not("a")),
            "on a and not on a exclude each other",
        ),
        (
            light().require(near()).require(apart(Level::Rack)),
            "in a node with x and in a rack without x exclude each other",
        ),
        (
            light().on_node("a").gang(2).arrange(Arrange::StrictSpread),
            "one node a bundle and on a exclude each other",
        ),
        (light().gang(u32::MAX), "a gang has at most 1048576 bundles"),
        (
            light().gpus(u32::MAX).gang(2),
            "has only 8 gpu in all, 4294967295 needed",
        ),
        (
            light().prefer(near(), 0),
            "it asks for zero weight of a preference",
        ),
    ] {
        let refusal = place(&View::new([gpus("a", 8)]), &demand).unwrap_err();
        assert!(refusal.to_string().contains(reason), "{refusal}");
        assert!(refusal.is_hopeless());
    }
    // In the same rack but on another node is no contradiction.
    let rack = light().near("x", Level::Rack).require(apart(Level::Node));
    assert_eq!(rack.check(), Ok(()));
}

/// SEMANTICS 40.
#[test]
fn several_demands_are_placed_together_or_not_at_all() {
    let view = View::new([gpus("a", 1), gpus("b", 1).label("fast", "yes")]);
    let named = |name: &str| Demand::new("job", name, Resources::new()).gpus(1);
    let picky = named("picky").require(Affinity::Label("fast".into(), "yes".into()));
    let easy = named("easy").prefer(Affinity::Node("b".into()), 1);
    // Placed first, the easy one would take the only place of the picky one.
    let plan = solve(&view, &[easy.clone(), picky.clone()]).unwrap();
    let nodes: Vec<_> = plan.leases.iter().map(|l| (&*l.holder, &*l.node)).collect();
    assert_eq!(nodes, [("easy", "a"), ("picky", "b")]);
    let refusal = solve(&view, &[easy.clone(), picky, named("third")]).unwrap_err();
    assert_eq!(refusal.holder, "third");
    let refusal = solve(&view, &[easy.clone(), easy]).unwrap_err();
    assert!(
        refusal.to_string().contains("easy stands twice"),
        "{refusal}"
    );
    // A demand may name one that is placed with it.
    let shadow = Demand::new("job", "shadow", Resources::new()).together_with("picky");
    let plan = solve(&view, &[named("picky"), shadow]).unwrap();
    assert_eq!(plan.leases[0].node, plan.leases[1].node);
    // The higher priority is served first, wherever it is listed.
    let view = View::new([gpus("a", 1)]);
    let refusal = solve(&view, &[named("low"), named("high").priority(1)]).unwrap_err();
    assert_eq!(refusal.holder, "low");
}

#[test]
fn a_refusal_says_it_is_the_node_that_failed_before() {
    let view = View::new([gpus("a", 8)]);
    let refusal = place(&view, &one_gpu().require(Affinity::NotNode("a".into()))).unwrap_err();
    assert_eq!(refusal.nearest().unwrap().reason, Reason::Avoided);
}

/// SEMANTICS 65.
#[test]
fn the_jobs_of_a_namespace_are_bounded_together() {
    let node = Node::new("n0", Resources::new()).gpus(8, "H200", 1 << 30);
    let mut view = View::new([node]);
    let quota = Quota {
        gpu_milli: Some(3_000),
        ..Quota::default()
    };
    view.set_quota("lab/", quota);
    let ask = |job: &str, gpus| Demand::new(job, format!("of {job}"), Resources::new()).gpus(gpus);
    for (job, gpus, fits) in [
        ("lab/j1.1", 2, true),
        ("lab/j2.1", 2, false),
        ("lab/j2.1", 1, true),
        // Its name begins alike, and it is in no namespace of that name.
        ("laboratory/j3.1", 4, true),
    ] {
        match solve(&view, &[ask(job, gpus)]) {
            Ok(plan) => {
                assert!(fits, "{job}");
                view.grant(&plan);
            }
            Err(refusal) => {
                assert!(!fits, "{job}: {refusal}");
                let why = "the jobs of lab together may hold 3 gpu, holds 2 and asks for 2 more";
                assert!(refusal.to_string().contains(why), "{refusal}");
            }
        }
    }
    // Processors and memory are bounded as devices are.
    let room = Resources::new().cpu_milli(90_000).memory_bytes(90 * GIB);
    for (most, asked, told) in [
        (
            Resources::new().cpu_milli(3_000),
            Resources::new().cpu_milli(2_000),
            "the jobs of lab together may hold 3 cpu, holds 2 and asks for 2 more",
        ),
        (
            Resources::new().memory_bytes(3 * GIB),
            Resources::new().memory_bytes(2 * GIB),
            "the jobs of lab together may hold 3 GiB memory, holds 2 GiB and asks for 2 GiB more",
        ),
    ] {
        let mut view = View::new([Node::new("n0", room.clone())]);
        let quota = Quota {
            resources: most,
            ..Quota::default()
        };
        view.set_quota("lab/", quota);
        let ask = |job: &str| Demand::new(job, format!("of {job}"), asked.clone());
        view.grant(&solve(&view, &[ask("lab/j1.1")]).unwrap());
        let refusal = solve(&view, &[ask("lab/j2.1")]).unwrap_err().to_string();
        assert!(refusal.contains(told), "{refusal}");
        solve(&view, &[ask("laboratory/j3.1")]).unwrap();
    }
}
