//! A reader of what is new since the last look, as OTLP has it. Pure: it is told the time and what
//! is seen.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use odeon::trace::{SpanContext, SpanKind};
use odeon::{ActorId, ProcessId};
use odeon_observe::cluster_view::Recorded;
use odeon_observe::event::{Event, EventKind, Subject};
use odeon_observe::spans::Span;
use odeon_observe::{ClusterView, Date};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as PointValue;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Gauge, Histogram, HistogramDataPoint, Metric as Told,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exemplar, metric::Data,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Sent};
use opentelemetry_semantic_conventions::SCHEMA_URL;

use crate::attributes::{label, number, scope, text, yes};
use crate::log;
use crate::metric::MetricKind;
use crate::numbers::{By, OVERFLOW, Reading, Value, bounds_of_times, readings};
use crate::outbox::Counts;
use crate::resource::{self, Names};
use crate::span::{self, Sender};
use crate::tally::Tally;

/// A reader that knows how far a cluster view has been exported.
#[derive(Debug)]
pub struct Reader {
    given: opentelemetry_sdk::Resource,
    at: Place,
    leads: bool,
    /// Number of points of each recorded number that were told.
    points: HashMap<SeriesKey, u64>,
    /// Recorded numbers of before are none of this reader's.
    points_from: Date,
    tells: Tells,
    failed: HashMap<ActorId, FailedSpan>,
    tally: Tally,
    /// Where it was while another exported, the oldest first.
    marks: VecDeque<(Date, Place)>,
    forgotten: u64,
    /// Set once nothing is waited for.
    ends: bool,
}

/// The items that there are to send.
#[derive(Debug, Default)]
pub struct Export {
    /// Spans by process.
    pub spans: Vec<ResourceSpans>,
    /// Number of spans.
    pub span_count: u64,
    /// Records by process.
    pub logs: Vec<ResourceLogs>,
    /// Number of records.
    pub log_count: u64,
    /// There is more to read at once.
    pub more: bool,
}

/// Numbers of spans and events that were told.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    spans: u64,
    events: u64,
    /// This reader has told so many itself.
    is_own: bool,
}

/// A recorded number: its name, who records it, and what it is of.
type SeriesKey = (String, ActorId, String);

/// A handler that failed.
#[derive(Clone, Copy, Debug)]
struct FailedSpan {
    context: SpanContext,
    start: Date,
    end: Date,
}

/// The last messages that were told, so that their handlers are known as such.
#[derive(Debug, Default)]
struct Tells {
    known: HashMap<u64, ProcessId>,
    order: VecDeque<u64>,
}

/// Spans of one request: half a megabyte or so.
const SPANS_MAX: usize = 2_000;
/// Records of one request.
const RECORDS_MAX: usize = 2_000;
/// Data points of one request, about.
const POINTS_MAX: usize = 5_000;
/// Tells that are remembered until their handlers end.
const TELLS_MAX: usize = 65_536;
/// Failures that are remembered until somebody tells of them.
const FAILED_MAX: usize = 10_000;
/// The longest time after a handler's end at which its failure may be told.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// The longest time that the record of a failure waits for the span of the handler that failed: its
/// process shows it by itself, and may be slow.
const SPAN_WITHIN: Duration = Duration::from_secs(3);
/// The time before a takeover that is sent again: another may have left it unsent when it fell
/// silent, or has sent it.
pub const OVERLAP: Duration = Duration::from_secs(10);

impl Reader {
    /// One that has told nothing yet.
    #[must_use]
    pub fn new(given: opentelemetry_sdk::Resource) -> Self {
        Self {
            given,
            at: Place::default(),
            leads: false,
            points: HashMap::new(),
            points_from: Date(0),
            tells: Tells::default(),
            failed: HashMap::new(),
            tally: Tally::default(),
            marks: VecDeque::new(),
            forgotten: 0,
            ends: false,
        }
    }

    /// Nothing comes any more: from now on it tells all that there is.
    pub const fn end(&mut self) {
        self.ends = true;
    }

    /// Spans that were forgotten before they were read.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Another exports. What it has not told when it falls silent is within [`OVERLAP`].
    pub fn stand_by(&mut self, seen: &ClusterView, now: Date) {
        let place = Place {
            spans: seen.spans().told(),
            events: seen.events().told(),
            is_own: false,
        };
        // Whoever exported until now goes on where it was, should nobody else have taken over.
        let place = if self.leads { self.at } else { place };
        self.leads = false;
        self.marks.push_back((now, place));
        while self.marks.len() > 1 && now.since(self.marks[1].0) >= OVERLAP {
            self.marks.pop_front();
        }
        self.tally.take(seen, now);
    }

