//! Versions through whatever happens to their job.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::job::tests::job;
use crate::job::{Event, JobId};
use crate::resources::{Allotment, Reservation};

fn program(n: u8) -> Program {
    Program {
        bundle: Digest::of(&[n]),
        args: vec![n.to_string()],
        env: BTreeMap::new(),
        links: BTreeMap::new(),
        environment: None,
    }
}

fn update(n: u8, wait_s: Option<u64>) -> Event {
    Event::Update {
        program: program(n),
        by: "ann".to_owned(),
        why: "so".to_owned(),
        wait_s,
    }
}

fn roll_back(to: Option<u32>) -> Event {
    let (by, why) = ("ann".to_owned(), String::new());
    Event::RollBack { to, by, why }
}

fn assigned() -> Event {
    let part = |node: &str, rank| Reservation {
        node: node.to_owned(),
        boot: 1,
        rank,
        allotment: Allotment {
            cpu_milli: 1000,
            ..Allotment::default()
        },
        devices: vec![],
    };
    Event::Assigned {
        node: "a".to_owned(),
        boot: 1,
        reserved: vec![part("a", None), part("b", Some(0))],
    }
}

fn over(attempt: u32, outcome: Outcome) -> Event {
    Event::Over { attempt, outcome }
}

fn failed(code: i32) -> Outcome {
    let why = format!("exit status: {code}");
    let code = Some(code);
    Outcome::Failed { code, why }
}

fn stopped() -> Outcome {
    let by = "its node".to_owned();
    Outcome::Stopped { by }
}

fn lost() -> Outcome {
    let (node, why) = ("a".to_owned(), "is lost".to_owned());
    Outcome::Lost { node, why }
}

/// A job that runs.
fn running(retries: u32) -> Job {
    let mut job = job(retries);
    job.apply(assigned(), Unix(10)).unwrap();
    go(&mut job, Event::Started { attempt: 1, pid: 7 });
    job
}

fn go(job: &mut Job, event: Event) {
    job.apply(event, Unix(20)).expect("it can be");
}

/// The end of the present try.
fn ends(job: &mut Job, outcome: Outcome) {
    let attempt = job.tries;
    go(job, over(attempt, outcome));
}

fn starts(job: &mut Job) {
    let attempt = job.tries;
    go(job, Event::Started { attempt, pid: 8 });
}

/// Its version, try and state.
fn at(job: &Job) -> (u32, u32, &'static str) {
    (job.version(), job.tries, job.word())
}

/// SEMANTICS 215.
#[test]
fn a_job_keeps_its_places_and_its_retries_over_an_update() {
    let mut job = running(0);
    let held = job.attempt().unwrap().clone();
    go(&mut job, update(1, None));
    assert_eq!(at(&job), (1, 1, "updating"));
    // Not before its processes are gone.
    assert_eq!(job.spec.args, Vec::<String>::new());
    ends(&mut job, stopped());
    assert_eq!(at(&job), (2, 2, "staging"));
    assert_eq!(job.spec.args, ["1"]);
    let now = job.attempt().unwrap();
    assert_eq!(
        (&now.node, now.boot, &now.reserved),
        (&held.node, held.boot, &held.reserved)
    );
    assert_eq!((now.since, now.held_since()), (Unix(20), Unix(10)));
    assert_eq!(job.earlier[0].1.to_string(), "replaced by version 2");
    starts(&mut job);
    go(&mut job, Event::AtWork { attempt: 2 });
    // The time of its places counts on, and it has no retries left: there were none.
    go(&mut job, roll_back(None));
    ends(&mut job, stopped());
    assert_eq!(at(&job), (1, 3, "staging"));
    assert_eq!(job.attempt().unwrap().held_since(), Unix(10));
    ends(&mut job, failed(1));
    assert_eq!(at(&job), (1, 3, "failed"));
}

