//! What an algorithm's name stands for: a baseline and an objective, with the numbers of its paper
//! wherever the recipe has no own.

use odeon_algorithms::objective::{
    Baseline, Gae, GroupBaseline, KlEstimator, KlPenalty, Lambda, Overlong, PolicyObjective, Ratio,
    Reduction, Scale,
};
use serde::{Deserialize, Serialize};

use super::RlSection;

/// Which objective is optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Advantages relative to the group (arXiv 2402.03300), with the token mean and the higher upper
    /// bound of DAPO.
    Grpo,
    /// The same without dividing by the group's deviation or the reply's length (arXiv 2503.20783).
    DrGrpo,
    /// GRPO with the ratio of whole replies (arXiv 2507.18071).
    Gspo,
    /// Each reply against the mean of the others (arXiv 2402.14740).
    Rloo,
    /// Each token against the mean of the batch, the divergence paid for out of the reward
    /// (arXiv 2501.03262).
    #[serde(rename = "reinforce++")]
    ReinforcePlusPlus,
    /// Clipped surrogate with a critic and generalised advantage estimation (arXiv 1707.06347).
    Ppo,
}

impl RlSection {
    /// What the penalty for leaving the reference policy is, if there is one.
    fn penalty(&self, estimator: KlEstimator) -> Option<KlPenalty> {
        (self.kl > 0.0).then_some(KlPenalty {
            estimator,
            coefficient: self.kl,
        })
    }

    /// What rewards are compared with.
    #[must_use]
    pub fn baseline(&self) -> Baseline {
        match self.algorithm {
            Algorithm::Grpo | Algorithm::Gspo => Baseline::Group(GroupBaseline::default()),
            Algorithm::DrGrpo => Baseline::Group(GroupBaseline {
                scale: Scale::Unit,
                ..GroupBaseline::default()
            }),
            Algorithm::Rloo => Baseline::LeaveOneOut,
            Algorithm::ReinforcePlusPlus => Baseline::Batch {
                gamma: self.gamma,
                kl: self.penalty(KlEstimator::K1),
            },
            Algorithm::Ppo => Baseline::Critic(Gae {
                gamma: self.gamma,
                lambda: Lambda::Fixed(self.lambda),
                value_lambda: None,
            }),
        }
    }

    /// What the policy minimises.
    #[must_use]
    pub fn objective(&self) -> PolicyObjective {
        let (low, high) = match self.algorithm {
            Algorithm::Gspo => (3e-4, 4e-4),
            _ => (0.2, 0.28),
        };
        let (ratio, reduction) = match self.algorithm {
            Algorithm::Gspo => (Ratio::Sequence, Reduction::SequenceMean),
            Algorithm::DrGrpo => {
                let tokens = self.response_max;
                (Ratio::Token, Reduction::ConstantLength { tokens })
            }
            _ => (Ratio::Token, Reduction::TokenMean),
        };
        PolicyObjective {
            clip_low: self.clip_low.unwrap_or(low),
            clip_high: self.clip_high.unwrap_or(high),
            ratio,
            kl: match self.algorithm {
                Algorithm::ReinforcePlusPlus => None,
                _ => self.penalty(KlEstimator::K3),
            },
            entropy_coefficient: self.entropy,
            reduction,
            importance_cap: (self.importance_cap > 0.0).then_some(self.importance_cap),
            positive_coefficient: self.positive,
        }
    }

    /// What long replies cost, if they do.
    #[must_use]
    pub fn overlong(&self) -> Option<Overlong> {
        (self.overlong > 0).then_some(Overlong {
            limit: self.response_max,
            cache: self.overlong,
        })
    }
}
