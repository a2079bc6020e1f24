//! Where the keys and values of sequences lie in a cache.

/// Blocks of a cache, and which of them hold the positions of which sequence.
///
/// A cache is blocks of [`tokens`](Self::tokens) positions, one after the other; block `i` of a slot
/// holds its positions from `i * tokens` on. Slots may have blocks in common.
///
/// ```
/// use odeon_gpu::BlockTable;
///
/// let mut table = BlockTable::new(2, 3, 16); // two slots of up to three blocks of 16 tokens
/// table.set(0, &[4, 0]);
/// table.set(1, &[4, 2]);
/// assert_eq!(table.place(0, 20), (0, 4));
/// assert_eq!(table.place(1, 5), table.place(0, 5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTable {
    tokens: usize,
    most: usize,
    /// `[slot, most]`; what no sequence has reached is not read.
    entries: Vec<u32>,
}

impl BlockTable {
    /// For `slots` sequences of at most `most` blocks of `tokens` positions.
    #[must_use]
    pub fn new(slots: usize, most: usize, tokens: usize) -> Self {
        Self {
            tokens,
            most,
            entries: vec![0; slots * most],
        }
    }

    /// Each slot has its own blocks for `capacity` tokens, one slot's after the other's.
    #[must_use]
    pub fn contiguous(slots: usize, capacity: usize, tokens: usize) -> Self {
        let most = capacity.div_ceil(tokens);
        Self {
            tokens,
            most,
            entries: (0..(slots * most) as u32).collect(),
        }
    }

    /// Says which blocks hold a slot's first positions.
    ///
    /// # Panics
    /// If there is no such slot, or it cannot have so many.
    pub fn set(&mut self, slot: usize, blocks: &[u32]) {
        assert!(
            blocks.len() <= self.most,
            "{} blocks of at most {}",
            blocks.len(),
            self.most
        );
        self.entries[slot * self.most..][..blocks.len()].copy_from_slice(blocks);
    }

    /// Positions of a block.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Blocks that a slot can have.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Blocks of a slot, in the order of its positions.
    #[must_use]
    pub fn blocks(&self, slot: u32) -> &[u32] {
        &self.entries[slot as usize * self.most..][..self.most]
    }

    /// Blocks of all slots, `[slot, most]`.
    #[must_use]
    pub fn entries(&self) -> &[u32] {
        &self.entries
    }

    /// Block of a position, and its place in there.
    ///
    /// # Panics
    /// If the slot cannot have this position.
    #[must_use]
    pub fn place(&self, slot: u32, position: u32) -> (usize, usize) {
        let position = position as usize;
        let block = self.blocks(slot)[position / self.tokens];
        (block as usize, position % self.tokens)
    }
}
