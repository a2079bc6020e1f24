//! Events of rows, and the commands that follow from them carried out: [`super::row`] says which.
//!
//! What goes to a cell or over a link is given to it while the row is locked, so that what is ordered
//! later arrives later. Those who wait are told when it is not locked any more, and what takes time
//! comes last.

use std::sync::Arc;

use odeon_devices::fault::GpuFault;
use tokio::sync::oneshot;

use super::Engine;
use super::lives::{HostOrder, LifeRequest, Lives, Watching, halted};
use super::members::{Held, Row, Started};
use super::requests::Sent;
use super::row::{Command, Event, RowState};
use crate::actor::cell::{ActorCell, Control};
use crate::actor::placing::{DismissRequest, Dismissing, Granted};
use crate::base::clock::Clock;
use crate::base::error::AskError;
use crate::base::failure::{Down, Failure, FailureKind, Reason};
use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::journal::{News, NewsKind};
use crate::net::link::Link;
use crate::net::service::Answered;
use crate::net::wire::{Call, Frame};

/// The part of what follows from an event that takes time.
pub(super) enum Rest {
    Nothing,
    /// A life that begins here.
    Runs(oneshot::Receiver<Started>),
    /// A life that another process was told to begin; `None` without a way there.
    Begins(Option<oneshot::Receiver<Answered<Lives>>>),
    /// A life that has to be given a place.
    Place,
    /// A life here that was told to end.
    Ends {
        cell: Arc<ActorCell>,
        halt: Halt,
    },
    /// A life in another process that was told to end; without `sent` there is no way there.
    EndsAt {
        process: ProcessId,
        lease: Option<Granted>,
        sent: Option<Sent<Lives>>,
    },
    /// A process of its own, or a lease in one, that it does not need any more.
    Release {
        process: ProcessId,
        lease: Option<Granted>,
    },
}

/// An order to a cell here to end its life.
pub(super) struct Halt {
    keep_mail: bool,
    /// The life whose start was waited for then. Another may be waited for before the order is obeyed.
    awaited: Option<Incarnation>,
    done: oneshot::Receiver<()>,
}

/// An event that is carried out: what it brings, and what is left for later.
pub(super) struct Act {
    /// The order to host the actor, and the way that it takes.
    pub(super) host: Option<(HostOrder, Arc<Link>)>,
    starts: Vec<(oneshot::Sender<Started>, Started)>,
    watchers: Vec<(oneshot::Sender<Down>, Down)>,
    refused: Vec<(Call, Down)>,
    judge: Option<Down>,
    rest: Rest,
}

impl Act {
    pub(super) const fn new(host: Option<(HostOrder, Arc<Link>)>) -> Self {
        Self {
            host,
            starts: vec![],
            watchers: vec![],
            refused: vec![],
            judge: None,
            rest: Rest::Nothing,
        }
    }

    /// Tells those who wait, who may have stopped waiting. No row is locked.
    pub(super) fn finish(self, engine: &Arc<Engine>) -> Rest {
        for (start, outcome) in self.starts {
            let _ = start.send(outcome);
        }
        for (watcher, down) in self.watchers {
            let _ = watcher.send(down);
        }
        for (call, down) in self.refused {
            engine.refuse_call(&call, AskError::Dead(down));
        }
        if let Some(down) = self.judge {
            engine.judge_later(down);
        }
        self.rest
    }
}

impl Engine {
    /// Has an event happen to a row, and everything that takes no time follow. The state before it,
    /// and the rest; `None` when there is no row.
    pub(super) fn happen(self: &Arc<Self>, id: ActorId, event: Event) -> Option<(RowState, Rest)> {
        let mut act = Act::new(None);
        let before = {
            let mut row = self.members.rows.get_mut(&id)?;
            let before = row.state;
            self.follow(&mut row, event, &mut act);
            before
        };
        Some((before, act.finish(self)))
    }

    /// Has an event happen to a row that the caller has locked, or taken out. The caller finishes the
    /// act when it is locked no more.
    pub(super) fn follow(&self, row: &mut Row, event: Event, act: &mut Act) {
        for command in row.happen(event) {
            self.carry_out(row, command, act);
        }
    }

