//! The default host: a kameo actor around an [`ActorLoop`].
//!
//! kameo gives the mailbox and the task. Its own supervision is not used: the loop never fails, and
//! `next` listens to orders before mail, which is the priority lane. There is one kind of host for
//! all actors.

use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures::future::BoxFuture;
use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use kameo::error::ActorStopReason;
use kameo::mailbox::{self, MailboxReceiver, Signal};
use kameo::message::{BoxMessage, DynMessage};
use kameo::reply::{BoxReplySender, ReplyError};
use tokio::sync::mpsc::error::TrySendError;

use super::{ActorLoop, Mailbox};
use crate::cell::Phase;
use crate::envelope::Mail;

/// See the module.
pub(crate) struct KameoHost {
    /// Boxed, since kameo copies it several times while it spawns it.
    actor: Box<ActorLoop>,
    /// The message that came out of the mailbox and is not handled yet.
    handed: Option<Box<dyn Mail>>,
}

impl KameoHost {
    /// Takes a message out of kameo's hands.
    pub(crate) fn hand(&mut self, mail: Box<dyn Mail>) {
        self.handed = Some(mail);
    }

    /// Obeys orders and handles mail, until the actor is over or kameo has something else to do.
    async fn attend(&mut self, mail: &mut MailboxReceiver<Self>) -> Option<Signal<Self>> {
        loop {
            if !self.actor.cell().is_settled() && !self.actor.settle().await {
                return None;
            }
            let mut waited = false;
            let signal = std::future::poll_fn(|cx| {
                let signal = mail.poll_recv(cx);
                waited |= signal.is_pending();
                signal
            })
            .await;
            if waited {
                self.actor.rested();
            }
            // Mail is handled here, which spares it what kameo does around each message. The answer is
            // the handler's; kameo learns of no errors.
            match signal {
                Some(Signal::Message {
                    message, actor_ref, ..
                }) => {
                    drop(message.handle_dyn(self, actor_ref, None, &mut false));
                    if let Some(mail) = self.handed.take() {
                        self.actor.handle(mail).await;
                    }
                }
                other => return other,
            }
        }
    }
}

/// The future of a message that was handed over: it has no size, so that it is boxed for nothing.
pub(crate) struct Handed;

impl Future for Handed {
    type Output = Result<(), Box<dyn ReplyError>>;

    fn poll(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}

pub(super) fn push(host: &ActorRef<KameoHost>, mail: Box<dyn Mail>) -> Result<(), Box<dyn Mail>> {
    let Err(message) = send(host, mail) else {
        return Ok(());
    };
    let mail = message.as_any().downcast::<Box<dyn Mail>>();
    Err(*mail.expect("what comes back is what was sent"))
}

/// Wakes a loop that has no mail.
pub(super) fn ring(host: &ActorRef<KameoHost>) {
    // An actor that is over needs no orders.
    let _ = send(host, Box::new(Bell));
}

/// A kameo tell of a message that is boxed already.
fn send(
    host: &ActorRef<KameoHost>,
    message: BoxMessage<KameoHost>,
) -> Result<(), BoxMessage<KameoHost>> {
    let signal = Signal::Message {
        message,
        actor_ref: host.clone(),
        reply: None,
        sent_within_actor: false,
        message_name: NAME,
    };
    match host.mailbox_sender().try_send(signal) {
        Err(
            TrySendError::Closed(Signal::Message { message, .. })
            | TrySendError::Full(Signal::Message { message, .. }),
        ) => Err(message),
        _ => Ok(()),
    }
}

/// An order waits elsewhere. It overtakes mail, since the loop looks for orders before each message.
struct Bell;

impl DynMessage<KameoHost> for Bell {
    fn handle_dyn<'a>(
        self: Box<Self>,
        _host: &'a mut KameoHost,
        _me: ActorRef<KameoHost>,
        _reply: Option<BoxReplySender>,
        _stop: &'a mut bool,
    ) -> BoxFuture<'a, Result<(), Box<dyn ReplyError>>> {
        Box::pin(Handed)
    }

    fn as_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Puts an actor behind a kameo mailbox. The mailbox itself is unbounded: room in it is given out by
/// the cell's admission and by network credit.
pub(super) fn start(actor: ActorLoop) {
    let cell = Arc::clone(actor.cell());
    let prepared = KameoHost::prepare_with_mailbox(mailbox::unbounded());
    // Before it starts: `start` may send to itself.
    cell.set_mailbox(Mailbox::Kameo(prepared.actor_ref().clone()));
    drop(prepared.spawn(Box::new(actor)));
}

impl kameo::Actor for KameoHost {
    type Args = Box<ActorLoop>;
    type Error = Infallible;

    fn name() -> &'static str {
        NAME
    }

    async fn on_start(actor: Box<ActorLoop>, _me: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(Self {
            actor,
            handed: None,
        })
    }

    async fn next(
        &mut self,
        _me: WeakActorRef<Self>,
        mail: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Infallible> {
        // Boxed, since kameo copies the task several times while it spawns it.
        Ok(Box::pin(self.attend(mail)).await)
    }

    async fn on_stop(
        &mut self,
        _me: WeakActorRef<Self>,
        _reason: ActorStopReason,
    ) -> Result<(), Infallible> {
        self.actor.cell().enter(Phase::Over);
        Ok(())
    }
}

/// All actors are one kind to kameo.
const NAME: &str = "odeon";
