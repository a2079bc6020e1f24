//! The catalog as a node sees it: a voter has the tables, another node a picture of what concerns
//! it; both write through the leader.

mod picture;
mod vote;
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use odeon::{Failure, Later, Ref, System};
use odeon_artifacts::Digest;
use openraft::ServerState;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;

use crate::fact::{Command, NamespaceQuota};
use crate::job::{Job, JobId};
use crate::json::Json;
use crate::local_only::LocalOnly;
use crate::node_directory::{self, Unreached};
use crate::raft::TRY_PATIENCE;
use crate::raft::disk::DiskError;
use crate::resources::Reservation;
use crate::tables::{EnvironmentRow, NodeRow, Tables};
use picture::{Changes, Seen};
use vote::{Vote, is_alone};
use writing::{Taken, TryError};

pub(crate) use picture::Picture;
pub use writing::WriteError;

/// The longest time that the leader may take to say what people only like to know.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// Reads and writes the catalog for one node. Clones are the same catalog.
#[derive(Clone, Debug)]
pub struct Catalog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    system: System,
    node: String,
    vote: Mutex<Option<Vote>>,
    /// Why the disk of its vote has failed, while it is not open again.
    fault: Mutex<Option<String>>,
    picture: watch::Sender<Picture>,
    /// Jobs whose nodes could not be told what to do, and why, while this node leads.
    hindered: Mutex<BTreeMap<JobId, String>>,
}

/// The name of the actor at a voter that takes writes and questions.
fn server(node: &str) -> String {
    format!("catalog@{node}")
}

impl Catalog {
    /// That of a node, which knows these voters.
    pub(crate) fn new(system: System, node: String, picture: Picture) -> Self {
        let inner = Inner {
            system,
            node,
            vote: Mutex::default(),
            fault: Mutex::default(),
            picture: watch::channel(picture).0,
            hindered: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Lets other nodes ask this one.
    pub(crate) async fn serve(&self) -> Result<(), CatalogError> {
        let system = &self.inner.system;
        let spawned = system
            .spawn::<CatalogServer>(LocalOnly::new(self.clone()))
            .await;
        let spawned = spawned.map_err(|error| CatalogError::Raft(error.to_string()))?;
        let named = node_directory::register(system, &server(&self.inner.node), spawned).await;
        named.map_err(|error| CatalogError::Raft(error.to_string()))
    }

    /// This node's vote, if it has one.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.inner.vote.lock().clone()
    }

    /// Returns true where this node votes.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        self.inner.vote.lock().is_some()
    }

    /// The reason why this node has no tables, in words for whoever asks it about them.
    #[must_use]
    pub fn why_unread(&self) -> String {
        match &*self.inner.fault.lock() {
            Some(fault) => format!(
                "the catalog of `{}` cannot be used ({fault}): once its disk has room again it goes on by itself",
                self.inner.node
            ),
            None => "this node does not vote: ask one that does".to_owned(),
        }
    }

