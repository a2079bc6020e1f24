//! Samples: their names, what a plan sees of them, and their bytes.

use serde::{Deserialize, Serialize};

/// The number of a source among those of a run.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, odeon::Shape,
)]
#[serde(transparent)]
pub struct SourceNumber(pub u16);

/// The name of a sample: where it stands in the order of its source.
///
/// It says nothing of who made the sample, and two that make it make the same bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, odeon::Shape,
)]
pub struct SampleId {
    /// Its source.
    pub source: SourceNumber,
    /// Which pass over the source, from 0.
    pub epoch: u32,
    /// Which cell of that pass, from 0.
    pub cell: u32,
    /// Which sample of that cell, from 0.
    pub nth: u32,
}

/// What a plan sees of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct SampleMeta {
    /// Its name.
    pub id: SampleId,
    /// Tokens that the backbone reads: those of its text, and those that its pictures become.
    pub tokens: u32,
    /// Patches of each of its pictures, which an encoder reads.
    pub patches: Vec<u32>,
    /// Bytes of the sample as it is delivered.
    pub bytes: u32,
}
