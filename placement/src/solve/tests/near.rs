//! Gangs whose bundles talk: units on one node, and what talks much near each other.

use odeon_mesh::Mesh;
use proptest::prelude::*;

use super::place;
use crate::{Demand, Level, Node, Resources, Talk, TalkEnd, TalkOrder, View};

/// A node with room for so many bundles.
fn node(name: &str, rack: u8, cpus: u64) -> Node {
    let mut node = Node::new(name, Resources::new().cpu_milli(1000 * cpus));
    node.zone = Some(format!("z{}", rack / 2));
    node.rack = Some(format!("r{rack}"));
    node
}

/// Ranks of a mesh with each its processor, as those of a training run talk.
fn ranks(mesh: &Mesh) -> Demand {
    let talks = [
        ("cp", TalkOrder::All, 16),
        ("pp", TalkOrder::Line, 4),
        ("dp", TalkOrder::Ring, 1),
    ];
    let talks = talks
        .iter()
        .flat_map(|(dim, order, weight)| Talk::along(mesh, dim, *order, *weight));
    Demand::new("job", "rank", Resources::new().cpu_milli(1000))
        .gang(mesh.len() as u32)
        .unit(mesh.size("tp") as u32)
        .talks(talks)
        .isolated()
}

/// Distance of two nodes, told in words of its own.
fn distance(view: &View, a: &str, b: &str) -> u64 {
    let (x, y) = (view.node(a).unwrap(), view.node(b).unwrap());
    match () {
        () if a == b => 0,
        () if x.zone != y.zone => 3,
        () if x.rack != y.rack => 2,
        () => 1,
    }
}

fn cost(view: &View, demand: &Demand, of: &[String]) -> u64 {
    let one = |talk: &Talk| {
        let other = match &talk.with {
            TalkEnd::Bundle(other) => &of[*other as usize],
            TalkEnd::Node(name) => name,
        };
        u64::from(talk.weight) * distance(view, &of[talk.bundle as usize], other)
    };
    demand.talks.iter().map(one).sum()
}

/// The nodes of the bundles of a plan, in their order.
fn nodes(view: &View, demand: &Demand) -> Vec<String> {
    let plan = place(view, demand).unwrap();
    assert!(
        plan.leases
            .iter()
            .map(|lease| lease.rank)
            .eq(0..demand.gang)
    );
    plan.leases.into_iter().map(|lease| lease.node).collect()
}

/// The least cost of all placements; none where there is none.
fn least(view: &View, demand: &Demand, of: &mut Vec<String>) -> Option<u64> {
    if of.len() == demand.gang as usize {
        return Some(cost(view, demand, of));
    }
    let mut best = None;
    for node in view.nodes() {
        let held = of.iter().filter(|it| **it == node.name).count() as u64 + u64::from(demand.unit);
        if node.free().get(&crate::Resource::Cpu) < 1000 * held {
            continue;
        }
        of.extend(vec![node.name.clone(); demand.unit as usize]);
        best = best.into_iter().chain(least(view, demand, of)).min();
        of.truncate(of.len() - demand.unit as usize);
    }
    best
}

fn any_view() -> impl Strategy<Value = View> {
    let nodes = prop::collection::vec((0..4u8, 1..5u64), 1..4);
    nodes.prop_map(|nodes| {
        let nodes = nodes.into_iter().enumerate();
        View::new(nodes.map(|(at, (rack, cpus))| node(&format!("n{at}"), rack, cpus)))
    })
}

