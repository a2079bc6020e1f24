//! Who may do what: the roles of keys.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a key is good for. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looking.
    View,
    /// Submitting jobs, and stopping them.
    Submit,
    /// Everything else: nodes, keys, tokens, quotas.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::View => "view",
            Self::Submit => "submit",
            Self::Admin => "admin",
        })
    }
}

impl std::str::FromStr for Role {
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
