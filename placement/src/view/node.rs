//! One node: what it has, who holds what of it, and what that leaves.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::device::Health;
use crate::{Device, Isolation, Lease, Resource, Resources};

/// One node. What is free is what its leases leave of its capacity; a node that was read from
/// somewhere knows it as part of a [`View`](crate::View).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Unique in the cluster.
    pub name: String,
    /// Where it stands, above the rack.
    #[serde(default)]
    pub zone: Option<String>,
    /// Where it stands, unique in its zone.
    #[serde(default)]
    pub rack: Option<String>,
    /// All that the node offers beside devices.
    pub capacity: Resources,
    /// Its devices, in the order of the topology: by NUMA node, switch, NVLink domain and number.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Its liveness; only a node that is up takes new work.
    #[serde(default)]
    pub liveness: Liveness,
    /// Labels that demands may select it by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Worker processes on it.
    #[serde(default)]
    pub workers: Vec<Worker>,
    /// Most worker processes without devices at a time.
    pub worker_limit: u32,
    #[serde(default)]
    leases: Vec<Lease>,
    #[serde(skip)]
    free: Resources,
    #[serde(skip)]
    left: Vec<Left>,
    /// Workers without devices.
    #[serde(skip)]
    light_workers: u32,
    /// Of all devices, in thousandths.
    #[serde(skip)]
    free_milli: u32,
    /// Numbers of groups, given by the view.
    #[serde(skip)]
    pub(super) zone_number: u32,
    #[serde(skip)]
    pub(super) rack_number: u32,
    #[serde(skip)]
    pub(super) domains: Vec<Option<u32>>,
    /// Its devices by the number of their kind.
    #[serde(skip)]
    pub(super) kinds: Vec<(usize, Mask)>,
    /// Devices that anyone has a lease on.
    #[serde(skip)]
    held: Mask,
    #[serde(skip)]
    healthy: Mask,
}

impl PartialEq for Node {
    /// By what is said of it; the rest follows.
    fn eq(&self, other: &Self) -> bool {
        let place = |node: &Self| (node.name.clone(), node.zone.clone(), node.rack.clone());
        place(self) == place(other)
            && self.capacity == other.capacity
            && self.devices == other.devices
            && self.liveness == other.liveness
            && self.labels == other.labels
            && self.workers == other.workers
            && self.worker_limit == other.worker_limit
            && self.leases == other.leases
    }
}

/// The free part of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) milli: u32,
    pub(crate) memory: u64,
    /// Set when anyone has a lease on it.
    pub(crate) held: bool,
    /// Set when roles share it in turn.
    pub(crate) in_set: bool,
}

impl Left {
    /// All of a device.
    pub(crate) fn all_of(device: &Device) -> Self {
        Self {
            milli: 1000,
            memory: device.memory,
            held: false,
            in_set: false,
        }
    }
}

/// The facts that rule a node out most often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance {
    pub(crate) up: bool,
    pub(crate) has_devices: bool,
    /// Set when a worker process without devices may be started.
    pub(crate) takes_worker: bool,
    /// Free processor time and memory.
    pub(crate) free: [u64; 2],
}

/// A choice among the devices of a node, one bit each.
pub(crate) type Mask = u128;

/// The positions in a mask.
pub(crate) fn bits(mut mask: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(at)
    })
}

/// The liveness of a node; only one that is up takes new work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Liveness {
    /// In contact.
    #[default]
    Up,
    /// Going out of service; keeps what it has.
    Draining,
    /// Silent, not yet given up.
    Suspect,
    /// Given up.
    Lost,
}

/// A worker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Unique on its node.
    pub id: u64,
    /// The job it works for.
    pub job: String,
    /// Its isolation, which decides if other actors of the job may join.
    pub isolation: Isolation,
    /// The devices that it sees, by number; none for light actors.
    #[serde(default)]
    pub devices: Vec<u32>,
}

