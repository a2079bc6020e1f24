//! The bundles that are mounted on a node, and the tries that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use odeon_artifacts::Digest;
use parking_lot::Mutex;

use super::arriving::{Learning, Trouble};
use super::mount::Mount;
use super::{StagingError, stale};
use crate::job::JobId;

/// A try of a job.
pub(super) type Try = (JobId, u32);

/// The live mounts below one folder, each with the tries that use it.
#[derive(Debug)]
pub(super) struct Mounts {
    folder: PathBuf,
    next: AtomicU64,
    live: Mutex<BTreeMap<Digest, Live>>,
}

/// A bundle that is mounted.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) mount: Mount,
    pub(super) learning: Learning,
    pub(super) trouble: Trouble,
    pub(super) users: BTreeSet<Try>,
}

impl Mounts {
    /// Those below a folder. What a daemon before this one has left there is taken away.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        stale::clear(&folder)?;
        Ok(Self {
            folder,
            next: AtomicU64::new(0),
            live: Mutex::default(),
        })
    }

    /// A place where nothing is and was mounted.
    pub(super) fn place(&self) -> PathBuf {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.folder.join(n.to_string())
    }

    pub(super) fn enter(&self, bundle: Digest, live: Live) {
        self.live.lock().insert(bundle, live);
    }

    /// Where a bundle is mounted, for a try that uses it already, or as well.
    pub(super) fn join(&self, bundle: &Digest, of: Try, may_be_new: bool) -> Option<PathBuf> {
        let mut live = self.live.lock();
        let live = live.get_mut(bundle)?;
        if !may_be_new && !live.users.contains(&of) {
            return None;
        }
        live.users.insert(of);
        Some(live.mount.place().to_owned())
    }

    /// Has what the system reads to start the file at this path. Blocks its thread.
    pub(super) fn hold_head(&self, bundle: &Digest, path: &str) -> Result<(), StagingError> {
        let files = {
            let live = self.live.lock();
            live.get(bundle).map(|live| live.mount.files())
        };
        let files = files.ok_or_else(|| StagingError::Lacks("its try is over".to_owned()))?;
        let held = files.hold_head(path);
        held.map_err(|error| StagingError::Lacks(format!("`{path}` cannot be read: {error}")))
    }

    /// A try uses nothing any more. What nobody uses is the caller's, to take away.
    pub(super) fn leave(&self, of: Try) -> Vec<(Digest, Live)> {
        let mut live = self.live.lock();
        let left = live.extract_if(.., |_, live| {
            live.users.remove(&of) && live.users.is_empty()
        });
        left.collect()
    }

    /// All of them are the caller's.
    pub(super) fn close(&self) -> Vec<(Digest, Live)> {
        std::mem::take(&mut *self.live.lock()).into_iter().collect()
    }

    /// The tries that use any.
    pub(super) fn tries(&self) -> Vec<Try> {
        let live = self.live.lock();
        let all: BTreeSet<Try> = live.values().flat_map(|live| live.users.clone()).collect();
        all.into_iter().collect()
    }

    /// The trouble of a try: what it has waited for in vain.
    pub(super) fn trouble(&self, of: Try) -> Option<String> {
        let live = self.live.lock();
        let used = live.values().filter(|live| live.users.contains(&of));
        let mut said = used.filter_map(|live| live.trouble.lock().clone());
        said.next().map(|(_, said)| said)
    }
}
