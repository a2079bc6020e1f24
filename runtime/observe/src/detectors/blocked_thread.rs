//! Actors that block a thread of their process.

use odeon::inspect::BlockedThread;
use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding, spoken};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds threads that an actor has blocked for five seconds, as their processes tell it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockedThreads;

impl Detector<ClusterView> for BlockedThreads {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        blocked(seen, now).collect()
    }
}

/// Threads that actors block, of nodes that are there.
pub(super) fn blocked_threads(seen: &ClusterView) -> impl Iterator<Item = &(BlockedThread, Date)> {
    let nodes = seen.nodes().filter(|node| node.gone.is_none());
    nodes.flat_map(|node| &node.blocked)
}

fn blocked(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    blocked_threads(seen).map(move |(thread, since)| {
        let title = match seen.actors().get(thread.actor) {
            Some(row) => row.title(),
            None => thread.name.clone(),
        };
        let place = match thread.message.as_str() {
            "" => "beside its handlers".to_owned(),
            message => format!("in {message}"),
        };
        let sentence = format!(
            "{title} has blocked a thread of its process for {} {place}; others may wait for it (limit 5 s)",
            spoken(now.since(*since)),
        );
        finding("blocked_thread", Severity::Warning, *since, sentence, vec![Subject::Actor(thread.actor)])
    })
}
