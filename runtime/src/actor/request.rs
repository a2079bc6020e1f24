//! Sending: `ask` and `tell` as builders that are futures.
//!
//! A local ask goes straight into the mailbox: no bytes, no catalog, no lock held across an await.
//! A remote ask is encoded, gets a pending entry, and goes to the link that leads to the actor.

use std::any::TypeId;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::actor::cell::{ActorCell, Phase, Sender};
use crate::actor::engine::routing::{Hop, Whereabouts};
use crate::actor::engine::{Credit, Engine};
use crate::actor::envelope::{self, Envelope, ReplyTo};
use crate::actor::handler::Handler;
use crate::actor::mail::{Head, Mail, Run};
use crate::actor::pending::{Caller, InCrowd, Slot, Waiter, Waiting};
use crate::actor::task_context;
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::{AskError, TellError};
use crate::base::failure::Down;
use crate::base::id::{ActorId, Incarnation, ProcessId, Ref};
use crate::base::message::Message;
use crate::base::shape::{self, Shape};
use crate::base::trace::{FOLLOWS, Outcome, Span, SpanContext, SpanKind};
use crate::net::wire::Call;
use crate::net::wire::codec::{self, CodecError};

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

impl<M: Message> Recipient<M> {
    /// The identity behind the reference.
    #[must_use]
    pub const fn id(&self) -> ActorId {
        self.id
    }

    /// See [`Ref::ask`].
    pub fn ask(&self, message: M) -> Ask<M> {
        Ask::new(self.id, self.fence, message, by_method)
    }

    /// See [`Ref::tell`].
    pub fn tell(&self, message: M) -> Tell<M> {
        Tell::new(self.id, self.fence, message, by_method)
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
        Ask::new(self.id, self.fence, message, by_type::<A, M>)
    }

