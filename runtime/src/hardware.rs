//! What a node has, who holds what of it, and who waits for some.
//!
//! ```text
//!  spawn with needs ─ Ask ─> schedule: pictures of all nodes ─ solve ─> plan or refusal
//!                               │                                  (kept for people to read)
//!                               └─ Claim ─> each node's Leases ─> Launch with the lease
//! ```
//!
//! Every node writes the leases of its own devices and nobody else does. Whichever node has an
//! actor to place plans with the pictures that the others give it, and claims what it found: a node
//! whose picture has changed since refuses, and the plan is made anew. So no node has to lead, and
//! a device is never granted twice.

mod devices;
mod leases;
mod queue;
mod schedule;
mod standby;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use odeon_gpu::driver::DriverError;
use odeon_gpu::fault::{GpuFault, Remedy};
use odeon_gpu::inventory::{Inventory, Nvml};
use odeon_placement::{Lease, Node, Quota, Resources};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::engine::{Engine, IdMap};
use crate::failure::{Failure, FailureKind};
use crate::id::{ActorId, ProcessId};
use crate::needs::Needs;
use crate::wire::Fact;
use crate::worker::Binding;

pub use devices::{Devices, FakeDevices, GrantedDevice};
pub(crate) use leases::LeaseId;
use leases::{Leases, Stage};
use queue::Queue;
pub use queue::Waiting;
pub(crate) use standby::PoolId;
use standby::Pools;
pub use standby::Standby;

/// What a node is told of its hardware; the rest it finds out.
#[derive(Debug, Default)]
pub(crate) struct HardwareConfig {
    pub(crate) devices: Option<Box<dyn Devices>>,
    pub(crate) resources: Option<Resources>,
    pub(crate) custom: Vec<(String, u64)>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) quotas: BTreeMap<String, Quota>,
}

/// See the module. A node that nobody asks for anything never looks at its devices.
pub(crate) struct Hardware {
    config: Mutex<HardwareConfig>,
    parts: tokio::sync::OnceCell<Parts>,
    /// Room came or went, here or elsewhere.
    changed: Notify,
    /// Something happened that only a look at the devices settles.
    stirred: Notify,
    /// One plan at a time.
    turn: tokio::sync::Mutex<()>,
    queue: Mutex<Queue>,
    pools: Mutex<Pools>,
    /// Held while a worker process with leases starts.
    starting: IdMap<ProcessId, Arc<tokio::sync::Mutex<()>>>,
}

struct Parts {
    leases: Mutex<Leases>,
    devices: Arc<Mutex<Box<dyn Devices>>>,
    inventory: Mutex<Inventory>,
    quotas: BTreeMap<String, Quota>,
}

/// A lease of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) node: ProcessId,
    pub(crate) lease: LeaseId,
}

/// A worker process for an actor, and what the actor was granted there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Launched {
    pub(crate) process: ProcessId,
    pub(crate) lease: Option<Granted>,
    pub(crate) devices: Vec<GrantedDevice>,
}

/// Actors with equal needs that are to be placed, all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Their name on leases and in refusals.
    pub(crate) holder: String,
    /// With their ranks.
    pub(crate) actors: Vec<(ActorId, u32)>,
    pub(crate) needs: Needs,
}

/// A node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Picture {
    pub(crate) node: Node,
    pub(crate) version: u64,
    /// Who holds its leases, under which name and in which process.
    pub(crate) actors: Vec<(ActorId, String, ProcessId)>,
    pub(crate) waiting: Vec<Waiting>,
}

impl fmt::Debug for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hardware").finish_non_exhaustive()
    }
}

impl Hardware {
    pub(crate) fn new(config: HardwareConfig) -> Self {
        Self {
            config: Mutex::new(config),
            parts: tokio::sync::OnceCell::new(),
            changed: Notify::new(),
            stirred: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            queue: Mutex::default(),
            pools: Mutex::default(),
            starting: IdMap::default(),
        }
    }

    /// Somebody else's room has changed.
    pub(crate) fn stir(&self) {
        self.changed.notify_waiters();
    }
}

