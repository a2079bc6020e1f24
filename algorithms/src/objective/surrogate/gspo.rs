//! The surrogate of GSPO.

use serde::{Deserialize, Serialize};

use super::{Clipped, Ratio, Rule, Term, Token};
use crate::objective::reduction::Reduction;
use crate::setting::{Bounds, SettingError};

/// The clipped surrogate with the ratio of the whole reply, `exp(mean(new - old))` over its tokens (GSPO,
/// Zheng et al. 2025, arXiv 2507.18071). Its trust region is some hundred times narrower.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gspo {
    /// The most that the ratio may fall below 1 before the gradient stops.
    pub clip_low: f32,
    /// The most that the ratio may rise above 1.
    pub clip_high: f32,
}

impl Default for Gspo {
    fn default() -> Self {
        Self {
            clip_low: 3e-4,
            clip_high: 4e-4,
        }
    }
}

impl Rule for Gspo {
    const RATIO: Ratio = Ratio::Sequence;
    const REDUCTION: Reduction = Reduction::SequenceMean;

    fn check(&self) -> Result<(), SettingError> {
        Bounds::check_all(
            "gspo",
            [
                ("clip_low", self.clip_low, Bounds::Part),
                ("clip_high", self.clip_high, Bounds::Positive),
            ],
        )
    }

    fn term(&self, token: Token) -> Term {
        let Self {
            clip_low,
            clip_high,
        } = *self;
        let clipped = Clipped {
            clip_low,
            clip_high,
        };
        clipped.term(token)
    }
}
