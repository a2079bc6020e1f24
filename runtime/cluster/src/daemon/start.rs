//! The start of a node: its folder and its engine, its seat among the voters, then its other parts.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use odeon::upgrade::Inheritance;
use odeon::{Clock, ClusterIdentity, NodeIdentity, Programs, System, SystemError, WorkerMode};
use odeon_artifacts::{Footprint, Store};
use odeon_observe::Observer;
use tokio::task::JoinSet;

use super::late_programs::LatePrograms;
use super::mesh::{self, Mesh};
use super::{Daemon, DaemonConfig, DaemonError, JOB, NodeEntry, host_name};
use crate::admit::gate::Gatekeeper;
use crate::agent::giving::Agents;
use crate::agent::{Agent, AttemptHandoff};
use crate::catalog::{Catalog, CatalogError, Picture, WriteError};
use crate::cgroups::Cgroups;
use crate::controller::Controller;
use crate::disk_room::WatchedDisk;
use crate::folder::{DRIVERS_FOLDER, Folder, MOUNTS_FOLDER, NodeFile};
use crate::forward::Forward;
use crate::history::History;
use crate::logs::Logs;
use crate::logs::archive::Archive;
use crate::observer;
use crate::presence::Presence;
use crate::raft::disk::Disk;
use crate::raft::recover;
use crate::staging::{Places, Staging};
use crate::stale_drivers::StaleDrivers;
use crate::upgrade::Own;
use crate::voting::{LOG_FILE, Voting};

/// The most viewers of one node at the same time.
const VIEWERS_MAX: usize = 16;
/// The number of the node that founds a cluster.
const FOUNDER: u64 = 1;
/// The pause between two removals of files that no job needs.
const COLLECT_PAUSE: Duration = Duration::from_secs(60);
/// The longest time that a voter waits for others when it comes up.
const ANNOUNCE_PATIENCE: Duration = Duration::from_secs(2);

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
        let programs = Arc::new(LatePrograms::default());
        let gate = Gatekeeper::default();
        let heritage = config.heritage.take();
        let (engine, own) = heritage.map(|it| (it.engine, it.own)).unzip();
        let system = start_system(&mut config, identity, listen, &programs, engine).await?;
        let listen = system.address().unwrap_or(listen);
        let founds = matches!(config.entry, NodeEntry::Found) && known.is_none();
        let mut node = node_file(known, name.clone(), listen, &config.entry);
        if founds {
            seat_founder(&folder, &mut node)?;
        }
        unseat_without_disk(&folder, &mut node, &name)?;
        if config.alone {
            seat_alone(&folder, &mut node, &name).await?;
        }
        folder.set_node(&node)?;
        let starting = Starting {
            config: &config,
            folder: &folder,
            system: &system,
            node: &node,
            programs: &programs,
            gate: &gate,
            catalog: Catalog::new(
                system.clone(),
                node.name.clone(),
                Picture::of_voters(node.voters.clone()),
            ),
        };
        let started = Box::pin(starting.begin(own)).await;
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
}

/// The parts of a node that are there before all others.
struct Starting<'a> {
    config: &'a DaemonConfig,
    folder: &'a Arc<Folder>,
    system: &'a System,
    node: &'a NodeFile,
    programs: &'a Arc<LatePrograms>,
    gate: &'a Gatekeeper,
    catalog: Catalog,
}

