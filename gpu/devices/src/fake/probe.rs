//! The fake devices of one node, as an inventory.

use odeon_topology::{Level, Topology};
use std::collections::BTreeMap;

use super::card::Card;
use super::{Machine, world::World};
use crate::inventory::{
    DeviceFacts, DriverVersion, Inventory, MemoryFacts, Mig, Nearness, NvLink, NvLinkEnd, Pair,
    Probe, ProcessFacts, Reading,
};

const NO_SENSOR: &str = "a fake device has no such sensor";

impl Probe for Machine {
    fn inventory(&mut self) -> Inventory {
        let world = self.world.lock();
        let cards: Vec<&Card> = self.cards.iter().map(|card| &world.cards[*card]).collect();
        let devices = cards.iter().map(|card| facts(&world, card, &cards));
        let pairs = cards.iter().enumerate().flat_map(|(at, a)| {
            let topology = &world.topology;
            cards[at + 1..].iter().map(move |b| Pair {
                a: a.device,
                b: b.device,
                nearness: nearness(topology, &a.name, &b.name),
            })
        });
        Inventory {
            driver: Reading::Measured(DriverVersion {
                driver: "fake".to_owned(),
                cuda: Reading::unmeasured("fake devices run no CUDA"),
            }),
            devices: devices.collect(),
            pairs: pairs.collect(),
            unusable: vec![],
        }
    }
}

fn facts(world: &World, card: &Card, machine: &[&Card]) -> DeviceFacts {
    let topology = &world.topology;
    let total_bytes = card.space.capacity();
    let free_bytes = card.space.free_bytes();
    let switch = topology.around(&card.name, Level::Switch);
    let known = DeviceFacts {
        uuid: Reading::Measured(format!("FAKE-{}", card.name)),
        model: Reading::Measured(card.model_name.clone()),
        memory: Reading::Measured(MemoryFacts {
            total_bytes,
            used_bytes: total_bytes - free_bytes,
            free_bytes,
        }),
        ecc: Reading::Measured(card.ecc),
        xids: Reading::Measured(card.xids.clone()),
        mig: Reading::Measured(Mig::default()),
        bus_id: Reading::Measured(card.name.clone()),
        numa_node: numa_node(topology, &card.name),
        switch: match switch {
            Some(switch) => Reading::Measured(switch.name.clone()),
            None => Reading::unmeasured("the specification puts no switch above the device"),
        },
        nvlinks: Reading::Measured(nvlinks(topology, card, machine)),
        processes: Reading::Measured(
            card.holders()
                .into_iter()
                .map(|(pid, bytes)| ProcessFacts {
                    pid,
                    memory_bytes: Reading::Measured(bytes),
                })
                .collect(),
        ),
        ..DeviceFacts::unmeasured(card.device, NO_SENSOR)
    };
    if card.is_lost() {
        known.vanished("the device has fallen off the bus")
    } else {
        known
    }
}

/// Sockets of a node are numbered in the order of the specification.
fn numa_node(topology: &Topology, device: &str) -> Reading<u32> {
    let (node, numa) = (
        topology.around(device, Level::Node),
        topology.around(device, Level::Numa),
    );
    let (Some(node), Some(numa)) = (node, numa) else {
        return Reading::unmeasured("the specification puts the device in no NUMA node");
    };
    let before = topology
        .elements()
        .iter()
        .filter(|element| element.level == Level::Numa)
        .filter(|element| topology.around(&element.name, Level::Node) == Some(node))
        .take_while(|element| element.name != numa.name);
    Reading::Measured(before.count() as u32)
}

/// One entry for each device of the domain on this machine, and one for those elsewhere.
fn nvlinks(topology: &Topology, card: &Card, machine: &[&Card]) -> Vec<NvLink> {
    let domain = |name: &str| {
        topology
            .get(name)
            .and_then(|element| element.nvlink.clone())
    };
    let Some(own) = domain(&card.name) else {
        return vec![];
    };
    let here: BTreeMap<&str, u32> = machine
        .iter()
        .map(|card| (card.name.as_str(), card.device))
        .collect();
    let mut ends: Vec<NvLinkEnd> = topology
        .elements()
        .iter()
        .filter(|other| other.nvlink.as_ref() == Some(&own) && other.name != card.name)
        .map(|other| match here.get(other.name.as_str()) {
            Some(device) => NvLinkEnd::Device(*device),
            None => NvLinkEnd::Other(own.clone()),
        })
        .collect();
    ends.sort();
    ends.dedup();
    ends.into_iter()
        .map(|to| NvLink {
            to,
            links: 1,
            bytes_per_second: Reading::Measured(card.model.nvlink_bytes_per_second as u64),
        })
        .collect()
}

fn nearness(topology: &Topology, a: &str, b: &str) -> Reading<Nearness> {
    match topology.common(a, b).map(|common| common.level) {
        Some(Level::Switch) => Reading::Measured(Nearness::Switch),
        Some(Level::Numa) => Reading::Measured(Nearness::Numa),
        Some(_) => Reading::Measured(Nearness::System),
        None => Reading::unmeasured("nothing holds both devices"),
    }
}
