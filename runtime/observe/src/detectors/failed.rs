//! Actors that have failed for good.

use std::collections::BTreeMap;

use odeon_diagnosis::{Detector, Severity};

use super::{ACTOR_FAILED, Finding, finding};
use crate::actor::{Actor, State};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds actors that do not run any more, put together by type and what they say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed;

impl Detector<ClusterView> for Failed {
    fn observe(&mut self, seen: &ClusterView, _: Date) -> Vec<Finding> {
        failed(seen).collect()
    }
}

/// The failed, put together by type and what they say.
fn failed(seen: &ClusterView) -> impl Iterator<Item = Finding> {
    let mut groups: BTreeMap<(String, String), Vec<&Actor>> = BTreeMap::new();
    for row in seen
        .actors()
        .iter()
        .filter(|row| row.state == State::Failed)
    {
        let why = row.ended.as_ref().map_or("", |ended| &ended.sentence);
        let key = (row.view.actor.clone(), why.to_owned());
        groups.entry(key).or_default().push(row);
    }
    groups.into_iter().map(|((kind, why), mut rows)| {
        rows.sort_by_key(|row| row.since);
        let who = match rows.as_slice() {
            [one] => one.title(),
            many => format!("{} actors of type {kind}", many.len()),
        };
        let since = rows[0].since;
        let subjects = rows.iter().map(|row| Subject::Actor(row.id())).collect();
        finding(
            ACTOR_FAILED,
            Severity::Error,
            since,
            format!("{who} failed and does not run any more: {why}"),
            subjects,
        )
    })
}
