//! `odeon run`: a recipe from start, or from its checkpoint, to its end.

mod progress;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use odeon::{Job, System};
use odeon_actors::recipe::Recipe;
use odeon_actors::rl::report::Report;
use odeon_actors::rl::run::Run;
use odeon_actors::rl::store::{Count, Counts};

use self::progress::Display;
use super::model;
use crate::args::RunArgs;
use crate::print;

/// The file in a run's folder that lists its processes.
pub(crate) const PROCESSES: &str = "processes.tsv";

/// The recipe as it was run, in the run's folder.
pub(crate) const RECIPE: &str = "recipe.toml";

pub(crate) fn run(job: Job, args: &RunArgs) -> Result<()> {
    let recipe = Recipe::read(&args.recipe)?;
    let plan = model::plan(&recipe)?;
    if args.check {
        print::line(format!(
            "{}: {} supervised steps, then {} steps of {} x {} trajectories in {} rollout processes",
            recipe.run.name,
            recipe.warmup.steps,
            recipe.rl.steps,
            recipe.rl.groups,
            recipe.rl.group_size,
            recipe.processes.rollouts
        ));
        return Ok(());
    }
    let folder = recipe.folder();
    if args.fresh && folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    fs::copy(&args.recipe, folder.join(RECIPE))
        .with_context(|| format!("copying the recipe into {}", folder.display()))?;
    job.run(async |system| {
        let run = Run::start(&system, plan)
            .await
            .context("the run did not start")?;
        let mut following = Following::new(&system, run, &recipe, folder)?;
        let outcome = following.follow().await;
        // The processes end with the system; the list would name strangers.
        let _ = fs::remove_file(following.folder.join(PROCESSES));
        outcome
    })
}

/// Listens to a run and writes down what it tells.
struct Following {
    system: System,
    run: Run,
    folder: PathBuf,
    metrics: fs::File,
    display: Display,
}

impl Following {
    fn new(system: &System, run: Run, recipe: &Recipe, folder: PathBuf) -> Result<Self> {
        let path = folder.join("metrics.jsonl");
        let metrics = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("writing {}", path.display()))?;
        let display = Display::new(recipe);
        Ok(Self {
            system: system.clone(),
            run,
            folder,
            metrics,
            display,
        })
    }

    async fn follow(&mut self) -> Result<()> {
        self.list_processes()?;
        let system = self.system.clone();
        let failed = system.failed();
        tokio::pin!(failed);
        // Workers come and go with kills and restarts.
        let mut looking = tokio::time::interval(std::time::Duration::from_millis(500));
        loop {
            tokio::select! {
                biased;
                failure = &mut failed => {
                    self.display.end();
                    bail!("the run failed: {failure}");
                }
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
        let counts = self.run.store.ask(Count).await.unwrap_or_default();
        self.summarise(counts);
        Ok(())
    }

    fn write(&mut self, report: &Report) -> Result<()> {
        let mut line = serde_json::to_string(report)?;
        line.push('\n');
        self.metrics
            .write_all(line.as_bytes())
            .context("writing the metrics")
    }

    fn list_processes(&self) -> Result<()> {
        let pids = self.system.workers();
        let mut text = format!("driver\t{}\n", std::process::id());
        for (role, _, process) in self.run.roles() {
            let pid = pids.iter().find(|(id, _)| Some(*id) == process);
            if let Some((_, pid)) = pid {
                text += &format!("{role}\t{pid}\n");
            }
        }
        replace(&self.folder.join(PROCESSES), &text)
    }

    fn summarise(&self, counts: Counts) {
        self.display.table(counts);
        print::say(format!(
            "checkpoint, metrics and recipe: {0}\ntry: odeon eval {0}, odeon generate {0} \"...\"",
            self.folder.display()
        ));
    }
}

/// Readers see the old text or the new one, never a part.
fn replace(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text)
        .and_then(|()| fs::rename(&fresh, path))
        .with_context(|| format!("writing {}", path.display()))
}
