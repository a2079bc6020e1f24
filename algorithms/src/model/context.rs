//! Rows of sequences that are shared among ranks (context parallelism), and attention over all of them.
//!
//! Each rank has as many rows of a batch as any other, and computes all that is row by row for these. Attention is of
//! one of two kinds.
//!
//! *Ulysses* (DeepSpeed, arXiv [2309.14509](https://arxiv.org/abs/2309.14509)) exchanges rows for heads. Before attention
//! a rank sends each other the heads that are that one's, and has all rows of its own; behind it, the other way round:
//!
//! ```text
//!              rank 0      rank 1                          rank 0      rank 1
//!   rows 0-3   h0 h1                      rows 0-3         h0          h1
//!   rows 4-7               h0 h1    ──>   rows 4-7         h0          h1
//! ```
//!
//! *Ring* (arXiv [2310.01889](https://arxiv.org/abs/2310.01889)) keeps queries where they are, and has keys and values go
//! from each rank to the next. A row sees those before it, so ranks with the last rows would have the most to do. So
//! rows are cut into two parts a rank, which are dealt out from both ends (Llama 3, arXiv
//! [2407.21783](https://arxiv.org/abs/2407.21783), section 3.3.2). Each rank has as many pairs of a row with one that it
//! sees as any other, in each turn:
//!
//! ```text
//!   rows  0-1  2-3  4-5  6-7            rank 0   rank 1
//!   rank   0    1    1    0     turn 0  own      own         queries of both with keys of
//!                               turn 1  rank 1   rank 0
//! ```

use std::sync::Arc;

use odeon_gpu::{AttentionShape, Backend, Moves, PassRanks, RowSpans, ScoreBlocks, Tape, Var};

use super::rank::{ContextKind, RankOf};

impl ContextKind {
    /// Numbers of each of its rows that a rank sends to others for attention in a layer: forward, and backward. Heads
    /// are those of this rank, where it has a [part](super::ModelConfig::part) of them.
    #[must_use]
    pub fn sent(self, shape: AttentionShape, ranks: usize) -> [usize; 2] {
        let others = ranks - 1;
        match self {
            Self::Ulysses => {
                let part = part_of(shape, ranks);
                [(part.qkv_cols() + part.out_cols()) * others; 2]
            }
            // Backward keys and values go around again, and their gradients with them.
            Self::Ring => [1, 2].map(|times| times * shape.kv_cols() * others),
        }
    }
}

/// Attention of the layers of a pass over rows that ranks share.
pub(super) struct ContextAttention<'a, B: Backend> {
    /// Spans of all rows.
    spans: &'a RowSpans,
    ranks: &'a Arc<dyn PassRanks<B>>,
    /// What rows of this rank see in each turn of a ring.
    turns: Option<Arc<[Vec<ScoreBlocks>]>>,
}

impl<'a, B: Backend> ContextAttention<'a, B> {
    /// That of this rank's rows of spans.
    pub(super) fn of(
        spans: &'a RowSpans,
        kind: ContextKind,
        ranks: &'a Arc<dyn PassRanks<B>>,
    ) -> Self {
        let own = RankOf::new(ranks.rank(), ranks.count());
        let turns = || turns(spans, own).collect();
        Self {
            spans,
            ranks,
            turns: (kind == ContextKind::Ring).then(turns),
        }
    }

    /// Records it over the rows of all ranks, of which `qkv` has those of this one.
    ///
    /// # Panics
    /// If heads cannot be shared ([`check_context`](super::ModelConfig::check_context)), or there is not the same number
    /// of rows on each rank.
    pub(super) fn record(&self, tape: &mut Tape<B>, qkv: Var, shape: AttentionShape) -> Var {
        let (rows, all) = (tape.shape(qkv).0, self.spans.rows());
        let ranks = self.ranks.count();
        assert_eq!(rows * ranks, all, "as many rows on each rank");
        if let Some(turns) = &self.turns {
            return tape.ring_attention(qkv, shape, Arc::clone(turns), Arc::clone(self.ranks));
        }
        let part = part_of(shape, ranks);
        let (to_heads, to_rows) = (
            to_heads(shape, part, rows, ranks),
            to_rows(part, rows, ranks),
        );
        let among = || Arc::clone(self.ranks);
        let qkv = tape.exchange(qkv, to_heads, among(), [all, part.qkv_cols()]);
        let heads = tape.attention(qkv, part, self.spans.clone());
        tape.exchange(heads, to_rows, among(), [rows, shape.out_cols()])
    }
}

