//! The rungs that are taken for faults in a row, and what holds of any sequence of them.

use proptest::prelude::*;

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

fn still(rank: u32, node: &str, since: Duration) -> RankFinding {
    found(RankFault::Still, rank, node, since)
}

/// SEMANTICS 177.
#[test]
fn a_rung_is_taken_when_the_fault_comes_again() {
    let mut ladder = Ladder::new(LadderPolicy {
        restarts: 3,
        ..LadderPolicy::default()
    });
    let at = MINUTE * 10;
    let first = still(2, "b", at);
    assert_eq!(ladder.climb(&first, ELSEWHERE, at + MINUTE / 2), None);
    let rung = ladder.climb(&first, ELSEWHERE, at + MINUTE).unwrap();
    assert_eq!(rung.action, Action::EndProcess);
    assert_eq!(
        rung.why,
        "rank 2 on node b: its process is stopped; it is made again in its place (restart 1 of 3 within 60 min)"
    );
    // What is found while the ranks begin again is no news.
    assert_eq!(ladder.climb(&first, ELSEWHERE, at + MINUTE * 2), None);
    ladder.went_on();
    let other = still(1, "b", at + MINUTE * 2);
    let rung = ladder.climb(&other, ELSEWHERE, at + MINUTE * 3).unwrap();
    assert_eq!(rung.action, Action::EndProcess, "of another rank");
    ladder.went_on();
    let second = still(2, "b", at + MINUTE * 4);
    let rung = ladder.climb(&second, ELSEWHERE, at + MINUTE * 5).unwrap();
    assert_eq!(rung.action, Action::EvictNode);
    assert_eq!(rung.evicted, ["b"]);
    assert!(
        rung.why
            .contains("made again elsewhere, and node b is avoided from now on")
    );
    ladder.went_on();
    let third = still(2, "c", at + MINUTE * 6);
    let rung = ladder.climb(&third, ELSEWHERE, at + MINUTE * 7).unwrap();
    assert_eq!(rung.action, Action::StopForPerson);
    assert_eq!(rung.innocent, ["b"]);
    assert_eq!(ladder.evictions(), (1, 1));
    assert_eq!(
        ladder.climb(&still(0, "a", at), ELSEWHERE, at + MINUTE * 9),
        None
    );
    assert_eq!(ladder.avoided().len(), 1, "until a person lets it back");
}

/// SEMANTICS 180.
#[test]
fn a_node_is_avoided_until_a_person_trusts_it() {
    let before = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
    let trusts = |node: &str| LadderPolicy {
        trusted: BTreeSet::from([node.to_owned()]),
        ..LadderPolicy::default()
    };
    let mut ladder = Ladder::new(trusts("b"));
    ladder.avoid(&before);
    assert_eq!(ladder.avoided(), &BTreeSet::from(["c".to_owned()]));
    for nth in 1..=3_u32 {
        let rung = ladder.climb(&still(0, "b", MINUTE * nth), ELSEWHERE, MINUTE * (nth + 1));
        assert_eq!(rung.unwrap().action, Action::EndProcess);
        ladder.went_on();
    }
}

/// SEMANTICS 177.
#[test]
fn where_there_is_no_other_node_a_rank_is_made_again_in_its_place() {
    let mut ladder = Ladder::new(LadderPolicy::default());
    for nth in 1..=10_u32 {
        let at = MINUTE * nth;
        let rung = ladder.climb(&found(RankFault::Crashed, 0, "a", at), NO_ROOM, at);
        assert_eq!(rung.unwrap().action, Action::EndProcess);
        ladder.went_on();
    }
    let at = MINUTE * 11;
    let crash = found(RankFault::Crashed, 0, "a", at);
    let rung = ladder.clone().climb(&crash, NO_ROOM, at).unwrap();
    assert_eq!(rung.action, Action::StopForPerson);
    let later = ladder.climb(&crash, NO_ROOM, MINUTE * 72).unwrap();
    assert_eq!(later.action, Action::EndProcess, "the first are forgotten");
}

/// SEMANTICS 177.
#[test]
fn losses_for_which_no_rank_is_to_blame_count_too() {
    let mut ladder = Ladder::new(LadderPolicy {
        restarts: 2,
        ..LadderPolicy::default()
    });
    let lost = |at| RankFinding {
        who: vec![],
        cause: RankCause {
            fault: RankFault::Crashed,
            what: "node b is gone".to_owned(),
        },
        since: at,
    };
    let mut climb = |nth: u32| {
        let rung = ladder.climb(&lost(MINUTE * nth), ELSEWHERE, MINUTE * nth);
        ladder.went_on();
        rung.map(|rung| (rung.action, rung.why))
    };
    let why = "no rank is to blame: node b is gone; all begin again (restart 1 of 2 within 60 min)";
    assert_eq!(climb(1), Some((Action::EndProcess, why.to_owned())));
    assert_eq!(climb(2).unwrap().0, Action::EndProcess);
    let (action, why) = climb(3).unwrap();
    assert_eq!(action, Action::StopForPerson);
    assert!(why.contains("begun again 2 times"), "{why}");
}

