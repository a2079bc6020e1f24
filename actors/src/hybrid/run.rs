//! A run of a program, step by step, from its checkpoint on.
//!
//! The models of a run live and die together: when a rank is lost, all are ended and made again, and
//! go on from the checkpoint. Steps are the same to the bit then, since prompts, draws and the order
//! of sums are.

use odeon::Mesh;
use odeon::group::{CallError, Formation, Pool, SpawnWorkers, WorkerGroup};
use odeon::{
    Actor, ActorId, Clock, Failure, FailureKind, Group, Needs, ProcessId, Registered, Restart,
    System, Timestamp, mesh,
};
use odeon_algorithms::objective::Lagrangian;
use odeon_diagnosis::run::Watch;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::calls::{Evaluate, Join, Prepare, Restore, Save, WarmUp};
use super::placement::{Model, Placement};
use super::program::{Models, Outcome, Step};
use super::workers::{
    CriticWorker, Estimator, EstimatorArgs, JudgeArgs, PolicyWorker, ReferenceWorker, RewardWorker,
    WorkerArgs,
};
use crate::engine::compute::ComputeSpec;
use crate::engine::{Progress, RunState};
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
    let mut watch = (plan.watch.clone(), GoingOn::default());
    let mut saved = None;
    let mut losses = 0;
    let mut life = 0;
    loop {
        life += 1;
        let mut run = Run::start(system, plan, &desk, watch, life).await?;
        let ended = run.drive().await;
        run.stop().await;
        watch = run.watch;
        let failure = match ended {
            Ok(progress) => return Ok(progress),
            Err(failure) => failure,
        };
        losses = if run.saved == saved { losses + 1 } else { 1 };
        saved = run.saved;
        if losses > LOSSES_MAX || failure.kind == FailureKind::Fatal {
            return Err(failure);
        }
        tracing::warn!(%failure, "all models begin again, from the checkpoint");
    }
}

struct Run<'a> {
    plan: &'a HybridPlan,
    models: Models,
    /// Ranks can talk to each other while these are there.
    _formations: Vec<Formation>,
    desk: &'a Desk,
    progress: Progress,
    state: RunState,
    saved: Option<Progress>,
    evaluated: Option<u64>,
    /// With the findings of it that go on.
    watch: (Watch, GoingOn),
}

impl<'a> Run<'a> {
    async fn start(
        system: &System,
        plan: &'a HybridPlan,
        desk: &'a Desk,
        watch: (Watch, GoingOn),
        life: u32,
    ) -> Result<Self, Failure> {
        let mut house = House {
            system,
            plan,
            pools: vec![],
            formations: vec![],
            members: vec![],
        };
        let models = house.models().await?;
        desk.members.send_replace(house.members);
        let mut run = Self {
            plan,
            models,
            _formations: house.formations,
            desk,
            progress: Progress::default(),
            state: RunState {
                used: Used::default(),
                price: plan.train.price.map(|price| price.multiplier),
            },
            saved: None,
            evaluated: None,
            watch,
        };
        if let Err(failure) = run.restore(life).await {
            run.stop().await;
            return Err(failure);
        }
        Ok(run)
    }

