//! A node of a cluster: the engine, the catalog, the agent, and what keeps them together.

mod late_programs;
mod mesh;
mod stacks;
mod start;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use odeon::{
    Clock, Failure, FakeDevices, Limits, NodeIdentity, System, SystemError, WorkerCommand,
};
use odeon_artifacts::{Digest, Footprint, Shares, Store};
use odeon_observe::Observer;
use thiserror::Error;

use self::late_programs::LatePrograms;
pub use self::stacks::JobStacks;
use crate::admit::gate::Gatekeeper;
pub use crate::agent::ProgramStack;
use crate::agent::{self, Agent};
use crate::catalog::{Catalog, CatalogError, WriteError};
use crate::controller::{Offer, Rules, offers, waits};
use crate::disk_room::DiskBound;
use crate::doctor::MachineFacts;
use crate::fact::Fact;
use crate::folder::{Folder, FolderError};
use crate::forward::Forward;
use crate::job::{Job, JobId};
use crate::logs::LogLimits;
use crate::logs::archive::Archive;
use crate::observer;
use crate::presence::Presence;
use crate::staging::StagingError;
use crate::staging::demand::OnDemand;
use crate::tables::NodeState;
use crate::unix::Unix;
use crate::upgrade::{self, Heritage, Own, Upgrade, UpgradeError, UpgradeOrder};

/// The settings that a daemon is started with.
#[derive(Debug)]
pub struct DaemonConfig {
    /// Where it keeps what it knows.
    pub folder: PathBuf,
    /// Its name; that of the host, unless told otherwise, or the one that it had before.
    pub name: Option<String>,
    /// Where other nodes reach it; the port that it had before, if that is 0.
    pub listen: SocketAddr,
    /// The address at which other nodes are told to reach it, where that is not where it listens:
    /// it must be set when it listens on all addresses. Port 0 stands for the one that it listens
    /// on.
    pub advertise: Option<SocketAddr>,
    /// The way in which it comes into a cluster.
    pub entry: NodeEntry,
    /// Set where it goes on as the only voter, since the majority is lost for good. What only those
    /// knew is lost; none of them may come back with what its disk holds.
    pub alone: bool,
    /// Made up devices, in place of the machine's.
    pub devices: Option<FakeDevices>,
    /// The bounds of its engine.
    pub limits: Limits,
    /// The bounds of the cluster that it keeps while it leads.
    pub rules: Rules,
    /// Bytes on its disk for files of jobs.
    pub artifacts: Footprint,
    /// When files of jobs are read while they come.
    pub on_demand: OnDemand,
    /// Bounds of the logs that it keeps.
    pub logs: LogLimits,
    /// The least that is to be free of the disk of its folder: with less the cluster is warned.
    pub disk_alarm: DiskBound,
    /// The state that the program before this one in this process has left.
    pub heritage: Option<Heritage>,
}

/// The way in which a node comes into a cluster.
#[derive(Debug)]
pub enum NodeEntry {
    /// It begins a new one, or goes on with the one of its folder.
    Found,
    /// It goes on with what its folder says, or joins with this identity through the node at this
    /// address.
    Join {
        /// Where a node is.
        through: SocketAddr,
        /// Its own identity, if it has just been issued.
        identity: Option<NodeIdentity>,
    },
}

