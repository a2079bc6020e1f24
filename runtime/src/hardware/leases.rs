//! The book of a node's leases. The node is its only writer; nobody grants what another node has.
//!
//! ```text
//!  claimed ── its process starts ──> held ── the process ends ──> leaving ── memory free ──> gone
//!     └────── nobody came in time ──────────────────────────────────────────────────────────^
//! ```
//!
//! Pure: time and readings come as arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon_gpu::inventory::Inventory;
use odeon_placement::{Device, Isolation, Lease, Node, Process, Worker};

use crate::clock::Timestamp;
use crate::id::{ActorId, ProcessId};

/// What one lease allows, on the node whose number it has.
pub(crate) type LeaseId = u64;

/// Memory of a whole device that may be more in use than before a process had it: the driver's own
/// grows and shrinks.
const SLACK_BYTES: u64 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Leases {
    /// What the node has, without leases and workers.
    node: Node,
    /// Counts changes: a plan made on an older picture is refused.
    version: u64,
    next: LeaseId,
    grants: BTreeMap<LeaseId, Grant>,
    processes: BTreeMap<ProcessId, Seat>,
    /// Devices out of service, with the reason.
    quarantine: BTreeMap<u32, String>,
}

/// A lease and how far it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grant {
    pub(super) lease: Lease,
    pub(super) actor: ActorId,
    pub(super) process: ProcessId,
    pub(super) stage: Stage,
    /// Bytes in use on each of its devices when it was claimed, where that was measured.
    before: BTreeMap<u32, u64>,
}

/// How far a lease is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// Nobody uses it yet, and nobody may from then on.
    Claimed { until: Timestamp },
    /// Its process was ordered to run.
    Held,
    /// Its process has ended, and its memory is not known to be free.
    Leaving {
        since: Timestamp,
        pid: Option<u32>,
        /// What was still held when it took too long.
        overdue: Option<String>,
    },
}

/// A worker process that leases name.
#[derive(Clone, Debug, PartialEq)]
struct Seat {
    job: String,
    isolation: Isolation,
    devices: Vec<u32>,
}

/// A claim was made on a picture that is not true any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outdated;

