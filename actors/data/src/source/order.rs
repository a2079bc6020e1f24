//! The order of an epoch: which blocks a cell has, and how its records are mixed. Pure.
//!
//! Blocks are permuted by seed and epoch; so many of them in a row are a cell. So who knows the seed
//! and the number of blocks knows which blocks any cell of any epoch has, and nobody keeps a list.

use std::ops::Range;

use super::spec::{Order, Part};

/// The order of a source's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    /// All that the source has.
    pub(crate) blocks: u32,
    /// As it was each time before more came, the oldest first.
    pub(crate) earlier: Vec<Before>,
    /// Which of them are read.
    pub(crate) part: Part,
    pub(crate) cell_blocks: u32,
    pub(crate) order: Order,
    pub(crate) seed: u64,
}

/// The blocks of a source before more came behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) blocks: u32,
    /// The last epoch in which what came is behind them. Later ones mix all.
    pub(crate) until: u32,
}

impl Cells {
    /// Number of cells of an epoch. It only grows: a cell that there was is there.
    pub(crate) fn count(&self) -> u32 {
        self.spans().map(|span| self.cells_in(&span)).sum()
    }

    /// The same before more came the last time.
    pub(crate) fn count_before(&self) -> u32 {
        let before = self.spans().take(self.earlier.len().max(1));
        before.map(|span| self.cells_in(&span)).sum()
    }

    /// The places of the blocks that came together, the oldest first. No cell has places of two.
    fn spans(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let all = self.earlier.iter().map(|before| before.blocks);
        let ends = all
            .chain([self.blocks])
            .map(|blocks| self.part.count(blocks));
        ends.scan(0, |start, end| Some(std::mem::replace(start, end)..end))
    }

    fn cells_in(&self, places: &Range<u32>) -> u32 {
        (places.end - places.start).div_ceil(self.cell_blocks)
    }

    /// The places of a cell; none beyond the last.
    fn places(&self, cell: u32) -> Range<u32> {
        let mut first = 0;
        for span in self.spans() {
            let nth = cell - first;
            if nth < self.cells_in(&span) {
                let at = |nth: u32| {
                    let start =
                        u64::from(span.start) + u64::from(nth) * u64::from(self.cell_blocks);
                    start.min(u64::from(span.end)) as u32
                };
                return at(nth)..at(nth + 1);
            }
            first += self.cells_in(&span);
        }
        0..0
    }

    /// The places that are mixed with this one in an epoch.
    fn mixed_with(&self, epoch: u32, place: u32) -> Range<u32> {
        let parted = self.earlier.iter().filter(|before| epoch <= before.until);
        let borders = parted.map(|before| self.part.count(before.blocks));
        let (below, above): (Vec<u32>, Vec<u32>) = borders.partition(|border| *border <= place);
        let start = below.into_iter().max().unwrap_or(0);
        let end = above.into_iter().min();
        start..end.unwrap_or_else(|| self.part.count(self.blocks))
    }

    /// The blocks of a cell in their order; none beyond the last cell.
    pub(crate) fn blocks_of(&self, epoch: u32, cell: u32) -> impl Iterator<Item = u32> + use<> {
        let places = self.places(cell);
        let group = self.mixed_with(epoch, places.start);
        let start = group.start;
        let permutation = match self.order {
            Order::Kept => None,
            Order::Shuffled => {
                // What was there first has the order that it had.
                let behind = (start > 0).then_some(u64::from(start));
                let seed: Vec<u64> = [self.seed, u64::from(epoch)]
                    .into_iter()
                    .chain(behind)
                    .collect();
                Some(Permutation::new(group.end - start, hash(&seed)))
            }
        };
        let part = self.part;
        places.map(move |place| {
            let mixed = permutation
                .as_ref()
                .map(|order| start + order.at(place - start));
            part.block(mixed.unwrap_or(place))
        })
    }

    /// The order of so many things of a cell: which comes at each place.
    pub(crate) fn mixed(&self, epoch: u32, cell: u32, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        if self.order == Order::Shuffled {
            let mut state = hash(&[self.seed, u64::from(epoch), u64::from(cell), u64::MAX]);
            for last in (1..order.len()).rev() {
                order.swap(last, below(&mut state, last as u64 + 1) as usize);
            }
        }
        order
    }
}

/// A permutation of the first numbers that takes no memory: a Feistel network over the next power of
/// four, walked until it is back among them.
#[derive(Clone, Copy, Debug)]
struct Permutation {
    count: u32,
    half: u32,
    keys: [u64; 6],
}

impl Permutation {
    fn new(count: u32, seed: u64) -> Self {
        let bits = u32::BITS - count.saturating_sub(1).leading_zeros();
        let mut state = seed;
        Self {
            count,
            half: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| next(&mut state)),
        }
    }

    /// The number at a place, which is below the count.
    fn at(&self, place: u32) -> u32 {
        let mask = (1_u64 << self.half) - 1;
        let mut at = u64::from(place);
        loop {
            let (mut left, mut right) = (at >> self.half, at & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (hash(&[key, right]) & mask));
            }
            at = left << self.half | right;
            if at < u64::from(self.count) {
                return at as u32;
            }
        }
    }
}

/// One number of several.
pub(crate) fn hash(parts: &[u64]) -> u64 {
    parts
        .iter()
        .fold(0x6f64_656f_6e5f_6461, |mixed: u64, &part| {
            let mut state = mixed.rotate_left(17) ^ part;
            next(&mut state)
        })
}

/// The next number of a stream (splitmix64). Written down here since an order that changes with a
/// release of a library is not one.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number below `bound`, of a stream.
pub(crate) fn below(state: &mut u64, bound: u64) -> u64 {
    ((u128::from(next(state)) * u128::from(bound)) >> 64) as u64
}

