//! One rank's way through a redistribution: counted and cut before the first step, then carried out over
//! communicators without a decision.

use std::borrow::Cow;
use std::collections::BTreeMap;

use odeon_collective::{Collective, CollectiveError, Element};

use crate::emulator::Emulator;
use crate::exchange::{self, Held, Piece, append, total};
use crate::redistribution::{Movement, Redistribution, RedistributionStep};
use crate::{Sharding, ShardingError};

/// The communicators of one rank, each for the ranks that differ from it along some dimensions of the
/// mesh alone. [`BTreeMap`] is one, by the names of the dimensions in the order of the mesh.
pub trait SubMeshes {
    /// A communicator of some of the ranks, in their order.
    type Communicator: Collective;

    /// The one along these dimensions, in the order of the mesh; `None` when there is none.
    fn along(&mut self, dims: &[String]) -> Option<&mut Self::Communicator>;
}

impl<C: Collective> SubMeshes for BTreeMap<Vec<String>, C> {
    type Communicator = C;

    fn along(&mut self, dims: &[String]) -> Option<&mut C> {
        self.get_mut(dims)
    }
}

/// The steps of one rank in a [`Redistribution`]. Made once, carried out in every step of a training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    tensor: String,
    /// Elements of the local part before.
    len: usize,
    legs: Vec<Leg>,
}

/// One step of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leg {
    dims: Vec<String>,
    /// The group, and this rank's place in it.
    ranks: Vec<usize>,
    position: usize,
    movement: Movement,
    /// From the local part to what is given.
    pack: Vec<Piece>,
    /// Elements for each rank of the group, and from each.
    to: Vec<usize>,
    from: Vec<usize>,
    /// From what is taken to the new local part.
    unpack: Vec<Piece>,
    /// Elements of the local part afterwards.
    len: usize,
}

impl Redistribution {
    /// The way of one rank.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`]: there is no such rank.
    pub fn route(&self, rank: usize) -> Result<Route, ShardingError> {
        let len = self.from().local(rank)?.len();
        let legs = self.steps().iter().map(|step| Leg::new(step, rank));
        Ok(Route {
            tensor: self.from().name().to_owned(),
            len,
            legs: legs.collect::<Result<_, _>>()?,
        })
    }
}

/// The maps of a group's ranks.
fn maps(sharding: &Sharding, ranks: &[usize]) -> Vec<Held> {
    let maps = ranks.iter().map(|rank| Held::new(&sharding.index(*rank)));
    maps.collect()
}

/// Moves the sides that these pieces have in a buffer so that they follow each other there, source after
/// source: the counts of each, and the pieces.
fn in_a_row(given: &[Vec<Piece>], side: fn(&mut Piece, usize)) -> (Vec<usize>, Vec<Piece>) {
    let (mut at, mut row) = (0, vec![]);
    for piece in given.iter().flatten() {
        let mut piece = *piece;
        side(&mut piece, at);
        at += piece.len;
        append(&mut row, piece);
    }
    (given.iter().map(|pieces| total(pieces)).collect(), row)
}

const fn packed(piece: &mut Piece, at: usize) {
    piece.to = at;
}

const fn unpacked(piece: &mut Piece, at: usize) {
    piece.from = at;
}

impl Leg {
    fn new(step: &RedistributionStep, rank: usize) -> Result<Self, ShardingError> {
        let names: Vec<&str> = step.dims.iter().map(|dim| &**dim).collect();
        let group = step.from.mesh().group(rank, &names);
        let ranks = group.map_err(|error| step.from.mesh_error(error))?;
        let position = ranks.iter().position(|other| *other == rank).unwrap_or(0);
        let (sources, targets) = (maps(&step.from, &ranks), maps(&step.to, &ranks));
        let (source, target) = (&sources[position], &targets[position]);
        let given: Vec<&Held> = sources.iter().collect();
        let apart = step.from.is_apart(&names);
        let to_rank =
            |to: usize| exchange::given_to(&given, &targets[to], apart, to).unwrap_or_default();
        let ((to, pack), (from, unpack)) = match step.movement {
            Movement::Slice => ((vec![], vec![]), (vec![], source.shared(target))),
            Movement::AllReduce(_) => ((vec![], vec![]), (vec![], vec![])),
            Movement::AllGather => {
                let all =
                    exchange::given(&given, target, apart, 0..ranks.len()).unwrap_or_default();
                let own = in_a_row(&all[position..=position], packed);
                (own, in_a_row(&all, unpacked))
            }
            Movement::ReduceScatter(_) => {
                let parts: Vec<Vec<Piece>> =
                    targets.iter().map(|target| source.shared(target)).collect();
                (in_a_row(&parts, packed), (vec![], vec![]))
            }
            Movement::AllToAll => {
                let mine: Vec<Vec<Piece>> = (0..ranks.len())
                    .map(|to| to_rank(to).swap_remove(position))
                    .collect();
                (
                    in_a_row(&mine, packed),
                    in_a_row(&to_rank(position), unpacked),
                )
            }
        };
        Ok(Self {
            dims: step.dims.clone(),
            ranks,
            position,
            movement: step.movement,
            pack,
            to,
            from,
            unpack,
            len: target.count(),
        })
    }

