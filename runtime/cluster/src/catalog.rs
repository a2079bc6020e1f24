//! The catalog as a node sees it: a voter has the tables, another node a picture of what concerns
//! it; both write through the leader.

mod picture;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, Failure, Later, Ref, System};
use odeon_artifacts::Digest;
use openraft::{BasicNode, ChangeMembers, RaftMetrics, ServerState};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use crate::controller::voters::Standing;
use crate::fact::{Command, Fact, NamespaceQuota, Refusal, Writer, Written};
use crate::job::{Job, JobId};
use crate::json::Json;
use crate::node_directory::{self, Unreached};
use crate::raft::disk::{Closing, Disk, DiskError};
use crate::raft::machine::{Machine, Shared};
use crate::raft::network::{self, Network, Voter};
use crate::raft::{self, Batcher, Raft, TRY_PATIENCE, Unwritten};
use crate::seat::Seat;
use crate::tables::{NodeRow, Tables};
use crate::unix::Unix;
use picture::{Changes, Seen};

pub(crate) use picture::Picture;

/// Why a fact did not get into the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum WriteError {
    /// The catalog does not take it. Nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The voters that can be reached are too few. Nothing has changed.
    #[error("the catalog cannot be written: {why}")]
    NoQuorum {
        /// The known state of the voters.
        why: String,
    },
    /// Time is up; it may be written yet. Writing the same again has no second effect.
    #[error(
        "the catalog did not answer within {patience:?}: {why}; what was asked may be done yet"
    )]
    Unknown {
        /// The time that this waited.
        patience: Duration,
        /// The last thing that was in the way.
        why: String,
    },
}

/// A fact that was taken, and where in the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Taken {
    written: Written,
    index: u64,
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

/// The longest time that a write may take until it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest time that too few voters may be there until a write is refused: longer than an
/// election.
const QUORUM_PATIENCE: Duration = Duration::from_secs(4);
/// The longest time that a change of the voters may take.
const TEACH_PATIENCE: Duration = Duration::from_secs(30);
/// The longest time that another voter may take to answer one try; no longer than an election.
const NOTE_PATIENCE: Duration = Duration::from_millis(1500);
/// The longest time that the leader may take to say what people only like to know.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest time without word from a majority before a leader takes no more writes. Shorter than
/// an election.
const QUORUM_SILENCE: Duration = Duration::from_millis(1200);

/// A voter's own part.
#[derive(Clone)]
pub(crate) struct Vote {
    pub(crate) raft: Raft,
    batcher: Batcher,
    pub(crate) shared: Shared,
    closing: Closing,
    /// The actors by which the other voters reach this one.
    actors: Vec<Ref<Voter>>,
}

