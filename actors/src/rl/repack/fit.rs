//! A planned move against the present state, right before it is made.

use super::{Move, Phase, RepackLimits, Replica, ReplicaId, Snapshot};
use crate::trajectory::Version;

/// Why a move is not made now. Nothing was done; the next plan looks anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// Nobody has looked at it.
    #[error("replica {0} is not in the snapshot")]
    Unknown(ReplicaId),
    /// It was found pulling, draining or gone.
    #[error("replica {replica} is {phase:?}")]
    Excluded {
        /// Which.
        replica: ReplicaId,
        /// Its phase.
        phase: Phase,
    },
    /// It has other weights by now. Trajectories would come from two versions.
    #[error("replica {replica} has version {now} and the move is of version {planned}")]
    OtherVersion {
        /// Which.
        replica: ReplicaId,
        /// That of the move.
        planned: Version,
        /// That of the replica.
        now: Version,
    },
    /// It has got new prompts, so it does not run dry.
    #[error("replica {replica} has {waiting} requests waiting")]
    Queued {
        /// Which.
        replica: ReplicaId,
        /// Number of requests.
        waiting: u32,
    },
    /// Its last request has ended: it can pull by itself.
    #[error("replica {0} has nothing to move")]
    Empty(ReplicaId),
    /// It is part of a move under way, in a way that would make a chain.
    #[error("replica {0} is part of another move under way")]
    UnderWay(ReplicaId),
    /// The KV cache of the destination is too full for them.
    #[error("{needed} bytes of KV cache are needed and {capacity} are there")]
    NoRoom {
        /// Bytes, with what is left for growth.
        needed: u64,
        /// Bytes.
        capacity: u64,
    },
    /// It would be more than a roofline batch.
    #[error("{requests} requests would be more than {batch_max}")]
    BatchFull {
        /// With those of the destination.
        requests: u32,
        /// The limit.
        batch_max: u32,
    },
}

/// Looks at a move again in the present state, right before it is made: CanFit of the paper.
///
/// `under_way` are the moves begun earlier whose end `now` may not show. What they bring counts at
/// their destinations, which is on the safe side when it is counted in `now` already.
///
/// # Errors
/// Why it is to be left out.
pub fn can_fit(
    planned: &Move,
    now: &Snapshot,
    under_way: &[Move],
    limits: &RepackLimits,
) -> Result<(), Unfit> {
    let source = still_fit(planned, planned.source, now)?;
    let destination = still_fit(planned, planned.destination, now)?;
    if source.running == 0 {
        return Err(Unfit::Empty(source.id));
    }
    if source.id == destination.id {
        return Err(Unfit::UnderWay(source.id));
    }
    let (mut requests, mut kv_used) = (Some(0_u32), Some(0_u64));
    let mut add = |more_requests: u32, more_kv: u64| {
        requests = requests.and_then(|sum| sum.checked_add(more_requests));
        kv_used = kv_used.and_then(|sum| sum.checked_add(more_kv));
    };
    add(source.running, source.kv_used);
    add(destination.running, destination.kv_used);
    for other in under_way {
        if other.source == source.id || other.destination == source.id {
            return Err(Unfit::UnderWay(source.id));
        }
        if other.source == destination.id {
            return Err(Unfit::UnderWay(destination.id));
        }
        if other.destination == destination.id {
            add(other.requests, other.kv_bytes);
        }
    }
    let requests = requests.unwrap_or(u32::MAX);
    if requests > limits.batch_max {
        return Err(Unfit::BatchFull {
            requests,
            batch_max: limits.batch_max,
        });
    }
    let needed = kv_used.and_then(|kv_used| limits.needed(kv_used, requests));
    match needed {
        Some(needed) if needed <= destination.kv_capacity => Ok(()),
        _ => Err(Unfit::NoRoom {
            needed: needed.unwrap_or(u64::MAX),
            capacity: destination.kv_capacity,
        }),
    }
}

/// One end of a move, when it still serves with the same weights and nothing waits there.
fn still_fit<'a>(planned: &Move, id: ReplicaId, now: &'a Snapshot) -> Result<&'a Replica, Unfit> {
    let replica = now.get(id).ok_or(Unfit::Unknown(id))?;
    if replica.phase != Phase::Serving {
        return Err(Unfit::Excluded {
            replica: id,
            phase: replica.phase,
        });
    }
    if replica.version != planned.version {
        return Err(Unfit::OtherVersion {
            replica: id,
            planned: planned.version,
            now: replica.version,
        });
    }
    if replica.waiting > 0 {
        return Err(Unfit::Queued {
            replica: id,
            waiting: replica.waiting,
        });
    }
    Ok(replica)
}
