//! The sweep of MegaScale-Omni (arXiv 2605.08962): one cluster and two models, and shares of pictures from a tenth to nine
//! tenths of what the language model reads.
//!
//! Its workload D is told as a ViT of 10B with a GPT of 175B on 512 cards, sequences of 8,192 tokens, 256 in a batch. Not
//! told, and chosen: tensor groups of 8, 8 stages, one sequence in a micro-batch, pictures of 4,096 patches of which four
//! are one token of the language model, the encoder's widths, and H100 cards. Nothing is fitted.

use super::super::{
    AttentionKernel, Elementwise, EncoderDesign, HostSeconds, Machine, MixedTraining,
    MultimodalTraining, PlannedMix, Recomputed, Shared, Techniques, TrainedModel, Training,
    TrainingPlan, TrainingPlanError,
};

/// The shares of pictures.
pub const SHARES: [f64; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// The most by which the best design was told to be quicker than others in this workload.
pub const TOLD: f64 = 1.98;

/// Steps of a run in which the share goes from the first to the last.
const STEPS: u32 = 41;

/// Seconds of a step with one share of pictures.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct MixRow {
    /// The share of the language model's tokens that are of pictures.
    pub share: f64,
    /// With the encoder's work spread over all cards and no wait for it.
    pub ideal_s: f64,
    /// In the first stage.
    pub first_stage_s: f64,
    /// On cards of their own.
    pub apart_s: f64,
    /// In bubbles, as planned for a half.
    pub bubbles_s: f64,
    /// In all stages alike.
    pub on_demand_s: f64,
}

/// The workload.
#[must_use]
pub fn workload() -> MixedTraining {
    let plan = TrainingPlan {
        cards: 512,
        tensor: 8,
        pipeline: 8,
        chunks: 1,
        batch: 256,
        sequence: 8_192,
        micro_batch: 1,
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
    let machine = Machine::h100();
    let overhead_bytes = machine.card.device.memory_bytes / 8;
    MixedTraining {
        training: MultimodalTraining {
            language: Training {
                machine,
                model: TrainedModel::gpt_175b(),
                plan,
                techniques,
                host_s: HostSeconds::of(&techniques),
            },
            encoder: TrainedModel::vit_10b(),
            encoder_tokens: 4_096,
        },
        pooled: 4,
        planned: 0.5,
        overhead_bytes,
    }
}

/// Steps with each share.
///
/// # Errors
/// The plan is not refused.
pub fn sweep() -> Result<Vec<MixRow>, TrainingPlanError> {
    let mix = workload();
    let planned = mix.plan()?;
    SHARES
        .into_iter()
        .map(|share| row(&mix, &planned, share))
        .collect()
}

/// Seconds of a run of 41 steps in which the share goes evenly from a tenth to nine tenths. Nothing is planned anew but by
/// the design that plans each step.
///
/// # Errors
/// The plan is not refused.
pub fn drift() -> Result<MixRow, TrainingPlanError> {
    let mix = workload();
    let planned = mix.plan()?;
    let (first, last) = (SHARES[0], SHARES[SHARES.len() - 1]);
    let mut sum = MixRow {
        share: (first + last) / 2.0,
        ideal_s: 0.0,
        first_stage_s: 0.0,
        apart_s: 0.0,
        bubbles_s: 0.0,
        on_demand_s: 0.0,
    };
    for step in 0..STEPS {
        let share = first + (last - first) * f64::from(step) / f64::from(STEPS - 1);
        let row = row(&mix, &planned, share)?;
        sum.ideal_s += row.ideal_s;
        sum.first_stage_s += row.first_stage_s;
        sum.apart_s += row.apart_s;
        sum.bubbles_s += row.bubbles_s;
        sum.on_demand_s += row.on_demand_s;
    }
    Ok(sum)
}

fn row(mix: &MixedTraining, planned: &PlannedMix, share: f64) -> Result<MixRow, TrainingPlanError> {
    let of = |design| mix.step_s(planned, design, share);
    Ok(MixRow {
        share,
        ideal_s: mix.ideal_s(planned, share)?,
        first_stage_s: of(EncoderDesign::FirstStage)?,
        apart_s: of(EncoderDesign::Apart)?,
        bubbles_s: of(EncoderDesign::Bubbles)?,
        on_demand_s: of(EncoderDesign::OnDemand)?,
    })
}
