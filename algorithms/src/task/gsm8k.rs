//! Grade-school mathematics in words: GSM8K (Cobbe et al. 2021, arXiv 2110.14168).

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use rand::rngs::ChaCha8Rng;
use rand::{SeedableRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    draw::Splits,
    error::{TaskError, check_format_reward},
    number::{Decimal, first_number, last_number},
    problem::{Aside, Goal, Problem, PromptStyle, Split},
    problem_file::{Lines, Numbered, OnBad, ProblemsLeftOut, Reading, fields, text},
    source::Task,
    verdict::{Reason, Verdict},
};

/// Settings of [`Gsm8k`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gsm8kConfig {
    /// The file: one JSON object a line, with `question` and `answer`, the answer ending in
    /// `#### <number>`.
    pub path: PathBuf,
    /// Number of lines from the beginning that are [`Split::Train`]; the others are held out.
    #[serde(default = "default_train_count")]
    pub train_count: usize,
    /// The reward of a wrong number after `####`.
    #[serde(default)]
    pub format_reward: f64,
    /// The problems that are set aside for evaluation.
    #[serde(default)]
    pub aside: Aside,
    /// The rule for a line that holds no problem.
    #[serde(default)]
    pub on_bad: OnBad,
    /// A line whose prompt has more bytes holds no problem; without, any length is one.
    #[serde(default)]
    pub prompt_bytes_max: Option<usize>,
}

/// Word problems read from a file, dealt in an order shuffled by the seed.
///
/// The reply's answer is the first number after its last `####`; without that mark, the last
/// number of the reply. Numbers are compared exactly, after removal of grouping commas.
#[derive(Clone, Debug)]
pub struct Gsm8k {
    config: Gsm8kConfig,
    splits: Splits,
    left_out: ProblemsLeftOut,
    lines: Lines,
    /// The order of the pass that was dealt from last.
    order: Arc<Mutex<Order>>,
}

/// The order of a pass over a split.
#[derive(Debug, Default)]
struct Order {
    of: Option<(u64, Split, u64)>,
    places: Vec<u32>,
}

impl Gsm8kConfig {
    /// Settings for a file with the first 1,000 problems to train on: for the 1,319 problems of
    /// GSM8K's own test set, 319 are held out.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            train_count: default_train_count(),
            format_reward: 0.0,
            aside: Aside::HeldOut,
            on_bad: OnBad::Fail,
            prompt_bytes_max: None,
        }
    }
}

impl Gsm8k {
    /// Reads the file.
    ///
    /// # Errors
    /// [`TaskError`] when the file cannot be read, a line is not a problem, or a split is empty.
    pub fn open(config: Gsm8kConfig) -> Result<Self, TaskError> {
        check_format_reward(NAME, config.format_reward)?;
        let reading = Reading {
            path: &config.path,
            on_bad: config.on_bad,
            prompt_bytes_max: config.prompt_bytes_max,
        };
        let (rows, mut left_out) = reading.problems(parse_row, |problem| &problem.prompt)?;
        let lines = Lines::of(&rows);
        let mut asked = HashSet::new();
        let mut problems = Vec::new();
        for (nth, Numbered { line, problem }) in rows.into_iter().enumerate() {
            if nth < config.train_count {
                asked.insert(problem.prompt.clone());
                problems.push(problem);
            } else if asked.contains(&problem.prompt) {
                let reason = "its question is one to train on, so it cannot be held out";
                left_out.line(&config.path, line, reason);
            } else {
                problems.push(Problem {
                    split: Split::HeldOut,
                    ..problem
                });
            }
        }
        let splits = Splits::cut(NAME, problems, config.aside)?;
        Ok(Self {
            config,
            splits,
            left_out,
            lines,
            order: Arc::default(),
        })
    }
}

impl Task for Gsm8k {
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
        let problems = self.splits.of(split);
        let count = problems.len() as u64;
        let pass = (seed, split, index / count);
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if order.of != Some(pass) {
            // Every pass over the split has its own order.
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(index / count);
            let mut places: Vec<u32> = (0..problems.len() as u32).collect();
            places.shuffle(&mut rng);
            *order = Order {
                of: Some(pass),
                places,
            };
        }
        let position = order.places[(index % count) as usize];
        Problem {
            index,
            ..problems[position as usize].clone()
        }
    }

    fn left_out(&self) -> Option<&ProblemsLeftOut> {
        Some(&self.left_out)
    }

    fn line(&self, problem: &Problem) -> Option<usize> {
        self.lines.of_prompt(&problem.prompt)
    }

    fn reward(&self, problem: &Problem, response: &str) -> Verdict {
        let (given, form) = match response.rsplit_once(MARK) {
            Some((_, tail)) => (given_number(tail), self.config.format_reward),
            None => (last_number(response), 0.0),
        };
        match given {
            Some(given) if problem.goal == Goal::Number(given.clone()) => Verdict::correct(),
            Some(given) => Verdict::incorrect(
                form,
                Reason::Wrong {
                    given: given.to_string(),
                },
            ),
            None => Verdict::incorrect(0.0, Reason::NoAnswer),
        }
    }
}

/// The number that follows the mark: that which its line is, or else the first in what follows.
fn given_number(tail: &str) -> Option<Decimal> {
    let line = tail.trim_start().lines().next().unwrap_or_default();
    Decimal::written(line.trim()).or_else(|| first_number(tail))
}

fn parse_row(row: &Map<String, Value>) -> Result<Problem, String> {
    let lacks = |field: &str| {
        let fields = fields(row);
        format!("there is no `{field}`: `question` and `answer` are read, and {fields}")
    };
    let question = text(row, "question")?.ok_or_else(|| lacks("question"))?;
    let answer = text(row, "answer")?.ok_or_else(|| lacks("answer"))?;
    let (_, number) = answer
        .rsplit_once(MARK)
        .ok_or_else(|| format!("the answer has no `{MARK}`"))?;
    let number = Decimal::written(number.trim())
        .ok_or_else(|| format!("`{}` after `{MARK}` is no number", number.trim()))?;
    Ok(Problem {
        split: Split::Train,
        index: 0,
        prompt: format!("{question}\nThink step by step. End with a line `{MARK} <number>`."),
        answer: number.to_string(),
        solution: without_annotations(answer),
        goal: Goal::Number(number),
    })
}

/// Removes the data set's calculator annotations: `<<48/2=24>>24` becomes `24`.
fn without_annotations(answer: &str) -> String {
    let mut text = String::with_capacity(answer.len());
    let mut rest = answer;
    while let Some((before, tail)) = rest.split_once("<<") {
        let Some((_, after)) = tail.split_once(">>") else {
            break;
        };
        text.push_str(before);
        rest = after;
    }
    text.push_str(rest);
    text
}

fn default_train_count() -> usize {
    1_000
}

const NAME: &str = "gsm8k";
const MARK: &str = "####";
