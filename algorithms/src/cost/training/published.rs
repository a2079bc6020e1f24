//! Tables of papers and systems about their runs, and the same runs simulated.

pub mod omni;
pub mod optimus;

use super::{
    AttentionKernel, Elementwise, HostSeconds, Machine, Meeting, Recomputed, Shared, Stragglers,
    Techniques, TrainedModel, Training, TrainingPlan, TrainingPlanError,
};

/// The way in which a number came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowOrigin {
    /// A constant was fitted to it.
    Calibrated,
    /// Nothing was fitted to it.
    Predicted,
}

/// One published number beside the simulated one.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Row {
    /// The run, in words.
    pub run: String,
    /// The quantity that is compared: `mfu_percent`, `percent`, `tokens_per_second`, `seconds`, `milliseconds`, `ratio`.
    pub unit: &'static str,
    /// The simulated number.
    pub ours: f64,
    /// The published one.
    pub theirs: f64,
    /// The way in which ours came to be.
    pub origin: RowOrigin,
}

impl Row {
    /// Ours less theirs.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.ours - self.theirs
    }
}

/// MegaScale's runs of 175B (arXiv 2402.15627, table 2): sequences of a step, cards, and the utilisations of Megatron-LM
/// and of MegaScale in percent.
pub const MEGASCALE: [(u64, u32, f64, f64); 8] = [
    (768, 256, 53.0, 65.3),
    (768, 512, 49.9, 63.5),
    (768, 768, 46.7, 61.3),
    (768, 1_024, 44.7, 59.0),
    (6_144, 3_072, 48.7, 59.1),
    (6_144, 6_144, 47.8, 57.3),
    (6_144, 8_192, 43.3, 54.9),
    (6_144, 12_288, 41.2, 55.2),
];

/// The sequences of a step in the rows to which the host's seconds are fitted.
pub const CALIBRATED_BATCH: u64 = 768;

/// A run of 175B as MegaScale has it.
#[must_use]
pub fn megascale_run(batch: u64, cards: u32, techniques: Techniques) -> Training {
    Training {
        machine: Machine::a100(),
        model: TrainedModel::gpt_175b(),
        plan: TrainingPlan {
            cards,
            tensor: 8,
            pipeline: 8,
            chunks: 6,
            batch,
            sequence: 2_048,
            micro_batch: 1,
            shared: Shared::Optimizer,
            recomputed: Recomputed::Nothing,
        },
        techniques,
        host_s: HostSeconds::of(&techniques),
    }
}

/// The rows of [`MEGASCALE`], those of Megatron-LM first in each.
///
/// # Errors
/// None of these plans is refused.
pub fn megascale() -> Result<Vec<Row>, TrainingPlanError> {
    let mut rows = vec![];
    for (batch, cards, megatron, megascale) in MEGASCALE {
        let origin = match batch == CALIBRATED_BATCH {
            true => RowOrigin::Calibrated,
            false => RowOrigin::Predicted,
        };
        for (system, techniques, theirs) in [
            ("Megatron-LM", Techniques::MEGATRON, megatron),
            ("MegaScale", Techniques::MEGASCALE, megascale),
        ] {
            let step = megascale_run(batch, cards, techniques).step()?;
            rows.push(Row {
                run: format!("{system}, {cards} cards, batch {batch}"),
                unit: "mfu_percent",
                ours: 100.0 * step.utilisation,
                theirs,
                origin,
            });
        }
    }
    Ok(rows)
}

