//! `odeon plan`: where the processes of a recipe would go, before any of them runs; of a pretraining run what each
//! rank would hold and add up with others.

mod parameters;
mod prediction;
mod ranks;

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use odeon::{Job, System};
use odeon_actors::hybrid::{HybridPlan, Model, PoolReservation};
use odeon_actors::ranks::places::demand;
use odeon_actors::rl::memory::RoleMemory;
use odeon_actors::rl::ranks::RanksPlan;
use odeon_actors::rl::run::{RoleReservation, RunPlan, relay_role};
use odeon_algorithms::train::{Footprint, Sharing};
use odeon_placement::{Demand, Plan, Refusal, View, solve};
use odeon_topology::{ClusterError, ClusterSpec};
use serde::Serialize;

use super::mapping;
use super::model::{self, Shape};
use super::stages;
use crate::args::PlanArgs;
use crate::figures;
use crate::print;
pub(super) use prediction::chosen;
pub(super) use ranks::outline;

/// The plan as it is told in JSON.
#[derive(Serialize)]
struct Told {
    /// Processes that reserve nothing, and live on the node that runs the recipe.
    unplaced: Vec<String>,
    plan: Option<Plan>,
    refusal: Option<Refusal>,
    /// Memory of ranks that share models of roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory: Vec<RoleRank>,
}

/// The memory of a rank of a role. Bytes are of numbers of four bytes.
#[derive(Serialize)]
struct RoleRank {
    role: &'static str,
    rank: usize,
    parameter_bytes: usize,
    gradient_bytes: usize,
    optimizer_bytes: usize,
    gathered_bytes: usize,
    /// None where they are not told: of models that read pictures.
    activation_bytes: Option<usize>,
}

impl RoleRank {
    fn of(memory: &RoleMemory) -> Vec<Self> {
        let ranks = memory.ranks.iter().enumerate();
        let told = ranks.map(|(rank, it)| Self {
            role: memory.role,
            rank,
            parameter_bytes: it.parameters,
            gradient_bytes: it.gradients,
            optimizer_bytes: it.optimizer,
            gathered_bytes: it.gathered,
            activation_bytes: it.activations,
        });
        told.collect()
    }
}

pub(crate) fn run(job: Job, args: &PlanArgs) -> Result<()> {
    let source = args.set.read(&args.recipe)?;
    if source.pretrains() {
        return ranks::run(job, &source, args);
    }
    let recipe = source.recipe()?;
    let plan = model::plan(&source, &recipe)?;
    let mapping = mapping::of(&source, &recipe, || Shape::of(&recipe, &plan))?;
    let placed = model::placed(&recipe, &plan, mapping.as_ref());
    let placed = placed.as_ref();
    let sharing = plan.sharing;
    let memory = memory(&plan, placed)?;
    let view = match &args.cluster {
        Some(path) => described(path)?,
        None => this_machine(job)?,
    };
    let (demands, unplaced) = match placed {
        Some(placed) => demands_of_pools(placed, &recipe.run.name),
        None => demands(&plan, &recipe.run.name),
    };
    let (plan, refusal) = match solve(&view, &demands) {
        Ok(plan) => (Some(plan), None),
        Err(refusal) => (None, Some(refusal)),
    };
    let lacking = plan.as_ref().and_then(|it| lacking(it, &memory, placed));
    let told = Told {
        unplaced,
        plan,
        refusal,
        memory: memory.iter().flat_map(RoleRank::of).collect(),
    };
    if args.json {
        print::line(serde_json::to_string(&told)?)?;
    } else {
        show_memory(&memory, sharing, placed)?;
        show(&told)?;
        let mut holders: Vec<String> = memory.iter().map(|it| holder_of(it.role, placed)).collect();
        holders.dedup();
        for holder in holders {
            show_stages(&holder, &told, sharing)?;
        }
    }
    match (told.refusal, lacking) {
        (Some(_), _) => bail!("the recipe has no place here"),
        (None, Some(lacking)) => bail!("{lacking}"),
        (None, None) => Ok(()),
    }
}

