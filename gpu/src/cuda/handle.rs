//! A card with what waits to be done on it, as every operation takes it.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::backend::Precision;
use crate::cuda::card::Card;
use crate::cuda::error::CudaError;
use crate::cuda::gpu::{Gpu, GpuOptions};
use crate::cuda::queue::{Counters, Queue};
use odeon_devices::fault::GpuFault;

/// A card, and what waits to be done on it. Clones share both.
#[derive(Debug)]
pub struct Cuda<C: Card = Gpu> {
    pub(super) card: Arc<C>,
    pub(super) queue: Arc<Mutex<Queue<C>>>,
    pub(super) precision: Precision,
}

impl<C: Card> Clone for Cuda<C> {
    fn clone(&self) -> Self {
        Self {
            card: Arc::clone(&self.card),
            queue: Arc::clone(&self.queue),
            precision: self.precision,
        }
    }
}

impl Cuda {
    /// Opens a card of this machine.
    ///
    /// # Errors
    ///
    /// [`CudaError`]: there is no driver, no such card, or not what it takes to compile for it.
    /// Nothing is held then.
    ///
    /// ```
    /// use odeon_gpu::Precision;
    /// use odeon_gpu::cuda::{Cuda, GpuOptions};
    ///
    /// match Cuda::open(0, Precision::Bf16, &GpuOptions::default()) {
    ///     Ok(cuda) => assert!(cuda.fault().is_none()),
    ///     // On a machine without a card: what is missing, and what to do.
    ///     Err(error) => assert!(!error.to_string().is_empty()),
    /// }
    /// ```
    pub fn open(
        device: u32,
        precision: Precision,
        options: &GpuOptions,
    ) -> Result<Self, CudaError> {
        Ok(Self::over(Gpu::open(device, options)?, precision))
    }
}

impl<C: Card> Cuda<C> {
    /// The operations over a card.
    #[must_use]
    pub fn over(card: C, precision: Precision) -> Self {
        let card = Arc::new(card);
        Self {
            queue: Arc::new(Mutex::new(Queue::new(Arc::clone(&card)))),
            card,
            precision,
        }
    }

    /// The card.
    #[must_use]
    pub fn card(&self) -> &C {
        &self.card
    }

    /// The first fault that was met, if any. Nothing that was written since may be relied on.
    #[must_use]
    pub fn fault(&self) -> Option<GpuFault> {
        self.queue.lock().fault().cloned()
    }

    /// Counts of the commands that were begun, and of the graphs that were recorded and replayed.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.queue.lock().counters()
    }

    /// Begins what waits, without waiting for it.
    pub fn flush(&self) {
        self.queue().flush();
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue<C>> {
        self.queue.lock()
    }

    /// The queue, with an operation begun that reads no lists.
    pub(super) fn begun(&self) -> MutexGuard<'_, Queue<C>> {
        let mut queue = self.queue();
        queue.begin([]);
        queue
    }
}
