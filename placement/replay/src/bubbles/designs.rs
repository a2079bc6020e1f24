//! An encoder beside a language model other than in its bubbles: in the first stage, or in all of them alike.

use super::kernel::{StageKernel, StageKernels, sum_s};
use super::timeline::LanguageStep;

/// An encoder whose work all ranks of a pipeline share (MegaScale-Omni, arXiv 2605.08962).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SharedEncoder {
    /// Seconds of the forward pass of a micro-batch, had one rank all of it.
    pub forward_s: f64,
    /// Seconds of its backward pass; 0 where it is frozen.
    pub backward_s: f64,
    /// Seconds in which features of a micro-batch go from all ranks to where the language model reads them, and their
    /// gradients back.
    pub exchange_s: f64,
}

impl StageKernels {
    /// The same kernels, each so many times as long; none where that is 0.
    #[must_use]
    pub fn scaled(&self, times: f64) -> Self {
        let scaled = |kernels: &[StageKernel]| {
            let longer = kernels.iter().map(|it| StageKernel {
                seconds: times * it.seconds,
                ..*it
            });
            longer.filter(|it| it.seconds > 0.0).collect()
        };
        Self {
            forward: scaled(&self.forward),
            backward: scaled(&self.backward),
        }
    }
}

impl LanguageStep {
    /// The same step with an encoder in front of the first stage, as layers of that: `encoder` has the kernels of a
    /// micro-batch.
    #[must_use]
    pub fn with_encoder_first(&self, encoder: &StageKernels) -> Self {
        let mut step = self.clone();
        if let Some(first) = step.stages.first_mut() {
            first.forward.splice(..0, encoder.forward.iter().copied());
            first.backward.extend_from_slice(&encoder.backward);
        }
        step
    }

    /// The same step with an encoder in all stages alike: with each pass a stage does its even share of what the encoder
    /// does for a micro-batch, of a later one on the way there and of an earlier one on the way back. So stages stay as
    /// long as each other, whatever pictures there are. The first micro-batch is encoded before all passes, and the last
    /// one's way back is behind them.
    #[must_use]
    pub fn with_encoder_everywhere(&self, encoder: &SharedEncoder) -> Self {
        let mut step = self.clone();
        let (stages, ranks) = (step.stages.len() as f64, self.ranks());
        let chunks = stages / ranks;
        let of = |seconds: f64| {
            let share = [
                StageKernel::compute(seconds / stages),
                StageKernel::collective(encoder.exchange_s / chunks),
            ];
            share.into_iter().filter(|it| it.seconds > 0.0)
        };
        for stage in &mut step.stages {
            stage.forward.splice(..0, of(encoder.forward_s));
            stage.backward.extend(of(encoder.backward_s));
        }
        step.before_s += encoder.forward_s / ranks + encoder.exchange_s;
        step.behind_s += encoder.backward_s / ranks + encoder.exchange_s;
        step
    }

    /// Seconds that all ranks take for the encoder where none waits for it: what a step is longer by at least.
    #[must_use]
    pub fn encoder_s(&self, encoder: &SharedEncoder) -> f64 {
        let micro_batches = self.schedule.micro_batches() as f64;
        micro_batches * (encoder.forward_s + encoder.backward_s) / self.ranks()
    }

    fn ranks(&self) -> f64 {
        self.schedule.ranks().len() as f64
    }
}

impl SharedEncoder {
    /// That of kernels of a micro-batch on one card, shared by the cards of each rank, too.
    #[must_use]
    pub fn of(kernels: &StageKernels, cards: usize, exchange_s: f64) -> Self {
        Self {
            forward_s: sum_s(&kernels.forward) / cards as f64,
            backward_s: sum_s(&kernels.backward) / cards as f64,
            exchange_s,
        }
    }
}
