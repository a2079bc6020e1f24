//! Readings of processes whose calls fail, whose groups are formed anew, and that ran long before they were looked at.

use odeon_collective::CallState::{Completed, Failed, UnderWay};
use odeon_collective::{Algorithm, ElementType, FlowLabel};

use super::super::{FlowJob, FlowTrigger, FlowWatch};
use super::*;
use crate::Detector;

const SECOND: u64 = 1_000_000_000;
const SUM: CollectiveCall = CollectiveCall {
    operation: Operation::AllReduce,
    element: ElementType::F32,
    reduce: None,
    algorithm: Algorithm::Ring,
    peer: 0,
    count: 8,
    layout: 0,
};

/// The last call of a rank in a group of so many: it began and ended, or failed, at this second.
fn last(rank: u64, group: u64, world: u32, state: CallState, at: u64, calls: u64) -> LastCall {
    let place = FlowPlace {
        member: FlowMember {
            home: 1,
            serial: rank,
        },
        group,
        label: FlowLabel::new("dp"),
        rank: rank as u32 % world,
        world,
    };
    LastCall {
        record: FlowRecord {
            place,
            state,
            sequence: calls,
            call: SUM,
            bytes: 32,
            began: at * SECOND,
            at: at * SECOND,
            progress: FlowProgress::default(),
        },
        launched: calls,
        completed: match state {
            Completed => calls,
            UnderWay | Failed => calls - 1,
        },
        starved: 0,
    }
}

/// A reading at this second of a process that has beaten ten times in each.
fn reading(at: u64, records: Vec<FlowRecord>, last: Vec<LastCall>) -> FlowReading {
    FlowReading {
        at: at * SECOND,
        beat: at * SECOND,
        beats: at * 10,
        records,
        lost: 0,
        last,
    }
}

/// The groups of the one rank of a process, with the states of their last calls.
fn groups(looks: &[RankLook]) -> Vec<(u64, CallState)> {
    let groups = looks.iter().flat_map(|it| &it.groups);
    groups.map(|it| (it.place.group, it.state)).collect()
}

#[test]
fn the_first_look_at_a_process_counts_nothing_of_before() {
    let old = |at| last(0, 5, 4, UnderWay, at, 700).record;
    let records = (100..180).map(old).collect();
    let mut summary = FlowSummary::default();
    let first = &summary.look(&reading(
        200,
        records,
        vec![last(0, 5, 4, UnderWay, 200, 9_000)],
    ))[0];
    assert_eq!((first.beats, first.groups[0].stages), (0, [0; 4]));
    assert_eq!(first.groups[0].completed, 0);
    let records = vec![last(0, 5, 4, UnderWay, 201, 9_010).record; 3];
    let next = &summary.look(&reading(
        201,
        records,
        vec![last(0, 5, 4, UnderWay, 201, 9_020)],
    ))[0];
    assert_eq!((next.beats, next.groups[0].stages), (10, [0, 0, 0, 3]));
    assert_eq!(next.groups[0].completed, 20);
}

#[test]
fn the_usual_rate_of_a_job_is_known_soon_after_its_first_look() {
    let mut summary = FlowSummary::default();
    let mut trigger = FlowTrigger::default();
    let mut ranks = vec![];
    for second in 200..230_u64 {
        // It becomes ten times as slow in second 215.
        let calls = second.min(215) * 20 + second.saturating_sub(215) * 2;
        let call = last(0, 5, 4, Completed, second, calls);
        let at = Duration::from_secs(second);
        let look = summary.look(&reading(second, vec![], vec![call])).remove(0);
        if ranks.is_empty() {
            ranks.push(RankWindow::new(look.member, at));
        }
        ranks[0].push(at, look);
        let is_told = trigger.observe(&ranks, at).is_some();
        assert_eq!(is_told, second >= 218, "in second {second}");
    }
}

