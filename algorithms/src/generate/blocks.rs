//! Which blocks of a cache hold which tokens: sequences that begin alike share them, and what an
//! ended one leaves is kept for later ones until the room is needed. Pure.
//!
//! A block is found by the name of what is before it and by its tokens, compared one by one, so
//! that what is found is what was looked for. Shared blocks are full and never written again; of a
//! block that is partly filled one takes a copy, or the block itself when nobody holds it.

use std::collections::{BTreeMap, HashMap};

/// The blocks of one sequence, in its order.
#[derive(Debug, Default)]
pub(super) struct Chain {
    blocks: Vec<u32>,
    tokens: usize,
}

impl Chain {
    pub(super) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Tokens that have a place.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }
}

/// A block that others have begun with the tokens that come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    block: u32,
    /// Number of its tokens that are wanted.
    pub(super) tokens: usize,
    /// Set when all of these were computed in earlier steps, so that they can be copied.
    pub(super) computed: bool,
}

#[derive(Debug, Default)]
struct Block {
    /// Chains that hold it.
    holders: usize,
    /// Tokens whose keys and values it has, or gets in this step.
    tokens: Vec<u32>,
    /// Number of them that were computed in earlier steps.
    computed: usize,
    /// Name of everything up to its end; none is given twice.
    name: u64,
    /// Name of everything before it; `None` when nobody may find it.
    before: Option<u64>,
    /// Where it stands among those that are kept.
    kept: u64,
}

/// The blocks of a cache, the tokens that each holds, and the order in which they are given up.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Tokens of a block.
    size: usize,
    all: Vec<Block>,
    empty: Vec<u32>,
    /// Blocks that nobody holds and that may be found, the one to give up first at the front.
    kept: BTreeMap<u64, u32>,
    /// Blocks by what is before them.
    following: HashMap<u64, Vec<u32>>,
    /// Blocks with tokens of this step.
    fresh: Vec<u32>,
    names: u64,
    keeps: u64,
}

/// Name of what is before every first block.
const START: u64 = 0;

impl Blocks {
    pub(super) fn new(count: usize, size: usize) -> Self {
        Self {
            size,
            all: (0..count).map(|_| Block::default()).collect(),
            empty: (0..count as u32).rev().collect(),
            kept: BTreeMap::new(),
            following: HashMap::new(),
            fresh: Vec::new(),
            names: START,
            keeps: 0,
        }
    }

