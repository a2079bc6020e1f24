//! The solver. All bundles of a demand are equal, so counting how many each node can take is exact.

use std::{cmp::Reverse, collections::BinaryHeap};

use serde::{Deserialize, Serialize};

use crate::{
    Affinity, Arrange, Demand, Isolation, Liveness, Node, NodeRefusal, Reason, Refusal, Resource,
    Resources, View,
};

/// Where each bundle of a demand goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// One for each bundle, by rank; ranks on the same node follow each other.
    pub leases: Vec<Lease>,
}

/// A bundle's right to a part of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The job that it belongs to.
    pub job: String,
    /// Who holds it.
    pub holder: String,
    /// Which bundle of the gang.
    pub rank: u32,
    /// The node.
    pub node: String,
    /// The process on that node.
    pub process: Process,
    /// Whether the process may be shared within the job.
    pub isolation: Isolation,
    /// What it gives a right to.
    pub resources: Resources,
}

/// The process that a bundle runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// The running worker with this [`id`](crate::Worker::id).
    Existing(u64),
    /// The n-th new worker that this plan starts on the node; bundles with the same number share
    /// it.
    New(u32),
}

/// Finds a place for `demand`, or says why there is none.
///
/// Deterministic, and exact: a refusal means that no placement meets the demand.
///
/// # Errors
///
/// A [`Refusal`] that names for each node the first thing in the way and who holds it.
pub fn solve(view: &View, demand: &Demand) -> Result<Plan, Refusal> {
    let rooms: Vec<Room<'_>> = view.nodes().map(|node| Room::of(node, demand)).collect();
    let would_fit = fits(demand, rooms.iter().map(|room| room.count));
    if would_fit < demand.gang {
        return Err(refuse(demand, &rooms, would_fit));
    }
    let placed = match demand.arrange {
        Arrange::Pack | Arrange::OneNode => pack(demand, rooms),
        Arrange::Spread | Arrange::DistinctNodes => spread(demand, &rooms),
    };
    Ok(plan(demand, &placed))
}

/// A node, how many bundles it can take (no more than asked for), and what stops the next one.
#[derive(Clone, Debug)]
struct Room<'v> {
    node: &'v Node,
    free: Resources,
    count: u32,
    stop: Option<Reason>,
}

impl<'v> Room<'v> {
    fn of(node: &'v Node, demand: &Demand) -> Self {
        let free = node.free();
        let (count, stop) = match unsuitable(node, demand) {
            Some(reason) => (0, Some(reason)),
            None => room(node, &free, demand),
        };
        // A second one would not be let in, whatever the room.
        let (count, stop) = match demand.arrange {
            Arrange::DistinctNodes if count > 0 => (1, None),
            _ => (count, stop),
        };
        Self {
            node,
            free,
            count,
            stop,
        }
    }

    /// Devices lie idle under demands that don't need any; such nodes come last.
    fn wastes_devices(&self, demand: &Demand) -> bool {
        self.node.capacity.get(&Resource::Gpu) > 0 && demand.bundle.get(&Resource::Gpu) == 0
    }

    fn starts_worker(&self, demand: &Demand) -> bool {
        demand.isolation == Isolation::Process || self.node.shared_worker(&demand.job).is_none()
    }

    /// The fullest resource after `count` more bundles, in millionths of the capacity.
    fn load(&self, demand: &Demand, count: u32) -> u128 {
        let load = |(resource, capacity): (&Resource, u64)| {
            let free = u128::from(self.free.get(resource));
            let taken = u128::from(demand.bundle.get(resource)) * u128::from(count);
            let used = u128::from(capacity) - free.min(capacity.into()) + taken;
            used * 1_000_000 / u128::from(capacity)
        };
        self.node.capacity.iter().map(load).max().unwrap_or(0)
    }
}

/// How many bundles fit in all, given how many fit on each node.
fn fits(demand: &Demand, counts: impl Iterator<Item = u32>) -> u32 {
    match demand.arrange {
        Arrange::OneNode => counts.max().unwrap_or(0),
        _ => counts.fold(0, u32::saturating_add),
    }
    .min(demand.gang)
}

/// What rules the node out altogether, whatever its room.
fn unsuitable(node: &Node, demand: &Demand) -> Option<Reason> {
    if node.liveness != Liveness::Up {
        return Some(Reason::NotUp(node.liveness));
    }
    demand.affinity.iter().find_map(|affinity| match affinity {
        Affinity::Node(wanted) if node.name != *wanted => Some(Reason::NotTheNode {
            wanted: wanted.clone(),
        }),
        Affinity::Label(key, wanted) if node.labels.get(key) != Some(wanted) => {
            let found = node.labels.get(key).cloned();
            Some(Reason::Label {
                key: key.clone(),
                wanted: wanted.clone(),
                found,
            })
        }
        Affinity::Near(holder) if !node.has_holder(holder) => Some(Reason::NotNear {
            holder: holder.clone(),
        }),
        Affinity::Apart(holder) if node.has_holder(holder) => Some(Reason::NotApart {
            holder: holder.clone(),
        }),
        _ => None,
    })
}

