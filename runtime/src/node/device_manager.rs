//! The hardware of a node: its devices and memory, the holders of leases on them, and the actors
//! that wait for some.
//!
//! ```text
//!  spawn with needs ─ Ask ─> schedule: snapshots of all nodes ─ solve ─> plan or refusal
//!                               │                                  (kept for people to read)
//!                               └─ Claim ─> each node's Leases ─> Launch with the lease
//! ```
//!
//! Every node writes the leases of its own devices and nobody else does. Whichever node has an
//! actor to place plans with the snapshots that the others give it, and claims what it found: a node
//! whose snapshot has changed since refuses, and the plan is made anew. So no node has to lead, and
//! a device is never granted twice.

mod devices;
mod leases;
pub(crate) mod protocol;
mod queue;
mod reservations;
mod schedule;
mod service;
mod standby;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use odeon_devices::driver::DriverError;
use odeon_devices::fault::GpuFault;
use odeon_devices::inventory::{Inventory, Nvml};
use odeon_diagnosis::device::DeviceFaults;
use odeon_diagnosis::{Action, Detector, Finding, FindingCause};
use odeon_placement::{Lease, Node, Quota, Resources};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::clock::Clock;
use crate::base::failure::{Failure, FailureKind};
use crate::base::id::{ActorId, ProcessId};
use crate::base::id_map::IdMap;
use crate::base::journal::{News, NewsKind};
use crate::net::service::Notice;
use crate::node::inspect::{DeviceReading, MethodCounts};
use crate::node::worker::Binding;

pub(crate) use crate::actor::placing::{Granted, Launched};
use crate::actor::placing::{GrantedDevice, LeaseId};
pub use devices::{Devices, FakeDevices};
pub(crate) use leases::Leases;
use leases::Stage;
pub use protocol::Waiting;
use protocol::{HandOver, NodeSnapshot, RoomChanged};
use queue::Queue;
pub use reservations::JobReservation;
use reservations::Reservations;
use standby::Pools;
pub use standby::Standby;

/// The settings of a node's hardware; the rest it finds out.
#[derive(Debug, Default)]
pub(crate) struct DeviceConfig {
    pub(crate) devices: Option<Box<dyn Devices>>,
    pub(crate) offer: Offer,
}

/// The resources and labels that a node offers beside its devices.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    /// All that the machine has, unless told otherwise.
    pub(crate) resources: Option<Resources>,
    pub(crate) custom: Vec<(String, u64)>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) quotas: BTreeMap<String, Quota>,
}

/// Grants devices and memory of a node to actors, and keeps those waiting that find no room. A node
/// that nobody asks for anything never looks at its devices.
pub(crate) struct DeviceManager {
    offer: Offer,
    /// The most that jobs may hold whose actors this node places.
    quotas: Mutex<BTreeMap<String, Quota>>,
    /// Parts of nodes that whole jobs have reserved.
    reservations: Mutex<Reservations>,
    /// Nodes that nothing is placed on.
    refused: Mutex<BTreeSet<String>>,
    devices: Arc<Mutex<Box<dyn Devices>>>,
    /// Set if a look at them may take long.
    may_block: bool,
    parts: tokio::sync::OnceCell<Parts>,
    /// The book that the program before this one has kept in this process.
    inherited: Mutex<Option<Leases>>,
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
    inventory: Mutex<Inventory>,
    faults: Mutex<DeviceFaults>,
    /// The processors of each NUMA node that has devices.
    cpus: BTreeMap<u32, Vec<u32>>,
}

impl fmt::Debug for DeviceManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceManager").finish_non_exhaustive()
    }
}

impl DeviceManager {
    pub(crate) fn new(mut config: DeviceConfig) -> Self {
        let devices = config.devices;
        let devices = devices.unwrap_or_else(|| Box::new(Nvml::new()));
        Self {
            quotas: Mutex::new(std::mem::take(&mut config.offer.quotas)),
            offer: config.offer,
            reservations: Mutex::default(),
            refused: Mutex::default(),
            may_block: devices.may_block(),
            devices: Arc::new(Mutex::new(devices)),
            parts: tokio::sync::OnceCell::new(),
            inherited: Mutex::default(),
            changed: Notify::new(),
            stirred: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            queue: Mutex::default(),
            pools: Mutex::default(),
            starting: IdMap::default(),
        }
    }

