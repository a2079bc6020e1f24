//! The picture of a whole system, put together from looks at its nodes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use odeon::inspect::{
    ActorView, News, NewsKind, NodeSight, ProcessKind, ProcessSight, Times, WaitView,
};
use odeon::telemetry::{Label, Labels};
use odeon::trace::SpanKind;
use odeon::{ActorId, Phase, ProcessId, Timestamp, Waiting};

use crate::SYSTEM_JOB;
use crate::actor::{Actor, Actors, End};
use crate::alert::{self, Alert, Problem};
use crate::bounds::{
    AWAITED_FOR, COPIES_MAX, ENDED_PROCESSES_MAX, EPISODE, MAILBOX_FULL, SERIES_MAX,
    SERIES_POINTS_MAX,
};
use crate::date::{Date, Shift};
use crate::event::{Event, EventKind, Events, Severity, Subject};
use crate::node::{Flow, History, Node, Process, Recent};
use crate::past::Past;
use crate::series::Series;
use crate::spans::{Gap, Spans};
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
    problems: Vec<Problem>,
    /// When problems were last found, those that have passed a moment ago too.
    episodes: BTreeMap<(Alert, Vec<Subject>), Date>,
    totals: Totals,
    recorded: BTreeMap<RecordedKey, Recorded>,
    /// Copies of blobs that have ended of late.
    copies: VecDeque<Copied>,
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

/// The numbers of the next news and points of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    news: u64,
    points: u64,
}

/// Of things that a process numbers from `from` on, before which so many were lost to this look, those
/// that were not heard before, and how many were lost since.
fn unheard<T>(next: &mut u64, from: u64, lost: u64, mut told: Vec<T>) -> (Vec<T>, u64) {
    if from == 0 {
        return (told, lost);
    }
    let known = next.saturating_sub(from).min(told.len() as u64);
    let lost = match *next {
        0 => lost,
        next => from.saturating_sub(next),
    };
    *next = (*next).max(from + told.len() as u64);
    told.drain(..known as usize);
    (told, lost)
}

/// Counts of what was lost before it was seen, beside spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// News that were overwritten.
    pub news: u64,
    /// Recorded numbers that were overwritten, or are of more series than are kept.
    pub points: u64,
}

/// Numbers of the whole over time.
#[derive(Debug, Default)]
struct Totals {
    messages: Series,
    bytes: Series,
    p99_ask_ms: Series,
    deepest_mailbox: Series,
    spans: Series,
    last: Option<Sample>,
    bytes_copied: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Date,
    handled: u64,
    bytes: u64,
    spans: u64,
}

/// The key of a recorded number: its name, the actor, and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RecordedKey {
    name: String,
    actor: ActorId,
    labels: String,
}

/// A number that a program records, over time.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its name.
    pub name: String,
    /// The actor that records it.
    pub actor: ActorId,
    /// The labels that tell it apart; `step` is left out, it is the place on the axis.
    pub labels: Labels,
    /// When, at which step if it says so, and how much.
    pub points: VecDeque<(Date, Option<f64>, f64)>,
    /// Number of points so far, forgotten ones too.
    pub told: u64,
}

/// A number of the whole over time.
#[derive(Clone, Copy, Debug)]
pub struct Total<'a> {
    /// Its name in the API.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The number over time.
    pub series: &'a Series,
}

/// The part of a process's sight that counts when all processes of its node have been seen.
struct Rest {
    process: ProcessId,
    news: Vec<News>,
    gone: Vec<ActorId>,
    shift: Shift,
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

    /// The problems, as of the last tick.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The numbers that programs record about their work.
    pub fn recorded(&self) -> impl Iterator<Item = &Recorded> {
        self.recorded.values()
    }

    /// Numbers of the whole over time.
    #[must_use]
    pub fn totals(&self) -> [Total<'_>; 4] {
        let total = |name, title, unit, series| Total {
            name,
            title,
            unit,
            series,
        };
        let totals = &self.totals;
        [
            total("messages", "messages handled", "/s", &totals.messages),
            total("bytes", "bytes copied between nodes", "B/s", &totals.bytes),
            total(
                "ask_p99",
                "99th percentile of asks",
                "ms",
                &totals.p99_ask_ms,
            ),
            total(
                "mailbox",
                "deepest mailbox",
                "messages",
                &totals.deepest_mailbox,
            ),
        ]
    }

