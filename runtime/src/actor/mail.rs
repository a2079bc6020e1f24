//! Mail: messages on their way to a handler, without their types.
//!
//! Everything around a message, from the mailbox to the actor's loop and back, sees a [`Mail`], and
//! everything around an actor an [`AnyActor`], so that this way is compiled once.

use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;
use kameo::message::DynMessage;

use crate::actor::cell::mailbox::KameoHost;
use crate::actor::cell::{ActorCell, Sender};
use crate::base::clock::Timestamp;
use crate::base::error::AskError;
use crate::base::failure::{Failure, Reason};
use crate::base::id::{Incarnation, ProcessId};
use crate::base::trace::SpanContext;
use crate::net::wire::codec::CodecError;

/// Begins the handler of a message. The future is ready when the handler has returned, and leaves
/// its answer in the envelope. It does nothing when there is no message or no state any more.
pub(crate) type Run = for<'a> fn(&'a mut dyn Mail, &'a mut dyn AnyActor) -> BoxFuture<'a, ()>;

/// The part of an envelope that is the same for every message.
pub(crate) struct Head {
    /// The message's name, for people.
    pub(crate) name: &'static str,
    /// Its id on the wire.
    pub(crate) method: u64,
    /// The life that it is for; 0 for any.
    pub(crate) fence: Incarnation,
    /// When its caller stops waiting.
    pub(crate) deadline: Timestamp,
    /// When it was sent, or came over a link.
    pub(crate) queued: Timestamp,
    pub(crate) trace: SpanContext,
    pub(crate) sender: Sender,
    /// Its handler at the actor that it is for.
    pub(crate) run: Run,
    /// Set while it lies in a mailbox.
    pub(crate) cell: Option<Arc<ActorCell>>,
}

impl Head {
    /// Takes the envelope out of the mailbox that it lies in.
    pub(crate) fn leave(&mut self) -> Option<Arc<ActorCell>> {
        let cell = self.cell.take()?;
        cell.message_out(self.sender);
        Some(cell)
    }
}

/// A message in a mailbox, whatever its type. Dropping one unhandled answers its caller, so nothing
/// is lost in silence.
pub(crate) trait Mail: DynMessage<KameoHost> {
    fn head(&mut self) -> &mut Head;

    /// The envelope, for those who know its type.
    fn typed(&mut self) -> &mut dyn Any;

    /// True for a tell.
    fn is_tell(&self) -> bool;

    /// True once nobody waits for the answer any more.
    fn is_withdrawn(&self, cell: &ActorCell) -> bool;

    /// True until the handler has begun.
    fn has_message(&self) -> bool;

    /// True when the handler has left work that the answer comes from.
    fn is_later(&self) -> bool;

    /// Does that work, which leaves the answer here.
    fn rest(&mut self) -> BoxFuture<'_, ()>;

    /// Answers the caller: with what the handler left here, or with this error.
    fn settle(&mut self, cell: &ActorCell, outcome: Result<(), AskError>, at: Timestamp);
}

/// Makes the envelope of a message that came over a link.
pub(crate) type Unpack =
    fn(&[u8], Head, Option<Back>) -> Result<Box<dyn Mail>, (CodecError, Option<Back>)>;

/// The way back to a remote caller.
pub(crate) struct Back {
    pub(crate) call: u64,
    pub(crate) to: ProcessId,
}

/// An actor whatever its type, as its loop sees it.
pub(crate) trait AnyActor: Send {
    /// The [`Typed`] half, for those who know the type.
    fn typed(&mut self) -> &mut dyn Any;

    /// True while there is a state.
    fn is_alive(&self) -> bool;

    /// Prepares for this life.
    fn begin(&mut self, incarnation: Incarnation);

    /// Takes out why the actor has asked to end, if it has.
    fn take_end(&mut self) -> Option<Reason>;

    /// Makes the state from the arguments.
    fn start(&mut self) -> BoxFuture<'_, Result<(), Failure>>;

    /// Ends the state in order.
    fn stop<'a>(&'a mut self, reason: &'a Reason) -> BoxFuture<'a, ()>;

    /// This life is about to end, for this reason.
    fn ends(&mut self, reason: &Reason);

    /// Drops a state that may be broken.
    fn discard(&mut self);

    /// Ends what this life has begun beside its handlers, and its timers.
    fn end_tasks(&mut self) -> BoxFuture<'_, ()>;
}
