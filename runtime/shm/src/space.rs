//! The free and used bytes of a slab. Pure.

use std::{collections::BTreeMap, ops::Range};

/// The free ranges of a slab, best fit first, merged with their neighbours when given back.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    len: usize,
    free: usize,
    /// Start to end of each free range; never empty, never touching.
    holes: BTreeMap<usize, usize>,
}

impl Space {
    pub(crate) fn new(len: usize) -> Self {
        let holes = if len == 0 {
            BTreeMap::new()
        } else {
            BTreeMap::from([(0, len)])
        };
        Self {
            len,
            free: len,
            holes,
        }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.free == self.len
    }

    /// Takes a block of `header + len` bytes whose payload (after the header) starts at a multiple
    /// of `align`, from the smallest hole that holds it. Whole units of `header` are taken, so that
    /// blocks never share one.
    pub(crate) fn take(&mut self, len: usize, align: usize, header: usize) -> Option<Range<usize>> {
        let size = header.checked_add(len)?.checked_next_multiple_of(header)?;
        let fit = |start: usize, end: usize| {
            let block = (start + header).checked_next_multiple_of(align)? - header;
            (block.checked_add(size)? <= end).then_some(block)
        };
        let (hole, end, block) = self
            .holes
            .iter()
            .filter_map(|(&start, &end)| fit(start, end).map(|block| (start, end, block)))
            .min_by_key(|(start, end, _)| end - start)?;
        self.holes.remove(&hole);
        if hole < block {
            self.holes.insert(hole, block);
        }
        if block + size < end {
            self.holes.insert(block + size, end);
        }
        self.free -= size;
        Some(block..block + size)
    }

    /// Gives back a block that [`Self::take`] returned.
    pub(crate) fn give(&mut self, block: Range<usize>) {
        let Range { mut start, mut end } = block;
        self.free += end - start;
        if let Some((&before, &touch)) = self.holes.range(..start).next_back() {
            assert!(touch <= start, "block given back twice");
            if touch == start {
                self.holes.remove(&before);
                start = before;
            }
        }
        if let Some((&touch, &after)) = self.holes.range(start..).next() {
            assert!(end <= touch, "block given back twice");
            if touch == end {
                self.holes.remove(&touch);
                end = after;
            }
        }
        self.holes.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: usize = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Take { len: usize, align: usize },
        Give { which: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        let take = (0usize..20_000, prop_oneof![Just(64usize), Just(4096)])
            .prop_map(|(len, align)| Step::Take { len, align });
        prop_oneof![3 => take, 2 => any::<usize>().prop_map(|which| Step::Give { which })]
    }

    proptest! {
        #[test]
        fn blocks_are_aligned_disjoint_and_all_come_back(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut space = Space::new(128 << 10);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for step in steps {
                match step {
                    Step::Take { len, align } => {
                        let Some(block) = space.take(len, align, HEADER) else { continue };
                        prop_assert!(block.end <= 128 << 10);
                        prop_assert!(block.len() >= HEADER + len);
                        prop_assert_eq!((block.start + HEADER) % align, 0);
                        for other in &taken {
                            prop_assert!(block.end <= other.start || other.end <= block.start);
                        }
                        taken.push(block);
                    }
                    Step::Give { which } if !taken.is_empty() => {
                        let block = taken.swap_remove(which % taken.len());
                        space.give(block);
                    }
                    Step::Give { .. } => {}
                }
                let used: usize = taken.iter().map(Range::len).sum();
                prop_assert_eq!(space.free, (128 << 10) - used);
                prop_assert_eq!(space.holes.iter().map(|(s, e)| e - s).sum::<usize>(), space.free);
            }
            taken.into_iter().for_each(|block| space.give(block));
            prop_assert!(space.is_unused());
            prop_assert_eq!(space.holes, BTreeMap::from([(0, 128 << 10)]));
        }
    }

    #[test]
    fn refuses_what_cannot_fit_without_overflow() {
        let mut space = Space::new(4096);
        assert_eq!(space.take(usize::MAX, 64, HEADER), None);
        assert_eq!(space.take(usize::MAX - 64, 4096, HEADER), None);
        assert_eq!(space.take(4096, 64, HEADER), None);
        assert_eq!(space.take(4032, 64, HEADER), Some(0..4096));
        assert_eq!(space.take(0, 64, HEADER), None);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_a_bug() {
        let mut space = Space::new(4096);
        let block = space.take(100, 64, HEADER).unwrap();
        space.give(block.clone());
        space.give(block);
    }
}