/// SEMANTICS 216.
#[test]
fn a_version_on_trial_goes_back_and_one_that_was_at_work_does_not() {
    let turned = |job: &mut Job| {
        go(job, update(1, None));
        ends(job, stopped());
        starts(job);
    };
    let mut job = running(0);
    turned(&mut job);
    assert!(job.is_on_trial());
    ends(&mut job, failed(3));
    assert_eq!(at(&job), (1, 3, "staging"));
    let VersionState::Failed { why } = &job.versions.get(2).unwrap().state else {
        panic!("{job:?}");
    };
    assert_eq!(why, "was not at work yet and failed: exit status: 3");
    // Once: the first has none before it.
    starts(&mut job);
    ends(&mut job, failed(3));
    assert_eq!(at(&job), (1, 3, "failed"));

    let mut job = running(0);
    turned(&mut job);
    go(&mut job, Event::AtWork { attempt: 2 });
    ends(&mut job, failed(3));
    assert_eq!(at(&job), (2, 2, "failed"));

    // One that has run for long counts as one that was at work; and any may ask.
    let mut job = running(0);
    turned(&mut job);
    let long = Unix(20).after(AT_WORK_AFTER);
    job.apply(over(2, failed(3)), long).unwrap();
    assert_eq!(at(&job), (2, 2, "failed"));
    let mut job = running(0);
    turned(&mut job);
    job.apply(over(2, failed(ROLL_BACK_CODE)), long).unwrap();
    assert_eq!(at(&job), (1, 3, "staging"));

    // That its node is lost is no fault of it; nor is its time limit.
    let mut job = running(1);
    turned(&mut job);
    ends(&mut job, lost());
    assert_eq!(at(&job), (2, 2, "waiting"));
    let mut job = running(0);
    turned(&mut job);
    ends(&mut job, Outcome::TimedOut { limit_s: 1 });
    assert_eq!(at(&job), (2, 2, "failed"));
}

/// SEMANTICS 218.
#[test]
fn an_update_that_waits_comes_with_a_restart_or_when_it_is_due() {
    let mut job = running(0);
    go(&mut job, update(1, Some(60)));
    assert_eq!(at(&job), (1, 1, "running"));
    assert_eq!(job.turn_due(Unix(20)), None);
    let due = Unix(20).after(Duration::from_secs(60));
    assert_eq!(job.turn_due(due).map(|it| it.to), Some(2));
    // Another takes its place, which has never begun; and its own number.
    go(&mut job, update(2, Some(60)));
    assert_eq!(
        job.versions
            .all()
            .iter()
            .map(|it| it.number)
            .collect::<Vec<_>>(),
        [1, 3]
    );
    ends(&mut job, failed(1));
    assert_eq!(at(&job), (3, 2, "staging"));
    starts(&mut job);
    go(&mut job, Event::AtWork { attempt: 2 });
    go(&mut job, update(3, Some(60)));
    go(&mut job, Event::TurnDue { to: 4 });
    assert_eq!(at(&job), (3, 2, "updating"));
    // Who has changed his mind in time goes on with the same.
    go(&mut job, roll_back(None));
    ends(&mut job, stopped());
    assert_eq!(at(&job), (3, 3, "staging"));
    // What waits is taken back.
    go(&mut job, update(3, Some(60)));
    go(&mut job, roll_back(None));
    assert_eq!((at(&job), job.versions.next()), ((3, 3, "staging"), None));
    assert!(job.apply(Event::TurnDue { to: 5 }, due).is_err());
}

#[test]
fn who_stops_a_job_that_goes_over_ends_it() {
    let mut job = running(3);
    go(&mut job, update(1, None));
    let (by, in_order) = ("bob".to_owned(), true);
    go(&mut job, Event::Stop { by, in_order });
    assert_eq!(job.word(), "stopping");
    assert!(job.apply(update(2, None), Unix(20)).is_err());
    ends(&mut job, failed(1));
    let stopped = Outcome::Stopped {
        by: "bob".to_owned(),
    };
    assert_eq!(job.outcome(), Some(&stopped));
    // Run again it is what it was to become.
    go(
        &mut job,
        Event::Retry {
            by: "ann".to_owned(),
        },
    );
    assert_eq!(
        (job.version(), job.spec.args.clone()),
        (2, vec!["1".to_owned()])
    );
}

#[test]
fn a_job_that_waits_takes_another_program_at_once() {
    let mut job = job(0);
    go(&mut job, update(1, None));
    assert_eq!(at(&job), (2, 0, "waiting"));
    go(&mut job, roll_back(None));
    assert_eq!(at(&job), (1, 0, "waiting"));
    go(&mut job, roll_back(Some(2)));
    job.apply(assigned(), Unix(30)).unwrap();
    assert!(job.is_on_trial());
    ends(&mut job, failed(1));
    assert_eq!(at(&job), (1, 2, "staging"));
}

