//! `odeon run`: a recipe from start, or from its checkpoint, to its end.

pub(crate) mod change;
mod difference;
pub(crate) mod folder;
mod line;
mod metrics;
mod notes;
mod placed;
mod pretrain;
mod progress;
#[cfg(test)]
mod tests;
mod tries;
mod verify;
mod version;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use odeon::{Clock, Job, SpawnError, Supervision, System, WorkerCommand, WorkerMode, telemetry};
use odeon_actors::hybrid::Choice;
use odeon_actors::recipe::Recipe;
use odeon_actors::rl::report::{Report, watch};
use odeon_actors::rl::run::{Run, RunPlan};
use odeon_actors::rl::store::{Count, Counts};
use odeon_otel::Settings;

use self::folder::RunFolder;
use self::metrics::Metrics;
use self::notes::Notes;
use self::progress::Display;
use self::tries::{Tries, Watch};
use super::mapping;
use super::model::{self, Shape};
use super::pages::Note;
use super::plan;
use super::signals::Signals;
use super::ui;
use crate::args::{PagesArgs, RunArgs};
use crate::inspect::{Looks, OUTPUT_LOG, OutputLog, Standalone};
use crate::print::{self, Unshown};

pub(crate) use self::folder::{BASE, CHECKPOINT, RECIPE, REWARD_MODEL};
pub(crate) use self::metrics::reports;