    /// Spans recorded in a second, of late.
    #[must_use]
    pub fn spans_per_s(&self) -> f64 {
        self.totals.spans.last().unwrap_or(0.0)
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

    // ---- taking in ----

    pub(crate) fn take_over(&mut self, past: Past, now: Date) {
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

    /// Takes in what a node shows. `clock` says by how many nanoseconds the node's clock is ahead of
    /// the observer's, which shows `own.0` at the date `own.1`; without it the node's own date counts.
    pub fn look(
        &mut self,
        sight: NodeSight,
        own: (Timestamp, Date),
        clock: Option<(i64, Duration)>,
    ) {
        self.seq += 1;
        self.actors.begin();
        let shift = match clock {
            Some((ahead, _)) => Shift::new(own.0, own.1).of_ahead(ahead),
            None => Shift::new(sight.at, Date(sight.unix_nanos)),
        };
        let now = shift.date(sight.at);
        let node = sight.node.clone();
        let arrives = self.note_node(&sight, shift, now, clock);
        let mut present: Vec<_> = sight.silent.clone();
        let mut after = vec![];
        for process in sight.processes {
            present.push(process.sight.process);
            after.push(self.note_process(process, &node, shift, now, arrives));
        }
        // All actors are there by now, wherever they are, and none has gone: what is told of them by
        // the processes that supervise them meets them.
        for Rest { news, shift, .. } in &mut after {
            for news in std::mem::take(news) {
                self.news(news, &node, *shift);
            }
        }
        for Rest { process, gone, .. } in after {
            for actor in gone {
                self.spans.rests(actor, process);
                let end = End::Stopped("it was stopped");
                self.actors.gone(actor, process, now, end);
            }
        }
        let known = self.processes.values();
        let left = known.filter(|it| it.node == node && it.ended.is_none());
        let left: Vec<_> = left
            .map(|it| it.id)
            .filter(|id| !present.contains(id))
            .collect();
        for process in left {
            self.process_gone(process, now);
        }
        if let Some(names) = sight.names {
            self.names.insert(node, names);
            let all = self.names.values().flatten().cloned().collect();
            self.actors.name(&all);
        }
    }

    /// Takes in a node, and returns true where it is seen for the first time.
    fn note_node(
        &mut self,
        sight: &NodeSight,
        shift: Shift,
        now: Date,
        clock: Option<(i64, Duration)>,
    ) -> bool {
        let began = shift.date(Timestamp::BEGIN).min(now);
        let fresh = self
            .nodes
            .get(&sight.node)
            .is_none_or(|node| node.gone.is_some() || node.process != sight.process);
        let subject = Subject::Node(sight.node.clone());
        if fresh && !self.was_told(EventKind::Node, &subject, began) {
            self.tell(
                EventKind::Node,
                Severity::Info,
                now,
                Some(subject),
                format!("node {} is seen", sight.node),
            );
        }
        let before = self.nodes.remove(&sight.node).filter(|_| !fresh);
        let flows = before.as_ref().map(|node| &node.sending);
        let sending = sight.links.iter().map(|link| {
            let flow = flows.and_then(|flows| flows.get(&link.peer));
            let flow = flow.map_or_else(
                || Flow::new(now, link.sent_bytes),
                |flow| flow.go_on(now, link.sent_bytes),
            );
            (link.peer, flow)
        });
        let sending = sending.collect();
        let mut history = before
            .as_ref()
            .map_or_else(History::default, |node| node.history.clone());
        let readings = sight.hardware.as_ref().map(|view| view.readings.as_slice());
        history.note(now, &sight.machine, readings.unwrap_or_default());
        let node = Node {
            name: sight.node.clone(),
            process: sight.process,
            since: before.as_ref().map_or(began, |node| node.since),
            seen: now,
            gone: None,
            links: sight.links.clone(),
            sending,
            hardware: sight.hardware.as_deref().cloned(),
            clock: clock.map(|(_, error)| {
                let ahead = i128::from(sight.unix_nanos) - i128::from(now.0);
                (i64::try_from(ahead).unwrap_or(0), error)
            }),
            machine: sight.machine.clone(),
            history,
        };
        self.nodes.insert(node.name.clone(), node);
        fresh
    }

    fn note_process(
        &mut self,
        process: ProcessSight,
        node: &str,
        node_shift: Shift,
        now: Date,
        arrives: bool,
    ) -> Rest {
        let shift = node_shift.of_ahead(process.ahead);
        let sight = process.sight;
        let id = sight.process;
        let before = self.processes.get(&id);
        let recent_asks = before.map_or_else(
            || Recent::new(now, &sight.ask_times),
            |it| it.recent_asks.clone().go_on(now, &sight.ask_times),
        );
        let mut shown = sight.actors.iter().filter(|it| it.phase != Phase::Over);
        let only = match sight.hosted {
            // One that has nothing new is not shown again.
            0 | 1 => match shown.next() {
                Some(view) => Some(view.id),
                None => before.and_then(|it| it.only),
            },
            _ => None,
        };
        let row = Process {
            id,
            only,
            node: node.to_owned(),
            pid: process.pid,
            kind: process.kind,
            job: sight.job.clone(),
            started: before.map_or_else(
                || shift.date(Timestamp::BEGIN).min(now),
                |before| before.started,
            ),
            ended: None,
            spans: sight.span_counts,
            spans_before: match before {
                Some(before) => before.spans_before,
                None if arrives => sight.span_counts.recorded,
                None => 0,
            },
            // Whoever shows itself is there.
            lost: None,
            spans_lost: before.map_or(0, |before| before.spans_lost) + sight.spans_lost,
            recent_asks,
            ask_times: sight.ask_times,
            dead_letters: sight.dead_letters,
            blob_bytes: sight.blob_bytes,
            hosted: sight.hosted,
            clock_error: process.ahead_error,
            usage: process.usage,
        };
        let is_new = before.is_none() && row.kind != ProcessKind::Node;
        let started = row.started;
        self.processes.insert(id, row);
        let told = |seen: &Self| seen.was_told(EventKind::Started, &Subject::Process(id), started);
        if is_new && !told(self) {
            self.tell_of(id, EventKind::Started, "is there", now);
        }
        if sight.anew {
            let shown: Vec<_> = sight.actors.iter().map(|view| view.id).collect();
            // What is left over is not there any more; what has not come yet comes with the next look.
            if !sight.more {
                for actor in self.actors.of_process(id) {
                    if !shown.contains(&actor) {
                        self.spans.rests(actor, id);
                        let end = End::Stopped("it is not there any more");
                        self.actors.gone(actor, id, now, end);
                    }
                }
            }
        }
        for view in sight.actors {
            self.spans.handles(&view, shift);
            self.actors
                .show(view, &sight.job, node, shift, now, arrives);
        }
        let waits = sight.waits.into_iter().map(|wait| dated(wait, shift));
        let waits: Vec<_> = waits.collect();
        self.spans.asks(id, &waits);
        self.waits.insert(id, waits);
        let looked = self.last_look.insert(id, now).unwrap_or(now);
        if sight.spans_lost > 0 {
            self.spans.miss(Gap {
                process: id,
                from: looked,
                to: now,
                lost: sight.spans_lost,
            });
            self.lost.push_back((now, id, sight.spans_lost));
        }
        let heard = self.heard.entry(id).or_default();
        let (from, lost) = (sight.news_from, sight.news_lost);
        let (news, news_lost) = unheard(&mut heard.news, from, lost, sight.news);
        let (from, lost) = (sight.points_from, sight.points_lost);
        let (points, points_lost) = unheard(&mut heard.points, from, lost, sight.points);
        self.missed.news += news_lost;
        self.missed.points += points_lost;
        for span in sight.spans {
            if span.kind == SpanKind::Copy {
                self.totals.bytes_copied += bytes_of(&span.labels);
                self.note_copy(Copied {
                    blob: blob_of(&span.labels),
                    to: id,
                    at: shift.date(span.ended),
                    took: span.ended.since(span.started),
                });
            }
            self.spans.add(span, id, shift);
        }
        self.spans.go_on(sight.going_on, id, shift);
        for point in points {
            self.record(
                point.name.into_owned(),
                point.actor,
                point.labels,
                shift.date(point.at),
                point.value,
            );
        }
        Rest {
            process: id,
            news,
            gone: sight.gone,
            shift,
        }
    }

    pub(crate) fn note_copy(&mut self, copied: Copied) {
        if self.copies.len() == COPIES_MAX {
            self.copies.pop_front();
        }
        self.copies.push_back(copied);
    }

    fn record(&mut self, name: String, actor: ActorId, labels: Labels, at: Date, value: f64) {
        let step = labels.iter().find(|(name, _)| name == "step");
        let step = step.and_then(|(_, label)| match label {
            Label::Int(value) => Some(*value as f64),
            Label::Number(value) => Some(*value),
            Label::Text(_) => None,
        });
        let labels: Labels = labels
            .into_iter()
            .filter(|(name, _)| name != "step")
            .collect();
        let text: Vec<_> = labels
            .iter()
            .map(|(name, label)| format!("{name}={label}"))
            .collect();
        let key = RecordedKey {
            name: name.clone(),
            actor,
            labels: text.join(","),
        };
        if self.recorded.len() >= SERIES_MAX && !self.recorded.contains_key(&key) {
            // The one goes that has said nothing for longest; those that go on stay.
            let last = |it: &Recorded| it.points.back().map(|(at, ..)| *at);
            let oldest = self.recorded.iter().min_by_key(|(_, it)| last(it));
            let idle = oldest.filter(|(_, it)| last(it).is_none_or(|it| at.since(it) >= LATELY));
            let Some(idle) = idle.map(|(key, _)| key.clone()) else {
                self.missed.points += 1;
                return;
            };
            self.recorded.remove(&idle);
        }
        let row = self.recorded.entry(key).or_insert_with(|| Recorded {
            name,
            actor,
            labels,
            points: VecDeque::new(),
            told: 0,
        });
        row.told += 1;
        if row.points.len() == SERIES_POINTS_MAX {
            row.points.pop_front();
        }
        row.points.push_back((at, step, value));
    }

    fn news(&mut self, news: News, node: &str, shift: Shift) {
        let at = shift.date(news.at);
        let title = match news.actor {
            Some(id) if self.actors.get(id).is_some() => self.title_of(id),
            Some(id) => format!("{} {}", news.actor_type, id.serial),
            None => match (news.process, news.device) {
                (Some(process), _) => self.process_title(process),
                (None, Some(device)) => format!("device {device} of node {node}"),
                (None, None) => String::new(),
            },
        };
        let subject = match (news.actor, news.process, news.device) {
            (Some(actor), ..) => Some(Subject::Actor(actor)),
            (None, Some(process), _) => Some(Subject::Process(process)),
            (None, None, Some(device)) => Some(Subject::Device(node.to_owned(), device)),
            (None, None, None) => Some(Subject::Node(node.to_owned())),
        };
        let (kind, severity) = match news.kind {
            NewsKind::Failed => (EventKind::Failure, Severity::Error),
            NewsKind::Restarted => (EventKind::Restart, Severity::Warning),
            NewsKind::ProcessLost => (EventKind::Failure, Severity::Error),
            NewsKind::NodeDown => (EventKind::Node, Severity::Error),
            NewsKind::Device => (EventKind::Device, Severity::Warning),
            _ => (EventKind::Node, Severity::Info),
        };
        match (news.kind, news.actor) {
            (NewsKind::Failed, Some(id)) => {
                if news.ends && self.actors.get(id).is_none() {
                    let why = news.chain.first().cloned().unwrap_or_default();
                    let view = unseen(id, &news);
                    let job = self.processes.get(&view.process);
                    let job = job.map_or_else(String::new, |process| process.job.clone());
                    self.actors.failed_unseen(view, (&job, node), at, &why);
                }
                self.actors.failed(id, news.incarnation, at, &news.chain);
            }
            (NewsKind::Restarted, Some(id)) => self.actors.begun(id, news.incarnation, at),
            (NewsKind::ProcessLost, None) => {
                let lost = news.process.and_then(|id| self.processes.get_mut(&id));
                if let Some(process) = lost {
                    let (id, why) = (process.id, format!("its process {}", news.sentence));
                    process.lost = Some(why.clone());
                    self.actors.lost_with(id, at, &why);
                }
            }
            _ => {}
        }
        let sentence = match kind {
            EventKind::Node => news.sentence,
            _ => format!("{title}: {}", news.sentence),
        };
        self.put(Event {
            seq: 0,
            at,
            kind,
            severity,
            subject,
            name: None,
            lint: None,
            sentence,
            chain: news.chain,
        });
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
            lint: None,
            sentence,
            chain: vec![],
        });
    }

