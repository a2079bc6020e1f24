//! A run of a program, step by step, from its checkpoint on.
//!
//! The models of a run live and die together: when a rank is lost, all are ended and made again, and
//! go on from the checkpoint. Steps are the same to the bit then, since prompts, draws and the order
//! of sums are.

use std::convert::Infallible;
use std::path::PathBuf;

use futures::future::{BoxFuture, FutureExt};
use odeon::group::WorkerGroup;
use odeon::{
    Actor, ActorId, Clock, Failure, FailureKind, Group, Needs, ProcessId, System, Timestamp,
};
use odeon_algorithms::objective::Lagrangian;
use odeon_algorithms::train::Sharing;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::calls::{Dealing, Evaluate, Prepare, Publish, Restore, Save, Saved, WarmUp};
use super::house::{House, Seats};
use super::placement::{Model, Placement};
use super::program::{Models, Outcome, Step};
use super::recoveries::Recoveries;
use super::weights::Published;
use super::workers::{CriticWorker, JudgeArgs};
use crate::engine::compute::ComputeSpec;
use crate::engine::compute::checkpoint::{forget_after, newest_step};
use crate::engine::{Progress, RunState, in_place};
use crate::going_on::GoingOn;
use crate::rl::report::{Report, StepReport, findings, version_of};
use crate::rl::trainer::TrainPlan;
use crate::trajectory::Used;

/// Settings that a run is made from.
#[derive(Clone, Debug)]
pub struct HybridPlan {
    /// The policy, and what critics and reference are made from.
    pub spec: ComputeSpec,
    /// Settings of the ranks that judge.
    pub judge: JudgeArgs,
    /// The program of a step.
    pub program: Program,
    /// Prompts of a step.
    pub groups: u64,
    /// Replies to each.
    pub group_size: u32,
    /// Which models share processes.
    pub placement: Placement,
    /// Ranks of each model whose pool has no number of its own.
    pub ranks: usize,
    /// The way in which so many ranks share each model; [`Sharing::ALONE`] where each has the whole.
    pub sharing: Sharing,
    /// The response to a rank that holds up those that share its model.
    pub recovery: LadderPolicy,
    /// Resources that each rank of a pool reserves on its node: with the policy in it, and without.
    pub needs: (Needs, Needs),
    /// Set when there is a reference.
    pub reference: bool,
    /// Number of steps, and the steps at which the run evaluates and saves.
    pub train: TrainPlan,
    /// The detectors of the run; they have seen what the run told before.
    pub watch: Watch,
}

/// Which program: see [`Models`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// [`Models::grpo`].
    Grpo,
    /// [`Models::dapo`].
    Dapo {
        /// See there.
        refill: u64,
    },
    /// [`Models::remax`].
    Remax,
    /// [`Models::ppo`].
    Ppo,
    /// [`Models::safe_rlhf`].
    SafeRlhf,
}

/// Between a run and who started it.
#[derive(Debug)]
pub struct Desk {
    /// Channel for the reports of the run. Nobody has to listen.
    pub reports: UnboundedSender<Report>,
    /// The ranks of all models, while they live: name, actor, and process where that is another.
    pub members: watch::Sender<Vec<Member>>,
    /// Turns true when the run is to save after the step under way, and do no more.
    pub halt: watch::Receiver<bool>,
}

/// A rank of a model: its name, itself and its process, where that is another.
pub type Member = (String, ActorId, Option<ProcessId>);

/// Losses of a rank between two checkpoints, after which a run ends.
const LOSSES_MAX: u32 = 3;

/// Supervised steps in one call.
const WARMUP_STEPS_PER_CALL: u64 = 10;

/// Runs a plan to its end, or until it is asked to halt.
///
/// # Errors
/// A model cannot do its part, or ranks are lost too often.
#[odeon::boxed]
pub async fn run(system: &System, plan: &HybridPlan, desk: Desk) -> Result<Progress, Failure> {
    let models = match plan.sharing.ranks() {
        1 => vec![],
        _ => plan.shared_models(),
    };
    let mut recoveries = Recoveries::open(system, &models, &plan.recovery).await?;
    let told = recoveries.told();
    let ended = tokio::select! {
        biased;
        ended = all_lives(system, plan, desk, &recoveries) => ended,
        // Told of for as long as the run goes on, also where nobody can order anything.
        never = told.then(|()| std::future::pending::<Infallible>()) => match never {},
    };
    recoveries.close().await;
    ended
}

