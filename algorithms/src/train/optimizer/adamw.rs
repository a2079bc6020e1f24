//! AdamW: steps by two moments, with decoupled weight decay.

use odeon_gpu::Backend;
use serde::{Deserialize, Serialize};

use super::{ElementRule, Elementwise, Holding, Rule, Step, Stepper, segments};
use crate::setting::{Bounds, SettingError};

/// AdamW (Loshchilov and Hutter 2019, algorithm 2, with the learning rate on the decay).
///
/// ```text
/// m <- beta1 m + (1 - beta1) g
/// v <- beta2 v + (1 - beta2) g^2
/// p <- (1 - lr weight_decay) p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
        }
    }
}

odeon_gpu::update_rule! {
    /// `rate` is `lr / (1 - beta1^t)`, `root2` the root of `1 - beta2^t`, `keep` what the decay leaves.
    pub(super) struct AdamWUpdate {
        grad_scale: f32,
        beta1: f32,
        gain1: f32,
        beta2: f32,
        gain2: f32,
        eps: f32,
        rate: f32,
        root2: f32,
        keep: f32,
    }
    fn adamw(p, g, [m, v]) {
        let grad = g * grad_scale;
        m = beta1 * m + gain1 * grad;
        v = beta2 * v + gain2 * grad * grad;
        p = p * keep - rate * m / (root(v) / root2 + eps);
    }
}

impl ElementRule for AdamW {
    type Update = AdamWUpdate;

    fn update(&self, step: Step, weight_decay: f32) -> AdamWUpdate {
        let Self { beta1, beta2, eps } = *self;
        let correct = |beta: f32| (1.0 - f64::from(beta).powf(step.number as f64)) as f32;
        AdamWUpdate {
            grad_scale: step.grad_scale,
            beta1,
            gain1: 1.0 - beta1,
            beta2,
            gain2: 1.0 - beta2,
            eps,
            rate: step.lr / correct(beta1),
            root2: correct(beta2).sqrt(),
            keep: 1.0 - step.lr * weight_decay,
        }
    }
}

impl Rule for AdamW {
    const NAME: &'static str = "AdamW";
    const STATE: &'static [&'static str] = &["exp_avg", "exp_avg_sq"];

    fn check(&self) -> Result<(), SettingError> {
        self.check_as("adamw")
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

impl AdamW {
    /// Checks the settings, of what recipes choose by this word.
    pub(super) fn check_as(&self, word: &'static str) -> Result<(), SettingError> {
        Bounds::check_all(
            word,
            [
                ("beta1", self.beta1, Bounds::Decay),
                ("beta2", self.beta2, Bounds::Decay),
                ("eps", self.eps, Bounds::Positive),
            ],
        )
    }
}
