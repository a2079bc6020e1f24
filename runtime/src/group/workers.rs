//! Worker groups: the ranks of a model, called as one.
//!
//! One program says what the models of a workload do one after the other; what happens inside of a
//! model is up to its ranks, which talk to each other by [collectives](crate::collective). This is
//! the hybrid control of HybridFlow (arXiv 2409.19256): the program sends and gets references, as a
//! rule, and who needs the rows behind them fetches its own.
//!
//! ```text
//!  program ── call ──> WorkerGroup ── deal by its protocol ──> rank 0, rank 1, ...
//!          <─ output ─             <─ join ────────────────── those whose answers count
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Mutex as Turn;

use odeon_mesh::{Mesh, Rank};

use super::call::{Collect, Dispatch};
use super::protocol::{self, MeshPlace, Protocol};
use super::spawn::{GroupSpawnError, SpawnGroup};
use super::{Formation, Group, GroupError};
use crate::actor::handler::{Actor, Handler};
use crate::actor::registry::Registered;
use crate::base::failure::Failure;
use crate::base::id::Ref;
use crate::base::message::{Message, Wire};
use crate::system::System;

/// A call of a worker group: one message for who calls, a part of it for each rank.
///
/// ```
/// use odeon::Failure;
/// use odeon::group::{Protocol, WorkerCall};
///
/// /// Squares numbers, each rank some of them.
/// #[odeon::message(reply = Result<Vec<u64>, Failure>)]
/// #[derive(Clone)]
/// struct Square(Vec<u64>);
///
/// impl WorkerCall for Square {
///     type Part = Vec<u64>;
///     type Output = Vec<u64>;
///
///     fn protocol(&self) -> Protocol {
///         Protocol::Data
///     }
///
///     fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
///         let mut rest = self.0.iter().copied();
///         let each = self.0.len().div_ceil(parts);
///         Ok((0..parts).map(|_| Self(rest.by_ref().take(each).collect())).collect())
///     }
///
///     fn join(&self, parts: Vec<Vec<u64>>) -> Result<Vec<u64>, Failure> {
///         Ok(parts.concat())
///     }
/// }
/// ```
pub trait WorkerCall: Message<Reply = Result<Self::Part, Failure>> + Clone + Unpin {
    /// The answer of one rank.
    type Part: Wire + Unpin;
    /// The result of all answers together.
    type Output;

    /// The protocol by which it is dealt out.
    fn protocol(&self) -> Protocol;

    /// As many messages as the protocol asks for, in the order of the parts. With one part for all
    /// it is the message itself.
    ///
    /// # Errors
    /// What there is cannot be cut into so many parts.
    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure>;

    /// The answers that count, in the order of the parts.
    ///
    /// # Errors
    /// They do not belong together.
    fn join(&self, parts: Vec<Self::Part>) -> Result<Self::Output, Failure>;
}

/// Where are you in the mesh of this name? Asked once of each rank, before the first call by
/// [`Protocol::Mesh`].
#[crate::message(reply = Option<MeshPlace>, name = "odeon.WhereIn")]
#[derive(Clone, Debug)]
pub struct WhereIn(pub String);

/// Worker processes, one for each rank, that the models in it share. Calls of models of one pool
/// are done one after the other, in the order in which they were made; models of other pools work
/// meanwhile.
#[derive(Clone, Debug)]
pub struct Pool {
    name: Arc<str>,
    turn: Arc<Turn<()>>,
}

impl Pool {
    /// A pool of this name, which its processes have with the number of their rank.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            turn: Arc::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A model's workers in the pool: rank `i` in the process `<pool>-<i>`.
    pub fn spawn<A: Registered>(
        &self,
        system: &System,
        mesh: Mesh,
        args: impl FnMut(Rank) -> A::Args,
    ) -> SpawnWorkers<A> {
        let workers = system.spawn_group::<A>(mesh, args);
        let name = Arc::clone(&self.name);
        SpawnWorkers {
            pool: self.clone(),
            spawn: workers.each(|rank, spawn| spawn.in_worker(format!("{name}-{}", rank.index()))),
        }
    }
}