/// One life of the models behind the other, up to the end of the run.
async fn all_lives(
    system: &System,
    plan: &HybridPlan,
    desk: Desk,
    recoveries: &Recoveries,
) -> Result<Progress, Failure> {
    let mut watch = (plan.watch.clone(), GoingOn::default());
    let mut saved = None;
    let mut losses = 0;
    let mut life = 0;
    loop {
        life += 1;
        let (mut run, looks) = Run::start((system, recoveries), plan, &desk, watch).await?;
        let ended = tokio::select! {
            biased;
            ended = run.go_on(life) => ended,
            stopped = looks => Err(stopped),
        };
        run.stop().await;
        watch = run.watch;
        let failure = match ended {
            Ok(progress) => return Ok(progress),
            Err(failure) => failure,
        };
        // What a person has ended is no loss.
        let lost = u32::from(!recoveries.take_ended_for_person());
        losses = if run.saved == saved {
            losses + lost
        } else {
            lost
        };
        saved = run.saved;
        if losses > LOSSES_MAX || failure.kind == FailureKind::Fatal {
            return Err(failure);
        }
        tracing::warn!(%failure, "all models begin again, from the checkpoint");
    }
}

/// Processes of a pool, before there are any.
#[derive(Clone, Debug)]
pub struct PoolReservation {
    /// The pool.
    pub pool: String,
    /// Number of its processes.
    pub ranks: usize,
    /// Resources that each of them reserves.
    pub needs: Needs,
}

impl HybridPlan {
    /// The run's models, in the order in which they are made.
    fn models(&self) -> Vec<Model> {
        let models = [
            (Model::Policy, true),
            (Model::Reward, true),
            (Model::Critic, self.train.baseline.has_critic()),
            (Model::CostCritic, self.train.price.is_some()),
            (Model::Reference, self.reference),
        ];
        let there = models.into_iter().filter(|(_, is_there)| *is_there);
        there.map(|(model, _)| model).collect()
    }

    /// Those of them that ranks share, where any does.
    fn shared_models(&self) -> Vec<Model> {
        let mut models = self.models();
        // A rule that checks replies is no model.
        models.retain(|it| *it != Model::Reward || self.judge.learned.is_some());
        models
    }

    /// The pools of the run's models, in the order in which they are made.
    #[must_use]
    pub fn reservations(&self) -> Vec<PoolReservation> {
        let mut pools: Vec<PoolReservation> = vec![];
        for model in self.models() {
            let pool = self.placement.pool_of(model);
            if pools.iter().all(|it| it.pool != pool) {
                pools.push(PoolReservation {
                    ranks: self.ranks_of(&pool),
                    needs: self.needs_of(model).clone(),
                    pool,
                });
            }
        }
        pools
    }

    /// Number of ranks of a pool.
    pub(super) fn ranks_of(&self, pool: &str) -> usize {
        self.placement.ranks_of(pool).unwrap_or(self.ranks)
    }

    /// Resources that a process reserves in which this model is the first.
    pub(super) const fn needs_of(&self, model: Model) -> &Needs {
        match model {
            Model::Policy => &self.needs.0,
            _ => &self.needs.1,
        }
    }

    /// Where the checkpoints of a model are; of one that is not saved those of the policy, which all of its ranks see.
    pub(super) fn checkpoint(&self, model: Model) -> PathBuf {
        let folder = &self.train.checkpoint;
        match model {
            Model::Critic | Model::CostCritic => folder.join(model.to_string()),
            Model::Policy | Model::Reference | Model::Reward => folder.clone(),
        }
    }
}

struct Run<'a> {
    plan: &'a HybridPlan,
    models: Models,
    _seats: Seats,
    desk: &'a Desk,
    progress: Progress,
    state: RunState,
    saved: Option<Progress>,
    evaluated: Option<u64>,
    /// Set when the weights that were published are those of the policy.
    published: bool,
    /// With the findings of it that go on.
    watch: (Watch, GoingOn),
}

impl<'a> Run<'a> {
    async fn start(
        (system, recoveries): (&System, &Recoveries),
        plan: &'a HybridPlan,
        desk: &'a Desk,
        watch: (Watch, GoingOn),
    ) -> Result<(Self, BoxFuture<'static, Failure>), Failure> {
        let housed = House::new(system, plan, recoveries).open().await?;
        desk.members.send_replace(housed.members);
        let run = Self {
            plan,
            models: housed.models,
            _seats: housed.seats,
            desk,
            progress: Progress::default(),
            state: RunState {
                used: Used::default(),
                price: plan.train.price.map(|price| price.multiplier),
            },
            saved: None,
            evaluated: None,
            published: false,
            watch,
        };
        Ok((run, housed.looks))
    }

