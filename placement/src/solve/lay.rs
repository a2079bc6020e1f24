//! Which devices and which process each bundle gets on its node.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{DeviceGrant, Lease, Plan, Process, Rules, Spot};
use crate::view::{Group, bits};
use crate::{Arrange, Demand, DeviceAsk, Isolation, Level, Node, Share, View};

/// The plan of a gang whose bundles lie on these spots, which are in the order of the topology.
pub(super) fn plan(rules: &Rules<'_>, placed: &[(Spot, Vec<u32>)]) -> Plan {
    let (view, demand) = (rules.view, rules.demand);
    let mut leases = Vec::with_capacity(demand.gang as usize);
    for (spot, bundles) in placed {
        let node = view.at(spot.at);
        let grants = match &demand.devices {
            Some(ask) => grants(rules, ask, spot, bundles.len() as u32),
            None => vec![Vec::new(); bundles.len()],
        };
        let mut processes = Processes::new(view, demand, spot.at);
        for (rank, devices) in bundles.iter().zip(grants) {
            let process = processes.of(node, &devices);
            leases.push(lease(demand, *rank as usize, node, process, devices));
        }
    }
    leases.sort_by_key(|lease| lease.rank);
    Plan { leases }
}

pub(super) fn lease(
    demand: &Demand,
    rank: usize,
    node: &Node,
    process: Process,
    devices: Vec<DeviceGrant>,
) -> Lease {
    Lease {
        job: demand.job.clone(),
        holder: demand.holder.clone(),
        // No gang is larger than its size, which is of this type.
        rank: rank as u32,
        node: node.name.clone(),
        process,
        isolation: demand.isolation,
        resources: demand.bundle.clone(),
        devices,
        device_set: demand.device_set.clone(),
        priority: demand.priority,
    }
}

/// Hands out the processes of one node: the job has one for each set of devices.
#[derive(Debug)]
pub(super) struct Processes<'a> {
    demand: &'a Demand,
    light: Option<u64>,
    /// Those that this plan starts, by the devices that they see.
    new: BTreeMap<Vec<u32>, u32>,
    started: u32,
}

impl<'a> Processes<'a> {
    pub(super) fn new(view: &View, demand: &'a Demand, at: usize) -> Self {
        Self {
            demand,
            light: view.light_workers(&demand.job).get(at).copied().flatten(),
            new: BTreeMap::new(),
            started: 0,
        }
    }

    pub(super) fn of(&mut self, node: &Node, devices: &[DeviceGrant]) -> Process {
        let mut start = || {
            self.started += 1;
            self.started - 1
        };
        if self.demand.isolation == Isolation::Process {
            return Process::New(start());
        }
        let seen: Vec<u32> = devices.iter().map(|grant| grant.index).collect();
        let running = if seen.is_empty() {
            self.light
        } else {
            let same = node.workers.iter().filter(|worker| {
                worker.job == self.demand.job
                    && worker.isolation == Isolation::Shared
                    && worker.devices == seen
            });
            same.map(|worker| worker.id).min()
        };
        match running {
            Some(id) => Process::Existing(id),
            None => Process::New(*self.new.entry(seen).or_insert_with(start)),
        }
    }
}

/// The devices of each bundle on a spot that has room for `count`.
fn grants(rules: &Rules<'_>, ask: &DeviceAsk, spot: &Spot, count: u32) -> Vec<Vec<DeviceGrant>> {
    let (view, demand) = (rules.view, rules.demand);
    let node = view.at(spot.at);
    let grant = |i: usize| DeviceGrant {
        index: node.devices[i].index,
        milli: ask.milli(),
        memory: demand.memory_of(&node.devices[i]),
    };
    if let Share::Part(_) = ask.share {
        let devices = parts(rules, node, spot, count);
        return devices.into_iter().map(|i| vec![grant(i)]).collect();
    }
    let open: Vec<usize> = bits(rules.open(node, spot.mask)).collect();
    let each = ask.count() as usize;
    let mut groups = match ask.within.filter(|level| *level > Level::Node) {
        Some(level) => by_group(view, spot.at, &open, level),
        None => vec![open],
    };
    // Where least is left over after as many bundles as fit.
    groups.sort_by_key(|group| {
        (
            Reverse(group.len() / each),
            group.len() % each,
            group.first().copied(),
        )
    });
    let mut rest = count as usize;
    let mut bundles: Vec<Vec<usize>> = Vec::with_capacity(rest);
    for group in &groups {
        let fit = (group.len() / each).min(rest);
        let mut chosen = choose(view, spot.at, group, fit * each, &LEVELS);
        chosen.sort_unstable();
        bundles.extend(chosen.chunks_exact(each).map(<[usize]>::to_vec));
        rest -= fit;
    }
    // By the first device, so that ranks follow the topology.
    bundles.sort();
    let grants = bundles
        .into_iter()
        .map(|bundle| bundle.into_iter().map(grant).collect());
    grants.collect()
}

/// `count` of the open devices, near each other: level by level in the smallest group that has
/// enough; where none has, whole groups from the largest, and the rest from the smallest that holds
/// it.
fn choose(view: &View, at: usize, open: &[usize], count: usize, levels: &[Level]) -> Vec<usize> {
    let Some((&level, nearer)) = levels.split_first().filter(|_| count < open.len()) else {
        return open[..count].to_vec();
    };
    let mut groups = by_group(view, at, open, level);
    if groups.len() == open.len() {
        return choose(view, at, open, count, nearer);
    }
    groups.sort_by_key(|group| (Reverse(group.len()), group[0]));
    let mut chosen = Vec::with_capacity(count);
    for (i, group) in groups.iter().enumerate() {
        let rest = count - chosen.len();
        if group.len() < rest {
            chosen.extend_from_slice(group);
            continue;
        }
        let enough = groups[i..].iter().filter(|group| group.len() >= rest);
        let smallest = enough
            .min_by_key(|group| (group.len(), group[0]))
            .unwrap_or(group);
        chosen.extend(choose(view, at, smallest, rest, nearer));
        break;
    }
    chosen
}

fn by_group(view: &View, at: usize, open: &[usize], level: Level) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<Group, Vec<usize>> = BTreeMap::new();
    for &i in open {
        let group = view.device_group(level, at, i);
        groups.entry(group).or_default().push(i);
    }
    groups.into_values().collect()
}

/// A device for each bundle that asks for a part: packed, the fullest that has room; spread, the
/// emptiest.
fn parts(rules: &Rules<'_>, node: &Node, spot: &Spot, count: u32) -> Vec<usize> {
    let parts = rules.parts(node, spot.mask);
    let mut room: Vec<(usize, u32, u32)> = parts.map(|(i, left)| (i, left, 0)).collect();
    let spread = matches!(
        rules.demand.arrange,
        Arrange::Spread | Arrange::StrictSpread
    );
    let mut chosen = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let open = room.iter_mut().filter(|(_, left, _)| *left > 0);
        let next = if spread {
            open.min_by_key(|(i, left, taken)| (*taken, Reverse(*left), *i))
        } else {
            open.min_by_key(|(i, left, taken)| (Reverse((*taken).min(1)), *left, *i))
        };
        let Some((i, left, taken)) = next else {
            break;
        };
        *left -= 1;
        *taken += 1;
        chosen.push(*i);
    }
    chosen.sort_unstable();
    chosen
}

/// Levels inside a node, the one whose borders cost most first: two devices in one NVLink domain are
/// nearer than two on one NUMA node.
const LEVELS: [Level; 3] = [Level::Nvlink, Level::Numa, Level::Switch];
