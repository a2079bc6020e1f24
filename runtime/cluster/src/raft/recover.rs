//! A voter that goes on alone, since the majority is lost for good: its disk is made anew with all that
//! it knew. It is the only voter then, in a term and at a place in the log that nobody has seen, so
//! that whoever votes next is sent its tables whole.

use std::collections::{BTreeMap, BTreeSet};

use openraft::{BasicNode, CommittedLeaderId, EntryPayload, SnapshotMeta};

use super::disk::{Disk, DiskError, SNAPSHOT};
use super::machine::Kept;
use super::{LogId, Membership, Vote};
use crate::tables::Tables;

/// Makes a voter the only one, with all that its disk holds: also what it was sent and does not
/// know whether the others had it. Returns the number of entries behind the last snapshot.
pub(crate) async fn alone(disk: &Disk, number: u64, node: &str) -> Result<usize, DiskError> {
    let kept: Option<Kept> = disk.fact(SNAPSHOT).await?;
    let (mut tables, mut last) = match kept {
        Some(kept) => (kept.tables, kept.meta.last_log_id),
        None => (Tables::default(), None),
    };
    let behind = last.map_or(0, |last| last.index + 1);
    let entries = disk.entries_from(behind).await?;
    let count = entries.len();
    for entry in entries {
        last = Some(entry.log_id);
        if let EntryPayload::Normal(batch) = entry.payload {
            for command in batch.0 {
                // What was refused then is refused again.
                let _ = tables.apply(command);
            }
        }
    }
    let term = disk.vote().await?.map_or(0, |vote| vote.leader_id().term);
    let term = term.max(last.map_or(0, |last| last.leader_id.term)) + 1;
    let at = LogId::new(
        CommittedLeaderId::new(term, number),
        last.map_or(0, |last| last.index + 1),
    );
    let nodes: BTreeMap<_, _> = [(number, BasicNode::new(node))].into();
    let voters: BTreeSet<_> = [number].into();
    let membership = openraft::Membership::new(vec![voters], nodes);
    let kept = Kept {
        meta: SnapshotMeta {
            last_log_id: Some(at),
            last_membership: Membership::new(Some(at), membership),
            snapshot_id: format!("{}", at.index),
        },
        tables,
    };
    disk.begin_anew(at, Vote::new(term, number), &kept).await?;
    Ok(count)
}

#[cfg(test)]
mod tests;
