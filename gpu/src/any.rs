//! The back-end of the device that a user named, chosen when it is opened.
//!
//! Each operation is passed on; buffers and views know where they lie. So what stands on a back-end
//! is compiled once for all devices.

use std::ops::Range;

use crate::backend::{
    Addends, AttentionShape, Backend, CacheRow, HeadNormShape, MatMul, Precision, RopeShape,
    RouteShape, Store, VocabGrad, VocabStats,
};
use crate::block_table::BlockTable;
use crate::cpu::{Cpu, CpuBuffer, PackedWeight};
use crate::cuda::{Cuda, CudaBuffer, CudaPacked, CudaView, CudaViewMut, Gpu};
use crate::dropout::DropoutMask;
use crate::score_blocks::ScoreBlocks;
use crate::spans::RowSpans;
use crate::update_rule::UpdateRule;

/// A back-end of either kind. Operands of one kind do not meet those of the other.
///
/// ```
/// use odeon_gpu::{Any, Backend, Cpu};
///
/// let backend = Any::Cpu(Cpu::new(1));
/// assert_eq!(backend.to_vec(&backend.buffer(&[1.0, 2.0])), [1.0, 2.0]);
/// ```
#[derive(Clone, Debug)]
pub enum Any {
    /// The processor.
    Cpu(Cpu),
    /// A card.
    Cuda(Cuda),
}

/// Memory of either kind.
#[derive(Debug)]
pub enum AnyBuffer {
    /// Of the processor.
    Cpu(CpuBuffer),
    /// Of a card.
    Cuda(CudaBuffer<Gpu>),
}

impl Default for AnyBuffer {
    fn default() -> Self {
        Self::Cpu(CpuBuffer::default())
    }
}

/// Shared part of a buffer.
#[derive(Clone, Copy, Debug)]
pub enum AnyView<'a> {
    /// Of the processor's memory.
    Cpu(&'a [f32]),
    /// Of a card's memory.
    Cuda(CudaView<'a, Gpu>),
}

/// Exclusive part of a buffer.
#[derive(Debug)]
pub enum AnyViewMut<'a> {
    /// Of the processor's memory.
    Cpu(&'a mut [f32]),
    /// Of a card's memory.
    Cuda(CudaViewMut<'a, Gpu>),
}

/// A packed weight of either kind.
#[derive(Debug)]
pub enum AnyPacked {
    /// For the processor.
    Cpu(PackedWeight),
    /// For a card.
    Cuda(CudaPacked<Gpu>),
}

/// An operand as the back-end that is called takes it.
trait Pick<T> {
    fn pick(self) -> T;
}

const OTHER: &str = "operands lie where the back-end computes";

macro_rules! pick {
    ($($from:ident => $kind:ident $to:ty;)*) => {$(
        impl<'a> Pick<$to> for $from<'a> {
            #[track_caller]
            fn pick(self) -> $to {
                match self {
                    $from::$kind(inner) => inner,
                    _ => panic!("{OTHER}"),
                }
            }
        }
    )*};
}

pick! {
    AnyView => Cpu &'a [f32];
    AnyView => Cuda CudaView<'a, Gpu>;
    AnyViewMut => Cpu &'a mut [f32];
    AnyViewMut => Cuda CudaViewMut<'a, Gpu>;
}

macro_rules! pick_ref {
    ($($from:ident => $kind:ident $to:ty;)*) => {$(
        impl<'a> Pick<&'a $to> for &'a $from {
            #[track_caller]
            fn pick(self) -> &'a $to {
                match self {
                    $from::$kind(inner) => inner,
                    _ => panic!("{OTHER}"),
                }
            }
        }

        impl<'a> Pick<&'a mut $to> for &'a mut $from {
            #[track_caller]
            fn pick(self) -> &'a mut $to {
                match self {
                    $from::$kind(inner) => inner,
                    _ => panic!("{OTHER}"),
                }
            }
        }
    )*};
}

pick_ref! {
    AnyBuffer => Cpu CpuBuffer;
    AnyBuffer => Cuda CudaBuffer<Gpu>;
    AnyPacked => Cpu PackedWeight;
    AnyPacked => Cuda CudaPacked<Gpu>;
}

impl<A: Pick<T>, T> Pick<Option<T>> for Option<A> {
    fn pick(self) -> Option<T> {
        self.map(Pick::pick)
    }
}

impl<A: Pick<T>, T, const N: usize> Pick<[T; N]> for [A; N] {
    fn pick(self) -> [T; N] {
        self.map(Pick::pick)
    }
}

