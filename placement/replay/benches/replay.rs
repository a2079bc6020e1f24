//! The replay of a graph of a million operations, and the planning of a pipeline.

#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]

use divan::Bencher;
use odeon_replay::{PipelineCosts, PipelineSchedule, PipelineSummary, StageCosts};

const RANKS: usize = 16;

fn main() {
    divan::main();
}

fn costs(chunks: usize) -> PipelineCosts {
    let stage = StageCosts {
        activation_bytes: 1 << 20,
        ..StageCosts::new(1.0, 1.1, 0.9)
    };
    PipelineCosts::uniform(RANKS * chunks, stage, 0.05)
}

#[divan::bench(
    name = "replay of a million operations",
    sample_count = 10,
    sample_size = 1
)]
fn replay(bencher: Bencher<'_, '_>) {
    let schedule = PipelineSchedule::interleaved(RANKS, 2_640, 4).unwrap();
    let graph = schedule.graph(&costs(4)).unwrap();
    assert!(graph.operations().len() > 1_000_000);
    bencher.bench_local(|| graph.replay().unwrap());
}

#[divan::bench(
    name = "graph of a million operations",
    sample_count = 10,
    sample_size = 1
)]
fn graph(bencher: Bencher<'_, '_>) {
    let schedule = PipelineSchedule::interleaved(RANKS, 2_640, 4).unwrap();
    let costs = costs(4);
    bencher.bench_local(|| schedule.graph(&costs).unwrap());
}

#[divan::bench(
    name = "interleaved, 16 ranks, 256 micro-batches, 4 chunks: plan, check, graph, replay"
)]
fn interleaved() -> PipelineSummary {
    let schedule = PipelineSchedule::interleaved(RANKS, 256, 4).unwrap();
    schedule.summary(&costs(4)).unwrap()
}

#[divan::bench(
    name = "zero bubble under a bound, 16 ranks, 256 micro-batches: plan",
    sample_count = 10,
    sample_size = 1
)]
fn zero_bubble() -> PipelineSchedule {
    PipelineSchedule::zero_bubble(&costs(1), 256, RANKS).unwrap()
}
