//! Learning-rate schedules.

use serde::{Deserialize, Serialize};

/// Learning rate after the warm-up, as a factor on the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// The peak for ever.
    #[default]
    Constant,
    /// Half a cosine from the peak down to a floor (Loshchilov and Hutter 2017).
    Cosine {
        /// Steps until the floor, warm-up included.
        steps: u64,
        /// Last factor.
        floor: f32,
    },
}

impl Schedule {
    /// Factor at a step, counted from 1, after `warmup` steps of linear growth.
    #[must_use]
    pub fn factor(self, warmup: u64, step: u64) -> f32 {
        if step <= warmup {
            return step as f32 / warmup as f32;
        }
        match self {
            Self::Constant => 1.0,
            Self::Cosine { steps, floor } => {
                let span = steps.saturating_sub(warmup).max(1);
                let done = ((step - warmup) as f32 / span as f32).min(1.0);
                floor + (1.0 - floor) * 0.5 * (1.0 + (std::f32::consts::PI * done).cos())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_grows_to_the_peak_and_falls_to_the_floor() {
        let cosine = Schedule::Cosine {
            steps: 110,
            floor: 0.1,
        };
        let factors: Vec<f32> = [1, 5, 10, 60, 110, 500]
            .map(|s| cosine.factor(10, s))
            .to_vec();
        let want = [0.1, 0.5, 1.0, 0.55, 0.1, 0.1];
        assert!(
            factors.iter().zip(want).all(|(f, w)| (f - w).abs() < 1e-6),
            "{factors:?}"
        );
        assert_eq!(Schedule::Constant.factor(0, 1), 1.0);
    }
}