/// SEMANTICS 217.
#[test]
fn what_is_no_update_is_refused_with_its_reason() {
    let mut job = running(0);
    let mut refused = |event, why: &str| {
        let before = job.clone();
        let said = job.apply(event, Unix(20)).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        assert_eq!(job, before);
    };
    let same = Program::of(&before_spec());
    let event = Event::Update {
        program: same,
        by: "ann".to_owned(),
        why: String::new(),
        wait_s: None,
    };
    refused(event, "version 1 of job j1 is this program");
    refused(update(1, Some(WAIT_MAX_S + 1)), "for 604800 s at most");
    refused(roll_back(None), "has taken the place of none");
    refused(roll_back(Some(1)), "job j1 has version 1 already");
    refused(roll_back(Some(4)), "job j1 has no version 4: it keeps 1");
    let mut large = update(1, None);
    if let Event::Update { program, .. } = &mut large {
        program.args = vec!["x".repeat(1 << 20)];
    }
    refused(large, "arguments and variables have");
}

fn before_spec() -> JobSpec {
    job(0).spec
}

/// SEMANTICS 219.
#[test]
fn the_last_versions_are_kept_and_those_that_are_needed() {
    let mut job = running(0);
    for n in 1..40 {
        go(&mut job, update(n, None));
        ends(&mut job, stopped());
        starts(&mut job);
        let attempt = job.tries;
        go(&mut job, Event::AtWork { attempt });
        assert_eq!(
            job.versions.all().len(),
            VERSIONS_MAX.min(usize::from(n) + 1)
        );
    }
    let kept: Vec<u32> = job.versions.all().iter().map(|it| it.number).collect();
    assert_eq!(kept, (31..=40).collect::<Vec<_>>());
    // The way back from the newest leads along those that are kept.
    for version in (31..40).rev() {
        go(&mut job, roll_back(None));
        ends(&mut job, stopped());
        starts(&mut job);
        assert_eq!(job.version(), version);
    }
    assert!(job.apply(roll_back(None), Unix(20)).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Assigned,
    Started,
    AtWork,
    Over(u8),
    Stop,
    Retry,
    Update(u8, bool),
    RollBack(Option<u32>),
    Due,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Assigned),
        4 => Just(Step::Started),
        2 => Just(Step::AtWork),
        6 => (0u8..6).prop_map(Step::Over),
        1 => Just(Step::Stop),
        2 => Just(Step::Retry),
        4 => (0u8..20, any::<bool>()).prop_map(|(n, waits)| Step::Update(n, waits)),
        2 => prop::option::of(1u32..20).prop_map(Step::RollBack),
        1 => Just(Step::Due),
    ];
    vec(step, 1..150)
}

fn event(step: &Step, job: &Job) -> Event {
    let (attempt, by) = (job.tries, "ann".to_owned());
    match *step {
        Step::Assigned => assigned(),
        Step::Started => Event::Started { attempt, pid: 1 },
        Step::AtWork => Event::AtWork { attempt },
        Step::Over(how) => over(
            attempt,
            match how {
                0 => Outcome::Succeeded,
                1 => failed(1),
                2 => failed(ROLL_BACK_CODE),
                3 => lost(),
                4 => Outcome::TimedOut { limit_s: 1 },
                _ => stopped(),
            },
        ),
        Step::Stop => Event::Stop { by, in_order: true },
        Step::Retry => Event::Retry { by },
        Step::Update(n, waits) => update(n, waits.then_some(60)),
        Step::RollBack(to) => roll_back(to),
        Step::Due => Event::TurnDue {
            to: job.versions.next().map_or(0, |it| it.to),
        },
    }
}

proptest! {
    /// SEMANTICS 215, 219.
    #[test]
    fn places_are_kept_and_programs_change_between_tries_alone(steps in steps(), retries in 0u32..4) {
        let mut job = job(retries);
        for step in &steps {
            let before = job.clone();
            let event = event(step, &before);
            if job.apply(event, Unix(20)).is_err() {
                prop_assert_eq!(&job, &before);
                continue;
            }
            check(&before, &job, step)?;
        }
        let text = serde_json::to_string(&job).unwrap();
        prop_assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
    }
}

