//! Ranks that stand still, crawl or print NaN, and healthy ones.

use proptest::prelude::{prop, prop_assert, prop_assert_eq};
use proptest::proptest;

use super::*;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn did(cpu_ms: u64, lines: u64) -> Option<RankLook> {
    Some(RankLook {
        pid: 7,
        cpu_ms,
        lines,
        ..RankLook::default()
    })
}

fn still(rank: usize, since: u64, lasts: u64, others: Others) -> Finding<Ranks> {
    Finding {
        who: vec![rank],
        cause: RankTrouble::Still {
            lasts: at(lasts),
            others,
        },
        since: at(since),
    }
}

/// SEMANTICS 128.
#[test]
fn the_rank_that_stands_still_is_found_and_no_other() {
    let begin = || StillRanks::new(3, at(20), at(0)).always_names();
    let mut gang = begin();
    // Rank 0 works, rank 1 prints, rank 2 uses a hundredth of a processor at most.
    let looks: Vec<_> = (1..=6)
        .map(|n| gang.observe(&[did(n * 1000, 0), did(0, n), did(n * 50, 0)], at(n * 5)))
        .collect();
    assert!(looks[..4].iter().all(Vec::is_empty), "{looks:?}");
    assert_eq!(looks[4], [still(2, 5, 20, Others::Work)]);
    assert_eq!(looks[5], [still(2, 5, 25, Others::Work)]);
    // It prints again, and is no news any more.
    let moves = [did(9000, 0), did(0, 9), did(300, 1)];
    assert_eq!(gang.observe(&moves, at(35)), []);
    // Where the others wait for it, it is the one that has stopped first.
    let mut gang = begin();
    let step = |n: u64| [did(n.min(2) * 1000, 0), did(n.min(2) * 1000, 0), did(0, 0)];
    let looks: Vec<_> = (1..=7).map(|n| gang.observe(&step(n), at(n * 5))).collect();
    assert_eq!(looks[3], []);
    assert_eq!(looks[4], [still(2, 5, 20, Others::Work)]);
    assert_eq!(looks[6], [still(2, 5, 30, Others::StoppedLater)]);
    // Whoever does not answer, has ended, or has a process less is not still.
    let mut gang = begin();
    for n in 1..=40 {
        let ends = did(if n % 3 == 0 { 0 } else { 500 }, 0);
        let away = did(0, 0).filter(|_| n % 3 > 0);
        assert_eq!(gang.observe(&[away, None, ends], at(n * 5)), []);
    }
}

/// Ranks in a second, in which each takes four samples of which so many wait.
fn second(n: u64, waiting: &[u64], moves: bool) -> Vec<Option<RankLook>> {
    let rank = |waiting: &u64| {
        Some(RankLook {
            pid: 7,
            cpu_ms: if moves { n * 500 } else { 0 },
            lines: if moves { n } else { 0 },
            samples: n * 4,
            waiting: n * waiting,
            ..RankLook::default()
        })
    };
    waiting.iter().map(rank).collect()
}

/// The findings of a minute of such looks.
fn minute(ranks: usize, mut look: impl FnMut(u64) -> Vec<Option<RankLook>>) -> Vec<Finding<Ranks>> {
    let mut detectors = RankDetectors::new(ranks, at(20), at(0));
    let looks = (1..=60).flat_map(|n| detectors.observe(&look(n), at(n)));
    looks.collect()
}

/// SEMANTICS 159.
#[test]
fn one_that_sleeps_while_all_others_wait_is_named_in_twenty_seconds() {
    let found = minute(4, |n| second(n, &[4, 4, 0, 4], false));
    assert_eq!(found[0], still(2, 1, 20, Others::Wait));
    assert!(found.iter().all(|it| it.who == [2]));
    // Who works while the others wait may evaluate for all of them.
    let mut evaluates = |n| {
        let mut looks = second(n, &[0, 4, 4, 4], false);
        looks[0].as_mut().unwrap().cpu_ms = n * 900;
        looks
    };
    assert_eq!(minute(4, &mut evaluates), []);
    assert_eq!(minute(2, |n| evaluates(n)[..2].to_vec()), []);
}

/// SEMANTICS 160.
#[test]
fn one_that_is_ready_long_before_the_others_is_not_named_when_these_are_quiet_too() {
    let mut start = |n: u64| {
        let mut looks = second(1, &[0; 4], false);
        for (rank, look) in looks.iter_mut().enumerate() {
            let look = look.as_mut().unwrap();
            (look.samples, look.cpu_ms) = (n * 4, n.min(1 + 6 * rank as u64) * 500);
        }
        looks
    };
    assert_eq!(minute(4, &mut start), []);
    // Nor when one is there only after a while, or answers but now and then.
    for comes in [|n| n > 30, |n| n % 7 == 0 || n % 7 == 1] {
        let found = minute(4, |n| {
            let mut looks = start(n);
            looks[3] = did(n.min(35) * 500, 0).filter(|_| comes(n));
            looks
        });
        assert_eq!(found, []);
    }
    // Nor when all begin to work between the look at it and the looks at the others.
    let found = minute(4, |n| {
        let mut looks = start(n);
        for (rank, look) in looks.iter_mut().enumerate() {
            look.as_mut().unwrap().cpu_ms += n.saturating_sub(45 + u64::from(rank == 0)) * 500;
        }
        looks
    });
    assert_eq!(found, []);
    // The others work on.
    let mut hung = |n: u64| {
        let mut looks = start(n);
        for look in looks[1..].iter_mut().flatten() {
            look.cpu_ms = n * 500;
        }
        looks
    };
    let found = minute(4, &mut hung);
    assert!(!found.is_empty() && found.iter().all(|it| it.who == [0]));
}

