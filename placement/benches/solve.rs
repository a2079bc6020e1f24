//! Decisions of the solver at the size of a large cluster: 1,000 nodes in 50 racks with 8 devices
//! each. A decision is a solution carried out, or a refusal.

#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]

use divan::Bencher;
use divan::counter::ItemsCount;
use odeon_placement::{Affinity, Arrange, Demand, Level, Node, Resources, View, solve};

fn main() {
    divan::main();
}

fn cluster() -> View {
    let capacity = || {
        let resources = Resources::new().cpu_milli(128_000);
        resources.memory_bytes(2 << 40)
    };
    View::new((0..1000).map(|i| {
        let node = Node::new(format!("node-{i}"), capacity()).at("z", format!("rack-{}", i / 20));
        node.gpus(8, "H200", 141 << 30).worker_limit(256)
    }))
}

fn named(i: usize, bundle: Resources) -> Demand {
    Demand::new("job", format!("actor-{i}"), bundle)
}

/// The i-th of a mixed stream of demands: singles, parts, small gangs, neighbours, light actors.
fn mixed(i: usize) -> Demand {
    let light = named(i, Resources::new().cpu_milli(500).memory_bytes(1 << 30));
    match i % 8 {
        0 | 1 => light.gpus(1),
        2 => light.gpu_milli(250),
        3 => light.gpus(1).gang(8).within(Level::Rack),
        4 => light.device_memory(20 << 30),
        5 => light.near(format!("actor-{}", i - 5), Level::Rack),
        6 => light.prefer(Affinity::Node(format!("node-{}", i % 1000)), 1),
        _ => light.arrange(Arrange::Spread).gang(4),
    }
}

/// Decides on one demand after the other.
fn place(mut view: View, demands: &[Demand]) -> View {
    for demand in demands {
        if let Ok(plan) = solve(&view, std::slice::from_ref(demand)) {
            view.grant(&plan);
        }
    }
    view
}

/// Measures decisions on a fresh cluster each time.
fn decide(bencher: Bencher<'_, '_>, count: usize, demand: impl Fn(usize) -> Demand) {
    let empty = cluster();
    let demands: Vec<Demand> = (0..count).map(demand).collect();
    bencher
        .counter(ItemsCount::new(count))
        .with_inputs(|| empty.clone())
        .bench_local_values(|view| place(view, &demands));
}

#[divan::bench(
    name = "4,000 mixed demands on 1,000 nodes",
    sample_count = 10,
    sample_size = 1
)]
fn mixed_demands(bencher: Bencher<'_, '_>) {
    decide(bencher, 4000, mixed);
}

#[divan::bench(name = "refusal by a full cluster")]
fn refusal(bencher: Bencher<'_, '_>) {
    let singles: Vec<Demand> = (0..8000)
        .map(|i| named(i, Resources::new()).gpus(1))
        .collect();
    let full = place(cluster(), &singles);
    let demand = [named(9000, Resources::new()).gpus(1)];
    bencher.bench_local(|| solve(&full, &demand).unwrap_err());
}

#[divan::bench(name = "a gang of 4,096 ranks", sample_count = 10, sample_size = 1)]
fn gang(bencher: Bencher<'_, '_>) {
    let empty = cluster();
    let gang = [named(0, Resources::new()).gpus(1).gang(4096)];
    bencher
        .with_inputs(|| empty.clone())
        .bench_local_values(|mut view| {
            let plan = solve(&view, &gang).unwrap();
            view.grant(&plan);
            view
        });
}

#[divan::bench(name = "100,000 light actors", sample_count = 10, sample_size = 1)]
fn light_actors(bencher: Bencher<'_, '_>) {
    decide(bencher, 100_000, |i| {
        named(i, Resources::new().cpu_milli(1))
    });
}
