//! The default host: a kameo actor around a [`Life`].
//!
//! kameo gives the mailbox and the task. Its own supervision is not used: [`Life`] never fails, and
//! `next` listens to orders before mail, which is the priority lane.

use std::any::Any;
use std::convert::Infallible;

use futures::future::BoxFuture;
use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use kameo::error::ActorStopReason;
use kameo::mailbox::{self, MailboxReceiver, Signal};
use kameo::message::{BoxMessage, DynMessage};
use kameo::reply::{BoxReplySender, ReplyError};
use tokio::sync::mpsc::error::TrySendError;

use super::{Envelope, Life, Mailbox};
use crate::actor::{Actor, Handler, Message};
use crate::cell::Phase;

pub(crate) struct Host<A: Actor>(Box<Life<A>>);

/// The sending end of a kameo mailbox.
pub(crate) struct KameoMailbox<A: Actor>(ActorRef<Host<A>>);

impl<A: Actor> KameoMailbox<A> {
    pub(super) fn push<M: Message>(
        &self,
        envelope: Box<Envelope<M>>,
    ) -> Result<(), Box<Envelope<M>>>
    where
        A: Handler<M>,
    {
        let Err(message) = self.send(envelope) else {
            return Ok(());
        };
        Err(message
            .as_any()
            .downcast()
            .expect("what comes back is what was sent"))
    }

    /// Wakes a loop that has no mail.
    pub(super) fn ring(&self) {
        // An actor that is over needs no orders.
        let _ = self.send(Box::new(Bell));
    }

    /// A kameo tell of a message that is boxed already.
    fn send(&self, message: BoxMessage<Host<A>>) -> Result<(), BoxMessage<Host<A>>> {
        let signal = Signal::Message {
            message,
            actor_ref: self.0.clone(),
            reply: None,
            sent_within_actor: false,
            message_name: A::NAME,
        };
        match self.0.mailbox_sender().try_send(signal) {
            Err(
                TrySendError::Closed(Signal::Message { message, .. })
                | TrySendError::Full(Signal::Message { message, .. }),
            ) => Err(message),
            _ => Ok(()),
        }
    }
}

/// An order waits elsewhere. It overtakes mail, since the loop looks for orders before each message.
struct Bell;

/// The part of a message that kameo asks for, without the copies of its general form.
impl<A: Handler<M>, M: Message> DynMessage<Host<A>> for Envelope<M> {
    fn handle_dyn<'a>(
        self: Box<Self>,
        host: &'a mut Host<A>,
        _me: ActorRef<Host<A>>,
        _reply: Option<BoxReplySender>,
        _stop: &'a mut bool,
    ) -> BoxFuture<'a, Result<(), Box<dyn ReplyError>>> {
        Box::pin(async move {
            host.0.handle(self).await;
            Ok(())
        })
    }

    fn as_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl<A: Actor> DynMessage<Host<A>> for Bell {
    fn handle_dyn<'a>(
        self: Box<Self>,
        _host: &'a mut Host<A>,
        _me: ActorRef<Host<A>>,
        _reply: Option<BoxReplySender>,
        _stop: &'a mut bool,
    ) -> BoxFuture<'a, Result<(), Box<dyn ReplyError>>> {
        Box::pin(async { Ok(()) })
    }

    fn as_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Puts a life behind a kameo mailbox. The mailbox itself is unbounded: room in it is given out by
/// the cell's admission and by network credit.
pub(super) fn start<A: Actor>(life: Box<Life<A>>) {
    let cell = std::sync::Arc::clone(life.cell());
    let prepared = Host::prepare_with_mailbox(mailbox::unbounded());
    // Before it starts: `start` may send to itself.
    cell.set_mailbox(Box::new(Mailbox::Kameo(KameoMailbox(
        prepared.actor_ref().clone(),
    ))));
    drop(prepared.spawn(life));
}

impl<A: Actor> kameo::Actor for Host<A> {
    type Args = Box<Life<A>>;
    type Error = Infallible;

    fn name() -> &'static str {
        A::NAME
    }

    async fn on_start(life: Box<Life<A>>, _me: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(Self(life))
    }

    async fn next(
        &mut self,
        _me: WeakActorRef<Self>,
        mail: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Infallible> {
        loop {
            // Boxed, since kameo copies the task several times while it spawns it.
            if !self.0.cell().is_settled() && !Box::pin(self.0.settle()).await {
                return Ok(None);
            }
            let mut waited = false;
            let signal = std::future::poll_fn(|cx| {
                let signal = mail.poll_recv(cx);
                waited |= signal.is_pending();
                signal
            })
            .await;
            if waited {
                self.0.rested();
            }
            // Mail is handled here, which spares it what kameo does around each message. The answer is
            // the handler's; kameo learns of no errors.
            match signal {
                Some(Signal::Message {
                    message, actor_ref, ..
                }) => {
                    let _ = message.handle_dyn(self, actor_ref, None, &mut false).await;
                }
                other => return Ok(other),
            }
        }
    }

    async fn on_stop(
        &mut self,
        _me: WeakActorRef<Self>,
        _reason: ActorStopReason,
    ) -> Result<(), Infallible> {
        self.0.cell().enter(Phase::Over);
        Ok(())
    }
}
