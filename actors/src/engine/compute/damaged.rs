//! Checkpoints of a run that are damaged, while an older one is whole from which it can go on.

use std::fs;
use std::path::{Path, PathBuf};

use odeon::Failure;
use odeon_checkpoint::{Entry, Opened, Storage, commit, verify};

use super::checkpoint::{RUN, Steps};
use super::state;

/// A checkpoint that a run cannot go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Its folder.
    pub folder: PathBuf,
    /// The fault, with the file and the byte.
    pub why: String,
}

impl Damaged {
    /// Renames its folder, so that it is none of the run's checkpoints any more, and gives the new name.
    ///
    /// # Errors
    /// It cannot be renamed; it is as it was then.
    pub fn put_aside(&self) -> Result<PathBuf, Failure> {
        let name = self.folder.file_name().unwrap_or_default();
        let aside = (1..).map(|nth: u32| match nth {
            1 => format!("damaged-{}", name.to_string_lossy()),
            nth => format!("damaged-{}-{nth}", name.to_string_lossy()),
        });
        let aside = aside.map(|name| self.folder.with_file_name(name));
        let aside = aside
            .into_iter()
            .find(|path| path.symlink_metadata().is_err());
        let aside = aside.unwrap_or_default();
        fs::rename(&self.folder, &aside).map_err(|error| {
            let folder = self.folder.display();
            Failure::error(format!(
                "{folder} is damaged and cannot be renamed: {error}"
            ))
        })?;
        Ok(aside)
    }
}

/// Finds the checkpoints of a run, in the place of its policy, that are newer than the newest from which the
/// run can go on. Nothing where that is the newest, and where there is none: then the run says what is wrong
/// when it reads it. Sizes of files and small checkpoints are looked at, and not all bytes of large ones.
///
/// # Errors
/// The place cannot be read.
pub fn damaged_checkpoints(place: &Path) -> Result<Vec<Damaged>, Failure> {
    if !place.is_dir() {
        return Ok(vec![]);
    }
    state::apart(async {
        let storage = Storage::folder(place).map_err(Failure::error)?;
        let critics = critics(place).await?;
        let mut damaged = vec![];
        for entry in complete(&storage).await?.iter().rev() {
            let why = match fault(&storage, entry).await? {
                Some(why) => why,
                None => match critics_faults(&critics, &storage, entry).await? {
                    Critics::GoOn(others) => {
                        damaged.extend(others);
                        return Ok(damaged);
                    }
                    Critics::Lack(why) => why,
                },
            };
            damaged.push(Damaged {
                folder: place.join(entry.folder()),
                why,
            });
        }
        Ok(vec![])
    })
}

/// The steps of the complete checkpoints of a place, oldest first, each with what is wrong with it, as far as
/// [`damaged_checkpoints`] looks.
///
/// # Errors
/// The place cannot be read.
pub fn complete_checkpoints(place: &Path) -> Result<Vec<(u64, Option<String>)>, Failure> {
    if !place.is_dir() {
        return Ok(vec![]);
    }
    state::apart(async {
        let storage = Storage::folder(place).map_err(Failure::error)?;
        let mut all = vec![];
        for entry in complete(&storage).await? {
            let fault = fault(&storage, &entry).await?;
            all.push((entry.step, fault));
        }
        Ok(all)
    })
}

/// A place of checkpoints, and those of them that are complete, oldest first.
struct Place {
    folder: PathBuf,
    storage: Storage,
    entries: Vec<Entry>,
}

/// The outcome for critics that are to go on with a checkpoint of their policy.
enum Critics {
    /// They can, without these, which are newer.
    GoOn(Vec<Damaged>),
    /// That from which one would go on is damaged.
    Lack(String),
}

/// The places of critics, which lie in that of the policy.
async fn critics(place: &Path) -> Result<Vec<Place>, Failure> {
    let mut critics = vec![];
    for entry in fs::read_dir(place).map_err(Failure::error)? {
        let folder = entry.map_err(Failure::error)?.path();
        let of_policy = Opened::at(&folder).await;
        if folder.is_dir() && of_policy.is_ok_and(|opened| opened.is_none()) {
            let storage = Storage::folder(&folder).map_err(Failure::error)?;
            critics.push(Place {
                entries: complete(&storage).await?,
                storage,
                folder,
            });
        }
    }
    Ok(critics)
}

/// Those that are complete, oldest first.
async fn complete(storage: &Storage) -> Result<Vec<Entry>, Failure> {
    let mut entries = commit::list(storage).await.map_err(Failure::error)?;
    entries.retain(|entry| entry.complete);
    Ok(entries)
}

async fn fault(storage: &Storage, entry: &Entry) -> Result<Option<String>, Failure> {
    let damage = verify::damage(storage, entry, READ_BYTES_MAX).await;
    damage.map_err(Failure::error)
}

/// Looks at the checkpoints of critics that go on with this one of the policy.
async fn critics_faults(
    critics: &[Place],
    storage: &Storage,
    policy: &Entry,
) -> Result<Critics, Failure> {
    let mut damaged = vec![];
    if critics.iter().all(|critic| critic.entries.is_empty()) {
        return Ok(Critics::GoOn(damaged));
    }
    let opened = Opened::of_entry(storage, policy).await;
    let opened = opened.map_err(Failure::error)?;
    let steps: Option<Steps> = state::json(&opened, RUN).await?;
    let version = steps.map_or(policy.step, |steps| steps.progress.version);
    for critic in critics {
        let (older, newer): (Vec<&Entry>, Vec<&Entry>) = critic
            .entries
            .iter()
            .partition(|entry| entry.step <= version);
        if let Some(own) = older.last()
            && let Some(why) = fault(&critic.storage, own).await?
        {
            return Ok(Critics::Lack(why));
        }
        // It reads its newest before it is told where its policy is.
        for entry in newer {
            if let Some(why) = fault(&critic.storage, entry).await? {
                let folder = critic.folder.join(entry.folder());
                damaged.push(Damaged { folder, why });
            }
        }
    }
    Ok(Critics::GoOn(damaged))
}

/// As much is read through before a run goes on; it takes some seconds.
const READ_BYTES_MAX: u64 = 8 << 30;