impl Node {
    /// A node that is up and empty, without devices and labels, with room for 64 workers.
    pub fn new(name: impl Into<String>, capacity: Resources) -> Self {
        Self {
            name: name.into(),
            zone: None,
            rack: None,
            free: capacity.clone(),
            capacity,
            devices: Vec::new(),
            liveness: Liveness::Up,
            labels: BTreeMap::new(),
            workers: Vec::new(),
            worker_limit: 64,
            leases: Vec::new(),
            left: Vec::new(),
            light_workers: 0,
            free_milli: 0,
            zone_number: 0,
            rack_number: 0,
            domains: Vec::new(),
            kinds: Vec::new(),
            held: 0,
            healthy: 0,
        }
    }

    /// Adds a device. Of more than 128, the rest is never leased.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Adds `count` equal devices, all in one NVLink domain of the node's own.
    #[must_use]
    pub fn gpus(mut self, count: u32, model: &str, memory: u64) -> Self {
        for index in 0..count {
            let domain = format!("{}/nvlink", self.name);
            self = self.device(Device::new(index, model, memory).nvlink(domain));
        }
        self
    }

    /// Sets the zone and the rack.
    #[must_use]
    pub fn at(mut self, zone: impl Into<String>, rack: impl Into<String>) -> Self {
        (self.zone, self.rack) = (Some(zone.into()), Some(rack.into()));
        self
    }

    /// Sets the liveness.
    #[must_use]
    pub fn liveness(mut self, liveness: Liveness) -> Self {
        self.liveness = liveness;
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Adds a lease.
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.leases.push(lease);
        self
    }

    /// Adds a worker process for light actors.
    #[must_use]
    pub fn worker(mut self, id: u64, job: impl Into<String>, isolation: Isolation) -> Self {
        self.workers.push(Worker {
            id,
            job: job.into(),
            isolation,
            devices: Vec::new(),
        });
        self
    }

    /// Sets the most worker processes without devices at a time.
    #[must_use]
    pub fn worker_limit(mut self, limit: u32) -> Self {
        self.worker_limit = limit;
        self
    }

    /// Leases on it, oldest first.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    /// Resources that nobody holds, without devices.
    #[must_use]
    pub fn free(&self) -> &Resources {
        &self.free
    }

    /// Devices that are healthy and in nobody's hands.
    #[must_use]
    pub fn free_devices(&self) -> u32 {
        let free = |(device, left): (&Device, &Left)| !left.held && device.health == Health::Good;
        let count = self
            .devices
            .iter()
            .zip(&self.left)
            .filter(|pair| free(*pair));
        count.count() as u32
    }

    /// The holders of `resource` and their amounts, most first.
    #[must_use]
    pub fn holders_of(&self, resource: &Resource) -> Vec<(String, u64)> {
        self.holders(|lease| lease.resources.get(resource))
    }

    /// The holders of devices and their number, in thousandths, most first.
    #[must_use]
    pub fn device_holders(&self) -> Vec<(String, u64)> {
        self.holders(|lease| lease.devices.iter().map(|d| u64::from(d.milli)).sum())
    }

