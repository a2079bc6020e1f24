//! The policy's loss: a surrogate with KL penalty, entropy bonus, correction for stale data and
//! likelihood of right replies.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    divergence::{KlEstimator, KlPenalty, LOG_RATIO_MAX},
    error::{ObjectiveError, check},
    reduction::{Reduction, Totals},
    surrogate::{Ratio, Surrogate, Token},
};

/// Settings of the policy loss of PPO, GRPO, Dr. GRPO, DAPO, GSPO, VAPO and CISPO.
///
/// Per token, with a [`Surrogate`] `L` of its ratio and its advantage:
///
/// `w L + β KL - c H`
///
/// (GRPO's KL term, and the entropy bonus of PPO's equation 9), averaged as [`Reduction`] says. `w` is 1,
/// or corrects for the age of the data ([`importance_cap`](Self::importance_cap)). On top of that may
/// come the negative log-likelihood of the right replies
/// ([`positive_coefficient`](Self::positive_coefficient)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyObjective {
    /// The loss of a token by its ratio and its advantage.
    pub surrogate: Surrogate,
    /// The penalty for leaving the reference policy, if any.
    pub kl: Option<KlPenalty>,
    /// The factor on the mean entropy, which is subtracted: c.
    pub entropy_coefficient: f32,
    /// The average over token losses.
    pub reduction: Reduction,
    /// Where the old policy is not the one that sampled, each token weighs
    /// `w = min(exp(old - behaviour), cap)`: decoupled PPO (Hilton et al. 2022, arXiv 2110.00641),
    /// whose trust region is around a recent policy while data is older, with truncated importance
    /// sampling (Espeholt et al. 2018, arXiv 1802.01561). `None` does not correct.
    pub importance_cap: Option<f32>,
    /// The factor on the mean negative log-likelihood of the tokens of right replies: VAPO's μ (Yue
    /// et al. 2025, arXiv 2504.05118, equation 11).
    pub positive_coefficient: f32,
}

/// One micro-batch: an entry per response token in every slice but the last two.
#[derive(Clone, Copy, Debug)]
pub struct PolicyBatch<'a> {
    /// Log-probabilities of the sampled tokens under the policy being trained, in nats.
    pub new_log_probs: &'a [f32],
    /// Log-probabilities under the policy around which the trust region lies: the one that sampled
    /// them, unless `behaviour_log_probs` says otherwise.
    pub old_log_probs: &'a [f32],
    /// Log-probabilities under the policy that sampled them; needed for a correction.
    pub behaviour_log_probs: Option<&'a [f32]>,
    /// Advantages; see [`per_token`](super::per_token) for one number per sequence.
    pub advantages: &'a [f32],
    /// Log-probabilities under the reference policy; needed for a KL penalty.
    pub reference_log_probs: Option<&'a [f32]>,
    /// Entropies of the new policy's distributions in nats; needed for an entropy bonus.
    pub entropies: Option<&'a [f32]>,
    /// Of each sequence whether it was right; needed for their likelihood.
    pub positive: Option<&'a [bool]>,
    /// Response tokens of each sequence, in order; their sum is the length of the other slices.
    pub lengths: &'a [usize],
}

/// The value and the gradients of the policy loss.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyLoss {
    /// This micro-batch's share of the step's loss.
    pub loss: f64,
    /// Derivative of `loss` by each new log-probability.
    pub d_log_probs: Vec<f32>,
    /// Derivative of `loss` by each entropy; zeros without an entropy bonus.
    pub d_entropies: Vec<f32>,
    /// Metrics to watch.
    pub metrics: PolicyMetrics,
}

/// Means over the response tokens of one or more micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyMetrics {
    /// The number of tokens behind the means.
    pub tokens: usize,
    /// Mean ratio of new to old probability: 1 on-policy.
    pub ratio_mean: f64,
    /// The largest ratio.
    pub ratio_max: f64,
    /// Fraction of tokens that the upper bound held: their gradient, or with [`Cispo`] their weight.
    ///
    /// [`Cispo`]: super::Cispo
    pub clipped_high_fraction: f64,
    /// The same of the lower bound.
    pub clipped_low_fraction: f64,
    /// Mean `k3` estimate of `KL(old ‖ new)` in nats: how far the policy has moved.
    pub approximate_kl: f64,
    /// Mean estimate of the divergence from the reference in nats; 0 without a penalty.
    pub reference_kl: f64,
    /// Mean entropy in nats; 0 when entropies were not given.
    pub entropy: f64,
    /// Mean weight of the correction for stale data: 1 without one.
    pub importance_mean: f64,
    /// Fraction of tokens whose weight was held at the cap.
    pub importance_capped_fraction: f64,
}

