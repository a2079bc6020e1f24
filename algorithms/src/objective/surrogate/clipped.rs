//! The clipped surrogate of PPO.

use serde::{Deserialize, Serialize};

use super::{Rule, Term, Token};
use crate::setting::{Bounds, SettingError};

/// `-min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A)` with the ratio ρ of each token (PPO, Schulman et
/// al. 2017, arXiv 1707.06347, equation 7; DAPO's separate bounds, arXiv 2503.14476). Beyond a bound
/// that the advantage drives at, a token has no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clipped {
    /// The most that the ratio may fall below 1 before the gradient stops.
    pub clip_low: f32,
    /// The most that the ratio may rise above 1; larger than `clip_low` is DAPO's clip-higher.
    pub clip_high: f32,
}

impl Default for Clipped {
    /// PPO's.
    fn default() -> Self {
        Self {
            clip_low: 0.2,
            clip_high: 0.2,
        }
    }
}

impl Rule for Clipped {
    fn check(&self) -> Result<(), SettingError> {
        Bounds::check_all(
            "clipped",
            [
                ("clip_low", self.clip_low, Bounds::Part),
                ("clip_high", self.clip_high, Bounds::Positive),
            ],
        )
    }

    fn term(&self, token: Token) -> Term {
        let Token { advantage, .. } = token;
        let (ratio, moves) = token.ratio();
        let low = 1.0 - f64::from(self.clip_low);
        let high = 1.0 + f64::from(self.clip_high);
        let clipped_high = advantage > 0.0 && ratio > high;
        let clipped_low = advantage < 0.0 && ratio < low;
        let stopped = clipped_high || clipped_low;
        let used = if stopped {
            ratio.clamp(low, high)
        } else {
            ratio
        };
        let gradient = if stopped || !moves {
            0.0
        } else {
            -ratio * advantage
        };
        Term {
            ratio,
            loss: -used * advantage,
            gradient,
            clipped_high,
            clipped_low,
        }
    }
}
