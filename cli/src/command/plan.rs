//! `odeon plan`: where the processes of a recipe would go, before any of them runs; of a pretraining run what each
//! rank would hold and add up with others.

mod parameters;
mod prediction;
mod ranks;

use std::path::Path;

use anyhow::{Context, Result, bail};
use odeon::{Job, System};
use odeon_actors::rl::run::{RoleReservation, relay_role};
use odeon_placement::{Arrange, Demand, Plan, Refusal, View, solve};
use odeon_topology::{ClusterError, ClusterSpec};
use serde::Serialize;

use super::model;
use crate::args::PlanArgs;
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
}

pub(crate) fn run(job: Job, args: &PlanArgs) -> Result<()> {
    let source = args.set.read(&args.recipe)?;
    if source.pretrains() {
        return ranks::run(job, &source, args);
    }
    let recipe = source.recipe()?;
    let plan = model::plan(&source, &recipe)?;
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
            together,
        } = reservation;
        if needs.is_empty() {
            unplaced.push(role);
        } else {
            // As they are spawned: each has a process of its own.
            let demand = needs.demand(&recipe.run.name, &role).isolated();
            demands.push(match together {
                1 => demand,
                ranks => demand.gang(ranks).arrange(Arrange::StrictPack),
            });
        }
    }
    let (plan, refusal) = match solve(&view, &demands) {
        Ok(plan) => (Some(plan), None),
        Err(refusal) => (None, Some(refusal)),
    };
    let told = Told {
        unplaced,
        plan,
        refusal,
    };
    if args.json {
        print::line(serde_json::to_string(&told)?)?;
    } else {
        show(&told)?;
    }
    match told.refusal {
        Some(_) => bail!("the recipe has no place here"),
        None => Ok(()),
    }
}

fn show(told: &Told) -> Result<()> {
    if let Some(refusal) = &told.refusal {
        print::line(refusal)?;
        return Ok(());
    }
    let leases = told.plan.iter().flat_map(|plan| &plan.leases);
    let mut rows: Vec<Vec<String>> = leases
        .map(|lease| {
            let devices: Vec<String> = lease.devices.iter().map(|d| d.index.to_string()).collect();
            vec![
                lease.holder.clone(),
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

/// A cluster that a file describes.
fn described(path: &Path) -> Result<View> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let place = |error: ClusterError| match error.line {
        Some(line) => anyhow::anyhow!("{}:{line}: {}", path.display(), error.error),
        None => anyhow::anyhow!("{}: {}", path.display(), error.error),
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
