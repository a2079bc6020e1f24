//! Ranks that share one model, whatever they train it on: the groups in which they meet, and what they say to each
//! other about checkpoints.
//!
//! Pretraining and the learning roles of reinforcement stand on it.

pub mod courier;
mod formed;
mod gangs;
mod mark;
mod seats;

use std::error::Error;
use std::time::Duration;

use odeon::Failure;

pub(crate) use courier::Mail;
pub(crate) use formed::{Formed, mesh};
pub(crate) use gangs::Gangs;
pub(crate) use mark::Mark;
pub use seats::{PipelineSeats, RankSeats, ShardSeats};

/// The longest time that a rank waits for a batch, and for another rank in a save or load. One that is lost is noticed
/// at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Time that ranks may take for one thing. One that is lost is noticed at once.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// The answers of all ranks.
pub(crate) fn answers<T, E: Error>(
    asked: Result<Vec<Result<T, Failure>>, E>,
) -> Result<Vec<T>, Failure> {
    asked
        .map_err(|error| Failure::error(error.to_string()))?
        .into_iter()
        .collect()
}

/// The answer of all, which they agree on.
pub(crate) fn agreed<T: PartialEq>(answers: Vec<T>) -> Result<T, Failure> {
    let mut answers = answers.into_iter();
    let first = answers.next();
    let first = first.ok_or_else(|| Failure::error("there are no ranks"))?;
    match answers.all(|other| other == first) {
        true => Ok(first),
        false => Err(Failure::error("ranks have loaded different checkpoints")),
    }
}
