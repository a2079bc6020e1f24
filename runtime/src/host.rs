//! Runs an actor in this process.
//!
//! [`Life`] is the state machine of one actor: it makes the state from the arguments, runs
//! handlers, catches panics, obeys its supervisor, and reports how each life ended. It does not
//! know what drives it; [`kameo_host`] puts it behind a kameo mailbox, and [`actix_host`] behind
//! the mailbox of an actix arbiter's thread. The mailbox outlives a restart, so mail is kept.

mod actix_host;
mod kameo_host;
mod watchdog;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::actor::{Actor, Context, Handler, Message};
use crate::answer::{Answer, Later};
use crate::cell::{AnyMailbox, Cell, Control, Phase, Sender};
use crate::clock::{Clock, Timestamp};
use crate::current::{Current, Entered};
use crate::engine::Engine;
use crate::error::AskError;
use crate::failure::{Down, Failure, FailureKind, Reason};
use crate::hardware::GrantedDevice;
use crate::id::{ActorId, Incarnation};
use crate::inspect::stats::Running;
use crate::pending::Slot;
use crate::registry::Registered;
use crate::remote::Back;
use crate::trace::{Outcome, Span, SpanContext, SpanKind};
use crate::wire::Orphans;

pub(crate) use actix_host::{ActixMailbox, arbiter};
pub(crate) use kameo_host::KameoMailbox;
pub(crate) use watchdog::Watchdog;

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
    /// its neighbours.
    Actix,
}

/// A message in a mailbox. Dropping one unhandled answers its caller, so nothing is lost in
/// silence.
pub(crate) struct Envelope<M: Message> {
    pub(crate) message: Option<M>,
    pub(crate) reply: ReplyTo<M::Reply>,
    pub(crate) deadline: Timestamp,
    pub(crate) queued: Timestamp,
    pub(crate) trace: SpanContext,
    pub(crate) sender: Sender,
    /// Set while it lies in a mailbox.
    pub(crate) cell: Option<Arc<Cell>>,
}

/// Where an answer goes.
pub(crate) enum ReplyTo<R> {
    /// A tell.
    Nobody,
    /// The same process.
    Local(Arc<Slot<R>>),
    /// Back over a link.
    Remote(Back),
}

impl<M: Message> Envelope<M> {
    fn settle(&mut self, cell: &Cell, outcome: Result<M::Reply, AskError>, at: Timestamp) {
        match std::mem::replace(&mut self.reply, ReplyTo::Nobody) {
            ReplyTo::Nobody => {}
            ReplyTo::Local(slot) => slot.set(outcome, at),
            ReplyTo::Remote(back) => back.send(cell, outcome),
        }
    }

    /// Refuses the message before it got into a mailbox.
    pub(crate) fn refuse(mut self, cell: &Cell, error: AskError) {
        cell.message_in(self.sender);
        cell.message_out(self.sender);
        self.message = None;
        self.settle(cell, Err(error), Clock::now());
    }

    /// Returns true if nobody waits for the answer any more.
    fn is_withdrawn(&self, cell: &Cell) -> bool {
        match &self.reply {
            ReplyTo::Nobody => false,
            ReplyTo::Local(slot) => slot.is_abandoned(),
            ReplyTo::Remote(back) => back.is_withdrawn(cell),
        }
    }

    /// Takes it out of the mailbox it lies in.
    fn leave(&mut self) -> Option<Arc<Cell>> {
        let cell = self.cell.take()?;
        cell.message_out(self.sender);
        Some(cell)
    }
}

impl<M: Message> Drop for Envelope<M> {
    fn drop(&mut self) {
        let Some(cell) = self.leave() else { return };
        if self.message.is_none() {
            return;
        }
        let down = cell.engine.obituary(cell.id);
        if matches!(self.reply, ReplyTo::Nobody) {
            cell.engine.dead_letter(cell.id, M::NAME, &down);
        } else {
            self.settle(&cell, Err(AskError::Died(down)), Clock::now());
        }
    }
}

/// The typed sending end of an actor's mailbox.
pub(crate) enum Mailbox<A: Actor> {
    /// Driven by kameo.
    Kameo(KameoMailbox<A>),
    /// Driven by actix.
    Actix(ActixMailbox<A>),
}

