//! Runs an actor in this process.
//!
//! [`ActorLoop`] is the state machine of one actor: it makes the state from the arguments, runs
//! handlers, catches panics, obeys its supervisor, and reports how each life ended. It knows neither
//! the actor's type, which [`Typed`] does, nor what drives it: [`kameo_host`] puts it behind a kameo
//! mailbox, and `actix_host`, with the feature `actix`, behind the mailbox of an actix arbiter's
//! thread. The mailbox outlives a restart, so mail is kept.

#[cfg(feature = "actix")]
mod actix_host;
mod kameo_host;
mod watchdog;

use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::actor::actor_type::ActorType;
use crate::actor::cell::{ActorCell, Control, NewCell, Phase};
use crate::actor::console::Console;
use crate::actor::engine::Engine;
use crate::actor::engine::lives::{HostName, HostOrder};
use crate::actor::handler::{Actor, Context};
use crate::actor::mail::{AnyActor, Mail};
use crate::actor::registry::Registered;
use crate::actor::stats::Running;
use crate::actor::task_context::Current;
use crate::actor::user_code::{UserCode, surround};
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::failure::{Down, Failure, FailureKind, Reason};
use crate::base::id::Incarnation;
use crate::base::trace::{Outcome, Span, SpanContext, SpanKind};

#[cfg(feature = "actix")]
pub(crate) use actix_host::arbiter;

pub(crate) use watchdog::Watchdogs;

/// The actor framework that drives an actor in its process. Its messages, failures and restarts are
/// the same on each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Host {
    /// A kameo actor: a task of the system's tokio runtime, on any of its threads.
    #[default]
    Kameo,
    /// An actix actor: all its lives stay on one thread, which it shares with other actors on this
    /// host. For state that talks to actix actors or wants one thread; a handler that blocks delays
    /// its neighbours. With the feature `actix`.
    #[cfg(feature = "actix")]
    Actix,
}

impl From<Host> for HostName {
    fn from(host: Host) -> Self {
        match host {
            Host::Kameo => Self::Kameo,
            #[cfg(feature = "actix")]
            Host::Actix => Self::Actix,
        }
    }
}

impl HostName {
    /// The host of this name, in a program that has it.
    fn host(self) -> Result<Host, Failure> {
        match self {
            Self::Kameo => Ok(Host::Kameo),
            #[cfg(feature = "actix")]
            Self::Actix => Ok(Host::Actix),
            #[cfg(not(feature = "actix"))]
            Self::Actix => Err(Failure::new(
                FailureKind::UnknownActor,
                "the program has no actix host: build it with the feature `actix` of odeon",
            )),
        }
    }
}

/// The typed half of an actor: its arguments and its state.
pub(crate) struct Typed<A: Actor> {
    args: A::Args,
    state: Option<A>,
    cx: Context<A>,
}

impl<A: Actor> Typed<A> {
    pub(crate) fn new(cell: &Arc<ActorCell>, args: A::Args) -> Box<Self> {
        let cx = Context::new(cell);
        Box::new(Self {
            args,
            state: None,
            cx,
        })
    }

    /// The actor that a method's [`Run`](crate::actor::mail::Run) is given.
    pub(crate) fn of(actor: &mut dyn AnyActor) -> &mut Self {
        let actor = actor.typed().downcast_mut();
        actor.expect("the cell names the actor's type")
    }

    /// The state that a handler works on, and its context.
    pub(crate) fn parts(&mut self) -> (Option<&mut A>, &mut Context<A>) {
        (self.state.as_mut(), &mut self.cx)
    }
}

impl<A: Actor> AnyActor for Typed<A> {
    fn typed(&mut self) -> &mut dyn Any {
        self
    }

    fn is_alive(&self) -> bool {
        self.state.is_some()
    }

    fn begin(&mut self, incarnation: Incarnation) {
        self.cx.begin(incarnation);
    }

    fn take_end(&mut self) -> Option<Reason> {
        self.cx.end.take()
    }

