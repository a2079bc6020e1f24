//! The other host: an actix actor around a [`Life`], on the thread of an arbiter.
//!
//! actix gives the mailbox and the thread. While a handler runs, the life is away in a future that
//! the context waits for, so that nothing else of the actor runs; between messages [`Orders`]
//! listens for the supervisor, and every message obeys waiting orders first.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context as Task, Poll};

use actix::dev::channel::{self, AddressSender};
use actix::fut::{ActorFuture, ActorFutureExt, WrapFuture};
use actix::{ActorContext, Arbiter, ArbiterHandle, AsyncContext};

use super::{Envelope, Life, Mailbox};
use crate::actor::{Actor, Handler, Message};
use crate::cell::Phase;

type Context<A> = actix::Context<Host<A>>;

pub(crate) struct Host<A: Actor> {
    /// Away while a handler, `start` or `stop` runs.
    life: Option<Box<Life<A>>>,
    /// The wait for an order, while the actor is idle. It must be gone while the life is away: a
    /// handler listens for itself, and an order wakes only one listener.
    idle: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// The sending end of an actix mailbox.
pub(crate) struct ActixMailbox<A: Actor>(AddressSender<Host<A>>);

impl<A: Actor> ActixMailbox<A> {
    pub(super) fn push<M: Message>(
        &self,
        envelope: Box<Envelope<M>>,
    ) -> Result<(), Box<Envelope<M>>>
    where
        A: Handler<M>,
    {
        use actix::prelude::SendError::{Closed, Full};
        let sent = self.0.do_send(Parcel(envelope));
        sent.map_err(|(Closed(Parcel(envelope)) | Full(Parcel(envelope)))| envelope)
    }
}

/// Puts a life behind an actix mailbox, without a bound for the same reason as on kameo.
pub(super) fn start<A: Actor>(life: Box<Life<A>>) {
    let cell = Arc::clone(life.cell());
    let (sender, receiver) = channel::channel(0);
    cell.set_mailbox(Box::new(Mailbox::Actix(ActixMailbox::<A>(sender))));
    let spawned = arbiter(cell.id.serial).spawn_fn(move || {
        let host = Host {
            life: Some(life),
            idle: None,
        };
        drop(actix::spawn(
            Context::with_receiver(receiver).into_future(host),
        ));
    });
    assert!(spawned, "arbiters live as long as the process");
}

/// One of the arbiters of this process, which are started when the first actor needs one.
pub(crate) fn arbiter(key: u64) -> &'static ArbiterHandle {
    static ARBITERS: LazyLock<Vec<ArbiterHandle>> = LazyLock::new(start_arbiters);
    &ARBITERS[key as usize % ARBITERS.len()]
}

fn start_arbiters() -> Vec<ArbiterHandle> {
    let count = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(ARBITERS_MAX);
    let (tell, told) = std::sync::mpsc::channel();
    // Arbiters need a system, which lives on a thread of its own.
    let system = std::thread::Builder::new()
        .name("odeon-actix".to_owned())
        .spawn(move || {
            actix::System::new().block_on(async move {
                let arbiters: Vec<Arbiter> = (0..count).map(|_| Arbiter::new()).collect();
                // Whoever wanted them waits for them.
                let _ = tell.send(arbiters.iter().map(Arbiter::handle).collect());
                std::future::pending::<()>().await;
            });
        });
    drop(system.expect("the operating system has a thread for the actix system"));
    told.recv().expect("the actix system starts")
}

impl<A: Actor> Host<A> {
    /// Lends the life to `work`; nothing else of the actor runs until it comes back.
    fn lend<F>(&mut self, context: &mut Context<A>, work: impl FnOnce(Box<Life<A>>) -> F)
    where
        F: Future<Output = Box<Life<A>>> + 'static,
    {
        self.idle = None;
        if let Some(life) = self.life.take() {
            context.wait(work(life).into_actor(self).map(Self::resume));
        }
    }

    fn resume(life: Box<Life<A>>, host: &mut Self, context: &mut Context<A>) {
        if life.cell().phase() == Phase::Over {
            context.stop();
        }
        let cell = Arc::clone(life.cell());
        host.life = Some(life);
        host.idle = Some(Box::pin(async move { cell.ordered.notified().await }));
    }

    fn settle(&mut self, context: &mut Context<A>) {
        self.lend(context, |mut life| async move {
            life.settle().await;
            life
        });
    }
}

impl<A: Actor> actix::Actor for Host<A> {
    type Context = Context<A>;

    fn started(&mut self, context: &mut Context<A>) {
        context.spawn(Orders);
        self.settle(context);
    }
}

/// Wakes an idle actor for its supervisor's orders.
struct Orders;

impl<A: Actor> ActorFuture<Host<A>> for Orders {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        host: &mut Host<A>,
        context: &mut Context<A>,
        task: &mut Task<'_>,
    ) -> Poll<()> {
        let ordered = host
            .idle
            .as_mut()
            .is_some_and(|ordered| ordered.as_mut().poll(task).is_ready());
        if ordered {
            host.settle(context);
        }
        Poll::Pending
    }
}

/// An item of an actix mailbox.
struct Parcel<M: Message>(Box<Envelope<M>>);

impl<M: Message> actix::Message for Parcel<M> {
    type Result = ();
}

impl<A: Handler<M>, M: Message> actix::Handler<Parcel<M>> for Host<A> {
    type Result = ();

    fn handle(&mut self, Parcel(envelope): Parcel<M>, context: &mut Context<A>) {
        self.lend(context, |mut life| async move {
            life.rested();
            life.handle(envelope).await;
            life.settle().await;
            life
        });
    }
}

/// More threads than this would only compete with tokio's.
const ARBITERS_MAX: usize = 4;
