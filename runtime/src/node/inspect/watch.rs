//! Watching: what a process has to show since somebody last looked.
//!
//! A look reads counters and rings, and enters no mailbox. What each subscriber has seen is kept where
//! it was seen, so that a process with many actors sends those that have changed. An answer that got
//! lost, or a subscriber that stayed away, makes it begin anew.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use odeon_diagnosis::flows::RankLook;
use odeon_shm::FlowLogName;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::machine::Meter;
use super::{ActorView, LinkView, MachineView, NodeView, ProcessView, Times, Usage};
use crate::actor::blocked::{BlockedThread, BlockedThreads};
use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::actor::names::NameTable;
use crate::actor::pending::{Caller, WaitFor};
use crate::actor::telemetry::Point;
use crate::base::clock::{Clock, Timestamp};
use crate::base::id::{ActorId, ProcessId};
use crate::base::id_map::IdHasher;
use crate::base::journal::News;
use crate::base::trace::{Span, SpanCounts, SpanCursor};
use crate::net::service::{Notice, Service};
use crate::net::wire::ServiceId;
use crate::node::device_manager::protocol::Waiting;
use crate::node::flows::FlowReaders;

/// The view of one process at one look: its actors, their waits, spans, news and counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sight {
    /// Which process.
    pub process: ProcessId,
    /// The job that it works for.
    pub job: String,
    /// When, by its clock.
    pub at: Timestamp,
    /// This look begins anew: what was seen of the process before does not hold any more.
    pub anew: bool,
    /// The actors that have changed.
    pub actors: Vec<ActorView>,
    /// Those that are not there any more.
    pub gone: Vec<ActorId>,
    /// The number of actors that it hosts.
    pub hosted: u32,
    /// All that its actors wait for.
    pub waits: Vec<WaitView>,
    /// The number of further waits, for which there was no room.
    pub waits_left_out: u32,
    /// Spans that have ended.
    pub spans: Vec<Span>,
    /// Spans that were overwritten before this look.
    pub spans_lost: u64,
    /// Spans of programs that go on; their ends are their starts.
    pub going_on: Vec<Span>,
    /// Counts of all spans so far.
    pub span_counts: SpanCounts,
    /// The times that asks took until their answers came, of late.
    pub ask_times: Times,
    /// Events that have happened.
    pub news: Vec<News>,
    /// The number of the first of it, counted from 1 since the process began; 0 where it is not told.
    #[serde(default)]
    pub news_from: u64,
    /// News that were overwritten before this look.
    pub news_lost: u64,
    /// Numbers that programs say about their work.
    pub points: Vec<Point>,
    /// The number of the first of it, like that of the news.
    #[serde(default)]
    pub points_from: u64,
    /// Numbers that were overwritten before this look.
    pub points_lost: u64,
    /// Messages without an answer that nobody handled, so far.
    pub dead_letters: u64,
    /// Bytes in blobs that this process owns.
    pub blob_bytes: u64,
    /// Where its collectives are recorded.
    #[serde(default)]
    pub flow_log: Option<FlowLogName>,
    /// There is more to see at once, beside spans.
    pub more: bool,
    /// There are more spans.
    #[serde(default)]
    pub more_spans: bool,
}

impl Sight {
    /// Counts nothing as lost: what was overwritten before somebody came is not lost to them.
    const fn lost_nothing(&mut self) {
        self.spans_lost = 0;
        self.news_lost = 0;
        self.points_lost = 0;
    }
}

/// An actor that waits for another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitView {
    /// The actor that waits.
    pub who: ActorId,
    /// For whom.
    pub on: ActorId,
    /// The kind of wait: for an answer, or for room.
    pub how: WaitKind,
    /// The message that is asked or told.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
    /// The handler that asked cannot go on without it, as far as is known: it has not ended.
    pub in_handler: bool,
}

/// The kind of an actor's wait for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WaitKind {
    /// An answer.
    Answer,
    /// Room in its mailbox, or on the way there.
    Room,
}

/// The request of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LookOrder {
    subscriber: u64,
    /// The number of answers that have come.
    seen: u64,
}

