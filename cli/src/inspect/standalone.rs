//! The pages of one program on this machine, or of a recording, for as long as they are served; and
//! what is recorded and exported of a program meanwhile.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use odeon::{Clock, System};
use odeon_client::Connection;
use odeon_observe::{Observer, Recorder, today};
use odeon_otel::{ExportSource, Exporter, Names, Settings};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::event_log::{EventLog, FILES as EVENT_LOG};
use super::facts::Facts;
use super::gate::Gate;
use super::inspection::{Inspect, Origin};
use super::output_log::OutputLog;
use super::recorded_catalog;
use super::replay::Replay;
use crate::print;

/// Viewers of one program at the same time.
const VIEWERS_MAX: usize = 16;

/// The ways in which a program is looked at.
#[derive(Debug, Default)]
pub(crate) struct Looks<'a> {
    /// Where pages are served, if any are; 0 for any port.
    pub(crate) port: Option<u16>,
    /// Set if actors may be stopped from them.
    pub(crate) allow_actions: bool,
    /// The file that what is seen is recorded in.
    pub(crate) record: Option<&'a Path>,
    /// The collector that what is seen is sent to.
    pub(crate) otlp: Option<&'a Settings>,
    /// The output of its workers.
    pub(crate) output_log: OutputLog,
    /// Where what happens is written down.
    pub(crate) folder: Option<&'a Path>,
}

impl Looks<'_> {
    /// Returns true if nobody would see anything.
    pub(crate) const fn is_blind(&self) -> bool {
        self.port.is_none() && self.record.is_none() && self.otlp.is_none()
    }
}

/// Somebody who looks on, until it is dropped: serves pages, records, exports.
#[derive(Debug, Default)]
pub(crate) struct Standalone {
    connection: Option<Connection>,
    recording: Option<(Observer, PathBuf)>,
    exporter: Option<Exporter>,
    event_log: Option<EventLog>,
    following: Option<Following>,
    /// End with it.
    tasks: JoinSet<()>,
}

/// An observer that looks on in a task.
#[derive(Debug)]
struct Following {
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The time that a last look may take.
const LAST_LOOK: Duration = Duration::from_secs(1);

impl Standalone {
    /// Looks on at a system, as it is told.
    pub(crate) async fn look(name: &str, system: &System, looks: Looks<'_>) -> Result<Self> {
        let observer = Observer::new(name, VIEWERS_MAX);
        let mut standalone = Self::default();
        let facts = Facts::Standalone(looks.output_log);
        if let Some(settings) = looks.otlp {
            standalone.exporter = Some(export(name, &observer, settings).await?);
        }
        if let Some(path) = looks.record {
            observer.record(begun(path, name)?);
            let noting = recorded_catalog::note(observer.clone(), facts.clone(), system.clone());
            standalone.tasks.spawn(noting);
            standalone.recording = Some((observer.clone(), path.to_owned()));
        }
        if let Some(port) = looks.port {
            let origin = Origin::Living(system.clone());
            let counting = standalone.exporter.as_ref().map(Exporter::counting);
            let inspect = Inspect::new(observer.clone(), facts, origin, counting)
                .allow_actions(looks.allow_actions);
            standalone.serve(inspect, port, "--ui-port").await?;
        }
        if let Some(folder) = looks.folder {
            let event_log = EventLog::new(observer.clone(), folder)
                .with_context(|| format!("{} takes no {}", folder.display(), EVENT_LOG[0]))?;
            standalone.tasks.spawn(event_log.clone().keep());
            standalone.event_log = Some(event_log);
        }
        let (end, ended) = oneshot::channel();
        let system = system.clone();
        let following = async move {
            // Who has gone does not want to know more either.
            let ended = async { drop(ended.await) };
            observer.follow_until(&system, ended).await;
        };
        let task = tokio::spawn(following);
        standalone.following = Some(Following { end, task });
        Ok(standalone)
    }

