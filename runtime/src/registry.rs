//! The table of actor types and their remotely callable methods.
//!
//! [`register!`](crate::register) lists an actor's messages; [`job!`](crate::job) lists the actors
//! of a binary, so that none silently vanishes from it and a worker can host every one.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use crate::actor::{Actor, Handler, Message};
use crate::cell::Cell;
use crate::envelope::{self, Run, Unpack};
use crate::host::{AnyActor, Typed};
use crate::wire::codec::{self, CodecError};

/// That an actor's messages are listed. Implemented by [`register!`](crate::register) and
/// `#[actor]`.
#[diagnostic::on_unimplemented(
    message = "the messages of `{Self}` are not registered",
    label = "`{Self}` cannot be spawned yet",
    note = "list its messages: `odeon::register!({Self}: MessageOne, MessageTwo);`"
)]
pub trait Registered: Actor {
    /// The names and ids of its messages.
    const MESSAGES: &'static [(&'static str, u64)];

    /// The type's row in the table.
    fn actor_type() -> &'static ActorType;
}

/// One actor type: its name, its methods, and how to host one.
pub struct ActorType {
    pub(crate) name: &'static str,
    pub(crate) methods: &'static [Method],
    pub(crate) type_id: TypeId,
    /// Makes one, of which `start` has not run yet, from its encoded arguments.
    pub(crate) make: Make,
}

/// Makes an actor for a cell from its encoded arguments.
type Make = fn(&Arc<Cell>, &[u8]) -> Result<Box<dyn AnyActor>, CodecError>;

impl ActorType {
    /// The row of `A`.
    #[must_use]
    pub const fn of<A: Registered>(methods: &'static [Method]) -> Self {
        Self {
            name: A::NAME,
            methods,
            type_id: TypeId::of::<A>(),
            make: make::<A>,
        }
    }

    /// The stable name of the actor type.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for ActorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorType")
            .field("name", &self.name)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

/// One message that an actor type accepts.
pub struct Method {
    pub(crate) id: u64,
    pub(crate) name: &'static str,
    pub(crate) unpack: Unpack,
    pub(crate) run: Run,
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

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:016x}", self.name, self.id)
    }
}

fn make<A: Actor>(cell: &Arc<Cell>, args: &[u8]) -> Result<Box<dyn AnyActor>, CodecError> {
    Ok(Typed::<A>::new(cell, codec::decode(args)?))
}

/// The actor types of a binary.
pub type ActorTypes = &'static [fn() -> &'static ActorType];

/// Lists the messages of an actor: `register!(Counter: Add, Get);`. Needed once per actor type;
/// `#[actor]` does it by itself.
#[macro_export]
macro_rules! register {
    ($actor:ty : $($message:ty),* $(,)?) => {
        impl $crate::Registered for $actor {
            const MESSAGES: &'static [(&'static str, u64)] = &[$((
                <$message as $crate::Message>::NAME,
                <$message as $crate::Message>::METHOD,
            )),*];

            fn actor_type() -> &'static $crate::ActorType {
                static METHODS: &[$crate::Method] = &[$($crate::Method::of::<$actor, $message>()),*];
                static TYPE: $crate::ActorType = $crate::ActorType::of::<$actor>(METHODS);
                &TYPE
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
        static TYPES: &[fn() -> &'static $crate::ActorType] =
            &[$(<$actor as $crate::Registered>::actor_type),*];
        const NAME: &str = env!("CARGO_PKG_NAME");
        const PARTS: &[$crate::manifest::ActorPart] = &[$($crate::manifest::ActorPart {
            name: <$actor as $crate::Actor>::NAME,
            messages: <$actor as $crate::Registered>::MESSAGES,
        }),*];
        const LEN: usize = $crate::manifest::len(NAME, PARTS);
        static MANIFEST: [u8; LEN] = $crate::manifest::bytes::<LEN>(NAME, PARTS);
        $crate::Job::new(NAME, TYPES, &MANIFEST)
    }};
}
