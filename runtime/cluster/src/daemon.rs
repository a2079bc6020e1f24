//! A node of a cluster: the engine, the catalog, the agent, and what keeps them together.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use odeon::upgrade::Inheritance;
use odeon::{
    Clock, ClusterIdentity, DetachError, DetachedActor, Failure, FakeDevices, Limits, NodeIdentity,
    Output, ProcessId, Programs, System, SystemError, WorkerCommand, WorkerMode,
};
use odeon_artifacts::{Footprint, Store};
use odeon_observe::Observer;
use parking_lot::Mutex;
use thiserror::Error;

use crate::admit::gate::Gatekeeper;
use crate::agent::giving::Agents;
use crate::agent::{self, Agent, TryEstate};
use crate::catalog::{Catalog, CatalogError, Picture, WriteError};
use crate::controller::{Controller, Offer, Rules, offers};
use crate::fact::Fact;
use crate::folder::{Folder, FolderError, NodeFile};
use crate::forward::Forward;
use crate::history::History;
use crate::job::Job;
use crate::logs::archive::Archive;
use crate::logs::{LogLimits, Logs};
use crate::observer;
use crate::presence::Presence;
use crate::raft::disk::Disk;
use crate::raft::recover;
use crate::staging::demand::OnDemand;
use crate::staging::{Places, Staging};
use crate::stale_drivers::StaleDrivers;
use crate::tables::NodeState;
use crate::upgrade::{self, Heritage, Own, Upgrade, UpgradeError, UpgradeOrder};
use crate::voting::{LOG_FILE, Voting};

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
    programs: Arc<Late>,
    gate: Gatekeeper,
    forward: Forward,
    /// Number of programs that this life of the node has had before this one.
    upgrades: u32,
    /// The view that it has of the cluster.
    observer: Observer,
    rules: Rules,
    tasks: tokio::sync::Mutex<tokio::task::JoinSet<()>>,
}

/// The programs of jobs, from an agent that comes a moment later than the engine, and goes before
/// it: it holds the engine.
#[derive(Debug, Default)]
struct Late {
    agent: Mutex<Option<Agent>>,
}

impl Programs for Late {
    fn worker<'a>(&'a self, job: &'a str) -> BoxFuture<'a, Result<WorkerCommand, String>> {
        let agent = self.agent.lock().clone();
        Box::pin(async move {
            match agent {
                Some(agent) => Programs::worker(&agent, job).await,
                None => Err("the node is starting or leaving".to_owned()),
            }
        })
    }

    fn detach<'a>(
        &'a self,
        job: &'a str,
        actor: DetachedActor,
        or_existing: bool,
    ) -> BoxFuture<'a, Result<(), DetachError>> {
        let agent = self.agent.lock().clone();
        Box::pin(async move {
            match agent {
                Some(agent) => Programs::detach(&agent, job, actor, or_existing).await,
                None => Err(DetachError::Refused {
                    name: actor.name().to_owned(),
                    why: "the node is starting or leaving".to_owned(),
                }),
            }
        })
    }

    fn take_output(&self, job: &str, process: ProcessId, output: Output) {
        if let Some(agent) = &*self.agent.lock() {
            agent.take_output(job, process, output);
        }
    }
}

/// The job that the daemons themselves are.
pub(crate) const JOB: &str = "odeon";
/// The pause between two checks of the links to other nodes.
const MESH_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two removals of files that no job needs.
const COLLECT_PAUSE: Duration = Duration::from_secs(60);

