//! References to any actor that handles a message.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Ask, Tell, by_method};
use crate::base::id::{ActorId, Incarnation};
use crate::base::message::Message;
use crate::base::shape::{self, Shape};

/// A reference to any actor that handles `M`: what [`Ref::narrow`](crate::Ref::narrow) gives. It hides the actor's
/// type, so that a consumer depends on the message and on nothing else.
pub struct Recipient<M> {
    pub(super) id: ActorId,
    pub(super) fence: Incarnation,
    pub(super) _message: std::marker::PhantomData<fn(M)>,
}

impl<M> Recipient<M> {
    pub(crate) const fn from_id(id: ActorId) -> Self {
        Self {
            id,
            fence: 0,
            _message: std::marker::PhantomData,
        }
    }
}

impl<M> Clone for Recipient<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Recipient<M> {}
impl<M> fmt::Debug for Recipient<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recipient({})", self.id)
    }
}
impl<M> Serialize for Recipient<M> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.id, self.fence).serialize(serializer)
    }
}
impl<'de, M> Deserialize<'de> for Recipient<M> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (id, fence) = Deserialize::deserialize(deserializer)?;
        Ok(Self {
            id,
            fence,
            _message: std::marker::PhantomData,
        })
    }
}
impl<M: Message> Shape for Recipient<M> {
    const SHAPE: u64 = shape::mix(shape::name("Recipient"), M::METHOD);
}

impl<M: Message> Recipient<M> {
    /// The identity behind the reference.
    #[must_use]
    pub const fn id(&self) -> ActorId {
        self.id
    }

    /// See [`Ref::ask`](crate::Ref::ask).
    pub fn ask(&self, message: M) -> Ask<M> {
        Ask::new(self.id, self.fence, message, by_method)
    }

    /// See [`Ref::tell`](crate::Ref::tell).
    pub fn tell(&self, message: M) -> Tell<M> {
        Tell::new(self.id, self.fence, message, by_method)
    }
}