    /// Blocks that so many tokens take.
    pub(super) fn of_tokens(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.size)
    }

    /// Tokens of a block.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Blocks that can be given out: empty ones and kept ones.
    pub(super) fn available(&self) -> usize {
        self.empty.len() + self.kept.len()
    }

    /// Blocks that nobody holds and that may be found.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Blocks that more than one chain holds.
    pub(super) fn shared(&self) -> usize {
        self.all.iter().filter(|block| block.holders > 1).count()
    }

    /// Tokens of the blocks that are held, those of a shared block once.
    pub(super) fn held_tokens(&self) -> usize {
        let held = self.all.iter().filter(|block| block.holders > 0);
        held.map(|block| block.tokens.len()).sum()
    }

    /// Number of the first of `tokens` that are in blocks.
    pub(super) fn known(&self, tokens: &[u32]) -> usize {
        let (mut name, mut known) = (START, 0);
        while let Some((block, common)) = self.longest(name, &tokens[known..]) {
            known += common;
            if common < self.size {
                break;
            }
            name = self.all[block as usize].name;
        }
        known
    }

    /// Goes on with full blocks that others have, as long as they hold what `tokens` go on with; the
    /// last token is left to be computed. Says how many tokens that was.
    pub(super) fn take_over(&mut self, chain: &mut Chain, tokens: &[u32]) -> usize {
        let from = chain.tokens;
        while let Some((block, common)) = self.next(chain, tokens)
            && common == self.size
        {
            self.hold(block);
            chain.blocks.push(block);
            chain.tokens += common;
        }
        chain.tokens - from
    }

    /// A block of others that has begun with what `tokens` go on with, but for the last.
    pub(super) fn tail(&self, chain: &Chain, tokens: &[u32]) -> Option<Tail> {
        let (block, tokens) = self.next(chain, tokens)?;
        Some(Tail {
            block,
            tokens,
            computed: self.all[block as usize].computed >= tokens,
        })
    }

    /// Goes on with a block of its own that begins as `tail` does. Gives what has to be copied before
    /// this step's tokens are written, or nothing when the block itself could be taken; `None`
    /// without a change when no block is available.
    pub(super) fn branch(&mut self, chain: &mut Chain, tail: Tail) -> Option<Option<(u32, u32)>> {
        let from = tail.block;
        let others = self.available() - usize::from(self.all[from as usize].holders == 0);
        if others == 0 && self.all[from as usize].holders > 0 {
            return None;
        }
        let tokens = self.all[from as usize].tokens[..tail.tokens].to_vec();
        let before = self.all[from as usize].before;
        let to = if others == 0 {
            self.give_up(from);
            self.empty.pop()
        } else {
            self.take_but(Some(from))
        }?;
        self.begin(to, before);
        let block = &mut self.all[to as usize];
        (block.tokens, block.computed) = (tokens, tail.tokens);
        chain.blocks.push(to);
        chain.tokens += tail.tokens;
        Some((from != to).then_some((from, to)))
    }

    /// Gives places to the next tokens. `false` without a change when blocks are lacking.
    #[must_use = "without a place the tokens must not be written"]
    pub(super) fn append(&mut self, chain: &mut Chain, tokens: &[u32]) -> bool {
        let wanted = self.of_tokens(chain.tokens + tokens.len());
        if wanted - chain.blocks.len() > self.available() {
            return false;
        }
        let mut rest = tokens;
        while !rest.is_empty() {
            let room = chain.blocks.len() * self.size - chain.tokens;
            if room == 0 {
                let before = self.end(chain);
                let block = self.take_but(None).expect("counted above");
                self.begin(block, before);
                chain.blocks.push(block);
                continue;
            }
            let (now, later) = rest.split_at(room.min(rest.len()));
            let last = *chain.blocks.last().expect("it has room");
            let block = &mut self.all[last as usize];
            assert_eq!(block.holders, 1, "a block that is written has one holder");
            if block.computed == block.tokens.len() {
                self.fresh.push(last);
            }
            block.tokens.extend_from_slice(now);
            chain.tokens += now.len();
            rest = later;
        }
        true
    }

    /// The tokens of this step are computed.
    pub(super) fn computed(&mut self) {
        for block in self.fresh.drain(..) {
            let block = &mut self.all[block as usize];
            block.computed = block.tokens.len();
        }
    }

    /// Ends a chain. What it held alone is kept, its end to be given up first.
    pub(super) fn release(&mut self, chain: &mut Chain) {
        for number in chain.blocks.drain(..).rev() {
            let block = &mut self.all[number as usize];
            block.holders -= 1;
            if block.holders > 0 {
                continue;
            }
            if block.before.is_some() {
                self.keeps += 1;
                block.kept = self.keeps;
                self.kept.insert(block.kept, number);
            } else {
                self.empty.push(number);
            }
        }
        chain.tokens = 0;
    }

    /// Nothing that is here is found any more: it was computed with other weights. Chains go on
    /// with what they have.
    pub(super) fn forget(&mut self) {
        self.following.clear();
        self.empty.extend(std::mem::take(&mut self.kept).values());
        self.all.iter_mut().for_each(|block| block.before = None);
    }

    /// The block that goes on as `tokens` do after `chain`, and for how many, without the last.
    fn next(&self, chain: &Chain, tokens: &[u32]) -> Option<(u32, usize)> {
        if !chain.tokens.is_multiple_of(self.size) {
            return None;
        }
        let wanted = tokens.get(chain.tokens..tokens.len().checked_sub(1)?)?;
        self.longest(self.end(chain)?, wanted)
    }

    /// Name of what a chain of full blocks holds, if others may find what follows.
    fn end(&self, chain: &Chain) -> Option<u64> {
        let Some(&last) = chain.blocks.last() else {
            return Some(START);
        };
        let block = &self.all[last as usize];
        block.before.map(|_| block.name)
    }

    fn longest(&self, name: u64, wanted: &[u32]) -> Option<(u32, usize)> {
        let mut best = None;
        for &block in self.following.get(&name).into_iter().flatten() {
            let tokens = &self.all[block as usize].tokens;
            let common = tokens.iter().zip(wanted).take_while(|(a, b)| a == b);
            let common = common.count();
            if common > best.map_or(0, |(_, most)| most) {
                best = Some((block, common));
            }
        }
        best
    }

    fn hold(&mut self, number: u32) {
        let block = &mut self.all[number as usize];
        if block.holders == 0 {
            self.kept.remove(&block.kept);
        }
        block.holders += 1;
    }

    /// An empty block, if need be the one that was kept longest, but not `spared`.
    fn take_but(&mut self, spared: Option<u32>) -> Option<u32> {
        if self.empty.is_empty() {
            let mut kept = self.kept.values().copied();
            let oldest = kept.find(|block| Some(*block) != spared)?;
            self.give_up(oldest);
        }
        self.empty.pop()
    }

    /// Empties a kept block.
    fn give_up(&mut self, number: u32) {
        let block = &mut self.all[number as usize];
        self.kept.remove(&block.kept);
        let before = block.before.take().expect("a kept block can be found");
        block.tokens.clear();
        let beside = self.following.get_mut(&before).expect("it is found there");
        beside.retain(|other| *other != number);
        if beside.is_empty() {
            self.following.remove(&before);
        }
        self.empty.push(number);
    }

    /// Makes an empty block one's own.
    fn begin(&mut self, number: u32, before: Option<u64>) {
        self.names += 1;
        let block = &mut self.all[number as usize];
        block.tokens.clear();
        (block.holders, block.computed) = (1, 0);
        (block.name, block.before) = (self.names, before);
        if let Some(before) = before {
            self.following.entry(before).or_default().push(number);
        }
    }
}

#[cfg(test)]
mod tests;