impl fmt::Debug for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vote").finish_non_exhaustive()
    }
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
    /// Jobs whose nodes could not be told what to do, and why, while this node leads.
    hindered: Mutex<BTreeMap<JobId, String>>,
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
            hindered: Mutex::default(),
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
        let mut vote = Vote {
            batcher: Batcher::new(raft.clone()),
            raft,
            shared,
            closing,
            actors: vec![],
        };
        let system = &self.inner.system;
        let (log, votes) = network::names(&self.inner.node);
        for name in [log, votes] {
            let seat = Seat::new(vote.raft.clone());
            let voter = system.spawn::<Voter>(seat).await;
            let voter = voter.map_err(|error| CatalogError::Raft(error.to_string()))?;
            vote.actors.push(voter);
            let named = node_directory::register(system, &name, voter).await;
            named.map_err(|error| CatalogError::Raft(error.to_string()))?;
        }
        *self.inner.vote.lock() = Some(vote);
        Ok(())
    }

    /// Lets other nodes ask this one.
    pub(crate) async fn serve(&self) -> Result<(), CatalogError> {
        let system = &self.inner.system;
        let spawned = system.spawn::<Desk>(Seat::new(self.clone())).await;
        let spawned = spawned.map_err(|error| CatalogError::Raft(error.to_string()))?;
        let named = node_directory::register(system, &desk(&self.inner.node), spawned).await;
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
        let founded = vote
            .raft
            .initialize([(number, me)].into_iter().collect::<BTreeMap<_, _>>());
        founded.await.map_err(|error| failed(error.to_string()))
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

    /// Writes a fact about this node, or about what it runs.
    ///
    /// # Errors
    /// See [`WriteError`].
    #[odeon::boxed]
    pub async fn write_own(&self, fact: Fact) -> Result<Written, WriteError> {
        let writer = Writer::Node(self.inner.node.clone());
        self.write(rand::random(), writer, fact).await
    }

    /// Writes a fact that is the leader's to say. Whoever lets people write checks that they may.
    ///
    /// # Errors
    /// See [`WriteError`].
    #[odeon::boxed]
    pub async fn write_for(&self, fact: Fact) -> Result<Written, WriteError> {
        self.write(rand::random(), Writer::Leader, fact).await
    }

    /// [`Catalog::write_for`] under a number that whoever wants it has drawn: among the last commands
    /// a second one of that number has the first one's answer and no effect.
    ///
    /// # Errors
    /// See [`WriteError`].
    #[odeon::boxed]
    pub async fn write_once(&self, id: u64, fact: Fact) -> Result<Written, WriteError> {
        self.write(id, Writer::Leader, fact).await
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
        tried
            .map(|taken| taken.written)
            .map_err(|error| match error {
                TryError::Refused(refusal) => refusal.into(),
                TryError::NoQuorum(why) => WriteError::NoQuorum { why },
                TryError::Elsewhere(_) => WriteError::NoQuorum { why: none() },
                TryError::Unknown(why) => WriteError::Unknown {
                    patience: TRY_PATIENCE,
                    why,
                },
            })
    }

    async fn write(&self, id: u64, writer: Writer, fact: Fact) -> Result<Written, WriteError> {
        let command = Command {
            id,
            at: Unix::now(),
            writer,
            fact,
        };
        let begun = Clock::now();
        let deadline = begun.after(PATIENCE);
        let mut hint = None;
        let mut taken = false;
        loop {
            let tried = self.try_write(&command, hint.take()).await;
            let why = match tried {
                Ok(taken) => {
                    self.catch_up(taken.index).await;
                    return Ok(taken.written);
                }
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
            let given_up = match taken {
                false => begun.after(QUORUM_PATIENCE),
                true => deadline,
            };
            if given_up.left(Clock::now()).is_zero() {
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

    /// Waits until the tables here hold what was written, so that whoever has written it sees it.
    async fn catch_up(&self, index: u64) {
        let gets_log = |vote: &Vote| {
            let metrics = vote.raft.metrics();
            let metrics = metrics.borrow();
            let members = metrics.membership_config.membership();
            members.get_node(&metrics.id).is_some()
        };
        if let Some(vote) = self.vote().filter(gets_log) {
            let wait = vote.raft.wait(Some(TRY_PATIENCE));
            let reached = wait.applied_index_at_least(Some(index), "one's own write");
            if let Err(error) = reached.await {
                tracing::info!(%error, "this voter is behind what was written through it");
            }
        }
    }

    /// The actor that takes writes and questions at a node.
    async fn desk(&self, node: &str) -> Result<Ref<Desk>, Unreached> {
        node_directory::reach(&self.inner.system, node, &desk(node)).await
    }

    /// One try: here, if this node leads, or else at who does, or may.
    async fn try_write(
        &self,
        command: &Command,
        leader: Option<String>,
    ) -> Result<Taken, TryError> {
        if let Some(vote) = self.vote().filter(|_| self.leads()) {
            return self.write_here(&vote, command.clone()).await;
        }
        let asked = match leader.or_else(|| self.leader()) {
            Some(leader) => vec![leader],
            None => self.voters(),
        };
        let others = asked.into_iter().filter(|it| *it != self.inner.node);
        let mut why = "no other voter is known".to_owned();
        let mut may_be_taken = false;
        for voter in others {
            let found = self.desk(&voter).await;
            let actor = match found {
                Ok(actor) => actor,
                Err(error) => {
                    why = error.to_string();
                    continue;
                }
            };
            let command = Json(command.clone());
            let asked = actor.ask(Note { command }).timeout(NOTE_PATIENCE).await;
            match asked {
                Ok(Json(Err(TryError::Elsewhere(None)))) => {
                    why = format!("voter `{voter}` knows no leader");
                }
                Ok(Json(outcome)) => return outcome,
                // It may just have died. The same command goes to the next.
                Err(error) => {
                    may_be_taken |= error.effect() != odeon::Effect::No;
                    why = Unreached::asked(&voter, &error).to_string();
                }
            }
        }
        Err(match may_be_taken {
            true => TryError::Unknown(why),
            false => TryError::NoQuorum(why),
        })
    }

    async fn write_here(&self, vote: &Vote, mut command: Command) -> Result<Taken, TryError> {
        // One clock counts: that of whoever leads.
        command.at = Unix::now();
        {
            let metrics = vote.raft.metrics();
            let metrics = metrics.borrow();
            if is_alone(&metrics) {
                let heard: Vec<String> = metrics
                    .membership_config
                    .nodes()
                    .map(|(_, node)| format!("`{}`", node.addr))
                    .collect();
                let why = format!("there is no majority of the voters {}", heard.join(", "));
                return Err(TryError::NoQuorum(why));
            }
        }
        match vote.batcher.write(command).await {
            Ok((outcome, index)) => {
                let taken = outcome.map(|written| Taken { written, index });
                taken.map_err(TryError::Refused)
            }
            Err(Unwritten::Elsewhere(leader)) => Err(TryError::Elsewhere(leader)),
            Err(Unwritten::Unknown(why)) => Err(TryError::Unknown(why)),
        }
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
            let found = self.desk(&voter).await;
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
            let desk = self.desk(&self.leader()?).await.ok()?;
            let Json(hindered) = desk.ask(Hindered).timeout(LOOK_PATIENCE).await.ok()?;
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
            let found = self.desk(&voter).await;
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
            let found = self.desk(&voter).await;
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
        let known = self.inner.picture.borrow().seen.clone();
        let links = self.inner.system.links().into_iter();
        let linked = links.filter(|link| !link.is_worker).map(|link| link.node);
        for node in self.voters().into_iter().chain(linked) {
            let Ok(actor) = self.desk(&node).await else {
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
        if let Ok(actor) = self.desk(node).await {
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

    /// Why this voter's part has ended by itself, if it has: its disk is full, or broken.
    pub(crate) fn broken(&self) -> Option<String> {
        let vote = self.vote()?;
        let metrics = vote.raft.metrics();
        let state = metrics.borrow().running_state.clone();
        let ended = metrics.has_changed().is_err();
        let why = state.err().map(|error| error.to_string());
        why.or_else(|| ended.then(|| "its task has ended".to_owned()))
    }

    /// The voters and learners, if this node leads and no change of them is under way.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let vote = self.vote()?;
        let metrics = vote.raft.metrics();
        let metrics = metrics.borrow();
        let members = &metrics.membership_config;
        let settled = members.membership().get_joint_config().len() == 1
            && *members.log_id() <= metrics.last_applied;
        if metrics.state != ServerState::Leader || !settled {
            return None;
        }
        let voting: Vec<u64> = members.voter_ids().collect();
        let named = members
            .nodes()
            .map(|(number, node)| (*number, node.addr.clone()));
        let (voters, learners) = named.partition(|(number, _)| voting.contains(number));
        Some(Standing {
            leader: metrics.id,
            voters,
            learners,
        })
    }

    /// Sends the log to a node from now on, and waits until it has caught up.
    pub(crate) async fn teach(&self, number: u64, node: &str) -> Result<(), CatalogError> {
        let vote = self.vote().ok_or(CatalogError::NoVoter)?;
        let taught = vote.raft.add_learner(number, BasicNode::new(node), true);
        let taught = Clock::timeout(TEACH_PATIENCE, taught).await;
        let late = || CatalogError::Raft(format!("`{node}` did not catch up in time"));
        let taught = taught.ok_or_else(late)?;
        taught
            .map(drop)
            .map_err(|error| CatalogError::Raft(error.to_string()))
    }

    /// Sends the log to a node no more.
    pub(crate) async fn strike(&self, number: u64) -> Result<(), CatalogError> {
        let struck = ChangeMembers::RemoveNodes([number].into_iter().collect());
        self.change_members(struck).await
    }

    /// The voters are these from now on.
    pub(crate) async fn elect(&self, voters: BTreeSet<u64>) -> Result<(), CatalogError> {
        self.change_members(ChangeMembers::ReplaceAllVoters(voters))
            .await
    }

    async fn change_members(
        &self,
        change: ChangeMembers<u64, BasicNode>,
    ) -> Result<(), CatalogError> {
        let vote = self.vote().ok_or(CatalogError::NoVoter)?;
        let changed = vote.raft.change_membership(change, false);
        let changed = Clock::timeout(TEACH_PATIENCE, changed).await;
        let late = || CatalogError::Raft("too few voters have agreed in time".to_owned());
        let changed = changed.ok_or_else(late)?;
        changed
            .map(drop)
            .map_err(|error| CatalogError::Raft(error.to_string()))
    }

    /// Ends this node's vote, for now.
    pub(crate) async fn close(&self) {
        let picture = self.picture();
        let vote = self.inner.vote.lock().take();
        let Some(vote) = vote else {
            return;
        };
        self.inner.picture.send_replace(picture);
        if let Err(error) = vote.raft.shutdown().await {
            tracing::warn!(%error, "the catalog did not end in order");
        }
        for actor in &vote.actors {
            if let Err(error) = actor.stop().await {
                tracing::warn!(%error, "an end of the voters' network is left");
            }
        }
        // Whoever starts this node again opens the file.
        let Vote { closing, raft, .. } = vote;
        drop(raft);
        if Clock::timeout(PATIENCE, closing.closed()).await.is_none() {
            tracing::warn!("the catalog's file is still open");
        }
    }
}

/// Returns true where a leader has heard from too few of the voters for too long to lead them
/// still.
fn is_alone(metrics: &RaftMetrics<u64, BasicNode>) -> bool {
    let silent = metrics.millis_since_quorum_ack.map(Duration::from_millis);
    let several = metrics.membership_config.voter_ids().nth(1).is_some();
    let leads = metrics.state == ServerState::Leader;
    leads && several && silent.is_some_and(|silent| silent > QUORUM_SILENCE)
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
pub(crate) struct Desk {
    catalog: Catalog,
}

#[odeon::actor(name = "odeon.cluster.Desk")]
impl Desk {
    async fn start(catalog: Seat<Catalog>) -> Result<Self, Failure> {
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
