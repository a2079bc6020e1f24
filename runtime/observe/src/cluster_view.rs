//! The picture of a whole system, put together from looks at its nodes.

mod flows;
mod look;
mod numbers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use odeon::inspect::ProcessKind;
use odeon::telemetry::Labels;
use odeon::{ActorId, ProcessId, Waiting};
use odeon_diagnosis::Detector;
use serde::{Deserialize, Serialize};

use self::flows::JobFlows;
pub(crate) use self::flows::since_1970;
use self::look::Heard;
pub use self::numbers::{Recorded, Total};
use self::numbers::{RecordedNumbers, Totals};
use crate::SYSTEM_JOB;
use crate::actor::{Actor, Actors, End};
use crate::bounds::{AWAITED_FOR, ENDED_PROCESSES_MAX, MAILBOX_FULL};
use crate::date::Date;
use crate::detectors::rules::OF_MOMENTS;
use crate::detectors::{Detectors, Finding};
use crate::event::{Event, EventKind, Events, Severity, Subject};
use crate::node::{Node, Process};
use crate::past::Past;
use crate::problems::{PastProblem, Problems, past_of};
use crate::spans::{Spans, Whose};
use crate::waits::{Wait, Waits};

/// Everything that is seen, and remembered, of a system.
#[derive(Debug, Default)]
pub struct ClusterView {
    seq: u64,
    ticked: Date,
    nodes: BTreeMap<String, Node>,
    processes: BTreeMap<ProcessId, Process>,
    actors: Actors,
    names: BTreeMap<String, Vec<(ActorId, String)>>,
    waits: HashMap<ProcessId, Vec<Wait>>,
    all_waits: Waits,
    spans: Spans,
    events: Events,
    detectors: Detectors,
    problems: Problems<Self>,
    totals: Totals,
    recorded: RecordedNumbers,
    flow_ranks: JobFlows,
    /// Copies of blobs that have ended of late.
    copies: VecDeque<Copied>,
    jobs_waiting: Vec<WaitingJob>,
    disks_low: Vec<LowDisk>,
    nodes_refused: Vec<RefusedNode>,
    /// Spans lost of late, by process.
    lost: VecDeque<(Date, ProcessId, u64)>,
    last_look: HashMap<ProcessId, Date>,
    /// The place up to which things that processes number were heard.
    heard: HashMap<ProcessId, Heard>,
    /// Processes in the order in which they ended.
    ended: VecDeque<ProcessId>,
    /// When it went on from what another has seen, until the actors of that time are not awaited.
    recalled: Option<Date>,
    missed: Missed,
}

/// Counts of what was lost before it was seen, beside spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// News that were overwritten.
    pub news: u64,
    /// Recorded numbers that were overwritten, or are of more series than are kept.
    pub points: u64,
}

/// The time for which losses count as of late.
const LATELY: Duration = Duration::from_secs(60);

impl ClusterView {
    /// Counts up with each look that was taken in.
    #[must_use]
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// When it was last worked out what follows from what is seen.
    #[must_use]
    pub const fn ticked(&self) -> Date {
        self.ticked
    }

