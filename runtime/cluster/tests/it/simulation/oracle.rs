//! Invariants that hold whatever happens: the oracle sees every commit and every driver.

use std::collections::{BTreeMap, BTreeSet};

use odeon_cluster::fact::{Command, Fact, Refusal, Written};
use odeon_cluster::job::{self, Event, Job, JobId, State};
use odeon_cluster::tables::{NodeRow, NodeState, Tables};

use super::world::CPUS;

/// A try: a job and the number of the try.
pub(crate) type Attempt = (JobId, u32);

/// The longest time that a node that is connected may run what is over: it asks every second, a
/// voter that it asks may be some seconds behind, and a kill takes a moment.
const SETTLED_MS: u64 = 7_000;
/// The longest time that a node that is connected may be taken for lost: what the leader has seen
/// is written soon.
const SEEN_MS: u64 = 3_000;

/// All that the rules are checked with: the tables as they should be, and the drivers that run.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// The tables after all that is committed.
    pub(crate) truth: Tables,
    /// The result of each command.
    answers: BTreeMap<u64, Result<Written, Refusal>>,
    /// Jobs that were accepted.
    accepted: BTreeSet<JobId>,
    /// Jobs whose stop is in the catalog.
    stopped: BTreeSet<JobId>,
    /// Drivers that run: where, and since when the catalog knows that they should not.
    running: BTreeMap<Attempt, (usize, Option<u64>)>,
    begun: BTreeSet<Attempt>,
    pub(crate) tally: Tally,
}

/// Counts of what happened, to see that the story is worth telling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) commits: u64,
    pub(crate) jobs: u64,
    pub(crate) drivers: u64,
    /// Commands that were written twice.
    pub(crate) repeated: u64,
    /// Commands that were refused.
    pub(crate) refused: u64,
    /// Nodes that were taken for lost.
    pub(crate) lost: u64,
    /// Tries that began while an older one of the same job ran on a node that was cut off.
    pub(crate) overlaps: u64,
    /// Tries that were over when the node asked.
    pub(crate) swept: u64,
    pub(crate) elections: u64,
    /// Commands of a leader whose clock was behind the catalog's.
    pub(crate) backwards: u64,
    /// Tries of another version on the places of the last one.
    pub(crate) turns: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.jobs += other.jobs;
        self.drivers += other.drivers;
        self.repeated += other.repeated;
        self.refused += other.refused;
        self.lost += other.lost;
        self.overlaps += other.overlaps;
        self.swept += other.swept;
        self.elections += other.elections;
        self.backwards += other.backwards;
        self.turns += other.turns;
    }

    /// The kinds of events that never happened.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let all = [
            (self.repeated, "repeated commands"),
            (self.refused, "refused commands"),
            (self.lost, "lost nodes"),
            (self.overlaps, "overlapping tries"),
            (self.swept, "swept tries"),
            (self.elections, "elections"),
            (self.backwards, "clocks that are behind"),
            (self.turns, "versions on the places of others"),
        ];
        let none = all.iter().filter(|(count, _)| *count == 0);
        none.map(|(_, what)| *what).collect()
    }
}

impl Oracle {
    /// A command is committed. `connected` says since when each node has been connected to the leader.
    pub(crate) fn commit(
        &mut self,
        command: &Command,
        now: u64,
        names: &[String],
        connected: &[Option<u64>],
    ) -> Result<Written, Refusal> {
        self.tally.commits += 1;
        let before = self.truth.jobs.len();
        let clock = self.truth.now;
        let held = match &command.fact {
            Fact::Job { job, .. } => self.truth.jobs.get(job).and_then(Job::attempt).cloned(),
            _ => None,
        };
        self.tally.backwards += u64::from(command.at < clock);
        let outcome = self.truth.apply(command.clone());
        if let Some(known) = self.answers.get(&command.id) {
            self.tally.repeated += 1;
            assert_eq!(&outcome, known, "a command that came again: {command:?}");
            assert_eq!(self.truth.jobs.len(), before, "{command:?}");
            return outcome;
        }
        assert!(
            self.truth.now >= clock,
            "the catalog's clock goes back: {command:?}"
        );
        self.answers.insert(command.id, outcome.clone());
        if outcome.is_err() {
            self.tally.refused += 1;
            return outcome;
        }
        match (&command.fact, &outcome) {
            (Fact::JobSubmitted { .. }, Ok(Written::Job(id))) => {
                self.tally.jobs += 1;
                assert!(self.accepted.insert(*id), "{id} is given twice");
            }
            (Fact::NodeLost { node, boot, .. }, _) => {
                self.tally.lost += 1;
                let which = names.iter().position(|name| name == node);
                let since = which.and_then(|which| connected[which]);
                let row = &self.truth.nodes[node];
                assert_eq!(row.spec.boot, *boot, "{node} has begun another life");
                let fair = since.is_none_or(|since| now < since + SEEN_MS);
                assert!(
                    fair,
                    "{node} is lost at {now} and connected since {since:?}"
                );
            }
            (Fact::Job { job, event }, _) => {
                self.happened(*job, event);
                self.kept(*job, event, held.as_ref());
            }
            _ => {}
        }
        for id in &self.accepted {
            assert!(self.truth.jobs.contains_key(id), "{id} is forgotten");
        }
        outcome
    }

