//! Records as a reader finds them.

use odeon_collective::{Collective, Communicator, Reduce, Topology, queue};

use super::*;

fn place(rank: u32, world: u32) -> FlowPlace {
    FlowPlace {
        member: FlowMember {
            home: 7,
            serial: u64::from(rank),
        },
        group: 5,
        label: FlowLabel::new("dp"),
        rank,
        world,
    }
}

fn call(count: u64) -> CollectiveCall {
    CollectiveCall {
        operation: Operation::AllReduce,
        element: ElementType::F32,
        reduce: Some(Reduce::Sum),
        algorithm: Algorithm::Ring,
        peer: 0,
        count,
        layout: 0,
    }
}

/// SEMANTICS 165.
#[test]
fn calls_are_recorded_at_their_end_and_while_they_are_under_way() {
    let log = FlowLog::create().unwrap();
    let mut reader = FlowReader::open(&log.name()).unwrap();
    let mut writer = log.writer(place(1, 4)).unwrap();
    let last = reader.read().last;
    assert_eq!((last[0].launched, last[0].record.sequence), (0, 0));
    writer.begin(1, &call(3), 12);
    writer.end(true);
    writer.begin(2, &call(9), 36);
    let progress = FlowProgress {
        to: Some(2),
        from: Some(0),
        produced: 36,
        sent: 20,
        taken: 8,
    };
    writer.advance(&progress);
    // As the beat does in its time.
    log.words.beat();
    let seen = reader.read();
    let [first, .., second] = &seen.records[..] else {
        panic!("{seen:?}");
    };
    assert_eq!((first.sequence, first.state), (1, CallState::Completed));
    assert!(first.began <= first.at && second.began <= second.at);
    assert_eq!(
        (second.sequence, second.state, second.call, second.bytes),
        (2, CallState::UnderWay, call(9), 36)
    );
    assert_eq!((second.progress, second.place), (progress, place(1, 4)));
    let [last] = &seen.last[..] else {
        panic!("{seen:?}");
    };
    assert_eq!((last.launched, last.completed), (2, 1));
    assert_eq!((last.record.progress, seen.lost), (progress, 0));
    writer.end(false);
    let seen = reader.read();
    assert_eq!(seen.records.last().unwrap().state, CallState::Failed);
    drop(writer);
    assert_eq!(reader.read().last, [], "its communicator is gone");
}

/// SEMANTICS 165.
#[test]
fn records_that_nobody_read_in_time_are_counted() {
    let log = FlowLog::create().unwrap();
    let mut reader = FlowReader::open(&log.name()).unwrap();
    let mut writer = log.writer(place(0, 2)).unwrap();
    for number in 1..=RECORDS + 5 {
        writer.begin(number, &call(number), 4);
        writer.end(true);
    }
    let seen = reader.read();
    let numbers: Vec<u64> = seen.records.iter().map(|it| it.sequence).collect();
    assert!(seen.lost >= 5 && numbers.len() as u64 + seen.lost >= RECORDS + 5);
    assert_eq!(numbers.last(), Some(&(RECORDS + 5)));
    assert!(numbers.is_sorted());
    // A record that its thread is writing, a whole ring later.
    let next = log.words.word(NEXT).load(Ordering::Relaxed);
    log.words
        .record(next, STAMP)
        .store(WRITING, Ordering::Relaxed);
    writer.begin(1, &call(1), 4);
    writer.end(true);
    assert_eq!(log.words.word(DROPPED).load(Ordering::Relaxed), 1);
    assert_eq!(reader.read().records.len(), 0);
}

#[test]
fn no_more_communicators_are_recorded_than_there_are_slots() {
    let log = FlowLog::create().unwrap();
    let mut writers: Vec<_> = (0..SLOTS as u32)
        .map(|rank| log.writer(place(rank, 64)).unwrap())
        .collect();
    assert!(log.writer(place(0, 2)).is_none());
    writers.pop();
    assert!(log.writer(place(0, 2)).is_some());
}

/// SEMANTICS 165.
#[test]
fn a_collective_counts_what_it_sends_and_how_much_of_it_is_taken() {
    for windows in [None, Some(4096)] {
        let log = FlowLog::create().unwrap();
        let mut reader = FlowReader::open(&log.name()).unwrap();
        let topology = Topology::one_node(3);
        let ranks = match windows {
            None => queue::gang(&topology, 1),
            Some(bytes) => queue::gang_with_board(&topology, 1, bytes),
        };
        thread::scope(|scope| {
            for (rank, transport) in ranks.into_iter().enumerate() {
                let writer = log.writer(place(rank as u32, 3)).unwrap();
                scope.spawn(move || {
                    let mut comm = Communicator::new(transport).with_flows(writer);
                    if windows.is_none() {
                        comm = comm.with_algorithm(Algorithm::Ring);
                    }
                    let mut data = vec![1.0f32; 3000];
                    comm.all_reduce(&mut data, Reduce::Sum).unwrap();
                    comm.barrier().unwrap();
                });
            }
        });
        let seen = reader.read();
        let ended = seen.records.iter();
        let ended: Vec<_> = ended
            .filter(|it| it.state == CallState::Completed && it.sequence == 1)
            .collect();
        assert_eq!(ended.len(), 3, "{seen:?}");
        for record in ended {
            let FlowProgress {
                to,
                produced,
                sent,
                taken,
                ..
            } = record.progress;
            assert_eq!((record.bytes, produced), (12_000, sent));
            assert!(taken <= sent);
            if windows.is_some() {
                assert_eq!((to, taken), (None, sent), "rounds");
            } else {
                // Two thirds twice, with heads.
                assert_eq!(to, Some((record.place.rank + 1) % 3));
                assert!((16_000..17_000).contains(&sent), "{sent}");
            }
        }
    }
}
