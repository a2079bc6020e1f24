//! The sequences of a lane: which of them get rows in the next step, and where their keys and values
//! lie. Pure.
//!
//! The oldest sequence is served first. When blocks run out the youngest one loses its own and waits
//! in its slot; it goes on, from what is then still kept, before anything new is admitted. So the
//! oldest one always goes on, and every one becomes the oldest.

use odeon_gpu::{BlockTable, CacheRow};

use super::blocks::{Blocks, Chain};
use super::lane::LaneSize;
use super::{CacheCounts, Finish, Request, Sampled};

/// A running sequence.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) request: Request,
    /// Prompt and sampled tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) sampled: Sampled,
    /// Where its keys and values are.
    chain: Chain,
    /// When it was admitted, counted by the lane.
    age: u64,
    /// Blocks that it will still take until its tokens are in.
    expects: usize,
    /// It has lost its blocks to an older one.
    waits: bool,
}

/// The places of a lane for sequences, with the blocks and the age of each sequence.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Option<Running>>,
    prefill: usize,
    max_tokens: usize,
    blocks: Blocks,
    table: BlockTable,
    admitted: u64,
    reused: u64,
    preempted: u64,
    /// Slots in the order of their sequences' age.
    order: Vec<usize>,
}

/// The rows of a step.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) places: Vec<CacheRow>,
    /// Blocks to copy before anything is written.
    pub(super) copies: Vec<(u32, u32)>,
    /// Rows that are the last of their sequence, and its slot: they draw a token.
    pub(super) last: Vec<u32>,
    pub(super) slots: Vec<usize>,
    pub(super) scales: Vec<f32>,
}

/// The share of a sequence in a step.
enum Served {
    /// So many rows, perhaps none.
    Rows(usize),
    /// Blocks are lacking.
    NoRoom,
}

impl Slots {
    pub(super) fn new(size: LaneSize) -> Self {
        let most = size.max_tokens.div_ceil(size.block_tokens);
        Self {
            slots: (0..size.slots).map(|_| None).collect(),
            prefill: size.prefill,
            max_tokens: size.max_tokens,
            blocks: Blocks::new(size.blocks, size.block_tokens),
            table: BlockTable::new(size.slots, most, size.block_tokens),
            admitted: 0,
            reused: 0,
            preempted: 0,
            order: Vec::new(),
        }
    }

    pub(super) fn table(&self) -> &BlockTable {
        &self.table
    }

    pub(super) fn active(&self) -> usize {
        self.all().count()
    }

