//! Remote asks over QUIC on the loopback device, against a framed echo over one bare quinn stream.
//! The far end of each is a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use odeon::{ClusterIdentity, NodeIdentity, Ref, System};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::far::Far;
use crate::floor::{Direct, Mux, echo};
use crate::row::{Row, Target};
use crate::spawn;
use crate::subject::{self, Subject};
use crate::unix::{
    ask_rate, ask_rate_of_tasks, ask_round_trip, direct_round_trip, mux_rate, mux_rate_of_tasks,
    tell_rate,
};

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// The name that the certificate of the bare echo is valid for.
const ECHO: &str = "localhost";

/// A bare quinn connection to an echo.
struct Bare {
    connection: Connection,
    _near: Endpoint,
    _far: Far,
}

impl Bare {
    async fn start() -> anyhow::Result<Self> {
        let (far, (address, certificate)): (_, (SocketAddr, Vec<u8>)) =
            Far::serving("quinn echo", ())?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(certificate))?;
        let mut near = Endpoint::client(loopback())?;
        near.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
        let connection = near.connect(address, ECHO)?.await?;
        Ok(Self {
            connection,
            _near: near,
            _far: far,
        })
    }

    async fn stream(&self) -> anyhow::Result<(RecvStream, SendStream)> {
        let (writer, reader) = self.connection.open_bi().await?;
        Ok((reader, writer))
    }
}

/// Begins to echo, and says where and with which certificate.
pub(crate) async fn begin_echo((): ()) -> anyhow::Result<((SocketAddr, Vec<u8>), Endpoint)> {
    let made = rcgen::generate_simple_self_signed([ECHO.to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
    let endpoint = Endpoint::server(server, loopback())?;
    drop(tokio::spawn(serve(endpoint.clone())));
    Ok(((endpoint.local_addr()?, certificate.to_vec()), endpoint))
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

/// The name of the other node.
const FAR: &str = "far";

/// This process as a node, linked to another.
pub(crate) struct Nodes {
    pub(crate) near: System,
    /// Lives on the other node.
    pub(crate) actor: Ref<Subject>,
    _far: Far,
}

impl Nodes {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let cluster = ClusterIdentity::generate()?;
        let identity = tempfile::tempdir()?;
        cluster.issue(FAR)?.save(identity.path())?;
        let (far, (address, actor)) = Far::serving("node", identity.path())?;
        let near = node(cluster.issue("near")?).await?;
        near.join(address).await?;
        Ok(Self {
            near,
            actor,
            _far: far,
        })
    }
}

async fn node(identity: NodeIdentity) -> anyhow::Result<System> {
    let builder = subject::builder()?;
    Ok(builder.listen(loopback(), identity).start().await?)
}

/// Becomes the node of the identity in this folder, and says where it is and who is there to be
/// asked.
pub(crate) async fn begin_node(
    identity: PathBuf,
) -> anyhow::Result<((SocketAddr, Ref<Subject>), System)> {
    let system = node(NodeIdentity::load(&identity)?).await?;
    let actor = system.spawn::<Subject>(()).await?;
    let address = system.address().context("it listens")?;
    Ok(((address, actor), system))
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let bare = Bare::start().await?;
    let nodes = Nodes::start().await?;
    let actor = nodes.actor;
    let (reader, writer) = bare.stream().await?;
    let mut direct = Direct::new(reader, writer);
    let (reader, writer) = bare.stream().await?;
    let mux = Mux::new(reader, writer);
    let mut times: [Vec<f64>; 8] = Default::default();
    for _ in 0..rounds {
        let (time, back) = direct_round_trip(direct).await?;
        direct = back;
        times[0].push(time);
        times[1].push(tokio::spawn(ask_round_trip(actor)).await??);
        times[2].push(mux_rate(mux.clone()).await?);
        times[3].push(tokio::spawn(ask_rate(actor)).await??);
        times[4].push(mux_rate_of_tasks(&mux).await?);
        times[5].push(ask_rate_of_tasks(actor).await?);
        times[6].push(tokio::spawn(tell_rate(actor)).await??);
        let far = |spawn: odeon::Spawn<Subject>| spawn.on_node(FAR).in_worker("shared");
        times[7].push(spawn::remote(&nodes.near, far).await?);
    }
    nodes.near.shutdown().await;
    let [
        direct,
        ask,
        mux,
        asks,
        mux_of_tasks,
        asks_of_tasks,
        tells,
        spawns,
    ] = &times;
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
            Target::RatioAtLeast(0.6),
        ),
        Row::against(
            "quic asks, 1000 tasks",
            "/s",
            asks_of_tasks,
            ("echo over a quinn stream, mux client", mux_of_tasks),
            Target::RatioAtLeast(0.6),
        ),
        Row::single("quic tells", "/s", tells, None),
        Row::single(
            "spawn light actors on another node",
            "/s",
            spawns,
            Target::AtLeast(10_000.0),
        ),
    ])
}