impl<A: Pick<T>, T> Pick<(T, Store)> for (A, Store) {
    fn pick(self) -> (T, Store) {
        (self.0.pick(), self.1)
    }
}

impl<A: Pick<T>, T> Pick<Addends<T>> for Addends<A> {
    fn pick(self) -> Addends<T> {
        Addends {
            bias: self.bias.pick(),
            residual: self.residual.pick(),
        }
    }
}

impl<A: Pick<T>, T> Pick<VocabStats<T>> for VocabStats<A> {
    fn pick(self) -> VocabStats<T> {
        VocabStats {
            logprob: self.logprob.pick(),
            entropy: self.entropy.pick(),
            logsumexp: self.logsumexp.pick(),
        }
    }
}

impl<A: Pick<T>, T, M: Pick<N>, N> Pick<VocabGrad<T, N>> for VocabGrad<A, M> {
    fn pick(self) -> VocabGrad<T, N> {
        VocabGrad {
            logprob: self.logprob.pick(),
            entropy: self.entropy.pick(),
            dx: self.dx.pick(),
            dw: self.dw.pick(),
        }
    }
}

/// The same call on whichever back-end it is.
macro_rules! on {
    ($self:ident, $backend:ident => $call:expr) => {
        match $self {
            Any::Cpu($backend) => $call,
            Any::Cuda($backend) => $call,
        }
    };
}

impl Backend for Any {
    type Buffer = AnyBuffer;
    type View<'a> = AnyView<'a>;
    type ViewMut<'a> = AnyViewMut<'a>;
    type Packed = AnyPacked;

    fn alloc(&self, len: usize) -> AnyBuffer {
        match self {
            Self::Cpu(cpu) => AnyBuffer::Cpu(cpu.alloc(len)),
            Self::Cuda(cuda) => AnyBuffer::Cuda(cuda.alloc(len)),
        }
    }

    fn parameters(&self, len: usize) -> AnyBuffer {
        match self {
            Self::Cpu(cpu) => AnyBuffer::Cpu(cpu.parameters(len)),
            Self::Cuda(cuda) => AnyBuffer::Cuda(cuda.parameters(len)),
        }
    }

    fn precision(&self) -> Precision {
        on!(self, b => b.precision())
    }

    fn len(buffer: &AnyBuffer) -> usize {
        match buffer {
            AnyBuffer::Cpu(buffer) => Cpu::len(buffer),
            AnyBuffer::Cuda(buffer) => Cuda::<Gpu>::len(buffer),
        }
    }

    fn host_mut(buffer: &mut AnyBuffer) -> Option<&mut [f32]> {
        match buffer {
            AnyBuffer::Cpu(buffer) => Cpu::host_mut(buffer),
            AnyBuffer::Cuda(buffer) => Cuda::<Gpu>::host_mut(buffer),
        }
    }

    fn host(buffer: &AnyBuffer) -> Option<&[f32]> {
        match buffer {
            AnyBuffer::Cpu(buffer) => Cpu::host(buffer),
            AnyBuffer::Cuda(buffer) => Cuda::<Gpu>::host(buffer),
        }
    }

