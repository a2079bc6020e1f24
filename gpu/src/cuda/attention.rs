//! Attention over packed sequences: tiles, and which kernels take a head.

mod blocks;

use std::cmp::Reverse;
use std::num::NonZeroU32;

use crate::backend::{AttentionShape, Precision};
use crate::cuda::buffer::{CudaView, CudaViewMut};
use crate::cuda::card::{Arg, Card};
use crate::cuda::handle::Cuda;
use crate::cuda::kernel::Kernel;
use crate::cuda::queue::as_bytes;
use crate::spans::RowSpans;

/// Rows of a tile, as in the source.
const TILE: u32 = 64;
/// Rows of the other side that the backward kernels take at once, as in the source.
const STEP: u32 = 32;
/// The numbers beside the rows of the other side: of two parts, two of four bytes a row.
const FACTS_BYTES: u64 = 2 * 2 * 4 * STEP as u64;
/// Heads of more elements are not taken by any kernel.
const HEAD_DIM_MAX: usize = 256;
const THREADS: u32 = 128;

/// Kernels for heads of up to `wide` elements on tensor cores.
struct Wide {
    wide: u32,
    forward: Kernel,
    dkv: Kernel,
    dq: Kernel,
    /// The same three where keys and values lie apart.
    apart: [Kernel; 3],
}

const WIDE: [Wide; 4] = [
    Wide {
        wide: 32,
        forward: Kernel::attention_forward_32,
        dkv: Kernel::attention_dkv_32,
        dq: Kernel::attention_dq_32,
        apart: [
            Kernel::block_attention_forward_32,
            Kernel::block_attention_dkv_32,
            Kernel::block_attention_dq_32,
        ],
    },
    Wide {
        wide: 64,
        forward: Kernel::attention_forward_64,
        dkv: Kernel::attention_dkv_64,
        dq: Kernel::attention_dq_64,
        apart: [
            Kernel::block_attention_forward_64,
            Kernel::block_attention_dkv_64,
            Kernel::block_attention_dq_64,
        ],
    },
    Wide {
        wide: 96,
        forward: Kernel::attention_forward_96,
        dkv: Kernel::attention_dkv_96,
        dq: Kernel::attention_dq_96,
        apart: [
            Kernel::block_attention_forward_96,
            Kernel::block_attention_dkv_96,
            Kernel::block_attention_dq_96,
        ],
    },
    Wide {
        wide: 128,
        forward: Kernel::attention_forward_128,
        dkv: Kernel::attention_dkv_128,
        dq: Kernel::attention_dq_128,
        apart: [
            Kernel::block_attention_forward_128,
            Kernel::block_attention_dkv_128,
            Kernel::block_attention_dq_128,
        ],
    },
];

impl Wide {
    fn row_bytes(&self) -> u64 {
        2 * (u64::from(self.wide) + 8)
    }

    /// Shared memory of the forward kernel: two tiles each of keys and values, of which one holds queries before.
    fn forward_bytes(&self) -> u64 {
        4 * u64::from(TILE) * self.row_bytes()
    }

    /// Shared memory of a backward kernel: a tile's two operands, two parts each of the other side's,
    /// and two numbers for each of those rows.
    fn backward_bytes(&self) -> u64 {
        u64::from(2 * TILE + 4 * STEP) * self.row_bytes() + FACTS_BYTES
    }
}

/// Tiles of all sequences: first row of the sequence, first row of the tile, end of the sequence.
fn tiles(bounds: &[u32]) -> Vec<[u32; 3]> {
    bounds
        .windows(2)
        .flat_map(|pair| {
            let (sequence, end) = (pair[0], pair[1]);
            (sequence..end)
                .step_by(TILE as usize)
                .map(move |start| [sequence, start, end])
        })
        .collect()
}

/// The same for kernels that walk over the rows before a tile: those far from the beginning of their sequence come
/// first, since they take longest.
fn tiles_of_queries(bounds: &[u32]) -> Vec<[u32; 3]> {
    let mut tiles = tiles(bounds);
    tiles.sort_by_key(|[sequence, start, _]| Reverse(start - sequence));
    tiles
}

