//! A memfd mapped into this process: the crate's only unsafe code.
//!
//! Soundness rests on three facts, which the callers in this crate establish:
//! 1. the file can't shrink while it is mapped (`F_SEAL_SHRINK`, set or checked in `slab`);
//! 2. exclusive and shared views never overlap in a writable mapping (the `space` allocator hands
//!    out disjoint blocks, and `arena` gives `&mut` only until the block is sealed);
//! 3. a region that was sealed is not written again while anyone holds it or a lease on it.

use std::{
    ffi::c_void,
    fmt,
    ops::Range,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
};

/// Unit of populating, and the size of a huge page on x86-64. Slabs are multiples of it.
pub(crate) const CHUNK: usize = 2 << 20;

/// Which way a mapping may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A whole memfd, mapped at an address that suits huge pages, unmapped on drop.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    /// Chunks whose page tables are known to be filled, so that no one pays for them twice.
    populated: Box<[AtomicBool]>,
}

// SAFETY: the mapping is owned, stays at its address until drop, and is not tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: shared use goes through `bytes`, `bytes_mut` and `word`, whose contracts exclude races.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd`, with huge pages where the system offers them for shared memory.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self, Errno> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let base = reserve_aligned(len)?;
        // SAFETY: the target range was just reserved by us and nothing else lies in it.
        let mapped = unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(base.as_ptr().cast(), len, protection, flags, fd, 0)
        };
        if let Err(errno) = mapped {
            unmap(base.as_ptr(), len);
            return Err(errno);
        }
        let chunks = len.div_ceil(CHUNK);
        let populated = (0..chunks).map(|_| AtomicBool::new(false)).collect();
        let this = Self {
            base,
            len,
            access,
            populated,
        };
        // Refused where the kernel has no huge pages for shared memory; ordinary pages then do.
        let _refused = this.advise(0..len, Advice::LinuxHugepage);
        Ok(this)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Fills the page tables of all chunks that `range` touches, in one call instead of one fault
    /// per page. A chunk is filled once; asking again costs nothing.
    pub(crate) fn populate(&self, range: Range<usize>) -> Result<(), Errno> {
        let end = range.end.div_ceil(CHUNK).min(self.populated.len());
        let mut next = range.start / CHUNK;
        while next < end {
            let start = next;
            while next < end && !self.populated[next].load(Ordering::Relaxed) {
                next += 1;
            }
            if start < next {
                self.populate_run(start..next)?;
            }
            next += 1;
        }
        Ok(())
    }

    /// Returns true where using `range` needs no page fault, as far as this process knows.
    pub(crate) fn is_populated(&self, range: Range<usize>) -> bool {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        self.populated[chunks]
            .iter()
            .all(|chunk| chunk.load(Ordering::Relaxed))
    }

    /// Bytes in chunks that were populated: what the owner of a slab really occupies.
    pub(crate) fn populated_bytes(&self) -> usize {
        self.populated
            .iter()
            .filter(|chunk| chunk.load(Ordering::Relaxed))
            .count()
            * CHUNK
    }

    /// # Safety
    ///
    /// No one writes to `range`, in any process, while the returned borrow is used.
    pub(crate) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "view outside of its mapping"
        );
        // SAFETY: the range lies inside the live mapping, which is always initialised memory; the
        // caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    ///
    /// `range` belongs to the caller alone while the returned borrow is used.
    #[expect(
        clippy::mut_from_ref,
        reason = "disjointness is the allocator's; see the contract"
    )]
    pub(crate) unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(
            self.access == Access::Write,
            "exclusive view of a read-only mapping"
        );
        assert!(
            range.start <= range.end && range.end <= self.len,
            "view outside of its mapping"
        );
        // SAFETY: the range lies inside the live, writable mapping; the caller owns it.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(range.start), range.len()) }
    }

    /// The 8 bytes at `offset` as a word for both sides to agree on. Loads only, where the mapping
    /// is read-only.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "word outside of its mapping"
        );
        // SAFETY: in bounds and aligned (the base is page aligned); an atomic may alias with
        // anything another process does to the same word.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The 4 bytes at `offset` as a word for all sides to agree on, and to wait for.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(
            self.access == Access::Write && offset.is_multiple_of(4) && offset + 4 <= self.len,
            "word outside of its mapping"
        );
        // SAFETY: in bounds and aligned (the base is page aligned); an atomic may alias with
        // anything another process does to the same word.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn populate_run(&self, chunks: Range<usize>) -> Result<(), Errno> {
        let advice = match self.access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::Write => Advice::LinuxPopulateWrite,
        };
        let range = chunks.start * CHUNK..(chunks.end * CHUNK).min(self.len);
        loop {
            match self.advise(range.clone(), advice) {
                // Linux before 5.14 does not know the advice; pages are then faulted in on use.
                Ok(()) | Err(Errno::INVAL) => break,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        for chunk in &self.populated[chunks] {
            chunk.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range lies inside our mapping, and the advices used here keep its content.
        unsafe {
            madvise(
                self.base.as_ptr().add(range.start).cast::<c_void>(),
                range.len(),
                advice,
            )
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base.as_ptr(), self.len);
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, access, .. } = self;
        f.debug_struct("Mapping")
            .field("len", len)
            .field("access", access)
            .finish_non_exhaustive()
    }
}

/// Reserves address space of `len` bytes at a multiple of [`CHUNK`], without which no huge page
/// could be mapped.
fn reserve_aligned(len: usize) -> Result<NonNull<u8>, Errno> {
    let reserved = len + CHUNK;
    // SAFETY: a fresh private reservation without access touches nothing that exists.
    let start = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            reserved,
            ProtFlags::empty(),
            MapFlags::PRIVATE,
        )?
    }
    .cast::<u8>();
    let head = start.align_offset(CHUNK);
    // Both parts of the slack are page multiples, because `start` and `len` are.
    unmap(start, head);
    let base = start.wrapping_add(head);
    unmap(base.wrapping_add(len), CHUNK - head);
    NonNull::new(base).ok_or(Errno::NOMEM)
}

fn unmap(start: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: only called for ranges that this module mapped and to which no view exists any more.
    let done = unsafe { munmap(start.cast(), len) };
    debug_assert!(done.is_ok(), "unmapping our own range: {done:?}");
}
