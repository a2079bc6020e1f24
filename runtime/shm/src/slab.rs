//! A slab: one sealed memfd, from its owner's and from a reader's side.
//!
//! Every block in a slab starts with a header of [`HEADER`] bytes whose first word is the region's
//! identity while it is sealed and alive. Readers compare it with the name they were given.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{
        CWD, FileType, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals,
        fstat, ftruncate, memfd_create, openat, readlinkat,
    },
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::{
    MapError, RegionName,
    mapping::{Access, CHUNK, Mapping},
};

/// Bytes in front of each region: one cache line, so that payloads stay aligned to it.
pub(crate) const HEADER: usize = 64;

/// The seals that keep a reader safe: the size is fixed, no one can open it for writing, and
/// neither can be taken back.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// A slab of this process, writable through its one mapping.
#[derive(Debug)]
pub(crate) struct Slab {
    id: u64,
    fd: OwnedFd,
    pub(crate) mapping: Mapping,
}

impl Slab {
    /// Makes a slab of at least `len` bytes. No page of it is backed by memory yet.
    pub(crate) fn create(len: usize) -> Result<Self, Errno> {
        let id = unique();
        let len = len.next_multiple_of(CHUNK);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create(memfd_name(id), flags | MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3.
            Err(Errno::INVAL) => memfd_create(memfd_name(id), flags)?,
            created => created?,
        };
        ftruncate(&fd, len as u64)?;
        let mapping = Mapping::new(fd.as_fd(), len, Access::Write)?;
        fcntl_add_seals(&fd, SEALS)?;
        Ok(Self { id, fd, mapping })
    }

    /// Marks the region whose payload starts at `offset` as sealed under `region`.
    pub(crate) fn publish(&self, offset: usize, region: u64) {
        self.mapping
            .word(offset - HEADER)
            .store(region, Ordering::Release);
    }

    /// Makes every name of the region at `offset` stale.
    pub(crate) fn retract(&self, offset: usize) {
        self.mapping
            .word(offset - HEADER)
            .store(0, Ordering::Release);
    }

    pub(crate) fn name(&self, region: u64, offset: usize, len: usize) -> RegionName {
        RegionName {
            owner_pid: std::process::id(),
            slab: self.id,
            fd: self.fd.as_raw_fd(),
            region,
            offset: offset as u64,
            len: len as u64,
        }
    }
}

/// Opens the slab that `name` lies in, proves that reading it can't fault, and maps it.
pub(crate) fn open_foreign(name: &RegionName) -> Result<Mapping, MapError> {
    let fail = |doing| {
        move |errno: Errno| MapError::Os {
            doing,
            source: errno.into(),
        }
    };
    // By path only at first: opening a pipe or a device that took over the number has side effects.
    let link = format!("/proc/{}/fd/{}", name.owner_pid, name.fd);
    let handle = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| explain_open(errno, name))?;
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    if !is_slab(&link, name.slab).map_err(fail("reading a descriptor's name"))? {
        return Err(MapError::Stale { name: *name });
    }
    let fd = openat(CWD, link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(fail("opening a slab"))?;
    let stat = fstat(&fd).map_err(fail("reading a slab's size"))?;
    let seals = fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALS) || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(MapError::Unsealed {
            name: *name,
            missing: seal_names(SEALS - seals),
        });
    }
    let len = usize::try_from(stat.st_size).unwrap_or(0);
    if len == 0 || !len.is_multiple_of(CHUNK) {
        return Err(MapError::OutOfRange {
            name: *name,
            slab_len: len as u64,
        });
    }
    Mapping::new(fd.as_fd(), len, Access::Read).map_err(fail("mapping a slab"))
}

/// Seals of memory that several processes write: the size is fixed, and nothing else can be.
const SHARED_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The purpose of shared memory; part of its memfd's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Ledger,
    Gang,
    Flows,
}

impl Purpose {
    fn memfd_name(self, id: u64) -> String {
        match self {
            Self::Ledger => format!("odeon-ledger-{id:016x}"),
            Self::Gang => format!("odeon-gang-{id:016x}"),
            Self::Flows => format!("odeon-flows-{id:016x}"),
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Gang => "gang",
            Self::Flows => "record of collectives",
        }
    }
}

