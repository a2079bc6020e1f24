//! Causal attention in tiles of query rows, after Dao et al. 2022 (FlashAttention): a task holds
//! one tile of scores, and the backward pass computes the probabilities again.

use gemm_common::Parallelism;
use odeon_simd::simd;

use super::gemm::product;
use super::pool::{Pool, Shared};
use super::simd::{exp, madd, max, reduce};
use crate::backend::{AttentionShape, MatMul, Store, Strides};

/// Query rows of a tile.
const TILE: usize = 64;

pub(super) fn forward(
    pool: &Pool,
    shape: AttentionShape,
    bounds: &[u32],
    qkv: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
    } = shape;
    let (width, out_width) = (shape.qkv_cols(), shape.out_cols());
    assert!(
        qkv.len() / width * out_width == out.len(),
        "one output row a query row"
    );
    assert_eq!(
        lse.len(),
        qkv.len() / width * heads,
        "one number a row and head"
    );
    let tiles = tiles(bounds);
    let (out, lse) = (Shared::new(out), Shared::new(lse));
    pool.for_each(tiles.len() * heads, |task| {
        let (tile, head) = (&tiles[task / heads], task % heads);
        let (keys, rows) = (tile.end - tile.sequence, tile.end - tile.start);
        let base = tile.sequence * width;
        let q = &qkv[tile.start * width + head * dim..];
        let kv = head / (heads / kv_heads);
        let k = &qkv[base + (heads + kv) * dim..];
        let v = &qkv[base + (heads + kv_heads + kv) * dim..];
        pool.scratch(rows * (keys + dim + 1), |scratch| {
            let (scores, scratch) = scratch.split_at_mut(rows * keys);
            let (tile_out, inv_sum) = scratch.split_at_mut(rows * dim);
            score_tile(width, dim, rows, keys, shape.scale(), q, k, scores);
            for i in 0..rows {
                let known = keys - rows + i + 1;
                let (max, sum) = softmax_row(&mut scores[i * keys..][..keys], known);
                inv_sum[i] = 1.0 / sum;
                // SAFETY: this number belongs to this row and head, so to this task.
                unsafe { lse.slice((tile.start + i) * heads + head, 1)[0] = max + sum.ln() };
            }
            let call = MatMul {
                b: Strides::rows(width),
                ..MatMul::linear_dx(rows, keys, dim)
            };
            product(Parallelism::None, call, scores, v, tile_out);
            for i in 0..rows {
                let at = (tile.start + i) * out_width + head * dim;
                // SAFETY: these elements belong to this row and head, so to this task.
                let row = unsafe { out.slice(at, dim) };
                let scale = inv_sum[i];
                row.iter_mut()
                    .zip(&tile_out[i * dim..])
                    .for_each(|(o, t)| *o = t * scale);
            }
        });
    });
}

pub(super) fn backward(
    pool: &Pool,
    shape: AttentionShape,
    bounds: &[u32],
    qkv: &[f32],
    out: &[f32],
    lse: &[f32],
    dout: &[f32],
    dqkv: &mut [f32],
) {
    assert!(
        qkv.len() == dqkv.len() && out.len() == dout.len(),
        "gradients shaped as their values"
    );
    let sequences = bounds.len().saturating_sub(1);
    let dqkv = Shared::new(dqkv);
    pool.for_each(sequences * shape.kv_heads, |task| {
        let (sequence, kv) = (task / shape.kv_heads, task % shape.kv_heads);
        let rows = bounds[sequence] as usize..bounds[sequence + 1] as usize;
        backward_head(pool, shape, rows, kv, qkv, out, lse, dout, dqkv);
    });
}

