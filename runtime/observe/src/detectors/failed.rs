//! Actors that have failed for good.

use std::collections::BTreeMap;

use odeon_diagnosis::{Detector, Severity};

use super::{ACTOR_FAILED, Finding, finding};
use crate::actor::{Actor, State};
use crate::bounds::FAILED_FOR;
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds actors that do not run any more, put together by type and what they say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed;

impl Detector<ClusterView> for Failed {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        failed(seen, now).collect()
    }
}

/// Returns true where a failure is history: it is some time ago, and its process is over as well.
fn is_past(seen: &ClusterView, row: &Actor, now: Date) -> bool {
    let process = seen.process(row.view.process);
    let is_over = process.is_none_or(|process| process.ended.is_some());
    let ended = row.ended.as_ref().map(|ended| ended.at);
    is_over && ended.is_some_and(|at| now.since(at) >= FAILED_FOR)
}

/// The failed, put together by type and what they say.
fn failed(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let mut groups: BTreeMap<(String, String), Vec<&Actor>> = BTreeMap::new();
    for row in seen
        .actors()
        .iter()
        .filter(|row| row.state == State::Failed && !is_past(seen, row, now))
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