/// The same for those that walk over the rows behind: those far from the end come first.
fn tiles_of_keys(bounds: &[u32]) -> Vec<[u32; 3]> {
    let mut tiles = tiles(bounds);
    tiles.sort_by_key(|[_, start, end]| Reverse(end - start));
    tiles
}

impl<C: Card> Cuda<C> {
    /// The tensor-core kernels for a head, if there are any and the card has the memory for them.
    fn wide(&self, shape: AttentionShape) -> Option<&'static Wide> {
        let fits = |wide: &&Wide| {
            shape.head_dim <= wide.wide as usize
                && wide.backward_bytes() <= u64::from(self.card.shared_bytes_max())
        };
        match self.precision {
            Precision::F32 => None,
            Precision::Bf16 => WIDE.iter().find(fits),
        }
    }

    #[track_caller]
    fn check_attention(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: CudaView<'_, C>,
        out: usize,
    ) -> usize {
        let rows = qkv.len() / shape.qkv_cols();
        assert!(
            shape.head_dim <= HEAD_DIM_MAX,
            "heads of at most {HEAD_DIM_MAX} elements"
        );
        assert_eq!(out, rows * shape.out_cols(), "one output row a query row");
        let covered = spans.rows();
        assert!(covered <= rows, "{covered} rows in sequences of {rows}");
        assert!(!spans.share(), "the kernels read no prefixes");
        rows
    }

    pub(super) fn attend(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: CudaView<'_, C>,
        out: &CudaViewMut<'_, C>,
        lse: &CudaViewMut<'_, C>,
    ) {
        let rows = self.check_attention(shape, spans, qkv, out.len());
        assert_eq!(lse.len(), rows * shape.heads, "one number a row and head");
        let tiles = tiles_of_queries(spans.bounds());
        let mut queue = self.queue();
        let [tiles_at] = queue.begin([as_bytes(tiles.as_flattened()).as_slice()]);
        let grid = [tiles.len() as u64, shape.heads as u64, 1];
        let (kernel, source, shared) = match self.wide(shape) {
            Some(wide) => {
                let heads = shape.heads + 2 * shape.kv_heads;
                let rounded = queue.scratch(rounded_bytes(rows, heads, wide));
                let args = round_args(qkv, shape.qkv_cols(), shape, heads, rounded, wide);
                queue.launch(Kernel::attention_round, [rows as u64, 1, 1], THREADS, args);
                (wide.forward, Arg::Pointer(rounded), wide.forward_bytes())
            }
            None => (Kernel::attention_forward_f32, qkv.into(), 0),
        };
        let mut args = vec![source, Arg::Pointer(tiles_at), out.into(), lse.into()];
        args.extend(shape_args(shape));
        queue.launch_shared(kernel, grid, THREADS, shared, args);
    }

    pub(super) fn attend_backward(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        [qkv, out, lse, dout]: [CudaView<'_, C>; 4],
        dqkv: &CudaViewMut<'_, C>,
    ) {
        let rows = self.check_attention(shape, spans, qkv, out.len());
        assert!(
            qkv.len() == dqkv.len() && out.len() == dout.len(),
            "gradients shaped as their values"
        );
        let tiles = [
            tiles_of_keys(spans.bounds()),
            tiles_of_queries(spans.bounds()),
        ];
        let staged = tiles.each_ref().map(|tiles| as_bytes(tiles.as_flattened()));
        let mut queue = self.queue();
        let tiles_at = queue.begin(staged.each_ref().map(Vec::as_slice));
        let count = rows * shape.heads;
        let delta_bytes = (4 * count as u64).next_multiple_of(256);
        let qkv_heads = shape.heads + 2 * shape.kv_heads;
        let wide = self.wide(shape);
        let parts = wide.map_or([0, 0], |wide| {
            [qkv_heads, shape.heads].map(|heads| rounded_bytes(rows, heads, wide))
        });
        let delta = queue.scratch(delta_bytes + parts[0] + parts[1]);
        let (grid, args) = delta_launch([out, dout], shape, count, delta);
        queue.launch(Kernel::attention_delta, grid, THREADS, args);
        let (dkv, dq, sources, shared) = match wide {
            Some(wide) => {
                let places = [delta + delta_bytes, delta + delta_bytes + parts[0]];
                for ((view, heads), place) in [(qkv, qkv_heads), (dout, shape.heads)]
                    .into_iter()
                    .zip(places)
                {
                    let step = heads * shape.head_dim;
                    let args = round_args(view, step, shape, heads, place, wide);
                    queue.launch(Kernel::attention_round, [rows as u64, 1, 1], THREADS, args);
                }
                let sources = places.map(Arg::Pointer);
                (wide.dkv, wide.dq, sources, wide.backward_bytes())
            }
            None => (
                Kernel::attention_dkv_f32,
                Kernel::attention_dq_f32,
                [qkv.into(), dout.into()],
                0,
            ),
        };
        let kernels = [(dkv, shape.kv_heads), (dq, shape.heads)];
        for ((kernel, heads), at) in kernels.into_iter().zip(tiles_at) {
            let mut args = sources.to_vec();
            args.extend([
                Arg::Pointer(at),
                lse.into(),
                Arg::Pointer(delta),
                dqkv.into(),
            ]);
            args.extend(shape_args(shape));
            let grid = [tiles[0].len() as u64, heads as u64, 1];
            queue.launch_shared(kernel, grid, THREADS, shared, args);
        }
    }
}

