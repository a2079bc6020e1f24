//! One trace: all that one message caused, and the path through it that decided when it was over.

use std::collections::{BTreeMap, HashMap, HashSet};

use odeon::trace::SpanKind;

use crate::date::Date;
use crate::spans::{Span, Spans};

/// The spans of one trace, parents before their children.
#[derive(Clone, Debug)]
pub struct Trace<'a> {
    /// Its spans; of more than [`TRACE_SPANS_MAX`] those that began first.
    pub spans: Vec<&'a Span>,
    /// Number of spans in all.
    pub all: usize,
    /// Those on the critical path, by number: had one of them been shorter, the whole would have been.
    pub critical: Vec<u64>,
    /// Spans whose parents are missing.
    pub lost: usize,
}

/// More than a person reads, and quickly put together.
pub const TRACE_SPANS_MAX: usize = 10_000;

/// Puts a trace together.
#[must_use]
pub fn trace(spans: &Spans, id: u128, now: Date) -> Trace<'_> {
    let all = spans.ended().chain(spans.going_on());
    let is_own = |span: &&Span| !span.context.is_empty() && span.context.trace_id == id;
    let mut own: Vec<&Span> = all.filter(is_own).collect();
    // One that was still going on when it was seen may have come again with its end.
    own.sort_by_key(|span| (span.id(), span.end.is_none()));
    own.dedup_by_key(|span| span.id());
    own.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end_or(now))));
    let all = own.len();
    own.truncate(TRACE_SPANS_MAX);
    let known: HashSet<u64> = own.iter().map(|span| span.id()).collect();
    let mut children: HashMap<u64, Vec<&Span>> = HashMap::new();
    let (mut roots, mut lost) = (vec![], 0);
    for span in own {
        if known.contains(&span.parent) && span.parent != span.id() {
            children.entry(span.parent).or_default().push(span);
        } else {
            lost += usize::from(span.parent != 0);
            roots.push(span);
        }
    }
    let mut ordered = vec![];
    for root in &roots {
        let mut next = vec![*root];
        while let Some(span) = next.pop() {
            ordered.push(span);
            let below = children.get(&span.id()).map_or(&[][..], Vec::as_slice);
            next.extend(below.iter().rev());
        }
    }
    let last = roots.iter().max_by_key(|root| root.end_or(now));
    let critical = last.map_or(vec![], |root| critical_path(root, children, now));
    Trace {
        spans: ordered,
        all,
        critical,
        lost,
    }
}

/// From the end back to the beginning: of what had ended by then, the part that ended last.
fn critical_path(root: &Span, mut children: HashMap<u64, Vec<&Span>>, now: Date) -> Vec<u64> {
    let mut path = vec![];
    let mut next = vec![(root, root.end_or(now))];
    while let Some((span, mut until)) = next.pop() {
        path.push(span.id());
        let mut below = children.remove(&span.id()).unwrap_or_default();
        below.sort_by_key(|it| std::cmp::Reverse((it.end_or(now), it.start)));
        for part in below {
            let end = part.end_or(now);
            if until <= span.start {
                break;
            }
            if end <= until {
                next.push((part, end));
                until = part.start;
            }
        }
    }
    path
}

/// A trace in a few numbers.
#[derive(Clone, Debug)]
pub struct Extent<'a> {
    /// Which.
    pub trace: u128,
    /// The span that began first.
    pub first: &'a Span,
    /// When the last of its spans was over; now, if one goes on.
    pub end: Date,
    /// Number of spans.
    pub spans: usize,
    /// Those that failed.
    pub failed: usize,
}

/// The traces that these spans are of, those that took longest first.
#[must_use]
pub fn slowest<'a>(spans: impl Iterator<Item = &'a Span>, now: Date) -> Vec<Extent<'a>> {
    let mut traces: HashMap<u128, Extent<'a>> = HashMap::new();
    // What is known only by its going on belongs to a trace that is not known yet.
    for span in spans.filter(|span| !span.context.is_empty()) {
        let trace = span.context.trace_id;
        let extent = traces.entry(trace).or_insert_with(|| Extent {
            trace,
            first: span,
            end: span.end_or(now),
            spans: 0,
            failed: 0,
        });
        extent.spans += 1;
        extent.failed += usize::from(!span.ok);
        extent.end = extent.end.max(span.end_or(now));
        let began = |span: &Span| (span.start, span.parent != 0);
        if began(span) < began(extent.first) {
            extent.first = span;
        }
    }
    let mut traces: Vec<_> = traces.into_values().collect();
    traces.sort_by_key(|it| (std::cmp::Reverse(it.end.since(it.first.start)), it.trace));
    traces
}

