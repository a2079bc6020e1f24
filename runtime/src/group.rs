//! Groups: ranked actors on an n-dimensional mesh, addressed as one.
//!
//! ```text
//!  mesh! { dp: 2, tp: 4 }          rank = row-major index
//!
//!           tp 0   1   2   3
//!    dp 0    [ 0   1   2   3 ]  <- group.slice(at!(dp = 0))
//!    dp 1    [ 4   5   6   7 ]
//! ```
//!
//! A request goes to all members before the first answer is awaited, and keeps the caller's order
//! at each of them. An answer that is missing is an error that names its rank, unless a
//! [`quorum`](Gather::quorum) is enough.
//!
//! A model that runs on many ranks is a [`WorkerGroup`]: each of its calls knows how it is dealt out
//! and what comes of the answers, so that a program of a few lines drives all of them.
//!
//! Members that work on the same numbers do not send these through mailboxes: the group is
//! [formed](Group::form), and each member gets a [`Communicator`] for
//! [collectives](crate::collective).

mod call;
mod collective;
mod misfit;
mod protocol;
mod reduce;
mod spawn;
mod workers;

use std::fmt;
use std::sync::Arc;

use futures::future::join_all;
use odeon_mesh::{At, Mesh, MeshError, Rank};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::actor::handler::Actor;
use crate::actor::request::HandledBy;
use crate::base::error::AskError;
use crate::base::id::Ref;
use crate::base::shape::{self, Shape};

pub use call::{Cast, Collect, Dispatch, Gather, Quorum, Reduce};
pub use collective::{Communicator, FormError, Formation, Seat, SeatError};
pub use misfit::Misfit;
pub use protocol::{MeshPlace, Protocol};
pub use reduce::{Concat, Max, Mean, Min, Reduction, Scale, Sum, Summand};
pub use spawn::{GroupSpawnError, SpawnGroup};
pub use workers::{CallError, Pool, SpawnWorkers, WhereIn, WorkerCall, WorkerGroup};

/// Ranked references to actors of one type. Cheap to clone, and serialisable: a group can be sent
/// to another actor, which then addresses the same members under the same ranks.
pub struct Group<A> {
    mesh: Mesh,
    members: Arc<[Ref<A>]>,
}

impl<A> Group<A> {
    /// Groups existing actors: one for each rank of the mesh, in rank order.
    ///
    /// # Errors
    /// There are more or fewer of them than ranks.
    pub fn new(mesh: Mesh, members: impl Into<Arc<[Ref<A>]>>) -> Result<Self, Misfit> {
        let members = members.into();
        if members.len() == mesh.len() {
            Ok(Self { mesh, members })
        } else {
            Err(Misfit::Members {
                members: members.len(),
                ranks: mesh.len(),
            })
        }
    }

    /// The mesh that the ranks lie on.
    #[must_use]
    pub const fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The members in rank order.
    #[must_use]
    pub fn members(&self) -> &[Ref<A>] {
        &self.members
    }

    /// The member at a rank.
    #[must_use]
    pub fn member(&self, rank: usize) -> Option<Ref<A>> {
        self.members.get(rank).copied()
    }

    /// The members at these coordinates, as a group over the dimensions that are left:
    /// `group.slice(at!(dp = 0))`. Their ranks count from 0 again, in the same order.
    ///
    /// # Panics
    /// The mesh has no such dimension or coordinate, as for a slice of a `Vec`;
    /// [`try_slice`](Self::try_slice) tells instead.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "`at!` makes one for this call"
    )]
    pub fn slice(&self, at: At) -> Self {
        self.try_slice(&at)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`slice`](Self::slice) for coordinates that may not exist.
    ///
    /// # Errors
    /// The mesh has no such dimension or coordinate.
    pub fn try_slice(&self, at: &At) -> Result<Self, MeshError> {
        let (mesh, ranks) = self.mesh.slice(at)?;
        let members = ranks.into_iter().map(|rank| self.members[rank]).collect();
        Ok(Self { mesh, members })
    }

    /// The slices along a dimension, one for each of its coordinates, in order.
    ///
    /// # Errors
    /// The mesh has no such dimension.
    pub fn along(&self, dim: &str) -> Result<Vec<Self>, MeshError> {
        let size = self.mesh.size_of(dim)?;
        (0..size)
            .map(|i| self.try_slice(&At::new([(dim, i.into())])))
            .collect()
    }
}

