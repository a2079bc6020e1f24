//! Flaws that are planted in schedules: each is found and named.

use super::{PLANNER, encoder, language, plan};
use crate::{BubbleSchedule, EncoderPass, ScheduleFlaw};

/// Two pipelines of two stages each beside four ranks, changed.
fn changed(change: impl FnOnce(&mut BubbleSchedule)) -> Result<(), ScheduleFlaw> {
    let (timeline, work) = (
        language(4, 6, 1).deferred_timeline().unwrap(),
        encoder(plan(2, 1), 2),
    );
    let mut schedule = PLANNER.schedule(&timeline, &work).unwrap();
    schedule.check(&timeline, 1, &work).unwrap();
    change(&mut schedule);
    schedule.check(&timeline, 1, &work)
}

/// The place of the first or last kernel of a micro-batch in one direction.
fn place(
    schedule: &BubbleSchedule,
    micro_batch: usize,
    pass: EncoderPass,
    stage: usize,
    kernel: usize,
) -> usize {
    let is = |it: &crate::PlacedKernel| {
        (it.micro_batch, it.pass, it.stage, it.kernel) == (micro_batch, pass, stage, kernel)
    };
    schedule.kernels.iter().position(is).unwrap()
}

#[test]
fn kernels_that_are_missing_or_doubled_are_named() {
    let missing = changed(|it| {
        it.kernels.remove(7);
    });
    assert!(
        matches!(missing, Err(ScheduleFlaw::NotOnce { times: 0, .. })),
        "{missing:?}"
    );
    let doubled = changed(|it| it.kernels.push(it.kernels[7]));
    assert!(
        matches!(doubled, Err(ScheduleFlaw::NotOnce { times: 2, .. })),
        "{doubled:?}"
    );
}

#[test]
fn kernels_in_other_places_are_named() {
    for change in [
        |it: &mut BubbleSchedule| it.kernels[3].rank += 1,
        |it: &mut BubbleSchedule| it.kernels[3].slice += 1,
        |it: &mut BubbleSchedule| it.kernels[3].end_s += 0.25,
        |it: &mut BubbleSchedule| it.kernels[3].pipeline = 1 - it.kernels[3].pipeline,
    ] {
        let misplaced = changed(change);
        assert!(
            matches!(misplaced, Err(ScheduleFlaw::Misplaced(_))),
            "{misplaced:?}"
        );
    }
    let outside = changed(|it| {
        it.kernels[0].begin_s -= 100.0;
        it.kernels[0].end_s -= 100.0;
    });
    assert!(
        matches!(outside, Err(ScheduleFlaw::Outside(_))),
        "{outside:?}"
    );
}

#[test]
fn kernels_beside_others_are_named() {
    let overlap = changed(|schedule| {
        // The last kernel of a micro-batch may be later for all who need it.
        let lasts = (0..6).map(|it| place(schedule, it, EncoderPass::Backward, 0, 7));
        let mut beside = lasts.filter_map(|at| {
            let it = schedule.kernels[at];
            let other = schedule.kernels.iter().find(|other| {
                (other.rank, other.stream) == (it.rank, it.stream) && other.begin_s >= it.end_s
            });
            Some((at, other?.begin_s))
        });
        let (at, begin_s) = beside.next().unwrap();
        drop(beside);
        let it = &mut schedule.kernels[at];
        (it.begin_s, it.end_s) = (begin_s, begin_s + it.end_s - it.begin_s);
    });
    assert!(
        matches!(overlap, Err(ScheduleFlaw::Overlap { .. })),
        "{overlap:?}"
    );
    // And the language model's kernels.
    let overlap = changed(|schedule| {
        let at = place(schedule, 5, EncoderPass::Forward, 0, 0);
        let timeline = language(4, 6, 1).deferred_timeline().unwrap();
        let it = &mut schedule.kernels[at];
        let own = timeline.ranks[it.rank].kernels.iter();
        let mut own = own.filter(|own| own.kernel.stream == it.stream && own.begin_s < it.begin_s);
        if let Some(own) = own.next_back() {
            (it.begin_s, it.end_s) = (own.begin_s, own.begin_s + it.end_s - it.begin_s);
        } else {
            it.pipeline = 7;
        }
    });
    assert!(overlap.is_err());
}

#[test]
fn kernels_before_what_they_need_are_named() {
    let early = changed(|schedule| {
        let (a, b) = (
            place(schedule, 2, EncoderPass::Forward, 0, 0),
            place(schedule, 2, EncoderPass::Forward, 0, 3),
        );
        let (first, second) = (schedule.kernels[a], schedule.kernels[b]);
        (schedule.kernels[a].begin_s, schedule.kernels[a].end_s) = (second.begin_s, second.end_s);
        (schedule.kernels[b].begin_s, schedule.kernels[b].end_s) = (first.begin_s, first.end_s);
    });
    assert!(
        matches!(early, Err(ScheduleFlaw::TooEarly { .. })),
        "{early:?}"
    );
    // A backward pass before its gradient is there.
    let early = changed(|schedule| {
        for it in &mut schedule.kernels {
            if it.pass == EncoderPass::Backward && it.micro_batch == 5 {
                it.begin_s -= 30.0;
                it.end_s -= 30.0;
            }
        }
    });
    assert!(
        matches!(early, Err(ScheduleFlaw::TooEarly { .. })),
        "{early:?}"
    );
}

#[test]
fn outputs_that_come_too_late_are_named() {
    let late = changed(|schedule| {
        for it in &mut schedule.kernels {
            if it.pass == EncoderPass::Forward && it.micro_batch == 0 {
                it.begin_s += 20.0;
                it.end_s += 20.0;
            }
        }
    });
    assert!(
        matches!(late, Err(ScheduleFlaw::TooLate { micro_batch: 0, .. })),
        "{late:?}"
    );
}

#[test]
fn micro_batches_of_other_pipelines_are_named() {
    let other = changed(|schedule| schedule.encoded_by[3] = 1 - schedule.encoded_by[3]);
    assert!(
        matches!(other, Err(ScheduleFlaw::Composition { .. })),
        "{other:?}"
    );
}
