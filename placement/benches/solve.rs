//! Decisions of the solver at the size of a large cluster: 1,000 nodes in 50 racks with 8 devices
//! each. A decision is a solution carried out, or a refusal.

#![allow(missing_docs, reason = "criterion's macros define items")]
#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]
#![allow(clippy::disallowed_methods, reason = "a bench is what reads the clock")]

use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use odeon_placement::{Affinity, Arrange, Demand, Level, Node, Resources, View, solve};

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

/// Places until `count` decisions are made, and says how long that took.
fn place(view: &mut View, count: usize, demand: impl Fn(usize) -> Demand) -> Duration {
    let demands: Vec<Demand> = (0..count).map(demand).collect();
    let begun = Instant::now();
    for demand in &demands {
        if let Ok(plan) = solve(view, std::slice::from_ref(demand)) {
            view.grant(&plan);
        }
    }
    begun.elapsed()
}

fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("solve");
    let empty = cluster();
    group.sample_size(10);
    group.throughput(Throughput::Elements(4000));
    group.bench_function("4,000 mixed demands on 1,000 nodes", |b| {
        b.iter_custom(|times| {
            (0..times)
                .map(|_| place(&mut empty.clone(), 4000, mixed))
                .sum()
        });
    });
    let mut full = empty.clone();
    place(&mut full, 8000, |i| named(i, Resources::new()).gpus(1));
    group.throughput(Throughput::Elements(1));
    group.bench_function("refusal by a full cluster", |b| {
        let demand = [named(9000, Resources::new()).gpus(1)];
        b.iter(|| solve(&full, &demand).unwrap_err());
    });
    group.bench_function("a gang of 4,096 ranks", |b| {
        let gang = [named(0, Resources::new()).gpus(1).gang(4096)];
        b.iter_batched(
            || empty.clone(),
            |mut view| {
                let plan = solve(&view, &gang).unwrap();
                view.grant(&plan);
                view
            },
            BatchSize::PerIteration,
        );
    });
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("100,000 light actors", |b| {
        let light = |i| named(i, Resources::new().cpu_milli(1));
        b.iter_custom(|times| {
            (0..times)
                .map(|_| place(&mut empty.clone(), 100_000, light))
                .sum()
        });
    });
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
