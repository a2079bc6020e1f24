//! Orders in front of faults, and what holds of any sequence of both.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::super::{LadderPolicy, RankCause, RankFault, RankFinding};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const ELSEWHERE: Surroundings = Surroundings {
    elsewhere: true,
    nodes: None,
};
const NO_ROOM: Surroundings = Surroundings {
    elsewhere: false,
    nodes: None,
};

fn place(rank: u32, node: &str) -> PlacedRank {
    let node = node.to_owned();
    PlacedRank { rank, node }
}

fn found(fault: RankFault, rank: u32, node: &str, since: Duration) -> RankFinding {
    RankFinding {
        who: vec![place(rank, node)],
        cause: RankCause {
            fault,
            what: "its process is stopped".to_owned(),
        },
        since,
    }
}

fn ann(why: &str) -> OrderedBy {
    OrderedBy {
        name: "ann".to_owned(),
        why: why.to_owned(),
    }
}

fn forbid(ladder: &mut Ladder, action: OrderedAction) -> Ordered {
    let by = ann("a debugger is there");
    ladder.forbid(Forbidden { action, by })
}

/// SEMANTICS 198.
#[test]
fn what_a_person_forbids_is_told_until_it_is_allowed() {
    let mut ladder = Ladder::new(LadderPolicy::default());
    let order = forbid(&mut ladder, OrderedAction::EndProcess);
    assert_eq!(order.why, "ann forbids end_process: a debugger is there");
    let still = found(RankFault::Still, 2, "b", MINUTE);
    let rung = ladder.climb(&still, ELSEWHERE, MINUTE * 2).unwrap();
    assert_eq!(rung.action, Action::Tell);
    assert_eq!(
        rung.why,
        "rank 2 on node b: its process is stopped; nothing is done: ann forbids it: a debugger is there"
    );
    assert_eq!(
        ladder.climb(&still, ELSEWHERE, MINUTE * 3),
        None,
        "told once"
    );
    // A crash is a restart in any case.
    let crash = found(RankFault::Crashed, 1, "a", MINUTE * 3);
    let rung = ladder.climb(&crash, ELSEWHERE, MINUTE * 3).unwrap();
    assert_eq!(rung.action, Action::EndProcess);
    ladder.went_on();
    let order = ladder.allow(OrderedAction::EndProcess, &ann(""));
    assert_eq!(order.unwrap().why, "ann allows end_process again");
    let rung = ladder.climb(&still, ELSEWHERE, MINUTE * 4).unwrap();
    assert_eq!(rung.action, Action::EndProcess);
    let error = ladder
        .allow(OrderedAction::EndProcess, &ann(""))
        .unwrap_err();
    assert_eq!(error, OrderError::NotForbidden(OrderedAction::EndProcess));
}

/// SEMANTICS 198.
#[test]
fn a_node_is_not_left_nor_used_again_where_a_person_forbids_it() {
    let mut ladder = Ladder::new(LadderPolicy::default());
    forbid(&mut ladder, OrderedAction::EvictNode);
    for nth in 1..=2_u32 {
        let crash = found(RankFault::Crashed, 1, "a", MINUTE * nth);
        let rung = ladder.climb(&crash, ELSEWHERE, MINUTE * nth).unwrap();
        assert_eq!(rung.action, Action::EndProcess);
        let says = rung.why.contains("its node is not left: ann forbids it");
        assert_eq!(says, nth == 2, "{}", rung.why);
        ladder.went_on();
    }
    ladder.avoid(&BTreeSet::from(["c".to_owned()]));
    forbid(&mut ladder, OrderedAction::ReturnNode);
    assert_eq!(ladder.let_back(), Vec::<String>::new());
    ladder.allow(OrderedAction::ReturnNode, &ann("")).unwrap();
    assert_eq!(ladder.let_back(), ["c"]);
}

