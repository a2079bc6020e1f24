//! Recording of attention to the rows of other ranks, whose keys and values travel around a ring.

use std::mem;
use std::sync::Arc;

use super::ranks::PassRanks;
use super::run::Run;
use super::spread::room;
use super::{Op, Tape, Var};
use crate::backend::{AttentionShape, Backend};
use crate::score_blocks::ScoreBlocks;

/// The turns of a ring: what the queries of a rank see of the keys that are with it.
#[derive(Debug)]
pub(super) struct Ring<B: Backend> {
    shape: AttentionShape,
    turns: Arc<[Vec<ScoreBlocks>]>,
    ranks: Arc<dyn PassRanks<B>>,
}

impl<B: Backend> Tape<B> {
    /// Causal attention of this rank's rows `[queries | keys | values]` to the rows of all ranks (Ring Attention, Liu et
    /// al. 2023, arXiv [2310.01889](https://arxiv.org/abs/2310.01889)). Keys and values go from each rank to the next,
    /// turn by turn, and what they give is merged; on the way back their gradients go with them until they are home.
    /// Nothing else may read `qkv`.
    ///
    /// `turns` has the blocks of each turn. In the first the keys are this rank's own, and in each other one those of
    /// the rank before that of the turn before. Each rank has as many rows as any other.
    ///
    /// # Panics
    /// If there is not one turn a rank, or blocks have other rows.
    pub fn ring_attention(
        &mut self,
        qkv: Var,
        shape: AttentionShape,
        turns: Arc<[Vec<ScoreBlocks>]>,
        ranks: Arc<dyn PassRanks<B>>,
    ) -> Var {
        let (rows, cols) = self.shape(qkv);
        assert_eq!(cols, shape.qkv_cols(), "rows of queries, keys and values");
        assert_eq!(turns.len(), ranks.count(), "one turn a rank");
        turns.iter().flatten().for_each(|it| it.check(rows, rows));
        self.read_alone(qkv);
        let (out, lse) = (
            self.var(rows, shape.out_cols()),
            self.var(rows, shape.heads),
        );
        let ring = Ring {
            shape,
            turns,
            ranks,
        };
        self.ops.push(Op::Ring {
            qkv,
            ring,
            out,
            lse,
        });
        out
    }
}

impl<B: Backend> Ring<B> {
    /// Where the keys and values of so many rows lie among the pieces of these: their width, and their numbers.
    fn pieces(&self, rows: usize) -> (usize, Vec<u32>) {
        let (heads, kv_heads) = (self.shape.heads, 2 * self.shape.kv_heads);
        // The widest pieces of which both queries and keys with values are whole numbers.
        let width = greatest_common(heads, kv_heads);
        let (before, all) = (heads / width, (heads + kv_heads) / width);
        let of_row = |row: usize| (row * all + before..(row + 1) * all).map(|it| it as u32);
        let numbers = (0..rows).flat_map(of_row).collect();
        (width * self.shape.head_dim, numbers)
    }
}

fn greatest_common(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => greatest_common(b, a % b),
    }
}

/// Memory for what goes around a ring. Operations run one after the other, so one is enough for all.
#[derive(Debug)]
pub(super) struct Travelling<B: Backend> {
    kv: Passenger<B>,
    /// Gradients of keys and values that go with these.
    dkv: Passenger<B>,
    /// Those of this rank's own keys and values by its own queries, which stay.
    own: Passenger<B>,
}

impl<B: Backend> Default for Travelling<B> {
    fn default() -> Self {
        Self {
            kv: Passenger::default(),
            dkv: Passenger::default(),
            own: Passenger::default(),
        }
    }
}

/// Numbers at the begin of a buffer, and a buffer for those that come in their place.
#[derive(Debug)]
struct Passenger<B: Backend> {
    len: usize,
    here: B::Buffer,
    there: B::Buffer,
}

impl<B: Backend> Default for Passenger<B> {
    fn default() -> Self {
        Self {
            len: 0,
            here: B::Buffer::default(),
            there: B::Buffer::default(),
        }
    }
}

impl<B: Backend> Passenger<B> {
    /// Makes it so many numbers, which are anything.
    fn begin(&mut self, backend: &B, len: usize) {
        self.len = len;
        room(backend, &mut self.here, len);
    }

