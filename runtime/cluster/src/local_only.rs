//! Arguments of a daemon's actor that never travel: parts of its own process.

use std::fmt;

use odeon::{Failure, Shape, shape};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Arguments that stay in this process.
#[derive(Clone)]
pub struct LocalOnly<T>(Option<T>);

impl<T> fmt::Debug for LocalOnly<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalOnly").finish_non_exhaustive()
    }
}

impl<T> Serialize for LocalOnly<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de, T> Deserialize<'de> for LocalOnly<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer).map(|()| Self(None))
    }
}

impl<T> LocalOnly<T> {
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

impl<T> Shape for LocalOnly<T> {
    const SHAPE: u64 = shape::name("odeon.cluster.LocalOnly");
}
