//! The book of leases against fake devices, which know who holds their memory.

use odeon_devices::driver::{Driver, Side};
use odeon_devices::fake::{Fake, Machine, Spec};
use odeon_devices::inventory::{MemoryFacts, Probe, ProcessFacts, Reading};
use odeon_placement::{Demand, Resources, View, solve};
use odeon_topology::DeviceModel;
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq};
use proptest::{prop_oneof, proptest};

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn at(ms: u64) -> Timestamp {
    Timestamp(0).after(Duration::from_millis(ms))
}

fn actor(serial: u64) -> ActorId {
    let home = ProcessId(1);
    ActorId { home, serial }
}

fn book(machine: &mut Machine) -> Leases {
    let mut book = Leases::new(Node::new("a", Resources::new().cpu_milli(4000)));
    book.see(super::super::devices::of_inventory(
        "a",
        &machine.inventory(),
    ));
    book
}

fn eight() -> (Fake, Machine) {
    let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let machine = fake.machine("node0").unwrap();
    (fake, machine)
}

/// A claim for one actor, made on the snapshot as it is.
fn claim(
    book: &mut Leases,
    machine: &mut Machine,
    demand: &Demand,
    serial: u64,
    now: Timestamp,
) -> Option<LeaseId> {
    let view = View::new([book.snapshot()]);
    let plan = solve(&view, std::slice::from_ref(demand)).ok()?;
    let leases: Vec<_> = plan
        .leases
        .into_iter()
        .map(|l| (l, actor(serial)))
        .collect();
    let until = now.after(Duration::from_secs(15));
    let fresh = || ProcessId(serial << 33 | 1);
    let version = book.version();
    let ids = book.claim(version, &leases, &machine.inventory(), until, fresh);
    ids.ok()?.first().copied()
}

fn whole(serial: u64, gpus: u32) -> Demand {
    Demand::new("j", format!("w{serial}"), Resources::new()).gpus(gpus)
}

fn begin(book: &Leases, machine: &mut Machine, lease: LeaseId, pid: u32) -> bool {
    book.get(lease).unwrap().lease.devices.iter().all(|grant| {
        let taken = machine.open(grant.index, pid).and_then(|context| {
            machine.reserve(context, Side::Device, "w", grant.memory)?;
            machine.alloc(context, Side::Device, "w", grant.memory)
        });
        taken.is_ok()
    })
}

/// A look, and what it settles. Returns true if anything has changed.
fn settle(book: &mut Leases, inventory: &Inventory, ms: u64) -> bool {
    let version = book.version();
    let unused = book.settle(inventory, at(ms), at(ms), PATIENCE);
    assert_eq!(unused, []);
    book.version() != version
}

/// SEMANTICS 45.
#[test]
fn a_claim_on_an_old_picture_is_refused() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let old = book.version();
    claim(&mut book, &mut machine, &whole(1, 1), 1, at(0)).unwrap();
    let outdated = book.claim(old, &[], &machine.inventory(), at(0), || ProcessId(1));
    assert_eq!(outdated, Err(Outdated));
}

/// SEMANTICS 45.
#[test]
fn a_claim_that_nobody_takes_up_ends() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let lease = claim(&mut book, &mut machine, &whole(1, 8), 1, at(0)).unwrap();
    assert!(!settle(&mut book, &machine.inventory(), 14_999));
    assert!(settle(&mut book, &machine.inventory(), 15_000));
    assert_eq!(book.hold(lease), None);
    assert_eq!(book.snapshot().workers, []);
    assert!(claim(&mut book, &mut machine, &whole(2, 8), 2, at(15_000)).is_some());
}

/// SEMANTICS 47.
#[test]
fn devices_come_back_when_their_memory_is_free_and_rest_when_it_is_not() {
    let (fake, mut machine) = eight();
    let mut book = book(&mut machine);
    let lease = claim(&mut book, &mut machine, &whole(1, 8), 1, at(0)).unwrap();
    let process = book.hold(lease).unwrap();
    assert!(begin(&book, &mut machine, lease, 7));
    machine.kill(7);
    book.process_ended(process, Some(7), true, at(0));
    fake.advance(Duration::from_millis(1_900));
    assert!(!settle(&mut book, &machine.inventory(), 1_900));
    assert!(claim(&mut book, &mut machine, &whole(2, 1), 2, at(1_900)).is_none());
    // Suppose that the driver never freed it.
    let stuck = machine.inventory();
    assert!(settle(&mut book, &stuck, 30_000));
    let refusal = solve(&View::new([book.snapshot()]), &[whole(3, 1)]).unwrap_err();
    let why = "w1 has ended, but after 30s 144384 MiB of device 0 are still its own";
    assert!(refusal.to_string().contains(why), "{refusal}");
    fake.advance(Duration::from_secs(1));
    assert!(settle(&mut book, &machine.inventory(), 31_000));
    assert!(claim(&mut book, &mut machine, &whole(4, 8), 4, at(31_000)).is_some());
}

