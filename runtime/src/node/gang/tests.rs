//! Tests of what comes over the links for a rank: in order and out of it, twice, damaged, too much,
//! after the end, and from whom it should not come.

use odeon_collective::Topology;
use proptest::prelude::*;

use super::*;
use crate::system::System;

const OTHER: ProcessId = ProcessId(7);

/// Rank 0, whose rank 1 is in process [`OTHER`] on another node.
fn rank() -> (Far, Gang) {
    let memory = memory(1).unwrap();
    let membership = Membership {
        rank: 0,
        generation: 1,
        gang: 5,
        topology: Topology::new(vec![0, 1]),
    };
    let near = Member::join(&memory.name(), membership).unwrap();
    let peer = Peer {
        process: OTHER,
        transfer: 9,
        way: Mutex::default(),
    };
    let shared = Arc::new(Shared {
        id: RankId { gang: 5, rank: 0 },
        bell: near.bell(),
        peers: vec![None, Some(peer)],
        told: Mutex::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let engine = runtime.block_on(async {
        let system = System::local().await.unwrap();
        let engine = Arc::clone(system.engine());
        system.shutdown().await;
        engine
    });
    (Far { engine, shared }, memory)
}

fn chunk(index: u64, bytes: &[u8]) -> Chunk {
    Chunk {
        transfer: 9,
        to: ProcessId(1),
        index,
        checksum: crc32fast::hash(bytes),
        bytes: Bytes::copy_from_slice(bytes),
    }
}

/// All that can be read now, and what it is over with.
fn read(far: &Far) -> (Vec<u8>, Option<String>) {
    let mut all = vec![];
    loop {
        let mut some = [0; 7];
        match far.receive_some(1, &mut some) {
            Ok(0) => return (all, None),
            Ok(n) => all.extend(&some[..n]),
            Err(Trouble::Found(fault)) => return (all, Some(fault.to_string())),
            Err(Trouble::Told(report)) => return (all, Some(format!("told: {}", report.fault))),
        }
    }
}

fn opened(far: &Far) {
    let peer = far.shared.peers[1].as_ref().unwrap();
    let mut way = peer.way.lock();
    (way.opened, way.theirs, way.room) = (true, Some(3), WINDOW_BYTES);
}

proptest! {
    /// Whatever way each chunk took, the bytes come out in order, and the end after them.
    #[test]
    fn chunks_are_read_in_their_order(
        sizes in prop::collection::vec(1_usize..300, 1..12),
        turns in prop::collection::vec(any::<prop::sample::Index>(), 12),
    ) {
        let (far, _memory) = rank();
        opened(&far);
        let mut sent: Vec<u8> = vec![];
        let mut chunks: Vec<Chunk> = vec![];
        for (at, size) in sizes.iter().enumerate() {
            let bytes = vec![at as u8; *size];
            sent.extend(&bytes);
            chunks.push(chunk(at as u64, &bytes));
        }
        chunks.push(chunk(sizes.len() as u64, &[]));
        let mut got = vec![];
        let mut why = None;
        for turn in turns {
            if !chunks.is_empty() {
                let next = chunks.remove(turn.index(chunks.len()));
                far.shared.arrive(1, &next);
            }
            let (some, over) = read(&far);
            got.extend(some);
            why = over.or(why);
        }
        for rest in chunks {
            far.shared.arrive(1, &rest);
        }
        let (some, over) = read(&far);
        got.extend(some);
        prop_assert_eq!(got, sent);
        prop_assert!(over.or(why).unwrap().contains("rank 1 is lost"));
    }
}

#[test]
fn what_no_rank_sends_is_garbled_and_says_whose_it_was() {
    let damaged = Chunk {
        checksum: 1,
        ..chunk(0, b"abc")
    };
    let large = vec![0; WINDOW_BYTES];
    let cases: [(&[Chunk], &str); 3] = [
        (&[damaged], "damaged on its way"),
        (&[chunk(0, b"a"), chunk(0, b"a")], "came twice"),
        (
            &[chunk(0, b"a"), chunk(1, &large)],
            "than there is room for",
        ),
    ];
    for (chunks, expect) in cases {
        let (far, _memory) = rank();
        opened(&far);
        for chunk in chunks {
            far.shared.arrive(1, chunk);
        }
        let why = read(&far).1.unwrap();
        assert!(why.contains("rank 1") && why.contains(expect), "{why}");
    }
}

#[test]
fn only_the_process_of_a_rank_speaks_for_it() {
    let (far, _memory) = rank();
    opened(&far);
    let to = far.shared.id;
    let say = |sender, news| far.shared.hear(&far.engine, sender, news);
    for (sender, from) in [(ProcessId(8), 1), (OTHER, 0), (OTHER, 2), (OTHER, u32::MAX)] {
        say(sender, GangNews::Left { to, from });
    }
    assert_eq!(read(&far), (vec![], None));
    say(OTHER, GangNews::Left { to, from: 1 });
    assert!(read(&far).1.unwrap().contains("given up"));
}

#[test]
fn a_report_that_names_ranks_that_are_none_is_not_believed() {
    let (far, _memory) = rank();
    opened(&far);
    let report = |ranks: Vec<usize>| {
        let call = odeon_collective::CollectiveCall {
            operation: odeon_collective::Operation::Barrier,
            element: odeon_collective::ElementType::F32,
            reduce: None,
            algorithm: odeon_collective::Algorithm::Ring,
            peer: 0,
            count: 0,
            layout: 0,
        };
        let waited = std::time::Duration::from_secs(1);
        let report = Report {
            by: 1,
            sequence: 1,
            call,
            fault: Fault::Missing { ranks, waited },
        };
        GangNews::Report {
            to: far.shared.id,
            from: 1,
            report: report.encode(),
        }
    };
    far.shared.hear(&far.engine, OTHER, report(vec![0, 2]));
    assert_eq!(read(&far), (vec![], None));
    far.shared.hear(&far.engine, OTHER, report(vec![1]));
    assert!(read(&far).1.unwrap().contains("rank 1 did not come"));
}

#[test]
fn room_without_a_number_to_send_under_is_nothing_to_wake_for() {
    let (far, _memory) = rank();
    let room = GangNews::Room {
        to: far.shared.id,
        from: 1,
        bytes: 100,
    };
    far.shared.hear(&far.engine, OTHER, room);
    assert_eq!(far.ready(&[1], &[]), Ok(false));
    opened(&far);
    assert_eq!(far.ready(&[1], &[]), Ok(true));
    // No link leads there, but the room is used up all the same.
    let mut sent = 0;
    while let Ok(some @ 1..) = far.send_some(1, &[0; CHUNK_BYTES]) {
        sent += some;
    }
    assert_eq!(sent, WINDOW_BYTES);
    assert_eq!(far.ready(&[1], &[]), Ok(false));
}

#[test]
fn a_lost_process_and_a_rank_that_leaves_are_told_apart() {
    let (far, _memory) = rank();
    opened(&far);
    far.shared
        .process_down(&ProcessExit::new(ProcessId(8), "signal 9"));
    assert_eq!(read(&far), (vec![], None));
    far.shared
        .process_down(&ProcessExit::new(OTHER, "signal 9"));
    let why = read(&far).1.unwrap();
    assert!(
        why.contains("rank 1 is lost: its process: signal 9"),
        "{why}"
    );
}

#[test]
fn a_rank_that_is_gone_leaves_nothing_behind_and_is_remembered() {
    let (far, _memory) = rank();
    let (engine, id) = (Arc::clone(&far.engine), far.shared.id);
    let gangs = engine.gangs();
    gangs.ends.lock().insert(id, Arc::downgrade(&far.shared));
    let row = (Arc::downgrade(&far.shared), 1);
    gangs.transfers.lock().insert(9, row);
    assert!(gangs.take_chunk(&chunk(0, b"a")));
    drop(far);
    assert!(gangs.ends.lock().is_empty() && gangs.transfers.lock().is_empty());
    assert!(
        !gangs.take_chunk(&chunk(1, b"a")),
        "it is a blob's, or nobody's"
    );
    assert!(gangs.left.lock().contains(&id));

    let home = ProcessId(11);
    gangs.keep(1, home, 2).unwrap();
    gangs.keep(2, ProcessId(12), 2).unwrap();
    gangs.process_down(&engine, &ProcessExit::new(home, "signal 9"));
    assert_eq!(gangs.kept.lock().len(), 1);
    gangs.forget(2);
    assert!(gangs.kept.lock().is_empty());
}
