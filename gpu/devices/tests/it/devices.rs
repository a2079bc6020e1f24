//! The sources of inventories keep their promises: the fake one everywhere, NVML on any machine,
//! and with what a driver must show where there is one.

use odeon_devices::fake::{Fake, Spec, Strike, When};
use odeon_devices::inventory::{Nvml, Probe, Reading, conformance};
use odeon_skip::{Need, skip};
use odeon_topology::DeviceModel;

#[test]
fn fake() {
    let spec =
        Spec::cluster(1, DeviceModel::default()).fault("node0/gpu2", When::Ms(0), Strike::Lost);
    let fake = Fake::new(spec).unwrap();
    conformance::check(&mut fake.machine("node0").unwrap());
}

#[test]
fn nvml_with_or_without_a_driver() {
    conformance::check(&mut Nvml::new());
}

#[test]
fn nvml_with_a_driver() {
    let mut nvml = Nvml::new();
    let inventory = nvml.inventory();
    if let Reading::Unmeasured { why } = &inventory.driver {
        return skip(Need::Card, why);
    }
    for device in &inventory.devices {
        println!("{device:#?}");
        assert!(device.uuid.value().is_some() && device.model.value().is_some());
        assert!(device.memory.value().is_some() && device.processes.value().is_some());
    }
}
