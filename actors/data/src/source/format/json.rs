//! The fields that are wanted of a JSON object; all others are passed over without being kept.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use odeon_algorithms::json::{self, OrderedJson};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use bytes::Bytes;

use super::{Block, Emit, FileFormat, Raw, Records, Scanned, foreign::foreign, lines};
use crate::source::{fault::SourceError, spec::Fields, spool::plain_name, storage::Content};

/// A JSON object a line.
pub(crate) struct Lines<'f>(pub(crate) &'f Fields);

/// The lines of a block.
struct Objects {
    fields: Fields,
    start: u64,
    file: u32,
    bytes: Bytes,
}

impl FileFormat for Lines<'_> {
    fn endings(&self) -> Vec<&str> {
        vec![".jsonl", ".ndjson", ".json"]
    }

    fn check(&self) -> Result<(), String> {
        match self.0.image {
            Some(_) => Err("JSON lines hold no pictures: `image` is for Parquet".into()),
            None => self.0.check(),
        }
    }

    fn grows(&self) -> bool {
        true
    }

    fn scan(&self, content: &Content, file: u32, block_bytes: u64) -> Result<Scanned, SourceError> {
        if let Some(reason) = foreign(content)?
            .map(str::to_owned)
            .or_else(|| other(content))
        {
            return Ok(Scanned::of_another_kind(content, reason));
        }
        let begin = content.part(0..content.len().min(BEGIN))?;
        if begin.trim_ascii_start().first() == Some(&b'[') {
            let reason = "it is a JSON array and not an object a line: write its items as lines, as \
                          with `jq -c '.[]'`";
            return Ok(Scanned::of_another_kind(content, reason));
        }
        lines::scan(content, lines::Splitting::LINE, file, block_bytes)
    }

    fn fetch(&self, content: &Content, block: &Block) -> Result<Box<dyn Records>, SourceError> {
        let range = block.start..block.start + u64::from(block.len);
        Ok(Box::new(Objects {
            fields: self.0.clone(),
            start: block.start,
            file: block.file,
            bytes: content.part(range)?,
        }))
    }
}

impl Records for Objects {
    fn records(&self, emit: Emit<'_>) {
        lines::json_records(&self.bytes, self.start, self.file, &self.fields, emit);
    }
}

/// Says of which other format a file is, as its name says.
fn other(content: &Content) -> Option<String> {
    let name = plain_name(&content.shown);
    let formats = "formats are csv, jsonl, parquet, text, webdataset, images and idx";
    [".csv", ".tsv", ".parquet", ".arrow", ".tar", ".bz2", ".xz"]
        .into_iter()
        .find(|ending| name.ends_with(ending))
        .map(|ending| {
            format!("its name ends with `{ending}`, so it is no lines of JSON; {formats}")
        })
}

/// The record that a line is.
pub(crate) fn record<'a>(line: &'a [u8], fields: &Fields) -> Result<Raw<'a>, String> {
    let (first, response, _) = fields.names();
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    if fields.messages.is_some() {
        return conversation(line, first, fields.tools.as_deref());
    }
    let Some(response) = response else {
        let [text] = strings(line, [first])?;
        return Ok(Raw::text(text));
    };
    let [prompt, text] = strings(line, [first, response])?;
    Ok(Raw {
        prompt: Some(prompt),
        ..Raw::text(text)
    })
}

/// The conversation that a line is.
fn conversation(line: &[u8], messages: &str, tools: Option<&str>) -> Result<Raw<'static>, String> {
    let read = |line: &[u8]| serde_json::from_slice::<OrderedJson>(line);
    let object = read(line).or_else(|error| match json::finite(line) {
        Some(line) => read(&line).map_err(|error| placed(&error)),
        None => Err(placed(&error)),
    });
    let object = object.map_err(|error| explained(format!("it is not JSON: {error}"), line))?;
    if !matches!(object, OrderedJson::Object(_)) {
        return Err(format!("it is {} and no object", object.kind()));
    }
    let at = |path: &str| object.get(path).or_else(|| below(&object, path));
    let own = at(messages);
    let own =
        own.ok_or_else(|| format!("it has no field `{messages}`, but {}", fields_of(line)))?;
    Raw::conversation(own.clone(), tools.and_then(at).cloned())
}