/// Asks the devices, on a thread that may block when they are real.
async fn look(devices: &Arc<Mutex<Box<dyn Devices>>>) -> Inventory {
    let may_block = devices.lock().may_block();
    if !may_block {
        return devices.lock().look();
    }
    let devices = Arc::clone(devices);
    let looked = tokio::task::spawn_blocking(move || devices.lock().look()).await;
    looked.unwrap_or_else(|error| Inventory::empty(format!("the look at the devices: {error}")))
}

/// What this machine has beside devices.
fn machine() -> Resources {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let memory = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        });
    let resources = Resources::new().cpu_milli(cores * 1000);
    match memory {
        Some(kib) => resources.memory_bytes(kib << 10),
        None => resources,
    }
}

impl Engine {
    /// What this node has, looked at for the first time when it is first needed.
    async fn parts(self: &Arc<Self>) -> &Parts {
        let make = || async {
            let config = std::mem::take(&mut *self.hardware.config.lock());
            let devices = config.devices.unwrap_or_else(|| Box::new(Nvml::new()));
            let devices = Arc::new(Mutex::new(devices));
            let inventory = look(&devices).await;
            if let Some(why) = inventory.driver.why() {
                tracing::debug!(why, "this node has no devices");
            }
            let mut resources = config.resources.unwrap_or_else(machine);
            for (name, milli) in config.custom {
                resources = resources.custom_milli(name, milli);
            }
            let limit = u32::try_from(self.limits.workers_max).unwrap_or(u32::MAX);
            let mut node = Node::new(self.node.clone(), resources).worker_limit(limit);
            node.labels = config.labels;
            let mut leases = Leases::new(node);
            leases.set_devices(devices::of_inventory(&self.node, &inventory));
            self.begin_watch();
            Parts {
                leases: Mutex::new(leases),
                devices,
                inventory: Mutex::new(inventory),
                quotas: config.quotas,
            }
        };
        self.hardware.parts.get_or_init(make).await
    }

    /// This node at the moment.
    pub(crate) async fn picture(self: &Arc<Self>) -> Picture {
        let parts = self.parts().await;
        let leases = parts.leases.lock();
        let living = leases.grants().filter(|(_, grant)| !grant.is_leaving());
        let actors = living.map(|(_, grant)| {
            let name = grant.lease.holder.clone();
            (grant.actor, name, grant.process)
        });
        Picture {
            actors: actors.collect(),
            node: leases.picture(),
            version: leases.version(),
            waiting: self.hardware.queue.lock().waiting(Clock::now()),
        }
    }

    /// Holds leases for a scheduler; `None` when its picture is out of date.
    pub(crate) async fn claim_here(
        self: &Arc<Self>,
        version: u64,
        leases: &[(Lease, ActorId)],
    ) -> Option<Vec<LeaseId>> {
        let parts = self.parts().await;
        let until = Clock::now().after(self.limits.claim_timeout);
        let inventory = parts.inventory.lock().clone();
        let claimed =
            parts
                .leases
                .lock()
                .claim(version, leases, &inventory, until, ProcessId::random);
        self.hardware.stirred.notify_one();
        claimed.ok()
    }

    /// Gives back leases that were claimed for nothing.
    pub(crate) async fn unclaim_here(self: &Arc<Self>, leases: &[LeaseId]) {
        let parts = self.parts().await;
        for lease in leases {
            let claimed = |stage: &Stage| matches!(stage, Stage::Claimed { .. });
            let mut book = parts.leases.lock();
            if book.get(*lease).is_some_and(|grant| claimed(&grant.stage)) {
                book.release(*lease);
            }
        }
        self.room_changed();
    }