#[test]
fn a_failed_group_is_forgotten_when_its_member_has_a_newer_one() {
    let mut summary = FlowSummary::default();
    for generation in 0..5 {
        let (group, begin) = (10 + generation, 100 + 4 * generation);
        let calls = last(0, group, 4, Completed, begin, 3);
        let looks = summary.look(&reading(begin, vec![], vec![calls]));
        assert_eq!(groups(&looks), [(group, Completed)]);
        let failed = last(0, group, 4, Failed, begin + 1, 4);
        // Its communicator is gone at once, and others may still have to be compared with it.
        let looks = summary.look(&reading(begin + 2, vec![failed.record], vec![]));
        assert_eq!(groups(&looks), [(group, Failed)]);
    }
    // One that stays, beside a newer one.
    let old = last(0, 20, 4, Failed, 121, 4);
    let new = last(0, 21, 4, UnderWay, 123, 1);
    let looks = summary.look(&reading(122, vec![], vec![old]));
    assert!(groups(&looks).contains(&(20, Failed)), "{looks:?}");
    let looks = summary.look(&reading(124, vec![], vec![old, new]));
    assert_eq!(groups(&looks), [(21, UnderWay)]);
}

#[test]
fn a_failed_group_without_a_communicator_is_forgotten_after_the_window() {
    let mut summary = FlowSummary::default();
    let failed = last(0, 5, 4, Failed, 100, 4);
    summary.look(&reading(100, vec![], vec![failed]));
    for second in 101..=110 {
        let looks = summary.look(&reading(second, vec![], vec![]));
        assert_eq!(groups(&looks), [(5, Failed)]);
    }
    assert_eq!(summary.look(&reading(111, vec![], vec![])), []);
    // An old one that the ring still holds at the first look is none at all.
    let mut summary = FlowSummary::default();
    assert_eq!(summary.look(&reading(150, vec![failed.record], vec![])), []);
}

/// Looks at a job of four ranks, each in a process of its own, once a second, and judges it at every other.
fn watch(
    seconds: impl Iterator<Item = u64>,
    of: impl Fn(u64, u64) -> Vec<LastCall>,
) -> Vec<String> {
    let mut job: Vec<(FlowSummary, RankWindow)> = vec![];
    let (mut trigger, mut watch) = (FlowTrigger::default(), FlowWatch::default());
    let mut told = vec![];
    for second in seconds {
        let at = Duration::from_secs(second);
        for rank in 0..4 {
            let member = FlowMember {
                home: 1,
                serial: rank,
            };
            if job.len() == rank as usize {
                job.push((FlowSummary::default(), RankWindow::new(member, at)));
            }
            let (summary, window) = &mut job[rank as usize];
            for look in summary.look(&reading(second, vec![], of(rank, second))) {
                window.push(at, look);
            }
        }
        let ranks: Vec<RankWindow> = job.iter().map(|it| it.1.clone()).collect();
        if second.is_multiple_of(2) {
            let found = watch.observe(&FlowJob { ranks: &ranks }, at);
            told.extend(found.iter().map(|it| format!("{second}: {}", it.cause)));
        }
        if let Some(kind) = trigger.observe(&ranks, at) {
            told.push(format!("{second}: {kind:?}"));
        }
    }
    told
}

/// SEMANTICS 168.
#[test]
fn a_job_that_has_recovered_from_a_failed_call_is_not_told_of() {
    let told = watch(100..150, |rank, second| match second {
        ..110 => vec![last(rank, 5, 4, Completed, second, second * 20)],
        110..112 => vec![last(rank, 5, 4, Failed, 110, 2_200)],
        // The next calls of a rank are seen under way at most looks.
        _ if rank > 0 => vec![last(rank, 6, 4, UnderWay, second, (second - 111) * 20)],
        _ => vec![last(rank, 6, 4, Completed, second, (second - 111) * 20 - 1)],
    });
    let after: Vec<_> = told.iter().filter(|it| ***it >= *"116").collect();
    assert!(after.is_empty(), "{after:?}");
    assert!(told.contains(&"110: Stalled".to_owned()), "{told:?}");
}

/// SEMANTICS 166.
#[test]
fn a_rank_that_few_of_a_job_wait_for_is_not_blamed() {
    let waits = |waiting: u64| {
        let told = watch(100..150, |rank, second| match second {
            ..110 => vec![last(rank, 5, 4, Completed, second, second * 20)],
            _ if (1..=waiting).contains(&rank) => vec![last(rank, 5, 4, UnderWay, 110, 2_181)],
            _ => vec![last(rank, 5, 4, Completed, 109, 2_180)],
        });
        let blames = |it: &&String| it.contains("wait for");
        told.iter().filter(blames).count()
    };
    assert_eq!(waits(1), 0);
    assert!(waits(3) > 0);
}
