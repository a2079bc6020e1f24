//! Grade-school mathematics in words: GSM8K (Cobbe et al. 2021, arXiv 2110.14168).

use std::path::PathBuf;

use rand::rngs::ChaCha8Rng;
use rand::{SeedableRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};

use super::{
    draw,
    error::{TaskError, check_format_reward},
    number::{Decimal, first_number, last_number},
    problem::{Aside, Goal, Problem, PromptStyle, Split},
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
}

/// Word problems read from a file, dealt in an order shuffled by the seed.
///
/// The reply's answer is the first number after its last `####`; without that mark, the last
/// number of the reply. Numbers are compared exactly, after removal of grouping commas.
#[derive(Clone, Debug)]
pub struct Gsm8k {
    config: Gsm8kConfig,
    train: Vec<Problem>,
    held_out: Vec<Problem>,
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
        let text = std::fs::read_to_string(&config.path).map_err(|source| TaskError::Read {
            path: config.path.clone(),
            source,
        })?;
        let mut problems = Vec::new();
        for (line, row) in text
            .lines()
            .enumerate()
            .filter(|(_, row)| !row.trim().is_empty())
        {
            let split = if problems.len() < config.train_count {
                Split::Train
            } else {
                Split::HeldOut
            };
            let problem = parse_row(row, split).map_err(|detail| TaskError::Line {
                path: config.path.clone(),
                line: line + 1,
                detail,
            })?;
            problems.push(problem);
        }
        let [train, held_out] = draw::cut(NAME, problems, config.aside)?;
        Ok(Self {
            config,
            train,
            held_out,
        })
    }

    fn of(&self, split: Split) -> &[Problem] {
        match split {
            Split::Train => &self.train,
            Split::HeldOut => &self.held_out,
        }
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
        Some(self.of(split).len() as u64)
    }

    fn problem(&self, seed: u64, split: Split, index: u64) -> Problem {
        let problems = self.of(split);
        let count = problems.len() as u64;
        // Every pass over the split has its own order.
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(index / count);
        let mut order: Vec<u32> = (0..problems.len() as u32).collect();
        order.shuffle(&mut rng);
        let position = (index % count) as usize;
        Problem {
            index,
            ..problems[order[position] as usize].clone()
        }
    }

    fn reward(&self, problem: &Problem, response: &str) -> Verdict {
        let (given, form) = match response.rsplit_once(MARK) {
            Some((_, tail)) => (first_number(tail), self.config.format_reward),
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

#[derive(Deserialize)]
struct Row {
    question: String,
    answer: String,
}

fn parse_row(row: &str, split: Split) -> Result<Problem, String> {
    let Row { question, answer } = serde_json::from_str(row).map_err(|e| e.to_string())?;
    let (_, number) = answer
        .rsplit_once(MARK)
        .ok_or_else(|| format!("the answer has no `{MARK}`"))?;
    let number = Decimal::parse(number.trim())
        .ok_or_else(|| format!("`{}` after `{MARK}` is no number", number.trim()))?;
    Ok(Problem {
        split,
        index: 0,
        prompt: format!("{question}\nThink step by step. End with a line `{MARK} <number>`."),
        answer: number.to_string(),
        solution: without_annotations(&answer),
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