    /// The nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// One node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// The processes, those that have ended too.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// One process.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(&id)
    }

    /// The actors, those that have ended too.
    #[must_use]
    pub const fn actors(&self) -> &Actors {
        &self.actors
    }

    /// The waits: who waits for whom.
    #[must_use]
    pub const fn waits(&self) -> &Waits {
        &self.all_waits
    }

    /// The spans that were seen.
    #[must_use]
    pub const fn spans(&self) -> &Spans {
        &self.spans
    }

    /// The events, in one stream.
    #[must_use]
    pub const fn events(&self) -> &Events {
        &self.events
    }

    /// All that is wrong as of the last tick, the worst first.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        self.problems.findings()
    }

    /// Problems that are over, the newest first: those of the events that are kept.
    pub fn past_problems(&self) -> impl Iterator<Item = PastProblem> {
        let mut passing: Vec<PastProblem> = self.problems.passing().collect();
        passing.sort_by_key(|it| Reverse(it.ended));
        let over = self.events.iter().rev().filter_map(past_of);
        passing.into_iter().chain(over)
    }

    /// n of "one trace in n is kept", over all processes.
    #[must_use]
    pub fn sampled_one_in(&self) -> f64 {
        let counts = self.processes.values().map(|process| process.spans);
        let (all, kept) = counts.fold((0, 0), |(all, kept), it| {
            (all + it.traces, kept + it.traces_kept)
        });
        if kept == 0 {
            1.0
        } else {
            all as f64 / kept as f64
        }
    }

    /// Spans that were lost before anybody saw them, over all.
    #[must_use]
    pub fn spans_lost(&self) -> u64 {
        self.processes
            .values()
            .map(|process| process.spans_lost)
            .sum()
    }

    /// Counts of what else was lost before it was seen.
    #[must_use]
    pub const fn missed(&self) -> Missed {
        self.missed
    }

    /// Copies of blobs that have ended of late, oldest first.
    pub(crate) fn copies(&self) -> impl Iterator<Item = &Copied> {
        self.copies.iter()
    }

    /// The largest error that dates may have.
    #[must_use]
    pub fn clock_error(&self) -> Option<Duration> {
        let errors = self.nodes.values().filter_map(|node| Some(node.clock?.1));
        errors.max()
    }

    /// Spans lost of late, and by whom.
    #[must_use]
    pub fn lost_lately(&self, now: Date) -> (u64, Vec<ProcessId>) {
        let late = self.lost.iter().filter(|(at, ..)| now.since(*at) < LATELY);
        let late: Vec<_> = late.collect();
        let mut processes: Vec<_> = late.iter().map(|(_, process, _)| *process).collect();
        processes.sort_unstable();
        processes.dedup();
        (late.iter().map(|(.., lost)| lost).sum(), processes)
    }

    /// The name of an actor for people.
    #[must_use]
    pub fn title_of(&self, id: ActorId) -> String {
        match self.actors.get(id) {
            Some(actor) => actor.title(),
            None if id.is_root() => self.process_title(id.home),
            None => format!("actor {id}"),
        }
    }

    /// The name of a process for people.
    #[must_use]
    pub fn process_title(&self, id: ProcessId) -> String {
        let Some(process) = self.processes.get(&id) else {
            return format!("process {id}");
        };
        let pid = process
            .pid
            .map_or(String::new(), |pid| format!(" (pid {pid})"));
        match process.kind {
            ProcessKind::Node => format!("node {}{pid}", process.node),
            ProcessKind::Driver => format!("driver of {}{pid}", process.job),
            ProcessKind::Worker => match process.only.and_then(|id| self.actors.get(id)) {
                Some(actor) => format!("{}{pid}", actor.title()),
                None => format!("worker of {}{pid}", process.job),
            },
        }
    }

    /// The job of a process, as it is called where it runs: `team/j17.2`.
    #[must_use]
    pub fn job_of(&self, process: ProcessId) -> Option<&str> {
        let job = &self.processes.get(&process)?.job;
        (!job.is_empty()).then_some(job)
    }

    /// Whose work the spans of a process are.
    fn whose(&self, process: ProcessId) -> Whose {
        match self.job_of(process) {
            Some(SYSTEM_JOB) => Whose::System,
            _ => Whose::Job,
        }
    }

    /// The job of those who wait for room: of the process that wants them. A node knows no more of
    /// some than whose quota they are under.
    #[must_use]
    pub fn job_waiting<'a>(&'a self, waiting: &'a Waiting) -> &'a str {
        let wanted = waiting.actors.first();
        let job = wanted.and_then(|actor| self.job_of(actor.home));
        job.unwrap_or(&waiting.job)
    }

    /// The supervisors of an actor, the topmost first, then itself.
    #[must_use]
    pub fn lineage(&self, id: ActorId) -> Vec<ActorId> {
        let mut line = vec![id];
        let mut at = id;
        while let Some(actor) = self.actors.get(at) {
            at = actor.view.parent;
            if line.contains(&at) {
                break;
            }
            line.push(at);
        }
        line.reverse();
        line
    }

    pub(crate) fn take_over(&mut self, past: Past, now: Date) {
        self.problems.recall(past.events.iter(), now);
        self.events.recall(past.events);
        self.actors.recall(past.actors, now);
        for (process, news) in past.heard {
            self.heard.entry(process).or_default().news = news;
        }
        self.recalled = Some(now);
    }

    /// The place up to which the news of processes that go on were heard: the number of the next.
    pub(crate) fn heard(&self) -> Vec<(ProcessId, u64)> {
        let living = self.processes.values().filter(|it| it.ended.is_none());
        let next = |it: &Process| self.heard.get(&it.id).map_or(0, |heard| heard.news);
        living.map(|it| (it.id, next(it))).collect()
    }

    /// Adds an event, with the name of what it is about: whoever reads it may not know that any more.
    fn put(&mut self, mut event: Event) {
        event.name = match &event.subject {
            Some(Subject::Actor(id)) => self.actors.get(*id).map(Actor::title),
            Some(Subject::Process(id)) => self.process(*id).map(|it| self.process_title(it.id)),
            _ => None,
        };
        self.events.tell(event);
    }

    fn tell(
        &mut self,
        kind: EventKind,
        severity: Severity,
        at: Date,
        subject: Option<Subject>,
        sentence: String,
    ) {
        self.put(Event {
            seq: 0,
            at,
            kind,
            severity,
            subject,
            name: None,
            rule: None,
            sentence,
            chain: vec![],
            since: None,
        });
    }

    /// Something has happened that whoever observes knows from elsewhere; its number is given here.
    pub fn note(&mut self, event: Event) {
        self.seq += 1;
        self.put(event);
    }

    /// These jobs wait for their place, the first in line first, and no others, as whoever observes knows
    /// from elsewhere.
    pub fn jobs_waiting(&mut self, jobs: Vec<WaitingJob>) {
        self.jobs_waiting = jobs;
    }

    /// Jobs that wait for their place.
    #[must_use]
    pub fn waiting_jobs(&self) -> &[WaitingJob] {
        &self.jobs_waiting
    }

    /// The disks of these nodes are nearly full, and no others, as whoever observes knows from elsewhere.
    pub fn disks_low(&mut self, disks: Vec<LowDisk>) {
        self.disks_low = disks;
    }

    /// Nothing is placed on these nodes, and no others, as whoever observes knows from elsewhere.
    pub fn nodes_refused(&mut self, nodes: Vec<RefusedNode>) {
        self.nodes_refused = nodes;
    }

    /// Nodes that nothing is placed on.
    #[must_use]
    pub fn refused_nodes(&self) -> &[RefusedNode] {
        &self.nodes_refused
    }

    /// Nodes whose disk is nearly full.
    #[must_use]
    pub fn low_disks(&self) -> &[LowDisk] {
        &self.disks_low
    }

    /// A node is known to be gone; `lost` unless it left in order.
    pub fn node_gone(&mut self, name: &str, now: Date, lost: bool) {
        let Some(node) = self.nodes.get_mut(name).filter(|node| node.gone.is_none()) else {
            return;
        };
        node.gone = Some(now);
        self.seq += 1;
        self.actors.begin();
        self.tell(
            EventKind::Node,
            Severity::Error,
            now,
            Some(Subject::Node(name.to_owned())),
            format!("node {name} is gone"),
        );
        let own = self
            .processes
            .values()
            .filter(|it| it.node == name && it.ended.is_none());
        for id in own.map(|it| it.id).collect::<Vec<_>>() {
            if let Some(process) = self.processes.get_mut(&id).filter(|_| lost) {
                process.lost = Some(format!("its node {name} was lost"));
            }
            self.process_gone(id, now);
        }
    }

    /// A node is not part of the system any more.
    pub fn forget_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.names.remove(name);
    }

    /// Returns true where the observer from which this one goes on has told of what began then.
    fn was_told(&self, kind: EventKind, of: &Subject, began: Date) -> bool {
        let is = |it: &Event| it.kind == kind && it.subject.as_ref() == Some(of) && it.at >= began;
        self.recalled.is_some() && self.events.iter().any(is)
    }

    /// Returns true where the observer from which this one goes on has told of such a finding,
    /// which then lasts.
    fn has_lasted(&self, found: &Finding) -> bool {
        let subject = found.who.first();
        let rule = Some(found.cause.rule);
        let from = OF_MOMENTS
            .contains(&found.cause.rule)
            .then_some(found.since);
        let told = |it: &&Event| {
            let same = it.rule.as_deref() == rule && it.subject.as_ref() == subject;
            same && from.is_none_or(|from| it.at >= from)
        };
        let last = || self.events.iter().rfind(told);
        self.recalled.is_some() && last().is_some_and(|it| it.since.is_none())
    }

    /// Tells of a process that it has come or gone.
    fn tell_of(&mut self, process: ProcessId, kind: EventKind, what: &str, at: Date) {
        let sentence = format!("{} {what}", self.process_title(process));
        self.put(Event {
            seq: 0,
            at,
            kind,
            severity: Severity::Info,
            subject: Some(Subject::Process(process)),
            name: None,
            rule: None,
            sentence,
            chain: vec![],
            since: None,
        });
    }

    fn process_gone(&mut self, id: ProcessId, now: Date) {
        let ended = self.processes.get_mut(&id);
        let ended = ended.filter(|process| process.ended.is_none());
        if let Some(process) = ended {
            process.ended = Some(now);
            self.ended.push_back(id);
            if process.kind != ProcessKind::Node {
                self.tell_of(id, EventKind::Stopped, "has ended", now);
            }
        }
        self.forget_flows(id);
        self.waits.remove(&id);
        self.spans.cut(id, self.whose(id), now);
        let lost = self.process(id).and_then(|it| it.lost.clone());
        let end = match &lost {
            Some(why) => End::Lost(why),
            None => End::Stopped("its process has ended"),
        };
        for actor in self.actors.of_process(id) {
            self.actors.gone(actor, id, now, end);
        }
    }

    /// Works out what follows from all that was taken in: states, rates, findings.
    pub fn tick(&mut self, now: Date) {
        self.seq += 1;
        self.ticked = now;
        self.actors.begin();
        self.all_waits = Waits::new(self.waits.values().flatten().cloned());
        let waits = &self.all_waits;
        self.actors.settle(now, |id| !waits.of(id).is_empty());
        self.note_mailboxes(now);
        self.sample(now);
        let since = self.recalled.map(|recalled| now.since(recalled));
        if since.is_some_and(|passed| passed >= AWAITED_FOR) {
            self.recalled = None;
            self.actors.give_up();
        }
        while self.ended.len() > ENDED_PROCESSES_MAX {
            let first = self.ended.pop_front();
            let ended = |id: &ProcessId| self.process(*id).is_none_or(|it| it.ended.is_some());
            if let Some(id) = first.filter(ended) {
                self.processes.remove(&id);
                self.last_look.remove(&id);
                self.heard.remove(&id);
            }
        }
        while self
            .lost
            .front()
            .is_some_and(|(at, ..)| now.since(*at) >= LATELY)
        {
            self.lost.pop_front();
        }
        self.detect(now);
    }

    /// Has the detectors look, and tells what begins and what is over.
    fn detect(&mut self, now: Date) {
        let mut detectors = std::mem::take(&mut self.detectors);
        let found = detectors.observe(self, now);
        self.detectors = detectors;
        let mut problems = std::mem::take(&mut self.problems);
        let events = problems.note(found, now, |finding| self.has_lasted(finding));
        self.problems = problems;
        for event in events {
            self.put(event);
        }
    }

    fn note_mailboxes(&mut self, now: Date) {
        let full = |fill: Option<f64>| fill.is_some_and(|fill| fill >= MAILBOX_FULL);
        let changed: Vec<_> = self
            .actors
            .iter()
            .filter(|row| full(row.fill()) != row.full_since.is_some())
            .map(Actor::id)
            .collect();
        for id in changed {
            if let Some(row) = self.actors.get_mut(id) {
                row.full_since = match row.full_since {
                    None => Some(now),
                    Some(_) => None,
                };
            }
        }
    }
}

/// A job that waits for its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingJob {
    /// Its number, such as `j17`.
    pub job: String,
    /// Since when it waits.
    pub since: Date,
    /// Why, in words.
    pub why: String,
}

/// A node whose disk is nearly full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LowDisk {
    /// Which.
    pub node: String,
    /// Since when.
    pub since: Date,
    /// The room that is left, in words.
    pub why: String,
}

/// A node that nothing is placed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedNode {
    /// Which.
    pub node: String,
    /// Since when.
    pub since: Date,
    /// The name of whoever wants that, and why, in words.
    pub why: String,
}

/// A blob that was copied to another node.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    pub(crate) blob: String,
    /// The process that it was copied to.
    pub(crate) to: ProcessId,
    pub(crate) at: Date,
    pub(crate) took: Duration,
}

/// Which blob a copy is of: its owner's process, and its number there.
pub(crate) fn blob_of(labels: &Labels) -> String {
    let text = |name: &str| {
        let label = labels.iter().find(|(it, _)| it == name);
        label.map_or_else(String::new, |(_, label)| label.to_string())
    };
    format!("{}.{}", text("owner"), text("blob"))
}