    async fn restore(&mut self, incarnation: u32) -> Result<(), Failure> {
        let restored = self.models.policy.call(Restore(None)).await?;
        if let Some((progress, state)) = restored {
            self.progress = progress;
            self.state = state;
            self.saved = Some(progress);
            self.report(Report::Resumed {
                incarnation,
                progress,
            });
        }
        for critic in self.critics() {
            let restored = critic.call(Restore(Some(self.progress))).await?;
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

    fn critics(&self) -> Vec<WorkerGroup<CriticWorker>> {
        let critics = [&self.models.critic, &self.models.cost_critic];
        critics.into_iter().flatten().cloned().collect()
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
        let stats = self.models.policy.call(WarmUp { first, last }).await?;
        self.progress.warmup = last;
        self.report(Report::Warmup { step: last, stats });
        if last == safe {
            self.save().await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let begun = Clock::now();
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
        };
        for critic in self.critics() {
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
        let stats = self.models.policy.call(Evaluate(problems)).await?;
        self.evaluated = Some(version);
        self.report(Report::Evaluated { version, stats });
        Ok(())
    }

    /// Ends all models. Those that are lost are gone already.
    async fn stop(&self) {
        let models = &self.models;
        end(models.policy.group()).await;
        end(models.reward.group()).await;
        end(models.estimator.group()).await;
        for critic in self.critics() {
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

/// Where models are made.
struct House<'a> {
    system: &'a System,
    plan: &'a HybridPlan,
    pools: Vec<Pool>,
    formations: Vec<Formation>,
    members: Vec<Member>,
}

impl House<'_> {
    /// The pool of a model, and whether it is the first there. Models of one name share it, and its
    /// turn.
    fn pool(&mut self, model: Model) -> (Pool, bool) {
        let name = self.plan.placement.pool_of(model);
        if let Some(pool) = self.pools.iter().find(|pool| pool.name() == name) {
            return (pool.clone(), false);
        }
        let pool = Pool::new(name);
        self.pools.push(pool.clone());
        (pool, true)
    }

    fn mesh(&self, pool: &Pool) -> Mesh {
        let own = self.plan.placement.ranks_of(pool.name());
        mesh! { dp: own.unwrap_or(self.plan.ranks) }
    }

    async fn spawn<A: Registered>(
        &mut self,
        model: Model,
        args: impl Fn() -> A::Args,
    ) -> Result<WorkerGroup<A>, Failure> {
        let (pool, first) = self.pool(model);
        // Who is the first of a pool reserves for all that follow into its processes.
        let needs = match model {
            _ if !first => Needs::new(),
            Model::Policy => self.plan.needs.0.clone(),
            _ => self.plan.needs.1.clone(),
        };
        let workers: SpawnWorkers<A> = pool.spawn(self.system, self.mesh(&pool), |_| args());
        // A rank that came back by itself would be asked as if it knew what was saved.
        let workers = workers.with(|group| {
            let once = group.restart(Restart::Temporary);
            once.needs(|_| needs.clone())
        });
        let workers = workers.start().await.map_err(Failure::error)?;
        for (rank, member) in workers.group().members().iter().enumerate() {
            let name = format!("{model}-{rank}");
            // For people who look on. Nobody needs it to be found.
            if let Err(error) = self.system.register(&name, *member).await {
                tracing::warn!(name, %error, "a rank has no name");
            }
            let process = self.system.admin().process_of(*member);
            self.members.push((name, member.id(), process));
        }
        Ok(workers)
    }

    async fn critic(
        &mut self,
        wanted: bool,
        model: Model,
    ) -> Result<Option<WorkerGroup<CriticWorker>>, Failure> {
        if !wanted {
            return Ok(None);
        }
        let args = WorkerArgs {
            spec: self.plan.spec.clone(),
            checkpoint: self.plan.train.checkpoint.join(model.to_string()),
        };
        let critic = self.spawn::<CriticWorker>(model, || args.clone()).await?;
        let join = self.seats(&critic).await?;
        critic.call(join).await?;
        Ok(Some(critic))
    }

    async fn seats<A: Actor>(&mut self, group: &WorkerGroup<A>) -> Result<Join, Failure> {
        let formation = group.form().await.map_err(Failure::error)?;
        let seats = formation.seats().collect();
        self.formations.push(formation);
        Ok(Join { seats })
    }

    async fn models(&mut self) -> Result<Models, Failure> {
        let plan = self.plan;
        let args = WorkerArgs {
            spec: plan.spec.clone(),
            checkpoint: plan.train.checkpoint.clone(),
        };
        let policy = self
            .spawn::<PolicyWorker>(Model::Policy, || args.clone())
            .await?;
        let join = self.seats(&policy).await?;
        policy
            .call(join)
            .await
            .map_err(|error: CallError| Failure::from(error))?;
        let reward = self
            .spawn::<RewardWorker>(Model::Reward, || plan.judge.clone())
            .await?;
        let critic = self
            .critic(plan.train.baseline.has_critic(), Model::Critic)
            .await?;
        let cost_critic = self
            .critic(plan.train.price.is_some(), Model::CostCritic)
            .await?;
        let reference = if plan.reference {
            Some(
                self.spawn::<ReferenceWorker>(Model::Reference, || args.clone())
                    .await?,
            )
        } else {
            None
        };
        let estimator = EstimatorArgs {
            baseline: plan.train.baseline,
            overlong: plan.train.overlong,
            price: plan.train.price,
        };
        // Near the driver: it computes next to nothing.
        let group = self
            .system
            .spawn_group::<Estimator>(mesh! { dp: 1 }, |_| estimator.clone());
        let estimator = group.await.map_err(Failure::error)?;
        Ok(Models {
            policy,
            reward,
            estimator: WorkerGroup::new(estimator, &Pool::new("estimator")),
            critic,
            cost_critic,
            reference,
        })
    }
}
