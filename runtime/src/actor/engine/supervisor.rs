//! The supervisor's side of the actors that this process is home of: families, verdicts and the orders
//! that follow from them, and what is asked of rows. Verdicts come from [`crate::base::supervise`], what
//! becomes of a row from [`super::row`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::Engine;
use super::lives::{LifeRequest, Lives};
use super::members::{Life, NewRow, Row, Siblings, Started, process_of};
use super::row::{Event, Facts, RowState};
use crate::actor::cell::{ActorCell, Control};
use crate::actor::console::Console;
use crate::base::clock::Clock;
use crate::base::error::AskError;
use crate::base::failure::{Down, Failure, FailureKind, Reason};
use crate::base::id::ActorId;
use crate::base::journal::{News, NewsKind};
use crate::base::supervise::Verdict;

impl Engine {
    // ---- birth ----

    /// Writes the row of a new actor, which the caller then hosts here. For one that lives in another
    /// process there is [`Engine::place`].
    pub(crate) fn new_member(&self, new: &NewRow, id: ActorId) {
        let state = RowState::here(new.facts(id, false));
        self.enter_row(new, Row::new(state, None));
    }

    /// The same for an actor whose start the caller waits for.
    pub(crate) fn new_awaited_member(
        &self,
        new: &NewRow,
        id: ActorId,
    ) -> oneshot::Receiver<Started> {
        let state = RowState::here(new.facts(id, false));
        let mut row = Row::new(state, None);
        let started = row.await_start(false);
        self.enter_row(new, row);
        started
    }

