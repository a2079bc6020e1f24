//! Environments of jobs on a node's disk. What stays and what goes is decided under one lock by [`life`].
//!
//! ```text
//! KEY.json            the note that an environment is whole, and in which folder
//! KEY, KEY-2, ...     folders: another one where tries still use the one before
//! KEY-2.users/j7.1    a try that uses that folder
//! KEY-2.part, .log    of a folder that is being made: a snapshot on its way, what the setup prints
//! ```

mod life;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use odeon_artifacts::{Digest, FolderLook, SnapshotError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::OwnedMutexGuard;

use self::life::{Entered, Life, TryOver, name_of};
use super::moment;
use super::mounts::Try;

/// The environments of a node.
#[derive(Debug)]
pub(crate) struct Environments {
    folder: PathBuf,
    life: Mutex<Life>,
    /// Environments that are being made: one at a time each.
    turns: Mutex<BTreeMap<Digest, Arc<Line>>>,
}

/// Why a try has no environment.
#[derive(Debug, Error)]
pub(crate) enum EnvironmentError {
    #[error(transparent)]
    Over(#[from] TryOver),
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// The note of an environment that is whole.
#[derive(Serialize, Deserialize)]
struct Note {
    key: Digest,
    /// The name of its folder.
    folder: String,
    look: FolderLook,
}

/// Those of a node that want one environment, one after the other.
#[derive(Debug, Default)]
struct Line {
    failures: AtomicU64,
    last_failure: Arc<tokio::sync::Mutex<String>>,
}

/// The turn of one who makes an environment, or looks whether it is there.
#[derive(Debug)]
pub(crate) struct Turn {
    line: Arc<Line>,
    last_failure: OwnedMutexGuard<String>,
    /// The failures when it began to wait.
    failures: u64,
}

impl Turn {
    /// The failure of who made it while this one waited.
    pub(crate) fn failure(&self) -> Option<&str> {
        let is_new = self.line.failures.load(Ordering::Acquire) > self.failures;
        is_new.then_some(self.last_failure.as_str())
    }

    /// Making it has failed, for all who wait by now.
    pub(crate) fn fail(mut self, why: &str) {
        why.clone_into(&mut self.last_failure);
        self.line.failures.fetch_add(1, Ordering::Release);
    }
}

/// An environment that is being made. When it is dropped before it is whole, nothing of it stays.
#[derive(Debug)]
pub(crate) struct Making {
    all: Arc<Environments>,
    key: Digest,
    name: String,
    is_whole: AtomicBool,
}

impl Making {
    /// Where it is to be: nothing is there yet.
    pub(crate) fn place(&self) -> PathBuf {
        self.all.folder.join(&self.name)
    }

    /// Where what its setup prints goes.
    pub(crate) fn log(&self) -> PathBuf {
        self.place().with_extension("log")
    }

    /// Notes that it is whole, and that a try uses it. Blocks its thread.
    pub(crate) fn finish(&self, of: Try) -> Result<PathBuf, EnvironmentError> {
        let note = Note {
            key: self.key,
            folder: self.name.clone(),
            look: FolderLook::at(&self.place())?,
        };
        let path = self.all.note(&self.key);
        let text = serde_json::to_vec(&note).expect("names and numbers can be written as JSON");
        let part = path.with_extension("json-part");
        let now = moment();
        let mut life = self.all.life.lock();
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
        written.map_err(at(&path))?;
        self.is_whole.store(true, Ordering::Release);
        life.finish(&self.key, &self.name, of, now)?;
        self.all.note_user(&self.name, of)?;
        drop(life);
        self.all.tidy();
        Ok(self.place())
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.is_whole.load(Ordering::Acquire) {
            return;
        }
        let (all, name) = (Arc::clone(&self.all), std::mem::take(&mut self.name));
        let give_up = move || {
            all.life.lock().give_up(&name);
            all.tidy();
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(give_up)),
            Err(_) => give_up(),
        }
    }
}

impl Environments {
    /// Those in a folder. What is half goes, and so do users; but for those that this daemon goes on with where it is
    /// the next program of one before it.
    pub(crate) fn open(folder: PathBuf, goes_on: bool) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let mut life = Life::default();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            match name.split_once('.') {
                Some((name, "json")) => {
                    let Some(note) = read_note(&path).filter(|it| name_of(&it.key) == name) else {
                        continue;
                    };
                    if folder.join(&note.folder).is_dir() {
                        life.found(note.key, note.folder, fs::metadata(&path)?.modified()?);
                    }
                }
                Some((name, "users")) if goes_on => {
                    for user in fs::read_dir(&path)? {
                        if let Some(of) = user?.file_name().to_str().and_then(try_named) {
                            life.found_user(name, of);
                        }
                    }
                }
                _ => {}
            }
        }
        let all = Self {
            folder,
            life: Mutex::new(life),
            turns: Mutex::default(),
        };
        all.tidy();
        Ok(all)
    }

