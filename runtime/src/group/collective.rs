//! Collectives among the members of a group: all-reduce and its siblings, in shared memory where members
//! are on one node, and over the links between nodes.
//!
//! A group is *formed* for the present life of all its members: the nodes make memory for those that
//! they have, and the home a [`Seat`] for each, which travels in a message. A member takes its seat
//! and has a [`Communicator`]. A seat is good for one life of one member, and the memory for one
//! formation, so who is left of an earlier generation cannot talk into a later one.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use odeon_collective::{
    Algorithm, Collective, CollectiveError, Element, Failed, FlowLabel, FlowMember, FlowPlace,
    Membership, Reduce, Topology, Transport,
};
use odeon_shm::{Gang, GangName, JoinError, Member};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{Group, Rank};
use crate::actor::engine::{Engine, Life};
use crate::actor::handler::{Actor, Context};
use crate::actor::task_context;
use crate::actor::telemetry;
use crate::base::clock::{Clock, Timestamp};
use crate::base::failure::Down;
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::shape::{self, Shape};
use crate::base::trace::{SpanContext, SpanKind};
use crate::net::service::Service;
use crate::node::gang::protocol::{Domains, GangMemory, GangMemoryRequest};
use crate::node::gang::{self, Ends};

impl<A> Group<A> {
    /// Forms the group for collectives: makes a seat for the present life of each member, which all
    /// get in a message of yours, `group.scatter(formation.seats().map(Train))` say, and take in
    /// their handlers by [`Seat::take`]. Waits for members that are being started, also again, up to
    /// [`Limits::ask_timeout`](crate::Limits).
    ///
    /// When a member has died, form the group again: the others' communicators of before are of no
    /// use any more.
    ///
    /// # Errors
    /// [`FormError`]; nothing was formed.
    pub async fn form(&self) -> Result<Formation, FormError> {
        let engine = self.home()?;
        let until = Clock::now().after(engine.limits.ask_timeout);
        loop {
            match self.form_at_once(&engine, until).await {
                // News of an end may still be on the way to here; another life follows.
                Err(FormError::NotRunning { .. }) if Clock::now() < until => {
                    Clock::sleep(engine.limits.sweep_interval).await;
                }
                formed => return formed,
            }
        }
    }

    /// Forms the group with the lives of this moment.
    async fn form_at_once(
        &self,
        engine: &Arc<Engine>,
        until: Timestamp,
    ) -> Result<Formation, FormError> {
        let lives = self.lives(engine, until).await?;
        let places = self.places(engine, &lives, until).await?;
        // Every restart of any member makes a new one.
        let restarts: u64 = lives
            .iter()
            .map(|life| u64::from(life.incarnation) - 1)
            .sum();
        let mut formation = Formation {
            seats: vec![],
            here: None,
            elsewhere: vec![],
            gang: crate::base::random::number(),
            engine: Arc::clone(engine),
        };
        let mut memories = HashMap::new();
        for (rank, place) in self.mesh().ranks().zip(&places) {
            if let Entry::Vacant(free) = memories.entry(place.node) {
                let there = places.iter().filter(|other| other.node == place.node);
                let memory = formation.memory(rank, place.node, there.count(), until);
                free.insert(memory.await?);
            }
        }
        let dims = self.mesh().dims().iter().map(|dim| &*dim.name);
        let label = FlowLabel::new(&dims.collect::<Vec<_>>().join("-"));
        let seats = lives.iter().zip(self.members()).zip(&places).enumerate();
        formation.seats = seats
            .map(|(rank, ((life, member), place))| Seat {
                rank,
                generation: 1 + restarts,
                actor: member.id,
                incarnation: life.incarnation,
                gang: formation.gang,
                label,
                memory: memories[&place.node],
                places: places.clone(),
            })
            .collect();
        Ok(formation)
    }

    /// The engine that keeps the rows of all members.
    fn home(&self) -> Result<Arc<Engine>, FormError> {
        let home = self
            .members()
            .first()
            .map_or(ProcessId(0), |member| member.id.home);
        let one_home = self.members().iter().all(|member| member.id.home == home);
        let engine =
            task_context::engine_for(home).filter(|engine| one_home && engine.process == home);
        engine.ok_or(FormError::NotHome)
    }

