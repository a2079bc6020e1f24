//! Sending: `ask` and `tell` as builders that are futures.
//!
//! A local ask goes straight into the mailbox: no bytes, no catalog, no lock held across an await.
//! A remote ask is encoded, gets a pending entry, and goes to the link that leads to the actor.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::actor::{Handler, Message};
use crate::blob;
use crate::cell::{Cell, Phase, Sender};
use crate::clock::{Clock, Timestamp};
use crate::current::{self, Caller};
use crate::engine::{Credit, Engine, Hop, Whereabouts};
use crate::error::{AskError, TellError};
use crate::failure::Down;
use crate::host::{self, Envelope, ReplyTo};
use crate::id::{ActorId, Incarnation, ProcessId, Ref};
use crate::pending::{Crowd, InCrowd, Slot, Waiter, Waiting};
use crate::shape::{self, Shape};
use crate::trace::{FOLLOWS, Outcome, Span, SpanContext, SpanKind};
use crate::wire::{Call, codec};

/// A reference to any actor that handles `M`: what [`Ref::narrow`] gives. It hides the actor's
/// type, so that a consumer depends on the message and on nothing else.
pub struct Recipient<M> {
    id: ActorId,
    fence: Incarnation,
    _message: std::marker::PhantomData<fn(M)>,
}

impl<M> Recipient<M> {
    pub(crate) const fn from_id(id: ActorId) -> Self {
        Self {
            id,
            fence: 0,
            _message: std::marker::PhantomData,
        }
    }
}

impl<M> Clone for Recipient<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Recipient<M> {}
impl<M> fmt::Debug for Recipient<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recipient({})", self.id)
    }
}
impl<M> Serialize for Recipient<M> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.id, self.fence).serialize(serializer)
    }
}
impl<'de, M> Deserialize<'de> for Recipient<M> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (id, fence) = Deserialize::deserialize(deserializer)?;
        Ok(Self {
            id,
            fence,
            _message: std::marker::PhantomData,
        })
    }
}
impl<M: Message> Shape for Recipient<M> {
    const SHAPE: u64 = shape::mix(shape::name("Recipient"), M::METHOD);
}

/// A function that takes a message from the caller's hands into a local mailbox.
type Deliver<M> = fn(&Arc<Cell>, Box<Envelope<M>>);

impl<M: Message> Recipient<M> {
    /// The identity behind the reference.
    #[must_use]
    pub const fn id(&self) -> ActorId {
        self.id
    }

    /// See [`Ref::ask`].
    pub fn ask(&self, message: M) -> Ask<M> {
        Ask::new(self.id, self.fence, message, deliver_by_method)
    }

    /// See [`Ref::tell`].
    pub fn tell(&self, message: M) -> Tell<M> {
        Tell::new(self.id, self.fence, message, deliver_by_method)
    }
}

impl<A: 'static> Ref<A> {
    /// Sends a message and waits for the answer. `actor.ask(m).await`, or
    /// `actor.ask(m).timeout(t).await`; without a timeout, [`Limits::ask_timeout`] holds. The
    /// deadline travels with the message, and dropping the future withdraws it if it still waits.
    ///
    /// [`Limits::ask_timeout`]: crate::Limits
    pub fn ask<M: Message>(&self, message: M) -> Ask<M>
    where
        A: Handler<M>,
    {
        Ask::new(self.id, self.fence, message, host::deliver::<A, M>)
    }

    /// Sends a message without an answer. The future ends when the mailbox (near) or the link (far)
    /// has accepted it, and waits while they are full, up to the timeout.
    pub fn tell<M: Message>(&self, message: M) -> Tell<M>
    where
        A: Handler<M>,
    {
        Tell::new(self.id, self.fence, message, host::deliver::<A, M>)
    }

    /// A reference that only knows one message.
    #[must_use]
    pub fn narrow<M: Message>(self) -> Recipient<M>
    where
        A: Handler<M>,
    {
        Recipient {
            id: self.id,
            fence: self.fence,
            _message: std::marker::PhantomData,
        }
    }

    /// Ends the actor in order, after the message that it handles now. The future resolves when it
    /// is gone. Mail that still waits is answered with [`AskError::Died`].
    pub const fn stop(&self) -> Stop {
        Stop {
            id: self.id,
            timeout: None,
            ending: None,
        }
    }

    /// Watches the incarnation that is present now: resolves when it ends and tells why, at once
    /// when it is gone already. An actor whose home is another process is watched from the first
    /// poll on.
    pub fn down(&self) -> impl Future<Output = Down> + Send + use<A> {
        let id = self.id;
        let watch = current::engine_for(id.home).map(|engine| engine.watch(id));
        async move {
            match watch {
                Some(watch) => watch.await,
                None => Down {
                    id,
                    incarnation: 0,
                    reason: crate::Reason::Unknown,
                },
            }
        }
    }
}

