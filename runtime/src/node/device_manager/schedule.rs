//! Finding room: snapshots of all nodes, a plan, and claims that make it true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use odeon_placement::{
    Affinity, Cause, Demand, Health, Lease, Level, Plan, Refusal, View, preempt, solve,
};

use super::protocol::{ClaimRequest, Claiming, Evicting, Eviction, NodeSnapshot, Surveying};
use super::queue::Ticket;
use crate::actor::engine::Engine;
use crate::actor::placing::{Ask, Granted, LeaseId};
use crate::base::clock::Clock;
use crate::base::failure::{Failure, FailureKind};
use crate::base::id::{ActorId, ProcessId};

/// Why there are no leases yet.
enum Unplaced {
    /// Waiting cannot help.
    Never(Failure),
    /// Others hold what it takes, or come first.
    Busy(String),
}

/// The reason why one look found no place.
enum Refused {
    Never(Failure),
    /// There is room, but not for these.
    Behind,
    /// Others were faster, again and again.
    Outrun(String),
    Busy(Refusal),
}

/// Takes an entry out of the queue, however the wait ends.
struct Queued<'a> {
    engine: &'a Engine,
    ticket: Ticket,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.engine.device_manager().queue.lock().leave(self.ticket);
        // Whoever was behind it looks again.
        self.engine.device_manager().changed.notify_waiters();
    }
}

impl Engine {
    /// Leases for all of these actors, in their order, as soon as there is room; a failure says what
    /// was in the way when its patience was over, or that waiting cannot help.
    pub(crate) async fn schedule(self: &Arc<Self>, asks: &[Ask]) -> Result<Vec<Granted>, Failure> {
        let begun = Clock::now();
        let patience = asks.iter().filter_map(|ask| ask.needs.patience).max();
        let deadline = begun.after(patience.unwrap_or(self.limits.placement_timeout));
        let ticket = self.device_manager().queue.lock().enter(asks, begun);
        let queued = Queued {
            engine: self,
            ticket,
        };
        let mut evicted = BTreeSet::new();
        loop {
            let changed = self.device_manager().changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let why = match self.place_in_turn(queued.ticket, asks, &mut evicted).await {
                Ok(granted) => return Ok(granted),
                Err(Unplaced::Never(failure)) => return Err(failure),
                Err(Unplaced::Busy(why)) => why,
            };
            let left = deadline.left(Clock::now());
            if left.is_zero() || self.is_closing() || self.is_held() {
                let waited = Clock::now().since(begun);
                let why = format!("after {} s: {why}", waited.as_secs_f32().round());
                return Err(Failure::new(FailureKind::NotPlaced, why));
            }
            tracing::debug!(why, "waiting for room");
            let pause = left.min(self.limits.heartbeat_interval);
            let _ = Clock::timeout(pause, changed).await;
        }
    }

    /// Places the actors unless others come first.
    async fn place_in_turn(
        self: &Arc<Self>,
        ticket: Ticket,
        asks: &[Ask],
        evicted: &mut BTreeSet<String>,
    ) -> Result<Vec<Granted>, Unplaced> {
        let _turn = self.device_manager().turn.lock().await;
        let now = Clock::now();
        let queue = &self.device_manager().queue;
        let ahead = queue.lock().ahead(ticket, now, self.limits.overtaking_max);
        let placed = self.place_once(asks, ahead.is_none(), evicted).await;
        placed.map_err(|error| match error {
            Refused::Never(failure) => Unplaced::Never(failure),
            Refused::Outrun(why) => Unplaced::Busy(why),
            Refused::Behind => {
                let holder = ahead.unwrap_or_default();
                let why = format!("{holder}, which was refused before, comes first");
                queue.lock().note_behind(ticket, holder);
                Unplaced::Busy(why)
            }
            Refused::Busy(refusal) => {
                let why = refusal.to_string();
                queue.lock().note(ticket, refusal);
                Unplaced::Busy(why)
            }
        })
    }