/// The blocks of each turn of a ring: a rank has its own keys first, and then always those of the rank before that of
/// the turn before.
fn turns(spans: &RowSpans, own: RankOf) -> impl Iterator<Item = Vec<ScoreBlocks>> {
    let RankOf { rank, ranks } = own;
    let runs = move |rank| ContextKind::Ring.runs(RankOf::new(rank, ranks), spans.rows());
    (0..ranks).map(move |turn| {
        let with = (rank + ranks - turn) % ranks;
        ScoreBlocks::between(spans, &runs(rank), &runs(with))
    })
}

/// The heads of a rank.
fn part_of(shape: AttentionShape, ranks: usize) -> AttentionShape {
    AttentionShape {
        heads: shape.heads / ranks,
        kv_heads: (shape.kv_heads / ranks).max(1),
        ..shape
    }
}

/// The exchange of some rows of all heads `[queries | keys | values]` for all rows of some heads.
fn to_heads(shape: AttentionShape, part: AttentionShape, rows: usize, ranks: usize) -> Moves {
    let (heads, kv_heads) = (shape.heads, shape.kv_heads);
    let of_row = heads + 2 * kv_heads;
    let to = |rank: usize| {
        let queries = rank * part.heads;
        let keys = heads + rank * kv_heads / ranks;
        let own = [
            (queries, part.heads),
            (keys, part.kv_heads),
            (keys + kv_heads, part.kv_heads),
        ];
        let rows = 0..rows;
        rows.flat_map(move |row| {
            let own = own.into_iter();
            own.flat_map(move |(first, count)| first..first + count)
                .map(move |head| (row * of_row + head) as u32)
        })
    };
    let pieces = rows * (part.heads + 2 * part.kv_heads);
    Moves {
        width: shape.head_dim,
        sends: vec![pieces; ranks],
        sent: Some((0..ranks).flat_map(to).collect()),
        receives: vec![pieces; ranks],
        // Rows come in their order.
        placed: None,
    }
}

/// The exchange of all rows of some heads for some rows of all heads.
fn to_rows(part: AttentionShape, rows: usize, ranks: usize) -> Moves {
    let from_all = |row: usize| (0..ranks).map(move |rank| (rank * rows + row) as u32);
    Moves {
        width: part.out_cols(),
        sends: vec![rows; ranks],
        sent: None,
        receives: vec![rows; ranks],
        placed: Some((0..rows).flat_map(from_all).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of a row with one that it sees, which a rank has in each turn.
    fn pairs(spans: &RowSpans, own: RankOf) -> Vec<usize> {
        let shape = AttentionShape {
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            window: None,
        };
        let of_turn = |lists: Vec<ScoreBlocks>| {
            let blocks = lists.iter().flat_map(ScoreBlocks::iter);
            blocks.map(|block| block.pairs(shape)).sum()
        };
        turns(spans, own).map(of_turn).collect()
    }

    #[test]
    fn ranks_of_a_ring_have_as_much_to_do_as_each_other_in_each_turn() {
        let rows = 8192;
        let spans = RowSpans::apart([0, rows as u32].as_slice());
        for ranks in [2, 4, 8, 16] {
            let all: Vec<_> = (0..ranks)
                .map(|rank| pairs(&spans, RankOf::new(rank, ranks)))
                .collect();
            let apart = |of: &[usize]| {
                let [least, most] = [of.iter().min(), of.iter().max()].map(|it| *it.unwrap());
                (most - least) as f64 / most as f64
            };
            let totals: Vec<usize> = all.iter().map(|turns| turns.iter().sum()).collect();
            assert_eq!(totals.iter().sum::<usize>(), rows * (rows + 1) / 2);
            assert!(apart(&totals) < 0.02, "{ranks} ranks: {totals:?}");
            // Nobody waits in a turn either.
            for turn in 0..ranks {
                let of_turn: Vec<usize> = all.iter().map(|turns| turns[turn]).collect();
                assert!(
                    apart(&of_turn) < 0.02,
                    "turn {turn} of {ranks}: {of_turn:?}"
                );
            }
        }
    }
}