/// MegaScale's techniques one after the other, each with those before it (table 3): 175B on 256 cards, with 256 sequences
/// in a step and 768 in the last row. Utilisation in percent.
#[must_use]
pub fn ladder_runs() -> Vec<(&'static str, u64, Techniques, f64)> {
    let mut now = Techniques::MEGATRON;
    let mut runs = vec![("Megatron-LM", 256, now, 47.7)];
    now.parallel_block = true;
    runs.push(("parallel block", 256, now, 52.3));
    now.window = Techniques::MEGASCALE.window;
    runs.push(("sliding window", 256, now, 53.3));
    now.tensor_overlap = true;
    runs.push(("overlap in tensor groups", 256, now, 55.5));
    now.pipeline_overlap = true;
    runs.push(("overlap between stages", 256, now, 58.0));
    now.data_overlap = true;
    runs.push(("overlap between replicas", 256, now, 59.5));
    now.attention = AttentionKernel::Flash2;
    now.elementwise = Elementwise::Fused;
    runs.push(("efficient operators", 256, now, 61.2));
    now.host_tuned = true;
    runs.push(("data, and the rest", 256, now, 62.3));
    runs.push(("three times the batch (LAMB)", 768, now, 65.3));
    runs
}

/// The rows of [`ladder_runs`], in their order.
///
/// # Errors
/// None of these plans is refused.
pub fn ladder() -> Result<Vec<Row>, TrainingPlanError> {
    let row = |(name, batch, techniques, theirs): (&str, u64, Techniques, f64)| {
        let step = megascale_run(batch, 256, techniques).step()?;
        Ok(Row {
            run: name.to_owned(),
            unit: "mfu_percent",
            ours: 100.0 * step.utilisation,
            theirs,
            // The seconds of a tuned host were fitted, and the last run is one of those.
            origin: match techniques.host_tuned {
                true => RowOrigin::Calibrated,
                false => RowOrigin::Predicted,
            },
        })
    };
    ladder_runs().into_iter().map(row).collect()
}

/// Llama 3 8B on eight H100 with FSDP2, a sequence of 8,192 tokens on each, products half computed again (torchtitan's
/// `docs/performance.md`). Tokens a second on each card.
///
/// # Errors
/// None of these plans is refused.
pub fn torchtitan() -> Result<Vec<Row>, TrainingPlanError> {
    let float8 = Techniques {
        float8: true,
        ..Techniques::FSDP2_COMPILED
    };
    let rows = [
        ("FSDP2", Techniques::FSDP2, 5_762.0),
        ("with torch.compile", Techniques::FSDP2_COMPILED, 6_667.0),
        ("with torch.compile and float8", float8, 8_532.0),
    ];
    let row = |(name, techniques, theirs): (&str, Techniques, f64)| {
        let run = sharded_run(
            Machine::h100(),
            TrainedModel::llama3_8b(),
            8,
            8_192,
            techniques,
        );
        let step = run.step()?;
        Ok(Row {
            run: name.to_owned(),
            unit: "tokens_per_second",
            ours: step.tokens_per_second / 8.0,
            theirs,
            origin: RowOrigin::Predicted,
        })
    };
    rows.into_iter().map(row).collect()
}

/// A run in which all cards share all states, with so many tokens on each in a step: one sequence, or several of 8,192
/// tokens one after the other. Its machines are alike.
#[must_use]
pub fn sharded_run(
    machine: Machine,
    model: TrainedModel,
    cards: u32,
    tokens: u64,
    techniques: Techniques,
) -> Training {
    let sequence = tokens.min(8_192);
    let own = tokens / sequence;
    Training {
        machine: Machine {
            stragglers: Stragglers::NONE,
            ..machine
        },
        model,
        plan: TrainingPlan {
            cards,
            batch: u64::from(cards) * own,
            sequence,
            shared: Shared::All,
            recomputed: Recomputed::Half,
            ..TrainingPlan::default()
        },
        techniques,
        host_s: 0.0,
    }
}

