//! Judges replies that hold programs, by running them: so many programs at a time, whatever the
//! number of replies.
//!
//! A reply is begun when it comes. It has one program under way at a time and asks for a place anew
//! for each; places are given in the order in which they were asked for. So a reply with a hundred
//! tests does not keep one with three waiting, and a program that is slow keeps its own place and
//! nothing else. A judgement that nobody waits for any more ends its program, and gives its place
//! back when nothing of that is left.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use odeon::Clock;
use odeon_algorithms::task::code::{Code, Trial, TrialOutcome, Unjudged};
use odeon_algorithms::task::{Problem, Verdict};
use tokio::sync::Semaphore;

use crate::sandbox::{End, Ran, Sandbox, SandboxError, Work};

/// Runs the programs in replies. Clones share their places.
#[derive(Clone, Debug)]
pub struct CodeJudge {
    sandbox: Sandbox,
    places: Arc<Semaphore>,
}

/// Why a reply was not judged. It says nothing about the reply, which may be judged again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// There is no sandbox any more.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A program could not be run, and not when it was tried again either.
    #[error(transparent)]
    Unjudged(#[from] Unjudged),
    /// There is no randomness, without which programs could guess what passing looks like.
    #[error("/dev/urandom cannot be read: {0}")]
    Nonce(std::io::Error),
}

impl CodeJudge {
    /// Runs so many programs in a sandbox at a time.
    #[must_use]
    pub fn new(sandbox: Sandbox, at_once: NonZeroUsize) -> Self {
        let places = at_once.get().min(Semaphore::MAX_PERMITS);
        Self {
            sandbox,
            places: Arc::new(Semaphore::new(places)),
        }
    }

    /// Where programs are run.
    #[must_use]
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Judges a reply. When this is dropped, what runs for it is ended.
    ///
    /// # Errors
    /// [`JudgeError`], which is never the reply's fault.
    #[odeon::boxed]
    pub async fn judge(
        &self,
        task: &Code,
        problem: &Problem,
        reply: &str,
    ) -> Result<Verdict, JudgeError> {
        let nonce = nonce().map_err(JudgeError::Nonce)?;
        let trials = match task.trials(problem, reply, &nonce) {
            Ok(trials) => trials,
            Err(verdict) => return Ok(verdict),
        };
        let mut outcomes = Vec::with_capacity(trials.len());
        while !task.decided(&trials, &outcomes) {
            outcomes.push(self.outcome(&trials[outcomes.len()]).await?);
        }
        Ok(task.judge(&trials, &outcomes)?)
    }

    /// Runs a trial, again where the machine was at fault: it may have been short of something.
    async fn outcome(&self, trial: &Trial) -> Result<TrialOutcome, SandboxError> {
        let mut pause = PAUSE;
        loop {
            let outcome = outcome_of(self.run(trial).await?);
            if !matches!(outcome, TrialOutcome::NotStarted(_)) || pause > PAUSE_MAX {
                return Ok(outcome);
            }
            tracing::warn!(%outcome, "a program is tried again");
            Clock::sleep(pause).await;
            pause *= 4;
        }
    }

    async fn run(&self, trial: &Trial) -> Result<Ran, SandboxError> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.expect("the places are never closed");
        let files = trial.files.iter();
        let work = Work {
            program: trial.program.clone(),
            files: files
                .map(|(name, text)| (name.clone(), text.clone().into_bytes()))
                .collect(),
            stdin: trial.stdin.clone().into_bytes(),
        };
        self.sandbox.run_holding(work, place).await
    }
}

fn outcome_of(ran: Ran) -> TrialOutcome {
    match ran.end {
        End::Exited(code) => TrialOutcome::Exited {
            code,
            stdout: ran.stdout.bytes,
        },
        End::Signalled(signal) => TrialOutcome::Signalled(signal),
        End::TimedOut(_) => TrialOutcome::TimedOut,
        End::OutOfMemory => TrialOutcome::OutOfMemory,
        End::OutputTooLong => TrialOutcome::OutputTooLong,
        End::TooManyProcesses => TrialOutcome::TooManyProcesses,
        End::NotStarted(why) => TrialOutcome::NotStarted(why),
    }
}

/// A random text that no program can guess.
fn nonce() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

/// Before a trial is tried again, at first; four times as long before the next.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
