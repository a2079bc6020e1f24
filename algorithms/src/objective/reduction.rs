//! Reductions of the losses of tokens to the loss of a step.

use serde::{Deserialize, Serialize};

use super::error::ObjectiveError;

/// The average of token losses over the batch of one optimiser step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reduction {
    /// Over all tokens of the step (DAPO): long replies weigh more.
    #[default]
    TokenMean,
    /// Over the tokens of each sequence, then over sequences (GRPO): every reply weighs the same.
    SequenceMean,
    /// Sum over the tokens of each sequence divided by a constant, then mean over sequences
    /// (Dr. GRPO, with the generation budget as the constant).
    ConstantLength {
        /// The constant, in tokens.
        tokens: usize,
    },
}

/// The size of the batch of one optimiser step, over all its micro-batches and ranks.
///
/// Losses and gradients of micro-batches are scaled by it, so that their sums are those of the
/// whole batch, however it is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Sequences with at least one response token.
    pub sequences: usize,
    /// Response tokens.
    pub tokens: usize,
    /// Of these, tokens of right replies; needed for their likelihood alone.
    pub positive_tokens: usize,
}

impl Totals {
    /// Counts a batch given by the response lengths of its sequences.
    #[must_use]
    pub fn of(lengths: &[usize]) -> Self {
        Self {
            sequences: lengths.iter().filter(|&&length| length > 0).count(),
            tokens: lengths.iter().sum(),
            positive_tokens: 0,
        }
    }

    /// The same with the tokens of right replies counted.
    #[must_use]
    pub fn with_positive(mut self, lengths: &[usize], positive: &[bool]) -> Self {
        let pairs = lengths.iter().zip(positive);
        self.positive_tokens = pairs.filter(|(_, is)| **is).map(|(length, _)| length).sum();
        self
    }
}

impl Reduction {
    /// The weight of every token of a micro-batch in the step's loss.
    ///
    /// # Errors
    /// [`ObjectiveError::Totals`] when the totals cannot be those of a step with this micro-batch.
    pub fn weights(self, lengths: &[usize], totals: Totals) -> Result<Vec<f64>, ObjectiveError> {
        let own = Totals::of(lengths);
        if own.sequences > totals.sequences || own.tokens > totals.tokens {
            return Err(ObjectiveError::Totals);
        }
        let sequences = totals.sequences as f64;
        let weight = |length: usize| match self {
            Self::TokenMean => 1.0 / totals.tokens as f64,
            Self::SequenceMean => 1.0 / (sequences * length as f64),
            Self::ConstantLength { tokens } => 1.0 / (sequences * tokens.max(1) as f64),
        };
        let lengths = lengths.iter().filter(|&&length| length > 0);
        Ok(lengths
            .flat_map(|&length| std::iter::repeat_n(weight(length), length))
            .collect())
    }
}
