//! Detached actors as they travel, and the question that has one hosted.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::actor::spawn::protocol::SpawnOrder;
use crate::base::error::{NameError, SpawnError};
use crate::base::supervise::Restart;
use crate::net::service::Service;
use crate::net::wire::{NameRow, ServiceId, codec};

/// Longest name of a detached actor, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// Largest encoded arguments of one: they are kept by the catalog of the cluster, and handed to the
/// process that hosts it when that is started.
pub(super) const ARGS_BYTES_MAX: usize = 32 << 10;
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

pub(super) fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_a_cluster_have_a_namespace() {
        assert_eq!(namespace_of("lab/j17.2"), "lab");
        assert_eq!(namespace_of("my-program"), "default");
        assert!(is_plain("counter-2.a"));
        assert!(!is_plain("lab/counter") && !is_plain(""));
    }
}
