//! Labels: the things that a span or a number is about.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Labels of a metric or span, by name.
pub type Labels = Vec<(Cow<'static, str>, Label)>;

/// One thing that a number or a span is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Label {
    /// A count, an index, a version.
    Int(i64),
    /// A quantity.
    Number(f64),
    /// Words.
    Text(String),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

macro_rules! labels_of_numbers {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Label {
            fn from(value: $integer) -> Self {
                Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
            }
        }
    )*};
}

labels_of_numbers!(u8, u16, u32, u64, usize, i32, i64);

impl From<f32> for Label {
    fn from(value: f32) -> Self {
        Self::Number(value.into())
    }
}

impl From<f64> for Label {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for Label {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Label {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}