impl<A: Actor> Mailbox<A> {
    fn push<M: Message>(&self, envelope: Box<Envelope<M>>) -> Result<(), Box<Envelope<M>>>
    where
        A: Handler<M>,
    {
        match self {
            Self::Kameo(mailbox) => mailbox.push(envelope),
            Self::Actix(mailbox) => mailbox.push(envelope),
        }
    }
}

impl<A: Actor> AnyMailbox for Mailbox<A> {
    fn ring(&self) {
        match self {
            Self::Kameo(mailbox) => mailbox.ring(),
            // Its idle loop listens to `Cell::ordered`.
            Self::Actix(_) => {}
        }
    }
}

/// Puts an envelope into the mailbox of a cell that hosts an `A`. A sender of this process has taken
/// room there before.
pub(crate) fn deliver<A: Handler<M>, M: Message>(cell: &Arc<Cell>, mut envelope: Box<Envelope<M>>) {
    let Some(mailbox) = cell.mailbox::<Mailbox<A>>() else {
        let method = M::NAME.to_owned();
        return envelope.refuse(
            cell,
            AskError::NoSuchMethod {
                actor: cell.id,
                method,
            },
        );
    };
    cell.message_in(envelope.sender);
    envelope.cell = Some(Arc::clone(cell));
    if let Err(mut envelope) = mailbox.push(envelope) {
        envelope.leave();
        envelope.message = None;
        let down = cell.engine.obituary(cell.id);
        if matches!(envelope.reply, ReplyTo::Nobody) {
            cell.engine.dead_letter(cell.id, M::NAME, &down);
        }
        envelope.settle(cell, Err(AskError::Dead(down)), Clock::now());
    }
}

/// [`deliver`] for a narrowed reference, which knows the message but not the actor.
pub(crate) fn deliver_narrowed<A: Handler<M>, M: Message>(
    cell: &Arc<Cell>,
    envelope: &mut dyn Any,
) {
    let envelope = envelope
        .downcast_mut::<Option<Box<Envelope<M>>>>()
        .and_then(Option::take)
        .expect("the method id names the message type");
    deliver::<A, M>(cell, envelope);
}

/// Whom to host and how, whatever its type.
pub(crate) struct Lodger {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    pub(crate) incarnation: Incarnation,
    pub(crate) orphans: Orphans,
    pub(crate) on: Host,
    pub(crate) devices: Vec<GrantedDevice>,
    pub(crate) hang_after: Option<Duration>,
}

/// Starts hosting an actor.
pub(crate) fn host<A: Registered>(
    engine: &Arc<Engine>,
    lodger: Lodger,
    args: A::Args,
) -> Arc<Cell> {
    let on = lodger.on;
    let cell = Cell::new(Arc::clone(engine), A::actor_type(), lodger);
    engine.add_cell(&cell);
    let life = Box::new(Life::<A>::new(Arc::clone(&cell), args));
    match on {
        Host::Kameo => kameo_host::start(life),
        Host::Actix => actix_host::start(life),
    }
    cell
}

/// The state machine of an actor in this process.
pub(crate) struct Life<A: Actor> {
    cell: Arc<Cell>,
    args: A::Args,
    state: Option<A>,
    cx: Context<A>,
    /// Put in place while user code runs.
    surroundings: Option<Current>,
    /// When the last message was done, while the loop has not rested since: the next one starts then,
    /// which saves a look at the clock.
    busy_since: Option<Timestamp>,
}

impl<A: Actor> Life<A> {
    pub(crate) fn new(cell: Arc<Cell>, args: A::Args) -> Self {
        let cx = Context {
            incarnation: cell.incarnation(),
            cell: Arc::clone(&cell),
            end: None,
            _actor: std::marker::PhantomData,
        };
        Self {
            cell,
            args,
            state: None,
            cx,
            surroundings: None,
            busy_since: None,
        }
    }

    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    /// The loop has waited for mail.
    pub(crate) fn rested(&mut self) {
        self.busy_since = None;
    }