    fn start(&mut self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            self.state = Some(A::start(self.args.clone(), &mut self.cx).await?);
            Ok(())
        })
    }

    fn stop<'a>(&'a mut self, reason: &'a Reason) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(state) = self.state.take() {
                state.stop(reason).await;
            }
        })
    }

    fn ends(&mut self, reason: &Reason) {
        self.cx.tasks.streams.life_ends(reason);
    }

    fn discard(&mut self) {
        self.state = None;
    }

    fn end_tasks(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.cx.tasks.end(&self.cx.cell))
    }
}

/// Starts hosting an actor of this process.
pub(crate) fn host<A: Registered>(engine: &Arc<Engine>, on: Host, new: NewCell, args: A::Args) {
    let cell = ActorCell::new(Arc::clone(engine), A::actor_type(), new);
    let actor = Typed::<A>::new(&cell, args);
    start(on, cell, actor);
}

/// Starts hosting an actor that another process has ordered.
pub(crate) fn host_order(
    engine: &Arc<Engine>,
    actor: &'static ActorType,
    order: &HostOrder,
) -> Result<(), Failure> {
    let on = order.on.host()?;
    let new = NewCell {
        id: order.id,
        parent: order.parent,
        incarnation: order.incarnation,
        orphans: order.orphans,
        devices: order.devices.clone(),
        hang_after: order.hang_after,
    };
    let cell = ActorCell::new(Arc::clone(engine), actor, new);
    let made = (actor.make)(&cell, &order.args).map_err(|error| {
        let why = format!("the arguments of {} cannot be read: {error}", actor.name);
        Failure::new(FailureKind::UnknownActor, why)
    })?;
    start(on, cell, made);
    Ok(())
}

fn start(on: Host, cell: Arc<ActorCell>, actor: Box<dyn AnyActor>) {
    cell.engine.add_cell(&cell);
    cell.engine.component::<Watchdogs>().watch(&cell);
    let actor = ActorLoop::new(cell, actor);
    match on {
        Host::Kameo => kameo_host::start(actor),
        #[cfg(feature = "actix")]
        Host::Actix => actix_host::start(actor),
    }
}

/// The state machine of an actor in this process.
pub(crate) struct ActorLoop {
    cell: Arc<ActorCell>,
    actor: Box<dyn AnyActor>,
    incarnation: Incarnation,
    /// Put in place while user code runs.
    surroundings: Option<Current>,
    /// When the last message was done, while the loop has not rested since: the next one starts then,
    /// which saves a look at the clock.
    busy_since: Option<Timestamp>,
}

impl ActorLoop {
    fn new(cell: Arc<ActorCell>, actor: Box<dyn AnyActor>) -> Self {
        Self {
            incarnation: cell.incarnation(),
            cell,
            actor,
            surroundings: None,
            busy_since: None,
        }
    }

    pub(crate) fn cell(&self) -> &Arc<ActorCell> {
        &self.cell
    }

    /// The loop has waited for mail.
    pub(crate) fn rested(&mut self) {
        self.busy_since = None;
    }

    /// Obeys orders and starts until the actor runs or is over. Returns true if it runs.
    pub(crate) async fn settle(&mut self) -> bool {
        self.rested();
        loop {
            // Orders and ends are rare, and large; a task has to be small when it is spawned.
            while let Some(order) = self.cell.next_order() {
                Box::pin(self.obey(order)).await;
            }
            match self.cell.phase() {
                Phase::Running => return true,
                Phase::Over => return false,
                Phase::Starting => self.start().await,
                Phase::Waiting => self.cell.ordered.notified().await,
            }
        }
    }

    async fn obey(&mut self, order: Control) {
        match order {
            Control::Start(incarnation) => {
                if self.cell.phase() == Phase::Waiting {
                    self.incarnation = incarnation;
                    self.actor.begin(incarnation);
                    self.cell.begin(incarnation);
                }
            }
            Control::End {
                incarnation,
                reason,
            } => {
                let present = self.incarnation == incarnation;
                if present && self.cell.phase() == Phase::Running {
                    self.end(reason).await;
                }
            }
            Control::Halt {
                reason,
                keep_mail,
                done,
            } => {
                self.end_state(&reason).await;
                self.cell.enter(if keep_mail {
                    Phase::Waiting
                } else {
                    Phase::Over
                });
                if !keep_mail {
                    self.cell.engine.remove_cell(&self.cell, reason);
                }
                acknowledge(done);
            }
        }
    }

