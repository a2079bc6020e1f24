//! The tables as the replicated log's state machine. They live in memory; on the disk are the log
//! and, now and then, a snapshot of them.

use std::io::Cursor;
use std::sync::Arc;

use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    BasicNode, EntryPayload, ErrorSubject, ErrorVerb, RaftSnapshotBuilder, SnapshotMeta,
    StorageIOError,
};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::disk::{Disk, SNAPSHOT};
use super::{Entry, LogId, Membership, Outcomes, StorageError, Types};
use crate::tables::Tables;

/// The tables of a voter, for many readers.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    tables: Arc<RwLock<Tables>>,
    changed: Arc<watch::Sender<u64>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            tables: Arc::default(),
            changed: Arc::new(watch::channel(0).0),
        }
    }
}

impl Shared {
    /// Looks at the tables; nothing is written meanwhile.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.tables.read())
    }

    /// Hears the tables' version when it changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn write<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        let mut tables = self.tables.write();
        let outcome = change(&mut tables);
        self.changed.send_replace(tables.version);
        outcome
    }
}

/// Applies committed entries to the tables, and takes snapshots of them.
#[derive(Debug)]
pub(crate) struct Machine {
    disk: Disk,
    shared: Shared,
    applied: Option<LogId>,
    membership: Membership,
}

/// A snapshot as it lies on the disk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) meta: SnapshotMeta<u64, BasicNode>,
    pub(super) tables: Tables,
}

impl Machine {
    /// Begins with the last snapshot, if there is one; the log does the rest.
    pub(crate) async fn load(disk: Disk, shared: Shared) -> Result<Self, super::disk::DiskError> {
        let kept: Option<Kept> = disk.fact(SNAPSHOT).await?;
        let (applied, membership) = match kept {
            Some(Kept { meta, tables }) => {
                shared.write(|now| *now = tables);
                (meta.last_log_id, meta.last_membership)
            }
            None => (None, Membership::default()),
        };
        Ok(Self {
            disk,
            shared,
            applied,
            membership,
        })
    }

    fn kept(&self) -> Kept {
        let number = self.applied.map_or(0, |applied| applied.index);
        Kept {
            meta: SnapshotMeta {
                last_log_id: self.applied,
                last_membership: self.membership.clone(),
                snapshot_id: format!("{number}"),
            },
            tables: self.shared.read(Tables::clone),
        }
    }
}

fn failed(verb: ErrorVerb) -> impl Fn(super::disk::DiskError) -> StorageError {
    move |error| {
        let cause = openraft::AnyError::new(&error);
        StorageError::IO {
            source: StorageIOError::new(ErrorSubject::Snapshot(None), verb, cause),
        }
    }
}

fn snapshot_of(kept: &Kept) -> Result<Snapshot<Types>, super::disk::DiskError> {
    let bytes = serde_json::to_vec(&kept.tables)?;
    Ok(Snapshot {
        meta: kept.meta.clone(),
        snapshot: Box::new(Cursor::new(bytes)),
    })
}

/// A copy of the tables on its way to the disk.
#[derive(Debug)]
pub(crate) struct Copy {
    disk: Disk,
    kept: Kept,
}

impl RaftSnapshotBuilder<Types> for Copy {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let at = self.kept.meta.last_log_id;
        let saved = self.disk.set_snapshot(at, &self.kept).await;
        saved.map_err(failed(ErrorVerb::Write))?;
        snapshot_of(&self.kept).map_err(failed(ErrorVerb::Write))
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Copy;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcomes>, StorageError>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let mut answers = vec![];
        for entry in entries {
            self.applied = Some(entry.log_id);
            answers.push(match entry.payload {
                EntryPayload::Blank => vec![],
                EntryPayload::Normal(batch) => self.shared.write(|tables| {
                    let commands = batch.0.into_iter();
                    commands.map(|command| tables.apply(command)).collect()
                }),
                EntryPayload::Membership(membership) => {
                    self.membership = Membership::new(Some(entry.log_id), membership);
                    vec![]
                }
            });
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Copy {
        Copy {
            disk: self.disk.clone(),
            kept: self.kept(),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let failed = failed(ErrorVerb::Write);
        let tables: Tables =
            serde_json::from_slice(snapshot.get_ref()).map_err(|error| failed(error.into()))?;
        let kept = Kept {
            meta: meta.clone(),
            tables,
        };
        let saved = self.disk.set_snapshot(meta.last_log_id, &kept).await;
        saved.map_err(&failed)?;
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.shared.write(|now| *now = kept.tables);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        let failed = failed(ErrorVerb::Read);
        let kept: Option<Kept> = self.disk.fact(SNAPSHOT).await.map_err(&failed)?;
        match kept {
            Some(kept) => snapshot_of(&kept).map(Some).map_err(failed),
            None => Ok(None),
        }
    }
}
