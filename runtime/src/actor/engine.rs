//! The engine of a process: what it hosts, what it keeps the rows of, and the links that lead out.
//!
//! A driver or daemon runs one as a node; every worker process runs one under its node. An actor is
//! found in three steps: hosted here; else by its row, when this process is its home; else over the
//! link that leads to its home.

mod carry_out;
pub(crate) mod component;
mod crash;
mod credit;
mod exits;
mod expiry;
mod inbound;
pub(crate) mod lives;
mod members;
mod owner;
mod place;
pub(crate) mod requests;
mod router;
pub(crate) mod routing;
mod row;
mod services;
pub(crate) mod serving;
mod supervisor;
pub(crate) mod ways;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::actor::actor_type::ActorTypes;
use crate::actor::cell::{ActorCell, Phase};
use crate::actor::pending::{Crowd, Pending};
use crate::actor::service_row::{Asked, ServiceRow};
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::failure::{Down, Failure, FailureKind, ProcessExit, Reason};
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::id_map::IdMap;
use crate::base::journal::{News, NewsKind};
use crate::base::limits::Limits;
use crate::base::message::Message;
use crate::base::recent::Recent;
use crate::base::trace::Tracer;
use crate::net::link::Link;
use crate::net::wire::{Call, Fact, Frame, Hello, Passage, VERSION};

use component::{Components, LinkEnd};
pub(crate) use credit::{Credit, Credits};
use exits::Exits;
use lives::Lives;
pub(crate) use members::{Life, Members, NewRow, Placing};
use requests::Requests;
use serving::Serving;
use ways::Ways;

/// All that a process keeps to host actors and to reach those of others.
pub(crate) struct Engine {
    me: Weak<Self>,
    pub(crate) process: ProcessId,
    pub(crate) job: String,
    pub(crate) node: String,
    pub(crate) limits: Limits,
    pub(crate) types: ActorTypes,
    pub(crate) tracer: Tracer,
    /// Events that people ask about later.
    pub(crate) journal: Recent<News>,
    pub(crate) pending: Pending,
    pub(crate) crowd: Arc<Crowd>,
    pub(crate) dead_letters: AtomicU64,
    /// The node above, when this is a worker.
    pub(crate) uplink: OnceLock<ProcessId>,
    runtime: tokio::runtime::Handle,
    /// The tasks of an engine inside another's process, which are dropped when it is killed.
    mortal: OnceLock<Mutex<JoinSet<()>>>,
    pub(crate) cells: IdMap<ActorId, Arc<ActorCell>>,
    pub(crate) members: Members,
    pub(crate) links: IdMap<ProcessId, Arc<Link>>,
    /// To processes behind a neighbour.
    pub(crate) ways: Ways,
    pub(crate) credits: Credits,
    /// Those that it has for other engines, by number.
    pub(crate) services: &'static [ServiceRow],
    components: Components,
    pub(crate) requests: Requests,
    /// Calls passed on between two other processes: (sender, call) to (neighbour, actor).
    pub(crate) forwards: IdMap<(ProcessId, u64), (ProcessId, ActorId)>,
    /// Those who have a life begin here, to be answered when it runs.
    awaiting_start: IdMap<ActorId, (Incarnation, Asked<Lives>)>,
    obituaries: Mutex<Obituaries>,
    /// The last ends of other processes.
    exits: Exits,
    closing: AtomicBool,
    failed: tokio::sync::watch::Sender<Option<Failure>>,
    /// The same, before those at the top have ended for it.
    failing: OnceLock<Failure>,
    /// `main` has heard of that.
    failure_heard: AtomicBool,
    /// Tasks that others wait for an answer of, and that take a while.
    pub(crate) answering: tokio::sync::watch::Sender<usize>,
    /// Questions of other engines that take a while.
    pub(crate) serving: Serving,
}