/// SEMANTICS 199.
#[test]
fn what_a_person_forces_is_done_and_not_counted() {
    let mut ladder = Ladder::new(LadderPolicy::default());
    let rank = place(1, "a");
    let by = ann("it is slow");
    let rung = ladder.force(OrderedAction::EndProcess, Some(&rank), &by, ELSEWHERE);
    let rung = rung.unwrap();
    assert_eq!((rung.action, rung.evicted.len()), (Action::EndProcess, 0));
    assert_eq!(
        rung.why,
        "rank 1 on node a: ann asked for it: it is slow; it is made again in its place (not counted)"
    );
    let again = ladder.force(OrderedAction::EndProcess, Some(&rank), &by, ELSEWHERE);
    assert_eq!(again.unwrap_err(), OrderError::UnderWay);
    ladder.went_on();
    assert_eq!(ladder.budget(MINUTE), (0, 10));
    // What a person asked for is no fault of the rank.
    let crash = found(RankFault::Crashed, 1, "a", MINUTE);
    let rung = ladder.climb(&crash, ELSEWHERE, MINUTE).unwrap();
    assert_eq!(rung.action, Action::EndProcess);
    ladder.went_on();
    assert_eq!(ladder.budget(MINUTE), (1, 10));
    let stuck = ladder.force(OrderedAction::EvictNode, Some(&rank), &by, NO_ROOM);
    assert!(matches!(
        stuck,
        Err(OrderError::NotElsewhere { rank: 1, .. })
    ));
    let back = ladder.force(OrderedAction::ReturnNode, Some(&rank), &by, ELSEWHERE);
    assert_eq!(back.unwrap_err(), OrderError::NotOfRanks);
    let rung = ladder.force(OrderedAction::EvictNode, Some(&rank), &by, ELSEWHERE);
    assert_eq!(rung.unwrap().evicted, ["a"]);
    assert!(ladder.avoided().contains("a"));
}

/// SEMANTICS 200.
#[test]
fn the_last_order_is_taken_back_first() {
    let mut ladder = Ladder::new(LadderPolicy::default());
    ladder.avoid(&BTreeSet::from(["c".to_owned(), "d".to_owned()]));
    for nth in 1..=2_u32 {
        let crash = found(RankFault::Crashed, 1, "a", MINUTE * nth);
        ladder.climb(&crash, ELSEWHERE, MINUTE * nth).unwrap();
        ladder.went_on();
    }
    assert_eq!(ladder.evictions(), (1, 0));
    forbid(&mut ladder, OrderedAction::EndProcess);
    let undone = ladder.undo(None, &ann("")).unwrap();
    assert_eq!(undone.allows, Some(OrderedAction::EndProcess));
    let undone = ladder.undo(None, &ann("its cable was loose")).unwrap();
    assert_eq!(undone.returned, ["a"]);
    assert_eq!(undone.why, "ann has node a used again: its cable was loose");
    assert_eq!(ladder.evictions(), (1, 1), "left for nothing");
    // What happened there is forgotten: the next fault there is a first one.
    let crash = found(RankFault::Crashed, 1, "a", MINUTE * 3);
    let rung = ladder.climb(&crash, ELSEWHERE, MINUTE * 3).unwrap();
    assert_eq!(rung.action, Action::EndProcess);
    let error = ladder.undo(Some("b"), &ann("")).unwrap_err().to_string();
    assert_eq!(error, "the run does not avoid node b: it avoids c, d");
    assert_eq!(ladder.undo(Some("c"), &ann("")).unwrap().returned, ["c"]);
    assert_eq!(ladder.undo(None, &ann("")).unwrap().returned, ["d"]);
    let error = ladder.undo(None, &ann("")).unwrap_err();
    assert_eq!(error, OrderError::NothingToUndo);
}

/// Something that happens to a ladder.
#[derive(Clone, Debug)]
enum Happens {
    Found(RankFault, u32, usize),
    WentOn,
    Forbid(OrderedAction),
    Allow(OrderedAction),
    Force(OrderedAction, u32, usize),
    Undo,
}