    /// Obeys orders and starts until the actor runs or is over. Whether it runs.
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
                    self.cx.incarnation = incarnation;
                    self.cx.end = None;
                    self.cell.begin(incarnation);
                }
            }
            Control::End {
                incarnation,
                reason,
            } => {
                let present = self.cx.incarnation == incarnation;
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
        let args = self.args.clone();
        surround(&mut self.surroundings, &self.cell, SpanContext::default());
        let starting = A::start(args, &mut self.cx);
        let started = guarded(&self.cell, &mut self.surroundings, "start", starting).await;
        match started.and_then(std::convert::identity) {
            Ok(state) => {
                self.state = Some(state);
                match self.cx.end.take() {
                    Some(reason) => Box::pin(self.end(reason)).await,
                    None => {
                        self.cell.enter(Phase::Running);
                        self.cell.engine.started(&self.cell);
                    }
                }
            }
            Err(failure) => Box::pin(self.end(Reason::Failed(failure))).await,
        }
    }

    /// Ends this life: the supervisor hears of it and gives the next order.
    async fn end(&mut self, reason: Reason) {
        if matches!(&reason, Reason::Failed(failure) if failure.kind != FailureKind::Error) {
            self.state = None;
        }
        // A handler that was dropped because its family failed is not the cause.
        let reason = self.cell.take_end().unwrap_or(reason);
        self.end_state(&reason).await;
        self.cell.enter(Phase::Waiting);
        self.cell.engine.life_ended(&self.cell, reason);
    }

    async fn end_state(&mut self, reason: &Reason) {
        self.cell.engine.end_children(self.cell.id).await;
        let Some(state) = self.state.take() else {
            return;
        };
        surround(&mut self.surroundings, &self.cell, SpanContext::default());
        let stopping = surrounded(&mut self.surroundings, caught("stop", state.stop(reason)));
        match Clock::timeout(self.cell.engine.limits.stop_grace, stopping).await {
            Some(Ok(())) => {}
            Some(Err(failure)) => {
                tracing::warn!(actor = %self.cell.id, %failure, "stop failed");
            }
            None => tracing::warn!(actor = %self.cell.id, "stop took too long and was dropped"),
        }
    }

    /// Handles one message that came out of the mailbox.
    pub(crate) async fn handle<M: Message>(&mut self, mut envelope: Box<Envelope<M>>)
    where
        A: Handler<M>,
    {
        // An actor that is over drops the envelope, which answers its caller.
        // What is rare is boxed, so that the future of every message stays small.
        if !self.cell.is_settled() && !Box::pin(self.settle()).await {
            return;
        }
        let Some(state) = &mut self.state else { return };
        let withdrawn = envelope.is_withdrawn(&self.cell);
        envelope.leave();
        let Some(message) = envelope.message.take() else {
            return;
        };
        let queued = envelope.queued;
        let started = self
            .busy_since
            .take()
            .unwrap_or_else(Clock::now)
            .max(queued);
        let late = started > envelope.deadline && !matches!(envelope.reply, ReplyTo::Nobody);
        if withdrawn || late {
            // The caller has given up already; running the handler would only surprise it.
            let waited = started.since(queued);
            let error = AskError::Timeout {
                actor: self.cell.id,
                waited,
            };
            return envelope.settle(&self.cell, Err(error), started);
        }
        let tracer = &self.cell.engine.tracer;
        let context = tracer.begin(envelope.trace, started);
        surround(&mut self.surroundings, &self.cell, context);
        // What the handler logs says where it comes from.
        let log = tracing::info_span!("handle", actor = %self.cell.id, method = M::NAME, trace = %context.traceparent());
        self.cell.stats.begin(Running {
            method: self.cell.method_index(M::METHOD, M::NAME),
            since: started,
            span: context.span_id,
        });
        let handler = state.answer(message, &mut self.cx).instrument(log);
        let result = guarded(&self.cell, &mut self.surroundings, M::NAME, handler).await;
        let ended = Clock::now();
        self.busy_since = Some(ended);
        let methods = self.cell.actor.methods.len();
        let failed = result.is_err();
        self.cell.stats.end(methods, queued, ended, failed);
        let outcome = Outcome::of(!failed);
        let tracer = &self.cell.engine.tracer;
        if tracer.keeps(context, outcome, ended.since(started)) {
            tracer.record(Span {
                context,
                parent: envelope.trace.span_id,
                kind: SpanKind::Handle,
                by: self.cell.id,
                actor: self.cell.id,
                message: M::NAME.into(),
                queued,
                started,
                ended,
                outcome,
                labels: vec![],
            });
        }
        match result {
            Ok(answer) => {
                match answer {
                    Answer::Now(reply) => envelope.settle(&self.cell, Ok(reply), ended),
                    Answer::Later(later) => {
                        let answering =
                            answer_later(Arc::clone(&self.cell), envelope, later, context);
                        self.cell.engine.spawn_task(answering);
                    }
                }
                if let Some(reason) = self.cx.end.take() {
                    Box::pin(self.end(reason)).await;
                }
            }
            Err(failure) => {
                let down = Down {
                    id: self.cell.id,
                    incarnation: self.cx.incarnation,
                    reason: Reason::Failed(failure.clone()),
                };
                if matches!(envelope.reply, ReplyTo::Nobody) {
                    self.cell.engine.dead_letter(self.cell.id, M::NAME, &down);
                }
                envelope.settle(&self.cell, Err(AskError::Died(down)), ended);
                Box::pin(self.end(Reason::Failed(failure))).await;
            }
        }
    }
}