/// The memory of ranks that share the models of a run, in pools where these are placed.
fn memory(plan: &RunPlan, placed: Option<&HybridPlan>) -> Result<Vec<RoleMemory>> {
    let failed = |failure| anyhow!("{failure}");
    let mut memory = plan.memory().map_err(failed)?;
    if placed.is_some()
        && let Some(policy) = memory.first_mut()
    {
        policy.role = "policy";
        memory.insert(1, plan.generation_memory().map_err(failed)?);
    }
    Ok(memory)
}

/// The name, before their numbers, of the processes that hold the model of a role.
fn holder_of(role: &str, placed: Option<&HybridPlan>) -> String {
    let Some(placed) = placed else {
        return format!("{role}-rank");
    };
    let model = match role {
        "critic" => Model::Critic,
        "cost-critic" => Model::CostCritic,
        "reference" => Model::Reference,
        "reward-model" => Model::Reward,
        _ => Model::Policy,
    };
    placed.placement.pool_of(model)
}

/// The name of a rank by its role.
fn rank_of(role: &str, rank: usize, placed: Option<&HybridPlan>) -> String {
    match (role, placed) {
        (_, None) | ("reward-model", _) => RanksPlan::name_of(role, rank),
        ("generation", _) => format!("policy-{rank}, generating"),
        _ => format!("{role}-{rank}"),
    }
}

/// The same as [`demands`] of a run whose models are placed.
fn demands_of_pools(plan: &HybridPlan, name: &str) -> (Vec<Demand>, Vec<String>) {
    let (mut demands, mut unplaced) = (vec![], vec![]);
    for PoolReservation { pool, ranks, needs } in plan.reservations() {
        if needs.is_empty() {
            unplaced.extend((0..ranks).map(|rank| name_of(&pool, rank, ranks)));
        } else if plan.sharing.ranks() > 1 {
            demands.push(demand(&needs, name, &pool, plan.sharing));
        } else {
            let demand = needs.demand(name, &pool).isolated();
            demands.push(demand.gang(u32::try_from(ranks).unwrap_or(u32::MAX)));
        }
    }
    (demands, unplaced)
}

/// The reservations of a run of this name, and the processes that reserve nothing.
fn demands(plan: &RunPlan, name: &str) -> (Vec<Demand>, Vec<String>) {
    let mut demands: Vec<Demand> = vec![];
    let mut unplaced: Vec<String> = (0..plan.relays)
        .map(|relay| relay_role(relay, plan.relays))
        .collect();
    for reservation in plan.reservations() {
        let RoleReservation {
            role,
            needs,
            sharing,
        } = reservation;
        if needs.is_empty() {
            let ranks = sharing.map_or(1, |it| it.ranks());
            unplaced.extend((0..ranks).map(|rank| name_of(&role, rank, ranks)));
        } else {
            // As they are spawned: each has a process of its own.
            demands.push(match sharing {
                None => needs.demand(name, &role).isolated(),
                Some(sharing) => demand(needs, name, &role, sharing),
            });
        }
    }
    (demands, unplaced)
}

/// Checks that the ranks of a run of this name fit in the memory of the devices that they would get on these nodes.
/// Where there is no room for them now, nobody knows yet which these are.
///
/// # Errors
/// One does not: what it needs, and what there is.
pub(super) fn check_devices(
    view: &View,
    plan: &RunPlan,
    placed: Option<&HybridPlan>,
    name: &str,
) -> Result<()> {
    let memory = memory(plan, placed)?;
    if memory.is_empty() {
        return Ok(());
    }
    let (demands, _) = match placed {
        Some(placed) => demands_of_pools(placed, name),
        None => demands(plan, name),
    };
    let there = solve(view, &demands).ok();
    match there.and_then(|there| lacking(&there, &memory, placed)) {
        Some(lacking) => bail!("{lacking}"),
        None => Ok(()),
    }
}