fn happens() -> impl Strategy<Value = Happens> {
    let action = || proptest::sample::select(&OrderedAction::ALL[..]);
    let fault = prop_oneof![Just(RankFault::Still), Just(RankFault::Crashed)];
    prop_oneof![
        4 => (fault, 0..3_u32, 0..3_usize).prop_map(|(fault, rank, node)| Happens::Found(fault, rank, node)),
        4 => Just(Happens::WentOn),
        2 => action().prop_map(Happens::Forbid),
        1 => action().prop_map(Happens::Allow),
        2 => (action(), 0..3_u32, 0..3_usize).prop_map(|(action, rank, node)| Happens::Force(action, rank, node)),
        1 => Just(Happens::Undo),
    ]
}

proptest! {
    /// SEMANTICS 198, 199, 200. Nothing that is forbidden is done by itself but a restart after a crash; what is forced
    /// never counts; while an action is under way nothing is forced; all that was left or forbidden can be taken back.
    #[test]
    fn a_person_has_the_last_word(steps in proptest::collection::vec(happens(), 0..100)) {
        let policy = LadderPolicy { restarts: 100, ..LadderPolicy::default() };
        let mut ladder = Ladder::new(policy.clone());
        let mut now = Duration::from_secs(10_000);
        let (mut forbidden, mut under_way, mut counted) = (BTreeSet::new(), false, 0);
        for what in steps {
            now += Duration::from_secs(1);
            let node = |at: usize| ["a", "b", "c"][at];
            match what {
                Happens::WentOn => {
                    ladder.went_on();
                    under_way = false;
                }
                Happens::Found(fault, rank, at) => {
                    let finding = found(fault, rank, node(at), now - policy.patience);
                    let Some(rung) = ladder.climb(&finding, ELSEWHERE, now) else { continue };
                    prop_assert!(!under_way);
                    let ends = forbidden.contains(&OrderedAction::EndProcess) && fault != RankFault::Crashed;
                    prop_assert_eq!(ends, rung.action == Action::Tell);
                    let stays = forbidden.contains(&OrderedAction::EvictNode);
                    prop_assert!(!stays || rung.action != Action::EvictNode);
                    under_way = rung.action != Action::Tell;
                    counted += u32::from(under_way);
                }
                Happens::Forbid(action) => {
                    forbid(&mut ladder, action);
                    forbidden.insert(action);
                }
                Happens::Allow(action) => {
                    prop_assert_eq!(ladder.allow(action, &ann("")).is_ok(), forbidden.remove(&action));
                }
                Happens::Force(action, rank, at) => {
                    let forced = ladder.force(action, Some(&place(rank, node(at))), &ann(""), ELSEWHERE);
                    let of_rank = [OrderedAction::EndProcess, OrderedAction::EvictNode].contains(&action);
                    prop_assert_eq!(forced.is_ok(), !under_way && of_rank);
                    under_way |= forced.is_ok();
                }
                Happens::Undo => {
                    let before = ladder.avoided().len() + forbidden.len();
                    let undone = ladder.undo(None, &ann(""));
                    prop_assert_eq!(undone.is_ok(), before > 0);
                    if let Ok(Ordered { allows: Some(action), .. }) = undone {
                        prop_assert!(forbidden.remove(&action));
                    }
                }
            }
            prop_assert_eq!(ladder.budget(now).0, counted);
            let all: BTreeSet<_> = ladder.forbidden().iter().map(|it| it.action).collect();
            prop_assert_eq!(&all, &forbidden);
            let (evictions, innocent) = ladder.evictions();
            prop_assert!(innocent <= evictions);
        }
        while ladder.undo(None, &ann("")).is_ok() {}
        prop_assert!(ladder.avoided().is_empty() && ladder.forbidden().is_empty());
    }
}
