//! Reading regions of other processes in place.

use std::{
    collections::HashMap,
    fmt, io,
    ops::Deref,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::{
    RegionName,
    mapping::Mapping,
    slab::{HEADER, open_foreign, owner_keeps},
};

/// Maps regions by name, one mmap per slab; from then on a hand-over is a table look-up.
///
/// A mapped slab stays until its owner has let go of it and no [`Mapped`] is left in it
/// ([`Self::sweep`], also done whenever a new slab is mapped), or until [`Self::forget`].
#[derive(Debug, Default)]
pub struct Mapper {
    slabs: RwLock<HashMap<SlabKey, Arc<Foreign>>>,
}

/// Owner's process id and the slab's identity.
type SlabKey = (u32, u64);

#[derive(Debug)]
struct Foreign {
    mapping: Mapping,
    fd: i32,
}

impl Mapper {
    /// A mapper that has mapped nothing yet. One per process is enough.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the bytes of a region, which its owner must keep alive while the result is used (it
    /// holds a lease for this process; see [`Leases`](crate::Leases)).
    ///
    /// Takes less than a microsecond when the region was mapped before. The first touch of a slab
    /// costs some system calls, and the first touch of each 2 MiB the filling of page tables: up to
    /// 70 ms per GiB where the system gives no huge pages, so async code tries
    /// [`Self::map_if_warm`] first and calls this on a thread that may block.
    ///
    /// # Errors
    ///
    /// [`MapError`]; nothing was mapped.
    pub fn map(&self, name: &RegionName) -> Result<Mapped, MapError> {
        let slab = match self.known(name) {
            Some(slab) => slab,
            None => self.map_slab(name)?,
        };
        let mapped = Mapped::check(slab, name)?;
        mapped
            .slab
            .mapping
            .populate(mapped.start..mapped.end)
            .map_err(|errno| MapError::Os {
                doing: "reading a slab",
                source: errno.into(),
            })?;
        Ok(mapped)
    }

    /// [`Self::map`] if it takes no system call and no page fault, else `None`. Never blocks for
    /// long.
    ///
    /// # Errors
    ///
    /// [`MapError`]; nothing was mapped.
    pub fn map_if_warm(&self, name: &RegionName) -> Result<Option<Mapped>, MapError> {
        let Some(slab) = self.known(name) else {
            return Ok(None);
        };
        let mapped = Mapped::check(slab, name)?;
        let warm = mapped.slab.mapping.is_populated(mapped.start..mapped.end);
        Ok(warm.then_some(mapped))
    }

    /// Lets go of all slabs of a process, after its death. [`Mapped`] views of them stay valid: the
    /// memory is returned when the last one is dropped. Gives the number of slabs let go of.
    pub fn forget(&self, owner_pid: u32) -> usize {
        self.remove_where(|(pid, _), _| *pid == owner_pid)
    }

    /// Lets go of slabs that their owner has given up and in which no view is left. Gives their
    /// number.
    pub fn sweep(&self) -> usize {
        self.remove_where(|(pid, id), slab| {
            Arc::strong_count(slab) == 1 && !owner_keeps(*pid, slab.fd, *id)
        })
    }

    /// The memory that is mapped at present.
    pub fn stats(&self) -> MapperStats {
        let slabs = self.slabs.read();
        let bytes = slabs.values().map(|slab| slab.mapping.len() as u64).sum();
        MapperStats {
            slabs: slabs.len(),
            bytes,
        }
    }

    fn known(&self, name: &RegionName) -> Option<Arc<Foreign>> {
        self.slabs.read().get(&(name.owner_pid, name.slab)).cloned()
    }

    fn map_slab(&self, name: &RegionName) -> Result<Arc<Foreign>, MapError> {
        let slab = Arc::new(Foreign {
            mapping: open_foreign(name)?,
            fd: name.fd,
        });
        self.sweep();
        let key = (name.owner_pid, name.slab);
        // Another thread may have mapped it meanwhile; all views then share the first mapping.
        Ok(Arc::clone(self.slabs.write().entry(key).or_insert(slab)))
    }

    fn remove_where(&self, mut gone: impl FnMut(&SlabKey, &Arc<Foreign>) -> bool) -> usize {
        let removed: Vec<_> = self
            .slabs
            .write()
            .extract_if(|key, slab| gone(key, slab))
            .collect();
        // Unmapping takes its time and happens here, after the table is free again.
        removed.len()
    }
}

/// The memory that a [`Mapper`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapperStats {
    /// Slabs of other processes that are mapped.
    pub slabs: usize,
    /// Address space that they take; memory is shared with the owners.
    pub bytes: u64,
}

/// The bytes of another process's region, in place. Cheap to clone; becomes [`Bytes`] without a
/// copy.
#[derive(Clone)]
pub struct Mapped {
    slab: Arc<Foreign>,
    start: usize,
    end: usize,
}

impl Mapped {
    /// A view of what `name` means, if it is still that.
    fn check(slab: Arc<Foreign>, name: &RegionName) -> Result<Self, MapError> {
        let (start, end) = check_range(name, slab.mapping.len())?;
        if slab.mapping.word(start - HEADER).load(Ordering::Acquire) != name.region {
            return Err(MapError::Stale { name: *name });
        }
        Ok(Self { slab, start, end })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked against the sealed size, and the owner does not write to a
        // sealed region while we hold a lease on it, which `Mapper::map` asks for.
        unsafe { self.slab.mapping.bytes(self.start..self.end) }
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Mapped> for Bytes {
    fn from(mapped: Mapped) -> Self {
        Self::from_owner(mapped)
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Why a region could not be read in place. Nothing was mapped in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The owner has exited. The bytes are lost, unless another copy exists.
    #[error("process {} is gone, and with it {name}", name.owner_pid)]
    OwnerGone {
        /// The region that was asked for.
        name: RegionName,
    },
    /// The owner lives but has freed the region: the name was used without a lease, or after its
    /// release.
    #[error("stale name: {name} was freed by its owner; names are valid only while leased")]
    Stale {
        /// The region that was asked for.
        name: RegionName,
    },
    /// The owner did not seal its slab, so it could take the bytes away while they are read.
    #[error("refused to map {name}: its slab lacks the seals {missing}")]
    Unsealed {
        /// The region that was asked for.
        name: RegionName,
        /// Seals that are missing, by name.
        missing: String,
    },
    /// The name does not lie inside its slab: it is damaged or forged.
    #[error("refused to map {name}: the slab has {slab_len} bytes")]
    OutOfRange {
        /// The region that was asked for.
        name: RegionName,
        /// Bytes of the slab.
        slab_len: u64,
    },
    /// Memory that several processes write could not be had: its owner is gone, or the name means
    /// something else by now.
    #[error("{doing} the shared memory of a {what} failed")]
    Shared {
        /// The step that failed.
        doing: &'static str,
        /// The purpose of the memory.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refused: another user's process, no descriptors or address space left.
    #[error("{doing} failed")]
    Os {
        /// The step that failed.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Start and end of the region, if a header and the payload lie inside a slab of `slab_len`.
fn check_range(name: &RegionName, slab_len: usize) -> Result<(usize, usize), MapError> {
    let wrong = MapError::OutOfRange {
        name: *name,
        slab_len: slab_len as u64,
    };
    let start = usize::try_from(name.offset).ok();
    let end = name
        .offset
        .checked_add(name.len)
        .and_then(|end| usize::try_from(end).ok());
    match (start, end) {
        (Some(start), Some(end))
            if start >= HEADER && start.is_multiple_of(HEADER) && end <= slab_len =>
        {
            Ok((start, end))
        }
        _ => Err(wrong),
    }
}
