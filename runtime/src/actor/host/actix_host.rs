//! The other host: an actix actor around an [`ActorLoop`], on the thread of an arbiter.
//!
//! actix gives the mailbox and the thread. The loop is one future of the actor's context; what comes
//! out of the mailbox is handed to it. There is one kind of host for all actors.

use std::sync::{Arc, LazyLock};

use actix::dev::channel;
use actix::fut::{ActorFutureExt, WrapFuture};
use actix::{ActorContext, Arbiter, ArbiterHandle, AsyncContext};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::ActorLoop;
use crate::actor::cell::mailbox::{ActixHost, Mailbox, Parcel};
use crate::actor::mail::Mail;

type Context = actix::Context<ActixHost>;

/// Puts an actor behind an actix mailbox, without a bound for the same reason as on kameo.
pub(super) fn start(actor: ActorLoop) {
    let cell = Arc::clone(actor.cell());
    let (sender, receiver) = channel::channel(0);
    cell.set_mailbox(Mailbox::Actix(sender));
    let spawned = arbiter(cell.id.serial).spawn_fn(move || {
        let (mail, mails) = unbounded_channel();
        let host = ActixHost {
            mail,
            driven: Some(Box::pin(live(actor, mails))),
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

/// The life of the actor, until it is over.
async fn live(mut actor: ActorLoop, mut mails: UnboundedReceiver<Box<dyn Mail>>) {
    let cell = Arc::clone(actor.cell());
    while cell.is_settled() || actor.settle().await {
        if let Ok(mail) = mails.try_recv() {
            actor.handle(mail).await;
            continue;
        }
        actor.rested();
        tokio::select! {
            biased;
            () = cell.ordered.notified() => {}
            mail = mails.recv() => match mail {
                Some(mail) => actor.handle(mail).await,
                None => return,
            }
        }
    }
}

impl actix::Actor for ActixHost {
    type Context = Context;

    fn started(&mut self, context: &mut Context) {
        if let Some(driven) = self.driven.take() {
            let life = driven.into_actor(self);
            context.spawn(life.map(|(), _, context: &mut Context| context.stop()));
        }
    }
}

/// More threads than this would only compete with tokio's.
const ARBITERS_MAX: usize = 4;

impl actix::Handler<Parcel> for ActixHost {
    type Result = ();

    fn handle(&mut self, Parcel(mail): Parcel, _: &mut Context) {
        // Of an actor that is over it is dropped, which answers its caller.
        let _ = self.mail.send(mail);
    }
}
