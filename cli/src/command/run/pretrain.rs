//! A pretraining run from its start, or from its checkpoint, to its end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use odeon::{Clock, Failure, Job, System, Timestamp, telemetry};
use odeon_actors::engine::compute::complete_checkpoints;
use odeon_actors::pretrain::rank::Origin;
use odeon_actors::pretrain::report::{
    Report, StepReport, avoided, forbidden, watch as watch_after,
};
use odeon_actors::pretrain::{self, Desk, Member, PretrainPlan};
use odeon_actors::recipe::{PretrainRecipe, Source};
use odeon_data::check::steps;
use odeon_data::source::{LeftOut, Opening};
use odeon_diagnosis::Action;
use odeon_otel::Settings;
use tokio::sync::{mpsc, watch};

use super::super::{model, plan};
use super::change::PRETRAIN_FIXED;
use super::difference::difference;
use super::folder::{self, CHECKPOINT, RunFolder};
use super::metrics::{Metrics, lines};
use super::notes::Notes;
use super::{LOOK, Signals, Standalone, begins_anew, host, line, tell, version};
use crate::args::RunArgs;
use crate::print::{self, Unshown};
use crate::waiter::Waiter;

pub(super) fn run(job: Job, source: &Source, args: &RunArgs) -> Result<ExitCode> {
    let recipe = source.pretrain_recipe()?;
    let arranged = recipe.arranged();
    let (recipe, choice) = arranged.map_err(|failure| anyhow!("{failure}"))?;
    let path = recipe.folder();
    let otlp = Settings::read(args.otlp.as_deref())?;
    folder::check_writable(source, &path)?;
    let fresh = begins_anew(args);
    if fresh {
        folder::check_run(&path)?;
    } else {
        check_same(source, &recipe)?;
    }
    let checkpoint = path.join(CHECKPOINT);
    let mut plan = recipe
        .plan(checkpoint)
        .map_err(|failure| anyhow!("{failure}"))?;
    plan.recovery.version = version::young();
    let loaded = recipe.tokenizer().and_then(|it| recipe.loaded(&it));
    if let Some(described) = loaded.map_err(|failure| anyhow!("{failure}"))? {
        model::tell(&described);
    }
    if args.check {
        check_data(&plan)?;
        print::line(format!(
            "{}: {} steps from {} sources on {} ranks",
            recipe.run.name,
            plan.steps,
            recipe.sources.len(),
            plan.sharing.ranks()
        ))?;
        if let Some(choice) = &choice {
            print::line(plan::chosen(choice))?;
        }
        if let Some(memory) = plan::outline(&recipe) {
            print::line(memory)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let told: Vec<Report> = lines(&path);
    if !fresh
        && let Some(Report::Finished { steps }) = told.last()
        && *steps >= plan.steps
    {
        print::say(format!(
            "{} is done: {steps} of {} steps, in {}; raise pretrain.steps to go on, or begin anew \
             with --fresh",
            recipe.run.name,
            plan.steps,
            path.display()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if !fresh {
        plan.watch = watch_after(plan.steps, &told);
        plan.gradients = plan.gradients.after(&told);
        plan.avoided = avoided(&told);
        plan.forbidden = forbidden(&told);
    }
    if let Some(choice) = &choice {
        print::say(plan::chosen(choice));
    }
    if let Some(memory) = plan::outline(&recipe) {
        print::say(memory);
    }
    let folder = RunFolder::take(source, path, fresh)?;
    let name = &recipe.run.name;
    host(
        job,
        args,
        name,
        otlp.as_ref(),
        folder,
        async |system, folder, pages| follow(&system, &plan, folder, pages).await,
    )
}

/// Checks that there are data for all steps.
fn check_data(plan: &PretrainPlan) -> Result<()> {
    let opening = Opening::new(plan.tokenizer.clone(), &plan.data.cache);
    let runtime = Waiter::with_threads()?;
    let held_out = plan.held_out.iter().map(|it| (&it.data, 1));
    for (data, wanted) in [(&plan.data, plan.steps)].into_iter().chain(held_out) {
        if let Some(steps) = runtime.block_on(steps(data, &opening, wanted))? {
            bail!(
                "the sources end after {steps} of {wanted} steps: let them repeat (leave out \
                 `epochs`), make steps smaller, or ask for fewer steps"
            );
        }
    }
    Ok(())
}

/// A run that has a checkpoint goes on only with what that was made with.
fn check_same(source: &Source, recipe: &PretrainRecipe) -> Result<()> {
    let path = recipe.folder();
    folder::check_kind(source, &path)?;
    if lines::<Report>(&path)
        .iter()
        .all(|report| !matches!(report, Report::Saved { .. }))
    {
        return Ok(());
    }
    let before = Source::read(&path.join(folder::RECIPE))?.pretrain_recipe()?;
    let (before, now) = (serde_json::to_value(before)?, serde_json::to_value(recipe)?);
    for (table, fields) in PRETRAIN_FIXED {
        if let Some((field, before, now)) = difference(&before[*table], &now[*table], fields) {
            let what = format!(
                "{field} was {before} when the run in {} began and is {now} now, and its checkpoint \
                 depends on it: set it back, choose another run.name, or begin anew with --fresh",
                path.display()
            );
            return Err(source.error(table, &field, &what).into());
        }
    }
    Ok(())
}

/// Runs it to its end, or until somebody asks it to stop.
async fn follow(
    system: &System,
    plan: &PretrainPlan,
    folder: RunFolder,
    pages: Option<&Standalone>,
) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let (report, mut news) = mpsc::unbounded_channel();
    let (members, mut member) = watch::channel(vec![]);
    let (halt, halted) = watch::channel(false);
    let (_ranks, ranks) = watch::channel(None);
    let desk = Desk {
        reports: report,
        members,
        halt: halted,
        ranks,
    };
    let mut notes = Notes::new(&folder.path, !plan.needs.is_empty(), plan.sharing);
    let mut book = Book {
        metrics: Metrics::open(&folder.path)?,
        display: Display::new(plan.steps),
        rolls_back: false,
    };
    tell(pages);
    let mut run = Box::pin(pretrain::run(system, plan, desk));
    let mut failed = std::pin::pin!(system.failed());
    let mut looking = tokio::time::interval(LOOK);
    let mut asked = None;
    let mut cause = None;
    let ended: Result<u64, Failure> = loop {
        tokio::select! {
            biased;
            Ok(()) = member.changed() => {
                let members: Vec<Member> = member.borrow_and_update().clone();
                notes.write(system, members).await?;
            }
            Some(report) = news.recv() => book.hear(&report)?,
            ended = &mut run => break ended,
            failure = &mut failed => {
                cause = Some(failure.clone());
                break Err(failure);
            }
            code = signals.asked() => {
                if asked.is_some() {
                    return Ok(stopped(code, &folder.path));
                }
                asked = Some(code);
                halt.send_replace(true);
                print::say(
                    "stopping after the step under way, with a checkpoint; once more stops at once",
                );
            }
            _ = looking.tick() => {
                let members: Vec<Member> = member.borrow().clone();
                notes.write(system, members).await?;
            }
        }
    };
    while let Ok(report) = news.try_recv() {
        book.hear(&report)?;
    }
    match ended {
        Err(failure) => {
            let failure = known_cause(cause, failed).await.unwrap_or(failure);
            book.failed(&folder, &failure)
        }
        Ok(steps) if steps < plan.steps => Ok(stopped(asked.unwrap_or_default(), &folder.path)),
        Ok(_) => {
            book.display.table()?;
            print::say(format!(
                "checkpoints, metrics and recipe: {}\ntry: odeon ckpt ls {0}/{CHECKPOINT}, odeon generate {0} \"...\"",
                folder.path.display()
            ));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The failure that ended the whole run, where it is known or is told at once: whoever was stopped with
/// others does not know why, and what ended them all comes after it.
async fn known_cause(
    known: Option<Failure>,
    failed: impl Future<Output = Failure>,
) -> Option<Failure> {
    match known {
        Some(cause) => Some(cause),
        None => Clock::timeout(CAUSE, failed).await,
    }
}

/// From an end that follows from another until that is told: both are under way then.
const CAUSE: Duration = Duration::from_secs(1);

/// The advice about a run that has failed.
fn advice(path: &Path, failure: &Failure) -> String {
    let checkpoints = path.join(CHECKPOINT);
    let is_of_a_checkpoint = failure
        .to_string()
        .contains(&*checkpoints.to_string_lossy());
    let all = complete_checkpoints(&checkpoints).unwrap_or_default();
    let whole = all.iter().rfind(|(_, fault)| fault.is_none());
    match (all.last(), whole) {
        (None, _) => {
            "it has no checkpoint yet, so running it again, once that is mended, begins anew".into()
        }
        (Some(_), None) => {
            "none of its checkpoints is whole: restore one from a copy, or begin anew with --fresh"
                .into()
        }
        (Some((last, _)), Some((step, _))) if is_of_a_checkpoint && step < last => format!(
            "remove the folders of later checkpoints than that of step {step}, and running it again goes on from \
             there (`odeon ckpt verify {} --step {step}` reads it through)",
            checkpoints.display()
        ),
        (Some(_), Some((step, _))) => format!(
            "once that is mended, running it again goes on from its checkpoint of step {step}"
        ),
    }
}

/// Says where a run that was stopped goes on.
fn stopped(code: u8, path: &Path) -> ExitCode {
    let all = complete_checkpoints(&path.join(CHECKPOINT)).unwrap_or_default();
    match all.last() {
        Some((steps, _)) => print::say(format!(
            "stopped, with a checkpoint of step {steps}; run it again to continue"
        )),
        None => print::say("stopped before its first checkpoint; running it again begins anew"),
    }
    print::hush();
    ExitCode::from(code)
}

/// Everything that is written down of a run, and shown.
struct Book {
    metrics: Metrics,
    display: Display,
    /// Set once the job is to go back to the version before.
    rolls_back: bool,
}

impl Book {
    /// The end of a run that has failed, with what to do about that; where its job goes back to the version before, that is
    /// done by itself.
    fn failed(&self, folder: &RunFolder, failure: &Failure) -> Result<ExitCode> {
        if self.rolls_back {
            print::say(failure);
            return Ok(ExitCode::from(version::ROLL_BACK));
        }
        let advice = advice(&folder.path, failure);
        Err(folder.failed_with(&anyhow!("{failure}"), &advice))
    }

    fn hear(&mut self, report: &Report) -> Result<()> {
        self.metrics.write(report)?;
        self.display.show(report);
        match report {
            Report::Recovery { action, .. } if action == Action::RollBack.word() => {
                self.rolls_back = true;
            }
            Report::Step(step) => {
                version::at_work();
                record(step);
            }
            Report::Saved {
                steps,
                blocked_seconds,
                stages,
                ..
            } => {
                let told = |name, seconds: f64| {
                    let number = telemetry::gauge(name, seconds).with("step", *steps);
                    number.with("unit", "s")
                };
                told("checkpoint.blocked_s", *blocked_seconds).record();
                for (stage, seconds) in stages {
                    let number = told("checkpoint.stage_s", *seconds);
                    number.with("stage", stage.clone()).record();
                }
            }
            Report::LeftOut {
                steps,
                source,
                files,
                records,
                first,
                ..
            } => {
                let first = first.first().cloned().unwrap_or_default();
                for (name, count) in [
                    ("data.files_left_out", files),
                    ("data.records_left_out", records),
                ] {
                    let number = telemetry::gauge(name, *count as f64);
                    let number = number.with("source", source.clone());
                    let number = number.with("first", first.clone());
                    number.with("step", *steps).record();
                }
            }
            Report::Rescaled {
                steps,
                source,
                loaders,
            } => {
                let number = telemetry::gauge("data.loaders", f64::from(*loaders));
                let number = number.with("source", source.clone());
                number.with("step", *steps).record();
            }
            _ => {}
        }
        Ok(())
    }
}

/// Numbers of a step, for people who look on.
fn record(step: &StepReport) {
    let told = |name, value: f64, unit| {
        let number = telemetry::gauge(name, value);
        number.with("step", step.step).with("unit", unit).record();
    };
    told("train.loss", step.loss, "nats");
    told("train.grad_norm", step.grad_norm, "");
    told("train.lr", step.lr, "");
    told(
        "train.tokens_per_s",
        step.tokens as f64 / step.seconds.max(1e-9),
        "tokens/s",
    );
    told("data.wait_s", step.wait_seconds, "s");
    told("data.imbalance", step.imbalance, "");
    told("train.hidden_share", step.hidden_share, "");
    told("train.gather_copies", step.gather_copies as f64, "bytes");
    told("train.sum_copies", step.sum_copies as f64, "bytes");
    for (source, part) in &step.sources {
        let share = part.tokens as f64 / step.tokens.max(1) as f64;
        let number = telemetry::gauge("data.share", share).with("source", source.clone());
        number.with("step", step.step).record();
    }
}

/// Lines now and then, and a table at the end.
struct Display {
    steps: u64,
    begun: Timestamp,
    /// Where this process began.
    from: Option<u64>,
    tokens: u64,
    seconds: f64,
    waited: f64,
    by_source: BTreeMap<String, (u64, u64)>,
    rated: Vec<(u64, f64, BTreeMap<String, f64>)>,
    last: Option<StepReport>,
    /// By source: how much, and the first of it.
    left_out: BTreeMap<String, (String, Vec<String>)>,
    shown: Timestamp,
}

/// The words about a source whose files are others than those that the run has read.
fn changed(report: &Report) -> Option<String> {
    Some(match report {
        Report::Grown { source, what, .. } => format!(
            "{source} has grown since it was read: {what}; the new comes behind what was there"
        ),
        Report::Changed { source, what, .. } => format!(
            "{source} is not what it was when it was read: {what}; the run goes on as `data.changed` says, and \
             records may come twice or never"
        ),
        _ => return None,
    })
}

/// The counts of what was left out, in words.
fn counted(files: u64, others: u64, records: u64) -> String {
    LeftOut {
        files,
        others,
        records,
        ..LeftOut::default()
    }
    .to_string()
}

/// The line about ranks that begin or go on.
fn resumed(life: u32, steps: u64, ranks: u32, from: Origin, seconds: Option<f64>) -> String {
    let (ranks, begin, go_on) = match ranks {
        1 => ("1 rank".to_owned(), "begins", "goes on"),
        ranks => (format!("{ranks} ranks"), "begin", "go on"),
    };
    let mut place = match from {
        Origin::Start if life == 1 => begin.to_owned(),
        Origin::Start => format!("{begin} anew"),
        Origin::Memory => format!("{go_on} from step {steps}, held in memory"),
        Origin::Storage => format!("{go_on} from the checkpoint of step {steps}"),
    };
    if let Some(seconds) = seconds {
        let _ = write!(place, ", {seconds:.2} s after a loss");
    }
    format!("{ranks} {place} (life {life})")
}

/// Between two lines.
const EVERY: Duration = Duration::from_secs(5);

impl Display {
    fn new(steps: u64) -> Self {
        Self {
            steps,
            begun: Clock::now(),
            from: None,
            tokens: 0,
            seconds: 0.0,
            waited: 0.0,
            by_source: BTreeMap::new(),
            rated: vec![],
            last: None,
            left_out: BTreeMap::new(),
            shown: Clock::now(),
        }
    }

    fn show(&mut self, report: &Report) {
        match report {
            Report::Resumed {
                life,
                steps,
                ranks,
                from,
                seconds,
            } => {
                self.from.get_or_insert(*steps);
                print::say(resumed(*life, *steps, *ranks, *from, *seconds));
            }
            Report::Step(step) => self.step(step),
            Report::Evaluated {
                steps,
                loss,
                sources,
            } => {
                self.rated.push((*steps, *loss, sources.clone()));
                let parts = sources
                    .iter()
                    .map(|(name, loss)| format!("{name} {loss:.3}"));
                let parts: Vec<String> = parts.collect();
                print::say(format!(
                    "step {steps}: held out {loss:.3}  {}",
                    parts.join("  ")
                ));
            }
            Report::Saved {
                steps,
                blocked_seconds,
                seconds,
                bytes,
                stages: _,
            } => print::say(format!(
                "step {steps}: saved {:.1} MB in {seconds:.2} s, of which ranks waited {:.0} ms",
                *bytes as f64 / 1e6,
                blocked_seconds * 1e3
            )),
            Report::Rescaled {
                steps,
                source,
                loaders,
            } => {
                let several = if *loaders == 1 { "" } else { "s" };
                print::say(format!(
                    "step {steps}: {source} has {loaders} loader{several} from now on"
                ));
            }
            Report::Finding { step, why, .. } => print::say(format!("step {step}: {why}")),
            Report::Recovery { why, .. } | Report::Standby { why, .. } => print::say(why),
            Report::Waiting { why, .. } => print::say(format!("lost ranks wait for room: {why}")),
            Report::LeftOut {
                source,
                files,
                others,
                records,
                first,
                ..
            } => {
                self.tell_left_out(source, counted(*files, *others, *records), first);
            }
            _ => {
                if let Some(told) = changed(report) {
                    print::say(told);
                }
            }
        }
    }

    fn tell_left_out(&mut self, source: &str, counted: String, first: &[String]) {
        let first_of_it = first.first().map(String::as_str).unwrap_or_default();
        print::say(format!("{source}: {counted}; the first: {first_of_it}"));
        self.left_out
            .insert(source.to_owned(), (counted, first.to_vec()));
    }

    fn step(&mut self, step: &StepReport) {
        self.tokens += step.tokens;
        self.seconds += step.seconds;
        self.waited += step.wait_seconds;
        for (name, part) in &step.sources {
            let sum = self.by_source.entry(name.clone()).or_default();
            sum.0 += part.samples;
            sum.1 += part.tokens;
        }
        self.last = Some(step.clone());
        let now = Clock::now();
        if now.since(self.shown) < EVERY && step.step < self.steps && self.tokens > step.tokens {
            return;
        }
        self.shown = now;
        let mut parts = vec![
            format!("trained {}/{}", step.step, self.steps),
            format!("loss {:.3}", step.loss),
            format!("{:.0} tok/s", self.tokens as f64 / self.seconds.max(1e-9)),
            format!(
                "waited {:.1} %",
                100.0 * self.waited / self.seconds.max(1e-9)
            ),
        ];
        let done = step.step - self.from.unwrap_or(0);
        parts.extend(line::left(
            done,
            self.steps - step.step,
            now.since(self.begun),
        ));
        print::say(parts.join("  "));
    }

    fn table(&self) -> Result<(), Unshown> {
        let Some(last) = &self.last else {
            return Ok(());
        };
        print::line(format!("steps        {}", last.step))?;
        print::line(format!(
            "tokens       {} in {:.0} s",
            self.tokens, self.seconds
        ))?;
        print::line(format!("loss         {:.3} at the last step", last.loss))?;
        for (name, (samples, tokens)) in &self.by_source {
            let share = 100.0 * *tokens as f64 / self.tokens.max(1) as f64;
            print::line(format!(
                "{name:<12} {share:.1} % of the tokens, {samples} samples"
            ))?;
        }
        for (name, (counted, first)) in &self.left_out {
            print::line(format!("{name:<12} {counted}:"))?;
            for skipped in first {
                print::line(format!("  {skipped}"))?;
            }
        }
        if let (Some((_, first, before)), Some((_, end, after))) =
            (self.rated.first(), self.rated.last())
        {
            print::line(format!("held out     {first:.3} to {end:.3} nats a token"))?;
            for (name, loss) in after {
                let was = before.get(name).copied().unwrap_or(f64::NAN);
                print::line(format!("  {name:<10} {was:.3} to {loss:.3}"))?;
            }
        }
        Ok(())
    }
}