/// The view of a process for one subscriber.
pub(crate) struct Looking;

impl Service for Looking {
    const ID: ServiceId = ServiceId(19);
    const NAME: &'static str = "a look at a process";
    type Request = LookOrder;
    type Answer = Sight;
}

/// The last view of a process before it leaves, since nobody can look at it after that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastSight {
    /// For whom it is: who has had so many answers of this process, and sees what is new since; whoever
    /// has had none sees all.
    pub(crate) subscriber: Option<(u64, u64)>,
    pub(crate) sight: Box<Sight>,
}

impl Notice for LastSight {
    const SERVICE: ServiceId = Looking::ID;
}

/// The last views of processes of this node.
#[derive(Debug, Default)]
pub(crate) struct LastSights(Mutex<VecDeque<Left>>);

#[derive(Debug)]
struct Left {
    at: Timestamp,
    view: ProcessView,
    /// By how many nanoseconds its clock was ahead, and how sure that is.
    ahead: (i64, Duration),
    last: LastSight,
}

/// The time that a last view waits for those who look, and the most spans, numbers and the like in
/// all of them: tens of megabytes. The oldest goes first.
const LAST_KEPT: Duration = Duration::from_secs(30);
const LAST_ROWS_MAX: usize = 100_000;

impl LastSights {
    /// A process that leaves has said what it has to show.
    pub(crate) fn keep(&self, view: ProcessView, link: &LinkView, last: LastSight) {
        let at = Clock::now();
        let ahead = ahead(link, last.sight.at, at, at);
        let mut kept = self.0.lock();
        kept.retain(|it| at.since(it.at) < LAST_KEPT);
        kept.push_back(Left {
            at,
            view,
            ahead,
            last,
        });
        let mut rows: usize = kept.iter().map(Left::rows).sum();
        while rows > LAST_ROWS_MAX
            && let Some(oldest) = kept.pop_front()
        {
            rows -= oldest.rows();
        }
    }
}

impl Left {
    /// About how much it is.
    const fn rows(&self) -> usize {
        let sight = &self.last.sight;
        1 + sight.actors.len() + sight.spans.len() + sight.news.len() + sight.points.len()
    }
}

/// Whoever looks at a process now and then.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<BTreeMap<u64, Subscriber>>);

/// The progress of one subscriber.
#[derive(Debug)]
struct Subscriber {
    last: Timestamp,
    answers: u64,
    rows: HashMap<ActorId, u64>,
    rings: Rings,
    /// Where it was in them before the last answer, which may not arrive.
    before: Rings,
}

/// The progress of a reader in the rings of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Rings {
    spans: SpanCursor,
    news: u64,
    points: u64,
}

/// Subscribers that a process remembers.
const SUBSCRIBERS_MAX: usize = 8;
/// The time for which it remembers one that stays away.
const ABSENCE_MAX: Duration = Duration::from_secs(60);
/// Bounds of one answer; there is more at the next.
const ROWS_MAX: usize = 4096;
const SPANS_MAX: usize = 4096;
/// Looks in a row for the sake of spans alone; the others are overwritten and counted.
const SPAN_LOOKS: usize = 4;
const WAITS_MAX: usize = 4096;
const NEWS_MAX: usize = 512;
const POINTS_MAX: usize = 4096;

impl Component for LastSights {}

impl Component for Subscribers {
    /// Leaves with the node what people would still have seen here.
    fn last_words(&self, engine: &Engine) {
        let uplink = engine.uplink.get().and_then(|node| engine.links.get(node));
        if let Some(link) = uplink {
            for last in self.show_last(engine) {
                link.push(&last.frame(), false);
            }
        }
    }
}

impl Engine {
    /// Whoever looks at it.
    pub(crate) fn subscribers(&self) -> &Subscribers {
        self.component::<Subscribers>()
    }

    /// The last views of the processes that it has started.
    pub(crate) fn last_sights(&self) -> &LastSights {
        self.component::<LastSights>()
    }
}

