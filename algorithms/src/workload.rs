//! Synthetic work with heavy tails: how long responses and environments take where no model runs.
//!
//! Response lengths and latencies of reinforcement learning are heavy-tailed: the 99th percentile
//! is about ten times the median (Laminar, arXiv 2510.12633). Here both are log-normal with that
//! ratio and a cap, and the samples of one prompt resemble each other.
//!
//! An [`Episode`] is a pure function of the seed and a [`SampleKey`]. So the same trajectory has
//! the same length on whichever replica it runs, and after it has moved; two ways to schedule meet
//! the same work.
//!
//! ```
//! use odeon_algorithms::workload::{SampleKey, Workload, WorkloadSpec};
//!
//! let workload = Workload::new(WorkloadSpec::math(17))?;
//! let key = SampleKey { group: 3, sample: 0, version: 12 };
//! let episode = workload.episode(key);
//! assert_eq!(episode, workload.episode(key));
//! assert!(episode.response_tokens() <= 16_384);
//! # Ok::<(), odeon_algorithms::workload::WorkloadError>(())
//! ```
//!
//! Not modelled: that policies' lengths drift while they learn, what environments say (it would
//! take room in the cache), and whether answers are right.

mod heavy_tail;

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use heavy_tail::{HeavyTail, normal_quantile};

/// The distributions that a workload is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadSpec {
    /// Draws everything.
    pub seed: u64,
    /// Tokens of a prompt; the same for all samples of a group.
    pub prompt: HeavyTail,
    /// Tokens of a whole response, over all its turns.
    pub response: HeavyTail,
    /// Seconds that the environment takes after a turn that is not the last.
    pub environment: HeavyTail,
    /// The number of turns in which the policy speaks.
    pub turns: Turns,
    /// The likeness of the responses of one group: the correlation of the logarithms of their
    /// lengths, from 0 (independent) to 1 (equal). Nobody reports it; the presets guess a half.
    pub group_correlation: f64,
}

/// The distribution of the number of turns in an episode: one, and another each time with a
/// constant probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    /// The mean without the cap, at least 1.
    pub mean: f64,
    /// The most.
    pub cap: u32,
}

/// Which trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SampleKey {
    /// The prompt.
    pub group: u64,
    /// Which sample of the prompt.
    pub sample: u32,
    /// The weights that begin it.
    pub version: u64,
}

/// The course of a trajectory until it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// At least one.
    pub turns: Vec<Turn>,
}

/// The policy speaks, then the environment works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Tokens that the policy generates, at least one.
    pub tokens: u64,
    /// The time that the environment then takes; nothing after the last turn.
    pub environment: Duration,
}

/// Draws episodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    spec: WorkloadSpec,
}

/// Why a specification describes no work. Nothing was drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// A distribution is none: medians and caps are positive, ratios at least 1, all finite.
    #[error(
        "{of}: {tail:?} is no distribution: median and cap are above 0, the ratio is at least 1"
    )]
    Tail {
        /// Of what.
        of: &'static str,
        /// As it was given.
        tail: HeavyTail,
    },
    /// The number of turns is not at least one.
    #[error("{0:?}: an episode has at least one turn, in the mean and at the most")]
    Turns(Turns),
    /// The correlation is not from 0 to 1.
    #[error("a correlation of {0} is not from 0 to 1")]
    Correlation(f64),
}

impl WorkloadSpec {
    /// Single-turn mathematics: prompts up to 2,048 tokens, responses up to 16,384 with a median of
    /// 1,600, as in Laminar's setting. The median is a guess; the caps and the ratio are reported.
    #[must_use]
    pub fn math(seed: u64) -> Self {
        Self {
            seed,
            prompt: HeavyTail {
                median: 160.0,
                p99_over_median: 4.0,
                cap: 2_048.0,
            },
            response: HeavyTail {
                median: 1_600.0,
                p99_over_median: 10.0,
                cap: 16_384.0,
            },
            environment: HeavyTail {
                median: 0.1,
                p99_over_median: 10.0,
                cap: 10.0,
            },
            turns: Turns { mean: 1.0, cap: 1 },
            group_correlation: 0.5,
        }
    }

    /// Tool calls: the same responses in four turns on average and eight at most, with a sandbox
    /// between them that takes two seconds in the median and two minutes at most.
    #[must_use]
    pub fn tools(seed: u64) -> Self {
        Self {
            environment: HeavyTail {
                median: 2.0,
                p99_over_median: 10.0,
                cap: 120.0,
            },
            turns: Turns { mean: 4.0, cap: 8 },
            ..Self::math(seed)
        }
    }
}

