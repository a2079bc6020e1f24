//! Events in the life of a job, and why one cannot be.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::version::{Program, WAIT_MAX_S};
use super::{JobId, JobSpecError, Outcome};
use crate::resources::Reservation;
use crate::startup::StageTimes;

/// An event in the life of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// It cannot have a node yet.
    Held {
        /// The obstacle.
        why: String,
    },
    /// It was given a node.
    Assigned {
        /// Which.
        node: String,
        /// Which life of it.
        boot: u64,
        /// The parts of nodes that it has to itself, where it asks for some.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reserved: Vec<Reservation>,
    },
    /// A try that runs with fewer ranks than it may have was given more. What it had on nodes that are
    /// gone is not its own any more.
    Extended {
        /// Of which try.
        attempt: u32,
        /// The parts of nodes that it has from now on, beside those that live.
        more: Vec<Reservation>,
    },
    /// A node has passed stages of a try's start.
    Prepared {
        /// Of which try.
        attempt: u32,
        /// Which node.
        node: String,
        /// Milliseconds of each.
        times: StageTimes,
        /// Something that is worth telling of it, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Its driver runs.
    Started {
        /// Of which try.
        attempt: u32,
        /// The driver's number of the operating system.
        pid: u32,
    },
    /// A try is over, and none of its processes is left.
    Over {
        /// Which try.
        attempt: u32,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The voters have not kept all that a try has printed, and its end waits for that no longer.
    Unkept {
        /// Which try.
        attempt: u32,
        /// The number of lines.
        lines: u64,
    },
    /// Somebody wants it to end.
    Stop {
        /// The name of whoever stopped it.
        by: String,
        /// Set where it may end in order; else it is killed.
        in_order: bool,
    },
    /// Somebody wants a job that is over to be run again, with all of its retries.
    Retry {
        /// The name of whoever begins it anew.
        by: String,
    },
    /// Somebody wants it to go over to another program, on the places that it has.
    Update {
        /// The program.
        program: Program,
        /// The name of whoever wants that.
        by: String,
        /// Why, in words; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
        /// The time for which it may wait for a restart, in seconds; none where it is made at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_s: Option<u64>,
    },
    /// Somebody wants it to go back to a version.
    RollBack {
        /// Which; the one before, where it says nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<u32>,
        /// The name of whoever wants that.
        by: String,
        /// Why, in words; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// A version has waited for long enough for a restart.
    TurnDue {
        /// Which.
        to: u32,
    },
    /// A try of a version has come to work: its first step is done, or whatever it is there for.
    AtWork {
        /// Which try.
        attempt: u32,
    },
}

/// Why an event cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    /// It is over.
    #[error("job {job} is over: it {outcome}")]
    Over {
        /// Which job.
        job: JobId,
        /// The outcome of the job.
        outcome: String,
    },
    /// It is not over.
    #[error("job {job} is not over: it is {state}")]
    Alive {
        /// Which job.
        job: JobId,
        /// Where it is in its life.
        state: &'static str,
    },
    /// It is about a try that is over, or has not begun.
    #[error("it is about try {attempt} of job {job}, which is not the present one")]
    Stale {
        /// Which job.
        job: JobId,
        /// Which try.
        attempt: u32,
    },
    /// It hosts a detached actor, which has no versions.
    #[error(
        "job {job} hosts a detached actor, which has no versions: stop it, and spawn it from the new program"
    )]
    Hosts {
        /// Which job.
        job: JobId,
    },
    /// It has this program.
    #[error(
        "version {version} of job {job} is this program with these words: nothing would change"
    )]
    SameProgram {
        /// Which job.
        job: JobId,
        /// The version.
        version: u32,
    },
    /// It has no such version.
    #[error(
        "job {job} has no version {version}: it keeps {}",
        super::version::numbers(known)
    )]
    NoVersion {
        /// Which job.
        job: JobId,
        /// Which version.
        version: u32,
        /// Those that it has.
        known: Vec<u32>,
    },
    /// There is no version to which it could go back.
    #[error(
        "version {version} of job {job} has taken the place of none that is kept: name one with --to, as \
         `odeon job show {job}` lists them"
    )]
    NothingBefore {
        /// Which job.
        job: JobId,
        /// The version that it has.
        version: u32,
    },
    /// It has this version.
    #[error("job {job} has version {version} already")]
    PresentVersion {
        /// Which job.
        job: JobId,
        /// The version.
        version: u32,
    },
    /// An update that would wait for longer than it may.
    #[error("an update waits for a restart for {WAIT_MAX_S} s at most, and not for {0} s")]
    Wait(u64),
    /// The other program cannot be meant.
    #[error(transparent)]
    Spec(#[from] JobSpecError),
    /// It does not follow from where the job is.
    #[error("job {job} is {state}, so it cannot be {event}")]
    Disorder {
        /// Which job.
        job: JobId,
        /// Where it is.
        state: &'static str,
        /// The event that was said to have happened.
        event: &'static str,
    },
}