    /// Waits until nobody else of this node makes that environment.
    pub(crate) async fn turn(&self, key: Digest) -> Turn {
        let line = Arc::clone(self.turns.lock().entry(key).or_default());
        let failures = line.failures.load(Ordering::Acquire);
        let last_failure = Arc::clone(&line.last_failure).lock_owned().await;
        let mut turns = self.turns.lock();
        turns.retain(|it, line| *it == key || Arc::strong_count(line) > 1);
        drop(turns);
        Turn {
            line,
            last_failure,
            failures,
        }
    }

    fn note(&self, key: &Digest) -> PathBuf {
        self.folder.join(format!("{}.json", name_of(key)))
    }

    fn users(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.users"))
    }

    /// A try begins here, and may use environments from now on.
    pub(crate) fn admit(&self, of: Try) {
        self.life.lock().admit(of);
    }

    /// A try is over, and begins to use nothing from now on.
    pub(crate) fn dismiss(&self, of: Try) {
        self.life.lock().dismiss(of);
    }

    /// Does something for a try, which is not dismissed meanwhile. Blocks its thread.
    pub(crate) fn while_admitted<T>(
        &self,
        of: Try,
        act: impl FnOnce() -> T,
    ) -> Result<T, EnvironmentError> {
        let life = self.life.lock();
        life.check(of)?;
        Ok(act())
    }

    /// The tries that may use something here, or do.
    pub(crate) fn tries(&self) -> Vec<Try> {
        self.life.lock().tries().into_iter().collect()
    }

    /// The folder of an environment that is whole and of which no file has changed, for a try, which uses it from now
    /// on. A try goes on with the one that it has. Blocks its thread.
    pub(crate) fn enter(&self, key: &Digest, of: Try) -> Result<Option<PathBuf>, EnvironmentError> {
        let now = moment();
        let name = {
            let mut life = self.life.lock();
            match life.enter(key, of, now)? {
                Entered::Again(name) => return Ok(Some(self.folder.join(name))),
                Entered::Nothing => return Ok(None),
                Entered::Noted(name) => {
                    self.note_user(&name, of)?;
                    name
                }
            }
        };
        // It stays meanwhile, since it has a user.
        let place = self.folder.join(&name);
        let note = read_note(&self.note(key)).filter(|it| it.key == *key && it.folder == name);
        if note.is_some_and(|note| note.look.is_still(&place)) {
            // For the next daemon: which of those that nobody uses goes first.
            let _ = File::open(self.note(key)).and_then(|note| note.set_modified(now));
            return Ok(Some(place));
        }
        {
            let mut life = self.life.lock();
            life.changed(key, &name, of);
            self.forget_user(&name, of);
        }
        self.tidy();
        Ok(None)
    }

    /// Begins an environment anew, in a folder of its own. Blocks its thread.
    pub(crate) fn begin(self: &Arc<Self>, key: Digest) -> Making {
        let is_free = |name: &str| fs::symlink_metadata(self.folder.join(name)).is_err();
        let name = self.life.lock().begin(&key, is_free);
        Making {
            all: Arc::clone(self),
            key,
            name,
            is_whole: AtomicBool::new(false),
        }
    }

    /// A try is over, and uses nothing any more. Blocks its thread.
    pub(crate) fn release(&self, of: Try) {
        {
            let mut life = self.life.lock();
            for name in life.leave(of) {
                self.forget_user(&name, of);
            }
        }
        self.tidy();
    }

