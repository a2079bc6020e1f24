//! Schedules that cannot be, and costs that do not fit them.

use thiserror::Error;

use super::Pass;
use crate::graph::GraphError;

/// A schedule that cannot be, or costs that do not fit it. Nothing was made of it.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A pipeline needs one of each at least.
    #[error(
        "a pipeline with {stages} ranks, {micro_batches} micro-batches and {chunks} chunks a rank has no pass: \
         give 1 of each at least"
    )]
    Empty {
        /// The number of ranks.
        stages: usize,
        /// The number of micro-batches.
        micro_batches: usize,
        /// The number of chunks of each rank.
        chunks: usize,
    },
    /// A pass of a micro-batch or chunk that the schedule has not.
    #[error(
        "rank {rank} has the {pass}, but there are {micro_batches} micro-batches and {chunks} chunks: number \
         both from 0"
    )]
    UnknownPass {
        /// The rank.
        rank: usize,
        /// The pass.
        pass: Pass,
        /// The number of micro-batches.
        micro_batches: usize,
        /// The number of chunks of each rank.
        chunks: usize,
    },
    /// A rank has a pass twice.
    #[error(
        "rank {rank} has the {pass} twice, at places {first} and {second} of its list: keep one"
    )]
    Repeated {
        /// The rank.
        rank: usize,
        /// The pass.
        pass: Pass,
        /// Its first place in the rank's list, from 0.
        first: usize,
        /// Its second.
        second: usize,
    },
    /// A rank has both gradients at once, and one of them once more.
    #[error("rank {rank} has the {pass} beside a backward pass with both gradients: keep either")]
    GradientTwice {
        /// The rank.
        rank: usize,
        /// The pass with one of the gradients.
        pass: Pass,
    },
    /// A rank lacks a pass.
    #[error("rank {rank} lacks the {pass}: add it")]
    Missing {
        /// The rank.
        rank: usize,
        /// The pass.
        pass: Pass,
    },
    /// A rank has a pass before one that makes what it needs.
    #[error("rank {rank} has the {pass} before the {after}, which it needs: change their order")]
    OutOfOrder {
        /// The rank.
        rank: usize,
        /// The pass that comes too early.
        pass: Pass,
        /// The pass of the same rank that it needs.
        after: Pass,
    },
    /// Ranks wait for each other.
    #[error("no rank can go on: {}: change the order of one of them", stuck(.waiting))]
    Deadlock {
        /// The ranks that are not done, each with the pass that it cannot begin and the rank for which it waits.
        waiting: Vec<(usize, Pass, usize)>,
    },
    /// A rank holds the activations of more passes than it may.
    #[error(
        "rank {rank} holds the activations of {in_flight} forward passes at once, {in_flight_max} at \
         most: begin fewer before the first backward pass"
    )]
    TooManyInFlight {
        /// The rank.
        rank: usize,
        /// The most that it holds.
        in_flight: usize,
        /// The most that it may hold.
        in_flight_max: usize,
    },
    /// Nothing fits under the bound.
    #[error("no forward pass fits under a bound of 0 activations: allow 1 at least")]
    NoRoom,
    /// Costs of another number of stages.
    #[error(
        "there are costs of {costs} stages, and the schedule has {stages}: give them stage by stage"
    )]
    WrongStages {
        /// The number of stages in the costs.
        costs: usize,
        /// The number of stages of the schedule.
        stages: usize,
    },
    /// A cost is no number of seconds.
    #[error("the {of} of stage {stage} takes {seconds} s: give a finite number, 0 or more")]
    BadCost {
        /// The pass or message.
        of: &'static str,
        /// The stage.
        stage: usize,
        /// The seconds that were given.
        seconds: f64,
    },
    /// The part of an activation is larger than the whole.
    #[error(
        "stage {stage} keeps {kept} bytes for its weight gradient, of {whole} that it has: give no more"
    )]
    KeptTooMuch {
        /// The stage.
        stage: usize,
        /// The bytes for the weight gradient.
        kept: u64,
        /// The bytes of the whole activation.
        whole: u64,
    },
    /// The graph of the schedule is refused.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The most ranks that a sentence names.
const NAMED_MAX: usize = 8;

fn stuck(waiting: &[(usize, Pass, usize)]) -> String {
    let named = waiting.iter().take(NAMED_MAX);
    let named =
        named.map(|(rank, pass, on)| format!("rank {rank} waits for rank {on} with the {pass}"));
    let mut words = named.collect::<Vec<_>>().join("; ");
    if waiting.len() > NAMED_MAX {
        words.push_str(&format!("; and {} more", waiting.len() - NAMED_MAX));
    }
    words
}
