//! Recording of rows that ranks exchange piece by piece.

use std::sync::Arc;

use super::ranks::PassRanks;
use super::run::{Run, Taken};
use super::{Op, Tape, Var};
use crate::backend::{Backend, Store};

/// Pieces of rows that go to other ranks, and what comes of the pieces that are received.
///
/// A piece is `width` numbers that lie together in a row, such as a head. Pieces of an activation are numbered as they
/// lie in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// Numbers of a piece.
    pub width: usize,
    /// Number of pieces that go to each rank.
    pub sends: Vec<usize>,
    /// Pieces that are sent: those for rank 0, then those for rank 1, and so on. A piece may go to several. `None`:
    /// all, as they lie.
    pub sent: Option<Arc<[u32]>>,
    /// Number of pieces that come from each rank.
    pub receives: Vec<usize>,
    /// For each piece of the outcome its number among those that are received, which stand rank by rank. `None`: as
    /// they are received.
    pub placed: Option<Arc<[u32]>>,
}

impl Moves {
    fn numbers(&self, pieces: &[usize]) -> Vec<usize> {
        pieces.iter().map(|pieces| pieces * self.width).collect()
    }
}

impl<B: Backend> Tape<B> {
    /// Exchanges pieces of `x` with other ranks; `[rows, cols]` is the shape of the outcome. On the way back the
    /// gradient of a piece returns to where it came from, and is added up where it went to several.
    ///
    /// # Panics
    /// If the pieces are not those of `x` and of the outcome.
    pub fn exchange(
        &mut self,
        x: Var,
        moves: Moves,
        ranks: Arc<dyn PassRanks<B>>,
        [rows, cols]: [usize; 2],
    ) -> Var {
        let total = |pieces: &[usize]| pieces.iter().sum::<usize>();
        let lists = [&moves.sends, &moves.receives].map(Vec::len);
        assert_eq!(lists, [ranks.count(); 2], "a count for each rank");
        let (own, made) = (self.len(x) / moves.width, rows * cols / moves.width);
        let sent = moves.sent.as_ref().map_or(own, |sent| sent.len());
        assert_eq!(sent, total(&moves.sends), "the pieces that are sent");
        let received = total(&moves.receives);
        let placed = moves.placed.as_ref().map_or(received, |it| it.len());
        assert_eq!(placed, made, "the pieces of the outcome");
        self.read_by(x);
        let out = self.var(rows, cols);
        self.ops.push(Op::Exchange {
            x,
            moves,
            ranks,
            out,
        });
        out
    }
}

impl<B: Backend> Run<'_, B> {
    pub(super) fn exchange(&mut self, x: Var, moves: &Moves, ranks: &dyn PassRanks<B>, out: Var) {
        let (backend, width) = (self.backend, moves.width);
        let [sends, receives] = [&moves.sends, &moves.receives].map(|it| moves.numbers(it));
        let sent = moves.sent.as_ref().map(|sent| {
            let len = sent.len() * width;
            let mut pieces = backend.alloc(len);
            backend.gather(width, sent, self.value(x), B::view_mut(&mut pieces, 0..len));
            pieces
        });
        let (slot, mut dst) = self.take_value(out);
        let from = sent.as_ref().unwrap_or_else(|| self.value_buffer(x));
        match &moves.placed {
            None => ranks.exchange(backend, from, &sends, &mut dst, &receives),
            Some(placed) => {
                let len = receives.iter().sum();
                let mut received = backend.alloc(len);
                ranks.exchange(backend, from, &sends, &mut received, &receives);
                let made = B::view_mut(&mut dst, 0..placed.len() * width);
                backend.gather(width, placed, B::view(&received, 0..len), made);
            }
        }
        self.put_value(slot, dst);
    }

    pub(super) fn exchange_backward(
        &mut self,
        x: Var,
        moves: &Moves,
        ranks: &dyn PassRanks<B>,
        out: Var,
    ) {
        let (backend, width) = (self.backend, moves.width);
        let [sends, receives] = [&moves.sends, &moves.receives].map(|it| moves.numbers(it));
        let Some(mut dx) = self.take_grad(x) else {
            return;
        };
        let received = moves.placed.as_ref().map(|placed| {
            let len = receives.iter().sum();
            let mut received = backend.alloc(len);
            let dst = B::view_mut(&mut received, 0..len);
            backend.scatter_add(width, placed, self.grad(out), dst);
            received
        });
        let from = received.as_ref().unwrap_or_else(|| self.grad_buffer(out));
        let len = sends.iter().sum();
        let mut sent = backend.alloc(len);
        ranks.exchange(backend, from, &receives, &mut sent, &sends);
        let back = B::view(&sent, 0..len);
        match &moves.sent {
            Some(list) => add_pieces(backend, (width, list), back, &mut dx),
            None => add_rows(backend, back, dx.dst()),
        }
        self.put(Some(dx));
    }
}

/// Puts a gradient in its place, or adds it to what is there.
pub(super) fn add_rows<B: Backend>(
    backend: &B,
    rows: B::View<'_>,
    (dst, store): (B::ViewMut<'_>, Store),
) {
    match store {
        Store::Set => backend.copy(rows, dst),
        Store::Add => backend.axpy(1.0, rows, dst),
    }
}

/// Adds the gradients of pieces to that of the rows which they are of.
fn add_pieces<B: Backend>(
    backend: &B,
    (width, list): (usize, &[u32]),
    pieces: B::View<'_>,
    dx: &mut Taken<B>,
) {
    if let (dst, Store::Set) = dx.dst() {
        backend.fill(dst, 0.0);
    }
    backend.scatter_add(width, list, pieces, dx.dst().0);
}
