//! The critic's loss.

use serde::{Deserialize, Serialize};

use super::{
    error::{ObjectiveError, check},
    reduction::{Reduction, Totals},
};

/// Settings of PPO's clipped value loss.
///
/// Per token `c/2 max((V - R)², (V_clip - R)²)` with `V_clip = V_old + clip(V - V_old, ±clip)`: an
/// improvement beyond the clip range has no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueObjective {
    /// The most that a value may move from the old one, or `None` for plain squared error.
    pub clip: Option<f32>,
    /// The factor on the loss: c.
    pub coefficient: f32,
    /// The average over token losses.
    pub reduction: Reduction,
}

/// One micro-batch: an entry per response token in every slice but the last.
#[derive(Clone, Copy, Debug)]
pub struct ValueBatch<'a> {
    /// The critic's values now.
    pub values: &'a [f32],
    /// Its values when the advantages were made.
    pub old_values: &'a [f32],
    /// The targets: see [`Estimates::returns`](super::Estimates).
    pub returns: &'a [f32],
    /// Response tokens of each sequence.
    pub lengths: &'a [usize],
}

/// The value and the gradient of the critic's loss.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueLoss {
    /// This micro-batch's share of the step's loss.
    pub loss: f64,
    /// Derivative of `loss` by each value.
    pub d_values: Vec<f32>,
    /// Fraction of tokens whose gradient the clip range stopped.
    pub clip_fraction: f64,
    /// One minus the ratio of the variances of error and target: 1 is a perfect critic, 0 no
    /// better than a constant. 0 when the targets are constant.
    pub explained_variance: f64,
}

impl Default for ValueObjective {
    /// A clip range of 0.2 and a coefficient of 0.5, mean over tokens.
    fn default() -> Self {
        Self {
            clip: Some(0.2),
            coefficient: 0.5,
            reduction: Reduction::TokenMean,
        }
    }
}

impl ValueObjective {
    /// Evaluates the loss of a micro-batch of a step with these totals, and its gradient.
    ///
    /// # Errors
    /// [`ObjectiveError`] when lengths differ or an input is not finite.
    pub fn evaluate(
        &self,
        batch: &ValueBatch<'_>,
        totals: Totals,
    ) -> Result<ValueLoss, ObjectiveError> {
        let tokens = batch.lengths.iter().sum();
        check("values", batch.values, tokens)?;
        check("old_values", batch.old_values, tokens)?;
        check("returns", batch.returns, tokens)?;
        let weights = self.reduction.weights(batch.lengths, totals)?;
        let coefficient = f64::from(self.coefficient);
        let mut loss = 0.0;
        let mut clipped = 0_usize;
        let mut d_values = vec![0.0; tokens];
        for (t, weight) in weights.into_iter().enumerate() {
            let value = f64::from(batch.values[t]);
            let old = f64::from(batch.old_values[t]);
            let error = value - f64::from(batch.returns[t]);
            let held = match self.clip {
                Some(clip) => (value - old).clamp(-f64::from(clip), f64::from(clip)) + old,
                None => value,
            };
            let held_error = held - f64::from(batch.returns[t]);
            let stopped = held_error.abs() > error.abs();
            let used = if stopped { held_error } else { error };
            loss += weight * 0.5 * coefficient * used * used;
            if stopped {
                clipped += 1;
            } else {
                d_values[t] = (weight * coefficient * error) as f32;
            }
        }
        Ok(ValueLoss {
            loss,
            d_values,
            clip_fraction: clipped as f64 / tokens.max(1) as f64,
            explained_variance: explained_variance(batch.values, batch.returns),
        })
    }
}

fn explained_variance(values: &[f32], returns: &[f32]) -> f64 {
    let variance = |numbers: &mut dyn Iterator<Item = f64>| {
        let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for number in numbers {
            count += 1.0;
            let delta = number - mean;
            mean += delta / count;
            squares += delta * (number - mean);
        }
        squares
    };
    let targets = variance(&mut returns.iter().copied().map(f64::from));
    let errors = variance(
        &mut returns
            .iter()
            .zip(values)
            .map(|(&r, &v)| f64::from(r) - f64::from(v)),
    );
    if targets == 0.0 {
        0.0
    } else {
        1.0 - errors / targets
    }
}
