//! The room that tries leave on nodes.

use std::collections::BTreeMap;

use odeon_placement::Device;

use super::{NodeRow, Tables};
use crate::job::Job;
use crate::resources::{Allotment, Reservation};

/// The part of a node that no try has reserved.
#[derive(Clone, Debug)]
pub(crate) struct NodeRoom {
    /// The life of the node.
    pub(crate) boot: u64,
    cpu_milli: u64,
    memory_bytes: u64,
    /// Its free devices by number, with their memory.
    devices: BTreeMap<u32, u64>,
}

impl NodeRoom {
    /// That of each node that is up.
    pub(crate) fn of(tables: &Tables) -> BTreeMap<&str, Self> {
        let rows = tables.living_nodes();
        let mut rooms: BTreeMap<&str, Self> = rows
            .map(|row| {
                let devices = devices_of(row);
                let room = Self {
                    boot: row.spec.boot,
                    cpu_milli: u64::from(row.spec.cpus) * 1000,
                    memory_bytes: row.spec.memory,
                    devices: devices.iter().map(|it| (it.index, it.memory)).collect(),
                };
                (row.spec.name.as_str(), room)
            })
            .collect();
        let attempts = tables.living_jobs().filter_map(Job::attempt);
        for it in attempts.flat_map(|attempt| &attempt.reserved) {
            let room = rooms.get_mut(it.node.as_str());
            if let Some(room) = room.filter(|room| room.boot == it.boot) {
                room.cpu_milli = room.cpu_milli.saturating_sub(it.allotment.cpu_milli);
                room.memory_bytes = room.memory_bytes.saturating_sub(it.allotment.memory_bytes);
                room.devices.retain(|index, _| !it.devices.contains(index));
            }
        }
        rooms
    }

    /// Takes what a reservation is for, if it is there; else nothing.
    pub(crate) fn take(&mut self, it: &Reservation) -> bool {
        let Allotment {
            cpu_milli,
            memory_bytes,
            device_memory_bytes,
            ..
        } = it.allotment;
        let left = self.cpu_milli.checked_sub(cpu_milli);
        let Some((cpu, memory)) = left.zip(self.memory_bytes.checked_sub(memory_bytes)) else {
            return false;
        };
        let mut devices = self.devices.clone();
        let fits = it.devices.iter().all(|index| {
            let memory = devices.remove(index);
            memory.is_some_and(|memory| memory >= device_memory_bytes)
        });
        if fits {
            (self.cpu_milli, self.memory_bytes, self.devices) = (cpu, memory, devices);
        }
        fits
    }
}

/// The devices of a node. Of one that names models alone, an older release, the memory is not known.
pub(crate) fn devices_of(row: &NodeRow) -> Vec<Device> {
    if !row.spec.inventory.is_empty() {
        return row.spec.inventory.clone();
    }
    let models = row.spec.devices.iter().enumerate();
    models
        .map(|(index, model)| Device::new(index as u32, model, 0))
        .collect()
}
