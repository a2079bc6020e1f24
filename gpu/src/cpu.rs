//! The processor back-end.
//!
//! Matrix products come from the `gemm` crates (its AVX-512 kernels are chosen at run time), or, with
//! factors rounded to bf16, from kernels of its own where the processor has the instructions; the
//! other loops are compiled for three instruction sets and dispatched at run time. Work is cut into
//! blocks whose size does not depend on timing, and partial sums are added in block order, so the
//! same number of threads gives the same bits.

#[allow(
    clippy::too_many_arguments,
    reason = "kernels take shapes and operands, not structs"
)]
mod attention;
mod buffer;
mod decode;
mod dropout;
mod gemm;
mod halves;
mod head_norm;
mod in_order;
mod layer_norm;
mod norm;
mod pool;
mod route;
mod simd;
mod update;
#[allow(
    clippy::needless_pass_by_value,
    reason = "results are exclusive borrows, moved in"
)]
mod vocab;

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use crate::backend::{
    ABSENT_ROW, AttentionShape, Backend, CacheRow, HeadNormShape, MatMul, Precision, RopeShape,
    RouteShape, Store, VocabGrad, VocabStats,
};
use crate::block_table::BlockTable;
use crate::dropout::DropoutMask;
use crate::score_blocks::ScoreBlocks;
use crate::spans::RowSpans;
use crate::update_rule::UpdateRule;

pub use buffer::CpuBuffer;
pub use decode::PackedWeight;
use pool::Pool;

/// Choices of the processor back-end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that it computes on; 0, the default, takes one per core.
    pub threads: usize,
    /// Set for every sum of a forward pass in one order: see [`Cpu::deterministic`].
    pub deterministic: bool,
    /// To what factors of products are rounded, those of attention among them.
    pub products: Precision,
}

/// Why the processor cannot compute as it is to. Nothing was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CpuError {
    /// It has no instructions for products in bf16; those in f32 it has.
    #[error(
        "this processor has no AVX-512 with BF16, which products in bf16 need: use products = \"f32\""
    )]
    NoBf16,
}

/// The processor: a thread pool and the scratch memory of its operations. Clones share both.
#[derive(Clone, Debug)]
pub struct Cpu {
    pool: Arc<Pool>,
    /// Set where whole sequences are computed as sampling computes them.
    in_order: bool,
}

impl Cpu {
    /// A back-end with these options.
    ///
    /// # Errors
    ///
    /// Products are to be in bf16, and the processor has no instructions for that.
    ///
    /// # Panics
    /// If the system refuses to start the threads.
    ///
    /// ```
    /// use odeon_gpu::{Backend, Cpu, CpuError, CpuOptions, Precision};
    ///
    /// let options = CpuOptions { threads: 2, products: Precision::Bf16, ..CpuOptions::default() };
    /// match Cpu::open(&options) {
    ///     Ok(cpu) => assert_eq!(cpu.precision(), Precision::Bf16),
    ///     Err(error) => assert_eq!(error, CpuError::NoBf16),
    /// }
    /// ```
    pub fn open(options: &CpuOptions) -> Result<Self, CpuError> {
        if options.products == Precision::Bf16 && !gemm::bf16::is_available() {
            return Err(CpuError::NoBf16);
        }
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, Into::into),
            n => n,
        };
        Ok(Self {
            pool: Arc::new(Pool::new(threads, options.products)),
            in_order: options.deterministic,
        })
    }

    /// A back-end that computes in f32 on `threads` threads; 0 takes one per core. One thread means the
    /// calling one, without a pool.
    ///
    /// # Panics
    /// If the system refuses to start the threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::f32(threads, false)
    }

    /// The same, with every sum of a forward pass in one order: a row of a sequence has the same bits
    /// whatever other rows there are, on any number of threads, and whether the keys and values of those
    /// before it come from a cache. What a model says of a token in training is then what it said when it
    /// sampled it. Gradients keep the quick order, and repeat for a number of threads.
    ///
    /// # Panics
    /// If the system refuses to start the threads.
    #[must_use]
    pub fn deterministic(threads: usize) -> Self {
        Self::f32(threads, true)
    }

    fn f32(threads: usize, deterministic: bool) -> Self {
        let options = CpuOptions {
            threads,
            deterministic,
            products: Precision::F32,
        };
        Self::open(&options).expect("every processor has f32")
    }

    /// Threads it computes on.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes of scratch memory held now; constant once every shape in use has run.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.pool.scratch_bytes()
    }
}

