//! Recipes: a run as a TOML file. Every field has a default, a range and a sentence; a wrong one is
//! refused with file, line and what was expected, before anything starts.

use std::fmt;
use std::path::{Path, PathBuf};

use odeon_algorithms::task::TaskSpec;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// A reinforcement-learning run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name, seed and place of the run.
    pub run: RunSection,
    /// The policy: built from scratch, or loaded.
    pub model: ModelSection,
    /// What it learns.
    pub task: TaskSpec,
    /// Supervised steps before the reinforcement.
    #[serde(default)]
    pub warmup: WarmupSection,
    /// The reinforcement.
    pub rl: RlSection,
    /// Which actors get a process of their own.
    #[serde(default)]
    pub processes: ProcessesSection,
    /// How progress is measured.
    #[serde(default)]
    pub eval: EvalSection,
}

/// `[run]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSection {
    /// The run's name; its files lie in `<out>/<name>`.
    #[serde(deserialize_with = "plain_name")]
    pub name: String,
    /// Everything random follows from it.
    #[serde(default)]
    pub seed: u64,
    /// The folder for runs.
    #[serde(default = "default_out")]
    pub out: PathBuf,
    /// `cpu`; `cuda` is refused by builds without it.
    #[serde(default = "default_device", deserialize_with = "device")]
    pub device: String,
}

/// `[model]`: either `load`, or the sizes of a new one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// A name that `odeon fetch` knows, a `.gguf` file, or a folder with `model.safetensors`.
    pub load: Option<String>,
    /// Width of the residual stream.
    #[serde(deserialize_with = "at_least_one")]
    pub hidden: usize,
    /// Blocks.
    #[serde(deserialize_with = "at_least_one")]
    pub layers: usize,
    /// Query heads; must divide `hidden` into heads of an even size.
    #[serde(deserialize_with = "at_least_one")]
    pub heads: usize,
    /// Key and value heads; must divide `heads`.
    #[serde(deserialize_with = "at_least_one")]
    pub kv_heads: usize,
    /// Inner width of the feed-forward part.
    #[serde(deserialize_with = "at_least_one")]
    pub ffn: usize,
    /// The longest sequence, prompt and response together, in tokens.
    #[serde(deserialize_with = "at_least_one")]
    pub context: usize,
    /// Rank of low-rank adapters on the linear layers; 0 trains all parameters.
    pub lora_rank: usize,
}

impl Default for ModelSection {
    fn default() -> Self {
        Self {
            load: None,
            hidden: 128,
            layers: 4,
            heads: 4,
            kv_heads: 4,
            ffn: 344,
            context: 64,
            lora_rank: 0,
        }
    }
}

/// `[warmup]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmupSection {
    /// Supervised steps on worked solutions; 0 for none.
    pub steps: u64,
    /// Problems in a step.
    #[serde(deserialize_with = "at_least_one")]
    pub batch: usize,
    /// Peak learning rate.
    #[serde(deserialize_with = "positive")]
    pub lr: f32,
}

impl Default for WarmupSection {
    fn default() -> Self {
        Self {
            steps: 0,
            batch: 64,
            lr: 1e-3,
        }
    }
}

/// Which objective is optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Group-relative advantages, no critic.
    Grpo,
    /// Clipped surrogate with a critic and generalised advantage estimation.
    Ppo,
}