impl Leases {
    pub(super) fn new(node: Node) -> Self {
        Self {
            node,
            version: 0,
            next: 1,
            grants: BTreeMap::new(),
            processes: BTreeMap::new(),
            quarantine: BTreeMap::new(),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn grants(&self) -> impl Iterator<Item = (LeaseId, &Grant)> {
        self.grants.iter().map(|(id, grant)| (*id, grant))
    }

    pub(super) fn get(&self, lease: LeaseId) -> Option<&Grant> {
        self.grants.get(&lease)
    }

    /// The devices that the node has from now on.
    pub(super) fn set_devices(&mut self, devices: Vec<Device>) {
        if self.node.devices != devices {
            self.node.devices = devices;
            self.version += 1;
        }
    }

    pub(super) fn devices(&self) -> &[Device] {
        &self.node.devices
    }

    /// Why a device is out of service.
    pub(super) fn quarantined(&self, device: u32) -> Option<String> {
        let overdue = self.grants.values().find_map(|grant| match &grant.stage {
            Stage::Leaving { overdue, .. } if grant.has(device) => overdue.clone(),
            _ => None,
        });
        self.quarantine.get(&device).cloned().or(overdue)
    }

    /// The node as the solver sees it.
    pub(super) fn picture(&self) -> Node {
        let mut node = self.node.clone();
        for device in &mut node.devices {
            if let Some(why) = self.quarantined(device.index) {
                *device = device.clone().quarantined(why);
            }
        }
        for (process, seat) in &self.processes {
            node.workers.push(Worker {
                id: process.0,
                job: seat.job.clone(),
                isolation: seat.isolation,
                devices: seat.devices.clone(),
            });
        }
        for grant in self.grants.values() {
            let mut lease = grant.lease.clone();
            if grant.is_leaving() {
                lease.holder += ", which is leaving,";
                lease.priority = i32::MAX;
                lease.device_set = None;
            }
            node = node.lease(lease);
        }
        node
    }

    /// Writes the leases of a plan that was made on the picture of `version`. Those of a new worker
    /// process get its number from `fresh`.
    pub(super) fn claim(
        &mut self,
        version: u64,
        leases: &[(Lease, ActorId)],
        inventory: &Inventory,
        until: Timestamp,
        mut fresh: impl FnMut() -> ProcessId,
    ) -> Result<Vec<LeaseId>, Outdated> {
        if version != self.version {
            return Err(Outdated);
        }
        let mut started = BTreeMap::new();
        let mut ids = vec![];
        for (lease, actor) in leases {
            let process = match lease.process {
                Process::Existing(id) => ProcessId(id),
                Process::New(nth) => *started.entry(nth).or_insert_with(&mut fresh),
            };
            self.processes.entry(process).or_insert_with(|| Seat {
                job: lease.job.clone(),
                isolation: lease.isolation,
                devices: lease.devices.iter().map(|grant| grant.index).collect(),
            });
            let before = lease.devices.iter().filter_map(|grant| {
                let used = used_bytes(inventory, grant.index)?;
                (grant.milli == 1000).then_some((grant.index, used))
            });
            let grant = Grant {
                lease: Lease {
                    process: Process::Existing(process.0),
                    ..lease.clone()
                },
                actor: *actor,
                process,
                stage: Stage::Claimed { until },
                before: before.collect(),
            };
            self.grants.insert(self.next, grant);
            ids.push(self.next);
            self.next += 1;
        }
        self.version += 1;
        Ok(ids)
    }

    /// The process of a claimed lease is about to run. `None` when the claim is over.
    pub(super) fn hold(&mut self, lease: LeaseId) -> Option<ProcessId> {
        let grant = self.grants.get_mut(&lease)?;
        match grant.stage {
            Stage::Claimed { .. } => grant.stage = Stage::Held,
            Stage::Held => {}
            Stage::Leaving { .. } => return None,
        }
        Some(grant.process)
    }

    /// Gives a lease back whose process goes on for others, or never ran. The process, when nobody
    /// has a lease in it any more: it has to end, and the lease stays until it has.
    pub(super) fn release(&mut self, lease: LeaseId) -> Option<ProcessId> {
        let grant = self.grants.get(&lease)?;
        let (process, stage) = (grant.process, grant.stage.clone());
        let alone = !self
            .grants
            .iter()
            .any(|(id, other)| *id != lease && other.process == process);
        if alone && stage == Stage::Held {
            return Some(process);
        }
        if matches!(stage, Stage::Claimed { .. } | Stage::Held) {
            self.remove(lease);
        }
        None
    }

    /// A process has ended; `pid` is what the driver knew it by, if it ever ran.
    pub(super) fn process_ended(&mut self, process: ProcessId, pid: Option<u32>, now: Timestamp) {
        let of: Vec<LeaseId> = self
            .grants
            .iter()
            .filter(|(_, grant)| grant.process == process)
            .map(|(id, _)| *id)
            .collect();
        for id in of {
            let Some(grant) = self.grants.get_mut(&id) else {
                continue;
            };
            if grant.lease.devices.is_empty() || pid.is_none() {
                self.remove(id);
            } else if !grant.is_leaving() {
                grant.stage = Stage::Leaving {
                    since: now,
                    pid,
                    overdue: None,
                };
                self.version += 1;
            }
        }
        if self.processes.remove(&process).is_some() {
            self.version += 1;
        }
    }

    /// What a look at the devices settles: leases whose memory is free go, those that take longer
    /// than `patience` put their devices out of service, and claims that nobody took up end.
    /// Whether any of that happened.
    pub(super) fn settle(
        &mut self,
        inventory: &Inventory,
        now: Timestamp,
        patience: Duration,
    ) -> bool {
        let version = self.version;
        let mut gone = vec![];
        for (id, grant) in &mut self.grants {
            let before = &grant.before;
            match &mut grant.stage {
                Stage::Claimed { until } if *until <= now => gone.push(*id),
                Stage::Leaving {
                    since,
                    pid,
                    overdue,
                } => {
                    let held = grant
                        .lease
                        .devices
                        .iter()
                        .find_map(|device| still_held(inventory, device.index, *pid, before));
                    match held {
                        None => gone.push(*id),
                        Some(held) if now.since(*since) >= patience && overdue.is_none() => {
                            *overdue = Some(format!(
                                "{} has ended, but after {patience:?} {held}",
                                grant.lease.holder
                            ));
                            self.version += 1;
                        }
                        Some(_) => {}
                    }
                }
                _ => {}
            }
        }
        for id in gone {
            self.remove(id);
        }
        self.version != version
    }

    /// Whether any lease waits for something that only a look at the devices tells.
    pub(super) fn unsettled(&self) -> bool {
        self.grants
            .values()
            .any(|grant| !matches!(grant.stage, Stage::Held))
    }

    /// The devices that a process sees, in the order in which it numbers them.
    pub(super) fn seen_by(&self, process: ProcessId) -> Vec<u32> {
        let seat = self.processes.get(&process);
        seat.map(|seat| seat.devices.clone()).unwrap_or_default()
    }

    /// Takes a device out of service. Whether it was in.
    pub(super) fn quarantine(&mut self, device: u32, why: String) -> bool {
        if self.quarantine.contains_key(&device) {
            return false;
        }
        self.quarantine.insert(device, why);
        self.version += 1;
        true
    }

    /// Puts a device back into service. Whether it was out.
    pub(super) fn repair(&mut self, device: u32) -> bool {
        let was = self.quarantine.remove(&device).is_some();
        self.version += u64::from(was);
        was
    }

    /// The processes that have leases on a device.
    pub(super) fn processes_on(&self, device: u32) -> Vec<ProcessId> {
        let mut processes: Vec<_> = self
            .grants
            .values()
            .filter(|grant| grant.stage == Stage::Held && grant.has(device))
            .map(|grant| grant.process)
            .collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Hands a lease to another actor and holder, as a standby that takes over.
    pub(super) fn hand_over(
        &mut self,
        lease: LeaseId,
        actor: ActorId,
        holder: &str,
        rank: u32,
    ) -> Option<ProcessId> {
        let grant = self.grants.get_mut(&lease)?;
        if grant.is_leaving() {
            return None;
        }
        grant.actor = actor;
        holder.clone_into(&mut grant.lease.holder);
        grant.lease.rank = rank;
        grant.stage = Stage::Held;
        self.version += 1;
        Some(grant.process)
    }

    fn remove(&mut self, lease: LeaseId) {
        self.version += 1;
        let Some(grant) = self.grants.remove(&lease) else {
            return;
        };
        // A process that was never started goes with its last claim.
        let unused = !self
            .grants
            .values()
            .any(|other| other.process == grant.process);
        if unused {
            self.processes.remove(&grant.process);
        }
    }
}

impl Grant {
    /// Whether only what its process has left behind holds it.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. })
    }

    fn has(&self, device: u32) -> bool {
        let mut devices = self.lease.devices.iter();
        devices.any(|grant| grant.index == device)
    }
}

fn used_bytes(inventory: &Inventory, device: u32) -> Option<u64> {
    let facts = inventory.devices.iter().find(|facts| facts.index == device);
    facts?.memory.value().map(|memory| memory.used_bytes)
}

/// What still holds memory of a device for a process that has ended, in words; `None` when it is
/// known to be free. What cannot be measured is not known to be free.
fn still_held(
    inventory: &Inventory,
    device: u32,
    pid: Option<u32>,
    before: &BTreeMap<u32, u64>,
) -> Option<String> {
    let facts = inventory.devices.iter().find(|facts| facts.index == device);
    let Some(facts) = facts else {
        return Some(format!("device {device} is not there any more"));
    };
    let own = facts.processes.value().map(|processes| {
        let mut processes = processes.iter();
        processes.find(|process| Some(process.pid) == pid)
    });
    match (own, before.get(&device), facts.memory.value()) {
        (Some(Some(process)), _, _) if process.memory_bytes.value() != Some(&0) => {
            let held = match process.memory_bytes.value() {
                Some(bytes) => format!("{} MiB", bytes >> 20),
                None => "an unknown part".to_owned(),
            };
            Some(format!("{held} of device {device} are still its own"))
        }
        // In a container the driver's process numbers are not ours, so that its absence from the
        // list proves nothing; that the memory is as empty as before does.
        (_, Some(before), Some(memory)) => (memory.used_bytes > before + SLACK_BYTES).then(|| {
            let more = (memory.used_bytes - before) >> 20;
            format!("{more} MiB of device {device} are more in use than before it came")
        }),
        (Some(_), None, _) => None,
        _ => {
            let why = facts.processes.why().or(facts.memory.why());
            Some(format!(
                "nobody can say what it holds of device {device} ({})",
                why.unwrap_or("not measured")
            ))
        }
    }
}

#[cfg(test)]
mod tests;
