//! Tests of the objectives.

use proptest::prelude::*;

use super::*;

/// A micro-batch with everything in it.
#[derive(Clone, Debug)]
struct Case {
    lengths: Vec<usize>,
    new: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    advantages: Vec<f32>,
    entropies: Vec<f32>,
    behaviour: Vec<f32>,
    positive: Vec<bool>,
}

impl Case {
    fn totals(&self) -> Totals {
        Totals::of(&self.lengths).with_positive(&self.lengths, &self.positive)
    }

    /// The ratio that the trust region sees of each token.
    fn ratios(&self, ratio: Ratio) -> Vec<f64> {
        let moved = |t: usize| f64::from(self.new[t]) - f64::from(self.old[t]);
        let mut first = 0;
        let of = |&length: &usize| {
            let tokens = first..first + length;
            first += length;
            let mean = tokens.clone().map(moved).sum::<f64>() / length as f64;
            let each = tokens.map(move |t| match ratio {
                Ratio::Token => moved(t).exp(),
                Ratio::Sequence => mean.exp(),
            });
            each.collect::<Vec<_>>()
        };
        self.lengths.iter().flat_map(of).collect()
    }

    fn batch(&self) -> PolicyBatch<'_> {
        PolicyBatch {
            new_log_probs: &self.new,
            old_log_probs: &self.old,
            behaviour_log_probs: Some(&self.behaviour),
            advantages: &self.advantages,
            reference_log_probs: Some(&self.reference),
            entropies: Some(&self.entropies),
            positive: Some(&self.positive),
            lengths: &self.lengths,
        }
    }

    /// The sequences `from..to` as a micro-batch of their own.
    fn part(&self, from: usize, to: usize) -> Self {
        let start: usize = self.lengths[..from].iter().sum();
        let end = start + self.lengths[from..to].iter().sum::<usize>();
        Self {
            lengths: self.lengths[from..to].to_vec(),
            new: self.new[start..end].to_vec(),
            old: self.old[start..end].to_vec(),
            reference: self.reference[start..end].to_vec(),
            advantages: self.advantages[start..end].to_vec(),
            entropies: self.entropies[start..end].to_vec(),
            behaviour: self.behaviour[start..end].to_vec(),
            positive: self.positive[from..to].to_vec(),
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    prop::collection::vec(0_usize..6, 1..5).prop_flat_map(|lengths| {
        let tokens: usize = lengths.iter().sum();
        let column = |low: f32, high: f32| prop::collection::vec(low..high, tokens);
        let near = || prop::collection::vec(-0.6_f32..0.6, tokens);
        (
            column(-4.0, -0.7),
            near(),
            near(),
            column(-2.0, 2.0),
            column(0.0, 3.0),
            near(),
            prop::collection::vec(any::<bool>(), lengths.len()),
        )
            .prop_map(
                move |(old, moved, away, advantages, entropies, stale, positive)| Case {
                    lengths: lengths.clone(),
                    behaviour: old.iter().zip(&stale).map(|(old, by)| old + by).collect(),
                    positive,
                    new: old.iter().zip(&moved).map(|(old, by)| old + by).collect(),
                    reference: old.iter().zip(&away).map(|(old, by)| old + by).collect(),
                    old,
                    advantages,
                    entropies,
                },
            )
    })
}

fn reduction() -> impl Strategy<Value = Reduction> {
    prop_oneof![
        Just(Reduction::TokenMean),
        Just(Reduction::SequenceMean),
        (1_usize..100).prop_map(|tokens| Reduction::ConstantLength { tokens }),
    ]
}

fn estimator() -> impl Strategy<Value = KlEstimator> {
    prop_oneof![
        Just(KlEstimator::K1),
        Just(KlEstimator::K2),
        Just(KlEstimator::K3)
    ]
}

fn ratio() -> impl Strategy<Value = Ratio> {
    prop_oneof![Just(Ratio::Token), Just(Ratio::Sequence)]
}

/// The surrogate with this ratio that stops gradients at bounds.
fn bounded(ratio: Ratio, clip_low: f32, clip_high: f32) -> Surrogate {
    match ratio {
        Ratio::Token => Surrogate::Clipped(Clipped {
            clip_low,
            clip_high,
        }),
        Ratio::Sequence => Surrogate::Gspo(Gspo {
            clip_low,
            clip_high,
        }),
    }
}

fn bounds(surrogate: Surrogate) -> [f64; 2] {
    let (low, high) = match surrogate {
        Surrogate::Clipped(it) => (it.clip_low, it.clip_high),
        Surrogate::Gspo(it) => (it.clip_low, it.clip_high),
        Surrogate::Cispo(it) => (it.clip_low, it.clip_high),
    };
    [1.0 - f64::from(low), 1.0 + f64::from(high)]
}

fn objective() -> impl Strategy<Value = PolicyObjective> {
    let kl = prop::option::of((estimator(), 0.0_f32..1.0));
    let clip = (0.05_f32..0.3, 0.05_f32..0.5);
    let cap = prop::option::of(0.5_f32..3.0);
    (
        clip,
        kl,
        0.0_f32..0.1,
        reduction(),
        ratio(),
        cap,
        0.0_f32..0.5,
    )
        .prop_map(
            |((clip_low, clip_high), kl, entropy_coefficient, reduction, ratio, cap, positive)| {
                PolicyObjective {
                    surrogate: bounded(ratio, clip_low, clip_high),
                    kl: kl.map(|(estimator, coefficient)| KlPenalty {
                        estimator,
                        coefficient,
                    }),
                    entropy_coefficient,
                    reduction,
                    importance_cap: cap,
                    positive_coefficient: positive,
                }
            },
        )
}

/// The central difference of `loss` by entry `t`, with the step that `f32` really makes.
fn slope(values: &[f32], t: usize, loss: impl Fn(&[f32]) -> f64) -> f64 {
    let moved = |by: f32| {
        let mut values = values.to_vec();
        values[t] += by;
        (f64::from(values[t]), loss(&values))
    };
    let ((x1, y1), (x0, y0)) = (moved(STEP), moved(-STEP));
    (y1 - y0) / (x1 - x0)
}

const STEP: f32 = 1.0 / 4096.0;

/// Central differences are off by about step²/6 of the third derivative, here below 1e-6.
fn close(gradient: f32, slope: f64) -> bool {
    (f64::from(gradient) - slope).abs() < 2e-6 + 1e-5 * slope.abs()
}

proptest! {
    #[test]
    fn policy_gradients_are_the_slopes_of_the_loss(case in case(), objective in objective()) {
        let totals = case.totals();
        let output = objective.evaluate(&case.batch(), totals).unwrap();
        let ratios = case.ratios(objective.surrogate.ratio());
        for (t, &ratio) in ratios.iter().enumerate() {
            let bounds = bounds(objective.surrogate);
            let by_new = slope(&case.new, t, |new| {
                let batch = PolicyBatch { new_log_probs: new, ..case.batch() };
                objective.evaluate(&batch, totals).unwrap().loss
            });
            // There is no slope at the kinks.
            if bounds.iter().all(|bound| (ratio - bound).abs() > 2e-3) {
                prop_assert!(close(output.d_log_probs[t], by_new), "{} {by_new}", output.d_log_probs[t]);
            }
            let by_entropy = slope(&case.entropies, t, |entropies| {
                let batch = PolicyBatch { entropies: Some(entropies), ..case.batch() };
                objective.evaluate(&batch, totals).unwrap().loss
            });
            prop_assert!(close(output.d_entropies[t], by_entropy));
        }
    }

    #[test]
    fn value_gradients_are_the_slopes_of_the_loss(
        case in case(), clip in prop::option::of(0.05_f32..0.5), reduction in reduction(),
    ) {
        let objective = ValueObjective { clip, reduction, ..ValueObjective::default() };
        let totals = case.totals();
        let batch = ValueBatch {
            values: &case.new,
            old_values: &case.old,
            returns: &case.reference,
            lengths: &case.lengths,
        };
        let output = objective.evaluate(&batch, totals).unwrap();
        for t in 0..case.new.len() {
            let (value, old, target) = (case.new[t], case.old[t], case.reference[t]);
            let clip = clip.unwrap_or(f32::INFINITY);
            let held = old + (value - old).clamp(-clip, clip);
            let kink = (held - target).abs() - (value - target).abs();
            if (kink.abs() < 1e-3 && held != value) || ((value - old).abs() - clip).abs() < 1e-3 {
                continue;
            }
            let by_value = slope(&case.new, t, |values| {
                objective.evaluate(&ValueBatch { values, ..batch }, totals).unwrap().loss
            });
            prop_assert!(close(output.d_values[t], by_value), "{} {by_value}", output.d_values[t]);
        }
    }

    #[test]
    fn divergence_estimates_have_their_slopes(
        estimator in estimator(), new in -5.0_f64..0.0, reference in -5.0_f64..0.0,
    ) {
        let step = 1e-5;
        let at = |x: f64| estimator.estimate(x, reference).0;
        let slope = (at(new + step) - at(new - step)) / (2.0 * step);
        let (estimate, gradient) = estimator.estimate(new, reference);
        prop_assert!((gradient - slope).abs() < 1e-6 * (1.0 + slope.abs()));
        prop_assert!(estimator == KlEstimator::K1 || estimate >= 0.0);
    }

    #[test]
    fn on_policy_the_gradient_is_minus_advantage_over_tokens(case in case()) {
        let batch = PolicyBatch { old_log_probs: &case.new, ..case.batch() };
        let output = PolicyObjective::default().evaluate(&batch, case.totals()).unwrap();
        let tokens = case.new.len() as f32;
        for (gradient, advantage) in output.d_log_probs.iter().zip(&case.advantages) {
            prop_assert!((gradient + advantage / tokens).abs() < 1e-6);
        }
        prop_assert_eq!(output.metrics.clip_fraction(), 0.0);
        prop_assert_eq!(output.metrics.approximate_kl, 0.0);
        prop_assert!(case.new.is_empty() || (output.metrics.ratio_mean - 1.0).abs() < 1e-12);
    }

    #[test]
    fn clipped_tokens_have_no_gradient_and_are_counted(case in case()) {
        let surrogate = bounded(Ratio::Token, 0.2, 0.28);
        let objective = PolicyObjective { surrogate, ..PolicyObjective::default() };
        let output = objective.evaluate(&case.batch(), case.totals()).unwrap();
        let mut clipped = 0;
        for t in 0..case.new.len() {
            let ratio = (f64::from(case.new[t]) - f64::from(case.old[t])).exp();
            let advantage = case.advantages[t];
            let stopped = (advantage > 0.0 && ratio > 1.0 + f64::from(0.28_f32))
                || (advantage < 0.0 && ratio < 1.0 - f64::from(0.2_f32));
            clipped += usize::from(stopped);
            prop_assert_eq!(output.d_log_probs[t] == 0.0, stopped || advantage == 0.0);
        }
        let fraction = clipped as f64 / case.new.len().max(1) as f64;
        prop_assert!((output.metrics.clip_fraction() - fraction).abs() < 1e-9);
    }

    #[test]
    fn micro_batches_add_up_to_the_step(
        case in case(), objective in objective(), cut: prop::sample::Index,
    ) {
        let totals = case.totals();
        let whole = objective.evaluate(&case.batch(), totals).unwrap();
        let cut = cut.index(case.lengths.len() + 1);
        let parts = [case.part(0, cut), case.part(cut, case.lengths.len())]
            .map(|part| objective.evaluate(&part.batch(), totals).unwrap());
        prop_assert!((whole.loss - parts[0].loss - parts[1].loss).abs() < 1e-9);
        let joined = [&parts[0].d_log_probs[..], &parts[1].d_log_probs[..]].concat();
        prop_assert_eq!(&whole.d_log_probs, &joined);
        let merged = parts[0].metrics.merged(&parts[1].metrics);
        prop_assert_eq!(whole.metrics.tokens, merged.tokens);
        prop_assert!((whole.metrics.ratio_mean - merged.ratio_mean).abs() < 1e-9);
        prop_assert!((whole.metrics.entropy - merged.entropy).abs() < 1e-9);
    }

    #[test]
    fn sequence_mean_weighs_every_reply_the_same(lengths in prop::collection::vec(1_usize..20, 1..8)) {
        let totals = Totals::of(&lengths);
        let weights = Reduction::SequenceMean.weights(&lengths, totals).unwrap();
        let mut at = 0;
        for &length in &lengths {
            let sum: f64 = weights[at..at + length].iter().sum();
            prop_assert!((sum * lengths.len() as f64 - 1.0).abs() < 1e-12);
            at += length;
        }
        let sum: f64 = Reduction::TokenMean.weights(&lengths, totals).unwrap().iter().sum();
        prop_assert!((sum - 1.0).abs() < 1e-12);
    }

    #[test]
    fn advantages_of_a_group_sum_to_zero(
        rewards in prop::collection::vec(-10.0_f32..10.0, 2..20), unit: bool,
    ) {
        let scale = if unit { Scale::Unit } else { Scale::StandardDeviation };
        let baseline = GroupBaseline { scale };
        let advantages = baseline.advantages(&rewards).unwrap();
        let sum: f64 = advantages.iter().copied().map(f64::from).sum();
        prop_assert!(sum.abs() < 1e-4, "{sum}");
        if !unit && rewards.iter().any(|r| (r - rewards[0]).abs() > 0.1) {
            let squares: f64 = advantages.iter().map(|&a| f64::from(a).powi(2)).sum();
            prop_assert!((squares / (rewards.len() - 1) as f64 - 1.0).abs() < 1e-3);
        }
    }

    #[test]
    fn gae_is_the_weighted_sum_of_its_definition(
        (rewards, values) in (1_usize..12).prop_flat_map(|n| (
            prop::collection::vec(-2.0_f32..2.0, n), prop::collection::vec(-2.0_f32..2.0, n),
        )),
        bootstrap in -2.0_f32..2.0, gamma in 0.0_f32..=1.0, lambda in 0.0_f32..=1.0,
    ) {
        let gae = Gae { gamma, lambda: Lambda::Fixed(lambda), value_lambda: None };
        let estimates = gae.estimates(&rewards, &values, bootstrap).unwrap();
        let value = |t: usize| f64::from(values.get(t).copied().unwrap_or(bootstrap));
        let (gamma, lambda) = (f64::from(gamma), f64::from(lambda));
        for t in 0..rewards.len() {
            let direct: f64 = (t..rewards.len())
                .map(|k| {
                    let delta = f64::from(rewards[k]) + gamma * value(k + 1) - value(k);
                    (gamma * lambda).powi((k - t) as i32) * delta
                })
                .sum();
            prop_assert!((f64::from(estimates.advantages[t]) - direct).abs() < 1e-4);
            prop_assert!((f64::from(estimates.returns[t]) - direct - value(t)).abs() < 1e-4);
        }
    }

    #[test]
    fn gae_without_discount_is_the_reward_to_go(
        rewards in prop::collection::vec(-2.0_f32..2.0, 1..12),
    ) {
        let values = vec![0.5; rewards.len()];
        let gae = Gae { gamma: 1.0, lambda: Lambda::Fixed(1.0), value_lambda: None };
        let estimates = gae.estimates(&rewards, &values, 0.0).unwrap();
        for t in 0..rewards.len() {
            let to_go: f32 = rewards[t..].iter().sum();
            prop_assert!((estimates.returns[t] - to_go).abs() < 1e-4);
        }
    }
}

#[test]
fn a_group_of_equal_rewards_teaches_nothing() {
    for rewards in [&[1.0, 1.0, 1.0][..], &[0.1; 7], &[0.5]] {
        let zero = GroupBaseline::default().advantages(rewards).unwrap();
        assert!(zero.iter().all(|&a| a == 0.0));
    }
    assert_eq!(
        GroupBaseline::default().advantages(&[]).unwrap(),
        Vec::<f32>::new()
    );
}

#[test]
fn a_worked_example_of_grpo() {
    // One of four right: mean 1/4, sample deviation 1/2.
    let advantages = GroupBaseline::default()
        .advantages(&[1.0, 0.0, 0.0, 0.0])
        .unwrap();
    for (advantage, expected) in advantages.iter().zip([1.5, -0.5, -0.5, -0.5]) {
        assert!((advantage - expected).abs() < 1e-5, "{advantages:?}");
    }
    let unit = GroupBaseline { scale: Scale::Unit };
    assert_eq!(
        unit.advantages(&[1.0, 0.0, 0.0, 0.0]).unwrap(),
        [0.75, -0.25, -0.25, -0.25]
    );
}

#[test]
fn the_penalty_is_paid_by_every_token_and_the_reward_comes_last() {
    let penalty = KlPenalty {
        estimator: KlEstimator::K1,
        coefficient: 0.5,
    };
    let rewards = penalty
        .token_rewards(1.0, &[-1.0, -2.0], &[-1.5, -1.0])
        .unwrap();
    assert_eq!(rewards, vec![-0.25, 1.5]);
    assert_eq!(
        penalty.token_rewards(1.0, &[], &[]).unwrap(),
        Vec::<f32>::new()
    );
}

#[test]
fn a_perfect_critic_explains_all_variance() {
    let batch = ValueBatch {
        values: &[1.0, 2.0, 4.0],
        old_values: &[1.0, 2.0, 4.0],
        returns: &[1.0, 2.0, 4.0],
        lengths: &[3],
    };
    let objective = ValueObjective::default();
    let totals = Totals::of(&[3]);
    assert_eq!(
        objective
            .evaluate(&batch, totals)
            .unwrap()
            .explained_variance,
        1.0
    );
    let constant = ValueBatch {
        values: &[2.0; 3],
        ..batch
    };
    let explained = objective
        .evaluate(&constant, totals)
        .unwrap()
        .explained_variance;
    assert!(explained.abs() < 1e-12, "{explained}");
}

#[test]
fn bad_inputs_are_named() {
    let good = [-1.0_f32, -2.0];
    let batch = PolicyBatch {
        new_log_probs: &good,
        old_log_probs: &good,
        behaviour_log_probs: None,
        advantages: &good,
        reference_log_probs: None,
        entropies: None,
        positive: None,
        lengths: &[2],
    };
    let totals = Totals::of(&[2]);
    let objective = PolicyObjective::default();
    assert!(objective.evaluate(&batch, totals).is_ok());
    let short = PolicyBatch {
        advantages: &good[..1],
        ..batch
    };
    let error = objective.evaluate(&short, totals).unwrap_err();
    assert_eq!(
        error,
        ObjectiveError::Length {
            what: "advantages",
            given: 1,
            expected: 2
        }
    );
    let diverged = PolicyBatch {
        new_log_probs: &[-1.0, f32::NAN],
        ..batch
    };
    let error = objective.evaluate(&diverged, totals).unwrap_err();
    assert_eq!(
        error,
        ObjectiveError::NotFinite {
            what: "new_log_probs",
            at: 1
        }
    );
    let with_bonus = PolicyObjective {
        entropy_coefficient: 0.1,
        ..objective
    };
    let error = with_bonus.evaluate(&batch, totals).unwrap_err();
    assert_eq!(error, ObjectiveError::Absent { what: "entropies" });
    let corrected = PolicyObjective {
        importance_cap: Some(2.0),
        ..objective
    };
    let error = corrected.evaluate(&batch, totals).unwrap_err();
    let what = "behaviour_log_probs";
    assert_eq!(error, ObjectiveError::Absent { what });
    let likely = PolicyObjective {
        positive_coefficient: 0.1,
        ..objective
    };
    let error = likely.evaluate(&batch, totals).unwrap_err();
    assert_eq!(error, ObjectiveError::Absent { what: "positive" });
    let right = PolicyBatch {
        positive: Some(&[true]),
        ..batch
    };
    let error = likely.evaluate(&right, totals).unwrap_err();
    assert_eq!(
        error,
        ObjectiveError::Totals,
        "its right replies are not counted"
    );
    let error = objective
        .evaluate(
            &batch,
            Totals {
                sequences: 1,
                tokens: 1,
                positive_tokens: 0,
            },
        )
        .unwrap_err();
    assert_eq!(error, ObjectiveError::Totals);
}

#[test]
fn a_huge_ratio_stays_finite() {
    let batch = PolicyBatch {
        new_log_probs: &[0.0],
        old_log_probs: &[-1000.0],
        behaviour_log_probs: None,
        advantages: &[-1.0],
        reference_log_probs: Some(&[-1000.0]),
        entropies: None,
        positive: None,
        lengths: &[1],
    };
    let kl = Some(KlPenalty {
        estimator: KlEstimator::K3,
        coefficient: 0.1,
    });
    let objective = PolicyObjective {
        kl,
        ..PolicyObjective::default()
    };
    let output = objective.evaluate(&batch, Totals::of(&[1])).unwrap();
    assert!(output.loss.is_finite() && output.d_log_probs[0].is_finite());
}

/// GSPO: two replies of two tokens and one, worked out by hand.
#[test]
fn a_reply_has_one_ratio_where_its_whole_is_compared() {
    let batch = PolicyBatch {
        new_log_probs: &[-0.9, -1.7, -1.0],
        old_log_probs: &[-1.0, -2.0, -0.5],
        behaviour_log_probs: None,
        advantages: &[1.0, 1.0, -1.0],
        reference_log_probs: None,
        entropies: None,
        positive: None,
        lengths: &[2, 1],
    };
    let objective = PolicyObjective {
        surrogate: bounded(Ratio::Sequence, 0.5, 0.5),
        reduction: Reduction::SequenceMean,
        ..PolicyObjective::default()
    };
    let loss = objective.evaluate(&batch, Totals::of(&[2, 1])).unwrap();
    // exp((0.1 + 0.3) / 2) and exp(-0.5): -(1.221403 - 0.606531) / 2.
    assert!((loss.loss + 0.307_436).abs() < 1e-6, "{}", loss.loss);
    // Each token of the first: -1.221403 / (2 replies * 2 tokens).
    let expected = [-0.305_351, -0.305_351, 0.303_265];
    for (found, expected) in loss.d_log_probs.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

/// Decoupled PPO: the old policy is as the new one, and four times as sure as the one that sampled.
#[test]
fn stale_tokens_weigh_as_their_ratio_up_to_the_cap() {
    let quarter = 4f32.ln();
    let batch = PolicyBatch {
        new_log_probs: &[-1.0, -1.0],
        old_log_probs: &[-1.0, -1.0],
        behaviour_log_probs: Some(&[-1.0 - quarter, -1.0 + quarter]),
        advantages: &[1.0, 1.0],
        reference_log_probs: None,
        entropies: None,
        positive: None,
        lengths: &[2],
    };
    let objective = PolicyObjective {
        importance_cap: Some(2.0),
        ..PolicyObjective::default()
    };
    let loss = objective.evaluate(&batch, Totals::of(&[2])).unwrap();
    // Weights of 2, where 4 is held, and 1/4.
    assert!((loss.loss + 1.125).abs() < 1e-6, "{}", loss.loss);
    assert!((loss.d_log_probs[0] + 1.0).abs() < 1e-6);
    assert!((loss.d_log_probs[1] + 0.125).abs() < 1e-6);
    assert_eq!(loss.metrics.importance_capped_fraction, 0.5);
    assert!((loss.metrics.importance_mean - 1.125).abs() < 1e-6);
}

/// VAPO's equation 11 on two replies, of which the second was right.
#[test]
fn right_replies_become_likelier_by_themselves() {
    let batch = PolicyBatch {
        new_log_probs: &[-1.0, -2.0, -3.0],
        old_log_probs: &[-1.0, -2.0, -3.0],
        behaviour_log_probs: None,
        advantages: &[0.0; 3],
        reference_log_probs: None,
        entropies: None,
        positive: Some(&[false, true]),
        lengths: &[1, 2],
    };
    let objective = PolicyObjective {
        positive_coefficient: 0.1,
        ..PolicyObjective::default()
    };
    let totals = Totals::of(&[1, 2]).with_positive(&[1, 2], &[false, true]);
    let loss = objective.evaluate(&batch, totals).unwrap();
    assert!((loss.loss - 0.25).abs() < 1e-6, "{}", loss.loss);
    assert_eq!(loss.d_log_probs, [0.0, -0.05, -0.05]);
}

#[test]
fn decays_follow_the_length_and_may_differ_between_policy_and_critic() {
    let adaptive = Lambda::LengthAdaptive { alpha: 0.05 };
    // The table of the paper: 1 - 1 / (0.05 l).
    for (tokens, lambda) in [
        (1, 0.0),
        (20, 0.0),
        (100, 0.8),
        (1_000, 0.98),
        (10_000, 0.998),
    ] {
        assert!((adaptive.of(tokens) - lambda).abs() < 1e-6, "{tokens}");
    }
    // A reward of 1 at the end of three tokens that are all expected to bring 0.5.
    let gae = Gae {
        gamma: 1.0,
        lambda: Lambda::Fixed(0.5),
        value_lambda: Some(1.0),
    };
    let estimates = gae.estimates(&[0.0, 0.0, 1.0], &[0.5; 3], 0.0).unwrap();
    assert_eq!(estimates.advantages, [0.125, 0.25, 0.5]);
    assert_eq!(
        estimates.returns, [1.0; 3],
        "what came, whatever was expected"
    );
}

#[test]
fn baselines_by_hand() {
    assert_eq!(leave_one_out(&[1.0, 0.0, 0.5]).unwrap(), [0.75, -0.75, 0.0]);
    assert_eq!(leave_one_out(&[3.0]).unwrap(), [0.0]);
    assert_eq!(over_greedy(&[1.0, 0.0], 0.25).unwrap(), [0.75, -0.25]);
    assert_eq!(
        rewards_to_go(&[1.0, 2.0, 4.0], 0.5).unwrap(),
        [3.0, 4.0, 4.0]
    );
    let mut advantages = vec![vec![1.0, 3.0], vec![5.0], vec![]];
    whiten(&mut advantages);
    // Mean 3, deviation sqrt(8/3).
    let unit = 2.0 / (8.0f32 / 3.0).sqrt();
    let flat: Vec<f32> = advantages.concat();
    for (found, expected) in flat.iter().zip([-unit, 0.0, unit]) {
        assert!((found - expected).abs() < 1e-5, "{flat:?}");
    }
    for bad in [
        leave_one_out(&[f32::NAN]),
        rewards_to_go(&[f32::INFINITY], 1.0),
    ] {
        assert!(matches!(
            bad,
            Err(ObjectiveError::NotFinite {
                what: "rewards",
                at: 0
            })
        ));
    }
}

/// The curve of DAPO's figures: 20,480 tokens at most, of which the last 4,096 cost.
#[test]
fn the_last_tokens_before_the_limit_cost_more_and_more() {
    let overlong = Overlong {
        limit: 20_480,
        cache: 4_096,
    };
    let points = [
        (0, 0.0),
        (16_384, 0.0),
        (18_432, -0.5),
        (20_480, -1.0),
        (30_000, -1.0),
    ];
    for (tokens, penalty) in points {
        assert_eq!(overlong.penalty(tokens), penalty, "{tokens}");
    }
}

#[test]
fn the_price_of_harm_rises_until_the_cost_is_within_its_limit() {
    let mut price = Lagrangian {
        multiplier: 1.0,
        rate: 0.1,
        limit: 0.2,
    };
    assert_eq!(
        price.advantages(&[1.0, 0.0], &[0.0, 1.0]).unwrap(),
        [0.5, -0.5]
    );
    price.update(1.2).unwrap();
    assert!((price.multiplier - 0.1f32.exp()).abs() < 1e-6);
    // A policy that does the less harm the more it costs.
    for _ in 0..2_000 {
        price.update(1.0 / (1.0 + price.multiplier)).unwrap();
    }
    assert!(
        (1.0 / (1.0 + price.multiplier) - 0.2).abs() < 1e-3,
        "{price:?}"
    );
    let before = price;
    assert!(price.update(f32::NAN).is_err());
    assert_eq!(price, before);
}
