//! The runs of Optimus (arXiv 2408.03505): a ViT of 22B before a GPT of 175B, and where its cards are idle.
//!
//! One constant is fitted: kernels take [`SUSTAINED`] of the formulas' time, so that Megatron-LM balanced takes 10.43 s on
//! 1,536 cards. Two more stand for what the paper tells by other numbers:
//!
//! - A collective of a layer takes 300 us.
//! - Its seconds and utilisations give operations for each sequence. They are those of Megatron's formula, `96 l h^2 s (1
//!   + s / 6 h)`, for 2,048 tokens in both models to half a percent, with all layers computed again.
//!
//! What it does not tell was chosen: tensor groups of 8, 8 stages with 6 chunks as MegaScale has for the same model, two
//! sequences in a micro-batch, by which 1,536 sequences are the 32, 24 and 16 micro-batches of its table.

use odeon_replay::{BubbleKind, BubbleSchedule};
use odeon_topology::{Link, LinkKind};

use super::super::{
    AttentionKernel, Elementwise, HostSeconds, Machine, MultimodalTraining, Recomputed, Shared,
    Techniques, TrainedModel, Training, TrainingPlan, TrainingPlanError,
};
use super::{Row, RowOrigin};

/// Cards, micro-batches of a pipeline, the seconds of a step of Megatron-LM balanced and of Optimus, and the
/// part of the encoder's arithmetic in bubbles after the coarse and after the fine phase in percent.
pub const RUNS: [(u32, u64, f64, f64, f64, f64); 3] = [
    (1_536, 32, 10.43, 9.80, 34.3, 57.5),
    (2_048, 24, 8.06, 7.29, 45.8, 69.3),
    (3_072, 16, 5.87, 4.87, 68.7, 85.0),
];

/// Kernels in relation to the formulas, fitted to Megatron-LM balanced on 1,536 cards.
pub const SUSTAINED: f64 = 1.487;

/// The shares of bubbles in a step in percent (table 1), in the order of [`BubbleKind::ALL`].
pub const BUBBLES: [f64; 6] = [3.3, 8.9, 5.0, 9.2, 8.7, 11.2];

/// Compositions of micro-batches that each plan is scheduled with.
const COMPOSITIONS_MAX: usize = 64;

/// The memory that Optimus takes more than others, of a card's (told: up to 12 %).
const OVERHEAD: f64 = 0.12;

/// Seconds of a collective of a layer (told).
const COLLECTIVE_S: f64 = 300e-6;

/// The run on so many cards.
#[must_use]
pub fn run(cards: u32) -> MultimodalTraining {
    let plan = TrainingPlan {
        cards,
        tensor: 8,
        pipeline: 8,
        chunks: 6,
        batch: 1_536,
        sequence: 2_048,
        micro_batch: 2,
        shared: Shared::Optimizer,
        recomputed: Recomputed::Layers,
    };
    let techniques = Techniques {
        pipeline_overlap: true,
        attention: AttentionKernel::Flash2,
        elementwise: Elementwise::Fused,
        host_tuned: true,
        ..Techniques::MEGATRON
    };
    MultimodalTraining {
        language: Training {
            machine: machine(&plan),
            model: TrainedModel::gpt_175b(),
            plan,
            techniques,
            host_s: HostSeconds::of(&techniques),
        },
        encoder: TrainedModel::vit_22b(),
        encoder_tokens: 2_048,
    }
}

/// An H100 whose kernels and collectives are as slow as in these runs.
fn machine(plan: &TrainingPlan) -> Machine {
    let machine = Machine::h100();
    let (rows, tensor) = (
        (plan.micro_batch * plan.sequence) as f64,
        f64::from(plan.tensor),
    );
    let bytes = 2.0 * rows * TrainedModel::gpt_175b().size.hidden as f64;
    let received = bytes * (tensor - 1.0) / tensor;
    let latency_s = machine.inside.latency_s;
    let rate = received / (COLLECTIVE_S - latency_s);
    Machine {
        inside: Link::new(LinkKind::Nvlink, rate).latency(latency_s),
        sustained: SUSTAINED,
        ..machine
    }
}

/// The schedule on so many cards, the quickest of all plans that take no more memory than the paper's, and the seconds of
/// all of the step.
///
/// # Errors
/// None of these plans is refused.
pub fn planned(cards: u32) -> Result<(BubbleSchedule, f64), TrainingPlanError> {
    let run = run(cards);
    let timeline = run.language_step()?.deferred_timeline()?;
    let overhead = OVERHEAD * run.language.machine.card.device.memory_bytes as f64;
    let planner = run.planner(overhead as u64, COMPOSITIONS_MAX)?;
    let (schedule, _) = planner.plan(&timeline, &run.encoder_works()?)?;
    let seconds = schedule.step_s + run.rest_s();
    Ok((schedule, seconds))
}

/// Seconds of steps, and the part of the encoder that is in bubbles, for [`RUNS`].
///
/// # Errors
/// None of these plans is refused.
pub fn steps() -> Result<Vec<Row>, TrainingPlanError> {
    let mut rows = vec![];
    for (cards, _, balanced, optimus, coarse, fine) in RUNS {
        let (schedule, seconds) = planned(cards)?;
        let hidden = |share: f64| 100.0 * share;
        let origin = match cards == RUNS[0].0 {
            true => RowOrigin::Calibrated,
            false => RowOrigin::Predicted,
        };
        for (run, unit, ours, theirs, origin) in [
            (
                "Megatron-LM balanced",
                "seconds",
                run(cards).spread_s()?,
                balanced,
                origin,
            ),
            ("Optimus", "seconds", seconds, optimus, RowOrigin::Predicted),
            (
                "hidden before the fine phase",
                "percent",
                hidden(schedule.coarse_hidden),
                coarse,
                RowOrigin::Predicted,
            ),
            (
                "hidden",
                "percent",
                hidden(schedule.hidden),
                fine,
                RowOrigin::Predicted,
            ),
        ] {
            rows.push(Row {
                run: format!("{cards} cards: {run}"),
                unit,
                ours,
                theirs,
                origin,
            });
        }
    }
    Ok(rows)
}

/// The shares of a step without its encoder in which ranks behind the first do not compute, by causes.
///
/// The paper's model of more than 100B on more than 3,000 cards is not told. This is GPT-175B on 3,072; chunks and
/// micro-batches were chosen among 1 to 3 and 6 to 31 for these shares, and that nothing is computed again.
///
/// # Errors
/// None of these plans is refused.
pub fn bubbles() -> Result<Vec<Row>, TrainingPlanError> {
    let mut run = run(3_072);
    let plan = &mut run.language.plan;
    plan.chunks = 2;
    plan.batch = BUBBLE_MICRO_BATCHES * plan.micro_batch * u64::from(plan.replicas());
    plan.recomputed = Recomputed::Nothing;
    let timeline = run.language_step()?.timeline()?;
    let shares = timeline.bubbles_s(1..timeline.ranks.len());
    let rows = BubbleKind::ALL.iter().zip(shares).zip(BUBBLES);
    let row = |((kind, seconds), theirs): ((&BubbleKind, f64), f64)| Row {
        run: kind.to_string(),
        unit: "percent",
        ours: 100.0 * seconds / timeline.step_s,
        theirs,
        origin: RowOrigin::Calibrated,
    };
    Ok(rows.map(row).collect())
}

/// Micro-batches of a pipeline in the run with the shares of bubbles.
const BUBBLE_MICRO_BATCHES: u64 = 11;