    fn carry_out(&self, row: &mut Row, command: Command, act: &mut Act) {
        let (id, life) = (row.state.facts.id, row.state.life);
        match command {
            Command::OrderStart => {
                let (tell, told) = oneshot::channel();
                row.starts.push((life, tell));
                if let Some(cell) = self.cells.get(&id) {
                    cell.order(Control::Start(life));
                }
                act.rest = Rest::Runs(told);
            }
            Command::SendStart { process } => {
                let incarnation = life;
                let start = LifeRequest::Start { id, incarnation };
                act.rest = Rest::Begins(self.begin_request::<Lives>(process, &start));
            }
            Command::OrderHalt { reason, keep_mail } => {
                if let Some(cell) = self.cells.get(&id).map(|cell| Arc::clone(&cell)) {
                    let halt = self.order_halt(&cell, reason, keep_mail);
                    act.rest = Rest::Ends { cell, halt };
                }
            }
            Command::SendHalt {
                process,
                lease,
                reason,
                keep_mail,
            } => {
                let halt = LifeRequest::Halt {
                    id,
                    reason,
                    keep_mail,
                };
                let sent = self.ask_service::<Lives>(process, &halt);
                act.rest = Rest::EndsAt {
                    process,
                    lease,
                    sent,
                };
            }
            Command::SendHost { process } => self.send_host(row, process, act),
            Command::SendBacklog { process } => self.send_backlog(row, process, act),
            Command::TellStarts => {
                let told = row.starts.extract_if(.., |(from, _)| *from <= life);
                act.starts.extend(told.map(|(_, start)| (start, Ok(()))));
            }
            Command::RefuseStarts | Command::RefuseBacklog => self.refuse(row, &command, act),
            Command::TellWatchers(down) => {
                let down = down.unwrap_or_else(|| self.obituary(id));
                let told = row.watchers.drain(..);
                act.watchers
                    .extend(told.map(|watcher| (watcher, down.clone())));
            }
            // Whoever looks at the row from now on finds out why.
            Command::NoteDown(down) => self.note_down(down),
            Command::TellRestart => self.tell_restart(&row.state),
            Command::Forget => {
                for component in self.components.iter() {
                    component.actor_over(self, id);
                }
                // Whoever waits for some looks again, and hears of the end.
                self.credits.forget(id);
            }
            Command::Place => act.rest = Rest::Place,
            Command::Judge(down) => act.judge = Some(down),
            Command::Release { process, lease } => act.rest = Rest::Release { process, lease },
            // Whoever has asked sees to these.
            Command::KeepMessage
            | Command::RefuseMessage
            | Command::ReturnMessage
            | Command::DropMessage
            | Command::KeepStart { .. }
            | Command::AnswerStart
            | Command::KeepWatcher
            | Command::AnswerWatcher => {}
        }
    }

    /// Those who wait for what will not be hear why.
    fn refuse(&self, row: &mut Row, command: &Command, act: &mut Act) {
        let down = self.obituary(row.state.facts.id);
        if *command == Command::RefuseStarts {
            let refused = row.starts.drain(..);
            let refused = refused.map(|(_, start)| (start, Err(down.clone())));
            act.starts.extend(refused);
        } else {
            let refused = row.backlog.drain(..);
            let refused = refused.map(|held| (held.call, down.clone()));
            act.refused.extend(refused);
        }
    }

    fn send_host(&self, row: &mut Row, process: ProcessId, act: &mut Act) {
        let Some((host, link)) = &act.host else {
            return;
        };
        let host = LifeRequest::Host(host.clone());
        let answered = self.queue_request::<Lives>(link, process, &host);
        act.rest = Rest::Begins(Some(answered));
        // It was for the first life.
        if let Some(placing) = &mut row.order {
            placing.launch.claim = None;
        }
    }

    /// Sends the messages that waited behind the order to host, in one go, so that none overtakes.
    fn send_backlog(&self, row: &mut Row, process: ProcessId, act: &Act) {
        let Some((_, link)) = &act.host else { return };
        let now = Clock::now();
        for Held { mut call, since } in row.backlog.drain(..) {
            call.at = process;
            call.budget = call.budget.saturating_sub(now.since(since));
            let waits = match call.call {
                0 => true,
                key if call.from == self.process => self.pending.sent_via(key, Some(link.peer)),
                // It goes back where it came from, and so its answer does not come by here.
                _ if self
                    .next_link(call.from)
                    .is_some_and(|back| back.peer == link.peer) =>
                {
                    true
                }
                key => {
                    self.forwards.insert((call.from, key), (link.peer, call.to));
                    true
                }
            };
            if waits {
                link.push(&Frame::Call(call), false);
            }
        }
    }

    fn tell_restart(&self, row: &RowState) {
        let (id, actor, incarnation) = (row.facts.id, row.facts.actor, row.life);
        tracing::info!(actor, %id, incarnation, "restarting");
        let news = News::new(NewsKind::Restarted, format!("life {incarnation} begins"));
        self.journal.add(news.of(id, actor, incarnation));
    }

    // ---- a life begins ----

    /// Resolves when the actor has started, or with its end when it will not.
    pub(crate) fn when_started(&self, id: ActorId) -> oneshot::Receiver<Started> {
        self.await_start_of(id, false)
    }