    /// Returns true where this node leads the voters.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.vote()
            .is_some_and(|vote| vote.raft.server_metrics().borrow().state == ServerState::Leader)
    }

    /// The name of the node that leads, as far as this one knows. One that hears from too few of the
    /// voters leads nobody.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        let Some(vote) = self.vote() else {
            return self.inner.picture.borrow().seen.leader.clone();
        };
        let metrics = vote.raft.metrics();
        let metrics = metrics.borrow();
        let leader = metrics.current_leader.filter(|_| !is_alone(&metrics))?;
        let mut nodes = metrics.membership_config.nodes();
        nodes
            .find(|(number, _)| **number == leader)
            .map(|(_, node)| node.addr.clone())
    }

    /// The names of the voters.
    #[must_use]
    pub fn voters(&self) -> Vec<String> {
        let Some(vote) = self.vote() else {
            return self.inner.picture.borrow().seen.voters.clone();
        };
        let metrics = vote.raft.server_metrics();
        let metrics = metrics.borrow();
        let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
        let nodes = metrics.membership_config.nodes();
        let nodes = nodes.filter(|(number, _)| voters.contains(number));
        let names: Vec<String> = nodes.map(|(_, node)| node.addr.clone()).collect();
        match names.is_empty() {
            true => self.inner.picture.borrow().seen.voters.clone(),
            false => names,
        }
    }

    /// Looks at the tables, if this node votes. What they hold may be a moment old.
    pub fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> Option<T> {
        Some(self.vote()?.shared.read(look))
    }

    /// All nodes, as far as this one knows.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeRow> {
        // A new voter has no tables for a moment.
        let read = self.read(|tables| match tables.version {
            0 => None,
            _ => Some(tables.nodes.values().cloned().collect()),
        });
        let read = read.flatten();
        read.unwrap_or_else(|| {
            self.inner
                .picture
                .borrow()
                .nodes
                .values()
                .cloned()
                .collect()
        })
    }

    /// The bounds of namespaces, by name.
    pub(crate) fn namespaces(&self) -> BTreeMap<String, NamespaceQuota> {
        let read = self.read(|tables| match tables.version {
            0 => None,
            _ => Some(tables.namespaces.clone()),
        });
        let known = || self.inner.picture.borrow().namespaces.clone();
        read.flatten().unwrap_or_else(known)
    }

    /// The reservations of the present tries, by their tags.
    pub(crate) fn reserved(&self) -> Vec<(String, Reservation)> {
        let read = self.read(|tables| match tables.version {
            0 => None,
            _ => Some(tables.reserved()),
        });
        let known = || self.inner.picture.borrow().reserved.clone();
        read.flatten().unwrap_or_else(known)
    }

    /// Certificates that are not good any more.
    pub(crate) fn revoked(&self) -> BTreeSet<String> {
        let read = self.read(|tables| match tables.version {
            0 => None,
            _ => Some(tables.revoked.clone()),
        });
        let known = || self.inner.picture.borrow().revoked.clone();
        read.flatten().unwrap_or_else(known)
    }

    /// Hears when a voter's tables change; `None` when this node does not vote.
    pub fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.vote()?.shared.changes())
    }

    /// The actor that takes writes and questions at a node.
    async fn server(&self, node: &str) -> Result<Ref<CatalogServer>, Unreached> {
        node_directory::reach(&self.inner.system, node, &server(node)).await
    }

    /// A job, as a voter knows it.
    ///
    /// # Errors
    /// No voter answers.
    #[odeon::boxed]
    pub async fn job(&self, id: JobId) -> Result<Option<Job>, WriteError> {
        if let Some(found) = self.read(|tables| tables.jobs.get(&id).cloned()) {
            return Ok(found);
        }
        let mut why = "no voter is known".to_owned();
        for voter in self.voters() {
            let found = self.server(&voter).await;
            let actor = match found {
                Ok(actor) => actor,
                Err(error) => {
                    why = error.to_string();
                    continue;
                }
            };
            match actor.ask(Show { job: id.0 }).timeout(TRY_PATIENCE).await {
                Ok(Json(job)) => return Ok(job),
                Err(error) => why = Unreached::asked(&voter, &error).to_string(),
            }
        }
        Err(WriteError::NoQuorum { why })
    }

    /// An environment, as a voter knows it.
    ///
    /// # Errors
    /// No voter answers.
    pub(crate) async fn environment(
        &self,
        key: Digest,
    ) -> Result<Option<EnvironmentRow>, WriteError> {
        if let Some(found) = self.read(|tables| tables.environments.get(&key).cloned()) {
            return Ok(found);
        }
        let mut why = "no voter is known".to_owned();
        for voter in self.voters() {
            let actor = match self.server(&voter).await {
                Ok(actor) => actor,
                Err(error) => {
                    why = error.to_string();
                    continue;
                }
            };
            let asked = actor.ask(ShowEnvironment { key: Json(key) });
            match asked.timeout(TRY_PATIENCE).await {
                Ok(Json(row)) => return Ok(row),
                Err(error) => why = Unreached::asked(&voter, &error).to_string(),
            }
        }
        Err(WriteError::NoQuorum { why })
    }

    /// Notes whether the node of a job could be told what to do, and else why not.
    pub(crate) fn set_hindered(&self, job: JobId, told: Result<(), String>) {
        let mut hindered = self.inner.hindered.lock();
        match told {
            Ok(()) => drop(hindered.remove(&job)),
            Err(why) => drop(hindered.insert(job, why)),
        }
    }

    /// Forgets what was in the way of other jobs than these.
    pub(crate) fn keep_hindered(&self, jobs: &BTreeSet<JobId>) {
        self.inner
            .hindered
            .lock()
            .retain(|job, _| jobs.contains(job));
    }

    /// Jobs whose nodes could not be told what to do, and why, as the leader has seen; nothing when
    /// nobody who leads can be asked.
    #[odeon::boxed]
    pub async fn hindered(&self) -> BTreeMap<JobId, String> {
        if self.leads() {
            return self.inner.hindered.lock().clone();
        }
        let asked = async {
            let server = self.server(&self.leader()?).await.ok()?;
            let Json(hindered) = server.ask(Hindered).timeout(LOOK_PATIENCE).await.ok()?;
            Some(hindered)
        };
        asked.await.unwrap_or_default()
    }

    /// Those of these tries that are over for certain; `None` when no voter answers.
    #[odeon::boxed]
    pub async fn over(&self, tries: &[(JobId, u32)]) -> Option<Vec<(JobId, u32)>> {
        if let Some(over) = self.read(|tables| over_of(tables, tries)) {
            return Some(over);
        }
        for voter in self.voters() {
            let found = self.server(&voter).await;
            let tries = Json(tries.to_vec());
            if let Ok(actor) = found
                && let Ok(Json(Some(over))) = actor.ask(Over { tries }).timeout(TRY_PATIENCE).await
            {
                return Some(over);
            }
        }
        None
    }

    /// The bundles of jobs that must be kept; `None` when no voter answers.
    pub(crate) async fn live_bundles(&self) -> Option<Vec<Digest>> {
        if let Some(live) = self.read(|tables| tables.bundles().collect()) {
            return Some(live);
        }
        for voter in self.voters() {
            let found = self.server(&voter).await;
            if let Ok(actor) = found
                && let Ok(Json(Some(live))) = actor.ask(Live).timeout(TRY_PATIENCE).await
            {
                return Some(live);
            }
        }
        None
    }

    /// Fetches a new picture from a voter, or else from any node. Returns true if one answered, or
    /// if this node votes and needs none.
    pub(crate) async fn look_around(&self) -> bool {
        if self.is_voter() {
            return true;
        }
        let known = self.inner.picture.borrow().seen.clone();
        let links = self.inner.system.admin().links().into_iter();
        let linked = links.filter(|link| !link.is_worker).map(|link| link.node);
        for node in self.voters().into_iter().chain(linked) {
            let Ok(actor) = self.server(&node).await else {
                continue;
            };
            let known = Json(known.clone());
            let asked = actor.ask(Look { known }).timeout(TRY_PATIENCE).await;
            match asked {
                Ok(Json(Some(news))) => {
                    // Of two looks at the same time one may be of older tables.
                    self.inner.picture.send_if_modified(|picture| {
                        let counts = picture.seen.nodes <= news.seen.nodes || news.anew;
                        if counts {
                            picture.learn(news);
                        }
                        counts
                    });
                    return true;
                }
                Ok(Json(None)) => return true,
                Err(_) => {}
            }
        }
        false
    }

    /// Has a node say something, whatever.
    pub(crate) async fn call(&self, node: &str) {
        if let Ok(actor) = self.server(node).await {
            let known = Json(Seen {
                nodes: u64::MAX,
                ..Seen::default()
            });
            // That it answers is seen by its link.
            let _ = actor.ask(Look { known }).timeout(TRY_PATIENCE).await;
        }
    }

    /// The news for a node that does not vote and knows this much.
    fn changes_since(&self, known: &Seen) -> Option<Changes> {
        let (voters, leader, leads) = (self.voters(), self.leader(), self.leads());
        let news = self.read(|tables| {
            let seen = Seen {
                nodes: tables.nodes_version,
                voters,
                leader,
            };
            Changes::of(tables, known, seen, leads)
        });
        news.unwrap_or_else(|| {
            let picture = self.inner.picture.borrow();
            let (seen, nodes) = (picture.seen.clone(), picture.nodes.values());
            (seen.nodes > known.nodes).then(|| Changes {
                seen,
                nodes: nodes.cloned().collect(),
                whole: true,
                namespaces: picture.namespaces.clone(),
                reserved: picture.reserved.clone(),
                revoked: picture.revoked.clone(),
                anew: false,
            })
        })
    }

    /// The picture that this node has, to go on with when it does not vote any more.
    pub(crate) fn picture(&self) -> Picture {
        let mut picture = self.inner.picture.borrow().clone();
        let known = Seen::default();
        if let Some(news) = self.changes_since(&known) {
            picture.learn(news);
        }
        picture
    }
}

