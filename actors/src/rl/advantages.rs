//! From the rewards of a batch to an advantage for each token. Pure.
//!
//! There is a number for each token that the policy has sampled, and none for what a tool has written:
//! what is next to a token is the next that was sampled. So over a tool's answer an advantage passes as
//! if it were not there, `δ_t = r_t + γ V_{n(t)} - V_t` and `A_t = δ_t + γ λ A_{n(t)}` with `n(t)` the
//! next sampled token after `t`; the reward belongs to the last that was sampled.

use odeon::Failure;
use odeon_algorithms::objective::{
    Baseline, Gae, Lagrangian, Overlong, leave_one_out, over_greedy, per_token, rewards_to_go,
    whiten,
};

use crate::trajectory::Batch;

/// A number for each token that was sampled of each reply.
type PerToken = Vec<Vec<f32>>;

/// Rewards of the replies, less the penalties of long ones.
pub(crate) fn rewards(batch: &Batch, overlong: Option<Overlong>) -> Vec<f32> {
    let all = batch.trajectories.iter();
    all.map(|it| shaped(it.reward, it.response.len(), overlong))
        .collect()
}

fn shaped(reward: f32, tokens: usize, overlong: Option<Overlong>) -> f32 {
    reward + overlong.map_or(0.0, |overlong| overlong.penalty(tokens))
}

/// Rewards of the greedy replies, less the penalties of long ones.
pub(crate) fn greedy_rewards(batch: &Batch, overlong: Option<Overlong>) -> Vec<f32> {
    let all = batch.greedy.iter();
    all.map(|it| shaped(it.reward, it.tokens, overlong))
        .collect()
}

/// Advantages over a baseline that the batch has in itself.
pub(crate) fn without_critic(
    baseline: Baseline,
    batch: &Batch,
    rewards: &[f32],
    greedy: &[f32],
    reference: &[Vec<f32>],
) -> Result<PerToken, Failure> {
    let groups = || rewards.chunks(batch.group_size.max(1) as usize);
    let each: Vec<f32> = match baseline {
        Baseline::Group(group) => {
            let all = groups().map(|rewards| group.advantages(rewards));
            let all = all.collect::<Result<Vec<_>, _>>();
            all.map_err(Failure::error)?.concat()
        }
        Baseline::Greedy => {
            if groups().len() != greedy.len() {
                return Err(Failure::error("not every group has a greedy reply"));
            }
            let all = groups().zip(greedy);
            let all = all.map(|(rewards, greedy)| over_greedy(rewards, *greedy));
            let all = all.collect::<Result<Vec<_>, _>>();
            all.map_err(Failure::error)?.concat()
        }
        Baseline::LeaveOneOut => {
            let all = groups().map(leave_one_out).collect::<Result<Vec<_>, _>>();
            all.map_err(Failure::error)?.concat()
        }
        Baseline::Batch { gamma, kl } => {
            let mut advantages = vec![];
            for (number, trajectory) in batch.trajectories.iter().enumerate() {
                let rewards = match kl {
                    Some(kl) => {
                        let reference = reference.get(number).ok_or_else(|| {
                            Failure::error("the divergence needs a reference, and there is none")
                        })?;
                        kl.token_rewards(rewards[number], &trajectory.log_probs, reference)
                            .map_err(Failure::error)?
                    }
                    None => at_the_end(rewards[number], trajectory.sampled()),
                };
                advantages.push(rewards_to_go(&rewards, gamma).map_err(Failure::error)?);
            }
            whiten(&mut advantages);
            return Ok(advantages);
        }
        Baseline::Critic(_) => {
            return Err(Failure::error("a critic is the baseline, and there is none").fatal());
        }
    };
    let pairs = batch.trajectories.iter().zip(each);
    let all = pairs.map(|(it, advantage)| per_token(&[advantage], &[it.sampled()]));
    all.collect::<Result<_, _>>().map_err(Failure::error)
}

