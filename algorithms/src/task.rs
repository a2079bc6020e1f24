//! Tasks whose answers a program can check, for reinforcement learning with verifiable rewards.
//!
//! A [`Task`] deals out problems and judges replies. Both are pure: the same seed, split and index
//! always give the same [`Problem`], and the same reply always gives the same [`Verdict`]. All
//! checking is exact (integers, canonical decimals, rationals), never floating point.
//!
//! The two splits of a task share no problem, whatever the seeds: generated tasks assign a problem
//! to a split by a hash of its content, and so does [`Maths`]; [`Gsm8k`] by its line,
//! but for a line whose question is one to train on. A third set, for
//! choosing settings by, shares none with either when [`Aside::Choice`] asks for it.
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
mod error;
pub(crate) mod expression;
mod gsm8k;
pub mod maths;
mod number;
mod problem;
mod problem_file;
mod source;
mod sums;
mod verdict;

use serde::{Deserialize, Serialize};

pub use self::{
    code::{Code, CodeConfig},
    countdown::{Countdown, CountdownConfig},
    error::TaskError,
    expression::{Expression, ExpressionError, evaluate},
    gsm8k::{Gsm8k, Gsm8kConfig},
    maths::{Maths, MathsConfig},
    number::{Decimal, last_number},
    problem::{Aside, Goal, Problem, PromptStyle, Split},
    problem_file::{OnBad, ProblemsLeftOut},
    source::Task,
    sums::{Sums, SumsConfig, SumsForm},
    verdict::{Reason, Verdict},
};

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

#[cfg(test)]
mod tests;