/// The value at a path of names with dots between them.
fn below<'a>(object: &'a OrderedJson, path: &str) -> Option<&'a OrderedJson> {
    path.split('.').try_fold(object, |at, name| at.get(name))
}

/// The strings at these paths of a JSON object; numbers as they are written.
pub(crate) fn strings<'a, const N: usize>(
    line: &'a [u8],
    paths: [&str; N],
) -> Result<[Cow<'a, str>; N], String> {
    match strict(line, paths) {
        Ok(found) => Ok(found),
        Err(error) => match json::tolerated(line) {
            // What Python writes for numbers that are none, and numbers that 64 bits do not hold.
            Some(line) => strict(&line, paths).map(|found| found.map(owned)),
            None => Err(explained(error, line)),
        },
    }
}

fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
    Cow::Owned(text.into_owned())
}

/// An error of a line, with what such a line often is.
fn explained(error: String, line: &[u8]) -> String {
    let line = line.trim_ascii();
    let hint = match line {
        _ if line.contains(&b'\r') => {
            "its lines seem to end with CR alone, and LF is what ends one"
        }
        [b'<', ..] => {
            "it begins as HTML does: a page that says what went wrong may have been stored in its place"
        }
        [b'{', .., b'}'] if error.contains("trailing characters") => {
            "something stands behind its object, and each object is a line of its own"
        }
        [b'{' | b'['] | [b'"', .., b',' | b'{' | b'['] | [b'}' | b']'] | [b'}' | b']', b','] => {
            "an object may be spread over several lines: write each as one, as with `jq -c .`"
        }
        [b'{', rest @ ..] if rest.trim_ascii_start().first() == Some(&b'\'') => {
            "its quotes are single, as Python prints an object: write it with `json.dumps`"
        }
        _ => return error,
    };
    format!("{error}; {hint}")
}

/// The message of a reader of JSON about one line, whose number it does not know.
fn placed(error: &serde_json::Error) -> String {
    let (text, column) = (error.to_string(), error.column());
    let place = format!(" at line {} column {column}", error.line());
    match text.strip_suffix(&place) {
        Some(text) => format!("{text}, at its byte {column}"),
        None => text,
    }
}

/// The fields that an object has.
fn fields_of(object: &[u8]) -> String {
    let read: BTreeMap<String, IgnoredAny> = serde_json::from_slice(object).unwrap_or_default();
    let names = read
        .keys()
        .take(FIELDS_TOLD)
        .map(|name| format!("`{name}`"));
    let names: Vec<String> = names.collect();
    let more = match read.len() > names.len() {
        true => " and others",
        false => "",
    };
    match names.is_empty() {
        true => "none".to_owned(),
        false => format!("{}{more}", names.join(", ")),
    }
}

/// As many fields of an object are told that lacks one.
const FIELDS_TOLD: usize = 8;

/// The strings at these paths of a JSON object, as it is.
fn strict<'a, const N: usize>(
    line: &'a [u8],
    paths: [&str; N],
) -> Result<[Cow<'a, str>; N], String> {
    let mut found = [const { None }; N];
    let mut json = serde_json::Deserializer::from_slice(line);
    let wanted: [(usize, &str); N] = std::array::from_fn(|slot| (slot, paths[slot]));
    let object = Object {
        wanted: &wanted,
        found: &mut found,
    };
    let read = object.deserialize(&mut json).and_then(|()| json.end());
    read.map_err(|error| format!("it is not JSON as expected: {}", placed(&error)))?;
    if let Some(absent) = found.iter().position(Option::is_none) {
        let name = paths[absent];
        return Err(format!("it has no field `{name}`, but {}", fields_of(line)));
    }
    Ok(found.map(Option::unwrap_or_default))
}

/// Fills the slots whose paths lead into this object.
struct Object<'f, 'p, 'a> {
    wanted: &'f [(usize, &'p str)],
    found: &'f mut [Option<Cow<'a, str>>],
}

