//! The reasons why there is no blob.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::id::ProcessId;
use crate::base::shape::{self, Shape};

/// Why there is no blob, or no view of it.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BlobError {
    /// The job holds too many bytes on this node. Nothing was taken.
    #[error(
        "a blob of {asked} bytes is over the quota: the job holds {used} of {quota} bytes on this \
         node; {}", advice(*asked, *quota)
    )]
    Quota {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that the job's processes on the node hold.
        used: u64,
        /// The bound, [`Limits::blob_bytes_quota`](crate::Limits::blob_bytes_quota).
        quota: u64,
    },
    /// The system gave no memory, address space or descriptor. Nothing was taken.
    #[error("the system gave no shared memory for {asked} bytes: {why}")]
    Memory {
        /// Bytes that were asked for.
        asked: u64,
        /// The error of the operating system.
        why: String,
    },
    /// The bytes are lost, unless another process has a copy. Make the blob again.
    #[error("the blob of process {owner} is gone: {why}")]
    Gone {
        /// The process that owned it.
        owner: ProcessId,
        /// The cause of its end.
        why: String,
    },
    /// The owner, or the way to it, is slow. Nothing is lost; open it again.
    #[error("process {owner} did not answer for its blob within {waited:?}")]
    Timeout {
        /// The process that owns it.
        owner: ProcessId,
        /// The time that the opener waited.
        waited: Duration,
    },
    /// The system does not let this process read the owner's memory.
    #[error("the memory of process {owner} cannot be read: {why}")]
    Unreadable {
        /// The process that owns it.
        owner: ProcessId,
        /// The error of the operating system.
        why: String,
    },
    /// The bytes were damaged on the way again and again. Nothing is lost; the network is at fault.
    #[error("the blob of process {owner} arrived damaged at byte {offset}, {tries} times in a row")]
    Corrupt {
        /// The process that owns it.
        owner: ProcessId,
        /// Where the damaged chunk begins.
        offset: u64,
        /// The number of times that it was sent.
        tries: u32,
    },
    /// The caller is outside of any running system.
    #[error("no running system in this process: start one with System::local()")]
    NoSystem,
}

impl Shape for BlobError {
    const SHAPE: u64 = shape::name("odeon.BlobError");
}

const fn advice(asked: u64, quota: u64) -> &'static str {
    if asked > quota {
        "write smaller blobs, or raise Limits::blob_bytes_quota"
    } else {
        "drop handles and views that are no longer needed, wait for their readers, or raise \
         Limits::blob_bytes_quota"
    }
}
