//! A scenario's run: how many cards do what, and what the actors are told.

use std::path::PathBuf;
use std::time::Duration;

use odeon::Failure;
use odeon_algorithms::cost::{Replica, Trainer};
use odeon_algorithms::objective::Baseline;
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::Sharing;
use odeon_algorithms::workload::Workload;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;

use super::mode::Mode;
use super::scenario::{FailureSection, ModelSection, Scenario};
use super::split::Step;
use crate::engine::EngineSpec;
use crate::engine::modelled::Modelled;
use crate::rl::chain::Forms;
use crate::rl::ledger::LedgerConfig;
use crate::rl::referee::ProgramSpec;
use crate::rl::repack::RepackLimits;
use crate::rl::run::{Processes, Repack, RoleNeeds, RunPlan};
use crate::rl::store::StoreArgs;
use crate::rl::trainer::TrainPlan;

/// A run that is decided.
pub(super) struct Planned {
    pub(super) run: RunPlan,
    /// Rollouts.
    pub(super) rollouts: usize,
    /// Replies that each of them works on at most.
    pub(super) under_way: u32,
    /// Batches that make a step.
    pub(super) batches: u64,
}

impl Scenario {
    /// The run, with everything decided.
    ///
    /// # Errors
    /// The model does not fit the cards, or cannot be divided over them so.
    pub(super) fn plan(
        &self,
        model: &ModelSection,
        gpus: u32,
        mode: Mode,
    ) -> Result<Planned, Failure> {
        let card = self.card();
        let size = model.size.size();
        let replica = Replica::new(&card, &size, model.rollout_gpus).map_err(Failure::error)?;
        let machines = |gpus: u32| gpus.div_ceil(card.device.per_node);
        if mode.is_apart() && gpus < 2 * card.device.per_node {
            let least = 2 * card.device.per_node;
            return Err(Failure::error(format!(
                "rollouts and trainer have machines of their own: expected at least {least} cards"
            )));
        }
        let (rollout_gpus, trainer_gpus) = if mode.is_apart() {
            let rollout = self.rollout_machines(model, machines(gpus))? * card.device.per_node;
            (rollout, gpus.saturating_sub(rollout))
        } else {
            (gpus, gpus)
        };
        // Said before anything starts.
        Trainer::new(&card, &size, trainer_gpus, model.trainer_tensor).map_err(Failure::error)?;
        let rollouts = (rollout_gpus / model.rollout_gpus).max(1) as usize;
        if let Some(failure) = self.failure.filter(|it| it.rollouts >= rollouts) {
            return Err(Failure::error(format!(
                "failure.rollouts is {} of {rollouts} rollouts: expected fewer than there are",
                failure.rollouts
            )));
        }
        let workload = &self.workload;
        let batches = mode.batches(workload.mini_batches);
        let step = workload.prompts * workload.group_size as usize;
        let in_flight = if mode.is_apart() {
            model.in_flight
        } else {
            1.0
        };
        let slots = model.slots(step as f64 * in_flight, rollouts as f64) as usize;
        let modelled = Modelled {
            workload: workload.spec(self.simulation.seed),
            quantum: self.simulation.quantum,
            card: card.clone(),
            model: size,
            rollout_gpus: model.rollout_gpus,
            slots,
            trainer_gpus,
            trainer_tensor: model.trainer_tensor,
            updates: workload.mini_batches / batches,
            delivery: mode.delivery(machines(rollout_gpus)),
            prefixes: self.simulation.prefixes,
            starts: self
                .failure
                .map_or(Duration::ZERO, FailureSection::replaced),
        };
        // At least as many as a rollout may be given.
        let batch = replica.roofline_batch().max(1).min(slots as u64);
        let repack = Repack {
            period: Duration::from_secs_f64(self.simulation.repack_seconds),
            limits: RepackLimits::new(u32::try_from(batch).unwrap_or(u32::MAX)),
        };
        // Rollouts learn of every version, and steps are counted by those.
        let each = u64::from(batches);
        let staleness_max = (mode.staleness_max() + 1).saturating_mul(each) - 1;
        let engine = EngineSpec::Modelled(Box::new(modelled));
        let plan = RunPlan {
            store: StoreArgs {
                task: TaskSpec::Sums(SumsConfig::default()),
                seed: self.simulation.seed,
                tokenizer: Tokenizer::arithmetic(),
                ledger: LedgerConfig::new(
                    workload.group_size,
                    workload.prompts / batches as usize,
                    staleness_max,
                ),
            },
            rollout_engine: engine.clone(),
            trainer_engine: engine,
            sharing: Sharing::ALONE,
            recovery: LadderPolicy::default(),
            rollouts,
            relays: 1,
            forms: Forms::Full,
            swap: mode.swap(),
            tell_every: TELL_EVERY,
            repack: (mode == Mode::Laminar).then_some(repack),
            processes: match self.failure {
                // What is lost is a process.
                Some(_) => Processes::Own,
                None => Processes::Shared,
            },
            needs: RoleNeeds::default(),
            reference: false,
            programs: ProgramSpec::default(),
            environment: None,
            learned: None,
            harm: None,
            train: TrainPlan {
                warmup: 0,
                steps: self.simulation.iterations * each,
                value_steps: 0,
                checkpoint_every: 1,
                checkpoint: PathBuf::new(),
                publish_every: each,
                eval_problems: 1,
                eval_every: 0,
                baseline: Baseline::LeaveOneOut,
                overlong: None,
                price: None,
            },
            watch: Watch::new(self.simulation.iterations * each),
        };
        Ok(Planned {
            run: plan,
            rollouts,
            under_way: u32::try_from(slots).unwrap_or(u32::MAX),
            batches: each,
        })
    }

    /// Number of machines that roll out, of so many, where they are apart.
    pub(super) fn rollout_machines(
        &self,
        model: &ModelSection,
        machines: u32,
    ) -> Result<u32, Failure> {
        if let Some(share) = model.rollout_share {
            let apart = (f64::from(machines) * share).round() as u32;
            return Ok(apart.clamp(1, machines.saturating_sub(1).max(1)));
        }
        let workload = &self.workload;
        let spec = workload.spec(self.simulation.seed);
        let step = Step {
            card: &self.card(),
            size: &model.size.size(),
            workload: &Workload::new(spec).map_err(Failure::error)?,
            prompts: workload.prompts,
            group_size: workload.group_size,
            section: model,
        };
        step.rollout_machines(machines).map_err(Failure::error)
    }
}

/// Time between two reports of rollouts on their progress.
const TELL_EVERY: Duration = Duration::from_secs(10);