/// Total times of the spans of one kind and name.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// Their name.
    pub name: String,
    /// The kind of work that they cover.
    pub kind: SpanKind,
    /// Number of spans.
    pub count: usize,
    /// Nanoseconds in all of them.
    pub total: u64,
    /// Nanoseconds of that which no span below them covers.
    pub own: u64,
    /// The time that half of them did not exceed, in nanoseconds.
    pub p50: u64,
    /// The time that 99 of 100 did not exceed.
    pub p99: u64,
    /// Those that failed.
    pub failed: usize,
}

/// Spans of one kind and name.
struct Group {
    kind: SpanKind,
    times: Vec<u64>,
    own: u64,
    failed: usize,
}

/// Nanoseconds of a span that any of these parts covers: what runs side by side counts once, and what
/// goes on after the span not at all.
fn covers(parts: &mut [(Date, Date)], span: &Span, now: Date) -> u64 {
    parts.sort_unstable();
    let (mut at, end, mut covered) = (span.start, span.end_or(now), 0);
    for &(from, to) in &*parts {
        let (from, to) = (from.max(at), to.min(end));
        if to > from {
            covered += to.since(from).as_nanos() as u64;
            at = to;
        }
    }
    covered
}

/// Adds up by name what lies between two moments, the longest first.
#[must_use]
pub fn totals<'a>(spans: impl Iterator<Item = &'a Span>, now: Date) -> Vec<Total> {
    let spans: Vec<_> = spans.collect();
    let mut below: HashMap<u64, Vec<(Date, Date)>> = HashMap::new();
    for span in &spans {
        let parts = below.entry(span.parent).or_default();
        parts.push((span.start, span.end_or(now)));
    }
    let mut groups: BTreeMap<(&str, u8), Group> = BTreeMap::new();
    for span in &spans {
        let lasted = span.end_or(now).since(span.start).as_nanos() as u64;
        let key = (&*span.name, span.kind as u8);
        let group = groups.entry(key).or_insert_with(|| Group {
            kind: span.kind,
            times: vec![],
            own: 0,
            failed: 0,
        });
        group.times.push(lasted);
        let covered = below.get_mut(&span.id());
        group.own += lasted - covered.map_or(0, |parts| covers(parts, span, now));
        group.failed += usize::from(!span.ok);
    }
    let mut totals: Vec<_> = groups
        .into_iter()
        .map(|((name, _), group)| {
            let Group {
                kind,
                mut times,
                own,
                failed,
            } = group;
            times.sort_unstable();
            let part = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
            Total {
                name: name.to_owned(),
                kind,
                count: times.len(),
                total: times.iter().sum(),
                own,
                p50: part(0.5),
                p99: part(0.99),
                failed,
            }
        })
        .collect();
    totals.sort_by_key(|total| std::cmp::Reverse(total.total));
    totals
}

#[cfg(test)]
mod tests {
    use odeon::trace::{Outcome, SpanContext};
    use odeon::{ActorId, ProcessId, Timestamp};

    use super::*;
    use crate::date::Shift;
    use crate::spans::Whose;

    fn shift() -> Shift {
        Shift::new(Timestamp(0), Date(0))
    }

    fn recorded(rows: &[(u64, u64, u64, u64)]) -> Vec<odeon::trace::Span> {
        let row = |&(id, parent, start, end): &(u64, u64, u64, u64)| {
            let actor = ActorId::root(ProcessId(1));
            odeon::trace::Span {
                context: SpanContext {
                    trace_id: 7,
                    span_id: id,
                    flags: 1,
                },
                parent,
                kind: SpanKind::Handle,
                by: actor,
                actor,
                message: if id == 1 { "root" } else { "part" }.into(),
                queued: Timestamp(start),
                started: Timestamp(start),
                ended: Timestamp(end),
                outcome: Outcome::Ok,
                labels: vec![],
            }
        };
        rows.iter().map(row).collect()
    }

    fn spans(rows: &[(u64, u64, u64, u64)]) -> Spans {
        let mut spans = Spans::default();
        for span in recorded(rows) {
            spans.add(span, ProcessId(1), Whose::Job, shift());
        }
        spans
    }

