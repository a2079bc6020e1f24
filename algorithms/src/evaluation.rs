//! Statistics of rewards: moving averages while training, and evaluations with their uncertainty.

use serde::{Deserialize, Serialize};

use crate::task::Verdict;

/// An exponential moving average without the pull towards zero at the beginning (the bias
/// correction of Adam, arXiv 1412.6980).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MovingAverage {
    decay: f64,
    sum: f64,
    weight: f64,
}

/// The number of successes among independent trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proportion {
    /// Successes.
    pub successes: u64,
    /// Trials.
    pub trials: u64,
}

/// The outcome of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Replies that were correct.
    pub correct: Proportion,
    /// Mean reward; 0 before the first reply.
    pub reward_mean: f64,
    /// Mean length of the replies, in tokens.
    pub tokens_mean: f64,
}

impl MovingAverage {
    /// An average in which an observation's weight falls by this factor with every later one.
    ///
    /// # Panics
    /// When the decay is not in `0..1`.
    #[must_use]
    pub fn new(decay: f64) -> Self {
        assert!(
            (0.0..1.0).contains(&decay),
            "a decay of {decay} never forgets or never learns"
        );
        Self {
            decay,
            sum: 0.0,
            weight: 0.0,
        }
    }

    /// Takes an observation and returns the new average.
    pub fn observe(&mut self, value: f64) -> f64 {
        self.sum = self.decay * self.sum + (1.0 - self.decay) * value;
        self.weight = self.decay * self.weight + (1.0 - self.decay);
        self.sum / self.weight
    }

    /// The average, or `None` before the first observation.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl Proportion {
    /// The observed rate; 0 without trials.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.successes as f64 / self.trials.max(1) as f64
    }

    /// Wilson's interval for the true rate (Wilson 1927), which stays within `0..=1` and is sound
    /// for few trials and rates near 0 or 1. `z` is the normal quantile: 1.96 for 95 %.
    ///
    /// `(p + z²/2n ± z √(p (1-p) / n + z²/4n²)) / (1 + z²/n)`
    #[must_use]
    pub fn wilson(&self, z: f64) -> (f64, f64) {
        if self.trials == 0 {
            return (0.0, 1.0);
        }
        let (n, p) = (self.trials as f64, self.rate());
        let square = z * z / n;
        let centre = p + square / 2.0;
        let half = z * (p * (1.0 - p) / n + square / (4.0 * n)).sqrt();
        let scale = 1.0 + square;
        (
            ((centre - half) / scale).max(0.0),
            ((centre + half) / scale).min(1.0),
        )
    }
}

impl Evaluation {
    /// Takes the verdict on one reply and its length.
    pub fn observe(&mut self, verdict: &Verdict, tokens: usize) {
        self.correct.trials += 1;
        self.correct.successes += u64::from(verdict.correct);
        let share = 1.0 / self.correct.trials as f64;
        self.reward_mean += share * (verdict.reward - self.reward_mean);
        self.tokens_mean += share * (tokens as f64 - self.tokens_mean);
    }

    /// Joins two evaluations, such as those of two workers.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let trials = self.correct.trials + other.correct.trials;
        let share = other.correct.trials as f64 / trials.max(1) as f64;
        Self {
            correct: Proportion {
                successes: self.correct.successes + other.correct.successes,
                trials,
            },
            reward_mean: self.reward_mean + share * (other.reward_mean - self.reward_mean),
            tokens_mean: self.tokens_mean + share * (other.tokens_mean - self.tokens_mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::Reason;

    proptest! {
        #[test]
        fn the_interval_holds_the_rate_and_shrinks_with_trials(
            (successes, trials) in (1_u64..500).prop_flat_map(|n| (0..=n, Just(n))), z in 0.1_f64..4.0,
        ) {
            let proportion = Proportion { successes, trials };
            let (low, high) = proportion.wilson(z);
            let rate = proportion.rate();
            prop_assert!(0.0 <= low && low <= rate + 1e-12 && rate <= high + 1e-12 && high <= 1.0);
            let more = Proportion { successes: 4 * successes, trials: 4 * trials }.wilson(z);
            prop_assert!(more.1 - more.0 < high - low);
        }

        #[test]
        fn a_moving_average_of_a_constant_is_the_constant(
            decay in 0.0_f64..0.99, value in -5.0_f64..5.0, count in 1_usize..50,
        ) {
            let mut average = MovingAverage::new(decay);
            prop_assert_eq!(average.value(), None);
            for _ in 0..count {
                prop_assert!((average.observe(value) - value).abs() < 1e-9);
            }
        }

        #[test]
        fn parts_of_an_evaluation_join(
            rewards in prop::collection::vec(0.0_f64..=1.0, 0..40), cut: prop::sample::Index,
        ) {
            let evaluate = |rewards: &[f64]| {
                let mut evaluation = Evaluation::default();
                for (tokens, &reward) in rewards.iter().enumerate() {
                    let verdict = Verdict { reward, correct: reward > 0.5, reason: Reason::NoAnswer };
                    evaluation.observe(&verdict, tokens % 3);
                }
                evaluation
            };
            let (a, b) = rewards.split_at(cut.index(rewards.len() + 1));
            let joined = evaluate(a).merged(&evaluate(b));
            let whole = evaluate(&rewards);
            prop_assert_eq!(joined.correct, whole.correct);
            prop_assert!((joined.reward_mean - whole.reward_mean).abs() < 1e-9);
            let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
            prop_assert!((whole.reward_mean - mean).abs() < 1e-9);
        }
    }

    #[test]
    fn a_known_interval() {
        // 9 of 20, 95 %: worked out by hand from the formula.
        let (low, high) = Proportion {
            successes: 9,
            trials: 20,
        }
        .wilson(1.96);
        assert!(
            (low - 0.2582).abs() < 1e-4 && (high - 0.6579).abs() < 1e-4,
            "{low} {high}"
        );
        assert_eq!(Proportion::default().wilson(1.96), (0.0, 1.0));
    }
}
