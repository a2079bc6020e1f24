//! When a group test is made, and what follows from it.

use std::time::Duration;

use super::super::{Forbidden, LadderPolicy, PlacedRank, RankCause};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);
/// Ranks on four nodes, beside which there is a fifth.
const AROUND: Surroundings = Surroundings {
    elsewhere: true,
    nodes: Some(4),
};

fn found(fault: RankFault, who: &[(u32, &str)]) -> RankFinding {
    let who = who.iter().map(|(rank, node)| PlacedRank {
        rank: *rank,
        node: (*node).to_owned(),
    });
    RankFinding {
        who: who.collect(),
        cause: RankCause {
            fault,
            what: "it failed".to_owned(),
        },
        since: MINUTE,
    }
}

fn ladder(restarts: u32) -> Ladder {
    let mut policy = LadderPolicy {
        restarts,
        ..LadderPolicy::default()
    };
    policy.acts.insert(RankFault::NotFinite);
    Ladder::new(policy)
}

fn named(culprit: Option<&str>) -> TestedNodes {
    TestedNodes {
        culprit: culprit.map(str::to_owned),
        said: match culprit {
            Some(node) => format!("node {node} is to blame: other bits"),
            None => "no group of 4 nodes has failed".to_owned(),
        },
    }
}

/// SEMANTICS 212.
#[test]
fn before_a_job_stops_its_nodes_are_tested_and_it_begins_once_more_without_the_one_to_blame() {
    let mut ladder = ladder(1);
    let crash = found(RankFault::Crashed, &[(0, "a")]);
    let rung = ladder.climb(&crash, AROUND, MINUTE * 2).unwrap();
    assert_eq!(rung.action, Action::EndProcess);
    ladder.went_on();
    let rung = ladder.climb(&crash, AROUND, MINUTE * 3).unwrap();
    assert_eq!(rung.action, Action::GroupTest);
    assert_eq!(
        rung.why,
        "rank 0 on node a: it failed; the nodes of all ranks are tested in groups, since its ranks have begun again 1 \
         times within 60 min"
    );
    assert_eq!(ladder.climb(&crash, AROUND, MINUTE * 3), None, "under way");
    let rung = ladder.tested(&crash, &named(Some("c")), AROUND, MINUTE * 4);
    assert_eq!(rung.action, Action::EvictNode);
    assert_eq!(rung.evicted, ["c"]);
    assert!(rung.why.ends_with(
        "node c is to blame: other bits; it is avoided from now on, and all begin again once more (not counted)"
    ));
    assert_eq!(ladder.budget(MINUTE * 4), (1, 1));
    assert_eq!(ladder.evictions(), (1, 0));
    ladder.went_on();
    // One more try, and no second test.
    let rung = ladder.climb(&crash, AROUND, MINUTE * 6).unwrap();
    assert_eq!(rung.action, Action::StopForPerson);
    assert!(
        rung.why
            .contains("a group test was made 2 min before: node c is to blame")
    );
}

/// SEMANTICS 212.
#[test]
fn a_test_that_names_nobody_changes_nothing_of_what_follows() {
    let mut ladder = ladder(0);
    let crash = found(RankFault::Crashed, &[(0, "a")]);
    let rung = ladder.climb(&crash, AROUND, MINUTE).unwrap();
    assert_eq!(rung.action, Action::GroupTest);
    let rung = ladder.tested(&crash, &named(None), AROUND, MINUTE);
    assert_eq!(rung.action, Action::StopForPerson);
    assert!(
        rung.why.ends_with("no group of 4 nodes has failed"),
        "{}",
        rung.why
    );
}

