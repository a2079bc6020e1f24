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
    /// The search for the best setting of each mode, where somebody asks for it.
    #[serde(default)]
    pub search: SearchSection,
    /// Other speeds than those of the cost model.
    #[serde(default)]
    pub assumed: AssumedSection,
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
    /// Median of a reply's tokens, if it is not that of the kind.
    #[serde(default)]
    pub median_tokens: Option<f64>,
    /// Their 99th percentile over the median, likewise.
    #[serde(default)]
    pub p99_over_median: Option<f64>,
    /// Correlation of the logarithms of the lengths of replies to one prompt, likewise.
    #[serde(default)]
    pub group_correlation: Option<f64>,
}

impl WorkloadSection {
    /// The distributions of lengths and times.
    pub(super) fn spec(&self, seed: u64) -> WorkloadSpec {
        let mut spec = match self.kind {
            Kind::Math => WorkloadSpec::math(seed),
            Kind::Tools => WorkloadSpec::tools(seed),
        };
        let response = &mut spec.response;
        response.median = self.median_tokens.unwrap_or(response.median);
        response.p99_over_median = self.p99_over_median.unwrap_or(response.p99_over_median);
        spec.group_correlation = self.group_correlation.unwrap_or(spec.group_correlation);
        spec
    }
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

/// `[search]`: how the best setting of a mode is looked for. See [`Scenario::run_best`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SearchSection {
    /// Optimiser steps of each trial, if not all runs have fewer.
    pub iterations: u64,
    /// Steps of a trial before anything is measured.
    pub skip: u64,
    /// Trials for each mode, model and number of cards, at most.
    pub runs: u32,
    /// Numbers of cards of one rollout that are tried, beside that of the model.
    pub rollout_gpus: Vec<u32>,
}

impl Default for SearchSection {
    fn default() -> Self {
        Self {
            iterations: 8,
            skip: 3,
            runs: 16,
            rollout_gpus: vec![1, 2, 4, 8],
        }
    }
}

/// `[assumed]`: speeds of what nobody has measured, in times of what the cost model takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AssumedSection {
    /// Speed of all kernels of the cards.
    pub kernel_speed: f64,
    /// Bandwidth of the relays of weights.
    pub relay_bandwidth: f64,
    /// Time of a training step over that of its kernels.
    pub training_time: f64,
}

