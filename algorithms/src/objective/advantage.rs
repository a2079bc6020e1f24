//! How much better than expected a reply, or a token of it, was.

use serde::{Deserialize, Serialize};

use super::{ObjectiveError, check};

/// Advantages of the replies to one prompt relative to each other (GRPO, arXiv 2402.03300).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupBaseline {
    /// What the difference from the group's mean is divided by.
    pub scale: Scale,
    /// What becomes of groups whose rewards are all equal.
    pub degenerate: Degenerate,
}

/// What the difference of a reward from its group's mean is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The sample standard deviation (divisor n-1) plus 1e-6, as in GRPO.
    #[default]
    StandardDeviation,
    /// Nothing, as in Dr. GRPO (arXiv 2503.20783): easy and hard prompts weigh the same.
    Unit,
}

/// What becomes of a group whose rewards are all equal: it says nothing about what was better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Degenerate {
    /// It stays in the batch with advantages of zero and counts in the normalisation.
    #[default]
    Zero,
    /// It is left out, and another group should take its place (DAPO's dynamic sampling).
    Drop,
}

/// Advantages and value targets of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimates {
    /// Per token, the advantage.
    pub advantages: Vec<f32>,
    /// Per token, advantage plus old value: what the critic should have said.
    pub returns: Vec<f32>,
}

impl GroupBaseline {
    /// Returns the advantage of every reply of a group, or `None` when the group is to be dropped.
    ///
    /// `A_i = (R_i - mean(R)) / (std(R) + 1e-6)`, or without the division.
    ///
    /// # Errors
    /// [`ObjectiveError::NotFinite`] when a reward is not finite.
    pub fn advantages(&self, rewards: &[f32]) -> Result<Option<Vec<f32>>, ObjectiveError> {
        check("rewards", rewards, rewards.len())?;
        if rewards.iter().all(|reward| *reward == rewards[0]) {
            return Ok(match self.degenerate {
                Degenerate::Zero => Some(vec![0.0; rewards.len()]),
                Degenerate::Drop => None,
            });
        }
        let count = rewards.len() as f64;
        let mean = rewards.iter().copied().map(f64::from).sum::<f64>() / count;
        let squares: f64 = rewards.iter().map(|&r| (f64::from(r) - mean).powi(2)).sum();
        let divisor = match self.scale {
            Scale::StandardDeviation => (squares / (count - 1.0)).sqrt() + 1e-6,
            Scale::Unit => 1.0,
        };
        Ok(Some(
            rewards
                .iter()
                .map(|&r| ((f64::from(r) - mean) / divisor) as f32)
                .collect(),
        ))
    }
}

/// Repeats one number per sequence over the tokens of the sequence.
///
/// # Errors
/// [`ObjectiveError::Length`] when there is not one number per sequence.
pub fn per_token(per_sequence: &[f32], lengths: &[usize]) -> Result<Vec<f32>, ObjectiveError> {
    check("per_sequence", per_sequence, lengths.len())?;
    let pairs = per_sequence.iter().zip(lengths);
    Ok(pairs
        .flat_map(|(&value, &length)| std::iter::repeat_n(value, length))
        .collect())
}

/// Generalised advantage estimation over one sequence (arXiv 1506.02438).
///
/// `rewards` and `values` have one entry per token: the reward for that token, and the old critic's
/// value before it. `bootstrap` is the value after the last token: 0 when the sequence has ended,
/// the critic's value when it was cut off.
///
/// `δ_t = r_t + γ V_{t+1} - V_t`, `A_t = δ_t + γ λ A_{t+1}`.
///
/// # Errors
/// [`ObjectiveError`] when the lengths differ or a number is not finite.
pub fn gae(
    rewards: &[f32],
    values: &[f32],
    bootstrap: f32,
    gamma: f32,
    lambda: f32,
) -> Result<Estimates, ObjectiveError> {
    check("rewards", rewards, rewards.len())?;
    check("values", values, rewards.len())?;
    check("bootstrap", &[bootstrap], 1)?;
    let (gamma, lambda) = (f64::from(gamma), f64::from(lambda));
    let mut advantages = vec![0.0; rewards.len()];
    let mut returns = vec![0.0; rewards.len()];
    let mut next_value = f64::from(bootstrap);
    let mut next_advantage = 0.0;
    for t in (0..rewards.len()).rev() {
        let value = f64::from(values[t]);
        let delta = f64::from(rewards[t]) + gamma * next_value - value;
        next_advantage = delta + gamma * lambda * next_advantage;
        next_value = value;
        advantages[t] = next_advantage as f32;
        returns[t] = (next_advantage + value) as f32;
    }
    Ok(Estimates {
        advantages,
        returns,
    })
}
