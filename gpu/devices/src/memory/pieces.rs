//! Segments from the device, cut into pieces: best fit, splitting, merging.

use std::collections::{BTreeMap, BTreeSet};

use super::RawBlock;

/// Requests up to this size, in bytes, are small: they share segments with their like, so that
/// they do not leave holes between large blocks.
const SMALL_MAX: u64 = 1 << 20;
/// Small pieces are multiples of this many bytes, which is what the device aligns to.
const SMALL_GRANULE: u64 = 512;
/// Large pieces are multiples of this many bytes, so that no slivers remain between them.
const LARGE_GRANULE: u64 = 64 << 10;
/// Segments are multiples of this many bytes, the page size of the device.
const SEGMENT_GRANULE: u64 = 2 << 20;
/// Large requests below this size, in bytes, share segments.
const SHARED_MAX: u64 = 10 << 20;
/// Size of a segment that large requests share, in bytes.
const SHARED_SEGMENT: u64 = 20 << 20;

/// The size of a piece for at least this many bytes, or `None` if no device can have it.
pub(super) fn rounded(bytes: u64) -> Option<u64> {
    let granule = if bytes <= SMALL_MAX {
        SMALL_GRANULE
    } else {
        LARGE_GRANULE
    };
    bytes.checked_next_multiple_of(granule)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Small,
    Large,
}

impl Class {
    pub(super) fn of(bytes: u64) -> Self {
        if bytes <= SMALL_MAX {
            Self::Small
        } else {
            Self::Large
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Small => Self::Large,
            Self::Large => Self::Small,
        }
    }
}

/// The sizes of a new segment that holds a piece of this many bytes, the one to try first first.
/// The last is the piece itself, which fits where less than a page of the device is left.
pub(super) fn segment_sizes(bytes: u64) -> impl Iterator<Item = u64> {
    let pages = bytes.checked_next_multiple_of(SEGMENT_GRANULE);
    let shared = (Class::of(bytes) == Class::Large && bytes < SHARED_MAX).then_some(SHARED_SEGMENT);
    shared
        .into_iter()
        .chain(pages.filter(|pages| *pages > bytes))
        .chain([bytes])
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    /// Address of the segment.
    segment: u64,
    free: bool,
}

#[derive(Debug)]
struct Segment {
    raw: RawBlock,
    class: Class,
}

/// Every byte of every segment is in exactly one piece; two neighbours are never both free.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    segments: BTreeMap<u64, Segment>,
    /// By address.
    pieces: BTreeMap<u64, Piece>,
    /// Free pieces: class of the segment, bytes, address. The first that is large enough fits best.
    free: BTreeSet<(Class, u64, u64)>,
}

impl Pieces {
    /// Takes a segment from the device into the pool, all of it free.
    pub(super) fn add(&mut self, raw: RawBlock, class: Class) {
        let (address, bytes) = (raw.address, raw.bytes);
        self.segments.insert(address, Segment { raw, class });
        self.pieces.insert(
            address,
            Piece {
                bytes,
                segment: address,
                free: true,
            },
        );
        self.free.insert((class, bytes, address));
    }

    /// Takes a piece of exactly this many bytes out of a free one of this class.
    pub(super) fn take(&mut self, class: Class, bytes: u64) -> Option<u64> {
        let (_, found, address) = *self
            .free
            .range((class, bytes, 0)..)
            .next()
            .filter(|(of, ..)| *of == class)?;
        self.free.remove(&(class, found, address));
        let piece = self.pieces.get_mut(&address)?;
        piece.free = false;
        piece.bytes = bytes;
        let segment = piece.segment;
        if found > bytes {
            let rest = Piece {
                bytes: found - bytes,
                segment,
                free: true,
            };
            self.pieces.insert(address + bytes, rest);
            self.free.insert((class, rest.bytes, address + bytes));
        }
        Some(address)
    }

    /// Like [`take`](Self::take), from segments of the other class.
    pub(super) fn take_elsewhere(&mut self, bytes: u64) -> Option<u64> {
        self.take(Class::of(bytes).other(), bytes)
    }

    /// Gives a taken piece back and merges it with free neighbours of its segment.
    pub(super) fn give(&mut self, address: u64) {
        let Some(mut piece) = self.pieces.remove(&address) else {
            return;
        };
        let class = self.class(piece.segment);
        let mut start = address;
        let after = address + piece.bytes;
        if let Some(next) = self.free_at(after, piece.segment) {
            self.pieces.remove(&after);
            self.free.remove(&(class, next.bytes, after));
            piece.bytes += next.bytes;
        }
        let before = self.pieces.range(..address).next_back();
        if let Some((&before, _)) = before
            && let Some(previous) = self.free_at(before, piece.segment)
        {
            self.free.remove(&(class, previous.bytes, before));
            start = before;
            piece.bytes += previous.bytes;
        }
        piece.free = true;
        self.pieces.insert(start, piece);
        self.free.insert((class, piece.bytes, start));
    }

    /// Takes a segment that is free as a whole out of the pool, for the device to have back.
    pub(super) fn remove_unused(&mut self) -> Option<RawBlock> {
        let (class, bytes, address) = self
            .free
            .iter()
            .find(|(_, bytes, address)| {
                self.segments
                    .get(address)
                    .is_some_and(|segment| segment.raw.bytes == *bytes)
            })
            .copied()?;
        self.free.remove(&(class, bytes, address));
        self.pieces.remove(&address);
        self.segments.remove(&address).map(|segment| segment.raw)
    }

    /// Takes every segment out of the pool, used or not.
    pub(super) fn remove_all(&mut self) -> impl Iterator<Item = RawBlock> + use<> {
        self.pieces.clear();
        self.free.clear();
        std::mem::take(&mut self.segments)
            .into_values()
            .map(|segment| segment.raw)
    }

    /// Free bytes, and the largest piece of them.
    pub(super) fn free_bytes(&self) -> (u64, u64) {
        self.free
            .iter()
            .fold((0, 0), |(sum, largest), (_, bytes, _)| {
                (sum + bytes, largest.max(*bytes))
            })
    }

    fn class(&self, segment: u64) -> Class {
        self.segments
            .get(&segment)
            .map_or(Class::Large, |segment| segment.class)
    }

    fn free_at(&self, address: u64, segment: u64) -> Option<Piece> {
        self.pieces
            .get(&address)
            .copied()
            .filter(|piece| piece.free && piece.segment == segment)
    }

    /// Panics when a byte is in no piece or in two, or the free list disagrees with the pieces.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut free = BTreeSet::new();
        for (base, segment) in &self.segments {
            let end = base + segment.raw.bytes;
            let (mut at, mut was_free) = (*base, false);
            for (address, piece) in self.pieces.range(*base..end) {
                assert_eq!(
                    (*address, piece.segment),
                    (at, *base),
                    "a hole or an overlap"
                );
                assert!(!(was_free && piece.free), "free neighbours are merged");
                if piece.free {
                    free.insert((segment.class, piece.bytes, *address));
                }
                (at, was_free) = (at + piece.bytes, piece.free);
            }
            assert_eq!(at, end, "the pieces fill the segment");
        }
        assert_eq!(free, self.free);
    }
}
