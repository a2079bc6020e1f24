//! Kernels of a micro-batch in one stage, as the bubbles between them are seen.

use super::error::BubbleError;

/// The part of a card that a kernel occupies: two of different parts run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelStream {
    /// Its arithmetic.
    Compute,
    /// Its links to the cards of its tensor group.
    Collective,
}

/// One kernel, on all cards of a tensor group at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageKernel {
    /// The part of the card that it occupies.
    pub stream: KernelStream,
    /// Its duration in seconds: finite, more than 0.
    pub seconds: f64,
}

impl StageKernel {
    /// A kernel that computes.
    #[must_use]
    pub const fn compute(seconds: f64) -> Self {
        Self {
            stream: KernelStream::Compute,
            seconds,
        }
    }

    /// A collective of the tensor group.
    #[must_use]
    pub const fn collective(seconds: f64) -> Self {
        Self {
            stream: KernelStream::Collective,
            seconds,
        }
    }
}

/// The kernels of one micro-batch in one stage, each behind the one before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageKernels {
    /// Those of the forward pass.
    pub forward: Vec<StageKernel>,
    /// Those of the backward pass, with both gradients; none where nothing is trained.
    pub backward: Vec<StageKernel>,
}

impl StageKernels {
    /// Seconds of both passes, one kernel behind the other.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        sum_s(&self.forward) + sum_s(&self.backward)
    }

    /// Seconds in which both passes compute.
    #[must_use]
    pub fn compute_s(&self) -> f64 {
        let kernels = self.forward.iter().chain(&self.backward);
        let computing = kernels.filter(|it| it.stream == KernelStream::Compute);
        computing.map(|it| it.seconds).sum()
    }

    pub(super) fn check(&self, of: &'static str, stage: usize) -> Result<(), BubbleError> {
        for (kernel, it) in self.forward.iter().chain(&self.backward).enumerate() {
            if !it.seconds.is_finite() || it.seconds <= 0.0 {
                return Err(BubbleError::BadKernel {
                    of,
                    stage,
                    kernel,
                    seconds: it.seconds,
                });
            }
        }
        Ok(())
    }
}

pub(super) fn sum_s(kernels: &[StageKernel]) -> f64 {
    kernels.iter().map(|it| it.seconds).sum()
}