    /// Writes down a user, for the next program of this process. Under the lock.
    fn note_user(&self, name: &str, (job, attempt): Try) -> Result<(), EnvironmentError> {
        let users = self.users(name);
        let user = users.join(format!("{job}.{attempt}"));
        let noted = fs::create_dir_all(&users).and_then(|()| File::create(&user));
        noted.map(drop).map_err(at(&user))
    }

    fn forget_user(&self, name: &str, (job, attempt): Try) {
        // It is not there if it could not be written.
        let _ = fs::remove_file(self.users(name).join(format!("{job}.{attempt}")));
    }

    /// Removes what is to go: first out of the way, so that its name is free and nobody waits for the rest.
    fn tidy(&self) {
        let taken = {
            let mut life = self.life.lock();
            life.expire();
            self.take_out(&life)
        };
        let removed = taken.and_then(|taken| {
            let removed = taken.into_iter().map(fs::remove_dir_all).map(if_there);
            removed.collect::<io::Result<()>>()
        });
        if let Err(error) = removed {
            tracing::warn!(%error, "what is left of an environment is not removed");
        }
    }

    /// Removes the files that are to go, and gives the folders.
    fn take_out(&self, life: &Life) -> io::Result<Vec<PathBuf>> {
        let mut taken = vec![];
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            // One in another writing is none of ours.
            let Some(name) = name.to_str().filter(|name| !life.stays(name)) else {
                continue;
            };
            if !entry.file_type()?.is_dir() {
                if_there(fs::remove_file(&path))?;
                continue;
            }
            let (first, is_out) = match name.split_once('.') {
                Some((first, rest)) => (first, rest.starts_with(OUT)),
                None => (name, false),
            };
            if is_out {
                taken.push(path);
                continue;
            }
            let out = format!("{first}.{OUT}-{:x}", rand::random::<u64>());
            let out = self.folder.join(out);
            fs::rename(&path, &out)?;
            taken.push(out);
        }
        Ok(taken)
    }
}

/// Behind the name of a folder that is being removed.
const OUT: &str = "out";