    /// Serves the pages of a recording, which plays.
    pub(crate) async fn replay(replay: &Replay, port: u16) -> Result<Self> {
        let mut standalone = Self::default();
        standalone.serve(replay.inspect(), port, "--port").await?;
        let playing = replay.clone().play();
        standalone.tasks.spawn(async move {
            if let Err(error) = playing.await {
                print::say(format!("the recording cannot be shown further: {error:#}"));
            }
        });
        Ok(standalone)
    }

    /// Serves pages to whoever has the key in [`Standalone::connection`].
    async fn serve(&mut self, inspect: Inspect, port: u16, option: &str) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("the pages cannot be served on {address}: choose another port with {option}")
        })?;
        let gate = Gate::new();
        self.connection = Some(Connection {
            url: format!("http://{}", listener.local_addr()?),
            key: gate.key().to_owned(),
            authority: None,
            others: vec![],
        });
        let scrape = inspect.clone().scrape();
        let router = gate.guard(inspect.router(), scrape, Inspect::pages());
        self.tasks.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the pages are not served any more");
            }
        });
        Ok(())
    }

    /// Where the pages are, with the key, if they are served.
    pub(crate) const fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// Looks a last time, and sends what is left, for a few seconds at most.
    pub(crate) async fn end(mut self) {
        if let Some(Following { end, task }) = self.following.take() {
            // It has ended if it does not listen.
            let _ = end.send(());
            // What it does not see by then is not seen.
            let _ = Clock::timeout(LAST_LOOK, task).await;
        }
        let Some(exporter) = self.exporter.take() else {
            return;
        };
        let counts = exporter.end().await;
        for signal in odeon_otel::Signal::ALL {
            let own = counts.of(signal);
            if own.dropped + own.rejected > 0 {
                print::say(format!(
                    "the collector did not get all {}: {} were sent, {} refused, {} thrown away",
                    signal.word(),
                    own.sent,
                    own.rejected,
                    own.dropped
                ));
            }
        }
    }
}

/// Sends what an observer sees to a collector.
async fn export(name: &str, observer: &Observer, settings: &Settings) -> Result<Exporter> {
    Exporter::probe(settings).await?;
    let whole = name.to_owned();
    let names = move || Names {
        whole: whole.clone(),
        ..Names::default()
    };
    let source = ExportSource {
        observer: observer.clone(),
        names: Box::new(names),
        leads: Box::new(|| true),
    };
    Ok(Exporter::start(settings, source)?)
}

impl Drop for Standalone {
    fn drop(&mut self) {
        if let Some(Following { task, .. }) = &self.following {
            task.abort();
        }
        if let Some(event_log) = &self.event_log {
            event_log.write();
        }
        let Some((observer, path)) = &self.recording else {
            return;
        };
        let path = path.display();
        match observer.end_recording() {
            Some(Ok(bytes)) => print::say(format!(
                "recorded in {path} ({} KiB): `odeon replay {path}` shows it",
                bytes.div_ceil(1024)
            )),
            Some(Err(error)) => print::say(format!("{path} is not whole: {error}")),
            None => {}
        }
    }
}

/// Begins a recording in a file, which must not be there yet.
pub(crate) fn begun(path: &Path, name: &str) -> Result<Recorder> {
    let file = File::create_new(path).with_context(|| {
        format!(
            "{} cannot be made: recordings go to a file that is not there yet",
            path.display()
        )
    })?;
    Ok(Recorder::new(Box::new(file), name, today())?)
}

/// Records for so long, or until the future is dropped, what an observer of its own sees.
pub(super) async fn record(
    observer: &Observer,
    inspect: &Inspect,
    system: &System,
    limit: Duration,
) {
    let noting = recorded_catalog::note(observer.clone(), inspect.facts.clone(), system.clone());
    let following = inspect.facts.follow(observer, system);
    tokio::select! {
        () = Clock::sleep(limit) => {}
        () = noting => {}
        () = following => {}
    }
}
