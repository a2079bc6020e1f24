//! The cost of an export: processor time of a span from the cluster view to the wire, and asks of a
//! program that is looked at, with an export and without, in turns.

#![allow(clippy::print_stdout, reason = "a benchmark says what it found")]
#![allow(
    clippy::unwrap_used,
    reason = "a benchmark ends where something is wrong"
)]
#![allow(missing_docs, reason = "there is nothing but main")]

use std::time::Duration;

use odeon::{Clock, Limits, Ref, System};
use odeon_observe::{ClusterView, Observer, here, today};
use odeon_otel::{ExportSource, Exporter, Names, Reader, Settings};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

struct Subject;

#[odeon::actor(name = "bench.Subject")]
impl Subject {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    fn touch(&mut self) {}
}

const ROUNDS: usize = 9;
const ASKS: u32 = 50_000;
/// Spans of the first part; two of each ask.
const SPANS: u32 = 12_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        per_span().await;
        beside_an_export().await;
    });
}

async fn system(sampling: odeon::trace::Sampling) -> (System, Ref<Subject>) {
    let mut limits = Limits::default();
    limits.trace_sampling = sampling;
    let builder = System::builder().job(odeon::job![Subject]).limits(limits);
    let system = builder.start().await.unwrap();
    let actor = system.spawn::<Subject>(()).await.unwrap();
    (system, actor)
}

async fn per_span() {
    let (system, actor) = system(odeon::trace::Sampling::All).await;
    for _ in 0..SPANS / 2 {
        actor.ask(Touch).await.unwrap();
    }
    let mut seen = ClusterView::default();
    let mut watch = system.admin().watch();
    loop {
        let sight = watch.look(Duration::from_secs(5)).await;
        let more = sight.more(usize::MAX);
        seen.look(sight, here(), None);
        if !more {
            break;
        }
    }
    seen.tick(today());
    let names = Names::default();
    let mut times = vec![];
    for _ in 0..ROUNDS {
        let mut reader = Reader::new(Settings::to("http://localhost").unwrap().resource);
        let begun = Clock::now();
        let (mut spans, mut bytes) = (0, 0);
        loop {
            let export = reader.news(&seen, &names, today());
            let resource_spans = export.spans;
            spans += export.span_count;
            bytes += ExportTraceServiceRequest { resource_spans }
                .encode_to_vec()
                .len();
            if !export.more {
                break;
            }
        }
        let lasted = Clock::now().since(begun).as_secs_f64();
        times.push((lasted / spans as f64, bytes as f64 / spans as f64));
    }
    times.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (seconds, bytes) = times[ROUNDS / 2];
    println!(
        "a span: {:.2} µs, {bytes:.0} bytes; at 10,000 a second {:.1} % of a core",
        seconds * 1e6,
        seconds * 1e4 * 100.0
    );
    system.shutdown().await;
}

/// Takes everything and says that it has.
async fn sink() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut bytes = vec![];
                while stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
                    let Some(head) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else {
                        continue;
                    };
                    let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
                    let mut lines = text.lines();
                    let length = lines.find_map(|it| it.strip_prefix("content-length:"));
                    let length: usize = length.map_or(0, |it| it.trim().parse().unwrap());
                    if bytes.len() < head + 4 + length {
                        continue;
                    }
                    bytes.drain(..head + 4 + length);
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    url
}

async fn beside_an_export() {
    let url = sink().await;
    for (name, sampling) in [
        ("sampled as usual", odeon::trace::Sampling::default()),
        ("all traced", odeon::trace::Sampling::All),
    ] {
        let (system, actor) = system(sampling).await;
        let observer = Observer::new("bench", 1);
        let (own, follower) = (observer.clone(), system.clone());
        let following = tokio::spawn(async move { own.follow(&follower).await });
        let mut ratios = vec![];
        for _ in 0..ROUNDS {
            let without = asks(actor).await;
            let settings = Settings::to(&url).unwrap();
            let source = ExportSource {
                observer: observer.clone(),
                names: Box::new(Names::default),
                leads: Box::new(|| true),
            };
            let exporter = Exporter::start(&settings, source).unwrap();
            let with = asks(actor).await;
            drop(exporter);
            ratios.push(with / without);
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "asks with an export against without, {name}: {:.2} ({:.2} to {:.2})",
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1]
        );
        following.abort();
        system.shutdown().await;
    }
}

/// Seconds.
async fn asks(actor: Ref<Subject>) -> f64 {
    let work = async move {
        let begun = Clock::now();
        for _ in 0..ASKS {
            actor.ask(Touch).await.unwrap();
        }
        Clock::now().since(begun).as_secs_f64()
    };
    tokio::spawn(work).await.unwrap()
}
