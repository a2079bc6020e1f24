//! Runs that are simulated: the graph of a run at the size of a cluster, under virtual time, in one
//! of several modes. What the engines take is told by [`cost`](odeon_algorithms::cost); everything
//! else is what a real run does.
//!
//! | mode | cards | weights | staleness |
//! | --- | --- | --- | --- |
//! | `synchronous` | the same for rollouts and trainer, in turn | where they are | 0 |
//! | `one_step` | apart | broadcast to all rollouts, which have drained | 1 |
//! | `stream` | apart | as `one_step`; the trainer takes parts of a step as they are complete | 1 |
//! | `partial` | apart | broadcast; what is under way is interrupted and goes on with them | 4 |
//! | `laminar` | apart | over relays, when a rollout has drained or was emptied by packing | not bounded |
//! | `drain` | as `laminar`, and nobody is packed | | |
//! | `overlap` | as `laminar`; a rollout begins with new weights while it ends what it has begun | | |
//!
//! Of months under faults, where nothing but time is simulated, [`faults`] tells.

pub mod faults;
mod measure;
mod mode;
mod plan;
mod scenario;
mod search;
mod split;
mod tuning;

use odeon::simulation::SimulationSpec;
use odeon::{Failure, Supervision, System};
use serde::{Deserialize, Serialize};

pub use self::mode::Mode;
pub use self::scenario::{
    AssumedSection, CardName, FailureSection, Kind, ModelName, ModelSection, Scenario,
    ScenarioError, SearchSection, SimulationSection, WorkloadSection,
};
use crate::rl::run::Run;

/// Results of one simulated run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The model.
    pub model: ModelName,
    /// Cards in all.
    pub gpus: u32,
    /// Those of them that rolled out.
    pub rollout_gpus: u32,
    /// The way in which rollouts and trainer worked together.
    pub mode: Mode,
    /// Cards of each rollout.
    pub replica_gpus: u32,
    /// Replies that a rollout worked on at most.
    pub under_way: u32,
    /// The search that found the setting, where there was one.
    pub searched: Option<Searched>,
    /// Tokens of trained replies per second between updates.
    pub tokens_per_s: f64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Part of the time in which a rollout generated.
    pub rollouts_busy: f64,
    /// Part of the time in which a rollout had nothing to do, or waited for its environments.
    pub rollouts_idle: f64,
    /// Part of the room for keys and values that was in use while it generated.
    pub cache_filled: f64,
    /// Part of the time in which the trainer trained or handed over weights.
    pub trainer_busy: f64,
    /// Seconds for which the trainer stood still to hand over new weights, each time.
    pub publish_s: f64,
    /// Seconds for which a rollout stood still to take them in, each time.
    pub pull_s: f64,
    /// Steps between the weights that made a reply and those that it trained.
    pub staleness_mean: f64,
    /// The most of these.
    pub staleness_max: u64,
    /// Number of replies with each of these, from 0 on.
    pub staleness: Vec<u64>,
    /// Steps that the trainer had made after the weights of a reply when that was complete.
    pub inherent_mean: f64,
    /// The most of these.
    pub inherent_max: u64,
    /// Rollouts that were emptied by packing, in all.
    pub emptied: u64,
    /// Replies that others went on with.
    pub moved: u64,
    /// Replies that were made and came to nothing: too old, or twice.
    pub wasted: u64,
    /// Effects of the loss of a machine.
    pub failure: Option<Lost>,
    /// Stretches of the run, in order.
    pub timeline: Vec<Moment>,
}

/// The search for a setting. See [`Scenario::run_best`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// Short runs that were made.
    pub trials: u32,
    /// The run with the setting of the file.
    pub written: Written,
}

/// A run with the setting of the file, as long as that which was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Tokens of trained replies per second between updates.
    pub tokens_per_s: f64,
    /// Cards that rolled out.
    pub rollout_gpus: u32,
    /// Cards of each rollout.
    pub replica_gpus: u32,
    /// Replies that a rollout worked on at most.
    pub under_way: u32,
}

/// A stretch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Its end, in seconds since measuring began.
    pub at_s: f64,
    /// Tokens of replies that were complete, per second.
    pub tokens_per_s: f64,
    /// Part of it in which a rollout generated.
    pub busy: f64,
    /// Part of the room for keys and values that was in use while it did.
    pub cache_filled: f64,
    /// Steps that were trained by its end.
    pub version: u64,
}

/// Effects of the loss of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// When, in seconds since measuring began.
    pub at_s: f64,
    /// Seconds until all of its rollouts generated again.
    pub recovered_s: f64,
    /// Tokens per second of complete replies: for as long before.
    pub before: f64,
    /// Until then.
    pub during: f64,
    /// And for as long after.
    pub after: f64,
    /// Steps that were trained until then.
    pub steps: u64,
    /// Replies that others went on with, or that began anew.
    pub reordered: u64,
}

impl Scenario {
    /// All rollouts of a machine that is lost come back, each once.
    fn supervision(&self) -> Supervision {
        let supervision = Supervision::default();
        match self.failure {
            None => supervision,
            Some(failure) => {
                let budget = supervision.budget;
                let rollouts = u32::try_from(failure.rollouts).unwrap_or(u32::MAX);
                supervision.budget(budget.restarts.saturating_add(rollouts), budget.window)
            }
        }
    }

    /// Simulates one run.
    ///
    /// # Errors
    /// The model does not fit the cards, or cannot be divided over them so.
    pub fn run(&self, model: &ModelSection, gpus: u32, mode: Mode) -> Result<Outcome, Failure> {
        let planned = self.plan(model, gpus, mode)?;
        let (rollouts, batches) = (planned.rollouts, planned.batches);
        let under_way = planned.under_way;
        let spec = SimulationSpec::new(crate::rl::job()).nodes(1);
        let spec = spec.supervision(self.supervision());
        let simulation = System::simulated(self.simulation.seed, spec);
        let measured = simulation.run(async |world| {
            let system = &world.nodes[0];
            let run = Run::start(system, planned.run);
            let run = run.await.map_err(Failure::error)?;
            self.measure(system, run, batches).await
        })?;
        let seconds = measured.seconds;
        let all = seconds * rollouts as f64;
        let per = |sum: f64, count: u64| sum / count.max(1) as f64;
        let rolled = measured.rolled;
        let [busy, pulling] = [rolled.busy, rolled.pulling].map(|it| it.as_secs_f64());
        Ok(Outcome {
            model: model.size,
            gpus,
            rollout_gpus: rollouts as u32 * model.rollout_gpus,
            mode,
            replica_gpus: model.rollout_gpus,
            under_way,
            searched: None,
            tokens_per_s: measured.tokens / seconds,
            step_s: per(seconds, measured.steps),
            rollouts_busy: busy / all,
            rollouts_idle: (1.0 - (busy + pulling) / all).max(0.0),
            cache_filled: rolled.filled.as_secs_f64() / busy.max(f64::MIN_POSITIVE),
            trainer_busy: measured.training / seconds,
            publish_s: per(measured.publishing, measured.steps),
            pull_s: per(pulling, rolled.pulls),
            staleness_mean: measured.staleness.mean(),
            staleness_max: measured.staleness.most(),
            staleness: measured.staleness.0,
            inherent_mean: measured.inherent_mean,
            inherent_max: measured.inherent_max,
            emptied: measured.packed.emptied,
            moved: measured.packed.moved,
            wasted: measured.wasted,
            failure: measured.lost,
            timeline: measured.timeline,
        })
    }
}
