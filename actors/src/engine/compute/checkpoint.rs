//! Checkpoints of a trainer: a model folder that other tools read, the optimiser's moments beside
//! it, and a file `latest` that names the newest complete one. A crash at any moment leaves the
//! last complete checkpoint in force.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::OptimizerState;
use odeon_algorithms::weights::{LoadedModel, StoredType, load_directory, save};

use crate::engine::Progress;

const LATEST: &str = "latest";
const MODEL: &str = "model";
const OPTIMIZER: &str = "optimizer.f32";

/// Writes a checkpoint and makes it the latest; older ones are removed.
pub(super) fn write(
    folder: &Path,
    progress: &Progress,
    model: &LoadedModel,
    tokenizer: Option<&Tokenizer>,
    optimizer: &OptimizerState,
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
    save(&target.join(MODEL), model, StoredType::F32, tokenizer).map_err(Failure::error)?;
    let path = target.join(OPTIMIZER);
    let mut file = fs::File::create(&path).map_err(io("writing", &path))?;
    let mut bytes = Vec::with_capacity(16 + 8 * optimizer.moment1.len());
    bytes.extend(optimizer.step.to_le_bytes());
    bytes.extend((optimizer.moment1.len() as u64).to_le_bytes());
    for moment in [&optimizer.moment1, &optimizer.moment2] {
        bytes.extend(moment.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    file.write_all(&bytes)
        .and_then(|()| file.sync_all())
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

/// Has a file, or a folder with all in it, survive a loss of power.
pub(super) fn sync(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(Failure::error)?;
        for entry in entries {
            sync(&entry.map_err(Failure::error)?.path())?;
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

/// Reads a checkpoint.
pub(super) fn read(target: &Path) -> Result<(LoadedModel, OptimizerState), Failure> {
    let model = load_directory(&target.join(MODEL)).map_err(Failure::error)?;
    let path = target.join(OPTIMIZER);
    let bytes =
        fs::read(&path).map_err(|error| Failure::error(format!("{}: {error}", path.display())))?;
    let broken = || Failure::error(format!("{} is truncated or corrupt", path.display()));
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(broken)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(broken());
    }
    let (step, body) = body.split_first_chunk::<8>().ok_or_else(broken)?;
    let (count, body) = body.split_first_chunk::<8>().ok_or_else(broken)?;
    let values: Vec<f32> = body
        .as_chunks()
        .0
        .iter()
        .map(|four| f32::from_le_bytes(*four))
        .collect();
    let count = usize::try_from(u64::from_le_bytes(*count)).map_err(Failure::error)?;
    if values.len() != count * 2 {
        return Err(broken());
    }
    let (moment1, moment2) = values.split_at(count);
    let state = OptimizerState {
        step: u64::from_le_bytes(*step),
        moment1: moment1.to_vec(),
        moment2: moment2.to_vec(),
    };
    Ok((model, state))
}

/// The folder of a run's newest model, for `eval` and `generate`.
///
/// # Errors
/// There is no checkpoint, or it is broken.
pub fn latest_model(folder: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(latest(folder)?.map(|(_, target)| target.join(MODEL)))
}
