//! The file that describes a simulation, checked before anything starts.

use std::time::Duration;

use odeon_algorithms::cost::{Card, ModelSize};
use odeon_algorithms::workload::WorkloadSpec;
use serde::{Deserialize, Serialize};

use super::mode::Mode;
use crate::engine::modelled::Prefixes;

/// A simulation, as a file describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, seed and size.
    pub simulation: SimulationSection,
    /// The prompts and replies of a step.
    pub workload: WorkloadSection,
    /// The models, each simulated by itself.
    pub model: Vec<ModelSection>,
    /// The machine that is lost on the way.
    #[serde(default)]
    pub failure: Option<FailureSection>,
}

/// `[simulation]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulationSection {
    /// Its name.
    pub name: String,
    /// Everything random follows from it.
    #[serde(default)]
    pub seed: u64,
    /// The cards.
    pub card: CardName,
    /// Numbers of cards, each simulated by itself.
    #[serde(default)]
    pub gpus: Vec<u32>,
    /// Optimiser steps.
    pub iterations: u64,
    /// Steps before anything is measured, while the pipeline fills.
    #[serde(default = "default_skip")]
    pub skip: u64,
    /// The ways in which rollouts and trainer work together, each simulated by itself.
    pub modes: Vec<Mode>,
    /// Seconds between two looks for rollouts that run dry.
    #[serde(default = "default_repack")]
    pub repack_seconds: f64,
    /// Tokens that are counted as one.
    #[serde(default = "default_quantum")]
    pub quantum: u32,
    /// Sharing of keys and values among replies to one prompt.
    #[serde(default)]
    pub prefixes: Prefixes,
}

/// `[workload]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSection {
    /// Prompts in a step.
    pub prompts: usize,
    /// Replies to each.
    pub group_size: u32,
    /// Optimiser updates in a step, each with an equal part of its prompts.
    #[serde(default = "default_mini_batches")]
    pub mini_batches: u32,
    /// The kind of replies.
    pub kind: Kind,
}

/// The kind of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// [Mathematics](WorkloadSpec::math) in one turn.
    Math,
    /// [Calls of tools](WorkloadSpec::tools) that take their time, in several turns.
    Tools,
}

impl Kind {
    pub(super) fn spec(self, seed: u64) -> WorkloadSpec {
        match self {
            Self::Math => WorkloadSpec::math(seed),
            Self::Tools => WorkloadSpec::tools(seed),
        }
    }
}

/// `[[model]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSection {
    /// Which.
    pub size: ModelName,
    /// Numbers of cards, if they are not those of the simulation.
    #[serde(default)]
    pub gpus: Option<Vec<u32>>,
    /// Cards of one rollout.
    pub rollout_gpus: u32,
    /// Cards of the trainer that share each layer.
    pub trainer_tensor: u32,
    /// The part of the machines that roll out, where they are apart. If nobody says, as many as
    /// leave a trainer that keeps up.
    #[serde(default)]
    pub rollout_share: Option<f64>,
    /// Replies under way in all rollouts together, in parts of a step, where they are apart.
    pub in_flight: f64,
    /// Replies that one rollout works on at most, whatever `in_flight` says.
    #[serde(default)]
    pub batch_max: Option<u32>,
}

impl ModelSection {
    /// Replies that each of so many rollouts works on at a time, of so many in all.
    pub(super) fn slots(&self, replies: f64, rollouts: f64) -> f64 {
        let most = self.batch_max.map_or(f64::INFINITY, f64::from);
        (replies / rollouts).ceil().min(most).max(1.0)
    }
}

/// `[failure]`: a machine is lost with the rollouts on it, and another takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureSection {
    /// The step after which it is lost.
    pub after_step: u64,
    /// Rollouts on it.
    pub rollouts: usize,
    /// Seconds that another one takes to be found and to start.
    pub replaced_seconds: f64,
}

impl FailureSection {
    /// Time that another machine takes to be there.
    pub(super) fn replaced(self) -> Duration {
        Duration::from_secs_f64(self.replaced_seconds)
    }
}

/// A kind of card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CardName {
    /// A100 with 80 GB.
    A100,
    /// H100.
    H100,
    /// H200.
    H200,
    /// H800: an H100 with half of its links.
    H800,
}

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelName {
    /// Qwen2.5 with 7 billion parameters.
    #[serde(rename = "qwen2.5-7b")]
    Qwen7b,
    /// Qwen2.5 with 32 billion parameters.
    #[serde(rename = "qwen2.5-32b")]
    Qwen32b,
    /// Qwen2.5 with 72 billion parameters.
    #[serde(rename = "qwen2.5-72b")]
    Qwen72b,
}

