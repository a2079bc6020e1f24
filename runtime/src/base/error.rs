//! Errors of messages, spawns and systems; one small enum per operation.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::failure::{Down, Failure};
use crate::base::id::{ActorId, Incarnation};
use crate::base::shape::{self, Shape};

/// The effect of a failed request at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The handler did not run and will not.
    No,
    /// The handler ran to its end; only the answer is missing.
    Yes,
    /// The handler may have run, in part or whole. Nobody repeats the request for you.
    Unknown,
}

/// Why an ask has no answer. The same near and far.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AskError {
    /// The actor was already gone. No effect. Spawn another, or look its name up again.
    #[error("the actor is dead: {0}")]
    Dead(Down),
    /// The actor ended while it held the message. Effect unknown.
    #[error("the actor died before it answered: {0}")]
    Died(Down),
    /// No answer within the time given; the handler may still run. Effect unknown.
    #[error("{actor} gave no answer within {waited:?}{}", in_circle(circle))]
    Timeout {
        /// Whom it was for.
        actor: ActorId,
        /// The time that the caller waited.
        waited: Duration,
        /// Actors that wait for each other, where the wait led to such ones, in words; else empty. Those
        /// of other processes are found for asks of actors, when their processes answer within 0.1 s.
        circle: String,
    },
    /// The mailbox stayed full until the deadline. No effect. Ask less often or give more time.
    #[error("the mailbox of {actor} {}", was_full(*waited))]
    Full {
        /// Whose mailbox.
        actor: ActorId,
        /// The time that the caller waited for room; zero for one who did not wait.
        waited: Duration,
    },
    /// An actor asked itself while handling a message, which could never be answered. No effect.
    /// Use `tell`, or call the method.
    #[error("{0} asked itself while it handles a message: that can never be answered")]
    SelfAsk(ActorId),
    /// The process that runs the actor does not know this method: it was built from another
    /// version, or the message is missing in `register!`. No effect.
    #[error("{actor} has no method {method}: list it in its `register!`, or rebuild both sides")]
    NoSuchMethod {
        /// Whom it was for.
        actor: ActorId,
        /// The message's name as the sender knows it, or its id.
        method: String,
    },
    /// A fenced reference met another incarnation. No effect. Take a new reference.
    #[error("{actor} is at incarnation {current}, the reference is fenced to {fence}")]
    Stale {
        /// Whom it was for.
        actor: ActorId,
        /// The incarnation that the reference names.
        fence: Incarnation,
        /// The incarnation that lives.
        current: Incarnation,
    },
    /// No link leads to the actor's home. No effect.
    #[error("no way to {0}: its home process is not connected")]
    Unreachable(ActorId),
    /// The link broke after the message had been written to it. Effect unknown.
    #[error("the link to {actor} broke before the answer came: {why}")]
    LinkLost {
        /// Whom it was for.
        actor: ActorId,
        /// The cause, in words.
        why: String,
    },
    /// The encoded message is over the limit for messages to other processes. No effect. Put the bulk
    /// into a `Blob`. An actor of the caller's own process is given the message as it is, of any size.
    #[error(
        "the message has {bytes} bytes, and one to an actor of another process may have {limit}: put bulk \
         data into a Blob"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The receiver could not read the message. No effect.
    #[error("{actor} could not read the message: {why}")]
    BadMessage {
        /// Whom it was for.
        actor: ActorId,
        /// The fault in the message, in words.
        why: String,
    },
    /// The handler ran, and its answer cannot be carried: too large or unreadable. Took effect.
    #[error("{actor} handled the message, but its answer was lost: {why}")]
    BadReply {
        /// The actor that answered.
        actor: ActorId,
        /// The fault in the answer, in words.
        why: String,
    },
    /// The caller is outside of any running system. No effect.
    #[error("no running system in this process: start one with System::local()")]
    NoSystem,
    /// The caller runs in a simulation and belongs to none of its nodes, so that the simulated network
    /// cannot carry what it sends. No effect. Begin tasks of actors with `cx.spawn_task`, and run others in
    /// `system.scope(..)`.
    #[error(
        "this task belongs to no node of the simulation: an actor begins one with `cx.spawn_task(..)` in \
         place of `tokio::spawn`, others run in `system.scope(..)`"
    )]
    Adrift,
}

fn in_circle(circle: &str) -> String {
    match circle {
        "" => String::new(),
        circle => format!(", since actors wait for each other: {circle}"),
    }
}

