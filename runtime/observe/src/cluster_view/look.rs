//! Looks at nodes, taken in: rows, waits, spans and news of their processes.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::inspect::{
    ActorView, News, NewsKind, NodeSight, ProcessKind, ProcessSight, Sight, WaitView,
};
use odeon::telemetry::{Label, Labels};
use odeon::trace::{Span, SpanKind};
use odeon::{ActorId, Phase, ProcessId, Timestamp};

use super::{ClusterView, Copied, blob_of};
use crate::actor::End;
use crate::bounds::{COPIES_MAX, MACHINE_SERIES_MAX};
use crate::date::{Date, Shift};
use crate::event::{Event, EventKind, Severity, Subject};
use crate::node::{Flow, Node, Process, Recent};
use crate::spans::Gap;
use crate::waits::Wait;

/// The numbers of the next news and points of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    pub(super) news: u64,
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

/// The part of a process's sight that counts when all processes of its node have been seen.
struct Rest {
    process: ProcessId,
    news: Vec<News>,
    gone: Vec<ActorId>,
    shift: Shift,
}

impl ClusterView {
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
        for (process, looks) in sight.flows {
            self.note_flows(process, looks, now);
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
        let error = clock.map_or(Duration::ZERO, |(_, error)| error);
        let began = shift.date(Timestamp::BEGIN).min(now);
        let fresh = self
            .nodes
            .get(&sight.node)
            .is_none_or(|node| node.gone.is_some() || node.process != sight.process);
        let subject = Subject::Node(sight.node.clone());
        if fresh && !self.was_told(EventKind::Node, &subject, began.before(error)) {
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
        let sending: BTreeMap<ProcessId, Flow> = sending.collect();
        let since = before.as_ref().map_or(began, |node| node.since);
        let mut history = before.map(|node| node.history).unwrap_or_default();
        let others = self.nodes.values().map(|node| node.history.len());
        let room = MACHINE_SERIES_MAX.saturating_sub(others.sum());
        self.missed.points += history.note_look(now, sight, &sending, room);
        let node = Node {
            name: sight.node.clone(),
            process: sight.process,
            since,
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
            blocked: sight
                .blocked
                .iter()
                .map(|thread| (thread.clone(), shift.date(thread.since)))
                .collect(),
        };
        self.nodes.insert(node.name.clone(), node);
        fresh
    }

    /// Takes in what a process shows, but for what counts when all have been seen.
    fn note_process(
        &mut self,
        mut process: ProcessSight,
        node: &str,
        node_shift: Shift,
        now: Date,
        arrives: bool,
    ) -> Rest {
        let shift = node_shift.of_ahead(process.ahead);
        self.note_row(&mut process, node, shift, now, arrives);
        let mut sight = process.sight;
        let id = sight.process;
        if sight.anew && !sight.more {
            // What has not come yet would come with the next look.
            self.end_unshown(&sight, now);
        }
        for view in std::mem::take(&mut sight.actors) {
            self.spans.handles(&view, shift);
            self.actors
                .show(view, &sight.job, node, shift, now, arrives);
        }
        let waits = std::mem::take(&mut sight.waits).into_iter();
        let waits: Vec<_> = waits.map(|wait| dated(wait, shift)).collect();
        self.spans.asks(id, &waits);
        self.waits.insert(id, waits);
        self.note_lost_spans(id, sight.spans_lost, now);
        let heard = self.heard.entry(id).or_default();
        let (from, lost) = (sight.news_from, sight.news_lost);
        let (news, news_lost) = unheard(&mut heard.news, from, lost, sight.news);
        let (from, lost) = (sight.points_from, sight.points_lost);
        let (points, points_lost) = unheard(&mut heard.points, from, lost, sight.points);
        self.missed.news += news_lost;
        self.missed.points += points_lost;
        for span in sight.spans {
            self.note_span(span, id, shift);
        }
        self.spans.go_on(sight.going_on, id, shift);
        for point in points {
            let at = shift.date(point.at);
            if let Some(node) = self.nodes.get_mut(node) {
                let history = &mut node.history;
                history.note_step(at, &sight.job, (&point.name, &point.labels), point.value);
            }
            self.record(
                point.name.into_owned(),
                point.actor,
                point.labels,
                at,
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

    /// Takes in the row of a process, and tells of one that is there for the first time.
    fn note_row(
        &mut self,
        process: &mut ProcessSight,
        node: &str,
        shift: Shift,
        now: Date,
        arrives: bool,
    ) {
        let sight = &mut process.sight;
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
            ask_times: std::mem::take(&mut sight.ask_times),
            dead_letters: sight.dead_letters,
            blob_bytes: sight.blob_bytes,
            hosted: sight.hosted,
            clock_error: process.ahead_error,
            usage: process.usage,
        };
        let is_new = before.is_none() && row.kind != ProcessKind::Node;
        self.processes.insert(id, row);
        // No process has the id of another, and when this one began is known but for the error of its clock.
        let ever = Date::default();
        let told = |seen: &Self| seen.was_told(EventKind::Started, &Subject::Process(id), ever);
        if is_new && !told(self) {
            self.tell_of(id, EventKind::Started, "is there", now);
        }
    }

    /// Ends the actors of a process that shows all that it has, and these no more.
    fn end_unshown(&mut self, sight: &Sight, now: Date) {
        let id = sight.process;
        let shown: Vec<_> = sight.actors.iter().map(|view| view.id).collect();
        for actor in self.actors.of_process(id) {
            if !shown.contains(&actor) {
                self.spans.rests(actor, id);
                let end = End::Stopped("it is not there any more");
                self.actors.gone(actor, id, now, end);
            }
        }
    }

    /// Notes how many spans were lost between the last look at a process and this one.
    fn note_lost_spans(&mut self, id: ProcessId, lost: u64, now: Date) {
        let looked = self.last_look.insert(id, now).unwrap_or(now);
        if lost > 0 {
            self.spans.miss(Gap {
                process: id,
                from: looked,
                to: now,
                lost,
            });
            self.lost.push_back((now, id, lost));
        }
    }

    pub(crate) fn note_span(&mut self, span: Span, process: ProcessId, shift: Shift) {
        if span.kind == SpanKind::Copy {
            self.totals.bytes_copied += bytes_of(&span.labels);
            self.note_copy(Copied {
                blob: blob_of(&span.labels),
                to: process,
                at: shift.date(span.ended),
                took: span.ended.since(span.started),
            });
        }
        let whose = self.whose(process);
        self.spans.add(span, process, whose, shift);
    }

    pub(crate) fn note_copy(&mut self, copied: Copied) {
        if self.copies.len() == COPIES_MAX {
            self.copies.pop_front();
        }
        self.copies.push_back(copied);
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
            rule: None,
            sentence,
            chain: news.chain,
            since: None,
        });
    }
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

fn bytes_of(labels: &Labels) -> u64 {
    let bytes = labels.iter().find(|(name, _)| name == "bytes");
    match bytes {
        Some((_, Label::Int(bytes))) => u64::try_from(*bytes).unwrap_or(0),
        _ => 0,
    }
}