    /// The worker process of a claimed lease, started unless it runs; `None` when the claim is over.
    pub(crate) async fn launch_leased(
        self: &Arc<Self>,
        lease: LeaseId,
    ) -> Result<Option<Launched>, Failure> {
        let parts = self.parts().await;
        let Some(process) = parts.leases.lock().hold(lease) else {
            return Ok(None);
        };
        let gate = Arc::clone(&self.hardware.starting.entry(process).or_default());
        let started = gate.lock().await;
        // It may have ended while this waited.
        let grant = parts.leases.lock().get(lease).cloned();
        let Some(grant) = grant.filter(|grant| grant.stage == Stage::Held) else {
            return Ok(None);
        };
        let seen = parts.leases.lock().seen_by(process);
        if !self.links.contains_key(&process) {
            let binding = self.binding(parts, &seen);
            if let Err(failure) = self.launch_as(process, Some(&binding)).await {
                self.worker_ended(process, None);
                return Err(failure);
            }
        }
        drop(started);
        self.hardware.starting.remove(&process);
        let pid = self.workers.pid_of(process);
        let Some(pid) = pid else {
            let why = "its process was gone before it could be used";
            return Err(Failure::new(FailureKind::ProcessLost, why));
        };
        let begun = parts.devices.lock().begin(pid, &grant.lease.devices);
        if let Err(error) = begun {
            let fault = match error {
                DriverError::Fault(fault) => Some(fault),
                _ => None,
            };
            self.retire_here(process, fault, &error.to_string()).await;
            let kind = fault.map_or(FailureKind::ProcessLost, FailureKind::Gpu);
            let why = format!(
                "its devices on node `{}` are not to be had: {error}",
                self.node
            );
            return Err(Failure::new(kind, why));
        }
        let book = parts.leases.lock();
        let device = |index: u32| book.devices().iter().find(|device| device.index == index);
        let devices = grant.lease.devices.iter().map(|granted| GrantedDevice {
            ordinal: seen
                .iter()
                .position(|index| *index == granted.index)
                .unwrap_or(0) as u32,
            index: granted.index,
            model: device(granted.index).map_or_else(String::new, |device| device.model.clone()),
            memory: granted.memory,
            milli: granted.milli,
        });
        Ok(Some(Launched {
            process,
            lease: Some(Granted {
                node: self.process,
                lease,
            }),
            devices: devices.collect(),
        }))
    }

    /// What a worker process sees of this machine, by the devices that it was granted.
    fn binding(&self, parts: &Parts, seen: &[u32]) -> Binding {
        let inventory = parts.inventory.lock();
        let names = seen
            .iter()
            .map(|index| devices::visible_name(&inventory, *index));
        let visible = names.collect::<Vec<_>>().join(",");
        let book = parts.leases.lock();
        let near = book
            .devices()
            .iter()
            .filter(|device| seen.contains(&device.index));
        let known = |index: u32| {
            let card = book.devices().iter().find(|device| device.index == index);
            let card = card.map_or(index, |device| device.card);
            let mut facts = inventory.devices.iter();
            facts.any(|facts| facts.index == card && facts.numa_node.value().is_some())
        };
        let mut numa: Vec<u32> = near
            .filter(|device| known(device.index))
            .map(|device| device.numa)
            .collect();
        numa.sort_unstable();
        numa.dedup();
        let devices = parts.devices.lock();
        let cpus = numa.into_iter().flat_map(|node| devices.cpus_of(node));
        Binding {
            visible,
            cpus: cpus.collect(),
        }
    }

    /// An actor that had a lease is over, or lives elsewhere now. Its process ends when nobody else
    /// has one there.
    pub(crate) async fn release_lease(self: &Arc<Self>, lease: LeaseId) {
        let parts = self.parts().await;
        let unused = parts.leases.lock().release(lease);
        if let Some(process) = unused {
            self.workers.end(self, process).await;
        }
        self.room_changed();
    }

    /// Writes a parked process to the actor that takes it over. Whether it lives.
    pub(crate) async fn hand_over_here(
        self: &Arc<Self>,
        lease: LeaseId,
        actor: ActorId,
        holder: &str,
        rank: u32,
    ) -> bool {
        let parts = self.parts().await;
        let process = parts.leases.lock().hand_over(lease, actor, holder, rank);
        process.is_some_and(|process| self.links.contains_key(&process))
    }

