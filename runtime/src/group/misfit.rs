//! Calls that do not fit the mesh of their group.

use odeon_mesh::MeshError;
use thiserror::Error;

/// A call or a group that does not fit its mesh. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The mesh has not what the call names.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// Another number of actors than ranks.
    #[error("{members} actors for {ranks} ranks")]
    Members {
        /// The number of actors.
        members: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// Another number of messages than the dispatch needs.
    #[error("{messages} messages where the dispatch needs {needed}")]
    Messages {
        /// The number of messages.
        messages: usize,
        /// The number of messages that it needs.
        needed: usize,
    },
    /// Parts were named for another number of ranks.
    #[error("parts for {given} ranks, where there are {ranks}")]
    Parts {
        /// For how many.
        given: usize,
        /// The number of ranks in the mesh.
        ranks: usize,
    },
    /// Rows of a part would be lost, or come back more than once.
    #[error("part {part} has {answers} ranks whose answers count, where one is needed")]
    Uncollected {
        /// The part.
        part: usize,
        /// The number of ranks that answer for it.
        answers: usize,
    },
    /// Every answer that should be collected is one that nobody was asked for.
    #[error("the ranks to collect from are not asked")]
    NothingCollected,
    /// A quorum of more answers than can come.
    #[error("a quorum of {quorum} answers of {asked}")]
    Quorum {
        /// The number of answers that are wanted.
        quorum: usize,
        /// The number of answers that can come.
        asked: usize,
    },
}
