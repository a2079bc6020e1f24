//! Sets of indices, as few ranges as hold them.

use std::ops::Range;

/// A set of indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    /// In order, apart from each other, none empty.
    held: Vec<Range<usize>>,
}

impl Ranges {
    /// Returns true when all of the range is in the set.
    pub(super) fn contains(&self, range: &Range<usize>) -> bool {
        range.is_empty()
            || self
                .held
                .iter()
                .any(|held| held.start <= range.start && range.end <= held.end)
    }

    pub(super) fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let touches = |held: &Range<usize>| held.start <= range.end && range.start <= held.end;
        let (mut start, mut end) = (range.start, range.end);
        for held in self.held.iter().filter(|held| touches(held)) {
            start = start.min(held.start);
            end = end.max(held.end);
        }
        self.held.retain(|held| !touches(held));
        let at = self.held.partition_point(|held| held.start < start);
        self.held.insert(at, start..end);
    }

    pub(super) fn remove(&mut self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.held = self
            .held
            .iter()
            .flat_map(|held| {
                let before = held.start..held.end.min(range.start);
                let after = held.start.max(range.end)..held.end;
                [before, after]
            })
            .filter(|part| !part.is_empty())
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_is_a_set(steps in prop::collection::vec((any::<bool>(), 0usize..40, 0usize..12), 0..40)) {
            let (mut ranges, mut model) = (Ranges::default(), [false; 64]);
            for (insert, start, len) in steps {
                let range = start..start + len;
                model[range.clone()].fill(insert);
                if insert {
                    ranges.insert(range);
                } else {
                    ranges.remove(&range);
                }
                for start in 0..60 {
                    for len in [1, 3] {
                        let range = start..start + len;
                        let all = model[range.clone()].iter().all(|held| *held);
                        prop_assert_eq!(ranges.contains(&range), all);
                    }
                }
                prop_assert!(ranges.held.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
