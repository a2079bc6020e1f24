//! Advantages: the amount by which a reply, or a token of it, was better than expected.

use serde::{Deserialize, Serialize};

use super::{
    divergence::KlPenalty,
    error::{ObjectiveError, check},
};

/// The baseline that the rewards of a batch are compared with, to tell how good each reply or token
/// was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// The mean of the replies to the same prompt: GRPO, Dr. GRPO, GSPO, DAPO.
    Group(GroupBaseline),
    /// The mean of the others among them: RLOO.
    LeaveOneOut,
    /// The reward of the greedy reply to the same prompt: ReMax.
    Greedy,
    /// The mean over all tokens of the batch of what was still to come: REINFORCE++.
    Batch {
        /// The discount of a reward for each token that it comes later: γ.
        gamma: f32,
        /// The penalty of each token for leaving the reference policy, out of its reward.
        kl: Option<KlPenalty>,
    },
    /// The value that a critic expects, token by token: PPO, VAPO. Over the batch, advantages then
    /// have mean 0 and deviation 1.
    Critic(Gae),
}

impl Baseline {
    /// Returns true when a critic is needed.
    #[must_use]
    pub const fn has_critic(&self) -> bool {
        matches!(self, Self::Critic(_))
    }
}

/// Advantages of the replies to one prompt relative to each other (GRPO, arXiv 2402.03300).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupBaseline {
    /// The divisor of the difference from the group's mean.
    pub scale: Scale,
}

/// The divisor of the difference of a reward from its group's mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The sample standard deviation (divisor n-1) plus 1e-6, as in GRPO.
    #[default]
    StandardDeviation,
    /// Nothing, as in Dr. GRPO (arXiv 2503.20783): easy and hard prompts weigh the same.
    Unit,
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
    /// Returns the advantage of every reply of a group; 0 when the rewards are all equal.
    ///
    /// `A_i = (R_i - mean(R)) / (std(R) + 1e-6)`, or without the division.
    ///
    /// # Errors
    /// [`ObjectiveError::NotFinite`] when a reward is not finite.
    pub fn advantages(&self, rewards: &[f32]) -> Result<Vec<f32>, ObjectiveError> {
        check("rewards", rewards, rewards.len())?;
        if rewards.iter().all(|reward| *reward == rewards[0]) {
            return Ok(vec![0.0; rewards.len()]);
        }
        let count = rewards.len() as f64;
        let mean = rewards.iter().copied().map(f64::from).sum::<f64>() / count;
        let squares: f64 = rewards.iter().map(|&r| (f64::from(r) - mean).powi(2)).sum();
        let divisor = match self.scale {
            Scale::StandardDeviation => (squares / (count - 1.0)).sqrt() + 1e-6,
            Scale::Unit => 1.0,
        };
        Ok(rewards
            .iter()
            .map(|&r| ((f64::from(r) - mean) / divisor) as f32)
            .collect())
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

/// Generalised advantage estimation over one sequence (arXiv 1506.02438), with one decay for the
/// policy and, as in VAPO (arXiv 2504.05118), another for the critic.
///
/// `δ_t = r_t + γ V_{t+1} - V_t`, `A_t = δ_t + γ λ A_{t+1}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gae {
    /// The discount of a reward for each token that it comes later: γ.
    pub gamma: f32,
    /// The decay of the policy's advantages: λ.
    pub lambda: Lambda,
    /// That of the critic's targets, if it is another: 1 is the return itself, without the bias of the
    /// critic's own values, which a reward at the end of a long reply needs.
    pub value_lambda: Option<f32>,
}

/// The decay of the influence of later errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lambda {
    /// Alike for all replies.
    Fixed(f32),
    /// `1 - 1 / (α l)` for a reply of `l` tokens, so that the sum of the decays grows with it (VAPO,
    /// equation 8); 0 where that is negative.
    LengthAdaptive {
        /// α; 0.05 in VAPO.
        alpha: f32,
    },
}

impl Lambda {
    /// For a reply of so many tokens.
    #[must_use]
    pub fn of(self, tokens: usize) -> f32 {
        match self {
            Self::Fixed(lambda) => lambda,
            Self::LengthAdaptive { alpha } => {
                (1.0 - 1.0 / (alpha * tokens.max(1) as f32)).clamp(0.0, 1.0)
            }
        }
    }
}

