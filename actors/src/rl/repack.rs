//! Which rollout replicas hand the rest of their work to others and begin anew. Pure.
//!
//! A replica takes a batch of prompts and works until the last is done. Long before that most of
//! its slots are empty, and it still decodes at the price of a full step. Laminar (arXiv
//! 2510.12633) packs such replicas together: some are filled up again, the others are empty at
//! once, take the newest weights and new prompts.
//!
//! - Only replicas of one version of the weights are packed together, so every trajectory still
//!   comes from one version.
//! - A replica takes part when its KV cache is below the most and falling, nothing waits in its
//!   queue and it has fewer requests than a roofline batch. That is its life cycle and no number of
//!   a workload. See [`Replica::is_candidate`].
//! - The one with the fewest KV bytes goes first, to the destination that it fills most.
//! - There are no chains: who has taken something in stays, and who was emptied takes nothing in.
//! - A replica that pulls weights, drains or is gone is left alone.
//! - A plan is an opinion about a moment. [`can_fit`] looks at each move again when its turn has
//!   come.
//!
//! What it reaches: with the same capacity everywhere no two of the candidates that remain could be
//! put together. So those that remain of a version are fewer than four times the fewest possible,
//! and fewer than twice where only one of the two limits binds, when each is within the limits by
//! itself. With unequal capacities no candidate that remains and has taken nothing in could be
//! moved to another that remains.
//!
//! The same snapshot gives the same plan: ties fall to the lower id. Time goes with the square of
//! the candidates of one version.

mod fit;
mod roofline;
mod trigger;

use std::collections::BTreeMap;

use odeon::serde::{Deserialize, Serialize};

pub use self::fit::{Unfit, can_fit};
pub use self::roofline::{Roofline, RooflineError, roofline_batch};
pub use self::trigger::{Cause, KvTrend, Trigger};
use crate::trajectory::Version;

/// Which replica. It names the same one from snapshot to snapshot.
pub type ReplicaId = u64;

/// The phase that a replica is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
#[non_exhaustive]
pub enum Phase {
    /// It generates.
    Serving,
    /// It takes other weights in.
    Pulling,
    /// It takes no new requests, since its own are about to be moved.
    Draining,
    /// It does not answer.
    Gone,
}

/// State of a replica at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Replica {
    /// Which.
    pub id: ReplicaId,
    /// The weights that its requests are generated with.
    pub version: Version,
    /// Bytes of its KV cache in use now: the paper's C_used.
    pub kv_used: u64,
    /// The same at the look before, C_prev; `None` when there was none with these weights. See
    /// [`KvTrend`].
    pub kv_before: Option<u64>,
    /// The most bytes of its KV cache: C_max.
    pub kv_capacity: u64,
    /// Requests that it decodes.
    pub running: u32,
    /// Requests in its queue.
    pub waiting: u32,
    /// Its phase.
    pub phase: Phase,
}

impl Replica {
    /// Returns true when it may be emptied or filled up: it serves, its cache is in its ramp-down
    /// (`kv_used < min(kv_capacity, kv_before)`), nothing waits, and it has some requests but fewer
    /// than a roofline batch.
    ///
    /// One without requests needs no plan to take new weights, and work put there would empty
    /// nobody.
    #[must_use]
    pub fn is_candidate(&self, limits: &RepackLimits) -> bool {
        self.phase == Phase::Serving
            && self.waiting == 0
            && (1..limits.batch_max).contains(&self.running)
            && self
                .kv_before
                .is_some_and(|before| self.kv_used < before.min(self.kv_capacity))
    }
}

/// The most that a destination may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RepackLimits {
    /// The most requests of a destination: the paper's B. [`roofline_batch`] knows it for a device
    /// and a model.
    pub batch_max: u32,
    /// KV bytes left free at a destination for each of its requests, since they grow while they
    /// generate: the tokens that a request is still expected to take, times the bytes of one.
    ///
    /// The paper leaves none, and 0 is as it does: a destination that overflows then queues or
    /// preempts by itself, which costs a second prefill.
    pub growth_bytes: u64,
}

impl RepackLimits {
    /// Limits as the paper has them: nothing is left free for growth.
    #[must_use]
    pub const fn new(batch_max: u32) -> Self {
        Self {
            batch_max,
            growth_bytes: 0,
        }
    }

    /// KV bytes that `requests` with `kv_used` ask for; `None` beyond all numbers.
    fn needed(&self, kv_used: u64, requests: u32) -> Option<u64> {
        let growth = self.growth_bytes.checked_mul(u64::from(requests))?;
        kv_used.checked_add(growth)
    }
}

/// Replicas at one moment, in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(Vec<Replica>);

