//! Makespans and activations in flight against closed forms, where all stages cost the same.

use crate::{LaneStream, PipelineCosts, PipelineSchedule, PipelineSummary, StageCosts};

/// Seconds of forward pass, input gradient and weight gradient.
const SECONDS: [(f64, f64, f64); 5] = [
    (1.0, 1.0, 1.0),
    (1.0, 2.0, 1.0),
    (1.0, 1.0, 2.0),
    (2.0, 1.0, 0.5),
    (1.0, 1.25, 0.75),
];

fn summary(schedule: &PipelineSchedule, (f, b, w): (f64, f64, f64)) -> PipelineSummary {
    schedule.check().unwrap();
    let costs = PipelineCosts::uniform(schedule.stages(), StageCosts::new(f, b, w), 0.0);
    schedule.summary(&costs).unwrap()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs().max(1.0)
}

#[test]
fn gpipe_and_1f1b_have_bubbles_of_a_forward_and_a_backward_pass_for_each_rank_but_one() {
    for p in 1..=8 {
        for m in 1..=17 {
            let gpipe = PipelineSchedule::gpipe(p, m).unwrap();
            let one_by_one = PipelineSchedule::one_forward_one_backward(p, m).unwrap();
            assert_eq!(gpipe.in_flight_max(), vec![m; p]);
            let in_flight: Vec<_> = (0..p).map(|rank| m.min(p - rank)).collect();
            assert_eq!(one_by_one.in_flight_max(), in_flight);
            for seconds in SECONDS {
                let work = seconds.0 + seconds.1 + seconds.2;
                for schedule in [&gpipe, &one_by_one] {
                    let summary = summary(schedule, seconds);
                    assert!(close(summary.makespan_s, (m + p - 1) as f64 * work));
                    assert!(close(summary.bubble_of_ideal(), (p - 1) as f64 / m as f64));
                    let share = (p - 1) as f64 / (m + p - 1) as f64;
                    assert!(close(summary.bubble_share, share));
                    assert!(
                        summary
                            .ranks
                            .iter()
                            .all(|rank| close(rank.bubble_share, share))
                    );
                }
            }
        }
    }
}

#[test]
fn interleaved_bubbles_are_smaller_by_the_number_of_chunks_for_any_number_of_micro_batches() {
    for p in 1..=6 {
        for v in 1..=4 {
            for m in 1..=23 {
                let schedule = PipelineSchedule::interleaved(p, m, v).unwrap();
                // The size of the first group: what is left over is spread.
                let group = m.div_ceil((m / p).max(1));
                let in_flight = |rank| (m * v).min(2 * (p - 1 - rank) + (v - 1) * group + 1);
                let formula: Vec<_> = (0..p).map(in_flight).collect();
                assert_eq!(schedule.in_flight_max(), formula, "p {p}, m {m}, v {v}");
                let summary = summary(&schedule, (1.0, 1.25, 0.75));
                let bubble = (p - 1) as f64 / (v * m) as f64;
                if m >= p {
                    assert!(
                        close(summary.bubble_of_ideal(), bubble),
                        "p {p}, m {m}, v {v}"
                    );
                } else {
                    // One group that is shorter than the pipeline leaves its end idle chunk by chunk.
                    assert!(summary.bubble_of_ideal() >= bubble);
                }
            }
        }
    }
}

#[test]
fn megatrons_order_for_a_multiple_of_the_stages_is_kept() {
    // Megatron-LM with 2 ranks, 4 micro-batches and 2 chunks, from its rules written out by hand: rank 0 runs
    // 2 (p - r - 1) + (v - 1) p = 4 forward passes ahead, rank 1 runs 2.
    let schedule = PipelineSchedule::interleaved(2, 4, 2).unwrap();
    let text = |rank: usize| -> String {
        let passes = schedule.ranks()[rank].iter();
        let words = passes.map(|it| {
            format!(
                "{:.1}{}.{}",
                format!("{:?}", it.kind),
                it.micro_batch,
                it.chunk
            )
        });
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        text(0),
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
    );
    assert_eq!(
        text(1),
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"
    );
}

#[test]
fn zb_h1_has_the_bubble_of_the_paper_in_the_memory_of_1f1b() {
    for p in 1..=8 {
        for m in p..=17 {
            let schedule = PipelineSchedule::zero_bubble_h1(p, m).unwrap();
            let one_by_one = PipelineSchedule::one_forward_one_backward(p, m).unwrap();
            assert_eq!(schedule.in_flight_max(), vec![p; p]);
            assert_eq!(one_by_one.in_flight_max().into_iter().max(), Some(p));
            for (f, b, w) in SECONDS {
                let makespan_s = summary(&schedule, (f, b, w)).makespan_s;
                let bubble_s = makespan_s - m as f64 * (f + b + w);
                // The paper's F + B - W, down to F: the last rank cannot begin before.
                assert!(
                    close(bubble_s, (p - 1) as f64 * f.max(f + b - w)),
                    "p {p}, m {m}: {bubble_s}"
                );
                let before_s = summary(&one_by_one, (f, b, w)).makespan_s;
                assert!(p == 1 || makespan_s < before_s);
            }
        }
    }
}