pub(crate) fn run(job: Job, args: &RunArgs) -> Result<ExitCode> {
    let source = args.set.read(&args.recipe)?;
    if let Some(steps) = args.verify.verify_against_one {
        return verify::run(job, &source, args, steps);
    }
    if source.pretrains() {
        return pretrain::run(job, &source, args);
    }
    let recipe = source.recipe()?;
    let mut plan = model::plan(&source, &recipe)?;
    let otlp = Settings::read(args.otlp.as_deref())?;
    folder::check_writable(&source, &recipe.folder())?;
    let fresh = begins_anew(args);
    if fresh {
        folder::check_run(&recipe.folder())?;
    } else {
        folder::check_same(&source, &recipe)?;
    }
    let mapping = mapping::of(&source, &recipe, || Shape::of(&recipe, &plan))?;
    if args.check {
        let place = spoken_place(&recipe, &plan);
        print::line(format!(
            "{}: {} supervised steps, then {} steps of {} x {} trajectories in {place}",
            recipe.run.name,
            recipe.warmup.steps,
            recipe.rl.steps_in_all(),
            recipe.rl.groups,
            recipe.rl.group_size,
        ))?;
        if let Some(mapping) = &mapping {
            print::line(mapping)?;
        }
        tell_left_out(&recipe);
        return Ok(ExitCode::SUCCESS);
    }
    if !fresh && let Some(steps) = folder::finished(&recipe) {
        print::say(format!(
            "{} is done: {steps} of {} steps, in {}; raise rl.steps to go on, or begin anew with \
             --fresh",
            recipe.run.name,
            recipe.rl.steps_in_all(),
            recipe.folder().display()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything of an earlier run is removed.
    if let Some(path) = args.pages.record.as_ref().filter(|path| path.exists()) {
        bail!(
            "{} is there already: recordings go to a file that is not there yet",
            path.display()
        );
    }
    if let Some(mapping) = &mapping {
        print::say(format!(
            "models are placed as is predicted to be fastest:\n{mapping}"
        ));
    }
    tell_left_out(&recipe);
    let folder = RunFolder::take(&source, recipe.folder(), fresh)?;
    plan.watch = watch(recipe.rl.steps_in_all(), &reports(&folder.path));
    host(
        job,
        args,
        &recipe.run.name,
        otlp.as_ref(),
        folder,
        async |system, folder, pages| match model::placed(&recipe, &plan, mapping.as_ref()) {
            Some(placed) => {
                let nodes = plan::nodes_of(&system).await;
                plan::check_devices(&nodes, &plan, Some(&placed), &recipe.run.name)?;
                placed::follow(&system, &placed, &recipe, folder, pages).await
            }
            None => follow(&system, plan, &recipe, folder, pages).await,
        },
    )
}

/// The processes that make and learn from replies, in words.
fn spoken_place(recipe: &Recipe, plan: &RunPlan) -> String {
    match recipe.placement.models {
        Some(Choice::Auto) => format!("at most {} ranks", recipe.placement.ranks),
        Some(Choice::Arranged(_)) if plan.sharing.ranks() > 1 => format!(
            "{} ranks that share each model ({})",
            recipe.placement.ranks,
            recipe.parallel.told()
        ),
        Some(Choice::Arranged(_)) => format!("{} ranks of each model", recipe.placement.ranks),
        None => match recipe.processes.rollouts {
            1 => "1 rollout process".to_owned(),
            several => format!("{several} rollout processes"),
        },
    }
}

/// Returns true where what an earlier run has left is removed: by the first try of a job, and not by those
/// that follow its failure, which go on from what that has come to.
fn begins_anew(args: &RunArgs) -> bool {
    let tries = std::env::var("ODEON_ATTEMPT").ok();
    let is_first = tries
        .and_then(|n| n.parse::<u32>().ok())
        .is_none_or(|n| n <= 1);
    args.fresh && is_first
}

/// Says which lines of the file of problems are left out.
fn tell_left_out(recipe: &Recipe) {
    // A task that cannot be built was refused before.
    let Ok(task) = recipe.task.build() else {
        return;
    };
    if let Some(left_out) = task.left_out().filter(|left_out| left_out.lines > 0) {
        print::say(format!(
            "{} lines of problems are left out:",
            left_out.lines
        ));
        for line in &left_out.first {
            print::say(format!("  {line}"));
        }
    }
}

/// The losses that a run goes on after. People kill the processes of a run to see it go on; a fault that
/// no restart mends ends it. The window is long, since every try of such a fault takes its time.
fn losses() -> Supervision {
    Supervision::one_for_one().budget(40, Duration::from_secs(600))
}

/// Runs `main` on a system whose processes are this program's, with its pages, output and notes in the
/// run's folder.
fn host(
    job: Job,
    args: &RunArgs,
    name: &str,
    otlp: Option<&Settings>,
    folder: RunFolder,
    main: impl AsyncFnOnce(System, RunFolder, Option<&Standalone>) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let output_log = OutputLog::in_folder(&folder.path)
        .with_context(|| format!("{} takes no {}", folder.path.display(), OUTPUT_LOG[0]))?;
    let taken = output_log.clone();
    let worker =
        WorkerCommand::current_exe()?.output(move |process, output| taken.take(process, output));
    let outcome = job.run_with(
        |builder| {
            let builder = builder.supervision(losses());
            builder.workers(WorkerMode::Processes(worker)).own_signals()
        },
        async |system| {
            let (own, process) = (output_log.clone(), system.process());
            print::overhear(move |text| own.logged(process, text));
            let pages = pages(&system, name, &args.pages, otlp, &output_log, &folder).await?;
            let connection = pages.as_ref().and_then(Standalone::connection);
            let _note = Note::keep(&folder.path, connection)?;
            telemetry::gauge("run.about", 1.0)
                .with("recipe", args.recipe.display().to_string())
                .with("folder", folder.path.display().to_string())
                .record();
            let outcome = main(system, folder, pages.as_ref()).await;
            if let Some(pages) = pages {
                pages.end().await;
            }
            outcome
        },
    );
    output_log.end();
    outcome
}

/// The mark of processes that a cluster runs; it has pages of its own.
const IN_CLUSTER: &str = "ODEON_TRY";

/// Serves the pages of a run, records it, and exports what is seen of it.
async fn pages(
    system: &System,
    name: &str,
    args: &PagesArgs,
    otlp: Option<&Settings>,
    output_log: &OutputLog,
    folder: &RunFolder,
) -> Result<Option<Standalone>> {
    let in_cluster = std::env::var_os(IN_CLUSTER).is_some();
    let port = (!args.no_ui && !in_cluster).then_some(args.ui_port);
    let looks = Looks {
        port,
        allow_actions: args.allow_actions,
        record: args.record.as_deref(),
        output_log: output_log.clone(),
        folder: Some(&folder.path),
        otlp: otlp.filter(|_| !in_cluster),
    };
    if looks.is_blind() {
        return Ok(None);
    }
    let pages = Standalone::look(name, system, looks).await?;
    if let Some(connection) = pages.connection().filter(|_| args.open) {
        ui::open(&ui::address_of(connection));
    }
    Ok(Some(pages))
}

/// Starts a run and follows it to its end, or until somebody asks it to stop.
async fn follow(
    system: &System,
    plan: RunPlan,
    recipe: &Recipe,
    folder: RunFolder,
    pages: Option<&Standalone>,
) -> Result<ExitCode> {
    plan::check_devices(&plan::nodes_of(system).await, &plan, None, &recipe.run.name)?;
    let mut signals = Signals::listen()?;
    let reserves = plan.reservations().any(|it| !it.needs.is_empty());
    let mut notes = Notes::new(&folder.path, reserves, plan.sharing);
    let mut starting = Box::pin(async {
        let span = telemetry::first_span("start run").with("recipe", recipe.run.name.clone());
        let run = telemetry::below(span.context(), Run::start(system, plan)).await;
        if run.is_err() {
            span.fail();
        }
        run
    });
    let mut looking = tokio::time::interval(LOOK);
    let mut failed = std::pin::pin!(system.failed());
    let mut slow = std::pin::pin!(Clock::sleep(START));
    let mut told = false;
    let run = loop {
        tokio::select! {
            biased;
            // What is still to start would wait for what has ended.
            failure = &mut failed => return Err(folder.failed(&anyhow!("{failure}"))),
            run = &mut starting => match run {
                Ok(run) => break run,
                Err(error) => return Err(folder.failed(&why_not_started(system, error).await)),
            },
            code = signals.asked() => return Ok(stopped(code, &folder)),
            _ = looking.tick() => notes.write(system, []).await?,
            // Whoever waits for it to start wants to know why.
            () = &mut slow, if !told => {
                tell(pages);
                told = true;
            }
        }
    };
    if !told {
        tell(pages);
    }
    let mut following = Following::new(system, run, recipe, folder, notes)?;
    let mut asked = None;
    let outcome = tokio::select! {
        outcome = following.follow() => outcome,
        code = signals.asked() => {
            asked = Some(code);
            following.halt(&mut signals).await
        }
    };
    following.display.end();
    match (outcome, asked) {
        (Ok(End::Finished(counts)), _) => following.summarise(counts)?,
        (Ok(End::Halted), Some(code)) => return Ok(stopped(code, &following.folder)),
        (Ok(End::Halted), None) => bail!("the run was stopped by somebody else"),
        (Err(error), _) => return Err(following.folder.failed(&error)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says where the pages are.
fn tell(pages: Option<&Standalone>) {
    if let Some(connection) = pages.and_then(Standalone::connection) {
        let url = ui::address_of(connection);
        print::say(format!("look on at {url}"));
    }
}

/// An actor that failed takes those with it that are still to start; its own failure tells more.
async fn why_not_started(system: &System, error: SpawnError) -> anyhow::Error {
    match Clock::timeout(ESCALATION, system.failed()).await {
        Some(failure) => anyhow!("{failure}"),
        None => anyhow::Error::new(error).context("it did not start"),
    }
}

/// Says where a run that was stopped goes on.
fn stopped(code: u8, folder: &RunFolder) -> ExitCode {
    match folder.progress() {
        Ok(Some((warmup, version))) => print::say(format!(
            "stopped, with a checkpoint of supervised step {warmup}, step {version}; run it again \
             to continue"
        )),
        Ok(None) => print::say("stopped before its first checkpoint; running it again begins anew"),
        Err(error) => print::say(format!("stopped; its checkpoint cannot be read: {error:#}")),
    }
    print::hush();
    ExitCode::from(code)
}

/// The end of a run that was followed.
enum End {
    /// All steps are done; what its store has counted.
    Finished(Counts),
    /// It was stopped.
    Halted,
}

/// The longest time that a run usually takes to start.
const START: Duration = Duration::from_secs(2);
/// The interval between looks at processes and places.
const LOOK: Duration = Duration::from_millis(500);

/// The time that the failure of one actor may take to become that of the run.
const ESCALATION: Duration = Duration::from_secs(2);

/// Listens to a run and writes down what it tells.
struct Following {
    system: System,
    run: Run,
    folder: RunFolder,
    notes: Notes,
    metrics: Metrics,
    display: Display,
    tries: Tries,
    watch: Watch,
}

impl Following {
    fn new(
        system: &System,
        run: Run,
        recipe: &Recipe,
        folder: RunFolder,
        notes: Notes,
    ) -> Result<Self> {
        let told = reports(&folder.path);
        Ok(Self {
            system: system.clone(),
            watch: Watch::new(run.trainer),
            run,
            notes,
            metrics: Metrics::open(&folder.path)?,
            folder,
            display: Display::new(recipe, &told),
            tries: Tries::default(),
        })
    }

    /// Up to its end.
    async fn follow(&mut self) -> Result<End> {
        self.notes.write(&self.system, self.run.roles()).await?;
        let system = self.system.clone();
        let failed = system.failed();
        tokio::pin!(failed);
        // Workers come and go with kills and restarts.
        let mut looking = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                failure = &mut failed => bail!("{failure}"),
                () = self.watch.heard() => {}
                report = self.run.reports.recv() => {
                    let Some(report) = report else { bail!("the run has lost its monitor") };
                    self.metrics.write(&report)?;
                    self.display.show(&report);
                    match report {
                        Report::Warmup { .. } | Report::Step(_) => version::at_work(),
                        Report::Finished(_) => break,
                        Report::Halted(_) => return Ok(End::Halted),
                        Report::Resumed { progress, .. } => {
                            if self.tries.begin(progress) {
                                bail!(self.watch.given_up());
                            }
                            self.watch.again();
                        }
                        _ => {}
                    }
                }
                _ = looking.tick() => self.notes.write(&self.system, self.run.roles()).await?,
            }
        }
        self.display.end();
        let counts = self.run.store.ask(Count).await.unwrap_or_default();
        Ok(End::Finished(counts))
    }

    /// Has the run stop in order, so that nothing is lost. A second signal does not wait for that.
    async fn halt(&mut self, signals: &mut Signals) -> Result<End> {
        print::say("stopping after the step under way, with a checkpoint; once more stops at once");
        let halting = self.run.halt();
        let failing = async {
            match halting.await {
                // The last report comes behind those of the steps before.
                Ok(_) => std::future::pending().await,
                Err(failure) => failure,
            }
        };
        tokio::select! {
            end = self.follow() => end,
            failure = failing => bail!("{failure}"),
            _ = signals.asked() => Ok(End::Halted),
        }
    }

    fn summarise(&self, counts: Counts) -> Result<(), Unshown> {
        let shown = self.display.table(counts);
        self.folder.say_where();
        shown
    }
}
