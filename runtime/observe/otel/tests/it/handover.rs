//! Two that see the same, of which one exports: what comes twice and what is missing when the other goes on.

use std::collections::BTreeMap;

use odeon::inspect::{ActorView, ProcessKind, RunningView};
use odeon::telemetry::Point;
use odeon::trace::{Outcome, Span, SpanContext, SpanKind};
use odeon::{ActorId, Phase, ProcessId, Timestamp};
use odeon_observe::event::{Event, EventKind, Severity, Subject};
use odeon_observe::{ClusterView, Date};
use odeon_otel::{Export, Names, OVERLAP, Reader};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;

use crate::sights;

const NODE: ProcessId = ProcessId(0x0a);

fn at(second: u64) -> Date {
    Date((1_000 + second) * 1_000_000_000)
}

/// The span of a second.
fn span(second: u64) -> Span {
    let by = ActorId::root(NODE);
    Span {
        context: SpanContext {
            trace_id: 7,
            span_id: second + 1,
            flags: 1,
        },
        parent: 0,
        kind: SpanKind::User,
        by,
        actor: by,
        message: "second".into(),
        queued: Timestamp(1),
        started: Timestamp(1),
        ended: Timestamp(1),
        outcome: Outcome::Ok,
        labels: vec![],
    }
}

/// Takes in a second of sight: a span and a number of that name.
fn look(seen: &mut ClusterView, second: u64) {
    show(seen, second, span(second));
}

/// Takes in a second of sight in which a span is shown.
fn show(seen: &mut ClusterView, second: u64, span: Span) {
    let point = Point {
        at: Timestamp(1),
        actor: ActorId::root(NODE),
        name: "second".into(),
        value: second as f64,
        labels: vec![],
    };
    let mut sight = sights::sight(NODE, "odeon");
    sight.spans = vec![span];
    sight.points = vec![point];
    let node = sights::node("first", vec![sights::process(sight, ProcessKind::Node)]);
    seen.look(node, (Timestamp(1), at(second)), Some((0, OVERLAP)));
    seen.tick(at(second));
}

fn reader() -> Reader {
    Reader::new(opentelemetry_sdk::Resource::builder_empty().build())
}

/// The seconds whose spans are in an export.
fn spans(export: &Export) -> Vec<u64> {
    let scopes = export.spans.iter().flat_map(|it| &it.scope_spans);
    let ids = scopes.flat_map(|it| &it.spans).map(|it| &it.span_id);
    let ids = ids.map(|id| u64::from_be_bytes(id.as_slice().try_into().unwrap()) - 1);
    ids.collect()
}

/// The seconds whose numbers a reader tells.
fn numbers(reader: &mut Reader, seen: &ClusterView, second: u64) -> Vec<u64> {
    let requests = reader.numbers(seen, &Names::default(), None, at(second));
    let resources = requests.iter().flat_map(|(resources, _)| resources);
    let scopes = resources.flat_map(|it| &it.scope_metrics);
    let own = scopes.flat_map(|it| &it.metrics);
    let own = own.filter(|it| it.name == "second");
    let points = own.flat_map(|metric| match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.clone(),
        other => panic!("{other:?}"),
    });
    let times = points.map(|it| it.time_unix_nano / 1_000_000_000 - 1_000);
    times.collect()
}

/// SEMANTICS 74.
#[test]
fn the_next_begins_a_little_before_where_the_other_ended() {
    let mut seen = ClusterView::default();
    let (mut first, mut next) = (reader(), reader());
    let (mut told, mut counted) = (vec![], vec![]);
    let mut news = |reader: &mut Reader, seen: &ClusterView, second| {
        let export = reader.news(seen, &Names::default(), at(second));
        assert!(!export.more);
        told.extend(spans(&export));
        counted.extend(numbers(reader, seen, second));
    };
    for second in 0..30 {
        look(&mut seen, second);
        next.stand_by(&seen, at(second));
        // It is killed three seconds before that is known.
        if second < 27 {
            news(&mut first, &seen, second);
        }
    }
    next.take_over();
    for second in 30..40 {
        look(&mut seen, second);
        news(&mut next, &seen, second);
    }
    for seconds in [told, counted] {
        let mut times: BTreeMap<u64, u32> = BTreeMap::new();
        seconds
            .iter()
            .for_each(|second| *times.entry(*second).or_default() += 1);
        let all: Vec<u64> = times.keys().copied().collect();
        assert_eq!(all, (0..40).collect::<Vec<_>>(), "nothing is missing");
        let twice: Vec<u64> = times
            .iter()
            .filter(|it| *it.1 > 1)
            .map(|it| *it.0)
            .collect();
        assert!(times.values().all(|count| *count <= 2));
        assert!(
            !twice.is_empty() && twice.len() as u64 <= OVERLAP.as_secs(),
            "{twice:?}"
        );
        assert!(
            twice.iter().all(|second| (19..27).contains(second)),
            "{twice:?}"
        );
    }
}

