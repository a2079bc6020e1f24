//! Mathematics with a known answer, checked symbolically.
//!
//! [`final_answer`] finds the answer in a reply, and [`same_answer`] says whether it is equal to a
//! reference. Both are pure and bounded: a text of any content takes a bounded amount of work, and
//! what would take more is [`Equality::Undecided`].
//!
//! All arithmetic is exact. Numbers, roots of integers, π, e, i, symbols, logarithms and cosines
//! have a normal form as quotients of polynomials with integer coefficients, and two answers are
//! equal when their difference has the normal form of zero.
//!
//! ```
//! use odeon_algorithms::task::maths::{Equality, final_answer, same_answer};
//!
//! let reply = r"Both terms agree, so the ratio is $\boxed{\frac{1}{\sqrt{2}}}$.";
//! let answer = final_answer(reply).unwrap_or_default();
//! assert_eq!(same_answer(r"\frac{\sqrt2}{2}", answer), Equality::Equal);
//! assert_eq!(same_answer("x^2 + 2x + 1", "(x+1)^2"), Equality::Equal);
//! assert_eq!(same_answer("(0, 1]", "[0, 1)"), Equality::Different);
//! ```
//!
//! # What is equal
//!
//! Equal is what is mathematically equal; the form does not matter. `2^{19}` is `524288`, and
//! `x^2+2x+1` is `(x+1)^2`, also where a problem asks for one of them.
//!
//! | written | read as |
//! | --- | --- |
//! | `1,000` `1{,}000` `1\,000` `1 000` | a thousand; where a bracket is open, a comma separates |
//! | `0.\overline{3}` `1.5\times10^3` `1e3` | exact rational numbers; `3.14` is not π |
//! | `1\frac12` `1 1/2` | a mixed number |
//! | `50\%` | `0.5`; the number `50` is taken for it too |
//! | `90^\circ` | `π/2`; the number `90` is taken for it too |
//! | `5 cm` | `50 mm`; the number `5` is taken for it too, with or without a unit in the reference |
//! | `\$5` | `5` dollars or `500` cents |
//! | `1011_2` | eleven |
//! | `a \pm b` | both values; all signs of an expression go together |
//! | `1, 2 and 3` | three answers in any order, as `{1, 2, 3}`; in order where a point `(1, 2, 3)` is compared |
//! | `(1, 2)` `[1, 2)` | a point or an interval: items in order, brackets of one kind |
//! | `x > 3` `3 < x` `2x > 6` | the interval `(3, ∞)`; names must agree where both have one |
//! | `x = 5` `A = bh = 5` `2 + 3 = 5` | `5`; `5 = 6` is nothing |
//! | `y = 2x + 1` `2x - y + 1 = 0` | one equation: a constant factor does not matter |
//! | `3:4` | `3/4`; `2:30 p.m.` and `7:00` are times of day, equal to themselves |
//! | `\log` | natural or decimal, whichever makes both equal |
//! | `(B) 12` | `B`, and `12` where the other side names no letter |
//! | words | themselves, in capitals or not |
//!
//! Symbols stand for numbers for which both sides are defined, and for positive ones under a root
//! or a logarithm, except that the square root of `x^2` is `|x|`. In the exponent of a negative
//! number they are integers. `1/2x` is half of `x`.
//!
//! Not read are integrals, limits, sums with bounds, congruences, cases and decimal commas. Texts
//! with them are equal when they are the same word for word.

mod angle;
mod answer;
mod budget;
mod command;
mod compare;
mod evaluate;
mod exponent;
mod expression;
mod extract;
mod fraction;
mod integer;
mod lexer;
mod logarithm;
mod monomial;
mod name;
mod numeral;
mod parse;
mod polynomial;
mod power;
mod quantity;
mod read;
mod reference;
mod relation;
mod root;
mod rows;
mod token;
mod unit;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use self::budget::Budget;
pub use self::{
    extract::{boxed_answers, final_answer},
    reference::{ReferenceAnswer, ReferenceError},
};
use super::{
    draw::{self, Splits},
    error::{TaskError, check_format_reward},
    problem::{Aside, Goal, Problem, PromptStyle, Split},
    problem_file::{Lines, OnBad, ProblemsLeftOut, Reading},
    source::Task,
    verdict::{Reason, Verdict},
};

/// The result of a comparison of two answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Equality {
    /// They are equal, by exact arithmetic or word for word.
    Equal,
    /// They are not equal.
    Different,
    /// It cannot be told: one of them is not understood or takes too much work, or parts of them
    /// may be related in ways that are not known here. They differ in how they are written.
    Undecided,
}

/// Compares an answer with a reference, by the rules of [this module](self).
///
/// Symmetric, and every text up to [`ANSWER_BYTES_MAX`] that says anything is equal to itself.
///
/// ```
/// use odeon_algorithms::task::maths::{Equality, same_answer};
///
/// assert_eq!(same_answer(r"\{1, -1\}", r"x = \pm 1"), Equality::Equal);
/// assert_eq!(same_answer("4", "1, 2, 3, 4 or 5"), Equality::Different);
/// assert_eq!(same_answer("4", "9^{9^{9^9}}"), Equality::Undecided);
/// ```
#[must_use]
pub fn same_answer(reference: &str, answer: &str) -> Equality {
    if reference.len().max(answer.len()) > ANSWER_BYTES_MAX {
        return Equality::Undecided;
    }
    compare::texts(reference, answer, &mut Budget::new())
}