    fn zeros(&mut self, backend: &B, len: usize) {
        self.begin(backend, len);
        backend.fill(self.view_mut(), 0.0);
    }

    fn view(&self) -> B::View<'_> {
        B::view(&self.here, 0..self.len)
    }

    fn view_mut(&mut self) -> B::ViewMut<'_> {
        B::view_mut(&mut self.here, 0..self.len)
    }

    /// Goes to the next rank; as many numbers come from the one before.
    fn travel(&mut self, backend: &B, ranks: &dyn PassRanks<B>) {
        room(backend, &mut self.there, self.len);
        let (own, count) = (ranks.rank(), ranks.count());
        let at = |rank: usize| {
            let mut counts = vec![0; count];
            counts[rank % count] = self.len;
            counts
        };
        let (sends, receives) = (at(own + 1), at(own + count - 1));
        ranks.exchange(backend, &self.here, &sends, &mut self.there, &receives);
        mem::swap(&mut self.here, &mut self.there);
    }
}

impl<B: Backend> Run<'_, B> {
    pub(super) fn ring(&mut self, qkv: Var, ring: &Ring<B>, outs: [Var; 2]) {
        let (backend, shape) = (self.backend, ring.shape);
        let mut travelling = mem::take(&mut self.arena.travelling);
        let kv = &mut travelling.kv;
        let (width, pieces) = ring.pieces(self.tape.vars[qkv.0].rows);
        kv.begin(backend, pieces.len() * width);
        backend.gather(width, &pieces, self.value(qkv), kv.view_mut());
        let lens = outs.map(|it| self.tape.len(it));
        let [(out_slot, mut out), (lse_slot, mut lse)] = outs.map(|it| self.take_value(it));
        backend.fill(B::view_mut(&mut out, 0..lens[0]), 0.0);
        backend.fill(B::view_mut(&mut lse, 0..lens[1]), f32::NEG_INFINITY);
        for (turn, lists) in ring.turns.iter().enumerate() {
            if turn > 0 {
                kv.travel(backend, &*ring.ranks);
            }
            for blocks in lists {
                let out = B::view_mut(&mut out, 0..lens[0]);
                let lse = B::view_mut(&mut lse, 0..lens[1]);
                backend.block_attention(shape, blocks, self.value(qkv), kv.view(), out, lse);
            }
        }
        self.put_value(out_slot, out);
        self.put_value(lse_slot, lse);
        self.arena.travelling = travelling;
    }

    pub(super) fn ring_backward(&mut self, qkv: Var, ring: &Ring<B>, [out, lse]: [Var; 2]) {
        let (backend, shape) = (self.backend, ring.shape);
        let Some(mut dqkv) = self.take_grad(qkv) else {
            return;
        };
        // Nothing else reads the rows, so nothing is there yet.
        backend.fill(dqkv.dst().0, 0.0);
        let mut travelling = mem::take(&mut self.arena.travelling);
        let Travelling { kv, dkv, own } = &mut travelling;
        let (width, pieces) = ring.pieces(self.tape.vars[qkv.0].rows);
        kv.begin(backend, pieces.len() * width);
        backend.gather(width, &pieces, self.value(qkv), kv.view_mut());
        dkv.zeros(backend, kv.len);
        own.zeros(backend, kv.len);
        for (turn, lists) in ring.turns.iter().enumerate() {
            if turn > 0 {
                kv.travel(backend, &*ring.ranks);
            }
            // What the first turn gives is at home.
            if turn > 1 {
                dkv.travel(backend, &*ring.ranks);
            }
            let gradients = if turn == 0 { &mut *own } else { &mut *dkv };
            for blocks in lists {
                let [queries, made, sums] = [qkv, out, lse].map(|it| self.value(it));
                let (dout, dkv) = (self.grad(out), gradients.view_mut());
                let passed = [queries, kv.view(), made, sums];
                backend.block_attention_backward(shape, blocks, passed, dout, dqkv.dst().0, dkv);
            }
        }
        backend.scatter_add(width, &pieces, own.view(), dqkv.dst().0);
        if ring.turns.len() > 1 {
            dkv.travel(backend, &*ring.ranks);
            backend.scatter_add(width, &pieces, dkv.view(), dqkv.dst().0);
        }
        self.arena.travelling = travelling;
        self.put(Some(dqkv));
    }
}
