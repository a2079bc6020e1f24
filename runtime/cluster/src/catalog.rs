//! The catalog as a node sees it: a voter has the tables, another node a picture of what concerns
//! it; both write through the leader.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, Failure, System};
use odeon_artifacts::Digest;
use openraft::error::{ClientWriteError, RaftError};
use openraft::{BasicNode, ServerState};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use crate::fact::{Command, Fact, Refusal, Writer, Written};
use crate::job::{Job, JobId};
use crate::json::Json;
use crate::raft::disk::{Closing, Disk, DiskError};
use crate::raft::machine::{Machine, Shared};
use crate::raft::network::{self, Network, Voter};
use crate::raft::{self, Raft};
use crate::seat::Seat;
use crate::tables::{NodeRow, Tables};
use crate::unix::Unix;

/// Why a fact did not get into the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum WriteError {
    /// The catalog does not take it. Nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The voters that can be reached are too few. Nothing has changed.
    #[error("the catalog cannot be written: {why}")]
    NoQuorum {
        /// What is known of the voters.
        why: String,
    },
    /// Time is up; it may be written yet. Writing the same again has no second effect.
    #[error(
        "the catalog did not answer within {patience:?}: {why}; what was asked may be done yet"
    )]
    Unknown {
        /// How long this waited.
        patience: Duration,
        /// What was in the way last.
        why: String,
    },
}

/// Why a single try failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum TryError {
    Refused(Refusal),
    NoQuorum(String),
    /// Somebody else leads; who, if that is known.
    Elsewhere(Option<String>),
    Unknown(String),
}

/// How long a write may take until it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one try may take.
const TRY_PATIENCE: Duration = Duration::from_secs(4);
/// How long to wait between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a leader may be without word from a majority before it takes no more writes. Shorter
/// than an election.
const QUORUM_SILENCE: Duration = Duration::from_millis(1200);

/// A voter's own part.
#[derive(Clone)]
pub(crate) struct Vote {
    pub(crate) raft: Raft,
    pub(crate) shared: Shared,
    closing: Closing,
}

impl fmt::Debug for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vote").finish_non_exhaustive()
    }
}

/// What a node that is no voter knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Picture {
    /// The tables' version.
    pub version: u64,
    /// All nodes.
    pub nodes: Vec<NodeRow>,
    /// The names of the voters.
    pub voters: Vec<String>,
}

/// See the module. Clones are the same catalog.
#[derive(Clone, Debug)]
pub struct Catalog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    system: System,
    node: String,
    vote: Mutex<Option<Vote>>,
    picture: watch::Sender<Picture>,
}

/// The name of the actor at a voter that takes writes and questions.
fn desk(node: &str) -> String {
    format!("catalog@{node}")
}

impl Catalog {
    /// That of a node, which knows these voters.
    pub(crate) fn new(system: System, node: String, picture: Picture) -> Self {
        let inner = Inner {
            system,
            node,
            vote: Mutex::default(),
            picture: watch::channel(picture).0,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Makes this node a voter, with what its disk holds.
    pub(crate) async fn begin_voting(&self, number: u64, disk: Disk) -> Result<(), CatalogError> {
        let shared = Shared::default();
        let machine = Machine::load(disk.clone(), shared.clone()).await?;
        let config = raft::config().validate();
        let config = config.map_err(|error| CatalogError::Raft(error.to_string()))?;
        let system = self.inner.system.clone();
        let network = Network { system };
        let closing = disk.closing();
        let raft = Raft::new(number, Arc::new(config), network, disk, machine).await;
        let raft = raft.map_err(|error| CatalogError::Raft(error.to_string()))?;
        let vote = Vote {
            raft,
            shared,
            closing,
        };
        *self.inner.vote.lock() = Some(vote.clone());
        let system = &self.inner.system;
        let (log, votes) = network::names(&self.inner.node);
        for name in [log, votes] {
            let seat = Seat::new(vote.raft.clone());
            let voter = system.spawn::<Voter>(seat).await;
            let voter = voter.map_err(|error| CatalogError::Raft(error.to_string()))?;
            let named = system.register(&name, voter).await;
            named.map_err(|error| CatalogError::Raft(error.to_string()))?;
        }
        Ok(())
    }

    /// Lets other nodes ask this one.
    pub(crate) async fn serve(&self) -> Result<(), CatalogError> {
        let system = &self.inner.system;
        let spawned = system.spawn::<Desk>(Seat::new(self.clone())).await;
        let spawned = spawned.map_err(|error| CatalogError::Raft(error.to_string()))?;
        let named = system.register(&desk(&self.inner.node), spawned).await;
        named.map_err(|error| CatalogError::Raft(error.to_string()))
    }

    /// Begins a new cluster, in which this node votes alone.
    pub(crate) async fn found(&self, number: u64) -> Result<(), CatalogError> {
        let vote = self.vote().ok_or(CatalogError::NoVoter)?;
        let failed = |error: String| CatalogError::Raft(error);
        if vote
            .raft
            .is_initialized()
            .await
            .map_err(|e| failed(e.to_string()))?
        {
            return Ok(());
        }
        let me = BasicNode::new(&self.inner.node);
        let founded = vote.raft.initialize(
            [(number, me)]
                .into_iter()
                .collect::<std::collections::BTreeMap<_, _>>(),
        );
        founded.await.map_err(|error| failed(error.to_string()))
    }

    /// This node's vote, if it has one.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.inner.vote.lock().clone()
    }

    /// Whether this node votes.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        self.inner.vote.lock().is_some()
    }