/// Advantages over what a critic expected, before they are brought to mean 0 and deviation 1, and what
/// it should have.
pub(crate) fn with_critic(
    gae: Gae,
    rewards: &[f32],
    values: &[Vec<f32>],
) -> Result<(PerToken, PerToken), Failure> {
    let (mut advantages, mut returns) = (vec![], vec![]);
    for (reward, values) in rewards.iter().zip(values) {
        let rewards = at_the_end(*reward, values.len());
        let estimates = gae
            .estimates(&rewards, values, 0.0)
            .map_err(Failure::error)?;
        advantages.push(estimates.advantages);
        returns.push(estimates.returns);
    }
    Ok((advantages, returns))
}

/// Advantages of a policy that wants reward and pays for cost.
pub(crate) fn priced(
    price: Lagrangian,
    reward: &[Vec<f32>],
    cost: &[Vec<f32>],
) -> Result<PerToken, Failure> {
    let pairs = reward.iter().zip(cost);
    let all = pairs.map(|(reward, cost)| price.advantages(reward, cost));
    all.collect::<Result<_, _>>().map_err(Failure::error)
}

/// A reward for the whole, as its last token gets it.
fn at_the_end(reward: f32, tokens: usize) -> Vec<f32> {
    let mut rewards = vec![0.0; tokens];
    if let Some(last) = rewards.last_mut() {
        *last = reward;
    }
    rewards
}

#[cfg(test)]
mod tests {
    use odeon_algorithms::objective::{GroupBaseline, KlEstimator, KlPenalty, Lambda, Scale};

    use super::*;
    use std::time::Duration;

    use crate::trajectory::{Observed, SampleId, Trajectory};

    /// Two groups of two: replies of these lengths, with these rewards.
    fn batch(replies: [(usize, f32); 4]) -> Batch {
        let trajectory = |(number, (tokens, reward)): (usize, (usize, f32))| Trajectory {
            id: SampleId {
                group: number as u64 / 2,
                sample: number as u32 % 2,
            },
            version: 0,
            last_version: 0,
            life: 1,
            last_life: 1,
            prompt: vec![1],
            response: vec![2; tokens],
            log_probs: vec![-1.0; tokens],
            observed: Observed::default(),
            waited: Duration::ZERO,
            problem: 0,
            reward,
            correct: reward > 0.0,
            cost: 0.0,
        };
        Batch {
            step: 1,
            trajectories: replies.into_iter().enumerate().map(trajectory).collect(),
            group_size: 2,
            ..Batch::default()
        }
    }

    fn of(baseline: Baseline, batch: &Batch, reference: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let greedy = greedy_rewards(batch, None);
        without_critic(baseline, batch, &rewards(batch, None), &greedy, reference).unwrap()
    }

    #[test]
    fn each_reply_is_compared_within_its_group() {
        let batch = batch([(1, 1.0), (2, 0.0), (1, 3.0), (3, 1.0)]);
        let unit = Baseline::Group(GroupBaseline { scale: Scale::Unit });
        let expected = [vec![0.5], vec![-0.5; 2], vec![1.0], vec![-1.0; 3]];
        assert_eq!(of(unit, &batch, &[]), expected);
        let expected = [vec![1.0], vec![-1.0; 2], vec![2.0], vec![-2.0; 3]];
        assert_eq!(of(Baseline::LeaveOneOut, &batch, &[]), expected);
    }