    /// Something has happened that whoever observes knows from elsewhere; its number is given here.
    pub fn note(&mut self, event: Event) {
        self.seq += 1;
        self.put(event);
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

    /// Returns true where the observer from which this one goes on has told of such a problem,
    /// which then lasts.
    fn has_lasted(&self, problem: &Problem) -> bool {
        let subject = problem.subjects.first();
        let told = |it: &Event| it.lint == Some(problem.lint) && it.subject.as_ref() == subject;
        self.recalled.is_some() && self.events.iter().any(told)
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
            lint: None,
            sentence,
            chain: vec![],
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
        self.waits.remove(&id);
        self.spans.cut(id, now);
        let lost = self.process(id).and_then(|it| it.lost.clone());
        let end = match &lost {
            Some(why) => End::Lost(why),
            None => End::Stopped("its process has ended"),
        };
        for actor in self.actors.of_process(id) {
            self.actors.gone(actor, id, now, end);
        }
    }

    /// Works out what follows from all that was taken in: states, rates, problems.
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
        let mut found = alert::problems(self, now);
        for problem in &mut found {
            let same = |it: &&Problem| it.lint == problem.lint && it.subjects == problem.subjects;
            match self.problems.iter().find(same) {
                // One that is measured only now began when it was first found.
                Some(before) => problem.since = before.since.min(problem.since),
                None => {
                    let kind = EventKind::Problem;
                    let known = matches!(problem.lint, Alert::ActorFailed | Alert::NodeDown);
                    let episode = (problem.lint, problem.subjects.clone());
                    let lasts = self.episodes.contains_key(&episode) || self.has_lasted(problem);
                    if !known && !lasts {
                        self.put(Event {
                            seq: 0,
                            at: now,
                            kind,
                            severity: problem.severity,
                            subject: problem.subjects.first().cloned(),
                            name: None,
                            lint: Some(problem.lint),
                            sentence: problem.sentence.clone(),
                            chain: vec![],
                        });
                    }
                }
            }
        }
        for problem in &found {
            let episode = (problem.lint, problem.subjects.clone());
            self.episodes.insert(episode, now);
        }
        self.episodes.retain(|_, last| now.since(*last) < EPISODE);
        self.problems = found;
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

    fn sample(&mut self, now: Date) {
        // What looks and keeps order is not what people run.
        let actors = || self.actors.iter().filter(|row| row.job != SYSTEM_JOB);
        let handled = actors().map(Actor::handled_here).sum();
        let spans = self.processes.values().map(Process::spans_here).sum();
        let sample = Sample {
            at: now,
            handled,
            bytes: self.totals.bytes_copied,
            spans,
        };
        let deepest = actors().map(|row| row.view.queued).max();
        let living = self.processes.values();
        let living = living.filter(|it| it.ended.is_none() && it.job != SYSTEM_JOB);
        let asks = living.fold(Times::default(), |all, it| {
            all.merge(it.recent_asks.times())
        });
        let totals = &mut self.totals;
        let Some(last) = totals.last else {
            totals.last = Some(sample);
            return;
        };
        let passed = now.since(last.at).as_secs_f64();
        if passed < 0.9 {
            return;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed;
        totals.messages.add(now, rate(handled, last.handled));
        totals.bytes.add(now, rate(sample.bytes, last.bytes));
        totals.spans.add(now, rate(spans, last.spans));
        totals
            .deepest_mailbox
            .add(now, f64::from(deepest.unwrap_or(0)));
        if let Some(p99) = asks.quantile(0.99) {
            totals.p99_ask_ms.add(now, p99.as_secs_f64() * 1e3);
        }
        totals.last = Some(sample);
    }
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

/// An actor of which nothing is known but that it has failed.
fn unseen(id: ActorId, news: &News) -> ActorView {
    let home = id.home;
    ActorView {
        id,
        parent: ActorId { home, serial: 0 },
        actor: news.actor_type.clone(),
        process: news.process.unwrap_or(home),
        incarnation: news.incarnation,
        phase: Phase::Over,
        queued: 0,
        room: 0,
        queued_bytes: 0,
        handled: 0,
        failed: 1,
        busy: 0,
        waited: 0,
        changed: news.at,
        running: None,
        devices: vec![],
    }
}

fn dated(wait: WaitView, shift: Shift) -> Wait {
    Wait {
        who: wait.who,
        on: wait.on,
        how: wait.how,
        message: wait.message,
        since: shift.date(wait.since),
        in_handler: wait.in_handler,
    }
}

/// Which blob a copy is of: its owner's process, and its number there.
pub(crate) fn blob_of(labels: &Labels) -> String {
    let text = |name: &str| {
        let label = labels.iter().find(|(it, _)| it == name);
        label.map_or_else(String::new, |(_, label)| label.to_string())
    };
    format!("{}.{}", text("owner"), text("blob"))
}

fn bytes_of(labels: &Labels) -> u64 {
    let bytes = labels.iter().find(|(name, _)| name == "bytes");
    match bytes {
        Some((_, Label::Int(bytes))) => u64::try_from(*bytes).unwrap_or(0),
        _ => 0,
    }
}
