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

use crate::actor::{Handler, Message};
use crate::blob;
use crate::cell::{Cell, Phase, Sender};
use crate::clock::{Clock, Timestamp};
use crate::current;
use crate::engine::{Engine, Whereabouts};
use crate::error::{AskError, TellError};
use crate::failure::Down;
use crate::host::{self, Envelope, ReplyTo};
use crate::id::{ActorId, Incarnation, ProcessId, Ref};
use crate::pending::{Slot, Waiter, Waiting};
use crate::shape::{self, Shape};
use crate::trace::{Outcome, Span, SpanContext, SpanKind};
use crate::wire::{Call, codec};

/// A reference to any actor that handles `M`: what [`Ref::narrow`] gives. It hides the actor's
/// type, so that a consumer depends on the message and on nothing else.
pub struct Recipient<M> {
    id: ActorId,
    fence: Incarnation,
    _message: std::marker::PhantomData<fn(M)>,
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

/// How a message gets from the caller's hands into a local mailbox.
type Deliver<M> = fn(&Arc<Cell>, Envelope<M>);

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

    /// Ends the actor in order, after the message that it handles now, and waits until it is gone.
    /// Mail that still waits is answered with [`AskError::Died`].
    ///
    /// # Errors
    /// Its home is out of reach.
    pub async fn stop(&self) -> Result<(), AskError> {
        let engine = current::engine_for(self.id.home).ok_or(AskError::NoSystem)?;
        engine.stop_actor(self.id).await
    }

    /// Waits until the present incarnation ends, and tells why; at once when it is gone already.
    pub async fn down(&self) -> Down {
        match current::engine_for(self.id.home) {
            Some(engine) => engine.watch(self.id).await,
            None => Down {
                id: self.id,
                incarnation: 0,
                reason: crate::Reason::Unknown,
            },
        }
    }
}

fn deliver_by_method<M: Message>(cell: &Arc<Cell>, envelope: Envelope<M>) {
    match cell.method(M::METHOD) {
        Some(method) => (method.local)(cell, &mut Some(envelope)),
        None => envelope.refuse(AskError::NoSuchMethod {
            actor: cell.id,
            method: M::NAME.to_owned(),
        }),
    }
}

/// What both kinds of request know before they are sent.
struct Request<M: Message> {
    to: ActorId,
    fence: Incarnation,
    message: Option<M>,
    timeout: Option<Duration>,
    deliver: Deliver<M>,
}

impl<M: Message> Request<M> {
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

    fn call(
        &self,
        engine: &Engine,
        call: u64,
        patience: Duration,
        trace: SpanContext,
    ) -> Result<Call, AskError> {
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
        Ok(Call {
            call,
            from: engine.process,
            to: self.to,
            at: ProcessId(0),
            fence: self.fence,
            method: M::METHOD,
            budget: patience,
            trace,
            payload: Bytes::from(bytes),
        })
    }
}

/// Waits for room in a local mailbox.
fn local_room(cell: &Arc<Cell>, patience: Duration) -> BoxFuture<'static, Result<(), AskError>> {
    let cell = Arc::clone(cell);
    Box::pin(async move {
        match Clock::timeout(patience, cell.admission.acquire()).await {
            Some(Ok(permit)) => {
                permit.forget();
                Ok(())
            }
            _ => Err(AskError::Full {
                actor: cell.id,
                waited: patience,
            }),
        }
    })
}

/// Waits for credit of a remote actor and room on the way to it.
fn remote_room(
    engine: &Arc<Engine>,
    to: ActorId,
    patience: Duration,
) -> BoxFuture<'static, Result<(), AskError>> {
    let engine = Arc::clone(engine);
    Box::pin(async move {
        Clock::timeout(patience, engine.credit(to))
            .await
            .ok_or(AskError::Full {
                actor: to,
                waited: patience,
            })
    })
}

/// A request for an answer. Await it.
#[must_use = "an ask is sent when it is awaited"]
pub struct Ask<M: Message> {
    request: Request<M>,
    stage: Stage<M>,
}

enum Stage<M: Message> {
    New,
    /// Waiting for room.
    Near {
        engine: Arc<Engine>,
        cell: Arc<Cell>,
        room: BoxFuture<'static, Result<(), AskError>>,
    },
    Far {
        engine: Arc<Engine>,
        room: BoxFuture<'static, Result<(), AskError>>,
    },
    /// Waiting for the answer.
    Sent(Sent<M>),
    Over,
}

