//! Sequences of various lengths, as far as costs depend on them.

/// The number of sequences, and the sums of their lengths and of the squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sequences {
    /// Number of sequences.
    pub count: u64,
    /// Tokens of all.
    pub tokens: u64,
    /// Sum of the squared lengths, which causal attention's arithmetic is proportional to.
    pub squares: f64,
}

impl Sequences {
    /// Of these lengths, in tokens.
    #[must_use]
    pub fn of(lengths: &[u64]) -> Self {
        lengths.iter().copied().collect()
    }

    /// One more, the first `before` tokens of which have keys and values already: `tokens` more attend
    /// to these and to each other.
    #[must_use]
    pub fn and(self, before: u64, tokens: u64) -> Self {
        let square = |tokens: u64| (tokens as f64).powi(2);
        Self {
            count: self.count + 1,
            tokens: self.tokens.saturating_add(tokens),
            squares: self.squares + square(before.saturating_add(tokens)) - square(before),
        }
    }

    /// So many of one length.
    #[must_use]
    pub fn equal(count: u64, tokens: u64) -> Self {
        Self {
            count,
            tokens: count.saturating_mul(tokens),
            squares: count as f64 * (tokens as f64).powi(2),
        }
    }
}

impl FromIterator<u64> for Sequences {
    fn from_iter<I: IntoIterator<Item = u64>>(lengths: I) -> Self {
        let all = lengths.into_iter();
        all.fold(Self::default(), |sum, tokens| sum.and(0, tokens))
    }
}
