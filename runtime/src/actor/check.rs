//! Checks that the macros write, so that a mistake is one error at its place.
//!
//! The checks of a type are a constant in [`Checked::Sound`]. When it does not compile, that type is one that
//! the compiler has given up on, and any bound on it holds for the compiler without another word. The macros
//! put such bounds on all that they implement for the type. Otherwise it is [`Sound`], for which they hold.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::actor::handler::ActorArgs;
use crate::base::message::Message;
use crate::base::shape::Shape;

/// A type that a macro has checked: as an [`ActorState`] or as a [`TravellingValue`], since one type may be both.
pub trait Checked<As> {
    /// [`Sound`], when the checks hold.
    type Sound;
}

/// The part of an actor.
#[derive(Debug)]
pub struct ActorState;

/// The part of a message, and of what it is made of.
#[derive(Debug)]
pub struct TravellingValue;

/// The constant of the checks, in a type.
#[derive(Debug)]
pub struct Checks<const DONE: bool>;

/// The outcome of checks.
pub trait CheckOutcome {
    /// [`Sound`], when they hold.
    type Sound;
}

impl<const DONE: bool> CheckOutcome for Checks<DONE> {
    type Sound = Sound;
}

/// The outcome when all is well. It has each trait that a macro puts as a bound on it.
#[derive(Clone, Debug)]
#[odeon_macros::message]
pub struct Sound;

/// Says whether a type has a shape, by [`HasShape`] for those that have and by [`Unshaped`] for the others.
#[derive(Debug)]
pub struct Shaped<T>(PhantomData<T>);

/// A type that has a shape.
#[derive(Debug)]
pub struct HasShape;

/// A type that has none, of which that is said already.
#[derive(Debug)]
pub struct NoShape;

impl<T: Shape> Shaped<T> {
    /// The type has a shape.
    pub const SHAPED: HasShape = HasShape;
}

/// The types without a shape.
pub trait Unshaped {
    /// The type has no shape.
    const SHAPED: NoShape = NoShape;
}

impl<T> Unshaped for Shaped<T> {}

/// That a type is encoded by serde, when it has a shape.
#[diagnostic::on_unimplemented(
    message = "`{T}` cannot travel between actors: serde cannot encode it",
    label = "this type lacks `Serialize` or `Deserialize`",
    note = "on a type of your own write `#[odeon::wire]`, which derives them and `Shape`"
)]
pub trait Encoded<T> {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + 'static> Encoded<T> for HasShape {}
impl<T> Encoded<T> for NoShape {}

/// Checks that a type with a shape is encoded as well.
pub const fn encoded<T, S: Encoded<T>>(_: &S) {}

/// Checks that an actor can be made from a value.
pub const fn arguments<T: ActorArgs>() {}

/// Checks that an actor moves between threads.
pub const fn moves_between_threads<T: Send + 'static>() {}

/// Checks that a type is a message.
pub const fn message<M: Message>() {}

/// That a handler returns what its message is answered with.
#[diagnostic::on_unimplemented(
    message = "this handler returns `{Self}`, but its message is answered with `{Reply}`",
    label = "return `{Reply}` here, or write `#[odeon::message(reply = {Self})]` on the message"
)]
pub trait Replies<Reply> {
    /// The reply.
    fn reply(self) -> Reply;
}

impl<T> Replies<T> for T {
    fn reply(self) -> T {
        self
    }
}

/// The reply of a handler to a message that was declared elsewhere.
pub fn reply<T: Replies<M::Reply>, M: Message>(returned: T) -> M::Reply {
    returned.reply()
}
