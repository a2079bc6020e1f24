//! Traces that cannot be looked at.

use thiserror::Error;

use super::{OperationKind, TracedOperation, TracedWorker};

/// A trace that cannot be looked at. Nothing was made of it.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// There is no step.
    #[error(
        "the trace has no operation of a step: trace at least one step from its begin to its end"
    )]
    Empty,
    /// A time is no number of seconds.
    #[error(
        "{operation} of step {step} begins at {begin_s} s and takes {seconds} s: both must be finite, and no \
         duration less than 0"
    )]
    BadTime {
        /// The step's number.
        step: u64,
        /// The operation.
        operation: TracedOperation,
        /// Its begin, in seconds.
        begin_s: f64,
        /// Its duration, in seconds.
        seconds: f64,
    },
    /// An operation is there twice.
    #[error(
        "{operation} is there twice in step {step}: trace one rank of each stage and copy, and count operations \
         of a kind from 0"
    )]
    Twice {
        /// The step's number.
        step: u64,
        /// The operation.
        operation: TracedOperation,
    },
    /// A worker lacks passes.
    #[error(
        "{worker} has {forward} forward and {backward} backward passes a step, and the first stage of that copy \
         {expected} forward: trace as many of each, and at least one, of every stage and copy from 0"
    )]
    NoPasses {
        /// The worker.
        worker: TracedWorker,
        /// Its forward passes.
        forward: usize,
        /// Its backward passes.
        backward: usize,
        /// Forward passes of the first stage.
        expected: usize,
    },
    /// Messages do not fit the passes.
    #[error(
        "{worker} has {found} {kind} operations for {passes} passes that need one: trace all of them or, of all \
         workers, none"
    )]
    Messages {
        /// The worker.
        worker: TracedWorker,
        /// The kind of the messages.
        kind: OperationKind,
        /// Those that were found.
        found: usize,
        /// Passes that send or receive one.
        passes: usize,
    },
    /// Operations wait for each other.
    #[error(
        "the passes of {worker} are in an order in which no worker can go on: the clocks of workers or the \
         numbers of operations are wrong"
    )]
    Circle {
        /// A worker whose operations never begin.
        worker: TracedWorker,
    },
    /// No step is left.
    #[error("all steps are left out; the first, {step}: {why}")]
    NoStep {
        /// The number of the first.
        step: u64,
        /// The reason.
        why: String,
    },
}
