//! A job: what was submitted, and its life as a state machine.
//!
//! ```text
//!            assigned              staged            driver ended
//!  Waiting ────────────> Staging ────────> Running ──────────────> Ended
//!     ^                     │ lost, failed     │ lost, failed         ^
//!     └──── tries left ─────┴──────────────────┘                      │
//!     │                                        └─ stop ─> Stopping ───┤
//!     └───────────────── stopped, cancelled, refused ─────────────────┘
//! ```
//!
//! One that goes over to another [version] is stopping, and then staging again on the places that it has.
//!
//! [`Job::apply`] is the only way from one state to the next. It takes what happened and when, and
//! refuses what cannot happen.
//!
//! A job that is over stays so until somebody wants it to be run again ([`Event::Retry`]). That is a
//! new run of the same job: it has all of its retries anew, as if it had just been submitted, while
//! its tries are counted on, so that a try has the same number for ever and what is left of an old
//! one is known as old.

pub mod array;
mod event;
mod spec;
pub mod version;

use std::fmt;
use std::time::Duration;

use self::array::{After, ArrayTask};
pub use self::event::{Event, Unfit};
pub use self::spec::{DEFAULT_NAMESPACE, Hosted, JobSpec, JobSpecError};
use self::version::{JobTurn, Versions, WAIT_MAX_S};
use crate::reason::reason;
use crate::resources::{Bytes, Reservation};
use crate::startup::{StartStage, Startup};
use crate::unix::Unix;
use serde::{Deserialize, Serialize};

/// The number of a job in its cluster; written `j17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "j{}", self.0)
    }
}

impl std::str::FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix('j').unwrap_or(text).parse().ok();
        number
            .map(Self)
            .ok_or_else(|| format!("`{text}` is no job: they are written j1, j2, ..."))
    }
}

/// One try to run a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    /// The node that runs the driver.
    pub node: String,
    /// Which life of that node.
    pub boot: u64,
    /// When it was assigned.
    pub since: Unix,
    /// Since when the job has had its places, where a try of another version has had them before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<Unix>,
    /// The parts of nodes that it has to itself until it is over: that of its driver first, then
    /// those of its ranks. None for a job that asks for nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reservation>,
}

impl Attempt {
    /// Since when the job has had its places: from then on its time counts.
    #[must_use]
    pub fn held_since(&self) -> Unix {
        self.held_since.unwrap_or(self.since)
    }
}

/// Where a job is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum State {
    /// It has no node yet.
    Waiting {
        /// The obstacle, in words.
        why: String,
        /// It is not begun anew before that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Unix>,
        /// Since when; an older release has not written it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Unix>,
    },
    /// Its files are brought to the node and checked.
    Staging {
        /// The try.
        attempt: Attempt,
    },
    /// Its driver runs.
    Running {
        /// The try.
        attempt: Attempt,
        /// Since when.
        since: Unix,
        /// The driver's number of the operating system.
        pid: u32,
    },
    /// Somebody has stopped it, or has it go over to another version, and its processes end.
    Stopping {
        /// The try.
        attempt: Attempt,
        /// The name of whoever stopped it.
        by: String,
        /// Set where it may end in order.
        in_order: bool,
        /// Since when.
        since: Unix,
        /// Set where another version begins on its places then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        updates: bool,
    },
    /// It is over.
    Ended {
        /// Its outcome.
        outcome: Outcome,
        /// When.
        at: Unix,
        /// The driver's last try; `None` when there was none.
        attempt: Option<Attempt>,
    },
}