/// `[rl]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RlSection {
    /// `grpo` or `ppo`.
    pub algorithm: Algorithm,
    /// Optimiser steps.
    #[serde(deserialize_with = "at_least_one_u64")]
    pub steps: u64,
    /// Prompts in a step.
    #[serde(deserialize_with = "at_least_one")]
    pub groups: usize,
    /// Samples of each prompt.
    #[serde(deserialize_with = "at_least_two")]
    pub group_size: u32,
    /// Learning rate.
    #[serde(deserialize_with = "positive")]
    pub lr: f32,
    /// The most steps between the weights that made a trajectory and those that it trains; 0 is
    /// synchronous.
    #[serde(default = "default_staleness")]
    pub staleness_max: u64,
    /// Sampling temperature.
    #[serde(default = "one", deserialize_with = "positive")]
    pub temperature: f32,
    /// Nucleus sampling; 1 for all tokens.
    #[serde(default = "one", deserialize_with = "fraction")]
    pub top_p: f32,
    /// The longest response, in tokens.
    #[serde(deserialize_with = "at_least_one")]
    pub response_max: usize,
    /// Trust region below 1.
    #[serde(default = "default_clip_low", deserialize_with = "fraction")]
    pub clip_low: f32,
    /// Trust region above 1.
    #[serde(default = "default_clip_high", deserialize_with = "positive")]
    pub clip_high: f32,
    /// Weight of the divergence from the policy before the reinforcement; needs a reference actor
    /// when it is not 0.
    #[serde(default, deserialize_with = "not_negative")]
    pub kl: f32,
    /// Weight of the entropy bonus.
    #[serde(default, deserialize_with = "not_negative")]
    pub entropy: f32,
    /// Passes over a batch.
    #[serde(default = "one_usize", deserialize_with = "at_least_one")]
    pub epochs: usize,
    /// Discount of generalised advantage estimation.
    #[serde(default = "one", deserialize_with = "fraction")]
    pub gamma: f32,
    /// Lambda of generalised advantage estimation.
    #[serde(default = "default_lambda", deserialize_with = "fraction")]
    pub lambda: f32,
    /// Learning rate of the critic.
    #[serde(default = "default_critic_lr", deserialize_with = "positive")]
    pub critic_lr: f32,
    /// Steps between checkpoints.
    #[serde(default = "default_checkpoint", deserialize_with = "at_least_one_u64")]
    pub checkpoint_every: u64,
}

/// `[processes]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessesSection {
    /// Rollout processes.
    #[serde(deserialize_with = "at_least_one")]
    pub rollouts: usize,
    /// Trajectories that one rollout generates at once.
    #[serde(deserialize_with = "at_least_one")]
    pub slots: usize,
    /// Compute threads of one rollout.
    #[serde(deserialize_with = "at_least_one")]
    pub rollout_threads: usize,
    /// Compute threads of the trainer, the critic and the reference.
    #[serde(deserialize_with = "at_least_one")]
    pub trainer_threads: usize,
}

impl Default for ProcessesSection {
    fn default() -> Self {
        Self {
            rollouts: 2,
            slots: 32,
            rollout_threads: 1,
            trainer_threads: 1,
        }
    }
}

/// `[eval]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalSection {
    /// Held-out problems, answered greedily.
    #[serde(deserialize_with = "at_least_one")]
    pub problems: usize,
    /// Steps between evaluations; 0 only at start and end.
    pub every: u64,
}

impl Default for EvalSection {
    fn default() -> Self {
        Self {
            problems: 256,
            every: 0,
        }
    }
}

/// A recipe that cannot run: where and why, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong and what was expected.
    pub what: String,
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.what),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.what),
        }
    }
}

impl std::error::Error for RecipeError {}

impl Recipe {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// The file cannot be read, is no TOML, has a wrong field, or asks for something impossible.
    pub fn read(path: &Path) -> Result<Self, RecipeError> {
        let text = std::fs::read_to_string(path).map_err(|error| RecipeError {
            path: path.to_owned(),
            line: 0,
            what: format!("cannot be read: {error}"),
        })?;
        Self::parse(path, &text)
    }

    /// [`Recipe::read`] from text; `path` is for messages.
    ///
    /// # Errors
    /// See [`Recipe::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, RecipeError> {
        let at = |line, what| RecipeError {
            path: path.to_owned(),
            line,
            what,
        };
        let recipe: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| line_of(text, span.start));
            at(line, error.message().replace('\n', ", "))
        })?;
        recipe
            .check()
            .map_err(|(field, what)| at(line_of_field(text, field), what))?;
        Ok(recipe)
    }

    /// What no single field shows. Gives the field to blame.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let model = &self.model;
        if model.load.is_none() {
            if !model.hidden.is_multiple_of(model.heads)
                || !(model.hidden / model.heads).is_multiple_of(2)
            {
                return Err((
                    "heads",
                    format!(
                        "{} heads do not divide hidden = {} into heads of an even size",
                        model.heads, model.hidden
                    ),
                ));
            }
            if !model.heads.is_multiple_of(model.kv_heads) {
                return Err((
                    "kv_heads",
                    format!(
                        "kv_heads = {} must divide heads = {}",
                        model.kv_heads, model.heads
                    ),
                ));
            }
        }
        if self.rl.response_max >= model.context {
            return Err((
                "response_max",
                format!(
                    "response_max = {} leaves no room for a prompt in context = {}",
                    self.rl.response_max, model.context
                ),
            ));
        }
        self.task
            .build()
            .map(drop)
            .map_err(|error| ("task", error.to_string()))
    }

    /// The folder of this run.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.run.out.join(&self.run.name)
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
        + 1
}

