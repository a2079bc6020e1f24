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

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odeon::inspect::NodeView;
use odeon::{
    Actor, ActorId, Failure, Needs, ProcessId, Ref, Registered, Restart, Spawn, SpawnError, System,
};
use odeon_algorithms::environment::{EnvironmentConfig, Latency, Tool};
use odeon_algorithms::signs::Watch;
use odeon_algorithms::task::TaskSpec;
use tokio::sync::mpsc;

use super::chain::{Forms, RelayId};
use super::cost::{Cost, CostArgs, Harm};
use super::critic::{Critic, CriticArgs};
use super::packer::{Packer, PackerArgs};
use super::referee::ProgramSpec;
use super::reference::{Reference, ReferenceArgs};
use super::relay::{Relay, RelayArgs};
use super::relays::{Relays, Seat};
use super::repack::RepackLimits;
use super::report::{Monitor, Report, open_desk};
use super::reward::{Reward, RewardArgs};
use super::reward_model::{LearnedReward, RewardModel, RewardModelArgs};
use super::rollout::{Judges, Rollout, RolloutArgs, Swap, Tooling};
use super::source::SourceArgs;
use super::store::{SampleStore, StoreArgs};
use super::tools::{Tools, ToolsArgs};
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
    /// The watch for signs that the run goes wrong; it has seen what the run told before.
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
    /// Resources that the roles with a process of their own reserve, in the order in which they
    /// start.
    pub fn reservations(&self) -> impl Iterator<Item = (String, &Needs)> {
        let scorers = [
            ("critic", self.train.baseline.has_critic()),
            ("cost-critic", self.train.price.is_some()),
            ("reference", self.reference),
            ("reward-model", self.learned.is_some()),
        ];
        let scorers = scorers.into_iter().filter(|(_, wanted)| *wanted);
        let scorers = scorers.map(|(role, _)| (role.to_owned(), &self.needs.scorer));
        let trainer = ("trainer".to_owned(), &self.needs.trainer);
        let rollout = |nth| (format!("rollout-{nth}"), &self.needs.rollout);
        scorers
            .chain([trainer])
            .chain((0..self.rollouts).map(rollout))
    }
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
        let processes = plan.processes;
        let desk = NEXT_DESK.fetch_add(1, Ordering::Relaxed);
        let reports = open_desk(desk, plan.watch);
        let always = Restart::Permanent;
        let monitor = system.spawn::<Monitor>(desk).restart(always).await?;
        let task = plan.store.task.clone();
        let (seed, tokenizer) = (plan.store.seed, plan.store.tokenizer.clone());
        let store = system
            .spawn::<SampleStore>(plan.store)
            .restart(always)
            .await?;
        let text = tokenizer.clone();
        let runs_programs = matches!(task, TaskSpec::Code(_));
        let tools = match plan.environment {
            Some(acting) => {
                let args = ToolsArgs {
                    environment: acting.environment,
                    programs: plan.programs.clone(),
                    latency: acting.latency,
                    seed,
                };
                let tools = system.spawn::<Tools>(args).restart(always);
                Some(match acting.environment.tool {
                    Tool::Calculator => tools.await?,
                    Tool::Python => processes.spawn(tools).await?,
                })
            }
            None => None,
        };
        let tooling = plan.environment.zip(tools).map(|(acting, tools)| Tooling {
            tools,
            environment: acting.environment,
            tokenizer: tokenizer.clone(),
            response_max: acting.response_max,
        });
        let reward = RewardArgs {
            task,
            programs: plan.programs,
            seed,
            tokenizer,
        };
        let reward = system.spawn::<Reward>(reward).restart(always);
        let reward = if runs_programs {
            processes.spawn(reward).await?
        } else {
            reward.await?
        };
        let chain = system.spawn::<Relays>(()).restart(always).await?;
        let beat = processes.beat();
        let cost = match plan.harm {
            Some(harm) => {
                let args = CostArgs {
                    harm,
                    tokenizer: text,
                };
                Some(system.spawn::<Cost>(args).restart(always).await?)
            }
            None => None,
        };
        let critic = async |wanted: bool, name: &str| {
            if !wanted {
                return Ok(None);
            }
            let args = CriticArgs {
                engine: plan.trainer_engine.clone(),
                checkpoint: plan.train.checkpoint.join(name),
            };
            let critic = system
                .spawn::<Critic>(args)
                .needs(|_| plan.needs.scorer.clone())
                .restart(always);
            processes.spawn(critic).await.map(Some)
        };
        let (scored, priced) = (plan.train.baseline.has_critic(), plan.train.price.is_some());
        let (critic, cost_critic) = (
            critic(scored, "critic").await?,
            critic(priced, "cost-critic").await?,
        );
        let reference = if plan.reference {
            let args = ReferenceArgs {
                engine: plan.trainer_engine.clone(),
            };
            let reference = system
                .spawn::<Reference>(args)
                .needs(|_| plan.needs.scorer.clone())
                .restart(always);
            Some(processes.spawn(reference).await?)
        } else {
            None
        };
        let reward_model = match plan.learned {
            Some(learned) => {
                let args = RewardModelArgs {
                    engine: plan.trainer_engine.clone(),
                    learned,
                    reports: monitor.narrow(),
                };
                let model = system
                    .spawn::<RewardModel>(args)
                    .needs(|_| plan.needs.scorer.clone())
                    .restart(always);
                Some(processes.spawn(model).await?)
            }
            None => None,
        };
        let args = TrainerArgs {
            engine: plan.trainer_engine,
            store,
            source: SourceArgs {
                relays: chain,
                beat,
                forms: plan.forms,
            },
            critic,
            cost_critic,
            reference,
            reports: monitor.narrow(),
            plan: plan.train,
        };
        let trainer = system
            .spawn::<Trainer>(args)
            .needs(|_| plan.needs.trainer.clone())
            .restart(always);
        let trainer = processes.spawn(trainer).await?;
        let args = RolloutArgs {
            engine: plan.rollout_engine,
            store,
            relays: chain,
            judges: Judges {
                reward,
                model: reward_model,
                cost,
            },
            tooling,
            swap: plan.swap,
            tell_every: plan.tell_every,
        };
        let mut rollouts = vec![];
        for index in 0..plan.rollouts {
            let mut args = args.clone();
            args.engine = args.engine.of_rollout(index);
            let rollout = system
                .spawn::<Rollout>(args)
                .needs(|_| plan.needs.rollout.clone())
                .restart(always);
            rollouts.push(processes.spawn(rollout).await?);
        }
        let packer = match plan.repack {
            Some(Repack { period, limits }) => {
                let args = PackerArgs {
                    rollouts: rollouts.clone(),
                    relays: chain,
                    limits,
                    period,
                };
                Some(system.spawn::<Packer>(args).restart(always).await?)
            }
            None => None,
        };
        let mut groups = nodes_of(system, &rollouts, &plan.needs.rollout).await;
        let mut relays = vec![];
        for (node, members) in &mut groups {
            // Whoever packs wants news of one of them.
            let packer = packer.filter(|_| relays.is_empty()).map(Ref::narrow);
            for nth in 0..plan.relays {
                let every = members.iter().skip(nth).step_by(plan.relays);
                let mut seats: Vec<Seat> = every.map(|rollout| rollout.narrow()).collect();
                seats.extend(packer.filter(|_| nth == 0));
                let args = RelayArgs {
                    id: relays.len() as RelayId,
                    relays: chain,
                    seats,
                    beat,
                    forms: plan.forms,
                };
                let relay = system.spawn::<Relay>(args).restart(always);
                let relay = match node {
                    Some(node) => relay.on_node(node.as_str()),
                    None => processes.spawn(relay),
                };
                relays.push(relay.await?);
            }
        }
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
        run.called("monitor", monitor).await;
        run.called("store", store).await;
        run.called("reward", reward).await;
        run.called("relays", chain).await;
        for (index, relay) in run.relays.iter().enumerate() {
            run.called(&run.relay_role(index), *relay).await;
        }
        for (index, rollout) in run.rollouts.iter().enumerate() {
            run.called(&format!("rollout-{index}"), *rollout).await;
        }
        if let Some(packer) = packer {
            run.called("packer", packer).await;
        }
        if let Some(tools) = tools {
            run.called("tools", tools).await;
        }
        if let Some(cost) = cost {
            run.called("cost", cost).await;
        }
        if let Some(critic) = critic {
            run.called("critic", critic).await;
        }
        if let Some(critic) = cost_critic {
            run.called("cost-critic", critic).await;
        }
        if let Some(reference) = reference {
            run.called("reference", reference).await;
        }
        if let Some(model) = reward_model {
            run.called("reward-model", model).await;
        }
        Ok(run)
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
        (name.into(), actor.id(), self.system.process_of(actor))
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

/// The rollouts by their nodes; `None` is this one. Those that reserve nothing are here, and the
/// leases of the others tell where they are.
async fn nodes_of(
    system: &System,
    rollouts: &[Ref<Rollout>],
    needs: &Needs,
) -> Vec<(Option<String>, Vec<Ref<Rollout>>)> {
    let nodes = match needs.is_empty() {
        true => vec![],
        false => system.nodes().await,
    };
    let mut groups: Vec<(Option<String>, Vec<Ref<Rollout>>)> = vec![];
    for rollout in rollouts {
        let holds = |view: &&NodeView| view.actors.iter().any(|(id, ..)| *id == rollout.id());
        let node = nodes.iter().find(holds).map(|view| view.node.name.clone());
        match groups.iter_mut().find(|(known, _)| *known == node) {
            Some((_, members)) => members.push(*rollout),
            None => groups.push((node, vec![*rollout])),
        }
    }
    groups
}

/// Each run of a process listens at a desk of its own.
static NEXT_DESK: AtomicU64 = AtomicU64::new(0);
