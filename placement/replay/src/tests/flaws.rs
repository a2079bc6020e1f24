//! Flaws that are planted in schedules, and costs that do not fit: each is found and named.

use crate::{Pass, PassKind, PipelineCosts, PipelineSchedule, ScheduleError, StageCosts};

use PassKind::{Backward, BackwardInput, BackwardWeight, Forward};

/// 1F1B of 3 ranks and 4 micro-batches, changed.
fn changed(change: impl FnOnce(&mut Vec<Vec<Pass>>)) -> Result<(), ScheduleError> {
    of(
        &PipelineSchedule::one_forward_one_backward(3, 4).unwrap(),
        change,
    )
}

/// ZB-H1 of the same size, changed.
fn changed_h1(change: impl FnOnce(&mut Vec<Vec<Pass>>)) -> Result<(), ScheduleError> {
    of(&PipelineSchedule::zero_bubble_h1(3, 4).unwrap(), change)
}

fn of(
    schedule: &PipelineSchedule,
    change: impl FnOnce(&mut Vec<Vec<Pass>>),
) -> Result<(), ScheduleError> {
    schedule.check().unwrap();
    let mut ranks = schedule.ranks().to_vec();
    change(&mut ranks);
    let schedule = PipelineSchedule::from_passes(4, 1, ranks);
    let costs = PipelineCosts::uniform(3, StageCosts::new(1.0, 1.0, 1.0), 0.0);
    // What is refused is not made a graph of.
    assert_eq!(schedule.graph(&costs).map(|_| ()), schedule.check());
    schedule.check()
}

fn pass(kind: PassKind, micro_batch: usize) -> Pass {
    Pass::new(kind, micro_batch, 0)
}

fn place(passes: &[Pass], kind: PassKind, micro_batch: usize) -> usize {
    passes
        .iter()
        .position(|it| *it == pass(kind, micro_batch))
        .unwrap()
}

#[test]
fn a_pass_that_is_missing_is_named() {
    for rank in 0..3 {
        for kind in [Forward, Backward] {
            let missing = changed(|ranks| {
                let at = place(&ranks[rank], kind, 2);
                ranks[rank].remove(at);
            });
            let pass = pass(kind, 2);
            assert_eq!(missing, Err(ScheduleError::Missing { rank, pass }));
        }
        for kind in [Forward, BackwardInput, BackwardWeight] {
            let missing = changed_h1(|ranks| ranks[rank].retain(|it| *it != pass(kind, 3)));
            let pass = pass(kind, 3);
            assert_eq!(missing, Err(ScheduleError::Missing { rank, pass }));
        }
    }
    let missing = changed(|ranks| ranks[1].retain(|it| *it != pass(Backward, 0)));
    assert_eq!(
        missing.unwrap_err().to_string(),
        "rank 1 lacks the backward of micro-batch 0, chunk 0: add it"
    );
}

#[test]
fn a_pass_that_is_doubled_is_named() {
    let doubled = changed(|ranks| {
        let at = place(&ranks[2], Forward, 1);
        ranks[2].push(pass(Forward, 1));
        assert_eq!(at, 2);
    });
    let pass_1 = pass(Forward, 1);
    assert_eq!(
        doubled,
        Err(ScheduleError::Repeated {
            rank: 2,
            pass: pass_1,
            first: 2,
            second: 8
        })
    );
    for kind in [BackwardInput, BackwardWeight] {
        let pass = pass(kind, 1);
        let twice = changed(|ranks| ranks[0].push(pass));
        assert_eq!(twice, Err(ScheduleError::GradientTwice { rank: 0, pass }));
    }
}

