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

use odeon_devices::inventory::Inventory;
use odeon_placement::{Device, DeviceGrant, Health, Isolation, Lease, Node, Process, Worker};
use serde::{Deserialize, Serialize};

use super::devices::facts_of;
use crate::actor::placing::LeaseId;
use crate::base::clock::Timestamp;
use crate::base::id::{ActorId, ProcessId};

/// Memory of a whole device that may be more in use than before a process had it: the driver's own
/// grows and shrinks.
const SLACK_BYTES: u64 = 64 << 20;

/// The leases that a node has granted, and the devices that are out of service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Leases {
    /// The node's resources, without leases and workers.
    node: Node,
    /// Counts changes: a plan made on an older snapshot is refused.
    version: u64,
    next: LeaseId,
    grants: BTreeMap<LeaseId, Grant>,
    processes: BTreeMap<ProcessId, Seat>,
    /// Devices out of service, with the reason.
    quarantine: BTreeMap<u32, String>,
}

/// A lease and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) lease: Lease,
    pub(super) actor: ActorId,
    pub(super) process: ProcessId,
    pub(super) stage: Stage,
    /// Bytes in use on each of its devices before its process came, where that was measured.
    before: BTreeMap<u32, u64>,
    /// Set once the driver has listed its process, under the number that it has here.
    known: bool,
}

/// The stage of a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Nobody uses it yet, and nobody may from then on.
    Claimed { until: Timestamp },
    /// Its process was ordered to run.
    Held,
    /// Its process has ended, and its memory is not known to be free.
    Leaving {
        since: Timestamp,
        pid: Option<u32>,
        /// Set once its end was seen; else it was only killed.
        exited: bool,
        /// The memory that was still held when it took too long, in words.
        overdue: Option<String>,
    },
}

/// A worker process that leases name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Seat {
    job: String,
    isolation: Isolation,
    devices: Vec<u32>,
    /// Set once it was ordered to run; with the number by which the driver knows it.
    started: bool,
    pid: Option<u32>,
}

