//! Hybrid control: a run as a short program over groups of workers, step by step.
//!
//! ```text
//!  program (driver)            references and numbers alone
//!   |  Generate        Judge | Values | LogProbs       Estimate       Learn | Update
//!   v                        v                         v              v
//!  policy ranks     reward, critic, reference ranks    estimator      critic, policy ranks
//!      \_________ rows: from who made them to who needs them ________/
//! ```
//!
//! This is HybridFlow (arXiv 2409.19256): between models one program decides ([`program`]), inside of
//! a model its ranks work by themselves, each with the whole or with its part of it. Parts of
//! the policy that are [`Published`] come together to generate. Which models share processes is
//! the [`Placement`]'s affair: the programs, and the numbers that come out, are the same.
//! [`resharding`] brings a model from a layout to train in to one to generate in, and back.
//!
//! [`rl`](crate::rl) is the other way to run the same algorithms, without steps that all wait for.

pub mod calls;
mod estimator;
mod house;
pub mod placement;
pub mod program;
mod recoveries;
pub mod resharding;
mod rows;
mod run;
mod weights;
pub mod workers;

pub use placement::{Arrangement, Choice, Model, Placement};
pub use rows::{Rows, Share};
pub use run::{Desk, HybridPlan, Member, PoolReservation, Program, run};
pub use weights::Published;

use odeon::Job;

/// The actors of a run: what a program that starts one, and each of its worker processes, can host.
#[must_use]
pub fn job() -> Job {
    use crate::ranks::courier::Courier;
    use crate::ranks::desk::RecoveryDesk;
    use crate::rl::ranks::rank::ModelRank;
    use workers::{CriticWorker, Estimator, PolicyWorker, ReferenceWorker, RewardWorker};
    odeon::job![
        Courier,
        CriticWorker,
        Estimator,
        ModelRank,
        PolicyWorker,
        RecoveryDesk,
        ReferenceWorker,
        resharding::ReshardWorker,
        RewardWorker
    ]
}