/// Few units, of several ranks each or of one.
fn any_mesh() -> impl Strategy<Value = Mesh> {
    let sizes = (1..4usize, 1..5usize, 1..3usize, 1..3usize);
    let few = sizes.prop_filter("few units", |(dp, pp, cp, _)| dp * pp * cp <= 6);
    few.prop_map(|(dp, pp, cp, tp)| {
        Mesh::new([("dp", dp), ("pp", pp), ("cp", cp), ("tp", tp)]).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// SEMANTICS 155. Nobody lies nearer than these, units are whole, and what is refused has no place.
    #[test]
    fn few_ranks_are_as_near_as_they_can_be(
        view in any_view(),
        mesh in any_mesh(),
        anchored in prop::option::of((0..3u8, 0..6u32)),
    ) {
        let mut demand = ranks(&mesh);
        if let Some((node, bundle)) = anchored {
            let with = TalkEnd::Node(format!("n{node}"));
            let known = view.node(&format!("n{node}")).is_some();
            let talk = Talk { bundle: bundle % demand.gang, with, weight: 9 };
            demand.talks.extend(known.then_some(talk));
        }
        match (place(&view, &demand), least(&view, &demand, &mut vec![])) {
            (Ok(plan), Some(least)) => {
                let of: Vec<String> = plan.leases.into_iter().map(|lease| lease.node).collect();
                for unit in of.chunks(demand.unit as usize) {
                    prop_assert!(unit.iter().all(|node| *node == unit[0]), "{of:?}");
                }
                prop_assert_eq!(cost(&view, &demand, &of), least, "{:?}", of);
            }
            (Err(_), None) => {}
            (found, least) => prop_assert!(false, "{found:?}, but {least:?}"),
        }
    }
}

/// SEMANTICS 155.
#[test]
fn pipelines_of_many_ranks_stay_whole_on_nodes_of_their_size() {
    // Without regard for who talks the third copy would begin on the node of the second.
    let rooms = [10, 8, 8, 8, 8, 8, 8, 8];
    let nodes_of = rooms
        .iter()
        .zip(0..)
        .map(|(cpus, at)| node(&format!("n{at}"), 0, *cpus));
    let view = View::new(nodes_of);
    let mesh = odeon_mesh::mesh! { dp: 8, pp: 4, tp: 2 };
    let of = nodes(&view, &ranks(&mesh));
    for copy in of.chunks(8) {
        assert!(copy.iter().all(|node| *node == copy[0]), "{of:?}");
    }
}

/// SEMANTICS 155.
#[test]
fn a_pipeline_that_no_node_holds_crosses_as_few_borders_as_it_must() {
    let (near, far) = (0, 2);
    let view = View::new([
        node("a", near, 1),
        node("b", far, 1),
        node("c", near, 1),
        node("d", far, 1),
    ]);
    let mesh = odeon_mesh::mesh! { pp: 4 };
    let of = nodes(&view, &ranks(&mesh));
    let racks: Vec<_> = of
        .iter()
        .map(|it| view.node(it).unwrap().rack.clone())
        .collect();
    assert_eq!(racks[0], racks[1]);
    assert_eq!(racks[2], racks[3]);
}

#[test]
fn a_rank_that_comes_back_goes_to_the_nodes_of_those_it_talks_with() {
    let view = View::new([node("a", 0, 4), node("b", 0, 8), node("c", 2, 8)]);
    let one = Demand::new("job", "rank", Resources::new().cpu_milli(1000)).isolated();
    let talk = |node: &str, weight| Talk {
        bundle: 0,
        with: TalkEnd::Node(node.to_owned()),
        weight,
    };
    assert_eq!(nodes(&view, &one), ["a"]);
    let near = one.clone().talks([talk("b", 1), talk("c", 4)]);
    assert_eq!(nodes(&view, &near), ["c"]);
    // One that has no room is passed by, for the nearest.
    let mut view = View::new([node("a", 0, 4), node("b", 2, 8), node("c", 2, 1)]);
    view.grant(&place(&view, &one.clone().on_node("c")).unwrap());
    assert_eq!(nodes(&view, &one.talks([talk("c", 1)])), ["b"]);
}

#[test]
fn units_that_cannot_be_meant_are_refused_with_the_numbers() {
    let view = View::new([node("a", 0, 8)]);
    let one = Demand::new("job", "rank", Resources::new().cpu_milli(1000));
    for (demand, said) in [
        (one.clone().gang(5).unit(2), "5 bundles are no runs of 2"),
        (one.clone().gang(4).unit(0), "4 bundles are no runs of 0"),
        (
            one.clone().gang(4).unit(2).arrange(crate::Arrange::Spread),
            "2 bundles on one node and bundles that are spread",
        ),
        (
            one.clone().gang(2).talks([Talk::between(0, 2, 1)]),
            "bundle 2 of a gang of 2",
        ),
    ] {
        let refusal = place(&view, &demand).unwrap_err().to_string();
        assert!(refusal.contains(said), "{refusal}");
    }
    let odd = View::new([node("a", 0, 3), node("b", 0, 1)]);
    let refusal = place(&odd, &one.gang(4).unit(2)).unwrap_err().to_string();
    let said = "no place for rank (4 x 1 cpu, each 2 on one node, 2 would fit): a takes 3";
    assert!(refusal.starts_with(said), "{refusal}");
}

#[test]
fn the_levels_of_distances_are_those_of_the_topology() {
    let view = View::new([
        node("a", 0, 1),
        node("b", 0, 1),
        node("c", 1, 1),
        node("d", 2, 1),
    ]);
    let of = |b: &str| distance(&view, "a", b);
    assert_eq!([of("a"), of("b"), of("c"), of("d")], [0, 1, 2, 3]);
    assert!(Level::Zone < Level::Rack && Level::Rack < Level::Node);
}