    fn happened(&mut self, id: JobId, event: &Event) {
        match event {
            Event::Assigned { node, boot, .. } => {
                let job = &self.truth.jobs[&id];
                assert!(
                    !self.stopped.contains(&id),
                    "{id} is stopped and begins anew"
                );
                let row = &self.truth.nodes[node];
                assert!(
                    row.takes_jobs() && row.spec.boot == *boot,
                    "{id} goes to {row:?}"
                );
                let wanted = job.spec.node.as_ref();
                assert!(wanted.is_none_or(|wanted| wanted == node), "{id} on {node}");
                for (node, held) in self.held() {
                    let all = u64::from(CPUS) * 1000;
                    assert!(held <= all, "{held} of {all} are reserved on {node}");
                }
                let namespace = &job.spec.namespace;
                if let Some(quota) = self.truth.namespaces.get(namespace) {
                    let jobs = self.truth.living_jobs();
                    let running = jobs.filter(|job| job.attempt().is_some());
                    let here = running.filter(|job| job.spec.namespace == *namespace);
                    let count = here.count();
                    assert!(
                        quota.running_max.is_none_or(|most| count <= most as usize),
                        "{namespace} runs {count}"
                    );
                }
            }
            Event::Stop { .. } => drop(self.stopped.insert(id)),
            Event::Retry { .. } => drop(self.stopped.remove(&id)),
            _ => {}
        }
    }

    /// A try that follows an end at once is one of another version, on the places that the last one had.
    fn kept(&mut self, id: JobId, event: &Event, held: Option<&job::Attempt>) {
        let job = &self.truth.jobs[&id];
        let (Event::Over { .. }, State::Staging { attempt }) = (event, &job.state) else {
            return;
        };
        let held = held.expect("it is about a try");
        assert!(!self.stopped.contains(&id), "{id} is stopped and goes over");
        assert_eq!(attempt.number, held.number + 1, "{job:?}");
        assert_eq!((&attempt.node, attempt.boot), (&held.node, held.boot));
        assert_eq!(attempt.reserved, held.reserved, "{job:?}");
        self.tally.turns += 1;
    }

    /// Processor time that is reserved on nodes that live, in thousandths.
    fn held(&self) -> BTreeMap<&str, u64> {
        let mut held = BTreeMap::new();
        let attempts = self.truth.living_jobs().filter_map(|job| job.attempt());
        for it in attempts.flat_map(|attempt| &attempt.reserved) {
            let row = self.truth.nodes.get(&it.node);
            if row.is_some_and(|row| row.state == NodeState::Up && row.spec.boot == it.boot) {
                *held.entry(it.node.as_str()).or_default() += it.allotment.cpu_milli;
            }
        }
        held
    }

    /// A driver begins on a node, in this life of it.
    pub(crate) fn begin(
        &mut self,
        attempt: Attempt,
        node: usize,
        now: u64,
        connected: &[Option<u64>],
    ) {
        self.tally.drivers += 1;
        assert!(self.begun.insert(attempt), "{attempt:?} begins twice");
        let others = self
            .running
            .iter()
            .filter(|(other, _)| other.0 == attempt.0);
        for (other, (place, _)) in others {
            assert_ne!(*place, node, "{attempt:?} begins beside {other:?}");
            // The older is where nobody could say that it is over.
            let older = if *other < attempt { *place } else { node };
            let since = connected[older];
            let fair = since.is_none_or(|since| now < since + SETTLED_MS);
            assert!(
                fair,
                "{attempt:?} begins on {node}, {other:?} runs on {place}"
            );
            self.tally.overlaps += 1;
        }
        self.running.insert(attempt, (node, None));
    }

    /// A driver has ended.
    pub(crate) fn end(&mut self, attempt: Attempt) {
        self.running.remove(&attempt);
    }

    /// Returns true while this driver still runs.
    pub(crate) fn runs(&self, attempt: Attempt) -> bool {
        self.running.contains_key(&attempt)
    }

    /// A job has no try in a life that is over, and nobody who is connected runs for long what is.
    pub(crate) fn look(&mut self, now: u64, connected: &[Option<u64>]) {
        for job in self.truth.living_jobs() {
            let Some(attempt) = job.attempt() else {
                continue;
            };
            let row = self.truth.nodes.get(&attempt.node);
            let lives = |row: &NodeRow| row.state == NodeState::Up && row.spec.boot == attempt.boot;
            assert!(row.is_some_and(lives), "{job:?} has a try on {row:?}");
        }
        for (attempt, (node, over)) in &mut self.running {
            if !self.truth.is_over(attempt.0, attempt.1) {
                continue;
            }
            let over = *over.get_or_insert(now);
            let Some(since) = connected[*node] else {
                continue;
            };
            let settled = over.max(since) + SETTLED_MS;
            assert!(now < settled, "{attempt:?} is over and runs on node {node}");
        }
    }

    /// All is over, and nothing runs.
    pub(crate) fn finish(&self) {
        for job in self.truth.jobs.values() {
            assert!(job.is_over(), "{job:#?}");
        }
        assert!(self.running.is_empty(), "{:?}", self.running);
        assert_eq!(self.truth.jobs.len(), self.accepted.len());
    }
}
