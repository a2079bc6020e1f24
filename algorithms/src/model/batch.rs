//! Sequences of different lengths, packed one after the other.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

/// One sequence to score: a prompt and the response whose tokens are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Prompt, then response.
    pub tokens: &'a [u32],
    /// Tokens of the prompt, at least one. Pretraining predicts all but the first: 1.
    pub prompt: usize,
}

/// Packed sequences without padding. Per-token numbers of a pass over it are one a response token,
/// sequence after sequence.
#[derive(Clone, Debug)]
pub struct Batch {
    tokens: Arc<[u32]>,
    positions: Arc<[u32]>,
    bounds: Arc<[u32]>,
    rows: Arc<[u32]>,
    labels: Arc<[u32]>,
    responses: Vec<Range<usize>>,
    temperature: f32,
    visual: Arc<[u32]>,
}

/// Why sequences cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There is no sequence.
    #[error("a batch needs at least one sequence")]
    Empty,
    /// The first token of a sequence has nothing that predicts it.
    #[error("sequence {0} has no prompt: its first token cannot be predicted")]
    NoPrompt(usize),
    /// The prompt is longer than the sequence.
    #[error("sequence {0} is shorter than its prompt")]
    ShortSequence(usize),
}

impl Batch {
    /// Packs sequences. A sequence without response is allowed and counts for nothing.
    ///
    /// # Errors
    /// If there is no sequence, or a prompt is empty or longer than its sequence.
    pub fn pack(sequences: &[Sequence<'_>]) -> Result<Self, BatchError> {
        if sequences.is_empty() {
            return Err(BatchError::Empty);
        }
        let (mut tokens, mut positions, mut bounds) = (Vec::new(), Vec::new(), vec![0u32]);
        let (mut rows, mut labels, mut responses) = (Vec::new(), Vec::new(), Vec::new());
        for (
            i,
            &Sequence {
                tokens: sequence,
                prompt,
            },
        ) in sequences.iter().enumerate()
        {
            if prompt == 0 {
                return Err(BatchError::NoPrompt(i));
            }
            if prompt > sequence.len() {
                return Err(BatchError::ShortSequence(i));
            }
            // The last token predicts nothing, so it is a label only.
            let read = (sequence.len() - 1).max(1);
            let (start, first) = (tokens.len() as u32, labels.len());
            tokens.extend_from_slice(&sequence[..read]);
            positions.extend(0..read as u32);
            bounds.push(tokens.len() as u32);
            rows.extend((prompt..sequence.len()).map(|t| start + t as u32 - 1));
            labels.extend_from_slice(&sequence[prompt..]);
            responses.push(first..labels.len());
        }
        Ok(Self {
            tokens: tokens.into(),
            positions: positions.into(),
            bounds: bounds.into(),
            rows: rows.into(),
            labels: labels.into(),
            responses,
            temperature: 1.0,
            visual: Arc::default(),
        })
    }

    /// The same batch with only those response tokens predicted that `own` says, by the number of their
    /// sequence and their place in its response: the others are read as a prompt is, and there is no
    /// number for them.
    #[must_use]
    pub fn predicting(self, own: impl Fn(usize, usize) -> bool) -> Self {
        let (mut rows, mut labels, mut responses) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, response) in self.responses.iter().enumerate() {
            let first = labels.len();
            for at in response.clone() {
                if own(sequence, at - response.start) {
                    rows.push(self.rows[at]);
                    labels.push(self.labels[at]);
                }
            }
            responses.push(first..labels.len());
        }
        Self {
            rows: rows.into(),
            labels: labels.into(),
            responses,
            ..self
        }
    }

    /// The same batch scored under logits divided by `temperature`: the distribution that sampled
    /// it.
    #[must_use]
    pub fn with_temperature(self, temperature: f32) -> Self {
        Self {
            temperature,
            ..self
        }
    }

    /// The same batch with pictures: for each token that passes through the network 0, or 1 and the
    /// number of the feature that is added to it, among those that the pass is given.
    ///
    /// # Panics
    /// If there is not one number a token.
    #[must_use]
    pub fn seeing(self, visual: Vec<u32>) -> Self {
        assert_eq!(visual.len(), self.processed(), "one number a token");
        Self {
            visual: visual.into(),
            ..self
        }
    }

    /// Response tokens of each sequence, as a range of the per-token numbers.
    #[must_use]
    pub fn responses(&self) -> &[Range<usize>] {
        &self.responses
    }

    /// Number of response tokens.
    #[must_use]
    pub fn predicted(&self) -> usize {
        self.labels.len()
    }

    /// Number of tokens that pass through the network.
    #[must_use]
    pub fn processed(&self) -> usize {
        self.tokens.len()
    }

    /// The response tokens themselves.
    #[must_use]
    pub fn labels(&self) -> &Arc<[u32]> {
        &self.labels
    }

    /// Divisor of the logits.
    #[must_use]
    pub fn temperature(&self) -> f32 {
        self.temperature
    }

    pub(crate) fn tokens(&self) -> &Arc<[u32]> {
        &self.tokens
    }

    pub(crate) fn positions(&self) -> &Arc<[u32]> {
        &self.positions
    }

    /// Number of tokens of each sequence that pass through the network.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.bounds
            .array_windows()
            .map(|[from, to]| (to - from) as usize)
    }

    /// Which feature each token sees; nothing where the batch has no pictures.
    pub(crate) fn visual(&self) -> &Arc<[u32]> {
        &self.visual
    }

    pub(crate) fn bounds(&self) -> &Arc<[u32]> {
        &self.bounds
    }

    /// Row that predicts each response token.
    pub(crate) fn rows(&self) -> &Arc<[u32]> {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_packed_without_padding_and_the_last_token_is_a_label_only() {
        let a = Sequence {
            tokens: &[5, 6, 7, 8],
            prompt: 2,
        };
        let b = Sequence {
            tokens: &[9],
            prompt: 1,
        };
        let c = Sequence {
            tokens: &[1, 2],
            prompt: 1,
        };
        let batch = Batch::pack(&[a, b, c]).unwrap();
        assert_eq!(batch.tokens()[..], [5, 6, 7, 9, 1]);
        assert_eq!(batch.positions()[..], [0, 1, 2, 0, 0]);
        assert_eq!(batch.bounds()[..], [0, 3, 4, 5]);
        assert_eq!(batch.rows()[..], [1, 2, 4]);
        assert_eq!(batch.labels()[..], [7, 8, 2]);
        assert_eq!(batch.responses(), [0..2, 2..2, 2..3]);
        let own = batch
            .clone()
            .predicting(|sequence, at| (sequence, at) != (0, 0));
        assert_eq!(own.tokens()[..], batch.tokens()[..]);
        assert_eq!(own.rows()[..], [2, 4]);
        assert_eq!(own.labels()[..], [8, 2]);
        assert_eq!(own.responses(), [0..1, 1..1, 1..2]);
        assert_eq!(Batch::pack(&[]).unwrap_err(), BatchError::Empty);
        let bad = |prompt| {
            Batch::pack(&[Sequence {
                tokens: &[1, 2],
                prompt,
            }])
            .unwrap_err()
        };
        assert_eq!(bad(0), BatchError::NoPrompt(0));
        assert_eq!(bad(3), BatchError::ShortSequence(0));
    }
}