impl Subscribers {
    /// The part that each subscriber of an engine that leaves has not seen, and all of it for those
    /// to come.
    fn show_last(&self, engine: &Engine) -> Vec<LastSight> {
        let now = Clock::now();
        let mut subscribers = self.0.lock();
        subscribers.retain(|_, subscriber| now.since(subscriber.last) < ABSENCE_MAX);
        let mut last = vec![];
        for (number, subscriber) in subscribers.iter_mut() {
            // Nobody knows whether the last answer will arrive.
            let mut behind = Subscriber {
                rings: subscriber.before,
                ..Subscriber::new(now, subscriber.answers.saturating_sub(1))
            };
            for it in [&mut behind, subscriber] {
                last.push(LastSight {
                    subscriber: Some((*number, it.answers)),
                    sight: Box::new(it.look(engine, now, false)),
                });
            }
        }
        let mut whole = Subscriber::new(now, 0).look(engine, now, true);
        whole.lost_nothing();
        last.push(LastSight {
            subscriber: None,
            sight: Box::new(whole),
        });
        last
    }

    /// The rows, rings and counters of an engine, as far as this subscriber has not seen them.
    pub(crate) fn show(&self, engine: &Engine, order: LookOrder) -> Sight {
        let now = Clock::now();
        let mut subscribers = self.0.lock();
        subscribers.retain(|_, subscriber| now.since(subscriber.last) < ABSENCE_MAX);
        let known = subscribers.remove(&order.subscriber);
        let is_first = known.is_none();
        let (mut subscriber, anew) = match known {
            Some(known) if known.answers == order.seen => (known, false),
            // An answer got lost: what was in the rings then comes again.
            Some(known) => {
                let rings = known.before;
                let new = Subscriber::new(now, order.seen);
                (Subscriber { rings, ..new }, true)
            }
            None => (Subscriber::new(now, order.seen), true),
        };
        let mut sight = subscriber.look(engine, now, anew);
        if is_first {
            sight.lost_nothing();
        }
        subscriber.last = now;
        subscriber.answers += 1;
        while subscribers.len() >= SUBSCRIBERS_MAX {
            let longest = subscribers.iter().min_by_key(|(_, it)| it.last);
            let Some(longest) = longest.map(|(number, _)| *number) else {
                break;
            };
            subscribers.remove(&longest);
        }
        subscribers.insert(order.subscriber, subscriber);
        sight
    }
}

impl Subscriber {
    fn new(now: Timestamp, answers: u64) -> Self {
        Self {
            last: now,
            answers,
            rows: HashMap::new(),
            rings: Rings::default(),
            before: Rings::default(),
        }
    }

    fn look(&mut self, engine: &Engine, now: Timestamp, anew: bool) -> Sight {
        self.before = self.rings;
        let rings = &mut self.rings;
        let (spans, spans_lost) = engine.tracer.since(&mut rings.spans, SPANS_MAX);
        let (news, news_lost) = engine.journal.after(&mut rings.news, NEWS_MAX);
        let (points, points_lost) = engine.points().after(&mut rings.points, POINTS_MAX);
        let rings = *rings;
        let (actors, gone, hosted, more_actors) = self.actors(engine);
        let (waits, waits_left_out) = waits(engine);
        let more = more_actors || news.len() == NEWS_MAX || points.len() == POINTS_MAX;
        let more_spans = spans.len() == SPANS_MAX;
        Sight {
            process: engine.process,
            job: engine.job.clone(),
            at: now,
            anew,
            actors,
            gone,
            hosted,
            waits,
            waits_left_out,
            spans,
            spans_lost,
            going_on: engine.tracer.going_on(),
            span_counts: engine.tracer.counts(),
            ask_times: engine.tracer.ask_times(),
            news_from: rings.news - news.len() as u64 + 1,
            news,
            news_lost,
            points_from: rings.points - points.len() as u64 + 1,
            points,
            points_lost,
            dead_letters: engine
                .dead_letters
                .load(std::sync::atomic::Ordering::Relaxed),
            blob_bytes: engine.blobs().owned_bytes(),
            flow_log: engine.flow_log_name(),
            more,
            more_spans,
        }
    }

