//! The models of a run, made and seated in their pools.

use std::convert::Infallible;

use futures::future::{BoxFuture, FutureExt, pending, ready, select_all};
use odeon::group::{CallError, Formation, Pool, SpawnWorkers, WorkerGroup};
use odeon::{Actor, Failure, Group, HandledBy, Mesh, Needs, Registered, Restart, System, mesh};

use super::calls::{Compose, Dealing, Join, Lend};
use super::placement::Model;
use super::program::{Models, SharedReward};
use super::recoveries::Recoveries;
use super::run::{HybridPlan, Member};
use super::weights::{Published, ranks_of_copy};
use super::workers::{
    CriticWorker, Estimator, EstimatorArgs, JudgeArgs, PolicyWorker, ReferenceWorker, RewardWorker,
    WorkerArgs,
};
use crate::engine::compute::{ComputeSpec, RankPlace};
use crate::packed::Packed;
use crate::ranks::asking::{LONG, answers};
use crate::ranks::meeting::{Begin, Begun, Greet, begin};
use crate::ranks::places::{near, talks};
use crate::ranks::recovery::Recovery;
use crate::rl::ranks::RanksPlan;
use crate::rl::ranks::rank::{ModelRank, ModelRankArgs, RankedRole};

/// Where models are made.
pub(super) struct House<'a> {
    system: &'a System,
    plan: &'a HybridPlan,
    pools: Vec<Pool>,
    seats: Seats,
    members: Vec<Member>,
    looks: Vec<BoxFuture<'static, Failure>>,
    recoveries: &'a Recoveries,
}

/// Ranks can talk to each other while these are there.
#[derive(Debug, Default)]
pub(super) struct Seats {
    _whole: Vec<Formation>,
    _shared: Vec<Begun>,
}

/// Models that are there.
pub(super) struct Housed {
    pub(super) models: Models,
    pub(super) seats: Seats,
    /// Their ranks.
    pub(super) members: Vec<Member>,
    /// Looks at ranks that share a model, for as long as they are there: one that holds up others is ended. Resolves where
    /// a person has to look at them.
    pub(super) looks: BoxFuture<'static, Failure>,
}

impl<'a> House<'a> {
    pub(super) const fn new(
        system: &'a System,
        plan: &'a HybridPlan,
        recoveries: &'a Recoveries,
    ) -> Self {
        Self {
            system,
            plan,
            pools: vec![],
            seats: Seats {
                _whole: vec![],
                _shared: vec![],
            },
            members: vec![],
            looks: vec![],
            recoveries,
        }
    }

    /// Makes all models.
    ///
    /// # Errors
    /// A rank does not start, or the ranks of a model cannot share it.
    pub(super) async fn open(mut self) -> Result<Housed, Failure> {
        let models = self.models().await?;
        let looks = match self.looks.is_empty() {
            true => pending().boxed(),
            false => select_all(self.looks).map(|(stopped, ..)| stopped).boxed(),
        };
        Ok(Housed {
            models,
            seats: self.seats,
            members: self.members,
            looks,
        })
    }

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

    const fn is_shared(&self) -> bool {
        self.plan.sharing.ranks() > 1
    }

    fn mesh(&self, pool: &Pool) -> Result<Mesh, Failure> {
        if self.is_shared() {
            return crate::ranks::mesh(self.plan.sharing);
        }
        Ok(mesh! { dp: self.plan.ranks_of(pool.name()) })
    }

