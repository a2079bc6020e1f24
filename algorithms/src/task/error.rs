//! Why a task could not be made, and a check that several tasks share.

use std::path::PathBuf;

use super::problem::Split;

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
    /// The data file is not one of problems.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kind of file that it is, and what to do.
        detail: String,
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

/// Checks a reward for form alone: it must leave room below a correct reply's 1.
pub(super) fn check_format_reward(task: &'static str, reward: f64) -> Result<(), TaskError> {
    if (0.0..1.0).contains(&reward) {
        return Ok(());
    }
    let detail = format!("format_reward must be at least 0 and less than 1, not {reward}");
    Err(TaskError::Setting { task, detail })
}