    /// Those that have changed, those that are gone, how many there are, and whether more have
    /// changed.
    fn actors(&mut self, engine: &Engine) -> (Vec<ActorView>, Vec<ActorId>, u32, bool) {
        let (mut changed, mut present) = (vec![], HashSet::new());
        let mut more = false;
        let mut see = |view: ActorView| {
            let id = view.id;
            present.insert(id);
            let digest = digest_of(&view);
            if self.rows.get(&id) == Some(&digest) {
                return;
            }
            more |= changed.len() == ROWS_MAX;
            if changed.len() < ROWS_MAX {
                self.rows.insert(id, digest);
                changed.push(view);
            }
        };
        super::each_actor(engine, &mut see);
        let mut gone: Vec<_> = self.rows.keys().copied().collect();
        gone.retain(|id| !present.contains(id));
        self.rows.retain(|id, _| present.contains(id));
        (changed, gone, present.len() as u32, more)
    }
}

/// A number that is another one when anything of the row is.
fn digest_of(view: &ActorView) -> u64 {
    let mut digest = IdHasher::default();
    digest.write_u64(u64::from(view.incarnation) << 8 | view.phase as u64);
    digest.write_u64(view.process.0);
    digest.write_u64(u64::from(view.queued) << 32 | u64::from(view.failed as u32));
    digest.write_u64(view.handled);
    digest.write_u64(view.changed.0);
    digest.write_u64(view.running.as_ref().map_or(0, |running| running.since.0));
    digest.finish()
}

/// The waits of a process's actors, and the number of those left out.
fn waits(engine: &Engine) -> (Vec<WaitView>, u32) {
    let (mut waits, mut left_out) = (vec![], 0);
    let mut see = |caller: &Caller, on, how, message: &str, since| {
        let Some(who) = caller.inside() else { return };
        if waits.len() == WAITS_MAX {
            left_out += 1;
            return;
        }
        let running = engine.cells.get(&who).and_then(|cell| cell.stats.running());
        let asked_by = caller.span.span_id;
        waits.push(WaitView {
            who,
            on,
            how,
            message: message.to_owned(),
            since,
            in_handler: running.is_some_and(|it| it.span == asked_by && asked_by != 0),
        });
    };
    engine.pending.each(|it| {
        see(&it.caller, it.actor, WaitKind::Answer, it.message, it.since);
    });
    engine.crowd.each(|it| {
        let how = match it.wait {
            WaitFor::Room => WaitKind::Room,
            WaitFor::Answer => WaitKind::Answer,
        };
        see(&it.caller, it.actor, how, it.message, it.since);
    });
    (waits, left_out)
}

/// Looks at a node, its workers and the drivers of its jobs, again and again.
#[derive(Debug)]
pub struct Watch {
    engine: Arc<Engine>,
    subscriber: u64,
    /// The number of answers that have come from each process.
    seen: BTreeMap<ProcessId, u64>,
    /// When it saw the last of processes that have left.
    left: BTreeMap<ProcessId, Timestamp>,
    names: Vec<(ActorId, String)>,
    meter: Meter,
    flows: FlowReaders,
}

/// The view of one node at one look, with its processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSight {
    /// The node's name.
    pub node: String,
    /// The process that is the node.
    pub process: ProcessId,
    /// When, by the node's clock.
    pub at: Timestamp,
    /// When, by the date of its machine: nanoseconds since 1970.
    pub unix_nanos: u64,
    /// Its processes, itself first.
    pub processes: Vec<ProcessSight>,
    /// Processes that have not answered in time.
    pub silent: Vec<ProcessId>,
    /// Threads of its processes that actors block.
    #[serde(default)]
    pub blocked: Vec<BlockedThread>,
    /// Its links to other nodes.
    pub links: Vec<LinkView>,
    /// Its hardware, who holds it, and who waits; left out by processes that are below a node.
    pub hardware: Option<Box<NodeView>>,
    /// Its machine.
    pub machine: MachineView,
    /// Ranks that do collectives in its processes, as their records have it since the look before.
    #[serde(default)]
    pub flows: Vec<(ProcessId, Vec<RankLook>)>,
    /// The names of actors that it knows, when they have changed.
    pub names: Option<Vec<(ActorId, String)>>,
}

