//! The program that loads a reply's program and asks it, for assertions and calls.
//!
//! It is two processes. The first holds the token and what is asked, and alone can print. It starts
//! the second before it reads either; the second loads the reply, is then told what is asked, and
//! after that a number, which it has to give back. What the reply prints goes nowhere, its exit
//! counts for nothing, and the token is in no memory that it can read without leave of the system.

/// The question to a program when it has been loaded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked<'a> {
    /// The value of an expression.
    Call(&'a str),
    /// Statements, which must raise nothing.
    Assert(&'a str),
}

/// The name of the harness's file where it runs.
pub(super) const FILE_NAME: &str = "harness.py";

/// The harness itself.
pub(super) fn text() -> String {
    include_str!("harness.py").to_owned()
}

/// The input of the harness: the token, the kind of question, and the question.
pub(super) fn stdin(nonce: &str, asked: Asked<'_>) -> String {
    let (kind, question) = match asked {
        Asked::Call(question) => ("eval", question),
        Asked::Assert(question) => ("exec", question),
    };
    format!("{nonce}\n{kind}\n{question}")
}

/// The line that it prints when the answer to a call is this value, or an assertion holds.
pub(super) fn passed(nonce: &str, value: &str) -> String {
    format!("{nonce} {value}\n")
}
