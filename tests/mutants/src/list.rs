//! The mutants of a file, as `cargo mutants --list --json` tells them.

use serde::Deserialize;

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

#[derive(Deserialize, Clone, Debug)]
pub struct Mutant {
    /// The file, its line and what is replaced by what.
    pub name: String,
    pub package: String,
    pub file: String,
    pub genre: Genre,
    pub replacement: String,
    pub span: Span,
}

#[derive(Deserialize, Clone, Debug)]
pub struct Span {
    pub start: Place,
}

/// Counted from one.
#[derive(Deserialize, Clone, Debug)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}
