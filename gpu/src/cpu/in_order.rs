//! Products, attention and scores of whole sequences, added up in the order in which sampling does it.
//!
//! Sampling computes each row by itself: sums over inputs go from the first to the last, and those of
//! attention from the first position to the last. So a row has the same bits among few rows or many, with
//! the keys and values of those before it in a cache or computed beside it. Here whole sequences are computed
//! that way. It costs time: the kernels that are quick for many rows add up in pieces.

use super::decode::{Row, append, attend, cache_block, cache_len, linear, pack, panels_len};
use super::pool::{Pool, Shared};
use super::vocab::{Sums, score_row};
use crate::backend::{AttentionShape, CacheRow, MatMul, VocabStats};
use crate::block_table::BlockTable;
use crate::spans::{RowSpan, RowSpans};

/// True for products of rows with a weight, `x W^T`: the others belong to gradients.
pub(super) fn takes(call: &MatMul) -> bool {
    let linear = MatMul::linear(call.m, call.n, call.k);
    (call.batch, call.a, call.b, call.c) == (1, linear.a, linear.b, linear.c)
}

/// Such a product.
pub(super) fn matmul(pool: &Pool, call: MatMul, x: &[f32], w: &[f32], y: &mut [f32]) {
    let MatMul { m, n, k, .. } = call;
    pool.scratch(panels_len(pool, [n, k]), |panels| {
        pack(pool, [n, k], &w[..n * k], panels);
        let (x, y) = (&x[..m * k], &mut y[..m * n]);
        linear(pool, [n, k], x, panels, y, (call.scale, call.store));
    });
}

/// A span, with the blocks of the keys and values that it attends to.
struct Cached {
    span: RowSpan,
    /// Those of its prefix that are full, then its own.
    blocks: Vec<u32>,
    /// Number of the first.
    shared: usize,
}

/// Where the keys and values of all spans lie: full blocks of a prefix once, what is left of it with each of
/// those that have it.
fn cached(spans: &RowSpans, tokens: usize) -> (Vec<Cached>, usize) {
    let (mut all, mut count): (Vec<Cached>, usize) = (vec![], 0);
    for family in spans.families() {
        let first = family.start;
        for number in family {
            let span = spans.span(number);
            let shared = span.prefix.len() / tokens;
            let own = (span.keys() - shared * tokens).div_ceil(tokens);
            let own = count as u32..(count + own) as u32;
            count = own.end as usize;
            let of_prefix = all.get(first).map(|it| &it.blocks[..shared]);
            let blocks = of_prefix.unwrap_or_default().iter().copied();
            all.push(Cached {
                blocks: blocks.chain(own).collect(),
                span,
                shared,
            });
        }
    }
    (all, count)
}

pub(super) fn attention(
    pool: &Pool,
    shape: AttentionShape,
    spans: &RowSpans,
    qkv: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let (width, tokens) = (shape.qkv_cols(), cache_block(1));
    let block_len = cache_len(shape, tokens);
    let (all, count) = cached(spans, tokens);
    let of_row: Vec<usize> = all
        .iter()
        .enumerate()
        .flat_map(|(number, it)| it.span.rows.clone().map(move |_| number))
        .collect();
    assert_eq!(of_row.len() * width, qkv.len(), "every row is in a span");
    pool.scratch(count * block_len, |cache| {
        let memory = Shared::new(cache);
        pool.for_each(all.len(), |number| {
            let Cached {
                span,
                blocks,
                shared,
            } = &all[number];
            let own = &blocks[*shared..];
            let Some(first) = own.first() else {
                return;
            };
            // SAFETY: these blocks belong to this span, so to this task.
            let own_memory =
                unsafe { memory.slice(*first as usize * block_len, own.len() * block_len) };
            // As a cache of its own, whose blocks are numbered from 0.
            let mut table = BlockTable::new(1, own.len(), tokens);
            table.set(0, &(0..own.len() as u32).collect::<Vec<_>>());
            let left = span.prefix.start + shared * tokens..span.prefix.end;
            let mut position = 0;
            for rows in [left, span.rows.clone()] {
                let places = (position..).take(rows.len());
                let places = places.map(|position| CacheRow { slot: 0, position });
                let places: Vec<_> = places.collect();
                let qkv = &qkv[rows.start * width..rows.end * width];
                append(shape, &table, &places, qkv, own_memory);
                position += rows.len() as u32;
            }
        });
        let (cache, lse) = (&*cache, Shared::new(lse));
        pool.blocks(out, shape.out_cols(), |row, out| {
            let Cached { span, blocks, .. } = &all[of_row[row]];
            let known = span.prefix.len() + row - span.rows.start + 1;
            let row_of = Row {
                shape,
                tokens,
                blocks: &blocks[..known.div_ceil(tokens)],
                cache,
                known,
            };
            // SAFETY: these numbers belong to this row, so to this task.
            let lse = unsafe { lse.slice(row * shape.heads, shape.heads) };
            attend(pool, row_of, &qkv[row * width..], out, Some(lse));
        });
    });
}

/// Logits of a chunk of rows: 4 MiB.
const LOGITS: usize = 1 << 20;

pub(super) fn vocab(
    pool: &Pool,
    scale: f32,
    x: &[f32],
    w: &[f32],
    labels: &[u32],
    out: VocabStats<&mut [f32]>,
) {
    let rows = labels.len();
    if rows == 0 {
        return;
    }
    let inputs = x.len() / rows;
    let outputs = w.len() / inputs;
    let chunk = (LOGITS / outputs).clamp(1, rows);
    let VocabStats {
        logprob,
        entropy,
        logsumexp,
    } = out;
    pool.scratch(panels_len(pool, [outputs, inputs]), |panels| {
        pack(pool, [outputs, inputs], w, panels);
        pool.scratch(chunk * outputs, |logits| {
            for first in (0..rows).step_by(chunk) {
                let rows = chunk.min(rows - first);
                let x = &x[first * inputs..][..rows * inputs];
                let logits = &mut logits[..rows * outputs];
                let store = (scale, crate::backend::Store::Set);
                linear(pool, [outputs, inputs], x, panels, logits, store);
                let lse = Shared::new(&mut logsumexp[first..][..rows]);
                let logits = &*logits;
                pool.blocks2(
                    (&mut logprob[first..][..rows], 1),
                    (&mut entropy[first..][..rows], 1),
                    |row, logprob, entropy| {
                        let logits = &logits[row * outputs..][..outputs];
                        let Sums {
                            lse: own,
                            entropy: h,
                        } = score_row(logits);
                        // SAFETY: this number belongs to this row, so to this task.
                        unsafe { lse.slice(row, 1)[0] = own };
                        entropy[0] = h;
                        // A label may be of no entry.
                        let label = logits.get(labels[first + row] as usize);
                        logprob[0] = label.map_or(0.0, |label| label - own);
                    },
                );
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixty-four replies of five tokens to a prompt of a thousand: the prompt's blocks are there once.
    #[test]
    fn a_prefix_is_cached_once() {
        let bounds: Vec<u32> = (0..=65)
            .map(|at: u32| 1000 * at.min(1) + 5 * at.saturating_sub(1))
            .collect();
        let spans = RowSpans::sharing(bounds, vec![0; 65]);
        let (all, count) = cached(&spans, 16);
        assert_eq!(count, 63 + 64);
        assert_eq!(all[0].blocks, (0..63).collect::<Vec<_>>());
        // Eight rows of the prompt's last block, and five of its own.
        assert_eq!((all[9].shared, all[9].blocks[62]), (62, 63 + 8));
        assert_eq!(all[9].blocks[..62], all[0].blocks[..62]);
    }
}
