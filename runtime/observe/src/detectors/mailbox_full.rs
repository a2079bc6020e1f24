//! Mailboxes that are nearly full.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding, spoken};
use crate::bounds::{MAILBOX_FULL, MAILBOX_FULL_FOR};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds mailboxes that have been nearly full for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullMailboxes;

impl Detector<ClusterView> for FullMailboxes {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        full_mailboxes(seen, now).collect()
    }
}

fn full_mailboxes(seen: &ClusterView, now: Date) -> impl Iterator<Item = Finding> {
    let rows = seen.actors().iter();
    rows.filter_map(move |row| {
        let (fill, since) = (row.fill()?, row.full_since?);
        if fill < MAILBOX_FULL || now.since(since) < MAILBOX_FULL_FOR {
            return None;
        }
        let sentence = format!(
            "the mailbox of {} has held {} of {} messages or nearly so for {} (limit 80 % for 5 s)",
            row.title(),
            row.view.queued,
            row.view.room,
            spoken(now.since(since))
        );
        Some(finding(
            "mailbox_full",
            Severity::Warning,
            since,
            sentence,
            vec![Subject::Actor(row.id())],
        ))
    })
}
