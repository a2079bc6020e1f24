//! One question, and the goal of a reply to it.

use serde::{Deserialize, Serialize};

use super::number::Decimal;

/// The part of a task's problems that a run may learn from, or must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Problems to train on.
    Train,
    /// Problems kept for evaluation; none of them occurs in [`Split::Train`].
    HeldOut,
}

/// The problems of a task that are set aside: nothing is trained on them, and [`Split::HeldOut`] has
/// them.
///
/// Settings that were chosen by how well held-out problems are answered have seen these, so what such
/// problems then say of a run is too good. Choose by others and report the held-out ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aside {
    /// The problems to report.
    #[default]
    HeldOut,
    /// The problems to choose settings by: one in eight of those that are trained on otherwise. The
    /// held-out ones do not occur at all.
    Choice,
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
    /// The reply's final answer must be equal to this, by the rules of [`maths`](super::maths).
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
