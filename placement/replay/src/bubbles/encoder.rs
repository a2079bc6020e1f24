//! Plans of an encoder on the cards of a language model's pipeline.

use std::fmt;

use super::error::BubbleError;
use super::kernel::{StageKernel, StageKernels};

/// The cut of an encoder: how many stages a pipeline of it has, and how many cards a tensor group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncoderPlan {
    /// Stages of one pipeline: a divisor of the language model's.
    pub stages: usize,
    /// Cards of a tensor group: a divisor of the language model's.
    pub tensor: usize,
}

/// The direction of a pass through the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EncoderPass {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
}

impl fmt::Display for EncoderPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} stages of {} cards", self.stages, self.tensor)
    }
}

impl EncoderPlan {
    /// All plans beside a language model with so many stages of tensor groups of so many cards, smaller ones first.
    ///
    /// # Errors
    /// [`BubbleError::Zero`].
    pub fn all(stages: usize, tensor: usize) -> Result<Vec<Self>, BubbleError> {
        not_zero("the number of stages", stages)?;
        not_zero("the tensor group", tensor)?;
        let divisors = |of: usize| (1..=of).filter(move |it| of.is_multiple_of(*it));
        let plans = divisors(stages)
            .flat_map(|stages| divisors(tensor).map(move |tensor| Self { stages, tensor }));
        Ok(plans.collect())
    }

    /// The pipelines of the encoder beside one pipeline of the language model.
    ///
    /// # Errors
    /// [`BubbleError::Zero`] and [`BubbleError::Uneven`].
    pub fn pipelines(&self, stages: usize, tensor: usize) -> Result<usize, BubbleError> {
        for (what, encoder, language) in [
            ("stages", self.stages, stages),
            ("cards of a tensor group", self.tensor, tensor),
        ] {
            not_zero(what, encoder)?;
            not_zero(what, language)?;
            if !language.is_multiple_of(encoder) {
                return Err(BubbleError::Uneven {
                    what,
                    encoder,
                    language,
                });
            }
        }
        Ok(stages / self.stages * (tensor / self.tensor))
    }
}

/// An encoder cut by a plan: what a micro-batch takes in each stage, and what a card keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderWork {
    /// The plan.
    pub plan: EncoderPlan,
    /// The kernels of a micro-batch in each stage. Several encoders of one plan have theirs one behind the other; a
    /// frozen one has none on the way back, but for its adapter.
    pub stages: Vec<StageKernels>,
    /// Seconds of a message between two stages, and to the language model.
    pub transfer_s: f64,
    /// Bytes of the encoder's states on the card that has most.
    pub bytes: u64,
}

impl EncoderWork {
    /// The kernels of several encoders, cut by the same plan, as if they were one.
    ///
    /// # Errors
    /// [`BubbleError::NoPlan`] for none; [`BubbleError::WrongStages`] where plans differ.
    pub fn pooled(encoders: &[Self]) -> Result<Self, BubbleError> {
        let (first, others) = encoders.split_first().ok_or(BubbleError::NoPlan)?;
        let mut all = first.clone();
        for other in others {
            if other.plan != all.plan || other.stages.len() != all.stages.len() {
                return Err(BubbleError::WrongStages {
                    of: ENCODER,
                    given: other.stages.len(),
                    stages: all.stages.len(),
                });
            }
            for (all, own) in all.stages.iter_mut().zip(&other.stages) {
                all.forward.extend_from_slice(&own.forward);
                // The way back ends where the way there began.
                all.backward.splice(..0, own.backward.iter().copied());
            }
            all.transfer_s += other.transfer_s;
            all.bytes = all.bytes.saturating_add(other.bytes);
        }
        Ok(all)
    }

    /// The kernels of a pass through a stage; none of a stage that there is not.
    #[must_use]
    pub fn kernels(&self, stage: usize, pass: EncoderPass) -> &[StageKernel] {
        match (self.stages.get(stage), pass) {
            (Some(stage), EncoderPass::Forward) => &stage.forward,
            (Some(stage), EncoderPass::Backward) => &stage.backward,
            (None, _) => &[],
        }
    }

    /// Seconds of arithmetic of a micro-batch, in all stages.
    #[must_use]
    pub fn compute_s(&self) -> f64 {
        self.stages.iter().map(StageKernels::compute_s).sum()
    }

    pub(super) fn check(&self) -> Result<(), BubbleError> {
        if self.stages.len() != self.plan.stages {
            return Err(BubbleError::WrongStages {
                of: ENCODER,
                given: self.stages.len(),
                stages: self.plan.stages,
            });
        }
        for (stage, kernels) in self.stages.iter().enumerate() {
            kernels.check(ENCODER, stage)?;
        }
        if !self.transfer_s.is_finite() || self.transfer_s < 0.0 {
            return Err(BubbleError::BadMessage(self.transfer_s));
        }
        Ok(())
    }
}

pub(super) const fn not_zero(what: &'static str, number: usize) -> Result<(), BubbleError> {
    match number {
        0 => Err(BubbleError::Zero(what)),
        _ => Ok(()),
    }
}

/// The encoder, in errors.
const ENCODER: &str = "the encoder";
