//! The pages of one program on this machine, for as long as it runs.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use odeon::System;
use odeon_observe::Observer;
use odeon_otel::{Exporter, Names, Settings, Source};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Facts, Gate, Inspect};
use crate::print;

/// Who may look on at one program at the same time.
const VIEWERS_MAX: usize = 16;

/// How a program is looked at.
#[derive(Debug, Default)]
pub(crate) struct Looks<'a> {
    /// Where pages are served, if any are; 0 for any port.
    pub(crate) port: Option<u16>,
    /// Whether actors may be stopped from them.
    pub(crate) allow_actions: bool,
    /// The collector that what is seen is sent to.
    pub(crate) otlp: Option<&'a Settings>,
}

/// Somebody who looks on at one program, until it is dropped: shows pages, exports, or both.
#[derive(Debug)]
pub(crate) struct Alone {
    url: Option<String>,
    exporter: Option<Exporter>,
    /// Ends with it.
    _tasks: JoinSet<()>,
}

impl Alone {
    /// Looks on at a system, as it is told.
    pub(crate) async fn look(name: &str, system: &System, looks: Looks<'_>) -> Result<Self> {
        let observer = Observer::new(name, VIEWERS_MAX);
        let exporter = match looks.otlp {
            Some(settings) => {
                Exporter::probe(settings).await?;
                let whole = name.to_owned();
                let names = move || Names {
                    whole: whole.clone(),
                    ..Names::default()
                };
                let source = Source {
                    observer: observer.clone(),
                    names: Box::new(names),
                    leads: Box::new(|| true),
                };
                Some(Exporter::start(settings, source)?)
            }
            None => None,
        };
        let mut tasks = JoinSet::new();
        let mut url = None;
        if let Some(port) = looks.port {
            let counting = exporter.as_ref().map(Exporter::counting);
            let inspect = Inspect::new(observer.clone(), Facts::Alone, system.clone(), counting)
                .allow_actions(looks.allow_actions);
            url = Some(serve(inspect, port, &mut tasks).await?);
        }
        let system = system.clone();
        tasks.spawn(async move { observer.follow(&system).await });
        Ok(Self {
            url,
            exporter,
            _tasks: tasks,
        })
    }

    /// Where the pages are, with the key.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Sends what is left, for a few seconds at most.
    pub(crate) async fn end(self) {
        let Some(exporter) = self.exporter else {
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

/// Serves pages, and says where.
async fn serve(inspect: Inspect, port: u16, tasks: &mut JoinSet<()>) -> Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("the pages cannot be served on {address}: choose another port with --ui-port")
    })?;
    let address = listener.local_addr()?;
    let gate = Gate::new();
    let url = format!("http://{address}/#k={}", gate.key());
    let scrape = inspect.clone().scrape();
    let router = gate.guard(inspect.router(), scrape, Inspect::pages());
    tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::warn!(%error, "the pages are not served any more");
        }
    });
    Ok(url)
}