struct Sent<M: Message> {
    engine: Arc<Engine>,
    slot: Arc<Slot<M::Reply>>,
    key: u64,
    /// Whether it took a remote actor's credit.
    far: bool,
    span: SpanContext,
    parent: u64,
    sent: Timestamp,
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
    fn begin(&mut self) -> Result<(), AskError> {
        let to = self.request.to;
        let engine = current::engine_for(to.home).ok_or(AskError::NoSystem)?;
        if current::actor() == Some(to) {
            return Err(AskError::SelfAsk(to));
        }
        let patience = self.request.patience(&engine);
        match engine.find(to) {
            Whereabouts::Here(cell) => {
                self.request.check_fence(&cell)?;
                if cell.try_admit() {
                    self.send_near(engine, &cell);
                } else {
                    let room = local_room(&cell, patience);
                    self.stage = Stage::Near { engine, cell, room };
                }
                Ok(())
            }
            Whereabouts::There => {
                if engine.try_credit(to) {
                    self.send_far(engine)
                } else {
                    let room = remote_room(&engine, to, patience);
                    self.stage = Stage::Far { engine, room };
                    Ok(())
                }
            }
            Whereabouts::Dead(down) => Err(AskError::Dead(down)),
            Whereabouts::Unreachable => Err(AskError::Unreachable(to)),
        }
    }

    fn open(&self, engine: Arc<Engine>, far: bool) -> Sent<M> {
        let slot = Slot::new(self.request.to);
        let sent = Clock::now();
        let patience = self.request.patience(&engine);
        let key = engine.pending.insert(Waiting {
            slot: Arc::clone(&slot) as Arc<dyn Waiter>,
            actor: self.request.to,
            deadline: sent.after(patience),
            patience,
            via: None,
        });
        let parent = SpanContext::current();
        Sent {
            engine,
            slot,
            key,
            far,
            span: parent.child(),
            parent: parent.span_id,
            sent,
        }
    }

    fn send_near(&mut self, engine: Arc<Engine>, cell: &Arc<Cell>) {
        let sent = self.open(engine, false);
        let patience = self.request.patience(&sent.engine);
        let envelope = Envelope {
            message: self.request.message.take(),
            reply: ReplyTo::Local(Arc::clone(&sent.slot)),
            deadline: sent.sent.after(patience),
            queued: sent.sent,
            trace: sent.span,
            sender: Sender::Local,
            cell: None,
        };
        self.stage = Stage::Sent(sent);
        (self.request.deliver)(cell, envelope);
    }

    fn send_far(&mut self, engine: Arc<Engine>) -> Result<(), AskError> {
        let sent = self.open(engine, true);
        let patience = self.request.patience(&sent.engine);
        // From here on the drop of `sent` gives back key and credit.
        let call = self
            .request
            .call(&sent.engine, sent.key, patience, sent.span)?;
        sent.engine.send_call(call);
        self.request.message = None;
        self.stage = Stage::Sent(sent);
        Ok(())
    }
}

impl<M: Message + Unpin> Future for Ask<M>
where
    M::Reply: Unpin,
{
    type Output = Result<M::Reply, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let to = self.request.to;
        loop {
            match &mut self.stage {
                Stage::New => {
                    if let Err(error) = self.begin() {
                        self.stage = Stage::Over;
                        return Poll::Ready(Err(error));
                    }
                }
                Stage::Near { room, .. } => {
                    let room = ready!(room.as_mut().poll(cx));
                    let Stage::Near { engine, cell, .. } =
                        std::mem::replace(&mut self.stage, Stage::Over)
                    else {
                        unreachable!("the stage was just seen");
                    };
                    if let Err(error) = room {
                        return Poll::Ready(Err(error));
                    }
                    self.send_near(engine, &cell);
                }
                Stage::Far { room, .. } => {
                    let room = ready!(room.as_mut().poll(cx));
                    let Stage::Far { engine, .. } = std::mem::replace(&mut self.stage, Stage::Over)
                    else {
                        unreachable!("the stage was just seen");
                    };
                    if let Err(error) = room.and_then(|()| self.send_far(engine)) {
                        return Poll::Ready(Err(error));
                    }
                }
                Stage::Sent(sent) => {
                    let outcome = ready!(sent.slot.poll(cx));
                    sent.record(to, outcome.is_ok());
                    self.stage = Stage::Over;
                    return Poll::Ready(outcome);
                }
                Stage::Over => panic!("an ask was polled after it had finished"),
            }
        }
    }
}

impl<M: Message> Sent<M> {
    fn record(&self, actor: ActorId, ok: bool) {
        self.engine.tracer.record(Span {
            context: self.span,
            parent: self.parent,
            kind: SpanKind::Ask,
            actor,
            message: M::NAME,
            queued: self.sent,
            started: self.sent,
            ended: Clock::now(),
            outcome: if ok { Outcome::Ok } else { Outcome::Failed },
        });
    }
}

