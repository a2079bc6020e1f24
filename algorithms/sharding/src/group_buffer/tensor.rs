//! A tensor of a group, and the blocks in which it is cut.

use serde::{Deserialize, Serialize};

use super::error::GroupBufferError;

/// A tensor of a group: its elements in row-major order, and the block of consecutive ones that always
/// stays on one rank. [`GroupBuffer::plan`](super::GroupBuffer::plan) refuses sizes that cannot be.
///
/// | block | who needs it |
/// | --- | --- |
/// | 1 element | biases and norms, and what is updated element by element |
/// | 1 row | norms of rows |
/// | 32 rows | 8-bit Adam, whose quantisation has tiles of 32 x 32: [`Self::adam8bit`] |
/// | 128 rows | FP8 tiles of 128 x 128 |
/// | all | Muon and Shampoo without communication: [`Self::whole`] |
///
/// Tiles are blocks of rows since the elements of a tile do not follow one another: the shortest run that
/// holds whole tiles is as many whole rows as a tile has (arXiv 2602.22437, section 3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupTensor {
    name: String,
    elements: usize,
    block: usize,
    short_last: bool,
}

/// The rows of a tile of 8-bit Adam (arXiv 2602.22437; its columns are as many).
const ADAM8BIT_ROWS: usize = 32;

impl GroupTensor {
    /// A tensor whose elements are a multiple of the elements of its block.
    #[must_use]
    pub fn new(name: impl Into<String>, elements: usize, block: usize) -> Self {
        Self {
            name: name.into(),
            elements,
            block,
            short_last: false,
        }
    }

    /// A matrix, or a tensor seen as rows along its last dimension, cut between blocks of rows. The last
    /// block is shorter where the rows do not divide, as the last tiles of such a matrix are: 576 rows
    /// in blocks of 128 have a last one of 64. A block of more rows than there are is the whole matrix.
    ///
    /// Sizes that overflow count as the greatest number, which is refused when the buffer is planned.
    #[must_use]
    pub fn rows(
        name: impl Into<String>,
        rows: usize,
        row_len: usize,
        rows_per_block: usize,
    ) -> Self {
        Self {
            name: name.into(),
            elements: rows.saturating_mul(row_len),
            block: rows_per_block.min(rows).saturating_mul(row_len),
            short_last: true,
        }
    }

    /// A matrix that 8-bit Adam updates: blocks of 32 rows, so that each tile of 32 x 32 is quantised by
    /// the rank that holds it.
    #[must_use]
    pub fn adam8bit(name: impl Into<String>, rows: usize, row_len: usize) -> Self {
        Self::rows(name, rows, row_len, ADAM8BIT_ROWS)
    }

    /// A tensor that lies on one rank as a whole.
    #[must_use]
    pub fn whole(name: impl Into<String>, elements: usize) -> Self {
        Self::new(name, elements, elements)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number of elements.
    #[must_use]
    pub const fn elements(&self) -> usize {
        self.elements
    }

    /// The elements of a block; the last one may have fewer where the tensor is made of [`Self::rows`].
    #[must_use]
    pub const fn block(&self) -> usize {
        self.block
    }

    /// Refuses sizes that cannot be.
    pub(super) fn check(&self) -> Result<(), GroupBufferError> {
        let name = || self.name.clone();
        if self.elements == 0 {
            return Err(GroupBufferError::EmptyTensor { name: name() });
        }
        if self.block == 0 {
            return Err(GroupBufferError::NoBlock { name: name() });
        }
        let rest = self.elements % self.block;
        if rest > 0 && !(self.short_last && self.block < self.elements) {
            return Err(GroupBufferError::UnevenBlock {
                name: name(),
                elements: self.elements,
                block: self.block,
                rest,
            });
        }
        Ok(())
    }
}
