//! Addition and subtraction of several operands.

use std::ops::Range;

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    draw,
    error::{TaskError, check_format_reward},
    number::{Decimal, last_number},
    problem::{Aside, Goal, Problem, PromptStyle, Split},
    source::Task,
    verdict::{Reason, Verdict},
};
use crate::environment::Tool;

/// Settings of [`Sums`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SumsConfig {
    /// The form of prompt and reply.
    pub form: SumsForm,
    /// The fewest operands of a problem; at least 2.
    pub operands_min: usize,
    /// The most operands of a problem; at most 16.
    pub operands_max: usize,
    /// The fewest digits of an operand; at least 1.
    pub digits_min: u32,
    /// The most digits of an operand; at most 15, so that every sum fits 64 bits.
    pub digits_max: u32,
    /// The percentage of operators that are a minus sign.
    pub minus_percent: u8,
    /// The reward of a wrong answer in the asked form; 0 judges by the answer alone.
    pub format_reward: f64,
    /// The problems that are set aside for evaluation.
    pub aside: Aside,
}

/// The form in which problems of [`Sums`] are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SumsForm {
    /// `7+12-5=` and the reply `14`: for models over characters.
    Compact,
    /// `7+12-5=` and the reply `19-5=14`: one operation at a time. Only what follows the last
    /// equals sign is judged.
    Steps,
    /// `What is 7 + 12 - 5? Answer with just the number.`: for instruction-tuned models. The last
    /// number of the reply is judged.
    Spoken,
    /// `7+12-5=` and the reply `<7+12>19;<19-5>14;14`: one call of a calculator for each operation,
    /// whose answers end in a semicolon. What follows the last answer is judged.
    Tool,
    /// The same with programs: `<python>print(7+12)</python><output>19</output>` for `<7+12>19;`.
    Program,
}

impl SumsForm {
    /// The tool that replies call.
    #[must_use]
    pub const fn tool(self) -> Option<Tool> {
        match self {
            Self::Compact | Self::Steps | Self::Spoken => None,
            Self::Tool => Some(Tool::Calculator),
            Self::Program => Some(Tool::Python),
        }
    }

    fn call(self, expression: &str) -> String {
        match self {
            Self::Program => format!("print({expression})"),
            _ => expression.to_owned(),
        }
    }
}

/// Sums and differences of random numbers.
///
/// Every operand first draws its number of digits and then its value, so that short and long
/// operands are equally likely. Problems that differ only in the order of their operands are in
/// the same split.
#[derive(Clone, Debug)]
pub struct Sums {
    config: SumsConfig,
}

impl Default for SumsConfig {
    /// Two operands of one or two digits, compact, addition only.
    fn default() -> Self {
        Self {
            form: SumsForm::Compact,
            operands_min: 2,
            operands_max: 2,
            digits_min: 1,
            digits_max: 2,
            minus_percent: 0,
            format_reward: 0.0,
            aside: Aside::HeldOut,
        }
    }
}

impl Sums {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`TaskError`] when a setting is out of range, or both splits cannot be filled.
    pub fn new(config: SumsConfig) -> Result<Self, TaskError> {
        let setting = |detail: &str| TaskError::Setting {
            task: NAME,
            detail: detail.into(),
        };
        if config.operands_min < 2
            || config.operands_max > 16
            || config.operands_min > config.operands_max
        {
            return Err(setting("2 <= operands_min <= operands_max <= 16 must hold"));
        }
        if config.digits_min < 1 || config.digits_max > 15 || config.digits_min > config.digits_max
        {
            return Err(setting("1 <= digits_min <= digits_max <= 15 must hold"));
        }
        if config.minus_percent > 100 {
            return Err(setting("minus_percent must be at most 100"));
        }
        check_format_reward(NAME, config.format_reward)?;
        let task = Self { config };
        draw::check_both_splits(NAME, task.config.aside, |rng| Some(task.sample(rng)))?;
        Ok(task)
    }

    fn sample(&self, rng: &mut ChaCha8Rng) -> (String, Problem) {
        let config = &self.config;
        let count = rng.random_range(config.operands_min..=config.operands_max);
        let mut terms = Vec::with_capacity(count);
        for position in 0..count {
            let digits = rng.random_range(config.digits_min..=config.digits_max);
            let low = if digits == 1 {
                0
            } else {
                10_i64.pow(digits - 1)
            };
            let value = rng.random_range(low..10_i64.pow(digits));
            let minus = position > 0 && rng.random_range(0..100) < config.minus_percent;
            terms.push(Term { minus, value });
        }
        let mut canonical = terms.clone();
        canonical.sort_unstable();
        (written(&canonical, ""), self.write(&terms))
    }

    fn write(&self, terms: &[Term]) -> Problem {
        let sum: i64 = terms.iter().map(Term::signed).sum();
        let (prompt, solution) = match self.config.form {
            SumsForm::Compact => (format!("{}=", written(terms, "")), sum.to_string()),
            SumsForm::Steps => (format!("{}=", written(terms, "")), steps(terms)),
            SumsForm::Tool | SumsForm::Program => {
                let turns = self.turns(terms).into_iter().flatten();
                let calls: String = turns.collect();
                (format!("{}=", written(terms, "")), format!("{calls}{sum}"))
            }
            SumsForm::Spoken => (
                format!(
                    "What is {}? Answer with just the number.",
                    written(terms, " ")
                ),
                sum.to_string(),
            ),
        };
        Problem {
            split: Split::Train,
            index: 0,
            prompt,
            answer: sum.to_string(),
            solution,
            goal: Goal::Number(Decimal::from(sum)),
        }
    }

    /// A call and its answer for each operation from left to right; none where replies call nothing.
    fn turns(&self, terms: &[Term]) -> Vec<[String; 2]> {
        let form = self.config.form;
        let Some(tool) = form.tool() else {
            return vec![];
        };
        let mut sum = terms[0].value;
        let operations = terms[1..].iter().map(|term| {
            let operator = if term.minus { '-' } else { '+' };
            let call = form.call(&format!("{sum}{operator}{}", term.value));
            sum += term.signed();
            [tool.called(&call), tool.answered(&sum.to_string())]
        });
        operations.collect()
    }

    /// The answer that the reply gives.
    fn answer(&self, response: &str) -> Result<Decimal, Reason> {
        let strict = |text: &str| {
            let malformed = || Reason::Malformed {
                detail: "not one whole number".into(),
            };
            let number = Decimal::parse(text).ok_or_else(malformed)?;
            // Only the canonical spelling: models over characters must learn when to stop.
            if number.as_str() == text {
                Ok(number)
            } else {
                Err(malformed())
            }
        };
        let response = response.trim();
        match self.config.form {
            _ if response.is_empty() => Err(Reason::NoAnswer),
            SumsForm::Compact => strict(response),
            SumsForm::Steps => strict(response.rsplit('=').next().unwrap_or(response)),
            SumsForm::Spoken => last_number(response).ok_or(Reason::NoAnswer),
            SumsForm::Tool => strict(Tool::Calculator.said_last(response)),
            SumsForm::Program => strict(Tool::Python.said_last(response)),
        }
    }
}

