//! Runs that are simulated: the graph of a run at the size of a cluster, under virtual time, in one
//! of several modes. What the engines take is told by [`cost`](odeon_algorithms::cost); everything
//! else is what a real run does.
//!
//! | mode | cards | weights | staleness |
//! | --- | --- | --- | --- |
//! | `synchronous` | the same for rollouts and trainer, in turn | where they are | 0 |
//! | `one_step` | apart | broadcast to all rollouts, which have drained | 1 |
//! | `partial` | apart | broadcast; what is under way is interrupted and goes on with them | 4 |
//! | `laminar` | apart | over relays, when a rollout has drained or was emptied by packing | not bounded |
//! | `drain` | as `laminar`, and nobody is packed | | |
//! | `overlap` | as `laminar`; a rollout begins with new weights while it ends what it has begun | | |

mod split;

use std::path::PathBuf;
use std::time::Duration;

use odeon::simulation::SimulationSpec;
use odeon::{Clock, Failure, System, Timestamp};
use odeon_algorithms::cost::{Card, ModelSize, Replica, Trainer};
use odeon_algorithms::objective::Baseline;
use odeon_algorithms::signs::Watch;
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::workload::{Workload, WorkloadSpec};
use serde::{Deserialize, Serialize};

use self::split::Step;
use crate::engine::EngineSpec;
use crate::engine::modelled::{Delivery, Modelled};
use crate::rl::chain::Forms;
use crate::rl::ledger::LedgerConfig;
use crate::rl::packer::{CountPacked, PackerCounts};
use crate::rl::referee::ProgramSpec;
use crate::rl::repack::RepackLimits;
use crate::rl::report::Report;
use crate::rl::rollout::{CountTokens, Swap};
use crate::rl::run::{Processes, Repack, RoleNeeds, Run, RunPlan};
use crate::rl::store::{Count, StoreArgs};
use crate::rl::trainer::TrainPlan;

/// What is simulated: a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, seed and size.
    pub simulation: SimulationSection,
    /// What is generated.
    pub workload: WorkloadSection,
    /// The models, each simulated by itself.
    pub model: Vec<ModelSection>,
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
    pub gpus: Vec<u32>,
    /// Optimiser steps.
    pub iterations: u64,
    /// Steps before anything is measured, while the pipeline fills.
    #[serde(default = "default_skip")]
    pub skip: u64,
    /// How rollouts and trainer work together, each simulated by itself.
    pub modes: Vec<Mode>,
    /// Seconds between two looks for rollouts that run dry.
    #[serde(default = "default_repack")]
    pub repack_seconds: f64,
    /// Tokens that are counted as one.
    #[serde(default = "default_quantum")]
    pub quantum: u32,
}

/// `[workload]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSection {
    /// Prompts in a step.
    pub prompts: usize,
    /// Replies to each.
    pub group_size: u32,
    /// What the replies are.
    pub kind: Kind,
}

/// What replies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// [Mathematics](WorkloadSpec::math) in one turn.
    Math,
    /// [Calls of tools](WorkloadSpec::tools) that take their time, in several turns.
    Tools,
}

impl Kind {
    fn spec(self, seed: u64) -> WorkloadSpec {
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

/// How rollouts and trainer work together. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In turn.
    Synchronous,
    /// One step apart.
    OneStep,
    /// Interrupted.
    Partial,
    /// Drained.
    Drain,
    /// Drained and packed.
    Laminar,
    /// Two sets of weights at a time.
    Overlap,
}

/// What came of one simulated run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The model.
    pub model: ModelName,
    /// Cards in all.
    pub gpus: u32,
    /// Those of them that rolled out.
    pub rollout_gpus: u32,
    /// How they worked together.
    pub mode: Mode,
    /// Tokens of trained replies per second between updates.
    pub tokens_per_s: f64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Part of the time in which a rollout generated.
    pub rollouts_busy: f64,
    /// Part of the room for keys and values that was in use while it did.
    pub cache_filled: f64,
    /// Part of the time in which the trainer trained.
    pub trainer_busy: f64,
    /// Steps between the weights that made a reply and those that it trained.
    pub staleness_mean: f64,
    /// The most of these.
    pub staleness_max: u64,
    /// Rollouts that were emptied by packing, in all.
    pub emptied: u64,
    /// Replies that others went on with.
    pub moved: u64,
    /// Replies that were made and came to nothing: too old, or twice.
    pub wasted: u64,
}

impl CardName {
    /// What it can do.
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
    fn size(self) -> ModelSize {
        match self {
            Self::Qwen7b => ModelSize::qwen2_5_7b(),
            Self::Qwen32b => ModelSize::qwen2_5_32b(),
            Self::Qwen72b => ModelSize::qwen2_5_72b(),
        }
    }
}

impl Mode {
    /// Whether rollouts and trainer have cards of their own.
    const fn is_apart(self) -> bool {
        !matches!(self, Self::Synchronous)
    }

    const fn staleness_max(self) -> u64 {
        match self {
            Self::Synchronous => 0,
            Self::OneStep => 1,
            Self::Partial => 4,
            Self::Drain | Self::Laminar | Self::Overlap => u32::MAX as u64,
        }
    }

