//! Sampling: packed weights, and the paged cache of keys and values.

use crate::backend::{AttentionShape, CacheRow, Precision, Store};
use crate::block_table::BlockTable;
use crate::cuda::attention::shape_args;
use crate::cuda::buffer::{CudaBuffer, CudaView, CudaViewMut};
use crate::cuda::card::{Arg, Card, Format};
use crate::cuda::handle::Cuda;
use crate::cuda::kernel::Kernel;
use crate::cuda::queue::as_bytes;

/// Positions of a page, as in the source: the block of a cache on a card.
pub const PAGE: usize = 64;
/// Pages of a thread block, as in the source.
const SPLIT_PAGES: usize = 4;
/// Warps that share the inputs of a product, as in the source.
const PRODUCT_WARPS: u64 = 8;
/// Heads of more elements are not taken by the kernels.
const HEAD_DIM_MAX: usize = 256;

/// A weight for products with few rows: its rows padded with zeros, rounded when products are.
#[derive(Debug)]
pub struct CudaPacked<C: Card> {
    outputs: usize,
    inputs: usize,
    memory: CudaBuffer<C>,
}

/// Elements of a rounded row: a multiple of what two tiles take.
fn rounded_row(inputs: usize) -> usize {
    inputs.next_multiple_of(32)
}

impl<C: Card> Cuda<C> {
    pub(super) fn packed(
        &self,
        outputs: usize,
        inputs: usize,
        weight: CudaView<'_, C>,
    ) -> CudaPacked<C> {
        let len = match self.precision {
            Precision::F32 => outputs * inputs,
            Precision::Bf16 => outputs.next_multiple_of(16) * rounded_row(inputs) / 2,
        };
        let mut packed = CudaPacked {
            outputs,
            inputs,
            memory: CudaBuffer::zeros(&self.queue, len, false),
        };
        self.packed_again(weight, &mut packed);
        packed
    }

    pub(super) fn packed_again(&self, weight: CudaView<'_, C>, packed: &mut CudaPacked<C>) {
        let CudaPacked {
            outputs,
            inputs,
            memory,
        } = packed;
        assert_eq!(
            weight.len(),
            *outputs * *inputs,
            "the weight that was packed"
        );
        let mut queue = self.begun();
        match self.precision {
            Precision::F32 => {
                queue.copy(weight.address(), memory.address(), 4 * weight.len() as u64);
            }
            Precision::Bf16 => {
                let args = round_args(weight, *inputs, memory.address());
                let cols = rounded_row(*inputs).div_ceil(1024) as u64;
                let grid = [*outputs as u64, cols, 1];
                queue.launch(Kernel::round_rows, grid, 256, args);
            }
        }
    }

    pub(super) fn packed_product(
        &self,
        x: CudaView<'_, C>,
        w: &CudaPacked<C>,
        y: &CudaViewMut<'_, C>,
        store: Store,
    ) {
        let rows = x.len() / w.inputs;
        assert!(
            x.len() == rows * w.inputs && y.len() == rows * w.outputs,
            "one output row an input row"
        );
        let mut queue = self.begun();
        let add = (store == Store::Add).into();
        let sizes = |ld: usize| [rows, w.outputs, ld].map(|n| Arg::U32(n as u32));
        let weight = Arg::Pointer(w.memory.address());
        match self.precision {
            Precision::F32 => {
                let mut args = vec![x.into(), weight, y.into()];
                args.extend(sizes(w.inputs));
                args.push(add);
                let grid = [w.outputs.div_ceil(4) as u64, 1, 1];
                queue.launch(Kernel::packed_linear_f32, grid, 128, args);
            }
            Precision::Bf16 => {
                let ld = rounded_row(w.inputs);
                let rounded = queue.scratch(2 * (rows * ld) as u64);
                let grid = [rows as u64, ld.div_ceil(1024) as u64, 1];
                let args = round_args(x, w.inputs, rounded);
                queue.launch(Kernel::round_rows, grid, 256, args);
                let (kernel, tiles) = match rows {
                    0..=8 => (Kernel::packed_linear_1, 1),
                    9..=16 => (Kernel::packed_linear_2, 2),
                    17..=32 => (Kernel::packed_linear_4, 4),
                    _ => (Kernel::packed_linear_8, 8),
                };
                let mut args = vec![Arg::Pointer(rounded), weight, y.into()];
                args.extend(sizes(ld));
                args.push(add);
                let grid = [
                    w.outputs.div_ceil(16) as u64,
                    (rows as u64).div_ceil(8 * tiles),
                    1,
                ];
                let shared = 4 * PRODUCT_WARPS * tiles * 128;
                queue.launch_shared(kernel, grid, 32 * PRODUCT_WARPS as u32, shared, args);
            }
        }
    }

    /// f32 elements that pages for so many positions take.
    pub(super) fn pages_len(&self, shape: AttentionShape, tokens: usize) -> usize {
        tokens.div_ceil(PAGE) * self.page_len(shape)
    }