/// The end that a job came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// Its driver ended with exit code 0.
    Succeeded,
    /// Its driver ended otherwise.
    Failed {
        /// The exit code, if it has one.
        code: Option<i32>,
        /// In words.
        why: String,
    },
    /// It had not ended when its time was over.
    TimedOut {
        /// Its time limit, in seconds.
        limit_s: u64,
    },
    /// It had neither printed anything nor used a processor for so long.
    Idle {
        /// Its idle limit, in seconds.
        limit_s: u64,
    },
    /// It was to begin after a job that did not succeed.
    Unmet {
        /// Which.
        after: JobId,
        /// The end of that one, or of the one for which that never began, in words.
        cause: String,
    },
    /// The kernel has killed a process of it that needed more memory than it may have on the node of
    /// its driver.
    OutOfMemory {
        /// The memory that it may have there, in bytes.
        limit_bytes: u64,
    },
    /// It was stopped while it ran.
    Stopped {
        /// By whom.
        by: String,
    },
    /// It was stopped before it ran.
    Cancelled {
        /// By whom.
        by: String,
    },
    /// Its processes were ended for those of another version: an outcome of a try, and of no job.
    Replaced {
        /// By which.
        version: u32,
    },
    /// It cannot run anywhere in this cluster.
    Refused {
        /// Why.
        why: String,
    },
    /// Its node was lost.
    Lost {
        /// Which.
        node: String,
        /// The sign by which that was seen.
        why: String,
    },
}

impl Outcome {
    /// The exit code of whoever waits for the job: the driver's own; 128 + 15 when it was stopped;
    /// 125 for what never ran, or was lost; 124 where its time was over, as `timeout` gives, and
    /// 128 + 9 where it was killed for its memory.
    #[must_use]
    pub const fn exit_code(&self) -> i32 {
        match self {
            Self::Succeeded => 0,
            Self::Failed {
                code: Some(code), ..
            } => *code,
            Self::Failed { code: None, .. } => 1,
            Self::TimedOut { .. } | Self::Idle { .. } => 124,
            Self::OutOfMemory { .. } => 137,
            Self::Stopped { .. } | Self::Replaced { .. } => 143,
            Self::Cancelled { .. }
            | Self::Unmet { .. }
            | Self::Refused { .. }
            | Self::Lost { .. } => 125,
        }
    }
}

impl Outcome {
    /// The end of a job as a part of a sentence: `j1 failed: exit code 3`, `j1 was stopped by ann`.
    pub(crate) fn told_of(&self, job: JobId) -> String {
        match self {
            Self::Stopped { .. }
            | Self::Cancelled { .. }
            | Self::Replaced { .. }
            | Self::Unmet { .. }
            | Self::Refused { .. }
            | Self::Lost { .. } => {
                format!("{job} was {self}")
            }
            _ => format!("{job} {self}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded => f.write_str("succeeded"),
            Self::Failed { why, .. } => write!(f, "failed: {why}"),
            Self::TimedOut { limit_s } => {
                write!(
                    f,
                    "ended after {limit_s} s, its time limit: give it more (--time-limit)"
                )
            }
            Self::Idle { limit_s } => write!(
                f,
                "ended after it had printed nothing and used no processor for {limit_s} s, its idle \
                 limit: give it more (--idle-limit)"
            ),
            Self::Unmet { after, cause } => {
                write!(f, "cancelled: it comes after {after}, and {cause}")
            }
            Self::OutOfMemory { limit_bytes } => write!(
                f,
                "failed: it was killed when it needed more than its {} of memory: ask for more \
                 (--memory)",
                Bytes(*limit_bytes)
            ),
            Self::Stopped { by } => write!(f, "stopped by {by}"),
            Self::Cancelled { by } => write!(f, "cancelled by {by}"),
            Self::Replaced { version } => write!(f, "replaced by version {version}"),
            Self::Refused { why } => write!(f, "refused: {why}"),
            Self::Lost { node, why } => write!(f, "lost with node `{node}`: {why}"),
        }
    }
}

/// A job as the catalog keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// The job as it was submitted.
    pub spec: JobSpec,
    /// By whom.
    pub by: String,
    /// When.
    pub submitted: Unix,
    /// Where it is in its life.
    pub state: State,
    /// Tries so far, over all runs.
    pub tries: u32,
    /// Tries of the runs before the present one: those do not count against the retries of this.
    #[serde(default)]
    pub tries_before: u32,
    /// Set once a try of the present run has started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_run: bool,
    /// Tries that failed one after the other without having run for long.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub quick_failures: u32,
    /// The outcomes of earlier tries, the last ones.
    #[serde(default)]
    pub earlier: Vec<(Attempt, Outcome)>,
    /// Lines of its output that no voter had kept when the try ended that printed them.
    #[serde(default, skip_serializing_if = "no_lines")]
    pub unkept_lines: u64,
    /// The jobs and arrays that it comes after which have not succeeded yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<After>,
    /// Its place in an array, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayTask>,
    /// Times of the stages of its last start.
    #[serde(default, skip_serializing_if = "Startup::is_empty")]
    pub startup: Startup,
    /// The programs that it has had, where there were several.
    #[serde(default, skip_serializing_if = "Versions::is_empty")]
    pub versions: Versions,
}

