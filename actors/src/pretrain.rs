//! Pretraining: ranks that train one model on what a data plane deals out.
//!
//! ```text
//!  SourceLoader .. ── samples ──> DataConstructor .. ── batches ──> PretrainRank ..
//!       ^ metadata                      ^ plans                       | gradients over collectives
//!       └─────────── Planner ───────────┘                             └── checkpoints
//! ```
//!
//! A [`run`] is a program over the ranks, step by step. Ranks live and die together: when one is lost,
//! all are made again and go on from the last checkpoint, on the same samples, since a checkpoint
//! has what the planner knew. The data plane is no part of that: whoever of it is lost is made again
//! by itself, and ranks notice nothing but the time.

mod checkpoint;
pub mod courier;
mod pictures;
pub mod rank;
pub mod report;
mod run;

pub use run::{Desk, HeldOut, Member, PretrainPlan, run};
