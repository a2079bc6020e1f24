//! The rows of the actors that this process is home of, and what becomes of them: spawning,
//! starting again, stopping, watching. Verdicts come from [`crate::base::supervise`]; here they are
//! carried out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use odeon_devices::fault::GpuFault;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Engine;
use super::lives::{HostOrder, LifeRequest, Lives, Watching, halted};
use crate::actor::cell::{Cell, Control};
use crate::actor::placing::{Ask, Granted, Launched, Scheduling};
use crate::actor::placing::{DismissRequest, Dismissing, LaunchOrder, Launching};
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::failure::{Down, Failure, FailureKind, Reason};
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::id_map::IdMap;
use crate::base::journal::{News, NewsKind};
use crate::base::supervise::{Family, Restart, Supervision, Verdict};
use crate::net::service::Answered;
use crate::net::wire::{Call, Frame};

/// The catalog's part that this process writes: one row for each actor it is home of.
#[derive(Default)]
pub(crate) struct Members {
    rows: IdMap<ActorId, Row>,
    families: IdMap<ActorId, Arc<Kin>>,
    serial: AtomicU64,
    /// Numbers the restarts.
    restarts: AtomicU64,
}

impl Members {
    /// The number of the last actor.
    pub(crate) fn last_serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The next actor comes after this one.
    pub(crate) fn go_on_after(&self, serial: u64) {
        self.serial.store(serial, Ordering::Relaxed);
    }
}

/// Where an actor is, as its home knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Here,
    At(ProcessId),
    /// The way to its process has closed, and what became of that is not known yet; messages wait.
    Lost(ProcessId),
    /// Its process is gone; messages wait until it is placed again.
    Nowhere,
}

/// Where to send a message for an actor.
#[derive(PartialEq, Eq)]
pub(super) enum PlaceOf {
    At(ProcessId),
    Nowhere,
    /// It was here and is gone, or was never known.
    Gone,
    /// Another process is its home.
    Elsewhere,
}

/// A message that was not kept for an actor that is being placed.
pub(super) enum Unheld {
    /// Too many wait already.
    Full(Box<Call>),
    /// The actor has a place again, or is gone: look again.
    Moved(Box<Call>),
}

struct Row {
    /// The name of its type, for people.
    actor: &'static str,
    parent: ActorId,
    incarnation: Incarnation,
    place: Place,
    /// Set once the present incarnation has started.
    started: bool,
    /// Set once the present incarnation's end has been judged or is being judged.
    ended: bool,
    /// The number of the restart that is to begin the next life: of the latest verdict over it.
    restart: Option<u64>,
    /// The orders that place it; `None` for an actor that only lives here.
    order: Option<Placing>,
    /// Its lease where it lives.
    lease: Option<Granted>,
    /// Those that wait for it to start.
    starts: Vec<oneshot::Sender<Result<(), Down>>>,
    watchers: Vec<oneshot::Sender<Down>>,
    backlog: VecDeque<Held>,
}

/// A call that waits for its actor to be placed.
struct Held {
    call: Call,
    since: Timestamp,
}

/// The fate of the order to host an actor.
enum Hosted {
    /// It has left.
    Ordered(oneshot::Receiver<Answered<Lives>>),
    /// That life is not wanted any more.
    Unwanted,
    /// There is no way to the process: it is gone already.
    NoWay,
}

/// The orders that place an actor in another process, again and again.
#[derive(Clone, Debug)]
pub(crate) struct Placing {
    pub(crate) host: HostOrder,
    pub(crate) launch: LaunchOrder,
}

/// A life of an actor, as its home knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) incarnation: Incarnation,
    /// True if it has started and not ended.
    pub(crate) running: bool,
    /// Where it runs; `None` while it is on its way there.
    pub(crate) process: Option<ProcessId>,
}

/// An actor that has no place, as its home knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placeless {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    pub(crate) actor: &'static str,
    pub(crate) incarnation: Incarnation,
    /// Messages that wait for it here.
    pub(crate) held: u32,
}

/// The facts that a new row needs.
pub(crate) struct NewRow {
    pub(crate) actor: &'static str,
    pub(crate) parent: ActorId,
    pub(crate) restart: Restart,
    pub(crate) supervision: Supervision,
}

/// The beginning of another life, by where the actor is.
enum Begun {
    /// Resolves when it has started.
    Here(oneshot::Receiver<Result<(), Down>>),
    /// The order to the process that hosts it.
    At(Option<oneshot::Receiver<Answered<Lives>>>),
    Lost,
    Nowhere,
}