    /// Whether this node leads the voters.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.vote()
            .is_some_and(|vote| vote.raft.server_metrics().borrow().state == ServerState::Leader)
    }

    /// The name of the node that leads, as far as this one knows.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        let vote = self.vote()?;
        let metrics = vote.raft.server_metrics();
        let metrics = metrics.borrow();
        let leader = metrics.current_leader?;
        let mut nodes = metrics.membership_config.nodes();
        nodes
            .find(|(number, _)| **number == leader)
            .map(|(_, node)| node.addr.clone())
    }

    /// The names of the voters.
    #[must_use]
    pub fn voters(&self) -> Vec<String> {
        let Some(vote) = self.vote() else {
            return self.inner.picture.borrow().voters.clone();
        };
        let metrics = vote.raft.server_metrics();
        let metrics = metrics.borrow();
        let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
        let nodes = metrics.membership_config.nodes();
        let nodes = nodes.filter(|(number, _)| voters.contains(number));
        nodes.map(|(_, node)| node.addr.clone()).collect()
    }

    /// Looks at the tables, if this node votes. What they hold may be a moment old.
    pub fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> Option<T> {
        Some(self.vote()?.shared.read(look))
    }

    /// All nodes, as far as this one knows.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeRow> {
        let read = self.read(|tables| tables.nodes.values().cloned().collect());
        read.unwrap_or_else(|| self.inner.picture.borrow().nodes.clone())
    }

    /// Hears when a voter's tables change; `None` when this node does not vote.
    pub fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.vote()?.shared.changes())
    }

    /// Writes a fact about this node, or about what it runs.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn write_own(&self, fact: Fact) -> Result<Written, WriteError> {
        let writer = Writer::Node(self.inner.node.clone());
        self.write(writer, fact).await
    }

    /// Writes a fact that is the leader's to say. Whoever lets people write checks that they may.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn write_for(&self, fact: Fact) -> Result<Written, WriteError> {
        self.write(Writer::Leader, fact).await
    }

    /// Writes a fact that this node has decided as the leader, here and once: when it does not lead
    /// any more, what it has seen is nobody's business, and must not reach the leader after it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub(crate) async fn write_leading(&self, fact: Fact) -> Result<Written, WriteError> {
        let command = Command {
            id: rand::random(),
            at: Unix::now(),
            writer: Writer::Leader,
            fact,
        };
        let none = || "this node does not lead the voters".to_owned();
        let vote = self.vote().filter(|_| self.leads());
        let vote = vote.ok_or_else(|| WriteError::NoQuorum { why: none() })?;
        let tried = self.write_here(&vote, command).await;
        tried.map_err(|error| match error {
            TryError::Refused(refusal) => refusal.into(),
            TryError::NoQuorum(why) => WriteError::NoQuorum { why },
            TryError::Elsewhere(_) => WriteError::NoQuorum { why: none() },
            TryError::Unknown(why) => WriteError::Unknown {
                patience: TRY_PATIENCE,
                why,
            },
        })
    }

    async fn write(&self, writer: Writer, fact: Fact) -> Result<Written, WriteError> {
        let command = Command {
            id: rand::random(),
            at: Unix::now(),
            writer,
            fact,
        };
        let deadline = Clock::now().after(PATIENCE);
        let mut hint = None;
        let mut taken = false;
        loop {
            let tried = self.try_write(&command, hint.take()).await;
            let why = match tried {
                Ok(written) => return Ok(written),
                Err(TryError::Refused(refusal)) => return Err(refusal.into()),
                Err(TryError::NoQuorum(why)) => why,
                Err(TryError::Elsewhere(leader)) => {
                    let known = leader.is_some();
                    hint = leader;
                    if known && !deadline.left(Clock::now()).is_zero() {
                        continue;
                    }
                    "the voters have no leader".to_owned()
                }
                Err(TryError::Unknown(why)) => {
                    taken = true;
                    why
                }
            };
            if deadline.left(Clock::now()).is_zero() {
                return Err(match taken {
                    false => WriteError::NoQuorum { why },
                    true => WriteError::Unknown {
                        patience: PATIENCE,
                        why,
                    },
                });
            }
            Clock::sleep(PAUSE).await;
        }
    }

    /// One try: here, if this node votes, unless another is known to lead.
    async fn try_write(
        &self,
        command: &Command,
        leader: Option<String>,
    ) -> Result<Written, TryError> {
        let here = self
            .vote()
            .filter(|_| leader.as_ref().is_none_or(|it| *it == self.inner.node));
        if let Some(vote) = here {
            return self.write_here(&vote, command.clone()).await;
        }
        let asked = match leader {
            Some(leader) => vec![leader],
            None => self.voters(),
        };
        let mut why = "no voter is known".to_owned();
        for voter in asked {
            let found = self.inner.system.lookup::<Desk>(&desk(&voter)).await;
            let actor = match found {
                Ok(actor) => actor,
                Err(error) => {
                    why = format!("voter `{voter}`: {error}");
                    continue;
                }
            };
            let command = Json(command.clone());
            let asked = actor.ask(Note { command }).timeout(TRY_PATIENCE).await;
            match asked {
                Ok(Json(outcome)) => return outcome,
                Err(error) if error.effect() == odeon::Effect::No => {
                    why = format!("voter `{voter}`: {error}");
                }
                Err(error) => return Err(TryError::Unknown(format!("voter `{voter}`: {error}"))),
            }
        }
        Err(TryError::NoQuorum(why))
    }

    async fn write_here(&self, vote: &Vote, mut command: Command) -> Result<Written, TryError> {
        // One clock counts: that of whoever leads.
        command.at = Unix::now();
        {
            let metrics = vote.raft.metrics();
            let metrics = metrics.borrow();
            let silent = metrics.millis_since_quorum_ack.map(Duration::from_millis);
            let alone = metrics.membership_config.voter_ids().count() == 1;
            if metrics.state == ServerState::Leader
                && !alone
                && silent.is_some_and(|silent| silent > QUORUM_SILENCE)
            {
                let heard: Vec<String> = metrics
                    .membership_config
                    .nodes()
                    .map(|(_, node)| format!("`{}`", node.addr))
                    .collect();
                let why = format!(
                    "this node hears from too few of the voters {}",
                    heard.join(", ")
                );
                return Err(TryError::NoQuorum(why));
            }
        }
        let writing = vote.raft.client_write(command);
        match Clock::timeout(TRY_PATIENCE, writing).await {
            None => Err(TryError::Unknown("too few voters have answered".to_owned())),
            Some(Ok(response)) => response.data.map_err(TryError::Refused),
            Some(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward)))) => {
                let leader = forward.leader_node.map(|node| node.addr);
                Err(TryError::Elsewhere(leader))
            }
            Some(Err(error)) => Err(TryError::Unknown(error.to_string())),
        }
    }

    /// A job, as a voter knows it.
    ///
    /// # Errors
    /// No voter answers.
    pub async fn job(&self, id: JobId) -> Result<Option<Job>, WriteError> {
        if let Some(found) = self.read(|tables| tables.jobs.get(&id).cloned()) {
            return Ok(found);
        }
        let mut why = "no voter is known".to_owned();
        for voter in self.voters() {
            let found = self.inner.system.lookup::<Desk>(&desk(&voter)).await;
            let actor = match found {
                Ok(actor) => actor,
                Err(error) => {
                    why = error.to_string();
                    continue;
                }
            };
            match actor.ask(Show { job: id.0 }).timeout(TRY_PATIENCE).await {
                Ok(Json(job)) => return Ok(job),
                Err(error) => why = error.to_string(),
            }
        }
        Err(WriteError::NoQuorum { why })
    }

    /// Those of these tries that are over for certain; `None` when no voter answers.
    pub async fn over(&self, tries: &[(JobId, u32)]) -> Option<Vec<(JobId, u32)>> {
        if let Some(over) = self.read(|tables| over_of(tables, tries)) {
            return Some(over);
        }
        for voter in self.voters() {
            let found = self.inner.system.lookup::<Desk>(&desk(&voter)).await;
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
            let found = self.inner.system.lookup::<Desk>(&desk(&voter)).await;
            if let Ok(actor) = found
                && let Ok(Json(Some(live))) = actor.ask(Live).timeout(TRY_PATIENCE).await
            {
                return Some(live);
            }
        }
        None
    }

    /// Fetches a new picture from a voter, or else from any node. Whether one answered.
    pub(crate) async fn look_around(&self) -> bool {
        if self.is_voter() {
            return true;
        }
        let known = self.inner.picture.borrow().version;
        let links = self.inner.system.links().into_iter();
        let linked = links.filter(|link| !link.is_worker).map(|link| link.node);
        for node in self.voters().into_iter().chain(linked) {
            let Ok(actor) = self.inner.system.lookup::<Desk>(&desk(&node)).await else {
                continue;
            };
            let asked = actor.ask(Look { known }).timeout(TRY_PATIENCE).await;
            match asked {
                Ok(Json(Some(picture))) => {
                    self.inner.picture.send_replace(picture);
                    return true;
                }
                Ok(Json(None)) => return true,
                Err(_) => {}
            }
        }
        false
    }

    /// What a node that does not vote should know.
    pub(crate) fn picture(&self) -> Picture {
        let voters = self.voters();
        let picture = self.read(|tables| Picture {
            version: tables.version,
            nodes: tables.nodes.values().cloned().collect(),
            voters,
        });
        picture.unwrap_or_else(|| self.inner.picture.borrow().clone())
    }

    /// Ends this node's vote, for now.
    pub(crate) async fn close(&self) {
        let vote = self.inner.vote.lock().take();
        let Some(vote) = vote else {
            return;
        };
        if let Err(error) = vote.raft.shutdown().await {
            tracing::warn!(%error, "the catalog did not end in order");
        }
        // Whoever starts this node again opens the file.
        let Vote { closing, raft, .. } = vote;
        drop(raft);
        if Clock::timeout(PATIENCE, closing.closed()).await.is_none() {
            tracing::warn!("the catalog's file is still open");
        }
    }
}