    /// Makes the state for this life.
    async fn start(&mut self) {
        surround(&mut self.surroundings, &self.cell, SpanContext::default());
        let starting = UserCode {
            future: self.actor.start(),
            surroundings: &mut self.surroundings,
            place: "start",
            log: tracing::Span::none(),
        };
        let started = starting.heeding_orders(&self.cell).await;
        match started.and_then(std::convert::identity) {
            Ok(()) => match self.actor.take_end() {
                Some(reason) => Box::pin(self.end(reason)).await,
                None => {
                    self.cell.enter(Phase::Running);
                    self.cell.engine.started(&self.cell);
                }
            },
            Err(failure) => Box::pin(self.end(Reason::Failed(failure))).await,
        }
    }

    /// Ends this life: the supervisor hears of it and gives the next order.
    async fn end(&mut self, reason: Reason) {
        let is_broken =
            matches!(&reason, Reason::Failed(failure) if failure.kind != FailureKind::Error);
        // A handler that was dropped because its family failed is not the cause.
        let reason = self.cell.take_end().unwrap_or(reason);
        self.actor.ends(&reason);
        if is_broken {
            self.actor.discard();
        }
        self.end_state(&reason).await;
        self.cell.enter(Phase::Waiting);
        self.cell.engine.life_ended(&self.cell, reason);
    }

    async fn end_state(&mut self, reason: &Reason) {
        self.actor.ends(reason);
        self.actor.end_tasks().await;
        self.cell.engine.end_children(self.cell.id).await;
        if !self.actor.is_alive() {
            return;
        }
        surround(&mut self.surroundings, &self.cell, SpanContext::default());
        let stopping = UserCode {
            future: self.actor.stop(reason),
            surroundings: &mut self.surroundings,
            place: "stop",
            log: tracing::Span::none(),
        };
        match Clock::timeout(self.cell.engine.limits.stop_grace, stopping).await {
            Some(Ok(())) => {}
            Some(Err(failure)) => {
                tracing::warn!(actor = %self.cell.id, %failure, "stop failed");
                let (actor, id) = (self.cell.actor.name, self.cell.id);
                let console = self.cell.engine.component::<Console>();
                console.say(format_args!("actor {actor} {id} failed in stop: {failure}"));
            }
            None => tracing::warn!(actor = %self.cell.id, "stop took too long and was dropped"),
        }
    }

    /// Refuses a message that another life than the present one has left in the mailbox.
    fn refuse_stale(&self, mut mail: Box<dyn Mail>, fence: Incarnation, now: Timestamp) {
        let (actor, current) = (self.cell.id, self.incarnation);
        if mail.is_tell() {
            let down = self.cell.engine.obituary(actor);
            let name = mail.head().name;
            self.cell.engine.dead_letter(actor, name, &down);
        }
        let error = AskError::Stale {
            actor,
            fence,
            current,
        };
        mail.settle(&self.cell, Err(error), now);
    }

