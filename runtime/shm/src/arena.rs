//! The owner's side: regions in pooled slabs, within a quota.

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::{Deref, DerefMut, Range},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    RegionName,
    mapping::CHUNK,
    slab::{HEADER, Slab, unique},
    space::Space,
};

/// Hands out regions of shared memory. Cheap to clone; all clones share pool and quota.
///
/// Regions up to an eighth of [`ArenaOptions::slab_bytes`] share slabs; larger ones get a slab of
/// their own from a few size classes, so that a stream of similar blobs reuses the same, already
/// faulted-in memory.
#[derive(Clone, Debug)]
pub struct Arena {
    shared: Arc<Shared>,
}

/// Bounds of an [`Arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaOptions {
    /// Bytes of regions that may be alive at a time (each counted in whole cache lines). Default
    /// 1 GiB.
    pub quota_bytes: u64,
    /// Memory in slabs without any region that is kept for reuse; beyond it, slabs are unmapped.
    /// Default 512 MiB: enough for the next weight version while the last one is still read.
    pub warm_bytes: u64,
    /// Size of the slabs that small regions share. Default 32 MiB.
    pub slab_bytes: u64,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self {
            quota_bytes: 1 << 30,
            warm_bytes: 512 << 20,
            slab_bytes: 32 << 20,
        }
    }
}

/// Where the first byte of a region may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Align {
    /// Multiples of 64 bytes: widest vector loads, no false sharing.
    CacheLine,
    /// Multiples of 4 KiB: what device drivers want for pinning.
    Page,
}

impl Align {
    /// The alignment that suits a region of `len` bytes.
    fn of(len: usize) -> Self {
        if len < (64 << 10) {
            Self::CacheLine
        } else {
            Self::Page
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::CacheLine => HEADER,
            Self::Page => 4096,
        }
    }
}

/// Why an [`Arena`] gave no region. Nothing was taken in any case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// Too many bytes are alive. Wait until readers have dropped theirs, or raise the quota.
    #[error(
        "shared memory quota exceeded: asked for {} with {} of {} in use; \
         {}", Size(*asked), Size(*used), Size(*quota), advice(*asked, *quota)
    )]
    QuotaExceeded {
        /// Bytes of the region that was asked for.
        asked: u64,
        /// Bytes of the regions that are alive.
        used: u64,
        /// The arena's bound.
        quota: u64,
    },
    /// The system gave no memory, address space or descriptor.
    #[error("the system gave no shared memory for {}", Size(*asked))]
    Os {
        /// Bytes of the region that was asked for.
        asked: u64,
        /// The error of the system.
        source: io::Error,
    },
}

/// The memory that an [`Arena`] holds at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Regions (and writers) alive.
    pub regions: usize,
    /// Their bytes, as counted against the quota.
    pub used_bytes: u64,
    /// The bound on `used_bytes`.
    pub quota_bytes: u64,
    /// Slabs that exist.
    pub slabs: usize,
    /// Memory that all slabs occupy.
    pub held_bytes: u64,
    /// Part of `held_bytes` in slabs without any region.
    pub warm_bytes: u64,
}

