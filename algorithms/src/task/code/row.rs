//! A line of the file.

use serde::Deserialize;

use super::{
    super::problem::{Goal, Problem, Split},
    language::Language,
};

/// One test of a program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Test {
    /// With this input, the program prints this output and ends with success.
    Output(OutputTest),
    /// The expression has this value when the program has been loaded. Only the expression is run;
    /// values are compared outside.
    Call(CallTest),
    /// The statement raises nothing when the program has been loaded.
    Assert(AssertTest),
}

/// See [`Test::Output`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputTest {
    /// The standard input, as it stands.
    pub stdin: String,
    /// The standard output, compared by [`same_output`](super::same_output).
    pub stdout: String,
}

/// See [`Test::Call`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallTest {
    /// An expression on one line, as `solve([1, 2])`.
    pub call: String,
    /// The text that Python's `repr` prints for its value, as `[1, 'a']`.
    pub value: String,
}

/// See [`Test::Assert`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssertTest {
    /// One statement or several, as `assert solve([1, 2]) == 3`.
    pub assert: String,
}

/// The tests of one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tests {
    /// The language that the program has to be written in.
    pub(super) language: Language,
    /// In the order of the file; one at least.
    pub(super) tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Row {
    #[serde(alias = "problem")]
    prompt: String,
    #[serde(default)]
    language: Language,
    tests: Vec<serde_json::Value>,
    #[serde(default)]
    solution: String,
}

/// Reads a line.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(text: &str, split: Split, row: usize) -> Result<(Problem, Tests), String> {
    let Row {
        prompt,
        language,
        tests,
        solution,
    } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let tests = tests.into_iter().enumerate().map(|(at, test)| {
        serde_json::from_value(test).map_err(|_| format!("test {}: {FORMS}", at + 1))
    });
    let tests: Vec<Test> = tests.collect::<Result<_, _>>()?;
    if tests.is_empty() {
        return Err("it has no tests, so every program would pass".to_owned());
    }
    let by_output = |test: &Test| matches!(test, Test::Output(_));
    if language != Language::Python && !tests.iter().all(by_output) {
        return Err(format!(
            "only Python has calls and assertions: test {language:?} with `stdin` and `stdout`"
        ));
    }
    let tag = language.tags()[0];
    let what = if tests.iter().all(by_output) {
        " It reads from standard input and writes to standard output."
    } else {
        ""
    };
    let problem = Problem {
        split,
        index: 0,
        prompt: format!("{prompt}\nAnswer with one program in a block that begins ```{tag}.{what}"),
        solution: if solution.is_empty() {
            String::new()
        } else {
            format!("```{tag}\n{solution}\n```")
        },
        answer: solution,
        goal: Goal::Tests { row },
    };
    Ok((problem, Tests { language, tests }))
}

const FORMS: &str = "a test is {\"stdin\", \"stdout\"}, {\"call\", \"value\"} or {\"assert\"}, \
                     each a text";
