//! The CUDA back-end.
//!
//! ```text
//!  Cuda: Backend ── operations as commands ── Queue ── Card (the seam)
//!                                                       ├─ Gpu: a real card, through cudarc
//!                                                       └─ Emulated: the same kernels on the processor
//! ```
//!
//! Kernels are CUDA C++ sources in this crate (`kernels/*.cu`), compiled for the card that is there
//! when they are first needed; those of update rules are made of the rules' text. Nothing of CUDA is
//! needed to build or to start: the driver and its libraries are loaded when a card is opened, and
//! their absence is a [`CudaError`].
//!
//! Numbers are f32 in memory. With [`Precision::Bf16`] the operands of products, attention among
//! them, are rounded to bf16 and multiplied on tensor cores with sums in f32; parameters keep a
//! rounded copy until an optimiser changes them, which writes both. With [`Precision::F32`] nothing
//! is rounded.
//!
//! Operations return before they have run. A fault of the card is met by whoever reads a result, or
//! by the operation that finds the queue full: it panics with the
//! [`GpuFault`](odeon_devices::fault::GpuFault) itself, which whoever
//! catches the panic can take for what it is. [`Cuda::fault`] tells it too.

mod attention;
mod buffer;
pub mod cache;
pub mod card;
mod copies;
mod decode;
mod driver;
mod elements;
pub mod emulated;
mod error;
mod fault;
mod gpu;
mod handle;
pub mod kernel;
pub mod nccl;
mod nvrtc;
mod places;
mod product;
mod queue;
mod ranges;
mod rows;
mod update;
mod vocab;

use std::ops::Range;

use crate::backend::{
    Addends, AttentionShape, Backend, CacheRow, HeadNormShape, MatMul, Precision, RopeShape,
    RouteShape, Store, VocabGrad, VocabStats,
};
use crate::block_table::BlockTable;
use crate::dropout::DropoutMask;
use crate::score_blocks::ScoreBlocks;
use crate::spans::RowSpans;
use crate::update_rule::UpdateRule;

pub use buffer::{CudaBuffer, CudaView, CudaViewMut};
use card::Card;
pub use decode::CudaPacked;
pub use decode::PAGE;
pub use driver::CudaDriver;
pub use elements::{CudaArray, Elements, ElementsMut, ElementsRef};
pub use emulated::Emulated;
pub use error::CudaError;
pub use fault::fault_of;
pub use gpu::{Gpu, GpuGraph, GpuMark, GpuOptions, IpcHandle};
pub use handle::Cuda;
pub use nvrtc::{Nvrtc, compile_cached, rule_cached};
pub use queue::Counters;

impl<C: Card> Backend for Cuda<C> {
    type Buffer = CudaBuffer<C>;
    type View<'a> = CudaView<'a, C>;
    type ViewMut<'a> = CudaViewMut<'a, C>;
    type Packed = CudaPacked<C>;

    fn alloc(&self, len: usize) -> CudaBuffer<C> {
        CudaBuffer::zeros(&self.queue, len, false)
    }

    fn parameters(&self, len: usize) -> CudaBuffer<C> {
        CudaBuffer::zeros(&self.queue, len, self.precision == Precision::Bf16)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn len(buffer: &CudaBuffer<C>) -> usize {
        buffer.len()
    }

    fn view(buffer: &CudaBuffer<C>, range: Range<usize>) -> CudaView<'_, C> {
        buffer.view(range)
    }

