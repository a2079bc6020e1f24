//! `odeon simulate`: runs at the size of a cluster, under virtual time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use odeon::Clock;
use odeon_actors::simulate::{Mode, ModelName, ModelSection, Outcome, Scenario, ScenarioError};

use crate::args::SimulateArgs;
use crate::figures;
use crate::plot::{Axis, Figure, Line, Lines, side_by_side};
use crate::print;

pub(crate) fn run(args: &SimulateArgs) -> Result<()> {
    let path = &args.scenario;
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let wrong = |error| match error {
        ScenarioError::Field { .. } => anyhow!("{}:{error}", path.display()),
        _ => anyhow!("{}: {error}", path.display()),
    };
    let scenario = Scenario::parse(&text).map_err(wrong)?;
    let runs = runs(&scenario, args)?;
    let begun = Clock::now();
    let outcomes = simulate(&scenario, &runs, args.threads)?;
    let took = Clock::now().since(begun).as_secs_f64();
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).with_context(|| format!("{}", out.display()))?;
        let file = out.join(format!("{}.json", scenario.simulation.name));
        let text = serde_json::to_string_pretty(&outcomes)?;
        std::fs::write(&file, text).with_context(|| format!("{}", file.display()))?;
        print::say(format!("numbers: {}", file.display()));
        let file = out.join(format!("{}.svg", scenario.simulation.name));
        std::fs::write(&file, picture(&outcomes)).with_context(|| format!("{}", file.display()))?;
        print::say(format!("picture: {}", file.display()));
    }
    if args.json {
        return Ok(print::line(serde_json::to_string(&outcomes)?)?);
    }
    print::table(&HEADINGS, &rows(&outcomes))?;
    print::say(format!(
        "{} of {} steps each, in {}",
        figures::plural(runs.len() as u64, "run"),
        scenario.simulation.iterations,
        figures::span(took * 1e3)
    ));
    Ok(())
}

/// What is simulated by itself.
type One<'a> = (&'a ModelSection, u32, Mode);

/// All combinations that the scenario names, less those that the command leaves out.
fn runs<'a>(scenario: &'a Scenario, args: &SimulateArgs) -> Result<Vec<One<'a>>> {
    let section = &scenario.simulation;
    let wanted = |mode: &Mode| args.mode.is_empty() || args.mode.iter().any(|it| it.0 == *mode);
    let sizes = |gpus: &u32| args.gpus.is_empty() || args.gpus.contains(gpus);
    let mut runs = vec![];
    for model in &scenario.model {
        for gpus in section.gpus.iter().filter(|gpus| sizes(gpus)) {
            for mode in section.modes.iter().filter(|mode| wanted(mode)) {
                runs.push((model, *gpus, *mode));
            }
        }
    }
    if runs.is_empty() {
        bail!(
            "nothing to simulate: {} has cards {:?} and modes {:?}",
            args.scenario.display(),
            section.gpus,
            section.modes
        );
    }
    Ok(runs)
}

/// Each in one thread, several at a time; in the order in which they were asked for.
fn simulate(scenario: &Scenario, runs: &[One<'_>], threads: usize) -> Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((model, gpus, mode)) = runs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let outcome = scenario.run(model, *gpus, *mode).map_err(|failure| {
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

const HEADINGS: [&str; 13] = [
    "model", "cards", "roll out", "mode", "tokens/s", "speed-up", "step", "busy", "cache",
    "trainer", "stale", "most", "emptied",
];

fn rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let row = |outcome: &Outcome| {
        let synchronous = outcomes.iter().find(|other| {
            (other.model, other.gpus, other.mode)
                == (outcome.model, outcome.gpus, Mode::Synchronous)
        });
        let speed_up = synchronous.map_or_else(String::new, |synchronous| {
            format!("{:.2}x", outcome.tokens_per_s / synchronous.tokens_per_s)
        });
        vec![
            said(&outcome.model),
            outcome.gpus.to_string(),
            outcome.rollout_gpus.to_string(),
            said(&outcome.mode),
            figures::short(outcome.tokens_per_s),
            speed_up,
            figures::span(outcome.step_s * 1e3),
            percent(outcome.rollouts_busy),
            percent(outcome.cache_filled),
            percent(outcome.trainer_busy),
            format!("{:.1}", outcome.staleness_mean),
            outcome.staleness_max.to_string(),
            outcome.emptied.to_string(),
        ]
    };
    outcomes.iter().map(row).collect()
}

/// For each model, throughput over cards, a line for each mode.
fn picture(outcomes: &[Outcome]) -> String {
    let mut figures: Vec<Figure> = vec![];
    let mut models: Vec<ModelName> = outcomes.iter().map(|it| it.model).collect();
    models.dedup();
    for model in models {
        let of_model = || outcomes.iter().filter(|it| it.model == model);
        let mut modes: Vec<Mode> = vec![];
        for outcome in of_model() {
            if !modes.contains(&outcome.mode) {
                modes.push(outcome.mode);
            }
        }
        let cards = Axis::new("cards").doubling();
        let tokens = Axis::new("trained tokens").unit("per second");
        let mut lines = Lines::new(said(&model), cards, tokens);
        for mode in modes {
            let points = of_model().filter(|it| it.mode == mode);
            let points = points.map(|it| (f64::from(it.gpus), it.tokens_per_s));
            lines = lines.line(Line::new(said(&mode), points));
        }
        figures.push(lines.into());
    }
    side_by_side(&figures)
}

/// A name as the scenario writes it.
fn said(name: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(name).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
