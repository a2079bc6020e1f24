//! The store of a voter on its disk: the log, its vote and the last snapshot, in one redb file. A
//! write is on the disk before it counts.
//!
//! Entries and snapshots are JSON: a newer release reads what an older one wrote.

use std::fmt::Debug;
use std::fs::File;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{ErrorSubject, ErrorVerb, LogState, RaftLogReader, StorageIOError};
use parking_lot::Mutex;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use rustix::fs::FallocateFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{Entry, LogId, StorageError, Types, Vote};

const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");

/// Bytes of the file that are kept in memory.
const CACHE_BYTES: usize = 4 << 20;
/// Bytes on the disk that are the file's own before it needs them.
const SPARE_BYTES: u64 = 8 << 20;

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
pub(super) const SNAPSHOT: &str = "snapshot";
const SNAPSHOT_AT: &str = "snapshot_at";

/// The open file with a voter's log, vote and last snapshot. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    file: Arc<OpenFile>,
}

/// A file that is open. Its parts end in order: when `open` does, the file is closed.
#[derive(Debug)]
struct OpenFile {
    database: Database,
    spare: Spare,
    open: watch::Sender<()>,
}

/// Room on the disk behind the end of the file, so that the voters can still write down how jobs end
/// when jobs have filled the disk. Where the file system cannot hold room, there is none.
#[derive(Debug)]
struct Spare {
    file: File,
    /// The length of the file when room was last made.
    behind: Mutex<u64>,
}

impl Spare {
    fn behind(file: File) -> Self {
        let spare = Self {
            file,
            behind: Mutex::new(0),
        };
        spare.renew();
        spare
    }

    /// Makes room again where the file has another length. On a full disk what there is stays.
    fn renew(&self) {
        let Ok(now) = self.file.metadata() else {
            return;
        };
        let mut behind = self.behind.lock();
        if *behind == now.len() {
            return;
        }
        let all = now.len() + SPARE_BYTES;
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, all) {
            Ok(()) => *behind = now.len(),
            Err(error) => tracing::debug!(%error, "no room is held for the catalog's file"),
        }
    }
}

/// Waits until nobody has the file open any more.
#[derive(Clone, Debug)]
pub(crate) struct Closing(watch::Receiver<()>);

impl Closing {
    pub(crate) async fn closed(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// The fault of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// The file cannot be opened.
    #[error(
        "{} cannot be opened: {source}: put a copy of it back; where other voters know what it held, have them \
         forget this node (odeon forget) and let it join again in an empty folder (odeon token)", .path.display()
    )]
    Open {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: redb::Error,
    },
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] redb::Error),
    /// An entry that it holds is not what was written.
    #[error("an entry of the catalog cannot be read: {0}")]
    Entry(#[from] serde_json::Error),
    /// Its thread was lost.
    #[error("the thread that uses the catalog's file was lost")]
    Thread,
}

