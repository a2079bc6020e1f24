//! A run as a graph of supervised actors.
//!
//! ```text
//!            orders                  batches
//!  Rollout <-------- SampleStore <------------ Trainer ---> reports
//!   | |  \  finished    ^                       |   \  \
//!   | |   \-- Reward ---/             weights   |    \  Critic (ppo, vapo; two in safe_rlhf)
//!   | |       RewardModel (learned rewards)     |     \
//!   | |       Cost (safe_rlhf)               Source   \
//!   | |       Tools (environment)              |     |
//!   | +----- Relay <------ Relay <-------------+     Reference (kl > 0)
//!   +--- one process each; so have Relay, Trainer, Critic, Reference and RewardModel, and a Reward or
//!   Tools that run programs
//! ```

mod roles;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odeon::{
    Actor, ActorId, Failure, Needs, ProcessId, Ref, Registered, Spawn, SpawnError, System,
};
use odeon_algorithms::environment::{EnvironmentConfig, Latency};
use odeon_algorithms::train::Sharing;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use tokio::sync::mpsc;

use self::roles::Roles;
use super::chain::Forms;
use super::cost::{Cost, Harm};
use super::critic::Critic;
use super::packer::Packer;
use super::ranks::RanksPlan;
use super::referee::ProgramSpec;
use super::reference::Reference;
use super::relay::Relay;
use super::relays::Relays;
use super::repack::RepackLimits;
use super::report::{Monitor, Report, open_desk};
use super::reward::Reward;
use super::reward_model::{LearnedReward, RewardModel};
use super::rollout::{Judges, Rollout, RolloutArgs, Swap};
use super::source::SourceArgs;
use super::store::{SampleStore, StoreArgs};
use super::tools::Tools;
use super::trainer::{Halt, TrainPlan, Trainer, TrainerArgs, insist};
use crate::engine::{EngineSpec, Progress};

/// Settings that a run is made from, with everything that a recipe leaves open decided.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The store: task, tokenizer, bounds.
    pub store: StoreArgs,
    /// The engine of the rollouts.
    pub rollout_engine: EngineSpec,
    /// The engine of trainer, critic and reference.
    pub trainer_engine: EngineSpec,
    /// The way in which ranks share each of these models; alone, each is the matter of its actor.
    pub sharing: Sharing,
    /// The response to ranks that hold up the others.
    pub recovery: LadderPolicy,
    /// Rollout processes.
    pub rollouts: usize,
    /// Relay processes on each node that has rollouts.
    pub relays: usize,
    /// The forms in which weights travel from relay to relay.
    pub forms: Forms,
    /// The way in which rollouts change to newer weights.
    pub swap: Swap,
    /// Time between two reports of their progress with replies.
    pub tell_every: Duration,
    /// When those that run dry are packed together.
    pub repack: Option<Repack>,
    /// The actors that have a process of their own.
    pub processes: Processes,
    /// Resources that the processes reserve.
    pub needs: RoleNeeds,
    /// Set when there is a reference (divergence penalty).
    pub reference: bool,
    /// Settings for running programs in replies, where the task has some.
    pub programs: ProgramSpec,
    /// The tool that replies can call, if there is one.
    pub environment: Option<Acting>,
    /// A reward that is learnt, where the checker's is not all that counts.
    pub learned: Option<LearnedReward>,
    /// The measure of harm, where it has a price.
    pub harm: Option<Harm>,
    /// Steps of the trainer, checkpoints, and evaluations.
    pub train: TrainPlan,
    /// The detectors of the run; they have seen what the run told before.
    pub watch: Watch,
}

/// The tool that replies can call, and its latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acting {
    /// The tool, and how much of it.
    pub environment: EnvironmentConfig,
    /// Time that is added to each call.
    pub latency: Latency,
    /// The longest reply, in tokens, what tools write included.
    pub response_max: usize,
}

/// The actors that have a process of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processes {
    /// Whoever computes, so that it takes nobody else down.
    #[default]
    Own,
    /// Nobody: for runs under virtual time, in which nothing is computed.
    Shared,
}

impl Processes {
    fn spawn<A: Actor>(self, spawn: Spawn<A>) -> Spawn<A> {
        match self {
            Self::Own => spawn.isolated(),
            Self::Shared => spawn,
        }
    }

    /// Time between two words of relays that they are there: what is lost of an order, or with
    /// whoever keeps their book, is made up for after that time.
    const fn beat(self) -> Duration {
        match self {
            Self::Own => Duration::from_secs(1),
            // Nothing is lost.
            Self::Shared => Duration::from_secs(60),
        }
    }
}

/// When rollouts that run dry are packed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repack {
    /// Time between two looks, beside those after each update.
    pub period: Duration,
    /// The most that a rollout may hold.
    pub limits: RepackLimits,
}