impl Gae {
    /// Advantages and value targets of a sequence.
    ///
    /// `rewards` and `values` have one entry per token: the reward for that token, and the old critic's
    /// value before it. `bootstrap` is the value after the last token: 0 when the sequence has ended,
    /// the critic's value when it was cut off.
    ///
    /// # Errors
    /// [`ObjectiveError`] when the lengths differ or a number is not finite.
    pub fn estimates(
        &self,
        rewards: &[f32],
        values: &[f32],
        bootstrap: f32,
    ) -> Result<Estimates, ObjectiveError> {
        check("rewards", rewards, rewards.len())?;
        check("values", values, rewards.len())?;
        check("bootstrap", &[bootstrap], 1)?;
        let lambda = self.lambda.of(rewards.len());
        let decayed = |lambda: f32| {
            let decay = f64::from(self.gamma) * f64::from(lambda);
            let mut advantages = vec![0.0; rewards.len()];
            let (mut next_value, mut next_advantage) = (f64::from(bootstrap), 0.0);
            for t in (0..rewards.len()).rev() {
                let value = f64::from(values[t]);
                let delta = f64::from(rewards[t]) + f64::from(self.gamma) * next_value - value;
                next_advantage = delta + decay * next_advantage;
                next_value = value;
                advantages[t] = next_advantage;
            }
            advantages
        };
        let advantages = decayed(lambda);
        let of_values = self.value_lambda.filter(|own| *own != lambda).map(decayed);
        let targets = of_values.as_ref().unwrap_or(&advantages);
        let returns = targets.iter().zip(values);
        Ok(Estimates {
            returns: returns.map(|(a, &v)| (a + f64::from(v)) as f32).collect(),
            advantages: advantages.iter().map(|&a| a as f32).collect(),
        })
    }
}

/// The discounted sum of each token's reward and those after it: `G_t = r_t + γ G_{t+1}`. With
/// advantages over the batch brought to mean 0 and deviation 1 ([`whiten`]) this is REINFORCE++ (Hu
/// 2025, arXiv 2501.03262), whose token rewards pay for divergence ([`KlPenalty::token_rewards`]).
///
/// [`KlPenalty::token_rewards`]: super::KlPenalty::token_rewards
///
/// # Errors
/// [`ObjectiveError::NotFinite`] when a reward is not finite.
pub fn rewards_to_go(rewards: &[f32], gamma: f32) -> Result<Vec<f32>, ObjectiveError> {
    check("rewards", rewards, rewards.len())?;
    let mut after = 0.0;
    let mut sums: Vec<f32> = rewards
        .iter()
        .rev()
        .map(|&reward| {
            after = f64::from(reward) + f64::from(gamma) * after;
            after as f32
        })
        .collect();
    sums.reverse();
    Ok(sums)
}

/// Advantages over the mean of the other replies to the same prompt, which does not depend on the reply
/// itself, so that the gradient stays unbiased: RLOO (Ahmadian et al. 2024, arXiv 2402.14740).
///
/// `A_i = R_i - Σ_{j≠i} R_j / (n - 1)`; 0 for a reply that is alone.
///
/// # Errors
/// [`ObjectiveError::NotFinite`] when a reward is not finite.
pub fn leave_one_out(rewards: &[f32]) -> Result<Vec<f32>, ObjectiveError> {
    check("rewards", rewards, rewards.len())?;
    let others = (rewards.len().max(2) - 1) as f64;
    let sum: f64 = rewards.iter().copied().map(f64::from).sum();
    let one = |&reward: &f32| {
        let reward = f64::from(reward);
        (reward - (sum - reward) / others) as f32
    };
    Ok(match rewards {
        [_] => vec![0.0],
        all => all.iter().map(one).collect(),
    })
}

/// Advantages over what the greedy reply to the same prompt has earned: ReMax (Li et al. 2023, arXiv
/// 2310.10505).
///
/// # Errors
/// [`ObjectiveError::NotFinite`] when a reward is not finite.
pub fn over_greedy(rewards: &[f32], greedy: f32) -> Result<Vec<f32>, ObjectiveError> {
    check("rewards", rewards, rewards.len())?;
    check("greedy", &[greedy], 1)?;
    Ok(rewards.iter().map(|reward| reward - greedy).collect())
}

/// Brings the advantages of all tokens of a batch to mean 0 and, but for 1e-6, deviation 1.
pub fn whiten(advantages: &mut [Vec<f32>]) {
    let all = || advantages.iter().flatten().copied().map(f64::from);
    let count = advantages.iter().map(Vec::len).sum::<usize>().max(1) as f64;
    let mean = all().sum::<f64>() / count;
    let variance = all().map(|it| (it - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance.sqrt() + 1e-6);
    for advantage in advantages.iter_mut().flatten() {
        *advantage = ((f64::from(*advantage) - mean) * scale) as f32;
    }
}
