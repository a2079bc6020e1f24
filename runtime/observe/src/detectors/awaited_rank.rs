//! Ranks that all others of a job wait for in collectives.

use std::collections::BTreeMap;

use odeon::{ActorId, ProcessId};
use odeon_diagnosis::flows::{FlowJob, FlowWatch};
use odeon_diagnosis::{Detector, Severity};

use super::{AWAITED_RANK, Finding, finding};
use crate::bounds::FLOWS_EVERY;
use crate::cluster_view::{ClusterView, since_1970};
use crate::date::Date;
use crate::event::Subject;

/// Finds the rank that the others of a job wait for, when these have stopped or become slow. A job is judged anew every
/// [`FLOWS_EVERY`]; until then its finding goes on.
#[derive(Debug, Default)]
pub(super) struct AwaitedRanks {
    /// By job.
    jobs: BTreeMap<String, Judged>,
}

/// The last judgement of a job.
#[derive(Debug, Default)]
struct Judged {
    watch: FlowWatch,
    at: Date,
    found: Vec<Finding>,
}

impl Detector<ClusterView> for AwaitedRanks {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        let mut jobs = std::mem::take(&mut self.jobs);
        for (job, all) in seen.flow_jobs() {
            let mut judged = jobs.remove(job).unwrap_or_default();
            // A recording that is shown again from its begin is earlier than it was.
            if now < judged.at {
                judged = Judged::default();
            }
            if now.since(judged.at) >= FLOWS_EVERY {
                let found = judged.watch.observe(&all, since_1970(now));
                judged.at = now;
                judged.found = found.into_iter().map(|it| told(seen, it)).collect();
            }
            self.jobs.insert(job.to_owned(), judged);
        }
        let judged = self.jobs.values();
        judged.flat_map(|it| it.found.iter().cloned()).collect()
    }
}

fn told(seen: &ClusterView, found: odeon_diagnosis::Finding<FlowJob<'_>>) -> Finding {
    let members = found.who.iter();
    let who: Vec<ActorId> = members
        .map(|it| ActorId {
            home: ProcessId(it.home),
            serial: it.serial,
        })
        .collect();
    let names: Vec<String> = who.iter().map(|it| seen.title_of(*it)).collect();
    let sentence = match names.join(" or ") {
        names if names.is_empty() => found.cause.to_string(),
        names => format!("{names}: {}", found.cause),
    };
    let since = Date(found.since.as_nanos() as u64);
    let who = who.into_iter().map(Subject::Actor).collect();
    let mut told = finding(AWAITED_RANK, Severity::Warning, since, sentence, who);
    told.cause.evidence = found.cause.evidence;
    told
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use odeon::collective::{
        Algorithm, CallState, CollectiveCall, ElementType, FlowLabel, FlowPlace, FlowProgress,
        Operation,
    };
    use odeon_diagnosis::flows::{FlowMember, GroupLook, RankLook};

    use super::*;

    const BARRIER: CollectiveCall = CollectiveCall {
        operation: Operation::Barrier,
        element: ElementType::F32,
        reduce: None,
        algorithm: Algorithm::Direct,
        peer: 0,
        count: 0,
        layout: 0,
    };

    /// A rank of two that has ended so many calls, and has been in the next for so long, if it is in one.
    fn rank(rank: u32, completed: u64, lately: u32, waits: Option<u64>, silent: u64) -> RankLook {
        let member = FlowMember {
            home: 1,
            serial: u64::from(rank),
        };
        let place = FlowPlace {
            member,
            group: 4,
            label: FlowLabel::new("dp"),
            rank,
            world: 2,
        };
        let launched = completed + u64::from(waits.is_some());
        RankLook {
            member,
            silent: Duration::from_secs(silent),
            beats: if silent == 0 { 10 } else { 0 },
            starved: Duration::ZERO,
            lost: 0,
            groups: vec![GroupLook {
                place,
                launched,
                completed: lately,
                state: if waits.is_some() {
                    CallState::UnderWay
                } else {
                    CallState::Completed
                },
                sequence: launched,
                progress: FlowProgress::default(),
                age: Duration::from_secs(waits.unwrap_or(1)),
                stages: [0, 0, 0, if waits.is_some() { 10 } else { 0 }],
                calls: VecDeque::from([(launched, BARRIER)]),
            }],
        }
    }

    /// SEMANTICS 168.
    #[test]
    fn a_stopped_rank_is_a_problem_of_its_job_until_it_goes_on() {
        let mut seen = ClusterView::default();
        let mut detector = AwaitedRanks::default();
        let mut look = |second: u64, ranks: [RankLook; 2]| {
            let at = Date((1_000 + second) * 1_000_000_000);
            seen.note_flows(ProcessId(8), ranks.into(), at);
            detector.observe(&seen, at)
        };
        for second in 0..12 {
            let both = [0, 1].map(|it| rank(it, second * 20, 20, None, 0));
            assert_eq!(look(second, both), []);
        }
        let mut found = vec![];
        for second in 12..20 {
            let waits = second - 11;
            let both = [
                rank(0, 240, 0, Some(waits), 0),
                rank(1, 240, 0, None, waits),
            ];
            found = look(second, both);
        }
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        let stopped = ActorId {
            home: ProcessId(1),
            serial: 1,
        };
        assert_eq!(one.who, [Subject::Actor(stopped)]);
        let said = &one.cause.sentence;
        let why = "1 of 2 ranks wait for rank 1 of a group of 2 along dp: its process is stopped";
        assert!(said.ends_with(why), "{said}");
        assert!(one.since < Date(1_015_000_000_000));
        let mut last = vec![];
        for second in 20..26 {
            last = look(second, [0, 1].map(|it| rank(it, second * 20, 20, None, 0)));
        }
        assert_eq!(last, []);
    }
}
