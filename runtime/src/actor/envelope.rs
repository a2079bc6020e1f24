//! A message on its way to a handler.
//!
//! An [`Envelope`] knows its message's type; everything around it, from the mailbox to the actor's
//! loop and back, sees a [`Mail`]. So that way is compiled once, and each message adds its
//! envelope and the future of its handler ([`Run`]).

use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;
use kameo::actor::ActorRef;
use kameo::message::DynMessage;
use kameo::reply::{BoxReplySender, ReplyError};

use crate::actor::cell::ActorCell;
use crate::actor::cell::mailbox::{Handed, KameoHost};
use crate::actor::handler::Handler;
use crate::actor::host::Typed;
use crate::actor::mail::{AnyActor, Back, Head, Mail};
use crate::actor::pending::Slot;
use crate::base::answer::{Answer, Later};
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::AskError;
use crate::base::message::Message;
use crate::net::wire::codec::{self, CodecError};

/// The [`Run`] of message `M` at actor `A`.
pub(crate) fn run<'a, A: Handler<M>, M: Message>(
    mail: &'a mut dyn Mail,
    actor: &'a mut dyn AnyActor,
) -> BoxFuture<'a, ()> {
    let envelope = Envelope::<M>::of(mail);
    let (state, cx) = Typed::<A>::of(actor).parts();
    match (state, envelope.take_message()) {
        (Some(state), Some(message)) => Box::pin(async move {
            let answer = state.answer(message, cx).await;
            envelope.answer(answer);
        }),
        _ => Box::pin(std::future::ready(())),
    }
}

/// A message, and what becomes of it.
pub(crate) struct Envelope<M: Message> {
    head: Head,
    work: Work<M>,
    reply: ReplyTo<M::Reply>,
}

enum Work<M: Message> {
    Waiting(M),
    /// Its handler has it.
    Taken,
    Done(M::Reply),
    Later(Later<M::Reply>),
}

/// The way that an answer takes.
pub(crate) enum ReplyTo<R> {
    /// A tell.
    Nobody,
    /// The same process.
    Local(Arc<Slot<R>>),
    /// Back over a link.
    Remote(Back),
}

impl<M: Message> Envelope<M> {
    pub(crate) fn new(message: M, reply: ReplyTo<M::Reply>, head: Head) -> Box<Self> {
        Box::new(Self {
            head,
            work: Work::Waiting(message),
            reply,
        })
    }

    /// The envelope that a method's [`Run`] is given.
    pub(crate) fn of(mail: &mut dyn Mail) -> &mut Self {
        let envelope = mail.typed().downcast_mut();
        envelope.expect("the method names the message's type")
    }

    /// Leaves the answer of the handler here.
    pub(crate) fn answer(&mut self, answer: Answer<M::Reply>) {
        self.work = match answer {
            Answer::Now(reply) => Work::Done(reply),
            Answer::Later(later) => Work::Later(later),
        };
    }

    pub(crate) fn take_message(&mut self) -> Option<M> {
        match std::mem::replace(&mut self.work, Work::Taken) {
            Work::Waiting(message) => Some(message),
            _ => None,
        }
    }
}

impl<M: Message> Mail for Envelope<M> {
    fn head(&mut self) -> &mut Head {
        &mut self.head
    }

    fn typed(&mut self) -> &mut dyn Any {
        self
    }

    fn is_tell(&self) -> bool {
        matches!(self.reply, ReplyTo::Nobody)
    }

    fn is_withdrawn(&self, cell: &ActorCell) -> bool {
        match &self.reply {
            ReplyTo::Nobody => false,
            ReplyTo::Local(slot) => slot.is_abandoned(),
            ReplyTo::Remote(back) => back.is_withdrawn(cell),
        }
    }

    fn has_message(&self) -> bool {
        matches!(self.work, Work::Waiting(_))
    }

    fn is_later(&self) -> bool {
        matches!(self.work, Work::Later(_))
    }

    fn rest(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Work::Later(later) = &mut self.work {
                self.work = Work::Done(later.await);
            }
        })
    }

    fn settle(&mut self, cell: &ActorCell, outcome: Result<(), AskError>, at: Timestamp) {
        let work = std::mem::replace(&mut self.work, Work::Taken);
        let outcome = outcome.and_then(|()| match work {
            Work::Done(reply) => Ok(reply),
            _ => Err(AskError::Died(cell.engine.obituary(cell.id))),
        });
        match std::mem::replace(&mut self.reply, ReplyTo::Nobody) {
            ReplyTo::Nobody => {}
            ReplyTo::Local(slot) => slot.set(outcome, at),
            ReplyTo::Remote(back) => {
                let encode = |reply| codec::arriving(1, || codec::encode(&reply));
                back.send(cell, outcome.map(encode));
            }
        }
    }
}

impl<M: Message> Drop for Envelope<M> {
    fn drop(&mut self) {
        if let Some(cell) = self.head.leave()
            && self.has_message()
        {
            unhandled(self, &cell);
        }
    }
}

/// A message was dropped that its actor did not handle.
fn unhandled(mail: &mut dyn Mail, cell: &ActorCell) {
    let down = cell.engine.obituary(cell.id);
    if mail.is_tell() {
        let name = mail.head().name;
        cell.engine.dead_letter(cell.id, name, &down);
    } else {
        mail.settle(cell, Err(AskError::Died(down)), Clock::now());
    }
}

/// The kameo side of it: the host takes it out of kameo's hands and handles it in its own loop.
impl<M: Message> DynMessage<KameoHost> for Envelope<M> {
    fn handle_dyn<'a>(
        self: Box<Self>,
        host: &'a mut KameoHost,
        _me: ActorRef<KameoHost>,
        _reply: Option<BoxReplySender>,
        _stop: &'a mut bool,
    ) -> BoxFuture<'a, Result<(), Box<dyn ReplyError>>> {
        host.hand(self);
        Box::pin(Handed)
    }

    fn as_any(self: Box<Self>) -> Box<dyn Any + Send> {
        let mail: Box<dyn Mail> = self;
        Box::new(mail)
    }
}

/// The [`Unpack`] of message `M`.
pub(crate) fn unpack<M: Message>(
    payload: &[u8],
    head: Head,
    back: Option<Back>,
) -> Result<Box<dyn Mail>, (CodecError, Option<Back>)> {
    match codec::decode::<M>(payload) {
        Ok(message) => {
            let reply = back.map_or(ReplyTo::Nobody, ReplyTo::Remote);
            Ok(Envelope::new(message, reply, head))
        }
        Err(error) => Err((error, back)),
    }
}

/// Puts an envelope into the mailbox of its actor. A sender of this process has taken room there
/// before.
pub(crate) fn deliver(cell: &Arc<ActorCell>, mut mail: Box<dyn Mail>) {
    let head = mail.head();
    cell.message_in(head.sender);
    head.cell = Some(Arc::clone(cell));
    if let Err(mut mail) = cell.push(mail) {
        mail.head().leave();
        let down = cell.engine.obituary(cell.id);
        if mail.is_tell() {
            let name = mail.head().name;
            cell.engine.dead_letter(cell.id, name, &down);
        }
        mail.settle(cell, Err(AskError::Dead(down)), Clock::now());
    }
}
