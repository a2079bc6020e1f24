//! Gathers and sums of shards, one behind the other in one order on all ranks: on a thread of their own beside a pass, or
//! where the pass runs.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender};

use odeon_gpu::{Backend, Layout, PassRanks};

use super::own_gradient::{GradientLook, ShardGuard};
use super::shard::{ModelShard, ShardCopies};

/// A set that is to be moved, with the memory for all of it.
pub(super) enum ShardMove<B: Backend> {
    /// Its shards come together.
    Gather(usize, B::Buffer, Option<Halves<B>>),
    /// Its gradients are added up, and go to their shards.
    Sum(usize, B::Buffer),
}

/// Memory for a set in bf16, two numbers in each.
#[derive(Debug)]
pub(super) struct Halves<B: Backend> {
    /// Of all of it.
    pub(super) all: B::Buffer,
    /// Of this rank's shard.
    pub(super) own: B::Buffer,
    /// Set where all of it is here.
    pub(super) is_here: bool,
}

/// A set that has been moved.
pub(super) struct Moved<B: Backend> {
    pub(super) moved: ShardMove<B>,
    pub(super) copies: ShardCopies,
    /// At a rank's own gradients of the set, where that is asked for.
    pub(super) look: Option<GradientLook>,
}

/// Carries moves out.
pub(super) struct Mover<'a, B: Backend> {
    pub(super) backend: &'a B,
    /// What this rank keeps.
    pub(super) params: &'a B::Buffer,
    pub(super) shard: &'a ModelShard,
    /// The ranks that keep each set, where there are others.
    pub(super) keepers: Vec<Option<&'a dyn PassRanks<B>>>,
    /// Of what this rank keeps; there in passes that go backward.
    pub(super) gradient: Option<&'a mut B::Buffer>,
    /// Names and flat places of all tensors.
    pub(super) layout: &'a Layout,
    /// Set where gradients are looked at before they are added up.
    pub(super) guard: Option<ShardGuard>,
}

impl<B: Backend> Mover<'_, B> {
    pub(super) fn carry_out(&mut self, mut to_move: ShardMove<B>) -> Moved<B> {
        let mut copies = ShardCopies::default();
        let mut look = None;
        match &mut to_move {
            ShardMove::Gather(set, all, None) => copies.gathers = self.gather(*set, all),
            ShardMove::Gather(set, all, Some(halves)) => {
                copies.gathers = self.gather_halves(*set, halves, all);
            }
            ShardMove::Sum(set, all) => {
                look = self.look(*set, all);
                copies.sums = self.sum(*set, all);
            }
        }
        Moved {
            moved: to_move,
            copies,
            look,
        }
    }

    fn gather(&self, set: usize, all: &mut B::Buffer) -> usize {
        let (backend, of) = (self.backend, &self.shard.sets[set]);
        let len = of.buffer.shard_len();
        let own = B::view(self.params, of.at..of.at + len);
        match self.keepers[set] {
            Some(ranks) => ranks.gather_shards(backend, own, len, all),
            None => {
                backend.copy(own, B::view_mut(all, 0..len));
                size_of::<f32>() * len
            }
        }
    }

    /// Gathers a set in bf16, unless it is here, and makes f32 of it, which operations read. Counts what is written in
    /// either format.
    fn gather_halves(&self, set: usize, halves: &mut Halves<B>, all: &mut B::Buffer) -> usize {
        let (backend, of) = (self.backend, &self.shard.sets[set]);
        let (len, words) = (of.buffer.shard_len(), of.buffer.shard_len() / 2);
        let whole = of.buffer.buffer_len();
        let mut copied = size_of::<f32>() * whole;
        if !halves.is_here {
            let kept = B::view(self.params, of.at..of.at + len);
            backend.narrow(kept, B::view_mut(&mut halves.own, 0..words));
            copied += size_of::<f32>() * words;
            let shard = B::view(&halves.own, 0..words);
            match self.keepers[set] {
                Some(ranks) => {
                    copied += ranks.gather_shards(backend, shard, words, &mut halves.all);
                }
                None => {
                    backend.copy(shard, B::view_mut(&mut halves.all, 0..words));
                    copied += size_of::<f32>() * words;
                }
            }
            halves.is_here = true;
        }
        let here = B::view(&halves.all, 0..whole / 2);
        backend.widen(here, B::view_mut(all, 0..whole));
        copied
    }

    /// Looks at this rank's own gradients of a set, after the fault of a drill.
    fn look(&mut self, set: usize, all: &mut B::Buffer) -> Option<GradientLook> {
        let guard = self.guard.as_mut()?;
        let tensors = self.shard.tensors_of(set, self.layout);
        if let Some(fault) = guard.drill
            && let Some((_, place)) = tensors.clone().max_by_key(|(_, place)| place.len())
        {
            fault.commit(self.backend, all, place);
            guard.drill = None;
        }
        Some(GradientLook::at(self.backend, all, tensors, guard.most))
    }

    fn sum(&mut self, set: usize, all: &mut B::Buffer) -> usize {
        let (backend, of) = (self.backend, &self.shard.sets[set]);
        let len = of.buffer.shard_len();
        let own = self.gradient.as_mut();
        let own = own.expect("a pass that goes backward has a gradient");
        let own = B::view_mut(own, of.at..of.at + len);
        match self.keepers[set] {
            Some(ranks) => ranks.reduce_shards(backend, all, len, own),
            None => {
                backend.axpy(1.0, B::view(all, 0..len), own);
                0
            }
        }
    }
}

/// Where moves are carried out.
pub(super) enum Moves<'a, B: Backend> {
    /// On a thread of their own.
    Beside {
        to_move: Sender<ShardMove<B>>,
        moved: Receiver<Moved<B>>,
    },
    /// Where they are waited for.
    Here {
        mover: Mover<'a, B>,
        to_move: VecDeque<ShardMove<B>>,
    },
}

impl<B: Backend> Moves<'_, B> {
    /// Has a set moved behind those before.
    pub(super) fn begin(&mut self, set: ShardMove<B>) {
        match self {
            Self::Beside { to_move, .. } => {
                to_move
                    .send(set)
                    .expect("its thread is there as long as the pass");
            }
            Self::Here { to_move, .. } => to_move.push_back(set),
        }
    }

    /// Waits for the first that was begun, which these ranks hear of.
    pub(super) fn next(&mut self, ranks: Option<&dyn PassRanks<B>>) -> Moved<B> {
        let mut done = None;
        let mut wait = || {
            done = Some(match self {
                Self::Beside { moved, .. } => moved.recv().expect("a move that was begun ends"),
                Self::Here { mover, to_move } => {
                    let first = to_move.pop_front().expect("a move that was begun");
                    mover.carry_out(first)
                }
            });
        };
        match ranks {
            Some(ranks) => ranks.wait(&mut wait),
            None => wait(),
        }
        done.expect("ranks wait until it is done")
    }
}
