//! Rows of sequences that are shared among ranks (context parallelism), and attention over all of them by an exchange
//! of rows for heads (DeepSpeed Ulysses, arXiv [2309.14509](https://arxiv.org/abs/2309.14509)).
//!
//! Each rank has as many rows of a batch as any other, and computes all that is row by row for these. Before attention
//! it sends each rank the heads that are that one's, and has all rows of its own; behind it, the other way round:
//!
//! ```text
//!              rank 0      rank 1                          rank 0      rank 1
//!   rows 0-3   h0 h1                      rows 0-3         h0          h1
//!   rows 4-7               h0 h1    ──>   rows 4-7         h0          h1
//! ```

use std::sync::Arc;

use odeon_gpu::{AttentionShape, Backend, Moves, PassRanks, RowSpans, Tape, Var};

use super::rank::RankOf;

/// Records attention over the rows of all ranks, of which `qkv` has those of this one. `spans` are those of all rows.
///
/// # Panics
/// If heads cannot be shared ([`check_context`](super::ModelConfig::check_context)), or there is not the same number of
/// rows on each rank.
pub(super) fn attention<B: Backend>(
    tape: &mut Tape<B>,
    qkv: Var,
    shape: AttentionShape,
    spans: &RowSpans,
    ranks: &Arc<dyn PassRanks<B>>,
) -> Var {
    let own = RankOf::new(ranks.rank(), ranks.count());
    let (rows, all) = (tape.shape(qkv).0, spans.rows());
    assert_eq!(rows * own.ranks, all, "as many rows on each rank");
    let part = part_of(shape, own.ranks);
    let to_heads = to_heads(shape, part, rows, own.ranks);
    let qkv = tape.exchange(qkv, to_heads, Arc::clone(ranks), [all, part.qkv_cols()]);
    let heads = tape.attention(qkv, part, spans.clone());
    let to_rows = to_rows(part, rows, own.ranks);
    tape.exchange(heads, to_rows, Arc::clone(ranks), [rows, shape.out_cols()])
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
