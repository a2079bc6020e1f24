//! The search for an encoder's plan at the size of Optimus: a ViT of 22B and a GPT of 175B, on 8 stages.

#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]

use divan::Bencher;
use odeon_replay::{
    BubblePlanner, BubbleSchedule, EncoderPlan, EncoderWork, LanguageStep, PipelineSchedule,
    StageKernel, StageKernels, StepTimeline,
};

fn main() {
    divan::main();
}

/// Kernels in microseconds; collectives are less than 0.
fn kernels(micros: &[f64], times: usize) -> Vec<StageKernel> {
    let kernel = |it: &f64| match *it < 0.0 {
        true => StageKernel::collective(-it * 1e-6),
        false => StageKernel::compute(it * 1e-6),
    };
    micros.iter().map(kernel).collect::<Vec<_>>().repeat(times)
}

/// So many layers with kernels as `odeon simulate training --table optimus` has them, all computed again.
fn layers(forward: &[f64], backward: &[f64], count: usize) -> StageKernels {
    StageKernels {
        forward: kernels(forward, count),
        backward: kernels(&[forward, backward].concat(), count),
    }
}

fn timeline(micro_batches: usize) -> StepTimeline {
    let forward = [
        -300.0, 935.0, 278.0, 316.0, -300.0, 117.0, -300.0, 1_245.0, 1_245.0, -300.0, 117.0,
    ];
    let backward = [
        234.0, -300.0, 1_245.0, 1_245.0, 1_245.0, 1_245.0, -300.0, 234.0, -300.0, 316.0, 316.0,
        696.0, 935.0, 935.0, -300.0,
    ];
    let step = LanguageStep {
        schedule: PipelineSchedule::interleaved(8, micro_batches, 6).unwrap(),
        stages: vec![layers(&forward, &backward, 2); 48],
        transfer_s: 369e-6,
        gather_s: 0.0,
        scatter_s: 0.0,
        before_s: 0.146,
        behind_s: 0.291,
    };
    step.deferred_timeline().unwrap()
}

/// Two stages on eight: four pipelines.
fn work() -> EncoderWork {
    let forward = [
        -160.0, 238.0, 221.0, 84.0, -160.0, 59.0, -160.0, 315.0, 315.0, -160.0, 59.0,
    ];
    let backward = [
        117.0, -160.0, 315.0, 315.0, 315.0, 315.0, -160.0, 117.0, -160.0, 84.0, 84.0, 553.0, 238.0,
        238.0, -160.0,
    ];
    let plan = EncoderPlan {
        stages: 2,
        tensor: 8,
    };
    EncoderWork {
        plan,
        stages: vec![layers(&forward, &backward, 24); 2],
        transfer_s: 194e-6,
        bytes: 0,
    }
}

const fn planner(compositions_max: usize) -> BubblePlanner {
    BubblePlanner {
        tensor: 8,
        card_bytes: 1,
        language_bytes: 0,
        compositions_max,
    }
}

#[divan::bench(
    name = "four pipelines of an encoder, some compositions, by micro-batches",
    args = [16, 24, 32],
    sample_count = 5,
    sample_size = 1
)]
fn some(bencher: Bencher<'_, '_>, micro_batches: usize) {
    let (timeline, work) = (timeline(micro_batches), work());
    bencher.bench_local(|| -> BubbleSchedule { planner(64).schedule(&timeline, &work).unwrap() });
}

#[divan::bench(
    name = "all compositions, by micro-batches",
    args = [16, 24, 32],
    sample_count = 1,
    sample_size = 1
)]
fn every(bencher: Bencher<'_, '_>, micro_batches: usize) {
    let (timeline, work) = (timeline(micro_batches), work());
    bencher.bench_local(|| -> BubbleSchedule {
        let all = planner(10_000).schedule(&timeline, &work).unwrap();
        let some = planner(64).schedule(&timeline, &work).unwrap();
        assert!((all.step_s - some.step_s).abs() < 1e-9);
        all
    });
}
