//! The tries that a node runs, as its agent keeps track of them: a pure state machine.
//!
//! Orders come late, twice, and not in the order in which they were given; the node may have been
//! taken for lost meanwhile. Whatever comes:
//!
//! - A try begins at most once, and only in the life of the node that it was given to.
//! - A try that was ended before it began never begins.
//! - Of a job one try at a time runs here; a newer one ends the older, and begins after it.
//! - A try of which the catalog knows that it is over ([`Tables::is_over`]) is killed.
//!
//! [`Tables::is_over`]: crate::tables::Tables::is_over

use std::collections::BTreeMap;

use crate::job::{Job, JobId, State};

/// The running tries of one node, and the last of each job that is over here.
#[derive(Clone, Debug)]
pub struct Attempts {
    node: String,
    boot: u64,
    running: BTreeMap<JobId, Running>,
    /// The last try of each job that is over here, or never began.
    settled: BTreeMap<JobId, u32>,
    closing: bool,
    held: bool,
}

/// A try that runs.
#[derive(Clone, Debug)]
struct Running {
    number: u32,
    /// Set once it was told to end; true for in order.
    end: Option<bool>,
}

/// The next step of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum AttemptStep {
    /// Nothing.
    Nothing,
    /// It begins: run its driver, and call [`Attempts::ended`] when none of its processes is left.
    Begin {
        /// Which try.
        attempt: u32,
    },
    /// A try that runs has to end.
    End {
        /// Which.
        attempt: u32,
        /// Set where it may end in order; else it is killed.
        in_order: bool,
    },
    /// It never ran and never will: the catalog has to hear that it is over.
    NeverRan {
        /// Which.
        attempt: u32,
    },
}

/// Jobs whose last try here is remembered.
const SETTLED_MAX: usize = 4096;

impl Attempts {
    /// Those of one life of a node.
    #[must_use]
    pub fn new(node: &str, boot: u64) -> Self {
        Self {
            node: node.to_owned(),
            boot,
            running: BTreeMap::new(),
            settled: BTreeMap::new(),
            closing: false,
            held: false,
        }
    }

    /// The node is told to begin the present try of a job.
    pub fn begin(&mut self, job: &Job) -> AttemptStep {
        let State::Staging { attempt } = &job.state else {
            return AttemptStep::Nothing;
        };
        let idle = self.closing || self.held;
        if attempt.node != self.node || attempt.boot != self.boot || idle {
            return AttemptStep::Nothing;
        }
        let number = attempt.number;
        if self.is_settled(job.id, number) {
            return AttemptStep::Nothing;
        }
        if let Some(known) = self.running.get(&job.id).map(|known| known.number) {
            // The older is over, or there would be no newer. The order comes again.
            return match known < number {
                true => self.end(job.id, known, false),
                false => AttemptStep::Nothing,
            };
        }
        self.running.insert(job.id, Running { number, end: None });
        AttemptStep::Begin { attempt: number }
    }

    /// Holds back new tries while `held` is true. The orders come again.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Goes on with a try that another program of this process has begun, and whether that was told to
    /// end.
    pub fn inherit(&mut self, job: JobId, number: u32, end: Option<bool>) {
        self.running.insert(job, Running { number, end });
    }

    /// The node is told to end a try.
    pub fn finish(&mut self, job: JobId, attempt: u32, in_order: bool) -> AttemptStep {
        let runs = self.running.get(&job).map(|known| known.number);
        if runs == Some(attempt) {
            return self.end(job, attempt, in_order);
        }
        // Of one that is over the catalog hears, or has heard; of one before it too.
        if runs > Some(attempt) || self.is_settled(job, attempt) {
            return AttemptStep::Nothing;
        }
        self.settle(job, attempt);
        AttemptStep::NeverRan { attempt }
    }

    /// None of the processes of a try is left. Returns true if the catalog has to hear of it; of
    /// those that end as the node leaves it hears when the node has left.
    #[must_use]
    pub fn ended(&mut self, job: JobId, attempt: u32) -> bool {
        let runs = self.running.get(&job).map(|known| known.number);
        if runs == Some(attempt) {
            self.running.remove(&job);
        }
        self.settle(job, attempt);
        !self.closing
    }

    /// Those that run here.
    #[must_use]
    pub fn running(&self) -> Vec<(JobId, u32)> {
        let running = self.running.iter();
        running.map(|(job, known)| (*job, known.number)).collect()
    }

    /// The catalog knows of these that they are over, whatever is running. Those to be killed here,
    /// which were not yet.
    #[must_use]
    pub fn sweep(&mut self, over: &[(JobId, u32)]) -> Vec<(JobId, u32)> {
        let mut killed = vec![];
        for (job, attempt) in over {
            let runs = self.running.get(job).map(|known| known.number);
            if runs == Some(*attempt) && self.end(*job, *attempt, false) != AttemptStep::Nothing {
                killed.push((*job, *attempt));
            }
        }
        killed
    }

    /// The node leaves: no try begins any more. Those that have to end, in order.
    #[must_use]
    pub fn close(&mut self) -> Vec<(JobId, u32)> {
        self.closing = true;
        let running = self.running();
        let ends = running.into_iter();
        ends.filter(|(job, attempt)| self.end(*job, *attempt, true) != AttemptStep::Nothing)
            .collect()
    }

    /// Returns true while nothing runs here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    fn is_settled(&self, job: JobId, attempt: u32) -> bool {
        self.settled.get(&job).is_some_and(|last| *last >= attempt)
    }

    fn settle(&mut self, job: JobId, attempt: u32) {
        let last = self.settled.entry(job).or_default();
        *last = attempt.max(*last);
        if self.settled.len() > SETTLED_MAX {
            self.settled.pop_first();
        }
    }

    /// Tells a try to end. One that was told to end in order may yet be killed, and not the other
    /// way.
    fn end(&mut self, job: JobId, attempt: u32, in_order: bool) -> AttemptStep {
        let Some(known) = self.running.get_mut(&job) else {
            return AttemptStep::Nothing;
        };
        let end = Some(in_order && known.end.unwrap_or(true));
        if std::mem::replace(&mut known.end, end) == end {
            return AttemptStep::Nothing;
        }
        let in_order = end == Some(true);
        AttemptStep::End { attempt, in_order }
    }
}

#[cfg(test)]
mod tests;