    /// The present life of each member, once all have started.
    async fn lives(&self, engine: &Arc<Engine>, until: Timestamp) -> Result<Vec<Life>, FormError> {
        let starts = join_all(
            self.members()
                .iter()
                .map(|member| engine.when_running(member.id)),
        );
        let patience = until.left(Clock::now());
        let Some(starts) = Clock::timeout(patience, starts).await else {
            return Err(FormError::NotRunning {
                ranks: self.ranks_where(|id| !engine.life_of(id).is_some_and(|life| life.running)),
                waited: engine.limits.ask_timeout,
            });
        };
        for (rank, start) in self.mesh().ranks().zip(starts) {
            match start {
                Ok(Ok(())) => {}
                Ok(Err(down)) => return Err(FormError::Dead { rank, down }),
                Err(_closed) => return Err(FormError::NotHome),
            }
        }
        let lives: Option<Vec<Life>> = self
            .members()
            .iter()
            .map(|member| engine.life_of(member.id))
            .collect();
        lives.ok_or(FormError::NotHome)
    }

    /// Where each member runs.
    async fn places(
        &self,
        engine: &Arc<Engine>,
        lives: &[Life],
        until: Timestamp,
    ) -> Result<Vec<Place>, FormError> {
        let ranked = || {
            self.mesh()
                .ranks()
                .zip(lives.iter().map(|life| life.process))
        };
        let not_running = |rank: Rank| FormError::NotRunning {
            ranks: vec![rank],
            waited: engine.limits.ask_timeout,
        };
        let processes: HashSet<ProcessId> = ranked().filter_map(|(_, process)| process).collect();
        let others = processes
            .into_iter()
            .filter(|other| *other != engine.process);
        let nodes = join_all(others.map(async |process| {
            let node = ask::<Domains>(engine, process, &(), until).await?;
            Some((process, node))
        }));
        let mut nodes: HashMap<_, _> = nodes.await.into_iter().flatten().collect();
        nodes.insert(engine.process, engine.domain());
        ranked()
            .map(|(rank, process)| {
                let place = process.and_then(|process| {
                    let node = *nodes.get(&process)?;
                    Some(Place { process, node })
                });
                place.ok_or_else(|| not_running(rank))
            })
            .collect()
    }

    fn ranks_where(&self, holds: impl Fn(ActorId) -> bool) -> Vec<Rank> {
        let members = self.mesh().ranks().zip(self.members());
        members
            .filter(|(_, member)| holds(member.id))
            .map(|(rank, _)| rank)
            .collect()
    }
}

/// One question of a formation.
async fn ask<S: Service>(
    engine: &Engine,
    process: ProcessId,
    request: &S::Request,
    until: Timestamp,
) -> Option<S::Answer> {
    let patience = until.left(Clock::now());
    engine.request::<S>(process, request, Some(patience)).await
}

/// Where a member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    process: ProcessId,
    node: ProcessId,
}

/// A group that is formed for collectives. Keep it until all members have taken their seats.
#[derive(Debug)]
pub struct Formation {
    seats: Vec<Seat>,
    /// The memory of this node's members.
    here: Option<Gang>,
    /// Nodes that keep the memory of theirs.
    elsewhere: Vec<ProcessId>,
    gang: u64,
    engine: Arc<Engine>,
}

impl Formation {
    /// The seats in rank order, to be sent to the members.
    pub fn seats(&self) -> impl ExactSizeIterator<Item = Seat> + use<> {
        self.seats.clone().into_iter()
    }

    /// Grows with every restart of a member.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.seats.first().map_or(1, |seat| seat.generation)
    }

    /// Memory for the members of a node, of which `rank` is one.
    async fn memory(
        &mut self,
        rank: Rank,
        node: ProcessId,
        ranks: usize,
        until: Timestamp,
    ) -> Result<GangName, FormError> {
        if node == self.engine.domain() {
            let memory = gang::memory(ranks).map_err(FormError::Memory)?;
            return Ok(self.here.insert(memory).name());
        }
        self.elsewhere.push(node);
        let keep = GangMemoryRequest::Keep {
            gang: self.gang,
            ranks: ranks as u32,
        };
        match ask::<GangMemory>(&self.engine, node, &keep, until).await {
            Some(memory) => memory.map_err(FormError::Memory),
            None => Err(FormError::NotRunning {
                ranks: vec![rank],
                waited: self.engine.limits.ask_timeout,
            }),
        }
    }
}

impl Drop for Formation {
    fn drop(&mut self) {
        for node in &self.elsewhere {
            let forget = GangMemoryRequest::Forget(self.gang);
            self.engine.tell::<GangMemory>(*node, &forget);
        }
    }
}

