//! Lanes of time: nodes, their processes, their actors, with the spans of each or, where there are
//! more than can be read, how busy each moment was.

use std::collections::{BTreeMap, HashMap, HashSet};

use odeon::trace::SpanKind;
use odeon::{ActorId, ProcessId};

use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;
use crate::spans::{Gap, Span};

/// The part of time that is wanted, and how finely.
#[derive(Clone, Debug)]
pub struct Window {
    /// From here.
    pub from: Date,
    /// To here.
    pub to: Date,
    /// Number of points that it is wide on the screen.
    pub width: usize,
    /// The lanes that show what is below them; `None` for as many as make sense.
    pub open: Option<HashSet<String>>,
}

/// The kind of thing that a lane is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneKind {
    /// A node, all its processes.
    Node,
    /// A process, all its actors.
    Process,
    /// An actor, or what runs outside of actors.
    Actor,
}

/// A line of time.
#[derive(Debug)]
pub struct Lane<'a> {
    /// Its name for machines.
    pub id: String,
    /// The lane above.
    pub parent: Option<String>,
    /// The kind of thing that it is of.
    pub kind: LaneKind,
    /// Its name for people.
    pub name: String,
    /// The very thing that it is of.
    pub subject: Option<Subject>,
    /// Set where the lanes below it follow.
    pub open: bool,
    /// Number of lanes below it.
    pub children: usize,
    /// The spans or buckets that it shows.
    pub marks: Marks<'a>,
    /// Where something is missing.
    pub gaps: Vec<Gap>,
}

/// The contents of a lane.
#[derive(Debug)]
pub enum Marks<'a> {
    /// Each span, and in which row of the lane.
    Spans(Vec<(&'a Span, u16)>),
    /// Each bucket of time, and how busy it was.
    Buckets(Vec<Bucket>),
}

/// A bucket of time, and how busy it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Counted from the window's begin.
    pub index: usize,
    /// Number of the actors that the lane stands for that were at work, on average over the bucket.
    pub busy: f64,
    /// Spans that failed in it.
    pub failed: u32,
}

/// Lanes below one that are shown; the busiest.
const LANES_MAX: usize = 200;
/// Rows of one lane.
const ROWS_MAX: u16 = 12;
/// Actors up to which all lanes are open unless somebody says.
const OPEN_MAX: usize = 60;

/// A timeline.
#[derive(Debug)]
pub struct Timeline<'a> {
    /// Its lanes, each before those below it.
    pub lanes: Vec<Lane<'a>>,
    /// The length of a bucket, in nanoseconds.
    pub bucket: u64,
    /// Lanes of open processes that are left out, since others are busier.
    pub left_out: usize,
}

/// The spans of the lanes of one process.
type Lanes<'a> = BTreeMap<ActorId, Vec<&'a Span>>;

/// Lays out what was seen.
#[must_use]
pub fn timeline<'a>(seen: &'a ClusterView, window: &Window, now: Date) -> Timeline<'a> {
    let mut processes: BTreeMap<ProcessId, Lanes<'a>> = BTreeMap::new();
    for span in seen.spans().between(window.from, window.to) {
        let lanes = processes.entry(span.process).or_default();
        lanes.entry(span.by).or_default().push(span);
    }
    let mut nodes: BTreeMap<&str, Vec<(ProcessId, Lanes<'a>)>> = BTreeMap::new();
    for (process, lanes) in processes {
        let node = seen.process(process).map_or("?", |it| it.node.as_str());
        nodes.entry(node).or_default().push((process, lanes));
    }
    let lanes = nodes
        .values()
        .flatten()
        .map(|(_, lanes)| lanes.len())
        .sum::<usize>();
    let layout = Layout {
        seen,
        window,
        now,
        open_all: window.open.is_none() && lanes <= OPEN_MAX,
        bucket: bucket_of(window),
    };
    let mut timeline = Timeline {
        lanes: vec![],
        bucket: layout.bucket,
        left_out: 0,
    };
    for (node, processes) in nodes {
        layout.node(node, &processes, &mut timeline);
    }
    timeline
}

/// Two points of the screen.
fn bucket_of(window: &Window) -> u64 {
    let wide = window.to.since(window.from).as_nanos() as u64;
    (wide / (window.width as u64 / 2).max(1)).max(1)
}

struct Layout<'a, 'w> {
    seen: &'a ClusterView,
    window: &'w Window,
    now: Date,
    open_all: bool,
    bucket: u64,
}

