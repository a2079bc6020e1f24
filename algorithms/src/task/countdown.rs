//! Reach a target from given numbers with `+`, `-`, `*` and `/`.

use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    draw,
    error::{TaskError, check_format_reward},
    expression::evaluate,
    problem::{Aside, Goal, Problem, PromptStyle, Split},
    source::Task,
    verdict::{Reason, Verdict},
};

/// Settings of [`Countdown`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CountdownConfig {
    /// The form in which prompts are given.
    pub style: PromptStyle,
    /// The fewest numbers of a problem; at least 2.
    pub numbers_min: usize,
    /// The most numbers of a problem; at most 8.
    pub numbers_max: usize,
    /// The smallest number; at least 1.
    pub number_min: u32,
    /// The largest number; at most 1,000.
    pub number_max: u32,
    /// The smallest target; at least 1.
    pub target_min: i64,
    /// The largest target.
    pub target_max: i64,
    /// The reward of a valid expression over the given numbers that has another value.
    pub format_reward: f64,
    /// The problems that are set aside for evaluation.
    pub aside: Aside,
}

/// The numbers game: give an expression that has the target's value and uses each given number at
/// most once.
///
/// Plain prompts read `3,5,7=22:` and chat prompts ask in words. The reply is an expression such as
/// `3*5+7`, which is evaluated with exact fractions. An equals sign and what follows it are
/// ignored. In chat replies, the text between `<answer>` and `</answer>` counts if there is one,
/// else the last line.
///
/// Problems are made backwards from a solution that uses every number once, so each of them can be
/// solved. Problems that differ only in the order of their numbers are in the same split.
#[derive(Clone, Debug)]
pub struct Countdown {
    config: CountdownConfig,
}

impl Default for CountdownConfig {
    /// Three numbers up to 20 and targets up to 100, plain prompts.
    fn default() -> Self {
        Self {
            style: PromptStyle::Plain,
            numbers_min: 3,
            numbers_max: 3,
            number_min: 1,
            number_max: 20,
            target_min: 1,
            target_max: 100,
            format_reward: 0.0,
            aside: Aside::HeldOut,
        }
    }
}

impl Countdown {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`TaskError`] when a setting is out of range, or both splits cannot be filled.
    pub fn new(config: CountdownConfig) -> Result<Self, TaskError> {
        let setting = |detail: &str| TaskError::Setting {
            task: NAME,
            detail: detail.into(),
        };
        if config.numbers_min < 2
            || config.numbers_max > 8
            || config.numbers_min > config.numbers_max
        {
            return Err(setting("2 <= numbers_min <= numbers_max <= 8 must hold"));
        }
        if config.number_min < 1
            || config.number_max > 1_000
            || config.number_min > config.number_max
        {
            return Err(setting("1 <= number_min <= number_max <= 1000 must hold"));
        }
        if config.target_min < 1 || config.target_min > config.target_max {
            return Err(setting("1 <= target_min <= target_max must hold"));
        }
        check_format_reward(NAME, config.format_reward)?;
        let task = Self { config };
        draw::check_both_splits(NAME, task.config.aside, |rng| task.sample(rng))?;
        Ok(task)
    }

    /// Draws numbers and joins random pairs of them until one expression is left. `None` when its
    /// value is no target.
    fn sample(&self, rng: &mut ChaCha8Rng) -> Option<(String, Problem)> {
        let config = &self.config;
        let count = rng.random_range(config.numbers_min..=config.numbers_max);
        let numbers: Vec<u32> = (0..count)
            .map(|_| rng.random_range(config.number_min..=config.number_max))
            .collect();
        let mut parts: Vec<Part> = numbers
            .iter()
            .map(|&n| Part {
                text: n.to_string(),
                value: i64::from(n),
                precedence: 2,
            })
            .collect();
        while parts.len() > 1 {
            let left = parts.swap_remove(rng.random_range(0..parts.len()));
            let right = parts.swap_remove(rng.random_range(0..parts.len()));
            parts.push(join(
                &left,
                OPERATORS[rng.random_range(0..OPERATORS.len())],
                &right,
            )?);
        }
        let solution = parts.pop()?;
        let (text, target) = (solution.text, solution.value);
        if !(config.target_min..=config.target_max).contains(&target) {
            return None;
        }
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        let problem = Problem {
            split: Split::Train,
            index: 0,
            prompt: self.prompt(&numbers, target),
            answer: target.to_string(),
            solution: text,
            goal: Goal::Expression { numbers, target },
        };
        Some((format!("{}={target}", listed(&sorted, ",")), problem))
    }

    fn prompt(&self, numbers: &[u32], target: i64) -> String {
        match self.config.style {
            PromptStyle::Plain => format!("{}={target}:", listed(numbers, ",")),
            PromptStyle::Chat => format!(
                "Write an expression that equals {target}. Use the numbers {}, each at most once, \
                 with +, -, * and /. Answer with just the expression.",
                listed(numbers, ", ")
            ),
        }
    }

    /// The part of the reply that should be an expression.
    fn expression<'a>(&self, response: &'a str) -> Option<&'a str> {
        let text = match self.config.style {
            PromptStyle::Plain => response,
            PromptStyle::Chat => match response.rsplit_once("<answer>") {
                Some((_, tail)) => tail.split("</answer>").next()?,
                None => response.trim().lines().next_back()?,
            },
        };
        let text = text.split('=').next()?.trim();
        (!text.is_empty()).then_some(text)
    }
}

