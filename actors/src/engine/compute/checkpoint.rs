//! Checkpoints of a trainer: a model folder that other tools read, what the trainer needs to go on
//! beside it, and a file `latest` that names the newest complete one. A crash at any moment leaves
//! the last complete checkpoint in force.
//!
//! With adapters the model folder has them merged, for others; the trainer goes on from its first
//! weights and the adapters in its state, to the bit.

use std::fs;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon_algorithms::model::Model;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::Trainer as Optimizer;
use odeon_algorithms::weights::{ModelView, StoredType, load_directory, save};

use crate::engine::Progress;

const LATEST: &str = "latest";
const MODEL: &str = "model";
const STATE: &str = "trainer.state";

/// Writes a checkpoint and makes it the latest; older ones are removed.
pub(super) fn write(
    folder: &Path,
    progress: &Progress,
    tokenizer: Option<&Tokenizer>,
    optimizer: &Optimizer,
    context: usize,
) -> Result<(), Failure> {
    let name = format!("warmup-{}-step-{}", progress.warmup, progress.version);
    let target = folder.join(&name);
    let io = |doing: &str, path: &Path| {
        let place = format!("{doing} {}", path.display());
        move |error: std::io::Error| Failure::error(format!("{place}: {error}"))
    };
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
    sync(&target)?;
    let fresh = folder.join("latest.new");
    let line = format!("{} {} {name}\n", progress.warmup, progress.version);
    fs::write(&fresh, line).map_err(io("writing", &fresh))?;
    sync(&fresh)?;
    fs::rename(&fresh, folder.join(LATEST)).map_err(io("naming", &fresh))?;
    sync_one(folder)?;
    remove_others(folder, &name);
    Ok(())
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

/// Older checkpoints are of no use to the run; one that cannot be removed does no harm.
fn remove_others(folder: &Path, keep: &str) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("warmup-") && name != keep {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The latest checkpoint's progress and folder; `None` when there is none.
pub(super) fn latest(folder: &Path) -> Result<Option<(Progress, PathBuf)>, Failure> {
    let path = folder.join(LATEST);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::error(format!("{}: {error}", path.display()))),
    };
    let mut words = text.split_whitespace();
    let broken = || Failure::error(format!("{} is broken; remove the folder", path.display()));
    let mut number = || {
        words
            .next()
            .and_then(|word| word.parse().ok())
            .ok_or_else(broken)
    };
    let progress = Progress {
        warmup: number()?,
        version: number()?,
    };
    let name = words.next().ok_or_else(broken)?;
    Ok(Some((progress, folder.join(name))))
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