    /// Sends a message without an answer. The future ends when the mailbox (near) or the link (far)
    /// has accepted it, and waits while they are full, up to the timeout.
    pub fn tell<M: Message>(&self, message: M) -> Tell<M>
    where
        A: Handler<M>,
    {
        Tell::new(self.id, self.fence, message, by_type::<A, M>)
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
        let watch = task_context::engine_for(id.home).map(|engine| engine.watch(id));
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

/// Finds the handler of a message (by its id on the wire) at an actor of this process.
type FindHandler = fn(&ActorCell, u64) -> Option<Run>;

/// Of a reference that knows its actor's type; the message may be one that never leaves its process.
fn by_type<A: Handler<M>, M: Message>(cell: &ActorCell, _: u64) -> Option<Run> {
    cell.hosts(TypeId::of::<A>())
        .then_some(envelope::run::<A, M>)
}

/// Of a reference that knows the message alone.
fn by_method(cell: &ActorCell, method: u64) -> Option<Run> {
    cell.method(method).map(|method| method.run)
}

/// The part of a request that does not depend on the message's type.
struct Request {
    to: ActorId,
    fence: Incarnation,
    /// The message's name.
    name: &'static str,
    /// Its id on the wire.
    method: u64,
    timeout: Option<Duration>,
    /// When patience ends, once it has waited for room.
    deadline: Option<Timestamp>,
    find_handler: FindHandler,
}

/// The encoding of a message for other processes.
type Encoded = Result<Vec<u8>, CodecError>;

impl Request {
    fn new<M: Message>(to: ActorId, fence: Incarnation, find_handler: FindHandler) -> Self {
        Self {
            to,
            fence,
            name: M::NAME,
            method: M::METHOD,
            timeout: None,
            deadline: None,
            find_handler,
        }
    }

    /// When patience ends: that long after the first attempt.
    fn deadline(&self, engine: &Engine, now: Timestamp) -> Timestamp {
        self.deadline
            .unwrap_or_else(|| now.after(self.patience(engine)))
    }

    fn patience(&self, engine: &Engine) -> Duration {
        self.timeout.unwrap_or(engine.limits.ask_timeout)
    }

    fn check_fence(&self, cell: &ActorCell) -> Result<(), AskError> {
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
        if let Some(engine) = task_context::engine_for(self.to.home) {
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
                by: caller.actor(engine.process),
                actor: self.to,
                message: self.name.into(),
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
        let engine = task_context::engine_for(to.home).ok_or(AskError::NoSystem)?;
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
        let queueing = engine.crowd.enter(InCrowd {
            caller: Caller::now(),
            actor: to,
            message: self.name,
            since: now,
        });
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

    /// The handler at an actor of this process; without one, the room that was taken goes back.
    fn handler_at(&self, cell: &ActorCell) -> Result<Run, AskError> {
        (self.find_handler)(cell, self.method).ok_or_else(|| {
            cell.admission.give_back();
            AskError::NoSuchMethod {
                actor: self.to,
                method: self.name.to_owned(),
            }
        })
    }

    /// The head of an envelope for this process.
    fn head(&self, run: Run, deadline: Timestamp, queued: Timestamp, trace: SpanContext) -> Head {
        Head {
            name: self.name,
            method: self.method,
            fence: self.fence,
            deadline,
            queued,
            trace,
            sender: Sender::Local,
            run,
            cell: None,
        }
    }

    /// The message as it travels.
    fn payload(&self, engine: &Engine, message: &dyn Parcel) -> Result<Bytes, AskError> {
        let bytes =
            codec::arriving(1, || message.encode()).map_err(|error| AskError::BadMessage {
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
            method: self.method,
            budget,
            trace,
            payload,
        }
    }
}

/// The message of a request, whatever its type.
trait Parcel {
    /// The message as it travels.
    fn encode(&self) -> Encoded;

    /// The message as it lies in a mailbox of this process.
    fn wrap(&mut self, head: Head) -> Box<dyn Mail>;
}

/// The message of an ask, and where its answer arrives.
struct Question<M: Message> {
    /// Until it is sent.
    message: Option<M>,
    /// Once it is sent.
    slot: Option<Arc<Slot<M::Reply>>>,
}

/// A question, whatever its type.
trait AnyQuestion: Parcel {
    /// Makes the place where the answer to a request of this actor arrives.
    fn open(&mut self, to: ActorId, waker: &Waker) -> Arc<dyn Waiter>;

    /// The message has left this process.
    fn sent(&mut self);
}

fn encode<M: Message>(message: Option<&M>) -> Encoded {
    codec::encode(message.expect("a request is sent once"))
}

impl<M: Message> Parcel for Question<M> {
    fn encode(&self) -> Encoded {
        encode(self.message.as_ref())
    }

    fn wrap(&mut self, head: Head) -> Box<dyn Mail> {
        let message = self.message.take().expect("a request is sent once");
        let slot = self.slot.as_ref().expect("its slot is open");
        Envelope::new(message, ReplyTo::Local(Arc::clone(slot)), head)
    }
}

impl<M: Message> AnyQuestion for Question<M> {
    fn open(&mut self, to: ActorId, waker: &Waker) -> Arc<dyn Waiter> {
        let slot = self.slot.insert(Slot::new(to, waker.clone()));
        Arc::clone(slot) as Arc<dyn Waiter>
    }

    fn sent(&mut self) {
        self.message = None;
    }
}

impl<M: Message> Parcel for Option<M> {
    fn encode(&self) -> Encoded {
        encode(self.as_ref())
    }

    fn wrap(&mut self, head: Head) -> Box<dyn Mail> {
        let message = self.take().expect("a request is sent once");
        Envelope::new(message, ReplyTo::Nobody, head)
    }
}

/// A way to an actor, with room on it taken for one message.
enum Way {
    /// Into a mailbox of this process.
    Near(Arc<ActorCell>),
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
    Near(Arc<ActorCell>),
    Far(Arc<Engine>),
}

/// The wait for room.
type Room = BoxFuture<'static, Result<Way, AskError>>;

/// A request for an answer. Await it.
#[must_use = "an ask is sent when it is awaited"]
pub struct Ask<M: Message> {
    asking: Asking,
    question: Question<M>,
}

/// An ask, whatever its message.
struct Asking {
    request: Request,
    stage: Stage,
}

enum Stage {
    New,
    Waiting(Room),
    /// Waiting for the answer.
    Sent(Sent),
    Over,
}

struct Sent {
    way: Way,
    actor: ActorId,
    name: &'static str,
    key: u64,
    span: SpanContext,
    caller: Caller,
    sent: Timestamp,
    answered: bool,
}

impl<M: Message> fmt::Debug for Ask<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ask({} to {})", M::NAME, self.asking.request.to)
    }
}

impl<M: Message> Ask<M> {
    fn new(to: ActorId, fence: Incarnation, message: M, find_handler: FindHandler) -> Self {
        Self {
            asking: Asking {
                request: Request::new::<M>(to, fence, find_handler),
                stage: Stage::New,
            },
            question: Question {
                message: Some(message),
                slot: None,
            },
        }
    }

    /// Waits at most this long.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.asking.request.timeout = Some(timeout);
        self
    }
}

impl Asking {
    /// Goes on until the question is sent.
    fn advance(
        &mut self,
        question: &mut dyn AnyQuestion,
        cx: &Context<'_>,
    ) -> Poll<Result<(), AskError>> {
        let way = match &mut self.stage {
            Stage::New => match self.find() {
                Ok(Ok(way)) => Ok(way),
                Ok(Err(full)) => {
                    self.stage = Stage::Waiting(self.request.wait(full));
                    return self.advance(question, cx);
                }
                Err(error) => Err(error),
            },
            Stage::Waiting(room) => {
                let mut cx = Context::from_waker(cx.waker());
                ready!(room.as_mut().poll(&mut cx))
            }
            Stage::Sent(_) => return Poll::Ready(Ok(())),
            Stage::Over => panic!("an ask was polled after it had finished"),
        };
        self.stage = Stage::Over;
        let sent = way.and_then(|way| self.send(way, question, cx));
        if sent.is_err() {
            self.request.record_refusal(SpanKind::Ask);
        }
        Poll::Ready(sent)
    }

    fn find(&self) -> Result<Result<Way, Full>, AskError> {
        let to = self.request.to;
        if task_context::actor() == Some(to) {
            return Err(AskError::SelfAsk(to));
        }
        self.request.way()
    }

    fn send(
        &mut self,
        way: Way,
        question: &mut dyn AnyQuestion,
        cx: &Context<'_>,
    ) -> Result<(), AskError> {
        let request = &self.request;
        let prepared = match &way {
            // What stays in this process is not encoded.
            Way::Near(cell) => Prepared::Run(request.handler_at(cell)?),
            Way::Far(engine, credit, _) => {
                let payload = request.payload(engine, question);
                Prepared::Payload(payload.inspect_err(|_| credit.give_back(1))?)
            }
        };
        // From here on the drop of `sent` gives back key and credit.
        let sent = request.open(way, question, cx);
        let deadline = request.deadline(sent.way.engine(), sent.sent);
        match (&sent.way, prepared) {
            (Way::Far(engine, _, hop), Prepared::Payload(payload)) => {
                let budget = deadline.left(sent.sent);
                let call = request.call(engine, sent.key, budget, sent.span, payload);
                engine.send(hop.as_ref(), call);
                question.sent();
            }
            (Way::Near(cell), Prepared::Run(run)) => {
                let head = request.head(run, deadline, sent.sent, sent.span);
                envelope::deliver(cell, question.wrap(head));
            }
            _ => unreachable!("it was prepared for this way"),
        }
        self.stage = Stage::Sent(sent);
        Ok(())
    }

    /// The answer has come.
    fn answered(&mut self, ok: bool, at: Timestamp) {
        if let Stage::Sent(mut sent) = std::mem::replace(&mut self.stage, Stage::Over) {
            sent.answered = true;
            sent.record(ok, at);
        }
    }
}

/// What an ask takes along, by its way.
enum Prepared {
    Run(Run),
    Payload(Bytes),
}

impl Request {
    fn open(&self, way: Way, question: &mut dyn AnyQuestion, cx: &Context<'_>) -> Sent {
        // The waker is in place before anything is sent, so the slot needs no first poll.
        let slot = question.open(self.to, cx.waker());
        let sent = Clock::now();
        let engine = way.engine();
        let patience = self.patience(engine);
        let caller = Caller::now();
        let span = engine.tracer.begin(caller.span, sent);
        let key = engine.pending.insert(Waiting {
            slot,
            actor: self.to,
            message: self.name,
            caller,
            since: sent,
            deadline: self.deadline(engine, sent),
            patience,
            via: way.neighbour(),
        });
        Sent {
            way,
            actor: self.to,
            name: self.name,
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
        let this = &mut *self;
        if let Some(slot) = &this.question.slot {
            let (outcome, at) = ready!(slot.poll(cx));
            this.asking.answered(outcome.is_ok(), at);
            return Poll::Ready(outcome);
        }
        match ready!(this.asking.advance(&mut this.question, cx)) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<M: Message> Drop for Ask<M> {
    fn drop(&mut self) {
        if let Some(slot) = &self.question.slot {
            slot.abandon();
        }
    }
}

impl Sent {
    fn record(&self, ok: bool, ended: Timestamp) {
        let engine = self.way.engine();
        let (outcome, lasted) = (Outcome::of(ok), ended.since(self.sent));
        engine.tracer.answered(lasted);
        if engine.tracer.keeps(self.span, outcome, lasted) {
            engine.tracer.record(Span {
                context: self.span,
                parent: self.caller.span.span_id,
                kind: SpanKind::Ask,
                by: self.caller.actor(engine.process),
                actor: self.actor,
                message: self.name.into(),
                queued: self.sent,
                started: self.sent,
                ended,
                outcome,
                labels: vec![],
            });
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
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
    request: Request,
    message: Option<M>,
}

impl<M: Message> fmt::Debug for Tell<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tell({} to {})", M::NAME, self.request.to)
    }
}

impl<M: Message> Tell<M> {
    fn new(to: ActorId, fence: Incarnation, message: M, find_handler: FindHandler) -> Self {
        Self {
            request: Request::new::<M>(to, fence, find_handler),
            message: Some(message),
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
        let error = match self.request.tell(&mut self.message) {
            Ok(None) => return Ok(()),
            Ok(Some(_full)) => AskError::Full {
                actor: self.request.to,
                waited: Duration::ZERO,
            },
            Err(error) => error,
        };
        self.request.record_refusal(SpanKind::Tell);
        Err(TellError {
            message: self.message.take(),
            error,
        })
    }
}

impl Request {
    /// Tells when there is room; else says which way there is none.
    fn tell(&self, message: &mut dyn Parcel) -> Result<Option<Full>, AskError> {
        match self.way()? {
            Ok(way) => self.tell_by(&way, message).map(|()| None),
            // A wait for room in one's own mailbox would never end.
            Err(Full::Near(_)) if task_context::actor() == Some(self.to) => Err(AskError::Full {
                actor: self.to,
                waited: Duration::ZERO,
            }),
            Err(full) => Ok(Some(full)),
        }
    }

    fn tell_by(&self, way: &Way, message: &mut dyn Parcel) -> Result<(), AskError> {
        match way {
            Way::Near(cell) => self.tell_near(cell, message),
            Way::Far(engine, credit, hop) => self.tell_far(engine, credit, hop.as_ref(), message),
        }
    }

    fn tell_near(&self, cell: &Arc<ActorCell>, message: &mut dyn Parcel) -> Result<(), AskError> {
        let engine = &cell.engine;
        if cell.phase() == Phase::Over {
            cell.admission.give_back();
            return Err(AskError::Dead(engine.obituary(cell.id)));
        }
        let run = self.handler_at(cell)?;
        let now = Clock::now();
        let deadline = now.after(self.patience(engine));
        let head = self.head(run, deadline, now, self.trace_tell(engine, now));
        envelope::deliver(cell, message.wrap(head));
        Ok(())
    }

    fn tell_far(
        &self,
        engine: &Arc<Engine>,
        credit: &Credit,
        hop: Option<&Hop>,
        message: &dyn Parcel,
    ) -> Result<(), AskError> {
        let payload = self.payload(engine, message);
        let payload = payload.inspect_err(|_| credit.give_back(1))?;
        let trace = self.trace_tell(engine, Clock::now());
        let patience = self.patience(engine);
        let call = self.call(engine, 0, patience, trace, payload);
        engine.send(hop, call);
        Ok(())
    }

    /// The span of a tell that is accepted.
    fn trace_tell(&self, engine: &Engine, now: Timestamp) -> SpanContext {
        self.record(engine, SpanKind::Tell, &Caller::now(), now, Outcome::Ok)
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
        let Tell { request, message } = &mut this.tell;
        let told = ready!(request.poll_tell(message, &mut this.room, cx));
        Poll::Ready(told.map_err(|error| TellError {
            message: message.take(),
            error,
        }))
    }
}

impl Request {
    /// Tells as soon as there is room, which is waited for in `room`.
    fn poll_tell(
        &mut self,
        message: &mut dyn Parcel,
        room: &mut Option<Room>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), AskError>> {
        let told = match room {
            Some(room) => {
                ready!(room.as_mut().poll(cx)).and_then(|way| self.tell_by(&way, message))
            }
            None => match self.tell(message) {
                Ok(None) => Ok(()),
                Ok(Some(full)) => {
                    *room = Some(self.wait(full));
                    return self.poll_tell(message, room, cx);
                }
                Err(error) => Err(error),
            },
        };
        if told.is_err() {
            self.record_refusal(SpanKind::Tell);
        }
        Poll::Ready(told)
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
        let Some(engine) = task_context::engine_for(id.home) else {
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
