//! Verdicts on who is to blame, by what the ranks say of themselves.

use std::time::Duration;

use super::log::{CallEntry, Log, RankWord, is_pair};
use odeon_collective::{Fault, Operation};

/// The fault when this rank and another one have called different things, by what each says to the
/// other.
pub(super) fn mismatch(
    ours: &RankWord,
    rank: usize,
    theirs: &RankWord,
    other: usize,
) -> Option<Fault> {
    let matched = |mine: &CallEntry| {
        let same = |entry: &&CallEntry| {
            entry.sequence == mine.sequence
                && match mine.call.operation {
                    Operation::Send => entry.call.operation == Operation::Receive,
                    Operation::Receive => entry.call.operation == Operation::Send,
                    _ => !is_pair(&entry.call),
                }
        };
        theirs.recent.iter().find(same).copied()
    };
    ours.recent.iter().find_map(|mine| {
        let other_call = matched(mine)?;
        let (mut mine, mut their) = (*mine, other_call);
        let agree = if is_pair(&mine.call) {
            (mine.call.count, mine.call.element) == (their.call.count, their.call.element)
        } else if mine.call != their.call {
            false
        } else if mine.parts.0 != their.parts.1 {
            (mine.call.count, their.call.count) = (mine.parts.0, their.parts.1);
            false
        } else {
            (mine.call.count, their.call.count) = (mine.parts.1, their.parts.0);
            mine.parts.1 == their.parts.0
        };
        (!agree).then(|| called(rank, mine, other, their))
    })
}

/// The fault when another rank's calls differ from ours, though too long ago for either to know
/// which.
pub(super) fn differs(log: &Log, rank: usize, theirs: &RankWord, other: usize) -> Option<Fault> {
    let ours = log.digest_after(theirs.begun)?;
    if ours == theirs.digest {
        return None;
    }
    let last = theirs.recent.iter().rev().find(|e| !is_pair(&e.call));
    let (mine, their) = (log.last()?, *last?);
    Some(called(rank, mine, other, their))
}

fn called(rank: usize, mine: CallEntry, other: usize, their: CallEntry) -> Fault {
    let mut calls = vec![
        (rank, mine.sequence, mine.call),
        (other, their.sequence, their.call),
    ];
    calls.sort_by_key(|(rank, ..)| *rank);
    Fault::Mismatch { calls }
}

/// Why a call of `rank` has not ended after `waited`, where others are to blame. `heard` holds what
/// each other rank says, or nothing where it did not answer.
pub(super) fn verdict(
    rank: usize,
    log: &Log,
    stuck: &CallEntry,
    heard: &[Option<RankWord>],
    waited: Duration,
) -> Option<Fault> {
    let others = || (0..heard.len()).filter(|other| *other != rank);
    let known = || others().filter_map(|other| Some((other, heard[other].as_ref()?)));
    let differing = known()
        .find_map(|(other, word)| mismatch(&log.word(other, None, false), rank, word, other));
    if differing.is_some() {
        return differing;
    }
    if is_pair(&stuck.call) {
        return of_pair(rank, log, stuck, heard, waited);
    }
    let behind = |begun: u64| known().filter(move |(_, word)| word.begun < begun);
    let gone = behind(stuck.sequence).find(|(_, word)| word.leaving);
    if let Some((other, _)) = gone {
        return Some(left(other));
    }
    let idle: Vec<usize> = others()
        .filter(|other| {
            heard[*other]
                .as_ref()
                .is_none_or(|word| word.begun < stuck.sequence && word.waiting.is_none())
        })
        .collect();
    if !idle.is_empty() {
        return Some(Fault::Missing {
            ranks: idle,
            waited,
        });
    }
    // Who is behind waits elsewhere: in a call of all, for somebody who is slow, or for one rank.
    let mut elsewhere = behind(stuck.sequence).filter_map(|(other, word)| {
        let waiting = word.waiting.filter(|entry| is_pair(&entry.call))?;
        Some((other, waiting))
    });
    elsewhere
        .next()
        .map(|(other, waiting)| called(rank, *stuck, other, waiting))
}

/// The verdict over a send or receive.
fn of_pair(
    rank: usize,
    log: &Log,
    stuck: &CallEntry,
    heard: &[Option<RankWord>],
    waited: Duration,
) -> Option<Fault> {
    let peer = stuck.call.peer as usize;
    let missing = |ranks| Some(Fault::Missing { ranks, waited });
    let Some(word) = heard.get(peer).and_then(Option::as_ref) else {
        return missing(vec![peer]);
    };
    let its = match stuck.call.operation {
        Operation::Send => word.receives,
        _ => word.sends,
    };
    match word.waiting {
        _ if its >= stuck.sequence => None,
        _ if word.leaving => Some(left(peer)),
        None => missing(vec![peer]),
        Some(waiting) if is_pair(&waiting.call) || waiting.sequence > log.begun => {
            Some(called(rank, *stuck, peer, waiting))
        }
        // It waits in a call that this rank has made: for others, who come late.
        Some(waiting) => {
            let late = |word: &RankWord| word.begun < waiting.sequence && word.waiting.is_none();
            let ranks: Vec<usize> = (0..heard.len())
                .filter(|other| *other != rank && heard[*other].as_ref().is_none_or(late))
                .collect();
            if ranks.is_empty() {
                None
            } else {
                missing(ranks)
            }
        }
    }
}

