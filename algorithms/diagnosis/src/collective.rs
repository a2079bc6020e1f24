//! Calls of ranks that do not end, or differ: who is to blame, by what the ranks say of themselves.
//!
//! Each rank keeps a [`Log`] of its calls and tells the others a [`RankWord`] of it. [`Differences`] looks at each
//! word that is heard, [`StuckCalls`] at a call that has taken too long and what all ranks have answered.

mod log;
mod verdict;

use std::time::{Duration, Instant};

use odeon_collective::Fault;

pub use log::{CallEntry, Kind, Log, RankWord, Record, WORD_BYTES_MAX, is_pair};

use crate::{Action, Detector, Finding, FindingCause, Observation};

impl FindingCause for Fault {
    fn action(&self) -> Action {
        Action::EndCall
    }
}

/// A word of another rank, just heard.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    /// This rank.
    pub rank: usize,
    /// Its calls.
    pub log: &'a Log,
    /// The other rank.
    pub other: usize,
    /// Its word to this one.
    pub word: &'a RankWord,
}

impl Observation for Heard<'_> {
    type Subject = usize;
    type Moment = Instant;
    type Cause = Fault;
}

/// A call of this rank that has not ended in time.
#[derive(Clone, Copy, Debug)]
pub struct Stuck<'a> {
    /// This rank.
    pub rank: usize,
    /// Its calls.
    pub log: &'a Log,
    /// The call.
    pub call: &'a CallEntry,
    /// The word of each rank since it was asked, or nothing where it did not answer.
    pub heard: &'a [Option<RankWord>],
    /// The time that the call has taken.
    pub waited: Duration,
}

impl Observation for Stuck<'_> {
    type Subject = usize;
    type Moment = Instant;
    type Cause = Fault;
}

/// Finds that this rank and another one have called different things.
#[derive(Clone, Copy, Debug, Default)]
pub struct Differences;

impl<'a> Detector<Heard<'a>> for Differences {
    fn observe(&mut self, seen: &Heard<'a>, at: Instant) -> Vec<Finding<Heard<'a>>> {
        let Heard {
            rank,
            log,
            other,
            word,
        } = *seen;
        let ours = log.word(other, None, false);
        let fault = verdict::mismatch(&ours, rank, word, other);
        let fault = fault.or_else(|| verdict::differs(log, rank, word, other));
        let found = fault.map(|cause| Finding {
            who: cause.ranks(),
            cause,
            since: at,
        });
        found.into_iter().collect()
    }
}

/// Finds who is to blame that a call has not ended, where others are.
#[derive(Clone, Copy, Debug, Default)]
pub struct StuckCalls;

impl<'a> Detector<Stuck<'a>> for StuckCalls {
    fn observe(&mut self, seen: &Stuck<'a>, at: Instant) -> Vec<Finding<Stuck<'a>>> {
        let fault = verdict::verdict(seen.rank, seen.log, seen.call, seen.heard, seen.waited);
        let found = fault.map(|cause| Finding {
            who: cause.ranks(),
            cause,
            since: at.checked_sub(seen.waited).unwrap_or(at),
        });
        found.into_iter().collect()
    }
}
