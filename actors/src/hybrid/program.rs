//! The algorithms as programs: what the models of a run do in one step, one after the other, and what
//! at the same time. References go through here, and numbers that are few.
//!
//! What an advantage is, and the loss, are not here: see
//! [`objective`](odeon_algorithms::objective) and `docs/recipes.md` for formulas and sources. So GRPO,
//! Dr. GRPO, GSPO, RLOO and REINFORCE++ are one program with other baselines and losses.

use odeon::group::WorkerGroup;
use odeon::{Failure, Group};
use odeon_algorithms::objective::Blend;
use tokio::try_join;

use super::calls::{
    Dealing, Estimate, Estimated, Generate, Judge, Learn, LogProbs, PerToken, RateRows, Summary,
    Update, Values, Verdict, Wanted,
};
use super::rows::Rows;
use super::weights::Published;
use super::workers::{CriticWorker, Estimator, PolicyWorker, ReferenceWorker, RewardWorker};
use crate::engine::StepStats;
use crate::rl::ranks::rank::ModelRank;
use crate::trajectory::{Decode, SampleId, Trajectory};

/// The models of a run.
#[derive(Clone, Debug)]
pub struct Models {
    /// Generates and trains.
    pub policy: WorkerGroup<PolicyWorker>,
    /// Says what replies are worth.
    pub reward: WorkerGroup<RewardWorker>,
    /// Computes advantages.
    pub estimator: WorkerGroup<Estimator>,
    /// Expects reward, where an algorithm has a critic.
    pub critic: Option<WorkerGroup<CriticWorker>>,
    /// Expects cost, where that has a price.
    pub cost_critic: Option<WorkerGroup<CriticWorker>>,
    /// The policy as it was, where leaving it costs.
    pub reference: Option<WorkerGroup<ReferenceWorker>>,
    /// The batches that ranks of a model get: all of it where they share the model.
    pub dealing: Dealing,
    /// The weights to generate with, where ranks share the policy.
    pub weights: Published,
    /// The model of a reward that is learnt, where ranks share it; else each judge has it.
    pub shared_reward: Option<SharedReward>,
}

/// A model of rewards that ranks share. The first of those that judge asks them.
#[derive(Clone, Debug)]
pub struct SharedReward {
    /// Its part of the reward.
    pub blend: Blend,
    /// The ranks.
    pub ranks: Group<ModelRank>,
}

/// Settings that a step begins with.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its number, from 1.
    pub number: u64,
    /// The first prompt.
    pub first: u64,
    /// Number of prompts.
    pub groups: u64,
    /// Replies to each.
    pub group_size: u32,
    /// The price of cost at this step, where it has one.
    pub price: Option<f32>,
    /// Set when the policy learns: not while a critic comes to know it.
    pub learns: bool,
}

/// Results of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The batch.
    pub summary: Summary,
    /// Results of the optimiser.
    pub stats: StepStats,
    /// The critic's loss, where there is one.
    pub critic_loss: Option<f64>,
    /// Prompts that were used.
    pub prompts: u64,
    /// Of these, left out since all their replies were worth the same.
    pub uniform: u64,
}

/// Replies to prompts, and what they are worth.
struct Judged {
    replies: Rows<Trajectory>,
    verdicts: Vec<Verdict>,
}

impl Models {
    /// GRPO and its kin: a group is its own baseline.
    ///
    /// # Errors
    /// A rank is lost, or cannot do its part.
    #[odeon::boxed]
    pub async fn grpo(&self, step: Step) -> Result<Outcome, Failure> {
        let judged = self.sample(step, step.first, step.groups).await?;
        let estimate = plain(step, &judged);
        let (estimate, reference) = self.with_reference(estimate).await?;
        self.learn(step, judged, estimate, reference).await
    }

