//! Actors that are started again and again.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding};
use crate::bounds::{RESTARTS, RESTARTS_WITHIN};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds actors that began anew too often of late.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartLoops;

impl Detector<ClusterView> for RestartLoops {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        restart_loops(seen, now).collect()
    }
}

fn restart_loops(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let lately = now.before(RESTARTS_WITHIN);
    let rows = seen.actors().iter();
    rows.filter_map(move |row| {
        let often = row.restarts_since(lately);
        let loops = often >= RESTARTS && row.ended.is_none();
        loops.then(|| {
            let why = row.lives.iter().rev().find_map(|life| life.cause.as_deref());
            let why = why.unwrap_or("no reason was told");
            let sentence = format!(
                "{} began anew {often} times within 60 s (limit {RESTARTS}), the last time because {why}",
                row.title()
            );
            finding("restart_loop", Severity::Error, row.since, sentence, vec![Subject::Actor(row.id())])
        })
    })
}