    pub(crate) fn quotas(&self) -> MutexGuard<'_, BTreeMap<String, Quota>> {
        self.quotas.lock()
    }

    /// Jobs may hold so much from now on. Who waits looks again.
    pub(crate) fn set_quotas(&self, quotas: BTreeMap<String, Quota>) {
        let mut known = self.quotas.lock();
        if *known != quotas {
            *known = quotas;
            drop(known);
            self.stir();
        }
    }

    /// Nodes that nothing is placed on.
    pub(crate) fn refused(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.refused.lock()
    }

    /// Nothing is placed on these nodes from now on, and on no others. Who waits looks again.
    pub(crate) fn set_refused(&self, nodes: BTreeSet<String>) {
        let mut known = self.refused.lock();
        if *known != nodes {
            *known = nodes;
            drop(known);
            self.stir();
        }
    }

    /// These are the parts of nodes that whole jobs have reserved, as far as is known. Who waits looks
    /// again.
    pub(crate) fn set_reservations(&self, all: Vec<JobReservation>) {
        if self.reservations.lock().hear(all) {
            self.stir();
        }
    }

    /// A job whose driver runs here has these parts of nodes from now on; none when it is over.
    pub(crate) fn reserve(&self, job: &str, reserved: Vec<JobReservation>) {
        self.reservations.lock().set_own(job, reserved);
        self.stir();
    }

    /// A node as the actors of a job see it.
    fn seen_by(&self, job: &str, node: Node) -> Node {
        self.reservations.lock().seen_by(job, node)
    }

    /// Somebody else's room has changed.
    pub(crate) fn stir(&self) {
        self.changed.notify_waiters();
    }
}

/// The result of a look at the devices, and the processors of the NUMA nodes that they lie in.
type Look = (Inventory, BTreeMap<u32, Vec<u32>>);

fn look_at(devices: &mut Box<dyn Devices>) -> Look {
    let inventory = devices.look();
    let numa = inventory.devices.iter();
    let numa = numa.filter_map(|facts| facts.numa_node.value().copied());
    let cpus = numa.map(|node| (node, devices.cpus_of(node))).collect();
    (inventory, cpus)
}

/// The processors and memory of this machine.
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

impl Component for DeviceManager {
    fn leave<'a>(&'a self, engine: &'a Arc<Engine>) -> BoxFuture<'a, ()> {
        Box::pin(engine.release_spares())
    }
}

impl Engine {
    /// Its hardware.
    pub(crate) fn device_manager(&self) -> &DeviceManager {
        self.component::<DeviceManager>()
    }

    /// Asks the devices, on a thread that may block when they are real. A driver that does not answer
    /// in time is one that cannot be asked.
    async fn look(&self) -> Look {
        let devices = Arc::clone(&self.device_manager().devices);
        if !self.device_manager().may_block {
            return look_at(&mut devices.lock());
        }
        let looking = tokio::task::spawn_blocking(move || {
            // An earlier look may still wait for the driver.
            Some(look_at(&mut *devices.try_lock()?))
        });
        match Clock::timeout(self.limits.device_look_timeout, looking).await {
            Some(Ok(Some(look))) => look,
            Some(Err(error)) => {
                let why = format!("the look at the devices failed: {error}");
                (Inventory::empty(why), BTreeMap::new())
            }
            _ => {
                let why = "the driver does not answer";
                (Inventory::empty(why), BTreeMap::new())
            }
        }
    }

    /// The hardware of this node, looked at for the first time when it is first needed.
    async fn parts(self: &Arc<Self>) -> &Parts {
        let make = || async {
            let offer = &self.device_manager().offer;
            let (inventory, cpus) = self.look().await;
            if let Some(why) = inventory.driver.why() {
                tracing::debug!(why, "this node has no devices");
            }
            let mut resources = offer.resources.clone().unwrap_or_else(machine);
            for (name, milli) in &offer.custom {
                resources = resources.custom_milli(name, *milli);
            }
            let limit = u32::try_from(self.limits.workers_max).unwrap_or(u32::MAX);
            let mut node = Node::new(self.node.clone(), resources).worker_limit(limit);
            node.labels.clone_from(&offer.labels);
            let inherited = self.device_manager().inherited.lock().take();
            let mut leases = inherited.unwrap_or_else(|| Leases::new(node));
            leases.see(devices::of_inventory(&self.node, &inventory));
            self.begin_watch();
            Parts {
                leases: Mutex::new(leases),
                faults: Mutex::new(DeviceFaults::since(inventory.clone())),
                inventory: Mutex::new(inventory),
                cpus,
            }
        };
        self.device_manager().parts.get_or_init(make).await
    }

    /// The book of leases, for the next program of this process.
    pub(crate) fn leases_book(&self) -> Option<Leases> {
        let parts = self.device_manager().parts.get()?;
        Some(parts.leases.lock().clone())
    }

