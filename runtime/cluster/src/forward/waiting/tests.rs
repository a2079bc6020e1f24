//! Tests of the lines that wait for the voters: their bounds, their numbers, and that nothing waits
//! for ever.

use proptest::prelude::*;

use super::*;

const TRY: Try = (JobId(1), 1);
const OTHER: Try = (JobId(2), 1);

const fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

fn printed(bytes: usize) -> Printed {
    Printed {
        at: Unix(5),
        process: "driver".to_owned(),
        stream: Stream::Out,
        text: "x".repeat(bytes),
        changes: false,
    }
}

/// Fills the queue of a try. Returns the number of lines that it took.
fn fill(waiting: &mut Waiting, of: Try, now: Timestamp) -> u64 {
    let mut lines = 0;
    while waiting.push(of, printed(16 << 10), now).is_ok() {
        lines += 1;
    }
    lines
}

/// Takes all that waits.
fn take_all(waiting: &mut Waiting, now: Timestamp) -> Vec<(JobId, LogLine)> {
    let mut all = vec![];
    loop {
        let batch = waiting.next_batch();
        if batch.is_empty() {
            return all;
        }
        all.extend(batch);
        waiting.kept(now);
    }
}

/// SEMANTICS 57.
#[test]
fn a_process_waits_while_voters_take_its_lines_and_loses_none() {
    let mut waiting = Waiting::new("a", 7);
    let mut seconds = 0;
    let mut sent = vec![];
    for _ in 0..3 {
        fill(&mut waiting, TRY, at(seconds));
        // Slow, but not too slow.
        seconds += 29;
        let (_, at_most) = waiting.push(TRY, printed(9000), at(seconds)).unwrap_err();
        assert_eq!(at_most, Duration::from_secs(1));
        sent.extend(waiting.next_batch());
        waiting.kept(at(seconds));
        waiting.push(TRY, printed(16 << 10), at(seconds)).unwrap();
    }
    sent.extend(take_all(&mut waiting, at(seconds)));
    let numbers: Vec<u64> = sent.iter().map(|(_, line)| line.number).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
}

/// SEMANTICS 57.
#[test]
fn when_no_voter_is_there_for_long_the_oldest_lines_make_room() {
    let mut waiting = Waiting::new("a", 7);
    let first = fill(&mut waiting, TRY, at(0));
    let leaving = waiting.next_batch().len() as u64;
    let more = fill(&mut waiting, TRY, at(29));
    let total = first + more;
    for _ in 0..10 {
        waiting.push(TRY, printed(16 << 10), at(30)).unwrap();
    }
    // The first of them are under way; they may have been kept.
    let waits: Vec<u64> = waiting.queues[&TRY]
        .lines
        .iter()
        .map(|line| line.number)
        .collect();
    assert_eq!(waits, (leaving + 10..total + 10).collect::<Vec<_>>());
    // One that has nothing to lose is not held up by it.
    waiting.push(OTHER, printed(1), at(30)).unwrap();
    // Those that made room, those that wait and those under way are kept by nobody so far.
    assert_eq!(waiting.unkept(TRY), total + 10);
    // A voter is there again: processes wait again.
    waiting.kept(at(31));
    assert!(waiting.push(TRY, printed(16 << 10), at(31)).is_err());
    take_all(&mut waiting, at(31));
    assert_eq!((waiting.unkept(TRY), waiting.unkept(OTHER)), (10, 0));
}

#[test]
fn who_prints_much_does_not_hold_up_who_prints_little() {
    let mut waiting = Waiting::new("a", 7);
    fill(&mut waiting, TRY, at(0));
    waiting.push(OTHER, printed(10), at(0)).unwrap();
    let batch = waiting.next_batch();
    assert!(batch.iter().any(|(job, _)| *job == OTHER.0));
    let bytes: usize = batch.iter().map(|(_, line)| line.text.len()).sum();
    assert!(bytes <= BATCH_BYTES + SHARE_BYTES, "{bytes}");
}

