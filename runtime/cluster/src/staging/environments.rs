//! Environments of jobs on a node's disk: which are there, who uses them, and which go.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use odeon_artifacts::{Digest, FolderLook, SnapshotError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;

use super::moment;
use super::mounts::Try;

/// The environments of a node. One lies in the folder of its key; a note beside it says that it is whole.
#[derive(Debug)]
pub(crate) struct Environments {
    folder: PathBuf,
    /// Environments that are being made: one at a time each.
    turns: Mutex<BTreeMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
}

/// The note beside an environment that is whole.
#[derive(Serialize, Deserialize)]
struct Note {
    key: Digest,
    look: FolderLook,
}

/// Environments that nobody uses and that stay, so that the next start has them.
const UNUSED_MAX: usize = 4;
/// Letters of a key that name its folder: paths to interpreters in scripts have a bound.
const NAME_LETTERS: usize = 16;

impl Environments {
    /// Those in a folder.
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            turns: Mutex::default(),
        })
    }

    /// Waits until nobody else of this node makes that environment.
    pub(crate) async fn turn(&self, key: Digest) -> OwnedMutexGuard<()> {
        let turn = Arc::clone(self.turns.lock().entry(key).or_default());
        let held = turn.lock_owned().await;
        let mut turns = self.turns.lock();
        turns.retain(|it, turn| *it == key || Arc::strong_count(turn) > 1);
        drop(turns);
        held
    }

    /// Where an environment is, or is made: the same place each time.
    pub(crate) fn place(&self, key: &Digest) -> PathBuf {
        self.folder.join(&key.to_string()[..NAME_LETTERS])
    }

    /// Where what its setup prints goes.
    pub(crate) fn log(&self, key: &Digest) -> PathBuf {
        self.place(key).with_extension("log")
    }

    fn note(&self, key: &Digest) -> PathBuf {
        self.place(key).with_extension("json")
    }

    fn users(&self, key: &Digest) -> PathBuf {
        self.place(key).with_extension("users")
    }

    /// Returns true where an environment is whole and none of its files has changed. Blocks its thread.
    pub(crate) fn is_there(&self, key: &Digest) -> bool {
        let read = fs::read(self.note(key)).ok();
        let note: Option<Note> = read.and_then(|text| serde_json::from_slice(&text).ok());
        note.is_some_and(|note| note.key == *key && note.look.is_still(&self.place(key)))
    }

    /// Removes what there is of an environment. Blocks its thread.
    pub(crate) fn remove(&self, key: &Digest) -> io::Result<()> {
        // First the note: without it the rest is nothing.
        let note = fs::remove_file(self.note(key));
        if_there(note)?;
        if_there(fs::remove_dir_all(self.place(key)))
    }

    /// Notes that an environment is whole. Blocks its thread.
    pub(crate) fn finish(&self, key: &Digest) -> Result<(), SnapshotError> {
        let note = Note {
            key: *key,
            look: FolderLook::at(&self.place(key))?,
        };
        let path = self.note(key);
        let text = serde_json::to_vec(&note).expect("names and numbers can be written as JSON");
        let part = path.with_extension("json-part");
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| SnapshotError::Io { path, source })
    }

    /// Notes that a try uses an environment, which stays at least until that is over, and removes those that nobody has
    /// used for longest. Blocks its thread.
    pub(crate) fn hold(&self, key: &Digest, (job, attempt): Try) -> io::Result<()> {
        let users = self.users(key);
        fs::create_dir_all(&users)?;
        File::create(users.join(format!("{job}.{attempt}")))?;
        File::open(self.note(key))?.set_modified(moment())?;
        self.sweep()
    }

    /// A try is over. Blocks its thread.
    pub(crate) fn release(&self, (job, attempt): Try) {
        let user = format!("{job}.{attempt}");
        for users in self.entries("users").unwrap_or_default() {
            // Most were never used by it.
            let _ = fs::remove_file(users.join(&user));
            let _ = fs::remove_dir(&users);
        }
    }

    fn sweep(&self) -> io::Result<()> {
        let mut unused = vec![];
        for note in self.entries("json")? {
            if !note.with_extension("users").is_dir() {
                unused.push((fs::metadata(&note)?.modified()?, note));
            }
        }
        unused.sort();
        let over = unused.len().saturating_sub(UNUSED_MAX);
        for (_, note) in unused.into_iter().take(over) {
            fs::remove_file(&note)?;
            if_there(fs::remove_dir_all(note.with_extension("")))?;
            if_there(fs::remove_file(note.with_extension("log")))?;
        }
        Ok(())
    }

    fn entries(&self, extension: &str) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.path()));
        let all: io::Result<Vec<PathBuf>> = entries.collect();
        let fits = |path: &PathBuf| {
            Path::new(path)
                .extension()
                .is_some_and(|it| it == extension)
        };
        Ok(all?.into_iter().filter(fits).collect())
    }
}

fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    #[test]
    fn what_nobody_uses_goes_and_what_has_changed_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let all = Environments::open(dir.path().join("environments")).unwrap();
        let keys: Vec<Digest> = (0..7_u8).map(|n| Digest::of(&[n])).collect();
        let make = |key: &Digest| {
            fs::create_dir_all(all.place(key)).unwrap();
            fs::write(all.place(key).join("file"), "1").unwrap();
            assert!(!all.is_there(key), "it is not noted yet");
            all.finish(key).unwrap();
            assert!(all.is_there(key));
        };
        for (key, n) in keys.iter().zip(1..) {
            make(key);
            all.hold(key, (JobId(n), 1)).unwrap();
        }
        assert!(keys.iter().all(|key| all.is_there(key)), "all are used");
        for n in 1..=6 {
            all.release((JobId(n), 1));
        }
        all.hold(&keys[6], (JobId(8), 1)).unwrap();
        let there = keys.iter().filter(|key| all.is_there(key)).count();
        assert_eq!(there, 1 + UNUSED_MAX);
        assert!(all.is_there(&keys[6]));
        fs::write(all.place(&keys[6]).join("file"), "22").unwrap();
        assert!(!all.is_there(&keys[6]));
        all.remove(&keys[6]).unwrap();
        make(&keys[6]);
    }
}