    /// Goes on with the book that another program of this process has kept.
    pub(crate) async fn inherit_book(self: &Arc<Self>, book: Leases) {
        *self.device_manager().inherited.lock() = Some(book);
        let parts = self.parts().await;
        if self.device_manager().may_block {
            return;
        }
        let running = parts.leases.lock().running();
        let mut devices = self.device_manager().devices.lock();
        for (pid, grants) in running {
            if let Err(error) = devices.begin(pid, &grants) {
                tracing::warn!(pid, %error, "the devices of a process are not what they were");
            }
        }
    }

    /// This node at the moment.
    pub(crate) async fn snapshot(self: &Arc<Self>) -> NodeSnapshot {
        let parts = self.parts().await;
        let leases = parts.leases.lock();
        let living = leases.grants().filter(|(_, grant)| !grant.is_leaving());
        let actors = living.map(|(_, grant)| {
            let name = grant.lease.holder.clone();
            (grant.actor, name, grant.process)
        });
        NodeSnapshot {
            actors: actors.collect(),
            node: leases.snapshot(),
            version: leases.version(),
            waiting: self.device_manager().queue.lock().waiting(Clock::now()),
        }
    }

    /// The readings of the devices when they were last looked at, which is not long ago.
    pub(crate) fn device_readings(&self) -> Vec<DeviceReading> {
        let Some(parts) = self.device_manager().parts.get() else {
            return vec![];
        };
        devices::readings(&parts.inventory.lock())
    }