/// Answers a message when the work that its handler left is done.
async fn answer_later<M: Message>(
    cell: Arc<Cell>,
    mut envelope: Box<Envelope<M>>,
    later: Later<M::Reply>,
    context: SpanContext,
) {
    let mut surroundings = None;
    surround(&mut surroundings, &cell, context);
    let done = surrounded(&mut surroundings, caught(M::NAME, later)).await;
    let outcome = done.map_err(|failure| {
        tracing::warn!(actor = %cell.id, method = M::NAME, %failure, "a later answer failed");
        AskError::Died(Down {
            id: cell.id,
            incarnation: cell.incarnation(),
            reason: Reason::Failed(failure),
        })
    });
    envelope.settle(&cell, outcome, Clock::now());
}

fn acknowledge(done: Option<oneshot::Sender<()>>) {
    if let Some(done) = done {
        // Whoever ordered it may have stopped waiting.
        let _ = done.send(());
    }
}

/// Runs user code: with its surroundings, panics caught, and dropped when the supervisor ordered
/// the end of this life and the grace is over.
async fn guarded<T>(
    cell: &Arc<Cell>,
    surroundings: &mut Option<Current>,
    place: &str,
    future: impl Future<Output = T>,
) -> Result<T, Failure> {
    let mut future = pin!(surrounded(surroundings, caught(place, future)));
    // Most handlers finish in one poll; only the others pay for listening to orders.
    let first = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    if let Poll::Ready(result) = first {
        return result;
    }
    Box::pin(heeding(cell, place, future)).await
}

/// The rest of a run that did not finish at once.
async fn heeding<T>(
    cell: &Arc<Cell>,
    place: &str,
    mut future: Pin<&mut impl Future<Output = Result<T, Failure>>>,
) -> Result<T, Failure> {
    loop {
        let ordered = cell.ordered.notified();
        if cell.halting() {
            break;
        }
        tokio::select! {
            biased;
            result = &mut future => return result,
            () = ordered => {}
        }
    }
    // The order stays in the queue; put the wake-up back for the loop that obeys it.
    cell.ordered.notify_one();
    let grace = cell.engine.limits.stop_grace;
    Clock::timeout(grace, future).await.unwrap_or_else(|| {
        Err(Failure::new(
            FailureKind::Hang,
            format!(
                "{place} did not finish within {grace:?} of the order to stop, and was dropped"
            ),
        ))
    })
}

async fn caught<T>(place: &str, future: impl Future<Output = T>) -> Result<T, Failure> {
    AssertUnwindSafe(future)
        .catch_unwind()
        .await
        .map_err(|payload| Failure::from_panic(payload.as_ref(), place))
}

/// Prepares surroundings for user code of an actor.
fn surround(surroundings: &mut Option<Current>, cell: &Arc<Cell>, context: SpanContext) {
    match surroundings {
        Some(Current::Actor { span, .. }) => *span = context,
        other => {
            *other = Some(Current::Actor {
                cell: Arc::clone(cell),
                span: context,
            });
        }
    }
}

async fn surrounded<T>(home: &mut Option<Current>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        let _entered = Entered::new(home);
        future.as_mut().poll(cx)
    })
    .await
}