/// SEMANTICS 47.
#[test]
fn what_cannot_be_measured_is_not_taken_for_free() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let lease = claim(&mut book, &mut machine, &whole(1, 1), 1, at(0)).unwrap();
    let process = book.hold(lease).unwrap();
    book.process_ended(process, Some(7), true, at(0));
    let mut blind = machine.inventory();
    let facts = &mut blind.devices[0];
    facts.processes = Reading::unmeasured("no permission");
    facts.memory = Reading::unmeasured("no permission");
    assert!(!settle(&mut book, &blind, 1));
    assert!(settle(&mut book, &blind, 30_000));
    let why = book.quarantined(0).unwrap();
    assert!(
        why.contains("nobody can say what it holds of device 0 (no permission)"),
        "{why}"
    );
}

/// In a container the driver numbers processes otherwise.
///
/// SEMANTICS 47.
#[test]
fn a_process_that_the_driver_knows_by_another_number_is_waited_for() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let lease = claim(&mut book, &mut machine, &whole(1, 1), 1, at(0)).unwrap();
    let process = book.hold(lease).unwrap();
    book.process_ended(process, Some(7), true, at(0));
    let mut inventory = machine.inventory();
    let facts = &mut inventory.devices[0];
    facts.processes = Reading::Measured(vec![ProcessFacts {
        pid: 70_007,
        memory_bytes: Reading::Measured(5 << 30),
    }]);
    facts.memory = Reading::Measured(MemoryFacts {
        total_bytes: 141 << 30,
        used_bytes: 5 << 30,
        free_bytes: 136 << 30,
    });
    assert!(!settle(&mut book, &inventory, 1));
    assert!(settle(&mut book, &machine.inventory(), 2));
}

/// SEMANTICS 47.
#[test]
fn a_process_that_runs_for_nobody_has_to_end_and_nobody_joins_it() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let role = |serial| whole(serial, 1).device_memory(1 << 30).device_set("s");
    let first = claim(&mut book, &mut machine, &role(1), 1, at(0)).unwrap();
    let second = claim(&mut book, &mut machine, &role(2), 2, at(0)).unwrap();
    let process = book.hold(first).unwrap();
    assert!(begin(&book, &mut machine, first, 7));
    book.runs_as(process, 7);
    assert_eq!(book.release(first), None, "another is on its way there");
    let unused = book.settle(&machine.inventory(), at(15_000), at(15_000), PATIENCE);
    assert_eq!(unused, [process]);
    assert_eq!(book.snapshot().workers, []);
    let third = claim(&mut book, &mut machine, &whole(3, 8), 3, at(15_000));
    assert!(third.is_none(), "its memory is not free");
    machine.kill(7);
    book.process_ended(process, Some(7), true, at(15_000));
    assert!(book.hold(second).is_none());
}

/// SEMANTICS 47.
#[test]
fn an_older_look_proves_nothing_and_neither_does_a_kill() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let empty = machine.inventory();
    let lease = claim(&mut book, &mut machine, &whole(1, 1), 1, at(0)).unwrap();
    let process = book.hold(lease).unwrap();
    book.process_ended(process, Some(7), false, at(20));
    book.settle(&empty, at(10), at(30), PATIENCE);
    book.settle(&empty, at(40), at(40), PATIENCE);
    assert!(
        book.get(lease).unwrap().is_leaving(),
        "its end was not seen"
    );
    book.settle(&empty, at(30_020), at(30_020), PATIENCE);
    let why = book.quarantined(0).unwrap();
    assert!(why.contains("was killed and does not end"), "{why}");
    book.process_ended(process, Some(7), true, at(40_000));
    book.settle(&empty, at(40_001), at(40_001), PATIENCE);
    assert_eq!(book.grants().count(), 0);
}

/// SEMANTICS 48.
#[test]
fn a_device_that_cannot_be_read_rests_until_it_can_and_a_card_rests_with_its_slices() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let lease = claim(&mut book, &mut machine, &whole(1, 1), 1, at(0)).unwrap();
    let mut blind = machine.inventory();
    for facts in &mut blind.devices {
        *facts = facts.vanished("the driver does not answer");
    }
    book.see(super::super::devices::of_inventory("a", &blind));
    assert_eq!(
        book.hold(lease),
        None,
        "not on a device that is out of service"
    );
    let kept = book.devices()[0].memory;
    assert_eq!(kept, 141 << 30);
    book.see(super::super::devices::of_inventory(
        "a",
        &machine.inventory(),
    ));
    assert!(book.hold(lease).is_some());
    assert!(book.quarantine(0, "broken".to_owned()));
    book.see(vec![
        Device::new(1000, "H200", 1 << 30).slice_of(0, "1g.10gb"),
    ]);
    assert_eq!(book.quarantined(1000).as_deref(), Some("broken"));
}

