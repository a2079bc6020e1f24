//! Each surrogate by data, and by the slopes of a plain reference.

use proptest::prelude::*;

use super::*;
use crate::objective::{PolicyBatch, PolicyLoss, PolicyObjective, Totals};

/// Three replies: two of two tokens, one of one.
const LENGTHS: [usize; 3] = [2, 2, 1];

fn evaluate(surrogate: Surrogate, new: &[f32], old: &[f32], advantages: &[f32]) -> PolicyLoss {
    let objective = PolicyObjective {
        surrogate,
        reduction: surrogate.reduction(),
        ..PolicyObjective::default()
    };
    let batch = PolicyBatch {
        new_log_probs: new,
        old_log_probs: old,
        behaviour_log_probs: None,
        advantages,
        reference_log_probs: None,
        entropies: None,
        positive: None,
        lengths: &LENGTHS,
    };
    objective.evaluate(&batch, Totals::of(&LENGTHS)).unwrap()
}

/// The weight of each token in CISPO's equation 5.
fn weights(cispo: Cispo, new: &[f32], old: &[f32]) -> Vec<f64> {
    let pairs = new.iter().zip(old);
    let ratios = pairs.map(|(new, old)| (f64::from(*new) - f64::from(*old)).exp());
    let (low, high) = (f64::from(cispo.clip_low), f64::from(cispo.clip_high));
    ratios
        .map(|ratio| ratio.max(1.0 - low).min(1.0 + high))
        .collect()
}

/// CISPO's equation 4, less its sign, as it stands there: the sum over all tokens of a group by their
/// number, weights given.
fn cispo_loss(weights: &[f64], new: &[f32], advantages: &[f32]) -> f64 {
    let tokens = weights.iter().zip(new).zip(advantages);
    let terms = tokens.map(|((weight, new), a)| weight * f64::from(*a) * f64::from(*new));
    -terms.sum::<f64>() / new.len() as f64
}

/// CISPO on five tokens, worked out by hand: ratios of 1, 2, 1/2, 8 and 1/8.
#[test]
fn cispo_weighs_the_likelihood_of_each_token_by_its_held_ratio() {
    let ln2 = std::f32::consts::LN_2;
    let new = [-1.0, -0.5, -2.0, -0.25, -3.0];
    let moved = [0.0, ln2, -ln2, 3.0 * ln2, -3.0 * ln2];
    let old: Vec<f32> = new.iter().zip(moved).map(|(new, by)| new - by).collect();
    let advantages = [1.0, -1.0, 0.5, 2.0, -0.25];
    let of = |clip_low, clip_high| {
        let surrogate = Surrogate::Cispo(Cispo {
            clip_low,
            clip_high,
        });
        evaluate(surrogate, &new, &old, &advantages)
    };
    for (clip_low, clip_high, weights) in [
        // Nothing is held.
        (1.0, 10.0, [1.0, 2.0, 0.5, 8.0, 0.125]),
        // The defaults: 5 at most.
        (1.0, 4.0, [1.0, 2.0, 0.5, 5.0, 0.125]),
        // Both sides, whichever way the advantage drives.
        (0.25, 0.5, [1.0, 1.5, 0.75, 1.5, 0.75]),
    ] {
        let found = of(clip_low, clip_high);
        let mut loss = 0.0;
        for t in 0..5 {
            let gradient = -weights[t] * f64::from(advantages[t]) / 5.0;
            loss += gradient * f64::from(new[t]);
            let error = (f64::from(found.d_log_probs[t]) - gradient).abs();
            assert!(error < 1e-6, "{t}: {:?} for {gradient}", found.d_log_probs);
        }
        assert!((found.loss - loss).abs() < 1e-6, "{} {loss}", found.loss);
    }
    let both = of(0.25, 0.5).metrics;
    assert_eq!(both.clipped_high_fraction, 0.4);
    assert_eq!(both.clipped_low_fraction, 0.4);
    assert_eq!(of(1.0, 10.0).metrics.clip_fraction(), 0.0);
    assert!((both.ratio_max - 8.0).abs() < 1e-5, "before it is held");
}

