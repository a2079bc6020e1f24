//! Versions of a job: the programs that it goes over to, and back from, while it keeps its places.
//!
//! ```text
//!            update, roll back             its processes are gone
//!  Running ─────────────────────> Updating ──────────────────────> Staging, on the same places
//!     │ an update that waits is made with the next restart, or when it is due
//!     └ a version that fails before it was at work goes back to the one before, in the same way
//! ```
//!
//! [`JobSpec`] holds the program of the present version, which is that of the present try: it changes in the moment in
//! which another try begins, and no other.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use odeon_artifacts::Digest;
use serde::{Deserialize, Serialize};

use super::{Attempt, Job, JobSpec, Outcome, State, Unfit};
use crate::environment::EnvironmentSpec;
use crate::startup::{StartStage, Startup};
use crate::unix::Unix;

/// The part of a job that a version is: what runs, and not where, for whom and for how long.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The files that it consists of, the executable among them.
    pub bundle: Digest,
    /// Arguments of the executable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Variables, whose values are shown nowhere.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Links in its folder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, String>,
    /// The environment that its processes run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentSpec>,
}

/// Without the values of variables, which may be secrets.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("bundle", &self.bundle)
            .field("args", &self.args)
            .field("env", &self.env.keys())
            .field("links", &self.links)
            .field("environment", &self.environment)
            .finish()
    }
}

impl Program {
    /// That of a job.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        Self {
            bundle: spec.bundle,
            args: spec.args.clone(),
            env: spec.env.clone(),
            links: spec.links.clone(),
            environment: spec.environment.clone(),
        }
    }

    /// Puts it in the place of the program of a job.
    pub(crate) fn put_into(self, spec: &mut JobSpec) {
        let Self {
            bundle,
            args,
            env,
            links,
            environment,
        } = self;
        (spec.bundle, spec.args, spec.env) = (bundle, args, env);
        (spec.links, spec.environment) = (links, environment);
    }
}

/// A program that a job has, had, or is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its number among those of its job, from 1.
    pub number: u32,
    /// The program.
    pub program: Program,
    /// The name of whoever wanted it.
    pub by: String,
    /// When.
    pub at: Unix,
    /// Why, in words; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The version whose place it has taken, to which it goes back; none for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
    /// When it became the present one, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Unix>,
    /// Its standing.
    pub state: VersionState,
}

/// The standing of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum VersionState {
    /// No try of it has begun.
    Waiting,
    /// None of its tries has come to work.
    Starting,
    /// A try of it has come to work.
    AtWork,
    /// It was given up.
    Failed {
        /// Why, in words.
        why: String,
    },
}

/// The version that a job goes over to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTurn {
    /// Its number.
    pub to: u32,
    /// The name of whoever wants that.
    pub by: String,
    /// Why, in words; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// When it is made at the latest; none where it is made at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Unix>,
}

/// The versions of a job. One that was never updated has none written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The number of the one that the job has.
    present: u32,
    /// The last of them, in their order.
    all: Vec<Version>,
    /// The number of the newest.
    last: u32,
    /// The version that it is about to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<JobTurn>,
    /// Tries of the present run that were begun to go over to a version: those are none of its retries.
    #[serde(default)]
    turns: u32,
}

/// Versions that are kept.
pub const VERSIONS_MAX: usize = 10;
/// The exit code by which a program asks for the version before it.
pub const ROLL_BACK_CODE: i32 = 85;
/// The longest time that an update may wait, in seconds: a week.
pub const WAIT_MAX_S: u64 = 7 * 86_400;
/// The run time after which a version counts as one that is at work, whatever it says.
const AT_WORK_AFTER: Duration = Duration::from_secs(600);

impl Versions {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Those that are known, in their order; none where there was never a second one.
    #[must_use]
    pub fn all(&self) -> &[Version] {
        &self.all
    }

