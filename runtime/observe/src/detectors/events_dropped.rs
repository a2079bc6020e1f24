//! Spans that were overwritten before anybody saw them.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds that spans of the last minute were lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct DroppedEvents;

impl Detector<ClusterView> for DroppedEvents {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        dropped(seen, now).into_iter().collect()
    }
}

fn dropped(seen: &ClusterView, now: Date) -> Option<Finding> {
    let (lost, processes) = seen.lost_lately(now);
    (lost > 0).then(|| {
        let sentence = format!(
            "{lost} spans of the last minute were overwritten before they were read: the timeline has \
             gaps, states and counters do not"
        );
        let subjects = processes.into_iter().map(Subject::Process).collect();
        finding("events_dropped", Severity::Warning, now, sentence, subjects)
    })
}