    /// Starts ranks in the pool of a model.
    async fn start<A: Registered>(
        &mut self,
        model: Model,
        args: impl Fn(usize) -> A::Args,
    ) -> Result<WorkerGroup<A>, Failure> {
        let (pool, first) = self.pool(model);
        // Who is the first of a pool reserves for all that follow into its processes.
        let needs = match first {
            true => self.plan.needs_of(model).clone(),
            false => Needs::new(),
        };
        let mesh = self.mesh(&pool)?;
        let workers: SpawnWorkers<A> = pool.spawn(self.system, mesh, |rank| args(rank.index()));
        let sharing = self.plan.sharing;
        // A rank that came back by itself would be asked as if it knew what was saved.
        let workers = workers.with(|group| {
            let once = group.restart(Restart::Temporary);
            let group = once.needs(|_| needs.clone());
            match first && sharing.ranks() > 1 {
                true => near(group, sharing, talks(sharing)),
                false => group,
            }
        });
        workers.start().await.map_err(Failure::error)
    }

    /// Counts ranks among those of the run, under these names.
    fn count<A>(&mut self, group: &Group<A>, name: impl Fn(usize) -> String) {
        for (rank, member) in group.members().iter().enumerate() {
            let process = self.system.admin().process_of(*member);
            self.members.push((name(rank), member.id(), process));
        }
    }

    /// Starts the ranks of a model in its pool, each under a name.
    async fn spawn<A: Registered>(
        &mut self,
        model: Model,
        args: impl Fn(usize) -> A::Args,
    ) -> Result<WorkerGroup<A>, Failure> {
        let workers = self.start::<A>(model, args).await?;
        let name = |rank| format!("{model}-{rank}");
        for (rank, member) in workers.group().members().iter().enumerate() {
            let name = name(rank);
            // For people who look on. Nobody needs it to be found.
            if let Err(error) = self.system.register(&name, *member).await {
                tracing::warn!(name, %error, "a rank has no name");
            }
        }
        self.count(workers.group(), name);
        Ok(workers)
    }

    /// Settings of the ranks of a model that learns or rates.
    fn args(&self, model: Model) -> impl Fn(usize) -> WorkerArgs + use<> {
        let checkpoint = self.plan.checkpoint(model);
        let (spec, sharing) = (self.plan.spec.clone(), self.plan.sharing);
        move |rank| WorkerArgs {
            spec: spec.clone(),
            checkpoint: checkpoint.clone(),
            place: match sharing.ranks() {
                1 => RankPlace::ALONE,
                _ => RankPlace { sharing, rank },
            },
        }
    }

    /// Has the ranks of a model that they share take their seats, and looks at them from then on.
    async fn begin<A: Actor>(&mut self, model: Model, group: &Group<A>) -> Result<&Begun, Failure>
    where
        Greet: HandledBy<A>,
        Begin: HandledBy<A>,
    {
        let plan = self.plan;
        let begun = begin(group, plan.sharing, &plan.checkpoint(model)).await?;
        let board = self.recoveries.board(model).cloned();
        let board = board.ok_or_else(|| Failure::error("nobody looks at the ranks of a model"))?;
        let mut recovery = Recovery::new(board, plan.recovery.patience);
        let watched = group.clone();
        let looks = async move {
            let never = pending::<Result<Infallible, Failure>>();
            let excused = |_| ready(false).boxed();
            // Who calls them hears of the end of a rank, and says why it ended.
            match recovery.beside(&watched, excused, |_| (), never).await {
                Ok(never) => match never {},
                Err(stopped) => stopped,
            }
        };
        self.looks.push(looks.boxed());
        self.seats._shared.push(begun);
        let begun = self.seats._shared.last();
        begun.ok_or_else(|| Failure::error("no ranks have begun"))
    }

    async fn critic(
        &mut self,
        wanted: bool,
        model: Model,
    ) -> Result<Option<WorkerGroup<CriticWorker>>, Failure> {
        if !wanted {
            return Ok(None);
        }
        let args = self.args(model);
        let critic = self.spawn::<CriticWorker>(model, args).await?;
        if self.is_shared() {
            self.begin(model, critic.group()).await?;
        } else {
            let join = self.seats(&critic).await?;
            critic.call(join).await?;
        }
        Ok(Some(critic))
    }

