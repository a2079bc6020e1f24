//! Causal attention in tiles of query rows, after Dao et al. 2022 (FlashAttention): a task holds
//! one tile of scores, and the backward pass computes the probabilities again. Keys and values of a span
//! with a prefix are first copied to one place.

pub(super) mod blocks;

use std::ops::Range;

use odeon_simd::simd;

use super::gemm::product;
use super::pool::{Pool, Shared};
use super::simd::{exp, madd, max, reduce};
use crate::backend::{AttentionShape, MatMul, Store, Strides};
use crate::spans::{RowSpan, RowSpans};

/// Query rows of a tile.
const TILE: usize = 64;

pub(super) fn forward(
    pool: &Pool,
    shape: AttentionShape,
    spans: &RowSpans,
    qkv: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
        ..
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
    let tiles = tiles(spans);
    let (out, lse) = (Shared::new(out), Shared::new(lse));
    pool.for_each(tiles.len() * heads, |task| {
        let (tile, head) = (&tiles[task / heads], task % heads);
        let RowSpan { prefix, rows: own } = &tile.span;
        let (known, rows) = (prefix.len() + tile.end - own.start, tile.end - tile.start);
        let q = &qkv[tile.start * width + head * dim..];
        let kv = head / (heads / kv_heads);
        pool.scratch(gathered_len(shape, prefix, known), |gathered| {
            let end = own.start..tile.end;
            let keys = Keys::of(shape, kv, prefix, end, qkv, gathered);
            pool.scratch(rows * (known + dim + 1), |scratch| {
                let (scores, scratch) = scratch.split_at_mut(rows * known);
                let (tile_out, inv_sum) = scratch.split_at_mut(rows * dim);
                score_tile(pool, (width, q), keys, shape, [rows, known], scores);
                for i in 0..rows {
                    let seen = shape.seen(known - rows + i + 1);
                    let (max, sum) = softmax_row(&mut scores[i * known..][..known], seen);
                    inv_sum[i] = 1.0 / sum;
                    // SAFETY: this number belongs to this row and head, so to this task.
                    unsafe { lse.slice((tile.start + i) * heads + head, 1)[0] = max + sum.ln() };
                }
                let call = MatMul {
                    b: Strides::rows(keys.width),
                    ..MatMul::linear_dx(rows, known, dim)
                };
                product(pool, call, scores, keys.values, tile_out);
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
    });
}

/// Keys and values of a head, one row a position: where they are, or one after the other where the first
/// are those of a prefix.
#[derive(Clone, Copy)]
struct Keys<'a> {
    width: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

/// Elements of memory that [`Keys::of`] needs.
fn gathered_len(shape: AttentionShape, prefix: &Range<usize>, positions: usize) -> usize {
    match prefix.is_empty() {
        true => 0,
        false => 2 * positions * shape.head_dim,
    }
}

impl<'a> Keys<'a> {
    /// Those of a prefix, then of these rows.
    fn of(
        shape: AttentionShape,
        kv: usize,
        prefix: &Range<usize>,
        own: Range<usize>,
        qkv: &'a [f32],
        gathered: &'a mut [f32],
    ) -> Self {
        let (width, dim) = (shape.qkv_cols(), shape.head_dim);
        let (k, v) = columns(shape, kv);
        if prefix.is_empty() {
            let base = own.start * width;
            return Self {
                width,
                keys: &qkv[base + k..],
                values: &qkv[base + v..],
            };
        }
        let (keys, values) = gathered.split_at_mut(gathered.len() / 2);
        let places = keys.chunks_exact_mut(dim).zip(values.chunks_exact_mut(dim));
        for (row, (keys, values)) in prefix.clone().chain(own).zip(places) {
            keys.copy_from_slice(&qkv[row * width + k..][..dim]);
            values.copy_from_slice(&qkv[row * width + v..][..dim]);
        }
        Self {
            width: dim,
            keys,
            values,
        }
    }
}

/// Where the keys and the values of a head begin in a row.
const fn columns(shape: AttentionShape, kv: usize) -> (usize, usize) {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
        ..
    } = shape;
    ((heads + kv) * dim, (heads + kv_heads + kv) * dim)
}

/// Values of a forward pass that its backward pass reads.
#[derive(Clone, Copy)]
struct Passed<'a> {
    qkv: &'a [f32],
    out: &'a [f32],
    lse: &'a [f32],
    dout: &'a [f32],
}

pub(super) fn backward(
    pool: &Pool,
    shape: AttentionShape,
    spans: &RowSpans,
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
    let passed = Passed {
        qkv,
        out,
        lse,
        dout,
    };
    let dqkv = Shared::new(dqkv);
    let dim = shape.head_dim;
    let families = parts(spans, 2 * pool.threads() / shape.kv_heads.max(1));
    // Keys and values of a prefix: a part adds up its own of them.
    let mut len = 0;
    let places: Vec<_> = families
        .iter()
        .flat_map(|(first, parts)| parts.iter().enumerate().map(move |it| (*first, it)))
        .map(|(first, (nth, members))| {
            let own = 2 * spans.span(first).rows.len() * dim;
            len += own * shape.kv_heads;
            (first, nth == 0, members, len - own * shape.kv_heads, own)
        })
        .collect();
    pool.scratch(len, |memory| {
        let memory = Shared::new(memory);
        pool.for_each(places.len() * shape.kv_heads, |task| {
            let (place, kv) = (task / shape.kv_heads, task % shape.kv_heads);
            let (first, is_first, members, at, own) = &places[place];
            // SAFETY: this part belongs to this place and head, so to this task.
            let sums = unsafe { memory.slice(at + kv * own, *own) };
            sums.fill(0.0);
            let members = (*is_first)
                .then_some(*first)
                .into_iter()
                .chain((*members).clone());
            backward_part(pool, shape, spans, *first, members, kv, passed, sums, dqkv);
        });
        pool.for_each(places.len() * shape.kv_heads, |task| {
            let (place, kv) = (task / shape.kv_heads, task % shape.kv_heads);
            let (first, is_first, _, at, own) = &places[place];
            if !is_first {
                return;
            }
            // SAFETY: places of a family stand together, and this task alone has those of this head.
            let sums = unsafe { memory.slice(at + kv * own, *own) };
            let others = places[place + 1..].iter().take_while(|it| it.0 == *first);
            for (.., at, own) in others {
                // SAFETY: as above.
                let other = unsafe { memory.slice(at + kv * own, *own) };
                sums.iter_mut().zip(&*other).for_each(|(sum, d)| *sum += d);
            }
            let (dk, dv) = sums.split_at(own / 2);
            write_keys(shape, kv, spans.span(*first).rows, dk, dv, dqkv);
        });
    });
}

/// Spans without a prefix, each with those that have it as theirs, in so many parts at most where it has any.
fn parts(spans: &RowSpans, wanted: usize) -> Vec<(usize, Vec<Range<usize>>)> {
    let families: Vec<_> = spans.families().collect();
    let each = wanted.div_ceil(families.len().max(1));
    let parts = |family: &Range<usize>| {
        let others = family.start + 1..family.end;
        let count = each.clamp(1, others.len().max(1));
        let cut = |part: usize| others.start + part * others.len() / count;
        let parts = (0..count).map(|part| cut(part)..cut(part + 1));
        (family.start, parts.collect())
    };
    families.iter().map(parts).collect()
}

/// Gradient of one key-value head of some spans of a family and of the query heads that share it; `sums` has
/// that of the keys and values of the family's first.
fn backward_part(
    pool: &Pool,
    shape: AttentionShape,
    spans: &RowSpans,
    first: usize,
    members: impl Iterator<Item = usize>,
    kv: usize,
    passed: Passed<'_>,
    sums: &mut [f32],
    dqkv: Shared,
) {
    let (dk, dv) = sums.split_at_mut(sums.len() / 2);
    for member in members {
        let span = spans.span(member);
        if member == first {
            backward_span(pool, shape, &span, kv, passed, (dk, dv), dqkv);
            continue;
        }
        let positions = span.keys() * shape.head_dim;
        pool.scratch(2 * positions, |both| {
            both.fill(0.0);
            let (dk_all, dv_all) = both.split_at_mut(positions);
            backward_span(pool, shape, &span, kv, passed, (dk_all, dv_all), dqkv);
            let shared = dk.len();
            dk.iter_mut().zip(&*dk_all).for_each(|(sum, d)| *sum += d);
            dv.iter_mut().zip(&*dv_all).for_each(|(sum, d)| *sum += d);
            let (own_k, own_v) = (&dk_all[shared..], &dv_all[shared..]);
            write_keys(shape, kv, span.rows, own_k, own_v, dqkv);
        });
    }
}

/// Writes the gradient of the keys and values of rows.
fn write_keys(
    shape: AttentionShape,
    kv: usize,
    rows: Range<usize>,
    dk: &[f32],
    dv: &[f32],
    dqkv: Shared,
) {
    let ((k_col, v_col), dim) = (columns(shape, kv), shape.head_dim);
    for (i, row) in rows.enumerate() {
        let at = row * shape.qkv_cols();
        // SAFETY: these elements belong to this row and key-value head, so to the caller's task.
        let (k, v) = unsafe { (dqkv.slice(at + k_col, dim), dqkv.slice(at + v_col, dim)) };
        k.copy_from_slice(&dk[i * dim..][..dim]);
        v.copy_from_slice(&dv[i * dim..][..dim]);
    }
}

/// Adds the gradient of the keys and values that a span attends to, and writes that of its queries.
fn backward_span(
    pool: &Pool,
    shape: AttentionShape,
    span: &RowSpan,
    kv: usize,
    passed: Passed<'_>,
    (dk, dv): (&mut [f32], &mut [f32]),
    dqkv: Shared,
) {
    let (heads, dim, width) = (shape.heads, shape.head_dim, shape.qkv_cols());
    let RowSpan { prefix, rows: own } = span;
    // It may lie behind the last row, where there is nothing to slice.
    if own.is_empty() {
        return;
    }
    let (all, tile_rows) = (span.keys(), TILE.min(own.len()));
    let gathered = gathered_len(shape, prefix, all);
    pool.scratch(
        gathered + 2 * tile_rows * all + tile_rows * dim,
        |scratch| {
            let (gathered, scratch) = scratch.split_at_mut(gathered);
            let keys = Keys::of(shape, kv, prefix, own.clone(), passed.qkv, gathered);
            let (probs, scratch) = scratch.split_at_mut(tile_rows * all);
            let (dscores, dq) = scratch.split_at_mut(tile_rows * all);
            let group = heads / shape.kv_heads;
            for head in kv * group..(kv + 1) * group {
                for start in (0..own.len()).step_by(TILE) {
                    let rows = TILE.min(own.len() - start);
                    let known = prefix.len() + start + rows;
                    let first = own.start + start;
                    let tile = (first, [rows, known]);
                    let seen = |row| shape.seen(known - rows + row + 1);
                    let scores = [&mut *probs, &mut *dscores];
                    let gradients = [&mut *dq, &mut *dk, &mut *dv];
                    tile_gradients(
                        pool, shape, head, keys, passed, tile, seen, scores, gradients,
                    );
                    for i in 0..rows {
                        // SAFETY: these elements belong to this row and query head, so to this task.
                        let row = unsafe { dqkv.slice((first + i) * width + head * dim, dim) };
                        row.copy_from_slice(&dq[i * dim..][..dim]);
                    }
                }
            }
        },
    );
}

/// The gradient of the queries of a tile of rows from `first` on over `known` positions, of which each sees some. Adds
/// to that of these keys and values.
fn tile_gradients(
    pool: &Pool,
    shape: AttentionShape,
    head: usize,
    keys: Keys<'_>,
    passed: Passed<'_>,
    (first, [rows, known]): (usize, [usize; 2]),
    seen: impl Fn(usize) -> Range<usize>,
    [probs, dscores]: [&mut [f32]; 2],
    [dq, dk, dv]: [&mut [f32]; 3],
) {
    let (width, out_width) = (shape.qkv_cols(), shape.out_cols());
    let (dim, scale) = (shape.head_dim, shape.scale());
    let q = &passed.qkv[first * width + head * dim..];
    let d_o = &passed.dout[first * out_width + head * dim..];
    let tile = (first, [rows, known]);
    score_gradients(pool, shape, head, keys, passed, tile, seen, probs, dscores);
    let call = MatMul::linear_dw(rows, known, dim).stored(Store::Add);
    let call = MatMul {
        b: Strides::rows(out_width),
        ..call
    };
    product(pool, call, probs, d_o, dv);
    let call = MatMul {
        b: Strides::rows(width),
        ..call
    }
    .scaled(scale);
    product(pool, call, dscores, q, dk);
    let call = MatMul::linear_dx(rows, known, dim).scaled(scale);
    let call = MatMul {
        b: Strides::rows(keys.width),
        ..call
    };
    product(pool, call, dscores, keys.keys, dq);
}

/// Probabilities of such a tile, and the gradient of its scores.
fn score_gradients(
    pool: &Pool,
    shape: AttentionShape,
    head: usize,
    keys: Keys<'_>,
    passed: Passed<'_>,
    (first, [rows, known]): (usize, [usize; 2]),
    seen: impl Fn(usize) -> Range<usize>,
    probs: &mut [f32],
    dscores: &mut [f32],
) {
    let (dim, width, out_width) = (shape.head_dim, shape.qkv_cols(), shape.out_cols());
    let q = &passed.qkv[first * width + head * dim..];
    let o = &passed.out[first * out_width + head * dim..];
    let d_o = &passed.dout[first * out_width + head * dim..];
    score_tile(pool, (width, q), keys, shape, [rows, known], probs);
    let call = MatMul {
        a: Strides::rows(out_width),
        b: Strides::transposed(keys.width),
        ..MatMul::linear(rows, known, dim)
    };
    product(pool, call, d_o, keys.values, dscores);
    for i in 0..rows {
        dscore_row(
            passed.lse[(first + i) * shape.heads + head],
            seen(i),
            &o[i * out_width..][..dim],
            &d_o[i * out_width..][..dim],
            &mut probs[i * known..][..known],
            &mut dscores[i * known..][..known],
        );
    }
}

/// Rows `start..end` of a span.
struct Tile {
    span: RowSpan,
    start: usize,
    end: usize,
}

fn tiles(spans: &RowSpans) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for span in spans.iter() {
        for start in span.rows.clone().step_by(TILE) {
            tiles.push(Tile {
                end: span.rows.end.min(start + TILE),
                span: span.clone(),
                start,
            });
        }
    }
    tiles
}

/// `scores[rows, known] = scale * q k^T` for rows of `width` elements.
fn score_tile(
    pool: &Pool,
    (width, q): (usize, &[f32]),
    keys: Keys<'_>,
    shape: AttentionShape,
    [rows, known]: [usize; 2],
    scores: &mut [f32],
) {
    let call = MatMul {
        a: Strides::rows(width),
        b: Strides::transposed(keys.width),
        ..MatMul::linear(rows, known, shape.head_dim).scaled(shape.scale())
    };
    product(pool, call, q, keys.keys, scores);
}

simd! {
    /// Exponentials of the scores that are seen less their maximum, zeros elsewhere; the maximum and
    /// the sum.
    pub(super) fn softmax_row(scores: &mut [f32], seen: Range<usize>) -> (f32, f32) {
        let (known, hidden) = scores.split_at_mut(seen.end);
        let (before, known) = known.split_at_mut(seen.start);
        before.fill(0.0);
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
        seen: Range<usize>,
        out: &[f32],
        dout: &[f32],
        probs: &mut [f32],
        dscores: &mut [f32],
    ) {
        let delta = reduce(out.len(), |sum, i| madd::<FMA>(out[i], dout[i], sum));
        let (probs, hidden) = probs.split_at_mut(seen.end);
        let (dscores, dhidden) = dscores.split_at_mut(seen.end);
        let (before, probs) = probs.split_at_mut(seen.start);
        let (dbefore, dscores) = dscores.split_at_mut(seen.start);
        before.fill(0.0);
        dbefore.fill(0.0);
        for (p, d) in probs.iter_mut().zip(dscores) {
            *p = exp::<FMA>(*p - lse);
            *d = *p * (*d - delta);
        }
        hidden.fill(0.0);
        dhidden.fill(0.0);
    }
}
