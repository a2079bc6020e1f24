//! Odeon: to a worker process over a unix socket, and to another node over QUIC. Both nodes show a
//! certificate of the cluster. Worker processes are also started and killed.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use odeon::{Clock, ClusterIdentity, Job, NodeIdentity, Ref, Restart, System};
use rustix::process::{Pid, Signal, kill_process};

use super::{Subject, loopback};
use crate::figures::{Figures, KILLS, PAYLOAD, PROCESSES, Payload};
use crate::report::median;
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
    let mut figures = figures(mirror).await?;
    let mut restarts = vec![];
    for _ in 0..KILLS {
        restarts.push(killed(&system).await?);
    }
    figures.restart = Some(median(restarts.into_iter()));
    figures.start = Some(started(&system).await?);
    system.shutdown().await;
    Ok(figures)
}

/// Seconds until actors in as many new processes have all answered.
async fn started(system: &System) -> Result<f64> {
    let begun = Clock::now();
    let actors = (0..PROCESSES).map(async |_| {
        let mirror = system.spawn::<Mirror>(()).isolated().await?;
        mirror.ask(Reflect { words: PAYLOAD }).await?;
        anyhow::Ok(())
    });
    futures::future::try_join_all(actors).await?;
    Ok(Clock::now().since(begun).as_secs_f64())
}

/// Seconds from `kill -9` of an actor's process to the actor's next answer. Nobody tells the system
/// of the kill.
async fn killed(system: &System) -> Result<f64> {
    let spawn = system.spawn::<Mirror>(()).isolated();
    let mirror = spawn.restart(Restart::Permanent).await?;
    mirror.ask(Reflect { words: PAYLOAD }).await?;
    let process = system
        .admin()
        .process_of(mirror)
        .context("the actor has no place")?;
    let workers = system.admin().workers();
    let (_, pid) = *workers
        .iter()
        .find(|(worker, _)| *worker == process)
        .context("its process is no worker")?;
    let pid = Pid::from_raw(i32::try_from(pid)?).context("its process has no number")?;
    let begun = Clock::now();
    kill_process(pid, Signal::KILL)?;
    // An ask that reached the dying process ends with `Died`; the next one waits for the restart.
    while mirror.ask(Reflect { words: PAYLOAD }).await.is_err() {}
    let seconds = Clock::now().since(begun).as_secs_f64();
    let now = system.admin().process_of(mirror);
    ensure!(now != Some(process), "the process that was killed answered");
    Ok(seconds)
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