    /// From what was saved to the end.
    async fn go_on(&mut self, life: u32) -> Result<Progress, Failure> {
        self.restore(life).await?;
        self.drive().await
    }

    async fn restore(&mut self, incarnation: u32) -> Result<(), Failure> {
        let from = self.saved_of(Model::Policy, None)?;
        let restored = self.models.policy.call(Restore(from)).await?;
        if let Some((progress, state)) = restored {
            self.progress = progress;
            self.state = state;
            self.saved = Some(progress);
            self.report(Report::Resumed {
                incarnation,
                progress,
            });
        }
        for (model, critic) in self.critics() {
            let from = self.saved_of(model, Some(self.progress))?;
            let restored = critic.call(Restore(from)).await?;
            let learnt = restored.map_or(0, |(progress, _)| progress.version);
            let version = self.progress.version;
            if learnt != version {
                return Err(Failure::error(format!(
                    "the policy was saved after step {version}, and a critic after step {learnt}: \
                     begin the run anew with --fresh"
                ))
                .fatal());
            }
        }
        Ok(())
    }

    /// The checkpoint of a model to go back to, of this step or before where one is named.
    fn saved_of(&self, model: Model, at_most: Option<Progress>) -> Result<Saved, Failure> {
        if self.models.dealing == Dealing::Rows {
            return Ok(Saved::Newest(at_most));
        }
        let folder = self.plan.checkpoint(model);
        in_place(|| {
            if let Some(at_most) = at_most {
                forget_after(&folder, at_most.version)?;
            }
            newest_step(&folder).map(Saved::Step)
        })
    }

    fn critics(&self) -> Vec<(Model, WorkerGroup<CriticWorker>)> {
        let critics = [
            (Model::Critic, &self.models.critic),
            (Model::CostCritic, &self.models.cost_critic),
        ];
        let there = critics.into_iter();
        there
            .filter_map(|(model, critic)| Some((model, critic.clone()?)))
            .collect()
    }

    /// Has ranks that share the policy publish its weights, unless those that were are the same.
    async fn publish(&mut self) -> Result<(), Failure> {
        if self.published || self.models.dealing == Dealing::Rows {
            return Ok(());
        }
        let parcels = self.models.policy.call(Publish).await?;
        self.models.weights = Published::new(&parcels, self.plan.sharing);
        self.published = true;
        Ok(())
    }

    fn report(&mut self, report: Report) {
        let (watch, going_on) = &mut self.watch;
        let found = findings(watch, &report);
        if let Some(version) = version_of(&report) {
            going_on.record(watch, version);
        }
        for report in std::iter::once(report).chain(found) {
            // A run goes on when nobody listens.
            let _ = self.desk.reports.send(report);
        }
    }

    /// All steps that are left.
    async fn drive(&mut self) -> Result<Progress, Failure> {
        let plan = &self.plan.train;
        while self.progress.warmup < plan.warmup {
            self.warm_up().await?;
            if self.halts() {
                return self.halt().await;
            }
        }
        if self.saved.is_none() {
            // Also the reference is made from this.
            self.save().await?;
        }
        if plan.steps > self.progress.version {
            self.prepare().await?;
        }
        self.evaluate().await?;
        while self.progress.version < plan.steps {
            self.step().await?;
            let version = self.progress.version;
            if version.is_multiple_of(plan.checkpoint_every) || version == plan.steps {
                self.save().await?;
            }
            self.evaluate().await?;
            if self.halts() && version < plan.steps {
                return self.halt().await;
            }
        }
        self.report(Report::Finished(self.progress));
        Ok(self.progress)
    }

    fn halts(&self) -> bool {
        *self.desk.halt.borrow()
    }

    async fn halt(&mut self) -> Result<Progress, Failure> {
        if self.saved != Some(self.progress) {
            self.save().await?;
        }
        self.report(Report::Halted(self.progress));
        Ok(self.progress)
    }

    /// Has one judge learn, where rewards are learnt; the others read what it has saved.
    async fn prepare(&mut self) -> Result<(), Failure> {
        if self.plan.judge.learned.is_some() {
            let learnt = self.models.reward.call(Prepare).await?;
            self.report(Report::RewardModel(learnt));
        }
        Ok(())
    }