    /// Handles one message that came out of the mailbox.
    pub(crate) async fn handle(&mut self, mut mail: Box<dyn Mail>) {
        // An actor that is over drops the message, which answers its caller.
        // What is rare is boxed, so that this future stays small.
        if !self.cell.is_settled() && !Box::pin(self.settle()).await {
            return;
        }
        if !self.actor.is_alive() || !mail.has_message() {
            return;
        }
        let withdrawn = mail.is_withdrawn(&self.cell);
        let expected = !mail.is_tell();
        let head = mail.head();
        head.leave();
        let (name, queued, deadline, parent) = (head.name, head.queued, head.deadline, head.trace);
        let (method, fence, run) = (head.method, head.fence, head.run);
        let started = self
            .busy_since
            .take()
            .unwrap_or_else(Clock::now)
            .max(queued);
        if withdrawn || (expected && started > deadline) {
            // The caller has given up already; running the handler would only surprise it.
            let waited = started.since(queued);
            let error = AskError::timeout(self.cell.id, waited);
            return mail.settle(&self.cell, Err(error), started);
        }
        if fence != 0 && fence != self.incarnation {
            return self.refuse_stale(mail, fence, started);
        }
        let context = self.cell.engine.tracer.begin(parent, started);
        surround(&mut self.surroundings, &self.cell, context);
        self.cell.stats.begin(Running {
            method: self.cell.method_index(method, name),
            since: started,
            span: context.span_id,
        });
        let handling = UserCode {
            future: run(&mut *mail, &mut *self.actor),
            surroundings: &mut self.surroundings,
            place: name,
            // What the handler logs says where it comes from.
            log: tracing::info_span!("handle", actor = %self.cell.id, method = name, trace = %context.traceparent()),
        };
        let result = handling.heeding_orders(&self.cell).await;
        let ended = Clock::now();
        self.busy_since = Some(ended);
        let span = HandleSpan {
            context,
            parent,
            name,
            queued,
            started,
            ended,
        };
        self.note_handled(&span, result.is_err());
        match result {
            Ok(()) => {
                if mail.is_later() {
                    let answering = answer_later(Arc::clone(&self.cell), name, mail, context);
                    self.cell.engine.spawn_task(answering);
                } else {
                    mail.settle(&self.cell, Ok(()), ended);
                }
                if let Some(reason) = self.actor.take_end() {
                    Box::pin(self.end(reason)).await;
                }
            }
            Err(failure) => Box::pin(self.die_of(mail, failure, ended)).await,
        }
    }

    /// Counts a message that was handled, and keeps its span if it is to be kept.
    fn note_handled(&self, span: &HandleSpan, failed: bool) {
        let methods = self.cell.actor.methods.len();
        self.cell
            .stats
            .end(methods, span.queued, span.ended, failed);
        let outcome = Outcome::of(!failed);
        let tracer = &self.cell.engine.tracer;
        if tracer.keeps(span.context, outcome, span.ended.since(span.started)) {
            tracer.record(Span {
                context: span.context,
                parent: span.parent.span_id,
                kind: SpanKind::Handle,
                by: self.cell.id,
                actor: self.cell.id,
                message: span.name.into(),
                queued: span.queued,
                started: span.started,
                ended: span.ended,
                outcome,
                labels: vec![],
            });
        }
    }

    /// Ends this life with the failure of a handler, of which the caller hears.
    async fn die_of(&mut self, mut mail: Box<dyn Mail>, failure: Failure, ended: Timestamp) {
        let down = Down {
            id: self.cell.id,
            incarnation: self.incarnation,
            reason: Reason::Failed(failure.clone()),
        };
        if mail.is_tell() {
            let name = mail.head().name;
            self.cell.engine.dead_letter(self.cell.id, name, &down);
        }
        mail.settle(&self.cell, Err(AskError::Died(down)), ended);
        self.end(Reason::Failed(failure)).await;
    }
}

/// The times and the place in its trace of a message that was handled.
struct HandleSpan {
    context: SpanContext,
    parent: SpanContext,
    name: &'static str,
    queued: Timestamp,
    started: Timestamp,
    ended: Timestamp,
}

/// Answers a message when the work that its handler left is done.
async fn answer_later(
    cell: Arc<ActorCell>,
    name: &'static str,
    mut mail: Box<dyn Mail>,
    context: SpanContext,
) {
    let mut surroundings = Some(Current::Task {
        cell: Arc::clone(&cell),
        span: context,
    });
    let rest = UserCode {
        future: mail.rest(),
        surroundings: &mut surroundings,
        place: name,
        log: tracing::Span::none(),
    };
    let outcome = rest.await.map_err(|failure| {
        tracing::warn!(actor = %cell.id, method = name, %failure, "a later answer failed");
        AskError::Died(Down {
            id: cell.id,
            incarnation: cell.incarnation(),
            reason: Reason::Failed(failure),
        })
    });
    mail.settle(&cell, outcome, Clock::now());
}

fn acknowledge(done: Option<oneshot::Sender<()>>) {
    if let Some(done) = done {
        // Whoever ordered it may have stopped waiting.
        let _ = done.send(());
    }
}
