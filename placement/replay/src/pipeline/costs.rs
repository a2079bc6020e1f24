//! The costs of stages: seconds of each pass, bytes of activations, seconds of messages and collectives.

use super::{PassKind, ScheduleError};

/// The costs of one micro-batch in one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCosts {
    /// Seconds of the forward pass.
    pub forward_s: f64,
    /// Seconds of the gradient by the input.
    pub input_gradient_s: f64,
    /// Seconds of the gradient by the weights.
    pub weight_gradient_s: f64,
    /// Bytes of the activation that is kept from the begin of the forward pass until the backward pass ends.
    pub activation_bytes: u64,
    /// The part of these bytes that the weight gradient needs, kept until that ends; the rest is given back
    /// after the gradient by the input.
    pub kept_bytes: u64,
}

impl StageCosts {
    /// Costs in seconds, without memory.
    #[must_use]
    pub const fn new(forward_s: f64, input_gradient_s: f64, weight_gradient_s: f64) -> Self {
        Self {
            forward_s,
            input_gradient_s,
            weight_gradient_s,
            activation_bytes: 0,
            kept_bytes: 0,
        }
    }

    /// Seconds of a pass of this kind.
    #[must_use]
    pub const fn seconds(&self, kind: PassKind) -> f64 {
        match kind {
            PassKind::Forward => self.forward_s,
            PassKind::Backward => self.input_gradient_s + self.weight_gradient_s,
            PassKind::BackwardInput => self.input_gradient_s,
            PassKind::BackwardWeight => self.weight_gradient_s,
        }
    }

    /// Seconds of all passes of a micro-batch.
    #[must_use]
    pub const fn work_s(&self) -> f64 {
        self.forward_s + self.input_gradient_s + self.weight_gradient_s
    }
}

/// The costs of a pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineCosts {
    /// The costs of each stage: rank `r` of `p` has the stages `r`, `p + r` and so on.
    pub stages: Vec<StageCosts>,
    /// Seconds of a message between neighbours, from the begin of the sending until it can be used.
    pub transfer_s: f64,
    /// Seconds in which the replicas of a rank gather the parameters of one chunk, before its first pass.
    pub gather_s: f64,
    /// Seconds in which they reduce and scatter the gradients of one chunk, behind its last pass.
    pub scatter_s: f64,
}

impl PipelineCosts {
    /// The same costs in so many stages.
    #[must_use]
    pub fn uniform(stages: usize, stage: StageCosts, transfer_s: f64) -> Self {
        Self {
            stages: vec![stage; stages],
            transfer_s,
            gather_s: 0.0,
            scatter_s: 0.0,
        }
    }

    /// Checks that these are the costs of so many stages.
    pub(super) fn check(&self, stages: usize) -> Result<(), ScheduleError> {
        if self.stages.len() != stages {
            return Err(ScheduleError::WrongStages {
                costs: self.stages.len(),
                stages,
            });
        }
        for (stage, costs) in self.stages.iter().enumerate() {
            let seconds = [
                ("forward pass", costs.forward_s),
                ("input gradient", costs.input_gradient_s),
                ("weight gradient", costs.weight_gradient_s),
                ("message", self.transfer_s),
                ("gathering of parameters", self.gather_s),
                ("scattering of gradients", self.scatter_s),
            ];
            for (of, seconds) in seconds {
                if !seconds.is_finite() || seconds < 0.0 {
                    return Err(ScheduleError::BadCost { of, stage, seconds });
                }
            }
            if costs.kept_bytes > costs.activation_bytes {
                return Err(ScheduleError::KeptTooMuch {
                    stage,
                    kept: costs.kept_bytes,
                    whole: costs.activation_bytes,
                });
            }
        }
        Ok(())
    }
}
