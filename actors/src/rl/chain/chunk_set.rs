//! Which chunks of a version: a bit for each.

use std::ops::Range;

/// A set of the numbers below `len`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkSet {
    len: u32,
    count: u32,
    words: Vec<u64>,
}

impl ChunkSet {
    pub(super) fn new(len: u32) -> Self {
        Self {
            len,
            count: 0,
            words: vec![0; len.div_ceil(64) as usize],
        }
    }

    /// All but those of `missing`.
    pub(super) fn without(len: u32, missing: &[Range<u32>]) -> Self {
        let mut set = Self::new(len);
        for chunk in 0..len {
            set.insert(chunk);
        }
        for range in missing {
            for chunk in range.start..range.end.min(len) {
                set.remove(chunk);
            }
        }
        set
    }

    /// Adds a chunk; returns true when it is new and below `len`.
    pub(super) fn insert(&mut self, chunk: u32) -> bool {
        let new = chunk < self.len && !self.contains(chunk);
        if new {
            self.words[(chunk / 64) as usize] |= 1 << (chunk % 64);
            self.count += 1;
        }
        new
    }

    pub(super) fn remove(&mut self, chunk: u32) {
        if self.contains(chunk) {
            self.words[(chunk / 64) as usize] &= !(1 << (chunk % 64));
            self.count -= 1;
        }
    }

    pub(super) fn contains(&self, chunk: u32) -> bool {
        chunk < self.len && self.words[(chunk / 64) as usize] & (1 << (chunk % 64)) != 0
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) const fn is_full(&self) -> bool {
        self.count == self.len
    }

    /// The lowest one that is not in this set, and is in the other if there is one.
    pub(super) fn first_missing(&self, of: Option<&Self>) -> Option<u32> {
        (0_u32..).zip(&self.words).find_map(|(at, word)| {
            let there = of.map_or(u64::MAX, |of| {
                of.words.get(at as usize).copied().unwrap_or(0)
            });
            let missing = !word & there;
            let chunk = at * 64 + missing.trailing_zeros();
            (missing != 0 && chunk < self.len).then_some(chunk)
        })
    }

    /// Ranges of chunks that are not in it.
    pub(super) fn missing(&self) -> Vec<Range<u32>> {
        let mut ranges: Vec<Range<u32>> = vec![];
        for chunk in (0..self.len).filter(|chunk| !self.contains(*chunk)) {
            match ranges.last_mut() {
                Some(last) if last.end == chunk => last.end += 1,
                _ => ranges.push(chunk..chunk + 1),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_as_a_set_of_numbers(
            len in 0..200_u32,
            changes in prop::collection::vec((any::<bool>(), 0..210_u32), 0..300),
            other in prop::collection::btree_set(0..200_u32, 0..150),
        ) {
            let (mut set, mut model) = (ChunkSet::new(len), BTreeSet::new());
            for (insert, chunk) in changes {
                if insert {
                    prop_assert_eq!(set.insert(chunk), chunk < len && model.insert(chunk));
                } else {
                    set.remove(chunk);
                    model.remove(&chunk);
                }
            }
            let missing: Vec<u32> = (0..len).filter(|chunk| !model.contains(chunk)).collect();
            prop_assert_eq!(set.count() as usize, model.len());
            prop_assert_eq!(set.is_full(), missing.is_empty());
            prop_assert_eq!(set.first_missing(None), missing.first().copied());
            let listed: Vec<u32> = set.missing().into_iter().flatten().collect();
            prop_assert_eq!(&listed, &missing);
            prop_assert_eq!(&ChunkSet::without(len, &set.missing()), &set);
            let mut there = ChunkSet::new(len);
            for chunk in &other {
                there.insert(*chunk);
            }
            let first = missing.iter().find(|chunk| other.contains(chunk));
            prop_assert_eq!(set.first_missing(Some(&there)), first.copied());
        }
    }
}
