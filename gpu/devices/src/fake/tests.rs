//! Effects of scripted faults, which leak nothing.

use odeon_topology::{DeviceModel, Element, Level};
use proptest::prelude::*;

use super::*;
use crate::driver::conformance::Rig;
use crate::driver::{ContextId, Driver, DriverError, Operation, Patience, Progress, Side};
use crate::fault::{FaultKind, GpuFault, Remedy};
use crate::inventory::{Nearness, NvLinkEnd, Probe, Reading};
use crate::memory::MemoryError;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn rig() -> Rig<Machine> {
    let fake = Fake::new(Spec::cluster(2, DeviceModel::default())).unwrap();
    Rig {
        driver: fake.machine("node1").unwrap(),
        process: 7,
        pass: |machine| machine.advance(ms(1)),
    }
}

mod conformance {
    crate::driver_conformance_tests!(super::rig());
}

/// One node with a fault of its first device.
fn struck(at: When, what: Strike) -> (Fake, Machine) {
    let spec = Spec::cluster(1, DeviceModel::default()).fault("node0/gpu0", at, what);
    let fake = Fake::new(spec).unwrap();
    let machine = fake.machine("node0").unwrap();
    (fake, machine)
}

/// A process with memory on both sides of a device.
struct Worker {
    context: ContextId,
    host: crate::driver::BufferId,
    device: crate::driver::BufferId,
}

fn worker(machine: &mut Machine, device: u32, process: u32) -> Result<Worker, DriverError> {
    let context = machine.open(device, process)?;
    for side in [Side::Host, Side::Device] {
        machine.reserve(context, side, "actor", 4 * GIB)?;
    }
    Ok(Worker {
        context,
        host: machine.alloc(context, Side::Host, "actor", GIB)?,
        device: machine.alloc(context, Side::Device, "actor", GIB)?,
    })
}

fn upload(machine: &mut Machine, worker: &Worker) -> Result<Operation, DriverError> {
    machine.copy(worker.host.at(0), worker.device.at(0), GIB)
}