/// The run time from which on a try's failure does not count with those before it.
const LONG_RUN: Duration = Duration::from_secs(600);
/// The pause before the third try, when the two before it have failed quickly.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest that a try waits.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Earlier tries that are kept.
const EARLIER_MAX: usize = 16;

impl Job {
    /// One that was just submitted.
    #[must_use]
    pub fn new(id: JobId, spec: JobSpec, by: String, at: Unix) -> Self {
        Self {
            id,
            spec,
            by,
            submitted: at,
            state: State::Waiting {
                why: "it was just submitted".to_owned(),
                not_before: None,
                since: Some(at),
            },
            tries: 0,
            tries_before: 0,
            has_run: false,
            quick_failures: 0,
            earlier: vec![],
            unkept_lines: 0,
            awaits: vec![],
            array: None,
            startup: Startup::default(),
            versions: Versions::default(),
        }
    }

    /// Has it begin after these alone.
    pub(crate) fn await_all(&mut self, all: Vec<After>) {
        self.awaits = all;
        if let State::Waiting { why, .. } = &mut self.state
            && !self.awaits.is_empty()
        {
            *why = After::told(&self.awaits);
        }
    }

    /// These have succeeded after which it comes.
    pub(crate) fn await_rest(&mut self, is_met: impl Fn(&After) -> bool) {
        self.awaits.retain(|it| !is_met(it));
        if let State::Waiting { why, .. } = &mut self.state {
            *why = match self.awaits.is_empty() {
                true => "those that it comes after have succeeded".to_owned(),
                false => After::told(&self.awaits),
            };
        }
    }

    /// Ends it, as it waits for one that did not succeed.
    pub(crate) fn end_unmet(&mut self, after: JobId, cause: String, at: Unix) {
        self.end(Outcome::Unmet { after, cause }, None, at);
    }