fn deliver_by_method<M: Message>(cell: &Arc<Cell>, envelope: Box<Envelope<M>>) {
    match cell.method(M::METHOD) {
        Some(method) => (method.local)(cell, &mut Some(envelope)),
        None => {
            let method = M::NAME.to_owned();
            envelope.refuse(
                cell,
                AskError::NoSuchMethod {
                    actor: cell.id,
                    method,
                },
            );
        }
    }
}

/// The fields that both kinds of request have before they are sent.
struct Request<M: Message> {
    to: ActorId,
    fence: Incarnation,
    message: Option<M>,
    timeout: Option<Duration>,
    /// When patience ends, once it has waited for room.
    deadline: Option<Timestamp>,
    deliver: Deliver<M>,
}

impl<M: Message> Request<M> {
    /// When patience ends: that long after the first attempt.
    fn deadline(&self, engine: &Engine, now: Timestamp) -> Timestamp {
        self.deadline
            .unwrap_or_else(|| now.after(self.patience(engine)))
    }

    fn patience(&self, engine: &Engine) -> Duration {
        self.timeout.unwrap_or(engine.limits.ask_timeout)
    }

    fn check_fence(&self, cell: &Cell) -> Result<(), AskError> {
        let current = cell.incarnation();
        if self.fence == 0 || self.fence == current {
            Ok(())
        } else {
            Err(AskError::Stale {
                actor: self.to,
                fence: self.fence,
                current,
            })
        }
    }

    /// The span of a request that was not sent.
    fn record_refusal(&self, kind: SpanKind) {
        if let Some(engine) = current::engine_for(self.to.home) {
            let now = Clock::now();
            self.record(&engine, kind, &Caller::now(), now, Outcome::Failed);
        }
    }

    /// Records a span without extent, and gives its context.
    fn record(
        &self,
        engine: &Engine,
        kind: SpanKind,
        caller: &Caller,
        now: Timestamp,
        outcome: Outcome,
    ) -> SpanContext {
        // Who tells itself to go on may do so for ever, and so may two who tell each other.
        let told = kind == SpanKind::Tell;
        let follows = told && (caller.inside() == Some(self.to) || caller.span.is_far());
        let parent = if follows {
            SpanContext::default()
        } else {
            caller.span
        };
        let begun = engine.tracer.begin(parent, now);
        let context = if told { begun.told() } else { begun };
        if engine.tracer.keeps(context, outcome, Duration::ZERO) {
            let labels = match follows && !caller.span.is_empty() {
                true => vec![(FOLLOWS.into(), caller.span.traceparent().into())],
                false => vec![],
            };
            engine.tracer.record(Span {
                context,
                parent: parent.span_id,
                kind,
                by: caller.actor(engine),
                actor: self.to,
                message: M::NAME.into(),
                queued: now,
                started: now,
                ended: now,
                outcome,
                labels,
            });
        }
        context
    }

