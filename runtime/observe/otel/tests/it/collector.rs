//! A collector that takes OTLP over HTTP and decodes it with the protocol's own types, and a program of
//! two processes that is exported to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use odeon::trace::{Sampling, SpanContext};
use odeon::{
    Clock, Context, FakeDevices, Limits, Ref, Restart, Supervision, System, WorkerCommand,
    WorkerMode, telemetry,
};
use odeon_devices::fake::{Fake, Spec};
use odeon_observe::Observer;
use odeon_otel::{ExportSource, Exporter, Names, Settings, Signal};
use odeon_topology::DeviceModel;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint, metric::Data};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(60);

struct Party;

#[odeon::actor(name = "otel.Party")]
impl Party {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    fn touch(&mut self) {}

    #[handler]
    async fn call(&mut self, other: Ref<Self>) -> bool {
        let told = other.tell(Touch).await.is_ok();
        told && other.ask(Touch).await.is_ok()
    }

    /// Tells itself to go on.
    #[handler]
    async fn go_on(&mut self, times: u32, cx: &mut Context<Self>) {
        if let Some(times) = times.checked_sub(1) {
            cx.me().tell(GoOn { times }).await.unwrap();
        }
    }

    #[handler]
    fn train(&mut self, steps: u64) {
        for step in 0..steps {
            let loss = 1.0 / (step + 1) as f64;
            telemetry::gauge("train.loss", loss)
                .with("step", step)
                .with("split", "train")
                .record();
        }
        telemetry::span("train step").with("version", 7).end();
    }

    #[handler]
    fn boom(&mut self) {
        panic!("boom")
    }
}

fn job() -> odeon::Job {
    odeon::job![Party]
}

#[test]
fn worker_entry() {
    job().serve_if_worker();
}

// ---- the collector ----

/// The items that have come, and the behaviour of the collector.
#[derive(Default)]
struct Taken {
    spans: Mutex<Vec<(Resource, Span)>>,
    logs: Mutex<Vec<(Resource, LogRecord)>>,
    metrics: Mutex<Vec<(Resource, Metric)>>,
    requests: AtomicU64,
    /// It answers that it is not there, for a while.
    busy: AtomicBool,
    /// It never answers.
    hangs: AtomicBool,
    changed: watch::Sender<u64>,
}

struct Collector {
    address: SocketAddr,
    taken: Arc<Taken>,
    tasks: JoinSet<()>,
}

