//! The fused vocabulary operation: logits of some rows and a chunk of entries at a time.

use crate::backend::{Store, VocabGrad, VocabStats};
use crate::cuda::buffer::{CudaView, CudaViewMut};
use crate::cuda::card::{Addend, Arg, Card, Format, Gemm, Operand};
use crate::cuda::handle::Cuda;
use crate::cuda::kernel::Kernel;
use crate::cuda::product::turned;
use crate::cuda::queue::Queue;
use crate::cuda::queue::as_bytes;

/// Logits of a row that a thread holds, as in the source.
const HELD: usize = 16;
const THREADS: u32 = 256;
/// Vocabulary entries of a chunk.
const CHUNK: usize = HELD * THREADS as usize;
/// Rows of a block: with the chunk, at most 256 MiB of logits.
const ROWS: usize = 16_384;

/// One block of rows and one chunk of entries.
struct Part<'a, C: Card> {
    rows: usize,
    /// First entry.
    start: usize,
    /// Entries.
    cols: usize,
    inputs: usize,
    scale: f32,
    x: Operand,
    w: Operand,
    w_view: CudaView<'a, C>,
    logits: u64,
}

impl<C: Card> Part<'_, C> {
    fn gemm(&self, [m, n, k]: [usize; 3], a: Operand, b: Operand, c: u64, add: bool) -> Gemm {
        Gemm {
            batch: 1,
            m: m as u64,
            n: n as u64,
            k: k as u64,
            a,
            b,
            c,
            ldc: n as u64,
            c_batch: 0,
            scale: self.scale.to_bits(),
            addend: if add {
                Addend::Destination
            } else {
                Addend::Zero
            },
            bias: None,
        }
    }

    /// `logits = scale * x w^T`.
    fn logits(&self, queue: &mut Queue<C>) {
        let size = [self.rows, self.cols, self.inputs];
        queue.gemm(self.gemm(size, self.x, turned(self.w), self.logits, false));
    }
}

impl<C: Card> Cuda<C> {
    /// Does `work` for each chunk, the chunks of a block of rows one after the other. Scratch
    /// memory holds `extra` bytes, given by their address, operands and logits.
    fn parts<'a>(
        &self,
        queue: &mut Queue<C>,
        scale: f32,
        (x, w): (CudaView<'a, C>, CudaView<'a, C>),
        rows: usize,
        extra: u64,
        mut work: impl FnMut(&mut Queue<C>, usize, u64, &Part<'a, C>),
    ) {
        let inputs = x.len() / rows;
        let outputs = w.len() / inputs;
        let (most_rows, most_cols) = (rows.min(ROWS), outputs.min(CHUNK));
        let extra = extra.next_multiple_of(256);
        let x_bytes = self.row_operand_bytes(most_rows, inputs);
        let w_bytes = self.row_operand_bytes(most_cols, inputs);
        let logits_bytes = (4 * most_rows * most_cols) as u64;
        let extra_at = queue.scratch(extra + x_bytes + w_bytes + logits_bytes);
        let x_at = extra_at + extra;
        for first in (0..rows).step_by(ROWS) {
            let rows = ROWS.min(rows - first);
            let x = x.part(first * inputs..(first + rows) * inputs);
            let x = self.row_operand(queue, x, inputs, x_at);
            for start in (0..outputs).step_by(CHUNK) {
                let cols = CHUNK.min(outputs - start);
                let w_view = w.part(start * inputs..(start + cols) * inputs);
                let part = Part {
                    rows,
                    start,
                    cols,
                    inputs,
                    scale,
                    x,
                    w: self.row_operand(queue, w_view, inputs, x_at + x_bytes),
                    w_view,
                    logits: x_at + x_bytes + w_bytes,
                };
                part.logits(queue);
                work(queue, first, extra_at, &part);
            }
        }
    }