/// Why a daemon does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Its folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its engine.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Its catalog.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// It could not tell the cluster that it is there.
    #[error("the cluster was not told that this node is up: {0}")]
    Announce(#[from] WriteError),
    /// An actor of its own.
    #[error("a part of the daemon did not start: {0}")]
    Part(#[from] Failure),
    /// Its files of jobs.
    #[error("the files of jobs: {0}")]
    Artifacts(String),
    /// The logs that it keeps of jobs cannot be used.
    #[error("what the node keeps of jobs: {0}")]
    Logs(std::io::Error),
    /// Nobody could reach it.
    #[error("other nodes cannot reach {0}: say by which address they can (--advertise)")]
    Nowhere(SocketAddr),
    /// The knowledge of the cluster was here and nowhere else.
    #[error("{} is missing or empty, and with it all that the cluster knew: put it back, or begin a new cluster in another folder (--dir)", .0.display())]
    Forgotten(PathBuf),
    /// It cannot go on alone.
    #[error("this node does not vote, so it has nothing to go on with alone: do that at a voter")]
    NothingAlone,
    /// The state that the program before it left cannot be used.
    #[error("going on where the program before this one has stopped: {0}")]
    Heritage(std::io::Error),
    /// It is in no cluster.
    #[error("{} holds no node's identity: join with a token (odeon join ADDRESS --token TOKEN)", .0.display())]
    Stranger(PathBuf),
}

/// A running node. [`Daemon::shutdown`] ends it in order.
#[derive(Debug)]
pub struct Daemon {
    folder: Arc<Folder>,
    founded: bool,
    system: System,
    catalog: Catalog,
    agent: Agent,
    archive: Archive,
    name: String,
    address: String,
    presence: Presence,
    bundle_bytes_max: u64,
    programs: Arc<LatePrograms>,
    gate: Gatekeeper,
    forward: Forward,
    /// Number of programs that this life of the node has had before this one.
    upgrades: u32,
    /// The view that it has of the cluster.
    observer: Observer,
    rules: Rules,
    tasks: tokio::sync::Mutex<tokio::task::JoinSet<()>>,
}

/// The job that the daemons themselves are.
pub(crate) const JOB: &str = "odeon";

impl Daemon {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The offers of all nodes to a job that waits for a driver.
    #[must_use]
    pub fn offers(&self, job: &Job) -> Vec<Offer> {
        let offers = self.catalog.read(|tables| offers(tables, job, &self.rules));
        offers.unwrap_or_default()
    }

    /// Why each job waits that does, in words of this moment; nothing at a node that does not vote.
    #[must_use]
    pub fn waits(&self) -> BTreeMap<JobId, String> {
        let waits = self
            .catalog
            .read(|tables| waits(tables, &self.rules, Unix::now()));
        waits.unwrap_or_default()
    }

    /// The view that it has of the cluster.
    #[must_use]
    pub const fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Looks at the cluster for another observer, until the future is dropped.
    #[odeon::boxed]
    pub async fn follow(&self, observer: Observer) {
        let (system, catalog) = (self.system.clone(), self.catalog.clone());
        let (name, rules) = (self.name.clone(), self.rules.clone());
        observer::follow(observer, system, catalog, name, rules, None).await;
    }

    /// Returns true where it has begun the cluster in this life.
    #[must_use]
    pub const fn has_founded(&self) -> bool {
        self.founded
    }

    /// Where other nodes reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Says where its HTTP API is; the cluster hears it a moment later.
    pub fn set_api(&self, url: String) {
        self.presence.set_api(url);
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The cluster's memory.
    #[must_use]
    pub const fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The engine.
    #[must_use]
    pub const fn system(&self) -> &System {
        &self.system
    }

    /// The output that jobs have printed.
    #[must_use]
    pub const fn archive(&self) -> &Archive {
        &self.archive
    }

    /// The files of jobs.
    #[must_use]
    pub fn artifacts(&self) -> &Arc<Store> {
        self.agent.staging().store()
    }

    /// Has a bundle here, which one of these nodes gives.
    pub(crate) async fn keep(&self, bundle: Digest, from: &[String]) -> Result<(), StagingError> {
        let alone = Shares::new("", []);
        self.agent.staging().keep(bundle, from, &alone).await
    }

    /// Removes all files that no job needs. That it did not work is seen by who needs the room.
    pub(crate) async fn make_room(&self) {
        let nothing = Footprint::default();
        self.agent.staging().collect(nothing).await;
    }

    /// The most bytes that the files of a job may have.
    #[must_use]
    pub const fn bundle_bytes_max(&self) -> u64 {
        self.bundle_bytes_max
    }

    /// Resolves when somebody has asked that it become another release.
    #[odeon::boxed]
    pub async fn upgrade_ordered(&self) -> UpgradeOrder {
        let answer = self.agent.upgrade_ordered().await;
        UpgradeOrder { answer }
    }

    /// Has a node of the cluster become the program that lies where its own did, in the same process.
    ///
    /// # Errors
    /// Why it does not.
    #[odeon::boxed]
    pub async fn upgrade_node(&self, node: &str) -> Result<(), String> {
        agent::order_upgrade(&self.system, node).await
    }

    /// The machines of all nodes that have not left, each as it is at the moment or with why it cannot be told, by name.
    #[odeon::boxed]
    pub async fn machines(&self) -> Vec<(String, Result<MachineFacts, String>)> {
        let nodes = self.catalog.nodes().into_iter();
        let there = nodes.filter(|node| node.state != NodeState::Left);
        let looks = there.map(async |node| {
            let name = node.spec.name;
            let facts = match node.state {
                NodeState::Lost { why } => Err(format!("it is lost: {why}")),
                NodeState::Up | NodeState::Left => agent::look(&self.system, &name).await,
            };
            (name, facts)
        });
        futures::future::join_all(looks).await
    }

    /// Gets ready to become another program. Until the end of that, or until what this gives is
    /// dropped, no try of a job begins here.
    ///
    /// # Errors
    /// That program is of no use, or something is under way that cannot be handed on; then all goes on.
    #[odeon::boxed]
    pub async fn prepare_upgrade(&self, program: &Path) -> Result<Upgrade, UpgradeError> {
        let path = program.to_owned();
        let checked = tokio::task::spawn_blocking(move || upgrade::check(&path)).await;
        checked.map_err(|error| UpgradeError::Program {
            program: program.to_owned(),
            why: error.to_string(),
        })??;
        let hold = self.agent.hold(upgrade::PATIENCE).await;
        let hold = hold.map_err(UpgradeError::Tries)?;
        let succession = self.system.admin().hand_over(upgrade::PATIENCE).await?;
        Ok(Upgrade { succession, hold })
    }

    /// Stands still, and gives what the next program of this process needs. There is no way back.
    #[odeon::boxed]
    pub async fn finish_upgrade(&self, upgrade: Upgrade) -> Heritage {
        let Upgrade { succession, hold } = upgrade;
        self.agent.pass_on();
        let prints = self.forward.freeze().await;
        self.tasks.lock().await.shutdown().await;
        self.catalog.close().await;
        let engine = succession.finish().await;
        let own = Own {
            tries: self.agent.handoff().await,
            prints,
            upgrades: self.upgrades + 1,
        };
        drop(hold);
        Heritage { engine, own }
    }

    /// Has daemons of the cluster start processes of this program here, for actors of their own: it must serve as a worker
    /// of a job that has them.
    pub fn serve_daemons(&self, worker: WorkerCommand) {
        *self.programs.own.lock() = Some(worker);
    }

    /// The longest time that the jobs which it runs may take to end.
    #[must_use]
    pub fn longest_grace(&self) -> Duration {
        self.agent.longest_grace()
    }

    /// Ends the jobs that it runs, in order, and begins no more.
    #[odeon::boxed]
    pub async fn end_jobs(&self) {
        self.agent.end_all().await;
    }

    /// Ends the node in order: its jobs, then its part in the cluster.
    #[odeon::boxed]
    pub async fn shutdown(self) {
        self.end().await;
    }

    /// [`Daemon::shutdown`] while others hold it, to whom it is of no use afterwards.
    #[odeon::boxed]
    pub async fn end(&self) {
        let (node, boot) = (self.name.clone(), self.system.process().0);
        self.end_jobs().await;
        let left = self.catalog.write_own(Fact::NodeLeft { node, boot });
        if let Some(Err(error)) = Clock::timeout(LEAVE_PATIENCE, left).await {
            tracing::info!(%error, "the cluster was not told that this node leaves");
        }
        tracing::debug!("its jobs are over");
        self.tasks.lock().await.shutdown().await;
        tracing::debug!("its tasks are over");
        self.catalog.close().await;
        tracing::debug!("the catalog is closed");
        drop(self.programs.agent.lock().take());
        drop(self.gate.catalog.lock().take());
        self.system.clone().shutdown().await;
        // No process of this node is left that has a file open.
        self.agent.staging().close().await;
    }
}

/// The longest time that the cluster may take to hear that a node leaves.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// The name of a node that is given none.
#[must_use]
pub fn host_name() -> String {
    let host = rustix::system::uname();
    host.nodename().to_string_lossy().into_owned()
}
