//! The parts of an optimiser's work, one a rank.

use std::ops::Range;

use odeon_gpu::{Layout, STATES_ALIGN};

/// The parts of the trained parameters that ranks update, each its own: what the optimiser keeps of a
/// parameter is with one rank alone (ZeRO stage 1, arXiv [1910.02054](https://arxiv.org/abs/1910.02054)).
///
/// Parts lie one behind the other in the order of the flat parameters, and the most costly of them costs as
/// little as can be. A tensor that the optimiser moves as a whole is in one part, as Muon's matrices are, so
/// the sum of its gradient arrives where it is needed; others are cut anywhere, or between blocks of rows. A part may be
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Where parts begin, and the end of the last.
    bounds: Vec<usize>,
}

/// The cost of an update, in quarters of that of an element which is treated by itself.
pub(super) type Cost = u64;

/// The cost of an element that is treated by itself.
const ELEMENT: Cost = 4;

/// The places where a tensor may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cutting {
    /// Any.
    Anywhere,
    /// Those behind so many rows, or a multiple.
    Rows(usize),
    /// None: it is moved as a whole, at this cost.
    Whole(Cost),
}

impl Partition {
    /// Parts of parameters that lie like this, for so many ranks, by the places where each tensor may be cut.
    ///
    /// # Panics
    /// If there are no ranks.
    pub(super) fn new(
        layout: &Layout,
        ranks: usize,
        cutting: impl Fn(&odeon_gpu::TensorEntry) -> Cutting,
    ) -> Self {
        assert!(ranks > 0, "parts are of ranks");
        let entries = layout.entries().iter();
        let pieces: Vec<Piece> = entries
            .map(|entry| {
                let row = entry.shape.get(1).copied().unwrap_or(1);
                let cutting = cutting(entry);
                Piece {
                    range: entry.range.clone(),
                    whole: match cutting {
                        Cutting::Whole(cost) => Some(cost),
                        Cutting::Anywhere | Cutting::Rows(_) => None,
                    },
                    block: match cutting {
                        Cutting::Rows(rows) => Some(rows * row),
                        Cutting::Anywhere | Cutting::Whole(_) => None,
                    },
                }
            })
            .collect();
        let total: Cost = pieces.iter().map(Piece::cost).sum();
        // Bisection: at `most` it can be done, below `least` it cannot.
        let (mut least, mut most) = (total / ranks as Cost, total);
        while least < most {
            let middle = least + (most - least) / 2;
            match filled(&pieces, ranks, middle) {
                Some(_) => most = middle,
                None => least = middle + 1,
            }
        }
        let bounds = filled(&pieces, ranks, most).expect("a rank can do all of it");
        Self { bounds }
    }

    /// Number of parts.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The part of a rank, in elements of the flat parameters.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn part(&self, rank: usize) -> Range<usize> {
        self.bounds[rank]..self.bounds[rank + 1]
    }

    /// Elements of each part.
    #[must_use]
    pub fn counts(&self) -> Vec<usize> {
        self.bounds
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect()
    }
}

/// A tensor to be dealt out.
struct Piece {
    range: Range<usize>,
    /// The cost of one that must not be cut.
    whole: Option<Cost>,
    /// Elements of the blocks between which it is cut; `None` where it is cut anywhere.
    block: Option<usize>,
}

impl Piece {
    fn cost(&self) -> Cost {
        let cost = || self.range.len() as Cost * ELEMENT;
        self.whole.unwrap_or_else(cost)
    }
}