impl<A: Actor> Group<A> {
    /// Sends a message to every member without an answer. The future ends when all mailboxes (near)
    /// or links (far) have accepted it.
    pub fn cast<M: HandledBy<A> + Clone>(&self, message: M) -> Cast<A, M> {
        Cast::new(self.clone(), message)
    }

    /// Asks every member, and gives the answers in rank order.
    pub fn gather<M: HandledBy<A> + Clone>(&self, message: M) -> Gather<A, M> {
        Gather::new(self.clone(), vec![message], Dispatch::All)
    }

    /// Asks each member something else: `messages[rank]`, or as [`Gather::along`] or
    /// [`Gather::dispatch`] say.
    pub fn scatter<M: HandledBy<A> + Clone>(&self, messages: Vec<M>) -> Gather<A, M> {
        Gather::new(self.clone(), messages, Dispatch::PerRank)
    }

    /// Asks every member and combines the answers into one: `group.reduce(Loss, Mean).await`. See
    /// [`Reduction`] for the order.
    pub fn reduce<M: HandledBy<A> + Clone, O: Reduction<M::Reply>>(
        &self,
        message: M,
        operation: O,
    ) -> Reduce<A, M, O> {
        self.gather(message).reduce(operation)
    }

    /// Ends every member in order and waits until all are gone.
    ///
    /// # Errors
    /// The home of some is out of reach.
    pub async fn stop(&self) -> Result<(), GroupError> {
        let stopped = join_all(self.members.iter().map(Ref::stop)).await;
        let failed: Vec<_> = self
            .mesh
            .ranks()
            .zip(stopped)
            .filter_map(|(rank, stopped)| Some((rank, stopped.err()?)))
            .collect();
        if failed.is_empty() {
            Ok(())
        } else {
            Err(GroupError::Missing { failed })
        }
    }
}

/// Why a group did not answer as asked.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// These ranks failed; all others were sent the message and answered, or were not waited for.
    /// Each error says whether it took effect there.
    #[error("{}", missing(failed))]
    Missing {
        /// The ranks that failed, in rank order, with the reason.
        failed: Vec<(Rank, AskError)>,
    },
    /// The call does not fit the mesh. Nothing was sent.
    #[error("the call does not fit the group: {0}")]
    Misfit(#[from] Misfit),
}

impl GroupError {
    /// The ranks that failed, in rank order, with the reason.
    #[must_use]
    pub fn failed(&self) -> &[(Rank, AskError)] {
        match self {
            Self::Missing { failed } => failed,
            Self::Misfit(_) => &[],
        }
    }
}

fn missing(failed: &[(Rank, AskError)]) -> String {
    use std::fmt::Write;
    let mut text = format!("{} of the group's ranks failed", failed.len());
    for (index, (rank, error)) in failed.iter().enumerate() {
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "{} {rank}: {error}",
            if index == 0 { ":" } else { ";" }
        );
    }
    text
}

impl<A> Clone for Group<A> {
    fn clone(&self) -> Self {
        Self {
            mesh: self.mesh.clone(),
            members: Arc::clone(&self.members),
        }
    }
}
impl<A> PartialEq for Group<A> {
    fn eq(&self, other: &Self) -> bool {
        self.mesh == other.mesh && self.members == other.members
    }
}
impl<A> Eq for Group<A> {}
impl<A> fmt::Debug for Group<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("mesh", &self.mesh)
            .field("members", &self.members)
            .finish()
    }
}
impl<A> Serialize for Group<A> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.mesh, &*self.members).serialize(serializer)
    }
}
impl<'de, A> Deserialize<'de> for Group<A> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mesh, members): (Mesh, Vec<Ref<A>>) = Deserialize::deserialize(deserializer)?;
        Self::new(mesh, members).map_err(serde::de::Error::custom)
    }
}
impl<A> Shape for Group<A> {
    const SHAPE: u64 = shape::mix(shape::name("odeon.Group"), Mesh::SHAPE);
}
