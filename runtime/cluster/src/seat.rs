//! The seat of a daemon's actor: parts of its own process that it is made from, and that never
//! travel.

use std::fmt;

use odeon::{Failure, Shape, shape};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Arguments that stay in this process.
#[derive(Clone)]
pub struct Seat<T>(Option<T>);

impl<T> fmt::Debug for Seat<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

impl<T> Serialize for Seat<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de, T> Deserialize<'de> for Seat<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer).map(|()| Self(None))
    }
}

impl<T> Seat<T> {
    /// Of a part of this process.
    #[must_use]
    pub const fn new(part: T) -> Self {
        Self(Some(part))
    }

    /// The value that it holds.
    ///
    /// # Errors
    /// It comes from another process.
    pub fn take(self) -> Result<T, Failure> {
        let elsewhere = "a daemon's actors cannot be spawned by another process";
        self.0.ok_or_else(|| Failure::error(elsewhere))
    }
}

impl<T> Shape for Seat<T> {
    const SHAPE: u64 = shape::name("odeon.cluster.Seat");
}