    pub(super) fn log_probabilities(
        &self,
        scale: f32,
        x: CudaView<'_, C>,
        w: CudaView<'_, C>,
        labels: &[u32],
        out: &VocabStats<CudaViewMut<'_, C>>,
    ) {
        let rows = labels.len();
        if rows == 0 {
            return;
        }
        for stat in [&out.logprob, &out.entropy, &out.logsumexp] {
            assert_eq!(stat.len(), rows, "one number a row");
        }
        let mut queue = self.queue();
        let [labels_at] = queue.begin([as_bytes(labels).as_slice()]);
        let mut sums = 0;
        let extra = 12 * rows as u64;
        self.parts(
            &mut queue,
            scale,
            (x, w),
            rows,
            extra,
            |queue, first, extra, part| {
                sums = extra;
                let args = vec![
                    Arg::Pointer(part.logits),
                    Arg::U32(part.cols as u32),
                    Arg::U32(part.start as u32),
                    Arg::Pointer(labels_at + 4 * first as u64),
                    Arg::Pointer(sums + 12 * first as u64),
                    Arg::Pointer(out.logprob.address() + 4 * first as u64),
                ];
                queue.launch(Kernel::vocab_fold, [part.rows as u64, 1, 1], THREADS, args);
            },
        );
        let args = vec![
            Arg::Pointer(sums),
            (&out.logprob).into(),
            (&out.entropy).into(),
            (&out.logsumexp).into(),
            Arg::U32(rows as u32),
        ];
        let grid = [rows.div_ceil(128) as u64, 1, 1];
        queue.launch(Kernel::vocab_finish, grid, 128, args);
    }

    pub(super) fn log_probabilities_backward(
        &self,
        scale: f32,
        (x, w): (CudaView<'_, C>, CudaView<'_, C>),
        labels: &[u32],
        saved: &VocabStats<CudaView<'_, C>>,
        grad: &VocabGrad<CudaView<'_, C>, CudaViewMut<'_, C>>,
    ) {
        let rows = labels.len();
        if rows == 0 {
            return;
        }
        let format = self.format();
        let ld = |cols: usize| match format {
            Format::F32 => cols,
            Format::Bf16 => cols.next_multiple_of(8),
        };
        let mut queue = self.queue();
        let [labels_at] = queue.begin([as_bytes(labels).as_slice()]);
        let outputs = w.len() / (x.len() / rows);
        // Rounded gradients of the logits.
        let extra = match format {
            Format::F32 => 0,
            Format::Bf16 => (2 * rows.min(ROWS) * ld(outputs.min(CHUNK))) as u64,
        };
        self.parts(
            &mut queue,
            scale,
            (x, w),
            rows,
            extra,
            |queue, first, extra, part| {
                let row = |address: u64| Arg::Pointer(address + 4 * first as u64);
                let given = |view: Option<CudaView<'_, C>>| {
                    view.map_or(Arg::Pointer(0), |view| row(view.address()))
                };
                let mut args = vec![
                    Arg::Pointer(part.logits),
                    Arg::U32(part.cols as u32),
                    Arg::U32(part.start as u32),
                    row(labels_at),
                    row(saved.logsumexp.address()),
                    row(saved.entropy.address()),
                    given(grad.logprob),
                    given(grad.entropy),
                ];
                let (kernel, address) = match format {
                    Format::F32 => (Kernel::vocab_gradient, part.logits),
                    Format::Bf16 => {
                        args.extend([Arg::Pointer(extra), Arg::U32(ld(part.cols) as u32)]);
                        (Kernel::vocab_gradient_bf16, extra)
                    }
                };
                queue.launch(kernel, [part.rows as u64, 1, 1], THREADS, args);
                let dlogits = Operand {
                    address,
                    format,
                    ld: ld(part.cols) as u64,
                    turned: false,
                    batch: 0,
                };
                if let Some((dx, store)) = &grad.dx {
                    let add = part.start > 0 || *store == Store::Add;
                    let to = dx.address() + 4 * (first * part.inputs) as u64;
                    let size = [part.rows, part.inputs, part.cols];
                    queue.gemm(part.gemm(size, dlogits, part.w, to, add));
                }
                if let Some(dw) = &grad.dw {
                    let offset = part.start * part.inputs;
                    assert!(
                        offset + part.w_view.len() <= dw.len(),
                        "a gradient shaped as the head"
                    );
                    let to = dw.address() + 4 * offset as u64;
                    let size = [part.cols, part.inputs, part.rows];
                    queue.gemm(part.gemm(size, turned(dlogits), part.x, to, true));
                }
            },
        );
    }
}
