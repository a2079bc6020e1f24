//! A source of problems with a checker for replies.

use std::{fmt::Debug, ops::Range};

use super::{
    code::Code,
    problem::{Problem, PromptStyle, Split},
    problem_file::ProblemsLeftOut,
    verdict::Verdict,
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

    /// The lines of its file that are left out, where it has one.
    fn left_out(&self) -> Option<&ProblemsLeftOut> {
        None
    }

    /// The line of its file that a problem is on, where it has one.
    fn line(&self, _problem: &Problem) -> Option<usize> {
        None
    }

    /// The task as one whose replies have to be run to be judged, if it is one. Its
    /// [`Task::reward`] can not tell what a reply is worth.
    fn as_code(&self) -> Option<&Code> {
        None
    }
}