impl Workload {
    /// Work as specified.
    ///
    /// # Errors
    /// The specification describes none.
    pub fn new(spec: WorkloadSpec) -> Result<Self, WorkloadError> {
        let tails = [
            ("prompt", spec.prompt),
            ("response", spec.response),
            ("environment", spec.environment),
        ];
        for (of, tail) in tails {
            if !tail.is_sound() {
                return Err(WorkloadError::Tail { of, tail });
            }
        }
        let turns = spec.turns;
        if !(turns.mean.is_finite() && turns.mean >= 1.0 && turns.cap >= 1) {
            return Err(WorkloadError::Turns(turns));
        }
        match (0.0..=1.0).contains(&spec.group_correlation) {
            true => Ok(Self { spec }),
            false => Err(WorkloadError::Correlation(spec.group_correlation)),
        }
    }

    /// The specification that it was made from.
    #[must_use]
    pub fn spec(&self) -> &WorkloadSpec {
        &self.spec
    }

    /// The episode of this trajectory: always the same.
    ///
    /// The prompt depends on the group alone. The response has a part of its difficulty from the
    /// group, whatever the version, and its own part from sample and version.
    #[must_use]
    pub fn episode(&self, key: SampleKey) -> Episode {
        let tokens = self.response_tokens(key);
        let own = self.own(key);
        let count = self.turn_count(own).min(tokens);
        let turn = |at: u64| Turn {
            // As even as whole tokens can be.
            tokens: tokens * (at + 1) / count - tokens * at / count,
            environment: match at + 1 == count {
                true => Duration::ZERO,
                false => self.environment(own, at),
            },
        };
        Episode {
            prompt_tokens: self.prompt_tokens(key.group),
            turns: (0..count).map(turn).collect(),
        }
    }

    /// Tokens of the prompt of a group.
    #[must_use]
    pub fn prompt_tokens(&self, group: u64) -> u64 {
        let normal = normal_quantile(uniform(&[self.spec.seed, group, PROMPT]));
        whole(self.spec.prompt.at(normal))
    }

    /// Tokens of a trajectory's whole response.
    #[must_use]
    pub fn response_tokens(&self, key: SampleKey) -> u64 {
        let group = normal_quantile(uniform(&[self.spec.seed, key.group, DIFFICULTY]));
        let own = normal_quantile(uniform(&[self.own(key), RESPONSE]));
        // The sum of two normals with these variances is a normal one, with the wanted correlation
        // between those that share the first.
        let shared = self.spec.group_correlation;
        let normal = shared.sqrt() * group + (1.0 - shared).sqrt() * own;
        whole(self.spec.response.at(normal))
    }

    fn own(&self, key: SampleKey) -> u64 {
        hash(&[
            self.spec.seed,
            key.group,
            u64::from(key.sample),
            key.version,
        ])
    }

    fn turn_count(&self, own: u64) -> u64 {
        let Turns { mean, cap } = self.spec.turns;
        let again = 1.0 - mean.recip();
        // The geometric distribution's quantile.
        let more = match again > 0.0 {
            true => (1.0 - uniform(&[own, TURNS])).ln() / again.ln(),
            false => 0.0,
        };
        1 + more.min(f64::from(cap - 1)) as u64
    }

    fn environment(&self, own: u64, turn: u64) -> Duration {
        let normal = normal_quantile(uniform(&[own, turn, ENVIRONMENT]));
        Duration::from_secs_f64(self.spec.environment.at(normal))
    }
}

impl Episode {
    /// Tokens of all turns.
    #[must_use]
    pub fn response_tokens(&self) -> u64 {
        self.turns.iter().map(|turn| turn.tokens).sum()
    }

    /// The time that the environment takes in all.
    #[must_use]
    pub fn environment(&self) -> Duration {
        self.turns.iter().map(|turn| turn.environment).sum()
    }
}

/// A length in whole tokens, at least one.
fn whole(tokens: f64) -> u64 {
    (tokens.floor() as u64).max(1)
}

/// A number in (0, 1) that these words alone decide.
pub(crate) fn uniform(words: &[u64]) -> f64 {
    ((hash(words) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// SplitMix64 (Steele, Lea, Flood 2014) over the words, one after the other.
fn hash(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |sum, word| {
        let mut z = (sum ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

// What is drawn, so that two draws with the same key have nothing to do with each other.
const PROMPT: u64 = 1;
const DIFFICULTY: u64 = 2;
const RESPONSE: u64 = 3;
const TURNS: u64 = 4;
const ENVIRONMENT: u64 = 5;