impl Default for PolicyObjective {
    /// PPO's clip range of 0.2 on both sides, mean over tokens, no KL penalty, no entropy bonus.
    fn default() -> Self {
        Self {
            surrogate: Surrogate::default(),
            kl: None,
            entropy_coefficient: 0.0,
            reduction: Reduction::TokenMean,
            importance_cap: None,
            positive_coefficient: 0.0,
        }
    }
}

impl PolicyObjective {
    /// Evaluates the loss of a micro-batch of a step with these totals, and its gradients.
    ///
    /// # Errors
    /// [`ObjectiveError`] when lengths differ, an input is not finite, or one is absent that the
    /// settings need.
    pub fn evaluate(
        &self,
        batch: &PolicyBatch<'_>,
        totals: Totals,
    ) -> Result<PolicyLoss, ObjectiveError> {
        let tokens = batch.check(self, totals)?;
        let weights = self.reduction.weights(batch.lengths, totals)?;
        let mut output = PolicyLoss {
            loss: 0.0,
            d_log_probs: vec![0.0; tokens],
            d_entropies: vec![0.0; tokens],
            metrics: PolicyMetrics {
                tokens,
                ..PolicyMetrics::default()
            },
        };
        let mut first = 0;
        for (sequence, &length) in batch.lengths.iter().enumerate() {
            let range = first..first + length;
            first += length;
            self.sequence(batch, sequence, range, &weights, totals, &mut output);
        }
        Ok(output)
    }

    /// Adds what the tokens of one sequence say.
    fn sequence(
        &self,
        batch: &PolicyBatch<'_>,
        sequence: usize,
        range: Range<usize>,
        weights: &[f64],
        totals: Totals,
        output: &mut PolicyLoss,
    ) {
        let share = 1.0 / output.metrics.tokens.max(1) as f64;
        let bonus = f64::from(self.entropy_coefficient);
        let (length, ratio) = (range.len() as f64, self.surrogate.ratio());
        let log_ratio =
            |t: usize| f64::from(batch.new_log_probs[t]) - f64::from(batch.old_log_probs[t]);
        let mean = range.clone().map(log_ratio).sum::<f64>() / length;
        let positive = batch.positive.is_some_and(|positive| positive[sequence]);
        let likelihood = match positive {
            true => f64::from(self.positive_coefficient) / totals.positive_tokens.max(1) as f64,
            false => 0.0,
        };
        let mut of_sequence = 0.0;
        for t in range.clone() {
            let new = f64::from(batch.new_log_probs[t]);
            let old = f64::from(batch.old_log_probs[t]);
            let token = self.surrogate.term(Token {
                log_ratio: match ratio {
                    Ratio::Token => new - old,
                    Ratio::Sequence => mean,
                },
                log_prob: new,
                advantage: f64::from(batch.advantages[t]),
            });
            let (importance, capped) = self.importance(batch, t);
            let metrics = &mut output.metrics;
            metrics.ratio_mean += share * token.ratio;
            metrics.ratio_max = metrics.ratio_max.max(token.ratio);
            metrics.clipped_high_fraction += share * f64::from(u8::from(token.clipped_high));
            metrics.clipped_low_fraction += share * f64::from(u8::from(token.clipped_low));
            metrics.approximate_kl += share * KlEstimator::K3.estimate(old, new).0;
            metrics.importance_mean += share * importance;
            metrics.importance_capped_fraction += share * f64::from(u8::from(capped));
            let mut loss = importance * token.loss;
            let mut gradient = 0.0;
            match ratio {
                Ratio::Token => gradient = importance * token.gradient,
                Ratio::Sequence => of_sequence += weights[t] * importance * token.gradient,
            }
            if let (Some(penalty), Some(reference)) = (self.kl, batch.reference_log_probs) {
                let (kl, d_kl) = penalty.estimator.estimate(new, f64::from(reference[t]));
                loss += f64::from(penalty.coefficient) * kl;
                gradient += f64::from(penalty.coefficient) * d_kl;
                metrics.reference_kl += share * kl;
            }
            if let Some(entropies) = batch.entropies {
                let entropy = f64::from(entropies[t]);
                loss -= bonus * entropy;
                output.d_entropies[t] = (-bonus * weights[t]) as f32;
                metrics.entropy += share * entropy;
            }
            output.loss += weights[t] * loss - likelihood * new;
            output.d_log_probs[t] = (weights[t] * gradient - likelihood) as f32;
        }
        if ratio == Ratio::Sequence {
            // Each token moves the mean by its part of it.
            let each = (of_sequence / length) as f32;
            for gradient in &mut output.d_log_probs[range] {
                *gradient += each;
            }
        }
    }

