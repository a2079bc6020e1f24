//! Schedules of pipelines as data: for each rank its passes in order.

mod builders;
mod check;
mod costs;
mod error;
mod events;
mod summary;
mod zero_bubble;

use std::fmt;

pub use costs::{PipelineCosts, StageCosts};
pub use error::ScheduleError;
pub use events::PipelineOperation;
pub use summary::{PipelineSummary, RankSummary};

/// The kind of a pass of a micro-batch through one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassKind {
    /// The forward pass.
    Forward,
    /// The backward pass with both gradients.
    Backward,
    /// The gradient by the stage's input alone, for which the stage before waits.
    BackwardInput,
    /// The gradient by the stage's weights alone, for which no other stage waits.
    BackwardWeight,
}

/// One pass of a micro-batch through one stage of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pass {
    /// The kind.
    pub kind: PassKind,
    /// The micro-batch, from 0.
    pub micro_batch: usize,
    /// The rank's chunk of layers, from 0: its virtual stage.
    pub chunk: usize,
}

impl Pass {
    /// A pass of a micro-batch through a chunk.
    #[must_use]
    pub const fn new(kind: PassKind, micro_batch: usize, chunk: usize) -> Self {
        Self {
            kind,
            micro_batch,
            chunk,
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            PassKind::Forward => "forward",
            PassKind::Backward => "backward",
            PassKind::BackwardInput => "input gradient",
            PassKind::BackwardWeight => "weight gradient",
        };
        let Self {
            micro_batch, chunk, ..
        } = self;
        write!(f, "{kind} of micro-batch {micro_batch}, chunk {chunk}")
    }
}

/// For each rank of a pipeline its passes, in the order in which it runs them.
///
/// Rank `r` of `p` has the stages `r`, `p + r`, `2 p + r` and so on, one for each of its chunks. A stage
/// gets its input from the stage before it, and the gradient by its output from the one behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSchedule {
    micro_batches: usize,
    chunks: usize,
    ranks: Vec<Vec<Pass>>,
}

impl PipelineSchedule {
    /// A schedule of given passes, which [`check`](Self::check) may still refuse.
    #[must_use]
    pub const fn from_passes(micro_batches: usize, chunks: usize, ranks: Vec<Vec<Pass>>) -> Self {
        Self {
            micro_batches,
            chunks,
            ranks,
        }
    }

    /// The number of micro-batches of a step.
    #[must_use]
    pub const fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The number of chunks of each rank.
    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.chunks
    }

    /// The number of stages: ranks times chunks.
    #[must_use]
    pub const fn stages(&self) -> usize {
        self.ranks.len() * self.chunks
    }

    /// The passes of each rank, in order.
    #[must_use]
    pub fn ranks(&self) -> &[Vec<Pass>] {
        &self.ranks
    }

    /// The stage of a rank's chunk.
    #[must_use]
    pub const fn stage(&self, rank: usize, chunk: usize) -> usize {
        chunk * self.ranks.len() + rank
    }
}