/// A replica is in a snapshot twice. Nothing was planned; the caller has merged two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replica {0} is in the snapshot twice; take one look at each")]
pub struct Twice(pub ReplicaId);

impl Snapshot {
    /// In whatever order.
    ///
    /// # Errors
    /// When a replica is there twice.
    pub fn new(mut replicas: Vec<Replica>) -> Result<Self, Twice> {
        replicas.sort_unstable_by_key(|replica| replica.id);
        match replicas.windows(2).find(|pair| pair[0].id == pair[1].id) {
            Some(pair) => Err(Twice(pair[0].id)),
            None => Ok(Self(replicas)),
        }
    }

    /// All of them, in the order of their ids.
    #[must_use]
    pub fn replicas(&self) -> &[Replica] {
        &self.0
    }

    /// The replica with this id.
    #[must_use]
    pub fn get(&self, id: ReplicaId) -> Option<&Replica> {
        let at = self.0.binary_search_by_key(&id, |replica| replica.id);
        at.ok().map(|at| &self.0[at])
    }
}

/// All requests of one replica go to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Move {
    /// The replica that is emptied, and may pull the newest weights then.
    pub source: ReplicaId,
    /// The replica that takes the requests in.
    pub destination: ReplicaId,
    /// The weights of both.
    pub version: Version,
    /// Number of requests, when it was planned. Some may have ended since.
    pub requests: u32,
    /// KV bytes of the source, when it was planned.
    pub kv_bytes: u64,
}

/// Moves to make, in this order. Versions are told apart, the oldest first: its replicas have most
/// to gain from other weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Plan {
    /// The moves. Each source is in one of them, and no source is a destination.
    pub moves: Vec<Move>,
}

impl Plan {
    /// Replicas that will be empty, in the order of the moves.
    pub fn emptied(&self) -> impl Iterator<Item = ReplicaId> {
        self.moves.iter().map(|planned| planned.source)
    }
}

/// A candidate with what the plan has put there.
struct Bin {
    id: ReplicaId,
    capacity: u64,
    kv_used: u64,
    requests: u32,
    fate: Fate,
}

#[derive(PartialEq, Eq)]
enum Fate {
    Untouched,
    Absorbed,
    Emptied,
}

impl Bin {
    /// Bytes that stay free when `other` is put here; `None` when it does not fit.
    fn room_with(&self, other: &Self, limits: &RepackLimits) -> Option<u64> {
        let requests = self.requests.checked_add(other.requests)?;
        if requests > limits.batch_max {
            return None;
        }
        let kv_used = self.kv_used.checked_add(other.kv_used)?;
        self.capacity.checked_sub(limits.needed(kv_used, requests)?)
    }
}

/// Packs the candidates of each version by best fit: the source with the fewest KV bytes goes where
/// the least room stays. Of destinations with the same capacity that is the fullest, as in the
/// paper.
#[must_use]
pub fn plan(snapshot: &Snapshot, limits: &RepackLimits) -> Plan {
    let mut groups: BTreeMap<Version, Vec<Bin>> = BTreeMap::new();
    for replica in snapshot.replicas() {
        if replica.is_candidate(limits) {
            groups.entry(replica.version).or_default().push(Bin {
                id: replica.id,
                capacity: replica.kv_capacity,
                kv_used: replica.kv_used,
                requests: replica.running,
                fate: Fate::Untouched,
            });
        }
    }
    let mut plan = Plan::default();
    for (version, mut bins) in groups {
        bins.sort_unstable_by_key(|bin| (bin.kv_used, bin.id));
        for at in 0..bins.len() {
            if bins[at].fate != Fate::Untouched {
                continue;
            }
            let Some(best) = best_fit(&bins, at, limits) else {
                continue;
            };
            let (requests, kv_bytes) = (bins[at].requests, bins[at].kv_used);
            plan.moves.push(Move {
                source: bins[at].id,
                destination: bins[best].id,
                version,
                requests,
                kv_bytes,
            });
            bins[at].fate = Fate::Emptied;
            bins[best].fate = Fate::Absorbed;
            bins[best].requests += requests;
            bins[best].kv_used += kv_bytes;
        }
    }
    plan
}

/// Where the bin `source` leaves the least room; the lowest id of several.
fn best_fit(bins: &[Bin], source: usize, limits: &RepackLimits) -> Option<usize> {
    let others = bins.iter().enumerate().filter(|(at, bin)| {
        // What is empty stays empty, and nobody moves to itself.
        *at != source && bin.fate != Fate::Emptied
    });
    let fitting = others.filter_map(|(at, bin)| {
        let room = bin.room_with(&bins[source], limits)?;
        Some((room, bin.id, at))
    });
    fitting.min().map(|(_, _, at)| at)
}

#[cfg(test)]
mod tests;
