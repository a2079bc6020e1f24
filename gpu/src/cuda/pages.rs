//! Which pages of a cache belong to which sequence.

/// Positions of a page, as in the kernels.
pub const PAGE: usize = 64;

/// Pages of one cache, given to slots as their sequences grow and taken back when they end, so that
/// short sequences hold only what they use.
///
/// ```
/// use odeon_gpu::cuda::{PAGE, PageTable};
///
/// let mut table = PageTable::new(2, 4, 3); // two slots of up to four pages share three
/// assert!(table.reach(0, 2 * PAGE - 1)); // two pages
/// assert!(table.reach(1, 0)); // the third
/// assert!(!table.reach(1, PAGE), "no page is left");
/// table.release(0);
/// assert!(table.reach(1, PAGE));
/// assert_eq!(table.free_pages(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTable {
    most: usize,
    /// `[slot, most]`; what no sequence has reached is not read.
    entries: Vec<u32>,
    /// Pages of each slot.
    held: Vec<usize>,
    free: Vec<u32>,
}

impl PageTable {
    /// For `slots` sequences of at most `most` pages each, over `pages` pages.
    #[must_use]
    pub fn new(slots: usize, most: usize, pages: u32) -> Self {
        Self {
            most,
            entries: vec![0; slots * most],
            held: vec![0; slots],
            free: (0..pages).rev().collect(),
        }
    }

    /// Gives a slot the pages up to this position; says whether it has them now. When it has not,
    /// nothing has changed.
    #[must_use = "without the page the position must not be written"]
    pub fn reach(&mut self, slot: usize, position: usize) -> bool {
        let wanted = position / PAGE + 1;
        let missing = wanted.saturating_sub(self.held[slot]);
        if wanted > self.most || missing > self.free.len() {
            return false;
        }
        for _ in 0..missing {
            let page = self.free.pop().expect("counted above");
            self.entries[slot * self.most + self.held[slot]] = page;
            self.held[slot] += 1;
        }
        true
    }

    /// Takes the pages of a slot back.
    pub fn release(&mut self, slot: usize) {
        let from = slot * self.most;
        let pages = &self.entries[from..from + self.held[slot]];
        self.free.extend(pages.iter().rev());
        self.held[slot] = 0;
    }

    /// Pages that no slot holds.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    pub(super) fn entries(&self) -> &[u32] {
        &self.entries
    }

    /// # Panics
    /// If the slot has not reached it.
    pub(super) fn page(&self, slot: u32, index: usize) -> u32 {
        let slot = slot as usize;
        assert!(
            index < self.held[slot],
            "slot {slot} has not reached page {index}"
        );
        self.entries[slot * self.most + index]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_page_has_two_owners_and_none_is_lost(
            steps in prop::collection::vec((0usize..4, 0usize..6 * PAGE, any::<bool>()), 0..60),
        ) {
            let mut table = PageTable::new(4, 5, 9);
            for (slot, position, release) in steps {
                let before = table.clone();
                if release {
                    table.release(slot);
                } else if !table.reach(slot, position) {
                    prop_assert_eq!(&table, &before);
                }
                let mut seen: BTreeSet<u32> = table.free.iter().copied().collect();
                prop_assert_eq!(seen.len(), table.free.len());
                for slot in 0..4 {
                    for index in 0..table.held[slot] {
                        prop_assert!(seen.insert(table.page(slot as u32, index)));
                    }
                }
                prop_assert_eq!(seen.len(), 9);
            }
        }
    }
}