    /// Writes a row, and makes its actor a member of its family.
    pub(super) fn enter_row(&self, new: &NewRow, row: Row) {
        let id = row.state.facts.id;
        self.members.rows.insert(id, row);
        self.members
            .siblings(new.parent, new.supervision)
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

    /// The life of an actor that this process is the home of.
    pub(crate) fn life_of(&self, id: ActorId) -> Option<Life> {
        let row = self.members.rows.get(&id)?;
        Some(Life {
            incarnation: row.state.life,
            running: row.state.is_running(),
            process: process_of(&row.state, self.process),
        })
    }

    // ---- what a cell reports ----

    /// A hosted actor runs: tell its home.
    pub(crate) fn started(self: &Arc<Self>, cell: &ActorCell) {
        let (id, life) = (cell.id, cell.incarnation());
        if !self.tell_started(id, life) && id.home == self.process {
            self.happen(id, Event::Started { life });
        }
    }

    /// A hosted actor's life ended: tell its home.
    pub(crate) fn life_ended(self: &Arc<Self>, cell: &ActorCell, reason: Reason) {
        let reason = on_this_node(reason, cell);
        let (id, incarnation) = (cell.id, cell.incarnation());
        self.note_down(Down {
            id,
            incarnation,
            reason: reason.clone(),
        });
        if id.home == self.process {
            return self.ended(id, incarnation, reason);
        }
        let starting = self.no_longer_awaited(id, incarnation);
        let not_started = Failure::error(&reason);
        let ended = LifeRequest::Ended {
            id,
            incarnation,
            reason,
        };
        self.tell::<Lives>(id.home, &ended);
        // After the report, which says more.
        if let Some(asked) = starting {
            asked.answer(self, &Err(not_started));
        }
    }

    // ---- verdicts ----

    /// Has the end of a life judged, in its turn.
    pub(super) fn judge_later(self: &Arc<Self>, down: Down) {
        tracing::debug!(%down, "a life ended");
        let engine = Arc::clone(self);
        self.spawn_task(async move {
            engine.replace_process(&down).await;
            engine.judge(down).await;
        });
    }

    async fn judge(self: Arc<Self>, down: Down) {
        let Some(facts) = self.facts_of(down.id) else {
            return;
        };
        let (parent, actor) = (facts.parent, facts.actor);
        let Some(siblings) = self.members.siblings_of(parent) else {
            // The family ended with its parent's life, and so does the child.
            self.tell_failure(actor, &down, "its supervisor has ended", true);
            return self.dispose(down.id, down.reason).await;
        };
        let turn = siblings.turn.lock().await;
        // A sibling's verdict may have begun another life meanwhile, or be about to.
        let row = self.members.rows.get(&down.id);
        if !row.is_some_and(|row| row.state.awaits_verdict(down.incarnation)) {
            return;
        }
        let mut verdict = siblings.family.lock().judge(
            down.id,
            &down.reason,
            Clock::now(),
            crate::base::random::fraction(),
        );
        if let Verdict::Escalate(failure) = &mut verdict {
            // Whoever hears of it above does not know whose it was.
            failure.message = format!("actor {actor} {}: {}", down.id, failure.message);
        }
        self.tell_verdict(facts, &down, &verdict);
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
                self.escalate(parent, &siblings, failure).await;
            }
        }
    }

    /// Notes a failure, and what its supervisor does about it.
    fn tell_verdict(&self, facts: Facts, down: &Down, verdict: &Verdict) {
        let (parent, actor) = (facts.parent, facts.actor);
        let follows = match verdict {
            Verdict::Forget => match self.facts_of(parent) {
                // Which may begin others in its place, as a gang does with all of its ranks.
                Some(it) => format!(
                    "it is not started again by itself: that is for {} {parent}",
                    it.actor
                ),
                None => "it is not started again".to_owned(),
            },
            Verdict::Restart { wait, start, .. } if start.len() > 1 => {
                format!("it and {} others restart in {wait:.0?}", start.len() - 1)
            }
            Verdict::Restart { wait, .. } => {
                let next = down.incarnation.saturating_add(1);
                format!("it restarts in {wait:.0?} as life {next}")
            }
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
            let (id, life) = (down.id, down.incarnation);
            if ends && failure.kind == FailureKind::Panic {
                // It may have happened in a worker, which does not tell of it itself.
                tracing::warn!(actor, %id, life, %failure, "{follows}");
            }
            self.component::<Console>().say(format_args!(
                "actor {actor} {id} failed in life {life}: {failure}; {follows}"
            ));
        }
    }

    /// The children are more than this supervisor can mend: they end, and so does it.
    async fn escalate(
        self: &Arc<Self>,
        parent: ActorId,
        siblings: &Arc<Siblings>,
        failure: Failure,
    ) {
        let supervisor = self
            .cells
            .get(&parent)
            .map(|cell| (Arc::clone(&cell), cell.incarnation()));
        let present = self
            .members
            .families
            .get(&parent)
            .is_some_and(|family| Arc::ptr_eq(&family, siblings));
        if !present {
            // That life of the supervisor is over, and another must not pay for it.
            return;
        }
        if parent.is_root() {
            // First, so that nobody who meets a dead actor finds the system well.
            self.begin_to_fail(&failure);
            self.end_children(parent).await;
            return self.fail(failure);
        }
        self.end_children(parent).await;
        if let Some((cell, incarnation)) = supervisor {
            cell.order(Control::End {
                incarnation,
                reason: Reason::Failed(failure),
            });
        }
    }

    /// The first failure that climbed out of the top of the tree.
    pub(crate) fn watch_failure(&self) -> tokio::sync::watch::Receiver<Option<Failure>> {
        self.failed.subscribe()
    }

    /// The first failure that climbed out of the top of the tree, if there was one.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failing.get().cloned()
    }

    /// `main` knows that the system has failed, so that what it returns is its verdict.
    pub(crate) fn note_failure_heard(&self) {
        self.failure_heard.store(true, Ordering::Relaxed);
    }

    /// The failure that ended the top of the tree, unless `main` has heard of it.
    pub(crate) fn unheard_failure(&self) -> Option<Failure> {
        let heard = self.failure_heard.load(Ordering::Relaxed);
        self.failure().filter(|_| !heard)
    }

    /// A failure has climbed out of the top of the tree, where all are about to end for it.
    fn begin_to_fail(&self, failure: &Failure) {
        self.component::<Console>().shout(format_args!(
            "the system fails, and all actors at its top end: {failure}"
        ));
        self.failing.get_or_init(|| failure.clone());
    }

    fn fail(&self, failure: Failure) {
        if self.failed.receiver_count() == 0 {
            tracing::error!(%failure, "a failure climbed to the top of the tree");
        } else {
            // Whoever waits for it says what becomes of it.
            tracing::info!(%failure, "a failure climbed to the top of the tree");
        }
        self.failed.send_if_modified(|slot| {
            let first = slot.is_none();
            slot.get_or_insert(failure);
            first
        });
    }

    /// Ends all children of an actor, the youngest first.
    pub(crate) async fn end_children(self: &Arc<Self>, parent: ActorId) {
        let Some((_, siblings)) = self.members.families.remove(&parent) else {
            return;
        };
        let children: Vec<_> = siblings.family.lock().children().rev().collect();
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
        self.leave_family(id);
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
        // One that has ended has what was asked for.
        let Some((down, over)) = self.fail_life(id, Reason::Failed(failure)).await else {
            return Ok(());
        };
        if !over {
            return Err(AskError::Unreachable(id));
        }
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.judge(down).await });
        Ok(())
    }

    /// Takes a child out of its family: no verdict begins another life of it.
    pub(super) fn leave_family(&self, id: ActorId) {
        let facts = self.facts_of(id);
        if let Some(siblings) = facts.and_then(|facts| self.members.siblings_of(facts.parent)) {
            siblings.family.lock().remove(id);
        }
    }

    fn facts_of(&self, id: ActorId) -> Option<Facts> {
        self.members.rows.get(&id).map(|row| row.state.facts)
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
        let process = self.members.rows.get(&down.id).and_then(|row| {
            let over = !row.state.is_living() && row.state.life == down.incarnation;
            over.then_some(())?;
            row.state.process()
        });
        if let Some(process) = process {
            let why = fault.to_string();
            self.retire(process, Some(fault), &why).await;
            self.happen(down.id, Event::Displaced { process });
        }
    }
}

/// A process numbers its devices by itself; from here on a fault names the device of the node.
fn on_this_node(reason: Reason, cell: &ActorCell) -> Reason {
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
