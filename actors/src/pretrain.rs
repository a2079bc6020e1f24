//! Pretraining: ranks that train one model on what a data plane deals out.
//!
//! ```text
//!  SourceLoader .. ── samples ──> DataConstructor .. ── batches ──> PretrainRank ..
//!       ^ metadata                      ^ plans                       | gradients over collectives
//!       └─────────── Planner ───────────┘                             └── checkpoints
//! ```
//!
//! A [`run`] is a program over the ranks, step by step. When one is lost, it is made again, and all
//! go on from the last checkpoint, on the same samples, since a checkpoint has what the planner knew.
//! Ranks keep checkpoints in memory, too, each its own part and its neighbour's, so those that are left
//! need no storage, unless neighbours were lost at once. The data plane is no part of that: whoever of
//! it is lost is made again by itself, and ranks notice nothing but the time.

mod batches;
mod before;
mod checkpoint;
pub mod compare;
mod gradients;
mod meshes;
mod pictures;
mod plan;
pub mod rank;
pub mod report;
mod run;
mod seats;
mod standbys;
pub mod verify;
mod work;

pub use gradients::GradientRules;
pub(crate) use meshes::data_mesh;
pub use plan::{HeldOut, PretrainPlan};
pub use run::{Desk, Member, run};