impl Task for Sums {
    fn name(&self) -> &'static str {
        NAME
    }

    fn style(&self) -> PromptStyle {
        match self.config.form {
            SumsForm::Spoken => PromptStyle::Chat,
            _ => PromptStyle::Plain,
        }
    }

    fn problem_count(&self, _: Split) -> Option<u64> {
        None
    }

    fn problem(&self, seed: u64, split: Split, index: u64) -> Problem {
        let splits = (split, self.config.aside);
        draw::draw(seed, splits, index, |rng| Some(self.sample(rng)))
    }

    fn observed(&self, problem: &Problem) -> Vec<Range<usize>> {
        let terms = read(&problem.prompt);
        let (mut observed, mut at) = (vec![], 0);
        for [call, answer] in self.turns(&terms) {
            at += call.len();
            observed.push(at..at + answer.len());
            at += answer.len();
        }
        observed
    }

    fn reward(&self, problem: &Problem, response: &str) -> Verdict {
        match self.answer(response) {
            Ok(given) if problem.goal == Goal::Number(given.clone()) => Verdict::correct(),
            Ok(given) => Verdict::incorrect(
                self.config.format_reward,
                Reason::Wrong {
                    given: given.to_string(),
                },
            ),
            Err(reason) => Verdict::incorrect(0.0, reason),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Term {
    minus: bool,
    value: i64,
}

impl Term {
    fn signed(&self) -> i64 {
        if self.minus { -self.value } else { self.value }
    }
}

/// Writes `7 + 12 - 5` with the given text around the operators. The first term has no sign.
fn written(terms: &[Term], around: &str) -> String {
    let mut text = String::new();
    for (position, term) in terms.iter().enumerate() {
        if position > 0 || term.minus {
            let operator = if term.minus { '-' } else { '+' };
            text.push_str(&format!("{around}{operator}{around}"));
        }
        text.push_str(&term.value.to_string());
    }
    text
}

/// The terms of a prompt, as [`written`] has them without anything around the operators.
fn read(prompt: &str) -> Vec<Term> {
    let mut terms = vec![];
    let mut rest = prompt.trim_end_matches('=');
    while !rest.is_empty() {
        let minus = rest.starts_with('-');
        rest = rest.trim_start_matches(['+', '-']);
        let digits = rest.find(['+', '-']).unwrap_or(rest.len());
        let (digits, more) = rest.split_at(digits);
        let Ok(value) = digits.parse() else {
            break;
        };
        terms.push(Term { minus, value });
        rest = more;
    }
    terms
}

/// Writes what remains after each operation from left to right: `19-5=14` for `7+12-5`.
fn steps(terms: &[Term]) -> String {
    let mut sum = terms[0].value;
    let mut parts = Vec::with_capacity(terms.len() - 1);
    for (position, term) in terms.iter().enumerate().skip(1) {
        sum += term.signed();
        let rest: String = terms[position + 1..]
            .iter()
            .map(|term| format!("{}{}", if term.minus { '-' } else { '+' }, term.value))
            .collect();
        parts.push(format!("{sum}{rest}"));
    }
    parts.join("=")
}

const NAME: &str = "sums";
