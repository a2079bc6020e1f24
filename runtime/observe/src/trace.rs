//! One trace: all that one message caused, and the path through it that decided when it was over.

use std::collections::{BTreeMap, HashMap, HashSet};

use odeon::trace::SpanKind;

use crate::date::Date;
use crate::spans::{Span, Spans};

/// The spans of one trace, parents before their children.
#[derive(Clone, Debug)]
pub struct Trace<'a> {
    /// Its spans.
    pub spans: Vec<&'a Span>,
    /// Those on the critical path, by number: had one of them been shorter, the whole would have been.
    pub critical: Vec<u64>,
    /// Spans whose parents are missing.
    pub lost: usize,
}

/// Puts a trace together.
#[must_use]
pub fn trace(spans: &Spans, id: u128, now: Date) -> Trace<'_> {
    let all = spans.ended().chain(spans.going_on());
    let mut own: Vec<&Span> = all.filter(|span| span.context.trace_id == id).collect();
    own.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end_or(now))));
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
    let critical = last.map_or(vec![], |root| critical_path(root, &children, now));
    Trace {
        spans: ordered,
        critical,
        lost,
    }
}

/// From the end back to the beginning: of what had ended by then, the part that ended last.
fn critical_path(root: &Span, children: &HashMap<u64, Vec<&Span>>, now: Date) -> Vec<u64> {
    let mut path = vec![];
    let mut seen = HashSet::new();
    let mut next = vec![(root, root.end_or(now))];
    while let Some((span, end)) = next.pop() {
        if !seen.insert(span.id()) {
            continue;
        }
        path.push(span.id());
        let below = children.get(&span.id()).map_or(&[][..], Vec::as_slice);
        let mut until = end;
        loop {
            let before = below.iter().filter(|it| !seen.contains(&it.id()));
            let before = before.filter(|it| it.end_or(now) <= until);
            let Some(last) = before.max_by_key(|it| (it.end_or(now), it.start)) else {
                break;
            };
            next.push((last, last.end_or(now).min(until)));
            until = last.start;
            if until <= span.start {
                break;
            }
        }
    }
    path
}

/// What spans of one kind and name took, all together.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// What they are called.
    pub name: String,
    /// What they cover.
    pub kind: SpanKind,
    /// How many.
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

/// Adds up by name what lies between two moments, the longest first.
#[must_use]
pub fn totals<'a>(spans: impl Iterator<Item = &'a Span>, now: Date) -> Vec<Total> {
    let spans: Vec<_> = spans.collect();
    let mut below: HashMap<u64, u64> = HashMap::new();
    for span in &spans {
        let lasted = span.end_or(now).since(span.start).as_nanos() as u64;
        *below.entry(span.parent).or_default() += lasted;
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
        group.own += lasted.saturating_sub(below.get(&span.id()).copied().unwrap_or(0));
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

    fn spans(rows: &[(u64, u64, u64, u64)]) -> Spans {
        let mut spans = Spans::default();
        for &(id, parent, start, end) in rows {
            let actor = ActorId::root(ProcessId(1));
            let span = odeon::trace::Span {
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
            };
            spans.add(span, ProcessId(1), Shift::new(Timestamp(0), Date(0)));
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

    #[test]
    fn spans_without_their_parents_are_shown_and_counted() {
        let spans = spans(&[(2, 1, 5, 25), (3, 2, 6, 10)]);
        let trace = trace(&spans, 7, Date(100));
        assert_eq!((trace.spans.len(), trace.lost), (2, 1));
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
}
