//! Detached actors: they live in a namespace of the cluster, and outlive the job that spawned them.
//!
//! Of each there is one process that hosts it, started by a node from the program of that job. Other
//! jobs find it by its name, and are refused at once when their builds disagree about its messages.
//! A program that runs in no cluster keeps its detached actors itself, as long as it runs.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::actor::Actor;
use crate::error::{NameError, NeedsError, SpawnError};
use crate::id::Ref;
use crate::registry::Registered;
use crate::service::Service;
use crate::spawn::{Spawn, SpawnOrder};
use crate::supervise::Restart;
use crate::wire::{NameRow, ServiceId, codec};

/// Longest name of a detached actor, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// Largest encoded arguments of one: they are kept by the catalog of the cluster, and handed to the
/// process that hosts it when that is started.
const ARGS_BYTES_MAX: usize = 32 << 10;
/// The namespace of a program that runs in no cluster.
const ALONE: &str = "default";

/// Why an actor was not detached.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DetachError {
    /// A name that is none.
    #[error(
        "a detached actor's name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`; `{0}` does not"
    )]
    BadName(String),
    /// Another living actor of the namespace has the name.
    #[error(
        "namespace `{namespace}` has a detached actor `{name}` already: bind it, or take another name"
    )]
    Taken {
        /// The name.
        name: String,
        /// Where it is taken.
        namespace: String,
    },
    /// It cannot be spawned, or has failed to start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It lives, and cannot be reached or used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Its arguments are too large to be kept by the cluster.
    #[error(
        "the arguments have {bytes} bytes, those of a detached actor {limit} at most: put bulk data into a file"
    )]
    TooLarge {
        /// Their size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The cluster has not taken it.
    #[error("the cluster does not host `{name}`: {why}")]
    Refused {
        /// The name.
        name: String,
        /// Why not.
        why: String,
    },
}

/// A detached actor as it travels: what it is and how it is spawned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetachedActor {
    pub(crate) name: String,
    pub(crate) order: SpawnOrder,
}

impl DetachedActor {
    /// Its name in its namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its type.
    #[must_use]
    pub fn actor(&self) -> &str {
        &self.order.actor
    }

    /// Returns true if it shall live again after a failure that its host could not mend.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.order.restart != Restart::Temporary
    }

    /// As text.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn to_text(&self) -> Result<String, String> {
        let bytes = codec::encode(self).map_err(|error| error.to_string())?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// From [`DetachedActor::to_text`] of the same release.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digits).collect();
        codec::decode(&bytes?).ok()
    }
}

/// An actor that shall live apart from its job, or the one of its name that is to be found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DetachOrder {
    /// That of whoever asks; it says in which namespace.
    pub(crate) job: String,
    /// Set if one that has the name already will do.
    pub(crate) or_existing: bool,
    pub(crate) actor: DetachedActor,
}

/// A life of an actor apart from that of its job.
pub(crate) struct Detaching;

impl Service for Detaching {
    const ID: ServiceId = ServiceId(3);
    const NAME: &'static str = "a detached actor that starts";
    type Request = DetachOrder;
    type Answer = Result<NameRow, DetachError>;
}

/// The namespace of a job: jobs of clusters are called `namespace/job`.
pub(crate) fn namespace_of(job: &str) -> &str {
    job.rsplit_once('/')
        .map_or(ALONE, |(namespace, _)| namespace)
}

/// The scope that the names of a namespace's detached actors are kept under. No job is called so.
pub(crate) fn scope_of(namespace: &str) -> String {
    format!("@{namespace}")
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain)
}

/// A detached actor about to be spawned: see [`Spawn::detached`]. Await it for a reference to an
/// actor that has started.
#[must_use = "an actor is spawned when this is awaited"]
pub struct Detached<A: Actor> {
    spawn: Spawn<A>,
    name: String,
    or_existing: bool,
}