/// The bounds of parts of which none costs more than `limit`, each as long as it can be; `None` where so many
/// ranks are too few.
fn filled(pieces: &[Piece], ranks: usize, limit: Cost) -> Option<Vec<usize>> {
    let end = pieces.last().map_or(0, |piece| piece.range.end);
    let (mut bounds, mut left, mut at) = (vec![0], limit, 0);
    for piece in pieces {
        while at < piece.range.end {
            let rest = (piece.range.end - at) as u64;
            let taken = match piece.whole {
                Some(cost) if cost <= left => rest,
                Some(_) => 0,
                None if rest * ELEMENT <= left => rest,
                // What a card keeps of a part begins at a multiple of this.
                None => {
                    let cut = at + (left / ELEMENT) as usize;
                    let over = match piece.block {
                        Some(block) => (cut - piece.range.start) % block,
                        None => cut % STATES_ALIGN,
                    };
                    (cut - over).saturating_sub(at) as u64
                }
            };
            at += taken as usize;
            left -= piece.whole.map_or(taken * ELEMENT, |cost| match taken {
                0 => 0,
                _ => cost,
            });
            if at < piece.range.end {
                // The next rank's begins here; one that can take nothing at all never will.
                if bounds.len() == ranks || (taken == 0 && left == limit) {
                    return None;
                }
                bounds.push(at);
                left = limit;
            }
        }
    }
    bounds.resize(ranks + 1, end);
    Some(bounds)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use odeon_gpu::TensorEntry;
    use proptest::prelude::*;

    use super::*;

    /// Tensors of these lengths, of which those with a cost are whole.
    fn layout(tensors: &[(usize, Option<Cost>)]) -> Layout {
        let mut layout = Layout::new();
        for (number, (len, _)) in tensors.iter().enumerate() {
            layout.push(number.to_string(), &[*len]);
        }
        layout
    }

    fn partition(tensors: &[(usize, Option<Cost>)], ranks: usize) -> Partition {
        let whole = |entry: &TensorEntry| {
            let number: usize = entry.name.parse().unwrap();
            tensors[number].1.map_or(Cutting::Anywhere, Cutting::Whole)
        };
        Partition::new(&layout(tensors), ranks, whole)
    }

    /// The cost of a part, which cuts nothing that is whole.
    fn cost(tensors: &[(usize, Option<Cost>)], part: &Range<usize>) -> Option<Cost> {
        let mut sum = 0;
        for (entry, (_, whole)) in layout(tensors).entries().iter().zip(tensors) {
            let own = entry.range.start.max(part.start)..entry.range.end.min(part.end);
            sum += match whole {
                _ if own.is_empty() => 0,
                Some(cost) if own == entry.range => *cost,
                Some(_) => return None,
                None => own.len() as Cost * ELEMENT,
            };
        }
        Some(sum)
    }

    /// The places where parts may end.
    fn ends(tensors: &[(usize, Option<Cost>)]) -> Vec<usize> {
        let layout = layout(tensors);
        let entries = layout.entries().iter();
        let ends: BTreeSet<usize> = entries.map(|it| it.range.end).collect();
        let ends_here = |at: &usize| at.is_multiple_of(STATES_ALIGN) || ends.contains(at);
        (0..=layout.len()).filter(ends_here).collect()
    }

    /// The least cost of the most costly of so many parts from one of these places on, by trying all.
    fn best(tensors: &[(usize, Option<Cost>)], ranks: usize, places: &[usize]) -> Cost {
        let (from, len) = (places[0], places[places.len() - 1]);
        let all = cost(tensors, &(from..len)).unwrap();
        if ranks == 1 {
            return all;
        }
        let costs = places.iter().enumerate().filter_map(|(number, at)| {
            let own = cost(tensors, &(from..*at))?;
            cost(tensors, &(*at..len))?;
            Some(own.max(best(tensors, ranks - 1, &places[number..])))
        });
        costs.min().unwrap_or(all)
    }

    #[test]
    fn equal_elements_are_equal_parts_but_for_alignment() {
        let parts = partition(&[(1_000, None), (24, None)], 4);
        assert_eq!(parts.counts(), [256; 4]);
        assert_eq!(partition(&[(10, None)], 3).counts(), [10, 0, 0]);
        assert_eq!(partition(&[], 2).counts(), [0, 0]);
        // A matrix costs what it costs, and is with one rank: 4,400 and 1,200 here, where 400 and 5,200 would be worse.
        let parts = partition(&[(100, None), (64, Some(4_000)), (300, None)], 2);
        assert_eq!(parts.counts(), [164, 300]);
    }

    #[test]
    fn blocks_of_rows_stay_with_one_rank() {
        let mut layout = Layout::new();
        layout.push("vector", &[40]);
        layout.push("matrix", &[100, 3]);
        let parts = Partition::new(&layout, 3, |_| Cutting::Rows(32));
        // Behind the vector come blocks of 96, 96, 96 and 12.
        assert_eq!(parts.counts(), [136, 96, 108]);
        let ends = Partition::new(&layout, 9, |_| Cutting::Rows(32)).bounds;
        assert!(
            ends.iter().all(|at| *at <= 40 && at % 32 == 0
                || *at == 40
                || (at - 40) % 96 == 0
                || *at == 340)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        /// No other way has a cheaper costliest part, and nothing is left over, doubled or cut that is whole.
        #[test]
        fn the_costliest_part_costs_as_little_as_can_be(
            tensors in prop::collection::vec(
                (1usize..70, prop::option::weighted(0.4, 1u64..400)), 1..6),
            ranks in 1usize..4,
        ) {
            let parts = partition(&tensors, ranks);
            prop_assert_eq!(parts.ranks(), ranks);
            let len: usize = tensors.iter().map(|(len, _)| len).sum();
            prop_assert_eq!((parts.part(0).start, parts.part(ranks - 1).end), (0, len));
            let costs = (0..ranks).map(|rank| cost(&tensors, &parts.part(rank)));
            let costs: Option<Vec<Cost>> = costs.collect();
            let most = costs.expect("nothing whole is cut").into_iter().max().unwrap();
            prop_assert_eq!(most, best(&tensors, ranks, &ends(&tensors)));
        }
    }
}