fn read_note(path: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The try that a file of a user names.
fn try_named(name: &str) -> Option<Try> {
    let (job, attempt) = name.split_once('.')?;
    Some((job.parse().ok()?, attempt.parse().ok()?))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> EnvironmentError + '_ {
    move |source| EnvironmentError::Io {
        path: path.to_owned(),
        source,
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

    const ONE: Try = (JobId(1), 1);
    const TWO: Try = (JobId(2), 1);

    fn open(dir: &Path, goes_on: bool) -> Arc<Environments> {
        Arc::new(Environments::open(dir.join("environments"), goes_on).unwrap())
    }

    /// Makes the environment of a key, for a try.
    fn made(all: &Arc<Environments>, key: &Digest, of: Try) -> PathBuf {
        all.admit(of);
        assert_eq!(all.enter(key, of).unwrap(), None);
        let making = all.begin(*key);
        fs::create_dir(making.place()).unwrap();
        fs::write(making.place().join("file"), "1").unwrap();
        fs::write(making.log(), "said").unwrap();
        making.finish(of).unwrap()
    }

    fn entries(all: &Environments) -> Vec<String> {
        let entries = fs::read_dir(&all.folder).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    }

    /// SEMANTICS 191.
    #[test]
    fn a_changed_environment_is_made_anew_beside_the_one_that_a_job_runs_in() {
        let dir = tempfile::tempdir().unwrap();
        let (all, key) = (open(dir.path(), false), Digest::of(b"1"));
        let first = made(&all, &key, ONE);
        fs::write(first.join("file"), "22").unwrap();
        let second = made(&all, &key, TWO);
        assert_ne!(first, second);
        assert_eq!(fs::read_to_string(first.join("file")).unwrap(), "22");
        assert_eq!(all.enter(&key, ONE).unwrap(), Some(first.clone()));
        all.release(ONE);
        assert!(!first.exists(), "its last user is gone");
        // Whoever comes has the other one, and so has the next daemon.
        all.admit(ONE);
        assert_eq!(all.enter(&key, ONE).unwrap(), Some(second.clone()));
        let next = open(dir.path(), false);
        next.admit(ONE);
        assert_eq!(next.enter(&key, ONE).unwrap(), Some(second.clone()));
        let name = second.file_name().unwrap().to_str().unwrap();
        let rest = [".log", ".users"].map(|suffix| format!("{name}{suffix}"));
        let mut expect = vec![name.to_owned(), format!("{}.json", name_of(&key))];
        expect.extend(rest);
        expect.sort_unstable();
        assert_eq!(entries(&next), expect);
    }

    /// SEMANTICS 191.
    #[test]
    fn nobody_uses_an_environment_for_a_try_that_is_over_or_of_a_daemon_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (all, key) = (open(dir.path(), false), Digest::of(b"1"));
        let place = made(&all, &key, ONE);
        let users = place.with_extension("users");
        // The next program of the process goes on with its tries.
        assert_eq!(open(dir.path(), true).tries(), [ONE]);
        assert!(users.join("j1.1").exists());
        // Another daemon does not.
        assert_eq!(open(dir.path(), false).tries(), []);
        assert!(!users.exists() && place.is_dir());
        // One that is over while it prepares enters nothing, and starts nothing.
        all.release(ONE);
        assert!(all.enter(&key, ONE).is_err());
        assert!(all.while_admitted(ONE, || ()).is_err());
        assert!(!users.exists());
    }

    /// SEMANTICS 192.
    #[test]
    fn nothing_stays_of_what_was_not_finished() {
        let dir = tempfile::tempdir().unwrap();
        let (all, key) = (open(dir.path(), false), Digest::of(b"1"));
        let begin = || {
            let making = all.begin(key);
            fs::create_dir(making.place()).unwrap();
            fs::create_dir(making.place().with_extension("part")).unwrap();
            fs::write(making.log(), "said").unwrap();
            making
        };
        let making = begin();
        all.tidy();
        assert_eq!(entries(&all).len(), 3, "it is being made");
        drop(making);
        assert_eq!(entries(&all), [""; 0]);
        // A daemon that is killed drops nothing.
        let killed = begin();
        let note = format!("{}.json-part", name_of(&key));
        fs::write(all.folder.join(note), "half").unwrap();
        assert_eq!(entries(&open(dir.path(), false)), [""; 0]);
        drop(killed);
    }

    /// Of many tries at the same time, each has its environment for as long as it uses it.
    #[test]
    fn tries_that_come_and_go_at_the_same_time_have_their_environments() {
        let dir = tempfile::tempdir().unwrap();
        let all = open(dir.path(), false);
        std::thread::scope(|scope| {
            for n in 0..8_u8 {
                let all = &all;
                scope.spawn(move || {
                    for round in 0..20_u32 {
                        let key = Digest::of(&(u32::from(n) + round).rem_euclid(11).to_le_bytes());
                        let of = (JobId(u64::from(n)), round);
                        all.admit(of);
                        let place = match all.enter(&key, of).unwrap() {
                            Some(place) => place,
                            None => {
                                let making = all.begin(key);
                                fs::create_dir(making.place()).unwrap();
                                fs::write(making.place().join("file"), "1").unwrap();
                                making.finish(of).unwrap()
                            }
                        };
                        assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "1");
                        all.release(of);
                    }
                });
            }
        });
        assert!(all.tries().is_empty());
        let folders = entries(&all).into_iter().filter(|name| !name.contains('.'));
        assert!(folders.count() <= life::UNUSED_MAX);
    }

    /// SEMANTICS 191.
    #[tokio::test]
    async fn a_failure_is_that_of_all_who_waited_and_of_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let (all, key) = (open(dir.path(), false), Digest::of(b"1"));
        let first = all.turn(key).await;
        let mut waits = Box::pin(all.turn(key));
        assert!(futures::poll!(&mut waits).is_pending());
        first.fail("no such package");
        let second = waits.await;
        assert_eq!(second.failure(), Some("no such package"));
        drop(second);
        assert_eq!(all.turn(key).await.failure(), None, "it tries again");
    }
}