impl Daemon {
    /// Starts a node.
    ///
    /// # Errors
    /// What is in the way.
    #[odeon::boxed]
    pub async fn start(mut config: DaemonConfig) -> Result<Self, DaemonError> {
        if config
            .advertise
            .unwrap_or(config.listen)
            .ip()
            .is_unspecified()
        {
            return Err(DaemonError::Nowhere(config.listen));
        }
        // What processes of jobs leave behind becomes this process's own, so that it can be ended.
        if let Err(errno) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
            tracing::warn!(%errno, "what processes of jobs leave behind may stay");
        }
        let folder = Arc::new(Folder::take(&config.folder)?);
        let known = folder.node()?;
        let name = config.name.clone();
        let name = name.or_else(|| known.as_ref().map(|known| known.name.clone()));
        let name = name.unwrap_or_else(host_name);
        let identity = identity(&folder, &name, &config.entry)?;
        let mut listen = config.listen;
        if let Some(known) = known.as_ref().filter(|_| listen.port() == 0) {
            listen.set_port(known.listen.port());
        }
        let programs = Arc::new(Late::default());
        let gate = Gatekeeper::default();
        let heritage = config.heritage.take();
        let (engine, own) = heritage.map(|it| (it.engine, it.own)).unzip();
        let system = start_system(&mut config, identity, listen, &programs, engine).await?;
        let listen = system.address().unwrap_or(listen);
        let founds = matches!(config.entry, NodeEntry::Found) && known.is_none();
        let mut node = known.unwrap_or_else(|| NodeFile {
            name: name.clone(),
            votes_as: None,
            listen,
            peers: vec![],
            voters: vec![],
        });
        node.listen = listen;
        if let NodeEntry::Join { through, .. } = &config.entry
            && !node.peers.contains(through)
        {
            node.peers.push(*through);
        }
        let log = folder.part(LOG_FILE);
        if founds {
            // Before it is written that there is one, so that one which is missing was lost.
            drop(Disk::open(&log).map_err(CatalogError::from)?);
            node.votes_as = Some(FOUNDER);
            node.voters = vec![name.clone()];
        }
        if node.votes_as.is_some() && !folder.holds(LOG_FILE) {
            node.voters.retain(|voter| *voter != name);
            if node.voters.is_empty() {
                return Err(DaemonError::Forgotten(log));
            }
            // An empty disk must not vote: what this node has promised was on the other one.
            tracing::error!("the catalog's file is gone: this node votes when it has learnt anew");
            node.votes_as = None;
        }
        if config.alone {
            let number = node.votes_as.ok_or(DaemonError::NothingAlone)?;
            let disk = Disk::open(&log).map_err(CatalogError::from)?;
            let taken = recover::alone(&disk, number, &name).await;
            let behind = taken.map_err(CatalogError::from)?;
            tracing::warn!(behind, "this node votes alone from now on");
            node.voters = vec![name.clone()];
        }
        folder.set_node(&node)?;
        let begun = Self::begin(
            &config,
            &folder,
            &system,
            &node,
            &programs,
            gate.clone(),
            own,
        );
        let started = Box::pin(begun).await;
        if started.is_err() {
            drop(gate.catalog.lock().take());
            drop(programs.agent.lock().take());
            system.shutdown().await;
        }
        started.map(|daemon| Self {
            founded: founds,
            ..daemon
        })
    }

    async fn begin(
        config: &DaemonConfig,
        folder: &Arc<Folder>,
        system: &System,
        node: &NodeFile,
        programs: &Arc<Late>,
        gate: Gatekeeper,
        heritage: Option<Own>,
    ) -> Result<Self, DaemonError> {
        let picture = Picture::of_voters(node.voters.clone());
        let catalog = Catalog::new(system.clone(), node.name.clone(), picture);
        let logs = Logs::open(folder.part("logs"), config.logs).map_err(DaemonError::Logs)?;
        let logs = Arc::new(logs);
        let artifacts = folder.part("artifacts");
        let budget = config.artifacts;
        let store = tokio::task::spawn_blocking(move || Store::open(artifacts, budget)).await;
        let failed = |error: &dyn std::fmt::Display| DaemonError::Artifacts(error.to_string());
        let store = store.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        let places = Places {
            store,
            jobs: folder.part("jobs"),
            mounts: folder.part("mounts"),
        };
        let (engine, memory) = (system.clone(), catalog.clone());
        let givers = Arc::new(Agents {
            system: system.clone(),
        });
        let staging = Staging::new(engine, &node.name, memory, givers, places, config.on_demand);
        let staging = staging.map_err(|e| failed(&e))?;
        let forward = Forward::new(&node.name, system.process());
        let goes_on = heritage.is_some();
        let (tries, upgrades) = match heritage {
            None => (vec![], 0),
            Some(own) => {
                forward.inherit(own.prints).map_err(DaemonError::Heritage)?;
                (own.tries, own.upgrades)
            }
        };
        let drivers: Vec<u32> = tries.iter().map(TryEstate::pid).collect();
        let stale_drivers =
            StaleDrivers::open(folder.part("drivers"), &drivers).map_err(DaemonError::Logs)?;
        let agent = Agent::begin(
            system,
            &node.name,
            &catalog,
            staging,
            forward.clone(),
            stale_drivers,
        );
        let agent = agent.await?;
        agent.inherit(tries);
        *programs.agent.lock() = Some(agent.clone());
        catalog.serve().await?;
        let archive = Archive::begin(system, &node.name, &catalog, logs).await?;
        *gate.catalog.lock() = Some(catalog.clone());
        if let Some(number) = node.votes_as {
            let disk = Disk::open(&folder.part(LOG_FILE)).map_err(CatalogError::from)?;
            catalog.begin_voting(number, disk).await?;
            if node.voters == [node.name.clone()] {
                catalog.found(number).await?;
            }
            system.admit(ClusterIdentity::load(folder.path())?, gate.clone())?;
        }
        let mut reached = config.advertise.unwrap_or(node.listen);
        if reached.port() == 0 {
            reached.set_port(node.listen.port());
        }
        let certificate = NodeIdentity::load(folder.path())?.fingerprint()?;
        let presence = Presence::of(
            system,
            &catalog,
            node,
            reached.to_string(),
            certificate,
            upgrades,
        )
        .await;
        let voting = Voting {
            system: system.clone(),
            catalog: catalog.clone(),
            folder: Arc::clone(folder),
            presence: presence.clone(),
            gate: gate.clone(),
            turn: Arc::default(),
        };
        voting.serve(&node.name).await?;
        let mesh = Mesh::new(system, &catalog, folder, node, &presence);
        if catalog.is_voter() {
            // It may be the first to come up.
            mesh.dial(&node.peers);
        } else if !goes_on {
            link(system, &node.peers).await?;
        }
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(mesh.run());
        let rules = config.rules.clone();
        let (name, memory) = (node.name.clone(), catalog.clone());
        let controller = Controller::new(system.clone(), name, memory, Arc::clone(folder), rules);
        tasks.spawn(controller.run());
        tasks.spawn(voting.tend());
        tasks.spawn(forward.clone().run(archive.clone()));
        tasks.spawn(agent.clone().sweep());
        tasks.spawn(collect(agent.clone(), catalog.clone(), config.artifacts));
        observer::serve(system, &node.name).await?;
        let seen = Observer::new("cluster", VIEWERS_MAX);
        let (memory, name) = (catalog.clone(), node.name.clone());
        let (observer, own, home) = (seen.clone(), system.clone(), Arc::clone(folder));
        tasks.spawn(async move {
            // Not before the node is up: nobody waits for what was long ago.
            let history = History::open(home.path(), &observer).await;
            observer::follow(observer, own, memory, name, Some(history)).await;
        });
        announce(&catalog, &presence).await?;
        Ok(Self {
            observer: seen,
            rules: config.rules.clone(),
            folder: Arc::clone(folder),
            founded: false,
            system: system.clone(),
            catalog,
            agent,
            archive,
            name: node.name.clone(),
            address: reached.to_string(),
            presence,
            // Two jobs must have room at the same time.
            bundle_bytes_max: config.artifacts.piece_bytes / 2,
            programs: Arc::clone(programs),
            gate,
            forward,
            upgrades,
            tasks: tasks.into(),
        })
    }

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

    /// The view that it has of the cluster.
    #[must_use]
    pub const fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Looks at the cluster for another observer, until the future is dropped.
    #[odeon::boxed]
    pub async fn follow(&self, observer: Observer) {
        let (system, catalog) = (self.system.clone(), self.catalog.clone());
        observer::follow(observer, system, catalog, self.name.clone(), None).await;
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
        let succession = self.system.hand_over(upgrade::PATIENCE).await?;
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
            tries: self.agent.estate().await,
            prints,
            upgrades: self.upgrades + 1,
        };
        drop(hold);
        Heritage { engine, own }
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

