//! The roles of a run, each spawned with what its plan says of it.

use odeon::inspect::NodeView;
use odeon::{Needs, Ref, Registered, Restart, SpawnError, System};
use odeon_algorithms::environment::Tool;
use odeon_algorithms::task::TaskSpec;

use super::{Repack, RunPlan};
use crate::rl::chain::RelayId;
use crate::rl::cost::{Cost, CostArgs};
use crate::rl::critic::{Critic, CriticArgs};
use crate::rl::packer::{Packer, PackerArgs};
use crate::rl::reference::{Reference, ReferenceArgs};
use crate::rl::relay::{Relay, RelayArgs};
use crate::rl::relays::{Relays, Seat};
use crate::rl::report::Monitor;
use crate::rl::reward::{Reward, RewardArgs};
use crate::rl::reward_model::{RewardModel, RewardModelArgs};
use crate::rl::rollout::{Rollout, RolloutArgs, Tooling};
use crate::rl::tools::{Tools, ToolsArgs};
use crate::rl::trainer::{Trainer, TrainerArgs};

/// The system in which roles are spawned, and the plan that they are spawned by.
#[derive(Clone, Copy)]
pub(super) struct Roles<'a> {
    pub(super) system: &'a System,
    pub(super) plan: &'a RunPlan,
}

impl Roles<'_> {
    /// Spawns an actor in this process.
    pub(super) async fn near<A: Registered>(self, args: A::Args) -> Result<Ref<A>, SpawnError> {
        self.system.spawn::<A>(args).restart(ALWAYS).await
    }

    /// Spawns an actor that computes, in a process of its own.
    async fn apart<A: Registered>(
        self,
        args: A::Args,
        needs: &Needs,
    ) -> Result<Ref<A>, SpawnError> {
        let spawn = self.system.spawn::<A>(args).needs(|_| needs.clone());
        self.plan.processes.spawn(spawn.restart(ALWAYS)).await
    }

    pub(super) async fn tools(self) -> Result<Option<Ref<Tools>>, SpawnError> {
        let Some(acting) = self.plan.environment else {
            return Ok(None);
        };
        let args = ToolsArgs {
            environment: acting.environment,
            programs: self.plan.programs.clone(),
            latency: acting.latency,
            seed: self.plan.store.seed,
        };
        let tools = self.system.spawn::<Tools>(args).restart(ALWAYS);
        let tools = match acting.environment.tool {
            Tool::Calculator => tools.await,
            Tool::Python => self.plan.processes.spawn(tools).await,
        };
        tools.map(Some)
    }

    /// The tools as rollouts have to know them.
    pub(super) fn tooling(self, tools: Option<Ref<Tools>>) -> Option<Tooling> {
        let both = self.plan.environment.zip(tools);
        both.map(|(acting, tools)| Tooling {
            tools,
            environment: acting.environment,
            tokenizer: self.plan.store.tokenizer.clone(),
            response_max: acting.response_max,
        })
    }

    pub(super) async fn reward(self) -> Result<Ref<Reward>, SpawnError> {
        let store = &self.plan.store;
        let args = RewardArgs {
            task: store.task.clone(),
            programs: self.plan.programs.clone(),
            seed: store.seed,
            tokenizer: store.tokenizer.clone(),
        };
        let reward = self.system.spawn::<Reward>(args).restart(ALWAYS);
        match store.task {
            // It runs programs.
            TaskSpec::Code(_) => self.plan.processes.spawn(reward).await,
            _ => reward.await,
        }
    }

    pub(super) async fn cost(self) -> Result<Option<Ref<Cost>>, SpawnError> {
        let Some(harm) = self.plan.harm.clone() else {
            return Ok(None);
        };
        let tokenizer = self.plan.store.tokenizer.clone();
        self.near(CostArgs { harm, tokenizer }).await.map(Some)
    }

    /// A critic under the name of its checkpoint, where it is wanted.
    pub(super) async fn critic(
        self,
        name: &str,
        wanted: bool,
    ) -> Result<Option<Ref<Critic>>, SpawnError> {
        if !wanted {
            return Ok(None);
        }
        let args = CriticArgs {
            engine: self.plan.trainer_engine.clone(),
            ranks: self.plan.ranks(&self.plan.needs.scorer),
            name: name.to_owned(),
            checkpoint: self.plan.train.checkpoint.join(name),
        };
        let needs = self.plan.needs_of(&self.plan.needs.scorer);
        self.apart(args, &needs).await.map(Some)
    }

    pub(super) async fn reference(self) -> Result<Option<Ref<Reference>>, SpawnError> {
        if !self.plan.reference {
            return Ok(None);
        }
        let args = ReferenceArgs {
            engine: self.plan.trainer_engine.clone(),
            ranks: self.plan.ranks(&self.plan.needs.scorer),
            folder: self.plan.train.checkpoint.clone(),
        };
        let needs = self.plan.needs_of(&self.plan.needs.scorer);
        self.apart(args, &needs).await.map(Some)
    }

    pub(super) async fn reward_model(
        self,
        monitor: Ref<Monitor>,
    ) -> Result<Option<Ref<RewardModel>>, SpawnError> {
        let Some(learned) = self.plan.learned.clone() else {
            return Ok(None);
        };
        let args = RewardModelArgs {
            engine: self.plan.trainer_engine.clone(),
            ranks: self.plan.ranks(&self.plan.needs.scorer),
            learned,
            reports: monitor.narrow(),
        };
        let needs = self.plan.needs_of(&self.plan.needs.scorer);
        self.apart(args, &needs).await.map(Some)
    }

    pub(super) async fn trainer(self, args: TrainerArgs) -> Result<Ref<Trainer>, SpawnError> {
        let needs = self.plan.needs_of(&self.plan.needs.trainer);
        self.apart(args, &needs).await
    }

    pub(super) async fn rollouts(
        self,
        args: &RolloutArgs,
    ) -> Result<Vec<Ref<Rollout>>, SpawnError> {
        let mut rollouts = vec![];
        for index in 0..self.plan.rollouts {
            let mut args = args.clone();
            args.engine = args.engine.of_rollout(index);
            rollouts.push(self.apart(args, &self.plan.needs.rollout).await?);
        }
        Ok(rollouts)
    }

    pub(super) async fn packer(
        self,
        rollouts: &[Ref<Rollout>],
        chain: Ref<Relays>,
    ) -> Result<Option<Ref<Packer>>, SpawnError> {
        let Some(Repack { period, limits }) = self.plan.repack else {
            return Ok(None);
        };
        let args = PackerArgs {
            rollouts: rollouts.to_vec(),
            relays: chain,
            limits,
            period,
        };
        self.near(args).await.map(Some)
    }

    /// Relays on each node that has rollouts, among which these are dealt.
    pub(super) async fn relays(
        self,
        rollouts: &[Ref<Rollout>],
        packer: Option<Ref<Packer>>,
        chain: Ref<Relays>,
    ) -> Result<Vec<Ref<Relay>>, SpawnError> {
        let plan = self.plan;
        let mut relays = vec![];
        for (node, members) in nodes_of(self.system, rollouts, &plan.needs.rollout).await {
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
                    beat: plan.processes.beat(),
                    forms: plan.forms,
                };
                let relay = self.system.spawn::<Relay>(args).restart(ALWAYS);
                let relay = match &node {
                    Some(node) => relay.on_node(node.as_str()),
                    None => plan.processes.spawn(relay),
                };
                relays.push(relay.await?);
            }
        }
        Ok(relays)
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

/// Roles begin anew however they end: none is over before the run is.
const ALWAYS: Restart = Restart::Permanent;