impl Cpu {
    /// Multiplies panels that lie in the first cache so many times on each thread, and says how many floating-point
    /// operations that were: the kernel without its surroundings, beside which products are measured. Nothing where
    /// products are in f32.
    #[must_use]
    pub fn bare_products(&self, times: usize) -> Option<usize> {
        (self.precision() == Precision::Bf16).then(|| gemm::bf16::bare(&self.pool, times))
    }

    /// Rounds the left factor `a` of a product to bf16 on the calling thread, into the panels that the kernel reads, and
    /// says how many numbers that were: what a product does before it multiplies. Nothing where products are in f32.
    ///
    /// # Panics
    /// If the factor is not in `a`.
    #[must_use]
    pub fn bare_rounding(&self, call: &MatMul, a: &[f32]) -> Option<usize> {
        (self.precision() == Precision::Bf16)
            .then(|| gemm::bf16::bare_rounding(&self.pool, call, a))
    }
}

impl Backend for Cpu {
    type Buffer = CpuBuffer;
    type View<'a> = &'a [f32];
    type ViewMut<'a> = &'a mut [f32];
    type Packed = PackedWeight;

    fn alloc(&self, len: usize) -> CpuBuffer {
        CpuBuffer::zeros(len)
    }

    fn precision(&self) -> Precision {
        self.pool.precision()
    }

    fn len(buffer: &CpuBuffer) -> usize {
        buffer.as_slice().len()
    }

    fn host(buffer: &CpuBuffer) -> Option<&[f32]> {
        Some(buffer.as_slice())
    }

    fn host_mut(buffer: &mut CpuBuffer) -> Option<&mut [f32]> {
        Some(buffer.as_mut_slice())
    }

    fn view(buffer: &CpuBuffer, range: Range<usize>) -> &[f32] {
        &buffer.as_slice()[range]
    }

    fn view_mut(buffer: &mut CpuBuffer, range: Range<usize>) -> &mut [f32] {
        &mut buffer.as_mut_slice()[range]
    }

    fn write(&self, dst: &mut [f32], src: &[f32]) {
        dst.copy_from_slice(src);
    }

    fn read(&self, src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }

    fn scope<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    fn lanes(&self, rows: usize) -> usize {
        // Below eight rows a lane reads every weight for too little arithmetic.
        (rows / 8).clamp(1, self.threads())
    }

    fn run_lanes<T: Send>(&self, tasks: &mut [T], work: impl Fn(&Self, &mut T) + Sync) {
        if tasks.len() <= 1 {
            tasks.iter_mut().for_each(|task| work(self, task));
        } else {
            let single = Self {
                pool: self.pool.single(),
                ..*self
            };
            self.pool
                .blocks(tasks, 1, |_, task| work(&single, &mut task[0]));
        }
    }

    fn matmul(&self, call: MatMul, a: &[f32], b: &[f32], c: &mut [f32]) {
        // Sums of products in bf16 have one order anyway.
        let is_ordered = self.precision() == Precision::Bf16;
        if self.in_order && !is_ordered && in_order::takes(&call) {
            in_order::matmul(&self.pool, call, a, b, c);
        } else {
            gemm::matmul(&self.pool, call, a, b, c);
        }
    }

    fn copy(&self, src: &[f32], dst: &mut [f32]) {
        self.pool.zip(dst, src, |d, s| d.copy_from_slice(s));
    }

