//! When a job goes back to the version before.

use proptest::prelude::*;

use super::*;
use crate::ladder::{Forbidden, LadderPolicy, PlacedRank, RankCause, RankFault, Surroundings};

const AROUND: Surroundings = Surroundings {
    elsewhere: true,
    nodes: None,
};

fn policy(at_work: bool, until: u64, restarts: u32) -> LadderPolicy {
    LadderPolicy {
        restarts,
        version: Some(YoungVersion {
            number: 3,
            before: 2,
            at_work,
            until: Duration::from_secs(until),
        }),
        ..LadderPolicy::default()
    }
}

fn crash(rank: u32, at: u64) -> RankFinding {
    RankFinding {
        who: vec![PlacedRank {
            rank,
            node: "a".to_owned(),
        }],
        cause: RankCause {
            fault: RankFault::Crashed,
            what: "its process is lost: exit status: 1".to_owned(),
        },
        since: Duration::from_secs(at),
    }
}

fn climb(ladder: &mut Ladder, rank: u32, at: u64) -> Option<Rung> {
    let rung = ladder.climb(&crash(rank, at), AROUND, Duration::from_secs(at));
    ladder.went_on();
    rung
}

/// SEMANTICS 220.
#[test]
fn a_version_that_never_came_to_work_is_given_up_at_its_second_failure() {
    let mut ladder = Ladder::new(policy(false, 1000, 10));
    assert_eq!(climb(&mut ladder, 0, 1).unwrap().action, Action::EndProcess);
    // Another rank may be the one that fails this time.
    let rung = climb(&mut ladder, 1, 2).unwrap();
    assert_eq!(rung.action, Action::RollBack);
    assert_eq!(
        rung.why,
        "rank 1 on node a: its process is lost: exit status: 1; the job goes back to version 2, since version 3 has not \
         come to work and its ranks have begun again"
    );
    assert_eq!(climb(&mut ladder, 1, 3), None);
    // One that is at work has the whole ladder.
    let mut ladder = Ladder::new(policy(false, 1000, 10));
    climb(&mut ladder, 0, 1);
    ladder.came_to_work();
    assert_eq!(climb(&mut ladder, 1, 2).unwrap().action, Action::EndProcess);
}

/// SEMANTICS 220.
#[test]
fn nodes_that_are_lost_with_their_ranks_are_no_fault_of_a_version() {
    let lost = |ladder: &mut Ladder, at: u64| {
        let mut found = crash(0, at);
        found.who.clear();
        let rung = ladder.climb(&found, AROUND, Duration::from_secs(at));
        ladder.went_on();
        rung.map(|it| it.action)
    };
    // One that has not come to work is given up for what its ranks do.
    let mut ladder = Ladder::new(policy(false, 1000, 10));
    lost(&mut ladder, 1);
    assert_eq!(climb(&mut ladder, 0, 2).unwrap().action, Action::EndProcess);
    assert_eq!(climb(&mut ladder, 1, 3).unwrap().action, Action::RollBack);
    // Of a young one that has, lost nodes use up the budget, and a person is asked.
    let mut ladder = Ladder::new(policy(true, 1000, 2));
    lost(&mut ladder, 1);
    lost(&mut ladder, 2);
    assert_eq!(lost(&mut ladder, 3), Some(Action::StopForPerson));
}

/// SEMANTICS 220.
#[test]
fn a_young_version_goes_back_before_a_person_is_asked_and_an_old_one_does_not() {
    let ends_with = |until: u64| {
        let mut ladder = Ladder::new(policy(true, until, 2));
        for at in [100, 101] {
            let rung = climb(&mut ladder, at as u32, at).unwrap();
            assert_eq!(rung.action, Action::EndProcess);
        }
        climb(&mut ladder, 9, 102).unwrap()
    };
    let rung = ends_with(100);
    assert_eq!(rung.action, Action::RollBack);
    let does = "the job goes back to version 2, since its ranks have begun again 2 times within 60 min, and version 3 is \
                younger than that; its ranks cannot leave a node, so that no group test is made";
    assert!(rung.why.ends_with(does), "{}", rung.why);
    // What began when it had worked for long is no fault of it.
    let rung = ends_with(99);
    assert_eq!(rung.action, Action::StopForPerson);
    assert!(!rung.why.contains("version"), "{}", rung.why);
}

/// SEMANTICS 220.
#[test]
fn a_person_forbids_orders_and_allows_the_way_back() {
    let by = OrderedBy {
        name: "ann".to_owned(),
        why: "it is to be looked at".to_owned(),
    };
    let mut ladder = Ladder::new(policy(false, 1000, 1));
    ladder.forbid(Forbidden {
        action: OrderedAction::RollBack,
        by: by.clone(),
    });
    climb(&mut ladder, 0, 1);
    let rung = climb(&mut ladder, 0, 2).unwrap();
    assert_eq!(rung.action, Action::StopForPerson);
    let says = "it does not go back to version 2: ann forbids it: it is to be looked at";
    assert!(rung.why.contains(says), "{}", rung.why);

    let mut ladder = Ladder::new(policy(true, 0, 10));
    let rank = PlacedRank {
        rank: 0,
        node: "a".to_owned(),
    };
    let force = |ladder: &mut Ladder, rank: Option<&PlacedRank>| {
        ladder.force(OrderedAction::RollBack, rank, &by, AROUND)
    };
    let refused = force(&mut ladder, Some(&rank)).unwrap_err().to_string();
    assert_eq!(refused, "roll_back is of all ranks: leave `--rank` out");
    let rung = force(&mut ladder, None).unwrap();
    assert_eq!(rung.action, Action::RollBack);
    assert_eq!(
        rung.why,
        "ann asked for it: it is to be looked at; the job goes back to version 2"
    );
    assert_eq!(force(&mut ladder, None), Err(OrderError::Stopped));
    let mut alone = Ladder::new(LadderPolicy::default());
    assert_eq!(force(&mut alone, None), Err(OrderError::NoVersionBefore));
    assert_eq!("roll-back".parse(), Ok(OrderedAction::RollBack));
}

proptest! {
    /// Whatever fails and whenever, the way back is taken once at most, as the last, and never without a version before.
    #[test]
    fn the_way_back_is_the_last_rung(
        faults in proptest::collection::vec((0u32..4, 0u64..2000), 1..60),
        has_version in any::<bool>(),
        at_work in any::<bool>(),
        until in 0u64..40_000,
        restarts in 0u32..6,
    ) {
        let mut policy = policy(at_work, until, restarts);
        if !has_version {
            policy.version = None;
        }
        let (mut ladder, mut at, mut is_over) = (Ladder::new(policy), 0, false);
        for (rank, pause) in faults {
            at += pause;
            let rung = climb(&mut ladder, rank, at);
            prop_assert!(!is_over || rung.is_none());
            let Some(rung) = rung else { continue };
            is_over = matches!(rung.action, Action::RollBack | Action::StopForPerson);
            if rung.action == Action::RollBack {
                prop_assert!(has_version && rung.why.contains("goes back to version 2"));
            }
        }
    }
}