impl Starting<'_> {
    /// Begins the other parts. Where one fails, what was begun ends with this.
    async fn begin(self, heritage: Option<Own>) -> Result<Daemon, DaemonError> {
        let Self {
            config,
            folder,
            system,
            node,
            programs,
            gate,
            ref catalog,
        } = self;
        let logs = Logs::open(folder.part("logs"), config.logs).map_err(DaemonError::Logs)?;
        let forward = Forward::new(&node.name, system.process());
        let goes_on = heritage.is_some();
        let (tries, upgrades) = match heritage {
            None => (vec![], 0),
            Some(own) => {
                forward.inherit(own.prints).map_err(DaemonError::Heritage)?;
                (own.tries, own.upgrades)
            }
        };
        let cgroups = Cgroups::begin(system.process().0);
        let unlimited = cgroups.obstacle().map(str::to_owned);
        let agent = self.agent(goes_on, &forward, tries, cgroups).await?;
        *programs.agent.lock() = Some(agent.clone());
        catalog.serve().await?;
        let archive = Archive::begin(system, &node.name, catalog, Arc::new(logs)).await?;
        *gate.catalog.lock() = Some(catalog.clone());
        self.begin_voting().await?;
        let address = self.reached().to_string();
        let presence = self.presence(&address, upgrades, unlimited).await?;
        let voting = self.voting(&presence);
        voting.serve(&node.name).await?;
        let mesh = Mesh::new(system, catalog, folder, node, &presence);
        if catalog.is_voter() {
            // It may be the first to come up.
            mesh.dial(&node.peers);
        } else if !goes_on {
            mesh::link(system, &node.peers).await?;
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(mesh.run());
        tasks.spawn(self.controller().run());
        tasks.spawn(voting.tend());
        tasks.spawn(forward.clone().run(archive.clone()));
        tasks.spawn(agent.clone().sweep());
        tasks.spawn(collect(agent.staging().clone(), config.artifacts));
        observer::serve(system, &node.name).await?;
        let observer = Observer::new("cluster", VIEWERS_MAX);
        self.observe(&mut tasks, observer.clone());
        announce(catalog, &presence).await?;
        Ok(Daemon {
            observer,
            rules: config.rules.clone(),
            folder: Arc::clone(folder),
            founded: false,
            system: system.clone(),
            catalog: catalog.clone(),
            agent,
            archive,
            name: node.name.clone(),
            address,
            presence,
            // Two jobs must have room at the same time.
            bundle_bytes_max: config.artifacts.piece_bytes / 2,
            programs: Arc::clone(programs),
            gate: gate.clone(),
            forward,
            upgrades,
            tasks: tasks.into(),
        })
    }

    /// The files of jobs; those of tries of the program before this one, where it goes on with them.
    async fn staging(&self, goes_on: bool) -> Result<Staging, DaemonError> {
        let failed = |error: &dyn Display| DaemonError::Artifacts(error.to_string());
        let artifacts = self.folder.part("artifacts");
        let budget = self.config.artifacts;
        let store = tokio::task::spawn_blocking(move || Store::open(artifacts, budget)).await;
        let store = store.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        let places = Places {
            store,
            jobs: self.folder.part("jobs"),
            mounts: self.folder.part(MOUNTS_FOLDER),
            environments: self.folder.part("environments"),
            goes_on,
        };
        let (engine, memory) = (self.system.clone(), self.catalog.clone());
        let givers = Arc::new(Agents {
            system: self.system.clone(),
        });
        let on_demand = self.config.on_demand;
        let staging = Staging::new(engine, &self.node.name, memory, givers, places, on_demand);
        staging.map_err(|e| failed(&e))
    }

    /// The agent, which goes on with these tries. Drivers that nobody knows any more are ended first: they may write where
    /// files are looked for.
    async fn agent(
        &self,
        goes_on: bool,
        forward: &Forward,
        tries: Vec<AttemptHandoff>,
        cgroups: Cgroups,
    ) -> Result<Agent, DaemonError> {
        let drivers: Vec<u32> = tries.iter().map(AttemptHandoff::pid).collect();
        let stale_drivers = StaleDrivers::open(self.folder.part(DRIVERS_FOLDER), &drivers);
        let stale_drivers = stale_drivers.map_err(DaemonError::Logs)?;
        let agent = Agent::begin(
            self.system,
            &self.node.name,
            &self.catalog,
            self.staging(goes_on).await?,
            forward.clone(),
            stale_drivers,
            cgroups,
        );
        let agent = agent.await?;
        agent.inherit(tries);
        Ok(agent)
    }

    /// Begins to vote, where this node does. One that votes alone founds the cluster, unless it has.
    async fn begin_voting(&self) -> Result<(), DaemonError> {
        let Some(number) = self.node.votes_as else {
            return Ok(());
        };
        let disk = Disk::open(&self.folder.part(LOG_FILE)).map_err(CatalogError::from)?;
        self.catalog.begin_voting(number, disk).await?;
        if self.node.voters == [self.node.name.clone()] {
            self.catalog.found(number).await?;
        }
        let authority = ClusterIdentity::load(self.folder.path())?;
        self.system.admit(authority, self.gate.clone())?;
        Ok(())
    }

    /// The word that this node gives of itself.
    async fn presence(
        &self,
        address: &str,
        upgrades: u32,
        unlimited: Option<String>,
    ) -> Result<Presence, DaemonError> {
        let certificate = NodeIdentity::load(self.folder.path())?.fingerprint()?;
        let (system, catalog, node) = (self.system, &self.catalog, self.node);
        let address = address.to_owned();
        let presence = Presence::of(
            system,
            catalog,
            node,
            address,
            certificate,
            upgrades,
            unlimited,
        );
        let folder = self.folder.path().to_owned();
        let disk = WatchedDisk::new(folder, self.config.disk_alarm);
        Ok(presence.await.watching(disk))
    }

    fn voting(&self, presence: &Presence) -> Voting {
        Voting {
            system: self.system.clone(),
            catalog: self.catalog.clone(),
            folder: Arc::clone(self.folder),
            presence: presence.clone(),
            gate: self.gate.clone(),
            turn: Arc::default(),
        }
    }

    /// The address by which others reach this node.
    fn reached(&self) -> SocketAddr {
        let mut reached = self.config.advertise.unwrap_or(self.node.listen);
        if reached.port() == 0 {
            reached.set_port(self.node.listen.port());
        }
        reached
    }

    fn controller(&self) -> Controller {
        let (name, memory) = (self.node.name.clone(), self.catalog.clone());
        let (folder, rules) = (Arc::clone(self.folder), self.config.rules.clone());
        Controller::new(self.system.clone(), name, memory, folder, rules)
    }

    /// Has an observer look at the cluster.
    fn observe(&self, tasks: &mut JoinSet<()>, observer: Observer) {
        let (memory, name) = (self.catalog.clone(), self.node.name.clone());
        let (own, home) = (self.system.clone(), Arc::clone(self.folder));
        let rules = self.config.rules.clone();
        tasks.spawn(async move {
            // Not before the node is up: nobody waits for what was long ago.
            let history = History::open(home.path(), &observer).await;
            observer::follow(observer, own, memory, name, rules, Some(history)).await;
        });
    }
}

