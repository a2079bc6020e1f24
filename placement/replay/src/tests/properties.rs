//! Properties of schedules of any size and costs.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::naive;
use crate::{Pass, PassKind, PipelineCosts, PipelineSchedule, StageCosts};

/// Costs of so many stages, in eighths of a second, so that sums are exact.
fn costs(stages: usize) -> impl Strategy<Value = PipelineCosts> {
    let stage = (0..17_u8, 0..17_u8, 0..17_u8, 0..9_u64, 0..9_u64);
    let stage = stage.prop_map(|(f, b, w, bytes, kept)| StageCosts {
        activation_bytes: bytes,
        kept_bytes: kept.min(bytes),
        ..StageCosts::new(f64::from(f) / 8.0, f64::from(b) / 8.0, f64::from(w) / 8.0)
    });
    let eighths = [0..5_u8, 0..5, 0..5];
    (prop::collection::vec(stage, stages), eighths).prop_map(|(stages, eighths)| {
        let [transfer_s, gather_s, scatter_s] = eighths.map(|it| f64::from(it) / 8.0);
        PipelineCosts {
            stages,
            transfer_s,
            gather_s,
            scatter_s,
        }
    })
}

fn schedules(p: usize, m: usize, v: usize) -> Vec<PipelineSchedule> {
    let mut all = vec![PipelineSchedule::interleaved(p, m, v).unwrap()];
    if v == 1 {
        all.push(PipelineSchedule::gpipe(p, m).unwrap());
        all.push(PipelineSchedule::one_forward_one_backward(p, m).unwrap());
        all.push(PipelineSchedule::zero_bubble_h1(p, m).unwrap());
    }
    all
}

fn sized() -> impl Strategy<Value = (usize, usize, PipelineCosts)> {
    let sizes = (1..6_usize, 1..9_usize, 1..4_usize);
    sizes.prop_flat_map(|(p, m, v)| (Just(p), Just(m), costs(p * v)))
}

/// Asserts what no schedule can do without.
fn assert_bounds(schedule: &PipelineSchedule, costs: &PipelineCosts) {
    let (p, m) = (schedule.ranks().len(), schedule.micro_batches());
    let graph = schedule.graph(costs).unwrap();
    let replay = graph.replay().unwrap();
    naive::assert_replay(&graph, &replay);
    let summary = schedule.summary(costs).unwrap();
    assert_eq!(summary.makespan_s, replay.makespan_s());
    let transfer_s = if p > 1 { costs.transfer_s } else { 0.0 };
    // One micro-batch through all stages and back.
    let way = costs
        .stages
        .iter()
        .map(|it| it.forward_s + it.input_gradient_s);
    let messages = 2.0 * (costs.stages.len() - 1) as f64 * transfer_s;
    assert!(summary.makespan_s >= way.sum::<f64>() + messages);
    let mut ahead_s = 0.0;
    for (rank, of_rank) in summary.ranks.iter().enumerate() {
        let own = costs.stages.iter().skip(rank).step_by(p);
        let work_s = m as f64 * own.map(StageCosts::work_s).sum::<f64>();
        assert_eq!(of_rank.busy_s, work_s);
        // The first micro-batch has to come to this rank before.
        assert!(of_rank.begin_s >= ahead_s && summary.makespan_s >= ahead_s + work_s);
        assert!(of_rank.end_s - of_rank.begin_s >= work_s);
        assert!((0.0..=1.0).contains(&of_rank.bubble_share));
        ahead_s += costs.stages[rank].forward_s + transfer_s;
    }
    assert!((0.0..=1.0).contains(&summary.bubble_share));
}

/// Returns true if each rank can run its passes in order, found by trying, one pass at a time.
fn runs(schedule: &PipelineSchedule) -> bool {
    let (p, stages) = (schedule.ranks().len(), schedule.stages());
    let mut over = BTreeSet::new();
    let mut lists = schedule.ranks().to_vec();
    loop {
        let ready = (0..p).find(|rank| {
            lists[*rank].first().is_some_and(|pass| {
                let stage = pass.chunk * p + rank;
                let is_over =
                    |stage, is_forward| over.contains(&(stage, pass.micro_batch, is_forward));
                match pass.kind {
                    PassKind::Forward => stage == 0 || is_over(stage - 1, true),
                    PassKind::BackwardWeight => is_over(stage, false),
                    _ => is_over(stage, true) && (stage + 1 == stages || is_over(stage + 1, false)),
                }
            })
        });
        let Some(rank) = ready else {
            return lists.iter().all(Vec::is_empty);
        };
        let Pass {
            kind,
            micro_batch,
            chunk,
        } = lists[rank].remove(0);
        if kind != PassKind::BackwardWeight {
            over.insert((chunk * p + rank, micro_batch, kind == PassKind::Forward));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn built_schedules_can_run_and_replay_as_lanes_do((p, m, costs) in sized()) {
        for schedule in schedules(p, m, costs.stages.len() / p) {
            prop_assert_eq!(schedule.check(), Ok(()));
            prop_assert!(runs(&schedule));
            assert_bounds(&schedule, &costs);
        }
    }

    #[test]
    fn planned_zero_bubble_keeps_its_bound_and_is_no_slower_than_1f1b(
        (p, m, costs) in (1..6_usize, 1..9_usize).prop_flat_map(|(p, m)| (Just(p), Just(m), costs(p))),
        in_flight_max in 1..12_usize,
    ) {
        let schedule = PipelineSchedule::zero_bubble(&costs, m, in_flight_max).unwrap();
        prop_assert_eq!(schedule.check_within(in_flight_max), Ok(()));
        prop_assert!(runs(&schedule));
        assert_bounds(&schedule, &costs);
        if in_flight_max >= p {
            let makespan_s = schedule.summary(&costs).unwrap().makespan_s;
            let one_by_one = PipelineSchedule::one_forward_one_backward(p, m).unwrap();
            prop_assert!(makespan_s <= one_by_one.summary(&costs).unwrap().makespan_s);
            let h1 = PipelineSchedule::zero_bubble_h1(p, m).unwrap();
            prop_assert!(makespan_s <= h1.summary(&costs).unwrap().makespan_s);
        }
    }

    #[test]
    fn passes_that_change_places_are_refused_where_they_cannot_run(
        (p, m, costs) in sized(),
        rank in any::<prop::sample::Index>(),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4),
    ) {
        let chunks = costs.stages.len() / p;
        for schedule in schedules(p, m, chunks) {
            let mut ranks = schedule.ranks().to_vec();
            let passes = rank.get(&ranks).len();
            for (a, b) in &swaps {
                ranks[rank.index(p)].swap(a.index(passes), b.index(passes));
            }
            let schedule = PipelineSchedule::from_passes(m, chunks, ranks);
            prop_assert_eq!(schedule.check().is_ok(), runs(&schedule));
            if schedule.check().is_ok() {
                assert_bounds(&schedule, &costs);
            }
        }
    }
}