    /// From now on this one exports, a little before from where the other may have ended.
    pub fn take_over(&mut self) {
        if let Some((date, place)) = self.marks.pop_front() {
            if !place.is_own {
                self.points_from = date;
                self.points.clear();
            }
            self.at = place;
            self.marks.clear();
        }
        self.at.is_own = true;
        self.leads = true;
    }

    /// Spans and events that have come since the last time.
    pub fn news(&mut self, seen: &ClusterView, names: &Names, now: Date) -> Export {
        let after = seen.spans().after(self.at.spans).take(SPANS_MAX);
        let (numbers, new): (Vec<u64>, Vec<&Span>) = after.unzip();
        let at = match numbers.last() {
            Some(last) if new.len() == SPANS_MAX => *last,
            _ => seen.spans().told(),
        };
        self.forgotten += at.saturating_sub(self.at.spans) - new.len() as u64;
        self.at.spans = at;
        let mut export = Export {
            more: self.at.spans < seen.spans().told(),
            ..Export::default()
        };
        for span in &new {
            self.note(span);
        }
        let events: Vec<&Event> = seen.events().after(self.at.events).collect();
        let mut spans: BTreeMap<ProcessId, Vec<Sent>> = BTreeMap::new();
        // What was cut off while it ran never said which trace it is of, and a span without one makes
        // a collector refuse what comes with it.
        for span in new.into_iter().filter(|span| !span.context.is_empty()) {
            let why = self.why(span, &events);
            let sender = match self.tells.known.get(&span.parent) {
                Some(process) if span.kind == SpanKind::Handle => Sender::Told(*process),
                _ => Sender::Asked,
            };
            let process = seen.process(span.process);
            let one_in = process.map_or(1.0, |it| it.spans.one_in());
            let sent = span::sent(seen, span, sender, why, one_in);
            spans.entry(span.process).or_default().push(sent);
            export.span_count += 1;
        }
        export.spans = self.by_resource(seen, names, spans, |resource, spans| ResourceSpans {
            resource,
            scope_spans: vec![ScopeSpans {
                scope: Some(scope()),
                spans,
                schema_url: SCHEMA_URL.to_owned(),
            }],
            schema_url: SCHEMA_URL.to_owned(),
        });
        if !export.more {
            self.logs(seen, names, now, &mut export);
        }
        export
    }

