//! Machines with one damage each, and pairs that differ.

use std::path::PathBuf;

use super::*;
use crate::disk_room::DiskRoom;

/// A machine on which nothing is wrong.
fn sound() -> MachineFacts {
    let room = DiskRoom {
        free: 500 << 30,
        all: 1000 << 30,
    };
    MachineFacts {
        release: "1.0.0".to_owned(),
        now_ms: 1_000,
        ahead_ms: Some(0),
        clock_synchronised: Some(true),
        open_files: Some(1 << 20),
        processes: None,
        memory: 64 << 30,
        memory_limit: None,
        overcommit: Some(0),
        shared_memory: Some(room),
        disks: vec![DiskFacts {
            folder: PathBuf::from("/data"),
            room: Ok(room),
            files_free: Some(1 << 20),
            writable: true,
        }],
        udp: Ok(()),
        socket_bytes: vec![16 << 20, 8 << 20],
        interfaces: vec![Interface {
            name: "eth0".to_owned(),
            mtu: 1500,
            leads_out: true,
        }],
        fuse: true,
        ptrace_scope: Some(1),
        superuser: true,
        py_spy: true,
        api_port: Some(Ok(())),
        slow_governor: None,
        driver: Some("580.1".to_owned()),
        devices: Ok(vec![DeviceState {
            model: "NVIDIA H200".to_owned(),
            memory: Some(140 << 30),
            lost: None,
            lost_bits: Some(0),
            celsius: Some(40),
            held_by: vec![],
        }]),
        unusable: vec![],
    }
}

fn wrong(facts: &MachineFacts) -> Vec<Check> {
    let checks = examine(facts).into_iter();
    checks.filter(|it| it.fitness != Fitness::Good).collect()
}

#[test]
fn a_sound_machine_has_nothing_to_change() {
    assert_eq!(wrong(&sound()), []);
    for check in examine(&sound()) {
        assert_eq!(check.advice, None, "{check:?}");
    }
}

type Damage = fn(&mut MachineFacts);

/// SEMANTICS 157. Each damage is found by one check, with words of what was found and what to change.
#[test]
fn each_damage_is_named_with_what_to_change() {
    let damages: &[(Damage, Fitness, &str, &str, &str)] = &[
        (
            |it| it.open_files = Some(1024),
            Fitness::Bad,
            "open files",
            "1024",
            "ulimit -n",
        ),
        (
            |it| it.open_files = Some(4096),
            Fitness::Doubtful,
            "open files",
            "4096",
            "LimitNOFILE",
        ),
        (
            |it| it.processes = Some(100),
            Fitness::Doubtful,
            "processes",
            "100",
            "ulimit -u",
        ),
        (
            |it| it.overcommit = Some(2),
            Fitness::Doubtful,
            "memory",
            "refuses",
            "overcommit_memory=0",
        ),
        (
            |it| {
                it.shared_memory = Some(DiskRoom {
                    free: 64 << 20,
                    all: 64 << 20,
                });
            },
            Fitness::Doubtful,
            "/dev/shm",
            "64",
            "--shm-size",
        ),
        (
            |it| it.disks[0].room = Err("not a folder".to_owned()),
            Fitness::Bad,
            "disk of /data",
            "not a folder",
            "--dir",
        ),
        (
            |it| it.disks[0].writable = false,
            Fitness::Bad,
            "disk of /data",
            "cannot be written",
            "right",
        ),
        (
            |it| {
                it.disks[0].room = Ok(DiskRoom {
                    free: 1 << 20,
                    all: 1 << 40,
                });
            },
            Fitness::Bad,
            "disk of /data",
            "free of",
            "make room",
        ),
        (
            |it| {
                it.disks[0].room = Ok(DiskRoom {
                    free: 4 << 30,
                    all: 100 << 30,
                });
            },
            Fitness::Doubtful,
            "disk of /data",
            "free of",
            "5 %",
        ),
        (
            |it| (it.disks[0].files_free, it.disks[0].writable) = (Some(0), false),
            Fitness::Bad,
            "disk of /data",
            "no more files",
            "remove files",
        ),
        (
            |it| it.clock_synchronised = Some(false),
            Fitness::Doubtful,
            "clock",
            "not kept",
            "set-ntp",
        ),
        (
            |it| it.udp = Err("denied".to_owned()),
            Fitness::Bad,
            "UDP",
            "denied",
            "QUIC",
        ),
        (
            |it| it.interfaces[0].mtu = 576,
            Fitness::Bad,
            "network eth0",
            "576",
            "ip link set eth0 mtu",
        ),
        (
            |it| it.socket_bytes[1] = 212_992,
            Fitness::Doubtful,
            "socket buffers",
            "at most",
            "wmem_max=4194304",
        ),
        (
            |it| it.fuse = false,
            Fitness::Doubtful,
            "/dev/fuse",
            "cannot be opened",
            "fuse3",
        ),
        (
            |it| it.superuser = false,
            Fitness::Doubtful,
            "stacks",
            "ptrace_scope = 1",
            "CAP_SYS_PTRACE",
        ),
        (
            |it| it.py_spy = false,
            Fitness::Doubtful,
            "stacks",
            "no py-spy",
            "pip install",
        ),
        (
            |it| it.api_port = Some(Err("taken".to_owned())),
            Fitness::Doubtful,
            "port 7433",
            "taken",
            "--api",
        ),
        (
            |it| it.ptrace_scope = Some(3),
            Fitness::Doubtful,
            "stacks",
            "ptrace_scope = 3",
            "set that to 1",
        ),
        (
            |it| it.slow_governor = Some("powersave".to_owned()),
            Fitness::Doubtful,
            "processor's clock",
            "powersave",
            "cpupower",
        ),
        (
            |it| it.unusable = vec!["0000:1a:00.0 (no driver)".to_owned()],
            Fitness::Doubtful,
            "devices",
            "1a:00.0",
            "driver",
        ),
        (
            |it| device(it).lost = Some("fell off the bus".to_owned()),
            Fitness::Bad,
            "device 0",
            "fell off",
            "reset",
        ),
        (
            |it| device(it).lost_bits = Some(3),
            Fitness::Bad,
            "device 0",
            "3 memory errors",
            "out of service",
        ),
        (
            |it| device(it).celsius = Some(91),
            Fitness::Doubtful,
            "device 0",
            "91 °C",
            "cool",
        ),
        (
            |it| device(it).held_by = vec![71, 72],
            Fitness::Doubtful,
            "device 0",
            "71, 72",
            "end that",
        ),
    ];
    for (damage, fitness, what, found, advice) in damages {
        let mut facts = sound();
        damage(&mut facts);
        let checks = wrong(&facts);
        let [check] = checks.as_slice() else {
            panic!("{what} {found}: {checks:?}");
        };
        assert_eq!((check.fitness, check.what.as_str()), (*fitness, *what));
        assert!(check.found.contains(found), "{check:?}");
        assert!(
            check.advice.as_ref().is_some_and(|it| it.contains(advice)),
            "{check:?}"
        );
    }
}