impl Arena {
    /// An empty arena. Takes memory when the first region is made.
    #[must_use]
    pub fn new(options: ArenaOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                options,
                pool: Mutex::default(),
            }),
        }
    }

    /// Gives `len` bytes to write to, page aligned from 64 KiB on. Their content is unspecified:
    /// whatever the last region at this place held.
    ///
    /// Takes microseconds in warm memory; fresh memory is faulted in here, at some GB/s.
    ///
    /// # Errors
    ///
    /// [`ArenaError`]: over quota, or no memory.
    pub fn writer(&self, len: usize) -> Result<BlobWriter, ArenaError> {
        self.writer_aligned(len, Align::of(len))
    }

    /// [`Self::writer`] with a chosen alignment.
    ///
    /// # Errors
    ///
    /// [`ArenaError`]: over quota, or no memory.
    pub fn writer_aligned(&self, len: usize, align: Align) -> Result<BlobWriter, ArenaError> {
        let charge = self.charge(len)?;
        let failed = |errno: Errno| ArenaError::Os {
            asked: len as u64,
            source: errno.into(),
        };
        let place = self.shared.place(len, align).map_err(failed)?;
        if let Err(errno) = place.slab.mapping.populate(place.range.clone()) {
            self.shared.give_back(&place);
            return Err(failed(errno));
        }
        Ok(self.begin(place, len, charge))
    }

    /// Copies `bytes` into a new region.
    ///
    /// # Errors
    ///
    /// [`ArenaError`]: over quota, or no memory.
    pub fn copy_in(&self, bytes: &[u8]) -> Result<Region, ArenaError> {
        let mut writer = self.writer(bytes.len())?;
        writer.copy_from_slice(bytes);
        Ok(writer.seal())
    }

    /// Faults in memory for a region of `len` bytes, so that the first one runs at full speed. It
    /// is kept as far as [`ArenaOptions::warm_bytes`] allows.
    ///
    /// # Errors
    ///
    /// [`ArenaError`]: over quota, or no memory.
    pub fn warm_up(&self, len: usize) -> Result<(), ArenaError> {
        self.writer(len).map(drop)
    }

    /// The present moment, for [`Self::cool`] at a later one.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.shared.pool.lock().next_tick()
    }

    /// Gives memory back that has had no region since a moment, however much may be kept.
    pub fn cool(&self, since: u64) {
        let cold = self.shared.pool.lock().unused_since(since);
        // Without the lock, since unmapping takes a while.
        drop(cold);
    }

    /// The memory that the arena holds at present.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        let pool = self.shared.pool.lock();
        let held = |entry: &Entry| entry.slab.mapping.populated_bytes() as u64;
        ArenaStats {
            regions: pool.regions,
            used_bytes: pool.used,
            quota_bytes: self.shared.options.quota_bytes,
            slabs: pool.slabs.len(),
            held_bytes: pool.slabs.values().map(held).sum(),
            warm_bytes: pool
                .slabs
                .values()
                .filter(|e| e.space.is_unused())
                .map(held)
                .sum(),
        }
    }

    fn begin(&self, place: Place, len: usize, charge: Charge) -> BlobWriter {
        let shared = Arc::clone(&self.shared);
        BlobWriter {
            block: Block {
                shared,
                place,
                len,
                id: unique(),
                _charge: charge,
            },
        }
    }

    fn charge(&self, len: usize) -> Result<Charge, ArenaError> {
        let asked = len as u64;
        let quota = self.shared.options.quota_bytes;
        let mut pool = self.shared.pool.lock();
        let used = pool.used;
        match asked.max(1).checked_next_multiple_of(HEADER as u64) {
            Some(bytes) if bytes <= quota.saturating_sub(used) => {
                pool.used += bytes;
                pool.regions += 1;
                Ok(Charge {
                    shared: Arc::clone(&self.shared),
                    bytes,
                })
            }
            _ => Err(ArenaError::QuotaExceeded { asked, used, quota }),
        }
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new(ArenaOptions::default())
    }
}

/// Bytes being written: exclusive to their writer and invisible to others until [`Self::seal`].
/// Dropped without sealing, the space goes back.
pub struct BlobWriter {
    block: Block,
}

impl BlobWriter {
    /// Shortens the region to `len` bytes, when less was written than was asked for. Its space and
    /// its share of the quota stay as they were.
    ///
    /// # Panics
    ///
    /// If `len` is more than the present length.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.block.len, "{len} bytes of {}", self.block.len);
        self.block.len = len;
    }

    /// Ends writing; from here on the bytes never change.
    #[must_use]
    pub fn seal(self) -> Region {
        let Block { place, id, .. } = &self.block;
        place.slab.publish(place.payload_start(), *id);
        Region {
            block: Arc::new(self.block),
        }
    }
}