/// Resources that each role reserves on its node.
#[derive(Clone, Debug, Default)]
pub struct RoleNeeds {
    /// The trainer.
    pub trainer: Needs,
    /// Critic, reference and reward model, each.
    pub scorer: Needs,
    /// Each rollout.
    pub rollout: Needs,
}

impl RunPlan {
    /// The ranks of a role that computes on what these needs reserve; `None` where it needs no others.
    fn ranks(&self, needs: &Needs) -> Option<RanksPlan> {
        (self.sharing.ranks() > 1).then(|| RanksPlan {
            sharing: self.sharing,
            needs: needs.clone(),
            recovery: self.recovery.clone(),
        })
    }

    /// Resources that the actor of such a role reserves: none where its ranks do.
    fn needs_of(&self, needs: &Needs) -> Needs {
        match self.sharing.ranks() {
            1 => needs.clone(),
            _ => Needs::new(),
        }
    }

    /// Resources that the roles with a process of their own reserve, in the order in which they
    /// start.
    pub fn reservations(&self) -> impl Iterator<Item = RoleReservation<'_>> {
        let one = |role: String, needs| RoleReservation {
            role,
            needs,
            sharing: None,
        };
        let of_role = move |role: &str, needs| match self.sharing.ranks() {
            1 => one(role.to_owned(), needs),
            _ => RoleReservation {
                role: format!("{role}-rank"),
                needs,
                sharing: Some(self.sharing),
            },
        };
        let scorers = [
            ("critic", self.train.baseline.has_critic()),
            ("cost-critic", self.train.price.is_some()),
            ("reference", self.reference),
            ("reward-model", self.learned.is_some()),
        ];
        let scorers = scorers.into_iter().filter(|(_, wanted)| *wanted);
        let scorers = scorers.map(move |(role, _)| of_role(role, &self.needs.scorer));
        let rollout = move |nth| one(format!("rollout-{nth}"), &self.needs.rollout);
        scorers
            .chain([of_role("trainer", &self.needs.trainer)])
            .chain((0..self.rollouts).map(rollout))
    }
}

/// Resources that processes of a run reserve.
#[derive(Clone, Debug)]
pub struct RoleReservation<'a> {
    /// The role; where several ranks share its model, what comes before their numbers.
    pub role: String,
    /// Resources of each process.
    pub needs: &'a Needs,
    /// The way in which ranks share its model, where it has several.
    pub sharing: Option<Sharing>,
}

/// A run that has started.
#[derive(Debug)]
pub struct Run {
    /// Reports of the trainer.
    pub reports: mpsc::UnboundedReceiver<Report>,
    /// The sample store.
    pub store: Ref<SampleStore>,
    /// The actor that judges.
    pub reward: Ref<Reward>,
    /// The actor that answers calls, where there are some.
    pub tools: Option<Ref<Tools>>,
    /// The relays, by their numbers.
    pub relays: Vec<Ref<Relay>>,
    /// The actor that watches over the relays.
    pub chain: Ref<Relays>,
    /// The trainer.
    pub trainer: Ref<Trainer>,
    /// The rollouts.
    pub rollouts: Vec<Ref<Rollout>>,
    /// The packer, where there is one.
    pub packer: Option<Ref<Packer>>,
    critic: Option<Ref<Critic>>,
    cost_critic: Option<Ref<Critic>>,
    reference: Option<Ref<Reference>>,
    reward_model: Option<Ref<RewardModel>>,
    system: System,
}

impl Run {
    /// Spawns the graph. It begins at once, or goes on from the checkpoint.
    ///
    /// # Errors
    /// An actor did not start.
    #[odeon::boxed]
    pub async fn start(system: &System, plan: RunPlan) -> Result<Self, SpawnError> {
        let desk = NEXT_DESK.fetch_add(1, Ordering::Relaxed);
        let reports = open_desk(desk, plan.watch.clone());
        let roles = Roles {
            system,
            plan: &plan,
        };
        let monitor = roles.near::<Monitor>(desk).await?;
        let store = roles.near::<SampleStore>(plan.store.clone()).await?;
        let tools = roles.tools().await?;
        let reward = roles.reward().await?;
        let chain = roles.near::<Relays>(()).await?;
        let cost = roles.cost().await?;
        let critic = roles.critic("critic", plan.train.baseline.has_critic());
        let critic = critic.await?;
        let cost_critic = roles.critic("cost-critic", plan.train.price.is_some());
        let cost_critic = cost_critic.await?;
        let reference = roles.reference().await?;
        let reward_model = roles.reward_model(monitor).await?;
        let trainer = TrainerArgs {
            engine: plan.trainer_engine.clone(),
            ranks: plan.ranks(&plan.needs.trainer),
            store,
            source: SourceArgs {
                relays: chain,
                beat: plan.processes.beat(),
                forms: plan.forms,
            },
            critic,
            cost_critic,
            reference,
            reports: monitor.narrow(),
            plan: plan.train.clone(),
        };
        let trainer = roles.trainer(trainer).await?;
        let rollout = RolloutArgs {
            engine: plan.rollout_engine.clone(),
            store,
            relays: chain,
            judges: Judges {
                reward,
                model: reward_model,
                cost,
            },
            tooling: roles.tooling(tools),
            swap: plan.swap,
            tell_every: plan.tell_every,
        };
        let rollouts = roles.rollouts(&rollout).await?;
        let packer = roles.packer(&rollouts, chain).await?;
        let relays = roles.relays(&rollouts, packer, chain).await?;
        let run = Self {
            reports,
            store,
            reward,
            tools,
            relays,
            chain,
            trainer,
            rollouts,
            packer,
            critic,
            cost_critic,
            reference,
            reward_model,
            system: system.clone(),
        };
        run.name_all(monitor, cost).await;
        Ok(run)
    }

