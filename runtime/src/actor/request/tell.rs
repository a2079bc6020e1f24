//! Messages without an answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Encoded, FindHandler, Full, Parcel, Request, Room, Way, encode};
use crate::actor::cell::{ActorCell, Phase};
use crate::actor::engine::routing::Hop;
use crate::actor::engine::{Credit, Engine};
use crate::actor::envelope::{self, Envelope, ReplyTo};
use crate::actor::mail::{Head, Mail};
use crate::actor::pending::Caller;
use crate::actor::task_context;
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::{AskError, TellError};
use crate::base::id::{ActorId, Incarnation};
use crate::base::message::Message;
use crate::base::trace::{Outcome, SpanContext, SpanKind};

impl<M: Message> Parcel for Option<M> {
    fn encode(&self) -> Encoded {
        encode(self.as_ref())
    }

    fn wrap(&mut self, head: Head) -> Box<dyn Mail> {
        let message = self.take().expect("a request is sent once");
        Envelope::new(message, ReplyTo::Nobody, head)
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
    pub(super) fn new(
        to: ActorId,
        fence: Incarnation,
        message: M,
        find_handler: FindHandler,
    ) -> Self {
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
