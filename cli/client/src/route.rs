//! Where a request goes: names of people's choosing become parts of an address, whatever is in them.

use std::fmt;

use crate::client::ClientError;

/// A path below the API, with its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route(String);

impl Route {
    /// The path of these parts.
    pub(crate) fn to<const N: usize>(parts: [&str; N]) -> Result<Self, ClientError> {
        let mut path = String::new();
        for part in parts {
            // An address does not keep them, encoded or not.
            if ["", ".", ".."].contains(&part) {
                let name = part.to_owned();
                return Err(ClientError::Name { name });
            }
            if !path.is_empty() {
                path.push('/');
            }
            encode(part, &mut path);
        }
        Ok(Self(path))
    }

    /// With a word of the query.
    pub(crate) fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        let begun = self.0.contains('?');
        self.0.push(if begun { '&' } else { '?' });
        self.0 += name;
        self.0.push('=');
        encode(&value.to_string(), &mut self.0);
        self
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All but what RFC 3986 calls unreserved is written by its bytes.
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                into.push(char::from(byte));
            }
            _ => *into += &format!("%{byte:02X}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_part_of_the_address() {
        for (name, expect) in [
            ("ann", "keys/ann"),
            ("v?x", "keys/v%3Fx"),
            ("a/b", "keys/a%2Fb"),
            ("a#b c%2F", "keys/a%23b%20c%252F"),
            ("owner@head", "keys/owner%40head"),
            ("\u{e4}", "keys/%C3%A4"),
            ("...", "keys/..."),
        ] {
            let route = Route::to(["keys", name]).unwrap();
            assert_eq!(route.to_string(), expect);
        }
    }

    #[test]
    fn what_an_address_does_not_keep_is_refused() {
        for name in ["", ".", ".."] {
            let refused = Route::to(["keys", name]).unwrap_err();
            assert!(refused.to_string().contains("is no name"), "{refused}");
        }
    }

    #[test]
    fn the_query_is_encoded_too() {
        let route = Route::to(["jobs", "j1", "logs"]).unwrap();
        let route = route.with("after", "0~1.9f.5").with("x", "a&b=c");
        assert_eq!(route.to_string(), "jobs/j1/logs?after=0~1.9f.5&x=a%26b%3Dc");
    }
}
