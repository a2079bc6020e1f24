//! Collectives among the members of a group: all-reduce and its kin, in shared memory.
//!
//! A group is *formed* for the present life of all its members: its home makes memory for them and a
//! [`Seat`] for each, which travels in a message. A member takes its seat and has a
//! [`Communicator`]. A seat is good for one life of one member, and the memory for one formation, so
//! who is left of an earlier generation cannot talk into a later one.

use std::fmt;
use std::time::Duration;

use futures::future::join_all;
use odeon_gpu::collective::{
    Algorithm, Collective, CollectiveError, Element, Failed, Membership, Reduce, Topology,
};
use odeon_shm::{Gang, GangName, GangOptions, JoinError, Member};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{Group, Rank};
use crate::actor::{Actor, Context};
use crate::clock::Clock;
use crate::current;
use crate::engine::Life;
use crate::failure::Down;
use crate::id::{ActorId, Incarnation, ProcessId};
use crate::shape::{self, Shape};

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
        let lives = self.lives().await?;
        // Every restart of any member makes a new one.
        let restarts: u64 = lives
            .iter()
            .map(|life| u64::from(life.incarnation) - 1)
            .sum();
        let gang = Gang::create(lives.len(), GangOptions::default())
            .map_err(|error| FormError::Memory(error.to_string()))?;
        let name = gang.name();
        let seats = lives.iter().zip(self.members()).enumerate();
        let seats = seats.map(|(rank, (life, member))| Seat {
            rank,
            generation: 1 + restarts,
            actor: member.id,
            incarnation: life.incarnation,
            gang: name,
        });
        Ok(Formation {
            seats: seats.collect(),
            gang,
        })
    }

    /// The present life of each member, once all have started.
    async fn lives(&self) -> Result<Vec<Life>, FormError> {
        let home = self
            .members()
            .first()
            .map_or(ProcessId(0), |member| member.id.home);
        let one_home = self.members().iter().all(|member| member.id.home == home);
        let engine = current::engine_for(home).filter(|engine| one_home && engine.process == home);
        let Some(engine) = engine else {
            return Err(FormError::NotHome);
        };
        let starts = join_all(
            self.members()
                .iter()
                .map(|member| engine.when_running(member.id)),
        );
        let Some(starts) = Clock::timeout(engine.limits.ask_timeout, starts).await else {
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
        let far = self.ranks_where(|id| engine.life_of(id).is_some_and(|life| !life.near));
        if !far.is_empty() {
            return Err(FormError::Elsewhere { ranks: far });
        }
        let lives: Option<Vec<Life>> = self
            .members()
            .iter()
            .map(|member| engine.life_of(member.id))
            .collect();
        lives.ok_or(FormError::NotHome)
    }

    fn ranks_where(&self, holds: impl Fn(ActorId) -> bool) -> Vec<Rank> {
        let members = self.mesh().ranks().zip(self.members());
        members
            .filter(|(_, member)| holds(member.id))
            .map(|(rank, _)| rank)
            .collect()
    }
}

/// A group that is formed for collectives. Keep it until all members have taken their seats.
#[derive(Debug)]
pub struct Formation {
    seats: Vec<Seat>,
    gang: Gang,
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

    /// Ranks that have not taken their seats yet.
    #[must_use]
    pub fn missing(&self) -> Vec<usize> {
        self.gang.missing()
    }
}

/// A member's place in the collectives of its group, for one life. Small; travels in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    rank: usize,
    generation: u64,
    actor: ActorId,
    incarnation: Incarnation,
    gang: GangName,
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

    /// How many ranks there are.
    #[must_use]
    pub const fn world(&self) -> usize {
        self.gang.world as usize
    }

    /// The generation of the group that it is for.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
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
            gang: self.gang.gang,
            topology: Topology::one_node(self.world()),
        };
        let member = Member::join(&self.gang, membership)?;
        Ok(Communicator(odeon_gpu::collective::Communicator::new(
            member,
        )))
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
        /// How long it was waited.
        waited: Duration,
    },
    /// A member is dead for good.
    #[error("{rank} is dead: {down}")]
    Dead {
        /// Which.
        rank: Rank,
        /// How it ended.
        down: Down,
    },
    /// These members run on other nodes, which share no memory with this one.
    #[error(
        "{} run on other nodes, and collectives of a group need all of its members on one: {}",
        ranks.len(), list(ranks)
    )]
    Elsewhere {
        /// In rank order.
        ranks: Vec<Rank>,
    },
    /// The system gives no shared memory.
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
        /// Who wanted to take it.
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
pub struct Communicator(odeon_gpu::collective::Communicator<Member>);

impl Communicator {
    /// The first failure, after which every call fails.
    #[must_use]
    pub fn broken(&self) -> Option<&Failed> {
        self.0.broken()
    }

    /// Always this algorithm, over messages. The same on every rank.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self(self.0.with_algorithm(algorithm))
    }

    /// Blocks this thread, and no other task.
    fn blocking<R>(
        &mut self,
        call: impl FnOnce(&mut odeon_gpu::collective::Communicator<Member>) -> R,
    ) -> R {
        let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
        match flavor {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| call(&mut self.0)),
            _ => call(&mut self.0),
        }
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
        self.0.membership()
    }

    fn set_deadline(&mut self, deadline: Duration) {
        self.0.set_deadline(deadline);
    }

    fn all_reduce<T: Element>(
        &mut self,
        data: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.all_reduce(data, reduce))
    }

    fn broadcast<T: Element>(
        &mut self,
        data: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.broadcast(data, root))
    }

    fn all_gather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.all_gather(input, output))
    }

    fn all_gather_v<T: Element>(
        &mut self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.all_gather_v(input, counts, output))
    }

    fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.reduce_scatter(input, output, reduce))
    }

    fn reduce_scatter_v<T: Element>(
        &mut self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.reduce_scatter_v(input, counts, output, reduce))
    }

    fn all_to_all<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.all_to_all(input, output))
    }

    fn all_to_all_v<T: Element>(
        &mut self,
        input: &[T],
        to: &[usize],
        output: &mut [T],
        from: &[usize],
    ) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.all_to_all_v(input, to, output, from))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.blocking(Collective::barrier)
    }

    fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.send(data, to))
    }

    fn receive<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<(), CollectiveError> {
        self.blocking(|comm| comm.receive(data, from))
    }
}
