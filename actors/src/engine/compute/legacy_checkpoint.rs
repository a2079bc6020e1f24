//! Checkpoints of the layout before `odeon_checkpoint`, which are read and go: folders
//! `warmup-N-step-M/{model,trainer.state,run.json}`, and a file `latest` that names those that are complete,
//! newest first.
//!
//! ```text
//! "ODTRAIN2"                   8 bytes of trainer.state
//! updates of the optimiser     u64
//! trained parameters, n        u64
//! optimiser                    u64: 0 AdamW, 1 Muon, 2 Lion
//! rank of the adapters         u64, 0 without
//! alpha of the adapters        f32, 0 without
//! CRC-32 of the frozen weights u32, 0 without adapters
//! adapters                     n f32, nothing without
//! what the optimiser keeps     n f32 for each buffer of its, in its order
//! CRC-32 of all before         u32
//! ```

use std::fs;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon_algorithms::model::LoraConfig;
use odeon_algorithms::train::{StateOwner, StatePart, Trainer};
use odeon_algorithms::weights::{StoredType, load_directory};
use odeon_gpu::Any;

use super::model_folder::sync_one;
use crate::engine::{Progress, RunState};
use crate::trajectory::Version;

const LATEST: &str = "latest";
const MODEL: &str = "model";
const STATE: &str = "trainer.state";
const RUN: &str = "run.json";
const MAGIC: &[u8; 8] = b"ODTRAIN2";
const OPTIMIZERS: [&str; 3] = ["AdamW", "Muon", "Lion"];

/// A complete checkpoint of the old layout.
pub(super) struct LegacyCheckpoint {
    pub(super) progress: Progress,
    folder: PathBuf,
}

/// Returns true when there may be some.
pub(super) fn any(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // A crash may have left folders that nothing names.
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name == LATEST || name.to_string_lossy().starts_with("warmup-"))
}

/// The latest of them; `None` when there is none.
pub(super) fn latest(folder: &Path) -> Result<Option<LegacyCheckpoint>, Failure> {
    let newest = list(folder)?.into_iter().next();
    Ok(newest.map(|(progress, name)| LegacyCheckpoint {
        progress,
        folder: folder.join(name),
    }))
}

impl LegacyCheckpoint {
    /// The folder with its model.
    pub(super) fn model(&self) -> PathBuf {
        self.folder.join(MODEL)
    }

