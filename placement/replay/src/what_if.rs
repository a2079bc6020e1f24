//! What-if analysis of stragglers: how quick a run would be without them, and which part of it is to blame.
//!
//! A [`StepTrace`] says what each worker did when. [`WhatIf`] rebuilds the schedule and replays the steps with
//! chosen durations replaced by ideal ones; [`StragglerReport`] does so for each kind of operation, stage, copy of
//! the model and worker. The method and its words are those of arXiv 2505.05713.

mod analysis;
mod error;
mod report;
mod schedule;
#[cfg(test)]
mod tests;
mod trace;

pub use analysis::{Kept, TracePart, WhatIf};
pub use error::TraceError;
pub use report::{MendedShare, PartSlowdown, STRAGGLING, StragglerCause, StragglerReport};
pub use trace::{LeftOutStep, OperationKind, StepTrace, TraceRow, TracedOperation, TracedWorker};
