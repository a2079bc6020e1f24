//! Tries over an upgrade of their node: what the next program of its process has to know of them, and
//! how it goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use odeon::{Clock, ProcessExit, ProcessId};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::driving::{Overdue, overdue_or};
use super::{Agent, CLEAR_PAUSE};
use crate::job::{Job, JobId, Outcome};
use crate::unix::Unix;

/// A try as the next program of this process has to know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AttemptHandoff {
    pub(super) job: Job,
    pub(super) attempt: u32,
    pub(super) driver: ProcessId,
    pub(super) pid: u32,
    /// When the node began with it; a program before time limits has not written it.
    #[serde(default, alias = "started")]
    pub(super) began: Unix,
    /// Set once its driver was asked to end; true for in order.
    pub(super) end: Option<bool>,
    /// The driver's exit, with true where it was asked to end.
    pub(super) exit: Option<(ProcessExit, bool)>,
    /// Set where it was asked to end because its time was over.
    #[serde(default)]
    pub(super) timed_out: bool,
    /// Set where it was asked to end because it did nothing.
    #[serde(default)]
    pub(super) idle: bool,
    /// The other nodes on which processes of it may be.
    pub(super) places: BTreeSet<String>,
}

impl AttemptHandoff {
    pub(super) const fn of(&self) -> (JobId, u32) {
        (self.job.id, self.attempt)
    }

    /// The reason for which it was asked to end, where that is its own.
    const fn overdue(&self) -> Option<Overdue> {
        match (self.timed_out, self.idle) {
            (true, _) => Some(Overdue::Time),
            (false, true) => Some(Overdue::Idle),
            (false, false) => None,
        }
    }

    /// The time that its driver may take to end.
    pub(super) fn grace(&self) -> Duration {
        self.job.spec.grace()
    }

    /// The operating system's number of its driver.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }
}

/// While it lives no try begins.
#[derive(Debug)]
pub(crate) struct Hold {
    agent: Agent,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.agent.inner.book.lock().attempts.hold(false);
    }
}

impl Agent {
    /// Goes on with tries of this life of the node, which the program before this one has begun.
    pub(crate) fn inherit(&self, tries: Vec<AttemptHandoff>) {
        for handoff in tries {
            let (job, attempt) = handoff.of();
            let mut book = self.inner.book.lock();
            book.attempts.inherit(job, attempt, handoff.end);
            let (stop, stopped) = watch::channel(handoff.end);
            book.stops.insert((job, attempt), stop);
            book.places.insert((job, attempt), handoff.places.clone());
            book.driven.insert((job, attempt), handoff.clone());
            drop(book);
            let mut specs = self.inner.specs.lock();
            specs.insert((job, attempt), handoff.job.spec.clone());
            drop(specs);
            self.inner.staging.environments().admit((job, attempt));
            self.reserve(&handoff.job, attempt);
            let agent = self.clone();
            tokio::spawn(async move {
                let job = handoff.job.clone();
                let outcome = match (
                    &handoff.exit,
                    agent.inner.system.admin().inherited_driver(handoff.driver),
                ) {
                    (Some((exit, was_asked)), _) => {
                        let of = (job.id, attempt);
                        let outcome = agent.outcome(of, handoff.pid, exit, *was_asked).await;
                        overdue_or(outcome, &job.spec, handoff.overdue())
                    }
                    (None, Some(driver)) => agent.drive(handoff, driver, stopped).await,
                    (None, None) => Outcome::Failed {
                        code: None,
                        why: "its end was not seen while the node was upgraded".to_owned(),
                    },
                };
                agent.settle(&job, attempt, outcome).await;
            });
        }
    }

    /// Begins no try from now on, while what this gives lives, when nothing is in the way of handing
    /// on those that run.
    pub(crate) async fn hold(&self, patience: Duration) -> Result<Hold, String> {
        self.inner.book.lock().attempts.hold(true);
        let hold = Hold {
            agent: self.clone(),
        };
        let deadline = Clock::now().after(patience);
        loop {
            let Some(why) = self.unsteady() else {
                return Ok(hold);
            };
            if deadline.left(Clock::now()).is_zero() {
                return Err(why);
            }
            Clock::sleep(CLEAR_PAUSE).await;
        }
    }

    /// Why the tries of this node cannot be handed on.
    fn unsteady(&self) -> Option<String> {
        if let Some((job, _)) = self.inner.staging.tries().first() {
            return Some(format!("{job} reads its files while they come"));
        }
        let book = self.inner.book.lock();
        let running = book.attempts.running();
        let mut all = running.iter().chain(&book.untold);
        let other = all.find(|of| !book.driven.contains_key(of));
        other.map(|(job, _)| format!("{job} begins or ends here"))
    }

    /// From now on the end of a driver is left to the next program of this process. What this one has
    /// begun to do about an earlier end the next does again.
    pub(crate) fn pass_on(&self) {
        self.inner.passes.send_replace(true);
    }

    /// The tries that the next program of this process goes on with. The engine knows a driver, or this
    /// does how it ended.
    pub(crate) async fn handoff(&self) -> Vec<AttemptHandoff> {
        loop {
            let tries: Vec<AttemptHandoff> = {
                let book = self.inner.book.lock();
                let tries = book.driven.values().map(|handoff| AttemptHandoff {
                    // Once it is sealed, its own are all.
                    places: match book.places.get(&handoff.of()) {
                        Some(places) => places.clone(),
                        None => handoff.places.clone(),
                    },
                    ..handoff.clone()
                });
                tries.collect()
            };
            let processes = self.inner.system.admin().processes();
            let runs = |it: &AttemptHandoff| processes.iter().any(|row| row.process == it.driver);
            let is_known = |it: &AttemptHandoff| it.exit.is_some() || runs(it);
            if tries.iter().all(is_known) {
                return tries;
            }
            Clock::sleep(CLEAR_PAUSE).await;
        }
    }
}