/// A member's place in the collectives of its group, for one life. Travels in messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    rank: usize,
    generation: u64,
    actor: ActorId,
    incarnation: Incarnation,
    gang: u64,
    /// Of the dimensions along which the group lies.
    label: FlowLabel,
    /// Of the node that the member runs on.
    memory: GangName,
    /// Of all ranks.
    places: Vec<Place>,
}

impl Shape for Seat {
    const SHAPE: u64 = shape::name("odeon.Seat");
}

impl Seat {
    /// The rank that it is for.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub const fn world(&self) -> usize {
        self.places.len()
    }

    /// The generation of the group that it is for.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Which ranks share a node.
    fn topology(&self) -> Topology {
        let first = |place: &Place| {
            self.places
                .iter()
                .position(|other| other.node == place.node)
        };
        Topology::new(self.places.iter().filter_map(first).collect())
    }

    /// Takes the seat, once. Does not wait for the others; the first call does.
    ///
    /// # Errors
    /// [`SeatError`]; the seat is as before.
    pub fn take<A: Actor>(&self, cx: &Context<A>) -> Result<Communicator, SeatError> {
        if cx.me().id != self.actor {
            return Err(SeatError::NotYours {
                seat: self.actor,
                actor: cx.me().id,
            });
        }
        if cx.incarnation() != self.incarnation {
            return Err(SeatError::Stale {
                rank: self.rank,
                generation: self.generation,
                seat: self.incarnation,
                incarnation: cx.incarnation(),
            });
        }
        let membership = Membership {
            rank: self.rank,
            generation: self.generation,
            gang: self.gang,
            topology: self.topology(),
        };
        let member = Member::join(&self.memory, membership)?;
        let processes: Vec<ProcessId> = self.places.iter().map(|place| place.process).collect();
        let ends = Ends::new(cx.engine(), member, &processes);
        let ranks = odeon_collective::Communicator::new(ends);
        let place = FlowPlace {
            member: FlowMember {
                home: self.actor.home.0,
                serial: self.actor.serial,
            },
            group: self.gang,
            label: self.label,
            rank: self.rank as u32,
            world: self.world() as u32,
        };
        Ok(Communicator {
            ranks: match cx.engine().flow_log().and_then(|log| log.writer(place)) {
                Some(writer) => ranks.with_flows(writer),
                None => ranks,
            },
            spans_from: Duration::ZERO,
        })
    }
}

/// Why a group cannot do collectives. Nothing was formed.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FormError {
    /// The members were not spawned by this process, which therefore does not know their lives. Form
    /// the group where it was spawned, and send the seats.
    #[error(
        "a group is formed in the process that spawned all of its members, and this is another"
    )]
    NotHome,
    /// These members do not run, or not again, after this time.
    #[error("after {waited:?} {} of the group's members do not run: {}", ranks.len(), list(ranks))]
    NotRunning {
        /// In rank order.
        ranks: Vec<Rank>,
        /// The time that was waited.
        waited: Duration,
    },
    /// A member is dead for good.
    #[error("{rank} is dead: {down}")]
    Dead {
        /// Which.
        rank: Rank,
        /// Its end.
        down: Down,
    },
    /// A node gives no shared memory.
    #[error("no memory for collectives: {0}")]
    Memory(String),
}

fn list(ranks: &[Rank]) -> String {
    let texts: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Why a seat was not taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SeatError {
    /// The seat is of another life of this member. Ask for the group to be formed again.
    #[error(
        "stale seat: rank {rank} of generation {generation} was life {seat} of this actor, \
         and this is life {incarnation}"
    )]
    Stale {
        /// The seat's rank.
        rank: usize,
        /// The seat's generation.
        generation: u64,
        /// The life that it was made for.
        seat: Incarnation,
        /// The present one.
        incarnation: Incarnation,
    },
    /// The seat is another actor's.
    #[error("the seat of {seat} was given to {actor}")]
    NotYours {
        /// Whose it is.
        seat: ActorId,
        /// The actor that wanted to take it.
        actor: ActorId,
    },
    /// The memory is gone, since the [`Formation`] was dropped too early or its process has ended;
    /// or the seat is taken.
    #[error("no seat: {0}")]
    Join(#[from] JoinError),
}