    /// DAPO: groups whose replies are all worth the same teach nothing, and others take their place,
    /// at most `refill` times as many as a batch has.
    ///
    /// # Errors
    /// As [`grpo`](Self::grpo).
    #[odeon::boxed]
    pub async fn dapo(&self, step: Step, refill: u64) -> Result<Outcome, Failure> {
        let size = step.group_size as usize;
        let (mut mixed, mut uniform) = (vec![], vec![]);
        let (mut prompts, wanted) = (0, step.groups as usize);
        let most = step.groups * refill;
        while mixed.len() < wanted && prompts < most {
            let missing = ((wanted - mixed.len()) as u64).min(most - prompts);
            let Judged { replies, verdicts } =
                self.sample(step, step.first + prompts, missing).await?;
            prompts += missing;
            for (group, verdicts) in verdicts.chunks(size).enumerate() {
                let replies = replies.slice(group * size..(group + 1) * size);
                let same = verdicts
                    .windows(2)
                    .all(|pair| pair[0].reward == pair[1].reward);
                let kind = if same { &mut uniform } else { &mut mixed };
                kind.push((replies, verdicts.to_vec()));
            }
        }
        let left_out = uniform
            .len()
            .saturating_sub(wanted.saturating_sub(mixed.len()));
        mixed.extend(uniform);
        mixed.truncate(wanted);
        let (replies, verdicts): (Vec<_>, Vec<_>) = mixed.into_iter().unzip();
        let judged = Judged {
            replies: Rows::concat(replies),
            verdicts: verdicts.concat(),
        };
        let estimate = plain(step, &judged);
        let (estimate, reference) = self.with_reference(estimate).await?;
        let outcome = self.learn(step, judged, estimate, reference).await?;
        Ok(Outcome {
            prompts,
            uniform: left_out as u64,
            ..outcome
        })
    }

    /// ReMax: the reply that the policy thinks likeliest is the baseline.
    ///
    /// # Errors
    /// As [`grpo`](Self::grpo).
    #[odeon::boxed]
    pub async fn remax(&self, step: Step) -> Result<Outcome, Failure> {
        let likeliest = |group| wanted(group, step.group_size, Decode::Greedy);
        let greedy = (step.first..step.first + step.groups)
            .map(likeliest)
            .collect();
        let (judged, greedy) = try_join!(
            self.sample(step, step.first, step.groups),
            self.judged(greedy)
        )?;
        let estimate = Estimate {
            greedy: Some((greedy.replies, greedy.verdicts)),
            ..plain(step, &judged)
        };
        let (estimate, reference) = self.with_reference(estimate).await?;
        self.learn(step, judged, estimate, reference).await
    }

    /// PPO, and VAPO with its own settings: a critic says what was to be expected.
    ///
    /// # Errors
    /// As [`grpo`](Self::grpo).
    #[odeon::boxed]
    pub async fn ppo(&self, step: Step) -> Result<Outcome, Failure> {
        let replies = self.replies(samples(step, step.first, step.groups)).await?;
        let (verdicts, values, reference) = try_join!(
            self.verdicts(&replies),
            self.values(self.critic.as_ref(), &replies),
            self.reference(&replies)
        )?;
        let judged = Judged { replies, verdicts };
        let estimate = Estimate {
            values,
            reference: reference.clone(),
            ..plain(step, &judged)
        };
        self.learn(step, judged, estimate, reference).await
    }

    /// Safe RLHF: PPO with a second critic, and a price on cost that moves.
    ///
    /// # Errors
    /// As [`grpo`](Self::grpo).
    #[odeon::boxed]
    pub async fn safe_rlhf(&self, step: Step) -> Result<Outcome, Failure> {
        let price = step
            .price
            .ok_or_else(|| Failure::error("cost has no price").fatal())?;
        let replies = self.replies(samples(step, step.first, step.groups)).await?;
        let (verdicts, rewards, costs, reference) = try_join!(
            self.verdicts(&replies),
            self.values(self.critic.as_ref(), &replies),
            self.values(self.cost_critic.as_ref(), &replies),
            self.reference(&replies)
        )?;
        let judged = Judged { replies, verdicts };
        let estimate = Estimate {
            values: rewards,
            priced: Some((costs, price)),
            reference: reference.clone(),
            ..plain(step, &judged)
        };
        self.learn(step, judged, estimate, reference).await
    }

    /// The end of every step: advantages, then all that learn, at the same time.
    async fn learn(
        &self,
        step: Step,
        judged: Judged,
        estimate: Estimate,
        reference: PerToken,
    ) -> Result<Outcome, Failure> {
        let Estimated {
            advantages,
            returns,
            cost_returns,
            summary,
        } = self.estimator.call(estimate).await?;
        let Judged { replies, verdicts } = judged;
        let critic = self.learnt(self.critic.as_ref(), &replies, returns);
        let cost_critic = self.learnt(self.cost_critic.as_ref(), &replies, cost_returns);
        let policy = async {
            if !step.learns {
                return Ok(StepStats::default());
            }
            let update = Update {
                step: step.number,
                replies: replies.clone(),
                verdicts,
                advantages,
                reference,
                dealing: self.dealing,
            };
            self.policy.call(update).await.map_err(Failure::from)
        };
        let (stats, critic_loss, _) = try_join!(policy, critic, cost_critic)?;
        Ok(Outcome {
            summary,
            stats,
            critic_loss,
            prompts: step.groups,
            uniform: 0,
        })
    }