    /// Resolves when the present life of the actor runs, or the next one when it has ended; or with
    /// its end when there will be none.
    pub(crate) fn when_running(&self, id: ActorId) -> oneshot::Receiver<Started> {
        self.await_start_of(id, true)
    }

    fn await_start_of(&self, id: ActorId, next: bool) -> oneshot::Receiver<Started> {
        if let Some(mut row) = self.members.rows.get_mut(&id) {
            return row.await_start(next);
        }
        let (tell, told) = oneshot::channel();
        // The receiver is in our hands, so that it cannot fail.
        drop(tell.send(Err(self.obituary(id))));
        told
    }

    /// The process that was to begin a life has answered, or is gone, which ends the life too. How a
    /// life ended is reported before the answer; this tells the ends that nobody reports.
    pub(super) async fn begun<E>(
        self: &Arc<Self>,
        id: ActorId,
        life: Incarnation,
        answer: Result<Answered<Lives>, E>,
    ) {
        match answer {
            Ok(Ok(Ok(()))) => drop(self.happen(id, Event::Started { life })),
            Ok(Ok(Err(failure))) if life == 1 && failure.kind == FailureKind::UnknownActor => {
                // It never lived, and its process would not know it the next time either.
                self.leave_family(id);
                let reason = Reason::Failed(failure);
                let down = Down {
                    id,
                    incarnation: life,
                    reason: reason.clone(),
                };
                for (_, waiting) in self.pending.drain(|waiting| waiting.actor == id) {
                    waiting.slot.fail(AskError::Dead(down.clone()));
                }
                self.dispose(id, reason).await;
            }
            Ok(Ok(Err(failure)) | Err(failure)) => {
                self.ended(id, life, Reason::Failed(failure));
            }
            Err(_) => {}
        }
    }

    /// Begins the next life of an actor, where it is or in a new place, and waits until it runs or
    /// has failed again. Nothing happens when the actor is gone, or a later restart will begin it.
    pub(super) async fn begin_life(self: &Arc<Self>, id: ActorId, restart: u64) {
        let number = restart;
        let Some((before, rest)) = self.happen(id, Event::RestartBegins { number }) else {
            return;
        };
        let life = before.life.saturating_add(1);
        match rest {
            Rest::Runs(started) => self.settled(id, life, started).await,
            Rest::Begins(Some(answered)) => self.begun(id, life, answered.await).await,
            Rest::Place => self.place_now(id).await,
            // Nothing has begun, or it begins when the process is known to be gone, which ends this
            // life too.
            _ => {}
        }
    }

    /// Waits until an actor that was told to start runs, or its end has been noticed.
    async fn settled(&self, id: ActorId, life: Incarnation, started: oneshot::Receiver<Started>) {
        let mut started = started;
        let pause = self.limits.sweep_interval;
        while Clock::timeout(pause, &mut started).await.is_none() {
            let row = self.members.rows.get(&id);
            if row.is_none_or(|row| !row.state.is_living() || row.state.life != life) {
                return;
            }
        }
    }

    // ---- a life ends ----

    /// The home's side: watchers hear of it, and the verdict follows.
    pub(super) fn ended(self: &Arc<Self>, id: ActorId, life: Incarnation, reason: Reason) {
        self.happen(id, Event::Ended { life, reason });
    }

    /// The process of an actor is gone, and whatever life was there has ended.
    pub(super) fn process_gone(self: &Arc<Self>, id: ActorId, process: ProcessId, reason: Reason) {
        self.happen(id, Event::ProcessGone { process, reason });
    }

    /// Ends the present life of an actor and waits until it is over. Returns true if it is: a
    /// handler that blocks its thread cannot be ended, unless it has a process of its own, which
    /// then is.
    pub(super) async fn halt(
        self: &Arc<Self>,
        id: ActorId,
        reason: Reason,
        keep_mail: bool,
    ) -> bool {
        let because = reason.clone();
        let Some((before, rest)) = self.happen(id, Event::Halted { reason, keep_mail }) else {
            return true;
        };
        self.halt_over(before, rest, because).await
    }

    /// The same for a life that fails at the word of somebody: `None` when it is over already, else its
    /// end, and whether that has come.
    pub(super) async fn fail_life(
        self: &Arc<Self>,
        id: ActorId,
        reason: Reason,
    ) -> Option<(Down, bool)> {
        let event = Event::Failed {
            reason: reason.clone(),
        };
        let (before, rest) = self.happen(id, event)?;
        if !before.is_living() {
            return None;
        }
        let over = self.halt_over(before, rest, reason.clone()).await;
        let down = Down {
            id,
            incarnation: before.life,
            reason,
        };
        Some((down, over))
    }

