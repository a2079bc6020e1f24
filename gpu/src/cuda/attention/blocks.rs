//! Attention to keys and values that lie apart, block by block.

use std::cmp::Reverse;
use std::ops::Range;

use super::{HEAD_DIM_MAX, THREADS, TILE, Wide};
use super::{delta_launch, round_args, rounded_bytes, shape_args};
use crate::backend::AttentionShape;
use crate::cuda::buffer::{CudaView, CudaViewMut};
use crate::cuda::card::{Arg, Card};
use crate::cuda::handle::Cuda;
use crate::cuda::kernel::Kernel;
use crate::cuda::queue::{Queue, as_bytes};
use crate::score_blocks::{ScoreBlock, ScoreBlocks};

/// First row of the other side, first row of the tile, end of the rows of its own side, the block's [`shift`], end of
/// the rows of the other side.
type Tile = [u32; 5];

fn tile(other: &Range<usize>, own: Range<usize>, shift: u32) -> Tile {
    let [first, start, end, last] =
        [other.start, own.start, own.end, other.end].map(|row| row as u32);
    [first, start, end, shift, last]
}

/// The number that makes of the row of a query that where it would stand among the keys of its block; it wraps.
fn shift(block: &ScoreBlock) -> u32 {
    let place = block.keys.start + block.ahead;
    (place as u32).wrapping_sub(block.queries.start as u32)
}

/// Tiles of queries, each with the keys of its block.
fn tiles_of_queries(blocks: &ScoreBlocks, shape: AttentionShape) -> Vec<Tile> {
    let mut tiles = vec![];
    for block in blocks.iter() {
        for first in (0..block.queries.len()).step_by(TILE as usize) {
            let queries = first..block.queries.len().min(first + TILE as usize);
            let seen = block.seen_by(&queries, shape).len();
            let own = block.queries.start + first..block.queries.end;
            let tile = tile(&block.keys, own, shift(block));
            tiles.extend((seen > 0).then_some((seen, tile)));
        }
    }
    longest_first(tiles)
}

/// Tiles of keys that are seen, each with the queries of its block, as they would stand among keys.
fn tiles_of_keys(blocks: &ScoreBlocks, shape: AttentionShape) -> Vec<Tile> {
    let mut tiles = vec![];
    for block in blocks.iter().filter(|it| it.is_seen(shape)) {
        let seen = block.seen_by(&(0..block.queries.len()), shape);
        let place = block.keys.start + block.ahead;
        let queries = place..place + block.queries.len();
        for first in seen.clone().step_by(TILE as usize) {
            let own = block.keys.start + first..block.keys.start + seen.end;
            let seeing = queries.end - queries.start.max(own.start);
            tiles.push((seeing, tile(&queries, own, shift(block))));
        }
    }
    longest_first(tiles)
}

/// Those with the most to do, since they take longest.
fn longest_first(mut tiles: Vec<(usize, Tile)>) -> Vec<Tile> {
    tiles.sort_by_key(|(work, _)| Reverse(*work));
    tiles.into_iter().map(|(_, tile)| tile).collect()
}

/// Operands of rows of some heads, as kernels take them.
struct Rows<'a, C: Card> {
    view: CudaView<'a, C>,
    /// Elements from a row to the next.
    step: usize,
    /// Heads that are read.
    heads: usize,
}

impl<C: Card> Rows<'_, C> {
    fn count(&self) -> usize {
        self.view.len() / self.step
    }

    fn rounded_bytes(&self, wide: &Wide) -> u64 {
        rounded_bytes(self.count(), self.heads, wide)
    }
}

