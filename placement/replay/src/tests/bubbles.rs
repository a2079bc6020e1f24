//! Tests of encoders in the bubbles of a pipeline.

mod brute_force;
mod designs;
mod execution;
mod flaws;
mod properties;
mod refusals;
mod timeline;

use crate::{
    BubblePlanner, EncoderPlan, EncoderWork, LanguageStep, PipelineSchedule, StageKernel,
    StageKernels,
};

/// A pass of so many layers, each with a collective before two parts of its arithmetic.
fn layers(count: usize, compute_s: f64, collective_s: f64) -> Vec<StageKernel> {
    let half = StageKernel::compute(compute_s / 2.0);
    let part = [StageKernel::collective(collective_s), half];
    (0..count).flat_map(|_| [part, part].concat()).collect()
}

/// A language model whose layers take 2 s forward and 4 s backward, beside four collectives of half a second.
fn language(stages: usize, micro_batches: usize, chunks: usize) -> LanguageStep {
    let kernels = StageKernels {
        forward: layers(1, 2.0, 0.5),
        backward: layers(1, 4.0, 0.5),
    };
    let schedule = match chunks {
        1 => PipelineSchedule::one_forward_one_backward(stages, micro_batches),
        _ => PipelineSchedule::interleaved(stages, micro_batches, chunks),
    };
    LanguageStep {
        schedule: schedule.unwrap(),
        stages: vec![kernels; stages * chunks],
        transfer_s: 0.0,
        gather_s: 1.0,
        scatter_s: 2.0,
        before_s: 0.0,
        behind_s: 0.0,
    }
}

/// An encoder whose stages have so many layers of small kernels.
fn encoder(plan: EncoderPlan, layers: usize) -> EncoderWork {
    let forward = [
        StageKernel::compute(0.25),
        StageKernel::collective(0.125),
        StageKernel::compute(0.5),
    ];
    let backward = [
        StageKernel::compute(0.5),
        StageKernel::collective(0.125),
        StageKernel::compute(0.5),
        StageKernel::compute(0.25),
    ];
    let stage = StageKernels {
        forward: (0..layers).flat_map(|_| forward).collect(),
        backward: (0..layers).flat_map(|_| backward).collect(),
    };
    EncoderWork {
        plan,
        stages: vec![stage; plan.stages],
        transfer_s: 0.0,
        bytes: 10,
    }
}

const PLANNER: BubblePlanner = BubblePlanner {
    tensor: 1,
    card_bytes: 100,
    language_bytes: 50,
    compositions_max: 64,
};

const fn plan(stages: usize, tensor: usize) -> EncoderPlan {
    EncoderPlan { stages, tensor }
}