/// It is seen, but has no trace, and a collector refuses all that comes with such a span.
#[test]
fn a_handler_that_was_cut_off_with_its_process_is_not_sent() {
    let mut seen = ClusterView::default();
    let process = ProcessId(0x0b);
    let mut sight = sights::sight(process, "odeon");
    let actor = ActorId {
        home: NODE,
        serial: 9,
    };
    sight.actors = vec![ActorView {
        id: actor,
        parent: ActorId::root(NODE),
        actor: "T".to_owned(),
        process,
        incarnation: 1,
        phase: Phase::Running,
        queued: 0,
        room: 1,
        queued_bytes: 0,
        handled: 0,
        failed: 0,
        busy: 0,
        waited: 0,
        changed: Timestamp(1),
        running: Some(RunningView {
            message: "Step".to_owned(),
            since: Timestamp(1),
            span: 77,
        }),
        devices: vec![],
    }];
    let own = sights::process(sights::sight(NODE, "odeon"), ProcessKind::Node);
    let worker = sights::process(sight, ProcessKind::Worker);
    let both = sights::node("first", vec![own, worker]);
    seen.look(both, (Timestamp(1), at(0)), Some((0, OVERLAP)));
    look(&mut seen, 1);
    let cut = seen.spans().ended().find(|span| span.id() == 77);
    assert!(cut.is_some_and(|span| !span.ok));
    let export = reader().news(&seen, &Names::default(), at(1));
    assert_eq!((spans(&export), export.span_count), (vec![1], 1));
}

/// One process tells that an actor has failed, another one shows the handler, and not at once.
#[test]
fn a_failure_waits_for_the_span_of_its_handler_and_not_for_ever() {
    let actor = ActorId {
        home: NODE,
        serial: 9,
    };
    let failure = |reader: &mut Reader, seen: &ClusterView, second| {
        let export = reader.news(seen, &Names::default(), at(second));
        assert!(!export.more);
        let scopes = export.logs.into_iter().flat_map(|it| it.scope_logs);
        let records: Vec<_> = scopes.flat_map(|it| it.log_records).collect();
        assert_eq!(records.len() as u64, export.log_count);
        let mut failures = records.into_iter();
        failures.find(|it| it.event_name == "odeon.failure")
    };
    let mut seen = ClusterView::default();
    look(&mut seen, 0);
    let mut readers = [reader(), reader(), reader()];
    let [shown, ended, alone] = &mut readers;
    for reader in [&mut *shown, ended, alone] {
        assert_eq!(failure(reader, &seen, 0), None);
    }
    seen.note(Event {
        seq: 0,
        at: at(1),
        kind: EventKind::Failure,
        severity: Severity::Error,
        subject: Some(Subject::Actor(actor)),
        name: None,
        rule: None,
        sentence: "T 9: it has failed".to_owned(),
        chain: vec!["boom".to_owned()],
        since: None,
    });
    for reader in [&mut *shown, ended, alone] {
        assert_eq!(failure(reader, &seen, 2), None, "its span may come");
    }
    ended.end();
    let unknown = failure(ended, &seen, 2).expect("nothing comes any more");
    assert_eq!(unknown.span_id, Vec::<u8>::new());
    let unknown = failure(alone, &seen, 4).expect("nothing came for three seconds");
    assert_eq!(unknown.span_id, Vec::<u8>::new());
    let handler = Span {
        context: SpanContext {
            trace_id: 7,
            span_id: 77,
            flags: 1,
        },
        kind: SpanKind::Handle,
        actor,
        message: "Boom".into(),
        outcome: Outcome::Failed,
        ..span(2)
    };
    show(&mut seen, 1, handler);
    let known = failure(shown, &seen, 3).expect("its span has come");
    assert_eq!(known.span_id, 77_u64.to_be_bytes());
    assert_eq!(failure(shown, &seen, 9), None, "it comes once");
}

#[test]
fn whoever_leads_again_goes_on_where_it_was() {
    let mut seen = ClusterView::default();
    let mut reader = reader();
    let (mut told, mut counted) = (vec![], vec![]);
    for second in 0..20 {
        look(&mut seen, second);
        // For a moment it does not know whether it leads.
        if (8..11).contains(&second) {
            reader.stand_by(&seen, at(second));
            continue;
        }
        if [0, 11].contains(&second) {
            reader.take_over();
        }
        // What has come since the last time is read a second later.
        if second % 2 == 1 {
            told.extend(spans(&reader.news(&seen, &Names::default(), at(second))));
            counted.extend(numbers(&mut reader, &seen, second));
        }
    }
    let all: Vec<u64> = (0..20).collect();
    assert_eq!((&told, &counted), (&all, &all));
}

#[test]
fn more_than_fits_into_one_request_comes_in_several_and_once() {
    let mut seen = ClusterView::default();
    (0..5_000).for_each(|second| look(&mut seen, second));
    let mut reader = reader();
    let mut told = vec![];
    loop {
        let export = reader.news(&seen, &Names::default(), at(5_000));
        assert_eq!(export.span_count as usize, spans(&export).len());
        told.extend(spans(&export));
        if !export.more {
            break;
        }
    }
    assert_eq!(told, (0..5_000).collect::<Vec<_>>());
    assert_eq!(reader.forgotten(), 0);
}
