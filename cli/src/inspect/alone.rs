//! The pages of one program on this machine, or of a recording, for as long as they are served; and
//! what is recorded of a program meanwhile.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use odeon::{Clock, System};
use odeon_observe::{Observer, Recorder, today};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::replay::Replay;
use super::{Facts, Gate, Inspect, Origin, noted};
use crate::print;

/// Who may look on at one program at the same time.
const VIEWERS_MAX: usize = 16;

/// Pages that are served, and what is recorded; until it is dropped.
#[derive(Debug)]
pub(crate) struct Alone {
    url: Option<String>,
    recording: Option<(Observer, PathBuf)>,
    /// End with it.
    tasks: JoinSet<()>,
}

impl Alone {
    /// Looks at a system: serves its pages on a port, if there is one, to whoever has the key in
    /// [`Alone::url`], and records it, if there is a file for that.
    pub(crate) async fn look(
        name: &str,
        system: &System,
        port: Option<u16>,
        record: Option<&Path>,
    ) -> Result<Self> {
        let observer = Observer::new(name, VIEWERS_MAX);
        let mut alone = Self {
            url: None,
            recording: None,
            tasks: JoinSet::new(),
        };
        if let Some(path) = record {
            observer.record(begun(path, name)?);
            let noting = noted::note(observer.clone(), Facts::Alone, system.clone());
            alone.tasks.spawn(noting);
            alone.recording = Some((observer.clone(), path.to_owned()));
        }
        if let Some(port) = port {
            let origin = Origin::Living(system.clone());
            let inspect = Inspect::new(observer.clone(), Facts::Alone, origin);
            alone.serve(inspect, port, "--ui-port").await?;
        }
        let system = system.clone();
        alone
            .tasks
            .spawn(async move { observer.follow(&system).await });
        Ok(alone)
    }

    /// Serves the pages of a recording, which plays.
    pub(crate) async fn replay(replay: &Replay, port: u16) -> Result<Self> {
        let mut alone = Self {
            url: None,
            recording: None,
            tasks: JoinSet::new(),
        };
        alone.serve(replay.inspect(), port, "--port").await?;
        let playing = replay.clone().play();
        alone.tasks.spawn(async move {
            if let Err(error) = playing.await {
                print::say(format!("the recording cannot be shown further: {error:#}"));
            }
        });
        Ok(alone)
    }

    async fn serve(&mut self, inspect: Inspect, port: u16, option: &str) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("the pages cannot be served on {address}: choose another port with {option}")
        })?;
        let address = listener.local_addr()?;
        let gate = Gate::new();
        self.url = Some(format!("http://{address}/#k={}", gate.key()));
        let router = gate.guard(inspect.router(), Inspect::pages());
        self.tasks.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the pages are not served any more");
            }
        });
        Ok(())
    }

    /// Where the pages are, with the key, if they are served.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
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
    limit: std::time::Duration,
) {
    let noting = noted::note(observer.clone(), inspect.facts.clone(), system.clone());
    let following = inspect.facts.follow(observer, system);
    tokio::select! {
        () = Clock::sleep(limit) => {}
        () = noting => {}
        () = following => {}
    }
}
