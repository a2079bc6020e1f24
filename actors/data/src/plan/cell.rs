//! Sources as a planner hears of them: how long they are, and what their cells have.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sample::{SampleId, SampleMeta, SourceNumber};
use crate::source::LeftOut;

/// A source as a plan sees it. Its number is its place among the sources that a plan is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct SourceShape {
    /// Its name, by which the mixture calls it.
    pub name: String,
    /// Cells of each pass over it.
    pub cells: u32,
}

/// The name of a cell.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, odeon::Shape,
)]
pub struct CellName {
    /// Its source.
    pub source: SourceNumber,
    /// Which pass over the source, from 0.
    pub epoch: u32,
    /// Which cell of that pass, from 0.
    pub cell: u32,
}

impl CellName {
    /// The cell that the sample is of.
    #[must_use]
    pub fn of(id: SampleId) -> Self {
        Self {
            source: id.source,
            epoch: id.epoch,
            cell: id.cell,
        }
    }
}

/// The samples of a cell, as a planner hears of them. Whoever makes it says the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct CellMeta {
    /// Its source.
    pub source: SourceNumber,
    /// Which pass over the source, from 0.
    pub epoch: u32,
    /// Which cell of that pass, from 0.
    pub cell: u32,
    /// Its samples in their order, `nth` ascending.
    pub samples: Vec<SampleMeta>,
    /// The records that became no sample.
    pub left_out: LeftOut,
}

impl CellMeta {
    /// Of a cell none of whose records were skipped.
    #[must_use]
    pub fn of(name: CellName, samples: Vec<SampleMeta>) -> Self {
        Self {
            source: name.source,
            epoch: name.epoch,
            cell: name.cell,
            samples,
            left_out: LeftOut::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> CellName {
        CellName {
            source: self.source,
            epoch: self.epoch,
            cell: self.cell,
        }
    }

    pub(super) fn check(&self) -> Result<(), CellError> {
        let name = self.name();
        let mut last = None;
        for sample in &self.samples {
            if CellName::of(sample.id) != name || last.is_some_and(|nth| sample.id.nth <= nth) {
                return Err(CellError::Stranger {
                    cell: name,
                    id: sample.id,
                });
            }
            if sample.tokens > SAMPLE_TOKENS_MAX {
                return Err(CellError::Long {
                    id: sample.id,
                    tokens: sample.tokens,
                });
            }
            last = Some(sample.id.nth);
        }
        Ok(())
    }
}

/// The longest sample that can be planned, in tokens: debts of mixtures are kept in fixed point, and
/// with this bound those of all sources that can be numbered fit into 64 bits.
pub const SAMPLE_TOKENS_MAX: u32 = 1 << 24;

/// A cell that cannot be what it says. Nothing of it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CellError {
    /// The plan has no such source, or that source no such cell: ask who announced it for the
    /// sources that it has.
    #[error("{cell:?} is none of the plan's cells")]
    Unknown {
        /// The cell.
        cell: CellName,
    },
    /// A sample is of another cell, or comes after one with the same or a later number.
    #[error("{id:?} is out of its place in {cell:?}")]
    Stranger {
        /// The cell.
        cell: CellName,
        /// The sample.
        id: SampleId,
    },
    /// A sample is longer than a plan can count. Cut or skip such records where they are read.
    #[error("{id:?} has {tokens} tokens, and {SAMPLE_TOKENS_MAX} is the most")]
    Long {
        /// The sample.
        id: SampleId,
        /// Tokens of the sample.
        tokens: u32,
    },
}