/// How many bundles fit on a suitable node, and what stops the next one.
fn room(node: &Node, free: &Resources, demand: &Demand) -> (u32, Option<Reason>) {
    let wanted = u64::from(demand.gang);
    let by_workers = match demand.isolation {
        Isolation::Process => node.free_workers(),
        Isolation::Shared if node.shared_worker(&demand.job).is_some() => wanted,
        Isolation::Shared if node.free_workers() > 0 => wanted,
        Isolation::Shared => 0,
    };
    let by_resources = free.holds(&demand.bundle);
    match by_resources {
        Some((count, resource)) if count < wanted && count <= by_workers => (
            to_count(count),
            Some(shortage(node, free, demand, count, resource)),
        ),
        _ if by_workers < wanted => (to_count(by_workers), Some(too_many_workers(node))),
        _ => (demand.gang, None),
    }
}

fn shortage(
    node: &Node,
    free: &Resources,
    demand: &Demand,
    count: u64,
    resource: &Resource,
) -> Reason {
    let asked = demand.bundle.get(resource);
    let capacity = node.capacity.get(resource);
    let resource = resource.clone();
    if capacity < asked {
        return Reason::TooSmall {
            resource,
            asked,
            capacity,
        };
    }
    let holders = node.holders_of(&resource);
    Reason::Busy {
        asked,
        free: free.get(&resource) - count * asked,
        capacity,
        holders,
        resource,
    }
}

fn too_many_workers(node: &Node) -> Reason {
    let mut jobs: Vec<(String, u32)> = Vec::new();
    for worker in &node.workers {
        match jobs.iter_mut().find(|(job, _)| *job == worker.job) {
            Some((_, count)) => *count += 1,
            None => jobs.push((worker.job.clone(), 1)),
        }
    }
    jobs.sort_by_key(|(_, count)| Reverse(*count));
    Reason::Workers {
        limit: node.worker_limit,
        jobs,
    }
}

/// Fewest nodes: the roomiest first, until the rest fits on one; of those, the tightest.
fn pack<'v>(demand: &Demand, mut rooms: Vec<Room<'v>>) -> Vec<(&'v Node, u32)> {
    let mut placed = Vec::new();
    let mut rest = demand.gang;
    while rest > 0 {
        let whole = rooms
            .iter()
            .filter(|room| room.count >= rest)
            .min_by_key(|room| {
                let fullest = Reverse(room.load(demand, rest));
                (
                    room.wastes_devices(demand),
                    room.starts_worker(demand),
                    fullest,
                    &room.node.name,
                )
            });
        let next = whole.or_else(|| {
            rooms.iter().min_by_key(|room| {
                (
                    Reverse(room.count),
                    room.wastes_devices(demand),
                    &room.node.name,
                )
            })
        });
        let Some(node) = next.map(|room| room.node) else {
            break;
        };
        let Some(at) = rooms.iter().position(|room| room.node.name == node.name) else {
            break;
        };
        let count = rooms.swap_remove(at).count.min(rest);
        placed.push((node, count));
        rest -= count;
    }
    placed
}

/// One bundle at a time to the node that has the fewest of this gang, then the lowest load.
fn spread<'v>(demand: &Demand, rooms: &[Room<'v>]) -> Vec<(&'v Node, u32)> {
    let key = |at: usize, count: u32| {
        let room = &rooms[at];
        Reverse((
            count,
            room.wastes_devices(demand),
            room.load(demand, count + 1),
            at,
        ))
    };
    let open = (0..rooms.len())
        .filter(|&at| rooms[at].count > 0)
        .map(|at| key(at, 0));
    let mut open: BinaryHeap<_> = open.collect();
    let mut counts = vec![0; rooms.len()];
    for _ in 0..demand.gang {
        let Some(Reverse((count, .., at))) = open.pop() else {
            break;
        };
        counts[at] = count + 1;
        if counts[at] < rooms[at].count {
            open.push(key(at, counts[at]));
        }
    }
    let placed = rooms
        .iter()
        .zip(counts)
        .map(|(room, count)| (room.node, count));
    placed.filter(|(_, count)| *count > 0).collect()
}

fn plan(demand: &Demand, placed: &[(&Node, u32)]) -> Plan {
    let bundles = placed
        .iter()
        .flat_map(|&(node, count)| (0..count).map(move |nth| (node, nth)));
    let leases = (0..).zip(bundles).map(|(rank, (node, nth))| Lease {
        job: demand.job.clone(),
        holder: demand.holder.clone(),
        rank,
        node: node.name.clone(),
        process: match (demand.isolation, node.shared_worker(&demand.job)) {
            (Isolation::Process, _) => Process::New(nth),
            (Isolation::Shared, Some(worker)) => Process::Existing(worker.id),
            (Isolation::Shared, None) => Process::New(0),
        },
        isolation: demand.isolation,
        resources: demand.bundle.clone(),
    });
    Plan {
        leases: leases.collect(),
    }
}

fn refuse(demand: &Demand, rooms: &[Room<'_>], would_fit: u32) -> Refusal {
    let nodes = rooms
        .iter()
        .map(|room| NodeRefusal {
            node: room.node.name.clone(),
            room_for: room.count,
            reason: room.stop.clone().unwrap_or(Reason::Others),
        })
        .collect();
    let idle = rooms.iter().map(|room| idle_room(room.node, demand));
    let hopeless = fits(demand, idle) < demand.gang;
    Refusal::new(demand, would_fit, hopeless, nodes)
}

/// How many bundles would fit if everyone else were done; who is near does not count, because
/// holders come and go.
fn idle_room(node: &Node, demand: &Demand) -> u32 {
    let mut idle = node.clone();
    idle.held.clear();
    idle.workers.clear();
    let mut demand = demand.clone();
    demand
        .affinity
        .retain(|a| matches!(a, Affinity::Node(_) | Affinity::Label(..)));
    Room::of(&idle, &demand).count
}

fn to_count(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