/// An event that may happen to a node, in any order.
#[derive(Clone, Debug)]
enum Step {
    Claim { gpus: u32, set: bool },
    Start(prop::sample::Index),
    Release(prop::sample::Index),
    Die(prop::sample::Index),
    Quarantine(u32),
    Repair(u32),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..5, any::<bool>()).prop_map(|(gpus, set)| Step::Claim { gpus, set }),
        4 => any::<prop::sample::Index>().prop_map(Step::Start),
        2 => any::<prop::sample::Index>().prop_map(Step::Release),
        3 => any::<prop::sample::Index>().prop_map(Step::Die),
        1 => (0u32..8).prop_map(Step::Quarantine),
        1 => (0u32..8).prop_map(Step::Repair),
        3 => (1u64..20_000).prop_map(Step::Pass),
        1 => Just(Step::Pass(1)),
    ]
}

proptest! {
    /// The fake devices are the oracle: they refuse a process memory that another still holds.
    ///
    /// SEMANTICS 45, 47.
    #[test]
    fn whatever_happens_no_device_is_granted_before_it_is_free(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let (fake, mut machine) = eight();
        let mut book = book(&mut machine);
        let (mut now, mut serial, mut pids) = (0, 0, 0);
        let mut running: BTreeMap<ProcessId, u32> = BTreeMap::new();
        for step in steps {
            let ids: Vec<LeaseId> = book.grants().map(|(id, _)| id).collect();
            match step {
                Step::Claim { gpus, set } => {
                    serial += 1;
                    let mut demand = whole(serial, gpus);
                    if set {
                        demand = demand.device_memory(10 << 30).device_set(format!("s{gpus}"));
                    }
                    claim(&mut book, &mut machine, &demand, serial, at(now));
                }
                Step::Start(which) if !ids.is_empty() => {
                    let lease = *which.get(&ids);
                    let claimed = matches!(book.get(lease).unwrap().stage, Stage::Claimed { .. });
                    if let Some(process) = book.hold(lease).filter(|_| claimed) {
                        // None is used twice: who has it now would be taken for who had it.
                        pids += 1;
                        let pid = *running.entry(process).or_insert(1000 + pids);
                        prop_assert!(begin(&book, &mut machine, lease, pid), "{:?}", book);
                        book.runs_as(process, pid);
                    }
                }
                Step::Release(which) if !ids.is_empty() => {
                    if let Some(process) = book.release(*which.get(&ids)) {
                        let pid = running.remove(&process);
                        pid.into_iter().for_each(|pid| machine.kill(pid));
                        book.process_ended(process, pid, true, at(now));
                    }
                }
                Step::Die(which) if !running.is_empty() => {
                    let process = *which.get(&running.keys().copied().collect::<Vec<_>>());
                    let pid = running.remove(&process);
                    pid.into_iter().for_each(|pid| machine.kill(pid));
                    book.process_ended(process, pid, true, at(now));
                }
                Step::Quarantine(device) => drop(book.quarantine(device, "x".to_owned())),
                Step::Repair(device) => drop(book.repair(device)),
                Step::Pass(ms) => {
                    now += ms;
                    fake.advance(Duration::from_millis(ms));
                    let unused = book.settle(&machine.inventory(), at(now), at(now), PATIENCE);
                    for process in unused {
                        let pid = running.remove(&process);
                        pid.into_iter().for_each(|pid| machine.kill(pid));
                        book.process_ended(process, pid, true, at(now));
                    }
                }
                _ => {}
            }
            for device in 0..8 {
                let of = |grant: &&Grant| grant.has(device) && grant.lease.device_set.is_none();
                let alone = book.grants().map(|(_, grant)| grant).filter(of).count();
                prop_assert!(alone <= 1, "device {} granted {} times", device, alone);
            }
        }
        // Nobody runs without a lease, and when all is over, all is free.
        for process in running.keys() {
            prop_assert!(book.grants().any(|(_, grant)| grant.process == *process));
        }
        for (process, pid) in running {
            machine.kill(pid);
            book.process_ended(process, Some(pid), true, at(now));
        }
        fake.advance(Duration::from_secs(60));
        let end = at(now + 60_000);
        book.settle(&machine.inventory(), end, end, PATIENCE);
        prop_assert_eq!(book.grants().count(), 0);
        prop_assert_eq!(book.snapshot().workers, vec![]);
    }
}