impl Task for Countdown {
    fn name(&self) -> &'static str {
        NAME
    }

    fn style(&self) -> PromptStyle {
        self.config.style
    }

    fn problem_count(&self, _: Split) -> Option<u64> {
        None
    }

    fn problem(&self, seed: u64, split: Split, index: u64) -> Problem {
        let splits = (split, self.config.aside);
        draw::draw(seed, splits, index, |rng| self.sample(rng))
    }

    fn reward(&self, problem: &Problem, response: &str) -> Verdict {
        let Goal::Expression { numbers, target } = &problem.goal else {
            let detail = "the problem is of another task".into();
            return Verdict::incorrect(0.0, Reason::Malformed { detail });
        };
        let Some(text) = self.expression(response) else {
            return Verdict::incorrect(0.0, Reason::NoAnswer);
        };
        let expression = match evaluate(text) {
            Ok(expression) => expression,
            Err(error) => {
                let reason = Reason::Malformed {
                    detail: error.to_string(),
                };
                return Verdict::incorrect(0.0, reason);
            }
        };
        let mut left: Vec<u64> = numbers.iter().copied().map(u64::from).collect();
        for &number in &expression.numbers {
            let Some(position) = left.iter().position(|&n| n == number) else {
                let reason = Reason::NumberNotAvailable {
                    number: number.to_string(),
                };
                return Verdict::incorrect(0.0, reason);
            };
            left.swap_remove(position);
        }
        if expression.value == (i128::from(*target), 1) {
            Verdict::correct()
        } else {
            let reason = Reason::Wrong {
                given: expression.to_string(),
            };
            Verdict::incorrect(self.config.format_reward, reason)
        }
    }
}

/// A sub-expression of a solution under construction.
struct Part {
    text: String,
    value: i64,
    /// 0 for a sum or difference, 1 for a product or quotient, 2 for a number.
    precedence: u8,
}

/// Joins two parts, with no more brackets than needed. `None` when the value would be negative,
/// fractional or needlessly large.
fn join(left: &Part, operator: char, right: &Part) -> Option<Part> {
    let (value, precedence) = match operator {
        '+' => (left.value + right.value, 0),
        '-' => (left.value - right.value, 0),
        '*' => (left.value * right.value, 1),
        _ if right.value != 0 && left.value % right.value == 0 => (left.value / right.value, 1),
        _ => return None,
    };
    if !(0..=VALUE_MAX).contains(&value) {
        return None;
    }
    let bracket = |part: &Part, needed: bool| {
        if needed {
            format!("({})", part.text)
        } else {
            part.text.clone()
        }
    };
    // On the right of minus and division, equal precedence needs brackets as well.
    let tight = u8::from(matches!(operator, '-' | '/'));
    let text = format!(
        "{}{operator}{}",
        bracket(left, left.precedence < precedence),
        bracket(right, right.precedence < precedence + tight),
    );
    Some(Part {
        text,
        value,
        precedence,
    })
}

fn listed(numbers: &[u32], separator: &str) -> String {
    numbers
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(separator)
}

const NAME: &str = "countdown";
const OPERATORS: [char; 4] = ['+', '-', '*', '/'];
/// Keeps products of intermediate values inside 64 bits.
const VALUE_MAX: i64 = 1_000_000_000;