/// A supervisor's family and the right to end lives of it: one verdict at a time. The starts that
/// follow take no turn, or a slow one would hold up siblings that do not share its fate.
#[derive(Default)]
struct Kin {
    family: Mutex<Family>,
    turn: tokio::sync::Mutex<()>,
}

impl Members {
    pub(crate) fn contains(&self, id: ActorId) -> bool {
        self.rows.contains_key(&id)
    }

    pub(super) fn place_of(&self, id: ActorId, me: ProcessId) -> PlaceOf {
        match self.rows.get(&id).map(|row| row.place) {
            Some(Place::At(process)) => PlaceOf::At(process),
            Some(Place::Lost(_) | Place::Nowhere) => PlaceOf::Nowhere,
            Some(Place::Here) => PlaceOf::Gone,
            None if id.home == me => PlaceOf::Gone,
            None => PlaceOf::Elsewhere,
        }
    }

    /// Keeps a message for an actor that is being placed, or gives it back.
    pub(super) fn hold(&self, call: Call, most: usize) -> Result<(), Unheld> {
        match self.rows.get_mut(&call.to) {
            Some(mut row) if matches!(row.place, Place::Lost(_) | Place::Nowhere) => {
                if row.backlog.len() >= most {
                    return Err(Unheld::Full(Box::new(call)));
                }
                let since = Clock::now();
                row.backlog.push_back(Held { call, since });
                Ok(())
            }
            // Whoever placed it has sent the backlog on already.
            _ => Err(Unheld::Moved(Box::new(call))),
        }
    }

    /// Withdraws a held call.
    pub(super) fn drop_held(&self, to: ActorId, from: ProcessId, call: u64) {
        if let Some(mut row) = self.rows.get_mut(&to) {
            row.backlog
                .retain(|held| held.call.call != call || held.call.from != from);
        }
    }

    /// The actors placed in a process.
    pub(super) fn at(&self, process: ProcessId) -> Vec<ActorId> {
        let mut ids: Vec<_> = self
            .rows
            .iter()
            .filter(|row| [Place::At(process), Place::Lost(process)].contains(&row.place))
            .map(|row| *row.key())
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Its process is gone.
    pub(super) fn displace(&self, id: ActorId) {
        if let Some(mut row) = self.rows.get_mut(&id) {
            row.place = Place::Nowhere;
            row.lease = None;
        }
    }

    /// Numbers a restart of these actors. One that was to begin their next lives no longer does.
    fn plan_restart(&self, ids: &[ActorId]) -> u64 {
        let number = self.restarts.fetch_add(1, Ordering::Relaxed);
        for id in ids {
            if let Some(mut row) = self.rows.get_mut(id) {
                row.restart = Some(number);
            }
        }
        number
    }

    /// The way to the process of an actor has closed. Whether the actor was there.
    pub(super) fn lose(&self, id: ActorId, process: ProcessId) -> bool {
        match self.rows.get_mut(&id) {
            Some(mut row) if row.place == Place::At(process) => {
                row.place = Place::Lost(process);
                true
            }
            _ => false,
        }
    }

    /// The actors of this home that have no place at the moment.
    pub(crate) fn placeless(&self) -> Vec<Placeless> {
        let rows = self.rows.iter();
        let rows = rows.filter(|row| matches!(row.place, Place::Lost(_) | Place::Nowhere));
        let seen = rows.map(|row| Placeless {
            id: *row.key(),
            parent: row.parent,
            actor: row.actor,
            incarnation: row.incarnation,
            held: row.backlog.len() as u32,
        });
        seen.collect()
    }

    /// Every row: id, incarnation and where it is.
    pub(crate) fn list(&self) -> Vec<(ActorId, ActorId, Incarnation, Option<ProcessId>)> {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                let process = match row.place {
                    Place::Here => Some(row.key().home),
                    Place::At(process) => Some(process),
                    Place::Lost(_) | Place::Nowhere => None,
                };
                (*row.key(), row.parent, row.incarnation, process)
            })
            .collect();
        rows.sort_unstable_by_key(|row| row.0);
        rows
    }

    fn kin(&self, parent: ActorId, supervision: Supervision) -> Arc<Kin> {
        if let Some(kin) = self.families.get(&parent) {
            return Arc::clone(&kin);
        }
        let new = || {
            Arc::new(Kin {
                family: Mutex::new(Family::new(supervision)),
                ..Kin::default()
            })
        };
        Arc::clone(&self.families.entry(parent).or_insert_with(new))
    }
}

impl Engine {
    // ---- birth ----