    async fn warm_up(&mut self) -> Result<(), Failure> {
        let first = self.progress.warmup + 1;
        let safe = self.plan.train.next_warmup_checkpoint(self.progress.warmup);
        let last = (self.progress.warmup + WARMUP_STEPS_PER_CALL).min(safe);
        let warm_up = WarmUp {
            first,
            last,
            dealing: self.models.dealing,
        };
        self.published = false;
        let stats = self.models.policy.call(warm_up).await?;
        self.progress.warmup = last;
        self.report(Report::Warmup { step: last, stats });
        if last == safe {
            self.save().await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let begun = Clock::now();
        self.publish().await?;
        let plan = self.plan;
        let number = self.progress.version + 1;
        let step = Step {
            number,
            first: self.state.used.below,
            groups: plan.groups,
            group_size: plan.group_size,
            price: self.price().map(|price| price.multiplier),
            learns: number > plan.train.value_steps,
        };
        let models = &self.models;
        let outcome = match plan.program {
            Program::Grpo => models.grpo(step).await,
            Program::Dapo { refill } => models.dapo(step, refill).await,
            Program::Remax => models.remax(step).await,
            Program::Ppo => models.ppo(step).await,
            Program::SafeRlhf => models.safe_rlhf(step).await,
        }?;
        self.published &= !step.learns;
        self.progress.version = number;
        self.state.used = Used::first(step.first + outcome.prompts);
        if let Some(mut price) = self.price() {
            price
                .update(outcome.summary.cost as f32)
                .map_err(Failure::error)?;
            self.state.price = Some(price.multiplier);
        }
        let replies = plan.groups * u64::from(plan.group_size);
        self.report(Report::Step(report(number, replies, outcome, begun)));
        Ok(())
    }

    fn price(&self) -> Option<Lagrangian> {
        let begun = self.plan.train.price?;
        Some(Lagrangian {
            multiplier: self.state.price.unwrap_or(begun.multiplier),
            ..begun
        })
    }

    /// Critics first: they can go back to the step of an older policy, which cannot go back itself.
    async fn save(&mut self) -> Result<(), Failure> {
        let save = Save {
            progress: self.progress,
            run: self.state.clone(),
            dealing: self.models.dealing,
        };
        for (_, critic) in self.critics() {
            critic.call(save.clone()).await?;
        }
        self.models.policy.call(save).await?;
        self.saved = Some(self.progress);
        self.report(Report::Saved(self.progress));
        Ok(())
    }

    async fn evaluate(&mut self) -> Result<(), Failure> {
        let (plan, version) = (&self.plan.train, self.progress.version);
        let ends = version == 0 || version == plan.steps;
        let due = ends || (plan.eval_every > 0 && version.is_multiple_of(plan.eval_every));
        if !due || plan.eval_problems == 0 || self.evaluated == Some(version) {
            return Ok(());
        }
        let problems = plan.eval_problems as u64;
        self.publish().await?;
        let weights = self.models.weights.clone();
        let evaluate = Evaluate { problems, weights };
        let stats = self.models.policy.call(evaluate).await?;
        self.evaluated = Some(version);
        self.report(Report::Evaluated { version, stats });
        Ok(())
    }

    /// Ends all models. Those that are lost are gone already.
    async fn stop(&self) {
        let models = &self.models;
        end(models.policy.group()).await;
        end(models.reward.group()).await;
        if let Some(shared) = &models.shared_reward {
            end(&shared.ranks).await;
        }
        end(models.estimator.group()).await;
        for (_, critic) in self.critics() {
            end(critic.group()).await;
        }
        if let Some(reference) = &models.reference {
            end(reference.group()).await;
        }
    }
}

async fn end<A: Actor>(group: &Group<A>) {
    if let Err(error) = group.stop().await {
        tracing::debug!(%error, "a model was gone already");
    }
}

fn report(version: u64, replies: u64, outcome: Outcome, begun: Timestamp) -> StepReport {
    let summary = outcome.summary;
    StepReport {
        version,
        batch_checksum: summary.checksum,
        uniform_groups: outcome.uniform,
        reward: summary.reward,
        accuracy: summary.accuracy,
        staleness_mean: 0.0,
        staleness_max: 0,
        staleness: vec![replies],
        response_mean: summary.response_tokens as f64 / replies.max(1) as f64,
        response_tokens: summary.response_tokens,
        turns_mean: 0.0,
        tool_wait_mean: 0.0,
        stats: outcome.stats,
        cost: summary.cost,
        critic_loss: outcome.critic_loss,
        seconds: Clock::now().since(begun).as_secs_f64(),
        publish_seconds: 0.0,
    }
}
