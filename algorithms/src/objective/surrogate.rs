//! Surrogates of the policy's loss, one file each: the loss of a token by its ratio and its advantage.
//!
//! What all have in common stands around them in `policy`: the divergence, the entropy bonus, the
//! correction for stale data, the likelihood of right replies, and the average. The list at the end of
//! this file is the only one that knows all.

mod cispo;
mod clipped;
mod gspo;

use serde::{Deserialize, Serialize};

use super::divergence::LOG_RATIO_MAX;
use super::reduction::Reduction;
use crate::setting::{Chosen, SettingError};

pub use cispo::Cispo;
pub use clipped::Clipped;
pub use gspo::Gspo;

/// The probabilities of which a ratio of new to old is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ratio {
    /// Each token.
    #[default]
    Token,
    /// The whole reply, as the geometric mean over its tokens, `exp(mean(new - old))`.
    Sequence,
}

/// A token as a surrogate sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    /// The log of the ratio, of the token or of its reply: see [`Rule::RATIO`].
    pub(super) log_ratio: f64,
    /// Its log-probability under the policy being trained.
    pub(super) log_prob: f64,
    /// Its advantage.
    pub(super) advantage: f64,
}

/// The loss of a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// The ratio, before any bound.
    pub(super) ratio: f64,
    /// The loss.
    pub(super) loss: f64,
    /// Its derivative by the token's log-probability, or by the mean log-ratio of its reply.
    pub(super) gradient: f64,
    /// True when the upper bound held.
    pub(super) clipped_high: bool,
    /// True when the lower bound held.
    pub(super) clipped_low: bool,
}

/// A surrogate, by its settings.
trait Rule: Copy + Default {
    /// The ratio that it sees.
    const RATIO: Ratio = Ratio::Token;
    /// The average over tokens that its paper takes.
    const REDUCTION: Reduction = Reduction::TokenMean;

    /// Checks the settings.
    fn check(&self) -> Result<(), SettingError>;

    /// The loss of a token.
    fn term(&self, token: Token) -> Term;
}

impl Token {
    /// The ratio, held where exponentials soon overflow; and true when it was not.
    fn ratio(&self) -> (f64, bool) {
        let held = self.log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX);
        (held.exp(), held == self.log_ratio)
    }
}

/// Makes the choice of a surrogate out of the list of all.
macro_rules! surrogates {
    ($($(#[$meta:meta])* $surrogate:ident $word:literal;)*) => {
        /// The loss of a token by the ratio of its new to its old probability and its advantage.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Surrogate {
            $($(#[$meta])* #[serde(rename = $word)] $surrogate($surrogate),)*
        }

        impl Chosen for Surrogate {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn named(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$surrogate($surrogate::default())),)*
                    _ => None,
                }
            }

            fn check(&self) -> Result<(), SettingError> {
                match self {
                    $(Self::$surrogate(rule) => Rule::check(rule),)*
                }
            }
        }

        impl Surrogate {
            /// The ratio that it sees.
            #[must_use]
            pub fn ratio(&self) -> Ratio {
                match self {
                    $(Self::$surrogate(_) => <$surrogate as Rule>::RATIO,)*
                }
            }

            /// The average over tokens that its paper takes.
            #[must_use]
            pub fn reduction(&self) -> Reduction {
                match self {
                    $(Self::$surrogate(_) => <$surrogate as Rule>::REDUCTION,)*
                }
            }

            pub(super) fn term(&self, token: Token) -> Term {
                match self {
                    $(Self::$surrogate(rule) => rule.term(token),)*
                }
            }
        }
    };
}

impl Default for Surrogate {
    fn default() -> Self {
        Self::Clipped(Clipped::default())
    }
}

// All surrogates.
surrogates! {
    /// PPO's, with DAPO's separate bounds.
    Clipped "clipped";
    /// GSPO's: the same of whole replies.
    Gspo "gspo";
    /// CISPO's: the ratio is a weight.
    Cispo "cispo";
}

#[cfg(test)]
mod tests;