    /// Finds the actor, and takes room on the way to it.
    fn way(&self) -> Result<Result<Way, Full>, AskError> {
        let to = self.to;
        let engine = current::engine_for(to.home).ok_or(AskError::NoSystem)?;
        match engine.find(to) {
            Whereabouts::Here(cell) => {
                self.check_fence(&cell)?;
                if cell.admission.try_take() {
                    Ok(Ok(Way::Near(cell)))
                } else {
                    Ok(Err(Full::Near(cell)))
                }
            }
            Whereabouts::There(hop) => match engine.try_credit(to, hop.as_ref()) {
                Some(credit) => Ok(Ok(Way::Far(engine, credit, hop))),
                None => Ok(Err(Full::Far(engine))),
            },
            Whereabouts::Dead(down) => Err(AskError::Dead(down)),
            Whereabouts::Unreachable => Err(AskError::Unreachable(to)),
        }
    }

    /// Waits for room and takes it.
    fn wait(&mut self, full: Full) -> Room {
        let to = self.to;
        let engine = match &full {
            Full::Near(cell) => &cell.engine,
            Full::Far(engine) => engine,
        };
        let (patience, now) = (self.patience(engine), Clock::now());
        self.deadline = Some(now.after(patience));
        let queueing = Crowd::enter(
            engine,
            InCrowd {
                caller: Caller::now(),
                actor: to,
                message: M::NAME,
                since: now,
            },
        );
        Box::pin(async move {
            let _queueing = queueing;
            let room = async {
                match full {
                    Full::Near(cell) => {
                        cell.admission.wait().await;
                        Way::Near(cell)
                    }
                    Full::Far(engine) => {
                        let credit = engine.credit(to).await;
                        Way::Far(engine, credit, None)
                    }
                }
            };
            Clock::timeout(patience, room).await.ok_or(AskError::Full {
                actor: to,
                waited: patience,
            })
        })
    }

    /// The message as it travels.
    fn payload(&self, engine: &Engine) -> Result<Bytes, AskError> {
        let message = self.message.as_ref().expect("a request is sent once");
        let bytes =
            blob::arriving(1, || codec::encode(message)).map_err(|error| AskError::BadMessage {
                actor: self.to,
                why: error.to_string(),
            })?;
        let limit = engine.limits.message_bytes_max;
        if bytes.len() > limit {
            return Err(AskError::TooLarge {
                bytes: bytes.len(),
                limit,
            });
        }
        Ok(Bytes::from(bytes))
    }

    fn call(
        &self,
        engine: &Engine,
        call: u64,
        budget: Duration,
        trace: SpanContext,
        payload: Bytes,
    ) -> Call {
        Call {
            call,
            from: engine.process,
            to: self.to,
            at: ProcessId(0),
            fence: self.fence,
            method: M::METHOD,
            budget,
            trace,
            payload,
        }
    }
}

/// A way to an actor, with room on it taken for one message.
enum Way {
    /// Into a mailbox of this process.
    Near(Arc<Cell>),
    /// Over a link, for a remote actor's credit. Without a first step the engine looks for one.
    Far(Arc<Engine>, Arc<Credit>, Option<Hop>),
}

impl Way {
    fn engine(&self) -> &Arc<Engine> {
        match self {
            Self::Near(cell) => &cell.engine,
            Self::Far(engine, ..) => engine,
        }
    }

    /// Whom the message will be written to, as far as is known.
    fn neighbour(&self) -> Option<ProcessId> {
        match self {
            Self::Far(_, _, Some(hop)) => Some(hop.link.peer),
            Self::Near(_) | Self::Far(_, _, None) => None,
        }
    }
}

/// A way without room at the moment.
enum Full {
    Near(Arc<Cell>),
    Far(Arc<Engine>),
}

/// The wait for room.
type Room = BoxFuture<'static, Result<Way, AskError>>;

/// A request for an answer. Await it.
#[must_use = "an ask is sent when it is awaited"]
pub struct Ask<M: Message> {
    request: Request<M>,
    stage: Stage<M>,
}

enum Stage<M: Message> {
    New,
    Waiting(Room),
    /// Waiting for the answer.
    Sent(Sent<M>),
    Over,
}

struct Sent<M: Message> {
    way: Way,
    slot: Arc<Slot<M::Reply>>,
    key: u64,
    span: SpanContext,
    caller: Caller,
    sent: Timestamp,
    answered: bool,
}

