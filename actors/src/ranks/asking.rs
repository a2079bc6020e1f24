//! Asking all ranks, and what their answers are together.

use std::error::Error;
use std::time::Duration;

use odeon::{Failure, FailureKind};

/// The longest time that a rank waits for a batch, and for another rank in a save or load. One that is lost is noticed
/// at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Time that ranks may take for one thing. One that is lost is noticed at once.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// The answers of all ranks.
pub(crate) fn answers<T, E: Error>(
    asked: Result<Vec<Result<T, Failure>>, E>,
) -> Result<Vec<T>, Failure> {
    let answers = asked.map_err(|error| Failure::error(error.to_string()))?;
    let fatal = |answer: &Result<T, Failure>| matches!(answer, Err(failure) if failure.kind == FailureKind::Fatal);
    // Others fail since that one did.
    let first = answers.iter().position(fatal);
    match first {
        Some(at) => answers.into_iter().skip(at).take(1).collect(),
        None => answers.into_iter().collect(),
    }
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
