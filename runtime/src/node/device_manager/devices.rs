//! Where a node's devices come from, and how the rest of the runtime sees them.

use std::collections::BTreeMap;
use std::fmt::Debug;

use odeon_devices::driver::{Driver, DriverError, Side};
use odeon_devices::fake::{Fake, Machine};
use odeon_devices::inventory::{
    DeviceFacts, Inventory, MemoryFacts, NvLinkEnd, Nvml, Probe, ProcessFacts, Reading,
};
use odeon_placement::{Device, DeviceGrant};

use crate::base::clock::{Clock, Timestamp};
use crate::node::inspect::DeviceReading;

/// The devices of a machine, as the node that hands them out needs them.
pub trait Devices: Debug + Send {
    /// Looks at them now.
    fn look(&mut self) -> Inventory;

    /// Returns true if a look may take long, since it asks a real driver. Such a one learns by
    /// itself which processes there are, and is never told.
    fn may_block(&self) -> bool {
        true
    }

    /// A process is about to use what it was granted. Not called where looks may block.
    ///
    /// # Errors
    /// Why it cannot.
    fn begin(&mut self, pid: u32, grants: &[DeviceGrant]) -> Result<(), DriverError> {
        let _ = (pid, grants);
        Ok(())
    }

    /// A process has ended. Not called where looks may block.
    fn end(&mut self, pid: u32) {
        let _ = pid;
    }

    /// The processors of a NUMA node; none when the machine does not say.
    fn cpus_of(&self, numa: u32) -> Vec<u32> {
        let path = format!("/sys/devices/system/node/node{numa}/cpulist");
        let list = std::fs::read_to_string(path).unwrap_or_default();
        parse_cpus(&list).unwrap_or_default()
    }
}

/// Numbers as the kernel lists them: `0-3,8,10-11`.
fn parse_cpus(list: &str) -> Option<Vec<u32>> {
    let mut cpus = vec![];
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    Some(cpus)
}

impl Devices for Nvml {
    /// Without those that `CUDA_VISIBLE_DEVICES` hides from this process: they belong to others.
    fn look(&mut self) -> Inventory {
        let mut inventory = self.inventory();
        if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES") {
            inventory.devices.retain(|facts| is_named(facts, &visible));
        }
        inventory
    }
}

/// Returns true if a list names a device, by its number on the bus or the beginning of its
/// identity.
fn is_named(facts: &DeviceFacts, list: &str) -> bool {
    let mut names = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    names.any(|name| {
        let uuid = facts.uuid.value();
        name == facts.index.to_string() || uuid.is_some_and(|uuid| uuid.starts_with(name))
    })
}

/// Fake devices of one node, under the runtime's clock. Each process that a node starts on them
/// opens its devices and takes as much memory as it was granted, and lets go of it a while after
/// its end, as real ones do.
#[derive(Debug)]
pub struct FakeDevices {
    fake: Fake,
    machine: Machine,
    numa_nodes: u32,
    epoch: Timestamp,
}

impl FakeDevices {
    /// Those of a node of the specification; `None` when it has no such node. All nodes of one
    /// `fake` must start in the same moment of the runtime's clock.
    #[must_use]
    pub fn new(fake: &Fake, node: &str) -> Option<Self> {
        let mut machine = fake.machine(node)?;
        let devices = machine.inventory().devices;
        let last = devices
            .iter()
            .filter_map(|facts| facts.numa_node.value().copied());
        Some(Self {
            numa_nodes: last.max().map_or(1, |last| last + 1),
            machine,
            fake: fake.clone(),
            epoch: Clock::now(),
        })
    }

    fn catch_up(&self) {
        let elapsed = Clock::now().since(self.epoch);
        self.fake.advance(elapsed.saturating_sub(self.fake.now()));
    }
}

impl Devices for FakeDevices {
    fn look(&mut self) -> Inventory {
        self.catch_up();
        self.machine.inventory()
    }