    async fn with_reference(&self, estimate: Estimate) -> Result<(Estimate, PerToken), Failure> {
        let reference = self.reference(&estimate.replies).await?;
        let estimate = Estimate {
            reference: reference.clone(),
            ..estimate
        };
        Ok((estimate, reference))
    }

    async fn sample(&self, step: Step, first: u64, groups: u64) -> Result<Judged, Failure> {
        self.judged(samples(step, first, groups)).await
    }

    async fn replies(&self, wanted: Vec<Wanted>) -> Result<Rows<Trajectory>, Failure> {
        let weights = self.weights.clone();
        Ok(self.policy.call(Generate { wanted, weights }).await?)
    }

    async fn judged(&self, wanted: Vec<Wanted>) -> Result<Judged, Failure> {
        let replies = self.replies(wanted).await?;
        let verdicts = self.verdicts(&replies).await?;
        Ok(Judged { replies, verdicts })
    }

    async fn verdicts(&self, replies: &Rows<Trajectory>) -> Result<Vec<Verdict>, Failure> {
        let mut verdicts = self.reward.call(Judge(replies.clone())).await?;
        if let Some(SharedReward { blend, .. }) = &self.shared_reward {
            let rates = self.reward.call(RateRows(replies.clone())).await?;
            if rates.len() != verdicts.len() {
                let (rates, replies) = (rates.len(), verdicts.len());
                return Err(Failure::error(format!(
                    "{rates} rates of {replies} replies"
                )));
            }
            for (verdict, rate) in verdicts.iter_mut().zip(rates) {
                verdict.reward = blend.of(verdict.reward, rate);
            }
        }
        Ok(verdicts)
    }

    /// Log-probabilities of replies under the reference; empty without one.
    async fn reference(&self, replies: &Rows<Trajectory>) -> Result<PerToken, Failure> {
        match &self.reference {
            Some(reference) => {
                let log_probs = LogProbs {
                    replies: replies.clone(),
                    dealing: self.dealing,
                };
                Ok(reference.call(log_probs).await?)
            }
            None => Ok(Rows::default()),
        }
    }

    async fn values(
        &self,
        critic: Option<&WorkerGroup<CriticWorker>>,
        replies: &Rows<Trajectory>,
    ) -> Result<PerToken, Failure> {
        let critic = critic.ok_or_else(|| Failure::error("there is no critic to ask").fatal())?;
        let values = Values {
            replies: replies.clone(),
            dealing: self.dealing,
        };
        Ok(critic.call(values).await?)
    }

    /// The loss of a critic that learns.
    async fn learnt(
        &self,
        critic: Option<&WorkerGroup<CriticWorker>>,
        replies: &Rows<Trajectory>,
        returns: PerToken,
    ) -> Result<Option<f64>, Failure> {
        let Some(critic) = critic else {
            return Ok(None);
        };
        let learn = Learn {
            replies: replies.clone(),
            returns,
            dealing: self.dealing,
        };
        Ok(Some(critic.call(learn).await?))
    }
}

/// An estimate of groups that are compared with themselves.
fn plain(step: Step, judged: &Judged) -> Estimate {
    Estimate {
        replies: judged.replies.clone(),
        verdicts: judged.verdicts.clone(),
        group_size: step.group_size,
        greedy: None,
        reference: Rows::default(),
        values: Rows::default(),
        priced: None,
    }
}

/// All replies to these prompts.
fn samples(step: Step, first: u64, groups: u64) -> Vec<Wanted> {
    let samples = |group| (0..step.group_size).map(move |it| wanted(group, it, Decode::Sampled));
    (first..first + groups).flat_map(samples).collect()
}

const fn wanted(group: u64, sample: u32, decode: Decode) -> Wanted {
    Wanted {
        id: SampleId { group, sample },
        decode,
    }
}