/// The file of a node: the one that it had, or a new one, with where it listens now.
fn node_file(
    known: Option<NodeFile>,
    name: String,
    listen: SocketAddr,
    entry: &NodeEntry,
) -> NodeFile {
    let mut node = known.unwrap_or_else(|| NodeFile {
        name,
        votes_as: None,
        listen,
        peers: vec![],
        voters: vec![],
    });
    node.listen = listen;
    if let NodeEntry::Join { through, .. } = entry
        && !node.peers.contains(through)
    {
        node.peers.push(*through);
    }
    node
}

/// Makes the node that founds a cluster its only voter.
fn seat_founder(folder: &Folder, node: &mut NodeFile) -> Result<(), DaemonError> {
    // Before it is written that there is a disk, so that one which is missing was lost.
    drop(Disk::open(&folder.part(LOG_FILE)).map_err(CatalogError::from)?);
    node.votes_as = Some(FOUNDER);
    node.voters = vec![node.name.clone()];
    Ok(())
}

/// Takes the vote from a node whose disk is gone.
fn unseat_without_disk(
    folder: &Folder,
    node: &mut NodeFile,
    name: &str,
) -> Result<(), DaemonError> {
    if node.votes_as.is_none() || folder.holds(LOG_FILE) {
        return Ok(());
    }
    node.voters.retain(|voter| voter != name);
    if node.voters.is_empty() {
        return Err(DaemonError::Forgotten(folder.part(LOG_FILE)));
    }
    // An empty disk must not vote: what this node has promised was on the other one.
    tracing::error!("the catalog's file is gone: this node votes when it has learnt anew");
    node.votes_as = None;
    Ok(())
}

/// Makes a voter the only one, since the majority is lost for good.
async fn seat_alone(folder: &Folder, node: &mut NodeFile, name: &str) -> Result<(), DaemonError> {
    let number = node.votes_as.ok_or(DaemonError::NothingAlone)?;
    let disk = Disk::open(&folder.part(LOG_FILE)).map_err(CatalogError::from)?;
    let taken = recover::alone(&disk, number, name).await;
    let behind = taken.map_err(CatalogError::from)?;
    tracing::warn!(behind, "this node votes alone from now on");
    node.voters = vec![name.to_owned()];
    Ok(())
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
    programs: &Arc<LatePrograms>,
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

/// Removes files that no job needs, now and then.
async fn collect(staging: Staging, budget: Footprint) {
    // Half of the room stays for what may be needed again.
    let down_to = Footprint {
        piece_bytes: budget.piece_bytes / 2,
        folder_bytes: budget.folder_bytes / 2,
    };
    loop {
        Clock::sleep(COLLECT_PAUSE).await;
        staging.collect(down_to).await;
    }
}
