//! Which complete groups a batch takes, when there are more than it needs. Pure.
//!
//! A sampler sees complete groups that are fresh enough and belong to no batch, and no others; the
//! ledger takes exactly as many as a batch has. What is not taken waits for the next batch, and is
//! made again with newer weights when it gets too old meanwhile: those samples were generated for
//! nothing. With staleness bound 0 there are never more groups than a batch has, so all samplers
//! give the same batches.

use std::cmp::Reverse;
use std::fmt;

use odeon::serde::{Deserialize, Serialize};

use crate::trajectory::{Trajectory, Version};

/// A complete group that a batch may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its prompt.
    pub group: u64,
    /// The oldest weights that made one of its replies: it is as stale as these.
    pub version: Version,
    /// The variance of its samples' rewards.
    pub spread: f64,
}

impl Candidate {
    /// Of these samples of a group; a greedy reply is none of them.
    pub(super) fn of(group: u64, samples: &[Trajectory]) -> Self {
        let count = samples.len().max(1) as f64;
        let rewards = || samples.iter().map(|it| f64::from(it.reward));
        let mean = rewards().sum::<f64>() / count;
        Self {
            group,
            version: samples.iter().map(|it| it.version).min().unwrap_or(0),
            spread: rewards().map(|it| (it - mean).powi(2)).sum::<f64>() / count,
        }
    }
}

/// Chooses the groups of a batch. The same candidates must give the same choice.
pub trait Sampler: fmt::Debug + Send + Sync {
    /// Positions in `complete`, which is in the order of completion and no shorter than `count`: the
    /// first `count` of these that are different positions make the batch. When there are fewer, the
    /// groups that were complete first fill it up.
    fn choose(&self, complete: &[Candidate], count: usize) -> Vec<usize>;
}

/// The samplers that there are. What comes first is taken; among equals, what is named last decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde", rename_all = "snake_case")]
pub enum SamplerSpec {
    /// The group that was complete first: nothing waits for long, so little gets too old. Laminar
    /// (arXiv 2510.12633) finds it enough for GRPO.
    #[default]
    Fifo,
    /// The newest weights; then the order of completion.
    Freshest,
    /// The group that is nearest to being too old; then the order of completion.
    Oldest,
    /// The largest variance of rewards, which says most about what was better; then the lowest number.
    Spread,
}

impl Sampler for SamplerSpec {
    fn choose(&self, complete: &[Candidate], count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..complete.len()).collect();
        let of = |at: &usize| complete[*at];
        // These sorts keep the order of completion among equals.
        match self {
            Self::Fifo => {}
            Self::Freshest => all.sort_by_key(|at| Reverse(of(at).version)),
            Self::Oldest => all.sort_by_key(|at| of(at).version),
            Self::Spread => all.sort_by(|one, other| {
                let (one, other) = (of(one), of(other));
                let spread = other.spread.total_cmp(&one.spread);
                spread.then(one.group.cmp(&other.group))
            }),
        }
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sampler_takes_what_it_says() {
        let candidate = |group, version, spread| Candidate {
            group,
            version,
            spread,
        };
        let complete = [
            candidate(4, 3, 0.1),
            candidate(1, 2, 0.2),
            candidate(2, 3, 0.2),
            candidate(0, 1, 0.0),
            candidate(3, 1, 0.25),
        ];
        let groups = |sampler: SamplerSpec, count| {
            let chosen = sampler.choose(&complete, count).into_iter();
            chosen.map(|at| complete[at].group).collect::<Vec<_>>()
        };
        assert_eq!(groups(SamplerSpec::Fifo, 3), [4, 1, 2]);
        assert_eq!(groups(SamplerSpec::Freshest, 3), [4, 2, 1]);
        assert_eq!(groups(SamplerSpec::Oldest, 3), [0, 3, 1]);
        assert_eq!(groups(SamplerSpec::Spread, 3), [3, 1, 2]);
        assert_eq!(groups(SamplerSpec::Spread, 5), [3, 1, 2, 4, 0]);
    }
}
