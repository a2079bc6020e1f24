//! Spares: worker processes with devices, started and parked, for actors that lose theirs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use odeon_placement::{Demand, Isolation};

use super::protocol::{HandOver, HandingOver};
use crate::actor::engine::Engine;
use crate::actor::placing::{Ask, Granted, LaunchOrder, Launched};
use crate::base::clock::Clock;
use crate::base::failure::Failure;
use crate::base::needs::{Needs, PoolId};

/// The pools that a node keeps.
#[derive(Debug, Default)]
pub(super) struct Pools {
    next: u64,
    pools: BTreeMap<u64, Pool>,
}

#[derive(Debug)]
struct Pool {
    needs: Needs,
    size: u32,
    ready: Vec<Launched>,
}

/// A pool of spares: worker processes with their devices, started and waiting. An actor whose
/// [`Needs::standby`] names it takes one when its own process or device fails, instead of waiting
/// for a process to start; the pool is filled up again behind it. Dropping this lets all of them go.
///
/// How many to keep: [`odeon_placement::spares`].
pub struct Standby {
    engine: Arc<Engine>,
    id: PoolId,
}

impl fmt::Debug for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = self.ready();
        f.debug_struct("Standby").field("ready", &ready).finish()
    }
}

impl Standby {
    /// A pool that is being filled, or nothing when what it needs cannot be meant.
    pub(crate) fn start(engine: &Arc<Engine>, size: u32, needs: Needs) -> Self {
        let mut pools = engine.device_manager().pools.lock();
        pools.next += 1;
        let number = pools.next;
        let ready = vec![];
        pools.pools.insert(number, Pool { needs, size, ready });
        drop(pools);
        let filling = Arc::clone(engine);
        engine.spawn_task(async move { filling.keep_pool(number).await });
        let id = PoolId {
            node: engine.process,
            number,
        };
        Self {
            engine: Arc::clone(engine),
            id,
        }
    }

    /// The number of spares that are ready at the moment.
    #[must_use]
    pub fn ready(&self) -> usize {
        let pools = self.engine.device_manager().pools.lock();
        let pool = pools.pools.get(&self.id.number);
        pool.map_or(0, |pool| pool.ready.len())
    }

    pub(crate) fn id(&self) -> PoolId {
        self.id
    }
}

impl Needs {
    /// Takes a spare of this pool when it has to be placed again. The pool should have the same
    /// needs.
    pub fn standby(mut self, pool: &Standby) -> Self {
        self.pool = Some(pool.id());
        self
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        let pool = self
            .engine
            .device_manager()
            .pools
            .lock()
            .pools
            .remove(&self.id.number);
        let engine = Arc::clone(&self.engine);
        self.engine.spawn_task(async move {
            for spare in pool.into_iter().flat_map(|pool| pool.ready) {
                engine.release_here(spare.process, spare.lease).await;
            }
        });
    }
}

impl Engine {
    /// Fills a pool, and fills it up again, until it is given up.
    async fn keep_pool(self: Arc<Self>, number: u64) {
        while !self.is_closing() {
            let missing = {
                let mut pools = self.device_manager().pools.lock();
                let Some(pool) = pools.pools.get_mut(&number) else {
                    return;
                };
                pool.ready.retain(|spare| self.routes_to(spare.process));
                (pool.ready.len() < pool.size as usize).then(|| pool.needs.clone())
            };
            let changed = self.device_manager().changed.notified();
            let Some(needs) = missing else {
                let _ = Clock::timeout(self.limits.heartbeat_interval, changed).await;
                continue;
            };
            match self.launch_spare(number, needs).await {
                Ok(spare) => self.park(number, spare).await,
                Err(failure) => {
                    tracing::warn!(%failure, "a pool of spares is not full");
                    Clock::sleep(self.limits.heartbeat_interval).await;
                }
            }
        }
    }

    async fn launch_spare(
        self: &Arc<Self>,
        number: u64,
        needs: Needs,
    ) -> Result<Launched, Failure> {
        let ask = Ask {
            job: self.job.clone(),
            holder: format!("spare of pool {number}"),
            actors: vec![(self.new_id(), 0)],
            needs: Needs {
                demand: Demand {
                    isolation: Isolation::Process,
                    // Whoever needs the room now comes first.
                    priority: i32::MIN,
                    ..needs.demand.clone()
                },
                ..needs
            },
            again: false,
        };
        let order = LaunchOrder {
            job: self.job.clone(),
            ask: Some(Box::new(ask)),
            ..LaunchOrder::default()
        };
        self.launch_here(order).await
    }

    /// Lets all spares go.
    pub(crate) async fn release_spares(self: &Arc<Self>) {
        let pools = std::mem::take(&mut self.device_manager().pools.lock().pools);
        for spare in pools.into_values().flat_map(|pool| pool.ready) {
            self.release_here(spare.process, spare.lease).await;
        }
    }

    async fn park(self: &Arc<Self>, number: u64, spare: Launched) {
        let unwanted = {
            let mut pools = self.device_manager().pools.lock();
            match pools.pools.get_mut(&number) {
                Some(pool) => {
                    pool.ready.push(spare);
                    None
                }
                None => Some(spare),
            }
        };
        if let Some(spare) = unwanted {
            self.release_here(spare.process, spare.lease).await;
        }
        self.device_manager().changed.notify_waiters();
    }

    /// A spare for an actor that has lost its place, if its pool has one that still lives.
    pub(crate) async fn take_spare(self: &Arc<Self>, ask: &Ask) -> Option<Launched> {
        let pool = ask.needs.pool.filter(|pool| pool.node == self.process)?;
        loop {
            let spare = {
                let mut pools = self.device_manager().pools.lock();
                let pool = pools.pools.get_mut(&pool.number)?;
                (!pool.ready.is_empty()).then(|| pool.ready.remove(0))?
            };
            // The pool is filled up again.
            self.device_manager().changed.notify_waiters();
            if self.hand_over(&spare, ask).await {
                return Some(spare);
            }
            self.release_here(spare.process, spare.lease).await;
        }
    }

    /// Writes the lease of a spare to an actor. Returns true if the spare lives.
    async fn hand_over(self: &Arc<Self>, spare: &Launched, ask: &Ask) -> bool {
        let (Some(granted), Some((actor, rank))) = (spare.lease, ask.actors.first().copied())
        else {
            return false;
        };
        let Granted { node, lease } = granted;
        let order = HandOver {
            lease,
            actor,
            holder: ask.holder.clone(),
            rank,
            priority: ask.needs.demand.priority,
        };
        if node == self.process {
            return self.hand_over_here(&order).await;
        }
        let patience = Some(self.limits.claim_timeout);
        let handed = self.request::<HandingOver>(node, &order, patience);
        handed.await.unwrap_or(false)
    }
}
