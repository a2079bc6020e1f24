//! Messages with an answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;

use super::{Encoded, FindHandler, Full, Parcel, Request, Room, Way, encode};
use crate::actor::envelope::{self, Envelope, ReplyTo};
use crate::actor::mail::{Head, Mail, Run};
use crate::actor::pending::{Caller, Slot, Waiter, Waiting};
use crate::actor::task_context;
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::id::{ActorId, Incarnation};
use crate::base::message::Message;
use crate::base::trace::{Outcome, Span, SpanContext, SpanKind};

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

/// A question that is out, with the room on its way.
struct Sent {
    way: Way,
    /// Of its pending entry.
    key: u64,
    span: SpanContext,
    caller: Caller,
    at: Timestamp,
}

impl<M: Message> fmt::Debug for Ask<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ask({} to {})", M::NAME, self.asking.request.to)
    }
}

impl<M: Message> Ask<M> {
    pub(crate) fn new(
        to: ActorId,
        fence: Incarnation,
        message: M,
        find_handler: FindHandler,
    ) -> Self {
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
        // From here on the drop of the ask gives back key and credit.
        self.stage = Stage::Sent(request.open(way, question, cx));
        let (request, Stage::Sent(sent)) = (&self.request, &self.stage) else {
            unreachable!("it was put there");
        };
        let deadline = request.deadline(sent.way.engine(), sent.at);
        match (&sent.way, prepared) {
            (Way::Far(engine, _, hop), Prepared::Payload(payload)) => {
                let budget = deadline.left(sent.at);
                let call = request.call(engine, sent.key, budget, sent.span, payload);
                engine.send(hop.as_ref(), call);
                question.sent();
            }
            (Way::Near(cell), Prepared::Run(run)) => {
                let head = request.head(run, deadline, sent.at, sent.span);
                envelope::deliver(cell, question.wrap(head));
            }
            _ => unreachable!("it was prepared for this way"),
        }
        Ok(())
    }

    /// The answer has come.
    fn answered(&mut self, ok: bool, at: Timestamp) {
        if let Stage::Sent(sent) = &self.stage {
            self.request.record_answer(sent, ok, at);
            sent.way.engine().pending.forget(sent.key);
            sent.give_back_room();
            self.stage = Stage::Over;
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Stage::Sent(sent) = &self.stage {
            self.request.record_answer(sent, false, Clock::now());
            let engine = sent.way.engine();
            if let Some(waiting) = engine.pending.take(sent.key) {
                engine.withdraw(sent.key, &waiting);
            }
            sent.give_back_room();
        }
    }
}

impl Sent {
    fn give_back_room(&self) {
        if let Way::Far(_, credit, _) = &self.way {
            credit.give_back(1);
        }
    }
}

/// An ask made ready for its way.
enum Prepared {
    Run(Run),
    Payload(Bytes),
}

impl Request {
    fn open(&self, way: Way, question: &mut dyn AnyQuestion, cx: &Context<'_>) -> Sent {
        // The waker is in place before anything is sent, so the slot needs no first poll.
        let slot = question.open(self.to, cx.waker());
        let at = Clock::now();
        let engine = way.engine();
        let patience = self.patience(engine);
        let caller = Caller::now();
        let span = engine.tracer.begin(caller.span, at);
        let key = engine.pending.insert(Waiting {
            slot,
            actor: self.to,
            message: self.name,
            caller,
            since: at,
            deadline: self.deadline(engine, at),
            patience,
            via: way.neighbour(),
        });
        Sent {
            way,
            key,
            span,
            caller,
            at,
        }
    }

    /// Records the end of an ask.
    fn record_answer(&self, sent: &Sent, ok: bool, ended: Timestamp) {
        let engine = sent.way.engine();
        let (outcome, lasted) = (Outcome::of(ok), ended.since(sent.at));
        engine.tracer.answered(lasted);
        if engine.tracer.keeps(sent.span, outcome, lasted) {
            engine.tracer.record(Span {
                context: sent.span,
                parent: sent.caller.span.span_id,
                kind: SpanKind::Ask,
                by: sent.caller.actor(engine.process),
                actor: self.to,
                message: self.name.into(),
                queued: sent.at,
                started: sent.at,
                ended,
                outcome,
                labels: vec![],
            });
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

#[cfg(test)]
mod tests;
