//! JSON as programs write it that do not keep to it. Pure.
//!
//! Python's `json.dumps` writes `NaN` and `Infinity`, and numbers of any length; a reader of JSON
//! refuses the first, and 64 bits do not hold the second.

mod ordered;

use serde::de::IgnoredAny;

pub use self::ordered::OrderedJson;

/// JSON whose numbers with a point, an exponent or many digits are strings of what is written, and in
/// which `NaN` and infinities, which are no JSON, are `null`; nothing where there is none of them.
#[must_use]
pub fn tolerated(json: &[u8]) -> Option<Vec<u8>> {
    rewritten(json, is_long_number)
}

/// JSON in which `NaN` and infinities, which are no JSON, are `null`; nothing where there is none of them.
#[must_use]
pub fn finite(json: &[u8]) -> Option<Vec<u8>> {
    rewritten(json, |_| false)
}

/// JSON without what is no number, in which words that are picked are strings.
fn rewritten(json: &[u8], is_quoted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let (mut out, mut at, mut changed) = (Vec::new(), 0, false);
    while let Some(&byte) = json.get(at) {
        if byte == b'"' {
            let end = string_end(json, at)?;
            out.extend_from_slice(&json[at..end]);
            at = end;
            continue;
        }
        let rest = &json[at..];
        let word = rest.iter().position(|byte| !is_of_a_word(*byte));
        let word = &rest[..word.unwrap_or(rest.len())];
        match word {
            [] => {
                out.push(byte);
                at += 1;
                continue;
            }
            b"NaN" | b"Infinity" | b"-Infinity" => {
                out.extend_from_slice(b"null");
                changed = true;
            }
            word if is_quoted(word) => {
                out.push(b'"');
                out.extend_from_slice(word);
                out.push(b'"');
                changed = true;
            }
            word => out.extend_from_slice(word),
        }
        at += word.len();
    }
    changed.then_some(out)
}

/// Where a string ends that begins here.
fn string_end(json: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += json
            .get(at..)?
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\'))?;
        match json[at] {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

fn is_of_a_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// Returns true for a number of JSON that does not come back from 64 bits as it is written.
fn is_long_number(word: &[u8]) -> bool {
    let long = word.len() > 18 || word.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
    long && serde_json::from_slice::<IgnoredAny>(word).is_ok()
        && word.iter().any(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_json_becomes_json() {
        let check = |json: &str, expect: Option<&str>| {
            let told = tolerated(json.as_bytes()).map(|told| String::from_utf8(told).unwrap());
            assert_eq!(told.as_deref(), expect, "{json}");
        };
        check(r#"{"a": 1, "b": "NaN 1.5"}"#, None);
        check(
            r#"{"a": NaN, "b": [-Infinity,1.10]}"#,
            Some(r#"{"a": null, "b": [null,"1.10"]}"#),
        );
        check(
            r#"[12345678901234567890123, 1e400, -0.5]"#,
            Some(r#"["12345678901234567890123", "1e400", "-0.5"]"#),
        );
        check(r#"["\\", "\" NaN", nan, 1.2.3]"#, None);
        check(r#"{"a": NaN, "b": "open"#, None);
    }
}