impl<M: Message> fmt::Debug for Ask<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ask({} to {})", M::NAME, self.request.to)
    }
}

impl<M: Message> Ask<M> {
    fn new(to: ActorId, fence: Incarnation, message: M, deliver: Deliver<M>) -> Self {
        let request = Request {
            to,
            fence,
            message: Some(message),
            timeout: None,
            deadline: None,
            deliver,
        };
        Self {
            request,
            stage: Stage::New,
        }
    }

    /// Waits at most this long.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = Some(timeout);
        self
    }

    /// Finds the actor and, when there is room, sends at once.
    fn begin(&mut self, cx: &Context<'_>) -> Result<(), AskError> {
        let to = self.request.to;
        if current::actor() == Some(to) {
            return Err(AskError::SelfAsk(to));
        }
        match self.request.way()? {
            Ok(way) => self.send(way, cx),
            Err(full) => {
                self.stage = Stage::Waiting(self.request.wait(full));
                Ok(())
            }
        }
    }

    fn send(&mut self, way: Way, cx: &Context<'_>) -> Result<(), AskError> {
        let payload = match &way {
            // What stays in this process is not encoded.
            Way::Near(_) => Bytes::new(),
            Way::Far(engine, credit, _) => {
                let payload = self.request.payload(engine);
                payload.inspect_err(|_| credit.give_back(1))?
            }
        };
        // From here on the drop of `sent` gives back key and credit.
        let sent = self.open(way, cx);
        match &sent.way {
            Way::Near(cell) => {
                let envelope = Box::new(Envelope {
                    message: self.request.message.take(),
                    reply: ReplyTo::Local(Arc::clone(&sent.slot)),
                    deadline: self.request.deadline(&cell.engine, sent.sent),
                    queued: sent.sent,
                    trace: sent.span,
                    sender: Sender::Local,
                    cell: None,
                });
                (self.request.deliver)(cell, envelope);
            }
            Way::Far(engine, _, hop) => {
                let budget = self.request.deadline(engine, sent.sent).left(sent.sent);
                let call = self
                    .request
                    .call(engine, sent.key, budget, sent.span, payload);
                engine.send(hop.as_ref(), call);
                self.request.message = None;
            }
        }
        self.stage = Stage::Sent(sent);
        Ok(())
    }

    fn open(&self, way: Way, cx: &Context<'_>) -> Sent<M> {
        // The waker is in place before anything is sent, so the slot needs no first poll.
        let slot = Slot::new(self.request.to, cx.waker().clone());
        let sent = Clock::now();
        let engine = way.engine();
        let patience = self.request.patience(engine);
        let caller = Caller::now();
        let span = engine.tracer.begin(caller.span, sent);
        let key = engine.pending.insert(Waiting {
            slot: Arc::clone(&slot) as Arc<dyn Waiter>,
            actor: self.request.to,
            message: M::NAME,
            caller,
            since: sent,
            deadline: self.request.deadline(engine, sent),
            patience,
            via: way.neighbour(),
        });
        Sent {
            way,
            slot,
            key,
            span,
            caller,
            sent,
            answered: false,
        }
    }
}

// Neither the message nor the reply is ever polled.
impl<M: Message> Unpin for Ask<M> {}

impl<M: Message> Future for Ask<M> {
    type Output = Result<M::Reply, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.stage {
                Stage::New => {
                    if let Err(error) = self.begin(cx) {
                        self.stage = Stage::Over;
                        self.request.record_refusal(SpanKind::Ask);
                        return Poll::Ready(Err(error));
                    }
                    if let Stage::Sent(_) = self.stage {
                        return Poll::Pending;
                    }
                }
                Stage::Waiting(room) => {
                    let room = ready!(room.as_mut().poll(cx));
                    self.stage = Stage::Over;
                    if let Err(error) = room.and_then(|way| self.send(way, cx)) {
                        self.request.record_refusal(SpanKind::Ask);
                        return Poll::Ready(Err(error));
                    }
                    return Poll::Pending;
                }
                Stage::Sent(sent) => {
                    let (outcome, at) = ready!(sent.slot.poll(cx));
                    sent.answered = true;
                    sent.record(outcome.is_ok(), at);
                    self.stage = Stage::Over;
                    return Poll::Ready(outcome);
                }
                Stage::Over => panic!("an ask was polled after it had finished"),
            }
        }
    }
}

