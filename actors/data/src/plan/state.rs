//! The state of planning, which a checkpoint keeps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sample::SampleMeta;
use crate::source::{Earlier, FileState};

/// All that the plans from a step on follow from, beside the spec and what cells have.
///
/// The mesh is no part of it, so a run may go on with another number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct PlanState {
    /// The step that is planned next.
    pub step: u64,
    /// The sources in their order.
    pub sources: Vec<SourceState>,
    /// The debt to each context, in 2^-32 of a step.
    pub contexts: Vec<i64>,
    /// The files of each source as they were when they were read, by its name. Planning has no use for
    /// them; who goes on compares them with what is there then.
    #[serde(default)]
    pub files: BTreeMap<String, Vec<FileState>>,
    /// The files that each source had before more came, the oldest first, by its name; none of those to
    /// which nothing came.
    #[serde(default)]
    pub earlier: BTreeMap<String, Vec<Earlier>>,
}

/// The place that reading a source has reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct SourceState {
    /// Its name, by which a state of other sources is found out.
    pub name: String,
    /// The pass that its next sample is of.
    pub epoch: u32,
    /// The cell of that pass.
    pub cell: u32,
    /// Number of samples of that cell that were read.
    pub nth: u32,
    /// Set once this pass has had a sample at all.
    pub any: bool,
    /// The debt of the mixture to it, in 2^-32 of a token or sample.
    pub owed: i64,
    /// Samples that were read and wait for a step that wants their length, in their order.
    pub waiting: Vec<SampleMeta>,
}
