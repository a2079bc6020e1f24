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
    assert!(book.version() >= version, "an older picture is new again");
    book.version() > version
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
    assert_eq!(book.quarantined(1), None, "nothing of it was there");
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
    let version = book.version();
    let unused = book.settle(&machine.inventory(), at(15_000), at(15_000), PATIENCE);
    assert_eq!(unused, [process]);
    assert!(
        book.version() > version,
        "nobody joins it by an older picture"
    );
    assert_eq!(book.snapshot().workers, []);
    let third = claim(&mut book, &mut machine, &whole(3, 8), 3, at(15_000));
    assert!(third.is_none(), "its memory is not free");
    machine.kill(7);
    let version = book.version();
    book.process_ended(process, Some(7), true, at(15_000));
    assert!(book.version() > version);
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
    let lease = claim(&mut book, &mut machine, &whole(2, 1), 2, at(50_000)).unwrap();
    let process = book.hold(lease).unwrap();
    book.process_ended(process, Some(8), true, at(50_000));
    for looked in [49_999, 50_000] {
        book.settle(&empty, at(looked), at(50_001), PATIENCE);
        assert!(book.get(lease).is_some(), "it looked before the end");
    }
    book.settle(&empty, at(50_001), at(50_001), PATIENCE);
    assert!(book.get(lease).is_none());
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

/// A lease that runs, of a process with this number.
fn held(book: &mut Leases, machine: &mut Machine, demand: &Demand, pid: u32) -> LeaseId {
    let lease = claim(book, machine, demand, u64::from(pid), at(0)).unwrap();
    let process = book.hold(lease).unwrap();
    book.runs_as(process, pid);
    lease
}

/// The facts of a device on which one process has some memory, of so much that is in use.
fn used(machine: &mut Machine, device: usize, pid: u32, used_bytes: u64) -> Inventory {
    let mut inventory = machine.inventory();
    let facts = &mut inventory.devices[device];
    facts.processes = Reading::Measured(vec![ProcessFacts {
        pid,
        memory_bytes: Reading::Measured(1 << 30),
    }]);
    facts.memory = Reading::Measured(MemoryFacts {
        total_bytes: 141 << 30,
        used_bytes,
        free_bytes: (141 << 30) - used_bytes,
    });
    inventory
}

/// SEMANTICS 45.
#[test]
fn a_lease_is_told_by_its_process_its_devices_and_how_far_it_is() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let lease = claim(&mut book, &mut machine, &whole(3, 2), 3, at(0)).unwrap();
    let process = book.get(lease).unwrap().process;
    let own = book.get(lease).unwrap().lease.clone();
    assert_eq!(own.process, Process::Existing(process.0));
    assert_eq!(book.seen_by(process), [0, 1]);
    assert_eq!(book.seen_by(ProcessId(99)), [0; 0]);
    // Claimed: nobody runs, and a look may end it.
    assert_eq!((book.running(), book.unsettled()), (vec![], true));
    assert_eq!(book.processes_on(0), []);
    assert_eq!(book.orphans(|_| false), []);
    assert_eq!(book.hold(lease), Some(process));
    assert_eq!((book.running(), book.unsettled()), (vec![], false));
    book.runs_as(process, 7);
    assert_eq!(book.running(), [(7, own.devices)]);
    let on: Vec<_> = (0..3).map(|device| book.processes_on(device)).collect();
    assert_eq!(on, [vec![process], vec![process], vec![]]);
    assert_eq!(book.orphans(|_| true), []);
    assert_eq!(
        book.orphans(|home| home != ProcessId(1)),
        [(lease, actor(3), process)]
    );
    book.process_ended(process, Some(7), true, at(5));
    assert_eq!((book.running(), book.unsettled()), (vec![], true));
    assert_eq!(book.processes_on(0), []);
    assert_eq!(book.orphans(|_| false), []);
}

/// SEMANTICS 47.
#[test]
fn a_lease_without_devices_or_that_never_ran_is_over_with_its_process() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let light = Demand::new("j", "light", Resources::new().cpu_milli(500));
    let lease = held(&mut book, &mut machine, &light, 7);
    let process = book.get(lease).unwrap().process;
    book.process_ended(process, Some(7), true, at(1));
    assert_eq!(book.grants().count(), 0);
    let lease = claim(&mut book, &mut machine, &whole(8, 1), 8, at(1)).unwrap();
    let process = book.hold(lease).unwrap();
    book.process_ended(process, None, true, at(2));
    assert_eq!(book.grants().count(), 0);
}

/// SEMANTICS 48.
#[test]
fn a_device_is_out_of_service_once_until_it_is_repaired() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    assert!(!book.repair(3));
    assert!(book.quarantine(3, "first".to_owned()));
    assert!(!book.quarantine(3, "second".to_owned()));
    let told: Vec<_> = (2..5).map(|device| book.quarantined(device)).collect();
    assert_eq!(told, [None, Some("first".to_owned()), None]);
    assert!(book.repair(3));
    assert_eq!(book.quarantined(3), None);
}