/// A process of a node at one look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessSight {
    /// The view of the process itself.
    pub sight: Sight,
    /// The operating system's number.
    pub pid: Option<u32>,
    /// Its use of its machine, where the system tells.
    pub usage: Option<Usage>,
    /// The kind of process: the node, one that runs a job's `main`, or one that hosts actors.
    pub kind: ProcessKind,
    /// By how many nanoseconds its clock is ahead of the node's.
    pub ahead: i64,
    /// The true offset is no further away than this.
    pub ahead_error: Duration,
}

/// The purpose of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessKind {
    /// The node itself.
    Node,
    /// It runs the `main` of a job.
    Driver,
    /// It hosts actors.
    Worker,
}

impl Watch {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            subscriber: crate::base::random::number(),
            seen: BTreeMap::new(),
            left: BTreeMap::new(),
            names: vec![],
            meter: Meter::default(),
            flows: FlowReaders::default(),
        }
    }

    /// Looks at the node and gives what this watch has not seen before. A process that does not
    /// answer within `patience` is named as silent, and seen anew when it does.
    #[odeon_macros::boxed]
    pub async fn look(&mut self, patience: Duration) -> NodeSight {
        let engine = Arc::clone(&self.engine);
        let below: Vec<LinkView> = super::links(&engine);
        let (children, links): (Vec<_>, Vec<_>) = below.into_iter().partition(|it| it.is_worker);
        // Before those that have left are forgotten: who was looked at by this watch shows it the rest.
        let left = self.left(&engine);
        self.seen.retain(|process, _| {
            *process == engine.process || children.iter().any(|child| child.peer == *process)
        });
        let looks = children.iter().map(|child| {
            let order = self.order(child.peer);
            let engine = &engine;
            async move {
                let asked = Clock::now();
                let sight = engine.request::<Looking>(child.peer, &order, Some(patience));
                let sight = sight.await.ok_or(child.peer)?;
                let ahead = ahead(child, sight.at, asked, Clock::now());
                Ok((child.peer, sight, ahead))
            }
        });
        let looks: Vec<_> = looks.collect();
        let own = engine
            .subscribers()
            .show(&engine, self.order(engine.process));
        let mut sights = vec![self.took(own, ProcessKind::Node, (0, Duration::ZERO))];
        let started = engine.workers().list();
        let mut silent = vec![];
        for look in futures::future::join_all(looks).await {
            match look {
                Ok((child, sight, ahead)) => {
                    sights.push(self.took(sight, kind_of(&started, child), ahead));
                }
                Err(process) => silent.push(process),
            }
        }
        let mut pids_left = BTreeMap::new();
        for (view, sight, ahead) in left {
            let kind = kind_of(std::slice::from_ref(&view), view.process);
            pids_left.insert(view.process, view.pid);
            sights.push(self.took(sight, kind, ahead));
        }
        for sight in &mut sights {
            let view = started.iter().find(|it| it.process == sight.sight.process);
            sight.pid = match sight.kind {
                ProcessKind::Node => Some(std::process::id()),
                _ => {
                    let left = pids_left.get(&sight.sight.process).copied().flatten();
                    view.and_then(|view| view.pid).or(left)
                }
            };
            sight.usage = sight.pid.and_then(|pid| self.meter.process(pid));
        }
        let pids: Vec<_> = sights.iter().filter_map(|sight| sight.pid).collect();
        self.meter.keep(&pids);
        let flows = self.flows(&sights, &started);
        let (at, unix) = (Clock::now(), Clock::unix_time());
        NodeSight {
            node: engine.node.clone(),
            process: engine.process,
            at,
            unix_nanos: unix.as_nanos() as u64,
            processes: sights,
            silent,
            blocked: self.engine.component::<BlockedThreads>().told(),
            links,
            hardware: super::hardware(&engine).await.map(Box::new),
            machine: self.meter.machine(),
            flows,
            names: self.news_of_names(),
        }
    }

    /// The last views of processes that have left, for this watch. Each counts once.
    fn left(&mut self, engine: &Engine) -> Vec<(ProcessView, Sight, (i64, Duration))> {
        let now = Clock::now();
        self.left.retain(|_, at| now.since(*at) < 2 * LAST_KEPT);
        let mut kept = engine.last_sights().0.lock();
        kept.retain(|it| now.since(it.at) < LAST_KEPT);
        let mut shown = vec![];
        for left in kept.iter() {
            let process = left.view.process;
            let had = self.seen.get(&process).copied();
            let own = match left.last.subscriber {
                Some(subscriber) => subscriber == (self.subscriber, had.unwrap_or(0)),
                None => had.is_none(),
            };
            if !own || self.left.contains_key(&process) {
                continue;
            }
            self.left.insert(process, now);
            shown.push((left.view.clone(), (*left.last.sight).clone(), left.ahead));
        }
        // What was for this watch alone is of no use any more.
        kept.retain(|it| {
            let own = it.last.subscriber.is_some_and(|it| it.0 == self.subscriber);
            !(own && self.left.contains_key(&it.view.process))
        });
        shown
    }

    fn order(&self, process: ProcessId) -> LookOrder {
        LookOrder {
            subscriber: self.subscriber,
            seen: self.seen.get(&process).copied().unwrap_or(0),
        }
    }

    fn took(&mut self, sight: Sight, kind: ProcessKind, ahead: (i64, Duration)) -> ProcessSight {
        *self.seen.entry(sight.process).or_default() += 1;
        ProcessSight {
            sight,
            pid: None,
            usage: None,
            kind,
            ahead: ahead.0,
            ahead_error: ahead.1,
        }
    }

    /// The ranks in the processes of the node.
    fn flows(
        &mut self,
        sights: &[ProcessSight],
        started: &[ProcessView],
    ) -> Vec<(ProcessId, Vec<RankLook>)> {
        for ProcessSight { sight, .. } in sights {
            self.flows.know(sight.process, sight.flow_log);
        }
        // One that does not answer is there, and its records can be read.
        let own = self.engine.process;
        self.flows
            .keep(|process| process == own || started.iter().any(|it| it.process == process));
        self.flows.read()
    }

    fn news_of_names(&mut self) -> Option<Vec<(ActorId, String)>> {
        let names = self.engine.component::<NameTable>().of_actors();
        (names != self.names).then(|| {
            self.names.clone_from(&names);
            names
        })
    }
}

