//! The pages of one program on this machine, for as long as it runs.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use odeon::System;
use odeon_client::Connection;
use odeon_observe::Observer;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Facts, Gate, Inspect};

/// Who may look on at one program at the same time.
const VIEWERS_MAX: usize = 16;

/// Pages that are served; until it is dropped.
#[derive(Debug)]
pub(crate) struct Alone {
    connection: Connection,
    /// Ends with it.
    _tasks: JoinSet<()>,
}

impl Alone {
    /// Serves what is seen of a system, to whoever has the key in [`Alone::connection`].
    pub(crate) async fn serve(name: &str, system: &System, port: u16) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("the pages cannot be served on {address}: choose another port with --ui-port")
        })?;
        let address = listener.local_addr()?;
        let observer = Observer::new(name, VIEWERS_MAX);
        let inspect = Inspect::new(observer.clone(), Facts::Alone, system.clone());
        let gate = Gate::new();
        let connection = Connection {
            url: format!("http://{address}"),
            key: gate.key().to_owned(),
            authority: None,
            others: vec![],
        };
        let router = gate.guard(inspect.router(), Inspect::pages());
        let mut tasks = JoinSet::new();
        let system = system.clone();
        tasks.spawn(async move { observer.follow(&system).await });
        tasks.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the pages are not served any more");
            }
        });
        Ok(Self {
            connection,
            _tasks: tasks,
        })
    }

    /// Where the pages are, with the key.
    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }
}
