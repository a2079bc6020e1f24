//! The log-normal distribution with a cap, and the normal quantile that it is drawn by.

use serde::{Deserialize, Serialize};

/// A log-normal distribution with a cap: what would be larger is the cap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeavyTail {
    /// The median.
    pub median: f64,
    /// The 99th percentile over the median, without the cap; at 1 all are equal.
    pub p99_over_median: f64,
    /// The most.
    pub cap: f64,
}

impl HeavyTail {
    /// Standard deviation of the logarithm: `ln(p99 / median) / 2.326`.
    #[must_use]
    pub fn sigma(&self) -> f64 {
        self.p99_over_median.ln() / NORMAL_99
    }

    /// The quantile at this part of all, from 0 to 1.
    #[must_use]
    pub fn quantile(&self, part: f64) -> f64 {
        self.at(normal_quantile(part))
    }

    /// So many standard deviations of the logarithm above the median.
    pub(super) fn at(&self, normal: f64) -> f64 {
        (self.median * (self.sigma() * normal).exp()).min(self.cap)
    }

    pub(super) fn is_sound(&self) -> bool {
        let all = [self.median, self.p99_over_median, self.cap];
        all.iter().all(|value| value.is_finite())
            && self.median > 0.0
            && self.cap > 0.0
            && self.p99_over_median >= 1.0
    }
}

/// The quantile of the standard normal distribution at this probability; infinite at 0 and 1.
///
/// P. J. Acklam's rational approximation (2003); its relative error is below 1.2e-9.
#[must_use]
pub fn normal_quantile(probability: f64) -> f64 {
    let tail = |probability: f64| {
        let q = (-2.0 * probability.ln()).sqrt();
        polynomial(&C, q) / (polynomial(&D, q) * q + 1.0)
    };
    if probability <= 0.0 {
        f64::NEG_INFINITY
    } else if probability >= 1.0 {
        f64::INFINITY
    } else if probability < TAIL {
        tail(probability)
    } else if probability > 1.0 - TAIL {
        -tail(1.0 - probability)
    } else {
        let q = probability - 0.5;
        let r = q * q;
        polynomial(&A, r) * q / (polynomial(&B, r) * r + 1.0)
    }
}

/// The highest power first.
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// The 99th percentile of the standard normal distribution.
const NORMAL_99: f64 = 2.326_347_874_040_841;

/// Where the approximation changes.
const TAIL: f64 = 0.02425;

const A: [f64; 6] = [
    -3.969_683_028_665_376e1,
    2.209_460_984_245_205e2,
    -2.759_285_104_469_687e2,
    1.383_577_518_672_69e2,
    -3.066_479_806_614_716e1,
    2.506_628_277_459_239,
];

const B: [f64; 5] = [
    -5.447_609_879_822_406e1,
    1.615_858_368_580_409e2,
    -1.556_989_798_598_866e2,
    6.680_131_188_771_972e1,
    -1.328_068_155_288_572e1,
];

const C: [f64; 6] = [
    -7.784_894_002_430_293e-3,
    -3.223_964_580_411_365e-1,
    -2.400_758_277_161_838,
    -2.549_732_539_343_734,
    4.374_664_141_464_968,
    2.938_163_982_698_783,
];

const D: [f64; 4] = [
    7.784_695_709_041_462e-3,
    3.224_671_290_700_398e-1,
    2.445_134_137_142_996,
    3.754_408_661_907_416,
];