/// The line that sets a field, or the line of the table of that name.
fn line_of_field(text: &str, field: &str) -> usize {
    let sets = |line: &str| {
        line.trim_start()
            .strip_prefix(field)
            .is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let opens = |line: &str| line.trim_start().starts_with(&format!("[{field}"));
    text.lines()
        .position(|line| sets(line) || opens(line))
        .map_or(0, |index| index + 1)
}

fn default_out() -> PathBuf {
    PathBuf::from("runs")
}
fn default_device() -> String {
    "cpu".to_owned()
}
const fn default_staleness() -> u64 {
    2
}
const fn default_clip_low() -> f32 {
    0.2
}
const fn default_clip_high() -> f32 {
    0.28
}
const fn default_lambda() -> f32 {
    0.95
}
const fn default_critic_lr() -> f32 {
    1e-3
}
const fn default_checkpoint() -> u64 {
    10
}
const fn one() -> f32 {
    1.0
}
const fn one_usize() -> usize {
    1
}

fn bounded<'de, D, T>(
    deserializer: D,
    expected: &str,
    holds: impl Fn(&T) -> bool,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + fmt::Display,
{
    let value = T::deserialize(deserializer)?;
    if holds(&value) {
        Ok(value)
    } else {
        Err(D::Error::custom(format!(
            "expected {expected}, found {value}"
        )))
    }
}

fn at_least_one<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
    bounded(d, "a whole number of at least 1", |n| *n >= 1)
}
fn at_least_one_u64<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    bounded(d, "a whole number of at least 1", |n| *n >= 1)
}
fn at_least_two<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    bounded(d, "a whole number of at least 2", |n| *n >= 2)
}
fn positive<'de, D: Deserializer<'de>>(d: D) -> Result<f32, D::Error> {
    bounded(d, "a number above 0", |x: &f32| *x > 0.0 && x.is_finite())
}
fn not_negative<'de, D: Deserializer<'de>>(d: D) -> Result<f32, D::Error> {
    bounded(d, "a number of at least 0", |x: &f32| {
        *x >= 0.0 && x.is_finite()
    })
}
fn fraction<'de, D: Deserializer<'de>>(d: D) -> Result<f32, D::Error> {
    bounded(d, "a number above 0 and at most 1", |x| {
        *x > 0.0 && *x <= 1.0
    })
}
fn plain_name<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    bounded(
        d,
        "a name of letters, digits, '-' and '_'",
        |name: &String| {
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        },
    )
}
fn device<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let name = String::deserialize(d)?;
    name.parse::<odeon_gpu::Device>()
        .map_err(D::Error::custom)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[run]\nname = \"a\"\n\n[model]\n\n[task.sums]\n\n[rl]\nalgorithm = \"grpo\"\n\
                        steps = 3\ngroups = 2\ngroup_size = 4\nlr = 1e-4\nresponse_max = 8\n";

    fn error(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        Recipe::parse(Path::new("r.toml"), &text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_good_recipe_is_read() {
        let recipe = Recipe::parse(Path::new("r.toml"), GOOD).unwrap();
        assert_eq!(recipe.rl.group_size, 4);
        assert_eq!(recipe.folder(), Path::new("runs/a"));
    }

    #[test]
    fn a_wrong_recipe_is_refused_with_line_and_expectation_on_one_line() {
        for (from, to, line, words) in [
            ("steps = 3", "steps = 0", 10, "at least 1, found 0"),
            ("steps = 3", "stepz = 3", 10, "unknown field `stepz`"),
            ("steps = 3", "steps = \"x\"", 10, "expected u64"),
            ("steps = 3\n", "", 8, "missing field `steps`"),
            ("\"grpo\"", "\"dpo\"", 9, "expected `grpo` or `ppo`"),
            ("lr = 1e-4", "lr = -1.0", 13, "above 0, found -1"),
            ("lr = 1e-4", "lr = = 2", 13, ""),
            (
                "response_max = 8",
                "response_max = 64",
                14,
                "leaves no room",
            ),
            ("name = \"a\"", "name = \"../b\"", 2, "letters, digits"),
            ("name = \"a\"", "name = \"a\"\ndevice = \"cuda\"", 3, "cpu"),
            ("[model]", "[model]\nheads = 3", 5, "do not divide"),
            (
                "[task.sums]",
                "[task.sums]\noperands_min = 1",
                6,
                "operands_min",
            ),
        ] {
            let message = error(from, to);
            assert!(
                message.starts_with(&format!("r.toml:{line}: ")),
                "{to}: {message}"
            );
            assert!(message.contains(words), "{to}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
