//! Types of actors and their methods, as tables of functions that are made once for each type.

use std::any::TypeId;
use std::collections::BTreeMap;
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
    /// The path of the type in its program, for people.
    pub(crate) path: fn() -> &'static str,
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

/// Checks that each name means one type: processes know an actor's type by it.
///
/// # Errors
/// Two types with one name, in words.
pub(crate) fn check_names(types: ActorTypes) -> Result<(), String> {
    let mut known: BTreeMap<&str, &ActorType> = BTreeMap::new();
    for row in types.iter().map(|row| row()) {
        if let Some(other) = known.insert(row.name, row)
            && other.type_id != row.type_id
        {
            let (first, second) = ((other.path)(), (row.path)());
            return Err(format!(
                "the actor types `{first}` and `{second}` have one name, `{}`: give one of them another \
                 `#[odeon::actor(name = \"..\")]`",
                row.name
            ));
        }
    }
    Ok(())
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