fn check(before: &Job, job: &Job, step: &Step) -> Result<(), TestCaseError> {
    let versions = &job.versions;
    let numbers: Vec<u32> = versions.all().iter().map(|it| it.number).collect();
    prop_assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    prop_assert!(numbers.len() <= VERSIONS_MAX);
    if !versions.is_empty() {
        let present = versions.get(job.version());
        prop_assert_eq!(present.map(|it| &it.program), Some(&Program::of(&job.spec)));
        if let Some(turn) = versions.next() {
            prop_assert!(numbers.contains(&turn.to), "{:?} {:?}", turn, numbers);
        }
    }
    // A program changes where no try is under way, or where one has just ended.
    let ended = matches!(step, Step::Over(_));
    if job.spec != before.spec {
        prop_assert!(before.attempt().is_none() || ended, "{step:?}");
    }
    // A try begins in place with all that the last one had, and is no retry.
    if let (true, State::Staging { attempt }) = (ended, &job.state) {
        let old = before.attempt().unwrap();
        prop_assert_eq!(attempt.number, old.number + 1);
        prop_assert_eq!(
            (&attempt.node, attempt.boot, &attempt.reserved),
            (&old.node, old.boot, &old.reserved)
        );
        prop_assert_eq!(attempt.held_since(), old.held_since());
    }
    let counted = job.tries - job.tries_before - versions.turns();
    prop_assert!(
        counted <= job.spec.retries + 1,
        "{counted} of {}",
        job.spec.retries
    );
    // An update is not lost: it is there, or to come.
    if let Step::Update(n, _) = step {
        let to = versions.next().map_or_else(|| job.version(), |it| it.to);
        prop_assert_eq!(&versions.get(to).unwrap().program, &program(*n));
    }
    if let State::Stopping { updates: true, .. } = job.state {
        prop_assert!(versions.next().is_some());
    }
    prop_assert_eq!(job.id, JobId(1));
    Ok(())
}

/// SEMANTICS 216. Ten minutes count, however the try ends.
#[test]
fn a_version_that_has_run_for_long_and_is_stopped_or_left_is_at_work() {
    for ends_by in [
        Event::Stop {
            by: "ann".to_owned(),
            in_order: true,
        },
        update(2, None),
    ] {
        let mut job = running(0);
        go(&mut job, update(1, None));
        ends(&mut job, stopped());
        starts(&mut job);
        assert!(job.is_on_trial());
        job.apply(ends_by, Unix(20 + 700_000)).unwrap();
        assert!(!job.is_on_trial());
    }
}

/// SEMANTICS 215, 218. The places are lost and not the version, also of a job without retries.
#[test]
fn a_job_whose_node_is_lost_while_a_version_is_to_come_waits_for_other_places() {
    for wait_s in [None, Some(3600)] {
        let mut job = running(0);
        go(&mut job, update(1, wait_s));
        ends(&mut job, lost());
        assert_eq!(at(&job), (2, 1, "waiting"));
        assert_eq!(job.spec.args, ["1"]);
        // That was no retry: the next loss ends it as it would have.
        go(&mut job, assigned());
        starts(&mut job);
        ends(&mut job, lost());
        assert_eq!(at(&job), (2, 2, "lost"));
    }
    // Whom somebody stops meanwhile ends.
    let mut job = running(0);
    go(&mut job, update(1, None));
    let by = "bob".to_owned();
    let in_order = true;
    go(&mut job, Event::Stop { by, in_order });
    ends(&mut job, lost());
    assert!(job.is_over(), "{:?}", job.state);
}

/// SEMANTICS 215.
#[test]
fn who_asks_twice_for_the_way_back_has_it_once() {
    let mut job = running(0);
    go(&mut job, update(1, None));
    ends(&mut job, stopped());
    starts(&mut job);
    go(&mut job, roll_back(None));
    go(&mut job, roll_back(None));
    assert_eq!(job.versions.next().map(|it| it.to), Some(1));
    ends(&mut job, stopped());
    assert_eq!(at(&job), (1, 3, "staging"));
}

/// SEMANTICS 216.
#[test]
fn a_version_that_has_failed_and_is_wanted_again_is_tried_once_more() {
    let mut job = running(0);
    go(&mut job, update(1, None));
    ends(&mut job, stopped());
    ends(&mut job, failed(1));
    assert_eq!(at(&job), (1, 3, "staging"));
    let state = |job: &Job, number| job.versions.get(number).map(|it| it.state.clone());
    assert!(matches!(state(&job, 2), Some(VersionState::Failed { .. })));
    starts(&mut job);
    go(&mut job, roll_back(Some(2)));
    ends(&mut job, stopped());
    assert_eq!(at(&job), (2, 4, "staging"));
    assert_eq!(state(&job, 2), Some(VersionState::Starting));
}
