//! Those who wait for room on the nodes.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding};
use crate::bounds::PENDING;
use crate::cluster_view::{ClusterView, WaitingJob};
use crate::date::Date;
use crate::event::Subject;

/// Finds those who have waited for a place for too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending;

impl Detector<ClusterView> for Pending {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        pending(seen).chain(jobs(seen, now)).collect()
    }
}

/// Jobs that have not begun, as one finding about the first in line: a queue is long in an orderly way.
fn jobs(seen: &ClusterView, now: Date) -> Option<Finding> {
    let waiting = seen.waiting_jobs();
    let late = |it: &&WaitingJob| now.since(it.since) >= PENDING;
    let first = waiting.iter().find(late)?;
    let others = match waiting.iter().filter(late).count() - 1 {
        0 => String::new(),
        1 => ", and 1 more after it".to_owned(),
        others => format!(", and {others} more after it"),
    };
    let WaitingJob { job, why, since } = first;
    let sentence = format!("job {job} waits{others}: {why} (limit 5 s)");
    let who = vec![Subject::Job(job.clone())];
    Some(finding("pending", Severity::Warning, *since, sentence, who))
}

fn pending(seen: &ClusterView) -> impl Iterator<Item = Finding> {
    let here = seen.nodes().filter(|node| node.gone.is_none());
    let waiting = here.filter_map(|node| Some((node, node.hardware.as_ref()?)));
    waiting.flat_map(move |(node, hardware)| {
        let late = hardware.waiting.iter().filter(|it| it.waited >= PENDING);
        late.map(move |waiting| {
            let sentence = format!("{} has no place yet: {waiting} (limit 5 s)", waiting.holder);
            let known = waiting.actors.iter();
            let known = known.filter(|id| seen.actors().get(**id).is_some());
            let mut subjects: Vec<_> = known.map(|id| Subject::Actor(*id)).collect();
            // Who has never run is not seen anywhere else.
            let job = seen.job_waiting(waiting).rsplit('/').next();
            let job = job.unwrap_or_default();
            if let Some((number, _try)) = job.split_once('.') {
                subjects.push(Subject::Job(number.to_owned()));
            }
            finding(
                "pending",
                Severity::Warning,
                node.seen.before(waiting.waited),
                sentence,
                subjects,
            )
        })
    })
}