/// Has a file that is there, or is made, be its owner's alone: jobs' variables are in it.
fn for_its_owner(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

impl Disk {
    /// Opens the file, or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self, DiskError> {
        let opened = Self::begin(path).map_err(|source| {
            let path = path.to_owned();
            DiskError::Open { path, source }
        });
        let (database, file) = opened?;
        let file = OpenFile {
            database,
            spare: Spare::behind(file),
            open: watch::channel(()).0,
        };
        let file = Arc::new(file);
        Ok(Self { file })
    }

    /// Tells when the file is closed.
    pub(crate) fn closing(&self) -> Closing {
        Closing(self.file.open.subscribe())
    }

    fn begin(path: &Path) -> Result<(Database, File), redb::Error> {
        let file = for_its_owner(path)?;
        // What it keeps in memory of its file; more would only grow the daemon.
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(path)?;
        let begin = database.begin_write()?;
        begin.open_table(LOG)?;
        begin.open_table(FACTS)?;
        begin.commit()?;
        Ok((database, file))
    }

    /// Does what blocks on a thread that may.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OpenFile) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        let file = Arc::clone(&self.file);
        let done = tokio::task::spawn_blocking(move || work(&file)).await;
        done.unwrap_or(Err(DiskError::Thread))
    }

    pub(super) async fn fact<T: DeserializeOwned + Send + 'static>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, DiskError> {
        self.with(move |file| {
            let reading = file.database.begin_read().map_err(redb::Error::from)?;
            let facts = reading.open_table(FACTS).map_err(redb::Error::from)?;
            let found = facts.get(name).map_err(redb::Error::from)?;
            let read = found.map(|bytes| serde_json::from_slice(bytes.value()));
            Ok(read.transpose()?)
        })
        .await
    }

    pub(super) async fn set_fact<T: Serialize>(
        &self,
        name: &'static str,
        value: &T,
    ) -> Result<(), DiskError> {
        let bytes = serde_json::to_vec(value)?;
        self.write(move |log, facts| {
            let _ = log;
            facts.insert(name, bytes.as_slice())?;
            Ok(())
        })
        .await
    }

    /// Keeps a snapshot of the tables as they were at `at`, unless a later one is there: one that
    /// was being made while a later one came from the leader must not replace it.
    pub(super) async fn set_snapshot<T: Serialize>(
        &self,
        at: Option<LogId>,
        snapshot: &T,
    ) -> Result<(), DiskError> {
        let bytes = serde_json::to_vec(snapshot)?;
        let mark = serde_json::to_vec(&at)?;
        self.write(move |_log, facts| {
            let known = facts.get(SNAPSHOT_AT)?.and_then(|known| {
                let known = serde_json::from_slice::<Option<LogId>>(known.value());
                known.ok().flatten()
            });
            if known <= at {
                facts.insert(SNAPSHOT, bytes.as_slice())?;
                facts.insert(SNAPSHOT_AT, mark.as_slice())?;
            }
            Ok(())
        })
        .await
    }

    /// The entries of the log from this one on.
    pub(super) async fn entries_from(&self, index: u64) -> Result<Vec<Entry>, DiskError> {
        self.entries(Bound::Included(index), Bound::Unbounded).await
    }

    /// The last vote.
    pub(super) async fn vote(&self) -> Result<Option<Vote>, DiskError> {
        self.fact(VOTE).await
    }

    /// Forgets the log and begins behind it with a snapshot.
    pub(super) async fn begin_anew<T: Serialize>(
        &self,
        at: LogId,
        vote: Vote,
        snapshot: &T,
    ) -> Result<(), DiskError> {
        let bytes = serde_json::to_vec(snapshot)?;
        let (vote, mark) = (serde_json::to_vec(&vote)?, serde_json::to_vec(&at)?);
        let some = serde_json::to_vec(&Some(at))?;
        self.write(move |log, facts| {
            log.retain(|_, _| false)?;
            facts.insert(SNAPSHOT, bytes.as_slice())?;
            facts.insert(SNAPSHOT_AT, some.as_slice())?;
            facts.insert(COMMITTED, some.as_slice())?;
            facts.insert(PURGED, mark.as_slice())?;
            facts.insert(VOTE, vote.as_slice())?;
            Ok(())
        })
        .await
    }

    /// Changes the file; the change is on the disk then.
    async fn write(
        &self,
        work: impl FnOnce(
            &mut redb::Table<'_, u64, &'static [u8]>,
            &mut redb::Table<'_, &'static str, &'static [u8]>,
        ) -> Result<(), redb::Error>
        + Send
        + 'static,
    ) -> Result<(), DiskError> {
        self.write_with(Durability::Immediate, work).await
    }

    async fn write_with(
        &self,
        durability: Durability,
        work: impl FnOnce(
            &mut redb::Table<'_, u64, &'static [u8]>,
            &mut redb::Table<'_, &'static str, &'static [u8]>,
        ) -> Result<(), redb::Error>
        + Send
        + 'static,
    ) -> Result<(), DiskError> {
        self.with(move |file| {
            let mut writing = file.database.begin_write().map_err(redb::Error::from)?;
            let set = writing.set_durability(durability);
            set.map_err(redb::Error::from)?;
            {
                let mut log = writing.open_table(LOG).map_err(redb::Error::from)?;
                let mut facts = writing.open_table(FACTS).map_err(redb::Error::from)?;
                work(&mut log, &mut facts)?;
            }
            writing.commit().map_err(redb::Error::from)?;
            file.spare.renew();
            Ok(())
        })
        .await
    }

    async fn entries(&self, from: Bound<u64>, to: Bound<u64>) -> Result<Vec<Entry>, DiskError> {
        self.with(move |file| {
            let reading = file.database.begin_read().map_err(redb::Error::from)?;
            let log = reading.open_table(LOG).map_err(redb::Error::from)?;
            let mut entries = vec![];
            for row in log.range((from, to)).map_err(redb::Error::from)? {
                let (_, bytes) = row.map_err(redb::Error::from)?;
                entries.push(serde_json::from_slice(bytes.value())?);
            }
            Ok(entries)
        })
        .await
    }

    async fn log_state(&self) -> Result<LogState<Types>, DiskError> {
        let last = self
            .with(|file| {
                let reading = file.database.begin_read().map_err(redb::Error::from)?;
                let log = reading.open_table(LOG).map_err(redb::Error::from)?;
                let last = log.last().map_err(redb::Error::from)?;
                let entry = last.map(|(_, bytes)| serde_json::from_slice::<Entry>(bytes.value()));
                Ok(entry.transpose()?.map(|entry| entry.log_id))
            })
            .await?;
        let purged: Option<LogId> = self.fact(PURGED).await?;
        Ok(LogState {
            last_purged_log_id: purged,
            last_log_id: last.or(purged),
        })
    }
}

