//! Timelines against formulas.

use super::language;
use crate::{BubbleKind, KernelStream, PipelineSchedule};

/// The sum of what a rank waits for, in the order of [`BubbleKind::ALL`].
fn bubbles(rank: usize, stages: usize, micro_batches: usize) -> [f64; 6] {
    let timeline = language(stages, micro_batches, 1).timeline().unwrap();
    timeline.bubbles_s(rank..rank + 1)
}

#[test]
fn bubbles_of_equal_stages_are_those_of_the_formulas() {
    // A pass takes 3 s forward and 5 s backward, 1 s each of which its collectives.
    let (p, m, forward_s, backward_s) = (4, 8, 3.0, 5.0);
    for rank in 0..p {
        let [gather, scatter, warm_up, cool_down, between, tensor] = bubbles(rank, p, m);
        let (before, behind) = (rank as f64, (p - 1 - rank) as f64);
        assert_eq!((gather, scatter), (1.0, 2.0));
        assert_eq!(warm_up, before * forward_s);
        assert_eq!(cool_down, before * backward_s);
        assert_eq!(between, behind * (forward_s + backward_s));
        assert_eq!(tensor, 2.0 * m as f64);
    }
}

#[test]
fn bubbles_and_kernels_fill_the_step() {
    for step in [language(4, 6, 1), language(3, 7, 2), language(1, 2, 3)] {
        for timeline in [step.timeline().unwrap(), step.deferred_timeline().unwrap()] {
            for rank in &timeline.ranks {
                let computing = rank
                    .kernels
                    .iter()
                    .filter(|it| it.kernel.stream == KernelStream::Compute);
                let mut spans: Vec<(f64, f64)> =
                    computing.map(|it| (it.begin_s, it.end_s)).collect();
                spans.extend(rank.bubbles.iter().map(|it| (it.begin_s, it.end_s)));
                spans.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert_eq!(
                    (spans[0].0, spans[spans.len() - 1].1),
                    (0.0, timeline.step_s)
                );
                assert!(spans.windows(2).all(|it| it[0].1 == it[1].0), "{spans:?}");
            }
        }
    }
}

#[test]
fn deferred_micro_batches_begin_as_late_as_the_step_allows() {
    let step = language(4, 8, 1);
    let [early, late] = [step.timeline().unwrap(), step.deferred_timeline().unwrap()];
    assert_eq!(early.step_s, late.step_s);
    assert_eq!(early.backward_points_s, late.backward_points_s);
    // Warm-up begins one after the other; deferred, as far apart as the last rank works them off.
    for (it, (early, late)) in early
        .forward_points_s
        .iter()
        .zip(&late.forward_points_s)
        .enumerate()
    {
        assert!(late >= early);
        if it < 4 {
            assert_eq!(
                (*early, *late),
                (1.0 + 3.0 * it as f64, 1.0 + 8.0 * it as f64)
            );
        }
    }
    // What was one gap on the first rank is several.
    let longest = |timeline: &crate::StepTimeline| {
        let bubbles = timeline.ranks[0].bubbles.iter();
        let between = bubbles.filter(|it| it.kind == BubbleKind::Between);
        between.map(|it| it.end_s - it.begin_s).fold(0.0, f64::max)
    };
    assert_eq!((longest(&early), longest(&late)), (15.0, 5.0));
}

#[test]
fn gradients_apart_are_refused() {
    let mut step = language(2, 3, 1);
    step.schedule = PipelineSchedule::zero_bubble_h1(2, 3).unwrap();
    let said = step.timeline().unwrap_err().to_string();
    assert!(said.contains("whole backward passes"), "{said}");
}
