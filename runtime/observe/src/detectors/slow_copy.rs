//! Copies of a blob that take much longer than the others of the same.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::ProcessId;
use odeon::trace::SpanKind;
use odeon_diagnosis::{Detector, Severity};

use super::{Finding, STRAGGLER, finding, spoken};
use crate::bounds::{COPIES_LATELY, COPY_NOISE, COPY_STRAGGLES, STRAGGLER_RANKS};
use crate::cluster_view::{ClusterView, Copied, blob_of};
use crate::date::Date;
use crate::event::Subject;

/// Finds copies that take much longer than the others of the same blob: a slow way, or a slow node.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowCopies;

impl Detector<ClusterView> for SlowCopies {
    fn observe(&mut self, seen: &ClusterView, now: Date) -> Vec<Finding> {
        slow_copies(seen, now)
    }
}

/// Copies of a blob that take much longer than the others of the same: a slow way, or a slow node.
fn slow_copies(seen: &ClusterView, now: Date) -> Vec<Finding> {
    let mut blobs: BTreeMap<String, Vec<(ProcessId, Date, Duration)>> = BTreeMap::new();
    let lately = seen.copies().filter(|it| now.since(it.at) < COPIES_LATELY);
    for Copied { blob, to, at, took } in lately {
        let copies = blobs.entry(blob.clone()).or_default();
        copies.push((*to, *at, *took));
    }
    let going_on = seen.spans().going_on();
    for span in going_on.filter(|span| span.kind == SpanKind::Copy) {
        let copies = blobs.entry(blob_of(&span.labels)).or_default();
        copies.push((span.process, now, now.since(span.start)));
    }
    let mut found = vec![];
    for mut copies in blobs.into_values().filter(|it| it.len() >= STRAGGLER_RANKS) {
        copies.sort_by_key(|(.., took)| *took);
        let median = copies[copies.len() / 2].2;
        let limit = median.mul_f64(COPY_STRAGGLES).max(COPY_NOISE);
        for (to, at, took) in copies.iter().filter(|(.., took)| *took > limit) {
            let node = seen.process(*to).map_or("?", |process| &process.node);
            let sentence = format!(
                "a copy to {node} takes {} where the median of {} copies of the same blob takes {} \
                 (limit 4 times the median)",
                spoken(*took),
                copies.len(),
                spoken(median)
            );
            let subject = vec![Subject::Process(*to)];
            found.push(finding(
                STRAGGLER,
                Severity::Warning,
                *at,
                sentence,
                subject,
            ));
        }
    }
    // Of one process the last.
    found.sort_by_key(|it| (it.who.clone(), std::cmp::Reverse(it.since)));
    found.dedup_by_key(|it| it.who.clone());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_takes_much_longer_than_those_of_the_same_blob_is_named() {
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let mut copy = |blob: &str, to: u64, ms: u64| {
            seen.note_copy(Copied {
                blob: blob.to_owned(),
                to: ProcessId(to),
                at: at(100),
                took: Duration::from_millis(ms),
            });
        };
        for (to, ms) in [(1, 90), (2, 100), (3, 110), (4, 441), (5, 439)] {
            copy("weights", to, ms);
        }
        // Two are too few to compare, and what is quick is noise.
        copy("other", 6, 10);
        copy("other", 7, 5_000);
        for (to, ms) in [(1, 1), (2, 1), (8, 150)] {
            copy("small", to, ms);
        }
        let slow = |now| slow_copies(&seen, now);
        let found = slow(at(101));
        let subjects: Vec<_> = found.iter().flat_map(|it| it.who.clone()).collect();
        assert_eq!(subjects, [Subject::Process(ProcessId(4))], "{found:?}");
        for part in ["441 ms", "5 copies", "takes 110 ms", "limit 4 times"] {
            assert!(
                found[0].cause.sentence.contains(part),
                "{}",
                found[0].cause.sentence
            );
        }
        assert_eq!(slow(at(161)).len(), 0, "a minute later it is history");
    }
}
