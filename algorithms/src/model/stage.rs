//! Stages of a pipeline: what each computes of a pass, and the ranks that it computes it with.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{Backend, PassRanks};

/// The part of a pass that a stage of a pipeline has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Its number.
    pub(crate) number: usize,
    /// Its layers.
    pub(crate) layers: Range<usize>,
    /// Set where it embeds tokens: it is the first.
    pub(crate) embeds: bool,
    /// Set where it scores rows: it is the last.
    pub(crate) scores: bool,
}

/// Numbers on their way from a stage to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageLetter {
    /// Rows that the stage of this number gets of a micro-batch, from the one before it.
    Rows {
        /// The stage that gets them.
        stage: usize,
        /// The micro-batch.
        micro: usize,
    },
    /// The gradient of the rows that the stage of this number has made, from the one behind it.
    Gradient {
        /// The stage that gets it.
        stage: usize,
        /// The micro-batch.
        micro: usize,
    },
}

/// The ways between the ranks of a pipeline, each of which computes other stages.
///
/// A pass cannot end in the middle. So what fails is kept as the reason for whoever runs the step; from then on nothing
/// is sent, and what is received is zeros.
pub trait StageLinks: fmt::Debug + Send + Sync {
    /// Sends numbers to the rank of a stage. It does not wait until that wants them.
    fn send(&self, letter: StageLetter, numbers: Vec<f32>);

    /// Waits for so many numbers.
    fn receive(&self, letter: StageLetter, len: usize) -> Vec<f32>;
}

/// The ranks of a pipeline that a rank belongs to.
pub struct StageGroups<B: Backend> {
    /// All of them, in the order of their [places](super::StagePlace).
    pub all: Option<Arc<dyn PassRanks<B>>>,
    /// The first and the last, where both have the embedding: it is the head, too.
    pub tied: Option<Arc<dyn PassRanks<B>>>,
    /// The ways between neighbours.
    pub links: Option<Arc<dyn StageLinks>>,
}

impl<B: Backend> fmt::Debug for StageGroups<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageGroups")
            .field("all", &self.all)
            .field("tied", &self.tied)
            .field("links", &self.links)
            .finish()
    }
}

impl<B: Backend> Default for StageGroups<B> {
    fn default() -> Self {
        Self {
            all: None,
            tied: None,
            links: None,
        }
    }
}
