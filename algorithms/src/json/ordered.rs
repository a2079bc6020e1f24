//! JSON whose objects keep the order of their fields, as Python's do.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::Number;

/// A JSON value whose objects keep the order of their fields. Of fields of one name the last counts,
/// at the place of the first. Numbers that 64 bits do not hold are refused.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderedJson {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    Array(Vec<Self>),
    /// An object.
    Object(Vec<(String, Self)>),
}

impl OrderedJson {
    /// A field of an object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.iter().find(|it| it.0 == name).map(|it| &it.1),
            _ => None,
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The kind of value, for people.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}

impl Serialize for OrderedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Object(fields) => serializer.collect_map(fields.iter().map(|(k, v)| (k, v))),
        }
    }
}

impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

/// The first whole number that does not fit into 64 bits.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(OrderedJson::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(OrderedJson::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(OrderedJson::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(OrderedJson::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        // It may have been written digit by digit.
        if value.fract() == 0.0 && value.abs() >= TOO_LARGE {
            return Err(E::custom("a whole number that 64 bits do not hold"));
        }
        Ok(Number::from_f64(value).map_or(OrderedJson::Null, OrderedJson::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(OrderedJson::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(OrderedJson::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut all = vec![];
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(OrderedJson::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields: Vec<(String, OrderedJson)> = vec![];
        while let Some((name, value)) = map.next_entry::<String, OrderedJson>()? {
            match fields.iter_mut().find(|it| it.0 == name) {
                Some(field) => field.1 = value,
                None => fields.push((name, value)),
            }
        }
        Ok(OrderedJson::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order() {
        let text = r#"{"b":1,"a":[null,true,-2,1.5,"x",{"z":{},"y":[]}]}"#;
        let read: OrderedJson = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let twice: OrderedJson = serde_json::from_str(r#"{"b":1,"a":2,"b":3}"#).unwrap();
        assert_eq!(serde_json::to_string(&twice).unwrap(), r#"{"b":3,"a":2}"#);
        assert_eq!(twice.get("a").map(OrderedJson::kind), Some("a number"));
        for (number, fits) in [
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("1e300", false),
            ("1e-300", true),
            ("1.5", true),
        ] {
            assert_eq!(
                serde_json::from_str::<OrderedJson>(number).is_ok(),
                fits,
                "{number}"
            );
        }
    }
}