impl<'a> DeserializeSeed<'a> for Object<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Object<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key_seed(Text)? {
            // Names with dots may also be just that.
            if let Some(&(slot, _)) = self.wanted.iter().find(|(_, path)| *path == key) {
                self.found[slot] = Some(map.next_value_seed(Text)?);
                continue;
            }
            let below = |&(slot, path): &(usize, _)| {
                let (first, rest) = str::split_once(path, '.')?;
                (first == key).then_some((slot, rest))
            };
            if self.wanted.iter().any(|wanted| below(wanted).is_some()) {
                let wanted: Vec<_> = self.wanted.iter().filter_map(below).collect();
                map.next_value_seed(Object {
                    wanted: &wanted,
                    found: self.found,
                })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// A string, a part of the JSON where it has no escapes; numbers as they are written.
struct Text;

impl<'a> DeserializeSeed<'a> for Text {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<Cow<'a, str>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Text {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(number.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(number.to_string()))
    }

    fn visit_f64<E: Error>(self, _number: f64) -> Result<Self::Value, E> {
        // It may not come back as it is written.
        Err(E::custom("a number that is not whole"))
    }
}

/// As much of a file tells whether it is an array.
const BEGIN: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_wherever_they_are() {
        let check = |json: &str, paths: [&str; 2], expect: Result<[&str; 2], &str>| {
            let found = strings(json.as_bytes(), paths);
            match expect {
                Ok(expect) => assert_eq!(found.unwrap(), expect, "{json}"),
                Err(reason) => {
                    let error = found.unwrap_err();
                    assert!(error.contains(reason), "{json}: {error}");
                }
            }
        };
        check(
            r#"{"a": "x", "n": {"a": [1]}, "b": 7}"#,
            ["a", "b"],
            Ok(["x", "7"]),
        );
        check(
            r#"{"n": {"b": "\n", "a": "ä"}}"#,
            ["n.a", "n.b"],
            Ok(["ä", "\n"]),
        );
        check(
            r#"{"n.a": "x", "b": -1.5}"#,
            ["n.a", "b"],
            Ok(["x", "-1.5"]),
        );
        check(
            r#"{"a": 12345678901234567890123, "b": 1.10, "c": [1e400, NaN]}"#,
            ["a", "b"],
            Ok(["12345678901234567890123", "1.10"]),
        );
        check(
            r#"{"c": -Infinity, "a": "NaN \" 1.5", "d": "\\", "b": 1e400}"#,
            ["a", "b"],
            Ok(["NaN \" 1.5", "1e400"]),
        );
        check(r#"{"a": NaN, "b": ""}"#, ["a", "b"], Err("null"));
        check(r#"{"a": "x", "b": 1.2.3}"#, ["a", "b"], Err("JSON"));
        check(r#"{"a": "x", "b": nan}"#, ["a", "b"], Err("JSON"));
        check(
            r#"{"a": "x", "a": "y", "b": 1}"#,
            ["a", "b"],
            Ok(["y", "1"]),
        );
        check("{\"a\": 1}\r{\"a\": 2}\r", ["a", "a"], Err("CR alone"));
        check(r#"{"a": "x"}"#, ["a", "b"], Err("no field `b`"));
        check(r#"{"a": null, "b": ""}"#, ["a", "b"], Err("null"));
        check(r#"{"a": "x", "b": ["y"]}"#, ["a", "b"], Err("sequence"));
        check(r#"{"a": "x", "b": "y"} z"#, ["a", "b"], Err("trailing"));
        check(r#"{"a": "x", "b": "y"#, ["a", "b"], Err("EOF"));
        check(r#"["a", "b"]"#, ["a", "b"], Err("an object"));
        check("{\"a\": \"\u{0}\"}", ["a", "a"], Err("control character"));
    }

    #[test]
    fn a_deep_object_is_refused() {
        let json = "{\"n\":".repeat(10_000);
        assert!(strings(json.as_bytes(), ["a"]).is_err());
    }
}
