//! Algorithms by name: a baseline and an objective, with the numbers of its paper wherever the
//! recipe has no own.

use odeon_algorithms::objective::{
    Baseline, Clipped, Gae, GroupBaseline, Gspo, KlEstimator, KlPenalty, Lagrangian, Lambda,
    Overlong, PolicyObjective, Reduction, Scale, Surrogate,
};
use serde::{Deserialize, Serialize};

use super::{CostSection, RlSection};
use crate::hybrid::Program;
use crate::rl::ledger::{Greedy, LedgerConfig, Uniform};

/// Which objective is optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Advantages relative to the group (arXiv 2402.03300), with the token mean and the higher upper
    /// bound of DAPO.
    Grpo,
    /// The same without dividing by the group's deviation or the reply's length (arXiv 2503.20783).
    DrGrpo,
    /// GRPO that tries other prompts for those that teach nothing, and shapes the reward of long
    /// replies (arXiv 2503.14476).
    Dapo,
    /// GRPO with the ratio of whole replies (arXiv 2507.18071).
    Gspo,
    /// Each reply against the mean of the others (arXiv 2402.14740).
    Rloo,
    /// Each reply against the greedy one (arXiv 2310.10505).
    Remax,
    /// Each token against the mean of the batch, the divergence paid for out of the reward
    /// (arXiv 2501.03262).
    #[serde(rename = "reinforce++")]
    ReinforcePlusPlus,
    /// Clipped surrogate with a critic and generalised advantage estimation (arXiv 1707.06347).
    Ppo,
    /// PPO for long replies: a critic that has learnt before the policy does, a decay by length, and
    /// the likelihood of right replies (arXiv 2504.05118).
    Vapo,
    /// PPO with a second critic for cost, and a price on that (arXiv 2310.12773).
    SafeRlhf,
}

impl RlSection {
    /// The penalty for leaving the reference policy, if there is one, with the algorithm's own
    /// estimator unless the recipe has another.
    fn penalty(&self, estimator: KlEstimator) -> Option<KlPenalty> {
        (self.kl > 0.0).then_some(KlPenalty {
            estimator: self.kl_estimator.unwrap_or(estimator),
            coefficient: self.kl,
        })
    }

    /// The baseline that rewards are compared with.
    #[must_use]
    pub fn baseline(&self) -> Baseline {
        match self.algorithm {
            Algorithm::Grpo | Algorithm::Dapo | Algorithm::Gspo => {
                Baseline::Group(GroupBaseline::default())
            }
            Algorithm::DrGrpo => Baseline::Group(GroupBaseline { scale: Scale::Unit }),
            Algorithm::Rloo => Baseline::LeaveOneOut,
            Algorithm::Remax => Baseline::Greedy,
            Algorithm::ReinforcePlusPlus => Baseline::Batch {
                gamma: self.gamma,
                kl: self.penalty(KlEstimator::K1),
            },
            Algorithm::Ppo | Algorithm::SafeRlhf => Baseline::Critic(Gae {
                gamma: self.gamma,
                lambda: Lambda::Fixed(self.lambda.unwrap_or(0.95)),
                value_lambda: None,
            }),
            Algorithm::Vapo => Baseline::Critic(Gae {
                gamma: self.gamma,
                lambda: match self.lambda {
                    Some(lambda) => Lambda::Fixed(lambda),
                    None => Lambda::LengthAdaptive {
                        alpha: self.lambda_alpha,
                    },
                },
                value_lambda: Some(1.0),
            }),
        }
    }

    /// The rules by which batches are made.
    #[must_use]
    pub fn ledger(&self) -> LedgerConfig {
        let rounds = self.refill.unwrap_or(match self.algorithm {
            Algorithm::Dapo => 10,
            _ => 0,
        });
        LedgerConfig {
            group_size: self.group_size,
            groups_per_batch: self.groups,
            staleness_max: self.staleness_max,
            uniform: match rounds {
                0 => Uniform::Kept,
                rounds => Uniform::Refilled { rounds },
            },
            greedy: match self.algorithm {
                Algorithm::Remax => Greedy::Yes,
                _ => Greedy::No,
            },
            sampler: self.sampler,
        }
    }

    /// The program of a step, where models are placed.
    #[must_use]
    pub fn program(&self) -> Program {
        match (self.algorithm, self.ledger().uniform) {
            (Algorithm::Remax, _) => Program::Remax,
            (Algorithm::Ppo | Algorithm::Vapo, _) => Program::Ppo,
            (Algorithm::SafeRlhf, _) => Program::SafeRlhf,
            (_, Uniform::Refilled { rounds }) => Program::Dapo {
                refill: u64::from(rounds),
            },
            (_, Uniform::Kept) => Program::Grpo,
        }
    }

    /// Steps of the reinforcement, with those in which the critic alone learns.
    #[must_use]
    pub fn steps_in_all(&self) -> u64 {
        self.value_steps().saturating_add(self.steps)
    }

    /// Steps in which the critic learns and the policy does not, before those of the reinforcement.
    #[must_use]
    pub fn value_steps(&self) -> u64 {
        self.value_steps.unwrap_or(match self.algorithm {
            Algorithm::Vapo => 50,
            _ => 0,
        })
    }

    /// The objective that the policy minimises.
    #[must_use]
    pub fn objective(&self) -> PolicyObjective {
        let own = || match self.algorithm {
            Algorithm::Gspo => {
                let paper = Gspo::default();
                Surrogate::Gspo(Gspo {
                    clip_low: self.clip_low.unwrap_or(paper.clip_low),
                    clip_high: self.clip_high.unwrap_or(paper.clip_high),
                })
            }
            _ => Surrogate::Clipped(Clipped {
                clip_low: self.clip_low.unwrap_or(0.2),
                clip_high: self.clip_high.unwrap_or(0.28),
            }),
        };
        let surrogate = self.objective.unwrap_or_else(own);
        let reduction = match self.algorithm {
            Algorithm::DrGrpo => Reduction::ConstantLength {
                tokens: self.response_max,
            },
            _ => surrogate.reduction(),
        };
        PolicyObjective {
            surrogate,
            kl: match self.algorithm {
                Algorithm::ReinforcePlusPlus => None,
                _ => self.penalty(KlEstimator::K3),
            },
            entropy_coefficient: self.entropy,
            reduction,
            importance_cap: (self.importance_cap > 0.0).then_some(self.importance_cap),
            positive_coefficient: self.positive.unwrap_or(match self.algorithm {
                Algorithm::Vapo => 0.1,
                _ => 0.0,
            }),
        }
    }

    /// The cost of long replies, if they have one.
    #[must_use]
    pub fn overlong(&self) -> Option<Overlong> {
        // A fifth of the longest, as there.
        let cache = self.overlong.unwrap_or(match self.algorithm {
            Algorithm::Dapo => self.response_max / 5,
            _ => 0,
        });
        (cache > 0).then_some(Overlong {
            limit: self.response_max,
            cache,
        })
    }
}

impl CostSection {
    /// The price that a run begins with, and how it moves.
    #[must_use]
    pub const fn price(&self) -> Lagrangian {
        Lagrangian {
            multiplier: self.price,
            rate: self.rate,
            limit: self.limit,
        }
    }
}