impl<M: Message> Sent<M> {
    fn record(&self, ok: bool, ended: Timestamp) {
        let engine = self.way.engine();
        let (outcome, lasted) = (Outcome::of(ok), ended.since(self.sent));
        engine.tracer.answered(lasted);
        if engine.tracer.keeps(self.span, outcome, lasted) {
            engine.tracer.record(Span {
                context: self.span,
                parent: self.caller.span.span_id,
                kind: SpanKind::Ask,
                by: self.caller.actor(engine),
                actor: self.slot.actor(),
                message: M::NAME.into(),
                queued: self.sent,
                started: self.sent,
                ended,
                outcome,
                labels: vec![],
            });
        }
    }
}

impl<M: Message> Drop for Sent<M> {
    fn drop(&mut self) {
        self.slot.abandon();
        if !self.answered {
            self.record(false, Clock::now());
        }
        // Gone when the answer came over a link or too late; else still there.
        let engine = self.way.engine();
        if let Some(waiting) = engine.pending.take(self.key) {
            engine.withdraw(self.key, &waiting);
        }
        if let Way::Far(_, credit, _) = &self.way {
            credit.give_back(1);
        }
    }
}

/// A message without an answer. Await it.
#[must_use = "a tell is sent when it is awaited"]
pub struct Tell<M: Message> {
    request: Request<M>,
}

impl<M: Message> fmt::Debug for Tell<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tell({} to {})", M::NAME, self.request.to)
    }
}

impl<M: Message> Tell<M> {
    fn new(to: ActorId, fence: Incarnation, message: M, deliver: Deliver<M>) -> Self {
        Self {
            request: Request {
                to,
                fence,
                message: Some(message),
                timeout: None,
                deadline: None,
                deliver,
            },
        }
    }

    /// Waits at most this long for room.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = Some(timeout);
        self
    }

    /// Sends now or not at all, without waiting for room.
    ///
    /// # Errors
    /// As for awaiting it, and [`AskError::Full`] at once. The message comes back.
    pub fn now(mut self) -> Result<(), TellError<M>> {
        let error = match self.attempt() {
            Ok(None) => return Ok(()),
            Ok(Some(_full)) => AskError::Full {
                actor: self.request.to,
                waited: Duration::ZERO,
            },
            Err(error) => error,
        };
        Err(self.undelivered(error))
    }

    /// Sends when there is room; else says which way there is none.
    fn attempt(&mut self) -> Result<Option<Full>, AskError> {
        let to = self.request.to;
        match self.request.way()? {
            Ok(way) => self.send(&way).map(|()| None),
            // A wait for room in one's own mailbox would never end.
            Err(Full::Near(_)) if current::actor() == Some(to) => Err(AskError::Full {
                actor: to,
                waited: Duration::ZERO,
            }),
            Err(full) => Ok(Some(full)),
        }
    }

    fn send(&mut self, way: &Way) -> Result<(), AskError> {
        match way {
            Way::Near(cell) => self.send_near(cell),
            Way::Far(engine, credit, hop) => self.send_far(engine, credit, hop.as_ref()),
        }
    }

    fn send_near(&mut self, cell: &Arc<Cell>) -> Result<(), AskError> {
        let engine = &cell.engine;
        if cell.phase() == Phase::Over {
            cell.admission.give_back();
            return Err(AskError::Dead(engine.obituary(cell.id)));
        }
        let now = Clock::now();
        let envelope = Box::new(Envelope {
            message: self.request.message.take(),
            reply: ReplyTo::Nobody,
            deadline: now.after(self.request.patience(engine)),
            queued: now,
            trace: self.trace(engine, now),
            sender: Sender::Local,
            cell: None,
        });
        (self.request.deliver)(cell, envelope);
        Ok(())
    }

    fn send_far(
        &mut self,
        engine: &Arc<Engine>,
        credit: &Credit,
        hop: Option<&Hop>,
    ) -> Result<(), AskError> {
        let payload = self.request.payload(engine);
        let payload = payload.inspect_err(|_| credit.give_back(1))?;
        let trace = self.trace(engine, Clock::now());
        let patience = self.request.patience(engine);
        let call = self.request.call(engine, 0, patience, trace, payload);
        engine.send(hop, call);
        self.request.message = None;
        Ok(())
    }

    fn undelivered(&mut self, error: AskError) -> TellError<M> {
        self.request.record_refusal(SpanKind::Tell);
        TellError {
            message: self.request.message.take(),
            error,
        }
    }

    /// The span of a tell that is accepted.
    fn trace(&self, engine: &Engine, now: Timestamp) -> SpanContext {
        self.request
            .record(engine, SpanKind::Tell, &Caller::now(), now, Outcome::Ok)
    }
}