impl<'a> Layout<'a, '_> {
    fn is_open(&self, id: &str, by_itself: bool) -> bool {
        match &self.window.open {
            Some(open) => open.contains(id),
            None => by_itself || self.open_all,
        }
    }

    fn node(&self, node: &str, processes: &[(ProcessId, Lanes<'a>)], into: &mut Timeline<'a>) {
        let id = format!("n:{node}");
        let open = self.is_open(&id, true);
        let all = processes.iter().flat_map(|(_, lanes)| lanes.values());
        into.lanes.push(Lane {
            parent: None,
            kind: LaneKind::Node,
            name: node.to_owned(),
            subject: Some(Subject::Node(node.to_owned())),
            open,
            children: processes.len(),
            marks: Marks::Buckets(self.buckets(all)),
            gaps: vec![],
            id: id.clone(),
        });
        if open {
            for (process, lanes) in processes {
                self.process(&id, *process, lanes, into);
            }
        }
    }

    fn process(&self, above: &str, process: ProcessId, lanes: &Lanes<'a>, into: &mut Timeline<'a>) {
        let id = format!("p:{process}");
        let open = self.is_open(&id, false);
        let gaps = self.seen.spans().gaps().filter(|gap| {
            gap.process == process && gap.from <= self.window.to && gap.to >= self.window.from
        });
        into.lanes.push(Lane {
            parent: Some(above.to_owned()),
            kind: LaneKind::Process,
            name: self.seen.process_title(process),
            subject: Some(Subject::Process(process)),
            open,
            children: lanes.len(),
            marks: Marks::Buckets(self.buckets(lanes.values())),
            gaps: gaps.copied().collect(),
            id: id.clone(),
        });
        if !open {
            return;
        }
        let mut busiest: Vec<_> = lanes.iter().collect();
        if busiest.len() > LANES_MAX {
            into.left_out += busiest.len() - LANES_MAX;
            busiest.sort_by_key(|(_, spans)| std::cmp::Reverse(spans.len()));
            busiest.truncate(LANES_MAX);
            busiest.sort_by_key(|(actor, _)| **actor);
        }
        for (actor, spans) in busiest {
            let outside = actor.is_root();
            into.lanes.push(Lane {
                id: format!("a:{actor}"),
                parent: Some(id.clone()),
                kind: LaneKind::Actor,
                name: match outside {
                    true => "outside of actors".to_owned(),
                    false => self.seen.title_of(*actor),
                },
                subject: (!outside).then_some(Subject::Actor(*actor)),
                open: false,
                children: 0,
                marks: self.marks(spans),
                gaps: vec![],
            });
        }
    }

    /// Spans where there are at most two to a point of the screen.
    fn marks(&self, spans: &Vec<&'a Span>) -> Marks<'a> {
        if spans.len() > 2 * self.window.width {
            return Marks::Buckets(self.buckets([spans]));
        }
        let mut spans = spans.clone();
        spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end_or(self.now))));
        // Each below what caused it, so that it is where it was when the window moves on.
        let (mut ends, mut rows): (Vec<Date>, HashMap<u64, usize>) = (vec![], HashMap::new());
        let placed = spans.into_iter().map(|span| {
            let highest = rows.get(&span.parent).map_or(0, |row| row + 1);
            let free = (highest..ends.len()).find(|row| ends[*row] <= span.start);
            let row = free.unwrap_or_else(|| ends.len().max(highest));
            if row >= ends.len() {
                ends.resize(row + 1, Date::default());
            }
            ends[row] = span.end_or(self.now);
            rows.insert(span.id(), row);
            (span, (row as u16).min(ROWS_MAX - 1))
        });
        Marks::Spans(placed.collect())
    }

    /// The buckets of actors with these spans: how busy the actors were.
    fn buckets<'s>(&self, actors: impl IntoIterator<Item = &'s Vec<&'a Span>>) -> Vec<Bucket>
    where
        'a: 's,
    {
        let wide = self.window.to.since(self.window.from).as_nanos() as u64;
        let count = usize::try_from(wide.div_ceil(self.bucket)).unwrap_or(usize::MAX);
        let mut busy = vec![0u64; count];
        let mut failed = vec![0u32; count];
        let place = |date: Date| date.0.saturating_sub(self.window.from.0).min(wide);
        for spans in actors {
            let mut parts = Vec::with_capacity(spans.len());
            for span in spans {
                let (from, to) = (place(span.start), place(span.end_or(self.now)));
                let last = ((to / self.bucket) as usize).min(count.saturating_sub(1));
                if !span.ok && count > 0 {
                    failed[last] += 1;
                }
                // Who asks waits; the work is that of the other.
                if matches!(
                    span.kind,
                    SpanKind::Handle | SpanKind::User | SpanKind::Copy | SpanKind::Collective
                ) {
                    parts.push((from, to));
                }
            }
            // A span within another is work once.
            parts.sort_unstable();
            let mut done = 0;
            for (from, to) in parts {
                let mut at = from.max(done);
                while at < to {
                    let index = (at / self.bucket) as usize;
                    let end = ((index as u64 + 1) * self.bucket).min(to);
                    busy[index] += end - at;
                    at = end;
                }
                done = done.max(to);
            }
        }
        let share = |nanos: u64| nanos as f64 / self.bucket as f64;
        let seen = busy.into_iter().zip(failed).enumerate();
        let seen = seen.filter(|(_, (nanos, failed))| *nanos > 0 || *failed > 0);
        seen.map(|(index, (nanos, failed))| Bucket {
            index,
            busy: share(nanos),
            failed,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use odeon::trace::SpanContext;

    use super::*;

    fn span(from: u64, to: u64, ok: bool) -> Span {
        let by = ActorId::root(ProcessId(1));
        Span {
            context: SpanContext::default(),
            parent: 0,
            kind: SpanKind::Handle,
            name: "M".into(),
            by,
            actor: by,
            process: ProcessId(1),
            queued: Date(from),
            start: Date(from),
            end: Some(Date(to)),
            ok,
            labels: vec![],
        }
    }

    #[test]
    fn a_lane_says_how_many_actors_were_at_work_each_once() {
        let window = Window {
            from: Date(100),
            to: Date(200),
            width: 4,
            open: None,
        };
        let layout = Layout {
            seen: &ClusterView::default(),
            window: &window,
            now: Date(1_000),
            open_all: true,
            bucket: bucket_of(&window),
        };
        // One within another, and one that begins before the window; two more are at work beside them.
        let one = [
            span(50, 140, true),
            span(110, 130, true),
            span(120, 150, false),
        ];
        let others = [span(100, 125, true), span(100, 150, true)];
        let lanes = [one.iter().collect(), vec![&others[0]], vec![&others[1]]];
        let told = layout.buckets(&lanes);
        let told: Vec<_> = told
            .iter()
            .map(|it| (it.index, it.busy, it.failed))
            .collect();
        // In buckets of 50: 50 of the first, 25 of the second, 50 of the third.
        assert_eq!(told, [(0, 2.5, 0), (1, 0.0, 1)]);
    }
}
