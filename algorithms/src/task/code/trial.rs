//! Trials: the program to run for a test, and the outcome.

use std::fmt::{self, Debug, Display};

use super::{
    harness,
    language::Language,
    row::{Test, Tests},
};

/// One program to run, for one test. What it must print to pass is no part of what is run.
#[derive(Clone, PartialEq, Eq)]
pub struct Trial {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The files that it finds where it runs: names and contents.
    pub files: Vec<(String, String)>,
    /// Its standard input.
    pub stdin: String,
    pub(super) passes: Passes,
}

/// The output that a trial must print to pass.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Passes {
    /// This, but for spaces at the ends of lines.
    Output(String),
    /// This and nothing else.
    Exactly(String),
}

/// The outcome of a trial. Who runs it says so in these words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrialOutcome {
    /// It ended by itself.
    Exited {
        /// With this code.
        code: i32,
        /// All that it had printed on its standard output.
        stdout: Vec<u8>,
    },
    /// A signal ended it.
    Signalled(i32),
    /// It took too long.
    TimedOut,
    /// It took too much memory.
    OutOfMemory,
    /// It printed too much.
    OutputTooLong,
    /// It started too many processes.
    TooManyProcesses,
    /// It could not be run, for a reason that is not its own.
    NotStarted(String),
}

/// A trial for each test.
pub(super) fn all(tests: &Tests, program: &str, nonce: &str) -> Vec<Trial> {
    let trial = |test| of(tests.language, test, program, nonce);
    tests.tests.iter().map(trial).collect()
}

fn of(language: Language, test: &Test, program: &str, nonce: &str) -> Trial {
    let answer = (language.file_name().to_owned(), program.to_owned());
    let asked = match test {
        Test::Output(test) => {
            return Trial {
                program: run(language, language.file_name()),
                files: vec![answer],
                stdin: test.stdin.clone(),
                passes: Passes::Output(test.stdout.clone()),
            };
        }
        Test::Call(test) => harness::Asked::Call(&test.call),
        Test::Assert(test) => harness::Asked::Assert(&test.assert),
    };
    let value = match test {
        Test::Call(test) => test.value.trim(),
        _ => "",
    };
    Trial {
        program: run(language, harness::FILE_NAME),
        files: vec![answer, (harness::FILE_NAME.to_owned(), harness::text())],
        stdin: harness::stdin(nonce, asked),
        passes: Passes::Exactly(harness::passed(nonce, value)),
    }
}

fn run(language: Language, file: &str) -> Vec<String> {
    let words = language.interpreter().iter().chain([&file]);
    words.map(ToString::to_string).collect()
}

/// Logs are read by many, and a test that is known is none.
impl Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl Display for TrialOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code, .. } => write!(f, "it ended with code {code}"),
            Self::Signalled(signal) => write!(f, "signal {signal} ended it"),
            Self::TimedOut => f.write_str("it took too long"),
            Self::OutOfMemory => f.write_str("it took too much memory"),
            Self::OutputTooLong => f.write_str("it printed too much"),
            Self::TooManyProcesses => f.write_str("it started too many processes"),
            Self::NotStarted(why) => write!(f, "it could not be run: {why}"),
        }
    }
}
