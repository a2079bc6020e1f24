//! The folder of a run: whose it is, what of an earlier run is in it, and whether that goes on.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use odeon_actors::engine::compute::{Damaged, damaged_checkpoints, saved_progress};
use odeon_actors::recipe::{Recipe, RecipeError, Source};
use odeon_actors::rl::report::Report;

use super::change::FIXED;
use super::difference::difference;
use super::metrics::{METRICS, reports};
use crate::command::pages;
use crate::command::processes::{self, replace};
use crate::inspect::{EVENT_LOG, OUTPUT_LOG};
use crate::print;

/// The recipe as it was run, in the run's folder.
pub(crate) const RECIPE: &str = "recipe.toml";
/// Where the trainer saves.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// The policy before the reinforcement.
pub(crate) const BASE: &str = "base";
/// The model that has learnt the worth of replies.
pub(crate) const REWARD_MODEL: &str = "reward-model";
/// Held by the driver.
const LOCK: &str = "lock";

/// A run's folder, held by this process until it is dropped.
#[derive(Debug)]
pub(super) struct RunFolder {
    pub(super) path: PathBuf,
    /// The system frees the lock with the file, also after SIGKILL.
    _lock: File,
}

impl RunFolder {
    /// Takes the folder, makes it where it is absent, and puts the recipe into it.
    pub(super) fn take(source: &Source, path: PathBuf, fresh: bool) -> Result<Self> {
        if let Err(error) = fs::create_dir_all(&path) {
            let what = format!("{} cannot be made: {error}", path.display());
            return Err(source.error("run", "out", &what).into());
        }
        let lock = lock(&path)?;
        match fresh {
            true => clear(&path)?,
            false => put_damaged_aside(&path)?,
        }
        // Written anew also when it was read from here: the text is in memory.
        replace(&path.join(RECIPE), source.text())?;
        Ok(Self { path, _lock: lock })
    }

    /// Why the run in it failed, and what to do about that.
    pub(super) fn failed(&self, error: &anyhow::Error) -> anyhow::Error {
        let advice = match self.progress() {
            Ok(Some(_)) => "once that is mended, running it again goes on from its checkpoint",
            Ok(None) => {
                "it has no checkpoint yet, so running it again, once that is mended, begins anew"
            }
            Err(_) => {
                "its checkpoint cannot be read: restore that from a copy, or begin anew with --fresh"
            }
        };
        self.failed_with(error, advice)
    }

    /// The same, with this advice.
    pub(super) fn failed_with(&self, error: &anyhow::Error, advice: &str) -> anyhow::Error {
        let place = self.path.display();
        anyhow!("the run in {place} failed: {error:#}; {advice}")
    }

    /// Says what is in it, after a run.
    pub(super) fn say_where(&self) {
        print::say(format!(
            "checkpoint, metrics and recipe: {0}\ntry: odeon eval {0}, odeon generate {0} \"...\"",
            self.path.display()
        ));
    }

    /// Where the run goes on: supervised and reinforced steps of its checkpoint.
    pub(super) fn progress(&self) -> Result<Option<(u64, u64)>> {
        progress(&self.path)
    }
}

