//! `odeon run`: a recipe from start, or from its checkpoint, to its end.

mod folder;
mod progress;
mod signals;

use std::fs::{self, File};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use odeon::{Job, Supervision, System};
use odeon_actors::recipe::{Recipe, Source};
use odeon_actors::rl::report::Report;
use odeon_actors::rl::run::{Run, RunPlan};
use odeon_actors::rl::store::{Count, Counts};

use self::folder::{METRICS, RunFolder};
use self::progress::Display;
use self::signals::Signals;
use super::model;
use super::processes::{DRIVER, Listing, Process};
use crate::args::RunArgs;
use crate::print::{self, Unshown};

pub(crate) use self::folder::{BASE, CHECKPOINT, RECIPE};

pub(crate) fn run(job: Job, args: &RunArgs) -> Result<ExitCode> {
    let source = Source::read(&args.recipe)?;
    let recipe = source.recipe()?;
    let plan = model::plan(&source, &recipe)?;
    folder::check_writable(&source, &recipe)?;
    if args.fresh {
        folder::check_run(&recipe.folder())?;
    } else {
        folder::check_same(&source, &recipe)?;
    }
    if args.check {
        print::line(format!(
            "{}: {} supervised steps, then {} steps of {} x {} trajectories in {} rollout processes",
            recipe.run.name,
            recipe.warmup.steps,
            recipe.rl.steps,
            recipe.rl.groups,
            recipe.rl.group_size,
            recipe.processes.rollouts
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.fresh
        && let Some(steps) = folder::finished(&recipe)
    {
        print::say(format!(
            "{} is done: {steps} of {} steps, in {}; raise rl.steps to go on, or begin anew with \
             --fresh",
            recipe.run.name,
            recipe.rl.steps,
            recipe.folder().display()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let folder = RunFolder::take(&source, &recipe, args.fresh)?;
    // People kill the processes of a run to see it go on; a fault that no restart mends ends it.
    let often = Supervision::one_for_one().budget(20, Duration::from_secs(60));
    job.run_with(
        |builder| builder.supervision(often),
        async |system| follow(&system, plan, &recipe, folder).await,
    )
}

/// Starts a run and follows it to its end, or until somebody asks it to stop.
async fn follow(
    system: &System,
    plan: RunPlan,
    recipe: &Recipe,
    folder: RunFolder,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let starting = Box::pin(Run::start(system, plan));
    let run = tokio::select! {
        run = starting => run.context("the run did not start")?,
        code = signals.asked() => return Ok(stopped(code)),
    };
    let mut following = Following::new(system, run, recipe, folder)?;
    let outcome = tokio::select! {
        outcome = following.follow() => outcome,
        code = signals.asked() => {
            following.display.end();
            return Ok(stopped(code));
        }
    };
    match outcome {
        Ok(counts) => following.summarise(counts)?,
        Err(error) => {
            following.display.end();
            bail!(
                "the run in {} failed: {error:#}; {}",
                following.folder.path.display(),
                following.advice()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn stopped(code: u8) -> ExitCode {
    print::say("stopped; run it again to continue");
    print::hush();
    ExitCode::from(code)
}

/// Listens to a run and writes down what it tells.
struct Following {
    system: System,
    run: Run,
    folder: RunFolder,
    listing: Listing,
    metrics: File,
    display: Display,
}

impl Following {
    fn new(system: &System, run: Run, recipe: &Recipe, folder: RunFolder) -> Result<Self> {
        let path = folder.path.join(METRICS);
        let metrics = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(Self {
            system: system.clone(),
            run,
            listing: Listing::new(&folder.path),
            folder,
            metrics,
            display: Display::new(recipe),
        })
    }

    /// Up to its end, for what its store has counted.
    async fn follow(&mut self) -> Result<Counts> {
        self.list_processes()?;
        let system = self.system.clone();
        let failed = system.failed();
        tokio::pin!(failed);
        // Workers come and go with kills and restarts.
        let mut looking = tokio::time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                biased;
                failure = &mut failed => bail!("{failure}"),
                report = self.run.reports.recv() => {
                    let Some(report) = report else { bail!("the run has lost its monitor") };
                    self.write(&report)?;
                    self.display.show(&report);
                    if matches!(report, Report::Finished(_)) {
                        break;
                    }
                }
                _ = looking.tick() => self.list_processes()?,
            }
        }
        self.display.end();
        Ok(self.run.store.ask(Count).await.unwrap_or_default())
    }

    fn write(&mut self, report: &Report) -> Result<()> {
        let mut line = serde_json::to_string(report)?;
        line.push('\n');
        self.metrics
            .write_all(line.as_bytes())
            .context("writing the metrics")
    }

    fn list_processes(&mut self) -> Result<()> {
        let pids = self.system.workers();
        let driver = Process::running(DRIVER, "-".to_owned(), std::process::id());
        let mut processes: Vec<_> = driver.into_iter().collect();
        for (role, actor, process) in self.run.roles() {
            let pid = pids.iter().find(|(id, _)| Some(*id) == process);
            let running = pid.and_then(|(_, pid)| Process::running(&role, actor.to_string(), *pid));
            processes.extend(running);
        }
        self.listing.write(processes)
    }

    /// What to do about a failed run.
    fn advice(&self) -> &'static str {
        if self.folder.has_checkpoint() {
            "running it again goes on from its checkpoint"
        } else {
            "it has no checkpoint yet, so running it again begins anew"
        }
    }

    fn summarise(&self, counts: Counts) -> Result<(), Unshown> {
        let shown = self.display.table(counts);
        print::say(format!(
            "checkpoint, metrics and recipe: {0}\ntry: odeon eval {0}, odeon generate {0} \"...\"",
            self.folder.path.display()
        ));
        shown
    }
}