    /// Writes the row of a new actor; the caller then hosts it here, or calls [`Engine::place`].
    pub(crate) fn new_member(&self, new: &NewRow, id: ActorId) {
        let row = Row {
            actor: new.actor,
            parent: new.parent,
            incarnation: 1,
            place: Place::Here,
            started: false,
            ended: false,
            restart: None,
            order: None,
            lease: None,
            starts: vec![],
            watchers: vec![],
            backlog: VecDeque::new(),
        };
        self.members.rows.insert(id, row);
        self.members
            .kin(new.parent, new.supervision)
            .family
            .lock()
            .adopt(id, new.restart);
    }

    /// A number for a new actor.
    pub(crate) fn new_id(&self) -> ActorId {
        let serial = self.members.serial.fetch_add(1, Ordering::Relaxed) + 1;
        ActorId {
            home: self.process,
            serial,
        }
    }

    /// Has room found for actors, all or none, by this node or the one above.
    pub(crate) async fn reserve(self: &Arc<Self>, asks: Vec<Ask>) -> Result<Vec<Granted>, Failure> {
        let answer = self.request::<Scheduling>(self.domain(), &asks, None);
        let answer = answer.await;
        answer.unwrap_or_else(|| Err(no_answer()))
    }

    /// Makes the row one that lives in another process, and places it.
    pub(crate) fn place(self: &Arc<Self>, id: ActorId, placing: Placing) {
        if let Some(mut row) = self.members.rows.get_mut(&id) {
            row.order = Some(placing);
            row.place = Place::Nowhere;
        }
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.place_now(id).await });
    }

    /// Resolves when the actor has started, or with its end when it will not.
    pub(crate) fn when_started(&self, id: ActorId) -> oneshot::Receiver<Result<(), Down>> {
        let (tell, told) = oneshot::channel();
        // The receiver is in our hands, so that the sends cannot fail.
        match self.members.rows.get_mut(&id) {
            Some(row) if row.started => {
                let _ = tell.send(Ok(()));
            }
            Some(mut row) => row.starts.push(tell),
            None => {
                let _ = tell.send(Err(self.obituary(id)));
            }
        }
        told
    }

    /// Resolves when the present life of the actor runs, or the next one when it has ended; or with
    /// its end when there will be none.
    pub(crate) fn when_running(&self, id: ActorId) -> oneshot::Receiver<Result<(), Down>> {
        if let Some(mut row) = self.members.rows.get_mut(&id)
            && row.ended
        {
            let (tell, told) = oneshot::channel();
            row.starts.push(tell);
            return told;
        }
        self.when_started(id)
    }

    /// The life of an actor that this process is the home of.
    pub(crate) fn life_of(&self, id: ActorId) -> Option<Life> {
        let row = self.members.rows.get(&id)?;
        Some(Life {
            incarnation: row.incarnation,
            running: row.started && !row.ended,
            process: match row.place {
                Place::Here => Some(self.process),
                Place::At(process) => Some(process),
                Place::Lost(_) | Place::Nowhere => None,
            },
        })
    }

    /// Finds a process for an actor and has it hosted there.
    async fn place_now(self: &Arc<Self>, id: ActorId) {
        let Some((placing, incarnation)) = self.members.rows.get(&id).and_then(|row| {
            (row.place == Place::Nowhere && !row.ended).then_some(())?;
            Some((row.order.clone()?, row.incarnation))
        }) else {
            return;
        };
        let mut launch = placing.launch.clone();
        if let Some(ask) = &mut launch.ask {
            ask.again = incarnation > 1;
        }
        let launched = match self.launch_where_it_lived(id, incarnation, launch).await {
            Ok(launched) => launched,
            Err(failure) if incarnation == 1 && failure.kind == FailureKind::NotPlaced => {
                // It never lived: whoever spawned it hears why, and there is nothing to restart.
                if let Some(parent) = self.members.rows.get(&id).map(|row| row.parent)
                    && let Some(kin) = self
                        .members
                        .families
                        .get(&parent)
                        .map(|kin| Arc::clone(&kin))
                {
                    kin.family.lock().remove(id);
                }
                return self.dispose(id, Reason::Failed(failure)).await;
            }
            Err(failure) => return self.ended(id, Some(incarnation), Reason::Failed(failure)),
        };
        let Launched {
            process,
            lease,
            devices,
        } = launched;
        let host = HostOrder {
            incarnation,
            devices,
            ..placing.host
        };
        let shared = host_is_shared(&placing.launch);
        match self.host_at(id, process, lease, host) {
            Hosted::Ordered(answered) => self.begun(id, incarnation, answered.await),
            Hosted::Unwanted if shared => {}
            Hosted::Unwanted => self.release(process, lease).await,
            Hosted::NoWay => {
                let what = "its process was gone before it could be hosted there";
                let failure = Failure::new(FailureKind::ProcessLost, what);
                self.ended(id, Some(incarnation), Reason::Failed(failure));
            }
        }
    }

    /// The process that was to begin a life has answered, or is gone, which ends the life too. How a
    /// life ended is reported before the answer; this tells the ends that nobody reports.
    fn begun<E>(
        self: &Arc<Self>,
        id: ActorId,
        life: Incarnation,
        answer: Result<Answered<Lives>, E>,
    ) {
        match answer {
            Ok(Ok(Ok(()))) => self.note_started(id),
            Ok(Ok(Err(failure)) | Err(failure)) => {
                self.ended(id, Some(life), Reason::Failed(failure));
            }
            Err(_) => {}
        }
    }

    /// Sends the order and after it the messages that waited, in one go, so that none overtakes.
    fn host_at(
        &self,
        id: ActorId,
        process: ProcessId,
        lease: Option<Granted>,
        host: HostOrder,
    ) -> Hosted {
        let wanted = self.members.rows.get_mut(&id).filter(|row| {
            row.incarnation == host.incarnation && row.place == Place::Nowhere && !row.ended
        });
        let Some(mut row) = wanted else {
            return Hosted::Unwanted;
        };
        let Some(link) = self.next_link(process) else {
            return Hosted::NoWay;
        };
        let answered = self.queue_request::<Lives>(&link, process, &LifeRequest::Host(host));
        row.place = Place::At(process);
        row.lease = lease;
        // It was for the first life.
        if let Some(placing) = &mut row.order {
            placing.launch.claim = None;
        }
        let now = Clock::now();
        for Held { mut call, since } in row.backlog.drain(..) {
            call.at = process;
            call.budget = call.budget.saturating_sub(now.since(since));
            let waits = match call.call {
                0 => true,
                key if call.from == self.process => self.pending.sent_via(key, Some(link.peer)),
                key => {
                    self.forwards.insert((call.from, key), (link.peer, call.to));
                    true
                }
            };
            if waits {
                link.push(&Frame::Call(call), false);
            }
        }
        Hosted::Ordered(answered)
    }

    /// Launches. Who has lived on a node that is away now waits for it, as for room there: that is no
    /// failure of its own, and would soon be more of them than its supervisor bears.
    async fn launch_where_it_lived(
        self: &Arc<Self>,
        id: ActorId,
        life: Incarnation,
        order: LaunchOrder,
    ) -> Result<Launched, Failure> {
        let waits = life > 1 && order.ask.is_none() && order.node.is_some();
        let until = Clock::now().after(self.limits.placement_timeout);
        let is_wanted = || {
            let row = self.members.rows.get(&id);
            row.is_some_and(|row| row.incarnation == life && !row.ended)
        };
        loop {
            let launched = self.launch(order.clone()).await;
            let left = until.left(Clock::now());
            match launched {
                Err(failure)
                    if waits
                        && failure.kind == FailureKind::NotPlaced
                        && !left.is_zero()
                        && !self.is_closing()
                        && !self.is_held()
                        && is_wanted() =>
                {
                    tracing::debug!(actor = %id, %failure, "waiting for its node");
                    Clock::sleep(left.min(self.limits.heartbeat_interval)).await;
                }
                launched => return launched,
            }
        }
    }

    /// Has the node start a worker, or starts one when this is the node.
    async fn launch(self: &Arc<Self>, order: LaunchOrder) -> Result<Launched, Failure> {
        let answer = self.request::<Launching>(self.domain(), &order, None);
        let answer = answer.await;
        answer.unwrap_or_else(|| Err(no_answer()))
    }

    // ---- a life begins ----

    /// A hosted actor runs: tell its home.
    pub(crate) fn started(&self, cell: &Cell) {
        if !self.tell_started(cell.id) && cell.id.home == self.process {
            self.note_started(cell.id);
        }
    }

    pub(super) fn note_started(&self, id: ActorId) {
        let starts = match self.members.rows.get_mut(&id) {
            Some(mut row) => {
                row.started = true;
                std::mem::take(&mut row.starts)
            }
            None => return,
        };
        for start in starts {
            // Whoever spawned it may have stopped waiting.
            let _ = start.send(Ok(()));
        }
    }

    /// Begins the next life of an actor, where it is or in a new place, and waits until it runs or
    /// has failed again. Nothing happens when the actor is gone, or a later restart will begin it.
    async fn begin_life(self: &Arc<Self>, id: ActorId, restart: u64) {
        let (begun, incarnation) = {
            let Some(mut row) = self.members.rows.get_mut(&id) else {
                return;
            };
            if row.restart.take_if(|latest| *latest == restart).is_none() {
                return;
            }
            row.incarnation += 1;
            row.started = false;
            row.ended = false;
            let incarnation = row.incarnation;
            tracing::info!(actor = row.actor, %id, incarnation, "restarting");
            let news = News::new(NewsKind::Restarted, format!("life {incarnation} begins"));
            self.journal.add(news.of(id, row.actor, incarnation));
            // Ordered while the row is held: an end that is ordered later arrives later.
            let begun = match row.place {
                Place::Here => {
                    let (tell, told) = oneshot::channel();
                    row.starts.push(tell);
                    if let Some(cell) = self.cells.get(&id) {
                        cell.order(Control::Start(incarnation));
                    }
                    Begun::Here(told)
                }
                Place::At(process) => {
                    let start = LifeRequest::Start { id, incarnation };
                    Begun::At(self.begin_request::<Lives>(process, &start))
                }
                Place::Lost(_) => Begun::Lost,
                Place::Nowhere => Begun::Nowhere,
            };
            (begun, incarnation)
        };
        match begun {
            Begun::Here(started) => self.settled(id, incarnation, started).await,
            Begun::At(Some(answered)) => self.begun(id, incarnation, answered.await),
            // It begins when the process is known to be gone, which ends this life too.
            Begun::At(None) | Begun::Lost => {}
            Begun::Nowhere => self.place_now(id).await,
        }
    }

    /// Waits until an actor that was told to start runs, or its end has been noticed.
    async fn settled(
        &self,
        id: ActorId,
        incarnation: Incarnation,
        started: oneshot::Receiver<Result<(), Down>>,
    ) {
        let mut started = started;
        loop {
            let pause = self.limits.sweep_interval;
            match Clock::timeout(pause, &mut started).await {
                Some(_) => return,
                None => {
                    let over = self
                        .members
                        .rows
                        .get(&id)
                        .is_none_or(|row| row.ended || row.incarnation != incarnation);
                    if over {
                        return;
                    }
                }
            }
        }
    }

    // ---- a life ends ----

    /// A hosted actor's life ended: tell its home.
    pub(crate) fn life_ended(self: &Arc<Self>, cell: &Cell, reason: Reason) {
        let reason = on_this_node(reason, cell);
        let (id, incarnation) = (cell.id, cell.incarnation());
        self.note_down(Down {
            id,
            incarnation,
            reason: reason.clone(),
        });
        if id.home == self.process {
            return self.ended(id, Some(incarnation), reason);
        }
        let starting = self.awaiting_start.remove(&id);
        let not_started = Failure::error(&reason);
        let ended = LifeRequest::Ended {
            id,
            incarnation,
            reason,
        };
        self.tell::<Lives>(id.home, &ended);
        // After the report, which says more.
        if let Some((_, asked)) = starting {
            asked.answer(self, &Err(not_started));
        }
    }

    /// The home's side: watchers hear of it, and the verdict follows. `incarnation` is `None` when
    /// the end is the place's, whatever lived there.
    pub(super) fn ended(
        self: &Arc<Self>,
        id: ActorId,
        incarnation: Option<Incarnation>,
        reason: Reason,
    ) {
        let (parent, down, watchers) = {
            let Some(mut row) = self.members.rows.get_mut(&id) else {
                return;
            };
            if row.ended || incarnation.is_some_and(|incarnation| incarnation != row.incarnation) {
                return;
            }
            row.ended = true;
            let down = Down {
                id,
                incarnation: row.incarnation,
                reason,
            };
            // Whoever looks at the row from now on finds out why.
            self.note_down(down.clone());
            (row.parent, down, std::mem::take(&mut row.watchers))
        };
        tracing::debug!(%down, "a life ended");
        for watcher in watchers {
            // A watcher that is gone needs no notice.
            let _ = watcher.send(down.clone());
        }
        let engine = Arc::clone(self);
        self.spawn_task(async move {
            engine.replace_process(&down).await;
            engine.judge(parent, down).await;
        });
    }

    async fn judge(self: Arc<Self>, parent: ActorId, down: Down) {
        let Some(kin) = self
            .members
            .families
            .get(&parent)
            .map(|kin| Arc::clone(&kin))
        else {
            // The family ended with its parent's life, and so does the child.
            let actor = self.members.rows.get(&down.id).map(|row| row.actor);
            if let Some(actor) = actor {
                self.tell_failure(actor, &down, "its supervisor has ended", true);
            }
            return self.dispose(down.id, down.reason).await;
        };
        let turn = kin.turn.lock().await;
        // A sibling's verdict may have begun another life meanwhile, or be about to.
        let current = self.members.rows.get(&down.id).and_then(|row| {
            let pending = row.incarnation == down.incarnation && row.ended;
            (pending && row.restart.is_none()).then_some(row.actor)
        });
        let Some(actor) = current else { return };
        let verdict = kin.family.lock().judge(
            down.id,
            &down.reason,
            Clock::now(),
            crate::base::random::fraction(),
        );
        self.tell_verdict(actor, &down, &verdict);
        match verdict {
            Verdict::Forget => self.dispose(down.id, down.reason).await,
            Verdict::Restart { halt, start, wait } => {
                tracing::warn!(actor, id = %down.id, why = %down.reason, ?wait, "it will restart");
                let restart = self.members.plan_restart(&start);
                let mut blocked = vec![];
                for id in halt {
                    let keep_mail = start.contains(&id);
                    if !keep_mail {
                        self.dispose(id, Reason::Sibling).await;
                    } else if !self.halt(id, Reason::Sibling, true).await {
                        blocked.push(id);
                    }
                }
                drop(turn);
                Clock::sleep(wait).await;
                for id in start {
                    if blocked.contains(&id) {
                        // Its next life begins when the last one lets go of its thread.
                        let engine = Arc::clone(&self);
                        self.spawn_task(async move { engine.begin_life(id, restart).await });
                    } else {
                        self.begin_life(id, restart).await;
                    }
                }
            }
            Verdict::Escalate(failure) => {
                drop(turn);
                self.escalate(parent, &kin, failure).await;
            }
        }
    }

    /// Notes a failure, and what its supervisor does about it.
    fn tell_verdict(&self, actor: &str, down: &Down, verdict: &Verdict) {
        let follows = match verdict {
            Verdict::Forget => "it is not started again".to_owned(),
            Verdict::Restart { wait, start, .. } if start.len() > 1 => {
                format!("it and {} others restart in {wait:.0?}", start.len() - 1)
            }
            Verdict::Restart { wait, .. } => format!("it restarts in {wait:.0?}"),
            Verdict::Escalate(_) => "its supervisor gives up".to_owned(),
        };
        let ends = matches!(verdict, Verdict::Forget | Verdict::Escalate(_));
        self.tell_failure(actor, down, &follows, ends);
    }

    /// Notes a failure and what follows, if it is one; whether the actor begins no other life.
    fn tell_failure(&self, actor: &str, down: &Down, follows: &str, ends: bool) {
        if let Reason::Failed(failure) = &down.reason {
            let news = News::new(NewsKind::Failed, format!("{failure}; {follows}"));
            let news = news.of(down.id, actor, down.incarnation).ending(ends);
            self.journal.add(news.because(&down.reason));
        }
    }

    /// The children are more than this supervisor can mend: they end, and so does it.
    async fn escalate(self: &Arc<Self>, parent: ActorId, kin: &Arc<Kin>, failure: Failure) {
        let supervisor = self
            .cells
            .get(&parent)
            .map(|cell| (Arc::clone(&cell), cell.incarnation()));
        let present = self
            .members
            .families
            .get(&parent)
            .is_some_and(|family| Arc::ptr_eq(&family, kin));
        if !present {
            // That life of the supervisor is over, and another must not pay for it.
            return;
        }
        self.end_children(parent).await;
        if parent.is_root() {
            return self.fail(failure);
        }
        if let Some((cell, incarnation)) = supervisor {
            cell.order(Control::End {
                incarnation,
                reason: Reason::Failed(failure),
            });
        }
    }

    /// Ends all children of an actor, the youngest first.
    pub(crate) async fn end_children(self: &Arc<Self>, parent: ActorId) {
        let Some((_, kin)) = self.members.families.remove(&parent) else {
            return;
        };
        let children: Vec<_> = kin.family.lock().children().rev().collect();
        for child in children {
            self.dispose(child, Reason::Sibling).await;
        }
    }

    /// Stops an actor for good, wherever its home is.
    pub(crate) async fn stop_actor(self: &Arc<Self>, id: ActorId) -> Result<(), AskError> {
        if id.home != self.process {
            let stop = LifeRequest::Stop(id);
            return match self.request::<Lives>(id.home, &stop, None).await {
                Some(Ok(())) => Ok(()),
                _ => Err(AskError::Unreachable(id)),
            };
        }
        let Some(parent) = self.members.rows.get(&id).map(|row| row.parent) else {
            return Ok(());
        };
        if let Some(kin) = self
            .members
            .families
            .get(&parent)
            .map(|kin| Arc::clone(&kin))
        {
            kin.family.lock().remove(id);
        }
        self.dispose(id, Reason::Stopped).await;
        Ok(())
    }

    /// Ends the present life of an actor as a failure of its own would, wherever its home is: its
    /// supervisor decides what follows, and counts it.
    pub(crate) async fn fail_actor(
        self: &Arc<Self>,
        id: ActorId,
        failure: Failure,
    ) -> Result<(), AskError> {
        if id.home != self.process {
            let fail = LifeRequest::Fail { id, failure };
            return match self.request::<Lives>(id.home, &fail, None).await {
                Some(Ok(())) => Ok(()),
                _ => Err(AskError::Unreachable(id)),
            };
        }
        let living = self.members.rows.get(&id).and_then(|row| {
            let present = (row.parent, row.incarnation);
            (!row.ended).then_some(present)
        });
        // One that has ended has what was asked for.
        let Some((parent, incarnation)) = living else {
            return Ok(());
        };
        let reason = Reason::Failed(failure);
        if !self.halt(id, reason.clone(), true).await {
            return Err(AskError::Unreachable(id));
        }
        let down = Down {
            id,
            incarnation,
            reason,
        };
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.judge(parent, down).await });
        Ok(())
    }

    /// Ends the present life of an actor and waits until it is over. Whether it is: a handler that
    /// blocks its thread cannot be ended, unless it has a process of its own, which then is.
    async fn halt(self: &Arc<Self>, id: ActorId, reason: Reason, keep_mail: bool) -> bool {
        let Some((place, down, watchers)) = self.members.rows.get_mut(&id).map(|mut row| {
            row.ended = true;
            let down = Down {
                id,
                incarnation: row.incarnation,
                reason: reason.clone(),
            };
            // Of an actor that ends for good, watchers hear when its row goes.
            let watchers = if keep_mail {
                std::mem::take(&mut row.watchers)
            } else {
                vec![]
            };
            (row.place, down, watchers)
        }) else {
            return true;
        };
        let over = match place {
            Place::Here => match self.cells.get(&id).map(|cell| Arc::clone(&cell)) {
                Some(cell) => self.halt_here(&cell, reason, keep_mail).await,
                None => true,
            },
            Place::At(process) => self.halt_at(id, process, reason, keep_mail).await,
            Place::Lost(_) | Place::Nowhere => true,
        };
        let mut watchers = watchers;
        if keep_mail {
            self.note_down(down.clone());
            if let Some(mut row) = self.members.rows.get_mut(&id) {
                watchers.append(&mut row.watchers);
            }
        }
        for watcher in watchers {
            let _ = watcher.send(down.clone());
        }
        over
    }

    /// Ends the life of an actor that this process hosts. Whether it has ended.
    pub(super) async fn halt_here(&self, cell: &Cell, reason: Reason, keep_mail: bool) -> bool {
        let (done, ended) = oneshot::channel();
        cell.order(Control::Halt {
            reason,
            keep_mail,
            done: Some(done),
        });
        // An actor that went down by itself in the meantime has ended as well.
        let over = Clock::timeout(self.limits.stop_grace * 3, ended).await;
        if over.is_none() {
            tracing::error!(actor = %cell.id, "it blocks its thread and cannot be ended");
            if !keep_mail {
                self.cells.remove(&cell.id);
            }
        }
        self.not_started(cell.id, halted());
        over.is_some()
    }

    /// The same for one that another process hosts.
    async fn halt_at(
        self: &Arc<Self>,
        id: ActorId,
        process: ProcessId,
        reason: Reason,
        keep_mail: bool,
    ) -> bool {
        let halt = LifeRequest::Halt {
            id,
            reason,
            keep_mail,
        };
        let patience = Some(self.limits.stop_grace * 4);
        if let Some(Ok(())) = self.request::<Lives>(process, &halt, patience).await {
            return true;
        }
        // Its process is gone, which ends the life as well, or it blocks its thread there.
        let alone = self.members.rows.get(&id).is_some_and(|row| {
            row.order
                .as_ref()
                .is_some_and(|placing| !host_is_shared(&placing.launch))
        });
        if alone {
            let lease = self.members.rows.get(&id).and_then(|row| row.lease);
            if lease.is_some() {
                // Others may have leases there, but it computes on the devices as long as it runs.
                let why = format!("actor {id} blocks its thread and had to end");
                self.retire(process, None, &why).await;
            } else {
                self.release(process, None).await;
            }
            self.members.displace(id);
        }
        alone || !self.routes_to(process)
    }

    /// Ends an actor for good: its life, its row, its names; whoever waits for it hears why.
    pub(super) async fn dispose(self: &Arc<Self>, id: ActorId, reason: Reason) {
        self.halt(id, reason.clone(), false).await;
        let Some((_, row)) = self.members.rows.remove(&id) else {
            return;
        };
        self.note_down(Down {
            id,
            incarnation: row.incarnation,
            reason,
        });
        let down = self.obituary(id);
        for component in self.components.iter() {
            component.actor_over(self, id);
        }
        // Whoever waits for some looks again, and hears of the end.
        self.credits.forget(id);
        for start in row.starts {
            let _ = start.send(Err(down.clone()));
        }
        for watcher in row.watchers {
            let _ = watcher.send(down.clone());
        }
        for held in row.backlog {
            self.refuse_call(&held.call, AskError::Dead(down.clone()));
        }
        if let (Some(placing), Place::At(process)) = (row.order, row.place)
            && !host_is_shared(&placing.launch)
        {
            self.release(process, row.lease).await;
        }
    }

    /// Gives a worker process of its own, or a lease in one, back to its node.
    async fn release(self: &Arc<Self>, process: ProcessId, lease: Option<Granted>) {
        // No answer means that the node is gone, and its workers with it.
        let release = DismissRequest::Release { process, lease };
        let _ = self
            .request::<Dismissing>(self.domain(), &release, None)
            .await;
    }

    /// Ends a worker process that must not be used again, wherever it runs, and waits until it is
    /// gone.
    pub(crate) async fn retire(&self, process: ProcessId, fault: Option<GpuFault>, why: &str) {
        let why = why.to_owned();
        let retire = DismissRequest::Retire {
            process,
            fault,
            why,
        };
        // No answer means that the node is gone, and its workers with it.
        let _ = self
            .request::<Dismissing>(self.domain(), &retire, None)
            .await;
    }

    /// When a device failed under a life, its process is ended and the device seen to, whatever the
    /// verdict will be.
    async fn replace_process(self: &Arc<Self>, down: &Down) {
        let Reason::Failed(failure) = &down.reason else {
            return;
        };
        let Some(fault) = failure.replaces_process() else {
            return;
        };
        let own = |row: &Row| row.ended && row.incarnation == down.incarnation;
        let place = self.members.rows.get(&down.id);
        let place = place.filter(|row| own(row)).map(|row| row.place);
        if let Some(Place::At(process)) = place {
            let why = fault.to_string();
            self.retire(process, Some(fault), &why).await;
            self.members.displace(down.id);
        }
    }

    // ---- watching ----

    /// Resolves when the present life of an actor ends; at once when it has.
    pub(crate) fn watch(
        self: &Arc<Self>,
        id: ActorId,
    ) -> impl Future<Output = Down> + Send + use<> {
        let engine = Arc::clone(self);
        let (tell, told) = oneshot::channel();
        let here = id.home == self.process;
        let mut known = !here;
        if here && let Some(mut row) = self.members.rows.get_mut(&id) {
            // While it is being ended, nobody can say why yet.
            known = !row.ended || self.obituary(id).incarnation < row.incarnation;
            if known {
                row.watchers.push(tell);
            }
        }
        async move {
            if !known {
                return engine.obituary(id);
            }
            if here {
                return told.await.unwrap_or_else(|_| engine.obituary(id));
            }
            let answer = engine.request::<Watching>(id.home, &id, None).await;
            answer.unwrap_or_else(|| {
                let failure =
                    Failure::new(FailureKind::NodeLost, "its home process is out of reach");
                Down {
                    id,
                    incarnation: 0,
                    reason: Reason::Failed(failure),
                }
            })
        }
    }
}

/// Returns true if other actors may live in the process that an order gives.
fn host_is_shared(launch: &LaunchOrder) -> bool {
    launch.shared.is_some()
}

/// A process numbers its devices by itself; from here on a fault names the device of the node.
fn on_this_node(reason: Reason, cell: &Cell) -> Reason {
    let Reason::Failed(mut failure) = reason else {
        return reason;
    };
    if let FailureKind::Gpu(fault) = &mut failure.kind
        && let Some(device) = cell.devices.iter().find(|own| own.ordinal == fault.device)
    {
        let as_seen = fault.to_string();
        fault.device = device.index;
        if failure.message == as_seen {
            failure.message = fault.to_string();
        }
    }
    Reason::Failed(failure)
}

/// A question that the node has left open.
fn no_answer() -> Failure {
    Failure::new(FailureKind::NodeLost, "the node did not answer")
}