impl Deref for BlobWriter {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.bytes()
    }
}

impl DerefMut for BlobWriter {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocator gave the block to this writer alone, and readers learn of it only
        // when the writer is consumed.
        unsafe {
            self.block
                .place
                .slab
                .mapping
                .bytes_mut(self.block.payload())
        }
    }
}

impl fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobWriter")
            .field("len", &self.block.len)
            .finish_non_exhaustive()
    }
}

/// Sealed bytes in shared memory. Cheap to clone; becomes [`Bytes`] without a copy.
///
/// The space goes back to the arena when the last clone is dropped. A process that other processes
/// read from keeps one clone for them in its [`Leases`](crate::Leases).
#[derive(Clone)]
pub struct Region {
    block: Arc<Block>,
}

impl Region {
    /// The name by which another process reads this region in place.
    #[must_use]
    pub fn name(&self) -> RegionName {
        let Block { place, len, id, .. } = &*self.block;
        place.slab.name(*id, place.payload_start(), *len)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.bytes()
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Region> for Bytes {
    fn from(region: Region) -> Self {
        Self::from_owner(region)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("name", &self.name())
            .finish()
    }
}

/// The space of one region; gives it back on drop.
struct Block {
    shared: Arc<Shared>,
    place: Place,
    len: usize,
    id: u64,
    /// Released after the space, so that a freed quota always finds it.
    _charge: Charge,
}

impl Block {
    fn payload(&self) -> Range<usize> {
        let start = self.place.payload_start();
        start..start + self.len
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the block is ours until drop, and writing needs `&mut` of its only writer.
        unsafe { self.place.slab.mapping.bytes(self.payload()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.place.slab.retract(self.place.payload_start());
        self.shared.give_back(&self.place);
    }
}

/// A share of the quota; given back on drop.
struct Charge {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut pool = self.shared.pool.lock();
        pool.used -= self.bytes;
        pool.regions -= 1;
    }
}

/// A block of a slab, header first.
struct Place {
    slab: Arc<Slab>,
    key: u64,
    range: Range<usize>,
}

impl Place {
    fn payload_start(&self) -> usize {
        self.range.start + HEADER
    }
}

#[derive(Debug)]
struct Shared {
    options: ArenaOptions,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// By age: placing tries the oldest first, so that the youngest run empty and can go.
    slabs: BTreeMap<u64, Entry>,
    /// Counts events; orders slabs by age and by last use.
    tick: u64,
    used: u64,
    regions: usize,
}

#[derive(Debug)]
struct Entry {
    slab: Arc<Slab>,
    space: Space,
    use_for: Use,
    /// When the last region in it was given back.
    unused_since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Many small regions.
    Shared,
    /// One large region at a time.
    Single,
}

impl Shared {
    /// Finds space in the pool or makes a slab. System calls run without the lock.
    fn place(&self, len: usize, align: Align) -> Result<Place, Errno> {
        if let Some(place) = self.place_in_pool(len, align) {
            return Ok(place);
        }
        let (use_for, shared_len) = self.use_for(len);
        let slab_len = match use_for {
            Use::Shared => shared_len.max(CHUNK),
            // Room for the header and, in front of it, for a page-aligned payload.
            Use::Single => len
                .checked_add(2 * 4096)
                .and_then(size_class)
                .ok_or(Errno::NOMEM)?,
        };
        let slab = Arc::new(Slab::create(slab_len)?);
        let mut space = Space::new(slab.mapping.len());
        let range = space.take(len, align.bytes(), HEADER).ok_or(Errno::NOMEM)?;
        let mut pool = self.pool.lock();
        let key = pool.next_tick();
        let entry = Entry {
            slab: Arc::clone(&slab),
            space,
            use_for,
            unused_since: key,
        };
        pool.slabs.insert(key, entry);
        Ok(Place { slab, key, range })
    }

    fn place_in_pool(&self, len: usize, align: Align) -> Option<Place> {
        self.pool
            .lock()
            .take(self.use_for(len).0, len, align.bytes())
    }

    /// Which slabs suit a region of `len` bytes, and how large the shared ones are.
    fn use_for(&self, len: usize) -> (Use, usize) {
        let shared_len = usize::try_from(self.options.slab_bytes).unwrap_or(usize::MAX);
        (
            if len <= shared_len / 8 {
                Use::Shared
            } else {
                Use::Single
            },
            shared_len,
        )
    }

    fn give_back(&self, place: &Place) {
        let mut pool = self.pool.lock();
        let now = pool.next_tick();
        let Some(entry) = pool.slabs.get_mut(&place.key) else {
            return;
        };
        entry.space.give(place.range.clone());
        if entry.space.is_unused() {
            entry.unused_since = now;
            let cold = pool.trim(self.options.warm_bytes);
            // Unmapping a large slab takes milliseconds; others need not wait for it.
            drop(pool);
            drop(cold);
        }
    }
}

impl Pool {
    fn take(&mut self, use_for: Use, len: usize, align: usize) -> Option<Place> {
        let suits = |entry: &Entry| match use_for {
            Use::Shared => true,
            // A slab much too large is kept for those who need it.
            Use::Single => {
                let slab_len = entry.slab.mapping.len();
                entry.space.is_unused() && len < slab_len && slab_len / 2 <= len.max(CHUNK)
            }
        };
        let mut fitting: Vec<(u64, usize)> = self
            .slabs
            .iter()
            .filter(|(_, entry)| entry.use_for == use_for && suits(entry))
            .map(|(&key, entry)| (key, entry.slab.mapping.len()))
            .collect();
        fitting.sort_by_key(|&(key, slab_len)| (slab_len, key));
        fitting.into_iter().find_map(|(key, _)| {
            let entry = self.slabs.get_mut(&key)?;
            let range = entry.space.take(len, align, HEADER)?;
            Some(Place {
                slab: Arc::clone(&entry.slab),
                key,
                range,
            })
        })
    }

    /// Takes unused slabs out of the pool until those left occupy no more than `warm_bytes`. Those
    /// used last stay: when sizes change, the pool follows.
    fn trim(&mut self, warm_bytes: u64) -> Vec<Entry> {
        let mut unused: Vec<(u64, u64, u64)> = self
            .slabs
            .iter()
            .filter(|(_, entry)| entry.space.is_unused())
            .map(|(&key, e)| (e.unused_since, key, e.slab.mapping.populated_bytes() as u64))
            .collect();
        unused.sort_unstable();
        let mut warm = 0;
        let mut cold = Vec::new();
        for (_, key, bytes) in unused.into_iter().rev() {
            warm += bytes;
            if warm > warm_bytes {
                cold.extend(self.slabs.remove(&key));
            }
        }
        cold
    }

    /// Takes the slabs out of the pool that have been unused since a moment.
    fn unused_since(&mut self, moment: u64) -> Vec<Entry> {
        let is_cold = |entry: &Entry| entry.space.is_unused() && entry.unused_since < moment;
        let cold = self.slabs.extract_if(.., |_, entry| is_cold(entry));
        cold.map(|(_, entry)| entry).collect()
    }

    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }
}

/// Rounds up to a quarter of a power of two: similar sizes share a class, and at most a fifth of
/// the address space (not of the memory) is spare.
fn size_class(len: usize) -> Option<usize> {
    let step = (len.checked_next_power_of_two()? / 8).max(CHUNK);
    len.checked_next_multiple_of(step)
}

fn advice(asked: u64, quota: u64) -> &'static str {
    if asked > quota {
        "raise the quota or write smaller pieces"
    } else {
        "drop blobs that are no longer read, wait for their readers, or raise the quota"
    }
}

/// Bytes in the unit that people read.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / *size as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests;