/// The most viewers of one node at the same time.
const VIEWERS_MAX: usize = 16;
/// The number of the node that founds a cluster.
const FOUNDER: u64 = 1;
/// The longest time that the cluster may take to hear that a node leaves.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// The name of a node that is given none.
#[must_use]
pub fn host_name() -> String {
    let host = rustix::system::uname();
    host.nodename().to_string_lossy().into_owned()
}

fn identity(folder: &Folder, name: &str, entry: &NodeEntry) -> Result<NodeIdentity, DaemonError> {
    let path = folder.path();
    if let NodeEntry::Join {
        identity: Some(issued),
        ..
    } = entry
    {
        issued.save(path)?;
        return Ok(issued.clone());
    }
    if path.join("node.pem").exists() {
        return Ok(NodeIdentity::load(path)?);
    }
    match entry {
        NodeEntry::Found => {
            let cluster = ClusterIdentity::generate()?;
            cluster.save(path)?;
            let identity = cluster.issue(name)?;
            identity.save(path)?;
            Ok(identity)
        }
        NodeEntry::Join { .. } => Err(DaemonError::Stranger(path.to_owned())),
    }
}

async fn start_system(
    config: &mut DaemonConfig,
    identity: NodeIdentity,
    listen: SocketAddr,
    programs: &Arc<Late>,
    inherited: Option<Inheritance>,
) -> Result<System, SystemError> {
    let types: odeon::ActorTypes = &[];
    let builder = System::builder()
        .job(odeon::Job::new(JOB, types, &[]))
        .limits(config.limits.clone())
        .workers(WorkerMode::Jobs(Arc::clone(programs) as Arc<dyn Programs>))
        .listen(listen, identity);
    let builder = match config.devices.take() {
        Some(devices) => builder.devices(devices),
        None => builder,
    };
    let builder = match inherited {
        Some(inheritance) => builder.inherit(inheritance),
        None => builder,
    };
    builder.start().await
}