    /// Gives the actors their roles for names.
    async fn name_all(&self, monitor: Ref<Monitor>, cost: Option<Ref<Cost>>) {
        self.called("monitor", monitor).await;
        self.called("store", self.store).await;
        self.called("reward", self.reward).await;
        self.called("relays", self.chain).await;
        for (index, relay) in self.relays.iter().enumerate() {
            self.called(&self.relay_role(index), *relay).await;
        }
        for (index, rollout) in self.rollouts.iter().enumerate() {
            self.called(&format!("rollout-{index}"), *rollout).await;
        }
        self.called_if("packer", self.packer).await;
        self.called_if("tools", self.tools).await;
        self.called_if("cost", cost).await;
        self.called_if("critic", self.critic).await;
        self.called_if("cost-critic", self.cost_critic).await;
        self.called_if("reference", self.reference).await;
        self.called_if("reward-model", self.reward_model).await;
    }

    async fn called_if<A: Registered>(&self, role: &str, actor: Option<Ref<A>>) {
        if let Some(actor) = actor {
            self.called(role, actor).await;
        }
    }

    /// Gives an actor its role for a name, for people who look on. Nobody needs it to be found.
    async fn called<A: Registered>(&self, role: &str, actor: Ref<A>) {
        if let Err(error) = self.system.register(role, actor).await {
            tracing::warn!(role, %error, "an actor has no name");
        }
    }

    /// Stops in order: the trainer ends its turn, saves and does no more. The last report is
    /// [`Report::Halted`] then.
    ///
    /// # Errors
    /// The trainer could not save, or does not come back.
    pub fn halt(&self) -> impl Future<Output = Result<Progress, Failure>> + Send + use<> {
        let trainer = self.trainer;
        async move { insist(trainer, || Halt).await? }
    }

    /// The actors that have a process of their own, by role.
    pub fn roles(&self) -> impl Iterator<Item = (String, ActorId, Option<ProcessId>)> {
        let relays = self.relays.iter().enumerate();
        let mut roles: Vec<_> = relays
            .map(|(index, relay)| self.role(self.relay_role(index), *relay))
            .collect();
        roles.push(self.role("trainer", self.trainer));
        let reward = self.role("reward", self.reward);
        let tools = self.tools.map(|tools| self.role("tools", tools));
        let apart = [Some(reward), tools].into_iter().flatten();
        roles.extend(apart.filter(|it| it.2 != Some(self.system.process())));
        roles.extend(self.critic.map(|critic| self.role("critic", critic)));
        let cost_critic = self.cost_critic;
        roles.extend(cost_critic.map(|critic| self.role("cost-critic", critic)));
        roles.extend(self.reference.map(|actor| self.role("reference", actor)));
        let model = self.reward_model;
        roles.extend(model.map(|model| self.role("reward-model", model)));
        for (index, rollout) in self.rollouts.iter().enumerate() {
            roles.push(self.role(format!("rollout-{index}"), *rollout));
        }
        roles.into_iter()
    }

    fn relay_role(&self, index: usize) -> String {
        relay_role(index, self.relays.len())
    }

    fn role<A>(
        &self,
        name: impl Into<String>,
        actor: Ref<A>,
    ) -> (String, ActorId, Option<ProcessId>) {
        (
            name.into(),
            actor.id(),
            self.system.admin().process_of(actor),
        )
    }
}

/// The name of a relay for people: with its number where there are several.
#[must_use]
pub fn relay_role(index: usize, relays: usize) -> String {
    match relays {
        1 => "relay".to_owned(),
        _ => format!("relay-{index}"),
    }
}

/// Each run of a process listens at a desk of its own.
static NEXT_DESK: AtomicU64 = AtomicU64::new(0);