    fn view_mut(buffer: &mut CudaBuffer<C>, range: Range<usize>) -> CudaViewMut<'_, C> {
        buffer.view_mut(range)
    }

    fn write(&self, dst: CudaViewMut<'_, C>, src: &[f32]) {
        /// Larger ones do not travel with the lists.
        const STAGED_MAX: usize = 64 << 10;
        assert_eq!(dst.len(), src.len(), "as many elements on both sides");
        let bytes: Vec<u8> = src.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut queue = self.queue();
        if bytes.len() > STAGED_MAX {
            queue.upload(dst.address(), &bytes);
        } else {
            let [staged] = queue.begin([bytes.as_slice()]);
            queue.copy(staged, dst.address(), bytes.len() as u64);
        }
    }

    fn read(&self, src: CudaView<'_, C>, dst: &mut [f32]) {
        assert_eq!(dst.len(), src.len(), "as many elements on both sides");
        let mut bytes = vec![0; 4 * dst.len()];
        if !bytes.is_empty() {
            self.queue().download(src.address(), &mut bytes);
        }
        for (value, bytes) in dst.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }

    fn scope<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        work()
    }

    fn lanes(&self, _: usize) -> usize {
        1
    }

    fn run_lanes<T: Send>(&self, tasks: &mut [T], work: impl Fn(&Self, &mut T) + Sync) {
        tasks.iter_mut().for_each(|task| work(self, task));
    }

    fn matmul(&self, call: MatMul, a: CudaView<'_, C>, b: CudaView<'_, C>, c: CudaViewMut<'_, C>) {
        self.product(call, a, b, &c);
    }

    fn linear(
        &self,
        call: MatMul,
        x: CudaView<'_, C>,
        w: CudaView<'_, C>,
        add: Addends<CudaView<'_, C>>,
        y: &mut CudaBuffer<C>,
    ) {
        self.product_with(call, x, w, add, y);
    }

    fn copy(&self, src: CudaView<'_, C>, dst: CudaViewMut<'_, C>) {
        assert_eq!(src.len(), dst.len(), "as many elements on both sides");
        let bytes = 4 * src.len() as u64;
        self.begun().copy(src.address(), dst.address(), bytes);
    }

    fn fill(&self, dst: CudaViewMut<'_, C>, value: f32) {
        self.fill_with(&dst, value);
    }

    fn scale(&self, scale: f32, dst: CudaViewMut<'_, C>) {
        self.scale_by(scale, &dst);
    }

    fn axpy(&self, scale: f32, src: CudaView<'_, C>, dst: CudaViewMut<'_, C>) {
        self.add_scaled(scale, src, &dst);
    }

    fn narrow(&self, src: CudaView<'_, C>, dst: CudaViewMut<'_, C>) {
        self.narrowed(src, &dst);
    }

    fn widen(&self, src: CudaView<'_, C>, dst: CudaViewMut<'_, C>) {
        self.widened(src, &dst);
    }

    fn add_bias(&self, bias: CudaView<'_, C>, rows: CudaViewMut<'_, C>) {
        self.bias_added(bias, &rows);
    }

    fn sum_rows(&self, rows: CudaView<'_, C>, dst: CudaViewMut<'_, C>) {
        self.row_sums(rows, &dst);
    }

    fn sum_squares(&self, src: CudaView<'_, C>) -> f64 {
        self.squares(src)
    }

    fn rms_norm(
        &self,
        eps: f32,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        y: CudaViewMut<'_, C>,
        inv_rms: CudaViewMut<'_, C>,
    ) {
        self.norm(eps, x, weight, &y, &inv_rms);
    }

    fn rms_norm_backward(
        &self,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        inv_rms: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: (CudaViewMut<'_, C>, Store),
        dweight: Option<CudaViewMut<'_, C>>,
    ) {
        self.norm_backward(x, weight, inv_rms, dy, &dx, dweight.as_ref());
    }

    fn layer_norm(
        &self,
        eps: f32,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        bias: CudaView<'_, C>,
        y: CudaViewMut<'_, C>,
        moments: CudaViewMut<'_, C>,
    ) {
        self.centred(eps, x, [weight, bias], &y, &moments);
    }

    fn layer_norm_backward(
        &self,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        moments: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: (CudaViewMut<'_, C>, Store),
        dweight: Option<CudaViewMut<'_, C>>,
    ) {
        self.centred_backward(x, weight, moments, dy, &dx, dweight.as_ref());
    }

    fn rope(&self, shape: &RopeShape, positions: &[u32], rows: CudaViewMut<'_, C>) {
        self.turn(shape, positions, 1.0, &rows);
    }

    fn rope_backward(&self, shape: &RopeShape, positions: &[u32], rows: CudaViewMut<'_, C>) {
        self.turn(shape, positions, -1.0, &rows);
    }

    fn head_norm(
        &self,
        shape: HeadNormShape,
        x: CudaView<'_, C>,
        weight: CudaView<'_, C>,
        y: CudaViewMut<'_, C>,
        inv_rms: CudaViewMut<'_, C>,
    ) {
        self.norm_heads(shape, x, weight, &y, &inv_rms);
    }

    fn head_norm_backward(
        &self,
        shape: HeadNormShape,
        passed: (CudaView<'_, C>, CudaView<'_, C>),
        weight: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: CudaViewMut<'_, C>,
        dweight: Option<CudaViewMut<'_, C>>,
    ) {
        self.norm_heads_backward(shape, passed, weight, dy, &dx, dweight.as_ref());
    }

    fn attention(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: CudaView<'_, C>,
        out: CudaViewMut<'_, C>,
        lse: CudaViewMut<'_, C>,
    ) {
        self.attend(shape, spans, qkv, &out, &lse);
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: CudaView<'_, C>,
        out: CudaView<'_, C>,
        lse: CudaView<'_, C>,
        dout: CudaView<'_, C>,
        dqkv: CudaViewMut<'_, C>,
    ) {
        self.attend_backward(shape, spans, [qkv, out, lse, dout], &dqkv);
    }

    fn block_attention(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        qkv: CudaView<'_, C>,
        kv: CudaView<'_, C>,
        out: CudaViewMut<'_, C>,
        lse: CudaViewMut<'_, C>,
    ) {
        self.attend_blocks(shape, blocks, [qkv, kv], &out, &lse);
    }

    fn block_attention_backward(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        [qkv, kv, out, lse]: [CudaView<'_, C>; 4],
        dout: CudaView<'_, C>,
        dqkv: CudaViewMut<'_, C>,
        dkv: CudaViewMut<'_, C>,
    ) {
        let passed = [qkv, kv, out, lse, dout];
        self.attend_blocks_backward(shape, blocks, passed, &dqkv, &dkv);
    }

    fn swiglu(&self, cols: usize, x: CudaView<'_, C>, y: CudaViewMut<'_, C>) {
        self.gated(cols, x, &y);
    }

    fn swiglu_backward(
        &self,
        cols: usize,
        x: CudaView<'_, C>,
        dy: CudaView<'_, C>,
        dx: CudaViewMut<'_, C>,
    ) {
        self.gated_backward(cols, x, dy, &dx);
    }

    fn gelu(&self, x: CudaView<'_, C>, y: CudaViewMut<'_, C>) {
        self.gelus(x, &y);
    }

    fn gelu_backward(&self, x: CudaView<'_, C>, dy: CudaView<'_, C>, dx: CudaViewMut<'_, C>) {
        self.gelus_backward(x, dy, &dx);
    }

    fn dropout(&self, mask: &DropoutMask, x: CudaView<'_, C>, y: (CudaViewMut<'_, C>, Store)) {
        self.dropped(mask, x, &y);
    }

    fn gather(&self, cols: usize, rows: &[u32], table: CudaView<'_, C>, dst: CudaViewMut<'_, C>) {
        self.gathered(cols, rows, table, &dst);
    }

    fn scatter_add(
        &self,
        cols: usize,
        rows: &[u32],
        src: CudaView<'_, C>,
        table: CudaViewMut<'_, C>,
    ) {
        self.scattered(cols, rows, None, src, &table);
    }

    fn route(
        &self,
        shape: RouteShape,
        x: CudaView<'_, C>,
        chosen: &mut [u32],
        weights: CudaViewMut<'_, C>,
    ) {
        self.routed(shape, x, chosen, &weights);
    }

    fn route_backward(
        &self,
        shape: RouteShape,
        chosen: &[u32],
        weights: CudaView<'_, C>,
        dweights: CudaView<'_, C>,
        dx: (CudaViewMut<'_, C>, Store),
    ) {
        self.routed_backward(shape, chosen, [weights, dweights], &dx);
    }

    fn combine(
        &self,
        cols: usize,
        rows: &[u32],
        weights: CudaView<'_, C>,
        src: CudaView<'_, C>,
        dst: CudaViewMut<'_, C>,
    ) {
        self.scattered(cols, rows, Some(weights), src, &dst);
    }

    fn combine_backward(
        &self,
        cols: usize,
        rows: &[u32],
        weights: CudaView<'_, C>,
        src: CudaView<'_, C>,
        dout: CudaView<'_, C>,
        dsrc: Option<(CudaViewMut<'_, C>, Store)>,
        dweights: Option<(CudaViewMut<'_, C>, Store)>,
    ) {
        let read = [weights, src, dout];
        self.combined_backward(cols, rows, read, dsrc.as_ref(), dweights.as_ref());
    }

    fn vocab(
        &self,
        scale: f32,
        x: CudaView<'_, C>,
        w: CudaView<'_, C>,
        labels: &[u32],
        out: VocabStats<CudaViewMut<'_, C>>,
    ) {
        self.log_probabilities(scale, x, w, labels, &out);
    }

    fn vocab_backward(
        &self,
        scale: f32,
        x: CudaView<'_, C>,
        w: CudaView<'_, C>,
        labels: &[u32],
        saved: VocabStats<CudaView<'_, C>>,
        grad: VocabGrad<CudaView<'_, C>, CudaViewMut<'_, C>>,
    ) {
        self.log_probabilities_backward(scale, (x, w), labels, &saved, &grad);
    }

    fn softmax(
        &self,
        scales: &[f32],
        x: CudaView<'_, C>,
        probs: CudaViewMut<'_, C>,
        logsumexp: CudaViewMut<'_, C>,
    ) {
        self.probabilities(scales, x, &probs, &logsumexp);
    }

    fn update<R: UpdateRule>(
        &self,
        runs: &[(Range<usize>, R)],
        params: &mut CudaBuffer<C>,
        grads: &CudaBuffer<C>,
        from: usize,
        states: &mut [&mut CudaBuffer<C>],
    ) {
        self.updated(runs, params, grads, from, states);
    }

    fn pack(&self, outputs: usize, inputs: usize, weight: CudaView<'_, C>) -> CudaPacked<C> {
        self.packed(outputs, inputs, weight)
    }

    fn repack(&self, weight: CudaView<'_, C>, packed: &mut CudaPacked<C>) {
        self.packed_again(weight, packed);
    }

    fn packed_linear(
        &self,
        x: CudaView<'_, C>,
        w: &CudaPacked<C>,
        y: CudaViewMut<'_, C>,
        store: Store,
    ) {
        self.packed_product(x, w, &y, store);
    }

    fn cache_block(&self, _wanted: usize) -> usize {
        PAGE
    }

    fn cache_len(&self, shape: AttentionShape, tokens: usize) -> usize {
        self.pages_len(shape, tokens)
    }

    fn cache_copy(&self, len: usize, copies: &[(u32, u32)], cache: CudaViewMut<'_, C>) {
        self.pages_copied(len, copies, &cache);
    }

    fn cache_append(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: CudaView<'_, C>,
        cache: CudaViewMut<'_, C>,
    ) {
        self.cache_filled(shape, table, rows, qkv, &cache);
    }

    fn cache_attention(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: CudaView<'_, C>,
        cache: CudaView<'_, C>,
        out: CudaViewMut<'_, C>,
    ) {
        self.cache_attended(shape, table, rows, qkv, cache, &out);
    }
}
