//! Data that runs leave out.

use std::collections::BTreeMap;

use odeon::{ActorId, telemetry::Label};
use odeon_diagnosis::{Detector, Severity};

use super::{Finding, finding};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// The names of the numbers that runs record of what they leave out of a source, with the labels `source` and
/// `first`, and what each counts.
const COUNTS: [(&str, &str); 2] = [
    ("data.records_left_out", "record"),
    ("data.files_left_out", "file"),
];

/// Finds sources of living runs of which something is left out, as the runs record it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataLeftOut;

impl Detector<ClusterView> for DataLeftOut {
    fn observe(&mut self, seen: &ClusterView, _now: Date) -> Vec<Finding> {
        left_out(seen)
    }
}

/// The part of a source that is left out.
#[derive(Default)]
struct LeftOut {
    since: Option<Date>,
    /// Of each of [`COUNTS`] the last, and when.
    counts: [Option<(Date, f64)>; COUNTS.len()],
    /// What is told of it, and when that was.
    first: Option<(Date, String)>,
}

fn left_out(seen: &ClusterView) -> Vec<Finding> {
    let mut sources: BTreeMap<(ActorId, String), LeftOut> = BTreeMap::new();
    for it in seen.recorded() {
        let Some(nth) = COUNTS.iter().position(|(name, _)| it.name == *name) else {
            continue;
        };
        let label = |name: &str| -> Option<&Label> {
            let found = it.labels.iter().find(|(known, _)| known == name);
            found.map(|(_, label)| label)
        };
        let process = seen.process(it.actor.home);
        let is_over = process.is_some_and(|process| process.ended.is_some());
        let mut counted = it.points.iter().filter(|(.., count)| *count > 0.0);
        let (Some(source), false, Some((since, ..)), Some((last, _, count))) =
            (label("source"), is_over, counted.next(), it.points.back())
        else {
            continue;
        };
        let known = sources.entry((it.actor, source.to_string())).or_default();
        known.since = Some(known.since.map_or(*since, |before| before.min(*since)));
        // What is told of it first may change, and then it is a number of its own.
        if known.counts[nth].is_none_or(|(before, _)| before <= *last) {
            known.counts[nth] = Some((*last, *count));
        }
        if let Some(first) = label("first")
            && known
                .first
                .as_ref()
                .is_none_or(|(before, _)| before <= last)
        {
            known.first = Some((*last, first.to_string()));
        }
    }
    let found = sources.into_iter().filter_map(|((actor, source), found)| {
        let counted = COUNTS.iter().zip(found.counts);
        let counted: Vec<String> = counted
            .filter_map(|((_, one), count)| match count?.1 {
                0.0 => None,
                1.0 => Some(format!("1 {one}")),
                count => Some(format!("{count} {one}s")),
            })
            .collect();
        let first = match found.first {
            Some((_, first)) if !first.is_empty() => format!("; the first: {first}"),
            _ => String::new(),
        };
        let sentence = format!(
            "the run leaves out of its source {source}: {}{first}",
            counted.join(", ")
        );
        let who = vec![Subject::Process(actor.home)];
        let mut told = finding(
            "data_left_out",
            Severity::Warning,
            found.since?,
            sentence,
            who,
        );
        told.cause.part = source.to_string();
        Some(told)
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use odeon::ProcessId;

    use super::*;

    #[test]
    fn what_is_left_out_of_a_source_is_found_with_its_counts_and_the_first() {
        let run = ActorId::root(ProcessId(7));
        let at = |second: u64| Date(second * 1_000_000_000);
        let mut seen = ClusterView::default();
        let mut record = |name: &str, source: &str, first: &str, second, count| {
            let labels = [("source", source), ("first", first)];
            let labels =
                labels.map(|(name, text)| (name.to_owned().into(), text.to_owned().into()));
            seen.record(
                name.to_owned(),
                run,
                labels.into_iter().collect(),
                at(second),
                count,
            );
        };
        record("data.records_left_out", "web", "", 1, 0.0);
        record("data.files_left_out", "web", "", 1, 0.0);
        record(
            "data.records_left_out",
            "books",
            "a.jsonl, at 7: torn",
            3,
            1.0,
        );
        record(
            "data.records_left_out",
            "books",
            "a.jsonl, at 7: torn",
            5,
            4.0,
        );
        record("data.files_left_out", "books", "b.tar: cut off", 6, 1.0);
        record("train.loss", "books", "", 6, 1.0);
        let found = left_out(&seen);
        let [one] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            one.cause.sentence,
            "the run leaves out of its source books: 4 records, 1 file; the first: b.tar: cut off"
        );
        assert_eq!(
            (one.since, &one.who[..]),
            (at(3), &[Subject::Process(run.home)][..])
        );
    }
}
