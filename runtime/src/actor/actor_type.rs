//! Types of actors and their methods, as tables of functions that are made once for each type.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use crate::actor::cell::ActorCell;
use crate::actor::mail::{AnyActor, Run, Unpack};
use crate::net::wire::codec::CodecError;

/// One actor type: its name, its methods, and how to host one.
pub struct ActorType {
    pub(crate) name: &'static str,
    pub(crate) methods: &'static [Method],
    pub(crate) type_id: TypeId,
    /// Makes one, of which `start` has not run yet, from its encoded arguments.
    pub(crate) make: Make,
}

/// Makes an actor for a cell from its encoded arguments.
pub(crate) type Make = fn(&Arc<ActorCell>, &[u8]) -> Result<Box<dyn AnyActor>, CodecError>;

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

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:016x}", self.name, self.id)
    }
}

/// The actor types of a binary.
pub type ActorTypes = &'static [fn() -> &'static ActorType];
