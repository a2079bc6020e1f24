//! The event graph of a training step and its replay, and schedules of pipelines as data.
//!
//! ```text
//!  split_layers ── PipelineCosts
//!                       |
//!  PipelineSchedule ── graph ── EventGraph ── replay ── Replay ── draw
//!     check                     any operations          times, lanes, memory, critical path
//! ```
//!
//! An [`EventGraph`] has operations with seconds and bytes on lanes, and what each waits for. Its replay is the
//! earliest run. A [`PipelineSchedule`] says in which order each rank of a pipeline runs its passes; it is checked
//! by itself, and becomes a graph with the costs of stages and messages:
//!
//! | schedule | bubble of the ideal time, equal costs | in flight at rank `r` |
//! | --- | --- | --- |
//! | [`gpipe`](PipelineSchedule::gpipe) | `(p - 1) / m` | `m` |
//! | [`one_forward_one_backward`](PipelineSchedule::one_forward_one_backward) | `(p - 1) / m` | `min(p - r, m)` |
//! | [`interleaved`](PipelineSchedule::interleaved) | `(p - 1) / (v m)` | see there; each a `v`-th |
//! | [`zero_bubble_h1`](PipelineSchedule::zero_bubble_h1) | `(p - 1) max(F, F + B - W)` seconds | `min(p, m)` |
//! | [`zero_bubble`](PipelineSchedule::zero_bubble) | no more than these for a bound of `p` | the bound |
//!
//! with `p` ranks, `m >= p` micro-batches, `v` chunks a rank, and seconds `F`, `B`, `W` of forward pass, input
//! gradient and weight gradient.
//!
//! A [`LanguageStep`] says which kernels a pass has, so that a [`StepTimeline`] shows when a rank does not compute, and
//! why. A [`BubblePlanner`] runs an encoder there (Optimus, arXiv 2408.03505).
//!
//! This crate knows no clocks, no actors and no devices, and prices nothing itself: seconds and bytes are given.
//!
//! # Example
//!
//! ```
//! use odeon_replay::{PipelineCosts, PipelineSchedule, StageCosts, draw};
//!
//! let costs = PipelineCosts::uniform(4, StageCosts::new(1.0, 1.0, 1.0), 0.0);
//! let schedule = PipelineSchedule::one_forward_one_backward(4, 4)?;
//! let graph = schedule.graph(&costs)?;
//! let replay = graph.replay()?;
//! assert_eq!(replay.makespan_s(), 4.0 * 3.0 + 3.0 * 3.0);
//! assert_eq!(schedule.in_flight_max(), [4, 3, 2, 1]);
//! assert_eq!(
//!     draw(&graph, &replay, 23),
//!     [
//!         "0 0123......aa.bb.cc.dd",
//!         "1 .012....aa3bb.cc.dd..",
//!         "2 ..01..aa2bb3cc.dd....",
//!         "3 ...0aa1bb2cc3dd......",
//!     ]
//! );
//! // The gradients apart, in the memory of the same rank.
//! let schedule = PipelineSchedule::zero_bubble_h1(4, 4)?;
//! assert_eq!(schedule.summary(&costs)?.makespan_s, 4.0 * 3.0 + 3.0);
//! # Ok::<(), odeon_replay::ScheduleError>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `graph` | operations with seconds and memory, on lanes, and what each waits for |
//! | `graph/replay` | begin and end of each operation, the use of lanes and memory, a critical path |
//! | `graph/error` | graphs that cannot be, and those that cannot be replayed |
//! | `pipeline` | passes, and the schedule of a pipeline |
//! | `pipeline/builders` | GPipe, 1F1B, interleaved 1F1B |
//! | `pipeline/zero_bubble` | schedules that fill bubbles by weight gradients |
//! | `pipeline/check` | each pass once, in an order in which all ranks can go on; activations in flight |
//! | `pipeline/costs` | seconds and bytes of stages, seconds of messages and collectives |
//! | `pipeline/events` | the event graph of a schedule, with its messages and collectives |
//! | `pipeline/summary` | makespan, bubbles, activations in flight and memory of a schedule |
//! | `pipeline/error` | schedules that cannot be, and costs that do not fit them |
//! | `layers` | layers of uneven costs onto stages |
//! | `order` | the order in which operations that wait for others can run, and their times in it |
//! | `bubbles` | encoders in the bubbles of a language model's pipeline |
//! | `bubbles/kernel` | kernels of a micro-batch in a stage |
//! | `bubbles/timeline` | a step of the language model kernel by kernel, and its bubbles by their causes |
//! | `bubbles/encoder` | plans of an encoder on the language model's cards, and its work cut by them |
//! | `bubbles/free_time` | what is free on a card, and a walk through it |
//! | `bubbles/packing` | passes of one direction, before the language model and in its bubbles |
//! | `bubbles/compositions` | the ways to deal out micro-batches to pipelines of the encoder |
//! | `bubbles/planner` | the search for a plan and a composition |
//! | `bubbles/designs` | an encoder in the first stage, or in all stages alike |
//! | `bubbles/schedule` | the encoder's kernels with their places and times, and its messages |
//! | `bubbles/check` | each kernel once, in free time, behind what it needs and before what needs it |
//! | `bubbles/execution` | the event graph of a schedule that is carried out by order |
//! | `bubbles/error` | steps, encoders and plans that cannot be |
//! | `what_if` | what-if analysis of the stragglers of a traced run |
//! | `what_if/trace` | traces of steps, checked |
//! | `what_if/schedule` | what each traced operation waits for, and which begin together |
//! | `what_if/analysis` | replays with some durations traced and others ideal |
//! | `what_if/report` | slowdowns by kind, stage, copy and worker, and their causes |
//! | `what_if/error` | traces that cannot be looked at |
//! | `drawing` | a schedule's replay as lines of text |

#![forbid(unsafe_code)]

mod bubbles;
mod drawing;
mod graph;
mod layers;
mod order;
mod pipeline;
#[cfg(test)]
mod tests;
mod what_if;

pub use bubbles::{
    Bubble, BubbleError, BubbleKind, BubblePlanner, BubbleSchedule, Compositions, EncoderPass,
    EncoderPlan, EncoderTransfer, EncoderWork, ExecutedKernel, KernelStream, LanguageStep,
    PlacedKernel, PlannedEncoder, RankTimeline, ScheduleFlaw, SharedEncoder, StageKernel,
    StageKernels, StepTimeline, TimedKernel, composition_count,
};
pub use drawing::{LEGEND, draw};
pub use graph::{EventGraph, GraphError, GraphOperation, Lane, LaneStream, LaneUse, Replay};
pub use layers::{LayerSplit, SplitError, split_layers};
pub use pipeline::{
    Pass, PassKind, PipelineCosts, PipelineOperation, PipelineSchedule, PipelineSummary,
    RankSummary, ScheduleError, StageCosts,
};
pub use what_if::{
    Kept, LeftOutStep, MendedShare, OperationKind, PartSlowdown, STRAGGLING, StepTrace,
    StragglerCause, StragglerReport, TraceError, TracePart, TraceRow, TracedOperation,
    TracedWorker, WhatIf,
};
