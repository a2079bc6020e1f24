//! Nodes that are gone, or silent.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, NODE_DOWN, finding, spoken};
use crate::bounds::SUSPECT;
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds nodes that are gone, and such as nothing has come from for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nodes;

impl Detector<ClusterView> for Nodes {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        nodes(seen, now).collect()
    }
}

fn nodes(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    seen.nodes().filter_map(move |node| {
        let subject = vec![Subject::Node(node.name.clone())];
        if let Some(gone) = node.gone {
            let sentence = format!("node {} is gone", node.name);
            return Some(finding(NODE_DOWN, Severity::Error, gone, sentence, subject));
        }
        let silent = now.since(node.seen);
        (silent >= SUSPECT).then(|| {
            let told = spoken(silent);
            let sentence = format!(
                "nothing has come from node {} for {told} (limit 3 s)",
                node.name
            );
            finding(
                "node_suspect",
                Severity::Warning,
                node.seen,
                sentence,
                subject,
            )
        })
    })
}
