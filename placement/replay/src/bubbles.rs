//! Encoders in the bubbles of a language model's pipeline (Optimus, arXiv 2408.03505).
//!
//! ```text
//!  LanguageStep ── StepTimeline ── bubbles, free times ─┐
//!  EncoderPlan, EncoderWork ────────────────────────────┴─ BubblePlanner ── BubbleSchedule ── check, graph
//! ```

mod check;
mod compositions;
mod designs;
mod encoder;
mod error;
mod execution;
mod free_time;
mod kernel;
mod packing;
mod planner;
mod schedule;
mod timeline;

pub use check::ScheduleFlaw;
pub use compositions::{Compositions, composition_count};
pub use designs::SharedEncoder;
pub use encoder::{EncoderPass, EncoderPlan, EncoderWork};
pub use error::BubbleError;
pub use execution::ExecutedKernel;
pub use kernel::{KernelStream, StageKernel, StageKernels};
pub use planner::{BubblePlanner, PlannedEncoder};
pub use schedule::{BubbleSchedule, EncoderTransfer, PlacedKernel};
pub use timeline::{Bubble, BubbleKind, LanguageStep, RankTimeline, StepTimeline, TimedKernel};