    /// Reads the state that the run needs to go on.
    pub(super) fn run_state(&self) -> Result<RunState, Failure> {
        let path = self.folder.join(RUN);
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

    /// Puts it back into an optimiser with the run's first weights.
    pub(super) fn read(&self, optimizer: &mut Trainer<Any>) -> Result<(), Failure> {
        if !optimizer.model().has_adapters() {
            let loaded = load_directory(&self.model()).map_err(Failure::error)?;
            let model = optimizer.model_mut();
            loaded.load_into(model).map_err(Failure::error)?;
        }
        let path = self.folder.join(STATE);
        let place = |error: String| Failure::error(format!("{}: {error}", path.display()));
        let file = fs::File::open(&path).map_err(|error| place(error.to_string()))?;
        let mut from = Summed {
            inner: BufReader::new(file),
            sum: crc32fast::Hasher::new(),
        };
        read_state(&mut from, optimizer).map_err(place)
    }
}

fn read_state(from: &mut Summed<impl Read>, optimizer: &mut Trainer<Any>) -> Result<(), String> {
    if from.array()? != *MAGIC {
        return Err(damaged("it does not begin like one"));
    }
    let updates = u64::from_le_bytes(from.array()?);
    let parameters = u64::from_le_bytes(from.array()?);
    let number = u64::from_le_bytes(from.array()?);
    let rank = u64::from_le_bytes(from.array()?);
    let alpha = f32::from_le_bytes(from.array()?);
    let base = u32::from_le_bytes(from.array()?);
    let theirs = usize::try_from(number).ok();
    let theirs = theirs.and_then(|number| OPTIMIZERS.get(number));
    let owner = StateOwner {
        parameters,
        optimizer: theirs.copied().unwrap_or("an optimiser of a later version"),
        adapters: (rank > 0).then_some(LoraConfig {
            rank: usize::try_from(rank).unwrap_or(usize::MAX),
            alpha,
        }),
        base,
    };
    let checked = optimizer.check_owner(&owner);
    checked.map_err(|error| error.to_string())?;
    let adapters = rank > 0;
    let kept = 0..optimizer.config().optimizer.state().len();
    let parts = adapters.then_some(StatePart::Parameters).into_iter();
    for part in parts.chain(kept.map(StatePart::State)) {
        from.part(part, optimizer)?;
    }
    let sum = from.sum.clone().finalize();
    if u32::from_le_bytes(from.array()?) != sum {
        return Err(damaged("its checksum is another"));
    }
    optimizer.resume_at(updates);
    Ok(())
}

fn damaged(how: &str) -> String {
    format!("the state is damaged: {how}; restore it from a copy, or begin anew")
}

/// Bytes on their way, and their checksum.
struct Summed<T> {
    inner: T,
    sum: crc32fast::Hasher,
}

impl<T: Read> Summed<T> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        let filled = self.inner.read_exact(bytes);
        filled.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => damaged("it is cut off"),
            _ => format!("the state cannot be read: {error}"),
        })?;
        self.sum.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn part(&mut self, part: StatePart, optimizer: &mut Trainer<Any>) -> Result<(), String> {
        let len = optimizer.trained_layout().len();
        let mut bytes = vec![0; 4 * PIECE.min(len)];
        let mut numbers = vec![];
        for start in (0..len).step_by(PIECE) {
            let piece = &mut bytes[..4 * PIECE.min(len - start)];
            self.fill(piece)?;
            numbers.clear();
            StoredType::F32.read(piece, &mut numbers);
            optimizer.write_part(part, start, &numbers);
        }
        Ok(())
    }
}

/// Forgets those of later steps than this one.
pub(super) fn forget_after(folder: &Path, version: Version) -> Result<(), Failure> {
    let mut complete = list(folder)?;
    let all = complete.len();
    complete.retain(|(progress, _)| progress.version <= version);
    if complete.len() < all {
        name_complete(folder, &complete)?;
    }
    Ok(())
}

/// Removes all but so many of the newest. They are in force no more, so what cannot be removed does no harm.
pub(super) fn keep(folder: &Path, count: usize) {
    let kept = list(folder).and_then(|mut complete| {
        complete.truncate(count);
        name_complete(folder, &complete)
    });
    if let Err(failure) = kept {
        tracing::warn!(%failure, "checkpoints of the old layout could not be removed");
    }
}

/// The complete checkpoints and their names, newest first.
fn list(folder: &Path) -> Result<Vec<(Progress, String)>, Failure> {
    let path = folder.join(LATEST);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
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

/// Has `latest` name these and no others, and removes the others.
fn name_complete(folder: &Path, complete: &[(Progress, String)]) -> Result<(), Failure> {
    let latest = folder.join(LATEST);
    let fresh = folder.join("latest.new");
    let lines: String = complete
        .iter()
        .map(|(progress, name)| format!("{} {} {name}\n", progress.warmup, progress.version))
        .collect();
    let io = |doing: &'static str, path: &Path| {
        let place = format!("{doing} {}", path.display());
        move |error: std::io::Error| Failure::error(format!("{place}: {error}"))
    };
    if lines.is_empty() {
        match fs::remove_file(&latest) {
            // Another rank may have been quicker.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(io("removing", &latest))?,
        }
    } else {
        fs::write(&fresh, lines).map_err(io("writing", &fresh))?;
        sync_one(&fresh)?;
        fs::rename(&fresh, &latest).map_err(io("naming", &fresh))?;
    }
    sync_one(folder)?;
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("warmup-") && complete.iter().all(|(_, kept)| *kept != name) {
            // One that is left is named by nobody.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Numbers in a piece: a few hundred KiB, which stay in the cache.
const PIECE: usize = 64 << 10;
