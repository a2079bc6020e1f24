//! The default host: a kameo actor around a [`Life`].
//!
//! kameo gives the mailbox and the task. Its own supervision is not used: [`Life`] never fails, and
//! `next` listens to orders before mail, which is the priority lane.

use std::convert::Infallible;

use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use kameo::error::ActorStopReason;
use kameo::mailbox::{self, MailboxReceiver, Signal};
use kameo::message::Context;

use super::{Envelope, Life, Mailbox};
use crate::actor::{Actor, Handler, Message};
use crate::cell::Phase;

pub(crate) struct Host<A: Actor>(Life<A>);

/// The sending end of a kameo mailbox.
pub(crate) struct KameoMailbox<A: Actor>(ActorRef<Host<A>>);

impl<A: Actor> KameoMailbox<A> {
    pub(super) fn push<M: Message>(&self, envelope: Envelope<M>) -> Result<(), Envelope<M>>
    where
        A: Handler<M>,
    {
        use kameo::error::SendError::{ActorNotRunning, ActorRestarting, MailboxFull};
        match self.0.tell(envelope).try_send() {
            Ok(()) => Ok(()),
            Err(ActorNotRunning(envelope) | ActorRestarting(envelope) | MailboxFull(envelope)) => {
                Err(envelope)
            }
            // The other variants do not hold the message; its drop has answered the caller.
            Err(_) => Ok(()),
        }
    }
}

/// Puts a life behind a kameo mailbox. The mailbox itself is unbounded: room in it is given out by
/// the cell's admission and by network credit.
pub(super) fn start<A: Actor>(life: Life<A>) {
    let cell = std::sync::Arc::clone(life.cell());
    let prepared = Host::prepare_with_mailbox(mailbox::unbounded());
    // Before it starts: `start` may send to itself.
    cell.set_mailbox(Box::new(Mailbox::Kameo(KameoMailbox(
        prepared.actor_ref().clone(),
    ))));
    drop(prepared.spawn(life));
}

impl<A: Actor> kameo::Actor for Host<A> {
    type Args = Life<A>;
    type Error = Infallible;

    fn name() -> &'static str {
        A::NAME
    }

    async fn on_start(life: Life<A>, _me: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(Self(life))
    }

    async fn next(
        &mut self,
        _me: WeakActorRef<Self>,
        mail: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Infallible> {
        loop {
            if !self.0.settle().await {
                return Ok(None);
            }
            tokio::select! {
                biased;
                () = self.0.cell().ordered.notified() => {}
                signal = mail.recv() => return Ok(signal),
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

impl<A: Handler<M>, M: Message> kameo::message::Message<Envelope<M>> for Host<A> {
    type Reply = ();

    async fn handle(&mut self, envelope: Envelope<M>, _cx: &mut Context<Self, ()>) {
        self.0.handle(envelope).await;
    }
}