/// A member's end of its group's collectives: what [`Collective`] says, and what keeps a runtime
/// alive while calls block. A call of a handler hands the other tasks of its thread to another one;
/// in a runtime with one thread only, where there is no other, members of one process cannot wait
/// for each other.
///
/// When it is dropped, the others lose this rank.
pub struct Communicator {
    ranks: odeon_collective::Communicator<Ends>,
    /// Spans of shorter calls are not kept.
    spans_from: Duration,
}

impl Communicator {
    /// The first failure, after which every call fails.
    #[must_use]
    pub fn broken(&self) -> Option<&Failed> {
        self.ranks.broken()
    }

    /// Always this algorithm, over messages. The same on every rank.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self {
            ranks: self.ranks.with_algorithm(algorithm),
            ..self
        }
    }

    /// Keeps spans of calls that last as long as this, or fail. For those that are called many times a step, whose
    /// spans would take the place of all others.
    #[must_use]
    pub fn with_spans_from(self, shortest: Duration) -> Self {
        Self {
            spans_from: shortest,
            ..self
        }
    }

    /// The communicator below, for back-ends of one's own that are formed over one, such as that of
    /// NCCL between the cards of all members: `Nccl::form(communicator.into_inner(), ..)`. Its calls
    /// block their thread, and no other is given the tasks of that.
    #[must_use]
    pub fn into_inner(self) -> odeon_collective::Communicator<impl Transport + use<>> {
        self.ranks
    }

    fn blocking(
        &mut self,
        name: &'static str,
        bytes: usize,
        call: impl FnOnce(&mut odeon_collective::Communicator<Ends>) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let membership = self.membership();
        let labels = [
            ("bytes", bytes),
            ("rank", membership.rank),
            ("world", membership.world()),
        ];
        let labels = labels.map(|(name, value)| (name.into(), value.into()));
        let span = telemetry::covering(
            SpanKind::Collective,
            name,
            labels.into(),
            SpanContext::current(),
        );
        let span = span.kept_from(self.spans_from);
        let outcome = blocking(|| call(&mut self.ranks));
        match &outcome {
            Ok(()) => span.end(),
            Err(_) => span.fail(),
        }
        outcome
    }
}

/// Blocks this thread, and no other task.
fn blocking<R>(call: impl FnOnce() -> R) -> R {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(call),
        _ => call(),
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Communicator")
            .field(self.membership())
            .finish()
    }
}

impl Collective for Communicator {
    type Buffer<T: Element> = [T];

    fn membership(&self) -> &Membership {
        self.ranks.membership()
    }

    fn set_deadline(&mut self, deadline: Duration) {
        self.ranks.set_deadline(deadline);
    }

    fn all_reduce<T: Element>(
        &mut self,
        data: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.blocking("all_reduce", size_of_val(data), |comm| {
            comm.all_reduce(data, reduce)
        })
    }

    fn broadcast<T: Element>(
        &mut self,
        data: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        self.blocking("broadcast", size_of_val(data), |comm| {
            comm.broadcast(data, root)
        })
    }

    fn all_gather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.blocking("all_gather", size_of_val(input), |comm| {
            comm.all_gather(input, output)
        })
    }

    fn all_gather_v<T: Element>(
        &mut self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.blocking("all_gather_v", size_of_val(input), |comm| {
            comm.all_gather_v(input, counts, output)
        })
    }

    fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.blocking("reduce_scatter", size_of_val(input), |comm| {
            comm.reduce_scatter(input, output, reduce)
        })
    }

    fn reduce_scatter_v<T: Element>(
        &mut self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.blocking("reduce_scatter_v", size_of_val(input), |comm| {
            comm.reduce_scatter_v(input, counts, output, reduce)
        })
    }

    fn all_to_all<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.blocking("all_to_all", size_of_val(input), |comm| {
            comm.all_to_all(input, output)
        })
    }

    fn all_to_all_v<T: Element>(
        &mut self,
        input: &[T],
        to: &[usize],
        output: &mut [T],
        from: &[usize],
    ) -> Result<(), CollectiveError> {
        self.blocking("all_to_all_v", size_of_val(input), |comm| {
            comm.all_to_all_v(input, to, output, from)
        })
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.blocking("barrier", 0, Collective::barrier)
    }

    fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<(), CollectiveError> {
        self.blocking("send", size_of_val(data), |comm| comm.send(data, to))
    }

    fn receive<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<(), CollectiveError> {
        self.blocking("receive", size_of_val(data), |comm| {
            comm.receive(data, from)
        })
    }
}
