//! Lion: steps by the sign of a moment, with decoupled weight decay.

use odeon_gpu::Backend;
use serde::{Deserialize, Serialize};

use super::{ElementRule, Elementwise, Holding, Rule, Step, Stepper, segments};
use crate::setting::{Bounds, SettingError};

/// Lion (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2). It keeps one
/// moment, where AdamW keeps two; each element moves by the learning rate, so that is smaller, and the
/// weight decay larger by as much.
///
/// ```text
/// p <- (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g)
/// m <- beta2 m + (1 - beta2) g
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lion {
    /// Weight of the moment in a step's direction.
    pub beta1: f32,
    /// Decay of the moment.
    pub beta2: f32,
}

impl Default for Lion {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.99,
        }
    }
}

odeon_gpu::update_rule! {
    /// `keep` is what the decay leaves.
    pub(super) struct LionUpdate {
        grad_scale: f32,
        beta1: f32,
        gain1: f32,
        beta2: f32,
        gain2: f32,
        lr: f32,
        keep: f32,
    }
    fn lion(p, g, [m]) {
        let grad = g * grad_scale;
        p = p * keep - lr * sign(beta1 * m + gain1 * grad);
        m = beta2 * m + gain2 * grad;
    }
}

impl ElementRule for Lion {
    type Update = LionUpdate;

    fn update(&self, step: Step, weight_decay: f32) -> LionUpdate {
        let Self { beta1, beta2 } = *self;
        LionUpdate {
            grad_scale: step.grad_scale,
            beta1,
            gain1: 1.0 - beta1,
            beta2,
            gain2: 1.0 - beta2,
            lr: step.lr,
            keep: 1.0 - step.lr * weight_decay,
        }
    }
}

impl Rule for Lion {
    const NAME: &'static str = "Lion";
    const STATE: &'static [&'static str] = &["exp_avg"];

    fn check(&self) -> Result<(), SettingError> {
        Bounds::check_all(
            "lion",
            [
                ("beta1", self.beta1, Bounds::Decay),
                ("beta2", self.beta2, Bounds::Decay),
            ],
        )
    }

    fn stepper<B: Backend>(
        &self,
        _: &B,
        holding: &Holding,
        weight_decay: f32,
    ) -> Box<dyn Stepper<B>> {
        Box::new(Elementwise::over(
            *self,
            segments(holding, weight_decay, |_| true),
        ))
    }
}
