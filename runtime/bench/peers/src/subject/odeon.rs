//! Odeon: to a worker process over a unix socket, and to another node over QUIC. Both nodes show a
//! certificate of the cluster.

use std::path::Path;

use anyhow::{Context, Result};
use odeon::{ClusterIdentity, Job, NodeIdentity, Ref, System};

use super::{Subject, loopback};
use crate::figures::{Figures, PAYLOAD, Payload};
use crate::server::{Server, serve_at};

const NAME: &str = "mirror";

struct Mirror;

#[odeon::actor(name = "peers.Mirror")]
impl Mirror {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn reflect(&mut self, words: Payload) -> Payload {
        words
    }
}

pub(crate) fn job() -> Job {
    odeon::job![Mirror]
}

pub(super) async fn measure_worker() -> Result<Figures> {
    let system = System::builder().job(job()).start().await?;
    let mirror = system.spawn::<Mirror>(()).isolated().await?;
    let figures = figures(mirror).await?;
    system.shutdown().await;
    Ok(figures)
}

pub(super) async fn measure_node() -> Result<Figures> {
    let cluster = ClusterIdentity::generate()?;
    let folder = tempfile::tempdir()?;
    cluster.issue("server")?.save(folder.path())?;
    let server = Server::start(Subject::OdeonQuic, folder)?;
    let system = node(cluster.issue("client")?).await?;
    system.join(server.address.parse()?).await?;
    let figures = figures(system.lookup(NAME).await?).await?;
    system.shutdown().await;
    Ok(figures)
}

pub(super) async fn serve_node(folder: &Path) -> Result<()> {
    let system = node(NodeIdentity::load(folder)?).await?;
    let mirror = system.spawn::<Mirror>(()).await?;
    system.register(NAME, mirror).await?;
    serve_at(system.address().context("it listens")?).await
}

async fn node(identity: NodeIdentity) -> Result<System> {
    let builder = System::builder().job(job());
    Ok(builder.listen(loopback(), identity).start().await?)
}

async fn figures(mirror: Ref<Mirror>) -> Result<Figures> {
    Figures::of(move || async move { Ok(mirror.ask(Reflect { words: PAYLOAD }).await?) }).await
}
