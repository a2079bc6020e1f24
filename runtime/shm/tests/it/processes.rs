//! Regions between real processes: hand-over, kill -9, dead owners, forged names, leaks.
//!
//! Each second process is this test program run again with one test and a role.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::fd::{AsFd, AsRawFd},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use odeon_shm::{Arena, ArenaError, ArenaOptions, Leases, MapError, Mapper, Region, RegionName};
use proptest::prelude::*;
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
};

const ROLE: &str = "ODEON_SHM_TEST_ROLE";
const MIB: usize = 1 << 20;

#[test]
fn a_second_process_reads_in_place() {
    if let Some(mut parent) = Parent::if_role("reader") {
        return parent.serve_as_reader();
    }
    let arena = Arena::default();
    let large = arena.copy_in(&pattern(9 * MIB)).unwrap();
    let small = arena.copy_in(b"small").unwrap();
    let mut reader = Peer::spawn("a_second_process_reads_in_place", "reader");
    assert_eq!(reader.ask(&large.name()), format!("{:x}", checksum(&large)));
    assert_eq!(reader.ask(&small.name()), format!("{:x}", checksum(&small)));

    let stale = small.name();
    drop(small);
    assert_eq!(reader.ask(&stale), "stale");
    let other = arena.copy_in(b"other").unwrap();
    assert_eq!(
        (other.name().slab, other.name().offset),
        (stale.slab, stale.offset)
    );
    assert_eq!(
        reader.ask(&stale),
        "stale",
        "the place is in use again, under another identity"
    );
    assert_eq!(reader.ask(&other.name()), format!("{:x}", checksum(&other)));
}

#[test]
fn killing_a_holder_frees_what_it_leased() {
    if let Some(mut parent) = Parent::if_role("holder") {
        return parent.serve_as_reader();
    }
    let options = ArenaOptions {
        quota_bytes: 8 << 20,
        ..ArenaOptions::default()
    };
    let arena = Arena::new(options);
    let mut leases: Leases<u64, Region> = Leases::new();
    let mut holder = Peer::spawn("killing_a_holder_frees_what_it_leased", "holder");
    let pid = u64::from(holder.child.id());
    {
        let region = arena.copy_in(&pattern(6 * MIB)).unwrap();
        leases.grant(region.name().region, pid, || region.clone());
        assert_eq!(
            holder.ask(&region.name()),
            format!("{:x}", checksum(&region))
        );
    }
    let refused = arena.writer(6 * MIB).unwrap_err();
    assert!(
        matches!(refused, ArenaError::QuotaExceeded { .. }),
        "leased bytes count: {refused}"
    );

    holder.kill();
    let freed = leases.holder_died(pid);
    assert_eq!(freed.len(), 1);
    drop(freed);
    assert!(leases.is_empty());
    assert_eq!(arena.stats().used_bytes, 0);
    arena.writer(6 * MIB).unwrap();
}

#[test]
fn bytes_outlive_their_owner_where_mapped_and_are_refused_elsewhere() {
    if let Some(mut parent) = Parent::if_role("owner") {
        let arena = Arena::default();
        let region = arena.copy_in(&pattern(3 * MIB)).unwrap();
        parent.say(&serde_json::to_string(&region.name()).unwrap());
        parent.hear();
        return;
    }
    let mut owner = Peer::spawn(
        "bytes_outlive_their_owner_where_mapped_and_are_refused_elsewhere",
        "owner",
    );
    let name: RegionName = serde_json::from_str(&owner.hear()).unwrap();
    let mapper = Mapper::new();
    let mapped = mapper.map(&name).unwrap();
    assert_eq!(mapper.stats().slabs, 1);

    owner.child.kill().unwrap();
    // Dead, but until `wait` a zombie: both must read as gone.
    let gone = |mapper: &Mapper| matches!(mapper.map(&name), Err(MapError::OwnerGone { .. }));
    crate::eventually("the end of the owner", || gone(&Mapper::new()));
    owner.child.wait().unwrap();
    assert!(gone(&Mapper::new()));

    assert_eq!(mapper.forget(name.owner_pid), 1);
    assert_eq!(mapper.stats().bytes, 0);
    assert_eq!(&mapped[..], pattern(3 * MIB));
    assert!(gone(&mapper));
}

#[test]
fn a_slab_is_dropped_once_its_owner_and_all_views_have_let_go() {
    let arena = Arena::new(ArenaOptions {
        warm_bytes: 0,
        ..ArenaOptions::default()
    });
    let mapper = Mapper::new();
    let region = arena.copy_in(b"soon gone").unwrap();
    let mapped = mapper.map(&region.name()).unwrap();
    assert_eq!(mapper.sweep(), 0, "the owner keeps it");
    drop(region);
    assert_eq!(mapper.sweep(), 0, "a view is left");
    drop(mapped);
    assert_eq!(mapper.sweep(), 1);
    assert_eq!(mapper.stats().slabs, 0);
}

