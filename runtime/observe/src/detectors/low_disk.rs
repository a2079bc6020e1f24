//! Nodes whose disk is nearly full.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds nodes whose disk is nearly full, as these say it of themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct LowDisks;

impl Detector<ClusterView> for LowDisks {
    fn observe(&mut self, seen: &ClusterView, _: Date) -> Vec<Finding> {
        let low = seen.low_disks().iter().map(|it| {
            let sentence = format!("node {}: {}", it.node, it.why);
            let who = vec![Subject::Node(it.node.clone())];
            finding("low_disk", Severity::Warning, it.since, sentence, who)
        });
        low.collect()
    }
}
