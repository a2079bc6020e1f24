//! Facts on their way into the log: here, where this node leads, and else through whoever does.

use std::time::Duration;

use odeon::Clock;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::vote::{Vote, is_alone};
use super::{Catalog, Note};
use crate::fact::{Command, Fact, Refusal, Writer, Written};
use crate::json::Json;
use crate::node_directory::Unreached;
use crate::raft::{TRY_PATIENCE, Unwritten};
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
pub(super) struct Taken {
    written: Written,
    index: u64,
}

/// Why a single try failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum TryError {
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
/// The longest time that another voter may take to answer one try; no longer than an election.
const NOTE_PATIENCE: Duration = Duration::from_millis(1500);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);

impl Catalog {
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
            let found = self.server(&voter).await;
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

    pub(super) async fn write_here(
        &self,
        vote: &Vote,
        mut command: Command,
    ) -> Result<Taken, TryError> {
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
}