/// SEMANTICS 185.
#[test]
fn a_node_that_ranks_cannot_do_without_is_let_back_and_not_left_again() {
    let mut ladder = Ladder::new(LadderPolicy::default());
    ladder.avoid(&BTreeSet::from(["c".to_owned()]));
    let climb = |nth: u32, ladder: &mut Ladder| {
        let at = MINUTE * nth;
        let rung = ladder.climb(&found(RankFault::Crashed, 0, "a", at), ELSEWHERE, at);
        ladder.went_on();
        rung.unwrap().action
    };
    assert_eq!(climb(1, &mut ladder), Action::EndProcess);
    assert_eq!(climb(2, &mut ladder), Action::EvictNode);
    assert_eq!(ladder.let_back(), ["a"], "the last that was left");
    assert_eq!(ladder.avoided(), &BTreeSet::from(["c".to_owned()]));
    assert_eq!(climb(3, &mut ladder), Action::EndProcess);
    assert_eq!(ladder.let_back(), ["c"]);
    assert_eq!(ladder.let_back(), Vec::<String>::new());
}

/// SEMANTICS 177.
#[test]
fn what_people_decide_is_told_once_for_each_time() {
    let mut ladder = Ladder::new(LadderPolicy::default());
    let slow = found(RankFault::Slow, 1, "a", MINUTE);
    assert_eq!(ladder.climb(&slow, ELSEWHERE, MINUTE), None);
    let rung = ladder.climb(&slow, ELSEWHERE, MINUTE * 2).unwrap();
    assert_eq!(rung.action, Action::Tell);
    assert_eq!(ladder.climb(&slow, ELSEWHERE, MINUTE * 3), None);
    let again = found(RankFault::Slow, 1, "a", MINUTE * 9);
    assert!(ladder.climb(&again, ELSEWHERE, MINUTE * 10).is_some());
    let mut acts = LadderPolicy::default();
    acts.acts.insert(RankFault::Slow);
    let rung = Ladder::new(acts)
        .climb(&slow, ELSEWHERE, MINUTE * 2)
        .unwrap();
    assert_eq!(rung.action, Action::EndProcess);
}

/// Something that happens in a job, so many seconds after what was before.
#[derive(Clone, Debug)]
enum Happens {
    Found(RankFault, u32, usize, bool),
    WentOn,
}

fn happens() -> impl Strategy<Value = (u64, Happens)> {
    let fault = prop_oneof![
        Just(RankFault::Still),
        Just(RankFault::Slow),
        Just(RankFault::NotFinite),
        Just(RankFault::Crashed),
    ];
    let found = (fault, 0..3_u32, 0..3_usize, any::<bool>())
        .prop_map(|(fault, rank, node, elsewhere)| Happens::Found(fault, rank, node, elsewhere));
    let what = prop_oneof![3 => found, 2 => Just(Happens::WentOn)];
    (0..600_u64, what)
}

proptest! {
    /// SEMANTICS 177. The window has never more restarts than the budget; nothing is done while an action is under way;
    /// the only rung behind the budget is the person's, and that is the last; each rank is made again in its place before
    /// its node is avoided; nothing is avoided without a word, and no more nodes are innocent than were avoided.
    #[test]
    fn the_ladder_keeps_its_budget(
        steps in proptest::collection::vec(happens(), 0..120),
        restarts in 1..6_u32,
        in_place in 1..3_u32,
    ) {
        let policy = LadderPolicy { restarts, in_place, ..LadderPolicy::default() };
        let mut ladder = Ladder::new(policy.clone());
        let (mut now, mut under_way, mut stopped) = (Duration::from_secs(1_000), false, false);
        let mut done: Vec<(Duration, u32, String, Action)> = vec![];
        let mut avoided = BTreeSet::new();
        for (after, what) in steps {
            now += Duration::from_secs(after);
            let Happens::Found(fault, rank, node, elsewhere) = what else {
                ladder.went_on();
                under_way = false;
                continue;
            };
            let node = ["a", "b", "c"][node];
            let finding = found(fault, rank, node, now - policy.patience);
            let Some(rung) = ladder.climb(&finding, Surroundings { elsewhere, nodes: None }, now) else {
                let is_told = matches!(fault, RankFault::Slow | RankFault::NotFinite);
                prop_assert!(under_way || stopped || is_told);
                continue;
            };
            prop_assert!(!under_way && !stopped);
            let recent = |it: &&(Duration, u32, String, Action)| now - it.0 <= policy.window;
            let count = done.iter().filter(recent).count();
            let here = done.iter().filter(recent).filter(|it| it.1 == rank && it.2 == node).count();
            match rung.action {
                Action::Tell => {
                    prop_assert!(!policy.acts.contains(&fault));
                    continue;
                }
                Action::StopForPerson => {
                    prop_assert_eq!(count, restarts as usize);
                    stopped = true;
                    continue;
                }
                Action::EndProcess => prop_assert!(!elsewhere || here < in_place as usize),
                Action::EvictNode => {
                    prop_assert!(elsewhere && here >= in_place as usize);
                    prop_assert_eq!(&rung.evicted, &[node.to_owned()]);
                    avoided.insert(node.to_owned());
                }
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert!(policy.acts.contains(&fault) && count < restarts as usize);
            done.push((now, rank, node.to_owned(), rung.action));
            under_way = true;
        }
        prop_assert_eq!(ladder.avoided(), &avoided);
        let (evictions, innocent) = ladder.evictions();
        prop_assert!(innocent <= evictions);
    }
}