fn failed(subject: ErrorSubject<u64>, verb: ErrorVerb) -> impl Fn(DiskError) -> StorageError {
    move |error| {
        let source = StorageIOError::new(subject.clone(), verb, openraft::AnyError::new(&error));
        StorageError::IO { source }
    }
}

impl RaftLogReader<Types> for Disk {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
        let read = self.entries(from, to).await;
        read.map_err(failed(ErrorSubject::Logs, ErrorVerb::Read))
    }
}

impl RaftLogStorage<Types> for Disk {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let state = self.log_state().await;
        state.map_err(failed(ErrorSubject::Logs, ErrorVerb::Read))
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let saved = self.set_fact(VOTE, vote).await;
        saved.map_err(failed(ErrorSubject::Vote, ErrorVerb::Write))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let vote = self.fact(VOTE).await;
        vote.map_err(failed(ErrorSubject::Vote, ErrorVerb::Read))
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let failed = failed(ErrorSubject::Store, ErrorVerb::Write);
        let bytes = serde_json::to_vec(&committed).map_err(|error| failed(error.into()))?;
        // What is on the disk of it goes there with the next entry; it may be behind.
        let saved = self.write_with(Durability::None, move |_log, facts| {
            facts.insert(COMMITTED, bytes.as_slice())?;
            Ok(())
        });
        saved.await.map_err(failed)
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        let committed = self.fact::<Option<LogId>>(COMMITTED).await;
        let committed = committed.map_err(failed(ErrorSubject::Store, ErrorVerb::Read))?;
        Ok(committed.flatten())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let rows = entries.into_iter().map(|entry| {
            let bytes = serde_json::to_vec(&entry).map_err(DiskError::from)?;
            Ok((entry.log_id.index, bytes))
        });
        let rows: Result<Vec<_>, DiskError> = rows.collect();
        let failed = failed(ErrorSubject::Logs, ErrorVerb::Write);
        let rows = rows.map_err(&failed)?;
        let written = self.write(move |log, _facts| {
            for (index, bytes) in rows {
                log.insert(index, bytes.as_slice())?;
            }
            Ok(())
        });
        match written.await {
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => {
                callback.log_io_completed(Err(std::io::Error::other(error.to_string())));
                Err(failed(error))
            }
        }
    }

    async fn truncate(&mut self, from: LogId) -> Result<(), StorageError> {
        let written = self.write(move |log, _facts| {
            log.retain_in(from.index.., |_, _| false)?;
            Ok(())
        });
        let failed = failed(ErrorSubject::Logs, ErrorVerb::Delete);
        written.await.map_err(failed)
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        let failed = failed(ErrorSubject::Logs, ErrorVerb::Delete);
        let mark = serde_json::to_vec(&upto).map_err(|error| failed(error.into()))?;
        let written = self.write(move |log, facts| {
            facts.insert(PURGED, mark.as_slice())?;
            log.retain_in(..=upto.index, |_, _| false)?;
            Ok(())
        });
        written.await.map_err(&failed)
    }
}

#[cfg(test)]
mod tests;
