//! The exporter: it reads, packs and sends in tasks of its own.

use std::sync::Arc;
use std::time::Duration;

use odeon::Clock;
use odeon_observe::{Observer, today};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use parking_lot::Mutex;
use prost::Message;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::outbox::{Counts, Outbox, Parcel, Signal};
use crate::post::{Verdict, client, post};
use crate::reader::Reader;
use crate::resource::Names;
use crate::settings::{Endpoint, Settings, SettingsError};

/// Something that exports, until it is ended or dropped.
#[derive(Debug)]
pub struct Exporter {
    boxes: Arc<Boxes>,
    observer: Observer,
    end: watch::Sender<bool>,
    tasks: JoinSet<()>,
    /// Has taken in what there was when it was told to end.
    reading: tokio::task::JoinHandle<()>,
}

/// Why a collector is none, or takes nothing from here.
#[derive(Debug, Error)]
#[error(
    "{url}: {why}; is it the OTLP/HTTP port of a collector (4318, usually), and the key right?"
)]
pub struct ProbeError {
    url: String,
    why: String,
}

/// The outboxes of the three signals, and wake-ups for those who empty them.
#[derive(Debug)]
struct Boxes {
    of: [Mutex<Outbox>; 3],
    more: [Notify; 3],
}

/// Tells what has become of what was to be sent.
#[derive(Clone, Debug)]
pub struct Counting(Arc<Boxes>);

impl Counting {
    /// As of now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counts()
    }
}

/// The source of an export, and the names and the leadership that it depends on.
pub struct ExportSource {
    /// The observer whose view is exported.
    pub observer: Observer,
    /// The names of processes, as of now.
    pub names: Box<dyn Fn() -> Names + Send + Sync>,
    /// Returns true where this one exports, rather than another that looks at the same.
    pub leads: Box<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for ExportSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportSource").finish_non_exhaustive()
    }
}

/// The longest time that a collector may take to answer when it is first asked.
const PROBE: Duration = Duration::from_secs(3);
/// The longest time that an end may take to send what is left.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// The longest time that an end waits for a last look.
const LAST_LOOK: Duration = Duration::from_secs(2);
/// The least pause between two reports of losses to people.
const TELL: Duration = Duration::from_secs(60);

impl Boxes {
    fn new(bytes_max: usize) -> Self {
        Self {
            of: std::array::from_fn(|_| Mutex::new(Outbox::new(bytes_max))),
            more: std::array::from_fn(|_| Notify::new()),
        }
    }

    fn with<T>(&self, signal: Signal, change: impl FnOnce(&mut Outbox) -> T) -> T {
        change(&mut self.of[signal as usize].lock())
    }

    fn offer(&self, signal: Signal, message: &impl Message, items: u64) {
        if items == 0 {
            return;
        }
        let body = message.encode_to_vec().into();
        self.with(signal, |outbox| outbox.offer(Parcel { body, items }));
        self.more[signal as usize].notify_one();
    }

    fn counts(&self) -> Counts {
        let of = |signal| self.with(signal, |outbox| outbox.counts());
        Counts {
            traces: of(Signal::Traces),
            metrics: of(Signal::Metrics),
            logs: of(Signal::Logs),
        }
    }
}

impl Exporter {
    /// Begins to export.
    ///
    /// # Errors
    /// TLS cannot be set up with the certificates that are given.
    pub fn start(settings: &Settings, source: ExportSource) -> Result<Self, SettingsError> {
        let client = client(settings)?;
        let boxes = Arc::new(Boxes::new(settings.bytes_max));
        let (end, ended) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for signal in Signal::ALL {
            if let Some(endpoint) = settings.endpoint(signal) {
                let (client, endpoint) = (client.clone(), endpoint.clone());
                let boxes = Arc::clone(&boxes);
                tasks.spawn(async move { boxes.send(signal, &client, &endpoint).await });
            }
        }
        let observer = source.observer.clone();
        let reading = Reading {
            reader: Reader::new(settings.resource.clone()),
            source,
            boxes: Arc::clone(&boxes),
            settings: settings.clone(),
            led: false,
            told: Counts::default(),
            told_forgotten: 0,
        };
        let reading = tokio::spawn(reading.follow(ended));
        Ok(Self {
            boxes,
            observer,
            end,
            tasks,
            reading,
        })
    }

