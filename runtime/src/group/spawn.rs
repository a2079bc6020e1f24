//! Spawning a group: all of it or nothing.

use std::fmt;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use thiserror::Error;

use super::{Group, Mesh, Rank};
use crate::actor::{Actor, Context};
use crate::error::SpawnError;
use crate::host::Host;
use crate::id::Ref;
use crate::registry::Registered;
use crate::spawn::{self, Spawn};
use crate::supervise::Restart;
use crate::system::System;
use crate::wire::Orphans;

impl System {
    /// Spawns a group at the top of the tree: one actor for each rank, made from the arguments that
    /// `args` gives for it.
    pub fn spawn_group<A: Registered>(
        &self,
        mesh: Mesh,
        args: impl FnMut(Rank) -> A::Args,
    ) -> SpawnGroup<A> {
        let members = mesh
            .ranks()
            .map(args)
            .map(|args| self.spawn(args))
            .collect();
        SpawnGroup { mesh, members }
    }
}

impl<P: Actor> Context<P> {
    /// Spawns a group of children: one actor for each rank, made from the arguments that `args`
    /// gives for it.
    pub fn spawn_group<A: Actor>(
        &self,
        mesh: Mesh,
        args: impl FnMut(Rank) -> A::Args,
    ) -> SpawnGroup<A> {
        let members = mesh
            .ranks()
            .map(args)
            .map(|args| self.spawn(args))
            .collect();
        SpawnGroup { mesh, members }
    }
}

/// A group about to be spawned. Await it for a group whose members have all started. When one does
/// not, the others are stopped.
#[must_use = "a group is spawned when this is awaited"]
pub struct SpawnGroup<A: Actor> {
    mesh: Mesh,
    /// In rank order.
    members: Vec<Spawn<A>>,
}

impl<A: Actor> fmt::Debug for SpawnGroup<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnGroup")
            .field("actor", &A::NAME)
            .field("mesh", &self.mesh)
            .finish()
    }
}

impl<A: Actor> SpawnGroup<A> {
    /// Options that differ by rank: `.each(|rank, spawn| spawn.on_node(nodes[rank.along("dp")]))`.
    pub fn each(mut self, mut options: impl FnMut(Rank, Spawn<A>) -> Spawn<A>) -> Self {
        let members = self.mesh.ranks().zip(self.members);
        self.members = members.map(|(rank, spawn)| options(rank, spawn)).collect();
        self
    }

    /// See [`Spawn::restart`].
    pub fn restart(self, restart: Restart) -> Self {
        self.each(|_, spawn| spawn.restart(restart))
    }

    /// See [`Spawn::orphans`].
    pub fn orphans(self, orphans: Orphans) -> Self {
        self.each(|_, spawn| spawn.orphans(orphans))
    }

    /// See [`Spawn::host`].
    pub fn host(self, on: Host) -> Self {
        self.each(|_, spawn| spawn.host(on))
    }

    /// Each member in a worker process of its own.
    pub fn isolated(self) -> Self {
        self.each(|_, spawn| spawn.isolated())
    }

    /// All members in the worker process of this name.
    pub fn in_worker(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.each(|_, spawn| spawn.in_worker(name.clone()))
    }

    /// All members in worker processes of this node.
    pub fn on_node(self, node: impl Into<String>) -> Self {
        let node = node.into();
        self.each(|_, spawn| spawn.on_node(node.clone()))
    }
}

impl<A: Registered> SpawnGroup<A> {
    async fn run(self) -> Result<Group<A>, GroupSpawnError> {
        let Self { mesh, members } = self;
        let mut started: Vec<Ref<A>> = Vec::with_capacity(members.len());
        let mut starts = FuturesUnordered::new();
        let mut trouble = None;
        for (rank, spawn) in mesh.ranks().zip(members) {
            let engine = std::sync::Arc::clone(spawn.engine());
            match spawn.start() {
                Ok(actor) => {
                    started.push(actor);
                    starts.push(async move { (rank, spawn::started(&engine, actor.id()).await) });
                }
                Err(error) => {
                    trouble = Some((rank, error));
                    break;
                }
            }
        }
        while trouble.is_none()
            && let Some((rank, start)) = starts.next().await
        {
            trouble = start.err().map(|error| (rank, error));
        }
        if let Some((rank, error)) = trouble {
            // One that is out of reach is gone as well.
            let _ = join_all(started.iter().rev().map(Ref::stop)).await;
            return Err(GroupSpawnError { rank, error });
        }
        Ok(Group {
            mesh,
            members: started.into(),
        })
    }
}

impl<A: Registered> IntoFuture for SpawnGroup<A> {
    type Output = Result<Group<A>, GroupSpawnError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Why a group did not come to life. None of it is left.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{rank} did not start, so the whole group was stopped: {error}")]
pub struct GroupSpawnError {
    /// The first rank that did not start.
    pub rank: Rank,
    /// Why.
    #[source]
    pub error: SpawnError,
}
