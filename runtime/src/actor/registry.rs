//! The table of actor types and their remotely callable methods.
//!
//! [`register!`](crate::register) lists an actor's messages; [`job!`](crate::job) lists the actors
//! of a binary, so that none silently vanishes from it and a worker can host every one.

use std::any::{TypeId, type_name};
use std::sync::Arc;

use crate::actor::actor_type::{ActorType, Method};
use crate::actor::cell::ActorCell;
use crate::actor::envelope;
use crate::actor::handler::{Actor, Handler};
use crate::actor::host::Typed;
use crate::actor::mail::AnyActor;
use crate::base::message::Message;
use crate::net::wire::codec::{self, CodecError};

/// That an actor's messages are listed. Implemented by [`register!`](crate::register) and
/// `#[actor]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no actor whose messages are listed",
    label = "`{Self}` cannot be spawned yet",
    note = "write `#[odeon::actor(name = \"area.{Self}\")]` on the `impl` block that has its methods",
    note = "with an `impl Actor` of your own, write `odeon::register!({Self}: MessageOne, MessageTwo);`"
)]
pub trait Registered: Actor {
    /// The names and ids of its messages.
    const MESSAGES: &'static [(&'static str, u64)];

    /// The type's row in the table.
    fn actor_type() -> &'static ActorType;
}

impl ActorType {
    /// The row of `A`.
    #[must_use]
    pub const fn of<A: Registered>(methods: &'static [Method]) -> Self {
        Self {
            name: A::NAME,
            methods,
            type_id: TypeId::of::<A>(),
            path: type_name::<A>,
            make: make::<A>,
        }
    }

    /// The stable name of the actor type.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl Method {
    /// The row of message `M` at actor `A`.
    #[must_use]
    pub const fn of<A: Handler<M>, M: Message>() -> Self {
        Self {
            id: M::METHOD,
            name: M::NAME,
            unpack: envelope::unpack::<M>,
            run: envelope::run::<A, M>,
        }
    }
}

fn make<A: Actor>(cell: &Arc<ActorCell>, args: &[u8]) -> Result<Box<dyn AnyActor>, CodecError> {
    Ok(Typed::<A>::new(cell, codec::decode(args)?))
}

/// Lists the messages of an actor: `register!(Counter: Add, Get);`. Needed once per actor type;
/// `#[actor]` does it by itself.
#[macro_export]
macro_rules! register {
    ($actor:ty : $($message:ty),* $(,)?) => {
        $crate::register!(@where [] $actor: $($message),*);
    };
    (@where [$($bound:tt)*] $actor:ty : $($message:ty),*) => {
        impl $crate::Registered for $actor
        where
            $($bound)*
        {
            const MESSAGES: &'static [(&'static str, u64)] = &[$((
                <$message as $crate::Message>::NAME,
                <$message as $crate::Message>::METHOD,
            )),*];

            fn actor_type() -> &'static $crate::ActorType {
                const {
                    &$crate::ActorType::of::<$actor>(
                        const { &[$($crate::Method::of::<$actor, $message>()),*] },
                    )
                }
            }
        }
    };
}

/// The job of a binary: the actor types that its worker processes can host.
/// `odeon::job![Counter, Rollout].run(|system| async move { ... })` in `main` starts the driver, or
/// becomes a worker when the process was started as one.
#[macro_export]
macro_rules! job {
    ($($actor:ty),* $(,)?) => {{
        const NAME: &str = env!("CARGO_PKG_NAME");
        const PARTS: &[$crate::manifest::ActorPart] =
            &[$($crate::manifest::ActorPart::of::<$actor>()),*];
        static TYPES: [fn() -> &'static $crate::ActorType; PARTS.len()] =
            $crate::manifest::types(PARTS);
        const LEN: usize = $crate::manifest::len(NAME, PARTS);
        static MANIFEST: [u8; LEN] = $crate::manifest::bytes::<LEN>(NAME, PARTS);
        $crate::Job::new(NAME, &TYPES, &MANIFEST)
    }};
}