    #[test]
    fn tokens_are_compared_over_the_batch_and_pay_for_leaving_the_reference() {
        let batch = batch([(2, 1.0), (1, 0.0), (1, 0.0), (1, 1.0)]);
        let plain = Baseline::Batch {
            gamma: 1.0,
            kl: None,
        };
        // To go: 1, 1, 0, 0, 1, whose mean is 0.6 and whose deviation is sqrt(0.24).
        let (low, high) = (-0.6 / 0.24f32.sqrt(), 0.4 / 0.24f32.sqrt());
        let close = |found: &[Vec<f32>], expected: [f32; 5]| {
            let flat = found.concat();
            let pairs = flat.iter().zip(expected);
            assert!(
                pairs.clone().count() == 5 && pairs.clone().all(|(a, b)| (a - b).abs() < 1e-4),
                "{flat:?}"
            );
        };
        close(&of(plain, &batch, &[]), [high, high, low, low, high]);
        let kl = Some(KlPenalty {
            estimator: KlEstimator::K1,
            coefficient: 0.5,
        });
        let paid = Baseline::Batch { gamma: 1.0, kl };
        // The first token is e times as likely as under the reference and pays 0.5: 0.5, 1, 0, 0, 1.
        let reference = [vec![-2.0, -1.0], vec![-1.0], vec![-1.0], vec![-1.0]];
        let deviation = 0.2f32.sqrt();
        let expected = [0.0, 0.5, -0.5, -0.5, 0.5].map(|it: f32| it / deviation);
        close(&of(paid, &batch, &reference), expected);
        let none = without_critic(paid, &batch, &rewards(&batch, None), &[], &[]).unwrap_err();
        assert!(none.to_string().contains("needs a reference"), "{none}");
    }

    /// SEMANTICS 90.
    /// Of five tokens a tool has written the second and the third: by hand with the three others.
    #[test]
    fn an_advantage_passes_over_what_a_tool_has_written() {
        let mut batch = batch([(5, 1.0), (1, 0.0), (1, 0.0), (1, 0.0)]);
        let reply = &mut batch.trajectories[0];
        reply.observed.push(1..3);
        reply.log_probs.truncate(3);
        let gae = Gae {
            gamma: 0.5,
            lambda: Lambda::Fixed(0.5),
            value_lambda: Some(1.0),
        };
        // A critic has no value for what it has not rated.
        let values = [vec![0.25, 0.5, 0.75], vec![0.0], vec![0.0], vec![0.0]];
        let rewards = rewards(&batch, None);
        let (advantages, returns) = with_critic(gae, &rewards, &values).unwrap();
        // δ: 1 - 0.75 = 0.25; 0.5 * 0.75 - 0.5 = -0.125; 0.5 * 0.5 - 0.25 = 0.
        let last = 0.25;
        let middle = -0.125 + 0.25 * last;
        assert_eq!(advantages[0], [0.25 * middle, middle, last]);
        assert_eq!(returns[0], [0.25, 0.5, 1.0]);
        let plain = Baseline::Batch {
            gamma: 1.0,
            kl: None,
        };
        let lengths = |all: Vec<Vec<f32>>| all.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(of(plain, &batch, &[])), [3, 1, 1, 1]);
        assert_eq!(
            lengths(of(Baseline::LeaveOneOut, &batch, &[])),
            [3, 1, 1, 1]
        );
        // The last tokens before the limit cost whoever has written them.
        let overlong = Overlong { limit: 4, cache: 2 };
        assert_eq!(super::rewards(&batch, Some(overlong))[0], 0.0);
    }

    #[test]
    fn a_critic_is_told_what_came_and_long_replies_earn_less() {
        let batch = batch([(2, 1.0), (4, 1.0), (1, 0.0), (1, 1.0)]);
        let overlong = Overlong { limit: 4, cache: 2 };
        let rewards = rewards(&batch, Some(overlong));
        assert_eq!(rewards, [1.0, 0.0, 0.0, 1.0]);
        let gae = Gae {
            gamma: 1.0,
            lambda: Lambda::Fixed(1.0),
            value_lambda: None,
        };
        let values: Vec<Vec<f32>> = [2, 4, 1, 1].map(|tokens| vec![0.5; tokens]).to_vec();
        let (mut advantages, returns) = with_critic(gae, &rewards, &values).unwrap();
        whiten(&mut advantages);
        assert_eq!(returns, [vec![1.0; 2], vec![0.0; 4], vec![0.0], vec![1.0]]);
        let all = advantages.concat();
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        assert!(mean.abs() < 1e-6 && all[0] > 0.0 && all[2] < 0.0, "{all:?}");
        assert!(without_critic(Baseline::Critic(gae), &batch, &rewards, &[], &[]).is_err());
    }
}