/// By how much the clock of a child is ahead and how sure that is: as its link has measured it, or as
/// this look does, between its question and its answer.
fn ahead(
    child: &LinkView,
    shown: Timestamp,
    asked: Timestamp,
    answered: Timestamp,
) -> (i64, Duration) {
    let half = answered.since(asked) / 2;
    let measured = child.clock_offset.zip(child.offset_error);
    match measured.filter(|(_, error)| *error <= half) {
        Some(measured) => measured,
        None => {
            let ahead = i128::from(shown.0) - i128::from(asked.after(half).0);
            (i64::try_from(ahead).unwrap_or(0), half)
        }
    }
}

fn kind_of(started: &[ProcessView], process: ProcessId) -> ProcessKind {
    let view = started.iter().find(|view| view.process == process);
    match view {
        Some(view) if view.is_driver => ProcessKind::Driver,
        _ => ProcessKind::Worker,
    }
}

impl NodeSight {
    /// The actors that wait for room on this node.
    #[must_use]
    pub fn waiting(&self) -> &[Waiting] {
        self.hardware.as_ref().map_or(&[], |view| &view.waiting)
    }

    /// Returns true if some process has more to show at once, after so many looks in a row. Spans
    /// may come faster than anybody can take them in: they are waited for no longer than a few
    /// looks.
    #[must_use]
    pub fn more(&self, looks: usize) -> bool {
        let spans = looks < SPAN_LOOKS;
        let mut sights = self.processes.iter().map(|process| &process.sight);
        sights.any(|sight| sight.more || (sight.more_spans && spans))
    }
}
