//! The languages of programs.

use serde::{Deserialize, Serialize};

/// The language of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Language {
    /// Python 3, as `python3` finds it.
    #[default]
    Python,
    /// A shell script, for `sh`. It can be tested with inputs only.
    Shell,
}

impl Language {
    /// The words by which a block says that it is in this language.
    #[must_use]
    pub const fn tags(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python", "python3", "py"],
            Self::Shell => &["sh", "shell", "bash"],
        }
    }

    /// The name of a program's file.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Python => "main.py",
            Self::Shell => "main.sh",
        }
    }

    /// The command that runs a file of this language, without the file.
    #[must_use]
    pub const fn interpreter(self) -> &'static [&'static str] {
        match self {
            // Without the user's packages, and without writing what it has compiled.
            Self::Python => &["python3", "-s", "-B"],
            Self::Shell => &["sh"],
        }
    }
}