#[test]
fn twice_the_memory_leaves_only_the_way_to_the_last_rank() {
    for p in 2..=8 {
        for m in 2 * p..=3 * p {
            for (f, b, w) in [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (1.0, 1.5, 1.0)] {
                let costs = PipelineCosts::uniform(p, StageCosts::new(f, b, w), 0.0);
                let schedule = PipelineSchedule::zero_bubble(&costs, m, 2 * p - 1).unwrap();
                schedule.check_within(2 * p - 1).unwrap();
                let bubble_s =
                    schedule.summary(&costs).unwrap().makespan_s - m as f64 * (f + b + w);
                // The paper's F + B - 2 W where that is more than nothing, beside the way of the first micro-batch.
                let formula = (p - 1) as f64 * f.max(f + b - w);
                assert!(bubble_s <= formula + 1e-9);
                assert!(bubble_s >= (p - 1) as f64 * f - 1e-9);
                assert!(
                    close(bubble_s, (p - 1) as f64 * f),
                    "p {p}, m {m}, b {b}: {bubble_s}"
                );
            }
        }
    }
}

#[test]
fn messages_make_the_way_through_the_pipeline_longer() {
    // Two messages for each boundary, that of the first forward and that of the last backward pass.
    for (p, m) in [(2, 1), (4, 1), (5, 1)] {
        let schedule = PipelineSchedule::gpipe(p, m).unwrap();
        let costs = PipelineCosts::uniform(p, StageCosts::new(1.0, 1.0, 1.0), 0.25);
        let summary = schedule.summary(&costs).unwrap();
        assert!(close(
            summary.makespan_s,
            3.0 * p as f64 + 0.5 * (p - 1) as f64
        ));
    }
    // GPipe sends while it computes: more micro-batches have no more messages on the way.
    let schedule = PipelineSchedule::gpipe(4, 16).unwrap();
    let costs = PipelineCosts::uniform(4, StageCosts::new(1.0, 1.0, 1.0), 0.25);
    assert!(close(
        schedule.summary(&costs).unwrap().makespan_s,
        19.0 * 3.0 + 6.0 * 0.25
    ));
}

#[test]
fn activations_are_held_until_their_gradients() {
    let stage = StageCosts {
        activation_bytes: 10,
        kept_bytes: 4,
        ..StageCosts::new(1.0, 1.0, 1.0)
    };
    let costs = PipelineCosts::uniform(4, stage, 0.0);
    let most = |schedule: PipelineSchedule| -> Vec<u64> {
        let ranks = schedule.summary(&costs).unwrap().ranks;
        ranks.iter().map(|rank| rank.memory_max).collect()
    };
    let one_by_one = PipelineSchedule::one_forward_one_backward(4, 8).unwrap();
    assert_eq!(most(one_by_one), [40, 30, 20, 10]);
    assert_eq!(most(PipelineSchedule::gpipe(4, 8).unwrap()), [80; 4]);
    // Behind its input gradient a micro-batch keeps 4 bytes: one such on rank 1, 3 on rank 3.
    let h1 = PipelineSchedule::zero_bubble_h1(4, 8).unwrap();
    assert_eq!(most(h1), [40, 34, 28, 22]);
}

#[test]
fn all_collectives_but_the_first_and_the_last_hide_behind_passes_of_other_chunks() {
    let (p, m, v) = (4, 8, 3);
    let schedule = PipelineSchedule::interleaved(p, m, v).unwrap();
    let seconds = StageCosts::new(1.0, 1.0, 1.0);
    let bare = PipelineCosts::uniform(p * v, seconds, 0.0);
    let sharing = PipelineCosts {
        gather_s: 0.5,
        scatter_s: 0.25,
        ..bare.clone()
    };
    let makespan = |costs| schedule.summary(costs).unwrap().makespan_s;
    assert!(close(makespan(&sharing), makespan(&bare) + 0.75));
    let graph = schedule.graph(&sharing).unwrap();
    let collectives = graph.operations().iter();
    let collectives = collectives.filter(|it| it.lane.stream == LaneStream::Collective);
    assert_eq!(collectives.count(), 2 * p * v);
    let names = graph.operations().iter().map(|it| it.name.to_string());
    assert!(
        names
            .into_iter()
            .any(|it| it == "gathering of the parameters of chunk 2")
    );
}
