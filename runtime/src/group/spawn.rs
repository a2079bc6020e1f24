//! Spawning a group: all of it or nothing.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use odeon_placement::{Arrange, Talk, TalkEnd};
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
    /// Those that talk to each other, by their ranks.
    talks: Vec<Talk>,
    /// Set where there was room for such members before.
    again: bool,
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
            talks: vec![],
            again: false,
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

    /// Members that talk to each other, by their ranks: those with the same needs are given room near each
    /// other, and near the nodes that they talk to. See [`Talk::along`].
    pub fn talks(mut self, talks: impl IntoIterator<Item = Talk>) -> Self {
        self.talks.extend(talks);
        self
    }

    /// Members in the place of others that were lost: they wait for room, as one that starts again, also
    /// where no node that is there could ever have it.
    pub const fn returning(mut self) -> Self {
        self.again = true;
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
        (together, talks, again): (Option<&str>, &[Talk], bool),
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
        let needs = orders.iter().enumerate().filter_map(|(rank, (_, order))| {
            let ask = order.as_ref()?.ask.as_ref()?;
            Some((rank, &ask.needs))
        });
        let (mut asks, places) = asks(&engine.job, A::NAME, &ids, needs, &near, talks);
        let Some((first, ..)) = places.first() else {
            return Ok(orders);
        };
        asks.iter_mut().for_each(|ask| ask.again = again);
        let granted = engine.reserve(asks.clone()).await;
        let granted = granted.map_err(|failure| GroupSpawnError {
            rank: mesh.rank(*first).expect("the rank of a member"),
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
            if together.is_some() {
                ask.needs.demand.arrange = Arrange::StrictPack;
            }
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
            talks,
            again,
        } = self;
        let wishes = (together.as_deref(), &*talks, again);
        let orders = Self::orders(&mesh, &mut members, wishes).await?;
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

/// The asks of members, those with equal needs in one, and for each member its rank, its ask and its bundle there.
/// Members that lie on one node follow each other.
fn asks<'a>(
    job: &str,
    name: &str,
    ids: &[ActorId],
    needs: impl Iterator<Item = (usize, &'a Needs)>,
    near: &Neighbours,
    talks: &[Talk],
) -> (Vec<Ask>, Vec<(usize, usize, usize)>) {
    let mut units: Vec<(&Needs, Vec<usize>)> = vec![];
    for (rank, needs) in needs {
        let alike = |(known, ranks): &&mut (&Needs, Vec<usize>)| {
            near.lie_together && near.are(ranks[0], rank) && *known == needs
        };
        match units.iter_mut().rev().find(alike) {
            Some((_, ranks)) => ranks.push(rank),
            None => units.push((needs, vec![rank])),
        }
    }
    let mut asks: Vec<Ask> = vec![];
    let mut places = vec![];
    for (needs, ranks) in units {
        let mut needs = needs.clone();
        needs.demand.unit = ranks.len() as u32;
        let alike = asks.iter().position(|known| known.needs == needs);
        let kind = alike.unwrap_or_else(|| {
            let mut holder = format!("{name}[{}] {}", ids.len(), ids[0]);
            if !asks.is_empty() {
                holder += &format!(" from rank {}", ranks[0]);
            }
            asks.push(Ask {
                job: job.to_owned(),
                holder,
                actors: vec![],
                needs,
                again: false,
            });
            asks.len() - 1
        });
        for rank in ranks {
            places.push((rank, kind, asks[kind].actors.len()));
            asks[kind].actors.push((ids[rank], rank as u32));
        }
    }
    let mut bundles = vec![None; ids.len()];
    for (rank, kind, nth) in &places {
        bundles[*rank] = Some((*kind, *nth as u32));
    }
    let bundle = |rank: u32| bundles.get(rank as usize).copied().flatten();
    for talk in talks {
        let Some((kind, own)) = bundle(talk.bundle) else {
            continue;
        };
        let with = match &talk.with {
            TalkEnd::Bundle(other) => match bundle(*other) {
                Some((of, other)) if of == kind => TalkEnd::Bundle(other),
                _ => continue,
            },
            TalkEnd::Node(node) => TalkEnd::Node(node.clone()),
        };
        asks[kind].needs.demand.talks.push(Talk {
            bundle: own,
            with,
            weight: talk.weight,
        });
    }
    (asks, places)
}

/// The ranks that are placed with each other: those along a dimension, or all.
struct Neighbours {
    /// Set where those of a group lie on one node.
    lie_together: bool,
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
        Ok(Self {
            lie_together: together.is_some(),
            groups,
            of,
        })
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