/// Links to somebody: one is enough, the others are linked when it has said who they are.
async fn link(system: &System, peers: &[SocketAddr]) -> Result<(), SystemError> {
    let dials = peers.iter().map(|peer| system.join(*peer));
    let mut dials: FuturesUnordered<_> = dials.collect();
    let mut first = None;
    while let Some(dialled) = dials.next().await {
        match dialled {
            Ok(_) => return Ok(()),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    first.map_or(Ok(()), Err)
}

/// Tells the cluster that the node is up. A voter may wait for the others to come up, and says so
/// when they have.
async fn announce(catalog: &Catalog, presence: &Presence) -> Result<(), WriteError> {
    let announced = Clock::timeout(ANNOUNCE_PATIENCE, presence.announce());
    match (announced.await, catalog.is_voter()) {
        (Some(Err(WriteError::NoQuorum { .. } | WriteError::Unknown { .. })) | None, true) => {
            tracing::warn!("too few voters are up: the node waits for them");
            Ok(())
        }
        (Some(said), _) => said,
        (None, false) => presence.announce().await,
    }
}

/// The longest time that a voter waits for others when it comes up.
const ANNOUNCE_PATIENCE: Duration = Duration::from_secs(2);

/// Keeps a link to every other node, and what each knows of the others.
#[derive(Debug)]
struct Mesh {
    system: System,
    catalog: Catalog,
    folder: Arc<Folder>,
    name: String,
    peers: Vec<SocketAddr>,
    presence: Presence,
    /// Those that are being dialled.
    dials: Arc<Mutex<BTreeSet<SocketAddr>>>,
}

impl Mesh {
    fn new(
        system: &System,
        catalog: &Catalog,
        folder: &Arc<Folder>,
        file: &NodeFile,
        presence: &Presence,
    ) -> Self {
        Self {
            system: system.clone(),
            catalog: catalog.clone(),
            folder: Arc::clone(folder),
            name: file.name.clone(),
            peers: file.peers.clone(),
            presence: presence.clone(),
            dials: Arc::default(),
        }
    }

    async fn run(mut self) {
        loop {
            Clock::sleep(MESH_PAUSE).await;
            self.catalog.look_around().await;
            self.link();
            self.bound();
            self.remember();
            if let Err(error) = self.presence.say().await {
                tracing::debug!(%error, "the cluster was not told how this node is");
            }
        }
    }

    /// Dials nodes that are up and not linked. Of two nodes, the one with the smaller name dials.
    fn link(&self) {
        let links = self.system.links().into_iter();
        let linked: BTreeSet<String> = links.map(|link| link.node).collect();
        let nodes = self.catalog.nodes();
        let missing = nodes.iter().filter(|row| {
            let name = &row.spec.name;
            row.state == NodeState::Up && *name > self.name && !linked.contains(name)
        });
        let addresses = missing.filter_map(|row| row.spec.address.parse().ok());
        self.dial(&addresses.collect::<Vec<_>>());
        // Somebody must be reached, or nothing is heard of the others.
        if linked.is_empty() {
            self.dial(&self.peers);
        }
    }

    /// Tells the engine what namespaces may hold of the cluster, and who is in it no more.
    fn bound(&self) {
        let namespaces = self.catalog.namespaces().into_iter();
        let quotas = namespaces.filter_map(|(name, bounds)| {
            let quota = bounds.of_actors()?;
            Some((format!("{name}/"), quota))
        });
        self.system.set_quotas(quotas.collect());
        self.system.refuse_certificates(self.catalog.revoked());
    }

    /// Dials these, those who are dialled already aside. Nobody waits for it: one that is gone takes
    /// its time.
    fn dial(&self, peers: &[SocketAddr]) {
        for peer in peers.iter().copied() {
            if !self.dials.lock().insert(peer) {
                continue;
            }
            let (system, dials) = (self.system.clone(), Arc::clone(&self.dials));
            tokio::spawn(async move {
                if let Err(error) = system.join(peer).await {
                    tracing::debug!(%peer, %error, "a node cannot be linked");
                }
                dials.lock().remove(&peer);
            });
        }
    }

    /// Writes down whom the node knows, for its next start.
    fn remember(&mut self) {
        let nodes = self.catalog.nodes();
        let up = nodes.iter().filter(|row| row.state == NodeState::Up);
        let others = up.filter(|row| row.spec.name != self.name);
        let peers: Vec<SocketAddr> = others
            .filter_map(|row| row.spec.address.parse().ok())
            .collect();
        if !peers.is_empty() {
            self.peers = peers;
        }
        let voters = self.catalog.voters();
        let written = self.folder.change_node(|file| {
            file.peers.clone_from(&self.peers);
            if !voters.is_empty() {
                file.voters = voters;
            }
        });
        if let Err(error) = written {
            tracing::warn!(%error, "what is known of other nodes is not written");
        }
    }
}

/// Removes files that no job needs, now and then.
async fn collect(agent: Agent, catalog: Catalog, budget: Footprint) {
    loop {
        Clock::sleep(COLLECT_PAUSE).await;
        let Some(live) = catalog.live_bundles().await else {
            continue;
        };
        let store = Arc::clone(agent.staging().store());
        // Half of the room stays for what may be needed again.
        let down_to = Footprint {
            piece_bytes: budget.piece_bytes / 2,
            folder_bytes: budget.folder_bytes / 2,
        };
        let collected = tokio::task::spawn_blocking(move || {
            let kept = store.bundles()?;
            let live: Vec<_> = live.into_iter().filter(|it| kept.contains(it)).collect();
            store.collect(&live, down_to, crate::staging::moment())
        });
        match collected.await {
            Ok(Ok(freed)) => tracing::debug!(?freed, "files that no job needs were removed"),
            Ok(Err(error)) => tracing::warn!(%error, "files of jobs cannot be removed"),
            Err(error) => tracing::warn!(%error, "files of jobs cannot be removed"),
        }
    }
}