fn device(facts: &mut MachineFacts) -> &mut DeviceState {
    facts
        .devices
        .as_mut()
        .map(|devices| &mut devices[0])
        .expect("a device")
}

/// SEMANTICS 157. A machine without devices, or one that does not tell something, is no worse for it.
#[test]
fn what_is_not_there_or_not_told_is_not_blamed() {
    let mut facts = sound();
    facts.devices = Err("no driver".to_owned());
    facts.driver = None;
    facts.clock_synchronised = None;
    facts.shared_memory = None;
    facts.open_files = None;
    facts.interfaces.clear();
    facts.socket_bytes.clear();
    facts.ptrace_scope = None;
    assert_eq!(wrong(&facts), []);
}

#[test]
fn machines_are_compared_with_each_other() {
    let two = |change: Damage| {
        let mut other = sound();
        change(&mut other);
        compare(&[("a".to_owned(), sound()), ("b".to_owned(), other)])
    };
    let good = two(|_| {});
    assert_eq!(good.len(), 4, "{good:?}");
    assert!(
        good.iter().all(|it| it.fitness == Fitness::Good),
        "{good:?}"
    );
    let changes: &[(Damage, &str, &str)] = &[
        (
            |it| it.ahead_ms = Some(-2_500),
            "clocks",
            "`a` is 2500 ms before `b`",
        ),
        (
            |it| it.interfaces[0].mtu = 9000,
            "MTU",
            "1500 on `a`, 9000 on `b`",
        ),
        (
            |it| it.driver = Some("570.2".to_owned()),
            "driver",
            "580.1 on `a`, 570.2 on `b`",
        ),
        (
            |it| it.release = "1.1.0".to_owned(),
            "release",
            "1.0.0 on `a`, 1.1.0 on `b`",
        ),
    ];
    for (change, what, found) in changes {
        let checks = two(*change).into_iter();
        let odd: Vec<Check> = checks.filter(|it| it.fitness != Fitness::Good).collect();
        assert!(
            matches!(odd.as_slice(), [one] if one.what == *what && one.found == *found && one.advice.is_some()),
            "{odd:?}"
        );
    }
    assert_eq!(compare(&[("alone".to_owned(), sound())]), []);
    // One without devices has no driver to differ in.
    assert_eq!(two(|it| it.driver = None).len(), 3);
}
