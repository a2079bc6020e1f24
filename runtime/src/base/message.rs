//! Messages and what they are made of: values that travel.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::base::failure::Down;
use crate::base::shape::Shape;

/// Values that can travel between processes: encoded by serde, with a [`Shape`] that both sides
/// compare.
pub trait Wire: Serialize + DeserializeOwned + Shape + Send + 'static {}
impl<T: Serialize + DeserializeOwned + Shape + Send + 'static> Wire for T {}

/// A message and the type of its reply. Write `#[message(reply = u64)]` on a struct.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no message",
    label = "this type is no message",
    note = "write `#[odeon::message(reply = Reply)]` on it, with the type of its answer"
)]
pub trait Message: Wire {
    /// A stable name; part of the method's id.
    const NAME: &'static str;
    /// The type of the handler's answer.
    type Reply: Wire;
    /// The id on the wire: name, argument shape and reply shape. Not the actor, so that a narrowed
    /// reference sends the same id.
    const METHOD: u64 = crate::base::shape::mix(
        crate::base::shape::mix(crate::base::shape::name(Self::NAME), Self::SHAPE),
        <Self::Reply as Shape>::SHAPE,
    );
}

impl Message for Down {
    const NAME: &'static str = "odeon.Down";
    type Reply = ();
}