    /// Numbers as they are now, and what programs have recorded since the last time: requests, each
    /// with how many data points it has.
    pub fn numbers(
        &mut self,
        seen: &ClusterView,
        names: &Names,
        counts: Option<&Counts>,
        now: Date,
    ) -> Vec<(Vec<ResourceMetrics>, u64)> {
        self.tally.take(seen, now);
        let mut points: BTreeMap<ProcessId, BTreeMap<String, Told>> = BTreeMap::new();
        for reading in readings(seen, &self.tally, counts, By::Process, now) {
            let Some(process) = reading.owner.process else {
                continue;
            };
            let start = seen.process(process).map_or(now, |it| it.started);
            let own = points.entry(process).or_default();
            add(own, &reading, start, now);
        }
        let home = resource::home(seen);
        for recorded in seen.recorded() {
            let actor = seen.actors().get(recorded.actor);
            let process = actor.map_or(recorded.actor.home, |row| row.view.process);
            let process = seen.process(process).map(|it| it.id).or(home);
            let new = self.new_points(recorded);
            if let Some(process) = process.filter(|_| !new.is_empty()) {
                let own = points.entry(process).or_default();
                record(own, seen, recorded, new);
            }
        }
        let told = self.by_resource(seen, names, points, |resource, own| ResourceMetrics {
            resource,
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics: own.into_values().collect(),
                schema_url: SCHEMA_URL.to_owned(),
            }],
            schema_url: SCHEMA_URL.to_owned(),
        });
        let mut requests: Vec<(Vec<ResourceMetrics>, u64)> = vec![];
        for one in told {
            let count = count_of(&one);
            match requests.last_mut() {
                Some((request, all)) if *all + count <= POINTS_MAX as u64 => {
                    request.push(one);
                    *all += count;
                }
                _ => requests.push((vec![one], count)),
            }
        }
        requests
    }

    fn note(&mut self, span: &Span) {
        match span.kind {
            SpanKind::Tell => self.tells.add(span.id(), span.process),
            SpanKind::Handle if !span.ok => {
                if self.failed.len() >= FAILED_MAX {
                    self.failed.clear();
                }
                let failed = FailedSpan {
                    context: span.context,
                    start: span.start,
                    end: span.end_or(span.start),
                };
                self.failed.insert(span.actor, failed);
            }
            _ => {}
        }
    }

    /// Why a handler failed, where an event tells.
    fn why<'a>(&self, span: &Span, events: &[&'a Event]) -> Option<&'a str> {
        let failed = self.failed.get(&span.actor).filter(|_| !span.ok)?;
        let is_it = failed.context == span.context;
        let event = events.iter().find(|event| is_it && failed.tells(event))?;
        event.chain.first().map(String::as_str)
    }

    /// The span of the handler whose failure an event tells.
    fn span_of(&self, event: &Event) -> Option<SpanContext> {
        let Some(Subject::Actor(id)) = event.subject else {
            return None;
        };
        let failed = self.failed.get(&id).filter(|it| it.tells(event));
        failed.map(|it| it.context)
    }

    /// Returns true while the span of a failed handler may be on its way.
    fn expects_span(&self, event: &Event, now: Date) -> bool {
        let of_actor = matches!(event.subject, Some(Subject::Actor(_)));
        let fails = event.kind == EventKind::Failure && of_actor;
        fails && !self.ends && now.since(event.at) < SPAN_WITHIN
    }

    fn logs(&mut self, seen: &ClusterView, names: &Names, now: Date, export: &mut Export) {
        let mut records: BTreeMap<ProcessId, Vec<LogRecord>> = BTreeMap::new();
        let home = resource::home(seen);
        let mut waits = false;
        for event in seen.events().after(self.at.events).take(RECORDS_MAX) {
            let span = self.span_of(event);
            // They go in order, so those that came after it wait with it.
            if span.is_none() && self.expects_span(event, now) {
                waits = true;
                break;
            }
            self.at.events = event.seq;
            let process = match &event.subject {
                Some(Subject::Actor(id)) => seen.actors().get(*id).map(|it| it.view.process),
                Some(Subject::Process(id)) => Some(*id),
                Some(Subject::Node(node) | Subject::Device(node, _)) => {
                    seen.node(node).map(|it| it.process)
                }
                _ => None,
            };
            let known = process.filter(|process| seen.process(*process).is_some());
            // Before anything is seen there is nobody to tell it of.
            let Some(process) = known.or(home) else {
                continue;
            };
            let record = log::record(seen, event, span, now);
            records.entry(process).or_default().push(record);
            export.log_count += 1;
        }
        export.more |= !waits && self.at.events < seen.events().told();
        export.logs =
            self.by_resource(seen, names, records, |resource, log_records| ResourceLogs {
                resource,
                scope_logs: vec![ScopeLogs {
                    scope: Some(scope()),
                    log_records,
                    schema_url: SCHEMA_URL.to_owned(),
                }],
                schema_url: SCHEMA_URL.to_owned(),
            });
    }

    fn by_resource<T, R>(
        &self,
        seen: &ClusterView,
        names: &Names,
        all: BTreeMap<ProcessId, T>,
        make: impl Fn(Option<Resource>, T) -> R,
    ) -> Vec<R> {
        let all = all.into_iter();
        let told = all.map(|(id, own)| {
            let process = seen.process(id);
            let resource = process.map(|it| resource::resource(it, names, &self.given));
            make(resource, own)
        });
        told.collect()
    }

    /// The points of a recorded number that were not told: when, at which step, and how much.
    fn new_points<'a>(&mut self, recorded: &'a Recorded) -> Vec<&'a (Date, Option<f64>, f64)> {
        let of = recorded.labels.iter();
        let of: Vec<_> = of.map(|(name, value)| format!("{name}={value}")).collect();
        let key = (recorded.name.clone(), recorded.actor, of.join(","));
        let told = self.points.insert(key, recorded.told).unwrap_or(0);
        let forgotten = recorded.told - recorded.points.len() as u64;
        let skip = told.saturating_sub(forgotten) as usize;
        let new = recorded.points.iter().skip(skip);
        new.filter(|(at, ..)| *at >= self.points_from).collect()
    }
}

impl FailedSpan {
    /// Returns true where an event is about this failure.
    fn tells(&self, event: &Event) -> bool {
        event.kind == EventKind::Failure
            && event.at >= self.start
            && event.at.since(self.end) <= TOLD_WITHIN
    }
}

