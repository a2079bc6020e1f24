//! `odeon simulate faults`: months of a job under faults, with and without what a system has against them.

mod pictures;
mod table;

use std::path::Path;

use anyhow::{Context, Result, bail};
use odeon::Clock;
use odeon_actors::simulate::faults::{
    FaultOutcome, FaultPolicy, FaultScenario, RestartRow, SensitivityRow,
};
use serde::Serialize;

use crate::args::faults::FaultsArgs;
use crate::figures;
use crate::print;

/// All that a scenario comes to.
#[derive(Serialize)]
struct Compared {
    incidents_daily: f64,
    outcomes: Vec<FaultOutcome>,
    restarts: Vec<RestartRow>,
    sensitivity: Vec<SensitivityRow>,
}

pub(super) fn run(args: &FaultsArgs) -> Result<()> {
    let source = args.set.read(&args.scenario)?;
    let scenario = FaultScenario::read(&source)?;
    let policies = policies(&scenario, args)?;
    let begun = Clock::now();
    let last = policies.last();
    let compared = Compared {
        incidents_daily: scenario.incidents_daily(),
        outcomes: policies.iter().map(|it| scenario.outcome(it)).collect(),
        restarts: scenario.restarts()?,
        sensitivity: match last.filter(|_| args.sensitivity) {
            Some(policy) => scenario.sensitivity(policy),
            None => vec![],
        },
    };
    let took = Clock::now().since(begun).as_secs_f64();
    if let Some(out) = &args.out {
        keep(out, &scenario, &compared)?;
    }
    if args.json {
        return Ok(print::line(serde_json::to_string(&compared)?)?);
    }
    table::print(&compared)?;
    let runs = policies.len() * scenario.simulation.seeds.len();
    print::say(format!(
        "{} of {} days on {} cards, {} machines, with {:.1} incidents a day of training, in {}",
        figures::plural(runs as u64, "run"),
        scenario.simulation.days,
        figures::count(scenario.simulation.cards.into()),
        figures::count(scenario.machines().into()),
        compared.incidents_daily,
        figures::span(took * 1e3)
    ));
    Ok(())
}

/// The policies of the scenario, less those that the command leaves out.
fn policies(scenario: &FaultScenario, args: &FaultsArgs) -> Result<Vec<FaultPolicy>> {
    let names = || scenario.policy.iter().map(|it| it.name.as_str());
    if let Some(unknown) = args
        .policy
        .iter()
        .find(|it| names().all(|name| name != *it))
    {
        bail!(
            "there is no policy `{}` in {}: policies are {}",
            figures::plain(unknown),
            args.scenario.display(),
            names().collect::<Vec<_>>().join(", ")
        );
    }
    let wanted =
        |policy: &&FaultPolicy| args.policy.is_empty() || args.policy.contains(&policy.name);
    Ok(scenario.policy.iter().filter(wanted).cloned().collect())
}

/// The numbers as JSON, and pictures of them.
fn keep(out: &Path, scenario: &FaultScenario, compared: &Compared) -> Result<()> {
    let name = &scenario.simulation.name;
    std::fs::create_dir_all(out).with_context(|| format!("{}", out.display()))?;
    let numbers = (
        "numbers",
        format!("{name}.json"),
        serde_json::to_string(compared)?,
    );
    let pictures = pictures::all(compared).into_iter();
    let pictures = pictures.map(|(of, svg)| ("picture", format!("{name}-{of}.svg"), svg));
    for (what, file, text) in std::iter::once(numbers).chain(pictures) {
        let file = out.join(file);
        std::fs::write(&file, text).with_context(|| format!("{}", file.display()))?;
        print::say(format!("{what}: {}", file.display()));
    }
    Ok(())
}
