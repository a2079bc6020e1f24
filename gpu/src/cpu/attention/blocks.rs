//! Attention to keys and values that lie apart, block by block. The kernels are those of whole spans; what a
//! tile gives is merged into what its rows hold of other blocks.

use std::ops::Range;

use super::{Keys, Passed, TILE, score_tile, softmax_row, tile_gradients};
use crate::backend::{AttentionShape, MatMul, Strides};
use crate::cpu::gemm::product;
use crate::cpu::pool::{Pool, Shared};
use crate::score_blocks::{ScoreBlock, ScoreBlocks};

pub(in crate::cpu) fn forward(
    pool: &Pool,
    shape: AttentionShape,
    blocks: &ScoreBlocks,
    [qkv, kv]: [&[f32]; 2],
    out: &mut [f32],
    lse: &mut [f32],
) {
    let (heads, dim, width) = (shape.heads, shape.head_dim, shape.qkv_cols());
    let (rows, out_width) = (qkv.len() / width, shape.out_cols());
    blocks.check(rows, kv.len() / shape.kv_cols());
    assert_eq!(out.len(), rows * out_width, "one output row a query row");
    assert_eq!(lse.len(), rows * heads, "one number a row and head");
    let tiles: Vec<Tile<'_>> = tiles(blocks, shape).collect();
    let (out, lse) = (Shared::new(out), Shared::new(lse));
    pool.for_each(tiles.len() * heads, |task| {
        let (tile, head) = (&tiles[task / heads], task % heads);
        let (rows, known) = (tile.queries.len(), tile.keys.len());
        let first = tile.block.queries.start + tile.queries.start;
        let keys = tile.keys_of(shape, head / (heads / shape.kv_heads), kv);
        pool.scratch(rows * (known + dim + 2), |scratch| {
            let (scores, scratch) = scratch.split_at_mut(rows * known);
            let (made, factors) = scratch.split_at_mut(rows * dim);
            let q = &qkv[first * width + head * dim..];
            score_tile(pool, (width, q), keys, shape, [rows, known], scores);
            for (row, factors) in factors.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let scores = &mut scores[row * known..][..known];
                let (top, sum) = softmax_row(scores, tile.seen(row, shape));
                // SAFETY: this number belongs to this row and head, so to this task.
                let held = unsafe { &mut lse.slice((first + row) * heads + head, 1)[0] };
                *factors = merge(held, top, sum);
            }
            let call = MatMul {
                b: Strides::rows(keys.width),
                ..MatMul::linear_dx(rows, known, dim)
            };
            product(pool, call, scores, keys.values, made);
            let made = made.chunks_exact(dim).zip(factors.as_chunks::<2>().0);
            for (row, (made, [kept, gained])) in made.enumerate() {
                let at = (first + row) * out_width + head * dim;
                // SAFETY: these elements belong to this row and head, so to this task.
                let out = unsafe { out.slice(at, dim) };
                let pairs = out.iter_mut().zip(made);
                pairs.for_each(|(out, made)| *out = *out * kept + made * gained);
            }
        });
    });
}

/// Merges scores of a greatest one and a sum of exponentials less that into a log of sums. What was made of others
/// counts the first factor of the outcome, and the sum of values by these exponentials the second.
fn merge(held: &mut f32, top: f32, sum: f32) -> [f32; 2] {
    if sum == 0.0 {
        return [1.0, 0.0];
    }
    let own = top + sum.ln();
    let high = held.max(own);
    let total = high + ((*held - high).exp() + (own - high).exp()).ln();
    let factors = [(*held - total).exp(), (top - total).exp()];
    *held = total;
    factors
}

/// Some queries of a block, and the keys that they see, both by their numbers in the block.
struct Tile<'a> {
    block: &'a ScoreBlock,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl<'a> Tile<'a> {
    /// The tile of queries from one on; nothing if these see no key.
    fn of(block: &'a ScoreBlock, first: usize, shape: AttentionShape) -> Option<Self> {
        let queries = first..block.queries.len().min(first + TILE);
        let keys = block.seen_by(&queries, shape);
        (!keys.is_empty()).then_some(Self {
            block,
            queries,
            keys,
        })
    }

    /// The keys of the tile that a row of it sees.
    fn seen(&self, row: usize, shape: AttentionShape) -> Range<usize> {
        let seen = self.block.seen(self.queries.start + row, shape);
        seen.start - self.keys.start..seen.end - self.keys.start
    }

    fn keys_of<'k>(&self, shape: AttentionShape, head: usize, kv: &'k [f32]) -> Keys<'k> {
        let (width, dim) = (shape.kv_cols(), shape.head_dim);
        let base = (self.block.keys.start + self.keys.start) * width;
        Keys {
            width,
            keys: &kv[base + head * dim..],
            values: &kv[base + (shape.kv_heads + head) * dim..],
        }
    }
}