/// Workers about to be spawned.
#[must_use = "workers are spawned when this is awaited"]
#[derive(Debug)]
pub struct SpawnWorkers<A: Actor> {
    pool: Pool,
    spawn: SpawnGroup<A>,
}

impl<A: Registered> SpawnWorkers<A> {
    /// Options of the group.
    pub fn with(mut self, options: impl FnOnce(SpawnGroup<A>) -> SpawnGroup<A>) -> Self {
        self.spawn = options(self.spawn);
        self
    }

    /// Starts them: all or none.
    ///
    /// # Errors
    /// [`GroupSpawnError`], which names the rank.
    pub async fn start(self) -> Result<WorkerGroup<A>, GroupSpawnError> {
        let group = self.spawn.await?;
        Ok(WorkerGroup::new(group, &self.pool))
    }
}

type AskPlaces<A> =
    fn(Group<A>, String) -> BoxFuture<'static, Result<Vec<Option<MeshPlace>>, GroupError>>;

/// The ranks of a model. Cheap to clone.
pub struct WorkerGroup<A> {
    group: Group<A>,
    pool: Pool,
    ask_places: Option<AskPlaces<A>>,
    meshes: Arc<Mutex<HashMap<String, (Dispatch, Collect)>>>,
}

impl<A> Clone for WorkerGroup<A> {
    fn clone(&self) -> Self {
        Self {
            group: self.group.clone(),
            pool: self.pool.clone(),
            ask_places: self.ask_places,
            meshes: Arc::clone(&self.meshes),
        }
    }
}

impl<A> fmt::Debug for WorkerGroup<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerGroup")
            .field("pool", &self.pool.name)
            .field("mesh", self.group.mesh())
            .finish_non_exhaustive()
    }
}

impl<A: Actor> WorkerGroup<A> {
    /// A group whose calls wait for those of the other models of a pool.
    #[must_use]
    pub fn new(group: Group<A>, pool: &Pool) -> Self {
        Self {
            group,
            pool: pool.clone(),
            ask_places: None,
            meshes: Arc::default(),
        }
    }

    /// The same, with workers that know meshes of their own: see [`Protocol::Mesh`].
    #[must_use]
    pub fn with_meshes(mut self) -> Self
    where
        A: Handler<WhereIn>,
    {
        self.ask_places = Some(|group, name| Box::pin(group.gather(WhereIn(name)).into_future()));
        self
    }

    /// The members.
    #[must_use]
    pub const fn group(&self) -> &Group<A> {
        &self.group
    }

    /// The pool that they are in.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Makes the members able to talk to each other: see [`Group::form`].
    ///
    /// # Errors
    /// [`FormError`](super::FormError).
    pub async fn form(&self) -> Result<Formation, super::FormError> {
        self.group.form().await
    }

    /// Deals a call out to the ranks and joins their answers. It begins when the calls before it in
    /// the pool have ended.
    ///
    /// # Errors
    /// [`CallError`]. All ranks have ended what they were asked, or are lost, by then.
    pub async fn call<C: WorkerCall>(&self, call: C) -> Result<C::Output, CallError>
    where
        A: Handler<C>,
    {
        let (dispatch, collect) = self.protocol(&call.protocol()).await?;
        let parts = dispatch.parts(self.group.mesh());
        let parts = parts.map_err(GroupError::from)?;
        let uncut = |failure| CallError::Deal {
            call: C::NAME,
            parts,
            failure,
        };
        let messages = call.deal(parts).map_err(uncut)?;
        let asked = dispatch.plan(&self.group, messages.len());
        let asked = asked.map_err(GroupError::from)?;
        let counts = collect.plan(&self.group).map_err(GroupError::from)?;
        let turn = self.pool.turn.lock().await;
        let answers = self.group.scatter(messages).dispatch(dispatch).await?;
        drop(turn);
        let asked = asked.iter().enumerate().filter(|(_, part)| part.is_some());
        let mut parts = vec![];
        for ((rank, _), answer) in asked.zip(answers) {
            // Also of those whose answers do not count: no failure goes unseen.
            let part = answer.map_err(|failure| self.failed::<C>(rank, failure))?;
            if counts[rank] {
                parts.push((rank, part));
            }
        }
        if let Collect::Ranks(order) = &collect {
            parts.sort_by_key(|(rank, _)| order.iter().position(|other| other == rank));
        }
        let parts = parts.into_iter().map(|(_, part)| part).collect();
        call.join(parts).map_err(|failure| CallError::Join {
            call: C::NAME,
            failure,
        })
    }