    fn fill(&self, dst: &mut [f32], value: f32) {
        self.pool.blocks(dst, pool::BLOCK, |_, d| d.fill(value));
    }

    fn scale(&self, scale: f32, dst: &mut [f32]) {
        self.pool
            .blocks(dst, pool::BLOCK, |_, d| update::scale(scale, d));
    }

    fn axpy(&self, scale: f32, src: &[f32], dst: &mut [f32]) {
        self.pool.zip(dst, src, |d, s| update::axpy(scale, s, d));
    }

    fn narrow(&self, src: &[f32], dst: &mut [f32]) {
        assert_eq!(src.len(), 2 * dst.len(), "two numbers in each");
        self.pool.blocks(dst, pool::BLOCK, |i, d| {
            halves::narrow(&src[2 * i * pool::BLOCK..][..2 * d.len()], d);
        });
    }

    fn widen(&self, src: &[f32], dst: &mut [f32]) {
        assert_eq!(2 * src.len(), dst.len(), "two numbers in each");
        self.pool.blocks(dst, 2 * pool::BLOCK, |i, d| {
            halves::widen(&src[i * pool::BLOCK..][..d.len() / 2], d);
        });
    }

    fn add_bias(&self, bias: &[f32], rows: &mut [f32]) {
        let cols = bias.len();
        self.pool.row_blocks(rows, cols, |_, block| {
            block
                .chunks_exact_mut(cols)
                .for_each(|row| update::axpy(1.0, bias, row));
        });
    }

    fn sum_rows(&self, rows: &[f32], dst: &mut [f32]) {
        let cols = dst.len();
        rows.chunks_exact(cols)
            .for_each(|row| update::axpy(1.0, row, dst));
    }

    fn sum_squares(&self, src: &[f32]) -> f64 {
        update::sum_squares(&self.pool, src)
    }

    fn rms_norm(&self, eps: f32, x: &[f32], weight: &[f32], y: &mut [f32], inv_rms: &mut [f32]) {
        norm::forward(&self.pool, eps, x, weight, y, inv_rms);
    }

    fn rms_norm_backward(
        &self,
        x: &[f32],
        weight: &[f32],
        inv_rms: &[f32],
        dy: &[f32],
        dx: (&mut [f32], Store),
        dweight: Option<&mut [f32]>,
    ) {
        norm::backward(&self.pool, x, weight, inv_rms, dy, dx, dweight);
    }

    fn layer_norm(
        &self,
        eps: f32,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        y: &mut [f32],
        moments: &mut [f32],
    ) {
        layer_norm::forward(&self.pool, eps, x, [weight, bias], y, moments);
    }

    fn layer_norm_backward(
        &self,
        x: &[f32],
        weight: &[f32],
        moments: &[f32],
        dy: &[f32],
        dx: (&mut [f32], Store),
        dweight: Option<&mut [f32]>,
    ) {
        layer_norm::backward(&self.pool, x, weight, moments, dy, dx, dweight);
    }

    fn rope(&self, shape: &RopeShape, positions: &[u32], rows: &mut [f32]) {
        norm::rope(&self.pool, shape, positions, 1.0, rows);
    }

    fn rope_backward(&self, shape: &RopeShape, positions: &[u32], rows: &mut [f32]) {
        norm::rope(&self.pool, shape, positions, -1.0, rows);
    }

    fn head_norm(
        &self,
        shape: HeadNormShape,
        x: &[f32],
        weight: &[f32],
        y: &mut [f32],
        inv_rms: &mut [f32],
    ) {
        head_norm::forward(&self.pool, shape, x, weight, (y, inv_rms));
    }

    fn head_norm_backward(
        &self,
        shape: HeadNormShape,
        passed: (&[f32], &[f32]),
        weight: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        dweight: Option<&mut [f32]>,
    ) {
        head_norm::backward(&self.pool, shape, passed, weight, dy, dx, dweight);
    }

    fn shares_prefixes(&self) -> bool {
        true
    }

