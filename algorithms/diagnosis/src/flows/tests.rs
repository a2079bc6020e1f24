//! Simulated jobs with one fault or none, and what is found of them.

use std::time::Duration;

use odeon_collective::CallState;
use proptest::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::simulated::{Injected, Shape, SimulatedJob};
use super::*;

const SMALL: Shape = Shape {
    tp: 2,
    pp: 2,
    dp: 4,
};

/// Watches a job for so many seconds, with a look at each and a judgement at every other: when something was first
/// found, and what.
fn watch(job: &SimulatedJob, seconds: u32) -> Option<(u32, FlowCause, Vec<FlowMember>)> {
    let mut ranks = job.ranks();
    let mut watch = FlowWatch::default();
    for second in 1..=seconds {
        let at = Duration::from_secs(second.into());
        for (rank, window) in ranks.iter_mut().enumerate() {
            window.push(at, job.look(rank, second));
        }
        if second.is_multiple_of(2) {
            let found = watch.observe(&FlowJob { ranks: &ranks }, at);
            if let Some(found) = found.into_iter().next() {
                return Some((second, found.cause, found.who));
            }
        }
    }
    None
}

/// The fault that is to be named.
fn named(fault: Injected) -> FlowFault {
    match fault {
        Injected::Nothing | Injected::Slow(_) => FlowFault::Producer,
        Injected::Starved(_) => FlowFault::Starved,
        Injected::Throttled(_) => FlowFault::Sender,
        Injected::Delayed(_) => FlowFault::Acknowledgement,
        Injected::Stopped => FlowFault::Stopped,
        Injected::Skips(_) => FlowFault::Skipped,
        Injected::Swaps => FlowFault::Order,
        Injected::Differs(_) => FlowFault::Mismatch,
    }
}

const FROM: u32 = 14;
const UNTIL: u32 = 30;

/// Plays a fault at 20 places, over messages and windows in turn, and tells how many were found, with the right rank,
/// and with the right fault.
fn places(shape: Shape, over: &[bool], fault: impl Fn(u64) -> Injected) -> (usize, usize, usize) {
    let (mut found, mut right, mut kind) = (0, 0, 0);
    for seed in 0..20 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let culprit = rng.random_range(0..shape.tp * shape.pp * shape.dp);
        let fault = fault(seed);
        let from = f64::from(FROM) + rng.random_range(-1.0..1.0);
        let windows = over[seed as usize % over.len()];
        let what = (fault, culprit, from);
        let job = SimulatedJob::run(shape, windows, what, 0.3, f64::from(UNTIL), seed);
        let Some((second, cause, who)) = watch(&job, UNTIL) else {
            continue;
        };
        assert!(
            f64::from(second) >= from,
            "{fault:?} found before it was: {cause}"
        );
        found += usize::from(f64::from(second) - from <= 15.0);
        right += usize::from(who.iter().any(|it| it.serial == culprit as u64) && who.len() <= 2);
        kind += usize::from(cause.fault == named(fault));
    }
    println!(
        "{:?}: {found} found, {right} with the rank, {kind} with the fault",
        fault(0)
    );
    (found, right, kind)
}

/// SEMANTICS 166.
#[test]
fn the_rank_that_others_wait_for_is_named_with_its_fault() {
    let both = [false, true];
    let kinds = |seed: u64| seed as usize % 3;
    let all = (20, 20, 20);
    assert_eq!(places(SMALL, &both, |_| Injected::Slow(6)), all);
    assert_eq!(places(SMALL, &both, |_| Injected::Starved(6)), all);
    assert_eq!(places(SMALL, &both, |_| Injected::Stopped), all);
    assert_eq!(
        places(SMALL, &[false], |seed| Injected::Throttled(kinds(seed))),
        all
    );
    assert_eq!(
        places(SMALL, &[false], |seed| Injected::Delayed(kinds(seed))),
        all
    );
    assert_eq!(places(SMALL, &both, |_| Injected::Swaps), all);
    assert_eq!(
        places(SMALL, &both, |seed| Injected::Differs(kinds(seed))),
        all
    );
    // A call that is left out right before one with all looks like two in the other order.
    assert_eq!(
        places(SMALL, &both, |seed| Injected::Skips(seed as usize % 2)),
        all
    );
    let last = places(SMALL, &both, |_| Injected::Skips(2));
    assert_eq!((last.0, last.1), (20, 20));
}

/// SEMANTICS 166.
#[test]
fn ranks_that_vary_have_no_findings() {
    for seed in 0..4 {
        for windows in [false, true] {
            let nothing = (Injected::Nothing, 0, 0.0);
            let job = SimulatedJob::run(SMALL, windows, nothing, 0.9, 60.0, seed);
            assert_eq!(watch(&job, 60), None);
        }
    }
}

