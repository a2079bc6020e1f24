//! The first steps of a pretraining run by its ranks and by one rank, beside each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use odeon::{Failure, Job, WorkerCommand, WorkerMode};
use odeon_actors::pretrain::compare::{Mismatch, PartMismatch, Quantity};
use odeon_actors::pretrain::verify::{Side, Verification, Verified, verify};
use odeon_actors::recipe::{PretrainRecipe, Source};
use tempfile::TempDir;

use super::{Signals, losses};
use crate::args::RunArgs;
use crate::figures;
use crate::print;

pub(super) fn run(job: Job, source: &Source, args: &RunArgs, steps: u64) -> Result<ExitCode> {
    if !source.pretrains() {
        bail!(
            "--verify-against-one compares the ranks of a pretraining run with one rank, and {} is no recipe of one: \
             that has a table [pretrain]",
            args.recipe.display()
        );
    }
    let told = |failure: Failure| anyhow!("{failure}");
    let (recipe, _) = source.pretrain_recipe()?.arranged().map_err(told)?;
    let sharing = recipe.sharing();
    if sharing.ranks() == 1 {
        print::line(format!(
            "{} is trained by one rank already: there is nothing to compare it with",
            recipe.run.name
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let beside = Beside::make(&recipe)?;
    let tolerance = args.verify.tolerance;
    let verification = recipe.verification(steps, tolerance, beside.path());
    let verification = verification.map_err(told)?;
    let verified = match trained(job, &verification)? {
        Ended::Compared(verified) => *verified,
        Ended::Stopped(code) => {
            print::hush();
            return Ok(ExitCode::from(code));
        }
    };
    if args.verify.json {
        print::line(serde_json::to_string(&verified)?)?;
    } else {
        show(&verified, sharing.ranks())?;
    }
    Ok(match verified.beyond {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

/// A folder beside that of a run, which is gone in the end, with those that were made for it.
struct Beside {
    folder: Option<TempDir>,
    /// Folders that were not there before, the outermost first.
    made: Vec<PathBuf>,
}

impl Beside {
    fn make(recipe: &PretrainRecipe) -> Result<Self> {
        let run = recipe.folder();
        let place = run.parent().filter(|it| !it.as_os_str().is_empty());
        let place = place.unwrap_or_else(|| Path::new("."));
        let absent = place.ancestors().take_while(|it| !it.exists());
        let mut made: Vec<PathBuf> = absent.map(Path::to_owned).collect();
        made.reverse();
        let failed = || format!("making a folder in {}", place.display());
        fs::create_dir_all(place).with_context(failed)?;
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        let folder = tempfile::Builder::new()
            .prefix(&format!(".{name}-against-one-"))
            .tempdir_in(place);
        Ok(Self {
            folder: Some(folder.with_context(failed)?),
            made,
        })
    }

    fn path(&self) -> &Path {
        self.folder
            .as_ref()
            .map_or_else(|| Path::new(""), TempDir::path)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.folder.take());
        for made in self.made.iter().rev() {
            // What somebody else has put there meanwhile stays.
            if fs::remove_dir(made).is_err() {
                break;
            }
        }
    }
}

/// The end of two runs.
enum Ended {
    Compared(Box<Verified>),
    /// Somebody asked it to stop; the exit code then.
    Stopped(u8),
}

fn trained(job: Job, verification: &Verification) -> Result<Ended> {
    let worker = WorkerCommand::current_exe()?;
    let steps = verification.plan.steps;
    job.run_with(
        |builder| {
            let builder = builder.supervision(losses());
            builder.workers(WorkerMode::Processes(worker)).own_signals()
        },
        async |system| {
            let mut signals = Signals::listen()?;
            let told = |side, step: &odeon_actors::pretrain::report::StepReport| {
                let who = match side {
                    Side::Plan => figures::plural(verification.plan.sharing.ranks() as u64, "rank"),
                    Side::One => "one rank".to_owned(),
                };
                print::say(format!(
                    "{who}: step {}/{steps}  loss {:.6}",
                    step.step, step.loss
                ));
            };
            tokio::select! {
                verified = verify(&system, verification, told) => match verified {
                    Ok(verified) => Ok(Ended::Compared(Box::new(verified))),
                    Err(failure) => Err(anyhow!("{failure}")),
                },
                failure = system.failed() => Err(anyhow!("{failure}")),
                code = signals.asked() => Ok(Ended::Stopped(code)),
            }
        },
    )
}

/// The columns of differences by part of the model.
const COLUMNS: [(Quantity, &str); 3] = [
    (Quantity::Gradient, "gradients of step 1"),
    (Quantity::Moments, "optimiser states"),
    (Quantity::Weights, "weights"),
];

fn show(verified: &Verified, ranks: usize) -> Result<()> {
    let steps = verified.steps.iter().map(|step| {
        let [loss, one] = step.loss;
        let [norm, of_one] = step.grad_norm;
        vec![
            step.step.to_string(),
            format!("{loss:.9}"),
            format!("{one:.9}"),
            part((loss - one).abs() / one.abs()),
            format!("{norm:.9}"),
            format!("{of_one:.9}"),
            part((norm - of_one).abs() / of_one.abs()),
        ]
    });
    let of_ranks = figures::plural(ranks as u64, "rank");
    let loss = format!("loss, {of_ranks}");
    let norm = format!("norm, {of_ranks}");
    print::table(
        &[
            "step", &loss, "one rank", "apart", &norm, "one rank", "apart",
        ],
        &steps.collect::<Vec<_>>(),
    )?;
    print::line("")?;
    let row = |it: &PartMismatch| {
        let cells = COLUMNS.map(|(quantity, _)| it.largest.get(&quantity).copied());
        let cells = cells.map(|largest| largest.map_or_else(|| "-".to_owned(), part));
        std::iter::once(it.part.clone()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = verified.parts.iter().map(row).collect();
    let titles = COLUMNS.map(|(_, title)| title);
    let titles: Vec<&str> = std::iter::once("part of the model").chain(titles).collect();
    print::table(&titles, &rows)?;
    print::line("")?;
    conclusion(verified, ranks)
        .into_iter()
        .try_for_each(print::line)?;
    Ok(())
}

/// The sentences below the tables.
fn conclusion(verified: &Verified, ranks: usize) -> Vec<String> {
    let steps = figures::plural(verified.steps.len() as u64, "step");
    let parameters = figures::short(verified.parameters as f64);
    let Some(first) = &verified.first else {
        return vec![format!(
            "equal to the bit: the losses and gradient norms of {steps}, and all {parameters} parameters and the \
             optimiser's state of each before the first and after each of them"
        )];
    };
    let mut told = vec![format!("the first that differs: {}", spelled(first, ranks))];
    told.push(match &verified.beyond {
        None => format!(
            "all is the same but for rounding: no number differs by more than {} of the largest of its layer \
             (--tolerance), in {steps} of {parameters} parameters",
            part(verified.tolerance)
        ),
        Some(beyond) => format!(
            "NOT THE SAME: the first that differs by more than {} (--tolerance): {}",
            part(verified.tolerance),
            spelled(beyond, ranks)
        ),
    });
    if verified.in_doubt > 0 {
        told.push(format!(
            "of {} of {parameters} parameters rounding alone may decide where they move to, as their gradients are \
             next to nothing: these weights are in no column, and decide nothing",
            figures::count(verified.in_doubt)
        ));
    }
    told
}

/// A number that differs, in words.
fn spelled(mismatch: &Mismatch, ranks: usize) -> String {
    let when = match mismatch.step {
        0 => "before step 1".to_owned(),
        step => format!("step {step}"),
    };
    let of = match &mismatch.tensor {
        None => String::new(),
        Some(name) => format!(" of {name} at {:?}", mismatch.index),
    };
    let whose = match mismatch.ranks.len() {
        0 => String::new(),
        all if all == ranks => " (that all ranks have)".to_owned(),
        1 => format!(" (of rank {})", mismatch.ranks[0]),
        _ => format!(" (of ranks {})", listed(&mismatch.ranks)),
    };
    let scale = match mismatch.tensor {
        None => "",
        Some(_) => " of the largest of its layer",
    };
    format!(
        "{when}, {}{of}{whose}: {} with {}, {} with one, {}{scale} apart",
        mismatch.quantity.name(),
        mismatch.plan,
        figures::plural(ranks as u64, "rank"),
        mismatch.one,
        part(mismatch.relative)
    )
}

/// `0, 1 and 4`.
fn listed(ranks: &[usize]) -> String {
    let words: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match words.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => words.concat(),
    }
}

/// A relative difference.
fn part(of: f64) -> String {
    match of == 0.0 {
        true => "0".to_owned(),
        false => format!("{of:.1e}"),
    }
}

#[cfg(test)]
mod tests;
