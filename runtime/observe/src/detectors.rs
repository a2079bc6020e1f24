//! Detectors of what is wrong in a cluster, over what is seen of it. Each is a file, and one line of
//! [`Detectors::default`]; its limits are in [`bounds`](crate::bounds) and in its sentences.

mod awaited_rank;
mod blocked_thread;
mod circles;
mod device_memory;
mod events_dropped;
mod failed;
mod gang_rank;
mod launch_drift;
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
pub(crate) mod rules;
mod run_curve;
mod slow_copy;
mod straggler;
mod stuck_handler;

use std::cmp::Reverse;
use std::time::Duration;

use odeon_diagnosis::{Alert, Detector, Observation, Severity};

use crate::cluster_view::ClusterView;
use crate::date::{Date, spoken};
use crate::event::Subject;

pub use recovery::{LeftNode, left_nodes};
use rules::{
    ACTION_FORBIDDEN, ACTOR_FAILED, AWAITED_RANK, NODE_AVOIDED, NODE_DOWN, NODE_REFUSED,
    ODD_MACHINE, PIPELINE_STRAGGLER, RANK_NOT_FINITE, RANK_RECOVERY, RANK_SLOW, RANK_STILL,
    STANDBY_MISSING, STRAGGLER,
};
pub use rules::{ProblemRule, problem_rule};

/// Something that is wrong in a cluster at the moment.
pub type Finding = odeon_diagnosis::Finding<ClusterView>;

impl Observation for ClusterView {
    type Subject = Subject;
    type Moment = Date;
    type Cause = Alert;
}

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
            Box::<launch_drift::LaunchDrifts>::default(),
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

/// One second.
const SECOND: Duration = Duration::from_secs(1);

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
            part: String::new(),
            evidence: vec![],
        },
        since,
    }
}