/// SEMANTICS 167.
#[test]
fn the_trigger_reads_as_much_of_ten_thousand_ranks_as_of_sixteen() {
    let nothing = (Injected::Nothing, 0, 0.0);
    let job = SimulatedJob::run(SMALL, false, nothing, 0.1, 12.0, 1);
    let looks: Vec<Vec<RankLook>> = (1..=10)
        .map(|second| (0..16).map(|rank| job.look(rank, second)).collect())
        .collect();
    let mut reads = vec![];
    for world in [16, 1_000, 10_000] {
        let mut trigger = FlowTrigger::default();
        let mut ranks: Vec<RankWindow> = (0..world)
            .map(|serial| RankWindow::new(FlowMember { home: 1, serial }, Duration::ZERO))
            .collect();
        for (second, looks) in looks.iter().enumerate() {
            let at = Duration::from_secs(second as u64 + 1);
            for (rank, window) in ranks.iter_mut().enumerate() {
                window.push(at, looks[rank % 16].clone());
            }
            assert_eq!(trigger.observe(&ranks, at), None);
        }
        reads.push(trigger.read());
    }
    let most = SAMPLE_RANKS as u64 * 4 * looks.len() as u64;
    assert!(
        reads[0] <= most && reads.iter().all(|it| *it == reads[0]),
        "{reads:?}"
    );
}

#[test]
fn a_sentence_names_the_rank_the_group_and_the_fault() {
    let job = SimulatedJob::run(SMALL, false, (Injected::Stopped, 5, 12.0), 0.1, 24.0, 3);
    let (_, cause, who) = watch(&job, 24).unwrap();
    assert_eq!(who, [FlowMember { home: 1, serial: 5 }]);
    let said = cause.to_string();
    assert!(said.starts_with("15 of 16 ranks wait for rank "), "{said}");
    assert!(said.ends_with(": its process is stopped"), "{said}");
}

fn any_fault() -> impl Strategy<Value = Injected> {
    prop_oneof![
        (4..10_u32).prop_map(Injected::Slow),
        Just(Injected::Stopped),
        (0..3_usize).prop_map(Injected::Throttled),
        (0..3_usize).prop_map(Injected::Delayed),
        (0..3_usize).prop_map(Injected::Skips),
        Just(Injected::Swaps),
        (0..3_usize).prop_map(Injected::Differs),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In jobs of any shape nobody is blamed who only waits for the one that has the fault.
    ///
    /// SEMANTICS 166.
    #[test]
    fn victims_are_not_blamed(
        (tp, pp, dp) in (1..4_usize, 1..4_usize, 2..5_usize),
        fault in any_fault(),
        place in any::<prop::sample::Index>(),
        windows: bool,
        seed: u64,
    ) {
        let shape = Shape { tp, pp, dp };
        let culprit = place.index(tp * pp * dp);
        let job = SimulatedJob::run(shape, windows, (fault, culprit, 12.0), 0.2, 24.0, seed);
        if let Some((_, cause, who)) = watch(&job, 24) {
            // Of two alone, or where all wait for all, both are named.
            let named = who.iter().any(|it| it.serial == culprit as u64);
            prop_assert!(named, "{fault:?} of {culprit} in {shape:?}: {who:?} {cause}");
        }
    }
}

/// A rank that is stopped where no call is under way is waited for by nobody but whoever wants the next step.
///
/// SEMANTICS 166.
#[test]
fn one_of_two_ranks_that_is_stopped_between_calls_is_named() {
    let pair = Shape {
        tp: 1,
        pp: 1,
        dp: 2,
    };
    let job = SimulatedJob::run(pair, false, (Injected::Nothing, 0, 0.0), 0.1, 24.0, 3);
    let mut ranks = job.ranks();
    let mut watch = FlowWatch::default();
    let mut found = vec![];
    for second in 1..=30_u32 {
        let at = Duration::from_secs(second.into());
        for (rank, window) in ranks.iter_mut().enumerate() {
            let mut look = job.look(rank, second.min(10));
            if let Some(idle) = second.checked_sub(10).filter(|idle| *idle > 0) {
                for group in &mut look.groups {
                    group.state = CallState::Completed;
                    group.completed = 0;
                }
                if rank == 1 {
                    (look.beats, look.silent) = (0, Duration::from_secs(idle.into()));
                }
            }
            window.push(at, look);
        }
        if second.is_multiple_of(2) {
            let all = watch.observe(&FlowJob { ranks: &ranks }, at).into_iter();
            found = all.map(|it| (it.who, it.cause.fault)).collect();
        }
        assert!(found.is_empty() || second > 20, "{found:?}");
    }
    let second = FlowMember { home: 1, serial: 1 };
    assert_eq!(found, [(vec![second], FlowFault::Stopped)]);
}
