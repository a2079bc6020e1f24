//! Properties of schedules of encoders with any costs.

use proptest::prelude::*;

use super::PLANNER;
use crate::{
    BubblePlanner, Compositions, EncoderPlan, EncoderWork, KernelStream, LanguageStep,
    PipelineSchedule, StageKernel, StageKernels, composition_count,
};

/// Kernels in eighths of a second, so that sums are exact.
fn kernels(count: std::ops::Range<usize>, eighths: u8) -> impl Strategy<Value = Vec<StageKernel>> {
    let kernel = (1..eighths, 0..3_u8).prop_map(|(eighths, kind)| StageKernel {
        stream: if kind == 0 {
            KernelStream::Collective
        } else {
            KernelStream::Compute
        },
        seconds: f64::from(eighths) / 8.0,
    });
    prop::collection::vec(kernel, count)
}

fn stages(
    count: usize,
    kernel_count: std::ops::Range<usize>,
    eighths: u8,
) -> impl Strategy<Value = Vec<StageKernels>> {
    let both = (
        kernels(kernel_count.clone(), eighths),
        kernels(kernel_count, eighths),
    );
    let stage = both.prop_map(|(forward, backward)| StageKernels { forward, backward });
    prop::collection::vec(stage, count)
}

/// A language model, and an encoder that fits it, with the cards of a tensor group.
pub(super) fn cases() -> impl Strategy<Value = (LanguageStep, usize, EncoderWork)> {
    let sizes = (
        1..5_usize,
        1..4_usize,
        4..10_usize,
        1..3_usize,
        any::<prop::sample::Index>(),
    );
    let eighths = [0..3_u8, 0..20, 0..20, 0..3, 0..20, 0..20];
    sizes.prop_flat_map(move |(p, v, m, tensor, plan)| {
        let plans = EncoderPlan::all(p, tensor).unwrap();
        let fits = |it: &EncoderPlan| it.pipelines(p, tensor).unwrap() <= m;
        let plans: Vec<EncoderPlan> = plans.into_iter().filter(fits).collect();
        let plan = *plan.get(&plans);
        let language = stages(p * v, 1..6, 12);
        let encoder = stages(plan.stages, 1..6, 5);
        (language, encoder, eighths.clone()).prop_map(move |(language, encoder, eighths)| {
            let [
                transfer_s,
                gather_s,
                scatter_s,
                encoder_s,
                before_s,
                behind_s,
            ] = eighths.map(|it| f64::from(it) / 8.0);
            let step = LanguageStep {
                schedule: PipelineSchedule::interleaved(p, m, v).unwrap(),
                stages: language,
                transfer_s,
                gather_s,
                scatter_s,
                before_s,
                behind_s,
            };
            let work = EncoderWork {
                plan,
                stages: encoder,
                transfer_s: encoder_s,
                bytes: 0,
            };
            (step, tensor, work)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 96, ..ProptestConfig::default() })]

    /// SEMANTICS 214.
    #[test]
    fn schedules_can_be_carried_out_and_bubbles_spare_time((step, tensor, work) in cases()) {
        let planner = BubblePlanner { tensor, compositions_max: 12, ..PLANNER };
        for timeline in [step.timeline().unwrap(), step.deferred_timeline().unwrap()] {
            let schedule = planner.schedule(&timeline, &work).unwrap();
            prop_assert_eq!(schedule.check(&timeline, tensor, &work), Ok(()));
            prop_assert!(schedule.step_s <= schedule.coarse_step_s + 1e-6);
            prop_assert!(schedule.hidden >= schedule.coarse_hidden - 1e-6);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&schedule.hidden));
            // No step is shorter than the work of a rank.
            let own = schedule.composition.iter().zip(0..).map(|(count, _)| *count).max().unwrap();
            let busiest = work.stages.iter().map(StageKernels::compute_s).fold(0.0, f64::max);
            prop_assert!(schedule.step_s >= own as f64 * busiest);
            // Carried out by order alone it takes no longer.
            let graph = schedule.graph(&step, tensor, &work, &mut |_, seconds| seconds).unwrap();
            let executed_s = graph.replay().unwrap().makespan_s();
            prop_assert!(executed_s <= schedule.step_s + 1e-6, "{} {}", executed_s, schedule.step_s);
        }
    }

    #[test]
    fn deferring_micro_batches_takes_no_time((step, ..) in cases()) {
        let [early, late] = [step.timeline().unwrap(), step.deferred_timeline().unwrap()];
        prop_assert!((early.step_s - late.step_s).abs() < 1e-9);
        for (early, late) in early.forward_points_s.iter().zip(&late.forward_points_s) {
            prop_assert!(*late >= early - 1e-9);
        }
    }
}

#[test]
fn compositions_are_all_there_are() {
    for whole in 0..9 {
        for parts in 0..6 {
            let all: Vec<Vec<usize>> = Compositions::new(whole, parts).collect();
            assert!(all.windows(2).all(|it| it[0] < it[1]));
            assert!(
                all.iter()
                    .all(|it| it.iter().sum::<usize>() == whole && !it.contains(&0))
            );
            assert_eq!(
                all.len() as u64,
                composition_count(whole, parts),
                "{whole} {parts}"
            );
            // Every choice of places between ones is one of them.
            let cuts = 1_u32 << whole.saturating_sub(1);
            let chosen = (0..cuts).filter(|it| it.count_ones() as usize + 1 == parts);
            let expected = if whole == 0 { 0 } else { chosen.count() };
            assert_eq!(all.len(), expected);
        }
    }
    assert_eq!(composition_count(32, 8), 2_629_575);
    assert_eq!(composition_count(400, 200), u64::MAX);
}