    fn may_block(&self) -> bool {
        false
    }

    fn begin(&mut self, pid: u32, grants: &[DeviceGrant]) -> Result<(), DriverError> {
        const OWNER: &str = "worker";
        self.catch_up();
        for grant in grants {
            let context = self.machine.open(grant.index, pid)?;
            let (side, bytes) = (Side::Device, grant.memory);
            self.machine.reserve(context, side, OWNER, bytes)?;
            self.machine.alloc(context, side, OWNER, bytes)?;
        }
        Ok(())
    }

    fn end(&mut self, pid: u32) {
        self.catch_up();
        self.machine.kill(pid);
    }

    /// Those of this machine, dealt out to the NUMA nodes of the specification in turn.
    fn cpus_of(&self, numa: u32) -> Vec<u32> {
        let nodes = self.numa_nodes.max(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        (0..cores).filter(|cpu| cpu % nodes == numa).collect()
    }
}

/// The devices as the solver sees them. One whose memory cannot be read is out of service.
pub(super) fn of_inventory(node: &str, inventory: &Inventory) -> Vec<Device> {
    let domains = domains(inventory);
    let mut switches: Vec<&str> = vec![];
    let facts = inventory.devices.iter().enumerate();
    let devices = facts.map(|(at, facts)| {
        let model = facts.model.value().map_or("unknown", String::as_str);
        let total = facts.memory.value().map(|memory| memory.total_bytes);
        let mut device = Device::new(facts.index, model, total.unwrap_or(0));
        device.numa = facts.numa_node.value().copied().unwrap_or(0);
        device.switch = facts.switch.value().map(|switch| {
            let known = switches.iter().position(|known| known == switch);
            known.unwrap_or_else(|| {
                switches.push(switch);
                switches.len() - 1
            }) as u32
        });
        device.nvlink = domains[at].map(|domain| format!("{node}/nvlink{domain}"));
        if let Some(why) = facts.memory.why() {
            device = device.quarantined(format!("its memory cannot be read: {why}"));
        } else if facts.mig.value().is_some_and(|mig| mig.enabled) {
            device = device.quarantined("it is divided into slices, which are leased instead");
        }
        device
    });
    let mut all: Vec<Device> = devices.collect();
    for (at, facts) in inventory.devices.iter().enumerate() {
        let slices = facts.mig.value().filter(|mig| mig.enabled);
        for (nth, slice) in slices.iter().flat_map(|mig| mig.slices.iter().enumerate()) {
            let memory = slice.memory.value().map_or(0, |memory| memory.total_bytes);
            let profile = slice.profile.value().map_or("unknown", String::as_str);
            let card = &all[at];
            let index = slice_index(facts.index, nth);
            let mut device = Device::new(index, card.model.clone(), memory)
                .slice_of(facts.index, profile)
                .numa(card.numa);
            device.switch = card.switch;
            if let Some(why) = slice.memory.why() {
                device = device.quarantined(format!("its memory cannot be read: {why}"));
            }
            all.push(device);
        }
    }
    all
}

/// Slices are numbered behind all cards that a machine can have.
fn slice_index(card: u32, nth: usize) -> u32 {
    (card + 1) * 1000 + nth as u32
}

/// Facts about the memory of a device or slice.
pub(super) struct Facts<'a> {
    pub(super) memory: Option<&'a MemoryFacts>,
    /// Of a slice, those of its card.
    pub(super) processes: Option<&'a Vec<ProcessFacts>>,
    /// Why something is missing.
    pub(super) why: Option<&'a str>,
}

pub(super) fn facts_of(inventory: &Inventory, index: u32) -> Option<Facts<'_>> {
    inventory.devices.iter().find_map(|card| {
        let memory = if card.index == index {
            &card.memory
        } else {
            let slices = &card.mig.value()?.slices;
            let nth = (0..slices.len()).find(|nth| slice_index(card.index, *nth) == index)?;
            &slices[nth].memory
        };
        Some(Facts {
            memory: memory.value(),
            processes: card.processes.value(),
            why: memory.why().or_else(|| card.processes.why()),
        })
    })
}