    /// The version that it is about to have.
    #[must_use]
    pub const fn next(&self) -> Option<&JobTurn> {
        self.next.as_ref()
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Version> {
        self.all.iter().find(|it| it.number == number)
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Version> {
        self.all.iter_mut().find(|it| it.number == number)
    }

    /// Tries of the present run that are none of its retries.
    pub(super) const fn turns(&self) -> u32 {
        self.turns
    }

    /// The bundles of those that it could have, beside the present.
    pub(crate) fn bundles(&self) -> impl Iterator<Item = Digest> + '_ {
        self.all.iter().map(|it| it.program.bundle)
    }

    /// The one that it has, where several are known.
    fn present(&self) -> Option<&Version> {
        self.get(self.present)
    }

    /// The one that it goes back to.
    fn before(&self) -> Option<u32> {
        let before = self.present()?.before?;
        self.get(before).map(|it| it.number)
    }

    /// Forgets the oldest beyond those that are kept; never one that is needed.
    fn forget_old(&mut self) {
        let needed = [
            Some(self.present),
            self.before(),
            self.next.as_ref().map(|it| it.to),
        ];
        let too_many = |it: &Self| it.all.len() > VERSIONS_MAX;
        while too_many(self)
            && let Some(oldest) = self
                .all
                .iter()
                .position(|it| !needed.contains(&Some(it.number)))
        {
            self.all.remove(oldest);
        }
    }

    /// Forgets one that was to come and has never begun.
    fn drop_next(&mut self) {
        let Some(next) = self.next.take() else { return };
        self.all
            .retain(|it| it.number != next.to || it.state != VersionState::Waiting);
    }
}

/// The standing of versions before an event, so that it is told what has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    present: u32,
    next: Option<(u32, Option<Unix>)>,
    is_at_work: bool,
}

impl Standing {
    pub(crate) fn of(job: &Job) -> Self {
        let present = job.versions.present();
        Self {
            present: job.version(),
            next: job.versions.next().map(|it| (it.to, it.due)),
            is_at_work: present.is_none_or(|it| it.state == VersionState::AtWork),
        }
    }

    /// What an event has changed, for people.
    pub(crate) fn told(&self, job: &Job) -> Option<String> {
        let now = Self::of(job);
        if now == *self {
            return None;
        }
        let number = now.present;
        if number != self.present {
            let left = job.versions.get(self.present);
            let told = match left.map(|it| &it.state) {
                Some(VersionState::Failed { why }) => {
                    format!(
                        "version {} {why}; it goes back to version {number}",
                        self.present
                    )
                }
                _ => format!(
                    "version {number} takes the place of version {}",
                    self.present
                ),
            };
            return Some(match job.attempt() {
                Some(_) => format!("{told}, on the same places"),
                None => told,
            });
        }
        if now.next != self.next {
            let Some(turn) = job.versions.next() else {
                return Some("the version that waited is taken back".to_owned());
            };
            return Some(match turn.due {
                None => format!("goes over to {turn}"),
                Some(due) => format!(
                    "{turn} waits for the next restart, and comes at {due} UTC at the latest"
                ),
            });
        }
        now.is_at_work
            .then(|| format!("version {number} is at work"))
    }
}

impl fmt::Display for JobTurn {
    /// As `version 2, by ann: the loss is flat`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}, by {}", self.to, self.by)?;
        match self.why.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.why),
        }
    }
}

impl Job {
    /// The number of the version that it has.
    #[must_use]
    pub fn version(&self) -> u32 {
        match self.versions.is_empty() {
            true => 1,
            false => self.versions.present,
        }
    }

    /// When its version became the present one.
    #[must_use]
    pub fn version_since(&self) -> Unix {
        let present = self.versions.present().and_then(|it| it.since);
        present.unwrap_or(self.submitted)
    }

    /// The version that it would go back to.
    #[must_use]
    pub fn version_before(&self) -> Option<u32> {
        self.versions.before()
    }

