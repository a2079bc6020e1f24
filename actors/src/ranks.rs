//! Ranks that share one model, whatever they train it on: where they are, the groups in which they meet, and what they
//! say to each other about checkpoints.
//!
//! Pretraining and the learning roles of reinforcement stand on it.

pub(crate) mod asking;
pub(crate) mod board;
pub mod courier;
pub mod desk;
mod formed;
pub(crate) mod gangs;
pub mod group_test;
mod mark;
pub mod meeting;
pub(crate) mod metrics;
pub mod places;
pub(crate) mod recovery;
pub mod replay;
mod seats;
pub mod standbys;
pub(crate) mod start;
pub mod trained;

pub(crate) use courier::Mail;
pub(crate) use formed::{Formed, mesh};
pub(crate) use mark::Mark;
pub use seats::{PipelineSeats, RankSeats, ShardSeats};