    /// One look at all nodes, one plan, and the claims for it.
    async fn place_once(
        self: &Arc<Self>,
        asks: &[Ask],
        first: bool,
        evicted: &mut BTreeSet<String>,
    ) -> Result<Vec<Granted>, Refused> {
        let mut tries = 0;
        loop {
            tries += 1;
            let snapshots = self.snapshots().await;
            let demands = asks.iter().map(|ask| self.demand(ask, &snapshots));
            let demands: Vec<Demand> = demands.collect::<Result<_, _>>().map_err(Refused::Never)?;
            let job = asks.first().map_or("", |ask| &*ask.job);
            let seen = |(_, it): &(ProcessId, NodeSnapshot)| {
                self.device_manager().seen_by(job, it.node.clone())
            };
            let mut view = View::new(snapshots.iter().map(seen));
            for (job, quota) in &*self.device_manager().quotas() {
                view.set_quota(job.clone(), quota.clone());
            }
            let again = asks.iter().any(|ask| ask.again);
            let plan = match solve(&view, &demands) {
                Ok(_) if !first => return Err(Refused::Behind),
                Ok(plan) => plan,
                Err(refusal) if is_final(&refusal, &view, &demands, again) => {
                    let failure = Failure::new(FailureKind::NotPlaced, refusal.to_string());
                    return Err(Refused::Never(failure));
                }
                Err(refusal) => {
                    if let ([demand], true) = (demands.as_slice(), first) {
                        self.make_room(&view, demand, &snapshots, evicted).await;
                    }
                    return Err(Refused::Busy(refusal));
                }
            };
            if let Some(granted) = self.claim(asks, &plan, &snapshots).await {
                return Ok(granted);
            }
            // Somebody was faster; there are new snapshots.
            if tries == TRIES_MAX || self.is_closing() {
                let why = format!("{TRIES_MAX} plans in a row were out of date");
                return Err(Refused::Outrun(why));
            }
        }
    }

    /// All nodes that answer, this one first.
    pub(crate) async fn snapshots(self: &Arc<Self>) -> Vec<(ProcessId, NodeSnapshot)> {
        let nodes: Vec<ProcessId> = self
            .links
            .iter()
            .filter(|link| !link.is_worker)
            .map(|link| link.peer)
            .collect();
        let patience = Some(self.limits.heartbeat_interval);
        let ask = |node| async move {
            let snapshot = self.request::<Surveying>(node, &(), patience).await?;
            Some((node, snapshot))
        };
        let others = join_all(nodes.into_iter().map(ask)).await;
        let mut snapshots = vec![(self.process, self.snapshot().await)];
        for (process, snapshot) in others.into_iter().flatten() {
            let name = &snapshot.node.name;
            if snapshots.iter().any(|(_, known)| known.node.name == *name) {
                tracing::warn!(
                    node = name,
                    "two nodes have this name, only one of them is used"
                );
            } else {
                snapshots.push((process, snapshot));
            }
        }
        snapshots
    }

