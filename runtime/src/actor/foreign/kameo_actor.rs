//! The wrapper around a kameo actor.

use std::fmt;

use kameo::actor::{ActorRef, Spawn};
use kameo::error::{ActorStopReason, HookError, Infallible, PanicError, SendError};
use kameo::message::Message as KameoMessage;
use kameo::reply::Reply;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::end_with;
use crate::actor::actor_type::ActorType;
use crate::actor::handler::{Actor, Context, Handler};
use crate::actor::registry::Registered;
use crate::base::failure::{Failure, FailureKind, Reason};
use crate::base::message::Message;

/// A kameo actor as an odeon actor: `system.spawn::<Kameo<Account>>(args).await?`.
///
/// `K` needs arguments that travel (`Args: Serialize + DeserializeOwned + Clone`; a
/// `#[derive(kameo::Actor)]` struct is its own arguments), one line of
/// [`register_kameo!`](crate::register_kameo), and messages that are odeon messages as well
/// (`#[odeon::message(reply = T)]` on the struct). The reply type is the kameo handler's: `T` for a
/// handler that returns `T`, `Result<T, E>` for one that returns that.
///
/// It is spawned with kameo's default mailbox into the runtime of the system. Other holders of its
/// `ActorRef` do not keep it alive when the wrapper ends.
pub struct Kameo<K: kameo::Actor> {
    inner: ActorRef<K>,
}

/// A kameo actor whose odeon messages are listed. Implemented by
/// [`register_kameo!`](crate::register_kameo).
#[diagnostic::on_unimplemented(
    message = "the messages of the kameo actor `{Self}` are not registered",
    note = "list its messages: `odeon::register_kameo!({Self} as \"my.Name\": MessageOne);`"
)]
pub trait KameoRegistered: kameo::Actor<Args: Serialize + DeserializeOwned + Clone> {
    /// A stable name, the same in every build.
    const NAME: &'static str;
    /// The names and ids of its messages.
    const MESSAGES: &'static [(&'static str, u64)];

    /// The type's row in the table.
    fn actor_type() -> &'static ActorType;
}

/// Lists the messages of a kameo actor that others may send to it through [`Kameo`]:
/// `register_kameo!(Account as "bank.Account": Deposit, Balance);`.
///
/// [`Kameo`]: crate::actor::foreign::Kameo
#[macro_export]
macro_rules! register_kameo {
    ($actor:ty as $name:literal : $($message:ty),* $(,)?) => {
        impl $crate::foreign::KameoRegistered for $actor {
            const NAME: &'static str = $name;
            const MESSAGES: &'static [(&'static str, u64)] = &[$((
                <$message as $crate::Message>::NAME,
                <$message as $crate::Message>::METHOD,
            )),*];

            fn actor_type() -> &'static $crate::ActorType {
                type Wrapper = $crate::foreign::Kameo<$actor>;
                static METHODS: &[$crate::Method] = &[$($crate::Method::of::<Wrapper, $message>()),*];
                static TYPE: $crate::ActorType = $crate::ActorType::of::<Wrapper>(METHODS);
                &TYPE
            }
        }
    };
}

/// Makes an odeon reply from what a kameo handler gives: its value, or its `Result`.
pub trait FromKameo<T, E> {
    /// The reply.
    fn from_kameo(outcome: Result<T, E>) -> Self;
}

impl<T> FromKameo<T, Infallible> for T {
    fn from_kameo(outcome: Result<T, Infallible>) -> Self {
        match outcome {
            Ok(reply) => reply,
        }
    }
}

impl<T, E> FromKameo<T, E> for Result<T, E> {
    fn from_kameo(outcome: Self) -> Self {
        outcome
    }
}

impl<K: kameo::Actor> Kameo<K> {
    /// Ends the wrapper with the reason of the inner actor's end.
    async fn lost(&self) -> ! {
        match ended(&self.inner).await {
            Reason::Failed(failure) => failure.unwind(),
            _ => Failure::error("its kameo actor stopped before it answered").unwind(),
        }
    }
}

#[diagnostic::do_not_recommend]
impl<K: KameoRegistered> Actor for Kameo<K> {
    const NAME: &'static str = K::NAME;
    type Args = K::Args;

    async fn start(args: K::Args, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let wrapper = Self {
            inner: K::spawn(args),
        };
        let hook = |outcome: Result<(), HookError<&K::Error>>| outcome.map_err(hook_failure::<K>);
        wrapper.inner.wait_for_startup_with_result(hook).await?;
        let inner = wrapper.inner.clone();
        end_with(cx, async move { ended(&inner).await });
        Ok(wrapper)
    }

    async fn stop(self, _: &Reason) {
        // It may have stopped already.
        let _ = self.inner.stop_gracefully().await;
        self.inner.wait_for_shutdown().await;
    }
}

#[diagnostic::do_not_recommend]
impl<K: KameoRegistered> Registered for Kameo<K> {
    const MESSAGES: &'static [(&'static str, u64)] = K::MESSAGES;

    fn actor_type() -> &'static ActorType {
        K::actor_type()
    }
}

#[diagnostic::do_not_recommend]
impl<K, M> Handler<M> for Kameo<K>
where
    K: KameoRegistered + KameoMessage<M>,
    M: Message,
    M::Reply: FromKameo<<K::Reply as Reply>::Ok, <K::Reply as Reply>::Error>,
{
    async fn handle(&mut self, message: M, _: &mut Context<Self>) -> M::Reply {
        match self.inner.ask(message).send().await {
            Ok(reply) => FromKameo::from_kameo(Ok(reply)),
            Err(SendError::HandlerError(error)) => FromKameo::from_kameo(Err(error)),
            Err(_) => self.lost().await,
        }
    }
}

impl<K: kameo::Actor> Drop for Kameo<K> {
    fn drop(&mut self) {
        self.inner.kill();
    }
}

impl<K: kameo::Actor> fmt::Debug for Kameo<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kameo")
            .field("inner", &self.inner.id())
            .finish()
    }
}

/// Waits for the end of a kameo actor and says why.
async fn ended<K: kameo::Actor>(actor: &ActorRef<K>) -> Reason {
    let why = |outcome: Result<&ActorStopReason, HookError<&K::Error>>| match outcome {
        Ok(reason) => reason_of(reason),
        Err(error) => Reason::Failed(hook_failure::<K>(error)),
    };
    actor.wait_for_shutdown_with_result(why).await
}

fn reason_of(reason: &ActorStopReason) -> Reason {
    match reason {
        ActorStopReason::Normal => Reason::Stopped,
        ActorStopReason::Panicked(error) => Reason::Failed(panic_failure(error)),
        ActorStopReason::Killed => Reason::Failed(Failure::error("its kameo actor was killed")),
        other => Reason::Failed(Failure::error(format!("its kameo actor ended: {other:?}"))),
    }
}

fn hook_failure<K: kameo::Actor>(error: HookError<&K::Error>) -> Failure {
    match error {
        HookError::Panicked(error) => panic_failure(&error),
        HookError::Error(error) => Failure::error(format!("a hook failed: {error:?}")),
    }
}

fn panic_failure(error: &PanicError) -> Failure {
    let words = error
        .with_str(ToOwned::to_owned)
        .unwrap_or_else(|| error.to_string());
    let kind = if error.is_panic() {
        FailureKind::Panic
    } else {
        FailureKind::Error
    };
    Failure::new(kind, words)
}
