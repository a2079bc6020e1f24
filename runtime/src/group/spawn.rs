//! Spawning a group: all of it or nothing.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use odeon_placement::Arrange;
use thiserror::Error;

use super::{Group, Mesh, Rank};
use crate::actor::handler::{Actor, Context};
use crate::actor::host::Host;
use crate::actor::placing::{Ask, LaunchOrder};
use crate::actor::registry::Registered;
use crate::actor::spawn::{self, Spawn};
use crate::base::error::SpawnError;
use crate::base::id::{ActorId, Ref};
use crate::base::needs::Needs;
use crate::base::supervise::{Orphans, Restart};
use crate::system::System;

impl System {
    /// Spawns a group at the top of the tree: one actor for each rank, made from the arguments that
    /// `args` gives for it.
    pub fn spawn_group<A: Registered>(
        &self,
        mesh: Mesh,
        args: impl FnMut(Rank) -> A::Args,
    ) -> SpawnGroup<A> {
        SpawnGroup::of(mesh, args, |args| self.spawn(args))
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
        SpawnGroup::of(mesh, args, |args| self.spawn(args))
    }
}

/// A group about to be spawned. Await it for a group whose members have all started. When one does
/// not, the others are stopped.
#[must_use = "a group is spawned when this is awaited"]
pub struct SpawnGroup<A: Actor> {
    mesh: Mesh,
    /// In rank order.
    members: Vec<Spawn<A>>,
    /// The dimension along which members lie on one node.
    together: Option<String>,
}

impl<A: Actor> SpawnGroup<A> {
    fn of(
        mesh: Mesh,
        args: impl FnMut(Rank) -> A::Args,
        spawn: impl FnMut(A::Args) -> Spawn<A>,
    ) -> Self {
        let members = mesh.ranks().map(args).map(spawn).collect();
        Self {
            mesh,
            members,
            together: None,
        }
    }
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

    /// Changes what each member needs. All get it, or the group is not spawned: see [`Needs`].
    pub fn needs(self, mut change: impl FnMut(Needs) -> Needs) -> Self {
        self.each(|_, spawn| spawn.needs(&mut change))
    }

    /// Members that differ along this dimension alone get what they need on one node; where no node has
    /// that for them, the group is not spawned. All are given room at once, whichever nodes they are on.
    /// For members that exchange much with each other, as those that share a copy of a model.
    pub fn together(mut self, dim: impl Into<String>) -> Self {
        self.together = Some(dim.into());
        self
    }

    /// So many devices for each member, alone: see [`Needs::gpus`].
    pub fn gpus(self, count: u32) -> Self {
        self.needs(|needs| needs.gpus(count))
    }

    /// All members in worker processes of this node.
    pub fn on_node(self, node: impl Into<String>) -> Self {
        let node = node.into();
        self.each(|_, spawn| spawn.on_node(node.clone()))
    }
}

