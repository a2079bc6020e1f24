//! The tree of ranks along which messages travel when all have to agree. Pure.

use std::ops::Range;

/// A tree over ranks with rank 0 as its root: the ranks of a machine below its first one, machines
/// below each other. Nobody hears from more than `node_ranks - 1 + fan_out` others, and the depth
/// grows with the logarithm of the number of machines.
///
/// ```
/// use odeon_checkpoint::plan::Tree;
///
/// let tree = Tree::new(64, 8, 2);
/// assert_eq!(tree.parent(13), Some(8));
/// assert_eq!(tree.parent(8), Some(0));
/// assert_eq!(tree.children(0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8, 16]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    ranks: usize,
    node_ranks: usize,
    fan_out: usize,
}

impl Tree {
    /// A tree over so many ranks, of which each machine has `node_ranks` with consecutive numbers,
    /// and so many machines below each other. Zeroes count as one.
    #[must_use]
    pub fn new(ranks: usize, node_ranks: usize, fan_out: usize) -> Self {
        Self {
            ranks,
            node_ranks: node_ranks.max(1),
            fan_out: fan_out.max(1),
        }
    }

    /// All below rank 0.
    #[must_use]
    pub fn flat(ranks: usize) -> Self {
        Self::new(ranks, ranks, 1)
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// Whom a rank tells; nobody above rank 0.
    #[must_use]
    pub const fn parent(&self, rank: usize) -> Option<usize> {
        let node = rank / self.node_ranks;
        if !rank.is_multiple_of(self.node_ranks) {
            return Some(node * self.node_ranks);
        }
        if node == 0 {
            return None;
        }
        Some((node - 1) / self.fan_out * self.node_ranks)
    }

    /// From whom a rank hears, in order.
    pub fn children(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let &Self {
            ranks,
            node_ranks,
            fan_out,
        } = self;
        let node = rank / node_ranks;
        let (neighbours, below): (Range<usize>, Range<usize>) = if rank.is_multiple_of(node_ranks) {
            let first = node * fan_out + 1;
            (rank + 1..rank + node_ranks, first..first + fan_out)
        } else {
            (0..0, 0..0)
        };
        let leaders = below.map(move |node| node * node_ranks);
        neighbours.chain(leaders).filter(move |rank| *rank < ranks)
    }

    /// The child of `from` that is on the way down to a rank below it.
    #[must_use]
    pub const fn towards(&self, from: usize, rank: usize) -> Option<usize> {
        let mut at = rank;
        while let Some(parent) = self.parent(at) {
            if parent == from {
                return Some(at);
            }
            at = parent;
        }
        None
    }

    /// On how many levels there are ranks.
    #[must_use]
    pub fn depth(&self) -> usize {
        let depth = |rank| std::iter::successors(Some(rank), |rank| self.parent(*rank)).count();
        // The last leader is on the lowest level, or its neighbours are one below it.
        let last = self.ranks.saturating_sub(1);
        let leader = last / self.node_ranks * self.node_ranks;
        let before = leader.saturating_sub(1);
        depth(last).max(depth(leader)).max(depth(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_rank_is_below_rank_0_once(
            ranks in 1_usize..600,
            node_ranks in 1_usize..20,
            fan_out in 1_usize..9,
        ) {
            let tree = Tree::new(ranks, node_ranks, fan_out);
            let mut reached = vec![0; ranks];
            reached[0] += 1;
            for rank in 0..ranks {
                let children: Vec<usize> = tree.children(rank).collect();
                prop_assert!(children.len() < node_ranks + fan_out);
                for child in children {
                    prop_assert_eq!(tree.parent(child), Some(rank));
                    prop_assert_eq!(tree.towards(rank, child), Some(child));
                    reached[child] += 1;
                }
                prop_assert!(rank == 0 || tree.towards(0, rank).is_some());
            }
            prop_assert!(reached.iter().all(|times| *times == 1), "{:?}", reached);
        }
    }

    #[test]
    fn the_depth_grows_slowly() {
        assert_eq!(Tree::flat(100).depth(), 2);
        assert_eq!(Tree::new(64, 8, 16).depth(), 3);
        assert_eq!(Tree::new(16_384, 8, 16).depth(), 5);
    }
}