    const fn swap(self) -> Swap {
        match self {
            Self::Synchronous | Self::OneStep | Self::Drain | Self::Laminar => Swap::Drain,
            Self::Partial => Swap::Interrupt,
            Self::Overlap => Swap::Overlap,
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
        /// What is wrong there.
        what: String,
    },
    /// A number has no sense.
    #[error("{field} is {value}: expected {expected}")]
    Range {
        /// The field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
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
        for gpus in &section.gpus {
            let sound = (1..=65_536).contains(gpus);
            within("simulation.gpus", f64::from(*gpus), "1 to 65536", sound)?;
        }
        let (prompts, group) = (self.workload.prompts, self.workload.group_size);
        let sound = (1..=65_536).contains(&prompts);
        within("workload.prompts", prompts as f64, "1 to 65536", sound)?;
        let sound = (1..=1024).contains(&group);
        within("workload.group_size", f64::from(group), "1 to 1024", sound)?;
        for model in &self.model {
            if let Some(share) = model.rollout_share {
                let sound = share > 0.0 && share < 1.0;
                within("model.rollout_share", share, "above 0 and below 1", sound)?;
            }
            let flight = model.in_flight;
            let sound = flight > 0.0 && flight <= 100.0;
            within("model.in_flight", flight, "above 0, at most 100", sound)?;
        }
        Ok(())
    }

    /// Simulates one run.
    ///
    /// # Errors
    /// The model does not fit the cards, or cannot be divided over them so.
    pub fn run(&self, model: &ModelSection, gpus: u32, mode: Mode) -> Result<Outcome, Failure> {
        let (plan, rollouts) = self.plan(model, gpus, mode)?;
        let spec = SimulationSpec::new(crate::rl::job()).nodes(1);
        let simulation = System::simulated(self.simulation.seed, spec);
        let measured = simulation.run(async |world| {
            let run = Run::start(&world.nodes[0], plan);
            let run = run.await.map_err(Failure::error)?;
            self.measure(run).await
        })?;
        let seconds = measured.seconds;
        let all = seconds * rollouts as f64;
        Ok(Outcome {
            model: model.size,
            gpus,
            rollout_gpus: rollouts as u32 * model.rollout_gpus,
            mode,
            tokens_per_s: measured.tokens / seconds,
            step_s: seconds / measured.steps.max(1) as f64,
            rollouts_busy: measured.busy / all,
            cache_filled: measured.filled / measured.busy.max(f64::MIN_POSITIVE),
            trainer_busy: measured.training / seconds,
            staleness_mean: measured.staleness / measured.steps.max(1) as f64,
            staleness_max: measured.staleness_max,
            emptied: measured.packed.emptied,
            moved: measured.packed.moved,
            wasted: measured.wasted,
        })
    }

    fn plan(
        &self,
        model: &ModelSection,
        gpus: u32,
        mode: Mode,
    ) -> Result<(RunPlan, usize), Failure> {
        let card = self.simulation.card.card();
        let size = model.size.size();
        let replica = Replica::new(&card, &size, model.rollout_gpus).map_err(Failure::error)?;
        let machines = |gpus: u32| gpus.div_ceil(card.per_machine);
        if mode.is_apart() && gpus < 2 * card.per_machine {
            let least = 2 * card.per_machine;
            return Err(Failure::error(format!(
                "rollouts and trainer have machines of their own: expected at least {least} cards"
            )));
        }
        let (rollout_gpus, trainer_gpus) = if mode.is_apart() {
            let rollout = self.rollout_machines(model, machines(gpus))? * card.per_machine;
            (rollout, gpus.saturating_sub(rollout))
        } else {
            (gpus, gpus)
        };
        // Said before anything starts.
        Trainer::new(&card, &size, trainer_gpus, model.trainer_tensor).map_err(Failure::error)?;
        let rollouts = (rollout_gpus / model.rollout_gpus).max(1) as usize;
        let workload = &self.workload;
        let step = workload.prompts * workload.group_size as usize;
        let in_flight = if mode.is_apart() {
            model.in_flight
        } else {
            1.0
        };
        let slots = (step as f64 * in_flight / rollouts as f64).ceil().max(1.0) as usize;
        let modelled = Modelled {
            workload: workload.kind.spec(self.simulation.seed),
            quantum: self.simulation.quantum,
            card: card.clone(),
            model: size,
            rollout_gpus: model.rollout_gpus,
            slots,
            trainer_gpus,
            trainer_tensor: model.trainer_tensor,
            delivery: match mode {
                Mode::Synchronous => Delivery::Colocated,
                Mode::OneStep | Mode::Partial => Delivery::Broadcast(machines(rollout_gpus)),
                Mode::Drain | Mode::Laminar | Mode::Overlap => {
                    Delivery::Relays(machines(rollout_gpus))
                }
            },
        };
        // At least as many as a rollout may be given.
        let batch = replica.roofline_batch().max(1).min(slots as u64);
        let repack = Repack {
            period: Duration::from_secs_f64(self.simulation.repack_seconds),
            limits: RepackLimits::new(u32::try_from(batch).unwrap_or(u32::MAX)),
        };
        let engine = EngineSpec::Modelled(Box::new(modelled));
        let plan = RunPlan {
            store: StoreArgs {
                task: TaskSpec::Sums(SumsConfig::default()),
                seed: self.simulation.seed,
                tokenizer: Tokenizer::arithmetic(),
                ledger: LedgerConfig::new(
                    workload.group_size,
                    workload.prompts,
                    mode.staleness_max(),
                ),
            },
            rollout_engine: engine.clone(),
            trainer_engine: engine,
            rollouts,
            relays: 1,
            forms: Forms::Full,
            swap: mode.swap(),
            tell_every: Duration::from_secs(60),
            repack: (mode == Mode::Laminar).then_some(repack),
            processes: Processes::Shared,
            needs: RoleNeeds::default(),
            reference: false,
            programs: ProgramSpec::default(),
            environment: None,
            learned: None,
            harm: None,
            train: TrainPlan {
                warmup: 0,
                steps: self.simulation.iterations,
                value_steps: 0,
                checkpoint_every: 1,
                checkpoint: PathBuf::new(),
                eval_problems: 1,
                eval_every: 0,
                baseline: Baseline::LeaveOneOut,
                overlong: None,
                price: None,
            },
            watch: Watch::new(self.simulation.iterations),
        };
        Ok((plan, rollouts))
    }

    /// How many of so many machines roll out, where they are apart.
    fn rollout_machines(&self, model: &ModelSection, machines: u32) -> Result<u32, Failure> {
        if let Some(share) = model.rollout_share {
            let apart = (f64::from(machines) * share).round() as u32;
            return Ok(apart.clamp(1, machines.saturating_sub(1).max(1)));
        }
        let workload = &self.workload;
        let spec = workload.kind.spec(self.simulation.seed);
        let step = Step {
            card: &self.simulation.card.card(),
            model: &model.size.size(),
            workload: &Workload::new(spec).map_err(Failure::error)?,
            prompts: workload.prompts,
            group_size: workload.group_size,
            rollout_gpus: model.rollout_gpus,
            trainer_tensor: model.trainer_tensor,
            in_flight: model.in_flight,
        };
        step.rollout_machines(machines).map_err(Failure::error)
    }

    /// Follows a run to its end.
    async fn measure(&self, mut run: Run) -> Result<Measured, Failure> {
        let mut measured = Measured::default();
        let mut since: Option<(Timestamp, Duration, Duration)> = None;
        let lost = || Failure::error("the run has lost its monitor");
        loop {
            match run.reports.recv().await.ok_or_else(lost)? {
                Report::Step(step) if step.version == self.simulation.skip => {
                    // Whoever generates answers a moment later.
                    let now = Clock::now();
                    let (busy, filled) = busy(&run).await?;
                    since = Some((now, busy, filled));
                }
                Report::Step(step) if step.version < self.simulation.skip => {}
                Report::Step(step) => {
                    let replies = step.response_tokens * u64::from(self.simulation.quantum);
                    measured.tokens += replies as f64;
                    measured.steps += 1;
                    measured.staleness += step.staleness_mean;
                    measured.staleness_max = measured.staleness_max.max(step.staleness_max);
                    measured.training += step.seconds;
                }
                Report::Finished(_) => break,
                _ => {}
            }
        }
        let Some((begun, busy_before, filled_before)) = since else {
            return Err(Failure::error("iterations must be more than skip"));
        };
        measured.seconds = Clock::now().since(begun).as_secs_f64();
        let (busy, filled) = busy(&run).await?;
        measured.busy = busy.saturating_sub(busy_before).as_secs_f64();
        measured.filled = filled.saturating_sub(filled_before).as_secs_f64();
        if let Some(packer) = run.packer {
            measured.packed = packer.ask(CountPacked).await.map_err(Failure::error)?;
        }
        let counts = run.store.ask(Count).await.map_err(Failure::error)?;
        measured.wasted = counts.stale + counts.duplicates;
        Ok(measured)
    }
}

#[derive(Default)]
struct Measured {
    seconds: f64,
    tokens: f64,
    steps: u64,
    staleness: f64,
    staleness_max: u64,
    training: f64,
    busy: f64,
    filled: f64,
    packed: PackerCounts,
    wasted: u64,
}

/// How long all rollouts together have generated, and the same by the part of their room in use.
async fn busy(run: &Run) -> Result<(Duration, Duration), Failure> {
    let (mut busy, mut filled) = (Duration::ZERO, Duration::ZERO);
    for rollout in &run.rollouts {
        let counts = rollout.ask(CountTokens).await.map_err(Failure::error)?;
        busy += counts.busy;
        filled += counts.filled;
    }
    Ok((busy, filled))
}

const fn default_skip() -> u64 {
    5
}
const fn default_repack() -> f64 {
    5.0
}
const fn default_quantum() -> u32 {
    16
}