#[test]
fn a_token_that_the_clipped_surrogate_stops_still_learns_with_cispo() {
    let (new, old) = ([-0.5; 5], [-2.0; 5]);
    let stopped = evaluate(Surrogate::default(), &new, &old, &[1.0; 5]);
    assert_eq!(stopped.d_log_probs, [0.0; 5]);
    let learns = evaluate(Surrogate::Cispo(Cispo::default()), &new, &old, &[1.0; 5]);
    assert!(learns.d_log_probs.iter().all(|d| *d < -0.5), "{learns:?}");
    // Also one whose ratio is held from overflowing.
    let far = evaluate(
        Surrogate::Cispo(Cispo::default()),
        &[-0.5; 5],
        &[-90.0; 5],
        &[1.0; 5],
    );
    assert_eq!(far.d_log_probs, [-1.0; 5]);
}

#[test]
fn a_surrogate_is_chosen_by_its_word_and_refuses_settings_that_mean_nothing() {
    for word in Surrogate::WORDS {
        let named = Surrogate::named(word).unwrap();
        assert_eq!(named.check(), Ok(()));
        let spelled = serde_json::json!({ *word: {} });
        assert_eq!(serde_json::from_value::<Surrogate>(spelled).unwrap(), named);
    }
    assert_eq!(Surrogate::named("dpo"), None);
    for (surrogate, words) in [
        (
            Surrogate::Cispo(Cispo {
                clip_high: -1.0,
                ..Cispo::default()
            }),
            "cispo.clip_high: expected a number above 0, found -1",
        ),
        (
            Surrogate::Clipped(Clipped {
                clip_low: 1.5,
                ..Clipped::default()
            }),
            "clipped.clip_low: expected a number above 0 and at most 1, found 1.5",
        ),
        (
            Surrogate::Gspo(Gspo {
                clip_low: f32::NAN,
                ..Gspo::default()
            }),
            "gspo.clip_low: expected a number above 0 and at most 1, found NaN",
        ),
    ] {
        assert_eq!(surrogate.check().unwrap_err().to_string(), words);
    }
}

proptest! {
    #[test]
    fn gradients_of_cispo_are_the_slopes_of_its_loss_with_weights_held(
        new in prop::collection::vec(-4.0_f32..-0.1, 5),
        moved in prop::collection::vec(-2.5_f32..2.5, 5),
        advantages in prop::collection::vec(-2.0_f32..2.0, 5),
        clip_low in 0.05_f32..1.0, clip_high in 0.05_f32..4.0,
    ) {
        let cispo = Cispo { clip_low, clip_high };
        let old: Vec<f32> = new.iter().zip(&moved).map(|(new, by)| new - by).collect();
        let held = weights(cispo, &new, &old);
        let found = evaluate(Surrogate::Cispo(cispo), &new, &old, &advantages);
        let loss = cispo_loss(&held, &new, &advantages);
        prop_assert!((found.loss - loss).abs() < 1e-9 * (1.0 + loss.abs()));
        for t in 0..5 {
            let at = |by: f32| {
                let mut new = new.clone();
                new[t] += by;
                (f64::from(new[t]), cispo_loss(&held, &new, &advantages))
            };
            let ((x1, y1), (x0, y0)) = (at(1e-3), at(-1e-3));
            let slope = (y1 - y0) / (x1 - x0);
            let gradient = f64::from(found.d_log_probs[t]);
            prop_assert!((gradient - slope).abs() < 1e-6 * (1.0 + slope.abs()), "{gradient} {slope}");
            prop_assert_eq!(gradient == 0.0, advantages[t] == 0.0, "no gradient vanishes");
        }
    }
}