fn fault(error: DriverError) -> GpuFault {
    match error {
        DriverError::Fault(fault) => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn a_copy_takes_as_long_as_predicted_and_waits_for_those_before_it() {
    let (fake, mut machine) = struck(When::Ms(100_000), Strike::Lost);
    let worker = worker(&mut machine, 0, 1).unwrap();
    let first = upload(&mut machine, &worker).unwrap();
    let second = upload(&mut machine, &worker).unwrap();
    let alone = *first.predicted.value().unwrap();
    let expected = Duration::from_secs_f64(GIB as f64 / 55e9) + Duration::from_micros(8);
    assert!(
        alone.abs_diff(expected) < Duration::from_micros(1),
        "{alone:?}"
    );
    assert_eq!(second.predicted, Reading::Measured(alone * 2));
    fake.advance(alone);
    assert_eq!(machine.poll(&first).unwrap(), Progress::Done);
    assert_eq!(machine.poll(&second).unwrap(), Progress::Running);
    assert_eq!(machine.free(worker.host), Err(DriverError::Busy));
    fake.advance(alone);
    assert_eq!(machine.poll(&second).unwrap(), Progress::Done);
    machine.free(worker.host).unwrap();
}

#[test]
fn nvlink_is_faster_than_pcie_and_memory_faster_than_both() {
    let spec = Spec::cluster(1, DeviceModel::default());
    let mut apart = spec.clone();
    for element in &mut apart.cluster.elements {
        element.nvlink = None;
    }
    let time = |spec: Spec, peer: u32| {
        let fake = Fake::new(spec).unwrap();
        let mut machine = fake.machine("node0").unwrap();
        let here = worker(&mut machine, 0, 1).unwrap();
        let there = worker(&mut machine, peer, 1).unwrap();
        let copy = machine.copy(here.device.at(0), there.device.at(0), GIB);
        *copy.unwrap().predicted.value().unwrap()
    };
    let (local, nvlink, pcie) = (time(spec.clone(), 0), time(spec, 5), time(apart, 5));
    assert!(
        local < nvlink && nvlink < pcie,
        "{local:?} {nvlink:?} {pcie:?}"
    );
}

#[test]
fn a_sticky_error_stays_with_its_process_until_that_is_replaced() {
    let (fake, mut machine) = struck(When::Operation(4), Strike::Sticky);
    let old = worker(&mut machine, 0, 1).unwrap();
    let good = upload(&mut machine, &old).unwrap();
    let bad = fault(upload(&mut machine, &old).unwrap_err());
    assert_eq!(bad, GpuFault::new(0, FaultKind::Sticky));
    assert_eq!(bad.remedy(), Remedy::ReplaceProcess);
    assert!(machine.poll(&good).is_err(), "it had not ended");
    machine.close(old.context).unwrap();
    assert!(machine.open(0, 1).is_err(), "a new context does not help");
    assert_eq!(machine.health(0), Ok(()));
    machine.kill(1);
    let new = worker(&mut machine, 0, 2).unwrap();
    let copy = upload(&mut machine, &new).unwrap();
    fake.advance(ms(100));
    assert_eq!(machine.poll(&copy).unwrap(), Progress::Done);
}

#[test]
fn memory_of_a_killed_process_stays_held_until_the_driver_let_go_of_it() {
    let (fake, mut machine) = struck(When::Ms(0), Strike::Slow(2.0));
    let _worker = worker(&mut machine, 0, 1).unwrap();
    assert_eq!(machine.held(0, 1).unwrap(), Reading::Measured(GIB));
    machine.kill(1);
    assert_eq!(
        machine.open(0, 1),
        Err(DriverError::ProcessGone { process: 1 })
    );
    fake.advance(ms(1_999));
    assert_eq!(machine.held(0, 1).unwrap(), Reading::Measured(GIB));
    fake.advance(ms(1));
    assert_eq!(machine.held(0, 1).unwrap(), Reading::Measured(0));
    let memory = machine.inventory().devices[0]
        .memory
        .value()
        .copied()
        .unwrap();
    assert_eq!(memory.used_bytes, 0);
}

#[test]
fn a_hang_never_ends_and_is_told_by_the_time_it_takes() {
    let (fake, mut machine) = struck(When::Ms(10), Strike::Hang);
    let old = worker(&mut machine, 0, 1).unwrap();
    let copy = upload(&mut machine, &old).unwrap();
    fake.advance(Duration::from_secs(9));
    assert_eq!(machine.poll(&copy).unwrap(), Progress::Running);
    assert_eq!(
        copy.overdue(Duration::from_secs(9), Patience::default()),
        None
    );
    let hang = copy.overdue(Duration::from_secs(11), Patience::default());
    assert_eq!(hang.unwrap().remedy(), Remedy::ReplaceProcess);
    machine.kill(1);
    let new = worker(&mut machine, 0, 2).unwrap();
    let copy = upload(&mut machine, &new).unwrap();
    fake.advance(Duration::from_secs(1));
    assert_eq!(machine.poll(&copy).unwrap(), Progress::Done);
}

#[test]
fn a_slow_device_takes_longer_than_it_predicts() {
    let (fake, mut machine) = struck(When::Ms(0), Strike::Slow(3.0));
    let worker = worker(&mut machine, 0, 1).unwrap();
    let copy = upload(&mut machine, &worker).unwrap();
    let predicted = *copy.predicted.value().unwrap();
    fake.advance(predicted * 2);
    assert_eq!(machine.poll(&copy).unwrap(), Progress::Running);
    fake.advance(predicted + Duration::from_micros(1));
    assert_eq!(machine.poll(&copy).unwrap(), Progress::Done);
}

#[test]
fn lost_data_takes_the_device_out_of_use_for_everybody() {
    for (what, kind) in [
        (Strike::Ecc, FaultKind::Ecc),
        (Strike::Xid(95), FaultKind::Xid { code: 95 }),
        (Strike::Lost, FaultKind::Lost),
    ] {
        let (fake, mut machine) = struck(When::Ms(5), what);
        let old = worker(&mut machine, 0, 1).unwrap();
        let copy = upload(&mut machine, &old).unwrap();
        fake.advance(ms(5));
        for failed in [
            machine.poll(&copy).map(|_| ()),
            machine.health(0),
            machine.open(0, 2).map(|_| ()),
        ] {
            let found = fault(failed.unwrap_err());
            assert_eq!(found, GpuFault::new(0, kind));
            assert_eq!(found.remedy(), Remedy::QuarantineDevice);
        }
        assert_eq!(machine.health(1), Ok(()), "the next device is well");
        machine.kill(1);
        fake.advance(Duration::from_secs(2));
        assert!(fake.repair("node0/gpu0"));
        assert_eq!(machine.held(0, 1).unwrap(), Reading::Measured(0));
        worker(&mut machine, 0, 2).unwrap();
    }
}

#[test]
fn an_xid_of_a_program_breaks_that_program_and_is_listed() {
    let (fake, mut machine) = struck(When::Ms(5), Strike::Xid(31));
    let old = worker(&mut machine, 0, 1).unwrap();
    fake.advance(ms(5));
    let found = fault(upload(&mut machine, &old).map(|_| ()).unwrap_err());
    assert_eq!(found.kind, FaultKind::Xid { code: 31 });
    assert_eq!(machine.health(0), Ok(()));
    worker(&mut machine, 0, 2).unwrap();
    let xids = machine.inventory().devices[0].xids.clone();
    assert_eq!(xids.value().unwrap()[0].code, Some(31));
}

#[test]
fn memory_taken_from_outside_is_a_full_device_that_names_the_owners() {
    let (fake, mut machine) = struck(When::Ms(5), Strike::Oom);
    let worker = worker(&mut machine, 0, 1).unwrap();
    fake.advance(ms(5));
    let refused = machine.alloc(worker.context, Side::Device, "actor", GIB);
    let Err(DriverError::Memory(MemoryError::DeviceFull { owners, free, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((owners.0[0].owner.as_str(), free), ("actor", 0));
    let processes = machine.inventory().devices[0].processes.clone();
    assert!(
        processes
            .value()
            .unwrap()
            .iter()
            .any(|process| process.pid == FOREIGN_PROCESS)
    );
    assert!(fake.repair("node0/gpu0"));
    machine
        .alloc(worker.context, Side::Device, "actor", GIB)
        .unwrap();
}

#[test]
fn a_lost_device_stays_listed_without_readings() {
    let (fake, mut machine) = struck(When::Ms(5), Strike::Lost);
    fake.advance(ms(5));
    let inventory = machine.inventory();
    assert_eq!(inventory.devices.len(), 8);
    let lost = &inventory.devices[0];
    assert_eq!(lost.uuid.to_string(), "FAKE-node0/gpu0");
    let why = lost.memory.why().unwrap();
    assert!(why.contains("fallen off the bus"));
    assert_eq!(lost.xids.value().unwrap()[0].code, Some(79));
    assert_eq!(machine.held(0, 1).unwrap().value(), None);
    assert!(inventory.devices[1].memory.value().is_some());
}

#[test]
fn the_inventory_knows_the_topology() {
    let mut machine = rig().driver;
    let inventory = machine.inventory();
    let nearness = |a, b| {
        let pair = inventory
            .pairs
            .iter()
            .find(|pair| (pair.a, pair.b) == (a, b));
        pair.unwrap().nearness.clone()
    };
    assert_eq!(nearness(0, 1), Reading::Measured(Nearness::Switch));
    assert_eq!(nearness(0, 2), Reading::Measured(Nearness::Numa));
    assert_eq!(nearness(0, 7), Reading::Measured(Nearness::System));
    let last = &inventory.devices[7];
    assert_eq!(last.numa_node, Reading::Measured(1));
    assert_eq!(last.switch, Reading::Measured("node1/switch3".to_owned()));
    let links = last.nvlinks.value().unwrap();
    assert_eq!(links.len(), 7);
    assert_eq!(links[0].to, NvLinkEnd::Device(0));
    assert!(last.temperature_celsius.value().is_none());
    let text = serde_json::to_string(&inventory).unwrap();
    assert_eq!(
        serde_json::from_str::<crate::inventory::Inventory>(&text).unwrap(),
        inventory
    );
}

#[test]
fn bytes_do_not_pass_between_processes_and_a_dropped_machine_leaves_nothing() {
    let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let mut machine = fake.machine("node0").unwrap();
    let (a, b) = (
        worker(&mut machine, 0, 1).unwrap(),
        worker(&mut machine, 0, 2).unwrap(),
    );
    assert_eq!(
        machine.copy(a.device.at(0), b.device.at(0), 1),
        Err(DriverError::OtherProcess)
    );
    drop(machine);
    let mut machine = fake.machine("node0").unwrap();
    let device = machine.inventory().devices.remove(0);
    assert_eq!(device.memory.value().unwrap().used_bytes, 0);
    assert!(device.processes.value().unwrap().is_empty());
}

#[test]
fn the_same_script_gives_the_same_run() {
    let run = || {
        let spec = Spec::cluster(1, DeviceModel::default())
            .fault("node0/gpu0", When::Operation(9), Strike::Slow(1.5))
            .fault("node0/gpu0", When::Ms(90), Strike::Sticky);
        let fake = Fake::new(spec).unwrap();
        let mut machine = fake.machine("node0").unwrap();
        let worker = worker(&mut machine, 0, 1).unwrap();
        let mut trace = vec![];
        for _ in 0..20 {
            let copy = upload(&mut machine, &worker);
            fake.advance(ms(7));
            trace.push(copy.map(|copy| (copy.predicted.clone(), machine.poll(&copy))));
        }
        trace
    };
    let trace = run();
    assert!(trace.iter().any(Result::is_err) && trace.iter().any(Result::is_ok));
    assert_eq!(trace, run());
}

#[test]
fn a_thousand_devices_fail_each_on_their_own() {
    let spec = Spec::cluster(128, DeviceModel::default())
        .fault("node5/gpu5", When::Ms(5), Strike::Lost)
        .fault("node77/gpu0", When::Ms(6), Strike::Ecc);
    let fake = Fake::new(spec).unwrap();
    fake.advance(ms(5));
    let mut broken = vec![];
    for node in 0..128 {
        let mut machine = fake.machine(&format!("node{node}")).unwrap();
        assert_eq!(machine.inventory().devices.len(), 8);
        let devices = (0..machine.devices()).filter(|device| machine.health(*device).is_err());
        broken.extend(devices.map(|device| (node, device)).collect::<Vec<_>>());
    }
    assert_eq!(broken, [(5, 5)], "the second is for later");
}

#[test]
fn a_copy_that_ended_is_seen_without_polling() {
    let mut machine = rig().driver;
    let worker = worker(&mut machine, 0, 1).unwrap();
    machine.write(worker.host.at(0), b"there").unwrap();
    let _there = machine
        .copy(worker.host.at(0), worker.device.at(0), 5)
        .unwrap();
    let _back = machine
        .copy(worker.device.at(0), worker.host.at(100), 5)
        .unwrap();
    let mut bytes = [0; 5];
    let early = machine.read(worker.host.at(100), &mut bytes);
    assert_eq!(early, Err(DriverError::Busy));
    machine.advance(ms(1));
    machine.read(worker.host.at(100), &mut bytes).unwrap();
    assert_eq!(&bytes, b"there");
}

#[test]
fn devices_without_numbers_or_names_are_no_panic() {
    let tiny = DeviceModel {
        memory_bytes: 3 * MIB,
        pcie_bytes_per_second: 1.0,
        ..DeviceModel::default()
    };
    let mut spec = Spec::cluster(0, tiny);
    spec.cluster
        .elements
        .push(Element::new(Level::Node, "n", None));
    spec.cluster.elements.push(Element {
        model: Some("model".to_owned()),
        ..Element::new(Level::Device, "n/0", Some("n"))
    });
    let fake = Fake::new(spec.fault("n/0", When::Ms(0), Strike::Slow(1e9))).unwrap();
    assert!(fake.machine("m").is_none() && !fake.strike("m", Strike::Ecc));
    let mut machine = fake.machine("n").unwrap();
    let context = machine.open(0, 1).unwrap();
    for side in [Side::Host, Side::Device] {
        machine.reserve(context, side, "actor", 3 * MIB).unwrap();
    }
    let host = machine.alloc(context, Side::Host, "actor", MIB).unwrap();
    let device = machine
        .alloc(context, Side::Device, "actor", 2 * MIB)
        .unwrap();
    let copy = machine.copy(host.at(0), device.at(0), MIB).unwrap();
    for _ in 0..3 {
        let _later = machine.copy(host.at(0), device.at(0), MIB).unwrap();
        fake.advance(Duration::MAX);
    }
    assert_eq!(machine.poll(&copy).unwrap(), Progress::Done);
    assert_eq!(fake.now(), Duration::MAX);
}

fn strikes() -> impl Strategy<Value = Strike> {
    prop_oneof![
        any::<u64>().prop_map(Strike::Xid),
        prop_oneof![Just(13), Just(31), Just(79), Just(94)].prop_map(Strike::Xid),
        Just(Strike::Sticky),
        Just(Strike::Ecc),
        Just(Strike::Oom),
        Just(Strike::Hang),
        (1.0..1e9).prop_map(Strike::Slow),
        Just(Strike::Lost),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever strikes, and in whatever order things are opened, used, closed and killed.
    #[test]
    fn nothing_is_leaked_by_any_fault(
        faults in prop::collection::vec((0u32..2, 0u64..400, any::<bool>(), strikes()), 0..6),
        steps in prop::collection::vec((0u8..8, any::<prop::sample::Index>()), 1..80),
    ) {
        let mut spec = Spec::cluster(1, DeviceModel::default());
        for (device, at, by_time, what) in faults {
            let when = if by_time { When::Ms(at) } else { When::Operation(at / 10 + 1) };
            spec = spec.fault(format!("node0/gpu{device}"), when, what);
        }
        let fake = Fake::new(spec).unwrap();
        let mut machine = fake.machine("node0").unwrap();
        let (mut workers, mut copies, mut process) = (vec![], vec![], 0);
        for (step, which) in steps {
            match step {
                0 | 1 => {
                    process += 1;
                    workers.extend(worker(&mut machine, u32::from(step), process).ok());
                }
                2 | 3 if !workers.is_empty() => {
                    let worker: &Worker = which.get(&workers);
                    copies.extend(upload(&mut machine, worker).ok());
                }
                4 if !copies.is_empty() => {
                    let polled = machine.poll(which.get(&copies));
                    prop_assert!(!matches!(polled, Err(DriverError::Memory(_))));
                }
                5 if !workers.is_empty() => {
                    drop(machine.close(which.get(&workers).context));
                }
                6 => machine.kill(which.index(4) as u32),
                _ => fake.advance(ms(which.index(100) as u64)),
            }
        }
        for process in 0..=process {
            machine.kill(process);
        }
        fake.advance(ms(2_500));
        for device in 0..8 {
            let name = format!("node0/gpu{device}");
            prop_assert!(fake.repair(&name));
            for process in 0..=process {
                prop_assert_eq!(machine.held(device, process).unwrap(), Reading::Measured(0));
            }
        }
        let inventory = machine.inventory();
        crate::inventory::conformance::coherent(&inventory);
        for device in &inventory.devices {
            prop_assert_eq!(device.memory.value().unwrap().used_bytes, 0);
            prop_assert!(device.processes.value().unwrap().is_empty());
        }
        prop_assert!(machine.open(0, process + 1).is_ok());
    }

    #[test]
    fn damaged_text_is_an_error_and_never_a_panic(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let spec = Spec::cluster(1, DeviceModel::default()).fault("node0/gpu0", When::Ms(1), Strike::Ecc);
        let mut text = toml::to_string(&spec).unwrap().into_bytes();
        for (at, byte) in cuts {
            let at = at.index(text.len());
            text[at] = byte;
        }
        if let Ok(spec) = Spec::from_toml(&String::from_utf8_lossy(&text)) {
            prop_assert!(Fake::new(spec).is_ok());
        }
    }
}
