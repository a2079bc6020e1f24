//! Remote asks over QUIC on the loopback device, against a framed echo over one bare quinn stream.
//! Both ends are in this process; the far end of each has a tokio runtime of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use odeon::{ClusterIdentity, System};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;

use crate::floor::{Direct, Mux, echo};
use crate::row::{Row, Target};
use crate::subject::{self, Subject};
use crate::unix::{
    ask_rate, ask_rate_of_tasks, ask_round_trip, direct_round_trip, mux_rate, mux_rate_of_tasks,
    sending_for, tell_rate,
};

pub(crate) fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A runtime for the far end, ended without waiting when this is dropped.
struct Far(Option<tokio::runtime::Runtime>);

impl Far {
    fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let runtime = self.0.as_ref().context("it runs until it is dropped")?;
        runtime.spawn(work).await?
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A bare quinn connection to an echo, with a certificate of its own.
struct Bare {
    _far: Far,
    _near: Endpoint,
    connection: Connection,
}

impl Bare {
    async fn start() -> anyhow::Result<Self> {
        let name = "localhost";
        let made = rcgen::generate_simple_self_signed([name.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let server = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())?;
        let far = Far::new()?;
        let address = far
            .run(async move {
                let endpoint = Endpoint::server(server, loopback())?;
                let address = endpoint.local_addr()?;
                drop(tokio::spawn(serve(endpoint)));
                Ok(address)
            })
            .await?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let mut near = Endpoint::client(loopback())?;
        near.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
        let connection = near.connect(address, name)?.await?;
        Ok(Self {
            _far: far,
            _near: near,
            connection,
        })
    }

    async fn stream(&self) -> anyhow::Result<(RecvStream, SendStream)> {
        let (writer, reader) = self.connection.open_bi().await?;
        Ok((reader, writer))
    }
}

/// Echoes every stream of every connection.
async fn serve(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        drop(tokio::spawn(async move {
            let Ok(connection) = incoming.await else {
                return;
            };
            while let Ok((writer, reader)) = connection.accept_bi().await {
                // Its end is the end of the measurement.
                drop(tokio::spawn(echo(reader, writer)));
            }
        }));
    }
}

/// Two linked systems; the second lives on the far runtime.
pub(crate) struct Nodes {
    pub(crate) near: System,
    pub(crate) far: System,
    runtime: Far,
}

impl Nodes {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let cluster = ClusterIdentity::generate()?;
        let runtime = Far::new()?;
        let (a, b) = (cluster.issue("near")?, cluster.issue("far")?);
        let far = runtime
            .run(async move {
                let builder = System::builder().job(subject::job());
                Ok(builder.listen(loopback(), b).start().await?)
            })
            .await?;
        let builder = System::builder().job(subject::job());
        let near = builder.listen(loopback(), a).start().await?;
        near.join(far.address().context("it listens")?).await?;
        Ok(Self { near, far, runtime })
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.near.shutdown().await;
        let far = self.far;
        self.runtime
            .run(async move {
                far.shutdown().await;
                Ok(())
            })
            .await
    }
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let bare = Bare::start().await?;
    let nodes = Nodes::start().await?;
    let actor = nodes.far.spawn::<Subject>(()).await?;
    let (reader, writer) = bare.stream().await?;
    let mut direct = Direct::new(reader, writer);
    let (reader, writer) = bare.stream().await?;
    let mux = Mux::new(reader, writer);
    let mut times: [Vec<f64>; 7] = Default::default();
    for _ in 0..rounds {
        let (time, back) = direct_round_trip(direct).await?;
        direct = back;
        times[0].push(time);
        times[1].push(sending_for(&nodes.near, ask_round_trip(actor)).await?);
        times[2].push(mux_rate(mux.clone()).await?);
        times[3].push(sending_for(&nodes.near, ask_rate(actor)).await?);
        times[4].push(mux_rate_of_tasks(&mux).await?);
        times[5].push(ask_rate_of_tasks(&nodes.near, actor).await?);
        times[6].push(sending_for(&nodes.near, tell_rate(actor)).await?);
    }
    nodes.stop().await?;
    let [direct, ask, mux, asks, mux_of_tasks, asks_of_tasks, tells] = &times;
    Ok(vec![
        Row::against(
            "quic ask p50",
            "us",
            ask,
            ("echo over a quinn stream, one at a time", direct),
            Target::RatioAtMost(1.3),
        ),
        Row::against(
            "quic asks, 1000 outstanding",
            "/s",
            asks,
            ("echo over a quinn stream, mux client", mux),
            Target::RatioAtLeast(0.5),
        ),
        Row::against(
            "quic asks, 1000 tasks",
            "/s",
            asks_of_tasks,
            ("echo over a quinn stream, mux client", mux_of_tasks),
            Target::RatioAtLeast(0.5),
        ),
        Row::single("quic tells", "/s", tells, None),
    ])
}