impl<A: Actor> fmt::Debug for Detached<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached")
            .field("actor", &A::NAME)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<A: Registered> Detached<A> {
    pub(crate) const fn new(spawn: Spawn<A>, name: String) -> Self {
        Self {
            spawn,
            name,
            or_existing: false,
        }
    }

    /// Where one of this name lives already, that one. Of many who ask at the same time one spawns
    /// it, and all have the same.
    pub const fn or_existing(mut self) -> Self {
        self.or_existing = true;
        self
    }

    async fn run(self) -> Result<Ref<A>, DetachError> {
        if !is_plain(&self.name) {
            return Err(DetachError::BadName(self.name));
        }
        let engine = Arc::clone(self.spawn.engine());
        let order = self.spawn.into_order()?;
        let (bytes, limit) = (order.args.len(), ARGS_BYTES_MAX);
        if bytes > limit {
            return Err(DetachError::TooLarge { bytes, limit });
        }
        let order = DetachOrder {
            job: engine.job.clone(),
            or_existing: self.or_existing,
            actor: DetachedActor {
                name: self.name,
                order,
            },
        };
        let row = match engine.uplink.get() {
            None => {
                let DetachOrder {
                    or_existing, actor, ..
                } = order;
                let (namespace, kind) = (namespace_of(&engine.job), A::actor_type());
                let here = engine.detach_here(namespace, or_existing, actor, kind);
                here.await
            }
            Some(node) => {
                let answer = engine.request::<Detaching>(*node, &order, None).await;
                answer.unwrap_or_else(|| {
                    let why = "the node did not answer".to_owned();
                    let name = order.actor.name;
                    Err(DetachError::Refused { name, why })
                })
            }
        }?;
        check::<A>(&row)?;
        Ok(Ref::from_id(row.id, 0))
    }
}

impl<A: Registered> IntoFuture for Detached<A> {
    type Output = Result<Ref<A>, DetachError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Checks that the holder of a name is an actor of this type that takes all of its messages, as
/// they are built here.
pub(crate) fn check<A: Registered>(row: &NameRow) -> Result<(), NameError> {
    if row.actor != A::NAME {
        return Err(NameError::WrongType {
            name: row.name.clone(),
            found: row.actor.clone(),
            wanted: A::NAME.to_owned(),
        });
    }
    check_messages(row, A::MESSAGES)
}

/// Checks that the holder of a name takes these messages.
pub(crate) fn check_messages(row: &NameRow, wanted: &[(&str, u64)]) -> Result<(), NameError> {
    let differs = |(name, id): &(&str, u64)| {
        let there = row.messages.iter().filter(|known| known.0 == *name);
        let ids: Vec<u64> = there.map(|known| known.1).collect();
        match ids.as_slice() {
            [] => Some(format!("`{name}` is not known there")),
            ids if ids.contains(id) => None,
            _ => Some(format!("`{name}` has other fields or another reply there")),
        }
    };
    let differences: Vec<String> = wanted.iter().filter_map(differs).collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(NameError::Protocol {
        name: row.name.clone(),
        actor: row.actor.clone(),
        differences: differences.join(", "),
    })
}

/// The error for a detached actor that asks for company of actors that end before it.
pub(crate) fn alone(what: &str) -> SpawnError {
    SpawnError::Needs(NeedsError {
        what: format!("{what}, and to be detached"),
        why: "that ends with the job: leave it out".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ActorId, ProcessId};

    fn row(messages: &[(&str, u64)]) -> NameRow {
        let messages = messages.iter();
        NameRow {
            job: scope_of("default"),
            name: "counter".to_owned(),
            id: ActorId {
                home: ProcessId(1),
                serial: 1,
            },
            actor: "demo.Counter".to_owned(),
            messages: messages
                .map(|(name, id)| ((*name).to_owned(), *id))
                .collect(),
        }
    }

    /// SEMANTICS 64.
    #[test]
    fn a_binding_names_every_message_that_differs() {
        let row = row(&[("Add", 1), ("Get", 2), ("Reset", 3)]);
        assert_eq!(check_messages(&row, &[("Add", 1), ("Get", 2)]), Ok(()));
        let differs = check_messages(&row, &[("Add", 7), ("Get", 2), ("Undo", 9)]);
        let why = differs.unwrap_err().to_string();
        assert_eq!(
            why,
            "`counter` is a demo.Counter of another build: `Add` has other fields or another reply \
             there, `Undo` is not known there; build both programs from the same messages"
        );
    }

    #[test]
    fn jobs_of_a_cluster_have_a_namespace() {
        assert_eq!(namespace_of("lab/j17.2"), "lab");
        assert_eq!(namespace_of("my-program"), "default");
        assert!(is_plain("counter-2.a"));
        assert!(!is_plain("lab/counter") && !is_plain(""));
    }
}