    /// A worker process of this node has ended.
    pub(crate) fn worker_ended(self: &Arc<Self>, process: ProcessId, pid: Option<u32>) {
        self.hardware.starting.remove(&process);
        let Some(parts) = self.hardware.parts.get() else {
            return;
        };
        if let Some(pid) = pid {
            parts.devices.lock().end(pid);
        }
        let now = Clock::now();
        parts.leases.lock().process_ended(process, pid, now);
        self.room_changed();
    }

    /// Ends a worker process of this node for a reason, which its actors fail with, and waits until
    /// it is gone. A fault of a device takes that out of service if it must.
    pub(crate) async fn retire_here(
        self: &Arc<Self>,
        process: ProcessId,
        fault: Option<GpuFault>,
        why: &str,
    ) {
        if let Some(fault) = fault {
            let parts = self.parts().await;
            // A device that it does not have is not its to accuse.
            let its_own = parts
                .leases
                .lock()
                .processes_on(fault.device)
                .contains(&process);
            if its_own {
                self.attend_fault(fault).await;
            }
        }
        self.workers.retire(self, process, fault, why).await;
    }

    /// What a fault asks of the device itself.
    async fn attend_fault(self: &Arc<Self>, fault: GpuFault) {
        let parts = self.parts().await;
        if fault.remedy() == Remedy::QuarantineDevice
            && parts
                .leases
                .lock()
                .quarantine(fault.device, fault.kind.to_string())
        {
            let device = fault.device;
            tracing::warn!(device, why = %fault.kind, "a device is out of service");
        }
    }

    /// Puts a device of this node back into service. Whether it was out.
    pub(crate) async fn repair_device(self: &Arc<Self>, device: u32) -> bool {
        let repaired = self.parts().await.leases.lock().repair(device);
        self.room_changed();
        repaired
    }

    fn begin_watch(self: &Arc<Self>) {
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.watch_devices().await });
    }

    /// Looks at the devices again and again: faults end the processes on them, and what ended
    /// processes held is granted again when it is free.
    async fn watch_devices(self: Arc<Self>) {
        let mut looked = Clock::now();
        while !self.is_closing() {
            let Some(parts) = self.hardware.parts.get() else {
                // The first look is not over.
                Clock::sleep(self.limits.sweep_interval).await;
                continue;
            };
            let unsettled = parts.leases.lock().unsettled();
            let pause = if unsettled {
                self.limits.device_settle_interval
            } else {
                self.limits.device_poll_interval
            };
            let left = looked.after(pause).left(Clock::now());
            if left.is_zero() {
                self.attend_devices(parts).await;
                looked = Clock::now();
            } else {
                // A stir tells that there is something to settle, so that the next look is sooner.
                let _ = Clock::timeout(left, self.hardware.stirred.notified()).await;
            }
        }
    }

    async fn attend_devices(self: &Arc<Self>, parts: &Parts) {
        let now = look(&parts.devices).await;
        let before = std::mem::replace(&mut *parts.inventory.lock(), now.clone());
        if now.devices.len() != before.devices.len() {
            let devices = devices::of_inventory(&self.node, &now);
            parts.leases.lock().set_devices(devices);
        }
        for fault in devices::faults_between(&before, &now) {
            self.attend_fault(fault).await;
            if fault.remedy() == Remedy::FreeMemory {
                continue;
            }
            let processes = parts.leases.lock().processes_on(fault.device);
            for process in processes {
                let why = format!("device {}: {}", fault.device, fault.kind);
                self.retire_here(process, Some(fault), &why).await;
            }
        }
        let patience = self.limits.device_release_timeout;
        if parts.leases.lock().settle(&now, Clock::now(), patience) {
            self.room_changed();
        }
    }

    /// Whoever waits looks again, here and on other nodes.
    fn room_changed(&self) {
        self.hardware.stirred.notify_one();
        self.hardware.changed.notify_waiters();
        for link in self.links.iter().filter(|link| !link.is_worker) {
            link.push(&crate::wire::Frame::Fact(Fact::RoomChanged), true);
        }
    }
}