/// Rounds rows where the kernels read rounded ones, each behind the other from `place` on; where they lie then.
fn rounded<C: Card, const N: usize>(
    queue: &mut Queue<C>,
    shape: AttentionShape,
    wide: Option<&Wide>,
    rows: &[Rows<'_, C>; N],
    mut place: u64,
) -> [Arg; N] {
    rows.each_ref().map(|rows| match wide {
        None => rows.view.into(),
        Some(wide) => {
            let to = place;
            place += rows.rounded_bytes(wide);
            let args = round_args(rows.view, rows.step, shape, rows.heads, to, wide);
            let grid = [rows.count() as u64, 1, 1];
            queue.launch(Kernel::attention_round, grid, THREADS, args);
            Arg::Pointer(to)
        }
    })
}

impl<C: Card> Cuda<C> {
    /// Queries, keys with values; and the number of rows of queries.
    #[track_caller]
    fn check_blocks<'a>(
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        [qkv, kv]: [CudaView<'a, C>; 2],
        out: usize,
        lse: usize,
    ) -> ([Rows<'a, C>; 2], usize) {
        let queries = Rows {
            view: qkv,
            step: shape.qkv_cols(),
            heads: shape.heads,
        };
        let keys = Rows {
            view: kv,
            step: shape.kv_cols(),
            heads: 2 * shape.kv_heads,
        };
        let rows = queries.count();
        assert!(
            shape.head_dim <= HEAD_DIM_MAX,
            "heads of at most {HEAD_DIM_MAX} elements"
        );
        blocks.check(rows, keys.count());
        assert_eq!(out, rows * shape.out_cols(), "one output row a query row");
        assert_eq!(lse, rows * shape.heads, "one number a row and head");
        ([queries, keys], rows)
    }

    pub(in crate::cuda) fn attend_blocks(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        operands: [CudaView<'_, C>; 2],
        out: &CudaViewMut<'_, C>,
        lse: &CudaViewMut<'_, C>,
    ) {
        let (sides, _) = Self::check_blocks(shape, blocks, operands, out.len(), lse.len());
        let tiles = tiles_of_queries(blocks, shape);
        let wide = self.wide(shape);
        let mut queue = self.queue();
        let [tiles_at] = queue.begin([as_bytes(tiles.as_flattened()).as_slice()]);
        let bytes = |wide| sides.iter().map(|it| it.rounded_bytes(wide)).sum();
        let place = queue.scratch(wide.map_or(0, bytes));
        let mut args = rounded(&mut queue, shape, wide, &sides, place).to_vec();
        args.extend([Arg::Pointer(tiles_at), out.into(), lse.into()]);
        args.extend(shape_args(shape));
        let (kernel, shared) = match wide {
            Some(wide) => (wide.apart[0], wide.forward_bytes()),
            None => (Kernel::block_attention_forward_f32, 0),
        };
        let grid = [tiles.len() as u64, shape.heads as u64, 1];
        queue.launch_shared(kernel, grid, THREADS, shared, args);
    }

    pub(in crate::cuda) fn attend_blocks_backward(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        [qkv, kv, out, lse, dout]: [CudaView<'_, C>; 5],
        dqkv: &CudaViewMut<'_, C>,
        dkv: &CudaViewMut<'_, C>,
    ) {
        let ([queries, keys], rows) =
            Self::check_blocks(shape, blocks, [qkv, kv], out.len(), lse.len());
        assert!(
            qkv.len() == dqkv.len() && kv.len() == dkv.len() && out.len() == dout.len(),
            "gradients shaped as their values"
        );
        let tiles = [
            tiles_of_keys(blocks, shape),
            tiles_of_queries(blocks, shape),
        ];
        let gradients = Rows {
            view: dout,
            step: shape.out_cols(),
            heads: shape.heads,
        };
        let operands = [queries, keys, gradients];
        let wide = self.wide(shape);
        let mut queue = self.queue();
        let staged = tiles.each_ref().map(|it| as_bytes(it.as_flattened()));
        let places = queue.begin(staged.each_ref().map(Vec::as_slice));
        let count = rows * shape.heads;
        let delta_bytes = (4 * count as u64).next_multiple_of(256);
        let bytes = |wide| {
            operands
                .iter()
                .map(|it| it.rounded_bytes(wide))
                .sum::<u64>()
        };
        let delta = queue.scratch(delta_bytes + wide.map_or(0, bytes));
        let (grid, args) = delta_launch([out, dout], shape, count, delta);
        queue.launch(Kernel::attention_delta, grid, THREADS, args);
        let sources = rounded(&mut queue, shape, wide, &operands, delta + delta_bytes);
        let (kernels, shared) = match wide {
            Some(wide) => ([wide.apart[1], wide.apart[2]], wide.backward_bytes()),
            None => (
                [
                    Kernel::block_attention_dkv_f32,
                    Kernel::block_attention_dq_f32,
                ],
                0,
            ),
        };
        let sides = [(dkv, shape.kv_heads), (dqkv, shape.heads)];
        for (number, (to, heads)) in sides.into_iter().enumerate() {
            let mut args = sources.to_vec();
            args.extend([
                Arg::Pointer(places[number]),
                lse.into(),
                Arg::Pointer(delta),
                to.into(),
            ]);
            args.extend(shape_args(shape));
            let grid = [tiles[number].len() as u64, heads as u64, 1];
            queue.launch_shared(kernels[number], grid, THREADS, shared, args);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn tiles_are_those_that_see_something() {
        let shape = AttentionShape {
            heads: 1,
            kv_heads: 1,
            head_dim: 4,
            window: NonZeroU32::new(70),
        };
        // A hundred queries right behind a hundred keys: the last of both are as far from each other as the first.
        let far = ScoreBlock {
            queries: 10..110,
            keys: 0..100,
            ahead: 100,
        };
        let near = ScoreBlock {
            queries: 0..5,
            keys: 100..105,
            ahead: 0,
        };
        let blocks = ScoreBlocks::new([far, near]);
        let tiles = tiles_of_queries(&blocks, shape);
        assert_eq!(
            tiles,
            [
                [0, 10, 110, 90, 100],
                [0, 74, 110, 90, 100],
                [100, 0, 5, 100, 105]
            ]
        );
        // Keys from the thirty-second on are seen.
        let tiles = tiles_of_keys(&blocks, shape);
        assert_eq!(
            tiles,
            [
                [100, 31, 100, 90, 200],
                [100, 95, 100, 90, 200],
                [100, 100, 105, 100, 105]
            ]
        );
    }
}
