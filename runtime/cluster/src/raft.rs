//! The replicated log below the catalog: openraft, with its log on disk ([`disk`]), the tables as
//! its state machine ([`machine`]) and actors as its network ([`network`]).

pub(crate) mod batch;
pub(crate) mod disk;
pub(crate) mod machine;
pub(crate) mod network;
pub(crate) mod recover;

use std::io::Cursor;
use std::time::Duration;

use openraft::BasicNode;

pub(crate) use batch::{Batch, Batcher, Outcomes, Unwritten};

openraft::declare_raft_types!(
    /// A voter's number is that of its node; where it is, its node's name says.
    pub(crate) Types:
        D = Batch,
        R = Outcomes,
        NodeId = u64,
        Node = BasicNode,
        SnapshotData = Cursor<Vec<u8>>,
);

pub(crate) type Raft = openraft::Raft<Types>;
pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type StorageError = openraft::StorageError<u64>;
pub(crate) type Membership = openraft::StoredMembership<u64, BasicNode>;

/// The time between two signs of the leader that it leads, in milliseconds.
const HEARTBEAT_MS: u64 = 200;
/// The time that the others wait for that before they elect another, in milliseconds: drawn from
/// this range, so that they seldom stand at the same time. A new leader is there after two such
/// waits at most, below three seconds.
const ELECTION_MS: (u64, u64) = (800, 1400);
/// The longest time that a write may wait for the voters.
pub(crate) const TRY_PATIENCE: Duration = Duration::from_secs(4);
/// Entries between two snapshots.
const SNAPSHOT_EVERY: u64 = 2000;
/// Entries that are kept behind a snapshot, for voters that are a little behind.
const KEPT_BEHIND: u64 = 500;
/// Bytes of a snapshot in one message; they travel as text, at up to four bytes each.
const SNAPSHOT_PIECE: u64 = 512 << 10;

/// The timing of the voters.
pub(crate) fn config() -> openraft::Config {
    openraft::Config {
        cluster_name: "odeon".to_owned(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.0,
        election_timeout_max: ELECTION_MS.1,
        snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(SNAPSHOT_EVERY),
        max_in_snapshot_log_to_keep: KEPT_BEHIND,
        snapshot_max_chunk_size: SNAPSHOT_PIECE,
        install_snapshot_timeout: 10_000,
        ..openraft::Config::default()
    }
}

#[cfg(test)]
mod tests;