/// A number from 0 to below 1, of a stream.
pub(crate) fn part(state: &mut u64) -> f64 {
    (next(state) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn cells()(
            (came, cell_blocks, seed) in (vec((0_u32..100, 0_u32..3), 1..4), 1_u32..20, any::<u64>()),
        ) -> Cells {
            let (mut blocks, mut until, mut earlier) = (0, 0, Vec::new());
            for (more, epochs) in came {
                earlier.push(Before { blocks, until });
                (blocks, until) = (blocks + more, until + epochs);
            }
            // What there was at first is no growth.
            earlier.remove(0);
            Cells { blocks, earlier, part: Part::All, cell_blocks, order: Order::Shuffled, seed }
        }
    }

    fn all(cells: &Cells, epoch: u32) -> Vec<u32> {
        let all = 0..cells.count();
        all.flat_map(|cell| cells.blocks_of(epoch, cell)).collect()
    }

    proptest! {
        #[test]
        fn an_epoch_has_every_block_once(cells in cells(), epoch in 0_u32..8) {
            let mut order = all(&cells, epoch);
            order.sort_unstable();
            prop_assert!(order.iter().copied().eq(0..cells.blocks));
            let kept = all(&Cells { order: Order::Kept, ..cells.clone() }, epoch);
            prop_assert!(kept.iter().copied().eq(0..cells.blocks));
            prop_assert_eq!(cells.blocks_of(epoch, cells.count()).count(), 0);
            prop_assert_eq!(cells.blocks_of(epoch, u32::MAX).count(), 0);
        }

        #[test]
        fn what_comes_later_changes_nothing_before(
            cells in cells(), more in 0_u32..100, part in prop_oneof![
                Just(Part::All),
                (2_u32..9).prop_map(|one_of| Part::AllBut { one_of }),
                (2_u32..9).prop_map(|one_of| Part::HeldOut { one_of }),
            ], later in 0_u32..3
        ) {
            let before = Cells { part, ..cells };
            let last = before.earlier.last().map_or(0, |it| it.until);
            let mut after = before.clone();
            after.earlier.push(Before { blocks: before.blocks, until: last + later });
            after.blocks += more;
            prop_assert_eq!(after.count_before(), before.count());
            for epoch in 0..=last + later {
                for cell in 0..before.count() {
                    let (was, is) = (before.blocks_of(epoch, cell), after.blocks_of(epoch, cell));
                    prop_assert!(was.eq(is));
                }
                for cell in before.count()..after.count() {
                    prop_assert!(after.blocks_of(epoch, cell).all(|block| block >= before.blocks));
                }
            }
        }

        #[test]
        fn what_is_held_out_and_the_rest_are_all(cells in cells(), one_of in 2_u32..20) {
            let all = |part: Part| all(&Cells { part, ..cells.clone() }, 1);
            let mut both = all(Part::AllBut { one_of });
            both.extend(all(Part::HeldOut { one_of }));
            both.sort_unstable();
            prop_assert!(both.into_iter().eq(0..cells.blocks));
        }

        #[test]
        fn a_cell_has_each_of_its_records_once(cells in cells(), count in 0_u32..500) {
            let mut order = cells.mixed(1, 2, count);
            order.sort_unstable();
            prop_assert!(order.iter().copied().eq(0..count));
        }
    }

    #[test]
    fn the_order_does_not_change() {
        let cells = Cells {
            blocks: 10,
            earlier: vec![],
            part: Part::All,
            cell_blocks: 4,
            order: Order::Shuffled,
            seed: 17,
        };
        let order: Vec<Vec<u32>> = (0..3)
            .map(|cell| cells.blocks_of(0, cell).collect())
            .collect();
        assert_eq!(order, GOLDEN_BLOCKS.map(<[u32]>::to_vec));
        assert_eq!(cells.mixed(0, 0, 8), GOLDEN_MIX);
    }

    const GOLDEN_BLOCKS: [&[u32]; 3] = [&[7, 4, 3, 5], &[0, 8, 9, 1], &[6, 2]];
    const GOLDEN_MIX: [u32; 8] = [0, 6, 2, 3, 7, 4, 5, 1];

    #[test]
    fn epochs_and_seeds_have_orders_of_their_own() {
        let first = |seed, epoch| -> Vec<u32> {
            let cells = Cells {
                blocks: 1000,
                earlier: vec![],
                part: Part::All,
                cell_blocks: 1000,
                order: Order::Shuffled,
                seed,
            };
            cells.blocks_of(epoch, 0).collect()
        };
        let same = |a: &[u32], b: &[u32]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        // Two permutations agree in one place on average.
        assert!(same(&first(0, 0), &first(0, 1)) < 10);
        assert!(same(&first(0, 0), &first(1, 0)) < 10);
        let kept: Vec<u32> = (0..1000).collect();
        assert!(same(&first(0, 0), &kept) < 10);
    }

    #[test]
    fn every_place_is_as_likely() {
        // Where block 0 of 8 comes, over many epochs.
        let mut counts = [0_u32; 8];
        let cells = Cells {
            blocks: 8,
            earlier: vec![],
            part: Part::All,
            cell_blocks: 8,
            order: Order::Shuffled,
            seed: 3,
        };
        for epoch in 0..8000 {
            let place = cells
                .blocks_of(epoch, 0)
                .position(|block| block == 0)
                .unwrap();
            counts[place] += 1;
        }
        assert!(
            counts.iter().all(|&count| (850..1150).contains(&count)),
            "{counts:?}"
        );
    }
}