    /// The new local part.
    fn carry_out<T: Element, S>(
        &self,
        tensor: &str,
        local: Cow<'_, [T]>,
        meshes: &mut S,
    ) -> Result<Vec<T>, ShardingError>
    where
        S: SubMeshes,
        S::Communicator: Collective<Buffer<T> = [T]>,
    {
        let failed = |error: CollectiveError| ShardingError::Collective {
            tensor: tensor.to_owned(),
            dims: self.dims.clone(),
            error: Box::new(error),
        };
        let taken = self.from.iter().sum();
        match self.movement {
            Movement::Slice => Ok(self.unpacked(local)),
            Movement::AllReduce(reduce) => {
                let communicator = self.communicator(tensor, meshes)?;
                let mut data = local.into_owned();
                communicator
                    .all_reduce::<T>(&mut data, reduce)
                    .map_err(failed)?;
                Ok(data)
            }
            Movement::AllGather => {
                let communicator = self.communicator(tensor, meshes)?;
                let given = self.packed(local);
                let mut all = vec![T::default(); taken];
                let done = communicator.all_gather_v::<T>(&given, &self.from, &mut all);
                done.map_err(failed)?;
                Ok(self.unpacked(Cow::Owned(all)))
            }
            Movement::ReduceScatter(reduce) => {
                let communicator = self.communicator(tensor, meshes)?;
                let given = self.packed(local);
                let mut own = vec![T::default(); self.len];
                let done = communicator.reduce_scatter_v::<T>(&given, &self.to, &mut own, reduce);
                done.map_err(failed)?;
                Ok(own)
            }
            Movement::AllToAll => {
                let communicator = self.communicator(tensor, meshes)?;
                let given = self.packed(local);
                let mut all = vec![T::default(); taken];
                let done = communicator.all_to_all_v::<T>(&given, &self.to, &mut all, &self.from);
                done.map_err(failed)?;
                Ok(self.unpacked(Cow::Owned(all)))
            }
        }
    }

    /// The elements that are given, those for each rank behind those for the one before it.
    fn packed<'a, T: Element>(&self, local: Cow<'a, [T]>) -> Cow<'a, [T]> {
        copied(local, &self.pack, self.to.iter().sum())
    }

    /// The new local part, of the elements that were taken.
    fn unpacked<T: Element>(&self, taken: Cow<'_, [T]>) -> Vec<T> {
        copied(taken, &self.unpack, self.len).into_owned()
    }

    /// The communicator of this rank's group, in which it must have its place.
    fn communicator<'a, S: SubMeshes>(
        &self,
        tensor: &str,
        meshes: &'a mut S,
    ) -> Result<&'a mut S::Communicator, ShardingError> {
        let Some(communicator) = meshes.along(&self.dims) else {
            return Err(ShardingError::NoCommunicator {
                tensor: tensor.to_owned(),
                dims: self.dims.clone(),
                ranks: self.ranks.clone(),
            });
        };
        let membership = communicator.membership();
        let (rank, world) = (membership.rank, membership.world());
        if rank == self.position && world == self.ranks.len() {
            return Ok(communicator);
        }
        Err(ShardingError::WrongCommunicator {
            tensor: tensor.to_owned(),
            dims: self.dims.clone(),
            position: self.position,
            size: self.ranks.len(),
            rank,
            world,
        })
    }
}

/// A buffer of this length with these pieces of another; that one itself, when it is the same.
fn copied<'a, T: Element>(from: Cow<'a, [T]>, pieces: &[Piece], len: usize) -> Cow<'a, [T]> {
    let whole = Piece {
        from: 0,
        to: 0,
        len,
    };
    if from.len() == len && (len == 0 || pieces == [whole]) {
        return from;
    }
    let mut into = vec![T::default(); len];
    for Piece { from: at, to, len } in pieces {
        into[*to..to + len].copy_from_slice(&from[*at..at + len]);
    }
    Cow::Owned(into)
}

