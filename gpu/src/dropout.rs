//! The numbers that dropout keeps.

use std::sync::Arc;

/// The numbers of an activation that dropout keeps (Srivastava et al. 2014), by their places alone.
///
/// A number is kept or dropped by a word of its own: with Philox4x32-10 (Salmon et al. 2011) under the key it is word
/// `column mod 4` of the counter `(column / 4, site)`, position, stream. So the same numbers are kept wherever a row is
/// computed, on any device, and the mask is made again on the way back instead of being stored.
#[derive(Clone, Debug, PartialEq)]
pub struct DropoutMask {
    /// Place of each row.
    pub rows: Arc<[DropoutRow]>,
    /// Key of all numbers that are drawn together, such as those of a step.
    pub key: u64,
    /// Number of the operation among those that drop numbers of the same rows.
    pub site: u16,
    /// The share of numbers that are dropped: at least 0, below 1.
    pub probability: f32,
}

/// The place of a row, wherever it is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropoutRow {
    /// Number of its sequence among all.
    pub stream: u64,
    /// Its position there.
    pub position: u32,
}

/// Columns that share a counter.
pub(crate) const COLUMNS: usize = 4;

impl DropoutMask {
    /// Columns of rows of so many elements in all.
    ///
    /// # Panics
    /// If they are not as many rows, or a column has no place; or if the probability is none.
    pub(crate) fn cols(&self, elements: usize) -> usize {
        let rows = self.rows.len();
        let cols = elements.checked_div(rows).unwrap_or(0);
        assert_eq!(rows * cols, elements, "one place a row");
        assert!(
            cols.div_ceil(COLUMNS) <= 1 << 16,
            "columns that have places"
        );
        let is_share = (0.0..1.0).contains(&self.probability);
        assert!(is_share, "a probability of {}", self.probability);
        cols
    }

    /// The least word of a number that is kept.
    pub(crate) fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 2f64.powi(32)) as u32
    }

    /// Factor on what is kept.
    pub(crate) fn scale(&self) -> f32 {
        (1.0 / (1.0 - f64::from(self.probability))) as f32
    }

    /// The lowest word of the first counter of a row.
    pub(crate) fn first(&self) -> u32 {
        u32::from(self.site) << 16
    }
}
