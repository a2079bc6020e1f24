//! Tasks whose answers a program can check, for reinforcement learning with verifiable rewards.
//!
//! A [`Task`] deals out problems and judges replies. Both are pure: the same seed, split and index
//! always give the same [`Problem`], and the same reply always gives the same [`Verdict`]. All
//! checking is exact (integers, canonical decimals, rationals), never floating point.
//!
//! The two splits of a task share no problem, whatever the seeds: generated tasks assign a problem
//! to a split by a hash of its content, and so does [`Maths`]; [`Gsm8k`] by its line.
//!
//! ```
//! use odeon_algorithms::task::{Split, SumsConfig, Task, TaskSpec};
//!
//! let task = TaskSpec::Sums(SumsConfig::default()).build()?;
//! let problem = task.problem(7, Split::Train, 0);
//! assert!(task.reward(&problem, &problem.solution).correct);
//! # Ok::<(), odeon_algorithms::task::TaskError>(())
//! ```

pub mod code;
mod countdown;
mod draw;
mod expression;
mod gsm8k;
pub mod maths;
mod number;
mod sums;

use std::{
    fmt::{self, Debug, Display},
    ops::Range,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

pub use self::{
    code::{Code, CodeConfig},
    countdown::{Countdown, CountdownConfig},
    expression::{Expression, ExpressionError, evaluate},
    gsm8k::{Gsm8k, Gsm8kConfig},
    maths::{Maths, MathsConfig},
    number::{Decimal, last_number},
    sums::{Sums, SumsConfig, SumsForm},
};

/// A source of problems with a checker for replies.
pub trait Task: Debug + Send + Sync {
    /// The short name that recipes, metrics and logs use.
    fn name(&self) -> &'static str;

    /// The form in which prompts of this task are meant to be given to a model.
    fn style(&self) -> PromptStyle;

    /// Number of distinct problems in the split, or `None` where they are generated without end.
    ///
    /// A finite task deals every problem of a split once before any of them again.
    fn problem_count(&self, split: Split) -> Option<u64>;

    /// Returns the problem with this number: a pure function of its arguments.
    fn problem(&self, seed: u64, split: Split, index: u64) -> Problem;

    /// Judges a reply, given as text without special tokens. Accepts any text and never panics.
    fn reward(&self, problem: &Problem, response: &str) -> Verdict;

    /// Which bytes of a problem's worked solution a tool has written and not the one who solves it, in
    /// order: nobody learns to say them. See [`environment`](crate::environment).
    fn observed(&self, _problem: &Problem) -> Vec<Range<usize>> {
        vec![]
    }

    /// The task as one whose replies have to be run to be judged, if it is one. Its
    /// [`Task::reward`] can not tell what a reply is worth.
    fn as_code(&self) -> Option<&Code> {
        None
    }
}

/// The part of a task's problems that a run may learn from, or must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Problems to train on.
    Train,
    /// Problems kept for evaluation; none of them occurs in [`Split::Train`].
    HeldOut,
}

/// The form in which a prompt is meant to be given to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptStyle {
    /// Encode the prompt as it stands; the reply continues it.
    Plain,
    /// The prompt is a user's message; render it with the model's chat template first.
    Chat,
}

/// One question with its reference answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Problem {
    /// The split it belongs to.
    pub split: Split,
    /// Its number within the split, as asked for.
    pub index: u64,
    /// The text that the model sees.
    pub prompt: String,
    /// The final answer alone, in canonical form.
    pub answer: String,
    /// A full reply that earns reward 1: the target of supervised warm-up.
    pub solution: String,
    /// The goal that the checker compares a reply with.
    pub goal: Goal,
}

/// The goal that a correct reply must reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Goal {
    /// The reply must give this number.
    Number(Decimal),
    /// The reply's final answer must be equal to this, by the rules of [`maths`].
    Answer(String),
    /// The reply must be an expression over these numbers, each used at most once, of this value.
    Expression {
        /// The numbers that may be used.
        numbers: Vec<u32>,
        /// The value to reach.
        target: i64,
    },
    /// The reply must hold a program that passes tests. They stay in the task, so that they travel
    /// nowhere with the problem.
    Tests {
        /// Which problem of the task's file has them, counted from 0.
        row: usize,
    },
}

/// The judgement of one reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The reward, between 0 and 1; 1 exactly when the reply is correct.
    pub reward: f64,
    /// True when the reply is correct.
    pub correct: bool,
    /// Why.
    pub reason: Reason,
}

