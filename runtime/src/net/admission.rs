//! Admission of machines to a cluster as nodes: a token from the cluster for a certificate of one's
//! own.
//!
//! The head of a cluster, which holds its [`ClusterIdentity`](crate::ClusterIdentity), takes
//! newcomers in over the port that its nodes use, under a protocol of its own (`odeon-join/1`) that
//! reaches no engine. A [`JoinToken`] says two things: a secret that few know, and whose certificate
//! to trust. The newcomer checks that the head belongs to that cluster before it says anything,
//! makes a key that never leaves it, and sends the secret, its name and its public key. It gets a
//! certificate for the name, and whatever the head wants to tell it.
//!
//! ```text
//! newcomer                                      head
//!    ── TLS 1.3, without a certificate ──────────▶
//!    ◀── leaf and authority: hash as in the token ──
//!    ── version, secret, name, public key ────────▶  Admission::admit
//!    ◀── certificate, authority, what is told ──────
//! ```
//!
//! The head keeps hashes of secrets only ([`Tokens`]), compares them in constant time, and lets an
//! address try so many times a minute.

mod gate;
mod newcomer;
mod server;
mod token;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::error::SystemError;

pub(crate) use gate::Gate;
pub use newcomer::join;
pub(crate) use server::AdmissionServer;
pub use token::{BadToken, JoinToken, SecretHash, Tokens};

/// A machine that wants to become a node. Whoever knows the secret may choose a name; nothing else
/// about it is proved.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Newcomer<'a> {
    /// The hash of the secret that it knows.
    pub secret: SecretHash,
    /// The name that it wants, which is a valid one.
    pub node: &'a str,
    /// A node of this name is linked at the moment, or is the head itself.
    pub is_taken: bool,
    /// Where it comes from.
    pub from: SocketAddr,
}

/// Decides who becomes a node.
pub trait Admission: Send + Sync {
    /// Lets a newcomer in, with what it shall be told (256 KiB at most), or says why not. Called
    /// once for each newcomer, which may be gone before the answer reaches it.
    fn admit<'a>(&'a self, newcomer: Newcomer<'a>) -> BoxFuture<'a, Result<Vec<u8>, Refusal>>;
}

/// Why somebody does not become a node.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The secret is none, or not any more.
    #[error("the token is not known")]
    WrongToken,
    /// The secret was one.
    #[error("the token has expired")]
    Expired,
    /// As many have joined with it as may.
    #[error("the token has been used up")]
    UsedUp,
    /// Another node has the name.
    #[error("there is a node of that name")]
    NameTaken,
    /// No node can have the name.
    #[error("a node cannot have that name: {0}")]
    NameInvalid(String),
    /// Too many tries from this address have failed.
    #[error("too many tries from this address have failed: try again in {0:?}")]
    TooManyTries(Duration),
    /// The two sides speak different versions.
    #[error("it speaks version {0}")]
    Version(u32),
    /// Another reason.
    #[error("{0}")]
    Other(String),
}

/// Why this machine did not become a node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The head does not know the token. Ask for a new one; nothing was used up.
    #[error("the cluster does not know this token: ask whoever gave it for a new one")]
    WrongToken,
    /// The token's time is over. Ask for a new one.
    #[error("the token has expired: ask whoever gave it for a new one")]
    Expired,
    /// As many have joined with the token as may. Ask for a new one.
    #[error("the token has been used up: ask whoever gave it for a new one")]
    UsedUp,
    /// The cluster has a node of this name. Choose another; the token was not used.
    #[error("the cluster has a node `{node}`: choose another name")]
    NameTaken {
        /// The name.
        node: String,
    },
    /// No node can have this name. Choose another; the token was not used.
    #[error("`{node}` cannot be a node's name: {why}")]
    NameInvalid {
        /// The name.
        node: String,
        /// The reason, in words.
        why: String,
    },
    /// Whoever answers belongs to another cluster than the token. Check the address; the secret was
    /// not sent.
    #[error("{address} belongs to another cluster than the token: check the address")]
    OtherCluster {
        /// Whom this machine spoke to.
        address: SocketAddr,
    },
    /// Nobody answers. Check that the head runs, the address, and that UDP reaches it.
    #[error("nobody answers at {address}: check that the head runs there and that UDP reaches it")]
    NoAnswer {
        /// Whom this machine spoke to.
        address: SocketAddr,
    },
    /// A node answers that takes nobody in, or speaks another version of the protocol. Join at the
    /// head, with the same release on both sides.
    #[error("{address} takes no newcomers, or is of another release: join at the cluster's head")]
    NotAdmitting {
        /// Whom this machine spoke to.
        address: SocketAddr,
    },
    /// The head is of another release. Use the same on both sides.
    #[error("the cluster speaks version {theirs}, we speak {ours}: use the same release")]
    Version {
        /// Of the head.
        theirs: u32,
        /// Of this machine.
        ours: u32,
    },
    /// Too many tries from this address have failed. Wait.
    #[error("too many tries from this address have failed: try again in {wait:?}")]
    TooManyTries {
        /// The time to wait before the next try.
        wait: Duration,
    },
    /// The head has another reason.
    #[error("the cluster refuses this node: {0}")]
    Refused(String),
    /// The connection broke. The token may have been used.
    #[error("the connection to {address} broke: {why}")]
    Broken {
        /// Whom this machine spoke to.
        address: SocketAddr,
        /// The cause, in words.
        why: String,
    },
    /// Keys and certificates of this machine or of the head cannot be used.
    #[error(transparent)]
    Security(#[from] SystemError),
}

/// The request of a newcomer, which follows its version.
#[derive(Serialize, Deserialize)]
struct Application {
    secret: Vec<u8>,
    node: String,
    /// A point on P-256, not compressed.
    public_key: Vec<u8>,
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Application")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The answer to a newcomer that is let in.
#[derive(Debug, Serialize, Deserialize)]
struct Admitted {
    certificate_pem: String,
    authority_pem: String,
    told: Vec<u8>,
}

/// Longest application in bytes.
const APPLICATION_BYTES_MAX: usize = 1 << 10;

/// Longest answer in bytes, and most of it that the head may want to tell.
const ANSWER_BYTES_MAX: usize = TOLD_BYTES_MAX + (16 << 10);
const TOLD_BYTES_MAX: usize = 256 << 10;

/// The longest time that all of it may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