impl Collector {
    async fn start() -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::default()).await
    }

    async fn at(address: SocketAddr, taken: Arc<Taken>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let own = Arc::clone(&taken);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let taken = Arc::clone(&own);
                connections.spawn(async move { serve(stream, &taken).await });
            }
        });
        Self {
            address,
            taken,
            tasks,
        }
    }

    /// Goes, and lets go of its address.
    async fn end(mut self) {
        self.tasks.shutdown().await;
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::to(&format!("http://{}", self.address)).unwrap();
        settings.interval = Duration::from_millis(50);
        settings.metrics_interval = Duration::from_millis(100);
        settings
    }

    /// Waits until something is true of what has come.
    async fn until<T>(&self, what: &str, fact: impl Fn(&Taken) -> Option<T>) -> T {
        let mut changed = self.taken.changed.subscribe();
        let waiting = async {
            loop {
                if let Some(found) = fact(&self.taken) {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        };
        match Clock::timeout(PATIENCE, waiting).await {
            Some(found) => found,
            None => {
                let spans = self.taken.spans.lock();
                let names: BTreeSet<_> = spans.iter().map(|(_, it)| it.name.clone()).collect();
                panic!("{what} has not come; there are {names:?}")
            }
        }
    }
}

/// One request after another: the head, and as many bytes as it says.
async fn serve(mut stream: TcpStream, taken: &Taken) {
    let mut bytes = vec![];
    loop {
        let head = loop {
            if let Some(at) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
                break at + 4;
            }
            let mut more = vec![0; 16 << 10];
            match stream.read(&mut more).await {
                Ok(0) | Err(_) => return,
                Ok(read) => bytes.extend_from_slice(&more[..read]),
            }
        };
        let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
        let length = text
            .lines()
            .find_map(|it| it.strip_prefix("content-length:"));
        let length: usize = length.map_or(0, |it| it.trim().parse().unwrap());
        while bytes.len() < head + length {
            let mut more = vec![0; 64 << 10];
            match stream.read(&mut more).await {
                Ok(0) | Err(_) => return,
                Ok(read) => bytes.extend_from_slice(&more[..read]),
            }
        }
        if taken.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let body: Vec<u8> = bytes.drain(..head + length).skip(head).collect();
        let path = text.split_whitespace().nth(1).unwrap();
        let status = match taken.busy.load(Ordering::SeqCst) {
            true => "503 Service Unavailable\r\nretry-after: 0",
            false if taken.take(path, &text, &body) => "200 OK",
            false => "404 Not Found",
        };
        taken.requests.fetch_add(1, Ordering::SeqCst);
        taken.changed.send_modify(|count| *count += 1);
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

impl Taken {
    fn take(&self, path: &str, head: &str, body: &[u8]) -> bool {
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        match path {
            "/v1/traces" => {
                let request = ExportTraceServiceRequest::decode(body).unwrap();
                for of in request.resource_spans {
                    let resource = of.resource.unwrap();
                    let spans = of.scope_spans.into_iter().flat_map(|it| it.spans);
                    let mut all = self.spans.lock();
                    all.extend(spans.map(|span| (resource.clone(), span)));
                }
            }
            "/v1/logs" => {
                let request = ExportLogsServiceRequest::decode(body).unwrap();
                for of in request.resource_logs {
                    let resource = of.resource.unwrap();
                    let records = of.scope_logs.into_iter().flat_map(|it| it.log_records);
                    let mut all = self.logs.lock();
                    all.extend(records.map(|record| (resource.clone(), record)));
                }
            }
            "/v1/metrics" => {
                let request = ExportMetricsServiceRequest::decode(body).unwrap();
                for of in request.resource_metrics {
                    let resource = of.resource.unwrap();
                    let metrics = of.scope_metrics.into_iter().flat_map(|it| it.metrics);
                    let mut all = self.metrics.lock();
                    all.extend(metrics.map(|metric| (resource.clone(), metric)));
                }
            }
            _ => return false,
        }
        true
    }

    fn span(&self, name: &str, kind: SpanKind) -> Option<(Resource, Span)> {
        let spans = self.spans.lock();
        let is_it = |span: &Span| span.name == name && span.kind == kind as i32;
        spans.iter().find(|(_, span)| is_it(span)).cloned()
    }

    /// The last points of a number, with their resources.
    fn points(&self, name: &str) -> Vec<(Resource, NumberDataPoint)> {
        let metrics = self.metrics.lock();
        let own = metrics.iter().filter(|(_, metric)| metric.name == name);
        let points = own.flat_map(|(resource, metric)| {
            let points = match metric.data.clone() {
                Some(Data::Gauge(gauge)) => gauge.data_points,
                Some(Data::Sum(sum)) => sum.data_points,
                other => panic!("{other:?}"),
            };
            points.into_iter().map(|point| (resource.clone(), point))
        });
        points.collect()
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|pair| pair.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        Value::ArrayValue(many) => Some(format!("{:?}", many.values)),
        other => panic!("{key}: {other:?}"),
    }
}

fn number(point: &NumberDataPoint) -> f64 {
    use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
    match point.value {
        Some(Value::AsDouble(value)) => value,
        Some(Value::AsInt(value)) => value as f64,
        None => panic!("a point without a value"),
    }
}

// ---- the program ----

async fn system(sampling: Sampling) -> System {
    let worker = WorkerCommand::current_exe().unwrap();
    let worker = worker.arg("collector::worker_entry").arg("--exact");
    let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let devices = FakeDevices::new(&fake, "node0").unwrap();
    let mut limits = Limits::default();
    limits.trace_sampling = sampling;
    System::builder()
        .job(job())
        .limits(limits)
        .supervision(Supervision::one_for_one().budget(50, Duration::from_secs(600)))
        .workers(WorkerMode::Processes(worker))
        .devices(devices)
        .start()
        .await
        .unwrap()
}

struct Exported {
    system: System,
    exporter: Exporter,
    following: tokio::task::JoinHandle<()>,
}

impl Exported {
    async fn start(settings: &Settings, sampling: Sampling) -> Self {
        let system = system(sampling).await;
        let observer = Observer::new("proof", 1);
        let source = ExportSource {
            observer: observer.clone(),
            names: Box::new(|| Names {
                whole: "proof".to_owned(),
                ..Names::default()
            }),
            leads: Box::new(|| true),
        };
        let exporter = Exporter::start(settings, source).unwrap();
        let own = system.clone();
        let following = tokio::spawn(async move { observer.follow(&own).await });
        Self {
            system,
            exporter,
            following,
        }
    }

    async fn end(self) -> odeon_otel::Counts {
        let counts = self.exporter.end().await;
        self.following.abort();
        self.system.shutdown().await;
        counts
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_two_processes_arrives_whole() {
    let collector = Collector::start().await;
    let exported = Exported::start(&collector.settings(), Sampling::All).await;
    let system = &exported.system;
    let near = system.spawn::<Party>(()).await.unwrap();
    let far = system
        .spawn::<Party>(())
        .restart(Restart::Permanent)
        .isolated();
    let far = far.await.unwrap();
    // Somebody else has begun the trace.
    let given = SpanContext::root();
    let call = near.ask(Call { other: far }).into_future();
    assert!(telemetry::below(given, call).await.unwrap());
    near.ask(Train { steps: 5 }).await.unwrap();
    far.ask(Boom).await.unwrap_err();

    // Spans: who caused what, over both processes, below the one that was given.
    let taken = |name: &'static str, kind| {
        let collector = &collector;
        async move { collector.until(name, |taken| taken.span(name, kind)).await }
    };
    let (own, asked) = taken("otel.Party/Call", SpanKind::Client).await;
    let (_, called) = taken("otel.Party/Call", SpanKind::Server).await;
    let (_, told) = taken("tell otel.Party/Touch", SpanKind::Producer).await;
    let (other, processed) = taken("process otel.Party/Touch", SpanKind::Consumer).await;
    let (_, served) = taken("otel.Party/Touch", SpanKind::Server).await;
    assert_eq!(asked.trace_id, given.trace_id.to_be_bytes());
    assert_eq!(asked.parent_span_id, given.span_id.to_be_bytes());
    for (span, parent) in [(&called, &asked), (&told, &called), (&processed, &told)] {
        assert_eq!(span.trace_id, asked.trace_id);
        assert_eq!(span.parent_span_id, parent.span_id, "{}", span.name);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert_eq!((span.flags & 1, span.span_id.len()), (1, 8));
    }
    assert_eq!(served.trace_id, asked.trace_id);
    assert_eq!(
        processed.flags & 0x300,
        0x300,
        "its parent is of another process"
    );
    let of = |span: &Span, key: &str| text(&span.attributes, key);
    assert_eq!(of(&asked, "rpc.system.name").as_deref(), Some("odeon"));
    assert_eq!(of(&asked, "rpc.method").as_deref(), Some("otel.Party/Call"));
    assert_eq!(
        of(&told, "messaging.operation.type").as_deref(),
        Some("send")
    );
    assert_eq!(
        of(&processed, "messaging.destination.name").as_deref(),
        Some("otel.Party")
    );
    assert_eq!(
        of(&processed, "odeon.actor.incarnation").as_deref(),
        Some("1")
    );
    assert_eq!(
        of(&told, "odeon.caller.type").as_deref(),
        Some("otel.Party")
    );
    let (_, step) = taken("train step", SpanKind::Internal).await;
    assert_eq!(of(&step, "version").as_deref(), Some("7"));

    // What an actor tells itself is the first of a trace, linked with what has caused it.
    near.tell(GoOn { times: 1 }).await.unwrap();
    let again = |taken: &Taken| {
        let spans = taken.spans.lock();
        let mut linked = spans.iter().filter(|(_, span)| !span.links.is_empty());
        linked.next().cloned()
    };
    let (_, again) = collector.until("a span with a link", again).await;
    assert_eq!(again.name, "tell otel.Party/GoOn");
    let (_, handled) = taken("process otel.Party/GoOn", SpanKind::Consumer).await;
    let [link] = &again.links[..] else {
        panic!("{:?}", again.links)
    };
    assert_eq!(link.trace_id, handled.trace_id);
    assert_eq!(link.span_id, handled.span_id);
    assert_ne!(again.trace_id, handled.trace_id);
    assert_eq!(again.parent_span_id, Vec::<u8>::new());

    // Resources: one for each process.
    let res = |resource: &Resource, key: &str| text(&resource.attributes, key);
    assert_eq!(res(&own, "service.name").as_deref(), Some("proof"));
    assert_eq!(res(&own, "odeon.process.kind").as_deref(), Some("node"));
    assert_eq!(res(&other, "odeon.process.kind").as_deref(), Some("worker"));
    let pid = std::process::id().to_string();
    assert_eq!(res(&own, "process.pid"), Some(pid.clone()));
    assert!(res(&other, "process.pid").is_some_and(|it| it != pid));
    assert_ne!(
        res(&own, "service.instance.id"),
        res(&other, "service.instance.id")
    );
    for key in ["service.namespace", "host.name", "telemetry.sdk.version"] {
        assert!(res(&own, key).is_some(), "{key}");
    }

    // A failure: its span, and the record that tells why and belongs to it.
    let (_, failed) = taken("otel.Party/Boom", SpanKind::Server).await;
    let status = failed.status.clone().unwrap();
    assert_eq!(status.code, StatusCode::Error as i32);
    assert_eq!(of(&failed, "error.type").as_deref(), Some("_OTHER"));
    let find = |taken: &Taken| {
        let logs = taken.logs.lock();
        let mut own = logs
            .iter()
            .filter(|(_, it)| it.event_name == "odeon.failure");
        own.next().cloned()
    };
    let (_, record) = collector.until("the failure", find).await;
    let why = text(&record.attributes, "exception.message").unwrap();
    assert!(why.contains("boom"), "{why}");
    assert_eq!(
        (record.severity_text.as_str(), record.severity_number),
        ("ERROR", 17)
    );
    assert_eq!(
        (&record.trace_id, &record.span_id),
        (&failed.trace_id, &failed.span_id)
    );

    // Numbers: what actors did, and what the program says, at the steps it says it of.
    let handled = |taken: &Taken| {
        let points = taken.points("odeon.actor.messages.handled");
        let own = |(_, point): &&(Resource, NumberDataPoint)| {
            text(&point.attributes, "odeon.actor.type").as_deref() == Some("otel.Party")
        };
        let most = points.iter().filter(own).map(|(_, point)| number(point));
        let most = most.fold(0.0, f64::max);
        (most >= 2.0).then(|| points[0].1.clone())
    };
    let point = collector.until("the count", handled).await;
    assert!(point.start_time_unix_nano > 0 && point.start_time_unix_nano <= point.time_unix_nano);
    let restarts = |taken: &Taken| {
        let points = taken.points("odeon.actor.restarts");
        points
            .iter()
            .any(|(_, point)| number(point) == 1.0)
            .then_some(())
    };
    collector.until("the restart", restarts).await;
    let losses = |taken: &Taken| {
        let points = taken.points("train.loss");
        (points.len() == 5).then_some(points)
    };
    let losses = collector.until("five losses", losses).await;
    let steps: Vec<_> = losses
        .iter()
        .map(|(_, it)| text(&it.exemplars[0].filtered_attributes, "step").unwrap())
        .collect();
    assert_eq!(steps, ["0", "1", "2", "3", "4"]);
    let (_, first) = &losses[0];
    assert_eq!(
        (number(first), text(&first.attributes, "step")),
        (1.0, None)
    );
    assert_eq!(text(&first.attributes, "split").as_deref(), Some("train"));
    let memory = |taken: &Taken| taken.points("system.memory.usage").pop();
    let (_, memory) = collector.until("memory", memory).await;
    assert!(number(&memory) > 0.0);
    let status = |taken: &Taken| {
        let points = taken.points("hw.status");
        let ok = points.iter().filter(|(_, it)| number(it) == 1.0);
        let ids: BTreeSet<_> = ok.map(|(_, it)| text(&it.attributes, "hw.id")).collect();
        (ids.len() >= 2).then_some(())
    };
    collector.until("the devices", status).await;
    // What nobody measures is not there, and not 0.
    assert!(collector.taken.points("hw.gpu.utilization").is_empty());

    let counts = exported.end().await;
    for signal in Signal::ALL {
        let own = counts.of(signal);
        assert_eq!(
            (own.rejected, own.dropped, own.queued_bytes),
            (0, 0, 0),
            "{signal:?}"
        );
    }
    let spans = collector.taken.spans.lock();
    assert_eq!(counts.of(Signal::Traces).sent, spans.len() as u64);
    let ids: BTreeSet<_> = spans.iter().map(|(_, span)| span.span_id.clone()).collect();
    assert_eq!(ids.len(), spans.len(), "none came twice");
}

/// Number of times that each number came as the label of a span.
fn numbered(taken: &Taken) -> BTreeMap<String, usize> {
    let spans = taken.spans.lock();
    let own = spans.iter().filter(|(_, span)| span.name == "numbered");
    let mut counts = BTreeMap::new();
    for (_, span) in own {
        *counts
            .entry(text(&span.attributes, "n").unwrap())
            .or_default() += 1;
    }
    counts
}

fn say(system: &System, numbers: std::ops::Range<u64>) {
    let _ = system;
    for n in numbers {
        telemetry::span("numbered").with("n", n).end();
    }
}

/// SEMANTICS 74.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_made_while_the_collector_was_away_arrives_when_it_is_back() {
    let collector = Collector::start().await;
    let (address, settings) = (collector.address, collector.settings());
    let exported = Exported::start(&settings, Sampling::All).await;
    let system = exported.system.clone();
    system.scope(async { say(&system, 0..50) }).await;
    let some = |count| move |taken: &Taken| (numbered(taken).len() == count).then_some(());
    collector.until("the first", some(50)).await;
    // It answers that it is busy, and is gone after that.
    collector.taken.busy.store(true, Ordering::SeqCst);
    let before = collector.taken.requests.load(Ordering::SeqCst);
    system.scope(async { say(&system, 50..100) }).await;
    let tried = |taken: &Taken| (taken.requests.load(Ordering::SeqCst) > before + 1).then_some(());
    collector.until("a try", tried).await;
    let taken = Arc::clone(&collector.taken);
    collector.end().await;
    system.scope(async { say(&system, 100..150) }).await;
    taken.busy.store(false, Ordering::SeqCst);
    let collector = Collector::at(address, taken).await;
    collector.until("all of them", some(150)).await;
    let counts = exported.end().await.of(Signal::Traces);
    assert_eq!((counts.dropped, counts.rejected), (0, 0));
    assert!(numbered(&collector.taken).values().all(|count| *count == 1));
}

/// SEMANTICS 74.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_room_while_nobody_takes_it_is_counted() {
    // Nobody listens here any more.
    let gone = Collector::start().await;
    let mut settings = gone.settings();
    settings.bytes_max = 20_000;
    gone.end().await;
    let exported = Exported::start(&settings, Sampling::All).await;
    let system = exported.system.clone();
    let dropped = async {
        while exported.exporter.counts().of(Signal::Traces).dropped == 0 {
            system.scope(async { say(&system, 0..50) }).await;
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    Clock::timeout(PATIENCE, dropped)
        .await
        .expect("something is thrown away");
    assert!(exported.exporter.counts().of(Signal::Traces).queued_bytes <= 20_000);
    let counts = exported.end().await.of(Signal::Traces);
    assert_eq!((counts.sent, counts.queued_bytes), (0, 0));
    assert!(counts.dropped > 0);
}

/// SEMANTICS 74.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_does_not_slow_the_program() {
    let collector = Collector::start().await;
    collector.taken.hangs.store(true, Ordering::SeqCst);
    // In pairs, since the machine is shared.
    let mut ratios = vec![];
    for round in 0..5 {
        let (quick, beside) = if round % 2 == 0 {
            let quick = per_ask(None).await;
            (quick, per_ask(Some(&collector)).await)
        } else {
            let beside = per_ask(Some(&collector)).await;
            (per_ask(None).await, beside)
        };
        ratios.push(beside.as_secs_f64() / quick.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    // One that waited for the collector would be slower by thousands.
    assert!(ratios[2] < 3.0, "{ratios:?} times as slow as without");
}

async fn per_ask(collector: Option<&Collector>) -> Duration {
    const ASKS: u32 = 20_000;
    let settings = collector.map(Collector::settings);
    let exported = match &settings {
        Some(settings) => Ok(Exported::start(settings, Sampling::All).await),
        None => Err(system(Sampling::All).await),
    };
    let system = exported
        .as_ref()
        .map_or_else(Clone::clone, |it| it.system.clone());
    let actor = system.spawn::<Party>(()).await.unwrap();
    let begun = Clock::now();
    for _ in 0..ASKS {
        actor.ask(Touch).await.unwrap();
    }
    let lasted = Clock::now().since(begun) / ASKS;
    match exported {
        Ok(exported) => drop(exported.end().await),
        Err(system) => system.shutdown().await,
    }
    lasted
}

#[tokio::test]
async fn whoever_takes_nothing_is_named_at_the_start() {
    let collector = Collector::start().await;
    Exporter::probe(&collector.settings()).await.unwrap();
    let wrong = Settings::to(&format!("http://{}/elsewhere", collector.address)).unwrap();
    let error = Exporter::probe(&wrong).await.unwrap_err().to_string();
    assert!(
        error.contains("/elsewhere/v1/traces: it answers 404"),
        "{error}"
    );
    // One that is not there yet may come.
    let gone = Collector::start().await;
    let settings = gone.settings();
    gone.end().await;
    Exporter::probe(&settings).await.unwrap();
}
