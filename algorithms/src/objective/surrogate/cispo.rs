//! The surrogate of CISPO.

use serde::{Deserialize, Serialize};

use super::{Rule, Term, Token};
use crate::setting::{Bounds, SettingError};

/// `-sg(clip(ρ, 1 - clip_low, 1 + clip_high)) A log π`, of which `sg` has no gradient (CISPO, MiniMax-M1,
/// 2025, arXiv 2506.13585, equations 4 and 5): the ratio ρ is the weight of a likelihood, so that each
/// token has a gradient, however far it has moved.
///
/// The paper divides by the tokens of a prompt's group; here it is those of all prompts of a step, as for
/// DAPO, which is the same where a step has one prompt, or groups have as many tokens.
///
/// The value of the loss says nothing by itself: it is a likelihood whose weights change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cispo {
    /// The most that a token may weigh below 1.
    pub clip_low: f32,
    /// The most that a token may weigh above 1.
    pub clip_high: f32,
}

impl Default for Cispo {
    /// No lower bound, as there, and weights of 5 at most (ScaleRL, Khatri et al. 2025, arXiv
    /// 2510.13786), as that paper gives no upper one.
    fn default() -> Self {
        Self {
            clip_low: 1.0,
            clip_high: 4.0,
        }
    }
}

impl Rule for Cispo {
    fn check(&self) -> Result<(), SettingError> {
        Bounds::check_all(
            "cispo",
            [
                ("clip_low", self.clip_low, Bounds::Part),
                ("clip_high", self.clip_high, Bounds::Positive),
            ],
        )
    }

    fn term(&self, token: Token) -> Term {
        let (ratio, _) = token.ratio();
        let low = 1.0 - f64::from(self.clip_low);
        let high = 1.0 + f64::from(self.clip_high);
        let gradient = -ratio.clamp(low, high) * token.advantage;
        Term {
            ratio,
            loss: gradient * token.log_prob,
            gradient,
            clipped_high: ratio > high,
            clipped_low: ratio < low,
        }
    }
}