#[derive(Default)]
struct Obituaries {
    downs: HashMap<ActorId, Down>,
    order: VecDeque<ActorId>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("process", &self.process)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The time that an engine that closes waits for its last answers, and for what it has said to be
/// written.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The number of sweeps that an engine leaves out while nobody waits for an answer.
const IDLE_INTERVALS: u32 = 100;

/// The parts and settings that an engine is made from.
pub(crate) struct EngineConfig {
    pub(crate) process: ProcessId,
    pub(crate) job: String,
    pub(crate) node: String,
    pub(crate) limits: Limits,
    pub(crate) types: ActorTypes,
    /// Those that it has for other engines, by number.
    pub(crate) services: &'static [ServiceRow],
    pub(crate) components: Components,
}

impl Engine {
    /// Starts an engine in the calling tokio runtime.
    pub(crate) fn start(config: EngineConfig) -> Arc<Self> {
        let EngineConfig {
            process,
            job,
            node,
            limits,
            types,
            services,
            components,
        } = config;
        let runtime = tokio::runtime::Handle::current();
        let ways = Ways::new(limits.link_idle_timeout);
        let engine = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            process,
            job,
            node,
            types,
            tracer: Tracer::new(limits.trace_spans_max, limits.trace_sampling),
            journal: Recent::new(limits.news_max),
            credits: Credits::new(limits.credit_messages),
            limits,
            pending: Pending::default(),
            crowd: Arc::default(),
            dead_letters: AtomicU64::new(0),
            uplink: OnceLock::new(),
            runtime: runtime.clone(),
            mortal: OnceLock::new(),
            cells: IdMap::default(),
            members: Members::default(),
            links: IdMap::default(),
            ways,
            services,
            components,
            requests: Requests::default(),
            forwards: IdMap::default(),
            awaiting_start: IdMap::default(),
            obituaries: Mutex::default(),
            exits: Exits::default(),
            closing: AtomicBool::new(false),
            failed: tokio::sync::watch::channel(None).0,
            failing: OnceLock::new(),
            failure_heard: AtomicBool::new(false),
            answering: tokio::sync::watch::channel(0).0,
            serving: Serving::default(),
        });
        for component in engine.components.iter() {
            component.attach(&engine);
        }
        let sweeping = Arc::clone(&engine);
        engine.spawn_task(async move { sweeping.sweep_loop().await });
        engine
    }

    /// The same, to be kept.
    pub(crate) fn this(&self) -> Arc<Self> {
        let this = self.me.upgrade();
        this.expect("whoever calls an engine holds it")
    }

    pub(crate) fn spawn_task(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(future));
    }

    /// Boxed, so that all tasks are one kind to tokio, whose part of them is compiled once.
    fn spawn_boxed(&self, future: BoxFuture<'static, ()>) {
        let Some(mortal) = self.mortal.get() else {
            // Tasks end with their links, actors or the engine; nobody needs to join them.
            drop(self.runtime.spawn(future));
            return;
        };
        let mut tasks = mortal.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(future, &self.runtime);
    }

    /// Polls once, and leaves the rest to a task that [`Engine::close`] waits for.
    pub(crate) fn begin_task(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.begin_boxed(Box::pin(future));
    }

    fn begin_boxed(&self, mut future: BoxFuture<'static, ()>) {
        let _runtime = self.enter();
        if future.as_mut().now_or_never().is_none() {
            self.answering.send_modify(|tasks| *tasks += 1);
            let answering = self.answering.clone();
            self.spawn_task(async move {
                future.await;
                answering.send_modify(|tasks| *tasks -= 1);
            });
        }
    }

    pub(crate) const fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    pub(crate) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.runtime.enter()
    }

    async fn sweep_loop(self: Arc<Self>) {
        let interval = self.limits.sweep_interval;
        while !self.is_closing() {
            // Deadlines pass only while somebody waits; the rest is not urgent.
            let stirred = self.pending.stirred();
            let _ = Clock::timeout(interval * IDLE_INTERVALS, stirred).await;
            Clock::sleep(interval).await;
            for component in self.components.iter() {
                component.sweep(&self, Clock::now());
            }
            self.credits.sweep();
            self.expire();
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Beats on links whose tasks have no thread to do it.
    pub(crate) fn beat_late_links(&self) {
        let links: Vec<_> = self.links.iter().map(|link| Arc::clone(&link)).collect();
        links
            .iter()
            .for_each(|link| link.beat_if_late(&self.limits));
    }

    /// Ends everything in order: actors (youngest first), workers, links.
    pub(crate) async fn close(self: &Arc<Self>) {
        if self.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.end_children(ActorId::root(self.process)).await;
        for component in self.components.iter() {
            component.leave(self).await;
        }
        // Whoever has asked for an end hears of it.
        let mut answering = self.answering.subscribe();
        let answered = answering.wait_for(|tasks| *tasks == 0);
        drop(Clock::timeout(LAST_WORDS, answered).await);
        self.say_last_words();
        let links: Vec<_> = self.links.iter().map(|link| Arc::clone(&link)).collect();
        for link in &links {
            link.push(&Frame::Fact(Fact::Leaving), true);
            link.close("this side is leaving");
        }
        let written = futures::future::join_all(links.iter().map(|link| link.finished()));
        drop(Clock::timeout(LAST_WORDS, written).await);
        for (_, waiting) in self.pending.drain(|_| true) {
            let actor = waiting.actor;
            // What has left may have been handled.
            waiting.slot.fail(match waiting.via {
                Some(_) => AskError::LinkLost {
                    actor,
                    why: "this side is leaving".to_owned(),
                },
                None => AskError::Unreachable(actor),
            });
        }
        self.requests.close();
        for component in self.components.iter() {
            component.close();
        }
        self.pending.stir();
    }

    /// Leaves with the node what would be lost with this process.
    fn say_last_words(&self) {
        for component in self.components.iter() {
            component.last_words(self);
        }
    }

    // ---- finding and sending ----

    /// The neighbour on the way to a process.
    pub(crate) fn next_link(&self, process: ProcessId) -> Option<Arc<Link>> {
        if let Some(link) = self.links.get(&process) {
            return Some(Arc::clone(&link));
        }
        let hop = self.ways.to(process).map(|way| way.through);
        let hop = hop.or_else(|| self.uplink.get().copied())?;
        self.links.get(&hop).map(|link| Arc::clone(&link))
    }

    /// The neighbour by which a process is reached, which may be the process itself, or this one.
    pub(crate) fn way_to(&self, process: ProcessId) -> Option<ProcessId> {
        if process == self.process || self.links.contains_key(&process) {
            return Some(process);
        }
        self.ways.to(process).map(|way| way.through)
    }

    /// Returns true if there is a way to a process, which may be this one.
    pub(crate) fn reaches(&self, process: ProcessId) -> bool {
        process == self.process || self.next_link(process).is_some()
    }

    /// Returns true if another process is known to be reached from here, other than by asking the
    /// node.
    pub(crate) fn routes_to(&self, process: ProcessId) -> bool {
        self.links.contains_key(&process) || self.ways.to(process).is_some()
    }

    /// Sends a frame towards a process, or drops it when there is no way: its sender will hear of
    /// the loss of the link.
    pub(crate) fn send_to(&self, process: ProcessId, frame: &Frame) {
        if let Some(link) = self.next_link(process) {
            link.push(frame, true);
        }
    }

    pub(crate) fn send_reply(&self, call: u64, to: ProcessId, result: Result<Bytes, AskError>) {
        if to == self.process {
            return self.settle(call, result, Clock::now());
        }
        if let Some(link) = self.next_link(to) {
            let before = link
                .serving
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                    Some(n.saturating_sub(1))
                });
            link.push(&Frame::Reply { call, to, result }, before.unwrap_or(0) <= 1);
        }
    }

    /// The answer to a call of this process has come.
    fn settle(&self, call: u64, result: Result<Bytes, AskError>, at: Timestamp) {
        if let Some(waiting) = self.pending.take(call) {
            match result {
                Ok(payload) => waiting.slot.reply(&payload, at),
                Err(error) => waiting.slot.fail(error),
            }
        }
    }

    /// The node that this process belongs to; itself, when it is a node.
    pub(crate) fn domain(&self) -> ProcessId {
        self.uplink.get().copied().unwrap_or(self.process)
    }

    // ---- cells ----

    pub(crate) fn add_cell(&self, cell: &Arc<ActorCell>) {
        self.cells.insert(cell.id, Arc::clone(cell));
    }

    /// The actor is over in this process.
    pub(crate) fn remove_cell(&self, cell: &ActorCell, reason: Reason) {
        let down = Down {
            id: cell.id,
            incarnation: cell.incarnation(),
            reason,
        };
        self.note_down(down);
        // Another life of it may have been hosted since.
        let same = |_: &ActorId, known: &Arc<ActorCell>| std::ptr::eq(&raw const **known, cell);
        self.cells.remove_if(&cell.id, same);
    }

    pub(crate) fn note_down(&self, down: Down) {
        let mut obituaries = self.obituaries.lock();
        let id = down.id;
        // A failure says more than the stop that followed it.
        let replace = match obituaries.downs.get(&id) {
            Some(known) => down.incarnation > known.incarnation,
            None => true,
        };
        if replace && obituaries.downs.insert(id, down).is_none() {
            obituaries.order.push_back(id);
            if obituaries.order.len() > self.limits.obituaries_max
                && let Some(oldest) = obituaries.order.pop_front()
            {
                obituaries.downs.remove(&oldest);
            }
        }
    }

    /// Why an actor is dead, as far as this process knows.
    pub(crate) fn obituary(&self, id: ActorId) -> Down {
        let known = self.obituaries.lock().downs.get(&id).cloned();
        known.unwrap_or(Down {
            id,
            incarnation: 0,
            reason: Reason::Unknown,
        })
    }

    /// A tell that nobody will handle. That is natural at the end of a tree, and of news for who watched.
    pub(crate) fn dead_letter(&self, actor: ActorId, message: &str, down: &Down) {
        self.dead_letters.fetch_add(1, Ordering::Relaxed);
        if self.is_closing() || down.reason == Reason::Sibling || message == Down::NAME {
            tracing::info!(%actor, method = message, why = %down.reason, "dead letter at the end");
        } else {
            tracing::warn!(%actor, method = message, why = %down.reason, "dead letter");
        }
    }

    /// Answers a call that cannot be delivered; a tell becomes a dead letter and gives its credit back.
    pub(crate) fn refuse_call(&self, call: &Call, error: AskError) {
        if call.call == 0 {
            let ended = matches!(
                &error,
                AskError::Dead(down) | AskError::Died(down) if down.reason == Reason::Sibling
            );
            if ended || self.is_closing() {
                tracing::info!(actor = %call.to, from = %call.from, %error, "dead letter at the end");
            } else {
                tracing::warn!(actor = %call.to, from = %call.from, %error, "dead letter");
            }
            self.dead_letters.fetch_add(1, Ordering::Relaxed);
            if call.from == self.process {
                return self.credits.returned(call.to, ProcessId(0), 1);
            }
            let credit = Frame::Credit {
                actor: call.to,
                host: ProcessId(0),
                to: call.from,
                messages: 1,
            };
            self.send_to(call.from, &credit);
        } else {
            self.send_reply(call.call, call.from, Err(error));
        }
    }

    // ---- links and processes ----

    pub(crate) fn hello(&self) -> Hello {
        let mut hello = Hello {
            carries: self.carries(None),
            ..self.hello_again(Passage::Unsaid)
        };
        for component in self.components.iter() {
            component.greet(&mut hello);
        }
        hello
    }

    /// The hello of a link that goes on over another connection.
    pub(crate) fn hello_again(&self, session: Passage) -> Hello {
        Hello {
            version: VERSION,
            process: self.process,
            job: self.job.clone(),
            node: self.node.clone(),
            carries: vec![],
            names: vec![],
            session,
        }
    }

    /// Both sides have said hello. `ours` may be out of date by now; the other side hears the rest.
    pub(crate) fn link_up(self: &Arc<Self>, link: &Arc<Link>, hello: &Hello, ours: &Hello) {
        // What is still on the way over an older link would arrive after newer messages, so it is
        // lost, and what is lost with a link is whatever lives behind it.
        if let Some((_, older)) = self.links.remove(&link.peer) {
            older.close("a newer link took its place");
            let exit = lost_link(&older);
            self.lose_link(&older, &exit);
            self.credits.lose_way();
        }
        self.gain_neighbour(link.peer);
        self.links.insert(link.peer, Arc::clone(link));
        if !link.is_worker && self.uplink.get() != Some(&link.peer) {
            let news = News::new(NewsKind::NodeUp, format!("node {} is linked", link.node));
            self.journal.add(news.within(link.peer));
        }
        self.learn_ways(link, hello);
        for component in self.components.iter() {
            component.link_up(self, link, hello);
        }
        self.catch_up(link, ours);
    }

    /// Tells a neighbour what has changed since it was told this hello. What changes while that is
    /// told may have been told before it, so it goes on until nothing has changed.
    fn catch_up(&self, link: &Link, told: &Hello) {
        let mut told = told.clone();
        loop {
            let mut changed = self.catch_up_with_ways(link, &mut told);
            for component in self.components.iter() {
                changed |= component.catch_up(link, &mut told);
            }
            if !changed {
                return;
            }
        }
    }

    /// Tells every neighbour but the one that it came from.
    pub(crate) fn tell_neighbours(&self, frame: &Frame, except: ProcessId) {
        for link in self.links.iter().filter(|link| link.peer != except) {
            link.push(frame, true);
        }
    }

    /// A link has ended: with it the process behind it, unless its exit is reported otherwise.
    pub(crate) async fn link_down(self: &Arc<Self>, link: &Arc<Link>) {
        let mut end = LinkEnd::default();
        for component in self.components.iter() {
            let LinkEnd { exit, is_orderly } = component.link_down(self, link).await;
            end.exit = exit.or(end.exit);
            end.is_orderly |= is_orderly;
        }
        let is_ended = end.exit.is_some();
        let exit = match end.exit {
            // It may have been killed because of that.
            Some(exit) => ProcessExit {
                status: if link.is_given_up() {
                    format!("{}, since the link to it was {}", exit.status, link.why())
                } else {
                    exit.status
                },
                ..exit
            },
            None => lost_link(link),
        };
        let mine = |_: &ProcessId, known: &Arc<Link>| Arc::ptr_eq(known, link);
        if self.links.remove_if(&link.peer, mine).is_none() {
            return;
        }
        if is_ended {
            self.bury(link.peer);
        }
        if !self.is_closing() && !end.is_orderly {
            self.tell_of_loss(link, &exit);
        }
        self.lose_link(link, &exit);
        if self.uplink.get() == Some(&link.peer) {
            self.close().await;
        }
    }

    /// Notes that a neighbour is gone.
    fn tell_of_loss(&self, link: &Link, exit: &ProcessExit) {
        let news = match link.is_worker {
            true if exit.code == Some(0) => return,
            true => News::new(NewsKind::ProcessLost, format!("ended: {}", exit.status)),
            false => {
                let sentence = format!("node {} is gone: {}", link.node, exit.status);
                News::new(NewsKind::NodeDown, sentence)
            }
        };
        self.journal.add(news.within(link.peer));
    }

    /// Ends all that was under way over a link, and all that lives behind it.
    fn lose_link(self: &Arc<Self>, link: &Link, exit: &ProcessExit) {
        let behind = self.lose_neighbour(link.peer);
        self.exits.note(exit);
        self.lost_with_link(link, exit);
        self.process_down(exit, link.peer);
        for process in behind {
            let status = format!("{} on the way to it is gone: {}", link.peer, exit.status);
            let node = Some(link.node.clone());
            self.process_down(
                &ProcessExit {
                    process,
                    status,
                    code: None,
                    node,
                    fault: None,
                },
                link.peer,
            );
        }
    }

    /// Ends everything that was under way over a link.
    fn lost_with_link(&self, link: &Link, exit: &ProcessExit) {
        for (_, waiting) in self.pending.drain(|waiting| waiting.via == Some(link.peer)) {
            waiting.slot.fail(lost_call(waiting.actor, link, exit));
        }
        let forwarded: Vec<_> = self
            .forwards
            .iter()
            .filter(|entry| entry.value().0 == link.peer)
            .map(|entry| (*entry.key(), entry.value().1))
            .collect();
        for ((from, call), actor) in forwarded {
            self.forwards.remove(&(from, call));
            self.send_reply(call, from, Err(lost_call(actor, link, exit)));
        }
    }

    /// A process is gone: its requests, actors, orphans and names.
    pub(crate) fn process_down(self: &Arc<Self>, exit: &ProcessExit, heard_from: ProcessId) {
        let process = exit.process;
        self.exits.note(exit);
        let down = self.lose_way(exit);
        for component in self.components.iter() {
            component.process_down(self, exit);
        }
        // Whoever made a request finds the rest done.
        self.requests.process_down(process);
        self.credits.lose(process);
        self.tell_neighbours(&down, heard_from);
        for id in self.members.at(process) {
            let reason = Reason::Failed(exit.clone().into());
            self.process_gone(id, process, reason);
        }
        self.end_orphans(process, exit);
    }

    fn end_orphans(self: &Arc<Self>, home: ProcessId, exit: &ProcessExit) {
        use crate::actor::cell::Control;
        use crate::base::supervise::Orphans;
        let orphans: Vec<_> = self
            .cells
            .iter()
            .filter(|cell| cell.id.home == home)
            .map(|cell| Arc::clone(&cell))
            .collect();
        for cell in orphans {
            let grace = match cell.orphans {
                Orphans::Keep => continue,
                Orphans::Stop => Duration::ZERO,
                Orphans::StopAfter(grace) => grace,
            };
            let failure = Failure::new(FailureKind::NodeLost, "its supervisor's process is gone")
                .because(exit.clone().into());
            let engine = Arc::clone(self);
            self.spawn_task(async move {
                Clock::sleep(grace).await;
                // Its home has given it up, also when the way there is back.
                if cell.phase() != Phase::Over {
                    let (done, ended) = oneshot::channel();
                    cell.order(Control::Halt {
                        reason: Reason::Failed(failure),
                        keep_mail: false,
                        done: Some(done),
                    });
                    // It may have ended by itself meanwhile.
                    let _ = ended.await;
                    // Nobody is left who could release a worker that has nothing to do.
                    if engine.uplink.get().is_some() && engine.cells.is_empty() {
                        engine.close().await;
                    }
                }
            });
        }
    }
}

/// Why a link is closed whose other side said that it leaves.
pub(crate) const LEFT: &str = "the other side is leaving";

/// The end of a process as far as a lost link tells.
fn lost_link(link: &Link) -> ProcessExit {
    ProcessExit {
        process: link.peer,
        status: format!("the link to it was lost ({})", link.why()),
        code: None,
        node: Some(link.node.clone()),
        fault: None,
    }
}

fn lost_call(actor: ActorId, link: &Link, exit: &ProcessExit) -> AskError {
    if link.is_worker {
        let reason = Reason::Failed(exit.clone().into());
        AskError::Died(Down {
            id: actor,
            incarnation: 0,
            reason,
        })
    } else {
        AskError::LinkLost {
            actor,
            why: link.why(),
        }
    }
}