    fn attention(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: &[f32],
        out: &mut [f32],
        lse: &mut [f32],
    ) {
        let forward = match self.in_order {
            true => in_order::attention,
            false => attention::forward,
        };
        forward(&self.pool, shape, spans, qkv, out, lse);
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: &[f32],
        out: &[f32],
        lse: &[f32],
        dout: &[f32],
        dqkv: &mut [f32],
    ) {
        attention::backward(&self.pool, shape, spans, qkv, out, lse, dout, dqkv);
    }

    fn block_attention(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        qkv: &[f32],
        kv: &[f32],
        out: &mut [f32],
        lse: &mut [f32],
    ) {
        attention::blocks::forward(&self.pool, shape, blocks, [qkv, kv], out, lse);
    }

    fn block_attention_backward(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        [qkv, kv, out, lse]: [&[f32]; 4],
        dout: &[f32],
        dqkv: &mut [f32],
        dkv: &mut [f32],
    ) {
        let passed = [qkv, kv, out, lse, dout];
        attention::blocks::backward(&self.pool, shape, blocks, passed, dqkv, dkv);
    }

    fn swiglu(&self, cols: usize, x: &[f32], y: &mut [f32]) {
        self.pool.row_blocks(y, cols, |first, block| {
            let x = &x[first * 2 * cols..][..2 * block.len()];
            norm::swiglu(cols, x, block);
        });
    }

    fn swiglu_backward(&self, cols: usize, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        self.pool.row_blocks(dx, 2 * cols, |first, block| {
            let x = &x[first * 2 * cols..][..block.len()];
            norm::swiglu_backward(cols, x, &dy[first * cols..][..block.len() / 2], block);
        });
    }

    fn gelu(&self, x: &[f32], y: &mut [f32]) {
        self.pool.zip(y, x, |y, x| norm::gelu(x, y));
    }

    fn gelu_backward(&self, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        assert_eq!(x.len(), dy.len(), "operands of one length");
        self.pool.row_blocks(dx, 1, |first, block| {
            let own = first..first + block.len();
            norm::gelu_backward(&x[own.clone()], &dy[own], block);
        });
    }

    fn dropout(&self, mask: &DropoutMask, x: &[f32], y: (&mut [f32], Store)) {
        dropout::dropout(&self.pool, mask, x, y);
    }

    fn gather(&self, cols: usize, rows: &[u32], table: &[f32], dst: &mut [f32]) {
        self.pool.row_blocks(dst, cols, |first, block| {
            for (row, dst) in rows[first..].iter().zip(block.chunks_exact_mut(cols)) {
                match *row {
                    ABSENT_ROW => dst.fill(0.0),
                    row => dst.copy_from_slice(&table[row as usize * cols..][..cols]),
                }
            }
        });
    }

    fn scatter_add(&self, cols: usize, rows: &[u32], src: &[f32], table: &mut [f32]) {
        let there = rows.iter().zip(src.chunks_exact(cols));
        for (row, src) in there.filter(|(row, _)| **row != ABSENT_ROW) {
            update::axpy(1.0, src, &mut table[*row as usize * cols..][..cols]);
        }
    }

    fn route(&self, shape: RouteShape, x: &[f32], chosen: &mut [u32], weights: &mut [f32]) {
        route::forward(&self.pool, shape, x, chosen, weights);
    }

    fn route_backward(
        &self,
        shape: RouteShape,
        chosen: &[u32],
        weights: &[f32],
        dweights: &[f32],
        dx: (&mut [f32], Store),
    ) {
        route::backward(&self.pool, shape, chosen, weights, dweights, dx);
    }

    fn combine(&self, cols: usize, rows: &[u32], weights: &[f32], src: &[f32], dst: &mut [f32]) {
        for ((row, weight), src) in rows.iter().zip(weights).zip(src.chunks_exact(cols)) {
            update::axpy(*weight, src, &mut dst[*row as usize * cols..][..cols]);
        }
    }