    /// The present try.
    #[must_use]
    pub const fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            State::Staging { attempt }
            | State::Running { attempt, .. }
            | State::Stopping { attempt, .. } => Some(attempt),
            State::Waiting { .. } | State::Ended { .. } => None,
        }
    }

    /// The parts of nodes that the present try has to itself.
    pub(crate) fn reserved_mut(&mut self) -> Option<&mut Vec<Reservation>> {
        match &mut self.state {
            State::Staging { attempt }
            | State::Running { attempt, .. }
            | State::Stopping { attempt, .. } => Some(&mut attempt.reserved),
            State::Waiting { .. } | State::Ended { .. } => None,
        }
    }

    /// The name by which the engines know a try: the processes and names of each try are apart from
    /// all others.
    #[must_use]
    pub fn tag(&self, attempt: u32) -> String {
        format!("{}/{}.{attempt}", self.spec.namespace, self.id)
    }

    /// Returns true once it is over.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Ended { .. })
    }

    /// The end that it came to, if it is over.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            State::Ended { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// One word for where it is.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match &self.state {
            State::Waiting { .. } => "waiting",
            State::Staging { .. } => "staging",
            State::Running { .. } => "running",
            State::Stopping { updates: true, .. } => "updating",
            State::Stopping { .. } => "stopping",
            State::Ended { outcome, .. } => match outcome {
                Outcome::Succeeded => "succeeded",
                Outcome::Failed { .. }
                | Outcome::TimedOut { .. }
                | Outcome::Idle { .. }
                | Outcome::OutOfMemory { .. } => "failed",
                Outcome::Stopped { .. } | Outcome::Replaced { .. } => "stopped",
                Outcome::Cancelled { .. } | Outcome::Unmet { .. } => "cancelled",
                Outcome::Refused { .. } => "refused",
                Outcome::Lost { .. } => "lost",
            },
        }
    }

    /// Takes the job to its next state.
    ///
    /// # Errors
    /// The event cannot be; the job stays as it is.
    pub fn apply(&mut self, event: Event, at: Unix) -> Result<(), Unfit> {
        let job = self.id;
        if let State::Ended {
            outcome, attempt, ..
        } = &self.state
        {
            let Event::Retry { by } = event else {
                let outcome = outcome.to_string();
                return Err(Unfit::Over { job, outcome });
            };
            if let Some(attempt) = attempt.clone() {
                let outcome = outcome.clone();
                self.remember(attempt, outcome);
            }
            self.tries_before = self.tries;
            self.has_run = false;
            self.quick_failures = 0;
            self.begin_run(at);
            self.state = State::Waiting {
                why: format!("it is to be run again, by {by}"),
                not_before: None,
                since: Some(at),
            };
            return Ok(());
        }
        let disorder = |state, event| Unfit::Disorder { job, state, event };
        match event {
            Event::Held { why } => match &mut self.state {
                State::Waiting { why: known, .. } => *known = why,
                _ => return Err(disorder(self.word(), "waiting")),
            },
            Event::Assigned {
                node,
                boot,
                reserved,
            } => {
                let State::Waiting { since, .. } = self.state else {
                    return Err(disorder(self.word(), "given a node"));
                };
                self.tries += 1;
                let queued = at.since(since.unwrap_or(self.submitted)).as_millis() as u64;
                self.startup = Startup::new(self.tries);
                self.startup.tell(&node, [(StartStage::Queued, queued)]);
                let attempt = Attempt {
                    number: self.tries,
                    node,
                    boot,
                    since: at,
                    held_since: None,
                    reserved,
                };
                self.state = State::Staging { attempt };
            }
            Event::Prepared {
                attempt,
                node,
                times,
                ..
            } => {
                self.own_attempt(attempt)?;
                self.startup.tell(&node, times);
            }
            Event::Started { attempt, pid } => {
                let own = self.own_attempt(attempt)?;
                self.has_run = true;
                match self.state {
                    State::Staging { .. } => {
                        self.state = State::Running {
                            attempt: own,
                            since: at,
                            pid,
                        };
                    }
                    // It was stopped while it started.
                    State::Stopping { .. } => {}
                    _ => return Err(disorder(self.word(), "started")),
                }
            }
            Event::Over { attempt, outcome } => {
                let own = self.own_attempt(attempt)?;
                self.end_attempt(own, outcome, at);
            }
            Event::Extended { attempt, more } => {
                self.own_attempt(attempt)?;
                let State::Running { attempt, .. } = &mut self.state else {
                    return Err(disorder(self.word(), "extended"));
                };
                attempt.reserved.extend(more);
            }
            Event::Unkept { attempt, lines } => {
                self.own_attempt(attempt)?;
                self.unkept_lines += lines;
            }
            Event::Stop { by, in_order } => {
                self.note_work(at);
                match &mut self.state {
                    State::Waiting { .. } => {
                        let outcome = Outcome::Cancelled { by };
                        self.end(outcome, None, at);
                    }
                    State::Staging { attempt } | State::Running { attempt, .. } => {
                        self.state = State::Stopping {
                            attempt: attempt.clone(),
                            by,
                            in_order,
                            since: at,
                            updates: false,
                        };
                    }
                    // Who has lost patience may have it killed; and no other version begins then.
                    State::Stopping {
                        in_order: gently,
                        updates,
                        by: who,
                        ..
                    } => {
                        *gently &= in_order;
                        if std::mem::replace(updates, false) {
                            *who = by;
                        }
                    }
                    State::Ended { .. } => {}
                }
            }
            Event::Update {
                program,
                by,
                why,
                wait_s,
            } => {
                if let Some(wait) = wait_s.filter(|it| *it > WAIT_MAX_S) {
                    return Err(Unfit::Wait(wait));
                }
                let due = wait_s.map(|wait| at.after(Duration::from_secs(wait)));
                let turn = JobTurn {
                    to: 0,
                    by,
                    why: reason(&why),
                    due,
                };
                self.update(program, turn, at)?;
            }
            Event::RollBack { to, by, why } => {
                let turn = JobTurn {
                    to: 0,
                    by,
                    why: reason(&why),
                    due: None,
                };
                self.roll_back(to, turn, at)?;
            }
            Event::TurnDue { to } => self.make_turn(to, at)?,
            Event::AtWork { attempt } => {
                self.own_attempt(attempt)?;
                self.came_to_work();
            }
            Event::Retry { .. } => {
                let state = self.word();
                return Err(Unfit::Alive { job, state });
            }
        }
        Ok(())
    }

    fn own_attempt(&self, number: u32) -> Result<Attempt, Unfit> {
        let own = self.attempt().filter(|own| own.number == number);
        own.cloned().ok_or(Unfit::Stale {
            job: self.id,
            attempt: number,
        })
    }

    fn end_attempt(&mut self, attempt: Attempt, outcome: Outcome, at: Unix) {
        // Who stopped it is the reason for its end, however its driver took that; unless it had come
        // to its end in order before it heard of that.
        let outcome = match (&self.state, outcome) {
            (_, Outcome::Succeeded) => Outcome::Succeeded,
            (
                State::Stopping {
                    by, updates: false, ..
                },
                _,
            ) => Outcome::Stopped { by: by.clone() },
            (_, outcome) => outcome,
        };
        if let Some(turn) = self.turn_after(&outcome, at) {
            return self.turn_in_place(&turn, attempt, outcome, at);
        }
        if self.turns_elsewhere(&outcome) || self.begins_anew(&outcome) {
            self.switch_if_waiting(at);
            let pause = self.pause_after(&outcome, at);
            let when = match pause {
                Duration::ZERO => String::new(),
                pause => format!(" after {} s", pause.as_secs()),
            };
            self.state = State::Waiting {
                why: format!("try {} {outcome}; it is begun anew{when}", attempt.number),
                not_before: (!pause.is_zero()).then(|| at.after(pause)),
                since: Some(at),
            };
            self.remember(attempt, outcome);
        } else {
            self.end(outcome, Some(attempt), at);
        }
    }

    /// Returns true where another try follows one that has ended so.
    fn begins_anew(&self, outcome: &Outcome) -> bool {
        let left = match &self.spec.hosts {
            None => self.tries - self.tries_before - self.versions.turns() <= self.spec.retries,
            Some(hosted) => hosted.kept,
        };
        match outcome {
            Outcome::Lost { .. } => left,
            // An actor that has never come to life would not the next time either, and whoever
            // spawns it hears why.
            Outcome::Failed { .. } | Outcome::OutOfMemory { .. } => {
                left && (self.has_run || self.spec.hosts.is_none())
            }
            _ => false,
        }
    }

    /// The pause after a try that has ended so: after the first failure none, then twice as long
    /// after each that follows quickly.
    fn pause_after(&mut self, outcome: &Outcome, at: Unix) -> Duration {
        if !matches!(
            outcome,
            Outcome::Failed { .. } | Outcome::OutOfMemory { .. }
        ) {
            return Duration::ZERO;
        }
        if let State::Running { since, .. } = self.state
            && at.since(since) >= LONG_RUN
        {
            self.quick_failures = 0;
        }
        self.quick_failures += 1;
        match self.quick_failures.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => (FIRST_PAUSE * (1 << doublings.min(16))).min(LONGEST_PAUSE),
        }
    }

    fn remember(&mut self, attempt: Attempt, outcome: Outcome) {
        self.earlier.push((attempt, outcome));
        if self.earlier.len() > EARLIER_MAX {
            self.earlier.remove(0);
        }
    }

    fn end(&mut self, outcome: Outcome, attempt: Option<Attempt>, at: Unix) {
        self.state = State::Ended {
            outcome,
            at,
            attempt,
        };
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn no_lines(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests;