/// Gradient of one key-value head of one sequence and of the query heads that share it.
fn backward_head(
    pool: &Pool,
    shape: AttentionShape,
    sequence: std::ops::Range<usize>,
    kv: usize,
    qkv: &[f32],
    out: &[f32],
    lse: &[f32],
    dout: &[f32],
    dqkv: Shared,
) {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
    } = shape;
    let (width, out_width, scale) = (shape.qkv_cols(), shape.out_cols(), shape.scale());
    let (len, tile_rows) = (sequence.len(), TILE.min(sequence.len()));
    let (k_col, v_col) = ((heads + kv) * dim, (heads + kv_heads + kv) * dim);
    let k = &qkv[sequence.start * width + k_col..];
    let v = &qkv[sequence.start * width + v_col..];
    pool.scratch(
        2 * len * dim + 2 * tile_rows * len + tile_rows * dim,
        |scratch| {
            let (dk, scratch) = scratch.split_at_mut(len * dim);
            let (dv, scratch) = scratch.split_at_mut(len * dim);
            let (probs, scratch) = scratch.split_at_mut(tile_rows * len);
            let (dscores, dq) = scratch.split_at_mut(tile_rows * len);
            dk.fill(0.0);
            dv.fill(0.0);
            let group = heads / kv_heads;
            for head in kv * group..(kv + 1) * group {
                for start in (0..len).step_by(TILE) {
                    let keys = len.min(start + TILE);
                    let rows = keys - start;
                    let first = sequence.start + start;
                    let q = &qkv[first * width + head * dim..];
                    let o = &out[first * out_width + head * dim..];
                    let d_o = &dout[first * out_width + head * dim..];
                    score_tile(width, dim, rows, keys, scale, q, k, probs);
                    let call = MatMul {
                        a: Strides::rows(out_width),
                        b: Strides::transposed(width),
                        ..MatMul::linear(rows, keys, dim)
                    };
                    product(Parallelism::None, call, d_o, v, dscores);
                    for i in 0..rows {
                        dscore_row(
                            lse[(first + i) * heads + head],
                            start + i + 1,
                            &o[i * out_width..][..dim],
                            &d_o[i * out_width..][..dim],
                            &mut probs[i * keys..][..keys],
                            &mut dscores[i * keys..][..keys],
                        );
                    }
                    let call = MatMul::linear_dw(rows, keys, dim).stored(Store::Add);
                    let call = MatMul {
                        b: Strides::rows(out_width),
                        ..call
                    };
                    product(Parallelism::None, call, probs, d_o, dv);
                    let call = MatMul {
                        b: Strides::rows(width),
                        ..call
                    }
                    .scaled(scale);
                    product(Parallelism::None, call, dscores, q, dk);
                    let call = MatMul::linear_dx(rows, keys, dim).scaled(scale);
                    let call = MatMul {
                        b: Strides::rows(width),
                        ..call
                    };
                    product(Parallelism::None, call, dscores, k, dq);
                    for i in 0..rows {
                        // SAFETY: these elements belong to this row and query head, so to this
                        // task.
                        let row = unsafe { dqkv.slice((first + i) * width + head * dim, dim) };
                        row.copy_from_slice(&dq[i * dim..][..dim]);
                    }
                }
            }
            for i in 0..len {
                let row = (sequence.start + i) * width;
                // SAFETY: these elements belong to this row and key-value head, so to this task.
                let (k, v) =
                    unsafe { (dqkv.slice(row + k_col, dim), dqkv.slice(row + v_col, dim)) };
                k.copy_from_slice(&dk[i * dim..][..dim]);
                v.copy_from_slice(&dv[i * dim..][..dim]);
            }
        },
    );
}

/// Rows `start..end` of the sequence that begins at row `sequence`.
struct Tile {
    sequence: usize,
    start: usize,
    end: usize,
}

fn tiles(bounds: &[u32]) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for pair in bounds.windows(2) {
        let (sequence, end) = (pair[0] as usize, pair[1] as usize);
        for start in (sequence..end).step_by(TILE) {
            tiles.push(Tile {
                sequence,
                start,
                end: end.min(start + TILE),
            });
        }
    }
    tiles
}

/// `scores[rows, keys] = scale * q k^T` for rows of `width` elements.
fn score_tile(
    width: usize,
    dim: usize,
    rows: usize,
    keys: usize,
    scale: f32,
    q: &[f32],
    k: &[f32],
    scores: &mut [f32],
) {
    let call = MatMul {
        a: Strides::rows(width),
        b: Strides::transposed(width),
        ..MatMul::linear(rows, keys, dim).scaled(scale)
    };
    product(Parallelism::None, call, q, k, scores);
}

simd! {
    /// Exponentials of the first `known` scores less their maximum, zeros after; the maximum and
    /// the sum.
    pub(super) fn softmax_row(scores: &mut [f32], known: usize) -> (f32, f32) {
        let (known, hidden) = scores.split_at_mut(known);
        let top = max(known);
        for s in known.iter_mut() {
            *s = exp::<FMA>(*s - top);
        }
        hidden.fill(0.0);
        (top, reduce(known.len(), |sum, i| sum + known[i]))
    }

    /// Turns scores into probabilities and `dscores`, which holds `dout v^T`, into the gradient of
    /// the scores: `p (dp - out . dout)`.
    fn dscore_row(
        lse: f32,
        known: usize,
        out: &[f32],
        dout: &[f32],
        probs: &mut [f32],
        dscores: &mut [f32],
    ) {
        let delta = reduce(out.len(), |sum, i| madd::<FMA>(out[i], dout[i], sum));
        let (probs, hidden) = probs.split_at_mut(known);
        let (dscores, dhidden) = dscores.split_at_mut(known);
        for (p, d) in probs.iter_mut().zip(dscores) {
            *p = exp::<FMA>(*p - lse);
            *d = *p * (*d - delta);
        }
        hidden.fill(0.0);
        dhidden.fill(0.0);
    }
}