/// SEMANTICS 159.
#[test]
fn one_that_is_slow_is_named_by_its_steps_or_since_all_others_wait() {
    let slow = |found: Vec<Finding<Ranks>>| {
        assert!(!found.is_empty());
        assert!(found.iter().all(|it| it.who == [1]), "{found:?}");
        found[0].clone()
    };
    let first = slow(minute(4, |n| {
        let mut looks = second(n, &[3, 3, 3, 3], true);
        for (rank, look) in looks.iter_mut().enumerate() {
            look.as_mut().unwrap().step = Some(if rank == 1 { n } else { n * 5 });
        }
        looks
    }));
    assert_eq!(first.since, at(1));
    let said = first.cause.to_string();
    assert!(said.contains("5.0 times as long"), "{said}");
    let first = slow(minute(4, |n| second(n, &[3, 0, 3, 3], true)));
    let said = first.cause.to_string();
    assert!(
        said.contains("the others wait for 75 % of the time"),
        "{said}"
    );
    slow(minute(4, |n| {
        let mut looks = second(n, &[0, 0, 0, 0], true);
        let one = looks[1].as_mut().unwrap();
        (one.lines, one.cpu_ms) = (n / 5, n * 100);
        looks
    }));
    // Less to say is no fewer steps, and two ranks are too few to tell which is odd.
    assert_eq!(
        minute(4, |n| {
            let mut looks = second(n, &[0, 0, 0, 0], true);
            looks[1].as_mut().unwrap().lines = n / 5;
            looks
        }),
        []
    );
    assert_eq!(minute(2, |n| second(n, &[0, 3], true)), []);
}

/// SEMANTICS 159.
#[test]
fn the_first_that_prints_a_loss_that_is_no_number_is_named() {
    let found = minute(4, |n| {
        let mut looks = second(n, &[1, 1, 1, 1], true);
        for rank in [0, 2, 3] {
            let number = OddNumber {
                name: "loss".to_owned(),
                step: Some(9),
                at_us: if rank == 2 { 5 } else { 7 },
            };
            looks[rank].as_mut().unwrap().odd_number = (10..20).contains(&n).then_some(number);
        }
        looks
    });
    assert_eq!(found.len(), 10, "{found:?}");
    assert!(found.iter().all(|it| it.who == [2]));
    let said = found[0].cause.to_string();
    assert_eq!(
        said,
        "printed a loss that is no number, first in step 9, and 2 other ranks have since"
    );
}

proptest! {
    /// SEMANTICS 160.
    #[test]
    fn nobody_of_a_healthy_gang_is_named(
        ranks in 1usize..9,
        base in 0u64..4,
        noise in prop::collection::vec(prop::collection::vec(0u64..2, 9), 60),
        pause in (0u64..60, 0u64..60),
        prints in 0usize..9,
        begins in 1u64..40,
        evaluates in (0u64..60, 0u64..60),
    ) {
        // All make steps at about the same pace, and wait about as much; some print, or all. They wait at their start,
        // are quiet together for a while, and wait for the first of them for another.
        let mut looks = vec![RankLook { pid: 7, ..RankLook::default() }; ranks];
        let mut step = 0;
        let found = minute(ranks, |n| {
            let waits = (evaluates.0..evaluates.0 + evaluates.1).contains(&n);
            let works = n >= begins && !waits && !(pause.0..pause.0 + pause.1).contains(&n);
            if works {
                step += 1;
            }
            for (rank, look) in looks.iter_mut().enumerate() {
                let odd = noise[n as usize - 1][rank];
                look.samples += 4;
                let is_alone = waits && rank == 0;
                look.waiting += match (works, is_alone) {
                    (true, _) => base.min(3) + odd,
                    (false, alone) => if alone { 0 } else { 4 },
                };
                look.cpu_ms += if is_alone { 900 } else { 0 };
                if works {
                    look.cpu_ms += 300 + 200 * odd;
                    if rank <= prints {
                        look.lines += 1;
                        look.step = Some(step * 2 - odd.min(step));
                    }
                }
            }
            looks.iter().cloned().map(Some).collect()
        });
        prop_assert!(found.is_empty(), "{:?}", found);
    }

    /// SEMANTICS 159.
    #[test]
    fn a_rank_that_is_slow_is_named_whatever_its_number_and_its_factor(
        ranks in 3usize..9,
        rank in 0usize..9,
        times in 3u64..9,
    ) {
        let rank = rank % ranks;
        let found = minute(ranks, |n| {
            let mut looks = second(n, &vec![1; ranks], true);
            for (own, look) in looks.iter_mut().enumerate() {
                look.as_mut().unwrap().step = Some(if own == rank { n } else { n * times });
            }
            looks
        });
        prop_assert!(!found.is_empty());
        for it in found {
            prop_assert_eq!(it.who, [rank]);
        }
    }
}