/// The memory of ranks, by their names.
fn show_memory(memory: &[RoleMemory], sharing: Sharing, placed: Option<&HybridPlan>) -> Result<()> {
    if memory.is_empty() {
        return Ok(());
    }
    let all = memory.iter().flat_map(|role| {
        let ranks = role.ranks.iter().enumerate();
        ranks.map(|(rank, it)| (rank_of(role.role, rank, placed), it))
    });
    ranks::memory(all, sharing)?;
    print::line("")?;
    print::line(
        "Activations are those of the longest sequences, and of a reference, which learns nothing, at most.",
    )?;
    Ok(print::line("")?)
}

/// The first process whose ranks need more memory than the devices have that it would get.
fn lacking(plan: &Plan, memory: &[RoleMemory], placed: Option<&HybridPlan>) -> Option<String> {
    let mut holders: Vec<(String, Vec<&RoleMemory>)> = vec![];
    for role in memory {
        let holder = holder_of(role.role, placed);
        match holders.iter_mut().find(|(known, _)| *known == holder) {
            Some((_, roles)) => roles.push(role),
            None => holders.push((holder, vec![role])),
        }
    }
    let all = holders.iter().flat_map(|(holder, roles)| {
        let ranks = 0..roles[0].ranks.len();
        ranks.filter_map(move |rank| Some((holder, rank, together(roles, rank)?)))
    });
    let mut all = all;
    all.find_map(|(holder, rank, needed)| {
        let mut leases = plan.leases.iter();
        let lease = leases.find(|it| it.holder == *holder && it.rank as usize == rank)?;
        let has: u64 = lease.devices.iter().map(|device| device.memory).sum();
        let needs = needed.bytes() as u64;
        let bytes = |number: u64| figures::bytes(number as f64);
        (!lease.devices.is_empty() && needs > has).then(|| {
            format!(
                "{holder}-{rank} needs {} ({} of parameters, {} of gradients, {} of the optimiser, {} gathered, {} of \
                 activations), and its device on {} has {}: share the model over more ranks, or make sequences shorter",
                bytes(needs),
                bytes(needed.parameters as u64),
                bytes(needed.gradients as u64),
                bytes(needed.optimizer as u64),
                bytes(needed.gathered as u64),
                bytes(needed.activations.unwrap_or(0) as u64),
                lease.node,
                bytes(has)
            )
        })
    })
}

/// The memory of all that a rank has of models of one pool: what is for a pass is there of one at a time.
fn together(roles: &[&RoleMemory], rank: usize) -> Option<Footprint> {
    let mut all = roles.iter().filter_map(|role| role.ranks.get(rank));
    let first = all.next()?.clone();
    Some(all.fold(first, |sum, it| Footprint {
        parameters: sum.parameters + it.parameters,
        gradients: sum.gradients + it.gradients,
        optimizer: sum.optimizer + it.optimizer,
        gathered: sum.gathered.max(it.gathered),
        activations: sum.activations.max(it.activations),
        ..sum
    }))
}

fn show(told: &Told) -> Result<()> {
    if let Some(refusal) = &told.refusal {
        print::line(refusal)?;
        return Ok(());
    }
    let leases = || told.plan.iter().flat_map(|plan| &plan.leases);
    let ranks = |holder: &str| leases().filter(|lease| lease.holder == holder).count();
    let mut rows: Vec<Vec<String>> = leases()
        .map(|lease| {
            let devices: Vec<String> = lease.devices.iter().map(|d| d.index.to_string()).collect();
            vec![
                name_of(&lease.holder, lease.rank as usize, ranks(&lease.holder)),
                lease.node.clone(),
                if devices.is_empty() {
                    "-".to_owned()
                } else {
                    devices.join(" ")
                },
                if lease.resources.is_empty() {
                    "-".to_owned()
                } else {
                    lease.resources.to_string()
                },
            ]
        })
        .collect();
    for role in &told.unplaced {
        let cells = [role, "the node of the run", "-", "nothing"];
        rows.push(cells.map(str::to_owned).to_vec());
    }
    Ok(print::table(
        &["role", "node", "devices", "reserves"],
        &rows,
    )?)
}