impl<M: Message> Drop for Sent<M> {
    fn drop(&mut self) {
        self.slot.abandon();
        // Gone when the answer has come; still there when the caller gave up.
        if let Some(waiting) = self.engine.pending.take(self.key)
            && waiting.via.is_some()
        {
            self.engine.cancel(self.key, waiting.actor);
        }
        if self.far {
            self.engine.return_credit(self.slot.actor(), 1);
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
        match self.attempt() {
            Ok(None) => Ok(()),
            Ok(Some(_room)) => {
                let error = AskError::Full {
                    actor: self.request.to,
                    waited: Duration::ZERO,
                };
                Err(TellError {
                    message: self.request.message,
                    error,
                })
            }
            Err(error) => Err(TellError {
                message: self.request.message,
                error,
            }),
        }
    }

    /// Sends when there is room; else the wait for it.
    fn attempt(
        &mut self,
    ) -> Result<Option<(Room, BoxFuture<'static, Result<(), AskError>>)>, AskError> {
        let to = self.request.to;
        let engine = current::engine_for(to.home).ok_or(AskError::NoSystem)?;
        let patience = self.request.patience(&engine);
        match engine.find(to) {
            Whereabouts::Here(cell) => {
                self.request.check_fence(&cell)?;
                // A wait for room in one's own mailbox would never end.
                let own = current::actor() == Some(to);
                if cell.try_admit() {
                    self.send_near(&engine, &cell)?;
                    Ok(None)
                } else if own {
                    Err(AskError::Full {
                        actor: to,
                        waited: Duration::ZERO,
                    })
                } else {
                    let room = local_room(&cell, patience);
                    Ok(Some((Room::Near(engine, cell), room)))
                }
            }
            Whereabouts::There => {
                if engine.try_credit(to) {
                    self.send_far(&engine)?;
                    Ok(None)
                } else {
                    let room = remote_room(&engine, to, patience);
                    Ok(Some((Room::Far(engine), room)))
                }
            }
            Whereabouts::Dead(down) => Err(AskError::Dead(down)),
            Whereabouts::Unreachable => Err(AskError::Unreachable(to)),
        }
    }

    fn send_near(&mut self, engine: &Engine, cell: &Arc<Cell>) -> Result<(), AskError> {
        if cell.phase() == Phase::Over {
            cell.admission.add_permits(1);
            return Err(AskError::Dead(engine.obituary(cell.id)));
        }
        let now = Clock::now();
        let trace = self.trace(engine, now);
        let envelope = Envelope {
            message: self.request.message.take(),
            reply: ReplyTo::Nobody,
            deadline: now.after(self.request.patience(engine)),
            queued: now,
            trace,
            sender: Sender::Local,
            cell: None,
        };
        (self.request.deliver)(cell, envelope);
        Ok(())
    }

    fn send_far(&mut self, engine: &Arc<Engine>) -> Result<(), AskError> {
        let trace = self.trace(engine, Clock::now());
        let patience = self.request.patience(engine);
        match self.request.call(engine, 0, patience, trace) {
            Ok(call) => {
                engine.send_call(call);
                self.request.message = None;
                Ok(())
            }
            Err(error) => {
                engine.return_credit(self.request.to, 1);
                Err(error)
            }
        }
    }

    fn trace(&self, engine: &Engine, now: Timestamp) -> SpanContext {
        let parent = SpanContext::current();
        let context = parent.child();
        engine.tracer.record(Span {
            context,
            parent: parent.span_id,
            kind: SpanKind::Tell,
            actor: self.request.to,
            message: M::NAME,
            queued: now,
            started: now,
            ended: now,
            outcome: Outcome::Ok,
        });
        context
    }

    async fn run(mut self) -> Result<(), TellError<M>> {
        let outcome = match self.attempt() {
            Ok(None) => Ok(()),
            Ok(Some((room, wait))) => match wait.await {
                Ok(()) => match room {
                    Room::Near(engine, cell) => self.send_near(&engine, &cell),
                    Room::Far(engine) => self.send_far(&engine),
                },
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        outcome.map_err(|error| TellError {
            message: self.request.message.take(),
            error,
        })
    }
}

enum Room {
    Near(Arc<Engine>, Arc<Cell>),
    Far(Arc<Engine>),
}

impl<M: Message> IntoFuture for Tell<M> {
    type Output = Result<(), TellError<M>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