fn over_of(tables: &Tables, tries: &[(JobId, u32)]) -> Vec<(JobId, u32)> {
    let tries = tries.iter().copied();
    tries
        .filter(|(job, attempt)| tables.is_over(*job, *attempt))
        .collect()
}

/// The reason why a node cannot vote.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// Its file.
    #[error("the catalog's file: {0}")]
    Disk(String),
    /// The voters' protocol.
    #[error("the catalog: {0}")]
    Raft(String),
    /// It does not vote.
    #[error("this node does not vote")]
    NoVoter,
}

impl From<DiskError> for CatalogError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error.to_string())
    }
}

/// The actor of a node that takes writes, if the node votes, and questions of other nodes.
#[derive(Debug)]
pub(crate) struct CatalogServer {
    catalog: Catalog,
}

#[odeon::actor(name = "odeon.cluster.Desk")]
impl CatalogServer {
    async fn start(catalog: LocalOnly<Catalog>) -> Result<Self, Failure> {
        let catalog = catalog.take()?;
        Ok(Self { catalog })
    }

    /// Writes a command, if this voter leads. Questions do not wait for it.
    #[handler]
    fn note(&mut self, command: Json<Command>) -> Later<Json<Result<Taken, TryError>>> {
        let catalog = self.catalog.clone();
        Later::new(async move {
            Json(match catalog.vote() {
                Some(vote) => catalog.write_here(&vote, command.0).await,
                None => Err(TryError::Elsewhere(None)),
            })
        })
    }