    pub(super) fn sampled(&self, id: u64) -> Option<&[u32]> {
        let found = self.all().find(|running| running.request.id == id);
        found.map(|running| &*running.sampled.tokens)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Sampled> {
        self.all().map(|running| &running.sampled)
    }

    pub(super) fn running_mut(&mut self, slot: usize) -> &mut Running {
        let running = self.slots[slot].as_mut();
        running.expect("a row's slot holds its sequence")
    }

    pub(super) fn counts(&self) -> CacheCounts {
        let blocks = &self.blocks;
        CacheCounts {
            blocks: blocks.count(),
            held: blocks.count() - blocks.available(),
            shared: blocks.shared(),
            kept: blocks.kept(),
            tokens: blocks.held_tokens(),
            reused: self.reused,
            preempted: self.preempted,
        }
    }

    /// Number of a prompt's first tokens that are here or will be, in whole blocks.
    pub(super) fn known(&self, prompt: &[u32]) -> usize {
        let known = self.begun(prompt).max(self.blocks.known(prompt));
        known / self.blocks.size() * self.blocks.size()
    }

    /// Returns true when there is a slot, and blocks beside those that the sequences before will
    /// take.
    pub(super) fn takes(&self, prompt: &[u32]) -> bool {
        self.slots.iter().any(Option::is_none)
            && self.all().all(|running| !running.waits)
            && self.fits(prompt)
    }

    pub(super) fn admit(&mut self, request: Request) {
        let expects = self.needs(&request.prompt);
        let slot = self.slots.iter_mut().find(|slot| slot.is_none());
        *slot.expect("the caller saw room") = Some(Running {
            tokens: request.prompt.clone(),
            sampled: Sampled::new(request.id, Finish::Evicted),
            request,
            chain: Chain::default(),
            age: self.admitted,
            expects,
            waits: false,
        });
        self.admitted += 1;
    }

    /// Takes out all sequences with what they have so far.
    pub(super) fn evict(&mut self) -> Vec<Sampled> {
        let Self { slots, blocks, .. } = self;
        let all = slots.iter_mut().filter_map(Option::take);
        all.map(|mut running| {
            blocks.release(&mut running.chain);
            running.sampled
        })
        .collect()
    }

    /// Takes out an ended sequence.
    pub(super) fn end(&mut self, slot: usize) -> Sampled {
        let mut running = self.slots[slot].take().expect("it was just here");
        self.blocks.release(&mut running.chain);
        running.sampled
    }

    /// Nothing is shared with what comes from now on: it is of other weights.
    pub(super) fn forget_kept(&mut self) {
        self.blocks.forget();
    }

    /// Has all keys and values computed again.
    pub(super) fn forget_caches(&mut self) {
        let all = self.slots.iter_mut().flatten();
        for running in all.filter(|running| !running.waits) {
            self.blocks.release(&mut running.chain);
            running.expects = self.blocks.of_tokens(running.tokens.len());
        }
        self.blocks.forget();
    }

    /// The scheduled tokens are computed.
    pub(super) fn computed(&mut self) {
        self.blocks.computed();
    }

    /// The next step's rows: every sequence that samples gives one; prompts give what the budget
    /// allows.
    pub(super) fn schedule(&mut self, rows: &mut Rows) {
        rows.clear();
        self.resume();
        let mut order = std::mem::take(&mut self.order);
        self.by_age(&mut order);
        let mut budget = self.prefill;
        for &slot in &order {
            while !self.waits(slot) {
                match self.serve(slot, budget, rows) {
                    Served::Rows(taken) => {
                        budget -= taken;
                        break;
                    }
                    Served::NoRoom => self.preempt(&order),
                }
            }
        }
        self.order = order;
    }

    fn all(&self) -> impl Iterator<Item = &Running> {
        self.slots.iter().flatten()
    }

    fn waits(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_none_or(|it| it.waits)
    }

    fn by_age(&self, order: &mut Vec<usize>) {
        order.clear();
        order.extend((0..self.slots.len()).filter(|slot| self.slots[*slot].is_some()));
        order.sort_unstable_by_key(|slot| self.slots[*slot].as_ref().map(|it| it.age));
    }

    /// Number of the first of `tokens` with which a sequence begins too that has its blocks, or
    /// will take them.
    fn begun(&self, tokens: &[u32]) -> usize {
        let with_blocks = self.all().filter(|running| !running.waits);
        with_blocks
            .map(|running| {
                let pairs = running.tokens.iter().zip(tokens);
                pairs.take_while(|(a, b)| a == b).count()
            })
            .max()
            .unwrap_or(0)
    }

    /// Blocks that a sequence with these tokens will take, those aside that it shares with others.
    fn needs(&self, tokens: &[u32]) -> usize {
        let shared = self.begun(tokens).min(tokens.len() - 1) / self.blocks.size();
        let tokens = (tokens.len() + 1).min(self.max_tokens);
        self.blocks.of_tokens(tokens) - shared
    }

    fn fits(&self, tokens: &[u32]) -> bool {
        let promised: usize = self.all().map(|running| running.expects).sum();
        promised + self.needs(tokens) <= self.blocks.available()
    }

    /// Lets sequences go on that lost their blocks, the oldest first; that one in any case when no
    /// other one has blocks.
    fn resume(&mut self) {
        let waiting = |slots: &[Option<Running>]| {
            let waiting = slots.iter().enumerate().filter_map(|(slot, it)| {
                let it = it.as_ref().filter(|it| it.waits)?;
                Some((it.age, slot))
            });
            waiting.min().map(|(_, slot)| slot)
        };
        while let Some(slot) = waiting(&self.slots) {
            let tokens = &self.running_mut(slot).tokens.clone();
            if !self.fits(tokens) && self.all().any(|running| !running.waits) {
                return;
            }
            let expects = self.needs(tokens);
            let running = self.running_mut(slot);
            (running.expects, running.waits) = (expects, false);
        }
    }

    /// Takes the blocks of the youngest sequence that has not lost them yet.
    fn preempt(&mut self, order: &[usize]) {
        let youngest = order.iter().rev().find(|slot| !self.waits(**slot));
        let Some(running) = youngest.and_then(|slot| self.slots[*slot].as_mut()) else {
            return;
        };
        self.blocks.release(&mut running.chain);
        (running.expects, running.waits) = (0, true);
        self.preempted += 1;
    }

    /// Gives a sequence what it can have of the step.
    fn serve(&mut self, slot: usize, budget: usize, rows: &mut Rows) -> Served {
        let Self {
            slots,
            blocks,
            table,
            reused,
            ..
        } = self;
        let running = slots[slot].as_mut().expect("it is in the order");
        let Running { chain, tokens, .. } = running;
        let had = blocks.available();
        *reused += blocks.take_over(chain, tokens) as u64;
        let due = tokens.len() - chain.tokens();
        if let Some(tail) = blocks.tail(chain, tokens) {
            if !tail.computed {
                // Someone computes these in this step; they are copied in the next one.
                return Served::Rows(0);
            }
            if budget > 0 || due - tail.tokens == 1 {
                let Some(copy) = blocks.branch(chain, tail) else {
                    return Served::NoRoom;
                };
                *reused += tail.tokens as u64;
                rows.copies.extend(copy);
            }
        }
        let from = chain.tokens();
        let due = tokens.len() - from;
        let take = if due == 1 { 1 } else { due.min(budget) };
        if !blocks.append(chain, &tokens[from..from + take]) {
            return Served::NoRoom;
        }
        running.expects = running.expects.saturating_sub(had - blocks.available());
        if take == 0 {
            return Served::Rows(0);
        }
        table.set(slot, chain.blocks());
        rows.push(slot, from, &tokens[from..from + take]);
        if take == due {
            running.expects = 0;
            rows.draws(slot, running.request.sampling.temperature);
        }
        Served::Rows(if due > 1 { take } else { 0 })
    }
}

impl Rows {
    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.places.clear();
        self.copies.clear();
        self.last.clear();
        self.slots.clear();
        self.scales.clear();
    }

    /// The tokens of a sequence from a position on.
    fn push(&mut self, slot: usize, from: usize, tokens: &[u32]) {
        let positions = from as u32..(from + tokens.len()) as u32;
        let slot = slot as u32;
        let places = positions
            .clone()
            .map(|position| CacheRow { slot, position });
        self.tokens.extend_from_slice(tokens);
        self.places.extend(places);
        self.positions.extend(positions);
    }

    /// The last row draws a token.
    fn draws(&mut self, slot: usize, temperature: f32) {
        self.last.push(self.tokens.len() as u32 - 1);
        self.slots.push(slot);
        let scale = if temperature == 0.0 {
            1.0
        } else {
            1.0 / temperature
        };
        self.scales.push(scale);
    }
}
