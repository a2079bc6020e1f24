//! Checkpoints in memory: each rank keeps what it wrote itself and what a neighbour wrote, so that
//! a job that loses ranks goes on without the storage, unless it loses neighbours at once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::future;
use serde::{Deserialize, Serialize};

use crate::commit::Entry;
use crate::manifest::Manifest;
use crate::ranks::{Ranks, RanksError, read, written};

/// The memory in which a rank keeps checkpoints. Outlives the
/// [`Checkpointer`](crate::Checkpointer) that fills it.
#[derive(Debug, Default)]
pub struct Peers {
    distance: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest that is complete.
    kept: Option<Arc<Kept>>,
    /// A checkpoint that is complete once all ranks say so: its own part, and the neighbour's.
    pending: Option<(Entry, Own, Own)>,
}

/// The files and blobs of one checkpoint that a rank has in memory.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) entry: Entry,
    pub(crate) manifest: Arc<Manifest>,
    /// By name, each as pieces one behind the other.
    pub(crate) files: BTreeMap<String, Vec<Bytes>>,
    pub(crate) blobs: BTreeMap<String, Bytes>,
}

/// Files and blobs that a rank wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    pub(crate) files: Vec<(String, Vec<Bytes>)>,
    pub(crate) blobs: Vec<(String, Bytes)>,
}

/// Names and sizes of the files and blobs that a rank is about to send to its neighbour.
#[derive(Serialize, Deserialize)]
struct Notice {
    files: Vec<(String, usize)>,
    blobs: Vec<(String, usize)>,
}

impl Peers {
    /// Has the rank `distance` further on keep a copy; one of another machine where that is as many
    /// as a machine has ranks.
    #[must_use]
    pub fn new(distance: usize) -> Arc<Self> {
        Arc::new(Self {
            distance,
            state: Mutex::default(),
        })
    }

    /// The step of the checkpoint that it keeps a part of.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.kept.as_ref().map(|kept| kept.entry.step)
    }

    /// Bytes that it keeps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let files = state
            .kept
            .iter()
            .flat_map(|kept| kept.files.values().flatten());
        files.map(Bytes::len).sum()
    }

    pub(crate) fn kept(&self) -> Vec<Arc<Kept>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.kept.iter().cloned().collect()
    }

    /// Gives a neighbour what this rank wrote, and takes what another wrote.
    pub(crate) async fn exchange(
        &self,
        ranks: &dyn Ranks,
        entry: &Entry,
        own: Own,
    ) -> Result<(), RanksError> {
        let (rank, all) = (ranks.rank(), ranks.ranks());
        let distance = self.distance % all;
        let mut theirs = Own::default();
        if distance > 0 {
            let (to, from) = ((rank + distance) % all, (rank + all - distance) % all);
            let (sent, taken) = future::join(send(ranks, to, &own), take(ranks, from)).await;
            sent?;
            theirs = taken?;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pending = Some((entry.clone(), own, theirs));
        Ok(())
    }

    /// All ranks have their parts: the one before is not needed any more.
    pub(crate) fn complete(&self, entry: &Entry, manifest: Manifest) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((pending, own, theirs)) = state.pending.take() else {
            return;
        };
        if pending != *entry {
            return;
        }
        let files = own.files.into_iter().chain(theirs.files);
        let blobs = own.blobs.into_iter().chain(theirs.blobs);
        state.kept = Some(Arc::new(Kept {
            entry: Entry {
                complete: true,
                ..pending
            },
            manifest: Arc::new(manifest),
            files: files.collect(),
            blobs: blobs.collect(),
        }));
    }
}

impl Kept {
    /// These bytes of a file, if they are there.
    pub(crate) fn read(&self, file: &str, range: Range<u64>) -> Option<Bytes> {
        let pieces = self.files.get(file)?;
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        let mut start = 0;
        let mut found = vec![];
        for piece in pieces {
            let own = start..start + piece.len();
            let common = range.start.max(own.start)..range.end.min(own.end);
            if !common.is_empty() {
                found.push(piece.slice(common.start - own.start..common.end - own.start));
            }
            start = own.end;
        }
        match &*found {
            _ if start < range.end => None,
            [one] => Some(one.clone()),
            several => Some(several.concat().into()),
        }
    }
}

async fn send(ranks: &dyn Ranks, to: usize, own: &Own) -> Result<(), RanksError> {
    let sizes = |pieces: &Vec<Bytes>| pieces.iter().map(Bytes::len).sum();
    let files = own
        .files
        .iter()
        .map(|(name, pieces)| (name.clone(), sizes(pieces)));
    let blobs = own
        .blobs
        .iter()
        .map(|(name, bytes)| (name.clone(), bytes.len()));
    let notice = Notice {
        files: files.collect(),
        blobs: blobs.collect(),
    };
    ranks.send(to, written(&notice)).await?;
    let pieces = own.files.iter().flat_map(|(_, pieces)| pieces);
    for piece in pieces.chain(own.blobs.iter().map(|(_, bytes)| bytes)) {
        for start in (0..piece.len()).step_by(MESSAGE_BYTES) {
            let message = piece.slice(start..piece.len().min(start + MESSAGE_BYTES));
            ranks.send(to, message).await?;
        }
    }
    Ok(())
}

async fn take(ranks: &dyn Ranks, from: usize) -> Result<Own, RanksError> {
    let notice: Notice = read(from, &ranks.receive(from).await?)?;
    let mut own = Own::default();
    for (name, bytes) in notice.files {
        own.files
            .push((name, vec![take_bytes(ranks, from, bytes).await?]));
    }
    for (name, bytes) in notice.blobs {
        own.blobs
            .push((name, take_bytes(ranks, from, bytes).await?));
    }
    Ok(own)
}

async fn take_bytes(ranks: &dyn Ranks, from: usize, bytes: usize) -> Result<Bytes, RanksError> {
    let mut taken = BytesMut::with_capacity(bytes);
    while taken.len() < bytes {
        taken.extend_from_slice(&ranks.receive(from).await?);
    }
    Ok(taken.freeze())
}

const MESSAGE_BYTES: usize = 4 << 20;
