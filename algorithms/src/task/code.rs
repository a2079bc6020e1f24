//! Programs as answers: problems from a file, whose replies are run against tests.
//!
//! Nothing runs here. [`Code::trials`] says what has to be run, [`Code::judge`] says what came of
//! it; whoever runs programs does so between the two. The same reply and the same outcomes always
//! give the same verdict.
//!
//! What a program that wants the reward without the work can not do:
//!
//! - Read the tests. What is run gets the input of one test, and never an expected output or value.
//!   The text of an `assert` comes into the program's process when the program has been loaded.
//! - End early with success. Outputs and values are compared, and an assertion counts as passed
//!   only when a token was printed that the process of the program never holds.
//! - Speak after the test. For an output that is a wrong output; around an assertion or a call
//!   nothing that the program prints is looked at.
//!
//! What it can do: hold `assert f(2) == 4` with a value that claims to equal everything, since that
//! is what the assertion asks; and take the harness for assertions apart from within. A test with
//! an input or with a `call` has neither hole.

mod extract;
mod harness;
mod judge;
mod language;
mod row;
mod trial;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use self::row::Tests;
pub use self::{
    extract::program,
    judge::{Credit, Unjudged, same_output},
    language::Language,
    row::{AssertTest, CallTest, OutputTest, Test},
    trial::{Trial, TrialOutcome},
};
use super::{
    draw::{self, Splits},
    error::TaskError,
    problem::{Aside, Goal, Problem, PromptStyle, Split},
    source::Task,
    verdict::{Reason, Verdict},
};

/// Settings of [`Code`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeConfig {
    /// The file: one JSON object a line, with `prompt` (or `problem`) and `tests`, and as one likes
    /// `language` and `solution`. See [`Test`] for what a test is.
    pub path: PathBuf,
    /// Number of lines from the beginning that are [`Split::Train`]; the others are held out.
    #[serde(default = "default_train_count")]
    pub train_count: usize,
    /// The reward of a program that passes some tests but not all.
    #[serde(default)]
    pub credit: Credit,
    /// The form in which prompts are given.
    #[serde(default = "default_style")]
    pub style: PromptStyle,
    /// The problems that are set aside for evaluation.
    #[serde(default)]
    pub aside: Aside,
}

/// Problems read from a file, dealt in an order shuffled by the seed, whose replies hold programs.
#[derive(Clone, Debug)]
pub struct Code {
    config: CodeConfig,
    rows: Vec<Tests>,
    splits: Splits,
}

impl CodeConfig {
    /// Settings for a file with the first 1,000 problems to train on.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            train_count: default_train_count(),
            credit: Credit::default(),
            style: default_style(),
            aside: Aside::HeldOut,
        }
    }
}

impl Code {
    /// Reads the file.
    ///
    /// # Errors
    /// [`TaskError`] when the file cannot be read, a line is not a problem, or a split is empty.
    pub fn open(config: CodeConfig) -> Result<Self, TaskError> {
        let text = std::fs::read_to_string(&config.path).map_err(|source| TaskError::Read {
            path: config.path.clone(),
            source,
        })?;
        let (mut rows, mut problems) = (Vec::new(), Vec::new());
        let lines = text.lines().enumerate();
        for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            let split = if rows.len() < config.train_count {
                Split::Train
            } else {
                Split::HeldOut
            };
            let (mut problem, tests) =
                row::parse(text, split, rows.len()).map_err(|detail| TaskError::Line {
                    path: config.path.clone(),
                    line: line + 1,
                    detail,
                })?;
            if config.style == PromptStyle::Plain {
                // The reply begins on a line of its own.
                problem.prompt.push('\n');
            }
            problems.push(problem);
            rows.push(tests);
        }
        let splits = Splits::cut(NAME, problems, config.aside)?;
        Ok(Self {
            config,
            rows,
            splits,
        })
    }

    /// The languages that its problems ask for, each once.
    #[must_use]
    pub fn languages(&self) -> Vec<Language> {
        let mut found = vec![];
        for tests in &self.rows {
            if !found.contains(&tests.language) {
                found.push(tests.language);
            }
        }
        found
    }

    /// The trials by which a reply is judged: one for each test, in their order. `nonce` must be
    /// new for every reply and no program can be able to guess it.
    ///
    /// # Errors
    /// The verdict, where nothing has to be run: there is no program in the reply.
    pub fn trials(
        &self,
        problem: &Problem,
        reply: &str,
        nonce: &str,
    ) -> Result<Vec<Trial>, Verdict> {
        let Some(tests) = self.tests(problem) else {
            let detail = "the problem is none of this file".to_owned();
            return Err(Verdict::incorrect(0.0, Reason::Malformed { detail }));
        };
        let program = program(reply, tests.language)
            .filter(|program| !program.trim().is_empty())
            .ok_or_else(|| Verdict::incorrect(0.0, Reason::NoAnswer))?;
        Ok(trial::all(tests, &program, nonce))
    }

    /// Returns true when these outcomes of the first trials decide the verdict, so that no more
    /// need be run.
    #[must_use]
    pub fn decided(&self, trials: &[Trial], outcomes: &[TrialOutcome]) -> bool {
        judge::decided(self.config.credit, trials, outcomes)
    }

    /// The verdict on a reply, by the outcomes of its first trials.
    ///
    /// # Errors
    /// [`Unjudged`] when a program could not be run or trials are missing: that says nothing about
    /// the reply, which should be judged again.
    pub fn judge(&self, trials: &[Trial], outcomes: &[TrialOutcome]) -> Result<Verdict, Unjudged> {
        judge::verdict(self.config.credit, trials, outcomes)
    }

    fn tests(&self, problem: &Problem) -> Option<&Tests> {
        match problem.goal {
            Goal::Tests { row } => self.rows.get(row),
            _ => None,
        }
    }
}

impl Task for Code {
    fn name(&self) -> &'static str {
        NAME
    }

    fn style(&self) -> PromptStyle {
        self.config.style
    }

    fn problem_count(&self, split: Split) -> Option<u64> {
        Some(self.splits.count(split))
    }

    fn problem(&self, seed: u64, split: Split, index: u64) -> Problem {
        draw::deal(self.splits.of(split), seed, index)
    }

    /// Says only whether the reply holds a program: one that does gets [`Reason::NotRun`].
    fn reward(&self, problem: &Problem, response: &str) -> Verdict {
        match self.trials(problem, response, "") {
            Err(verdict) => verdict,
            Ok(_) => Verdict::incorrect(0.0, Reason::NotRun),
        }
    }

    fn as_code(&self) -> Option<&Code> {
        Some(self)
    }
}

fn default_train_count() -> usize {
    1_000
}

const fn default_style() -> PromptStyle {
    PromptStyle::Chat
}

const NAME: &str = "code";

#[cfg(test)]
mod tests;