/// Sensor readings of all devices and slices.
pub(super) fn readings(inventory: &Inventory) -> Vec<DeviceReading> {
    let cards = inventory.devices.iter();
    cards.flat_map(readings_of).collect()
}

/// Those of a card and of its slices, which have but their memory to themselves.
fn readings_of(card: &DeviceFacts) -> Vec<DeviceReading> {
    let used = |memory: &Reading<MemoryFacts>| memory.clone().map(|it| it.used_bytes);
    let holders = card.processes.clone().map(|holders| {
        let holders = holders.into_iter();
        let held = holders.map(|it| (it.pid, it.memory_bytes.value().copied()));
        held.collect::<Vec<_>>()
    });
    let whole = DeviceReading {
        index: card.index,
        busy: card
            .utilisation
            .clone()
            .map(|it| f64::from(it.compute_percent) / 100.0),
        memory_used: used(&card.memory),
        celsius: card.temperature_celsius.clone(),
        watts: card.power_milliwatts.clone().map(|it| f64::from(it) / 1e3),
        clocks: (card.clocks.clone()).map(|it| {
            (
                f64::from(it.compute_mhz) * 1e6,
                f64::from(it.memory_mhz) * 1e6,
            )
        }),
        pcie_replays: card.pcie_replays.clone(),
        holders,
    };
    let slices = card.mig.value().filter(|mig| mig.enabled);
    let slices = slices.iter().flat_map(|mig| mig.slices.iter().enumerate());
    let slices = slices.map(|(nth, slice)| DeviceReading {
        index: slice_index(card.index, nth),
        busy: Reading::unmeasured("the driver tells it of whole cards only"),
        memory_used: used(&slice.memory),
        ..whole.clone()
    });
    let slices: Vec<_> = slices.collect();
    [vec![whole], slices].concat()
}

/// The name that CUDA opens a device or slice by, by its number; its plain number where there is no
/// better.
pub(super) fn visible_name(inventory: &Inventory, index: u32) -> String {
    let uuid = inventory.devices.iter().find_map(|facts| {
        if facts.index == index {
            return facts.uuid.value();
        }
        let slices = &facts.mig.value()?.slices;
        let nth = (0..slices.len()).find(|nth| slice_index(facts.index, *nth) == index)?;
        slices[nth].uuid.value()
    });
    uuid.cloned().unwrap_or_else(|| index.to_string())
}

/// The NVLink domain of each device, numbered from 0: devices that are linked, or linked to the
/// same switch.
fn domains(inventory: &Inventory) -> Vec<Option<usize>> {
    let count = inventory.devices.len();
    let mut group: Vec<usize> = (0..count).collect();
    let mut switches: BTreeMap<&str, usize> = BTreeMap::new();
    let merge = |group: &mut Vec<usize>, a: usize, b: usize| {
        let (from, to) = (group[a].max(group[b]), group[a].min(group[b]));
        for entry in group.iter_mut().filter(|entry| **entry == from) {
            *entry = to;
        }
    };
    let mut linked = vec![false; count];
    for (at, facts) in inventory.devices.iter().enumerate() {
        for link in facts.nvlinks.value().into_iter().flatten() {
            linked[at] = true;
            match &link.to {
                NvLinkEnd::Device(index) => {
                    let same = |other: &DeviceFacts| other.index == *index;
                    if let Some(other) = inventory.devices.iter().position(same) {
                        merge(&mut group, at, other);
                    }
                }
                NvLinkEnd::Other(switch) => match switches.get(switch.as_str()) {
                    Some(other) => merge(&mut group, at, *other),
                    None => {
                        switches.insert(switch, at);
                    }
                },
                _ => {}
            }
        }
    }
    let mut numbers: Vec<usize> = vec![];
    let number = |at: usize| {
        linked[at].then(|| {
            let known = numbers.iter().position(|known| *known == group[at]);
            known.unwrap_or_else(|| {
                numbers.push(group[at]);
                numbers.len() - 1
            })
        })
    };
    (0..count).map(number).collect()
}

