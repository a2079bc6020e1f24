//! The default host: a kameo actor around an [`ActorLoop`].
//!
//! kameo gives the mailbox and the task. Its own supervision is not used: the loop never fails, and
//! `next` listens to orders before mail, which is the priority lane. There is one kind of host for
//! all actors.

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;

use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use kameo::error::ActorStopReason;
use kameo::mailbox::{self, MailboxReceiver, Signal};

use super::ActorLoop;
use crate::actor::cell::Phase;
use crate::actor::cell::mailbox::{KameoHost, Mailbox, NAME};

impl KameoHost {
    fn life(&mut self) -> &mut ActorLoop {
        let driven = self.driven.downcast_mut();
        driven.expect("a host is started with a loop")
    }
}

/// Obeys orders and handles mail, until the actor is over or kameo has something else to do.
async fn attend(
    life: &mut ActorLoop,
    mail: &mut MailboxReceiver<KameoHost>,
) -> Option<Signal<KameoHost>> {
    // Drives nothing: kameo's messages are handed to a host.
    let mut hands = KameoHost::driving(Box::new(()));
    loop {
        if !life.cell().is_settled() && !life.settle().await {
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
            life.rested();
        }
        // Mail is handled here, which spares it what kameo does around each message. The answer is
        // the handler's; kameo learns of no errors.
        match signal {
            Some(Signal::Message {
                message, actor_ref, ..
            }) => {
                drop(message.handle_dyn(&mut hands, actor_ref, None, &mut false));
                if let Some(mail) = hands.handed.take() {
                    life.handle(mail).await;
                }
            }
            other => return other,
        }
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
    type Args = Box<dyn Any + Send>;
    type Error = Infallible;

    fn name() -> &'static str {
        NAME
    }

    async fn on_start(
        driven: Box<dyn Any + Send>,
        _me: ActorRef<Self>,
    ) -> Result<Self, Infallible> {
        Ok(Self::driving(driven))
    }

    async fn next(
        &mut self,
        _me: WeakActorRef<Self>,
        mail: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Infallible> {
        // Boxed, since kameo copies the task several times while it spawns it.
        Ok(Box::pin(attend(self.life(), mail)).await)
    }

    async fn on_stop(
        &mut self,
        _me: WeakActorRef<Self>,
        _reason: ActorStopReason,
    ) -> Result<(), Infallible> {
        self.life().cell().enter(Phase::Over);
        Ok(())
    }
}