    /// Waits until a life that was told to end has, as far as that can be waited for.
    async fn halt_over(self: &Arc<Self>, row: RowState, rest: Rest, reason: Reason) -> bool {
        let over = match rest {
            Rest::Ends { cell, halt } => self.halted_here(&cell, halt).await,
            Rest::EndsAt {
                process,
                lease,
                sent,
            } => self.halted_at(row, process, lease, sent).await,
            _ => true,
        };
        // One that ends for good is over when it is disposed of.
        let life = row.life;
        self.happen(row.facts.id, Event::HaltOver { life, reason });
        over
    }

    /// Ends the life of an actor that this process hosts. Returns true if it has ended.
    pub(super) async fn halt_here(
        &self,
        cell: &ActorCell,
        reason: Reason,
        keep_mail: bool,
    ) -> bool {
        let halt = self.order_halt(cell, reason, keep_mail);
        self.halted_here(cell, halt).await
    }

    fn order_halt(&self, cell: &ActorCell, reason: Reason, keep_mail: bool) -> Halt {
        let awaited = self.awaiting_start.get(&cell.id).map(|awaited| awaited.0);
        let (tell, done) = oneshot::channel();
        cell.order(Control::Halt {
            reason,
            keep_mail,
            done: Some(tell),
        });
        Halt {
            keep_mail,
            awaited,
            done,
        }
    }

    async fn halted_here(&self, cell: &ActorCell, halt: Halt) -> bool {
        // An actor that went down by itself in the meantime has ended as well.
        let over = Clock::timeout(self.limits.stop_grace * 3, halt.done).await;
        if over.is_none() {
            tracing::error!(actor = %cell.id, "it blocks its thread and cannot be ended");
            if !halt.keep_mail {
                self.cells.remove(&cell.id);
            }
        }
        if let Some(life) = halt.awaited {
            self.not_started(cell.id, life, halted());
        }
        over.is_some()
    }

    /// The same for one that another process hosts.
    async fn halted_at(
        self: &Arc<Self>,
        row: RowState,
        process: ProcessId,
        lease: Option<Granted>,
        sent: Option<Sent<Lives>>,
    ) -> bool {
        let patience = Some(self.limits.stop_grace * 4);
        if let Some(sent) = sent
            && let Some(Ok(())) = self.answer_to(sent, patience).await
        {
            return true;
        }
        // Its process is gone, which ends the life as well, or it blocks its thread there.
        let (id, alone) = (row.facts.id, row.facts.alone);
        if alone {
            if lease.is_some() {
                // Others may have leases there, but it computes on the devices as long as it runs.
                let why = format!("actor {id} blocks its thread and had to end");
                self.retire(process, None, &why).await;
            } else {
                self.release(process, None).await;
            }
            self.happen(id, Event::Displaced { process });
        }
        alone || !self.routes_to(process)
    }

    /// Ends an actor for good: its life, its row, its names; whoever waits for it hears why.
    pub(super) async fn dispose(self: &Arc<Self>, id: ActorId, reason: Reason) {
        self.halt(id, reason.clone(), false).await;
        let Some((_, mut row)) = self.members.rows.remove(&id) else {
            return;
        };
        let mut act = Act::new(None);
        self.follow(&mut row, Event::Disposed { reason }, &mut act);
        if let Rest::Release { process, lease } = act.finish(self) {
            self.release(process, lease).await;
        }
    }

    /// Gives a worker process of its own, or a lease in one, back to its node.
    pub(super) async fn release(self: &Arc<Self>, process: ProcessId, lease: Option<Granted>) {
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

    // ---- watching ----

    /// Resolves when the present life of an actor ends; at once when it has.
    pub(crate) fn watch(
        self: &Arc<Self>,
        id: ActorId,
    ) -> impl Future<Output = Down> + Send + use<> {
        let engine = Arc::clone(self);
        let here = id.home == self.process;
        let told = here.then(|| self.await_end_of(id));
        async move {
            match told {
                Some(Some(told)) => told.await.unwrap_or_else(|_| engine.obituary(id)),
                Some(None) => engine.obituary(id),
                None => {
                    let answer = engine.request::<Watching>(id.home, &id, None).await;
                    answer.unwrap_or_else(|| out_of_reach(id))
                }
            }
        }
    }

    /// `None` when it is over, and its obituary says why.
    fn await_end_of(&self, id: ActorId) -> Option<oneshot::Receiver<Down>> {
        let mut row = self.members.rows.get_mut(&id)?;
        let known = self.obituary(id).incarnation;
        match row.happen(Event::EndAwaited { known }).pop() {
            Some(Command::KeepWatcher) => {
                let (tell, told) = oneshot::channel();
                row.watchers.push(tell);
                Some(told)
            }
            _ => None,
        }
    }
}

fn out_of_reach(id: ActorId) -> Down {
    let failure = Failure::new(FailureKind::NodeLost, "its home process is out of reach");
    Down {
        id,
        incarnation: 0,
        reason: Reason::Failed(failure),
    }
}
