//! Access rights: the roles of keys.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The rights of a key. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRole {
    /// Looking.
    View,
    /// Submitting jobs, and stopping them.
    Submit,
    /// Everything else: nodes, keys, tokens, quotas.
    Admin,
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::View => "view",
            Self::Submit => "submit",
            Self::Admin => "admin",
        })
    }
}

impl std::str::FromStr for KeyRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "view" => Ok(Self::View),
            "submit" => Ok(Self::Submit),
            "admin" => Ok(Self::Admin),
            _ => Err(format!(
                "`{text}` is no role: there are view, submit and admin"
            )),
        }
    }
}

/// A name that a key or a namespace cannot have. Nothing was made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the name of a {what} has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`, and not dots alone; `{name}` does not"
)]
pub struct NameError {
    what: &'static str,
    name: String,
}

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// Checks a name that people give to something: it stands in addresses, files and tables.
///
/// # Errors
/// They may not.
pub fn check_name(what: &'static str, name: &str) -> Result<(), NameError> {
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    // Dots alone mean something else in an address.
    let says = name.chars().any(|c| c != '.');
    if says && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    let name = name.to_owned();
    Err(NameError { what, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["ann", "ci-2.main_x", "\u{e4}pfel", ".a", &"x".repeat(100)] {
            assert_eq!(check_name("key", name), Ok(()), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "v?x",
            "a b",
            "a/b",
            "owner@head",
            "a\n",
            &"x".repeat(101),
        ] {
            let refused = check_name("key", name).unwrap_err();
            assert!(
                refused
                    .to_string()
                    .starts_with("the name of a key has 1 to 100"),
                "{refused}"
            );
        }
    }
}