#[cfg(test)]
mod tests {
    use odeon_devices::fake::{Spec, Strike};
    use odeon_devices::inventory::{Mig, MigSlice};
    use odeon_placement::Health;
    use odeon_topology::DeviceModel;

    use super::*;

    fn eight() -> (Fake, Machine) {
        let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
        let machine = fake.machine("node0").unwrap();
        (fake, machine)
    }

    #[test]
    fn devices_are_named_by_number_or_identity() {
        let (_, mut machine) = eight();
        let facts = &machine.inventory().devices[3];
        for (list, named) in [
            ("3", true),
            ("0, 3", true),
            ("FAKE-node0/gpu3", true),
            ("", false),
        ] {
            assert_eq!(is_named(facts, list), named, "{list}");
        }
        assert!(!is_named(facts, "2,33,GPU-1"));
    }

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpus("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(parse_cpus("\n"), Some(vec![]));
        assert_eq!(parse_cpus("many"), None);
    }

    #[test]
    fn the_topology_of_a_machine_reaches_the_solver() {
        let (_, mut machine) = eight();
        let devices = of_inventory("a", &machine.inventory());
        let numa: Vec<u32> = devices.iter().map(|device| device.numa).collect();
        assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1]);
        let switch: Vec<_> = devices.iter().filter_map(|device| device.switch).collect();
        assert_eq!(switch, [0, 0, 1, 1, 2, 2, 3, 3]);
        let one_domain = |device: &Device| device.nvlink.as_deref() == Some("a/nvlink0");
        assert!(devices.iter().all(one_domain), "{devices:?}");
        assert_eq!(devices[5].memory, 141 << 30);
    }

    #[test]
    fn a_device_that_cannot_be_read_is_out_of_service() {
        let (fake, mut machine) = eight();
        assert!(fake.strike("node0/gpu2", Strike::Lost));
        let devices = of_inventory("a", &machine.inventory());
        let told = format!("{:?}", devices[2].health);
        assert!(told.contains("fallen off the bus"), "{told}");
    }

    #[test]
    fn slices_are_found_by_their_numbers() {
        let (_, mut machine) = eight();
        let mut inventory = machine.inventory();
        let bytes = |used_bytes| MemoryFacts {
            total_bytes: 10 << 30,
            used_bytes,
            free_bytes: (10 << 30) - used_bytes,
        };
        let slice = |nth: u64| MigSlice {
            uuid: Reading::Measured(format!("MIG-{nth}")),
            profile: Reading::Measured("1g.10gb".to_owned()),
            memory: Reading::Measured(bytes(nth)),
        };
        inventory.devices[1].mig = Reading::Measured(Mig {
            enabled: true,
            slices: vec![slice(5), slice(6)],
        });
        let devices = of_inventory("a", &inventory);
        assert_eq!(devices.len(), 10);
        let second = devices.iter().find(|device| device.index == 2001).unwrap();
        assert_eq!((second.card, second.slice.as_deref()), (1, Some("1g.10gb")));
        assert_eq!(visible_name(&inventory, 2001), "MIG-6");
        let facts = facts_of(&inventory, 2001).unwrap();
        assert_eq!(facts.memory, Some(&bytes(6)));
        assert!(facts_of(&inventory, 3000).is_none());
        let told = readings(&inventory);
        assert_eq!(told.len(), 10, "a card is told of with its slices");
        let second = told.iter().find(|it| it.index == 2001).unwrap();
        assert_eq!(second.memory_used, Reading::Measured(6));
        assert_eq!(second.celsius, told[1].celsius, "there is one sensor");
        let card = devices.iter().find(|device| device.index == 1).unwrap();
        assert_ne!(card.health, Health::Good, "its slices are leased instead");
    }
}
