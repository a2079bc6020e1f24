//! Costs of computing samples.

use serde::{Deserialize, Serialize};

use crate::sample::SampleMeta;

/// The cost of a sequence of `n`: `linear * n + square * n^2`, rounded to a whole number.
///
/// The unit is the user's, one for the text and the pictures of a plan. It should be so small that
/// the cheapest sequence costs hundreds of it. The constructors give millions of floating-point
/// operations of a forward pass; a backward pass is twice that of everything and changes no
/// balance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct Quadratic {
    /// For each token or patch: products with weights.
    pub linear: f64,
    /// For each pair of them: attention.
    pub square: f64,
}

impl Quadratic {
    /// Costs nothing.
    pub const FREE: Self = Self {
        linear: 0.0,
        square: 0.0,
    };

    /// A causal transformer of so many parameters that each token meets (those of experts that it
    /// does not visit are none), layers, and width of the attention: `2 P` for each token, and
    /// `4 * width` a layer for each pair of tokens, half of which the mask leaves.
    #[must_use]
    pub fn causal(parameters: f64, layers: u32, width: u32) -> Self {
        Self {
            linear: 2.0 * parameters / 1e6,
            square: 2.0 * f64::from(layers) * f64::from(width) / 1e6,
        }
    }

    /// The same without a mask, as encoders of pictures are.
    #[must_use]
    pub fn bidirectional(parameters: f64, layers: u32, width: u32) -> Self {
        let causal = Self::causal(parameters, layers, width);
        Self {
            square: 2.0 * causal.square,
            ..causal
        }
    }

    /// The cost of a sequence of `n`.
    #[must_use]
    pub fn of(&self, n: u32) -> u64 {
        let n = f64::from(n);
        (self.linear * n + self.square * n * n).round() as u64
    }

    pub(super) fn fault(&self) -> Option<&'static str> {
        let fine = |value: f64| value.is_finite() && (0.0..=1e9).contains(&value);
        (!fine(self.linear) || !fine(self.square)).then_some("coefficients from 0 to 1e9")
    }
}

/// The cost of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(deny_unknown_fields)]
pub struct CostSpec {
    /// The backbone, by the tokens of a sample. By default `24576 l + l^2`, which verl takes for a
    /// model of width 4,096: a layer costs `24 h^2 l + 4 h l^2` operations, in units of `4 h`.
    #[serde(default = "CostSpec::width_4096")]
    pub text: Quadratic,
    /// The encoder, by the patches of each picture.
    #[serde(default = "CostSpec::free")]
    pub picture: Quadratic,
}

impl CostSpec {
    fn width_4096() -> Quadratic {
        Quadratic {
            linear: 24_576.0,
            square: 1.0,
        }
    }

    fn free() -> Quadratic {
        Quadratic::FREE
    }

    /// Backbone work of a sample.
    #[must_use]
    pub fn backbone(&self, sample: &SampleMeta) -> u64 {
        self.text.of(sample.tokens)
    }

    /// Encoder work of a sample.
    #[must_use]
    pub fn encoder(&self, sample: &SampleMeta) -> u64 {
        sample.patches.iter().map(|n| self.picture.of(*n)).sum()
    }
}

impl Default for CostSpec {
    fn default() -> Self {
        Self {
            text: Self::width_4096(),
            picture: Quadratic::FREE,
        }
    }
}

impl From<Quadratic> for CostSpec {
    fn from(text: Quadratic) -> Self {
        Self {
            text,
            picture: Quadratic::FREE,
        }
    }
}
