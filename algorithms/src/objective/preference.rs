//! Learning from pairs of replies which of the two is the better.

use serde::{Deserialize, Serialize};

use super::error::{ObjectiveError, check};

/// The value and the gradient of a loss over pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct PreferenceLoss {
    /// This micro-batch's share of the step's loss.
    pub loss: f64,
    /// Derivative of `loss` by the score of each better reply; of the worse one it is the negative.
    pub d_better: Vec<f32>,
    /// Pairs whose better reply has the higher score.
    pub ordered: usize,
}

/// Evaluates `-ln sigmoid(better - worse)`, summed over the pairs of a micro-batch and divided by the
/// number of pairs of the step: Bradley and Terry's model of choices, as reward models learn it
/// (Christiano et al. 2017, arXiv 1706.03741; Ouyang et al. 2022, arXiv 2203.02155, equation 1).
///
/// # Errors
/// [`ObjectiveError`] when there are more pairs than in the step, or not as many scores of worse replies
/// as of better ones, or one is not finite.
pub fn preference(
    better: &[f32],
    worse: &[f32],
    pairs_in_step: usize,
) -> Result<PreferenceLoss, ObjectiveError> {
    check("better", better, better.len())?;
    check("worse", worse, better.len())?;
    if better.len() > pairs_in_step {
        return Err(ObjectiveError::Totals);
    }
    let weight = 1.0 / pairs_in_step.max(1) as f64;
    let mut value = PreferenceLoss {
        loss: 0.0,
        d_better: Vec::with_capacity(better.len()),
        ordered: 0,
    };
    for (better, worse) in better.iter().zip(worse) {
        let lead = f64::from(*better) - f64::from(*worse);
        // ln(1 + e^-lead), without overflow.
        value.loss += weight * ((-lead).max(0.0) + (-lead.abs()).exp().ln_1p());
        value
            .d_better
            .push((weight * (probability(lead) - 1.0)) as f32);
        value.ordered += usize::from(lead > 0.0);
    }
    Ok(value)
}

/// The probability that a reply is better than one that has so much less of a score.
#[must_use]
pub fn probability(lead: f64) -> f64 {
    let small = (-lead.abs()).exp();
    if lead >= 0.0 {
        1.0 / (1.0 + small)
    } else {
        small / (1.0 + small)
    }
}

/// A mixture of the scores of a checker and of a learned model, each from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Blend {
    /// The model's part, from 0 to 1; the rest is the checker's.
    pub model: f32,
}

impl Blend {
    /// The reward: from 0 to 1 as well.
    #[must_use]
    pub fn of(self, checker: f32, model: f32) -> f32 {
        ((1.0 - self.model) * checker + self.model * model).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_loss_is_that_of_the_formula() {
        // sigmoid(ln 3) = 3/4, sigmoid(0) = 1/2, sigmoid(-ln 3) = 1/4.
        let third = 3.0_f32.ln();
        let value = preference(&[third, 1.0, 0.0], &[0.0, 1.0, third], 3).unwrap();
        let expected = -((0.75_f64).ln() + (0.5_f64).ln() + (0.25_f64).ln()) / 3.0;
        assert!((value.loss - expected).abs() < 1e-7, "{}", value.loss);
        for (d, expected) in value.d_better.iter().zip([-0.25, -0.5, -0.75]) {
            assert!((d - expected / 3.0).abs() < 1e-7, "{d}");
        }
        assert_eq!(value.ordered, 1);
    }

    #[test]
    fn scores_far_apart_overflow_nothing() {
        let value = preference(&[1e30, -1e30], &[-1e30, 1e30], 2).unwrap();
        assert!((value.loss / 1e30 - 1.0).abs() < 1e-6, "{}", value.loss);
        assert_eq!(value.d_better, [0.0, -0.5]);
        assert_eq!([1e4, -1e4].map(probability), [1.0, 0.0]);
    }

    #[test]
    fn what_is_no_pair_is_refused() {
        assert!(matches!(
            preference(&[0.0], &[], 1),
            Err(ObjectiveError::Length { what: "worse", .. })
        ));
        assert!(matches!(
            preference(&[f32::NAN], &[0.0], 1),
            Err(ObjectiveError::NotFinite {
                what: "better",
                at: 0
            })
        ));
        let totals = preference(&[0.0, 0.0], &[0.0, 0.0], 1);
        assert_eq!(totals, Err(ObjectiveError::Totals));
        assert_eq!(preference(&[], &[], 0).unwrap().loss, 0.0);
    }

    #[test]
    fn a_blend_is_between_both() {
        let of = |model| Blend { model }.of(1.0, 0.25);
        assert_eq!([0.0, 0.5, 1.0].map(of), [1.0, 0.625, 0.25]);
    }

    proptest! {
        #[test]
        fn the_gradient_is_that_of_finite_differences(
            pairs in prop::collection::vec((-8.0_f32..8.0, -8.0_f32..8.0), 1..6),
            more in 0_usize..4, nth: prop::sample::Index,
        ) {
            let (better, worse): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let total = better.len() + more;
            let loss = |better: &[f32], worse: &[f32]| preference(better, worse, total).unwrap().loss;
            let nth = nth.index(better.len());
            let moved = |all: &[f32], by: f32| {
                let mut all = all.to_vec();
                all[nth] += by;
                all
            };
            let step = 1.0 / 64.0;
            let slope = |up: f64, down: f64| (up - down) / (2.0 * f64::from(step));
            let d = f64::from(preference(&better, &worse, total).unwrap().d_better[nth]);
            let by_better = slope(
                loss(&moved(&better, step), &worse), loss(&moved(&better, -step), &worse),
            );
            let by_worse = slope(
                loss(&better, &moved(&worse, step)), loss(&better, &moved(&worse, -step)),
            );
            prop_assert!((by_better - d).abs() < 1e-4, "{by_better} {d}");
            prop_assert!((by_worse + d).abs() < 1e-4, "{by_worse} {d}");
        }

        #[test]
        fn two_orders_of_a_pair_add_up_to_certainty(lead in -50.0_f64..50.0) {
            prop_assert!((probability(lead) + probability(-lead) - 1.0).abs() < 1e-12);
        }
    }
}
