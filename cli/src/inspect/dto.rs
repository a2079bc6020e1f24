//! The cluster view in the terms of the API: its rows become records.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::inspect::{DeviceReading, LinkView, ProcessKind, Times, WaitKind, Why};
use odeon::trace::SpanKind;
use odeon::{ActorId, ProcessId};
use odeon_client::inspect as told;
use odeon_client::inspect::Measured;
use odeon_cluster::logs::{Read, Stream};
use odeon_devices::inventory::Reading;
use odeon_observe::actor::{Actor, State};
use odeon_observe::detectors::{Finding, problem_rule};
use odeon_observe::event::{Event, EventKind, Severity, Subject};
use odeon_observe::node::{Node, Process};
use odeon_observe::spans::Span;
use odeon_observe::waits::Wait;
use odeon_observe::{ClusterView, Date, SYSTEM_JOB, bounds};
use serde::{Deserialize, Serialize};

/// The entry of a node in the catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeFacts {
    pub(super) address: String,
    pub(super) version: String,
    pub(super) leads: bool,
    pub(super) votes: bool,
    pub(super) drained: bool,
    #[serde(default)]
    pub(super) refused: Option<String>,
}

/// The cluster view and the catalog, at one moment.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) seen: &'a ClusterView,
    pub(super) facts: &'a BTreeMap<String, NodeFacts>,
    pub(super) now: Date,
}

/// The time after the end of a handler within which its failure may be told.
const FAILS_WITHIN: Duration = Duration::from_secs(1);
/// From here on somebody who waits is worth a line.
const WAITS_LONG: Duration = Duration::from_secs(1);
/// Subjects of a problem that are named.
const SUBJECTS_MAX: usize = 8;
/// Lines of those who wait.
const WAITING_MAX: usize = 8;

/// The value of a sensor, or why it has none.
fn read(
    reading: Option<&DeviceReading>,
    of: impl FnOnce(&DeviceReading) -> Reading<f64>,
) -> Measured {
    match reading.map(of) {
        Some(Reading::Measured(value)) => Measured::Value(rounded(value)),
        Some(Reading::Unmeasured { why }) => Measured::new(None, &why),
        None => Measured::new(None, "it has not been looked at yet"),
    }
}

/// Returns true if an actor belongs to the system itself.
pub(super) fn is_system(actor: &Actor) -> bool {
    actor.job == SYSTEM_JOB
}

/// The id of a span as it is told.
pub(super) fn span_id(id: u64) -> String {
    format!("{id:016x}")
}

/// The kind of a span as it is told.
pub(super) const fn kind_word(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Ask => "ask",
        SpanKind::Tell => "tell",
        SpanKind::Handle => "handle",
        SpanKind::Copy => "copy",
        SpanKind::Collective => "collective",
        _ => "user",
    }
}

/// The kinds in the order of their numbers on a timeline.
pub(super) const KINDS: [SpanKind; 6] = [
    SpanKind::Ask,
    SpanKind::Tell,
    SpanKind::Handle,
    SpanKind::User,
    SpanKind::Copy,
    SpanKind::Collective,
];

pub(super) const fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

const fn wait_word(how: WaitKind) -> &'static str {
    match how {
        WaitKind::Room => "room",
        _ => "ask",
    }
}

