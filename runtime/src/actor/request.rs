//! Sending: `ask` and `tell` as builders that are futures.
//!
//! A local ask goes straight into the mailbox: no bytes, no catalog, no lock held across an await.
//! A remote ask is encoded, gets a pending entry, and goes to the link that leads to the actor.

mod ask;
mod recipient;
mod stop;
mod tell;

use std::any::TypeId;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::actor::cell::{ActorCell, Sender};
use crate::actor::engine::routing::{Hop, Whereabouts};
use crate::actor::engine::{Credit, Engine};
use crate::actor::envelope;
use crate::actor::handler::Handler;
use crate::actor::mail::{Head, Mail, Run};
use crate::actor::pending::{Caller, InCrowd, WaitFor};
use crate::actor::task_context;
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::failure::{Down, Failure, Reason};
use crate::base::id::{ActorId, Incarnation, ProcessId, Ref};
use crate::base::message::Message;
use crate::base::trace::{FOLLOWS, Outcome, Span, SpanContext, SpanKind};
use crate::net::wire::Call;
use crate::net::wire::codec::{self, CodecError};

pub use ask::Ask;
pub use recipient::Recipient;
pub use stop::Stop;
pub use tell::{Tell, Telling};

/// A message that `A` handles: [`Handler`] seen from the message. A call asks for it in this form, so that
/// the compiler looks at the message first, and says of which one there is no handler.
pub trait HandledBy<A>: Message {
    /// The handler that `A` has for it.
    #[doc(hidden)]
    fn handler() -> HandlerOf;
}

impl<A: Handler<M>, M: Message> HandledBy<A> for M {
    fn handler() -> HandlerOf {
        HandlerOf(envelope::run::<A, M>)
    }
}

/// The handler of one actor type for one message.
#[derive(Debug)]
pub struct HandlerOf(Run);

impl<A: 'static> Ref<A> {
    /// Sends a message and waits for the answer. `actor.ask(m).await`, or
    /// `actor.ask(m).timeout(t).await`; without a timeout, [`Limits::ask_timeout`] holds. The
    /// deadline travels with the message, and dropping the future withdraws it if it still waits.
    ///
    /// [`Limits::ask_timeout`]: crate::Limits
    pub fn ask<M: HandledBy<A>>(&self, message: M) -> Ask<M> {
        Ask::new(self.id, self.fence, message, by_type::<A, M>)
    }

    /// Sends a message without an answer. The future ends when the mailbox (near) or the link (far)
    /// has accepted it, and waits while they are full, up to the timeout.
    pub fn tell<M: HandledBy<A>>(&self, message: M) -> Tell<M> {
        Tell::new(self.id, self.fence, message, by_type::<A, M>)
    }

    /// A reference that only knows one message.
    #[must_use]
    pub fn narrow<M: HandledBy<A>>(self) -> Recipient<M> {
        Recipient {
            id: self.id,
            fence: self.fence,
            _message: std::marker::PhantomData,
        }
    }

    /// Ends the actor in order, after the message that it handles now. The future resolves when it
    /// is gone. Mail that still waits is answered with [`AskError::Died`].
    pub const fn stop(&self) -> Stop {
        Stop::new(self.id)
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
                    reason: match task_context::no_engine() {
                        AskError::NoSystem => Reason::Unknown,
                        error => Reason::Failed(Failure::error(error)),
                    },
                },
            }
        }
    }
}

/// Finds the handler of a message (by its id on the wire) at an actor of this process.
pub(crate) type FindHandler = fn(&ActorCell, u64) -> Option<Run>;

/// Of a reference that knows its actor's type; the message may be one that never leaves its process.
fn by_type<A: 'static, M: HandledBy<A>>(cell: &ActorCell, _: u64) -> Option<Run> {
    cell.hosts(TypeId::of::<A>()).then(|| M::handler().0)
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
        let engine = task_context::engine_for(to.home).ok_or_else(task_context::no_engine)?;
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
            wait: WaitFor::Room,
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

fn encode<M: Message>(message: Option<&M>) -> Encoded {
    codec::encode(message.expect("a request is sent once"))
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