#[test]
fn slabs_that_could_shrink_or_change_are_refused() {
    let id = 0xabcd_u64;
    let make = |seals: SealFlags, len: u64| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(format!("odeon-slab-{id:016x}"), flags).unwrap();
        ftruncate(&fd, len).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let map = |fd: &dyn AsFd| {
        let fd = fd.as_fd().as_raw_fd();
        let owner_pid = std::process::id();
        Mapper::new().map(&RegionName {
            owner_pid,
            slab: id,
            fd,
            region: 0,
            offset: 64,
            len: 9,
        })
    };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    for missing in [
        SealFlags::SHRINK,
        SealFlags::GROW,
        SealFlags::FUTURE_WRITE,
        SealFlags::SEAL,
    ] {
        let error = map(&make(all - missing, 2 << 20)).unwrap_err();
        assert!(matches!(&error, MapError::Unsealed { .. }), "{error}");
        assert!(error.to_string().contains("lacks the seals "), "{error}");
    }
    for len in [0, 64, 4096, (2 << 20) - 1] {
        assert!(matches!(
            map(&make(all, len)),
            Err(MapError::OutOfRange { .. })
        ));
    }
    map(&make(all, 2 << 20)).unwrap();
    // Something else under the descriptor: never opened, whatever it is.
    let (pipe, _write) = rustix::pipe::pipe().unwrap();
    assert!(matches!(map(&pipe), Err(MapError::Stale { .. })));
}

#[test]
fn no_one_else_can_open_a_slab_for_writing() {
    let region = Arena::default().copy_in(b"read only").unwrap();
    let RegionName { owner_pid, fd, .. } = region.name();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{owner_pid}/fd/{fd}"));
    let Ok(mut file) = file else { return };
    file.write_all(b"x").unwrap_err();
    file.set_len(0).unwrap_err();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping; it is expected to be refused.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            4096,
            access,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    mapped.unwrap_err();
    assert_eq!(&region[..], b"read only");
}

#[test]
fn nothing_is_left_open_or_mapped() {
    if let Some(mut parent) = Parent::if_role("leaks") {
        let holdings = || {
            let fds = fs::read_dir("/proc/self/fd").unwrap().count();
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            (fds, maps.matches("odeon-slab").count())
        };
        let before = holdings();
        for round in 0..20usize {
            let arena = Arena::new(ArenaOptions {
                warm_bytes: 4 << 20,
                ..ArenaOptions::default()
            });
            let mapper = Mapper::new();
            let regions: Vec<Region> = (0..8)
                .map(|i| arena.copy_in(&pattern(i * (MIB + round))).unwrap())
                .collect();
            let mapped: Vec<_> = regions
                .iter()
                .map(|region| mapper.map(&region.name()).unwrap())
                .collect();
            let forged = RegionName {
                slab: 1,
                ..regions[0].name()
            };
            mapper.map(&forged).unwrap_err();
            assert!(holdings().1 > before.1);
            drop((arena, regions));
            assert_eq!(mapped[3].len(), 3 * (MIB + round));
        }
        let after = holdings();
        parent.say(if after == before { "clean" } else { "leaked" });
        return;
    }
    assert_eq!(
        Peer::spawn("nothing_is_left_open_or_mapped", "leaks").hear(),
        "clean"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any damaged name is refused, or still means bytes inside the slab; it never kills a reader.
    #[test]
    fn damaged_names_are_harmless(
        fields in prop::collection::vec((0usize..6, any::<u64>(), 0u32..64), 1..4),
        flip in any::<bool>(),
    ) {
        let region = Arena::default().copy_in(&pattern(70_000)).unwrap();
        let mapper = Mapper::new();
        mapper.map(&region.name()).unwrap();
        let mut name = region.name();
        for (field, value, bit) in fields {
            let change = |old: u64| if flip { old ^ (1 << bit) } else { value >> bit };
            match field {
                0 => name.owner_pid = change(name.owner_pid.into()) as u32,
                1 => name.slab = change(name.slab),
                2 => name.fd = change(name.fd as u64) as i32,
                3 => name.region = change(name.region),
                4 => name.offset = change(name.offset),
                _ => name.len = change(name.len),
            }
        }
        match mapper.map(&name) {
            Ok(mapped) => {
                prop_assert_eq!((name.slab, name.region), (region.name().slab, region.name().region));
                checksum(&mapped);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        checksum(&mapper.map(&region.name()).unwrap());
    }
}

/// The other end of a test in a second process; killed and reaped when dropped.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    fn spawn(test: &str, role: &str) -> Self {
        let mut child = crate::again(module_path!(), test)
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdin,
            stdout,
        }
    }

    fn ask(&mut self, name: &RegionName) -> String {
        let line = serde_json::to_string(name).unwrap() + "\n";
        self.stdin.write_all(line.as_bytes()).unwrap();
        self.hear()
    }

    /// The next line that the peer says; the test harness also writes to its output.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.stdout.read_line(&mut line).unwrap(),
                0,
                "the peer has ended"
            );
            if let Some(said) = line.strip_prefix("say ") {
                return said.trim_end().to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The second process's view of the first.
struct Parent;

impl Parent {
    fn if_role(role: &str) -> Option<Self> {
        (env::var(ROLE).ok()? == role).then_some(Self)
    }

    fn say(&mut self, line: &str) {
        println!("\nsay {line}");
    }

    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        (std::io::stdin().read_line(&mut line).unwrap() > 0).then_some(line)
    }

    /// Answers each name with the checksum of its bytes, and keeps them mapped.
    fn serve_as_reader(&mut self) {
        let mapper = Mapper::new();
        let mut kept = Vec::new();
        while let Some(line) = self.hear() {
            match mapper.map(&serde_json::from_str(&line).unwrap()) {
                Ok(mapped) => {
                    self.say(&format!("{:x}", checksum(&mapped)));
                    kept.push(mapped);
                }
                Err(MapError::Stale { .. }) => self.say("stale"),
                Err(error) => self.say(&format!("{error:?}")),
            }
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4099) as u8).collect()
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
