//! Names of processes and actors. An id says who keeps the row of an actor, never where it runs.

use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

/// A process that runs an engine: a node or a worker. Random, so that a new process is never
/// mistaken for a dead one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId(pub u64);

impl ProcessId {
    /// A fresh random id.
    #[must_use]
    pub fn random() -> Self {
        Self(crate::base::random::number() | 1)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0 >> 32)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessId({self})")
    }
}

/// The identity of an actor: the process that supervises it (its home) and a serial number there.
/// It stays the same over restarts and moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ActorId {
    /// The process whose engine keeps the actor's row and decides its restarts.
    pub home: ProcessId,
    /// Counts up within the home, never reused.
    pub serial: u64,
}

impl ActorId {
    /// The parent of every actor that user code spawns outside of actors.
    #[must_use]
    pub fn root(home: ProcessId) -> Self {
        Self { home, serial: 0 }
    }

    /// Returns true if this is the root of its home's tree.
    #[must_use]
    pub fn is_root(self) -> bool {
        self.serial == 0
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.home, self.serial)
    }
}

impl fmt::Debug for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActorId({self})")
    }
}

/// Which life of an actor: 1 for the first, one more after each restart.
pub type Incarnation = u32;

/// A reference to an actor of type `A`, wherever it runs. `Copy`, 24 bytes, serialisable, and
/// without any address: the engine finds the actor by its home's row.
///
/// `A` is the type of the actor.
pub struct Ref<A: ?Sized> {
    pub(crate) id: ActorId,
    pub(crate) fence: Incarnation,
    _actor: PhantomData<fn(&A)>,
}

impl<A: ?Sized> Ref<A> {
    pub(crate) const fn from_id(id: ActorId, fence: Incarnation) -> Self {
        Self {
            id,
            fence,
            _actor: PhantomData,
        }
    }

    /// The identity behind the reference.
    #[must_use]
    pub const fn id(&self) -> ActorId {
        self.id
    }

    /// A reference that only reaches this incarnation: after a restart it answers
    /// [`AskError::Stale`](crate::AskError::Stale). Gangs use fenced references, so that a member
    /// of an old generation cannot talk into the new one.
    #[must_use]
    pub const fn fenced(self, incarnation: Incarnation) -> Self {
        Self::from_id(self.id, incarnation)
    }
}

impl<A: ?Sized> Clone for Ref<A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A: ?Sized> Copy for Ref<A> {}
impl<A: ?Sized> PartialEq for Ref<A> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.fence == other.fence
    }
}
impl<A: ?Sized> Eq for Ref<A> {}
impl<A: ?Sized> std::hash::Hash for Ref<A> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}
impl<A: ?Sized> fmt::Debug for Ref<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = std::any::type_name::<A>();
        write!(
            f,
            "Ref<{}>({})",
            name.rsplit("::").next().unwrap_or(name),
            self.id
        )
    }
}
impl<A: ?Sized> Serialize for Ref<A> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.id, self.fence).serialize(serializer)
    }
}
impl<'de, A: ?Sized> Deserialize<'de> for Ref<A> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (id, fence) = Deserialize::deserialize(deserializer)?;
        Ok(Self::from_id(id, fence))
    }
}

const _: () = assert!(size_of::<Ref<()>>() <= 24);