impl Tells {
    fn add(&mut self, span: u64, process: ProcessId) {
        if self.known.insert(span, process).is_some() {
            return;
        }
        self.order.push_back(span);
        if self.order.len() > TELLS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

fn add(own: &mut BTreeMap<String, Told>, reading: &Reading, start: Date, now: Date) {
    let metric = reading.metric;
    let attributes = reading.labels.iter().map(|(name, value)| match *name {
        OVERFLOW => yes(OVERFLOW),
        name => text(name, value.as_str()),
    });
    let attributes: Vec<_> = attributes.collect();
    let told = own.entry(metric.name.to_owned()).or_insert_with(|| Told {
        name: metric.name.to_owned(),
        description: metric.about.to_owned(),
        unit: metric.unit.to_owned(),
        metadata: vec![],
        data: Some(nothing_of(metric.kind)),
    });
    let value = match &reading.value {
        Value::Int(value) => PointValue::AsInt(i64::try_from(*value).unwrap_or(i64::MAX)),
        Value::Number(value) => PointValue::AsDouble(*value),
        Value::Spread(spread) => {
            if let Some(Data::Histogram(histogram)) = &mut told.data {
                histogram.data_points.push(HistogramDataPoint {
                    attributes,
                    start_time_unix_nano: start.0,
                    time_unix_nano: now.0,
                    count: spread.all,
                    sum: Some(spread.sum),
                    bucket_counts: spread.apart(),
                    explicit_bounds: bounds_of_times().collect(),
                    ..HistogramDataPoint::default()
                });
            }
            return;
        }
    };
    let point = NumberDataPoint {
        attributes,
        start_time_unix_nano: match metric.kind {
            MetricKind::Gauge => 0,
            MetricKind::Counter | MetricKind::UpDownCounter | MetricKind::Histogram => start.0,
        },
        time_unix_nano: now.0,
        value: Some(value),
        ..NumberDataPoint::default()
    };
    match &mut told.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.push(point),
        Some(Data::Sum(sum)) => sum.data_points.push(point),
        _ => {}
    }
}

/// No points of a kind yet.
fn nothing_of(kind: MetricKind) -> Data {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    match kind {
        MetricKind::Gauge => Data::Gauge(Gauge::default()),
        MetricKind::Histogram => Data::Histogram(Histogram {
            data_points: vec![],
            aggregation_temporality,
        }),
        MetricKind::Counter | MetricKind::UpDownCounter => Data::Sum(Sum {
            data_points: vec![],
            aggregation_temporality,
            is_monotonic: kind == MetricKind::Counter,
        }),
    }
}

/// Adds a number that a program has recorded, under its own name. The step is no attribute, or each
/// would make a series of its own: it goes with the point as an exemplar.
fn record(
    own: &mut BTreeMap<String, Told>,
    seen: &ClusterView,
    recorded: &Recorded,
    new: Vec<&(Date, Option<f64>, f64)>,
) {
    let labels = recorded.labels.iter().filter(|(name, _)| name != "unit");
    let mut about: Vec<KeyValue> = labels.map(|(name, value)| label(name, value)).collect();
    if !recorded.actor.is_root() {
        about.push(text("odeon.actor.title", seen.title_of(recorded.actor)));
    }
    let points = new.into_iter().map(|(at, step, value)| NumberDataPoint {
        attributes: about.clone(),
        time_unix_nano: at.0,
        exemplars: step
            .map(|step| of_step(*at, step, *value))
            .into_iter()
            .collect(),
        value: Some(PointValue::AsDouble(*value)),
        ..NumberDataPoint::default()
    });
    let unit = recorded.labels.iter().find(|(name, _)| name == "unit");
    let told = own.entry(recorded.name.clone()).or_insert_with(|| Told {
        name: recorded.name.clone(),
        description: "Recorded by the program".to_owned(),
        unit: unit.map_or_else(String::new, |(_, unit)| unit.to_string()),
        metadata: vec![],
        data: Some(Data::Gauge(Gauge::default())),
    });
    // A name of Odeon's own that a program takes for a count stays what it is.
    if let Some(Data::Gauge(gauge)) = &mut told.data {
        gauge.data_points.extend(points);
    }
}

fn of_step(at: Date, step: f64, value: f64) -> Exemplar {
    Exemplar {
        filtered_attributes: vec![number("step", step)],
        time_unix_nano: at.0,
        value: Some(exemplar::Value::AsDouble(value)),
        ..Exemplar::default()
    }
}

fn count_of(metrics: &ResourceMetrics) -> u64 {
    let all = metrics.scope_metrics.iter().flat_map(|it| &it.metrics);
    let counts = all.map(|metric| match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len() as u64,
        Some(Data::Sum(sum)) => sum.data_points.len() as u64,
        Some(Data::Histogram(histogram)) => histogram.data_points.len() as u64,
        _ => 0,
    });
    counts.sum()
}
