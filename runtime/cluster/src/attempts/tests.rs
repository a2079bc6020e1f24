//! Orders that come late, twice and in any order.

use std::collections::BTreeSet;

use odeon_artifacts::Digest;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::job::{Event, JobSpec, Outcome};
use crate::resources::JobResources;
use crate::unix::Unix;

const BOOT: u64 = 7;

/// A job whose present try is `attempt`, on node `a`.
fn job(id: u64, attempt: u32, boot: u64) -> Job {
    let spec = JobSpec {
        name: "test".to_owned(),
        namespace: "default".to_owned(),
        bundle: Digest::of(b"files"),
        args: vec![],
        env: BTreeMap::new(),
        priority: 0,
        retries: 1000,
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
    let mut job = Job::new(JobId(id), spec, "ann".to_owned(), Unix(0));
    for number in 1..=attempt {
        let node = "a".to_owned();
        job.apply(
            Event::Assigned {
                node,
                boot,
                reserved: vec![],
            },
            Unix(0),
        )
        .unwrap();
        if number < attempt {
            let outcome = Outcome::Failed {
                code: None,
                why: "so".to_owned(),
            };
            let attempt = number;
            job.apply(Event::Over { attempt, outcome }, Unix(0))
                .unwrap();
        }
    }
    job
}

fn attempts() -> Attempts {
    Attempts::new("a", BOOT)
}

const BEGINS: AttemptStep = AttemptStep::Begin { attempt: 1 };
const KILLED: AttemptStep = AttemptStep::End {
    attempt: 1,
    in_order: false,
};

/// SEMANTICS 58.
#[test]
fn a_try_begins_once_however_often_the_order_comes() {
    let mut attempts = attempts();
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), BEGINS);
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), AttemptStep::Nothing);
    assert!(attempts.ended(JobId(1), 1));
    // The catalog does not know yet that it is over.
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), AttemptStep::Nothing);
    assert_eq!(
        attempts.begin(&job(1, 2, BOOT)),
        AttemptStep::Begin { attempt: 2 }
    );
}

#[test]
fn a_try_of_another_life_or_node_or_state_does_not_begin() {
    let mut attempts = attempts();
    assert_eq!(attempts.begin(&job(1, 1, BOOT + 1)), AttemptStep::Nothing);
    assert_eq!(
        Attempts::new("b", BOOT).begin(&job(1, 1, BOOT)),
        AttemptStep::Nothing
    );
    let mut stopping = job(1, 1, BOOT);
    let by = "ann".to_owned();
    let stop = Event::Stop { by, in_order: true };
    stopping.apply(stop, Unix(1)).unwrap();
    assert_eq!(attempts.begin(&stopping), AttemptStep::Nothing);
    assert!(attempts.is_empty());
}

#[test]
fn a_try_that_was_ended_before_it_began_never_begins() {
    let mut attempts = attempts();
    let never = AttemptStep::NeverRan { attempt: 1 };
    assert_eq!(attempts.finish(JobId(1), 1, true), never);
    assert_eq!(attempts.finish(JobId(1), 1, true), AttemptStep::Nothing);
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), AttemptStep::Nothing);
}

#[test]
fn a_newer_try_ends_the_older_and_begins_after_it() {
    let mut attempts = attempts();
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), BEGINS);
    assert_eq!(attempts.begin(&job(1, 2, BOOT)), KILLED);
    assert_eq!(attempts.begin(&job(1, 2, BOOT)), AttemptStep::Nothing);
    assert!(attempts.ended(JobId(1), 1));
    let begins = AttemptStep::Begin { attempt: 2 };
    assert_eq!(attempts.begin(&job(1, 2, BOOT)), begins);
    // What comes of the older is too late.
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), AttemptStep::Nothing);
    assert_eq!(attempts.finish(JobId(1), 1, false), AttemptStep::Nothing);
    assert_eq!(attempts.running(), [(JobId(1), 2)]);
}

#[test]
fn what_ends_in_order_may_be_killed_and_not_the_other_way() {
    let mut attempts = attempts();
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), BEGINS);
    let in_order = AttemptStep::End {
        attempt: 1,
        in_order: true,
    };
    assert_eq!(attempts.finish(JobId(1), 1, true), in_order);
    assert_eq!(attempts.finish(JobId(1), 1, true), AttemptStep::Nothing);
    assert_eq!(attempts.finish(JobId(1), 1, false), KILLED);
    assert_eq!(attempts.finish(JobId(1), 1, true), AttemptStep::Nothing);
}

