//! The life of a job, against a table that says the same in another way.

use proptest::collection::vec;
use proptest::prelude::*;

use std::collections::BTreeMap;

use odeon_artifacts::Digest;

use super::spec::{ARGS_BYTES_MAX, RETRIES_MAX};
use super::*;
use crate::resources::JobResources;

/// Where a job is, as the figure of the module has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waiting,
    Staging,
    Running,
    Stopping,
    Ended,
}

fn place(job: &Job) -> Place {
    match job.state {
        State::Waiting { .. } => Place::Waiting,
        State::Staging { .. } => Place::Staging,
        State::Running { .. } => Place::Running,
        State::Stopping { .. } => Place::Stopping,
        State::Ended { .. } => Place::Ended,
    }
}

/// A step in a job's life, with tries named by how they lie to the present one.
#[derive(Clone, Debug)]
enum Step {
    Held,
    Assigned,
    Started { off: i64 },
    Over { off: i64, how: How },
    Stop { in_order: bool },
    Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Succeeded,
    Failed,
    Refused,
    Lost,
}

fn outcome(how: How) -> Outcome {
    let why = "it is so".to_owned();
    match how {
        How::Succeeded => Outcome::Succeeded,
        How::Failed => Outcome::Failed { code: Some(3), why },
        How::Refused => Outcome::Refused { why },
        How::Lost => {
            let node = "a".to_owned();
            Outcome::Lost { node, why }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let how = prop_oneof![
        1 => Just(How::Succeeded),
        4 => Just(How::Failed),
        1 => Just(How::Refused),
        2 => Just(How::Lost)
    ];
    let off = prop_oneof![6 => Just(0i64), 1 => -2i64..3];
    let step = prop_oneof![
        1 => Just(Step::Held),
        6 => Just(Step::Assigned),
        4 => off.clone().prop_map(|off| Step::Started { off }),
        6 => (off, how).prop_map(|(off, how)| Step::Over { off, how }),
        1 => any::<bool>().prop_map(|in_order| Step::Stop { in_order }),
        2 => Just(Step::Retry),
    ];
    vec(step, 1..80)
}

fn event(step: &Step, job: &Job) -> Event {
    let number = |off: i64| (i64::from(job.tries) + off).clamp(0, i64::from(u32::MAX)) as u32;
    let by = "ann".to_owned();
    match *step {
        Step::Held => Event::Held {
            why: "no room".to_owned(),
        },
        Step::Assigned => Event::Assigned {
            node: "a".to_owned(),
            boot: 1,
            reserved: vec![],
        },
        Step::Started { off } => Event::Started {
            attempt: number(off),
            pid: 7,
        },
        Step::Over { off, how } => Event::Over {
            attempt: number(off),
            outcome: outcome(how),
        },
        Step::Stop { in_order } => Event::Stop { by, in_order },
        Step::Retry => Event::Retry { by },
    }
}

/// The arrows of the figure: where an event leads, if it can be. `room` is whether tries are left.
fn arrow(from: Place, step: &Step, room: bool) -> Option<Place> {
    use Place::{Ended, Running, Staging, Stopping, Waiting};
    match (from, step) {
        (Waiting, Step::Held) => Some(Waiting),
        (Waiting, Step::Assigned) => Some(Staging),
        (Waiting, Step::Stop { .. }) => Some(Ended),
        (Staging, Step::Started { off: 0 }) => Some(Running),
        (Stopping, Step::Started { off: 0 }) => Some(Stopping),
        (Staging | Running, Step::Over { off: 0, how }) => Some(match how {
            How::Failed | How::Lost if room => Waiting,
            _ => Ended,
        }),
        (Stopping, Step::Over { off: 0, .. }) => Some(Ended),
        (Staging | Running | Stopping, Step::Stop { .. }) => Some(Stopping),
        (Ended, Step::Retry) => Some(Waiting),
        _ => None,
    }
}

pub(super) fn job(retries: u32) -> Job {
    let spec = JobSpec {
        name: "test".to_owned(),
        namespace: DEFAULT_NAMESPACE.to_owned(),
        bundle: Digest::of(b"files"),
        args: vec![],
        env: BTreeMap::new(),
        priority: 0,
        retries,
        node: None,
        hosts: None,
        resources: JobResources::default(),
        time_limit_s: None,
        after: vec![],
        array: None,
        links: BTreeMap::new(),
        grace_s: None,
        idle_limit_s: None,
        environment: None,
    };
    Job::new(JobId(1), spec, "ann".to_owned(), Unix(0))
}

proptest! {
    #[test]
    fn a_job_goes_along_the_arrows_and_no_other_way(steps in steps(), retries in 0u32..4) {
        let mut job = job(retries);
        // Tries of this run, as the test counts them.
        let mut tries = 0;
        for (n, step) in steps.iter().enumerate() {
            let before = job.clone();
            let from = place(&before);
            let expected = arrow(from, step, tries <= retries);
            let applied = job.apply(event(step, &before), Unix(n as u64 + 1));
            prop_assert_eq!(applied.is_ok(), expected.is_some(), "{:?} {:?}", from, step);
            let Some(to) = expected else {
                prop_assert_eq!(&job, &before);
                continue;
            };
            prop_assert_eq!(place(&job), to, "{:?} {:?}", from, step);
            match step {
                Step::Assigned => tries += 1,
                Step::Retry => tries = 0,
                _ => {}
            }
            prop_assert!(tries <= retries + 1, "{tries} tries of a job with {retries} retries");
            prop_assert_eq!(job.tries, before.tries + u32::from(matches!(step, Step::Assigned)));
            prop_assert!(job.earlier.len() <= EARLIER_MAX);
            // Whose it is, and what it is, never changes.
            prop_assert_eq!((job.id, &job.spec, job.submitted), (before.id, &before.spec, before.submitted));
            if let Some(attempt) = job.attempt() {
                prop_assert_eq!(attempt.number, job.tries);
            }
            match &job.state {
                State::Waiting { why, .. } => prop_assert!(!why.is_empty()),
                State::Ended { outcome, at, attempt } => {
                    prop_assert_eq!(*at, Unix(n as u64 + 1));
                    prop_assert_eq!(attempt.as_ref(), before.attempt());
                    prop_assert!(!outcome.to_string().is_empty());
                    check_reason(&before, step, outcome)?;
                }
                _ => {}
            }
        }
    }

    /// Whatever happened before.
    #[test]
    fn a_stopped_job_is_over_once_its_try_is(steps in steps(), retries in 0u32..4, how in 0usize..4) {
        let mut job = job(retries);
        for step in &steps {
            let event = event(step, &job);
            let _ = job.apply(event, Unix(1));
        }
        let stop = Event::Stop { by: "bob".to_owned(), in_order: true };
        let was_over = job.is_over();
        prop_assert_eq!(job.apply(stop, Unix(2)).is_err(), was_over);
        if let Some(attempt) = job.attempt().map(|attempt| attempt.number) {
            let how = [How::Succeeded, How::Failed, How::Refused, How::Lost][how];
            let over = Event::Over { attempt, outcome: outcome(how) };
            prop_assert_eq!(job.apply(over, Unix(3)), Ok(()));
        }
        prop_assert!(job.is_over(), "{job:?}");
    }
}

/// Checks that the outcome of a job follows from where it was and what happened.
fn check_reason(before: &Job, step: &Step, ended: &Outcome) -> Result<(), TestCaseError> {
    let expected = match (&before.state, step) {
        (State::Waiting { .. }, _) => Outcome::Cancelled {
            by: "ann".to_owned(),
        },
        (
            _,
            Step::Over {
                how: How::Succeeded,
                ..
            },
        ) => Outcome::Succeeded,
        (State::Stopping { by, .. }, _) => Outcome::Stopped { by: by.clone() },
        (_, Step::Over { how, .. }) => outcome(*how),
        (state, step) => panic!("{step:?} ended a job that was {state:?}"),
    };
    prop_assert_eq!(ended, &expected);
    Ok(())
}

fn go(job: &mut Job, step: &Step) {
    let event = event(step, job);
    job.apply(event, Unix(1)).expect("it can be");
}

const ASSIGNED: Step = Step::Assigned;
const FAILS: Step = Step::Over {
    off: 0,
    how: How::Failed,
};

#[test]
fn a_job_that_is_run_again_has_all_of_its_retries_and_new_numbers() {
    let mut job = job(2);
    for run in 0..3 {
        for attempt in 1..=3 {
            go(&mut job, &ASSIGNED);
            let number = job.attempt().map(|attempt| attempt.number);
            assert_eq!(number, Some(run * 3 + attempt));
            go(&mut job, &FAILS);
            assert_eq!(job.is_over(), attempt == 3, "try {attempt} of run {run}");
        }
        go(&mut job, &Step::Retry);
    }
    // The last try of a run is among those before the next.
    let numbers: Vec<u32> = job.earlier.iter().map(|(it, _)| it.number).collect();
    assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
}

#[test]
fn of_many_tries_the_last_are_kept() {
    let mut job = job(0);
    let tries = EARLIER_MAX as u32 + 2;
    for attempt in 1..=tries {
        go(&mut job, &ASSIGNED);
        go(&mut job, &FAILS);
        go(&mut job, &Step::Retry);
        assert_eq!(job.earlier.len(), EARLIER_MAX.min(attempt as usize));
    }
    let numbers = job.earlier.iter().map(|(it, _)| it.number);
    assert!(numbers.eq(3..=tries));
}

/// SEMANTICS 57.
#[test]
fn lines_that_were_not_kept_add_up_and_are_written_where_there_are_any() {
    let written = |job: &Job| serde_json::to_value(job).unwrap();
    let mut job = job(3);
    for field in ["unkept_lines", "quick_failures"] {
        assert_eq!(written(&job).get(field), None, "{field}");
    }
    go(&mut job, &ASSIGNED);
    for lines in [3, 4] {
        let attempt = 1;
        job.apply(Event::Unkept { attempt, lines }, Unix(1))
            .unwrap();
    }
    assert_eq!(job.unkept_lines, 7);
    go(&mut job, &FAILS);
    assert_eq!(written(&job)["unkept_lines"], 7);
    assert_eq!(written(&job)["quick_failures"], 1);
}

#[test]
fn a_job_is_told_by_its_end_and_its_tries_by_names_of_their_own() {
    let mut job = job(0);
    assert_eq!(job.tag(2), "default/j1.2");
    assert_eq!(job.outcome(), None);
    go(&mut job, &Step::Stop { in_order: true });
    let by = "ann".to_owned();
    assert_eq!(job.outcome(), Some(&Outcome::Cancelled { by: by.clone() }));
    let failed = Outcome::Failed {
        code: Some(3),
        why: "exit code 3".to_owned(),
    };
    assert_eq!(failed.told_of(JobId(1)), "j1 failed: exit code 3");
    assert_eq!(
        Outcome::Stopped { by }.told_of(JobId(1)),
        "j1 was stopped by ann"
    );
}

#[test]
fn a_job_that_is_run_again_may_be_stopped_and_run_again() {
    let mut job = job(0);
    go(&mut job, &Step::Stop { in_order: true });
    assert_eq!(job.word(), "cancelled");
    go(&mut job, &Step::Retry);
    assert_eq!(job.state_why(), Some("it is to be run again, by ann"));
    go(&mut job, &ASSIGNED);
    go(&mut job, &Step::Stop { in_order: true });
    go(&mut job, &FAILS);
    assert_eq!(job.word(), "stopped");
    go(&mut job, &Step::Retry);
    assert_eq!(job.word(), "waiting");
}

impl Job {
    fn state_why(&self) -> Option<&str> {
        match &self.state {
            State::Waiting { why, .. } => Some(why),
            _ => None,
        }
    }
}

#[test]
fn who_has_lost_patience_may_have_it_killed_and_not_the_other_way() {
    let gently = |job: &Job| match job.state {
        State::Stopping { in_order, .. } => in_order,
        ref state => panic!("{state:?}"),
    };
    let mut job = job(0);
    go(&mut job, &ASSIGNED);
    for (asked, expected) in [(true, true), (true, true), (false, false), (true, false)] {
        go(&mut job, &Step::Stop { in_order: asked });
        assert_eq!(gently(&job), expected);
    }
}

#[test]
fn who_waits_for_a_job_gets_its_exit_code() {
    let (by, why, node) = ("ann".to_owned(), "so".to_owned(), "a".to_owned());
    let failed = |code| {
        let why = why.clone();
        Outcome::Failed { code, why }
    };
    for (outcome, code) in [
        (Outcome::Succeeded, 0),
        (failed(Some(7)), 7),
        (failed(None), 1),
        (Outcome::Stopped { by: by.clone() }, 143),
        (Outcome::Cancelled { by }, 125),
        (Outcome::Refused { why: why.clone() }, 125),
        (
            Outcome::Lost {
                node,
                why: why.clone(),
            },
            125,
        ),
    ] {
        assert_eq!(outcome.exit_code(), code, "{outcome}");
    }
}

#[test]
fn jobs_are_written_and_read_with_their_letter_or_without() {
    assert_eq!(JobId(17).to_string(), "j17");
    for text in ["j17", "17"] {
        assert_eq!(text.parse(), Ok(JobId(17)));
    }
    for text in ["", "j", "x17", "17j", "-1"] {
        assert!(text.parse::<JobId>().is_err(), "{text}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_a_reason() {
    let check = |change: fn(&mut JobSpec)| {
        let mut spec = job(0).spec;
        change(&mut spec);
        spec.check().map_err(|error| error.to_string())
    };
    assert_eq!(check(|_| {}), Ok(()));
    assert_eq!(
        check(|spec| spec.env = [("A".to_owned(), "=".to_owned())].into()),
        Ok(())
    );
    assert_eq!(check(|spec| spec.links = link("a/b", "../c")), Ok(()));
    assert_eq!(check(|spec| spec.links = link("a", "b/c/../d")), Ok(()));
    assert_eq!(check(|spec| spec.links = link("a/b/c", "../../d")), Ok(()));
    type Change = fn(&mut JobSpec);
    let refused: [(Change, &str); 14] = [
        (|spec| spec.name.clear(), "a job's name has 1 to 100"),
        (
            |spec| spec.node = Some(String::new()),
            "a job's node has 1 to 100",
        ),
        (|spec| spec.name = "../up".to_owned(), "`../up` does not"),
        (
            |spec| spec.namespace = "a b".to_owned(),
            "a job's namespace",
        ),
        (
            |spec| spec.args = vec!["x".repeat(ARGS_BYTES_MAX + 1)],
            "put them into a file",
        ),
        (
            |spec| spec.env = [("A=B".to_owned(), String::new())].into(),
            "no name of a variable",
        ),
        (|spec| spec.args = vec!["a\0b".to_owned()], "a zero byte"),
        (
            |spec| spec.env = [("ODEON_WORKER".to_owned(), String::new())].into(),
            "keeps for itself",
        ),
        (|spec| spec.retries = RETRIES_MAX + 1, "at most 1000"),
        (|spec| spec.grace_s = Some(3601), "a grace of 3601 s"),
        (|spec| spec.idle_limit_s = Some(9), "an idle limit of 9 s"),
        (
            |spec| spec.links = link("a/b", "../../c"),
            "the link `a/b` to `../../c`",
        ),
        (|spec| spec.links = link("../a", "b"), "the link `../a`"),
        (
            |spec| spec.links = link("a", "/etc"),
            "the link `a` to `/etc`",
        ),
    ];
    for (change, words) in refused {
        let error = check(change).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
}

fn link(path: &str, target: &str) -> BTreeMap<String, String> {
    [(path.to_owned(), target.to_owned())].into()
}

/// One that hosts a detached actor.
fn host(kept: bool) -> Job {
    let mut job = job(0);
    job.spec.hosts = Some(Hosted {
        name: "board".to_owned(),
        actor: "job.Board".to_owned(),
        kept,
        order: String::new(),
    });
    job
}

/// A try that runs for so long and fails. The pause after it.
fn fails_after(job: &mut Job, at: &mut u64, ran: Duration) -> Option<Duration> {
    let apply = |job: &mut Job, event, at| job.apply(event, Unix(at)).expect("it can be");
    let (node, boot) = ("a".to_owned(), 1);
    apply(
        job,
        Event::Assigned {
            node,
            boot,
            reserved: vec![],
        },
        *at,
    );
    let attempt = job.tries;
    apply(job, Event::Started { attempt, pid: 1 }, *at);
    *at += ran.as_millis() as u64;
    let outcome = outcome(How::Failed);
    apply(job, Event::Over { attempt, outcome }, *at);
    match job.state {
        State::Waiting { not_before, .. } => {
            Some(not_before.map_or(Duration::ZERO, |until| until.since(Unix(*at))))
        }
        _ => None,
    }
}

/// SEMANTICS 54.
#[test]
fn tries_that_fail_quickly_wait_longer_and_longer_and_after_a_long_run_not_at_all() {
    let (mut job, mut at) = (job(1000), 1);
    let mut pauses = vec![];
    for _ in 0..10 {
        let pause = fails_after(&mut job, &mut at, Duration::from_secs(1));
        pauses.push(pause.unwrap().as_secs());
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    let pause = fails_after(&mut job, &mut at, LONG_RUN);
    assert_eq!(pause, Some(Duration::ZERO));
    let pause = fails_after(&mut job, &mut at, Duration::ZERO);
    assert_eq!(pause, Some(FIRST_PAUSE));
}

/// SEMANTICS 63.
#[test]
fn a_detached_actor_begins_anew_as_often_as_it_fails_once_it_has_lived() {
    // It has never come to life: who spawns it hears why.
    let mut never = host(true);
    go(&mut never, &ASSIGNED);
    go(&mut never, &FAILS);
    assert_eq!(never.word(), "failed");
    // It is kept, or not.
    let (mut kept, mut at) = (host(true), 1);
    for _ in 0..2000 {
        assert!(fails_after(&mut kept, &mut at, Duration::ZERO).is_some());
    }
    go(&mut kept, &ASSIGNED);
    go(
        &mut kept,
        &Step::Over {
            off: 0,
            how: How::Failed,
        },
    );
    assert_eq!(
        kept.word(),
        "waiting",
        "also when a later life does not start"
    );
    let (mut once, mut at) = (host(false), 1);
    assert_eq!(fails_after(&mut once, &mut at, Duration::ZERO), None);
    // Lost with its node before it had come to life, it is begun anew.
    let mut lost = host(true);
    go(&mut lost, &ASSIGNED);
    go(
        &mut lost,
        &Step::Over {
            off: 0,
            how: How::Lost,
        },
    );
    assert_eq!(lost.word(), "waiting");
    // In order it ends for good.
    go(&mut lost, &ASSIGNED);
    go(
        &mut lost,
        &Step::Over {
            off: 0,
            how: How::Succeeded,
        },
    );
    assert_eq!(lost.word(), "succeeded");
}
