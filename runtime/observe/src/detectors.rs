//! Detectors of what is wrong in a cluster, over what is seen of it. Each is a file, and one line of
//! [`Detectors::default`]; its limits are in [`bounds`](crate::bounds) and in its sentences.

mod awaited_rank;
mod blocked_thread;
mod circles;
mod device_memory;
mod events_dropped;
mod failed;
mod gang_rank;
mod left_out;
mod link;
mod low_disk;
mod mailbox_full;
mod node;
mod odd_machine;
mod pending;
mod pipeline_straggler;
mod recovery;
mod refused_node;
mod restart_loop;
mod rules;
mod run_curve;
mod slow_copy;
mod straggler;
mod stuck_handler;

use std::cmp::Reverse;
use std::time::Duration;

use odeon_diagnosis::{Alert, Detector, Observation, Severity};

use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

pub use recovery::{LeftNode, left_nodes};
pub use rules::{ProblemRule, problem_rule};

/// Something that is wrong in a cluster at the moment.
pub type Finding = odeon_diagnosis::Finding<ClusterView>;

impl Observation for ClusterView {
    type Subject = Subject;
    type Moment = Date;
    type Cause = Alert;
}

/// Actors have failed for good. Each has told an event of its own.
pub(crate) const ACTOR_FAILED: &str = "actor_failed";
/// A node is gone. It has told an event of its own.
pub(crate) const NODE_DOWN: &str = "node_down";
/// A rank, or a copy of a blob, takes much longer than the others.
const STRAGGLER: &str = "straggler";
/// A part of a pipeline makes its steps longer than they would be.
const PIPELINE_STRAGGLER: &str = "pipeline_straggler";

/// A rank of a gang stands still while others do not.
const RANK_STILL: &str = "rank_still";
/// A rank of a gang is slow.
const RANK_SLOW: &str = "rank_slow";
/// A rank of a gang was the first to print a loss that is no number.
const RANK_NOT_FINITE: &str = "rank_not_finite";

/// A rank is waited for by all others of its job.
const AWAITED_RANK: &str = "awaited_rank";

/// Something is done about a rank that held up or broke its job.
const RANK_RECOVERY: &str = "rank_recovery";
/// A job does not place its ranks on a node.
const NODE_AVOIDED: &str = "node_avoided";

/// A person forbids something to be done about the ranks of a job.
const ACTION_FORBIDDEN: &str = "action_forbidden";

/// Nothing is placed on a node. It has told an event of its own.
pub(crate) const NODE_REFUSED: &str = "node_refused";

/// A machine differs from those that do the same.
const ODD_MACHINE: &str = "odd_machine";

/// Rules whose findings tell of something that was done at a moment: each is an event of its own, however soon it comes
/// behind another.
pub(crate) const OF_MOMENTS: [&str; 1] = [RANK_RECOVERY];

/// The detectors of a cluster.
#[derive(Debug)]
pub struct Detectors(Vec<Box<dyn Detector<ClusterView>>>);

impl Default for Detectors {
    fn default() -> Self {
        Self(vec![
            Box::new(circles::Circles),
            Box::new(failed::Failed),
            Box::new(node::Nodes),
            Box::new(restart_loop::RestartLoops),
            Box::new(blocked_thread::BlockedThreads),
            Box::new(stuck_handler::StuckHandlers),
            Box::new(gang_rank::GangRanks),
            Box::<recovery::Recoveries>::default(),
            Box::<awaited_rank::AwaitedRanks>::default(),
            Box::new(refused_node::RefusedNodes),
            Box::new(run_curve::RunCurves),
            Box::new(low_disk::LowDisks),
            Box::new(pending::Pending),
            Box::new(straggler::Stragglers),
            Box::<pipeline_straggler::PipelineStragglers>::default(),
            Box::<odd_machine::OddMachines>::default(),
            Box::new(slow_copy::SlowCopies),
            Box::new(device_memory::FullDevices),
            Box::new(left_out::DataLeftOut),
            Box::new(mailbox_full::FullMailboxes),
            Box::new(link::Links),
            Box::new(events_dropped::DroppedEvents),
        ])
    }
}

impl Detector<ClusterView> for Detectors {
    /// Answers all that is wrong at the moment, the worst first.
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        let all = self.0.iter_mut();
        let mut found: Vec<Finding> = all.flat_map(|it| it.observe(seen, now)).collect();
        let place = |it: &Finding| {
            rules::RULES
                .iter()
                .position(|rule| rule.name == it.cause.rule)
        };
        found.sort_by_key(|it| (Reverse(it.cause.severity), place(it)));
        found
    }
}

fn finding(
    rule: &'static str,
    severity: Severity,
    since: Date,
    sentence: String,
    who: Vec<Subject>,
) -> Finding {
    Finding {
        who,
        cause: Alert {
            rule,
            severity,
            sentence,
            evidence: vec![],
        },
        since,
    }
}

/// A time as people say it: `41 s`, `3 min`.
#[must_use]
pub fn spoken(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 0.001 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3_600.0),
    }
}