    /// The demand of an ask, whose company is known by the names of its leases.
    fn demand<'a>(
        &self,
        ask: &Ask,
        snapshots: &'a [(ProcessId, NodeSnapshot)],
    ) -> Result<Demand, Failure> {
        let mut demand = ask.needs.demand.clone();
        demand.job.clone_from(&ask.job);
        demand.holder.clone_from(&ask.holder);
        demand.gang = ask.actors.len() as u32;
        for node in &*self.device_manager().refused() {
            demand = demand.require(Affinity::NotNode(node.clone()));
        }
        for company in &ask.needs.company {
            let of_node = |(_, snapshot): &'a (ProcessId, NodeSnapshot)| {
                let node = &snapshot.node.name;
                snapshot.actors.iter().map(move |it| (node, it))
            };
            let mut actors = snapshots.iter().flat_map(of_node);
            let known = actors.find(|(_, (actor, ..))| *actor == company.actor);
            let Some((node, (_, holder, _))) = known else {
                // It may be between two places.
                if company.wish || ask.again {
                    continue;
                }
                let why = format!(
                    "no place for {}: it must be near {} {}, which holds no lease: give that actor \
                     needs of its own, and spawn it first",
                    ask.holder, company.name, company.actor
                );
                return Err(Failure::new(FailureKind::NotPlaced, why));
            };
            let (holder, level) = (holder.clone(), company.level);
            demand = demand.require(match company.apart {
                true => Affinity::Apart(holder, level),
                // Its gang may lie on others, too.
                false if company.wish && level == Level::Node => Affinity::Node(node.clone()),
                false => Affinity::Near(holder, level),
            });
        }
        Ok(demand)
    }

    /// Holds all leases of a plan, or none.
    async fn claim(
        self: &Arc<Self>,
        asks: &[Ask],
        plan: &Plan,
        snapshots: &[(ProcessId, NodeSnapshot)],
    ) -> Option<Vec<Granted>> {
        let actors: Vec<(ActorId, u32)> =
            asks.iter().flat_map(|ask| &ask.actors).copied().collect();
        let mut by_node: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, lease) in plan.leases.iter().enumerate() {
            by_node.entry(&lease.node).or_default().push(at);
        }
        let mut granted: Vec<Option<Granted>> = vec![None; plan.leases.len()];
        for (name, places) in by_node {
            let named = |(_, snapshot): &&(ProcessId, NodeSnapshot)| snapshot.node.name == name;
            let (node, snapshot) = snapshots.iter().find(named)?;
            let leases = places.iter().map(|at| {
                let (actor, rank) = *actors.get(*at)?;
                let lease = plan.leases[*at].clone();
                Some((Lease { rank, ..lease }, actor))
            });
            let leases = leases.collect::<Option<Vec<_>>>()?;
            let claimed = self.claim_at(*node, snapshot.version, leases).await;
            let Some(claimed) = claimed else {
                self.unclaim(granted.into_iter().flatten()).await;
                return None;
            };
            for (at, lease) in places.into_iter().zip(claimed) {
                granted[at] = Some(Granted { node: *node, lease });
            }
        }
        granted.into_iter().collect()
    }

    async fn claim_at(
        self: &Arc<Self>,
        node: ProcessId,
        version: u64,
        leases: Vec<(Lease, ActorId)>,
    ) -> Option<Vec<LeaseId>> {
        if node == self.process {
            return self.claim_here(version, &leases).await;
        }
        let claim = ClaimRequest::Claim { version, leases };
        let patience = Some(self.limits.claim_timeout);
        // A claim whose answer was lost ends by itself.
        self.request::<Claiming>(node, &claim, patience).await?
    }

    async fn unclaim(self: &Arc<Self>, granted: impl Iterator<Item = Granted>) {
        let mut by_node: BTreeMap<ProcessId, Vec<LeaseId>> = BTreeMap::new();
        for Granted { node, lease } in granted {
            by_node.entry(node).or_default().push(lease);
        }
        for (node, leases) in by_node {
            if node == self.process {
                self.unclaim_here(&leases).await;
            } else {
                // If it does not arrive, the claims end by themselves.
                self.tell::<Claiming>(node, &ClaimRequest::Unclaim(leases));
            }
        }
    }

    /// Ends those of lower priority whose room would do. They are asked once: their devices come
    /// back when their memory is free.
    async fn make_room(
        self: &Arc<Self>,
        view: &View,
        demand: &Demand,
        snapshots: &[(ProcessId, NodeSnapshot)],
        evicted: &mut BTreeSet<String>,
    ) {
        let Ok(preemption) = preempt(view, demand) else {
            return;
        };
        // One that has come back in another process meanwhile has to go again.
        let lives = |holder: &String| {
            let actors = snapshots.iter().flat_map(|(_, snapshot)| &snapshot.actors);
            let own = actors.filter(|(_, name, _)| name == holder);
            let mut processes: Vec<u64> = own.map(|(.., process)| process.0).collect();
            processes.sort_unstable();
            format!("{holder} {processes:?}")
        };
        let victims = preemption.victims.into_iter();
        let victims: Vec<String> = victims.filter(|name| evicted.insert(lives(name))).collect();
        if victims.is_empty() {
            return;
        }
        tracing::info!(holder = demand.holder, ?victims, "making room");
        let eviction = Eviction {
            holders: victims,
            by: demand.holder.clone(),
        };
        for (node, _) in snapshots {
            if *node == self.process {
                self.evict_here(&eviction).await;
            } else {
                self.tell::<Evicting>(*node, &eviction);
            }
        }
    }

    /// Ends the processes of these holders. Their supervisors decide what becomes of them.
    pub(crate) async fn evict_here(self: &Arc<Self>, eviction: &Eviction) {
        let parts = self.parts().await;
        let mut processes = BTreeSet::new();
        let mut unused = vec![];
        for (id, grant) in parts.leases.lock().grants() {
            if eviction.holders.contains(&grant.lease.holder) {
                match grant.stage {
                    super::Stage::Claimed { .. } => unused.push(id),
                    super::Stage::Held => drop(processes.insert(grant.process)),
                    super::Stage::Leaving { .. } => {}
                }
            }
        }
        self.unclaim_here(&unused).await;
        for process in processes {
            let why = format!("{} has a higher priority and took its place", eviction.by);
            self.retire_here(process, None, &why).await;
        }
    }
}

/// Returns true if waiting cannot help: it asks for what cannot be, or what no node has, devices
/// that are out of service counted. Who has had a place before may find it again.
fn is_final(refusal: &Refusal, view: &View, demands: &[Demand], again: bool) -> bool {
    match &*refusal.cause {
        Cause::Invalid(_) | Cause::DeviceSet { .. } => true,
        Cause::Room { hopeless: true, .. } if !again => {
            let healed = view.nodes().cloned().map(|mut node| {
                for device in &mut node.devices {
                    device.health = Health::Good;
                }
                node
            });
            match solve(&View::new(healed), demands) {
                Ok(_) => false,
                Err(refusal) => {
                    matches!(&*refusal.cause, Cause::Room { hopeless: true, .. })
                }
            }
        }
        _ => false,
    }
}

/// Plans in a row that may be out of date before others are let in.
const TRIES_MAX: usize = 16;