/// SEMANTICS 58.
#[test]
fn what_the_catalog_ended_is_killed_once() {
    let mut attempts = attempts();
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), BEGINS);
    assert_eq!(attempts.begin(&job(2, 1, BOOT)), BEGINS);
    let over = [(JobId(1), 1), (JobId(2), 3), (JobId(9), 1)];
    assert_eq!(attempts.sweep(&over), [(JobId(1), 1)]);
    assert_eq!(attempts.sweep(&over), []);
    assert!(attempts.ended(JobId(1), 1));
    assert_eq!(attempts.running(), [(JobId(2), 1)]);
}

#[test]
fn a_node_that_leaves_ends_all_and_begins_nothing() {
    let mut attempts = attempts();
    assert_eq!(attempts.begin(&job(1, 1, BOOT)), BEGINS);
    assert_eq!(attempts.close(), [(JobId(1), 1)]);
    assert_eq!(attempts.begin(&job(2, 1, BOOT)), AttemptStep::Nothing);
    assert!(!attempts.ended(JobId(1), 1));
    assert!(attempts.is_empty());
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut attempts = attempts();
    for id in 0..SETTLED_MAX as u64 + 10 {
        assert_ne!(attempts.finish(JobId(id), 1, true), AttemptStep::Nothing);
    }
    assert_eq!(attempts.settled.len(), SETTLED_MAX);
}

#[derive(Clone, Debug)]
enum Order {
    Begin(u64, u32),
    Finish(u64, u32, bool),
    Ended(u64),
    Sweep(u64, u32),
}

fn orders() -> impl Strategy<Value = Vec<Order>> {
    let (job, attempt) = (0u64..3, 1u32..5);
    let order = prop_oneof![
        3 => (job.clone(), attempt.clone()).prop_map(|(job, n)| Order::Begin(job, n)),
        1 => (job.clone(), attempt.clone(), any::<bool>())
            .prop_map(|(job, n, gently)| Order::Finish(job, n, gently)),
        2 => job.clone().prop_map(Order::Ended),
        1 => (job, attempt).prop_map(|(job, n)| Order::Sweep(job, n)),
    ];
    vec(order, 1..60)
}

proptest! {
    #[test]
    fn whatever_comes_a_try_begins_at_most_once_and_alone(orders in orders()) {
        let mut attempts = attempts();
        let (mut begun, mut never) = (BTreeSet::new(), BTreeSet::new());
        let mut runs: BTreeMap<u64, u32> = BTreeMap::new();
        for order in orders {
            match order {
                Order::Begin(id, attempt) => match attempts.begin(&job(id, attempt, BOOT)) {
                    AttemptStep::Begin { attempt: begins } => {
                        prop_assert_eq!(begins, attempt);
                        prop_assert!(begun.insert((id, attempt)), "it begins twice");
                        prop_assert!(!never.contains(&(id, attempt)));
                        prop_assert_eq!(runs.insert(id, attempt), None);
                        let newest = begun.iter().filter(|it| it.0 == id).map(|it| it.1).max();
                        prop_assert_eq!(newest, Some(attempt));
                    }
                    AttemptStep::End { attempt: older, in_order } => {
                        prop_assert!(!in_order && older < attempt);
                        prop_assert_eq!(runs.get(&id), Some(&older));
                    }
                    AttemptStep::Nothing => {}
                    step @ AttemptStep::NeverRan { .. } => prop_assert!(false, "{:?}", step),
                },
                Order::Finish(id, attempt, in_order) => {
                    match attempts.finish(JobId(id), attempt, in_order) {
                        AttemptStep::NeverRan { attempt } => {
                            prop_assert!(!begun.contains(&(id, attempt)));
                            prop_assert!(never.insert((id, attempt)), "it is told twice");
                        }
                        AttemptStep::End { attempt, .. } => prop_assert_eq!(runs.get(&id), Some(&attempt)),
                        AttemptStep::Nothing => {}
                        step @ AttemptStep::Begin { .. } => prop_assert!(false, "{:?}", step),
                    }
                }
                Order::Ended(id) => {
                    if let Some(attempt) = runs.remove(&id) {
                        prop_assert!(attempts.ended(JobId(id), attempt));
                    }
                }
                Order::Sweep(id, attempt) => {
                    for (job, attempt) in attempts.sweep(&[(JobId(id), attempt)]) {
                        prop_assert_eq!(runs.get(&job.0), Some(&attempt));
                    }
                }
            }
            let known: BTreeMap<u64, u32> =
                attempts.running().into_iter().map(|(job, n)| (job.0, n)).collect();
            prop_assert_eq!(&known, &runs);
        }
    }
}