#[test]
fn times_of_a_source_do_not_go_back() {
    let mut waiting = Waiting::new("a", 7);
    for at_ms in [5, 9, 3, 11] {
        let line = Printed {
            at: Unix(at_ms),
            ..printed(1)
        };
        waiting.push(TRY, line, at(0)).unwrap();
    }
    let times: Vec<u64> = waiting
        .next_batch()
        .iter()
        .map(|(_, line)| line.at.0)
        .collect();
    assert_eq!(times, [5, 9, 9, 11]);
}

#[test]
fn an_end_waits_for_the_last_lines_and_not_for_ever() {
    let mut waiting = Waiting::new("a", 7);
    assert_eq!(waiting.unsettled(TRY, at(0)), None);
    waiting.open(TRY, 2, at(0));
    waiting.push(TRY, printed(1), at(0)).unwrap();
    // Lines on their way, while voters keep them.
    assert_eq!(waiting.unsettled(TRY, at(1)), Some(Duration::from_secs(4)));
    assert_eq!(waiting.unsettled(TRY, at(6)), None);
    assert_eq!(waiting.next_batch().len(), 1);
    assert!(waiting.unsettled(TRY, at(4)).is_some());
    waiting.kept(at(5));
    // Outputs that are open, while something comes.
    waiting.push(TRY, printed(1), at(8)).unwrap();
    waiting.next_batch();
    waiting.kept(at(8));
    assert_eq!(waiting.unsettled(TRY, at(8)), Some(Duration::from_secs(1)));
    assert_eq!(waiting.unsettled(TRY, at(9)), None);
    // One that never ends.
    waiting.push(TRY, printed(1), at(60)).unwrap();
    assert!(waiting.unsettled(TRY, at(60)).is_some());
    assert_eq!(waiting.unsettled(TRY, at(61)), None);
    // Nothing is left of it.
    waiting.over(TRY);
    waiting.closed(TRY);
    waiting.closed(TRY);
    assert_eq!(waiting.next_batch().len(), 1);
    assert_eq!(waiting.queues.len(), 1);
    waiting.kept(at(62));
    assert!(waiting.queues.is_empty());
}

proptest! {
    /// Whatever happens: what waits is bounded, numbers rise, none is given twice, and what is missing
    /// was dropped while no voter kept anything for `STALL_MAX`.
    #[test]
    fn what_waits_is_bounded_and_in_order(
        steps in proptest::collection::vec((0u8..4, 0usize..400, 0u64..20), 1..120),
    ) {
        let mut waiting = Waiting::new("a", 7);
        let mut now = 0;
        let mut sent: Vec<u64> = vec![];
        let mut may_drop = false;
        let mut under_way = false;
        for (what, amount, later) in steps {
            now += later;
            match what {
                0 | 1 => for _ in 0..amount {
                    let before = waiting.queues.get(&TRY).map_or(0, |it| it.lines.len());
                    if let Err((_, at_most)) = waiting.push(TRY, printed(16 << 10), at(now)) {
                        prop_assert!(at_most > Duration::ZERO && at_most <= STALL_MAX);
                        break;
                    }
                    may_drop |= waiting.queues[&TRY].lines.len() <= before;
                },
                2 if !under_way => {
                    sent.extend(waiting.next_batch().iter().map(|(_, line)| line.number));
                    under_way = true;
                }
                _ => {
                    waiting.kept(at(now));
                    under_way = false;
                }
            }
            let bytes: usize = waiting.queues.values().map(|it| it.bytes).sum();
            prop_assert!(bytes <= WAITING_BYTES_MAX);
        }
        sent.extend(take_all(&mut waiting, at(now)).iter().map(|(_, line)| line.number));
        prop_assert!(sent.windows(2).all(|pair| pair[0] < pair[1]));
        if !may_drop {
            prop_assert_eq!(&sent, &(0..sent.len() as u64).collect::<Vec<_>>());
        }
    }
}
