//! `odeon plan`: where the processes of a recipe would go, before any of them runs; of a pretraining run what each
//! rank would hold and add up with others.

mod parameters;
mod prediction;
mod ranks;

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use odeon::{Job, System};
use odeon_actors::ranks::places::demand;
use odeon_actors::rl::memory::RoleMemory;
use odeon_actors::rl::ranks::RanksPlan;
use odeon_actors::rl::run::{RoleReservation, relay_role};
use odeon_algorithms::train::Sharing;
use odeon_placement::{Demand, Plan, Refusal, View, solve};
use odeon_topology::{ClusterError, ClusterSpec};
use serde::Serialize;

use super::model;
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
    let sharing = plan.sharing;
    let memory = plan.memory().map_err(|failure| anyhow!("{failure}"))?;
    let view = match &args.cluster {
        Some(path) => described(path)?,
        None => this_machine(job)?,
    };
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
                None => needs.demand(&recipe.run.name, &role).isolated(),
                Some(sharing) => demand(needs, &recipe.run.name, &role, sharing),
            });
        }
    }
    let (plan, refusal) = match solve(&view, &demands) {
        Ok(plan) => (Some(plan), None),
        Err(refusal) => (None, Some(refusal)),
    };
    let lacking = plan.as_ref().and_then(|it| lacking(it, &memory));
    let told = Told {
        unplaced,
        plan,
        refusal,
        memory: memory.iter().flat_map(RoleRank::of).collect(),
    };
    if args.json {
        print::line(serde_json::to_string(&told)?)?;
    } else {
        show_memory(&memory, sharing)?;
        show(&told)?;
        for role in ["trainer", "critic", "cost-critic", "reference"] {
            show_stages(&format!("{role}-"), &told, sharing)?;
        }
    }
    match (told.refusal, lacking) {
        (Some(_), _) => bail!("the recipe has no place here"),
        (None, Some(lacking)) => bail!("{lacking}"),
        (None, None) => Ok(()),
    }
}

/// The memory of ranks, by their names.
fn show_memory(memory: &[RoleMemory], sharing: Sharing) -> Result<()> {
    if memory.is_empty() {
        return Ok(());
    }
    let all = memory.iter().flat_map(|role| {
        let ranks = role.ranks.iter().enumerate();
        ranks.map(|(rank, it)| (RanksPlan::name_of(role.role, rank), it))
    });
    ranks::memory(all, sharing)?;
    print::line("")?;
    print::line(
        "Activations are those of the longest sequences, and of a reference, which learns nothing, at most.",
    )?;
    Ok(print::line("")?)
}

/// The first rank that needs more memory than the devices have that it would get.
fn lacking(plan: &Plan, memory: &[RoleMemory]) -> Option<String> {
    let mut all = memory.iter().flat_map(|role| {
        let ranks = role.ranks.iter().enumerate();
        ranks.map(move |(rank, it)| (role.role, rank, it))
    });
    all.find_map(|(role, rank, needed)| {
        let holder = format!("{role}-rank");
        let mut leases = plan.leases.iter();
        let lease = leases.find(|it| it.holder == holder && it.rank as usize == rank)?;
        let has: u64 = lease.devices.iter().map(|device| device.memory).sum();
        let needs = needed.bytes() as u64;
        let bytes = |number: u64| figures::bytes(number as f64);
        (!lease.devices.is_empty() && needs > has).then(|| {
            format!(
                "{} needs {} ({} of parameters, {} of gradients, {} of the optimiser, {} gathered, {} of activations), \
                 and its device on {} has {}: share the model over more ranks, or make sequences shorter",
                RanksPlan::name_of(role, rank),
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

/// What lies on each node of the ranks of a role, and what crosses nodes; `role` is before the name of its ranks.
fn show_stages(role: &str, told: &Told, sharing: Sharing) -> Result<()> {
    let holder = format!("{role}rank");
    let leases = told.plan.iter().flat_map(|plan| &plan.leases);
    let mut leases: Vec<_> = leases.filter(|lease| lease.holder == holder).collect();
    leases.sort_by_key(|lease| lease.rank);
    let nodes: Vec<String> = leases.iter().map(|lease| lease.node.clone()).collect();
    let Ok(mesh) = sharing.mesh() else {
        return Ok(());
    };
    let sentences = stages::told(&mesh, &nodes).into_iter();
    for sentence in sentences.filter(|_| mesh.len() > 1) {
        print::line(format!("{holder}s: {sentence}."))?;
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
        async |system: System| {
            let nodes = system.nodes().await;
            anyhow::Ok(View::new(nodes.into_iter().map(|view| view.node)))
        },
    )
}