    fn combine_backward(
        &self,
        cols: usize,
        rows: &[u32],
        weights: &[f32],
        src: &[f32],
        dout: &[f32],
        dsrc: Option<(&mut [f32], Store)>,
        dweights: Option<(&mut [f32], Store)>,
    ) {
        let upstream = |i: usize| &dout[rows[i] as usize * cols..][..cols];
        if let Some((dsrc, store)) = dsrc {
            self.pool.row_blocks(dsrc, cols, |first, block| {
                for (i, dst) in (first..).zip(block.chunks_exact_mut(cols)) {
                    if store == Store::Set {
                        dst.fill(0.0);
                    }
                    update::axpy(weights[i], upstream(i), dst);
                }
            });
        }
        if let Some((dweights, store)) = dweights {
            self.pool.row_blocks(dweights, 1, |first, block| {
                for (i, dst) in (first..).zip(block) {
                    let product = update::dot(&src[i * cols..][..cols], upstream(i));
                    *dst = if store == Store::Set {
                        product
                    } else {
                        *dst + product
                    };
                }
            });
        }
    }

    fn vocab(&self, scale: f32, x: &[f32], w: &[f32], labels: &[u32], out: VocabStats<&mut [f32]>) {
        let forward = match self.in_order {
            true => in_order::vocab,
            false => vocab::forward,
        };
        forward(&self.pool, scale, x, w, labels, out);
    }

    fn vocab_backward(
        &self,
        scale: f32,
        x: &[f32],
        w: &[f32],
        labels: &[u32],
        saved: VocabStats<&[f32]>,
        grad: VocabGrad<&[f32], &mut [f32]>,
    ) {
        vocab::backward(&self.pool, scale, x, w, labels, &saved, grad);
    }

    fn softmax(&self, scales: &[f32], x: &[f32], probs: &mut [f32], logsumexp: &mut [f32]) {
        vocab::softmax(&self.pool, scales, x, probs, logsumexp);
    }

    fn update<R: UpdateRule>(
        &self,
        runs: &[(Range<usize>, R)],
        params: &mut CpuBuffer,
        grads: &CpuBuffer,
        from: usize,
        states: &mut [&mut CpuBuffer],
    ) {
        for (range, rule) in runs {
            let states = states.iter_mut();
            let kept = range.start - from..range.end - from;
            let states = states.map(|state| &mut state.as_mut_slice()[kept.clone()]);
            update::update(
                &self.pool,
                *rule,
                &mut params.as_mut_slice()[range.clone()],
                &grads.as_slice()[range.clone()],
                &mut states.collect::<Vec<_>>(),
            );
        }
    }

    fn pack(&self, outputs: usize, inputs: usize, weight: &[f32]) -> PackedWeight {
        let mut packed = PackedWeight::new(&self.pool, outputs, inputs);
        self.repack(weight, &mut packed);
        packed
    }

    fn repack(&self, weight: &[f32], packed: &mut PackedWeight) {
        decode::repack(&self.pool, weight, packed);
    }

    fn packed_linear(&self, x: &[f32], w: &PackedWeight, y: &mut [f32], store: Store) {
        decode::packed_linear(&self.pool, x, w, y, store);
    }

    fn cache_block(&self, wanted: usize) -> usize {
        decode::cache_block(wanted)
    }

    fn cache_len(&self, shape: AttentionShape, tokens: usize) -> usize {
        decode::cache_len(shape, tokens)
    }

    fn cache_copy(&self, len: usize, copies: &[(u32, u32)], cache: &mut [f32]) {
        for &(from, to) in copies {
            let from = from as usize * len;
            cache.copy_within(from..from + len, to as usize * len);
        }
    }

    fn cache_append(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: &[f32],
        cache: &mut [f32],
    ) {
        decode::append(shape, table, rows, qkv, cache);
    }

    fn cache_attention(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: &[f32],
        cache: &[f32],
        out: &mut [f32],
    ) {
        decode::attention(&self.pool, shape, table, rows, qkv, cache, out);
    }
}
