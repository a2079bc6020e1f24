//! Actors that wait for each other.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding, spoken};
use crate::bounds::CIRCLE_STANDS;
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Nobody can wake them.
const DEADLOCK: &str = "deadlock";
/// One of them may go on.
const CIRCLE: &str = "waits_in_circle";

/// Finds circles of waits that stand: deadlocks, and those of which one may go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circles;

impl Detector<ClusterView> for Circles {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        circles(seen, now).collect()
    }
}

fn circles(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let circles = seen.waits().circles().into_iter();
    circles
        .filter(move |it| now.since(it.since) >= CIRCLE_STANDS)
        .map(move |circle| {
            let mut names: Vec<_> = circle.actors.iter().map(|id| seen.title_of(*id)).collect();
            names.extend(names.first().cloned());
            let (rule, severity, what) = match circle.is_deadlock {
                true => (
                    DEADLOCK,
                    Severity::Error,
                    "deadlock: each waits for the next and nobody can wake them",
                ),
                false => (
                    CIRCLE,
                    Severity::Warning,
                    "these wait for each other, though one may go on",
                ),
            };
            let stands = spoken(now.since(circle.since));
            let sentence = format!("{} — {what}, for {stands} (limit 1 s)", names.join(" > "));
            let subjects = circle.actors.iter().map(|id| Subject::Actor(*id)).collect();
            finding(rule, severity, circle.since, sentence, subjects)
        })
}
