//! Ranks that share one model, whatever they train it on: the groups in which they meet, and what they say to each
//! other about checkpoints.
//!
//! Pretraining and the learning roles of reinforcement stand on it.

pub mod courier;
mod formed;
mod gangs;
mod mark;
mod seats;

use std::time::Duration;

pub(crate) use courier::Mail;
pub(crate) use formed::{Formed, mesh};
pub(crate) use gangs::Gangs;
pub(crate) use mark::Mark;
pub use seats::{PipelineSeats, RankSeats, ShardSeats};

/// The longest time that a rank waits for a batch, and for another rank in a save or load. One that is lost is noticed
/// at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
