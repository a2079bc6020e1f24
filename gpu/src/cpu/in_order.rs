//! Products, attention and scores of whole sequences, added up in the order in which sampling does it.
//!
//! Sampling computes each row by itself: sums over inputs go from the first to the last, and those of
//! attention from the first position to the last. So a row has the same bits among few rows or many, with
//! the keys and values of those before it in a cache or computed beside it. Here whole sequences are computed
//! that way. It costs time: the kernels that are quick for many rows add up in pieces.

use std::ops::Range;

use super::decode::{PANEL, Row, append, attend, cache_block, cache_len, linear, pack};
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
    pool.scratch(n.next_multiple_of(PANEL) * k, |panels| {
        pack(pool, k, &w[..n * k], panels);
        let (x, y) = (&x[..m * k], &mut y[..m * n]);
        linear(pool, [n, k], x, panels, y, (call.scale, call.store));
    });
}

/// A span, with the keys and values that it attends to as a cache of one block.
struct Cached {
    span: RowSpan,
    tokens: usize,
    cache: Range<usize>,
}

pub(super) fn attention(
    pool: &Pool,
    shape: AttentionShape,
    spans: &RowSpans,
    qkv: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let width = shape.qkv_cols();
    let (mut all, mut of_row, mut end) = (vec![], vec![], 0);
    for span in spans.iter() {
        let tokens = cache_block(span.keys());
        let cache = end..end + cache_len(shape, tokens);
        end = cache.end;
        of_row.resize(span.rows.end, all.len());
        all.push(Cached {
            span,
            tokens,
            cache,
        });
    }
    assert_eq!(of_row.len() * width, qkv.len(), "every row is in a span");
    pool.scratch(end, |cache| {
        let memory = Shared::new(cache);
        pool.for_each(all.len(), |number| {
            let Cached {
                span,
                tokens,
                cache,
            } = &all[number];
            // SAFETY: this part belongs to this span, so to this task.
            let block = unsafe { memory.slice(cache.start, cache.len()) };
            let mut table = BlockTable::new(1, 1, *tokens);
            table.set(0, &[0]);
            let mut position = 0;
            for rows in [&span.prefix, &span.rows] {
                let places = (position..).take(rows.len());
                let places = places.map(|position| CacheRow { slot: 0, position });
                let places: Vec<_> = places.collect();
                let qkv = &qkv[rows.start * width..rows.end * width];
                append(shape, &table, &places, qkv, block);
                position += rows.len() as u32;
            }
        });
        let (cache, lse) = (&*cache, Shared::new(lse));
        pool.blocks(out, shape.out_cols(), |row, out| {
            let Cached {
                span,
                tokens,
                cache: place,
            } = &all[of_row[row]];
            let row_of = Row {
                shape,
                tokens: *tokens,
                blocks: &[0],
                cache: &cache[place.clone()],
                known: span.prefix.len() + row - span.rows.start + 1,
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
    pool.scratch(outputs.next_multiple_of(PANEL) * inputs, |panels| {
        pack(pool, inputs, w, panels);
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
                        logprob[0] = logits[labels[first + row] as usize] - own;
                    },
                );
            }
        });
    });
}
