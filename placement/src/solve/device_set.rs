//! Roles that take turns on the same devices.

use std::collections::BTreeMap;

use super::lay::{Processes, lease};
use super::{DeviceGrant, Lease, Plan, Rules};
use crate::device::Health;
use crate::refusal::{Cause, NodeRefusal, Reason};
use crate::{Demand, DeviceAsk, Refusal, View};

/// The holder of the device set that a demand shares, if there is one yet.
pub(super) fn first_holder(view: &View, demand: &Demand) -> Option<String> {
    let set = demand.device_set.as_ref()?;
    let of_set = |lease: &&Lease| lease.job == demand.job && lease.device_set.as_ref() == Some(set);
    view.leases().find(of_set).map(|lease| lease.holder.clone())
}

/// Places each rank on the devices of the same rank of `holder`.
pub(super) fn join(
    view: &View,
    demand: &Demand,
    rules: &Rules<'_>,
    holder: &str,
) -> Result<Plan, Refusal> {
    let mut held: Vec<&Lease> = view
        .leases()
        .filter(|lease| lease.holder == holder)
        .collect();
    held.sort_by_key(|lease| lease.rank);
    let devices = demand.devices.as_ref().map_or(0, DeviceAsk::count);
    let each = held.first().map_or(0, |lease| lease.devices.len() as u32);
    if (held.len() as u32, each) != (demand.gang, devices) {
        return Err(Refusal::of(
            demand,
            Cause::DeviceSet {
                set: demand.device_set.clone().unwrap_or_default(),
                holder: holder.to_owned(),
                ranks: held.len() as u32,
                devices: each,
            },
        ));
    }
    let place = |name: &str| view.nodes().position(|node| node.name == name);
    let mut by_node: BTreeMap<usize, u32> = BTreeMap::new();
    for lease in &held {
        // A lease lies on a node of its view.
        if let Some(at) = place(&lease.node) {
            *by_node.entry(at).or_default() += 1;
        }
    }
    let refused: Vec<NodeRefusal> = by_node
        .iter()
        .filter_map(|(&at, &count)| {
            let reason = obstacle(view, demand, rules, &held, at, count)?;
            Some(NodeRefusal {
                node: view.at(at).name.clone(),
                room_for: 0,
                reason,
            })
        })
        .collect();
    if !refused.is_empty() {
        return Err(Refusal::of(
            demand,
            Cause::Room {
                would_fit: 0,
                hopeless: false,
                group: None,
                nodes: refused,
            },
        ));
    }
    let mut processes: BTreeMap<usize, Processes<'_>> = BTreeMap::new();
    let mut leases = Vec::with_capacity(held.len());
    for held in held {
        let Some(at) = place(&held.node) else {
            continue;
        };
        let node = view.at(at);
        let grants: Vec<DeviceGrant> = held
            .devices
            .iter()
            .map(|grant| DeviceGrant {
                memory: demand
                    .devices
                    .as_ref()
                    .and_then(|ask| ask.memory)
                    .unwrap_or(0),
                ..*grant
            })
            .collect();
        let processes = processes.entry(at);
        let processes = processes.or_insert_with(|| Processes::new(view, demand, at));
        let process = processes.of(node, &grants);
        leases.push(lease(demand, leases.len(), node, process, grants));
    }
    Ok(Plan { leases })
}

/// The obstacle to `count` more bundles on the held devices of a node, if there is one.
fn obstacle(
    view: &View,
    demand: &Demand,
    rules: &Rules<'_>,
    held: &[&Lease],
    at: usize,
    count: u32,
) -> Option<Reason> {
    if let Err(reason) = rules.suits(at) {
        return Some(reason);
    }
    let node = view.at(at);
    if node.free().times(&demand.bundle, count) < count {
        let (resource, _) = node.free().tightest(&demand.bundle)?;
        let asked = demand.bundle.get(&resource) * u64::from(count);
        return Some(Reason::busy(node, resource, asked));
    }
    let memory = demand
        .devices
        .as_ref()
        .and_then(|ask| ask.memory)
        .unwrap_or(0);
    let here = held.iter().filter(|lease| lease.node == node.name);
    here.flat_map(|lease| &lease.devices).find_map(|grant| {
        let i = node.devices.iter().position(|d| d.index == grant.index)?;
        let (device, left) = (&node.devices[i], node.left()[i]);
        if device.health != Health::Good {
            return Some(Reason::TooFewDevices {
                asked: grant.milli / 1000,
                have: 0,
                quarantined: Some((device.index, device.health.to_string())),
            });
        }
        if !demand.accepts(device) {
            let found = vec![device.told()];
            return Some(Reason::OtherDevices { found });
        }
        (left.memory < memory).then(|| Reason::DeviceBusy {
            device: device.index,
            free_milli: 1000,
            free_memory: left.memory,
            memory: device.memory,
            holders: node.holders_of_device(device.index),
        })
    })
}
