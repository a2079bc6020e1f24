//! The trigger of flows over jobs of 16 to 10,000 ranks, which takes as long for all; and the search for a cause, which does not.

#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]

use std::collections::VecDeque;
use std::time::Duration;

use divan::Bencher;
use odeon_collective::{
    Algorithm, CallState, CollectiveCall, ElementType, FlowLabel, FlowPlace, FlowProgress,
    Operation,
};
use odeon_diagnosis::Detector;
use odeon_diagnosis::flows::{
    FlowJob, FlowMember, FlowTrigger, FlowWatch, GroupLook, RankLook, RankWindow,
};

const RANKS: [usize; 4] = [16, 128, 1_024, 10_000];
const CALM: u64 = 12;

fn main() {
    divan::main();
}

/// A rank of a job that calls with all others; from a second on all wait for the last, which is stopped.
fn look(rank: usize, world: usize, second: u64) -> RankLook {
    let member = FlowMember {
        home: 1,
        serial: rank as u64,
    };
    let waits = second.saturating_sub(CALM);
    let is_stopped = rank + 1 == world && waits > 0;
    let is_waiting = waits > 0 && !is_stopped;
    let launched = 20 * second.min(CALM) + u64::from(is_waiting);
    let call = CollectiveCall {
        operation: Operation::Barrier,
        element: ElementType::F32,
        reduce: None,
        algorithm: Algorithm::Ring,
        peer: 0,
        count: 0,
        layout: 0,
    };
    let around = |step: usize| Some(((rank + step) % world) as u32);
    RankLook {
        member,
        silent: Duration::from_secs(if is_stopped { waits } else { 0 }),
        beats: if is_stopped { 0 } else { 10 },
        starved: Duration::ZERO,
        lost: 0,
        groups: vec![GroupLook {
            place: FlowPlace {
                member,
                group: 1,
                label: FlowLabel::new("dp"),
                rank: rank as u32,
                world: world as u32,
            },
            launched,
            completed: if waits > 0 { 0 } else { 20 },
            state: if is_waiting {
                CallState::UnderWay
            } else {
                CallState::Completed
            },
            sequence: launched,
            progress: FlowProgress {
                to: around(1),
                from: around(world - 1),
                produced: 9,
                sent: 9,
                taken: 9,
            },
            age: Duration::from_secs(waits.max(1)),
            stages: [0, 0, 0, if is_waiting { 10 } else { 0 }],
            calls: VecDeque::from([(launched, call)]),
        }],
    }
}

/// Windows of all ranks, and the last second that they hold.
fn ranks(world: usize, seconds: u64) -> (Vec<RankWindow>, Duration) {
    let all = (0..world).map(|rank| {
        let first = look(rank, world, 0);
        let mut window = RankWindow::new(first.member, Duration::ZERO);
        for second in 1..=seconds {
            window.push(Duration::from_secs(second), look(rank, world, second));
        }
        window
    });
    (all.collect(), Duration::from_secs(seconds))
}

#[divan::bench(args = RANKS)]
fn trigger(bencher: Bencher<'_, '_>, world: usize) {
    let (ranks, at) = ranks(world, CALM);
    let mut trigger = FlowTrigger::default();
    trigger.observe(&ranks, at);
    bencher.bench_local(|| assert_eq!(trigger.observe(&ranks, at), None));
}

#[divan::bench(args = RANKS, sample_count = 5, sample_size = 1)]
fn cause(bencher: Bencher<'_, '_>, world: usize) {
    let mut watch = FlowWatch::default();
    for second in (2..=CALM).step_by(2) {
        let (ranks, at) = ranks(world, second);
        watch.observe(&FlowJob { ranks: &ranks }, at);
    }
    let (ranks, at) = ranks(world, CALM + 8);
    watch.observe(&FlowJob { ranks: &ranks }, at);
    bencher.bench_local(|| {
        let found = watch.observe(&FlowJob { ranks: &ranks }, at);
        assert_eq!(found.len(), 1);
    });
}