    fn view(buffer: &AnyBuffer, range: Range<usize>) -> AnyView<'_> {
        match buffer {
            AnyBuffer::Cpu(buffer) => AnyView::Cpu(Cpu::view(buffer, range)),
            AnyBuffer::Cuda(buffer) => AnyView::Cuda(Cuda::<Gpu>::view(buffer, range)),
        }
    }

    fn view_mut(buffer: &mut AnyBuffer, range: Range<usize>) -> AnyViewMut<'_> {
        match buffer {
            AnyBuffer::Cpu(buffer) => AnyViewMut::Cpu(Cpu::view_mut(buffer, range)),
            AnyBuffer::Cuda(buffer) => AnyViewMut::Cuda(Cuda::<Gpu>::view_mut(buffer, range)),
        }
    }

    fn write(&self, dst: AnyViewMut<'_>, src: &[f32]) {
        on!(self, b => b.write(dst.pick(), src));
    }

    fn read(&self, src: AnyView<'_>, dst: &mut [f32]) {
        on!(self, b => b.read(src.pick(), dst));
    }

    fn scope<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        on!(self, b => b.scope(work))
    }

    fn lanes(&self, rows: usize) -> usize {
        on!(self, b => b.lanes(rows))
    }

    fn run_lanes<T: Send>(&self, tasks: &mut [T], work: impl Fn(&Self, &mut T) + Sync) {
        match self {
            Self::Cpu(cpu) => cpu.run_lanes(tasks, |cpu, task| work(&Self::Cpu(cpu.clone()), task)),
            Self::Cuda(cuda) => {
                cuda.run_lanes(tasks, |cuda, task| work(&Self::Cuda(cuda.clone()), task));
            }
        }
    }

    fn matmul(&self, call: MatMul, a: AnyView<'_>, b: AnyView<'_>, c: AnyViewMut<'_>) {
        on!(self, backend => backend.matmul(call, a.pick(), b.pick(), c.pick()));
    }

    fn linear(
        &self,
        call: MatMul,
        x: AnyView<'_>,
        w: AnyView<'_>,
        add: Addends<AnyView<'_>>,
        y: &mut AnyBuffer,
    ) {
        on!(self, b => b.linear(call, x.pick(), w.pick(), add.pick(), y.pick()));
    }

    fn copy(&self, src: AnyView<'_>, dst: AnyViewMut<'_>) {
        on!(self, b => b.copy(src.pick(), dst.pick()));
    }

    fn fill(&self, dst: AnyViewMut<'_>, value: f32) {
        on!(self, b => b.fill(dst.pick(), value));
    }

    fn scale(&self, scale: f32, dst: AnyViewMut<'_>) {
        on!(self, b => b.scale(scale, dst.pick()));
    }

    fn axpy(&self, scale: f32, src: AnyView<'_>, dst: AnyViewMut<'_>) {
        on!(self, b => b.axpy(scale, src.pick(), dst.pick()));
    }

    fn narrow(&self, src: AnyView<'_>, dst: AnyViewMut<'_>) {
        on!(self, b => b.narrow(src.pick(), dst.pick()));
    }

    fn widen(&self, src: AnyView<'_>, dst: AnyViewMut<'_>) {
        on!(self, b => b.widen(src.pick(), dst.pick()));
    }

    fn add_bias(&self, bias: AnyView<'_>, rows: AnyViewMut<'_>) {
        on!(self, b => b.add_bias(bias.pick(), rows.pick()));
    }

    fn sum_rows(&self, rows: AnyView<'_>, dst: AnyViewMut<'_>) {
        on!(self, b => b.sum_rows(rows.pick(), dst.pick()));
    }

    fn sum_squares(&self, src: AnyView<'_>) -> f64 {
        on!(self, b => b.sum_squares(src.pick()))
    }

    fn rms_norm(
        &self,
        eps: f32,
        x: AnyView<'_>,
        weight: AnyView<'_>,
        y: AnyViewMut<'_>,
        inv_rms: AnyViewMut<'_>,
    ) {
        on!(self, b => b.rms_norm(eps, x.pick(), weight.pick(), y.pick(), inv_rms.pick()));
    }

    fn rms_norm_backward(
        &self,
        x: AnyView<'_>,
        weight: AnyView<'_>,
        inv_rms: AnyView<'_>,
        dy: AnyView<'_>,
        dx: (AnyViewMut<'_>, Store),
        dweight: Option<AnyViewMut<'_>>,
    ) {
        on!(self, b => b.rms_norm_backward(
            x.pick(),
            weight.pick(),
            inv_rms.pick(),
            dy.pick(),
            dx.pick(),
            dweight.pick(),
        ));
    }

    fn rope(&self, shape: &RopeShape, positions: &[u32], rows: AnyViewMut<'_>) {
        on!(self, b => b.rope(shape, positions, rows.pick()));
    }

    fn rope_backward(&self, shape: &RopeShape, positions: &[u32], rows: AnyViewMut<'_>) {
        on!(self, b => b.rope_backward(shape, positions, rows.pick()));
    }

    fn head_norm(
        &self,
        shape: HeadNormShape,
        x: AnyView<'_>,
        weight: AnyView<'_>,
        y: AnyViewMut<'_>,
        inv_rms: AnyViewMut<'_>,
    ) {
        on!(self, b => b.head_norm(
            shape,
            x.pick(),
            weight.pick(),
            y.pick(),
            inv_rms.pick(),
        ));
    }

    fn head_norm_backward(
        &self,
        shape: HeadNormShape,
        (x, inv_rms): (AnyView<'_>, AnyView<'_>),
        weight: AnyView<'_>,
        dy: AnyView<'_>,
        dx: AnyViewMut<'_>,
        dweight: Option<AnyViewMut<'_>>,
    ) {
        on!(self, b => b.head_norm_backward(
            shape,
            (x.pick(), inv_rms.pick()),
            weight.pick(),
            dy.pick(),
            dx.pick(),
            dweight.pick(),
        ));
    }

    fn layer_norm(
        &self,
        eps: f32,
        x: AnyView<'_>,
        weight: AnyView<'_>,
        bias: AnyView<'_>,
        y: AnyViewMut<'_>,
        moments: AnyViewMut<'_>,
    ) {
        on!(self, b => b.layer_norm(
            eps,
            x.pick(),
            weight.pick(),
            bias.pick(),
            y.pick(),
            moments.pick(),
        ));
    }

    fn layer_norm_backward(
        &self,
        x: AnyView<'_>,
        weight: AnyView<'_>,
        moments: AnyView<'_>,
        dy: AnyView<'_>,
        dx: (AnyViewMut<'_>, Store),
        dweight: Option<AnyViewMut<'_>>,
    ) {
        on!(self, b => b.layer_norm_backward(
            x.pick(),
            weight.pick(),
            moments.pick(),
            dy.pick(),
            (dx.0.pick(), dx.1),
            dweight.pick(),
        ));
    }

    fn shares_prefixes(&self) -> bool {
        match self {
            Self::Cpu(cpu) => cpu.shares_prefixes(),
            Self::Cuda(cuda) => cuda.shares_prefixes(),
        }
    }

    fn attention(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: AnyView<'_>,
        out: AnyViewMut<'_>,
        lse: AnyViewMut<'_>,
    ) {
        on!(self, b => b.attention(shape, spans, qkv.pick(), out.pick(), lse.pick()));
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: AnyView<'_>,
        out: AnyView<'_>,
        lse: AnyView<'_>,
        dout: AnyView<'_>,
        dqkv: AnyViewMut<'_>,
    ) {
        on!(self, b => b.attention_backward(
            shape,
            spans,
            qkv.pick(),
            out.pick(),
            lse.pick(),
            dout.pick(),
            dqkv.pick(),
        ));
    }

    fn block_attention(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        qkv: AnyView<'_>,
        kv: AnyView<'_>,
        out: AnyViewMut<'_>,
        lse: AnyViewMut<'_>,
    ) {
        on!(self, b => b.block_attention(shape, blocks, qkv.pick(), kv.pick(), out.pick(), lse.pick()));
    }

    fn block_attention_backward(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        passed: [AnyView<'_>; 4],
        dout: AnyView<'_>,
        dqkv: AnyViewMut<'_>,
        dkv: AnyViewMut<'_>,
    ) {
        on!(self, b => b.block_attention_backward(
            shape,
            blocks,
            passed.pick(),
            dout.pick(),
            dqkv.pick(),
            dkv.pick()
        ));
    }

    fn swiglu(&self, cols: usize, x: AnyView<'_>, y: AnyViewMut<'_>) {
        on!(self, b => b.swiglu(cols, x.pick(), y.pick()));
    }

    fn swiglu_backward(&self, cols: usize, x: AnyView<'_>, dy: AnyView<'_>, dx: AnyViewMut<'_>) {
        on!(self, b => b.swiglu_backward(cols, x.pick(), dy.pick(), dx.pick()));
    }

    fn gelu(&self, x: AnyView<'_>, y: AnyViewMut<'_>) {
        on!(self, b => b.gelu(x.pick(), y.pick()));
    }

    fn gelu_backward(&self, x: AnyView<'_>, dy: AnyView<'_>, dx: AnyViewMut<'_>) {
        on!(self, b => b.gelu_backward(x.pick(), dy.pick(), dx.pick()));
    }

    fn dropout(&self, mask: &DropoutMask, x: AnyView<'_>, y: (AnyViewMut<'_>, Store)) {
        on!(self, b => b.dropout(mask, x.pick(), y.pick()));
    }

    fn gather(&self, cols: usize, rows: &[u32], table: AnyView<'_>, dst: AnyViewMut<'_>) {
        on!(self, b => b.gather(cols, rows, table.pick(), dst.pick()));
    }

    fn scatter_add(&self, cols: usize, rows: &[u32], src: AnyView<'_>, table: AnyViewMut<'_>) {
        on!(self, b => b.scatter_add(cols, rows, src.pick(), table.pick()));
    }

    fn route(
        &self,
        shape: RouteShape,
        x: AnyView<'_>,
        chosen: &mut [u32],
        weights: AnyViewMut<'_>,
    ) {
        on!(self, b => b.route(shape, x.pick(), chosen, weights.pick()));
    }

    fn route_backward(
        &self,
        shape: RouteShape,
        chosen: &[u32],
        weights: AnyView<'_>,
        dweights: AnyView<'_>,
        dx: (AnyViewMut<'_>, Store),
    ) {
        on!(self, b => b.route_backward(
            shape,
            chosen,
            weights.pick(),
            dweights.pick(),
            dx.pick(),
        ));
    }

    fn combine(
        &self,
        cols: usize,
        rows: &[u32],
        weights: AnyView<'_>,
        src: AnyView<'_>,
        dst: AnyViewMut<'_>,
    ) {
        on!(self, b => b.combine(cols, rows, weights.pick(), src.pick(), dst.pick()));
    }

    fn combine_backward(
        &self,
        cols: usize,
        rows: &[u32],
        weights: AnyView<'_>,
        src: AnyView<'_>,
        dout: AnyView<'_>,
        dsrc: Option<(AnyViewMut<'_>, Store)>,
        dweights: Option<(AnyViewMut<'_>, Store)>,
    ) {
        on!(self, b => b.combine_backward(
            cols,
            rows,
            weights.pick(),
            src.pick(),
            dout.pick(),
            dsrc.pick(),
            dweights.pick(),
        ));
    }

    fn vocab(
        &self,
        scale: f32,
        x: AnyView<'_>,
        w: AnyView<'_>,
        labels: &[u32],
        out: VocabStats<AnyViewMut<'_>>,
    ) {
        on!(self, b => b.vocab(scale, x.pick(), w.pick(), labels, out.pick()));
    }

    fn vocab_backward(
        &self,
        scale: f32,
        x: AnyView<'_>,
        w: AnyView<'_>,
        labels: &[u32],
        saved: VocabStats<AnyView<'_>>,
        grad: VocabGrad<AnyView<'_>, AnyViewMut<'_>>,
    ) {
        on!(self, b => b.vocab_backward(
            scale,
            x.pick(),
            w.pick(),
            labels,
            saved.pick(),
            grad.pick(),
        ));
    }

    fn softmax(
        &self,
        scales: &[f32],
        x: AnyView<'_>,
        probs: AnyViewMut<'_>,
        logsumexp: AnyViewMut<'_>,
    ) {
        on!(self, b => b.softmax(scales, x.pick(), probs.pick(), logsumexp.pick()));
    }

    fn update<R: UpdateRule>(
        &self,
        runs: &[(Range<usize>, R)],
        params: &mut AnyBuffer,
        grads: &AnyBuffer,
        from: usize,
        states: &mut [&mut AnyBuffer],
    ) {
        let states = states.iter_mut().map(|state| &mut **state);
        on!(self, b => {
            let mut states: Vec<_> = states.map(Pick::pick).collect();
            b.update(runs, params.pick(), grads.pick(), from, &mut states);
        });
    }

    fn pack(&self, outputs: usize, inputs: usize, weight: AnyView<'_>) -> AnyPacked {
        match self {
            Self::Cpu(cpu) => AnyPacked::Cpu(cpu.pack(outputs, inputs, weight.pick())),
            Self::Cuda(cuda) => AnyPacked::Cuda(cuda.pack(outputs, inputs, weight.pick())),
        }
    }

    fn repack(&self, weight: AnyView<'_>, packed: &mut AnyPacked) {
        on!(self, b => b.repack(weight.pick(), packed.pick()));
    }

    fn packed_linear(&self, x: AnyView<'_>, w: &AnyPacked, y: AnyViewMut<'_>, store: Store) {
        on!(self, b => b.packed_linear(x.pick(), w.pick(), y.pick(), store));
    }

    fn cache_block(&self, wanted: usize) -> usize {
        on!(self, b => b.cache_block(wanted))
    }

    fn cache_len(&self, shape: AttentionShape, tokens: usize) -> usize {
        on!(self, b => b.cache_len(shape, tokens))
    }

    fn cache_copy(&self, len: usize, copies: &[(u32, u32)], cache: AnyViewMut<'_>) {
        on!(self, b => b.cache_copy(len, copies, cache.pick()));
    }

    fn cache_append(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: AnyView<'_>,
        cache: AnyViewMut<'_>,
    ) {
        on!(self, b => b.cache_append(shape, table, rows, qkv.pick(), cache.pick()));
    }

    fn cache_attention(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: AnyView<'_>,
        cache: AnyView<'_>,
        out: AnyViewMut<'_>,
    ) {
        on!(self, b => b.cache_attention(
            shape,
            table,
            rows,
            qkv.pick(),
            cache.pick(),
            out.pick(),
        ));
    }
}
