//! Which checkpoints a place holds. One is there when its manifest is, and the manifest is written
//! last and removed first; so at any moment each is whole or is not there.

use std::fmt;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::manifest::{MANIFEST, Manifest, ManifestError};
use crate::storage::{Storage, StorageError};

/// A folder of a checkpoint, shown as `00000012-step-400`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its number: each has a greater one than those before, also where a run has gone back and
    /// comes to the same step again.
    pub sequence: u64,
    /// The step of the training that it is of.
    pub step: u64,
    /// Set for a checkpoint that is whole; else it is being written, or a crash has left it behind.
    pub complete: bool,
}

/// Which checkpoint is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Which {
    /// The one in force: that which was completed last.
    #[default]
    Latest,
    /// The last that was completed of this step.
    Step(u64),
}

/// Which checkpoints stay when a new one is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// So many of the newest; at least one.
    pub newest: usize,
    /// And those of steps that are multiples of this.
    pub every: Option<u64>,
}

/// Why a checkpoint could not be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The place could not be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The manifest could not be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// There is none that is whole.
    #[error("{place} holds no complete checkpoint{incomplete}")]
    Nothing {
        /// The place.
        place: String,
        /// Number of incomplete checkpoints that are there, in words; empty without any.
        incomplete: String,
    },
    /// There is none of that step.
    #[error("{place} holds no complete checkpoint of step {step}; there are: {there}")]
    NoStep {
        /// The place.
        place: String,
        /// The step.
        step: u64,
        /// The steps that there are.
        there: String,
    },
}

impl Default for Retention {
    /// The newest and the one before, so that a damaged one can be gone back from.
    fn default() -> Self {
        Self {
            newest: 2,
            every: None,
        }
    }
}

impl Entry {
    /// A checkpoint that is to be written.
    #[must_use]
    pub const fn new(sequence: u64, step: u64) -> Self {
        Self {
            sequence,
            step,
            complete: false,
        }
    }

    /// The name of its folder.
    #[must_use]
    pub fn folder(&self) -> String {
        self.to_string()
    }

    /// A file in it.
    #[must_use]
    pub fn file(&self, name: &str) -> String {
        format!("{self}/{name}")
    }

    /// The checkpoint whose folder has this name.
    pub(crate) fn read(folder: &str) -> Option<Self> {
        let (sequence, step) = folder.split_once("-step-")?;
        let entry = Self::new(sequence.parse().ok()?, step.parse().ok()?);
        (entry.to_string() == folder).then_some(entry)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:08}-step-{}", self.sequence, self.step))
    }
}

impl Retention {
    /// Those that go, of all that a place holds, while `current` is the newest that is complete:
    /// older ones that are not kept, and what crashes before it have left. Never one that is newer,
    /// which may be under way.
    #[must_use]
    pub fn doomed(&self, entries: &[Entry], current: u64) -> Vec<Entry> {
        let mut older: Vec<&Entry> = entries
            .iter()
            .filter(|entry| entry.sequence <= current)
            .collect();
        older.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.sequence));
        let mut kept = 0;
        older.retain(|entry| {
            if !entry.complete {
                return true;
            }
            kept += 1;
            let periodic = self
                .every
                .is_some_and(|every| entry.step.is_multiple_of(every.max(1)));
            kept > self.newest.max(1) && !periodic
        });
        older.into_iter().cloned().collect()
    }
}

/// All checkpoints of a place, oldest first.
///
/// # Errors
/// [`StorageError`].
#[odeon_macros::boxed]
pub async fn list(storage: &Storage) -> Result<Vec<Entry>, StorageError> {
    let folders = storage.folders().await?;
    let entries = folders.iter().filter_map(|folder| Entry::read(folder));
    let entries: Vec<Entry> = entries.collect();
    let seen = stream::iter(entries).map(|entry| async move {
        let complete = storage.has(&entry.file(MANIFEST)).await?;
        Ok::<_, StorageError>(Entry { complete, ..entry })
    });
    let mut entries: Vec<Entry> = seen.buffer_unordered(LOOKS).try_collect().await?;
    entries.sort_unstable();
    Ok(entries)
}