impl CardName {
    /// Rates and sizes of the card, for the cost model.
    #[must_use]
    pub fn card(self) -> Card {
        match self {
            Self::A100 => Card::a100(),
            Self::H100 => Card::h100(),
            Self::H200 => Card::h200(),
            Self::H800 => Card::h800(),
        }
    }
}

impl ModelName {
    pub(super) fn size(self) -> ModelSize {
        match self {
            Self::Qwen7b => ModelSize::qwen2_5_7b(),
            Self::Qwen32b => ModelSize::qwen2_5_32b(),
            Self::Qwen72b => ModelSize::qwen2_5_72b(),
        }
    }
}

/// Why a file is no scenario. Nothing was simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// A field is missing, unknown, or of the wrong kind.
    #[error("{line}: {what}")]
    Field {
        /// The line of the file, from 1.
        line: usize,
        /// The error there.
        what: String,
    },
    /// A number has no sense.
    #[error("{field} is {value}: expected {expected}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have.
        expected: &'static str,
    },
}

impl Scenario {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let before = &text[..error.span().map_or(0, |span| span.start)];
            ScenarioError::Field {
                line: before.lines().count().max(1),
                what: error.message().replace('\n', " "),
            }
        })?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Numbers of cards on which a model is simulated.
    #[must_use]
    pub fn gpus_of<'a>(&'a self, model: &'a ModelSection) -> &'a [u32] {
        model.gpus.as_ref().unwrap_or(&self.simulation.gpus)
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let section = &self.simulation;
        let within = |field, value: f64, expected, sound: bool| match sound {
            true => Ok(()),
            false => Err(ScenarioError::Range {
                field,
                value: value.to_string(),
                expected,
            }),
        };
        let (steps, skip) = (section.iterations as f64, section.skip);
        let more = section.iterations > skip && skip > 0;
        within(
            "simulation.iterations",
            steps,
            "more than skip, and skip more than 0",
            more,
        )?;
        let quantum = f64::from(section.quantum);
        within(
            "simulation.quantum",
            quantum,
            "1 to 1024",
            (1.0..=1024.0).contains(&quantum),
        )?;
        let period = section.repack_seconds;
        let sound = (0.1..=3600.0).contains(&period);
        within("simulation.repack_seconds", period, "0.1 to 3600", sound)?;
        for gpus in self.model.iter().flat_map(|model| self.gpus_of(model)) {
            let sound = (1..=65_536).contains(gpus);
            within("simulation.gpus", f64::from(*gpus), "1 to 65536", sound)?;
        }
        let (prompts, group) = (self.workload.prompts, self.workload.group_size);
        let sound = (1..=65_536).contains(&prompts);
        within("workload.prompts", prompts as f64, "1 to 65536", sound)?;
        let sound = (1..=1024).contains(&group);
        within("workload.group_size", f64::from(group), "1 to 1024", sound)?;
        let parts = self.workload.mini_batches;
        within(
            "workload.mini_batches",
            f64::from(parts),
            "1 to 1024, a divisor of prompts",
            (1..=1024).contains(&parts) && prompts.is_multiple_of(parts as usize),
        )?;
        if let Some(failure) = &self.failure {
            let after = failure.after_step;
            let sound = (skip..section.iterations).contains(&after);
            let expected = "from skip on, and below iterations";
            within("failure.after_step", after as f64, expected, sound)?;
            let rollouts = failure.rollouts;
            let sound = (1..=65_536).contains(&rollouts);
            within("failure.rollouts", rollouts as f64, "1 to 65536", sound)?;
            let replaced = failure.replaced_seconds;
            let sound = (0.0..=86_400.0).contains(&replaced);
            within("failure.replaced_seconds", replaced, "0 to 86400", sound)?;
        }
        for model in &self.model {
            if let Some(share) = model.rollout_share {
                let sound = share > 0.0 && share < 1.0;
                within("model.rollout_share", share, "above 0 and below 1", sound)?;
            }
            let flight = model.in_flight;
            let sound = flight > 0.0 && flight <= 100.0;
            within("model.in_flight", flight, "above 0, at most 100", sound)?;
            if let Some(most) = model.batch_max {
                let sound = (1..=65_536).contains(&most);
                within("model.batch_max", f64::from(most), "1 to 65536", sound)?;
            }
        }
        Ok(())
    }
}

const fn default_skip() -> u64 {
    5
}
const fn default_repack() -> f64 {
    5.0
}
const fn default_mini_batches() -> u32 {
    4
}
const fn default_quantum() -> u32 {
    16
}
