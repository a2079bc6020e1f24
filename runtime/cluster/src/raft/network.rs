//! The network between voters: each has an actor for what the leader sends and one for votes, so
//! that a long append holds up no election.

use std::time::Duration;

use odeon::{AskError, Failure, Ref, System};
use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};
use serde::{Deserialize, Serialize};

use super::{Raft, Types};
use crate::json::Json;
use crate::local_only::LocalOnly;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Append(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(Result<VoteResponse<u64>, RaftError<u64>>),
    Snapshot(Result<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>>),
}

/// The end of the network at a voter.
pub(crate) struct Voter {
    raft: Raft,
}

#[odeon::actor(name = "odeon.cluster.Voter")]
impl Voter {
    async fn start(raft: LocalOnly<Raft>) -> Result<Self, Failure> {
        let raft = raft.take()?;
        Ok(Self { raft })
    }

    #[handler]
    pub(crate) async fn replicate(&mut self, question: Json<Question>) -> Json<Answer> {
        Json(match question.0 {
            Question::Append(request) => Answer::Append(self.raft.append_entries(request).await),
            Question::Vote(request) => Answer::Vote(self.raft.vote(request).await),
            Question::Snapshot(request) => {
                Answer::Snapshot(self.raft.install_snapshot(request).await)
            }
        })
    }
}

/// The names of a voter's two actors.
pub(crate) fn names(node: &str) -> (String, String) {
    (format!("log@{node}"), format!("votes@{node}"))
}

/// Makes connections to voters.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) system: System,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer {
            system: self.system.clone(),
            node: node.addr.clone(),
            target,
            log: None,
            votes: None,
        }
    }
}

/// Another voter.
#[derive(Debug)]
pub(crate) struct Peer {
    system: System,
    node: String,
    target: u64,
    log: Option<Ref<Voter>>,
    votes: Option<Ref<Voter>>,
}

impl Peer {
    async fn ask(&mut self, question: Question, patience: Duration) -> Result<Answer, Unreachable> {
        let (log, votes) = names(&self.node);
        let (name, known) = match &question {
            Question::Vote(_) => (votes, &mut self.votes),
            _ => (log, &mut self.log),
        };
        let away = |error: &dyn std::fmt::Display| Unreachable::from(AnyError::error(error));
        let actor = match known {
            Some(actor) => *actor,
            None => {
                let found = self.system.lookup(&name).await;
                *known.insert(found.map_err(|error| away(&error))?)
            }
        };
        let question = Json(question);
        let asked = actor.ask(Replicate { question }).timeout(patience).await;
        match asked {
            Ok(Json(answer)) => Ok(answer),
            Err(error) => {
                if !matches!(error, AskError::Timeout { .. }) {
                    // It may have been started anew, under another id.
                    *known = None;
                }
                Err(away(&error))
            }
        }
    }
}

/// The other answers than was asked.
fn confused() -> Unreachable {
    Unreachable::from(AnyError::error("the voter answers another question"))
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let asked = self.ask(Question::Append(request), option.hard_ttl());
        match asked.await.map_err(RPCError::Unreachable)? {
            Answer::Append(answer) => {
                answer.map_err(|e| RPCError::RemoteError(RemoteError::new(self.target, e)))
            }
            _ => Err(RPCError::Unreachable(confused())),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let asked = self.ask(Question::Vote(request), option.hard_ttl());
        match asked.await.map_err(RPCError::Unreachable)? {
            Answer::Vote(answer) => {
                answer.map_err(|e| RPCError::RemoteError(RemoteError::new(self.target, e)))
            }
            _ => Err(RPCError::Unreachable(confused())),
        }
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<
        InstallSnapshotResponse<u64>,
        RPCError<u64, BasicNode, RaftError<u64, InstallSnapshotError>>,
    > {
        let asked = self.ask(Question::Snapshot(request), option.hard_ttl());
        match asked.await.map_err(RPCError::Unreachable)? {
            Answer::Snapshot(answer) => {
                answer.map_err(|e| RPCError::RemoteError(RemoteError::new(self.target, e)))
            }
            _ => Err(RPCError::Unreachable(confused())),
        }
    }
}