pub(super) fn shape_args(shape: AttentionShape) -> [Arg; 5] {
    [
        Arg::U32(shape.heads as u32),
        Arg::U32(shape.kv_heads as u32),
        Arg::U32(shape.head_dim as u32),
        shape.scale().into(),
        Arg::U32(shape.window.map_or(u32::MAX, NonZeroU32::get)),
    ]
}

/// Grid and arguments for the product of each of so many rows and heads of outputs with its gradient.
fn delta_launch<C: Card>(
    [out, dout]: [CudaView<'_, C>; 2],
    shape: AttentionShape,
    count: usize,
    delta: u64,
) -> ([u64; 3], Vec<Arg>) {
    let args = vec![
        out.into(),
        dout.into(),
        Arg::U32(shape.head_dim as u32),
        Arg::Pointer(delta),
        Arg::U32(count as u32),
    ];
    ([count.div_ceil(4) as u64, 1, 1], args)
}

fn rounded_bytes(rows: usize, heads: usize, wide: &Wide) -> u64 {
    (2 * (rows * heads) as u64 * u64::from(wide.wide)).next_multiple_of(256)
}

/// Those of rounding the first heads of rows that lie `step` elements apart.
fn round_args<C: Card>(
    rows: CudaView<'_, C>,
    step: usize,
    shape: AttentionShape,
    heads: usize,
    to: u64,
    wide: &Wide,
) -> Vec<Arg> {
    vec![
        rows.into(),
        Arg::U64(step as u64),
        Arg::U32(heads as u32),
        Arg::U32(shape.head_dim as u32),
        Arg::Pointer(to),
        Arg::U32(wide.wide),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_each_sequence_once_the_long_ones_first() {
        let bounds = [0, 1, 9, 9, 9 + 70];
        assert_eq!(
            tiles_of_queries(&bounds),
            [[9, 73, 79], [0, 0, 1], [1, 1, 9], [9, 9, 79]]
        );
        assert_eq!(
            tiles_of_keys(&bounds),
            [[9, 9, 79], [1, 1, 9], [9, 73, 79], [0, 0, 1]]
        );
        assert!(tiles(&[0]).is_empty() && tiles(&[]).is_empty());
    }

    #[test]
    fn the_widest_kernels_fit_the_shared_memory_of_ampere_and_hopper() {
        for wide in &WIDE {
            assert!(wide.backward_bytes() <= 99 << 10, "{}", wide.wide);
            assert!(wide.forward_bytes() <= wide.backward_bytes());
        }
    }
}
