//! Checkpoints of a trainer: a model folder that other tools read, what the trainer needs to go on
//! beside it, and a file `latest` that names the complete ones, newest first. A crash at any moment
//! leaves the last complete checkpoint in force.
//!
//! With adapters the model folder has them merged, for others; the trainer goes on from its first
//! weights and the adapters in its state, to the bit.

use std::fs;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::weights::{ModelView, StoredType, load_directory, save};

use super::{Model, Optimizer};
use crate::engine::{Progress, RunState};
use crate::trajectory::Version;

const LATEST: &str = "latest";
const MODEL: &str = "model";
const STATE: &str = "trainer.state";
const RUN: &str = "run.json";

/// Number of older checkpoints that stay when a new one is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Older {
    /// None.
    Removed,
    /// The one before.
    OneKept,
}

/// Writes a checkpoint and makes it the latest.
pub(super) fn write(
    folder: &Path,
    older: Older,
    progress: &Progress,
    run: Option<&RunState>,
    tokenizer: Option<&Tokenizer>,
    optimizer: &Optimizer,
    context: usize,
) -> Result<(), Failure> {
    let name = format!("warmup-{}-step-{}", progress.warmup, progress.version);
    let target = folder.join(&name);
    let mut complete = vec![];
    if older == Older::OneKept {
        complete = list(folder)?;
        complete.retain(|(_, kept)| *kept != name);
        complete.truncate(1);
    }
    complete.insert(0, (*progress, name));
    if target.exists() {
        // Left over from a run that died between writing and naming it.
        fs::remove_dir_all(&target).map_err(io("removing", &target))?;
    }
    fs::create_dir_all(&target).map_err(io("making", &target))?;
    write_model(&target.join(MODEL), optimizer.model(), context, tokenizer)?;
    let path = target.join(STATE);
    fs::File::create(&path)
        .and_then(|file| {
            optimizer.write_state(BufWriter::new(&file))?;
            file.sync_all()
        })
        .map_err(io("writing", &path))?;
    if let Some(run) = run {
        let path = target.join(RUN);
        let text = serde_json::to_vec(run).map_err(Failure::error)?;
        fs::write(&path, text).map_err(io("writing", &path))?;
    }
    sync(&target)?;
    name_complete(folder, &complete)
}

/// Has `latest` name these and no others, and removes the others.
fn name_complete(folder: &Path, complete: &[(Progress, String)]) -> Result<(), Failure> {
    let latest = folder.join(LATEST);
    let fresh = folder.join("latest.new");
    let lines: String = complete
        .iter()
        .map(|(progress, name)| format!("{} {} {name}\n", progress.warmup, progress.version))
        .collect();
    if lines.is_empty() {
        fs::remove_file(&latest).map_err(io("removing", &latest))?;
    } else {
        fs::write(&fresh, lines).map_err(io("writing", &fresh))?;
        sync(&fresh)?;
        fs::rename(&fresh, &latest).map_err(io("naming", &fresh))?;
    }
    sync_one(folder)?;
    remove_others(folder, complete);
    Ok(())
}

fn io(doing: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Failure + use<> {
    let place = format!("{doing} {}", path.display());
    move |error| Failure::error(format!("{place}: {error}"))
}

/// Writes a model with its adapters merged, into a folder that is not there yet.
pub(super) fn write_model(
    target: &Path,
    model: &Model,
    context: usize,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), Failure> {
    let flat = model.merged();
    let view = ModelView::of(model, &flat, context);
    save(target, &view, StoredType::F32, tokenizer).map_err(Failure::error)
}

/// Has a file, or a folder with all in it, survive a loss of power.
pub(super) fn sync(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        let unread = |error| Failure::error(format!("reading {}: {error}", path.display()));
        for entry in fs::read_dir(path).map_err(unread)? {
            sync(&entry.map_err(unread)?.path())?;
        }
    }
    sync_one(path)
}

fn sync_one(path: &Path) -> Result<(), Failure> {
    let synced = fs::File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| Failure::error(format!("writing {}: {error}", path.display())))
}

/// Other checkpoints are of no use to the run; one that cannot be removed does no harm.
fn remove_others(folder: &Path, keep: &[(Progress, String)]) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("warmup-") && keep.iter().all(|(_, kept)| *kept != name) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The latest checkpoint's progress and folder; `None` when there is none.
pub(super) fn latest(folder: &Path) -> Result<Option<(Progress, PathBuf)>, Failure> {
    let newest = list(folder)?.into_iter().next();
    Ok(newest.map(|(progress, name)| (progress, folder.join(name))))
}

/// Reads the state that the run needs to go on, from a checkpoint's folder.
pub(super) fn run_state(target: &Path) -> Result<RunState, Failure> {
    let path = target.join(RUN);
    let text = fs::read(&path).map_err(|error| {
        Failure::error(format!(
            "reading {}: {error}; without it nobody knows which prompts were used: begin the run anew \
             with --fresh",
            path.display()
        ))
    })?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::error(format!("{}: {error}", path.display())))
}

/// Forgets checkpoints of later steps than this one: what is made again replaces them.
pub(super) fn forget_after(folder: &Path, version: Version) -> Result<(), Failure> {
    let mut complete = list(folder)?;
    let all = complete.len();
    complete.retain(|(progress, _)| progress.version <= version);
    if complete.len() < all {
        name_complete(folder, &complete)?;
    }
    Ok(())
}

/// The complete checkpoints and their names, newest first.
fn list(folder: &Path) -> Result<Vec<(Progress, String)>, Failure> {
    let path = folder.join(LATEST);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(Failure::error(format!("{}: {error}", path.display()))),
    };
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let progress = Progress {
            warmup: words.next()?.parse().ok()?,
            version: words.next()?.parse().ok()?,
        };
        Some((progress, words.next()?.to_owned()))
    };
    let entries: Option<Vec<_>> = text.lines().map(entry).collect();
    entries
        .filter(|entries| !entries.is_empty())
        .ok_or_else(|| Failure::error(format!("{} is broken; remove the folder", path.display())))
}

/// Puts a checkpoint back into an optimiser with the run's first weights.
pub(super) fn read(target: &Path, optimizer: &mut Optimizer) -> Result<(), Failure> {
    let model = optimizer.model_mut();
    if !model.has_adapters() {
        let loaded = load_directory(&target.join(MODEL)).map_err(Failure::error)?;
        loaded.load_into(model).map_err(Failure::error)?;
    }
    let path = target.join(STATE);
    let place =
        |error: &dyn std::fmt::Display| Failure::error(format!("{}: {error}", path.display()));
    let file = fs::File::open(&path).map_err(|error| place(&error))?;
    let read = optimizer.read_state(BufReader::new(file));
    read.map_err(|error| place(&error))
}

/// The folder of a run's newest model, for `eval` and `generate`.
///
/// # Errors
/// There is no checkpoint, or it is broken.
pub fn latest_model(folder: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(latest(folder)?.map(|(_, target)| target.join(MODEL)))
}