    #[test]
    fn the_path_goes_back_from_the_end_over_what_ended_last() {
        // 1 |--------------|
        // 2  |--|
        // 3     |----|           4 runs beside 3 and ends before it
        // 4     |--|
        // 5           |--|
        let spans = spans(&[
            (1, 0, 0, 100),
            (2, 1, 5, 25),
            (3, 1, 25, 60),
            (4, 1, 25, 40),
            (5, 1, 70, 95),
        ]);
        let trace = trace(&spans, 7, Date(100));
        let mut critical = trace.critical.clone();
        critical.sort_unstable();
        assert_eq!(critical, [1, 2, 3, 5]);
        assert_eq!(trace.spans[0].id(), 1);
        assert_eq!(trace.lost, 0);
    }

    /// Tells take no time.
    #[test]
    fn a_path_over_what_takes_no_time_ends() {
        let spans = spans(&[
            (1, 0, 0, 100),
            (2, 1, 50, 50),
            (3, 1, 50, 50),
            (4, 2, 100, 100),
        ]);
        let mut critical = trace(&spans, 7, Date(100)).critical;
        critical.sort_unstable();
        assert_eq!(critical, [1, 2, 3]);
    }

    #[test]
    fn spans_without_their_parents_are_shown_and_counted() {
        let spans = spans(&[(2, 1, 5, 25), (3, 2, 6, 10)]);
        let trace = trace(&spans, 7, Date(100));
        assert_eq!((trace.spans.len(), trace.lost), (2, 1));
    }

    /// A chain of a hundred, each of which was seen while it went on and again when it was over: a
    /// parent that counts twice has its children twice, and those theirs.
    #[test]
    fn a_span_that_was_seen_twice_is_one() {
        let rows: Vec<_> = (1..=100).map(|id| (id, id - 1, id, 1_000 - id)).collect();
        let mut spans = spans(&rows);
        spans.go_on(recorded(&rows), ProcessId(1), shift());
        let trace = trace(&spans, 7, Date(2_000));
        assert_eq!(
            (trace.spans.len(), trace.all, trace.critical.len()),
            (100, 100, 100)
        );
        assert!(trace.spans.iter().all(|span| span.end.is_some()));
    }

    #[test]
    fn of_a_trace_that_never_ends_the_beginning_is_shown() {
        let more = TRACE_SPANS_MAX as u64 + 500;
        let chain = (1..=more).map(|id| (id, id - 1, id, id + 1));
        let wide = (1..=more).map(|id| (more + id, 1, more + id, more + id));
        for rows in [
            chain.collect::<Vec<_>>(),
            wide.chain([(1, 0, 0, 4 * more)]).collect(),
        ] {
            let spans = spans(&rows);
            let trace = trace(&spans, 7, Date(4 * more));
            assert_eq!(
                (trace.spans.len(), trace.all),
                (TRACE_SPANS_MAX, rows.len())
            );
            assert_eq!(trace.spans[0].id(), 1);
        }
    }

    #[test]
    fn the_slowest_trace_is_the_one_that_lasted_longest_from_its_first_span_to_its_last() {
        let mut all = recorded(&[(1, 0, 0, 0), (2, 1, 5, 90), (3, 0, 10, 60), (4, 3, 20, 30)]);
        all[0].context.trace_id = 8;
        all[1].context.trace_id = 8;
        let mut spans = Spans::default();
        for span in all {
            spans.add(span, ProcessId(1), Whose::Job, shift());
        }
        let slowest = slowest(spans.ended(), Date(100));
        let told = slowest
            .iter()
            .map(|it| (it.trace, it.first.id(), it.end.0, it.spans));
        assert_eq!(told.collect::<Vec<_>>(), [(8, 1, 90, 2), (7, 3, 60, 2)]);
    }

    #[test]
    fn own_time_is_what_no_part_covers() {
        let spans = spans(&[(1, 0, 0, 100), (2, 1, 10, 30), (3, 1, 40, 60)]);
        let totals = totals(spans.ended(), Date(100));
        let root = totals.iter().find(|total| total.name == "root").unwrap();
        assert_eq!((root.total, root.own), (100, 60));
        let part = totals.iter().find(|total| total.name == "part").unwrap();
        assert_eq!((part.count, part.total, part.p50), (2, 40, 20));
    }

    #[test]
    fn parts_side_by_side_cover_their_time_once_and_none_after_the_end() {
        let spans = spans(&[
            (1, 0, 0, 100),
            (2, 1, 10, 60),
            (3, 1, 20, 50),
            (4, 1, 40, 70),
            (5, 1, 90, 300),
        ]);
        let totals = totals(spans.ended(), Date(300));
        let root = totals.iter().find(|total| total.name == "root").unwrap();
        assert_eq!((root.total, root.own), (100, 30));
    }
}