    /// Asks whether a collector takes what is sent. One that does not answer may yet: that is no
    /// error here.
    ///
    /// # Errors
    /// Somebody answers who takes nothing from here, or TLS cannot be set up.
    #[odeon::boxed]
    pub async fn probe(settings: &Settings) -> Result<(), ProbeError> {
        for signal in Signal::ALL {
            let Some(endpoint) = settings.endpoint(signal) else {
                continue;
            };
            let wrong = |why: String| ProbeError {
                url: endpoint.url.to_string(),
                why,
            };
            let client = client(settings).map_err(|error| wrong(error.to_string()))?;
            // A request without anything in it has no bytes.
            let asked = post(&client, endpoint, signal, bytes::Bytes::new());
            let why = match Clock::timeout(PROBE, asked).await {
                Some(Verdict::Arrived { .. }) => continue,
                Some(Verdict::Refused { why }) => return Err(wrong(why)),
                Some(Verdict::Later { why, .. }) => why,
                None => format!("nothing within {PROBE:?}"),
            };
            tracing::warn!(
                url = %endpoint.url, why,
                "the collector does not answer yet: what is to be sent waits, within bounds"
            );
            return Ok(());
        }
        Ok(())
    }

    /// Counts of items that were sent, rejected and dropped.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.boxes.counts()
    }

    /// A handle by which others ask for [`Exporter::counts`].
    #[must_use]
    pub fn counting(&self) -> Counting {
        Counting(Arc::clone(&self.boxes))
    }

    /// Sends what there is, for a few seconds at most, and ends. What is not sent by then is counted as
    /// dropped in what this answers.
    #[odeon::boxed]
    pub async fn end(mut self) -> Counts {
        let (now, mut changes) = (today(), self.observer.changes());
        let looked = async {
            while self.observer.read(|seen| seen.ticked() <= now) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        // Whoever looks may have ended already.
        let _ = Clock::timeout(LAST_LOOK, looked).await;
        self.end.send_replace(true);
        let left = async {
            // It has panicked, or is over.
            let _ = (&mut self.reading).await;
            for signal in Signal::ALL {
                while !self.boxes.with(signal, |outbox| outbox.is_settled()) {
                    self.boxes.more[signal as usize].notify_one();
                    Clock::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        let _ = Clock::timeout(END_PATIENCE, left).await;
        self.tasks.shutdown().await;
        for signal in Signal::ALL {
            self.boxes.with(signal, Outbox::clear);
        }
        self.boxes.counts()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Boxes {
    /// Sends what waits, one after another, until the future is dropped.
    async fn send(&self, signal: Signal, client: &reqwest::Client, to: &Endpoint) {
        loop {
            let now = Clock::now();
            let Some(parcel) = self.with(signal, |outbox| outbox.take(now)) else {
                let pause = self.with(signal, |outbox| outbox.pause(now));
                let more = self.more[signal as usize].notified();
                match pause {
                    Some(pause) => drop(Clock::timeout(pause, std::future::pending::<()>()).await),
                    None => more.await,
                }
                continue;
            };
            let verdict = post(client, to, signal, parcel.body.clone()).await;
            let now = Clock::now();
            self.with(signal, |outbox| match verdict {
                Verdict::Arrived { rejected, why } => {
                    if rejected > 0 {
                        tracing::warn!(url = %to.url, rejected, why, "the collector takes not all");
                    }
                    if outbox.failures() > 0 {
                        tracing::info!(url = %to.url, "the collector answers again");
                    }
                    outbox.sent(&parcel, rejected);
                }
                Verdict::Refused { why } => {
                    if outbox.counts().rejected == 0 {
                        tracing::error!(url = %to.url, why, "the collector refuses what is sent");
                    }
                    outbox.refused(&parcel);
                }
                Verdict::Later { pause, why } => {
                    if outbox.failures() == 0 {
                        tracing::warn!(url = %to.url, why, "the collector is not reached; trying again");
                    }
                    outbox.failed(parcel, now, pause);
                }
            });
        }
    }
}

/// The task that reads.
struct Reading {
    reader: Reader,
    source: ExportSource,
    boxes: Arc<Boxes>,
    settings: Settings,
    led: bool,
    told: Counts,
    told_forgotten: u64,
}

impl Reading {
    /// Reads again and again, and once more at the end.
    async fn follow(mut self, mut end: watch::Receiver<bool>) {
        let (mut numbers_at, mut told_at) = (Clock::now(), Clock::now());
        loop {
            let over = *end.borrow();
            let now = Clock::now();
            if over {
                self.reader.end();
            }
            if (self.source.leads)() {
                if !std::mem::replace(&mut self.led, true) {
                    self.reader.take_over();
                }
                self.news().await;
                if over || numbers_at.left(now).is_zero() {
                    self.numbers();
                    numbers_at = now.after(self.settings.metrics_interval);
                }
            } else {
                self.led = false;
                let reader = &mut self.reader;
                self.source
                    .observer
                    .read(|seen| reader.stand_by(seen, today()));
            }
            if over || now.since(told_at) >= TELL {
                self.tell();
                told_at = now;
            }
            if over {
                return;
            }
            // A closed end is one, too.
            let ended = Clock::timeout(self.settings.interval, end.wait_for(|end| *end)).await;
            if let Some(Err(_)) = ended {
                return;
            }
        }
    }

    async fn news(&mut self) {
        let names = (self.source.names)();
        loop {
            let reader = &mut self.reader;
            let export = self
                .source
                .observer
                .read(|seen| reader.news(seen, &names, today()));
            if self.settings.traces.is_some() {
                let resource_spans = export.spans;
                let request = ExportTraceServiceRequest { resource_spans };
                self.boxes
                    .offer(Signal::Traces, &request, export.span_count);
            }
            if self.settings.logs.is_some() {
                let resource_logs = export.logs;
                let request = ExportLogsServiceRequest { resource_logs };
                self.boxes.offer(Signal::Logs, &request, export.log_count);
            }
            if !export.more {
                return;
            }
            // Others want to look, and to run.
            tokio::task::yield_now().await;
        }
    }

    fn numbers(&mut self) {
        if self.settings.metrics.is_none() {
            return;
        }
        let (names, counts) = ((self.source.names)(), self.boxes.counts());
        let reader = &mut self.reader;
        let requests = self
            .source
            .observer
            .read(|seen| reader.numbers(seen, &names, Some(&counts), today()));
        for (resource_metrics, items) in requests {
            let request = ExportMetricsServiceRequest { resource_metrics };
            self.boxes.offer(Signal::Metrics, &request, items);
        }
    }

    /// Says what was lost since the last time, if anything was.
    fn tell(&mut self) {
        let counts = self.boxes.counts();
        for signal in Signal::ALL {
            let (now, before) = (counts.of(signal), self.told.of(signal));
            let (dropped, rejected) =
                (now.dropped - before.dropped, now.rejected - before.rejected);
            if dropped + rejected > 0 {
                let signal = signal.word();
                tracing::warn!(signal, dropped, rejected, "not all was exported");
            }
        }
        let forgotten = self.reader.forgotten() - self.told_forgotten;
        if forgotten > 0 {
            tracing::warn!(forgotten, "spans were forgotten before they were exported");
        }
        self.told = counts;
        self.told_forgotten += forgotten;
    }
}
