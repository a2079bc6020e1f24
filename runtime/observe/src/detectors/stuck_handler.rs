//! Handlers that run for very long.

use odeon_diagnosis::{Detector, Severity};

use super::blocked_thread::blocked_threads;
use super::{Finding, finding, spoken};
use crate::bounds::STUCK;
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds handlers that run for very long, and whom they wait for. Those that block a thread are told of as such.
#[derive(Clone, Copy, Debug)]
pub(super) struct StuckHandlers;

impl Detector<ClusterView> for StuckHandlers {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        stuck(seen, now).collect()
    }
}

fn stuck(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let rows = seen.actors().iter();
    rows.filter_map(move |row| {
        let (running, since) = (row.running()?, row.running_since?);
        let lasts = now.since(since);
        if lasts < STUCK || blocked_threads(seen).any(|(it, _)| it.actor == row.id()) {
            return None;
        }
        let (chain, _) = seen.waits().chain(row.id());
        let on = match chain.first() {
            Some(wait) => format!(
                ", for {} of that waiting for {} (ask {})",
                spoken(now.since(wait.since)),
                seen.title_of(wait.on),
                wait.message
            ),
            None => String::new(),
        };
        let sentence = format!(
            "{} has handled one {} for {}{on} (limit 10 s)",
            row.title(),
            running.message,
            spoken(lasts)
        );
        Some(finding(
            "stuck_handler",
            Severity::Warning,
            since,
            sentence,
            vec![Subject::Actor(row.id())],
        ))
    })
}
