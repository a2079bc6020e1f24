//! Links that are slow, and clocks that are not known well enough.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding, spoken};
use crate::bounds::{CLOCK_ERROR, SLOW_LINK};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds slow links between nodes, and nodes whose clocks are not known well enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links;

impl Detector<ClusterView> for Links {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        links(seen, now).collect()
    }
}

fn links(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let mut found = vec![];
    for node in seen.nodes().filter(|node| node.gone.is_none()) {
        let subject = || vec![Subject::Node(node.name.clone())];
        for link in &node.links {
            if link.round_trip.is_some_and(|trip| trip > SLOW_LINK) {
                let trip = spoken(link.round_trip.unwrap_or_default());
                let sentence = format!(
                    "the link from {} to {} takes {trip} there and back (limit 100 ms)",
                    node.name, link.node
                );
                found.push(finding(
                    "slow_link",
                    Severity::Warning,
                    now,
                    sentence,
                    subject(),
                ));
            }
        }
        if let Some((_, error)) = node.clock.filter(|(_, error)| *error > CLOCK_ERROR) {
            let sentence = format!(
                "the clock of {} is known to {} only (limit 10 ms), so what nodes did may be shown in \
                 another order",
                node.name,
                spoken(error)
            );
            found.push(finding(
                "clock_error",
                Severity::Warning,
                now,
                sentence,
                subject(),
            ));
        }
    }
    found.into_iter()
}