fn tiles(blocks: &ScoreBlocks, shape: AttentionShape) -> impl Iterator<Item = Tile<'_>> {
    blocks.iter().flat_map(move |block| {
        let firsts = (0..block.queries.len()).step_by(TILE);
        firsts.filter_map(move |first| Tile::of(block, first, shape))
    })
}

pub(in crate::cpu) fn backward(
    pool: &Pool,
    shape: AttentionShape,
    blocks: &ScoreBlocks,
    [qkv, kv, out, lse, dout]: [&[f32]; 5],
    dqkv: &mut [f32],
    dkv: &mut [f32],
) {
    let rows = qkv.len() / shape.qkv_cols();
    blocks.check(rows, kv.len() / shape.kv_cols());
    assert!(
        qkv.len() == dqkv.len() && kv.len() == dkv.len() && out.len() == dout.len(),
        "gradients shaped as their values"
    );
    let passed = Passed {
        qkv,
        out,
        lse,
        dout,
    };
    let seen: Vec<_> = blocks.iter().filter(|it| it.is_seen(shape)).collect();
    let (dqkv, dkv) = (Shared::new(dqkv), Shared::new(dkv));
    pool.for_each(seen.len() * shape.kv_heads, |task| {
        let (block, head) = (seen[task / shape.kv_heads], task % shape.kv_heads);
        backward_block(pool, shape, block, head, (passed, kv), [dqkv, dkv]);
    });
}

/// Adds the gradient of one key-value head of a block, and that of the query heads that share it.
fn backward_block(
    pool: &Pool,
    shape: AttentionShape,
    block: &ScoreBlock,
    kv_head: usize,
    (passed, kv): (Passed<'_>, &[f32]),
    [dqkv, dkv]: [Shared; 2],
) {
    let (dim, width) = (shape.head_dim, shape.qkv_cols());
    let (all, rows) = (block.keys.len(), TILE.min(block.queries.len()));
    let group = shape.heads / shape.kv_heads;
    pool.scratch(2 * all * dim + 2 * rows * all + rows * dim, |scratch| {
        let (sums, scratch) = scratch.split_at_mut(2 * all * dim);
        sums.fill(0.0);
        let (dk, dv) = sums.split_at_mut(all * dim);
        let (probs, scratch) = scratch.split_at_mut(rows * all);
        let (dscores, dq) = scratch.split_at_mut(rows * all);
        for head in kv_head * group..(kv_head + 1) * group {
            let firsts = (0..block.queries.len()).step_by(TILE);
            for tile in firsts.filter_map(|first| Tile::of(block, first, shape)) {
                let first = block.queries.start + tile.queries.start;
                let size = [tile.queries.len(), tile.keys.len()];
                let keys = tile.keys_of(shape, kv_head, kv);
                let from = tile.keys.start * dim;
                let scores = [&mut *probs, &mut *dscores];
                let gradients = [&mut *dq, &mut dk[from..], &mut dv[from..]];
                let (place, seen) = ((first, size), |row| tile.seen(row, shape));
                tile_gradients(
                    pool, shape, head, keys, passed, place, seen, scores, gradients,
                );
                for (row, dq) in dq.chunks_exact(dim).take(size[0]).enumerate() {
                    let at = (first + row) * width + head * dim;
                    // SAFETY: these elements belong to this row and query head, so to this task.
                    add(dq, unsafe { dqkv.slice(at, dim) });
                }
            }
        }
        let sums = dk.chunks_exact(dim).zip(dv.chunks_exact(dim));
        for (row, (dk, dv)) in block.keys.clone().zip(sums) {
            let at = row * shape.kv_cols() + kv_head * dim;
            // SAFETY: these elements belong to this row and key-value head, so to this task.
            add(dk, unsafe { dkv.slice(at, dim) });
            // SAFETY: as above.
            add(dv, unsafe { dkv.slice(at + shape.kv_heads * dim, dim) });
        }
    });
}

fn add(own: &[f32], to: &mut [f32]) {
    let pairs = to.iter_mut().zip(own);
    pairs.for_each(|(to, own)| *to += own);
}
