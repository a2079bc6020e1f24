//! Steps, encoders and plans that cannot be.

use thiserror::Error;

use super::encoder::EncoderPlan;
use crate::{GraphError, ScheduleError};

/// A step, an encoder or a plan that cannot be. Nothing was scheduled.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum BubbleError {
    /// A number of a plan is 0.
    #[error("{0} is 0: give 1 at least")]
    Zero(&'static str),
    /// The encoder's stages or tensor groups do not divide those of the language model.
    #[error(
        "{encoder} {what} of the encoder do not divide the {language} of the language model: give a divisor, so \
         that encoders lie on the same cards"
    )]
    Uneven {
        /// Stages, or cards of a tensor group.
        what: &'static str,
        /// The encoder's.
        encoder: usize,
        /// The language model's.
        language: usize,
    },
    /// There are fewer micro-batches than pipelines of the encoder.
    #[error(
        "{micro_batches} micro-batches are too few for {pipelines} pipelines of the encoder ({plan}): give each one \
         at least, or the encoder more stages or larger tensor groups"
    )]
    TooFewMicroBatches {
        /// The micro-batches of a step.
        micro_batches: usize,
        /// The encoder's pipelines beside one pipeline of the language model.
        pipelines: usize,
        /// The encoder's plan.
        plan: EncoderPlan,
    },
    /// A kernel has no sensible duration.
    #[error(
        "kernel {kernel} of stage {stage} of {of} takes {seconds} s: give a finite number, more than 0, and leave out what \
         takes no time"
    )]
    BadKernel {
        /// The encoder, or the language model.
        of: &'static str,
        /// The stage.
        stage: usize,
        /// The kernel's place among those of both passes, from 0.
        kernel: usize,
        /// The seconds that were given.
        seconds: f64,
    },
    /// A message has no sensible duration.
    #[error("a message of the encoder takes {0} s: give a finite number, 0 or more")]
    BadMessage(f64),
    /// Kernels of another number of stages.
    #[error("there are kernels of {given} stages, and {of} has {stages}: give them stage by stage")]
    WrongStages {
        /// The encoder, or the language model.
        of: &'static str,
        /// The stages of the kernels.
        given: usize,
        /// The stages of the plan.
        stages: usize,
    },
    /// The schedule of the language model has its gradients apart.
    #[error(
        "the language model's schedule has its gradients apart, and kernels are given for both together: give a \
         schedule with whole backward passes"
    )]
    GradientsApart,
    /// Both models' states fit with no plan.
    #[error(
        "no plan of the encoder fits: {plan} needs least with {needed} bytes on each card, of {there} that there are: \
         give more cards, larger tensor groups or more stages, or a smaller encoder"
    )]
    Memory {
        /// The plan that needs least.
        plan: EncoderPlan,
        /// The bytes that it needs with the language model's.
        needed: u64,
        /// The bytes that there are.
        there: u64,
    },
    /// There is nothing to choose among.
    #[error("no plan of the encoder was given: give one at least")]
    NoPlan,
    /// A limit of the search lets it try nothing.
    #[error("the search may try {0} compositions: give 1 at least")]
    NoTrials(usize),
    /// The language model's schedule is refused.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A graph is refused.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
