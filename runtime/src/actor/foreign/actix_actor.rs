//! The wrapper around an actix actor.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use actix::{Addr, AsyncContext};
use futures::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{oneshot, watch};

use super::end_with;
use crate::actor::actor_type::ActorType;
use crate::actor::handler::{Actor, Context, Handler};
use crate::actor::host::arbiter;
use crate::actor::registry::Registered;
use crate::base::clock::Clock;
use crate::base::failure::{Failure, Reason};
use crate::base::message::Message;

/// An actix actor as an odeon actor: `system.spawn::<Actix<Ledger>>(args).await?`.
///
/// `X` runs in an ordinary `actix::Context` on an arbiter of this process, says in [`ActixActor`]
/// how it is made, and has one line of [`register_actix!`](crate::register_actix). Its messages are
/// odeon messages as well, with the same reply: `#[rtype(result = "T")]` beside
/// `#[odeon::message(reply = T)]`.
///
/// actix does not catch panics; here a panic ends the inner actor and is the wrapper's failure.
pub struct Actix<X: ActixActor> {
    inner: Addr<X>,
    /// Dropping it ends the inner actor, whose `stopping` and `stopped` hooks run.
    stop: Option<oneshot::Sender<()>>,
    ended: watch::Receiver<Option<Reason>>,
}

/// An actix actor that can be made, the first time and after a failure.
pub trait ActixActor: actix::Actor<Context = actix::Context<Self>> {
    /// The arguments that it is made from.
    type Args: Serialize + DeserializeOwned + Clone + Send + 'static;

    /// Makes the actor, on the thread it will run on. Its `started` hook runs after that.
    ///
    /// # Errors
    /// It cannot start; its supervisor decides what follows.
    fn make(args: Self::Args, context: &mut actix::Context<Self>) -> Result<Self, Failure>;
}

/// An actix actor whose odeon messages are listed. Implemented by
/// [`register_actix!`](crate::register_actix).
#[diagnostic::on_unimplemented(
    message = "the messages of the actix actor `{Self}` are not registered",
    note = "list its messages: `odeon::register_actix!({Self} as \"my.Name\": MessageOne);`"
)]
pub trait ActixRegistered: ActixActor {
    /// A stable name, the same in every build.
    const NAME: &'static str;
    /// The names and ids of its messages.
    const MESSAGES: &'static [(&'static str, u64)];

    /// The type's row in the table.
    fn actor_type() -> &'static ActorType;
}

/// Lists the messages of an actix actor that others may send to it through [`Actix`]:
/// `register_actix!(Ledger as "shop.Ledger": Book, Total);`.
///
/// [`Actix`]: crate::actor::foreign::Actix
#[macro_export]
macro_rules! register_actix {
    ($actor:ty as $name:literal : $($message:ty),* $(,)?) => {
        impl $crate::foreign::ActixRegistered for $actor {
            const NAME: &'static str = $name;
            const MESSAGES: &'static [(&'static str, u64)] = &[$((
                <$message as $crate::Message>::NAME,
                <$message as $crate::Message>::METHOD,
            )),*];

            fn actor_type() -> &'static $crate::ActorType {
                type Wrapper = $crate::foreign::Actix<$actor>;
                static METHODS: &[$crate::Method] = &[$($crate::Method::of::<Wrapper, $message>()),*];
                static TYPE: $crate::ActorType = $crate::ActorType::of::<Wrapper>(METHODS);
                &TYPE
            }
        }
    };
}

impl<X: ActixActor> Actix<X> {
    /// Ends the wrapper with the reason of the inner actor's end.
    async fn lost(&mut self) -> ! {
        // An inner actor that lives dropped the answer alone: nothing else will come.
        let ended = Clock::timeout(LAST_WORDS, end(&mut self.ended)).await;
        match ended {
            Some(Reason::Failed(failure)) => failure.unwind(),
            Some(_) => Failure::error("its actix actor stopped before it answered").unwind(),
            None => Failure::error("its actix actor dropped the answer").unwind(),
        }
    }
}

/// Waits for the end of the inner actor and says why.
async fn end(ended: &mut watch::Receiver<Option<Reason>>) -> Reason {
    match ended.wait_for(Option::is_some).await {
        Ok(reason) => reason.clone().unwrap_or(Reason::Unknown),
        Err(_) => Reason::Failed(Failure::error("its actix arbiter is gone")),
    }
}

/// The inner actor's life, on its arbiter's thread.
async fn live<X: ActixActor>(
    args: X::Args,
    started: oneshot::Sender<Addr<X>>,
    stop: oneshot::Receiver<()>,
) -> Reason {
    let mut context = actix::Context::new();
    let actor = match X::make(args, &mut context) {
        Ok(actor) => actor,
        Err(failure) => return Reason::Failed(failure),
    };
    // Whoever wanted it waits for it, or has dropped `stop`.
    let _ = started.send(context.address());
    let life = context.into_future(actor);
    tokio::select! {
        biased;
        () = life => {}
        _ = stop => {}
    }
    Reason::Stopped
}

#[diagnostic::do_not_recommend]
impl<X: ActixRegistered> Actor for Actix<X> {
    const NAME: &'static str = X::NAME;
    type Args = X::Args;

    async fn start(args: X::Args, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let (started, address) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (tell, mut ended) = watch::channel(None);
        arbiter(cx.me().id().serial).spawn_fn(move || {
            drop(actix::spawn(async move {
                let life = AssertUnwindSafe(live::<X>(args, started, stopped))
                    .catch_unwind()
                    .await;
                let caught = |payload: Box<dyn std::any::Any + Send>| {
                    Reason::Failed(Failure::from_panic(payload.as_ref(), X::NAME))
                };
                tell.send_replace(Some(life.unwrap_or_else(caught)));
            }));
        });
        match address.await {
            Ok(inner) => {
                let mut watched = ended.clone();
                end_with(cx, async move { end(&mut watched).await });
                Ok(Self {
                    inner,
                    stop: Some(stop),
                    ended,
                })
            }
            Err(_) => Err(match end(&mut ended).await {
                Reason::Failed(failure) => failure,
                other => Failure::error(other),
            }),
        }
    }

    async fn stop(mut self, _: &Reason) {
        self.stop = None;
        end(&mut self.ended).await;
    }
}

#[diagnostic::do_not_recommend]
impl<X: ActixRegistered> Registered for Actix<X> {
    const MESSAGES: &'static [(&'static str, u64)] = X::MESSAGES;

    fn actor_type() -> &'static ActorType {
        X::actor_type()
    }
}

#[diagnostic::do_not_recommend]
impl<X, M> Handler<M> for Actix<X>
where
    X: ActixRegistered + actix::Handler<M>,
    M: Message + actix::Message<Result = <M as Message>::Reply>,
{
    async fn handle(&mut self, message: M, _: &mut Context<Self>) -> <M as Message>::Reply {
        match self.inner.send(message).await {
            Ok(reply) => reply,
            Err(_) => self.lost().await,
        }
    }
}

impl<X: ActixActor> fmt::Debug for Actix<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Actix")
            .field("connected", &self.inner.connected())
            .finish_non_exhaustive()
    }
}

/// The time that an inner actor that drops an answer may take to be seen as dead.
const LAST_WORDS: Duration = Duration::from_millis(200);
