//! Estimates of the divergence from a reference policy.

use serde::{Deserialize, Serialize};

use super::error::{ObjectiveError, check};

/// An estimator of `KL(policy ‖ reference)` from one sampled token (Schulman 2020).
///
/// With `r = log π_ref - log π` of the sampled token. All three see only the sample, so as terms of
/// a loss they have gradients of their own: on samples of the policy itself, the expected gradient
/// of `K2` is that of the divergence, `K3`'s agrees near the reference, and `K1`'s is zero. `K1` is
/// therefore of use in rewards only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// `-r`: unbiased, high variance, may be negative.
    K1,
    /// `r² / 2`: biased, low variance.
    K2,
    /// `exp(r) - 1 - r`: unbiased, low variance, never negative; GRPO's choice.
    #[default]
    K3,
}

/// A penalty for leaving the reference policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlPenalty {
    /// The estimator of the divergence.
    #[serde(default)]
    pub estimator: KlEstimator,
    /// The factor on the divergence: β.
    pub coefficient: f32,
}

impl KlEstimator {
    /// The estimate for one token and its derivative by `log_prob`.
    ///
    /// `r` is held within ±20 for `K3`, whose derivative is zero beyond.
    #[must_use]
    pub fn estimate(self, log_prob: f64, reference_log_prob: f64) -> (f64, f64) {
        let r = reference_log_prob - log_prob;
        match self {
            Self::K1 => (-r, 1.0),
            Self::K2 => (0.5 * r * r, -r),
            Self::K3 => {
                let held = r.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX);
                let derivative = if held == r { 1.0 - held.exp() } else { 0.0 };
                (held.exp_m1() - held, derivative)
            }
        }
    }
}

impl KlPenalty {
    /// Spreads a sequence's reward over its tokens for PPO: every token pays the penalty, and the
    /// last one also receives the reward (InstructGPT, arXiv 2203.02155, per token).
    ///
    /// # Errors
    /// [`ObjectiveError`] when the lengths differ or a number is not finite.
    pub fn token_rewards(
        &self,
        reward: f32,
        log_probs: &[f32],
        reference_log_probs: &[f32],
    ) -> Result<Vec<f32>, ObjectiveError> {
        check("reward", &[reward], 1)?;
        check("log_probs", log_probs, log_probs.len())?;
        check("reference_log_probs", reference_log_probs, log_probs.len())?;
        let pairs = log_probs.iter().zip(reference_log_probs);
        let mut rewards: Vec<f32> = pairs
            .map(|(&new, &reference)| {
                let (kl, _) = self.estimator.estimate(new.into(), reference.into());
                (-f64::from(self.coefficient) * kl) as f32
            })
            .collect();
        if let Some(last) = rewards.last_mut() {
            *last += reward;
        }
        Ok(rewards)
    }
}

/// Exponentials of log-ratios beyond this are of no use to a gradient, and soon overflow.
pub(super) const LOG_RATIO_MAX: f64 = 20.0;
