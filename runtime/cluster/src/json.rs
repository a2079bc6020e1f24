//! Payloads between daemons: JSON inside a message, so that daemons of different releases
//! understand each other as far as they can.

use odeon::{Shape, shape};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that travels as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T> Shape for Json<T> {
    const SHAPE: u64 = shape::name("odeon.cluster.Json");
}

impl<T: Serialize> Serialize for Json<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(&self.0).map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&text)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Json<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let value = serde_json::from_str(&text).map_err(serde::de::Error::custom)?;
        Ok(Self(value))
    }
}
