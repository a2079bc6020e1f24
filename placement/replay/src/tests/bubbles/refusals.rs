//! Steps, encoders and plans that cannot be: each is refused with its reason.

use super::{PLANNER, encoder, language, plan};
use crate::{BubbleError, BubblePlanner, EncoderPlan, EncoderWork, StageKernel};

fn refused(work: &EncoderWork, planner: BubblePlanner) -> String {
    let timeline = language(4, 3, 1).timeline().unwrap();
    planner.schedule(&timeline, work).unwrap_err().to_string()
}

#[test]
fn plans_that_do_not_divide_are_refused() {
    assert_eq!(
        refused(&encoder(plan(3, 1), 1), PLANNER),
        "3 stages of the encoder do not divide the 4 of the language model: give a divisor, so that encoders lie on \
         the same cards"
    );
    let said = refused(&encoder(plan(4, 2), 1), PLANNER);
    assert!(
        said.starts_with("2 cards of a tensor group of the encoder do not divide the 1"),
        "{said}"
    );
    assert!(refused(&encoder(plan(0, 1), 1), PLANNER).starts_with("stages is 0"));
    assert_eq!(
        EncoderPlan::all(0, 1),
        Err(BubbleError::Zero("the number of stages"))
    );
    assert_eq!(EncoderPlan::all(4, 2).unwrap().len(), 6);
}

#[test]
fn fewer_micro_batches_than_pipelines_are_refused() {
    assert_eq!(
        refused(&encoder(plan(1, 1), 1), PLANNER),
        "3 micro-batches are too few for 4 pipelines of the encoder (1 stages of 1 cards): give each one at least, or \
         the encoder more stages or larger tensor groups"
    );
}

#[test]
fn durations_without_sense_are_refused() {
    for seconds in [-1.0, f64::NAN, f64::INFINITY, 0.0] {
        let mut work = encoder(plan(2, 1), 1);
        work.stages[1].backward[2] = StageKernel::compute(seconds);
        let said = refused(&work, PLANNER);
        assert!(
            said.starts_with("kernel 5 of stage 1 of the encoder takes"),
            "{said}"
        );
    }
    for seconds in [-1.0, f64::NAN, f64::INFINITY] {
        let mut work = encoder(plan(2, 1), 1);
        work.transfer_s = seconds;
        assert!(refused(&work, PLANNER).starts_with("a message of the encoder takes"));
        let mut step = language(2, 3, 1);
        step.stages[0].forward[1].seconds = seconds;
        let said = step.timeline().unwrap_err().to_string();
        assert!(
            said.starts_with("kernel 1 of stage 0 of the language model takes"),
            "{said}"
        );
        let mut step = language(2, 3, 1);
        step.gather_s = seconds;
        assert!(
            step.timeline()
                .unwrap_err()
                .to_string()
                .starts_with("the gathering of parameters")
        );
    }
}

#[test]
fn kernels_of_other_stages_are_refused() {
    let mut work = encoder(plan(2, 1), 1);
    work.stages.pop();
    assert_eq!(
        refused(&work, PLANNER),
        "there are kernels of 1 stages, and the encoder has 2: give them stage by stage"
    );
    let mut step = language(2, 3, 1);
    step.stages.pop();
    assert!(
        step.timeline()
            .unwrap_err()
            .to_string()
            .contains("the language model has 2")
    );
    let pooled = EncoderWork::pooled(&[encoder(plan(2, 1), 1), encoder(plan(4, 1), 1)]);
    assert!(matches!(pooled, Err(BubbleError::WrongStages { .. })));
    assert_eq!(EncoderWork::pooled(&[]), Err(BubbleError::NoPlan));
}

#[test]
fn what_does_not_fit_is_left_out_and_refused_where_nothing_fits() {
    let timeline = language(4, 8, 1).deferred_timeline().unwrap();
    let works = [1, 2, 4].map(|stages| EncoderWork {
        bytes: 80 / stages as u64,
        ..encoder(plan(stages, 1), 4 / stages)
    });
    let (schedule, all) = PLANNER.plan(&timeline, &works).unwrap();
    schedule
        .check(
            &timeline,
            1,
            works.iter().find(|it| it.plan == schedule.plan).unwrap(),
        )
        .unwrap();
    // 50 bytes are the language model's, of 100.
    assert!(all[0].step_s.is_none() && all[1].step_s.is_some() && all[2].step_s.is_some());
    let best = all
        .iter()
        .filter_map(|it| it.step_s)
        .fold(f64::INFINITY, f64::min);
    assert_eq!(schedule.step_s, best);
    let small = BubblePlanner {
        card_bytes: 60,
        ..PLANNER
    };
    assert_eq!(
        small.plan(&timeline, &works).unwrap_err().to_string(),
        "no plan of the encoder fits: 4 stages of 1 cards needs least with 70 bytes on each card, of 60 that there are: \
         give more cards, larger tensor groups or more stages, or a smaller encoder"
    );
    assert_eq!(
        PLANNER.plan(&timeline, &[]).unwrap_err(),
        BubbleError::NoPlan
    );
    let none = BubblePlanner {
        compositions_max: 0,
        ..PLANNER
    };
    assert_eq!(
        none.plan(&timeline, &works).unwrap_err(),
        BubbleError::NoTrials(0)
    );
}