    pub(super) fn pages_copied(
        &self,
        len: usize,
        copies: &[(u32, u32)],
        cache: &CudaViewMut<'_, C>,
    ) {
        let (bytes, pages) = (4 * len as u64, (cache.len() / len.max(1)) as u32);
        let mut queue = self.begun();
        for &(from, to) in copies {
            assert!(
                from < pages && to < pages,
                "{from} to {to} of {pages} pages"
            );
            let at = |page: u32| cache.address() + u64::from(page) * bytes;
            queue.copy(at(from), at(to), bytes);
        }
    }

    /// f32 elements of a page.
    fn page_len(&self, shape: AttentionShape) -> usize {
        let numbers = 2 * PAGE * shape.kv_heads * shape.head_dim;
        numbers * self.format().bytes() as usize / 4
    }

    fn check_cache(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        cache: usize,
    ) {
        assert!(
            shape.head_dim.is_multiple_of(2) && shape.head_dim <= HEAD_DIM_MAX,
            "heads of an even number of elements, at most {HEAD_DIM_MAX}"
        );
        assert_eq!(table.tokens(), PAGE, "positions of a block on a card");
        let pages = (cache / self.page_len(shape)) as u32;
        for row in rows {
            let reached = row.position as usize / PAGE + 1;
            for page in &table.blocks(row.slot)[..reached] {
                assert!(*page < pages, "page {page} of {pages}");
            }
        }
    }

    /// The first three arguments of the cache's kernels.
    fn cache_args(
        queue: &mut crate::cuda::queue::Queue<C>,
        table: &BlockTable,
        rows: &[CacheRow],
    ) -> [Arg; 3] {
        let places: Vec<u32> = rows
            .iter()
            .flat_map(|row| [row.slot, row.position])
            .collect();
        let [places, pages] =
            queue.begin([as_bytes(&places).as_slice(), &as_bytes(table.entries())]);
        [
            Arg::Pointer(places),
            Arg::Pointer(pages),
            Arg::U32(table.most() as u32),
        ]
    }

    pub(super) fn cache_filled(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: CudaView<'_, C>,
        cache: &CudaViewMut<'_, C>,
    ) {
        self.check_cache(shape, table, rows, cache.len());
        assert!(
            qkv.len() >= rows.len() * shape.qkv_cols(),
            "one row a place"
        );
        let mut queue = self.queue();
        let mut args = Self::cache_args(&mut queue, table, rows).to_vec();
        args.extend::<[Arg; 2]>([qkv.into(), cache.into()]);
        args.extend_from_slice(&shape_args(shape)[..3]);
        let kernel = match self.format() {
            Format::F32 => Kernel::cache_append_f32,
            Format::Bf16 => Kernel::cache_append_bf16,
        };
        queue.launch(kernel, [rows.len() as u64, 1, 1], 128, args);
    }

    pub(super) fn cache_attended(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: CudaView<'_, C>,
        cache: CudaView<'_, C>,
        out: &CudaViewMut<'_, C>,
    ) {
        self.check_cache(shape, table, rows, cache.len());
        assert!(
            qkv.len() >= rows.len() * shape.qkv_cols(),
            "one row a place"
        );
        assert_eq!(out.len(), rows.len() * shape.out_cols(), "one output a row");
        let dim = shape.head_dim;
        // By capacity, not by position, so that every step of a batch is the same list of commands.
        let splits = table.most().div_ceil(SPLIT_PAGES) as u64;
        let mut queue = self.queue();
        let mut args = Self::cache_args(&mut queue, table, rows).to_vec();
        let heads = (rows.len() * shape.heads) as u64;
        let parts = Arg::Pointer(queue.scratch(4 * heads * splits * (dim as u64 + 2)));
        args.extend::<[Arg; 3]>([qkv.into(), cache.into(), parts]);
        args.extend(shape_args(shape));
        let kernel = match self.format() {
            Format::F32 => Kernel::cache_attention_f32,
            Format::Bf16 => Kernel::cache_attention_bf16,
        };
        let grid = [rows.len() as u64, shape.heads as u64, splits];
        let shared = 4 * ((1 + SPLIT_PAGES) * dim + 2 * SPLIT_PAGES) as u64;
        queue.launch_shared(kernel, grid, 32 * SPLIT_PAGES as u32, shared, args);
        let args = vec![
            parts,
            out.into(),
            Arg::U32(splits as u32),
            Arg::U32(dim as u32),
        ];
        let threads = (dim.next_multiple_of(32) as u32).min(128);
        queue.launch(Kernel::cache_combine, [heads, 1, 1], threads, args);
    }
}

/// Rounds contiguous rows to padded ones.
fn round_args<C: Card>(rows: CudaView<'_, C>, cols: usize, to: u64) -> Vec<Arg> {
    vec![
        rows.into(),
        Arg::U64(cols as u64),
        Arg::U64(1),
        Arg::U64(0),
        Arg::U32(cols as u32),
        Arg::Pointer(to),
        Arg::U32(rounded_row(cols) as u32),
        Arg::U64(0),
    ]
}