impl Shown<'_> {
    pub(super) fn actor_subject(&self, id: ActorId) -> told::Subject {
        if id.is_root() {
            return self.process_subject(id.home);
        }
        told::Subject {
            kind: "actor".to_owned(),
            id: id.to_string(),
            name: self.seen.title_of(id),
        }
    }

    pub(super) fn process_subject(&self, id: ProcessId) -> told::Subject {
        told::Subject {
            kind: "process".to_owned(),
            id: id.to_string(),
            name: self.seen.process_title(id),
        }
    }

    pub(super) fn subject(&self, subject: &Subject) -> told::Subject {
        let plain = |kind: &str, id: String| told::Subject {
            kind: kind.to_owned(),
            name: id.clone(),
            id,
        };
        match subject {
            Subject::Actor(id) => self.actor_subject(*id),
            Subject::Process(id) => self.process_subject(*id),
            Subject::Node(name) => plain("node", name.clone()),
            Subject::Device(node, index) => plain("device", format!("{node}/{index}")),
            Subject::Job(job) => plain("job", job.clone()),
            _ => plain("actor", String::new()),
        }
    }

    /// The same of what may not be known any more, by the name that it had.
    pub(super) fn subject_then(&self, subject: &Subject, name: Option<&String>) -> told::Subject {
        let known = match subject {
            Subject::Actor(id) => self.seen.actors().get(*id).is_some(),
            Subject::Process(id) => self.seen.process(*id).is_some(),
            _ => true,
        };
        let now = self.subject(subject);
        match name.filter(|_| !known) {
            Some(name) => told::Subject {
                name: name.clone(),
                ..now
            },
            None => now,
        }
    }

    /// Returns true if it belongs to the system itself.
    pub(super) fn is_of_system(&self, subject: &Subject) -> bool {
        let job = match subject {
            Subject::Actor(id) => self.seen.actors().get(*id).map(|it| &it.job),
            Subject::Process(id) => self.seen.process(*id).map(|it| &it.job),
            _ => None,
        };
        job.is_some_and(|job| job == SYSTEM_JOB)
    }

    /// Actors that have waited for others for a while, the longest first.
    pub(super) fn waiting(&self) -> Vec<told::Waiting> {
        let waits = self.seen.waits();
        let actors = self.seen.actors().iter();
        let actors = actors.filter(|it| it.ended.is_none() && !is_system(it));
        let mut waiting: Vec<_> = actors
            .filter_map(|actor| Some((waits.of(actor.id()).first()?.since, actor.id())))
            .filter(|(since, _)| self.now.since(*since) >= WAITS_LONG)
            .collect();
        waiting.sort_unstable();
        let told = waiting.into_iter().take(WAITING_MAX).map(|(since, id)| {
            let (chain, circle) = self.chain(id);
            told::Waiting {
                subject: self.actor_subject(id),
                chain,
                deadlock: circle && self.is_deadlocked(id),
                circle,
                since: since.as_ms(),
            }
        });
        told.collect()
    }

    pub(super) fn event(&self, event: &Event) -> told::Event {
        told::Event {
            seq: event.seq,
            at: event.at.as_ms(),
            kind: event.kind.word().to_owned(),
            severity: severity_word(event.severity).to_owned(),
            subject: event
                .subject
                .as_ref()
                .map(|it| self.subject_then(it, event.name.as_ref())),
            sentence: event.sentence.clone(),
            chain: event.chain.clone(),
        }
    }

    pub(super) fn problem(&self, found: &Finding) -> told::Problem {
        let told = found.who.iter().take(SUBJECTS_MAX);
        let rule = problem_rule(found.cause.rule);
        told::Problem {
            rule: found.cause.rule.to_owned(),
            severity: severity_word(found.cause.severity).to_owned(),
            count: found.who.len().max(1) as u64,
            sentence: found.cause.sentence.clone(),
            since: found.since.as_ms(),
            subjects: told.map(|it| self.subject(it)).collect(),
            done: rule.map_or_else(String::new, |rule| rule.done.to_owned()),
            advice: rule.map_or_else(String::new, |rule| self.advice(rule, found)),
        }
    }

    pub(super) fn actor(&self, actor: &Actor) -> told::ActorRow {
        let view = &actor.view;
        let waits_on = match actor.ended {
            None => self.waits_on(actor),
            Some(_) => None,
        };
        let current = view.running.as_ref().zip(actor.running_since);
        told::ActorRow {
            id: view.id.to_string(),
            name: actor.name.clone(),
            r#type: view.actor.clone(),
            job: Some(actor.job.clone()).filter(|job| !job.is_empty()),
            node: actor.node.clone(),
            process: view.process.to_string(),
            devices: self.devices_of(actor),
            parent: (!view.parent.is_root()).then(|| view.parent.to_string()),
            system: is_system(actor),
            state: actor.state.word().to_owned(),
            since: actor.since.as_ms(),
            mailbox: told::Mailbox {
                len: view.queued,
                max: view.room,
                bytes: view.queued_bytes,
            },
            received: actor.handled + u64::from(view.queued),
            // The one that is being handled is not yet.
            handled: actor
                .handled
                .saturating_sub(u64::from(view.running.is_some())),
            failed: view.failed,
            restarts: actor.restarts(),
            incarnation: view.incarnation,
            rate: rounded(actor.rate),
            busy: rounded(actor.busy),
            waiting: rounded(actor.waiting),
            current: current.map(|(running, since)| told::Current {
                message: running.message.clone(),
                since: since.as_ms(),
            }),
            waits_on,
            ended: actor.ended.as_ref().map(|ended| told::Ended {
                at: ended.at.as_ms(),
                sentence: ended.sentence.clone(),
            }),
        }
    }

    pub(super) fn devices_of(&self, actor: &Actor) -> Vec<String> {
        let devices = actor.view.devices.iter();
        devices
            .map(|index| format!("{}/{index}", actor.node))
            .collect()
    }

    fn waits_on(&self, actor: &Actor) -> Option<told::WaitsOn> {
        if let Some(wait) = self.seen.waits().of(actor.id()).first() {
            return Some(self.wait(wait));
        }
        let hardware = self.seen.nodes().filter_map(|node| node.hardware.as_ref());
        let mut waiting = hardware.flat_map(|view| &view.waiting);
        let waiting = waiting.find(|waiting| waiting.actors.contains(&actor.id()))?;
        Some(told::WaitsOn {
            id: actor.node.clone(),
            name: waiting.to_string(),
            how: "place".to_owned(),
            message: String::new(),
            since: self.now.before(waiting.waited).as_ms(),
        })
    }

    fn wait(&self, wait: &Wait) -> told::WaitsOn {
        told::WaitsOn {
            id: wait.on.to_string(),
            name: self.seen.title_of(wait.on),
            how: wait_word(wait.how).to_owned(),
            message: wait.message.clone(),
            since: wait.since.as_ms(),
        }
    }

    pub(super) fn chain(&self, actor: ActorId) -> (Vec<told::ChainLink>, bool) {
        let (chain, circle) = self.seen.waits().chain(actor);
        let link = |wait: &&Wait| told::ChainLink {
            subject: self.actor_subject(wait.on),
            how: wait_word(wait.how).to_owned(),
            message: wait.message.clone(),
            since: wait.since.as_ms(),
        };
        (chain.iter().map(link).collect(), circle)
    }

    /// Returns true if it is one of those who wait for each other, and none of them can go on.
    pub(super) fn is_deadlocked(&self, actor: ActorId) -> bool {
        let circles = self.seen.waits().circles();
        let mut dead = circles.iter().filter(|it| it.is_deadlock);
        dead.any(|it| it.actors.contains(&actor))
    }

    /// Why an actor is where it is.
    pub(super) fn placement(&self, actor: &Actor) -> told::Placement {
        let mut hardware = self.seen.nodes().filter_map(|node| node.hardware.as_ref());
        let Some(why) = hardware.find_map(|view| view.why(actor.id())) else {
            return told::Placement {
                sentence: self.light_placement(actor),
                devices: vec![],
                node: Some(actor.node.clone()),
            };
        };
        let (node, devices, pid) = match &why {
            Why::Placed {
                node,
                devices,
                process,
            } => {
                let pid = self.seen.process(*process).and_then(|it| it.pid);
                (Some(node.clone()), devices.as_slice(), pid)
            }
            _ => (None, &[][..], None),
        };
        let named = |index: &u32| format!("{}/{index}", node.as_deref().unwrap_or("?"));
        told::Placement {
            sentence: why.sentence(pid),
            devices: devices.iter().map(named).collect(),
            node,
        }
    }

    /// The same of one that has asked for no room: it is where its supervisor is, unless whoever
    /// started it asked for a process of its own.
    fn light_placement(&self, actor: &Actor) -> String {
        let parent = actor.view.parent;
        let above = match self.seen.actors().get(parent) {
            Some(row) => row.view.process,
            None => parent.home,
        };
        let process = self.seen.process_title(actor.view.process);
        if above == actor.view.process {
            let with = match parent.is_root() {
                true => "whoever started it".to_owned(),
                false => self.seen.title_of(parent),
            };
            return format!(
                "in the process of {with}: it asked for no room and no process of its own"
            );
        }
        format!(
            "in {process}, away from {}: its failures stay there; it asked for no room",
            self.seen.process_title(above)
        )
    }

    pub(super) fn brief(&self, span: &Span) -> told::SpanBrief {
        told::SpanBrief {
            id: span_id(span.id()),
            trace: format!("{:032x}", span.context.trace_id),
            parent: (span.parent != 0).then(|| span_id(span.parent)),
            kind: kind_word(span.kind).to_owned(),
            name: span.name.to_string(),
            actor: self.actor_subject(span.by),
            start: span.start.as_ms(),
            end: span.end.map(Date::as_ms),
            queued_ms: span.start.since(span.queued).as_secs_f64() * 1e3,
            ok: span.ok,
        }
    }

    pub(super) fn span(&self, span: &Span) -> told::SpanFull {
        let process = self.seen.process(span.process);
        let labels = span.labels.iter();
        told::SpanFull {
            brief: self.brief(span),
            error: (!span.ok).then(|| self.why_failed(span)),
            node: process.map_or(String::new(), |it| it.node.clone()),
            process: span.process.to_string(),
            caller: (span.actor != span.by).then(|| self.actor_subject(span.actor)),
            attributes: labels
                .map(|(name, it)| (name.to_string(), it.to_string()))
                .collect(),
        }
    }

    /// Names the nodes of lines that say their process alone.
    pub(super) fn place(&self, lines: &mut [told::LogLine]) {
        let nodes: BTreeMap<_, _> = self
            .seen
            .processes()
            .map(|it| (it.id.to_string(), it.node.as_str()))
            .collect();
        for line in lines.iter_mut().filter(|line| line.node.is_empty()) {
            line.node = nodes.get(&line.process).copied().unwrap_or("").to_owned();
        }
    }

    /// Why a span failed, in the words of what was told of its actor then.
    fn why_failed(&self, span: &Span) -> String {
        let end = span.end_or(self.now);
        let about = |event: &&Event| {
            let apart = end.since(event.at).max(event.at.since(end));
            event.kind == EventKind::Failure
                && event.subject == Some(Subject::Actor(span.actor))
                && apart <= FAILS_WITHIN
        };
        match self.seen.events().iter().rev().find(about) {
            Some(event) if event.chain.is_empty() => event.sentence.clone(),
            Some(event) => event.chain.join("\n"),
            None => "it failed, and nothing more is told of that".to_owned(),
        }
    }

    pub(super) fn process(&self, process: &Process) -> told::Process {
        let gone = "the process is gone";
        let unseen = "not measured yet";
        let usage = process.usage.filter(|_| process.ended.is_none());
        let why = if process.ended.is_some() {
            gone
        } else {
            unseen
        };
        told::Process {
            id: process.id.to_string(),
            node: process.node.clone(),
            pid: process.pid,
            kind: match process.kind {
                ProcessKind::Node => "node",
                ProcessKind::Driver => "driver",
                ProcessKind::Worker => "worker",
            }
            .to_owned(),
            job: Some(process.job.clone()).filter(|job| !job.is_empty()),
            state: if process.ended.is_some() {
                "gone"
            } else {
                "running"
            }
            .to_owned(),
            started: process.started.as_ms(),
            rss: Measured::new(usage.map(|usage| usage.resident as f64), why),
            cpu: Measured::new(usage.and_then(|usage| usage.cpu).map(rounded), why),
            actors: u64::from(process.hosted),
            dead_letters: process.dead_letters,
        }
    }

    pub(super) fn node(&self, node: &Node) -> told::Node {
        let facts = self.facts.get(&node.name);
        let machine = &node.machine;
        let own = self.seen.processes().filter(|it| it.node == node.name);
        let processes: Vec<_> = own.filter(|it| it.ended.is_none()).collect();
        let trip = self.round_trip_to(node);
        let hardware = node.hardware.as_ref().map(|view| &view.node);
        told::Node {
            name: node.name.clone(),
            state: self.state_of(node).to_owned(),
            since: node.gone.unwrap_or(node.since).as_ms(),
            address: facts.map_or(String::new(), |it| it.address.clone()),
            leads: facts.is_some_and(|it| it.leads),
            votes: facts.is_some_and(|it| it.votes),
            version: facts.map_or_else(
                || env!("CARGO_PKG_VERSION").to_owned(),
                |it| it.version.clone(),
            ),
            cores: machine.cores,
            cpu: Measured::new(machine.cpu.map(rounded), "not measured yet"),
            memory: told::Memory {
                used: Measured::new(
                    (machine.memory > 0).then_some(machine.memory_used as f64),
                    "the system does not tell",
                ),
                total: machine.memory,
            },
            devices: self.devices(node),
            actors: processes.iter().map(|it| u64::from(it.hosted)).sum(),
            processes: processes.iter().map(|it| self.process(it)).collect(),
            clock: node.clock.map(|(ahead, error)| told::Clock {
                offset_us: ahead as f64 / 1e3,
                error_us: error.as_secs_f64() * 1e6,
            }),
            rtt_us: Measured::new(trip, "this is the node that looks"),
            labels: hardware.map_or(BTreeMap::new(), |it| it.labels.clone()),
        }
    }

    /// There and back from the observer, as its own node sees it.
    fn round_trip_to(&self, node: &Node) -> Option<f64> {
        let own = self.seen.nodes().find(|it| it.clock.is_none())?;
        let link = own.links.iter().find(|link| link.peer == node.process)?;
        Some(link.round_trip?.as_secs_f64() * 1e6)
    }

    fn state_of(&self, node: &Node) -> &'static str {
        let fact = |is: fn(&NodeFacts) -> bool| self.facts.get(&node.name).is_some_and(is);
        match () {
            () if node.gone.is_some() => "down",
            () if self.now.since(node.seen) >= bounds::SUSPECT => "suspect",
            () if fact(|it| it.refused.is_some()) => "refused",
            () if fact(|it| it.drained) => "draining",
            () => "up",
        }
    }

    pub(super) fn devices(&self, node: &Node) -> Vec<told::Device> {
        let Some(view) = &node.hardware else {
            return vec![];
        };
        let devices = view.node.devices.iter();
        devices
            .map(|device| self.device(node, view, device))
            .collect()
    }

    fn device(
        &self,
        node: &Node,
        view: &odeon::inspect::NodeView,
        device: &odeon_placement::Device,
    ) -> told::Device {
        let id = format!("{}/{}", node.name, device.index);
        let leases = view.node.leases().filter_map(|lease| {
            let mut grants = lease.devices.iter();
            let grant = grants.find(|grant| grant.index == device.index)?;
            let here = |(_, name, process): &&(ActorId, String, ProcessId)| {
                let there = lease.process == odeon_placement::Process::Existing(process.0);
                *name == lease.holder && there
            };
            let actor = view.actors.iter().find(here);
            let holder = match actor {
                Some((id, ..)) => self.actor_subject(*id),
                None => told::Subject {
                    kind: "job".to_owned(),
                    id: lease.job.clone(),
                    name: lease.holder.clone(),
                },
            };
            let share = match device.memory {
                0 => 1.0,
                all => grant.memory as f64 / all as f64,
            };
            Some(told::Lease {
                holder,
                share: rounded(share.min(1.0)),
            })
        });
        let leases: Vec<_> = leases.collect();
        let reading = view.readings.iter().find(|it| it.index == device.index);
        told::Device {
            node: node.name.clone(),
            index: device.index,
            name: device.model.clone(),
            kind: "gpu".to_owned(),
            state: match device.health {
                odeon_placement::Health::Good => "ok",
                _ => "faulty",
            }
            .to_owned(),
            utilisation: read(reading, |it| it.busy.clone()),
            memory: told::Memory {
                used: read(reading, |it| it.memory_used.clone().map(|it| it as f64)),
                total: device.memory,
            },
            temperature: read(reading, |it| it.celsius.clone().map(f64::from)),
            power_w: read(reading, |it| it.watts.clone()),
            owners: self.owners(node, reading),
            actors: leases.len() as u64,
            leases,
            id,
        }
    }

    /// The owners of a device's memory, the most first: processes of ours by what they are for, and
    /// others.
    fn owners(&self, node: &Node, reading: Option<&DeviceReading>) -> Vec<told::Owner> {
        let holders = reading.and_then(|it| it.holders.value());
        let mut owners: Vec<_> = holders.into_iter().flatten().collect();
        owners.sort_by_key(|(pid, bytes)| (std::cmp::Reverse(*bytes), *pid));
        let owner = |(pid, bytes): &(u32, Option<u64>)| {
            let ours = self
                .seen
                .processes()
                .find(|it| it.node == node.name && it.pid == Some(*pid) && it.ended.is_none());
            let name = ours.map_or_else(
                || format!("process {pid} of another program"),
                |it| self.seen.process_title(it.id),
            );
            told::Owner {
                subject: ours.map(|it| told::Subject {
                    kind: "process".to_owned(),
                    id: it.id.to_string(),
                    name: name.clone(),
                }),
                name,
                bytes: Measured::new(bytes.map(|it| it as f64), "the driver does not tell"),
            }
        };
        owners.into_iter().map(owner).collect()
    }

    pub(super) fn link(&self, node: &Node, link: &LinkView) -> told::Link {
        let trip = link.round_trip.map(|trip| trip.as_secs_f64() * 1e6);
        told::Link {
            from: node.name.clone(),
            to: link.node.clone(),
            kind: "network".to_owned(),
            rtt_us: Measured::new(trip, "no beat has come back yet"),
            bytes_per_s: Measured::new(
                node.sending.get(&link.peer).and_then(|flow| flow.rate),
                "it has not been looked at twice yet",
            ),
            queued_bytes: link.queued_bytes,
            unacknowledged_bytes: link.unacknowledged_bytes,
            resumed: link.resumed,
            last_break: link.last_break.clone(),
            silent_ms: link.silent_for.as_secs_f64() * 1e3,
        }
    }

    /// A blob that was copied between nodes.
    pub(super) fn copy(&self, span: &Span) -> told::Copy {
        let number = |name: &str| span.label(name).and_then(|it| it.parse::<u64>().ok());
        let bytes = number("bytes").unwrap_or(0);
        let owner = span.label("owner").unwrap_or_default();
        let from = self.seen.processes().find(|it| it.id.to_string() == owner);
        let unknown = || told::Subject {
            kind: "process".to_owned(),
            id: owner.clone(),
            name: format!("process {owner}"),
        };
        let took = span.end.map(|end| end.since(span.start).as_secs_f64());
        let rate = took
            .filter(|took| *took > 0.0)
            .map(|took| bytes as f64 / took / 1e9);
        told::Copy {
            id: span_id(span.id()),
            start: span.start.as_ms(),
            end: span.end.map(Date::as_ms),
            from: from.map_or_else(unknown, |it| self.process_subject(it.id)),
            to: self.process_subject(span.process),
            what: format!("blob {}", span.label("blob").unwrap_or_default()),
            bytes,
            done: if span.end.is_some() && span.ok {
                bytes
            } else {
                0
            },
            route: "network".to_owned(),
            gb_per_s: Measured::new(rate, "it goes on"),
            expected_gb_per_s: Measured::new(None, "no floor was measured between these nodes"),
            ok: span.ok,
            error: (!span.ok).then(|| "it did not arrive whole".to_owned()),
            span: Some(span_id(span.id())),
        }
    }
}