/// A claim was made on a snapshot that is not true any more.
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

    /// The devices as they are seen now. Of one that cannot be read for a while, what is known stays.
    pub(super) fn see(&mut self, devices: Vec<Device>) {
        let mut seen = self.node.devices.clone();
        for old in &mut seen {
            let now = devices.iter().find(|device| device.index == old.index);
            match now {
                Some(now) if now.memory > 0 => *old = now.clone(),
                Some(now) => old.health = now.health.clone(),
                None => {
                    let why = "the driver does not list it any more".to_owned();
                    old.health = Health::Quarantined(why);
                }
            }
        }
        let is_new = |device: &Device| !seen.iter().any(|old| old.index == device.index);
        let new: Vec<Device> = devices.into_iter().filter(is_new).collect();
        seen.extend(new);
        if self.node.devices != seen {
            self.node.devices = seen;
            self.version += 1;
        }
    }

    /// Processes of this node that run with leases: what the driver knows each by, and its grants.
    pub(super) fn running(&self) -> Vec<(u32, Vec<DeviceGrant>)> {
        let held = self.grants.values().filter(|it| it.stage == Stage::Held);
        let running = held.filter_map(|grant| {
            let pid = self.processes.get(&grant.process)?.pid?;
            Some((pid, grant.lease.devices.clone()))
        });
        running.collect()
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
        let own = self.node.devices.iter().find(|known| known.index == device);
        let card = own.map_or(device, |own| own.card);
        let soft = own.and_then(|own| match &own.health {
            Health::Quarantined(why) => Some(why.clone()),
            _ => None,
        });
        let rests = self.quarantine.get(&device);
        let rests = rests.or_else(|| self.quarantine.get(&card));
        rests.cloned().or(overdue).or(soft)
    }

    /// The node as the solver sees it.
    pub(super) fn snapshot(&self) -> Node {
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

    /// Writes the leases of a plan that was made on the snapshot of `version`. Those of a new worker
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
                started: false,
                pid: None,
            });
            let before = lease.devices.iter().filter_map(|grant| {
                // What those who share the device hold is not there before them.
                let known = self
                    .grants
                    .values()
                    .filter_map(|other| other.before.get(&grant.index));
                let used = facts_of(inventory, grant.index)?.memory?.used_bytes;
                Some((grant.index, known.copied().fold(used, u64::min)))
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
                known: false,
            };
            self.grants.insert(self.next, grant);
            ids.push(self.next);
            self.next += 1;
        }
        self.version += 1;
        Ok(ids)
    }

    /// The process of a claimed lease is about to run. `None` when the claim is over, or a device of
    /// it has gone out of service meanwhile.
    pub(super) fn hold(&mut self, lease: LeaseId) -> Option<ProcessId> {
        let grant = self.grants.get(&lease)?;
        let mut devices = grant.lease.devices.iter();
        if grant.is_leaving() || devices.any(|device| self.quarantined(device.index).is_some()) {
            return None;
        }
        let grant = self.grants.get_mut(&lease)?;
        grant.stage = Stage::Held;
        let seat = self.processes.get_mut(&grant.process)?;
        seat.started = true;
        Some(grant.process)
    }

    /// Notes the number by which the driver knows a process.
    pub(super) fn runs_as(&mut self, process: ProcessId, pid: u32) {
        if let Some(seat) = self.processes.get_mut(&process) {
            seat.pid = Some(pid);
        }
    }

    /// Gives a lease back whose process goes on for others, or never ran. The process, when it runs
    /// and nobody else has a lease in it: it has to end, the lease stays until it has, and nobody
    /// joins it any more.
    pub(super) fn release(&mut self, lease: LeaseId) -> Option<ProcessId> {
        let grant = self
            .grants
            .get(&lease)
            .filter(|grant| !grant.is_leaving())?;
        let process = grant.process;
        let alone = !self
            .grants
            .iter()
            .any(|(id, other)| *id != lease && other.process == process);
        let runs = self
            .processes
            .get(&process)
            .is_some_and(|seat| seat.started);
        if !(alone && runs) {
            self.remove(lease);
            return None;
        }
        if let Some(grant) = self.grants.get_mut(&lease) {
            grant.stage = Stage::Held;
        }
        self.processes.remove(&process);
        self.version += 1;
        Some(process)
    }

    /// A process was killed, or has ended when `exited`; `pid` is what the driver knew it by, if it
    /// ever ran.
    pub(super) fn process_ended(
        &mut self,
        process: ProcessId,
        pid: Option<u32>,
        exited: bool,
        now: Timestamp,
    ) {
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
            if let Stage::Leaving { exited: seen, .. } = &mut grant.stage {
                *seen |= exited;
            } else if grant.lease.devices.is_empty() || pid.is_none() {
                self.remove(id);
            } else {
                grant.stage = Stage::Leaving {
                    since: now,
                    pid,
                    exited,
                    overdue: None,
                };
                self.version += 1;
            }
        }
        if self.processes.remove(&process).is_some() {
            self.version += 1;
        }
    }

    /// Settles leases by a look at the devices, begun at `looked`: leases whose memory is free go,
    /// those that take longer than `patience` put their devices out of service, and claims that
    /// nobody took up end. Gives the processes that run for nobody now.
    pub(super) fn settle(
        &mut self,
        inventory: &Inventory,
        looked: Timestamp,
        now: Timestamp,
        patience: Duration,
    ) -> Vec<ProcessId> {
        let (mut gone, mut over) = (vec![], vec![]);
        for (id, grant) in &mut self.grants {
            let pid = self.processes.get(&grant.process).and_then(|seat| seat.pid);
            let (before, known) = (&grant.before, grant.known);
            match &mut grant.stage {
                Stage::Claimed { until } if *until <= now => over.push(*id),
                Stage::Claimed { .. } => {}
                Stage::Held => {
                    let mut devices = grant.lease.devices.iter();
                    grant.known |= devices.any(|device| lists(inventory, device.index, pid));
                }
                Stage::Leaving {
                    since,
                    pid,
                    exited,
                    overdue,
                } => {
                    let mut devices = grant.lease.devices.iter();
                    let held = if *exited {
                        devices.find_map(|d| still_held(inventory, d.index, *pid, before, known))
                    } else {
                        Some("its process was killed and does not end".to_owned())
                    };
                    match held {
                        // An older look may not show what the process did last.
                        None if *since < looked => gone.push(*id),
                        Some(held) if now.since(*since) >= patience && overdue.is_none() => {
                            let holder = &grant.lease.holder;
                            let text = format!("{holder} has ended, but after {patience:?} {held}");
                            *overdue = Some(text);
                            self.version += 1;
                        }
                        _ => {}
                    }
                }
            }
        }
        for id in gone {
            self.remove(id);
        }
        over.into_iter().filter_map(|id| self.release(id)).collect()
    }

    /// Leases of actors whose homes are out of reach, with their actors and processes.
    pub(super) fn orphans(
        &self,
        reaches: impl Fn(ProcessId) -> bool,
    ) -> Vec<(LeaseId, ActorId, ProcessId)> {
        let held = self
            .grants
            .iter()
            .filter(|(_, grant)| grant.stage == Stage::Held);
        held.filter(|(_, grant)| !reaches(grant.actor.home))
            .map(|(id, grant)| (*id, grant.actor, grant.process))
            .collect()
    }

    /// Returns true if any lease waits for something that only a look at the devices tells.
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

    /// Takes a device out of service. Returns true if it was in.
    pub(super) fn quarantine(&mut self, device: u32, why: String) -> bool {
        if self.quarantine.contains_key(&device) {
            return false;
        }
        self.quarantine.insert(device, why);
        self.version += 1;
        true
    }

    /// Puts a device back into service. Returns true if it was out.
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
            .filter(|grant| grant.stage == Stage::Held && self.uses(grant, device))
            .map(|grant| grant.process)
            .collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Returns true if a lease is of a device, or of a slice of it.
    fn uses(&self, grant: &Grant, device: u32) -> bool {
        let slice_of = |known: &&Device| known.card == device && grant.has(known.index);
        grant.has(device) || self.node.devices.iter().any(|known| slice_of(&known))
    }

    /// Hands a lease to another actor and holder, as a standby that takes over.
    pub(super) fn hand_over(
        &mut self,
        lease: LeaseId,
        actor: ActorId,
        holder: &str,
        rank: u32,
        priority: i32,
    ) -> Option<ProcessId> {
        let grant = self.grants.get_mut(&lease)?;
        if grant.is_leaving() {
            return None;
        }
        grant.actor = actor;
        holder.clone_into(&mut grant.lease.holder);
        grant.lease.rank = rank;
        grant.lease.priority = priority;
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
    /// Returns true if only what its process has left behind holds it.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. })
    }

    fn has(&self, device: u32) -> bool {
        let mut devices = self.lease.devices.iter();
        devices.any(|grant| grant.index == device)
    }
}