    fn holders(&self, of: impl Fn(&Lease) -> u64) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for lease in &self.leases {
            let sum = sums.entry(&lease.holder).or_default();
            *sum = sum.saturating_add(of(lease));
        }
        let held = sums.into_iter().filter(|(_, sum)| *sum > 0);
        let mut holders: Vec<(String, u64)> = held.map(|(who, sum)| (who.into(), sum)).collect();
        holders.sort_by_key(|(_, sum)| Reverse(*sum));
        holders
    }

    pub(super) fn glance(&self) -> Glance {
        Glance {
            up: self.liveness == Liveness::Up,
            has_devices: !self.devices.is_empty(),
            takes_worker: self.free_workers() > 0,
            free: self.free.common(),
        }
    }

    /// Healthy devices of the accepted kinds.
    pub(crate) fn usable(&self, accepted: &[bool]) -> Mask {
        let kinds = self.kinds.iter().filter(|(kind, _)| accepted[*kind]);
        kinds.fold(0, |all, (_, mask)| all | mask) & self.healthy
    }

    /// Devices that anyone has a lease on.
    pub(crate) fn held(&self) -> Mask {
        self.held
    }

    /// The free part of each device.
    pub(crate) fn left(&self) -> &[Left] {
        &self.left
    }

    /// The share of its devices that would be in use with this many thousandths more; of a node
    /// without devices, none.
    pub(crate) fn device_load(&self, more: u64) -> f64 {
        if self.left.is_empty() {
            return 0.0;
        }
        let all = 1000 * self.left.len() as u64;
        (all - u64::from(self.free_milli) + more) as f64 / all as f64
    }

    /// All devices.
    pub(crate) fn all_devices(&self) -> Mask {
        match self.devices.len().min(Mask::BITS as usize) {
            0 => 0,
            len => Mask::MAX >> (Mask::BITS as usize - len),
        }
    }

    /// The holders of a device and their memory on it, in bytes, most first.
    pub(crate) fn holders_of_device(&self, index: u32) -> Vec<(String, u64)> {
        self.holders(|lease| {
            let of = lease.devices.iter().filter(|grant| grant.index == index);
            of.map(|grant| grant.memory).sum()
        })
    }

    /// Worker processes without devices that may still be started.
    pub(crate) fn free_workers(&self) -> u32 {
        self.worker_limit.saturating_sub(self.light_workers)
    }

    pub(super) fn start_worker(&mut self, lease: &Lease) -> u64 {
        let id = self.workers.iter().map(|worker| worker.id + 1).max();
        let id = id.unwrap_or(0);
        self.workers.push(Worker {
            id,
            job: lease.job.clone(),
            isolation: lease.isolation,
            devices: lease.devices.iter().map(|d| d.index).collect(),
        });
        self.light_workers += u32::from(lease.devices.is_empty());
        id
    }

    pub(super) fn grant(&mut self, lease: Lease) {
        self.free.take(&lease.resources);
        self.take_devices(&lease);
        self.leases.push(lease);
    }

    pub(super) fn release(&mut self, holder: &str) -> Vec<Lease> {
        let (gone, kept) = std::mem::take(&mut self.leases)
            .into_iter()
            .partition(|lease| lease.holder == holder);
        self.leases = kept;
        self.recount();
        gone
    }

    /// Works out anew what follows from the rest.
    pub(super) fn recount(&mut self) {
        self.devices.sort_by(|a, b| {
            let key = |d: &Device| (d.numa, d.switch, d.nvlink.clone(), d.card, d.index);
            key(a).cmp(&key(b))
        });
        self.free = self.capacity.clone();
        self.left = self.devices.iter().map(Left::all_of).collect();
        self.free_milli = self.left.iter().map(|left| left.milli).sum();
        self.held = 0;
        let good = |i: &usize| self.devices[*i].health == Health::Good;
        let healthy = bits(self.all_devices()).filter(good);
        self.healthy = healthy.fold(0, |mask, i| mask | 1 << i);
        self.light_workers = self.workers.iter().filter(|w| w.devices.is_empty()).count() as u32;
        let leases = std::mem::take(&mut self.leases);
        for lease in &leases {
            self.free.take(&lease.resources);
            self.take_devices(lease);
        }
        self.leases = leases;
    }

    fn take_devices(&mut self, lease: &Lease) {
        for grant in &lease.devices {
            let index = |device: &Device| device.index == grant.index;
            let Some(at) = self.devices.iter().position(index) else {
                continue;
            };
            let left = &mut self.left[at];
            // Roles that share a set take turns computing, but each keeps its memory.
            if !left.in_set {
                let taken = left.milli.min(grant.milli);
                left.milli -= taken;
                self.free_milli -= taken;
            }
            left.in_set |= lease.device_set.is_some();
            left.memory = left.memory.saturating_sub(grant.memory);
            left.held = true;
            self.held |= 1_u128.checked_shl(at as u32).unwrap_or(0);
        }
    }
}

/// Nodes by zone, rack and name; runs of digits count as numbers, so `node-2` comes before `node-10`.
pub(super) fn order(node: &Node) -> [Vec<Part>; 3] {
    let parts = |name: Option<&str>| name.map(parts).unwrap_or_default();
    [
        parts(node.zone.as_deref()),
        parts(node.rack.as_deref()),
        parts(Some(&node.name)),
    ]
}

/// A piece of a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Digits: the value first, then how they are written.
    Number(u128, String),
    Text(String),
}

fn parts(name: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let digit = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != digit);
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(match part.parse() {
            Ok(number) if digit => Part::Number(number, part.into()),
            _ => Part::Text(part.into()),
        });
        rest = after;
    }
    parts
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
        })
    }
}