    /// The weight of a token for the age of its data, and true when that is the cap.
    fn importance(&self, batch: &PolicyBatch<'_>, t: usize) -> (f64, bool) {
        let (Some(cap), Some(behaviour)) = (self.importance_cap, batch.behaviour_log_probs) else {
            return (1.0, false);
        };
        let log_ratio = f64::from(batch.old_log_probs[t]) - f64::from(behaviour[t]);
        let ratio = log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp();
        let cap = f64::from(cap);
        (ratio.min(cap), ratio > cap)
    }
}

impl PolicyBatch<'_> {
    /// Checks every input and returns the number of tokens.
    fn check(&self, objective: &PolicyObjective, totals: Totals) -> Result<usize, ObjectiveError> {
        let tokens = self.lengths.iter().sum();
        check("new_log_probs", self.new_log_probs, tokens)?;
        check("old_log_probs", self.old_log_probs, tokens)?;
        check("advantages", self.advantages, tokens)?;
        match self.reference_log_probs {
            Some(values) => check("reference_log_probs", values, tokens)?,
            None if objective.kl.is_some() => {
                return Err(ObjectiveError::Absent {
                    what: "reference_log_probs",
                });
            }
            None => {}
        }
        match self.entropies {
            Some(values) => check("entropies", values, tokens)?,
            None if objective.entropy_coefficient != 0.0 => {
                return Err(ObjectiveError::Absent { what: "entropies" });
            }
            None => {}
        }
        match self.behaviour_log_probs {
            Some(values) => check("behaviour_log_probs", values, tokens)?,
            None if objective.importance_cap.is_some() => {
                return Err(ObjectiveError::Absent {
                    what: "behaviour_log_probs",
                });
            }
            None => {}
        }
        match self.positive {
            Some(positive) if positive.len() != self.lengths.len() => {
                return Err(ObjectiveError::Length {
                    what: "positive",
                    given: positive.len(),
                    expected: self.lengths.len(),
                });
            }
            Some(positive) if objective.positive_coefficient != 0.0 => {
                let own = Totals::default().with_positive(self.lengths, positive);
                if own.positive_tokens > totals.positive_tokens {
                    return Err(ObjectiveError::Totals);
                }
            }
            None if objective.positive_coefficient != 0.0 => {
                return Err(ObjectiveError::Absent { what: "positive" });
            }
            _ => {}
        }
        Ok(tokens)
    }
}

impl PolicyMetrics {
    /// The fraction of tokens that either bound held.
    #[must_use]
    pub fn clip_fraction(&self) -> f64 {
        self.clipped_high_fraction + self.clipped_low_fraction
    }

    /// Joins the metrics of two micro-batches, weighted by their tokens.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let tokens = self.tokens + other.tokens;
        let share = other.tokens as f64 / tokens.max(1) as f64;
        let mean = |a: f64, b: f64| a + share * (b - a);
        Self {
            tokens,
            ratio_mean: mean(self.ratio_mean, other.ratio_mean),
            ratio_max: self.ratio_max.max(other.ratio_max),
            clipped_high_fraction: mean(self.clipped_high_fraction, other.clipped_high_fraction),
            clipped_low_fraction: mean(self.clipped_low_fraction, other.clipped_low_fraction),
            approximate_kl: mean(self.approximate_kl, other.approximate_kl),
            reference_kl: mean(self.reference_kl, other.reference_kl),
            entropy: mean(self.entropy, other.entropy),
            importance_mean: mean(self.importance_mean, other.importance_mean),
            importance_capped_fraction: mean(
                self.importance_capped_fraction,
                other.importance_capped_fraction,
            ),
        }
    }
}
