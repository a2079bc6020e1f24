//! Products, attention and scores of whole sequences, added up in the order in which sampling does it.
//!
//! Sampling computes each row by itself: sums over inputs go from the first to the last, and those of
//! attention from the first position to the last. So a row has the same bits among few rows or many, with
//! the keys and values of those before it in a cache or computed beside it. Here whole sequences are computed
//! that way. It costs time: the kernels that are quick for many rows add up in pieces.

use super::decode::{PANEL, Row, append, attend, cache_block, cache_len, linear, pack};
use super::pool::{Pool, Shared};
use super::vocab::{Sums, score_row};
use crate::backend::{AttentionShape, CacheRow, MatMul, VocabStats};
use crate::block_table::BlockTable;

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

/// A sequence, with its keys and values as a cache of one block.
struct Sequence {
    first_row: usize,
    tokens: usize,
    cache: std::ops::Range<usize>,
}

pub(super) fn attention(
    pool: &Pool,
    shape: AttentionShape,
    bounds: &[u32],
    qkv: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let width = shape.qkv_cols();
    let (mut sequences, mut of_row, mut end) = (vec![], vec![], 0);
    for ends in bounds.windows(2) {
        let (first_row, rows) = (ends[0] as usize, (ends[1] - ends[0]) as usize);
        let tokens = cache_block(rows);
        let cache = end..end + cache_len(shape, tokens);
        end = cache.end;
        of_row.resize(of_row.len() + rows, sequences.len());
        sequences.push(Sequence {
            first_row,
            tokens,
            cache,
        });
    }
    assert_eq!(
        of_row.len() * width,
        qkv.len(),
        "every row is in a sequence"
    );
    pool.scratch(end, |cache| {
        let all = Shared::new(cache);
        pool.for_each(sequences.len(), |number| {
            let Sequence {
                first_row,
                tokens,
                cache,
            } = &sequences[number];
            // SAFETY: this part belongs to this sequence, so to this task.
            let block = unsafe { all.slice(cache.start, cache.len()) };
            let mut table = BlockTable::new(1, 1, *tokens);
            table.set(0, &[0]);
            let next = sequences.get(number + 1);
            let end = next.map_or(of_row.len(), |next| next.first_row);
            let positions = 0..(end - first_row) as u32;
            let rows: Vec<_> = positions
                .map(|position| CacheRow { slot: 0, position })
                .collect();
            append(
                shape,
                &table,
                &rows,
                &qkv[first_row * width..end * width],
                block,
            );
        });
        let (cache, lse) = (&*cache, Shared::new(lse));
        pool.blocks(out, shape.out_cols(), |row, out| {
            let sequence = &sequences[of_row[row]];
            let known = row - sequence.first_row + 1;
            let row_of = Row {
                shape,
                tokens: sequence.tokens,
                blocks: &[0],
                cache: &cache[sequence.cache.clone()],
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