impl Default for AssumedSection {
    fn default() -> Self {
        Self {
            kernel_speed: 1.0,
            relay_bandwidth: 1.0,
            training_time: 1.0,
        }
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

    /// The cards, with the speeds that are assumed.
    pub(super) fn card(&self) -> Card {
        let card = self.simulation.card.card();
        let assumed = self.assumed;
        Card {
            kernels: card.kernels.times(assumed.kernel_speed),
            relay_share: card.relay_share * assumed.relay_bandwidth,
            sustained: card.sustained * assumed.training_time,
            ..card
        }
    }

    fn check(&self) -> Result<(), ScenarioError> {
        self.simulation.check()?;
        for gpus in self.model.iter().flat_map(|model| self.gpus_of(model)) {
            let sound = (1..=65_536).contains(gpus);
            within("simulation.gpus", f64::from(*gpus), "1 to 65536", sound)?;
        }
        self.workload.check()?;
        self.search.check()?;
        self.assumed.check()?;
        if let Some(failure) = &self.failure {
            failure.check(&self.simulation)?;
        }
        self.model.iter().try_for_each(ModelSection::check)
    }
}

/// Refuses the value of a field that is not sound.
fn within(
    field: &'static str,
    value: f64,
    expected: &'static str,
    sound: bool,
) -> Result<(), ScenarioError> {
    match sound {
        true => Ok(()),
        false => Err(ScenarioError::Range {
            field,
            value: value.to_string(),
            expected,
        }),
    }
}

impl SimulationSection {
    fn check(&self) -> Result<(), ScenarioError> {
        let (steps, skip) = (self.iterations as f64, self.skip);
        let sound = self.iterations > skip && skip > 0;
        let expected = "more than skip, and skip more than 0";
        within("simulation.iterations", steps, expected, sound)?;
        let sound = (1..=1024).contains(&self.quantum);
        let quantum = f64::from(self.quantum);
        within("simulation.quantum", quantum, "1 to 1024", sound)?;
        let period = self.repack_seconds;
        let sound = (0.1..=3600.0).contains(&period);
        within("simulation.repack_seconds", period, "0.1 to 3600", sound)
    }
}

impl WorkloadSection {
    fn check(&self) -> Result<(), ScenarioError> {
        let (prompts, group, parts) = (self.prompts, self.group_size, self.mini_batches);
        let sound = (1..=65_536).contains(&prompts);
        within("workload.prompts", prompts as f64, "1 to 65536", sound)?;
        let sound = (1..=1024).contains(&group);
        within("workload.group_size", f64::from(group), "1 to 1024", sound)?;
        let sound = (1..=1024).contains(&parts) && prompts.is_multiple_of(parts as usize);
        let expected = "1 to 1024, a divisor of prompts";
        within("workload.mini_batches", f64::from(parts), expected, sound)?;
        if let Some(median) = self.median_tokens {
            let sound = (1.0..=16_384.0).contains(&median);
            within("workload.median_tokens", median, "1 to 16384", sound)?;
        }
        if let Some(ratio) = self.p99_over_median {
            let sound = (1.0..=1_000.0).contains(&ratio);
            within("workload.p99_over_median", ratio, "1 to 1000", sound)?;
        }
        if let Some(alike) = self.group_correlation {
            let sound = (0.0..=1.0).contains(&alike);
            within("workload.group_correlation", alike, "0 to 1", sound)?;
        }
        Ok(())
    }
}

impl ModelSection {
    fn check(&self) -> Result<(), ScenarioError> {
        if let Some(share) = self.rollout_share {
            let sound = share > 0.0 && share < 1.0;
            within("model.rollout_share", share, "above 0 and below 1", sound)?;
        }
        let flight = self.in_flight;
        let sound = flight > 0.0 && flight <= 100.0;
        within("model.in_flight", flight, "above 0, at most 100", sound)?;
        if let Some(most) = self.batch_max {
            let sound = (1..=65_536).contains(&most);
            within("model.batch_max", f64::from(most), "1 to 65536", sound)?;
        }
        Ok(())
    }
}

impl SearchSection {
    fn check(&self) -> Result<(), ScenarioError> {
        let sound = self.iterations > self.skip && self.skip > 0;
        let expected = "more than search.skip, and that more than 0";
        let steps = self.iterations as f64;
        within("search.iterations", steps, expected, sound)?;
        let sound = (1..=10_000).contains(&self.runs);
        within("search.runs", f64::from(self.runs), "1 to 10000", sound)?;
        for gpus in &self.rollout_gpus {
            let sound = gpus.is_power_of_two() && *gpus <= 8;
            let expected = "1, 2, 4 or 8 each";
            within("search.rollout_gpus", f64::from(*gpus), expected, sound)?;
        }
        Ok(())
    }
}

impl AssumedSection {
    fn check(&self) -> Result<(), ScenarioError> {
        let factors = [
            ("assumed.kernel_speed", self.kernel_speed),
            ("assumed.relay_bandwidth", self.relay_bandwidth),
            ("assumed.training_time", self.training_time),
        ];
        for (field, factor) in factors {
            let sound = (0.01..=100.0).contains(&factor);
            within(field, factor, "0.01 to 100", sound)?;
        }
        Ok(())
    }
}

impl FailureSection {
    fn check(&self, of: &SimulationSection) -> Result<(), ScenarioError> {
        let after = self.after_step;
        let sound = (of.skip..of.iterations).contains(&after);
        let expected = "from skip on, and below iterations";
        within("failure.after_step", after as f64, expected, sound)?;
        let rollouts = self.rollouts;
        let sound = (1..=65_536).contains(&rollouts);
        within("failure.rollouts", rollouts as f64, "1 to 65536", sound)?;
        let replaced = self.replaced_seconds;
        let sound = (0.0..=86_400.0).contains(&replaced);
        within("failure.replaced_seconds", replaced, "0 to 86400", sound)
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

#[cfg(test)]
mod tests {
    use odeon_algorithms::cost::Card;

    use super::*;

    const TEXT: &str = r#"
model = []
[simulation]
name = "small"
card = "h800"
iterations = 8
modes = []
[workload]
prompts = 16
group_size = 4
kind = "tools"
"#;

    fn parse(more: &str) -> Result<Scenario, ScenarioError> {
        Scenario::parse(&format!("{TEXT}{more}"))
    }

    #[test]
    fn lengths_are_those_of_the_kind_unless_the_file_says_others() {
        let tools = WorkloadSpec::tools(5);
        assert_eq!(parse("").unwrap().workload.spec(5), tools);
        let other = parse("median_tokens = 800\np99_over_median = 4\ngroup_correlation = 0.25\n");
        let spec = other.unwrap().workload.spec(5);
        assert_eq!(
            (spec.response.median, spec.response.p99_over_median),
            (800.0, 4.0)
        );
        assert_eq!(
            (spec.response.cap, spec.group_correlation),
            (tools.response.cap, 0.25)
        );
        assert_eq!(
            (spec.turns, spec.environment),
            (tools.turns, tools.environment)
        );
    }

    #[test]
    fn the_card_is_the_measured_one_unless_the_file_assumes_another() {
        assert_eq!(parse("").unwrap().card(), Card::h800());
        let assumed = "[assumed]\nkernel_speed = 2\nrelay_bandwidth = 0.5\ntraining_time = 1.5\n";
        let (card, measured) = (parse(assumed).unwrap().card(), Card::h800());
        assert_eq!(card.kernels, measured.kernels.times(2.0));
        assert_eq!(card.relay_share, 0.5 * measured.relay_share);
        assert_eq!(card.sustained, 1.5 * measured.sustained);
        assert_eq!(card.device.flops, measured.device.flops);
    }

    #[test]
    fn numbers_without_sense_are_told_by_their_field() {
        for (more, field) in [
            ("median_tokens = 0.5", "workload.median_tokens"),
            ("median_tokens = nan", "workload.median_tokens"),
            ("p99_over_median = 0.9", "workload.p99_over_median"),
            ("group_correlation = 1.1", "workload.group_correlation"),
            ("[search]\nskip = 8", "search.iterations"),
            ("[search]\nskip = 0", "search.iterations"),
            ("[search]\nruns = 0", "search.runs"),
            ("[search]\nrollout_gpus = [1, 3]", "search.rollout_gpus"),
            ("[search]\nrollout_gpus = [16]", "search.rollout_gpus"),
            ("[assumed]\nkernel_speed = 0", "assumed.kernel_speed"),
            ("[assumed]\nrelay_bandwidth = -1", "assumed.relay_bandwidth"),
            ("[assumed]\ntraining_time = inf", "assumed.training_time"),
        ] {
            let wrong = parse(more).unwrap_err();
            assert!(
                matches!(&wrong, ScenarioError::Range { field: it, .. } if *it == field),
                "{more}: {wrong}"
            );
        }
        let wrong = parse("[search]\nrun = 3").unwrap_err();
        assert!(matches!(wrong, ScenarioError::Field { .. }), "{wrong}");
    }
}
