//! Rewards as training sees them: what length costs, and what a limit on harm costs.

use serde::{Deserialize, Serialize};

use super::error::{ObjectiveError, check};

/// A growing cost of replies that come near the longest that is allowed (DAPO, arXiv 2503.14476,
/// equation 13): a reply that is cut off says little about what was in it, and one just short of that
/// should learn to be brief.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlong {
    /// The longest reply, in tokens: `L_max`.
    pub limit: usize,
    /// Of these, the last ones, in which it costs more and more: `L_cache`.
    pub cache: usize,
}

impl Overlong {
    /// The term that is added to the reward of a reply of so many tokens, from 0 down to -1:
    /// `((L_max - L_cache) - l) / L_cache` within the last ones.
    #[must_use]
    pub fn penalty(&self, tokens: usize) -> f32 {
        let free = self.limit.saturating_sub(self.cache);
        match tokens {
            tokens if tokens <= free => 0.0,
            tokens if tokens <= self.limit => {
                (free as f32 - tokens as f32) / self.cache.max(1) as f32
            }
            _ => -1.0,
        }
    }
}

/// The price of harm in Safe-RLHF (Dai et al. 2023, arXiv 2310.12773): it rises while the mean cost of
/// replies is over its limit and falls while it is below.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lagrangian {
    /// The price: λ, more than 0.
    pub multiplier: f32,
    /// The step size of the price: η.
    pub rate: f32,
    /// The mean cost that is allowed.
    pub limit: f32,
}

impl Lagrangian {
    /// Advantages of a policy that wants reward and pays for cost:
    /// `A = (A_reward - λ A_cost) / (1 + λ)`.
    ///
    /// # Errors
    /// [`ObjectiveError`] when the lengths differ or a number is not finite.
    pub fn advantages(&self, reward: &[f32], cost: &[f32]) -> Result<Vec<f32>, ObjectiveError> {
        check("reward", reward, reward.len())?;
        check("cost", cost, reward.len())?;
        let pairs = reward.iter().zip(cost);
        let one = |(reward, cost): (&f32, &f32)| {
            (reward - self.multiplier * cost) / (1.0 + self.multiplier)
        };
        Ok(pairs.map(one).collect())
    }

    /// Moves the price by the mean cost of a batch: `ln λ += η λ (cost - limit)`.
    ///
    /// # Errors
    /// [`ObjectiveError::NotFinite`] when the cost is not finite; the price stays.
    pub fn update(&mut self, mean_cost: f32) -> Result<(), ObjectiveError> {
        check("mean_cost", &[mean_cost], 1)?;
        let step = self.rate * self.multiplier * (mean_cost - self.limit);
        self.multiplier = (self.multiplier.ln() + step).clamp(LOG_MIN, LOG_MAX).exp();
        Ok(())
    }
}

/// The logarithm of the price stays between these, so that it can come back from either.
const LOG_MIN: f32 = -12.0;
const LOG_MAX: f32 = 12.0;