/// Returns true if the driver lists a process on a device.
fn lists(inventory: &Inventory, device: u32, pid: Option<u32>) -> bool {
    let processes = facts_of(inventory, device).and_then(|facts| facts.processes);
    let mut processes = processes.into_iter().flatten();
    pid.is_some() && processes.any(|process| Some(process.pid) == pid)
}

/// The memory of a device that is still held for a process that has ended, in words; `None` when it
/// is known to be free. What cannot be measured is not known to be free.
///
/// In a container the driver's process numbers are not ours, so that the absence of one from the
/// list proves something only where the driver had it there before; that the memory is as empty as
/// before the process came proves it always.
fn still_held(
    inventory: &Inventory,
    device: u32,
    pid: Option<u32>,
    before: &BTreeMap<u32, u64>,
    known: bool,
) -> Option<String> {
    let Some(facts) = facts_of(inventory, device) else {
        return Some(format!("device {device} is not there any more"));
    };
    let own = facts.processes.map(|processes| {
        let mut processes = processes.iter();
        processes.find(|process| Some(process.pid) == pid)
    });
    if let Some(Some(process)) = own
        && process.memory_bytes.value() != Some(&0)
    {
        let held = match process.memory_bytes.value() {
            Some(bytes) => format!("{} MiB", bytes >> 20),
            None => "an unknown part".to_owned(),
        };
        return Some(format!("{held} of device {device} are still its own"));
    }
    if own.is_some() && known {
        return None;
    }
    match (before.get(&device), facts.memory) {
        (Some(before), Some(memory)) => (memory.used_bytes > before + SLACK_BYTES).then(|| {
            let more = (memory.used_bytes - before) >> 20;
            format!("{more} MiB of device {device} are more in use than before it came")
        }),
        _ => Some(format!(
            "nobody can say what it holds of device {device} ({})",
            facts.why.unwrap_or("not measured")
        )),
    }
}

#[cfg(test)]
mod tests;