    /// Holds leases for a scheduler; `None` when its snapshot is out of date.
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
        self.device_manager().stirred.notify_one();
        claimed.ok()
    }

    /// Gives back leases that were claimed for nothing.
    pub(crate) async fn unclaim_here(self: &Arc<Self>, leases: &[LeaseId]) {
        let parts = self.parts().await;
        let mut unused = vec![];
        for lease in leases {
            let claimed = |stage: &Stage| matches!(stage, Stage::Claimed { .. });
            let mut book = parts.leases.lock();
            if book.get(*lease).is_some_and(|grant| claimed(&grant.stage)) {
                unused.extend(book.release(*lease));
            }
        }
        self.end_unused(unused);
        self.room_changed();
    }

    /// Ends processes in which nobody has a lease any more.
    fn end_unused(self: &Arc<Self>, processes: Vec<ProcessId>) {
        for process in processes {
            let engine = Arc::clone(self);
            self.spawn_task(async move { engine.workers().end(&engine, process).await });
        }
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
        let gate = Arc::clone(&self.device_manager().starting.entry(process).or_default());
        let started = gate.lock().await;
        // It may have ended while this waited.
        let grant = parts.leases.lock().get(lease).cloned();
        let Some(grant) = grant.filter(|grant| grant.stage == Stage::Held) else {
            return Ok(None);
        };
        let seen = parts.leases.lock().seen_by(process);
        if !self.links.contains_key(&process) {
            let binding = self.binding(parts, &seen);
            if let Err(failure) = self
                .launch_as(process, &grant.lease.job, Some(&binding))
                .await
            {
                // What ran of it is known to be leaving already, and its end may not have been seen.
                self.device_manager().starting.remove(&process);
                self.worker_lost(process, None);
                let book = parts.leases.lock();
                let broken = seen.iter().any(|index| book.quarantined(*index).is_some());
                // A device that failed meanwhile is the reason, and there may be others.
                return if broken { Ok(None) } else { Err(failure) };
            }
        }
        drop(started);
        self.device_manager().starting.remove(&process);
        let Some(pid) = self.workers().pid_of(process) else {
            return Ok(None);
        };
        {
            let mut book = parts.leases.lock();
            book.runs_as(process, pid);
            // It may have been ended while it started.
            if book
                .get(lease)
                .is_none_or(|grant| grant.stage != Stage::Held)
            {
                return Ok(None);
            }
        }
        let begun = if self.device_manager().may_block {
            Ok(())
        } else {
            let mut devices = self.device_manager().devices.lock();
            devices.begin(pid, &grant.lease.devices)
        };
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

    /// The part of this machine that a worker process sees, by the devices that it was granted.
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
        let cpus = numa.iter().filter_map(|node| parts.cpus.get(node));
        let cpus = cpus.flatten().copied();
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
            self.workers().end(self, process).await;
        }
        self.room_changed();
    }

    /// Writes a parked process to the actor that takes it over. Returns true if it lives.
    pub(crate) async fn hand_over_here(self: &Arc<Self>, order: &HandOver) -> bool {
        let HandOver {
            lease,
            actor,
            holder,
            rank,
            priority,
        } = order;
        let parts = self.parts().await;
        let mut book = parts.leases.lock();
        let process = book.hand_over(*lease, *actor, holder, *rank, *priority);
        process.is_some_and(|process| self.links.contains_key(&process))
    }

    /// A worker process of this node has ended.
    pub(crate) fn worker_ended(self: &Arc<Self>, process: ProcessId, pid: Option<u32>) {
        self.device_manager().starting.remove(&process);
        if let (Some(pid), false) = (pid, self.device_manager().may_block) {
            self.device_manager().devices.lock().end(pid);
        }
        self.note_end(process, pid, true);
    }

    /// A worker process of this node was killed, or is not heard of any more.
    pub(crate) fn worker_lost(&self, process: ProcessId, pid: Option<u32>) {
        self.note_end(process, pid, false);
    }

    fn note_end(&self, process: ProcessId, pid: Option<u32>, exited: bool) {
        if let Some(parts) = self.device_manager().parts.get() {
            let mut book = parts.leases.lock();
            book.process_ended(process, pid, exited, Clock::now());
            drop(book);
            self.room_changed();
        }
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
        let pid = self.workers().pid_of(process);
        self.worker_lost(process, pid);
        self.workers().retire(self, process, fault, why).await;
    }

    /// Does for the device itself what a fault asks for.
    async fn attend_fault(self: &Arc<Self>, fault: GpuFault) {
        let parts = self.parts().await;
        if fault.kind.action() == Action::QuarantineDevice
            && parts
                .leases
                .lock()
                .quarantine(fault.device, fault.kind.to_string())
        {
            let device = fault.device;
            tracing::warn!(device, why = %fault.kind, "a device is out of service");
            self.tell_of_device(device, format!("it is out of service: {}", fault.kind));
        } else {
            self.tell_of_device(fault.device, format!("it had a fault: {}", fault.kind));
        }
    }

    /// Puts a device of this node back into service. Returns true if it was out.
    pub(crate) async fn repair_device(self: &Arc<Self>, device: u32) -> bool {
        let repaired = self.parts().await.leases.lock().repair(device);
        if repaired {
            self.tell_of_device(device, "it is back in service".to_owned());
        }
        self.room_changed();
        repaired
    }

    fn tell_of_device(&self, device: u32, what: String) {
        let news = News::new(NewsKind::Device, what);
        self.journal.add(news.on_device(device));
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
            let Some(parts) = self.device_manager().parts.get() else {
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
                let _ = Clock::timeout(left, self.device_manager().stirred.notified()).await;
            }
        }
    }

    async fn attend_devices(self: &Arc<Self>, parts: &Parts) {
        let looked = Clock::now();
        let (now, _) = self.look().await;
        *parts.inventory.lock() = now.clone();
        let seen = devices::of_inventory(&self.node, &now);
        let (version, unused) = {
            let mut book = parts.leases.lock();
            let version = book.version();
            book.see(seen);
            let patience = self.limits.device_release_timeout;
            (version, book.settle(&now, looked, Clock::now(), patience))
        };
        self.end_unused(unused);
        let at = Duration::from_nanos(looked.0);
        let found = parts.faults.lock().observe(&now, at);
        for Finding { who, cause, .. } in found {
            for device in who {
                self.attend_device(parts, GpuFault::new(device, cause))
                    .await;
            }
        }
        self.attend_orphans(parts);
        if parts.leases.lock().version() != version {
            self.room_changed();
        }
    }

    /// Has a fault of a device told, and its processes ended where that is the action.
    async fn attend_device(self: &Arc<Self>, parts: &Parts, fault: GpuFault) {
        self.attend_fault(fault).await;
        if fault.kind.action() == Action::Tell {
            return;
        }
        let processes = parts.leases.lock().processes_on(fault.device);
        for process in processes {
            // A process may take its time to die, and other devices need attention meanwhile.
            let engine = Arc::clone(self);
            self.spawn_task(async move {
                let why = format!("device {}: {}", fault.device, fault.kind);
                engine.retire_here(process, Some(fault), &why).await;
            });
        }
    }

    /// Gives back the leases of actors whose homes are out of reach and that live nowhere: nobody
    /// else does.
    fn attend_orphans(self: &Arc<Self>, parts: &Parts) {
        let reaches = |home| home == self.process || self.routes_to(home);
        let orphans = parts.leases.lock().orphans(reaches);
        for (lease, actor, process) in orphans {
            let engine = Arc::clone(self);
            self.spawn_task(async move {
                let patience = Some(engine.limits.stop_grace);
                let there = engine.request::<MethodCounts>(process, &actor, patience);
                if let Some(None) = there.await {
                    tracing::info!(%actor, "its home is out of reach, so its lease is given back");
                    engine.release_lease(lease).await;
                }
            });
        }
    }

    /// Whoever waits looks again, here and on other nodes.
    fn room_changed(&self) {
        self.device_manager().stirred.notify_one();
        self.device_manager().changed.notify_waiters();
        for link in self.links.iter().filter(|link| !link.is_worker) {
            link.push(&RoomChanged.frame(), true);
        }
    }
}