/// Settings of [`Maths`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MathsConfig {
    /// The file: one JSON object a line. The problem is its `problem`, `question` or `prompt`; the
    /// answer is its `answer`, or else what is boxed in its `solution`.
    pub path: PathBuf,
    /// The reward of a wrong answer in a box.
    #[serde(default)]
    pub format_reward: f64,
    /// The problems that are set aside for evaluation.
    #[serde(default)]
    pub aside: Aside,
    /// The rule for a line that holds no problem, or whose answer is not understood.
    #[serde(default)]
    pub on_bad: OnBad,
    /// A line whose prompt has more bytes holds no problem; without, any length is one.
    #[serde(default)]
    pub prompt_bytes_max: Option<usize>,
}

/// Problems with an answer, read from a file and dealt in an order shuffled by the seed.
///
/// One problem in eight is held out, by a hash of its text, so that copies of a problem are in one
/// split. The reply's answer is [`final_answer`]; it earns the reward when it is
/// [`Equality::Equal`] to the reference. Nothing is earned by several boxes that differ, by an
/// answer longer than [`ANSWER_BYTES_MAX`], or by several answers where the reference is one.
#[derive(Clone, Debug)]
pub struct Maths {
    config: MathsConfig,
    splits: Splits,
    left_out: ProblemsLeftOut,
    lines: Lines,
}

impl MathsConfig {
    /// Settings for a file, with reward for right answers only.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            format_reward: 0.0,
            aside: Aside::HeldOut,
            on_bad: OnBad::Fail,
            prompt_bytes_max: None,
        }
    }
}

impl Maths {
    /// Reads the file, and every reference in it.
    ///
    /// # Errors
    /// [`TaskError`] when the file cannot be read, a line is not a problem or its reference is not
    /// understood, or a split is empty.
    pub fn open(config: MathsConfig) -> Result<Self, TaskError> {
        check_format_reward(NAME, config.format_reward)?;
        let reading = Reading {
            path: &config.path,
            on_bad: config.on_bad,
            prompt_bytes_max: config.prompt_bytes_max,
        };
        let (rows, left_out) = reading.problems(rows::parse_row, |problem| &problem.prompt)?;
        let lines = Lines::of(&rows);
        let problems = rows.into_iter().map(|row| row.problem).collect();
        let splits = Splits::cut(NAME, problems, config.aside)?;
        Ok(Self {
            config,
            splits,
            left_out,
            lines,
        })
    }
}

impl Task for Maths {
    fn name(&self) -> &'static str {
        NAME
    }

    fn style(&self) -> PromptStyle {
        PromptStyle::Chat
    }

    fn problem_count(&self, split: Split) -> Option<u64> {
        Some(self.splits.count(split))
    }

    fn problem(&self, seed: u64, split: Split, index: u64) -> Problem {
        draw::deal(self.splits.of(split), seed, index)
    }

    fn left_out(&self) -> Option<&ProblemsLeftOut> {
        Some(&self.left_out)
    }

    fn line(&self, problem: &Problem) -> Option<usize> {
        self.lines.of_prompt(&problem.prompt)
    }

    fn reward(&self, problem: &Problem, response: &str) -> Verdict {
        let Goal::Answer(reference) = &problem.goal else {
            let detail = "the problem is of another task".into();
            return Verdict::incorrect(0.0, Reason::Malformed { detail });
        };
        judge(reference, response, self.config.format_reward)
    }
}

/// Judges a reply. `format_reward` is what a wrong answer in a box earns.
fn judge(reference: &str, response: &str, format_reward: f64) -> Verdict {
    let malformed = |detail: String| Verdict::incorrect(0.0, Reason::Malformed { detail });
    let boxes = boxed_answers(response);
    let form = if boxes.is_empty() { 0.0 } else { format_reward };
    let Some(given) = final_answer(response) else {
        return Verdict::incorrect(0.0, Reason::NoAnswer);
    };
    if given.len() > ANSWER_BYTES_MAX {
        return malformed(format!("an answer of more than {ANSWER_BYTES_MAX} bytes"));
    }
    let mut others: Vec<&str> = boxes.into_iter().filter(|other| *other != given).collect();
    others.sort_unstable();
    others.dedup();
    let rival = |other: &&str| same_answer(given, other) != Equality::Equal;
    if others.len() > BOXES_MAX || others.iter().any(rival) {
        return malformed("several boxes with different answers".into());
    }
    match same_answer(reference, given) {
        Equality::Equal => Verdict::correct(),
        Equality::Different => {
            let given = given.to_owned();
            Verdict::incorrect(form, Reason::Wrong { given })
        }
        Equality::Undecided => {
            let given = given.to_owned();
            Verdict::incorrect(form, Reason::Undecided { given })
        }
    }
}

/// The longest answer that is compared, in bytes. References are no longer.
pub const ANSWER_BYTES_MAX: usize = 2_048;

const NAME: &str = "maths";

/// The most ways of writing one answer in boxes of one reply.
const BOXES_MAX: usize = 8;

#[cfg(test)]
mod tests;
