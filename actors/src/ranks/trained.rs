//! Results of a step, of one rank and of all.

use odeon::Shape;
use odeon::serde::{Deserialize, Serialize};

use crate::engine::StepStats;

/// Results of a rank in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct RankTrained {
    /// Results over what it learnt from.
    pub stats: StepStats,
    /// Response tokens that its means are over.
    pub learnt: u64,
    /// Set of one rank of all that computed the same replies, which tells for them.
    pub tells: bool,
}

impl RankTrained {
    /// Results of a step out of those of all ranks: sums over all, and means over the tokens of those who tell. Loss and
    /// norm are of all of them on each.
    pub(crate) fn of_all(ranks: &[Self]) -> StepStats {
        let flops = ranks.iter().map(|rank| rank.stats.flops).sum();
        let telling: Vec<&Self> = ranks.iter().filter(|rank| rank.tells).collect();
        let learnt: u64 = telling.iter().map(|rank| rank.learnt).sum();
        let mean = |of: fn(&StepStats) -> f64| {
            let sums = telling
                .iter()
                .map(|rank| of(&rank.stats) * rank.learnt as f64);
            sums.sum::<f64>() / learnt.max(1) as f64
        };
        let first = telling.first().map(|rank| rank.stats.clone());
        let gaps = telling.iter().filter_map(|rank| rank.stats.sampling_gap);
        StepStats {
            tokens: telling.iter().map(|rank| rank.stats.tokens).sum(),
            flops,
            entropy: mean(|it| it.entropy),
            approximate_kl: mean(|it| it.approximate_kl),
            clip_fraction: mean(|it| it.clip_fraction),
            importance_mean: mean(|it| it.importance_mean),
            importance_capped_fraction: mean(|it| it.importance_capped_fraction),
            sampling_gap: gaps.reduce(f64::max),
            ..first.unwrap_or_default()
        }
    }
}
