//! A node's own vote, from its disk to its end, and what its leader changes of who votes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, Ref};
use openraft::{BasicNode, ChangeMembers, RaftMetrics, ServerState};

use super::{Catalog, CatalogError};
use crate::controller::voters::Standing;
use crate::local_only::LocalOnly;
use crate::node_directory;
use crate::raft::disk::{Closing, Disk};
use crate::raft::machine::{Machine, Shared};
use crate::raft::network::{self, Network, Voter};
use crate::raft::{self, Batcher, Raft};

/// The longest time that a change of the voters may take.
const TEACH_PATIENCE: Duration = Duration::from_secs(30);
/// The longest time without word from a majority before a leader takes no more writes. Shorter than
/// an election.
const QUORUM_SILENCE: Duration = Duration::from_millis(1200);
/// The longest time that the file of one's vote may take to be closed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// A voter's own part.
#[derive(Clone)]
pub(crate) struct Vote {
    pub(crate) raft: Raft,
    pub(super) batcher: Batcher,
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

impl Catalog {
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
            let seat = LocalOnly::new(vote.raft.clone());
            let voter = system.spawn::<Voter>(seat).await;
            let voter = voter.map_err(|error| CatalogError::Raft(error.to_string()))?;
            vote.actors.push(voter);
            let named = node_directory::register(system, &name, voter).await;
            named.map_err(|error| CatalogError::Raft(error.to_string()))?;
        }
        *self.inner.vote.lock() = Some(vote);
        *self.inner.fault.lock() = None;
        Ok(())
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

    /// Ends this node's vote until its disk, which has failed so, can be used again.
    pub(crate) async fn close_failed(&self, why: String) {
        *self.inner.fault.lock() = Some(why);
        self.shut().await;
    }

    /// Ends this node's vote.
    pub(crate) async fn close(&self) {
        *self.inner.fault.lock() = None;
        self.shut().await;
    }

    async fn shut(&self) {
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
        if Clock::timeout(CLOSE_PATIENCE, closing.closed())
            .await
            .is_none()
        {
            tracing::warn!("the catalog's file is still open");
        }
    }
}

/// Returns true where a leader has heard from too few of the voters for too long to lead them
/// still.
pub(super) fn is_alone(metrics: &RaftMetrics<u64, BasicNode>) -> bool {
    let silent = metrics.millis_since_quorum_ack.map(Duration::from_millis);
    let several = metrics.membership_config.voter_ids().nth(1).is_some();
    let leads = metrics.state == ServerState::Leader;
    leads && several && silent.is_some_and(|silent| silent > QUORUM_SILENCE)
}
