//! A conformance suite for every source of inventories, whatever machine it finds.

use super::{DeviceFacts, Inventory, Probe, Reading};

/// Checks a source: each inventory is [coherent], and devices stay what they are.
///
/// # Panics
///
/// When a promise is broken, with what broke it.
pub fn check(probe: &mut dyn Probe) {
    let (first, second) = (probe.inventory(), probe.inventory());
    for inventory in [&first, &second] {
        coherent(inventory);
    }
    for device in &first.devices {
        let again = second.devices.iter().find(|it| it.index == device.index);
        let again = again.map(|device| &device.uuid);
        assert_eq!(again, Some(&device.uuid), "a device became another one");
    }
}

/// Checks one inventory: devices are numbered upwards, pairs are of devices that are there, what
/// is measured can be, and what is not has a reason.
///
/// # Panics
///
/// When a promise is broken, with what broke it.
pub fn coherent(inventory: &Inventory) {
    reasoned("driver", &inventory.driver);
    for two in inventory.devices.windows(2) {
        assert!(two[0].index < two[1].index, "devices are out of order");
    }
    for pair in &inventory.pairs {
        reasoned("nearness", &pair.nearness);
        assert!(pair.a < pair.b, "{pair:?} is the wrong way round");
        for end in [pair.a, pair.b] {
            let known = inventory.devices.iter().any(|device| device.index == end);
            assert!(known, "{pair:?} is of no device");
        }
    }
    for device in &inventory.devices {
        sound(device);
    }
}

fn sound(device: &DeviceFacts) {
    reasoned("uuid", &device.uuid);
    reasoned("model", &device.model);
    reasoned("memory", &device.memory);
    reasoned("utilisation", &device.utilisation);
    reasoned("temperature", &device.temperature_celsius);
    reasoned("power", &device.power_milliwatts);
    reasoned("clocks", &device.clocks);
    reasoned("replays", &device.pcie_replays);
    reasoned("ecc", &device.ecc);
    reasoned("xids", &device.xids);
    reasoned("mig", &device.mig);
    reasoned("bus", &device.bus_id);
    reasoned("numa", &device.numa_node);
    reasoned("switch", &device.switch);
    reasoned("nvlinks", &device.nvlinks);
    reasoned("processes", &device.processes);
    if let Some(memory) = device.memory.value() {
        let sum = memory.used_bytes.checked_add(memory.free_bytes);
        let fits = sum.is_some_and(|sum| sum <= memory.total_bytes);
        assert!(memory.total_bytes > 0 && fits, "{memory:?}");
    }
    if let Some(rates) = device.utilisation.value() {
        let most = rates.compute_percent.max(rates.memory_percent);
        assert!(most <= 100, "{rates:?}");
    }
    for link in device.nvlinks.value().into_iter().flatten() {
        assert!(link.links > 0, "{link:?}");
        reasoned("speed of NVLink", &link.bytes_per_second);
    }
}

fn reasoned<T>(what: &str, reading: &Reading<T>) {
    let reason = reading.why().is_none_or(|why| !why.trim().is_empty());
    assert!(reason, "{what} is not measured, without a reason");
}
