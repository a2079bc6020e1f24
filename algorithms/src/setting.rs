//! Settings of optimisers and surrogates: how recipes choose one, and the values that it may have.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use thiserror::Error;

/// A thing of several, each with settings of its own.
pub trait Chosen: DeserializeOwned {
    /// The words by which recipes choose.
    const WORDS: &'static [&'static str];

    /// The one of this word, with its default settings.
    fn named(word: &str) -> Option<Self>;

    /// Checks the settings.
    ///
    /// # Errors
    /// [`SettingError`] names the first that is wrong.
    fn check(&self) -> Result<(), SettingError>;
}

/// Reads a choice as recipes spell it: a word, `"lion"`, or a table of it with settings,
/// `{ lion = { beta1 = 0.95 } }`.
///
/// # Errors
/// There is no such word, or no such setting.
pub fn spelled<'de, T: Chosen, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(Spelled(PhantomData))
}

struct Spelled<T>(PhantomData<T>);

impl<'de, T: Chosen> Visitor<'de> for Spelled<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = T::WORDS.join("\", \"");
        write!(f, "one of \"{words}\", or a table of one with its settings")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<T, E> {
        T::named(word).ok_or_else(|| E::unknown_variant(word, T::WORDS))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// A setting with a value that means nothing. Nothing was changed; give it one that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("{of}.{field}: expected {expected}, found {found}")]
pub struct SettingError {
    /// The name by which recipes choose what the setting is of.
    pub of: &'static str,
    /// Name of the setting.
    pub field: &'static str,
    /// Its value.
    pub found: f32,
    /// The values that it may have.
    pub expected: &'static str,
}

/// Ranges of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounds {
    /// At least 0 and below 1: the part that is left of something after a step.
    Decay,
    /// Above 0, and finite.
    Positive,
    /// Above 0 and at most 1.
    Part,
}

impl Bounds {
    /// Checks settings of one thing, in their order.
    pub(crate) fn check_all<const N: usize>(
        of: &'static str,
        fields: [(&'static str, f32, Self); N],
    ) -> Result<(), SettingError> {
        for (field, found, bounds) in fields {
            let (holds, expected) = match bounds {
                Self::Decay => (
                    (0.0..1.0).contains(&found),
                    "a number of at least 0 and below 1",
                ),
                Self::Positive => (found > 0.0 && found.is_finite(), "a number above 0"),
                Self::Part => (
                    found > 0.0 && found <= 1.0,
                    "a number above 0 and at most 1",
                ),
            };
            if !holds {
                return Err(SettingError {
                    of,
                    field,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }
}
