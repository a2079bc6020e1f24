//! Those who wait for room on the nodes.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding};
use crate::bounds::PENDING;
use crate::cluster_view::ClusterView;
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

/// Jobs that have not begun.
fn jobs(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let late = seen.waiting_jobs().iter();
    let late = late.filter(move |it| now.since(it.since) >= PENDING);
    late.map(|it| {
        let sentence = format!("job {} has no place yet: {} (limit 5 s)", it.job, it.why);
        let who = vec![Subject::Job(it.job.clone())];
        finding("pending", Severity::Warning, it.since, sentence, who)
    })
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