/// Why a reply got its reward.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// The answer is right.
    Correct,
    /// The reply has the asked form, but its answer is wrong.
    Wrong {
        /// The answer that was read out of the reply.
        given: String,
    },
    /// The reply has an answer, but whether it is right cannot be told.
    Undecided {
        /// The answer that was read out of the reply.
        given: String,
    },
    /// No answer was found in the reply.
    NoAnswer,
    /// The reply does not have the asked form.
    Malformed {
        /// The error in its form.
        detail: String,
    },
    /// The expression uses a number that is not given, or uses it too often.
    NumberNotAvailable {
        /// The number.
        number: String,
    },
    /// The program in the reply fails a test.
    TestFailed {
        /// Number of tests that were passed, of those that were run.
        passed: usize,
        /// Which test failed first, and how.
        detail: String,
    },
    /// The reply holds a program, which nobody has run: see [`Task::as_code`].
    NotRun,
}

/// A description of a task that recipes and messages carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskSpec {
    /// Addition and subtraction.
    Sums(SumsConfig),
    /// Reach a target from given numbers.
    Countdown(CountdownConfig),
    /// Grade-school word problems from a file.
    Gsm8k(Gsm8kConfig),
    /// Mathematics from a file, with answers of any form.
    Maths(MathsConfig),
    /// Programs that are run against tests from a file.
    Code(CodeConfig),
}

/// Why a task could not be made. Nothing was changed; correct the configuration and try again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// A setting is outside its range.
    #[error("task `{task}`: {detail}")]
    Setting {
        /// The task's name.
        task: &'static str,
        /// Which setting, and what it must satisfy.
        detail: String,
    },
    /// The settings admit too few problems for two disjoint splits.
    #[error("task `{task}`: these settings leave no {split:?} problems; widen the ranges")]
    TooFewProblems {
        /// The task's name.
        task: &'static str,
        /// The split that came out empty.
        split: Split,
    },
    /// The data file cannot be read.
    #[error("cannot read the problems in {}: {source}; fetch the data set first", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A line of the data file does not hold a problem.
    #[error("{}:{line}: {detail}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The error in it.
        detail: String,
    },
}

impl TaskSpec {
    /// Checks the settings, reads files where the task has any, and makes the task.
    ///
    /// # Errors
    /// [`TaskError`] when a setting is out of range or a file cannot be read.
    pub fn build(&self) -> Result<Box<dyn Task>, TaskError> {
        Ok(match self {
            Self::Sums(config) => Box::new(Sums::new(config.clone())?),
            Self::Countdown(config) => Box::new(Countdown::new(config.clone())?),
            Self::Gsm8k(config) => Box::new(Gsm8k::open(config.clone())?),
            Self::Maths(config) => Box::new(Maths::open(config.clone())?),
            Self::Code(config) => Box::new(Code::open(config.clone())?),
        })
    }
}

impl Verdict {
    /// The verdict on a correct reply.
    #[must_use]
    pub fn correct() -> Self {
        Self {
            reward: 1.0,
            correct: true,
            reason: Reason::Correct,
        }
    }

    /// The verdict on a reply that is not correct, with the reward that its form earns.
    #[must_use]
    pub fn incorrect(reward: f64, reason: Reason) -> Self {
        Self {
            reward,
            correct: false,
            reason,
        }
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Correct => f.write_str("correct"),
            Self::Wrong { given } => write!(f, "wrong: gave {given}"),
            Self::Undecided { given } => write!(f, "undecided: gave {given}"),
            Self::NoAnswer => f.write_str("no answer in the reply"),
            Self::Malformed { detail } => write!(f, "malformed: {detail}"),
            Self::NumberNotAvailable { number } => {
                write!(f, "{number} is not given, or is used too often")
            }
            Self::TestFailed { detail, .. } => f.write_str(detail),
            Self::NotRun => f.write_str("the program was not run"),
        }
    }
}

/// Checks a reward for form alone: it must leave room below a correct reply's 1.
fn check_format_reward(task: &'static str, reward: f64) -> Result<(), TaskError> {
    if (0.0..1.0).contains(&reward) {
        return Ok(());
    }
    let detail = format!("format_reward must be at least 0 and less than 1, not {reward}");
    Err(TaskError::Setting { task, detail })
}

#[cfg(test)]
mod tests;
