//! Attributes as they travel.

use odeon::telemetry::Label;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};

/// The scope that names the maker of the attributes.
pub(crate) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "odeon".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

pub(crate) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    pair(key, Value::StringValue(value.into()))
}

pub(crate) fn number(key: &str, value: f64) -> KeyValue {
    pair(key, Value::DoubleValue(value))
}

pub(crate) fn count(key: &str, value: u64) -> KeyValue {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    pair(key, Value::IntValue(value))
}

pub(crate) fn yes(key: &str) -> KeyValue {
    pair(key, Value::BoolValue(true))
}

pub(crate) fn texts(key: &str, values: impl IntoIterator<Item = String>) -> KeyValue {
    let values = values.into_iter().map(|value| AnyValue {
        value: Some(Value::StringValue(value)),
    });
    let values = values.collect();
    pair(key, Value::ArrayValue(ArrayValue { values }))
}

/// A label as the program gives it.
pub(crate) fn label(key: &str, value: &Label) -> KeyValue {
    match value {
        Label::Int(value) => pair(key, Value::IntValue(*value)),
        Label::Number(value) => number(key, *value),
        Label::Text(value) => text(key, value.as_str()),
    }
}

/// A text as a value of its own.
pub(crate) fn said(text: impl Into<String>) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(text.into())),
    }
}

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        key_strindex: 0,
    }
}