fn over_of(tables: &Tables, tries: &[(JobId, u32)]) -> Vec<(JobId, u32)> {
    let tries = tries.iter().copied();
    tries
        .filter(|(job, attempt)| tables.is_over(*job, *attempt))
        .collect()
}

/// What keeps a node from voting.
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
pub(crate) struct Desk {
    catalog: Catalog,
}

#[odeon::actor(name = "odeon.cluster.Desk")]
impl Desk {
    async fn start(catalog: Seat<Catalog>) -> Result<Self, Failure> {
        let catalog = catalog.take()?;
        Ok(Self { catalog })
    }

    /// Writes a command, if this voter leads.
    #[handler]
    async fn note(&mut self, command: Json<Command>) -> Json<Result<Written, TryError>> {
        Json(match self.catalog.vote() {
            Some(vote) => self.catalog.write_here(&vote, command.0).await,
            None => Err(TryError::Elsewhere(None)),
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

    /// The bundles that must be kept.
    #[handler]
    async fn live(&mut self) -> Json<Option<Vec<Digest>>> {
        Json(self.catalog.read(|tables| tables.bundles().collect()))
    }

    /// The present picture, unless it is known.
    #[handler]
    async fn look(&mut self, known: u64) -> Json<Option<Picture>> {
        let picture = self.catalog.picture();
        Json((picture.version > known).then_some(picture))
    }
}