/// Checks that the run's folder can be written, or be made: told before anything starts.
pub(super) fn check_writable(source: &Source, folder: &Path) -> Result<(), RecipeError> {
    let wrong = |what: String| Err(source.error("run", "out", &what));
    let folder = match std::path::absolute(folder) {
        Ok(folder) => folder,
        Err(error) => return wrong(format!("{}: {error}", folder.display())),
    };
    // A link that leads nowhere is there as well, so no `exists`.
    let there = |path: &&Path| path.symlink_metadata().is_ok();
    let Some(nearest) = folder.ancestors().find(there) else {
        return wrong(format!("{} has no folder above it", folder.display()));
    };
    if !nearest.is_dir() {
        let what = format!("{} is no folder, so no run fits into it", nearest.display());
        return wrong(what);
    }
    // Some folders take none whatever their permissions say. What is made to see that is gone at
    // once.
    let probe = nearest.join(format!(".odeon-check-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
        return wrong(format!("{} cannot be written: {error}", nearest.display()));
    }
    Ok(())
}

/// A run of reinforcement learning does not go on where one of pretraining was, nor the other way round.
pub(super) fn check_kind(source: &Source, folder: &Path) -> Result<()> {
    let there = Source::read(&folder.join(RECIPE)).ok();
    let Some(before) = there.filter(|_| folder.join(CHECKPOINT).exists()) else {
        return Ok(());
    };
    let kind = |pretrains| match pretrains {
        true => "pretraining",
        false => "reinforcement learning",
    };
    let (before, now) = (before.pretrains(), source.pretrains());
    if before != now {
        let what = format!(
            "the run in {} is one of {}, and this recipe is one of {}: choose another run.name, or begin \
             anew with --fresh",
            folder.display(),
            kind(before),
            kind(now)
        );
        return Err(source.error("run", "name", &what).into());
    }
    Ok(())
}

/// A run that has a checkpoint goes on only with what the checkpoint was made with.
pub(super) fn check_same(source: &Source, recipe: &Recipe) -> Result<()> {
    let folder = recipe.folder();
    check_kind(source, &folder)?;
    // One that is damaged is put aside once the run is begun, where an older one is whole.
    if progress(&folder).is_err() && damaged(&folder)?.is_empty() {
        progress(&folder).with_context(|| {
            format!(
                "the checkpoint in {} cannot be read: restore it from a copy, or begin anew with --fresh",
                folder.display()
            )
        })?;
    }
    if matches!(progress(&folder), Ok(None)) {
        return Ok(());
    }
    let path = folder.join(RECIPE);
    let before = Recipe::read(&path).with_context(|| {
        format!(
            "{} has a checkpoint, but its recipe is broken, so nobody knows what of; --fresh \
             begins anew",
            folder.display()
        )
    })?;
    let (before, now) = (serde_json::to_value(before)?, serde_json::to_value(recipe)?);
    for (table, fields) in FIXED {
        let Some((field, before, now)) = difference(&before[table], &now[table], fields) else {
            continue;
        };
        // The task's fields lie in a table of its own.
        let task = now_task(recipe);
        let place = if *table == "task" { task } else { table };
        let what = format!(
            "{field} was {before} when the run in {} began and is {now} now, and its checkpoint \
             depends on it: set it back, choose another run.name, or begin anew with --fresh",
            folder.display()
        );
        return Err(source.error(place, &field, &what).into());
    }
    Ok(())
}

fn damaged(folder: &Path) -> Result<Vec<Damaged>> {
    damaged_checkpoints(&folder.join(CHECKPOINT)).map_err(|failure| anyhow!("{failure}"))
}

/// Puts checkpoints aside that are damaged, where an older one is whole, and says so.
fn put_damaged_aside(folder: &Path) -> Result<()> {
    for damaged in damaged(folder)? {
        let aside = damaged
            .put_aside()
            .map_err(|failure| anyhow!("{failure}"))?;
        print::say(format!(
            "a checkpoint is damaged and the run goes on from the one before: {}; it is {} now",
            damaged.why,
            aside.display()
        ));
    }
    Ok(())
}

/// Steps done, when the run in this folder has come to the end that the recipe asks for.
pub(super) fn finished(recipe: &Recipe) -> Option<u64> {
    let folder = recipe.folder();
    let (warmup, version) = progress(&folder).ok()??;
    let told = matches!(reports(&folder).last(), Some(Report::Finished(_)));
    let steps = warmup >= recipe.warmup.steps && version >= recipe.rl.steps_in_all();
    (told && steps).then_some(version)
}

/// Supervised and reinforced steps of the checkpoint.
fn progress(run: &Path) -> Result<Option<(u64, u64)>> {
    let saved = saved_progress(&run.join(CHECKPOINT)).map_err(|failure| anyhow!("{failure}"))?;
    Ok(saved.map(|saved| (saved.warmup, saved.version)))
}

fn now_task(recipe: &Recipe) -> &'static str {
    use odeon_algorithms::task::TaskSpec;
    match recipe.task {
        TaskSpec::Sums(_) => "task.sums",
        TaskSpec::Countdown(_) => "task.countdown",
        TaskSpec::Maths(_) => "task.maths",
        TaskSpec::Code(_) => "task.code",
        _ => "task.gsm8k",
    }
}

fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let doing = || format!("locking {}", path.display());
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(doing)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Without its id the message still says what is the matter.
            let _ = file.read_to_string(&mut holder);
            bail!(
                "process {} runs in {} already: wait for it, or stop it with Ctrl-C or kill {0}",
                holder.trim(),
                folder.display()
            );
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(doing),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .with_context(doing)?;
    Ok(file)
}

/// Only what a run has made may be removed.
pub(super) fn check_run(folder: &Path) -> Result<()> {
    let Ok(mut entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    let has = |name: &str| folder.join(name).exists();
    let run = has(RECIPE) && (has(METRICS) || has(CHECKPOINT) || has(LOCK));
    if run || entries.next().is_none() {
        return Ok(());
    }
    bail!(
        "{} is no folder of a run (no {RECIPE} with {METRICS} or {CHECKPOINT} in it), so --fresh \
         removes nothing there: choose another run.name or run.out",
        folder.display()
    )
}

/// Removes what a run makes, and nothing that somebody has put beside it.
fn clear(folder: &Path) -> Result<()> {
    let made = [RECIPE, METRICS, CHECKPOINT, BASE, REWARD_MODEL];
    let notes = [processes::FILE, pages::FILE]
        .into_iter()
        .chain(OUTPUT_LOG)
        .chain(EVENT_LOG);
    for name in made.into_iter().chain(notes) {
        let path = folder.join(name);
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else if path.exists() {
            fs::remove_file(&path)
        } else {
            Ok(())
        };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}