impl Redistribution {
    /// The new local parts of all ranks, from theirs before, to the bit as real ranks have them whose
    /// communicators `emulator` repeats for each group.
    ///
    /// # Errors
    /// [`ShardingError::Length`] of the first rank whose part does not fit.
    ///
    /// # Panics
    /// There is not one part for each rank of the mesh, or an emulator is not one of its group.
    pub fn emulated(
        &self,
        locals: &[Vec<f32>],
        emulator: impl Fn(&[usize]) -> Emulator,
    ) -> Result<Vec<Vec<f32>>, ShardingError> {
        let mesh = self.from().mesh();
        assert_eq!(locals.len(), mesh.len(), "one part for each rank");
        let routes = (0..mesh.len()).map(|rank| self.route(rank));
        let routes: Vec<Route> = routes.collect::<Result<_, _>>()?;
        for (route, local) in routes.iter().zip(locals) {
            route.check(local)?;
        }
        let mut held = locals.to_vec();
        for (nth, step) in self.steps().iter().enumerate() {
            let names: Vec<&str> = step.dims.iter().map(|dim| &**dim).collect();
            for group in mesh.groups(&names) {
                let legs: Vec<&Leg> = group.iter().map(|rank| &routes[*rank].legs[nth]).collect();
                let locals: Vec<&[f32]> = group.iter().map(|rank| &*held[*rank]).collect();
                let after = emulated_leg(&legs, &locals, || emulator(&group));
                for (rank, after) in group.iter().zip(after) {
                    held[*rank] = after;
                }
            }
        }
        Ok(held)
    }
}

/// One step of all ranks of a group.
fn emulated_leg(
    legs: &[&Leg],
    locals: &[&[f32]],
    emulator: impl Fn() -> Emulator,
) -> Vec<Vec<f32>> {
    let pairs = legs.iter().zip(locals);
    let given = || -> Vec<Vec<f32>> {
        let packed = pairs
            .clone()
            .map(|(leg, local)| leg.packed(Cow::Borrowed(*local)));
        packed.map(Cow::into_owned).collect()
    };
    let taken = match legs[0].movement {
        Movement::Slice => locals.iter().map(|local| local.to_vec()).collect(),
        Movement::AllReduce(reduce) => {
            let data: Vec<Vec<f32>> = locals.iter().map(|local| local.to_vec()).collect();
            return emulator().all_reduce(&data, reduce);
        }
        Movement::ReduceScatter(reduce) => {
            return emulator().reduce_scatter(&given(), &legs[0].to, reduce);
        }
        Movement::AllGather => emulator().all_gather(&given()),
        Movement::AllToAll => {
            let counts: Vec<Vec<usize>> = legs.iter().map(|leg| leg.to.clone()).collect();
            emulator().all_to_all(&given(), &counts)
        }
    };
    let unpacked = legs.iter().zip(taken);
    unpacked
        .map(|(leg, taken)| leg.unpacked(Cow::Owned(taken)))
        .collect()
}

impl Route {
    fn check<T>(&self, local: &[T]) -> Result<(), ShardingError> {
        if local.len() == self.len {
            return Ok(());
        }
        Err(ShardingError::Length {
            tensor: self.tensor.clone(),
            has: local.len(),
            needs: self.len,
        })
    }

    /// Carries the steps out on this rank, while all other ranks of the mesh do theirs: the new local
    /// part. A step that sends nothing needs no communicator.
    ///
    /// # Errors
    /// [`ShardingError::Length`], [`ShardingError::NoCommunicator`] and
    /// [`ShardingError::WrongCommunicator`], before this rank moves anything in the step that lacks it;
    /// [`ShardingError::Collective`].
    pub fn carry_out<T: Element, S>(
        &self,
        local: &[T],
        meshes: &mut S,
    ) -> Result<Vec<T>, ShardingError>
    where
        S: SubMeshes,
        S::Communicator: Collective<Buffer<T> = [T]>,
    {
        self.check(local)?;
        let mut held = Cow::Borrowed(local);
        for leg in &self.legs {
            held = Cow::Owned(leg.carry_out(&self.tensor, held, meshes)?);
        }
        Ok(held.into_owned())
    }

    /// The act, the place in the group and the counts to and from its ranks, of each step.
    #[cfg(test)]
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (Movement, usize, &[usize], &[usize])> {
        let legs = self.legs.iter();
        legs.map(|leg| (leg.movement, leg.position, &*leg.to, &*leg.from))
    }
}