impl<A: Registered> SpawnGroup<A> {
    /// Numbers for the members and what processes they get. Those that need something of a node are
    /// given room together, or none of them is.
    async fn orders(
        mesh: &Mesh,
        members: &mut [Spawn<A>],
        together: Option<&str>,
    ) -> Result<Vec<(ActorId, Option<LaunchOrder>)>, GroupSpawnError> {
        let Some(engine) = members.first().map(|spawn| Arc::clone(spawn.engine())) else {
            return Ok(vec![]);
        };
        let mut orders = vec![];
        for (rank, spawn) in mesh.ranks().zip(members) {
            let order = spawn.take_order();
            let order = order.map_err(|error| GroupSpawnError { rank, error })?;
            orders.push((engine.new_id(), order));
        }
        let ids: Vec<ActorId> = orders.iter().map(|(id, _)| *id).collect();
        let near = Neighbours::of(mesh, together)?;
        let mut asks: Vec<Ask> = vec![];
        // Which bundle of which ask each member is.
        let mut places = vec![];
        for (rank, (id, order)) in orders.iter_mut().enumerate() {
            let Some(ask) = order.as_mut().and_then(|order| order.ask.as_mut()) else {
                continue;
            };
            if together.is_some() {
                ask.needs.demand.arrange = Arrange::StrictPack;
            }
            let alike = asks.iter().position(|known| {
                let first = known.actors[0].1 as usize;
                known.needs == ask.needs && near.are(rank, first)
            });
            let kind = alike.unwrap_or_else(|| {
                let mut holder = format!("{}[{}] {}", A::NAME, mesh.len(), ids[0]);
                if !asks.is_empty() {
                    holder += &format!(" from rank {rank}");
                }
                asks.push(Ask {
                    job: engine.job.clone(),
                    holder,
                    actors: vec![],
                    needs: ask.needs.clone(),
                    again: false,
                });
                asks.len() - 1
            });
            places.push((rank, kind, asks[kind].actors.len()));
            asks[kind].actors.push((*id, rank as u32));
        }
        if asks.is_empty() {
            return Ok(orders);
        }
        let granted = engine.reserve(asks.clone()).await;
        let granted = granted.map_err(|failure| GroupSpawnError {
            rank: mesh.rank(places[0].0).expect("the rank of a member"),
            error: SpawnError::NotPlaced(failure.message),
        })?;
        for (rank, kind, nth) in places {
            let before: usize = asks[..kind].iter().map(|ask| ask.actors.len()).sum();
            let (id, order) = &mut orders[rank];
            let Some(LaunchOrder {
                ask: Some(ask),
                claim,
                ..
            }) = order
            else {
                continue;
            };
            // When it is placed again, it is alone.
            ask.holder.clone_from(&asks[kind].holder);
            ask.actors = vec![(*id, rank as u32)];
            let siblings = near.ranks(rank).iter().map(|sibling| ids[*sibling]);
            let siblings = siblings.filter(|sibling| sibling != id);
            ask.needs.among(siblings, A::NAME);
            *claim = granted.get(before + nth).copied();
        }
        Ok(orders)
    }

    async fn run(self) -> Result<Group<A>, GroupSpawnError> {
        let Self {
            mesh,
            mut members,
            together,
        } = self;
        let orders = Self::orders(&mesh, &mut members, together.as_deref()).await?;
        let mut started: Vec<Ref<A>> = Vec::with_capacity(members.len());
        let mut starts = FuturesUnordered::new();
        let mut trouble = None;
        for ((rank, spawn), (id, order)) in mesh.ranks().zip(members).zip(orders) {
            let engine = Arc::clone(spawn.engine());
            match spawn.start_by(id, order) {
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

/// The ranks that are placed with each other: those along a dimension, or all.
struct Neighbours {
    groups: Vec<Vec<usize>>,
    /// The group of each rank.
    of: Vec<usize>,
}

impl Neighbours {
    fn of(mesh: &Mesh, together: Option<&str>) -> Result<Self, GroupSpawnError> {
        let groups = match together {
            None => vec![(0..mesh.len()).collect()],
            Some(dim) => {
                mesh.size_of(dim).map_err(|error| GroupSpawnError {
                    rank: mesh.rank(0).expect("a mesh has ranks"),
                    error: SpawnError::NotPlaced(error.to_string()),
                })?;
                mesh.groups(&[dim])
            }
        };
        let mut of = vec![0; mesh.len()];
        for (number, ranks) in groups.iter().enumerate() {
            ranks.iter().for_each(|rank| of[*rank] = number);
        }
        Ok(Self { groups, of })
    }

    /// Those that a rank is placed with, itself too.
    fn ranks(&self, rank: usize) -> &[usize] {
        &self.groups[self.of[rank]]
    }

    fn are(&self, rank: usize, other: usize) -> bool {
        self.of[rank] == self.of[other]
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