/// Finds a checkpoint and reads its manifest.
///
/// # Errors
/// [`FindError`].
#[odeon_macros::boxed]
pub async fn find(storage: &Storage, which: Which) -> Result<(Entry, Manifest), FindError> {
    let entries = list(storage).await?;
    let place = || storage.place().to_owned();
    let complete = || entries.iter().filter(|entry| entry.complete);
    let found = complete().rfind(|entry| match which {
        Which::Latest => true,
        Which::Step(step) => entry.step == step,
    });
    let Some(entry) = found else {
        let Which::Step(step) = which else {
            let incomplete = if entries.is_empty() {
                String::new()
            } else {
                format!("; {} were begun and not completed", entries.len())
            };
            return Err(FindError::Nothing {
                place: place(),
                incomplete,
            });
        };
        let steps: Vec<String> = complete().map(|entry| entry.step.to_string()).collect();
        return Err(FindError::NoStep {
            place: place(),
            step,
            there: if steps.is_empty() {
                "none".into()
            } else {
                steps.join(", ")
            },
        });
    };
    Ok((entry.clone(), manifest(storage, entry).await?))
}

/// Reads the manifest of a checkpoint.
///
/// # Errors
/// [`FindError`].
pub(crate) async fn manifest(storage: &Storage, entry: &Entry) -> Result<Manifest, FindError> {
    let file = entry.file(MANIFEST);
    let bytes = storage.get(&file).await?;
    Ok(Manifest::decode(&bytes, &storage.shown(&file))?)
}

/// Removes the checkpoints of later steps than this one, so that the newest before is in force. The
/// newest go first: a crash in between leaves one in force that was before those that are gone.
///
/// # Errors
/// [`StorageError`]; some may be left then.
#[odeon_macros::boxed]
pub async fn forget_after(storage: &Storage, step: u64) -> Result<Vec<Entry>, StorageError> {
    let mut later = list(storage).await?;
    later.retain(|entry| entry.step > step);
    later.reverse();
    for entry in &later {
        storage.remove(&entry.file(MANIFEST)).await?;
        // What is left of it is no checkpoint, and goes with the next save. Other ranks may be at it, too.
        if let Err(error) = storage.remove_folder(&entry.folder()).await {
            tracing::debug!("what is forgotten could not be removed: {error}");
        }
    }
    Ok(later)
}

/// Makes a checkpoint whole, all of whose files are there.
///
/// # Errors
/// [`StorageError`]; it is not there then, or, when the place could not answer, may be.
#[odeon_macros::boxed]
pub async fn commit(
    storage: &Storage,
    entry: &Entry,
    manifest: &Manifest,
) -> Result<(), StorageError> {
    let bytes: Bytes = manifest.encode().into();
    storage.put(&entry.file(MANIFEST), &[bytes]).await
}

/// Removes what is not kept. What is removed is first made incomplete.
///
/// # Errors
/// [`StorageError`]; what is left goes the next time.
#[odeon_macros::boxed]
pub async fn collect(
    storage: &Storage,
    retention: &Retention,
    current: u64,
) -> Result<Vec<Entry>, StorageError> {
    let doomed = retention.doomed(&list(storage).await?, current);
    for entry in &doomed {
        if entry.complete {
            storage.remove(&entry.file(MANIFEST)).await?;
        }
        storage.remove_folder(&entry.folder()).await?;
    }
    Ok(doomed)
}

/// Number of folders that are looked into at a time.
const LOOKS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_newest_stay_and_nothing_that_is_under_way_goes(
            complete in prop::collection::vec(any::<bool>(), 1..12),
            newest in 0_usize..4,
            every in prop::option::of(1_u64..5),
        ) {
            let entries: Vec<Entry> = complete.iter().enumerate().map(|(at, complete)| Entry {
                complete: *complete,
                ..Entry::new(at as u64, at as u64)
            }).collect();
            let current = entries.iter().rev().find(|entry| entry.complete);
            prop_assume!(current.is_some());
            let current = current.unwrap().sequence;
            let retention = Retention { newest, every };
            let doomed = retention.doomed(&entries, current);
            let complete: Vec<&Entry> = entries.iter().filter(|entry| entry.complete).collect();
            for entry in complete.iter().rev().take(newest.max(1)) {
                prop_assert!(!doomed.contains(entry), "{entry} is among the newest");
            }
            for entry in &entries {
                let periodic = every.is_some_and(|every| entry.step % every == 0);
                if entry.sequence > current || entry.complete && periodic {
                    prop_assert!(!doomed.contains(entry), "{entry}");
                } else if !entry.complete {
                    prop_assert!(doomed.contains(entry), "{entry} was left by a crash");
                }
            }
        }
    }

    #[test]
    fn folders_of_others_are_none_of_ours() {
        let entry = Entry::new(12, 400);
        assert_eq!(Entry::read(&entry.to_string()), Some(entry));
        for folder in [
            "latest",
            "00000012-step-",
            "12-step-400",
            "-step-4",
            "00000012-step-04",
        ] {
            assert_eq!(Entry::read(folder), None, "{folder}");
        }
    }
}
