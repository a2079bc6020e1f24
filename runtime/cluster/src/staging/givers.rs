//! The other nodes, as they give files of jobs.

use std::fmt;

use futures::future::BoxFuture;
use odeon::Blob;
use odeon_artifacts::Digest;

/// The answer of another node; or why there is none.
pub(crate) type Given<'a, T> = BoxFuture<'a, Result<T, String>>;

/// Nodes that can be asked for files. Each gives what it has.
pub(crate) trait Givers: fmt::Debug + Send + Sync {
    /// Asks a node what a bundle consists of.
    fn bundle<'a>(&'a self, node: &'a str, digest: Digest) -> Given<'a, Option<Blob>>;

    /// Asks a node which pieces of a bundle are read first.
    fn heat<'a>(&'a self, node: &'a str, digest: Digest) -> Given<'a, Option<Blob>>;

    /// Fetches pieces from a node: those that it has.
    fn pieces<'a>(&'a self, node: &'a str, digests: &[Digest]) -> Given<'a, Vec<Option<Blob>>>;
}
