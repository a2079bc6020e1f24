//! Threads, fixed blocks of work, and scratch memory.

use std::fmt;
use std::sync::Arc;

use gemm_common::Parallelism;
use parking_lot::Mutex;
use rayon::prelude::*;

use super::buffer::CpuBuffer;
use crate::backend::Precision;

/// Elements of a block of elementwise work: large against the cost of a task, small against L2.
pub(super) const BLOCK: usize = 16 * 1024;

/// A thread pool, or the calling thread alone.
pub(super) struct Pool {
    workers: Option<rayon::ThreadPool>,
    threads: usize,
    /// To what factors of products are rounded.
    precision: Precision,
    scratch: Mutex<Vec<CpuBuffer>>,
    single: Option<Arc<Self>>,
}

impl Pool {
    pub(super) fn new(threads: usize, precision: Precision) -> Self {
        let workers = (threads > 1).then(|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("odeon-cpu-{i}"))
                .build()
                .expect("the system starts as many threads as the configuration asks for")
        });
        let single = (threads > 1).then(|| Arc::new(Self::new(1, precision)));
        Self {
            workers,
            threads,
            precision,
            scratch: Mutex::default(),
            single,
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// The one-threaded pool that tasks inside this one compute on.
    pub(super) fn single(self: &Arc<Self>) -> Arc<Self> {
        self.single.clone().unwrap_or_else(|| Arc::clone(self))
    }

    pub(super) fn parallelism(&self) -> Parallelism {
        match self.threads {
            1 => Parallelism::None,
            n => Parallelism::Rayon(n),
        }
    }

    pub(super) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.workers {
            Some(workers) => workers.install(work),
            None => work(),
        }
    }

    /// Runs `work` for every index, in any order.
    pub(super) fn for_each(&self, tasks: usize, work: impl Fn(usize) + Send + Sync) {
        if self.threads == 1 || tasks <= 1 {
            (0..tasks).for_each(work);
        } else {
            self.install(|| (0..tasks).into_par_iter().with_max_len(1).for_each(work));
        }
    }

    /// Runs `work(index, block)` for each block of `len` elements.
    pub(super) fn blocks<T: Send>(
        &self,
        dst: &mut [T],
        len: usize,
        work: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        if self.threads == 1 || dst.len() <= len {
            dst.chunks_mut(len.max(1))
                .enumerate()
                .for_each(|(i, block)| work(i, block));
        } else {
            self.install(|| {
                dst.par_chunks_mut(len)
                    .enumerate()
                    .for_each(|(i, block)| work(i, block));
            });
        }
    }

    /// Runs `work(index, block of a, block of b)` for blocks of two destinations.
    pub(super) fn blocks2(
        &self,
        (a, a_len): (&mut [f32], usize),
        (b, b_len): (&mut [f32], usize),
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Send + Sync,
    ) {
        if self.threads == 1 || a.len() <= a_len {
            let pairs = a.chunks_mut(a_len.max(1)).zip(b.chunks_mut(b_len.max(1)));
            pairs.enumerate().for_each(|(i, (a, b))| work(i, a, b));
        } else {
            self.install(|| {
                let pairs = a.par_chunks_mut(a_len).zip(b.par_chunks_mut(b_len));
                pairs.enumerate().for_each(|(i, (a, b))| work(i, a, b));
            });
        }
    }

    /// Runs `work(first row, rows)` for blocks of whole rows.
    pub(super) fn row_blocks(
        &self,
        dst: &mut [f32],
        cols: usize,
        work: impl Fn(usize, &mut [f32]) + Send + Sync,
    ) {
        let rows = rows_per_block(cols);
        self.blocks(dst, rows * cols, |i, block| work(i * rows, block));
    }

    /// Runs `work(block of dst, block of src)`.
    pub(super) fn zip(
        &self,
        dst: &mut [f32],
        src: &[f32],
        work: impl Fn(&mut [f32], &[f32]) + Send + Sync,
    ) {
        assert_eq!(dst.len(), src.len(), "operands of one length");
        self.blocks(dst, BLOCK, |i, d| {
            let s = &src[i * BLOCK..][..d.len()];
            work(d, s);
        });
    }

    /// Lends `len` elements of scratch memory with any content.
    pub(super) fn scratch<R>(&self, len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
        let mut buffer = {
            let mut free = self.scratch.lock();
            let fit = free.iter().position(|b| b.as_slice().len() >= len);
            fit.or_else(|| free.len().checked_sub(1))
                .map(|i| free.swap_remove(i))
        }
        .unwrap_or_default();
        if buffer.as_slice().len() < len {
            buffer = CpuBuffer::zeros(len);
        }
        let result = work(&mut buffer.as_mut_slice()[..len]);
        self.scratch.lock().push(buffer);
        result
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        let own: usize = self
            .scratch
            .lock()
            .iter()
            .map(|b| 4 * b.as_slice().len())
            .sum();
        own + self.single.as_ref().map_or(0, |pool| pool.scratch_bytes())
    }
}

/// Rows in a block of about [`BLOCK`] elements.
pub(super) fn rows_per_block(cols: usize) -> usize {
    (BLOCK / cols.max(1)).max(1)
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// A destination that tasks write in disjoint parts which are no contiguous slices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    start: *mut f32,
    len: usize,
}

// SAFETY: `Shared` only hands out memory through `slice`, whose callers promise disjoint parts.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new(dst: &mut [f32]) -> Self {
        Self {
            start: dst.as_mut_ptr(),
            len: dst.len(),
        }
    }

    /// Part of the destination.
    ///
    /// # Safety
    /// The destination is still borrowed by the caller of [`Shared::new`], and no two live parts
    /// have elements in common that are written.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(super) unsafe fn slice(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.len, "part inside the destination");
        // SAFETY: in bounds by the assertion, disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
