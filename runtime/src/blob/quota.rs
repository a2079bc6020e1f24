//! How many bytes a job may hold in blobs on a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use super::BlobError;

/// The account of a node's processes.
#[derive(Clone, Debug)]
pub(super) struct Account {
    used: Arc<AtomicU64>,
    quota: u64,
    changed: Arc<Notify>,
}

/// A share of the quota; given back on drop.
#[derive(Debug)]
pub(super) struct Charge {
    account: Account,
    bytes: u64,
}

impl Account {
    /// An account that tells `changed` when a charge ends.
    pub(super) fn new(quota: u64, changed: Arc<Notify>) -> Self {
        Self { used: Arc::default(), quota, changed }
    }

    pub(super) fn charge(&self, len: usize) -> Result<Charge, BlobError> {
        let asked = len as u64;
        let bytes = asked.max(1).next_multiple_of(64);
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.quota);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(Charge { account: self.clone(), bytes }),
            Err(used) => Err(BlobError::Quota { asked, used, quota: self.quota }),
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    pub(super) const fn quota(&self) -> u64 {
        self.quota
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::AcqRel);
        self.account.changed.notify_waiters();
    }
}

pub(super) const fn advice(asked: u64, quota: u64) -> &'static str {
    if asked > quota {
        "write smaller blobs, or raise Limits::blob_bytes_quota"
    } else {
        "drop handles and views that are no longer needed, wait for their readers, or raise \
         Limits::blob_bytes_quota"
    }
}
