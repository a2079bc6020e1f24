//! The time of a broadcast by members that do what they do, against the formula.

use super::super::chunks::{ChunkBounds, Chunking, Pace, chunking, even_s, expected_s};
use super::super::*;
use super::world::{Links, World};

/// A picosecond stands for a microsecond, and a byte for a million: 144 GB at 100 GB/s take 1.44 s,
/// and a chunk 40 us to begin.
const STARTUP_PS: u64 = 40;
const PER_BYTE_PS: u64 = 10;
const BYTES: u64 = 144_000;

const PACE: Pace = Pace {
    startup_s: STARTUP_PS as f64 * 1e-12,
    seconds_per_byte: PER_BYTE_PS as f64 * 1e-12,
};

/// Picoseconds until the last of `members`, with the trainer, has all.
fn broadcast(members: u64, bytes: u64, chunk_bytes: u64) -> u64 {
    let links = Links {
        startup: STARTUP_PS,
        per_byte: PER_BYTE_PS,
        jitter: 0,
        lost: 0,
        damaged: 0,
        patience: None,
    };
    let mut world = World::new(0, links, Forms::Full);
    for relay in 1..members {
        world.begin(Peer::Relay(relay), None);
        let rewiring = world.chain.join(relay).unwrap();
        world.tell(rewiring);
    }
    while world.step() {}
    assert_eq!(world.now, 0);
    let content: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    world.publish(Manifest::of(1, &content, chunk_bytes).unwrap(), content);
    while world.step() {}
    let last = &world.nodes[&Peer::Relay(members - 1)];
    last.complete_at[&1]
}

fn ps(seconds: f64) -> u64 {
    (seconds * 1e12).round() as u64
}

#[test]
fn a_broadcast_takes_what_the_formula_says() {
    for members in [2, 3, 4, 7, 16, 50] {
        for count in [1, 2, 5, 16, 48, 144] {
            let chunk_bytes = BYTES / count;
            let took = broadcast(members, BYTES, chunk_bytes);
            assert_eq!(
                took,
                ps(even_s(members, BYTES, count, &PACE)),
                "{members} {count}"
            );
        }
        // The last chunk is shorter.
        for chunk_bytes in [7_000, 100_000, 143_999] {
            let took = broadcast(members, BYTES, chunk_bytes);
            assert_eq!(took, ps(expected_s(members, BYTES, chunk_bytes, &PACE)));
        }
    }
}

#[test]
fn a_broadcast_with_the_best_chunks_is_flat_in_the_relays() {
    let bounds = ChunkBounds {
        bytes_min: 1,
        bytes_max: u64::MAX,
    };
    let took = |members| {
        let Chunking {
            chunk_bytes,
            expected_s,
            ..
        } = chunking(members, BYTES, &PACE, &bounds).unwrap();
        let took = broadcast(members, BYTES, chunk_bytes);
        assert_eq!(took, ps(expected_s), "{members}");
        took as f64
    };
    let four = took(4);
    for (members, share) in [(32, 1.05), (128, 1.12), (512, 1.26)] {
        let longer = took(members) / four;
        assert!(longer < share, "{longer} times as long with {members}");
    }
}