fn left(rank: usize) -> Fault {
    let why = "it has given up its membership".to_owned();
    Fault::Lost { rank, why }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "moments of what has no clock of its own"
)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::Detector;
    use crate::collective::{Stuck, StuckCalls};
    use odeon_collective::{Algorithm, CollectiveCall, ElementType};

    fn call(operation: Operation, peer: u32, count: u64) -> CollectiveCall {
        CollectiveCall {
            operation,
            element: ElementType::F32,
            reduce: None,
            algorithm: Algorithm::Direct,
            peer,
            count,
            layout: 0,
        }
    }

    const WAITED: Duration = Duration::from_secs(2);

    /// The verdict of rank 0 on each rank's calls, whether it waits in the last, and whether it
    /// leaves; a rank that is `None` does not answer.
    fn judged(ranks: &[Option<(&[CollectiveCall], bool, bool)>]) -> Option<Fault> {
        let mut ours = Log::new(ranks.len());
        let mut stuck = None;
        for call in ranks[0].unwrap().0 {
            stuck = Some(ours.add(*call, vec![]).for_rank(0));
        }
        let heard: Vec<Option<RankWord>> = ranks
            .iter()
            .map(|rank| {
                let (calls, waits, leaves) = (*rank)?;
                let mut log = Log::new(ranks.len());
                let last = calls.iter().map(|call| log.add(*call, vec![])).last();
                Some(log.word(0, last.filter(|_| waits).as_ref(), leaves))
            })
            .collect();
        let now = Instant::now();
        let call = &stuck.unwrap();
        let seen = Stuck {
            rank: 0,
            log: &ours,
            call,
            heard: &heard,
            waited: WAITED,
        };
        let found = StuckCalls.observe(&seen, now).pop()?;
        assert_eq!(found.who, found.cause.ranks());
        assert!(now.duration_since(found.since) <= WAITED);
        Some(found.cause)
    }

    fn missing(ranks: &[usize]) -> Option<Fault> {
        let ranks = ranks.to_vec();
        Some(Fault::Missing {
            ranks,
            waited: WAITED,
        })
    }

    #[test]
    fn who_has_not_called_is_missing_and_who_waits_is_not() {
        let reduce = call(Operation::AllReduce, 0, 8);
        let cast = call(Operation::Broadcast, 0, 8);
        let (one, both) = ([reduce], [reduce, cast]);
        let here: Option<(&[CollectiveCall], bool, bool)> = Some((&both, true, false));
        assert_eq!(judged(&[here, here, here]), None, "all are there");
        assert_eq!(
            judged(&[here, here, Some((&one, false, false))]),
            missing(&[2])
        );
        assert_eq!(judged(&[here, None, here]), missing(&[1]), "no answer");
        // Rank 1 waits in the call before, for rank 2.
        let before = Some((&one[..], true, false));
        assert_eq!(
            judged(&[here, before, Some((&[], false, false))]),
            missing(&[2])
        );
        assert_eq!(judged(&[here, before, here]), None, "it is slow");
        assert_eq!(
            judged(&[here, here, Some((&one, false, true))]),
            Some(left(2))
        );
    }

    #[test]
    fn who_has_called_something_else_is_said_with_what_it_was() {
        let reduce = |count| call(Operation::AllReduce, 0, count);
        let (short, long) = ([reduce(8)], [reduce(9)]);
        let here: Option<(&[CollectiveCall], bool, bool)> = Some((&short, true, false));
        let fault = judged(&[here, None, Some((&long, true, false))]);
        let calls = vec![(0, 1, reduce(8)), (2, 1, reduce(9))];
        assert_eq!(fault, Some(Fault::Mismatch { calls }));
        let receive = [call(Operation::Receive, 0, 8)];
        let fault = judged(&[here, Some((&receive, true, false)), here]);
        let calls = vec![(0, 1, reduce(8)), (1, 1, receive[0])];
        assert_eq!(fault, Some(Fault::Mismatch { calls }));
    }

    #[test]
    fn sends_wait_for_their_other_side_alone() {
        let send = [call(Operation::Send, 1, 8)];
        let reduce = [call(Operation::AllReduce, 0, 8)];
        let receive = |count| [call(Operation::Receive, 0, count)];
        let here: Option<(&[CollectiveCall], bool, bool)> = Some((&send, true, false));
        let idle: Option<(&[CollectiveCall], bool, bool)> = Some((&[], false, false));
        assert_eq!(judged(&[here, idle, idle]), missing(&[1]));
        assert_eq!(judged(&[here, None, idle]), missing(&[1]));
        assert_eq!(
            judged(&[here, Some((&receive(8), true, false)), None]),
            None
        );
        let fault = judged(&[here, Some((&receive(7), true, false)), None]).unwrap();
        assert!(matches!(fault, Fault::Mismatch { .. }), "{fault}");
        let fault = judged(&[here, Some((&reduce, true, false)), idle]).unwrap();
        assert!(matches!(fault, Fault::Mismatch { .. }), "{fault}");
        assert_eq!(
            judged(&[here, Some((&[], false, true)), idle]),
            Some(left(1))
        );
    }

    #[test]
    fn parts_of_an_all_to_all_are_compared_by_pair() {
        let all = call(Operation::AllToAll, 0, 0);
        let word = |to: usize, parts: [(u64, u64); 2]| {
            let mut log = Log::new(2);
            log.add(all, parts.to_vec());
            log.word(to, None, false)
        };
        let ours = word(1, [(1, 1), (2, 3)]);
        assert_eq!(mismatch(&ours, 0, &word(0, [(3, 2), (1, 1)]), 1), None);
        for (parts, counts) in [((3, 4), (2, 4)), ((5, 2), (3, 5))] {
            let fault = mismatch(&ours, 0, &word(0, [parts, (1, 1)]), 1);
            let of = |count| CollectiveCall { count, ..all };
            let calls = vec![(0, 1, of(counts.0)), (1, 1, of(counts.1))];
            assert_eq!(fault, Some(Fault::Mismatch { calls }));
        }
    }
}