fn was_full(waited: Duration) -> String {
    match waited.is_zero() {
        true => "is full, and nobody waited for room".to_owned(),
        false => format!("stayed full for {waited:?}"),
    }
}

impl AskError {
    /// No answer within the time given.
    pub(crate) const fn timeout(actor: ActorId, waited: Duration) -> Self {
        let circle = String::new();
        Self::Timeout {
            actor,
            waited,
            circle,
        }
    }

    /// Tells if the request took effect.
    #[must_use]
    pub const fn effect(&self) -> Effect {
        match self {
            Self::Died(_) | Self::Timeout { .. } | Self::LinkLost { .. } => Effect::Unknown,
            Self::BadReply { .. } => Effect::Yes,
            _ => Effect::No,
        }
    }
}

impl Shape for AskError {
    const SHAPE: u64 = shape::name("odeon.AskError");
}

/// A message that could not be sent, given back with the reason.
#[derive(Error)]
#[error("{error}")]
pub struct TellError<M> {
    /// The message, when it never left this process in one piece; else `None`.
    pub message: Option<M>,
    /// Why. Its [`effect`](AskError::effect) says whether it may have been handled.
    pub error: AskError,
}

impl<M> std::fmt::Debug for TellError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TellError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// Why an actor did not come to life.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SpawnError {
    /// It started and failed, also after the restarts its policy allows.
    #[error("the actor failed to start: {0}")]
    Failed(Failure),
    /// It was stopped before it had started.
    #[error("the actor was stopped before it had started: {0}")]
    Stopped(Down),
    /// No process could be given to it.
    #[error("no place for the actor: {0}")]
    NotPlaced(String),
    /// It asks for a quantity that is none.
    #[error(transparent)]
    Needs(#[from] NeedsError),
    /// Its arguments are too large to travel.
    #[error(
        "the arguments have {bytes} bytes, and those of an actor in another process may have {limit}: put \
         bulk data into a Blob"
    )]
    TooLarge {
        /// Their size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The arguments cannot be encoded.
    #[error("the arguments cannot be encoded: {0}")]
    BadArgs(String),
    /// The system is shutting down.
    #[error("the system is shutting down")]
    ShuttingDown,
    /// The caller is outside of any running system.
    #[error("no running system in this process: start one with System::local()")]
    NoSystem,
}

/// A quantity that cannot be meant. Nothing was spawned.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("the actor asks for {what}: {why}")]
pub struct NeedsError {
    /// Which one.
    pub what: String,
    /// The reason why it cannot be had, and what would do.
    pub why: String,
}

/// Why a name was not registered or found.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NameError {
    /// Another living actor has it.
    #[error("the name `{name}` belongs to {owner} already")]
    Taken {
        /// The name.
        name: String,
        /// The actor that has it.
        owner: ActorId,
    },
    /// Nobody has it.
    #[error("no actor is registered as `{0}`")]
    NotFound(String),
    /// The actor behind it is of another type.
    #[error("`{name}` is a {found}, not a {wanted}")]
    WrongType {
        /// The name.
        name: String,
        /// The type of the actor that has the name.
        found: String,
        /// The type that was asked for.
        wanted: String,
    },
    /// The actor behind it was built from other messages, so that it would refuse some of ours.
    #[error(
        "`{name}` is a {actor} of another build: {differences}; build both programs from the same messages"
    )]
    Protocol {
        /// The name.
        name: String,
        /// The type of the actor, which is the one that was asked for.
        actor: String,
        /// Which messages differ, and how.
        differences: String,
    },
    /// No detached actor of the namespace has it.
    #[error("namespace `{namespace}` has no detached actor `{name}`, or it is being started again")]
    NotDetached {
        /// The name.
        name: String,
        /// Where it was looked for.
        namespace: String,
    },
    /// The node that keeps the names did not answer.
    #[error("the node that keeps the names did not answer: {0}")]
    Unreachable(String),
}

/// Why two engines did not connect, or a system did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SystemError {
    /// An operation on a socket or process failed.
    #[error("{doing}: {source}")]
    Io {
        /// The operation that failed, in words.
        doing: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The other side speaks another version or refused.
    #[error("the peer refused the link: {0}")]
    Refused(String),
    /// Certificates, keys or the join are wrong.
    #[error("{0}")]
    Security(String),
    /// The list of the job's actor types cannot be meant.
    #[error("{0}")]
    Job(String),
    /// A failure climbed out of the top of the tree of supervisors while `main` ran.
    #[error("the system has failed: {0}")]
    Failed(Failure),
}