/// Figures of FSDP with planned buffers (veScale-FSDP, arXiv 2602.22437), as far as it does not depend on
/// models that nobody has published. The last three rows are of a mixture of 800B there, and of Llama 3 70B here.
///
/// # Errors
/// None of these plans is refused.
pub fn vescale_fsdp() -> Result<Vec<Row>, TrainingPlanError> {
    let layer = vescale_run(TrainedModel::gpt_oss_120b(), 64, 8_192, false).layer_messages()?;
    let told = [
        (
            "GPT-OSS-120B, 64 cards: gather a layer",
            layer.gather_s,
            43.71,
        ),
        ("  copy out of it", layer.copy_out_s, 5.22),
        ("  scatter its gradients", layer.scatter_s, 94.24),
        ("  copy into them", layer.copy_in_s, 12.37),
    ];
    let row = |run: &str, unit, ours, theirs| Row {
        run: run.to_owned(),
        unit,
        ours,
        theirs,
        origin: RowOrigin::Predicted,
    };
    let seconds = told.into_iter();
    let mut rows: Vec<Row> = seconds
        .map(|(run, ours, theirs)| row(run, "milliseconds", 1e3 * ours, theirs))
        .collect();
    let speed = |model: TrainedModel, cards: u32, tokens: u64, planned: bool| {
        let step = vescale_run(model, cards, tokens, planned).step()?;
        Ok::<_, TrainingPlanError>(step.tokens_per_second)
    };
    for (run, model, cards, theirs) in [
        (
            "Llama-3-70B, 1,024 cards: over FSDP2",
            TrainedModel::llama3_70b(),
            1_024,
            1.05,
        ),
        (
            "GPT-OSS-120B, 1,024 cards: over FSDP2",
            TrainedModel::gpt_oss_120b(),
            1_024,
            1.11,
        ),
        (
            "GPT-OSS-120B, 32 cards: over copied buffers",
            TrainedModel::gpt_oss_120b(),
            32,
            1.0 / 0.928,
        ),
    ] {
        let ours = speed(model.clone(), cards, 8_192, true)? / speed(model, cards, 8_192, false)?;
        rows.push(row(run, "ratio", ours, theirs));
    }
    let (few, many) = (1_024, 8_192);
    for (run, tokens, theirs) in [
        (
            "8,192 cards over 1,024: 8,192 tokens on each",
            [8_192, 8_192],
            8.0,
        ),
        ("  120M tokens in a step", [1 << 17, 1 << 14], 8.0),
        ("  16M tokens in a step", [1 << 14, 1 << 11], 3.4),
    ] {
        let [on_few, on_many] = tokens;
        let llama = TrainedModel::llama3_70b;
        let ours = speed(llama(), many, on_many, true)? / speed(llama(), few, on_few, true)?;
        rows.push(row(run, "ratio", ours, theirs));
    }
    Ok(rows)
}

/// A run on H800 that computes all layers again, with so many tokens on each card, in sequences of 8,192 at most.
fn vescale_run(model: TrainedModel, cards: u32, tokens: u64, planned_buffer: bool) -> Training {
    let techniques = Techniques {
        planned_buffer,
        ..Techniques::FSDP2_COMPILED
    };
    let mut run = sharded_run(Machine::h800(), model, cards, tokens, techniques);
    run.plan.recomputed = Recomputed::Layers;
    run
}

/// Seconds until all ranks of 175B are in their groups (MegaScale, section 3.5): with barriers of all ranks, at another
/// store, and with members alone, of which the paper tells bounds.
///
/// # Errors
/// None of these plans is refused.
pub fn start_up() -> Result<Vec<Row>, TrainingPlanError> {
    let told = [
        ("barriers of all ranks", Meeting::Barriers, 2_048, 1_047.0),
        (
            "a store that does not block",
            Meeting::AsynchronousBarriers,
            2_048,
            361.0,
        ),
        (
            "members alone (theirs: below)",
            Meeting::Members,
            2_048,
            5.0,
        ),
        ("the same (theirs: below)", Meeting::Members, 12_288, 30.0),
    ];
    let row = |(name, meeting, cards, theirs): (&str, Meeting, u32, f64)| {
        let plan = megascale_run(6_144, cards, Techniques::MEGASCALE).plan;
        Ok(Row {
            run: format!("{cards} ranks: {name}"),
            unit: "seconds",
            ours: meeting.seconds(&plan.mesh()?),
            theirs,
            origin: match meeting {
                Meeting::Members => RowOrigin::Predicted,
                Meeting::Barriers | Meeting::AsynchronousBarriers => RowOrigin::Calibrated,
            },
        })
    };
    told.into_iter().map(row).collect()
}