    /// Returns true while no try of its version has come to work, so that a failure brings it back to the one before.
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        let present = self.versions.present();
        present.is_some_and(|it| it.state == VersionState::Starting)
            && self.versions.before().is_some()
    }

    /// The turn that is to be made now, since it has waited for long enough.
    #[must_use]
    pub fn turn_due(&self, now: Unix) -> Option<&JobTurn> {
        let goes_on = matches!(self.state, State::Staging { .. } | State::Running { .. });
        let turn = self.versions.next.as_ref().filter(|_| goes_on)?;
        turn.due.is_none_or(|due| due <= now).then_some(turn)
    }

    /// Takes in another program, which it goes over to at once, or waits with for a restart.
    pub(super) fn update(
        &mut self,
        program: Program,
        turn: JobTurn,
        at: Unix,
    ) -> Result<(), Unfit> {
        let job = self.id;
        self.may_turn("updated")?;
        let mut spec = self.spec.clone();
        program.clone().put_into(&mut spec);
        spec.check()?;
        let version = self
            .versions
            .next
            .as_ref()
            .map_or_else(|| self.version(), |it| it.to);
        let latest = self.versions.get(version).map(|it| &it.program);
        if latest.map_or_else(|| Program::of(&self.spec) == program, |it| *it == program) {
            return Err(Unfit::SameProgram { job, version });
        }
        if self.versions.is_empty() {
            self.versions.all.push(Version {
                number: 1,
                program: Program::of(&self.spec),
                by: self.by.clone(),
                at: self.submitted,
                why: String::new(),
                before: None,
                since: Some(self.submitted),
                state: VersionState::AtWork,
            });
            (self.versions.present, self.versions.last) = (1, 1);
        }
        self.versions.drop_next();
        self.versions.last += 1;
        let number = self.versions.last;
        self.versions.all.push(Version {
            number,
            program,
            by: turn.by.clone(),
            at,
            why: turn.why.clone(),
            before: None,
            since: None,
            state: VersionState::Waiting,
        });
        self.turn(JobTurn { to: number, ..turn }, at);
        self.versions.forget_old();
        Ok(())
    }

    /// Has it go back to a version, or to the one before; one that waits is taken back, or made at once where it is named.
    pub(super) fn roll_back(
        &mut self,
        to: Option<u32>,
        turn: JobTurn,
        at: Unix,
    ) -> Result<(), Unfit> {
        let job = self.id;
        self.may_turn("rolled back")?;
        let updates = matches!(self.state, State::Stopping { updates: true, .. });
        if to.is_none() && !updates && self.versions.next.is_some() {
            self.versions.drop_next();
            return Ok(());
        }
        let version = self.version();
        let to = match to {
            Some(to) => to,
            // It has left the present one already; to go back there is not to come forward again.
            None if updates => match self.versions.next.as_ref() {
                Some(next) if next.to < version => next.to,
                _ => version,
            },
            None => self
                .versions
                .before()
                .ok_or(Unfit::NothingBefore { job, version })?,
        };
        if self.versions.get(to).is_none() && !(self.versions.is_empty() && to == version) {
            let all = self.versions.all.iter().map(|it| it.number);
            let known = match self.versions.is_empty() {
                true => vec![version],
                false => all.collect(),
            };
            return Err(Unfit::NoVersion {
                job,
                version: to,
                known,
            });
        }
        if to == version && !updates {
            return Err(Unfit::PresentVersion { job, version });
        }
        if self.versions.next.as_ref().is_some_and(|it| it.to != to) {
            self.versions.drop_next();
        }
        self.turn(JobTurn { to, ..turn }, at);
        Ok(())
    }

    /// Begins a turn that has waited.
    pub(super) fn make_turn(&mut self, to: u32, at: Unix) -> Result<(), Unfit> {
        let (job, state) = (self.id, self.word());
        let turn = self.versions.next.take_if(|it| it.to == to);
        let turn = turn.ok_or(Unfit::Disorder {
            job,
            state,
            event: "updated",
        })?;
        self.turn(JobTurn { due: None, ..turn }, at);
        Ok(())
    }

    /// A try has come to work.
    pub(super) fn came_to_work(&mut self) {
        let present = self.versions.present;
        if let Some(version) = self.versions.get_mut(present)
            && version.state == VersionState::Starting
        {
            version.state = VersionState::AtWork;
        }
    }

    /// A try that has run for long enough has come to work, whatever it says.
    pub(super) fn note_work(&mut self, at: Unix) {
        if let State::Running { since, .. } = self.state
            && at.since(since) >= AT_WORK_AFTER
        {
            self.came_to_work();
        }
    }

    fn may_turn(&self, event: &'static str) -> Result<(), Unfit> {
        let (job, state) = (self.id, self.word());
        if self.spec.hosts.is_some() {
            return Err(Unfit::Hosts { job });
        }
        match self.state {
            State::Stopping { updates: false, .. } => Err(Unfit::Disorder { job, state, event }),
            _ => Ok(()),
        }
    }

    /// Goes over to a version, or notes that it is to.
    fn turn(&mut self, turn: JobTurn, at: Unix) {
        self.note_work(at);
        match &self.state {
            State::Waiting { .. } | State::Ended { .. } => self.switch(&turn, at),
            State::Staging { attempt } | State::Running { attempt, .. } if turn.due.is_none() => {
                self.state = State::Stopping {
                    attempt: attempt.clone(),
                    by: turn.by.clone(),
                    in_order: true,
                    since: at,
                    updates: true,
                };
                self.versions.next = Some(turn);
            }
            _ => self.versions.next = Some(turn),
        }
    }

    /// Puts a version in the place of the present one. No try of this may be there.
    fn switch(&mut self, turn: &JobTurn, at: Unix) {
        let before = self.version();
        let Some(version) = self.versions.get_mut(turn.to) else {
            return;
        };
        // Whoever goes forward can go back.
        if turn.to > before {
            version.before = Some(before);
        }
        // One that had failed is tried once more.
        if turn.to > before || matches!(version.state, VersionState::Failed { .. }) {
            version.state = VersionState::Starting;
        }
        version.since = Some(at);
        version.program.clone().put_into(&mut self.spec);
        self.versions.present = turn.to;
        self.versions.next = None;
        self.quick_failures = 0;
    }

    /// Makes a turn that waits for a restart, where it is begun anew for another reason.
    pub(super) fn switch_if_waiting(&mut self, at: Unix) {
        if let Some(turn) = self.versions.next.take() {
            self.switch(&turn, at);
        }
    }

    /// It is run again: what was begun to go over to versions counts no more.
    pub(super) fn begin_run(&mut self, at: Unix) {
        self.versions.turns = 0;
        self.switch_if_waiting(at);
    }

    /// The turn that follows from the end of a try: the one that it was ended for, the one that waits, or the way back
    /// from a version that has failed before it was at work, or that asks for it.
    pub(super) fn turn_after(&mut self, outcome: &Outcome, at: Unix) -> Option<JobTurn> {
        let updates = matches!(self.state, State::Stopping { updates: true, .. });
        self.note_work(at);
        let failed = matches!(
            outcome,
            Outcome::Failed { .. }
                | Outcome::OutOfMemory { .. }
                | Outcome::Refused { .. }
                | Outcome::Idle { .. }
        );
        let stopped = matches!(outcome, Outcome::Stopped { .. });
        let by_person = matches!(self.state, State::Stopping { updates: false, .. });
        if by_person || !(failed || stopped && updates) {
            return None;
        }
        if let Some(turn) = self.versions.next.take() {
            return Some(turn);
        }
        let asks =
            matches!(outcome, Outcome::Failed { code: Some(code), .. } if *code == ROLL_BACK_CODE);
        let to = self.versions.before()?;
        if !self.is_on_trial() && !asks {
            return None;
        }
        let why = match asks {
            true => format!("asks for the version before: {outcome}"),
            false => format!("was not at work yet and {outcome}"),
        };
        let present = self.versions.present;
        if let Some(version) = self.versions.get_mut(present) {
            version.state = VersionState::Failed { why: why.clone() };
        }
        Some(JobTurn {
            to,
            by: "the cluster".to_owned(),
            why,
            due: None,
        })
    }

    /// Takes that a version is to come whose turn would be made now, were the places of the job not lost: it waits for
    /// others then, also where it has no retries.
    pub(super) fn turns_elsewhere(&mut self, outcome: &Outcome) -> bool {
        let by_person = matches!(self.state, State::Stopping { updates: false, .. });
        let turns =
            matches!(outcome, Outcome::Lost { .. }) && !by_person && self.versions.next.is_some();
        // The number of the try is used up, and it is none of its retries.
        self.versions.turns += u32::from(turns);
        turns
    }

    /// Begins a try of another version where the last one was: nobody else has had its places meanwhile.
    pub(super) fn turn_in_place(
        &mut self,
        turn: &JobTurn,
        attempt: Attempt,
        outcome: Outcome,
        at: Unix,
    ) {
        self.switch(turn, at);
        self.tries += 1;
        self.versions.turns += 1;
        self.startup = Startup::new(self.tries);
        self.startup.tell(&attempt.node, [(StartStage::Queued, 0)]);
        let next = Attempt {
            number: self.tries,
            since: at,
            held_since: Some(attempt.held_since()),
            ..attempt.clone()
        };
        let outcome = match outcome {
            Outcome::Stopped { .. } => Outcome::Replaced { version: turn.to },
            outcome => outcome,
        };
        self.remember(attempt, outcome);
        self.state = State::Staging { attempt: next };
    }

    /// A try that was to begin where the last one was has lost some of its places: it waits for others, in its old turn.
    pub(crate) fn give_up_places(&mut self, at: Unix) {
        // The number of the try is used up.
        self.versions.turns += 1;
        self.state = State::Waiting {
            why: format!(
                "version {} begins on other places: a node that it had is gone",
                self.version()
            ),
            not_before: None,
            since: Some(at),
        };
    }
}

/// Numbers of versions, for people.
pub(super) fn numbers(known: &[u32]) -> String {
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    known.join(", ")
}

#[cfg(test)]
mod tests;
