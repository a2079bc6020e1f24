//! From verdicts to advantages, over all rows of a batch. Pure.

use odeon::Failure;
use odeon_algorithms::objective::{Baseline, Lagrangian, Overlong, whiten};

use super::calls::{Summary, Verdict};
use crate::rl::advantages;
use crate::trajectory::{Batch, GreedyReply, Trajectory};

/// The baseline for a batch of replies, and the cost of long ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) baseline: Baseline,
    pub(super) overlong: Option<Overlong>,
}

/// All columns of a batch.
pub(super) struct Columns {
    pub(super) batch: Batch,
    pub(super) reference: Vec<Vec<f32>>,
    pub(super) values: Vec<Vec<f32>>,
    pub(super) priced: Option<(Vec<Vec<f32>>, Lagrangian)>,
}

/// Advantages, and what each critic should have expected.
#[derive(Debug, Default)]
pub(super) struct Worth {
    pub(super) advantages: Vec<Vec<f32>>,
    pub(super) returns: Vec<Vec<f32>>,
    pub(super) cost_returns: Vec<Vec<f32>>,
}

impl Rule {
    pub(super) fn estimate(self, columns: &Columns) -> Result<Worth, Failure> {
        let batch = &columns.batch;
        let rewards = advantages::rewards(batch, self.overlong);
        let Baseline::Critic(gae) = self.baseline else {
            let greedy = advantages::greedy_rewards(batch, self.overlong);
            let advantages = advantages::without_critic(
                self.baseline,
                batch,
                &rewards,
                &greedy,
                &columns.reference,
            )?;
            return Ok(Worth {
                advantages,
                ..Worth::default()
            });
        };
        let (reward, returns) = advantages::with_critic(gae, &rewards, &columns.values)?;
        let (mut advantages, cost_returns) = match &columns.priced {
            Some((values, price)) => {
                let costs: Vec<f32> = batch.trajectories.iter().map(|it| it.cost).collect();
                let (cost, returns) = advantages::with_critic(gae, &costs, values)?;
                (advantages::priced(*price, &reward, &cost)?, returns)
            }
            None => (reward, vec![]),
        };
        whiten(&mut advantages);
        Ok(Worth {
            advantages,
            returns,
            cost_returns,
        })
    }
}

/// Replies and what they are worth in one.
pub(super) fn judged(
    replies: Vec<Trajectory>,
    verdicts: &[Verdict],
) -> Result<Vec<Trajectory>, Failure> {
    if replies.len() != verdicts.len() {
        let (replies, verdicts) = (replies.len(), verdicts.len());
        return Err(Failure::error(format!(
            "{verdicts} verdicts on {replies} replies"
        )));
    }
    let judged = |(reply, verdict): (Trajectory, &Verdict)| Trajectory {
        reward: verdict.reward,
        correct: verdict.correct,
        cost: verdict.cost,
        ..reply
    };
    Ok(replies.into_iter().zip(verdicts).map(judged).collect())
}

/// Rewards and lengths of greedy replies.
pub(super) fn greedy(replies: &[Trajectory], verdicts: &[Verdict]) -> Vec<GreedyReply> {
    let pairs = replies.iter().zip(verdicts);
    pairs
        .map(|(reply, verdict)| GreedyReply {
            reward: verdict.reward,
            tokens: reply.response.len(),
        })
        .collect()
}

/// A batch in numbers.
pub(super) fn summary(batch: &Batch, advantages: &[Vec<f32>]) -> Summary {
    let all = &batch.trajectories;
    let count = all.len().max(1) as f64;
    let mut hasher = crc32fast::Hasher::new();
    for (reply, advantages) in all.iter().zip(advantages) {
        for token in &reply.response {
            hasher.update(&token.to_le_bytes());
        }
        for number in reply.log_probs.iter().chain(advantages) {
            hasher.update(&number.to_le_bytes());
        }
    }
    Summary {
        reward: all.iter().map(|it| f64::from(it.reward)).sum::<f64>() / count,
        accuracy: all.iter().filter(|it| it.correct).count() as f64 / count,
        cost: all.iter().map(|it| f64::from(it.cost)).sum::<f64>() / count,
        response_tokens: all.iter().map(|it| it.response.len() as u64).sum(),
        checksum: hasher.finalize(),
    }
}