impl<M: Message> IntoFuture for Tell<M> {
    type Output = Result<(), TellError<M>>;
    type IntoFuture = Telling<M>;

    fn into_future(self) -> Telling<M> {
        Telling {
            tell: self,
            room: None,
        }
    }
}

/// A [`Tell`] under way. Most find room at once and cost no allocation of their own.
#[must_use = "futures do nothing unless awaited"]
pub struct Telling<M: Message> {
    tell: Tell<M>,
    room: Option<Room>,
}

impl<M: Message> fmt::Debug for Telling<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell.fmt(f)
    }
}

// The message is never polled.
impl<M: Message> Unpin for Telling<M> {}

impl<M: Message> Future for Telling<M> {
    type Output = Result<(), TellError<M>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let room = match &mut this.room {
            Some(room) => room,
            none => match this.tell.attempt() {
                Ok(None) => return Poll::Ready(Ok(())),
                Ok(Some(full)) => none.insert(this.tell.request.wait(full)),
                Err(error) => return Poll::Ready(Err(this.tell.undelivered(error))),
            },
        };
        let outcome = ready!(room.as_mut().poll(cx)).and_then(|way| this.tell.send(&way));
        Poll::Ready(outcome.map_err(|error| this.tell.undelivered(error)))
    }
}

/// The end of an actor, in order. Await it.
#[must_use = "a stop is ordered when it is awaited"]
pub struct Stop {
    id: ActorId,
    timeout: Option<Duration>,
    /// Ordered, and not yet over.
    ending: Option<BoxFuture<'static, Result<(), AskError>>>,
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stop({})", self.id)
    }
}

impl Stop {
    /// Waits at most this long; then the answer is [`AskError::Timeout`], and the end goes on.
    /// Without it the wait is as long as the end takes, which [`Limits::stop_grace`] bounds for
    /// each actor below.
    ///
    /// [`Limits::stop_grace`]: crate::Limits
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn order(&self) -> BoxFuture<'static, Result<(), AskError>> {
        let Self { id, timeout, .. } = *self;
        let Some(engine) = current::engine_for(id.home) else {
            return Box::pin(std::future::ready(Err(AskError::NoSystem)));
        };
        let (tell, told) = oneshot::channel();
        let stopping = Arc::clone(&engine);
        // A task of its own: what has begun to end must not stay half ended. The order is given at
        // once, so that what the caller does next comes after it.
        engine.begin_task(async move {
            let outcome = stopping.stop_actor(id).await;
            // Whoever ordered it may have stopped waiting.
            let _ = tell.send(outcome);
        });
        Box::pin(async move {
            let told = async { told.await.unwrap_or(Err(AskError::Unreachable(id))) };
            match timeout {
                None => told.await,
                Some(waited) => Clock::timeout(waited, told)
                    .await
                    .unwrap_or(Err(AskError::Timeout { actor: id, waited })),
            }
        })
    }
}

impl Future for Stop {
    type Output = Result<(), AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut ending = self.ending.take().unwrap_or_else(|| self.order());
        let poll = ending.as_mut().poll(cx);
        self.ending = Some(ending);
        poll
    }
}

#[cfg(test)]
mod tests;
