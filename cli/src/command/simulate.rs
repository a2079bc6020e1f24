//! `odeon simulate`: runs at the size of a cluster, under virtual time; steps of training, by their parts; months under
//! faults.

mod faults;
mod paper;
mod pictures;
mod table;
mod training;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use odeon::Clock;
use odeon_actors::simulate::{Mode, ModelSection, Outcome, Scenario, ScenarioError};

use crate::args::{SimulateArgs, SimulateCommand};
use crate::figures;
use crate::print;

pub(crate) fn run(args: &SimulateArgs) -> Result<()> {
    let path = match (&args.step, &args.scenario) {
        (Some(SimulateCommand::Training(args)), _) => return training::run(args),
        (Some(SimulateCommand::Faults(args)), _) => return faults::run(args),
        (None, Some(path)) => path,
        (None, None) => bail!("give a scenario, or what to simulate: `training` or `faults`"),
    };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let wrong = |error| match error {
        ScenarioError::Field { .. } => anyhow!("{}:{error}", path.display()),
        _ => anyhow!("{}: {error}", path.display()),
    };
    let scenario = Scenario::parse(&text).map_err(wrong)?;
    let runs = runs(&scenario, path, args)?;
    let begun = Clock::now();
    let outcomes = simulate(&scenario, &runs, args)?;
    let took = Clock::now().since(begun).as_secs_f64();
    if let Some(out) = &args.out {
        keep(out, &scenario.simulation.name, &outcomes)?;
    }
    if args.json {
        return Ok(print::line(serde_json::to_string(&outcomes)?)?);
    }
    print::table(&table::HEADINGS, &table::rows(&outcomes))?;
    let searched = table::searched(&outcomes);
    if !searched.is_empty() {
        print::table(&table::SEARCHED, &searched)?;
    }
    let compared = paper::compared(scenario.workload.kind, &outcomes);
    if !compared.is_empty() {
        print::table(&paper::HEADINGS, &compared)?;
    }
    for outcome in &outcomes {
        if let Some(lost) = &outcome.failure {
            print::line(table::lost(outcome, lost))?;
        }
    }
    print::say(format!(
        "{} of {} steps each, in {}",
        figures::plural(runs.len() as u64, "run"),
        scenario.simulation.iterations,
        figures::span(took * 1e3)
    ));
    Ok(())
}

/// The numbers as JSON, and pictures of them.
fn keep(out: &Path, name: &str, outcomes: &[Outcome]) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("{}", out.display()))?;
    let numbers = (
        "numbers",
        format!("{name}.json"),
        serde_json::to_string_pretty(outcomes)?,
    );
    let pictures = pictures::all(outcomes).into_iter();
    let pictures = pictures.map(|(of, svg)| match of {
        "" => ("picture", format!("{name}.svg"), svg),
        of => ("picture", format!("{name}-{of}.svg"), svg),
    });
    for (what, file, text) in std::iter::once(numbers).chain(pictures) {
        let file = out.join(file);
        std::fs::write(&file, text).with_context(|| format!("{}", file.display()))?;
        print::say(format!("{what}: {}", file.display()));
    }
    Ok(())
}

/// One run of a simulation: a model, a number of cards and a mode.
type One<'a> = (&'a ModelSection, u32, Mode);

/// All combinations that the scenario names, less those that the command leaves out.
fn runs<'a>(scenario: &'a Scenario, path: &Path, args: &SimulateArgs) -> Result<Vec<One<'a>>> {
    let section = &scenario.simulation;
    let models = |model: &&ModelSection| {
        args.model.is_empty() || args.model.iter().any(|it| it.0 == model.size)
    };
    let wanted = |mode: &Mode| args.mode.is_empty() || args.mode.iter().any(|it| it.0 == *mode);
    let sizes = |gpus: &u32| args.gpus.is_empty() || args.gpus.contains(gpus);
    let mut runs = vec![];
    for model in scenario.model.iter().filter(models) {
        for gpus in scenario.gpus_of(model).iter().filter(|gpus| sizes(gpus)) {
            for mode in section.modes.iter().filter(|mode| wanted(mode)) {
                runs.push((model, *gpus, *mode));
            }
        }
    }
    if runs.is_empty() {
        bail!(
            "nothing to simulate: {} has models {}, cards {:?} and modes {:?}",
            path.display(),
            joined(scenario.model.iter().map(|it| said(&it.size))),
            scenario
                .model
                .iter()
                .flat_map(|it| scenario.gpus_of(it))
                .collect::<BTreeSet<_>>(),
            section.modes
        );
    }
    Ok(runs)
}

/// Each in one thread, several at a time; in the order in which they were asked for.
fn simulate(scenario: &Scenario, runs: &[One<'_>], args: &SimulateArgs) -> Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                while let Some((model, gpus, mode)) = runs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let outcome = match args.search {
                        true => scenario.run_best(model, *gpus, *mode),
                        false => scenario.run(model, *gpus, *mode),
                    };
                    let outcome = outcome.map_err(|failure| {
                        anyhow!(
                            "{} on {gpus} cards, {}: {failure}",
                            said(&model.size),
                            said(mode)
                        )
                    });
                    let mut done = done
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push(((*gpus, *mode), outcome));
                }
            });
        }
    });
    let done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut outcomes = done
        .into_iter()
        .map(|(_, outcome)| outcome)
        .collect::<Result<Vec<_>>>()?;
    let place = |outcome: &Outcome| {
        runs.iter().position(|(model, gpus, mode)| {
            (model.size, *gpus, *mode) == (outcome.model, outcome.gpus, outcome.mode)
        })
    };
    outcomes.sort_by_key(place);
    Ok(outcomes)
}

/// A name as the scenario writes it.
fn said(name: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(name).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn joined(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