/// The name of a process: its role, with its number where there are several.
fn name_of(holder: &str, rank: usize, of: usize) -> String {
    match of {
        1 => holder.to_owned(),
        _ => format!("{holder}-{rank}"),
    }
}

/// What lies on each node of ranks, and what crosses nodes; `holder` is their name before their numbers.
fn show_stages(holder: &str, told: &Told, sharing: Sharing) -> Result<()> {
    let whose = match holder.ends_with("rank") {
        true => format!("{holder}s"),
        false => format!("ranks of {holder}"),
    };
    let leases = told.plan.iter().flat_map(|plan| &plan.leases);
    let mut leases: Vec<_> = leases.filter(|lease| lease.holder == holder).collect();
    leases.sort_by_key(|lease| lease.rank);
    let nodes: Vec<String> = leases.iter().map(|lease| lease.node.clone()).collect();
    let Ok(mesh) = sharing.mesh() else {
        return Ok(());
    };
    let sentences = stages::told(&mesh, &nodes).into_iter();
    for sentence in sentences.filter(|_| mesh.len() > 1) {
        print::line(format!("{whose}: {sentence}."))?;
    }
    Ok(())
}

/// A cluster that a file describes.
fn described(path: &Path) -> Result<View> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let place = |error: ClusterError| match error.line {
        Some(line) => anyhow!("{}:{line}: {}", path.display(), error.error),
        None => anyhow!("{}: {}", path.display(), error.error),
    };
    let spec = ClusterSpec::from_toml(&text).map_err(place)?;
    View::described(&spec).map_err(|error| place(error.at_its_line(&text)))
}

/// The resources of this machine, as a run would find them.
fn this_machine(job: Job) -> Result<View> {
    job.run_with(
        |builder| builder,
        async |system: System| anyhow::Ok(nodes_of(&system).await),
    )
}

/// The nodes of a system, as they are now.
pub(super) async fn nodes_of(system: &System) -> View {
    let nodes = system.nodes().await;
    View::new(nodes.into_iter().map(|view| view.node))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use odeon_actors::recipe::Source;

    use super::*;

    /// SEMANTICS 163.
    #[test]
    fn ranks_that_do_not_fit_in_their_devices_are_refused_with_what_they_need() {
        let text = include_str!("../../../recipes/rl-sums.toml");
        let text = text.replace("[processes]", "[parallel]\npp = 2\n[processes]\nranks = 4");
        let source = Source::new(Path::new("ranks.toml"), &text);
        let mut shared = model::plan(&source, &source.recipe().unwrap()).unwrap();
        let nodes = |gib: f64| {
            let text = format!(
                "[devices.H200]\nmemory_gib = {gib}\n[[nodes]]\nname = 'node'\ncount = 2\ncpus = 96\n\
                 memory_gib = 2048\ngpus = {{ model = 'H200', count = 2, nvlink = 'node' }}\n"
            );
            View::described(&ClusterSpec::from_toml(&text).unwrap()).unwrap()
        };
        let check = |gib: f64, plan: &RunPlan| {
            let checked = check_devices(&nodes(gib), plan, None, "sums");
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check(0.001, &shared), Ok(()), "ranks without devices");
        shared.needs.trainer = odeon::Needs::new().gpus(1);
        assert_eq!(check(141.0, &shared), Ok(()));
        let why = check(0.001, &shared).unwrap_err();
        for said in [
            "trainer-rank-0 needs",
            "its device on node-0 has 1.02 MiB: share the model over more ranks",
        ] {
            assert!(why.contains(said), "{why}");
        }
        // No node has so many: which devices they get is not known, and the run waits for them.
        shared.needs.trainer = odeon::Needs::new().gpus(3);
        assert_eq!(check(0.001, &shared), Ok(()));
    }
}
