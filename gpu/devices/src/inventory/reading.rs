//! A value that was measured, or the reason why it was not.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A measured value, or why there is none.
///
/// There is no default: a sensor that is missing must not read as zero.
///
/// ```
/// use odeon_devices::inventory::Reading;
///
/// let power: Reading<u32> = Reading::unmeasured("the requested operation is not available");
/// assert_eq!(power.value(), None);
/// assert_eq!(power.to_string(), "not measured: the requested operation is not available");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// The value at the time of the reading.
    Measured(T),
    /// No value.
    Unmeasured {
        /// The reason, in words for a person.
        why: String,
    },
}

impl<T> Reading<T> {
    /// No value, for this reason.
    #[must_use]
    pub fn unmeasured(why: impl Into<String>) -> Self {
        Self::Unmeasured { why: why.into() }
    }

    /// The result of a call, its error as the reason.
    #[must_use]
    pub fn of<E: fmt::Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Measured(value),
            Err(error) => Self::unmeasured(error.to_string()),
        }
    }

    /// The value, if it was measured.
    #[must_use]
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Measured(value) => Some(value),
            Self::Unmeasured { .. } => None,
        }
    }

    /// Why there is no value, if there is none.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Measured(_) => None,
            Self::Unmeasured { why } => Some(why),
        }
    }

    /// The same reading of something derived from the value.
    #[must_use]
    pub fn map<U>(self, derive: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Measured(value) => Reading::Measured(derive(value)),
            Self::Unmeasured { why } => Reading::Unmeasured { why },
        }
    }
}

impl<T: fmt::Display> fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured(value) => value.fmt(f),
            Self::Unmeasured { why } => write!(f, "not measured: {why}"),
        }
    }
}