    fn failed<C: WorkerCall>(&self, rank: usize, failure: Failure) -> CallError {
        CallError::Rank {
            call: C::NAME,
            pool: self.pool.name().to_owned(),
            rank,
            failure,
        }
    }

    /// A protocol's two halves; those of a mesh that the workers know are asked for once.
    async fn protocol(&self, protocol: &Protocol) -> Result<(Dispatch, Collect), CallError> {
        if let Some(pair) = protocol.pair() {
            return Ok(pair);
        }
        let Protocol::Mesh(name) = protocol else {
            unreachable!("every other protocol is a pair");
        };
        let known = self.meshes.lock().get(name).cloned();
        if let Some(pair) = known {
            return Ok(pair);
        }
        let ask = self
            .ask_places
            .ok_or_else(|| CallError::NoMeshes(name.clone()))?;
        let places = ask(self.group.clone(), name.clone()).await?;
        let mut all = vec![];
        for (rank, place) in places.into_iter().enumerate() {
            let outside = || CallError::Outside {
                mesh: name.clone(),
                rank,
            };
            all.push(place.ok_or_else(outside)?);
        }
        let pair = protocol::of_places(&all).map_err(GroupError::from)?;
        self.meshes.lock().insert(name.clone(), pair.clone());
        Ok(pair)
    }

    /// The member at a rank.
    #[must_use]
    pub fn member(&self, rank: usize) -> Option<Ref<A>> {
        self.group.member(rank)
    }
}

/// Why a call of a worker group failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// It could not be cut into as many parts as the protocol needs. Nothing was sent.
    #[error("{call} cannot be dealt out in {parts} parts: {failure}")]
    Deal {
        /// The message's name.
        call: &'static str,
        /// The number of parts that were needed.
        parts: usize,
        /// Why not.
        failure: Failure,
    },
    /// A rank could not do it; of several the first.
    #[error("{call} failed on rank {rank} of pool {pool}: {failure}")]
    Rank {
        /// The message's name.
        call: &'static str,
        /// The pool.
        pool: String,
        /// The rank that failed.
        rank: usize,
        /// Why.
        failure: Failure,
    },
    /// The answers do not belong together.
    #[error("the answers to {call} do not belong together: {failure}")]
    Join {
        /// The message's name.
        call: &'static str,
        /// Why not.
        failure: Failure,
    },
    /// The group was not told that its workers know meshes.
    #[error(
        "mesh `{0}`: the workers were not asked for their meshes; make the group `with_meshes`"
    )]
    NoMeshes(String),
    /// A rank has no place in the mesh. Nothing was sent.
    #[error("rank {rank} has no place in mesh `{mesh}`")]
    Outside {
        /// The mesh's name.
        mesh: String,
        /// The rank without a place.
        rank: usize,
    },
    /// Some did not answer, or the call does not fit the mesh.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Rank { ref failure, .. } => {
                let cause = failure.clone();
                Self::error(error).because(cause)
            }
            other => Self::error(other),
        }
    }
}