/// The quantiles of some times, in microseconds.
pub(super) fn quantiles(times: &Times) -> told::Quantiles {
    let part = |part| times.quantile(part).map(|it| it.as_nanos() as f64 / 1e3);
    told::Quantiles {
        p50: part(0.5),
        p99: part(0.99),
    }
}

/// Enough for people, and short.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// The worst first.
pub(super) fn by_badness(actors: &mut [&Actor]) {
    actors.sort_by_key(|actor| (std::cmp::Reverse(actor.state), actor.id()));
}

/// The number of these in each state.
pub(super) fn states<'a>(actors: impl Iterator<Item = &'a Actor>) -> BTreeMap<String, u64> {
    let mut states = BTreeMap::new();
    for actor in actors {
        *states.entry(actor.state.word().to_owned()).or_default() += 1;
    }
    states
}

/// Returns true if an actor counts as failed.
pub(super) fn has_failed(actor: &Actor) -> bool {
    actor.state == State::Failed
}

/// A line that a job has printed.
pub(super) fn line(read: Read) -> told::LogLine {
    let line = read.line;
    told::LogLine {
        at: line.at.0 as f64,
        node: line.node,
        process: line.process,
        stream: stream_word(line.stream).to_owned(),
        text: line.text,
    }
}

/// An output of a process as it is told.
pub(super) const fn stream_word(stream: Stream) -> &'static str {
    match stream {
        Stream::Out => "out",
        Stream::Err => "err",
    }
}