    /// A job.
    #[handler]
    async fn show(&mut self, job: u64) -> Json<Option<Job>> {
        let job = self
            .catalog
            .read(|tables| tables.jobs.get(&JobId(job)).cloned());
        Json(job.flatten())
    }

    /// Those of these tries that are over for certain.
    #[handler]
    async fn over(&mut self, tries: Json<Vec<(JobId, u32)>>) -> Json<Option<Vec<(JobId, u32)>>> {
        Json(self.catalog.read(|tables| over_of(tables, &tries.0)))
    }

    /// The obstacles of jobs, as this node sees them.
    #[handler]
    async fn hindered(&mut self) -> Json<BTreeMap<JobId, String>> {
        Json(self.catalog.inner.hindered.lock().clone())
    }

    /// An environment.
    #[handler]
    async fn show_environment(&mut self, key: Json<Digest>) -> Json<Option<EnvironmentRow>> {
        let row = self
            .catalog
            .read(|tables| tables.environments.get(&key.0).cloned());
        Json(row.flatten())
    }

    /// The bundles that must be kept.
    #[handler]
    async fn live(&mut self) -> Json<Option<Vec<Digest>>> {
        Json(self.catalog.read(|tables| tables.bundles().collect()))
    }

    /// The present picture, unless it is known.
    #[handler]
    async fn look(&mut self, known: Json<Seen>) -> Json<Option<Changes>> {
        Json(self.catalog.changes_since(&known.0))
    }
}