/// SEMANTICS 212.
#[test]
fn losses_that_are_no_numbers_are_tested_where_no_one_node_is_to_blame() {
    let mut own = ladder(10);
    let of_one = found(RankFault::NotFinite, &[(0, "a"), (1, "a")]);
    let rung = own.climb(&of_one, AROUND, MINUTE).unwrap();
    assert_eq!(rung.action, Action::EndProcess);
    for who in [&[(0, "a"), (2, "b")][..], &[]] {
        let mut ladder = ladder(10);
        let of_several = found(RankFault::NotFinite, who);
        let rung = ladder.climb(&of_several, AROUND, MINUTE).unwrap();
        assert_eq!(rung.action, Action::GroupTest);
        assert!(
            rung.why.ends_with("since no one node is to blame"),
            "{}",
            rung.why
        );
        let rung = ladder.tested(&of_several, &named(None), AROUND, MINUTE);
        assert_eq!(rung.action, Action::EndProcess, "as without a test");
        assert_eq!(ladder.budget(MINUTE), (1, 10));
    }
    // It comes again elsewhere: the node that was left looks innocent.
    own.went_on();
    let rung = own.climb(&of_one, AROUND, MINUTE * 2).unwrap();
    assert_eq!(rung.action, Action::EvictNode);
    own.went_on();
    let elsewhere = found(RankFault::NotFinite, &[(0, "e"), (1, "e")]);
    let rung = own.climb(&elsewhere, AROUND, MINUTE * 3).unwrap();
    assert_eq!((rung.action, rung.innocent.len()), (Action::GroupTest, 1));
    assert!(
        rung.why.contains("since the same came again elsewhere"),
        "{}",
        rung.why
    );
}

/// SEMANTICS 212.
#[test]
fn why_no_test_is_made_is_told() {
    let crash = found(RankFault::Crashed, &[(0, "a")]);
    let stopped = |ladder: &mut Ladder, around| {
        let rung = ladder.climb(&crash, around, MINUTE).unwrap();
        assert_eq!(rung.action, Action::StopForPerson);
        rung.why
    };
    let few = Surroundings {
        nodes: Some(3),
        ..AROUND
    };
    let why = stopped(&mut ladder(0), few);
    assert!(
        why.ends_with("the ranks are on 3 nodes, and it takes 4"),
        "{why}"
    );
    let stay = Surroundings {
        nodes: None,
        ..AROUND
    };
    let why = stopped(&mut ladder(0), stay);
    assert!(why.contains("its ranks cannot leave a node"), "{why}");
    let mut forbids = ladder(0);
    let by = OrderedBy {
        name: "ann".to_owned(),
        why: "it takes too long".to_owned(),
    };
    forbids.forbid(Forbidden {
        action: OrderedAction::GroupTest,
        by,
    });
    let why = stopped(&mut forbids, AROUND);
    assert!(
        why.ends_with("no group test is made: ann forbids it: it takes too long"),
        "{why}"
    );
}

/// SEMANTICS 212.
#[test]
fn a_node_that_cannot_be_left_is_named_all_the_same() {
    let crash = found(RankFault::Crashed, &[(0, "a")]);
    let no_room = Surroundings {
        elsewhere: false,
        ..AROUND
    };
    let mut alone = ladder(0);
    alone.climb(&crash, no_room, MINUTE).unwrap();
    let rung = alone.tested(&crash, &named(Some("c")), no_room, MINUTE);
    assert_eq!(rung.action, Action::StopForPerson);
    assert!(rung.why.contains("node c is to blame"), "{}", rung.why);
    assert!(
        rung.why.contains("since there is no room elsewhere"),
        "{}",
        rung.why
    );
    assert!(alone.avoided().is_empty());
}

/// SEMANTICS 212.
#[test]
fn a_person_orders_a_test_that_counts_for_nothing() {
    let by = OrderedBy {
        name: "ann".to_owned(),
        why: "it smells".to_owned(),
    };
    let mut ladder = ladder(10);
    let few = Surroundings {
        nodes: Some(2),
        ..AROUND
    };
    let refused = ladder.force(OrderedAction::GroupTest, None, &by, few);
    assert_eq!(refused.unwrap_err(), OrderError::TooFewNodes(2));
    let rung = ladder.force(OrderedAction::GroupTest, None, &by, AROUND);
    assert_eq!(rung.unwrap().action, Action::GroupTest);
    let rung = ladder.tested_by_order(&by, &named(None), AROUND);
    assert_eq!(rung.action, Action::Tell);
    assert_eq!(
        rung.why,
        "ann asked for a group test: it smells; no group of 4 nodes has failed; nothing is done"
    );
    ladder
        .force(OrderedAction::GroupTest, None, &by, AROUND)
        .unwrap();
    let rung = ladder.tested_by_order(&by, &named(Some("c")), AROUND);
    assert_eq!(
        (rung.action, rung.evicted),
        (Action::EvictNode, vec!["c".to_owned()])
    );
    assert_eq!(ladder.budget(MINUTE), (0, 10));
    ladder.undo(None, &by).unwrap();
    assert!(ladder.avoided().is_empty());
}