    async fn seats<A: Actor>(&mut self, group: &WorkerGroup<A>) -> Result<Join, Failure> {
        let formation = group.form().await.map_err(Failure::error)?;
        let seats = formation.seats().collect();
        self.seats._whole.push(formation);
        Ok(Join { seats })
    }

    async fn policy(&mut self) -> Result<WorkerGroup<PolicyWorker>, Failure> {
        let model = Model::Policy;
        let args = self.args(model);
        let policy = self.spawn::<PolicyWorker>(model, args).await?;
        if !self.is_shared() {
            let join = self.seats(&policy).await?;
            policy
                .call(join)
                .await
                .map_err(|error: CallError| Failure::from(error))?;
            return Ok(policy);
        }
        let of_copy = ranks_of_copy(self.plan.sharing);
        let blobs = self.system.blobs();
        let held = &self.begin(model, policy.group()).await?.held;
        let mut all = vec![];
        for copy in held.chunks(of_copy) {
            let compose = Compose(Packed::pack(&blobs, copy)?);
            all.extend(std::iter::repeat_n(compose, copy.len()));
        }
        answers(policy.group().scatter(all).timeout(LONG).await)?;
        Ok(policy)
    }

    async fn reference(&mut self) -> Result<Option<WorkerGroup<ReferenceWorker>>, Failure> {
        if !self.plan.reference {
            return Ok(None);
        }
        let model = Model::Reference;
        let args = self.args(model);
        let reference = self.spawn::<ReferenceWorker>(model, args).await?;
        if self.is_shared() {
            self.begin(model, reference.group()).await?;
        }
        Ok(Some(reference))
    }

    /// The judges; where ranks share the model of what is learnt, these are there too, and the first judge asks them.
    async fn reward(
        &mut self,
    ) -> Result<(WorkerGroup<RewardWorker>, Option<SharedReward>), Failure> {
        let (model, judge) = (Model::Reward, &self.plan.judge);
        let learned = judge.learned.as_ref().filter(|_| self.is_shared());
        let args = |rank: usize| match learned {
            Some(_) if rank > 0 => JudgeArgs {
                learned: None,
                ..judge.clone()
            },
            _ => judge.clone(),
        };
        let reward = self.spawn::<RewardWorker>(model, args).await?;
        let Some((learned, spec)) = learned else {
            return Ok((reward, None));
        };
        let sharing = self.plan.sharing;
        let name = |rank| RanksPlan::name_of("reward-model", rank);
        let checkpoint = self.plan.checkpoint(model);
        let args = |rank| ModelRankArgs {
            role: RankedRole::Reward,
            name: name(rank),
            spec: ComputeSpec::clone(spec),
            place: RankPlace { sharing, rank },
            checkpoint: checkpoint.clone(),
            reward: Some(learned.model.clone()),
        };
        // They have their names themselves.
        let ranks = self.start::<ModelRank>(model, args).await?;
        self.count(ranks.group(), name);
        self.begin(model, ranks.group()).await?;
        let first = reward.group().members()[0];
        let lent = first.ask(Lend(ranks.group().clone())).timeout(LONG).await;
        lent.map_err(Failure::error)??;
        let shared = SharedReward {
            blend: learned.blend,
            ranks: ranks.group().clone(),
        };
        Ok((reward, Some(shared)))
    }

    async fn models(&mut self) -> Result<Models, Failure> {
        let plan = self.plan;
        let policy = self.policy().await?;
        let (reward, shared_reward) = self.reward().await?;
        let critic = self
            .critic(plan.train.baseline.has_critic(), Model::Critic)
            .await?;
        let cost_critic = self
            .critic(plan.train.price.is_some(), Model::CostCritic)
            .await?;
        let reference = self.reference().await?;
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
            dealing: match self.is_shared() {
                true => Dealing::Whole,
                false => Dealing::Rows,
            },
            weights: Published::default(),
            shared_reward,
        })
    }
}
