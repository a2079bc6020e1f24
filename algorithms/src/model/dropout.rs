//! Dropout whose random numbers are those of one device, whatever ranks compute.
//!
//! A number that is dropped is addressed, not drawn in an order: by the sample that it is computed of, its row's
//! position there, its column, and the place of the model where it is dropped, under a key of the run's seed and the
//! step ([`DropoutMask`]). Where the row is computed, and beside which others, is no part of that.

use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{DropoutMask, DropoutRow};
use odeon_simd::philox;

/// Dropout in the passes of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    probability: f32,
    key: u64,
}

impl Dropout {
    /// That of a step of a run: each number is dropped with this probability.
    ///
    /// # Panics
    /// If that is not at least 0 and below 1.
    #[must_use]
    pub fn of_step(probability: f32, seed: u64, step: u64) -> Self {
        let is_share = (0.0..1.0).contains(&probability);
        assert!(is_share, "a probability of {probability}");
        Self {
            probability,
            key: halves(philox(seed, step.into())),
        }
    }

    /// Set where nothing is dropped.
    pub(super) fn is_off(self) -> bool {
        self.probability == 0.0
    }

    /// The stream of a sample.
    pub(super) fn stream(self, sample: u128) -> u64 {
        // Under another key than the masks.
        halves(philox(!self.key, sample))
    }
}

/// The first two words.
fn halves([low, high, ..]: [u32; 4]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A place of the model where numbers are dropped: of the whole model, whichever rank has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropoutSite {
    /// The rows that the first layer gets.
    Embedding,
    /// What attention adds to the residual stream, in the layer of this number.
    Attention(usize),
    /// What the feed-forward part adds to it.
    FeedForward(usize),
}

impl DropoutSite {
    /// # Panics
    /// If the model has more layers than can be told apart.
    fn number(self) -> u16 {
        let number = match self {
            Self::Embedding => 0,
            Self::Attention(layer) => 2 * layer + 1,
            Self::FeedForward(layer) => 2 * layer + 2,
        };
        u16::try_from(number).expect("fewer than 32,767 layers")
    }
}

/// The rows of a batch whose numbers are dropped.
#[derive(Clone, Debug)]
pub(super) struct DropoutRows {
    dropout: Dropout,
    rows: Arc<[DropoutRow]>,
}

impl DropoutRows {
    /// Rows of these places.
    pub(super) fn new(dropout: Dropout, rows: Arc<[DropoutRow]>) -> Self {
        Self { dropout, rows }
    }

    /// The places of all rows.
    pub(super) fn rows(&self) -> &[DropoutRow] {
        &self.rows
    }

    /// The same of other rows.
    pub(super) fn of(&self, rows: Arc<[DropoutRow]>) -> Self {
        Self::new(self.dropout, rows)
    }

    /// Some of them.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        self.of(self.rows[range].into())
    }

    /// The numbers of these rows that are kept at a place of the model.
    pub(super) fn mask(&self, site: DropoutSite) -> DropoutMask {
        DropoutMask {
            rows: Arc::clone(&self.rows),
            key: self.dropout.key,
            site: site.number(),
            probability: self.dropout.probability,
        }
    }
}