/// Where memory that several processes write is found: its owner, its descriptor there, and its
/// identity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedName {
    pub(crate) owner_pid: u32,
    pub(crate) fd: i32,
    pub(crate) id: u64,
}

/// Makes memory of `len` bytes, all zero, that other processes may write as well.
pub(crate) fn create_shared(
    purpose: Purpose,
    len: usize,
) -> Result<(OwnedFd, Mapping, SharedName), Errno> {
    let id = unique();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(purpose.memfd_name(id), flags)?;
    ftruncate(&fd, len as u64)?;
    fcntl_add_seals(&fd, SHARED_SEALS)?;
    let mapping = Mapping::new(fd.as_fd(), len, Access::Write)?;
    let name = SharedName {
        owner_pid: std::process::id(),
        fd: fd.as_raw_fd(),
        id,
    };
    Ok((fd, mapping, name))
}

/// Opens memory that [`create_shared`] made in another process, after proving that it can't shrink.
pub(crate) fn open_shared(
    purpose: Purpose,
    name: SharedName,
    len: usize,
) -> Result<Mapping, MapError> {
    let noun = purpose.noun();
    let fail = |doing: &'static str| {
        move |errno: Errno| MapError::Shared {
            doing,
            what: noun,
            source: errno.into(),
        }
    };
    // By path only at first: opening a pipe or a device that took over the number has side effects.
    let link = format!("/proc/{}/fd/{}", name.owner_pid, name.fd);
    let handle = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(fail("reaching the owner of"))?;
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let target =
        readlinkat(CWD, &link, Vec::new()).map_err(fail("reading the descriptor's name of"))?;
    let expected = format!("/memfd:{} (deleted)", purpose.memfd_name(name.id));
    if target.to_bytes() != expected.as_bytes() {
        return Err(fail("finding")(Errno::NOENT));
    }
    let fd = openat(CWD, link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(fail("opening"))?;
    let seals = fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
    let stat = fstat(&fd).map_err(fail("reading the size of"))?;
    if !seals.contains(SHARED_SEALS) || stat.st_size != len as i64 {
        return Err(fail("checking")(Errno::INVAL));
    }
    Mapping::new(fd.as_fd(), len, Access::Write).map_err(fail("mapping"))
}

/// Returns true while the owner has the slab under the descriptor that `name` gives.
pub(crate) fn owner_keeps(owner_pid: u32, fd: i32, slab: u64) -> bool {
    is_slab(&format!("/proc/{owner_pid}/fd/{fd}"), slab).unwrap_or(false)
}

/// A number that no other process or call has drawn: a counter behind a bijective mix, seeded at
/// random once per process. It looks random, so ordinary bytes don't equal it by accident.
pub(crate) fn unique() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let seed = SEED.get_or_init(|| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    });
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    // The finaliser of splitmix64.
    let mut x = seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn memfd_name(id: u64) -> String {
    format!("odeon-slab-{id:016x}")
}

fn is_slab(link: &str, id: u64) -> Result<bool, Errno> {
    let target = readlinkat(CWD, link, Vec::new())?;
    Ok(target.to_bytes() == format!("/memfd:{} (deleted)", memfd_name(id)).as_bytes())
}

/// Tells apart the reasons for which a descriptor of another process can't be opened.
fn explain_open(errno: Errno, name: &RegionName) -> MapError {
    match errno {
        Errno::NOENT | Errno::SRCH if is_alive(name.owner_pid) => MapError::Stale { name: *name },
        Errno::NOENT | Errno::SRCH => MapError::OwnerGone { name: *name },
        errno => MapError::Os {
            doing: "reaching a slab in its owner",
            source: errno.into(),
        },
    }
}

/// A process that has exited but was not yet reaped counts as dead.
fn is_alive(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    let mut exited = [PollFd::new(&handle, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut exited, Some(&at_once)), Ok(0))
}

fn seal_names(seals: SealFlags) -> String {
    seals
        .iter_names()
        .map(|(name, _)| name)
        .collect::<Vec<_>>()
        .join(", ")
}