/// SEMANTICS 48.
#[test]
fn a_device_is_seen_as_it_is_and_others_are_not_touched() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let before = book.devices().to_vec();
    let version = book.version();
    assert!(version > 0, "what was seen is a new picture");
    let mut now = before.clone();
    now[3].memory = 80 << 30;
    book.see(now.clone());
    assert_eq!(book.devices(), now);
    assert!(book.version() > version);
    let version = book.version();
    book.see(now);
    assert_eq!(book.version(), version, "nothing is new");
    // One that is not there any more rests alone.
    let mut fewer = before;
    fewer.remove(3);
    book.see(fewer);
    let told: Vec<_> = (2..5).map(|device| book.quarantined(device)).collect();
    let why = "the driver does not list it any more".to_owned();
    assert_eq!(told, [None, Some(why), None]);
}

/// A slice has a process that is on its card, too.
///
/// SEMANTICS 48.
#[test]
fn a_card_has_the_processes_of_its_slices() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let slice = Device::new(1000, "H200", 1 << 30).slice_of(2, "1g.10gb");
    book.see([book.devices(), &[slice]].concat());
    let view = View::new([book.snapshot()]);
    let mut lease = solve(&view, &[whole(1, 1)]).unwrap().leases.remove(0);
    lease.devices[0].index = 1000;
    let (version, until) = (book.version(), at(15_000));
    let fresh = || ProcessId(5);
    let claimed = book.claim(
        version,
        &[(lease, actor(1))],
        &machine.inventory(),
        until,
        fresh,
    );
    assert_eq!(book.hold(claimed.unwrap()[0]), Some(ProcessId(5)));
    for (device, on) in [(1000, true), (2, true), (0, false), (3, false)] {
        let expected = if on { vec![ProcessId(5)] } else { vec![] };
        assert_eq!(book.processes_on(device), expected, "{device}");
    }
}

/// SEMANTICS 49.
#[test]
fn a_lease_that_is_taken_over_is_of_the_other_actor_from_then_on() {
    let (_, mut machine) = eight();
    let mut book = book(&mut machine);
    let lease = claim(&mut book, &mut machine, &whole(1, 1), 1, at(0)).unwrap();
    let (process, version) = (book.get(lease).unwrap().process, book.version());
    let taken = book.hand_over(lease, actor(9), "other", 4, 2);
    assert_eq!(taken, Some(process));
    assert!(book.version() > version);
    let grant = book.get(lease).unwrap();
    assert_eq!((grant.actor, grant.stage.clone()), (actor(9), Stage::Held));
    let own = &grant.lease;
    assert_eq!((&*own.holder, own.rank, own.priority), ("other", 4, 2));
    book.process_ended(process, Some(7), true, at(1));
    assert_eq!(book.hand_over(lease, actor(1), "again", 0, 0), None);
    assert_eq!(book.hand_over(99, actor(1), "again", 0, 0), None);
}

/// Of a process that the driver had listed, its absence from the list is enough; of another one the
/// memory has to be as empty as before it came, but for what a driver takes for itself.
///
/// SEMANTICS 47.
#[test]
fn a_process_that_was_listed_is_gone_when_it_is_not_and_another_when_memory_is_as_before() {
    let slack = 64 << 20;
    let before = 3 << 30;
    for (listed, used_bytes, gone) in [
        (7, before + 2 * slack, true),
        (70_007, before + 2 * slack, false),
        (70_007, before + slack + 1, false),
        (70_007, before + slack, true),
    ] {
        let (_, mut machine) = eight();
        let mut book = book(&mut machine);
        let there = used(&mut machine, 0, 5, before);
        let view = View::new([book.snapshot()]);
        let lease = solve(&view, &[whole(1, 1)]).unwrap().leases.remove(0);
        let version = book.version();
        let fresh = || ProcessId(5);
        let claimed = book.claim(version, &[(lease, actor(1))], &there, at(15_000), fresh);
        let lease = claimed.unwrap()[0];
        let process = book.hold(lease).unwrap();
        // Nobody's number is none that is listed.
        assert!(!settle(
            &mut book,
            &used(&mut machine, 0, listed, used_bytes),
            0
        ));
        book.runs_as(process, 7);
        assert!(!settle(
            &mut book,
            &used(&mut machine, 0, listed, used_bytes),
            1
        ));
        book.process_ended(process, Some(7), true, at(2));
        let after = used(&mut machine, 0, 5, used_bytes);
        assert_eq!(settle(&mut book, &after, 3), gone, "{listed} {used_bytes}");
        if !gone {
            assert!(settle(&mut book, &after, 40_000));
            let why = book.quarantined(0).unwrap();
            let more = (used_bytes - before) >> 20;
            let told = format!("{more} MiB of device 0 are more in use than before it came");
            assert!(why.contains(&told), "{why}");
        }
    }
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
            let (version, picture) = (book.version(), book.snapshot());
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
            let told = book.version() > version;
            prop_assert!(told || (book.version() == version && book.snapshot() == picture));
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