#[test]
fn a_pass_of_nothing_is_named() {
    for unknown in [pass(Forward, 4), Pass::new(Forward, 0, 1)] {
        let error = changed(|ranks| ranks[1].push(unknown)).unwrap_err();
        let ScheduleError::UnknownPass { rank: 1, pass, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(pass, unknown);
    }
}

#[test]
fn a_gradient_before_what_it_needs_is_named() {
    let swapped = changed(|ranks| {
        let (a, b) = (place(&ranks[2], Forward, 1), place(&ranks[2], Backward, 1));
        ranks[2].swap(a, b);
    });
    let error = swapped.unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 2 has the backward of micro-batch 1, chunk 0 before the forward of micro-batch 1, chunk 0, which it \
         needs: change their order"
    );
    let swapped = changed_h1(|ranks| {
        let (a, b) = (
            place(&ranks[0], BackwardInput, 1),
            place(&ranks[0], BackwardWeight, 1),
        );
        ranks[0].swap(a, b);
    });
    assert_eq!(
        swapped,
        Err(ScheduleError::OutOfOrder {
            rank: 0,
            pass: pass(BackwardWeight, 1),
            after: pass(BackwardInput, 1)
        })
    );
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    // Rank 0 wants the gradient of micro-batch 0 before it begins micro-batch 2, for which rank 2 waits before it makes
    // any gradient.
    let stuck = changed(|ranks| {
        let (a, b) = (place(&ranks[0], Forward, 2), place(&ranks[0], Backward, 0));
        ranks[0].swap(a, b);
        let (a, b) = (place(&ranks[2], Forward, 2), place(&ranks[2], Backward, 0));
        ranks[2].swap(a, b);
    });
    assert_eq!(
        stuck.unwrap_err().to_string(),
        "no rank can go on: rank 0 waits for rank 1 with the backward of micro-batch 0, chunk 0; rank 1 waits for \
         rank 2 with the backward of micro-batch 0, chunk 0; rank 2 waits for rank 1 with the forward of micro-batch \
         2, chunk 0: change the order of one of them"
    );
    // Chunks of one rank in an order that no forward pass can have.
    let schedule = PipelineSchedule::interleaved(2, 2, 2).unwrap();
    let mut ranks = schedule.ranks().to_vec();
    ranks[0].swap(0, 2);
    let schedule = PipelineSchedule::from_passes(2, 2, ranks);
    assert!(matches!(
        schedule.check(),
        Err(ScheduleError::Deadlock { .. })
    ));
}

#[test]
fn too_many_activations_are_named() {
    let schedule = PipelineSchedule::one_forward_one_backward(3, 4).unwrap();
    assert_eq!(schedule.check_within(3), Ok(()));
    assert_eq!(
        schedule.check_within(2),
        Err(ScheduleError::TooManyInFlight {
            rank: 0,
            in_flight: 3,
            in_flight_max: 2
        })
    );
}

#[test]
fn nothing_is_made_of_nothing() {
    for (p, m, v) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let empty = ScheduleError::Empty {
            stages: p,
            micro_batches: m,
            chunks: v,
        };
        assert_eq!(PipelineSchedule::interleaved(p, m, v), Err(empty.clone()));
        let schedule = PipelineSchedule::from_passes(m, v, vec![vec![]; p]);
        assert_eq!(schedule.check(), Err(empty.clone()));
        if v == 1 {
            assert_eq!(PipelineSchedule::gpipe(p, m), Err(empty.clone()));
            assert_eq!(
                PipelineSchedule::one_forward_one_backward(p, m),
                Err(empty.clone())
            );
            assert_eq!(PipelineSchedule::zero_bubble_h1(p, m), Err(empty.clone()));
            let costs = PipelineCosts::uniform(p, StageCosts::default(), 0.0);
            assert_eq!(PipelineSchedule::zero_bubble(&costs, m, 1), Err(empty));
        }
    }
    let costs = PipelineCosts::uniform(2, StageCosts::default(), 0.0);
    assert_eq!(
        PipelineSchedule::zero_bubble(&costs, 2, 0),
        Err(ScheduleError::NoRoom)
    );
}

#[test]
fn costs_that_do_not_fit_are_named() {
    let schedule = PipelineSchedule::gpipe(2, 2).unwrap();
    let refused = |change: &dyn Fn(&mut PipelineCosts)| {
        let mut costs = PipelineCosts::uniform(2, StageCosts::new(1.0, 1.0, 1.0), 0.0);
        assert!(schedule.summary(&costs).is_ok());
        change(&mut costs);
        schedule.summary(&costs).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&|costs| costs.stages.push(StageCosts::default())),
        "there are costs of 3 stages, and the schedule has 2: give them stage by stage"
    );
    assert_eq!(
        refused(&|costs| costs.stages[1].weight_gradient_s = -0.5),
        "the weight gradient of stage 1 takes -0.5 s: give a finite number, 0 or more"
    );
    assert_eq!(
        refused(&|costs| costs.transfer_s = f64::NAN),
        "the message of stage 0 takes NaN s: give a finite number, 0 or more"
    );
    assert_eq!(
        refused(&|costs| costs.stages[0].kept_bytes = 1),
        "stage 0 keeps 1 bytes for its weight gradient, of 0 that it has: give no more"
    );
}
