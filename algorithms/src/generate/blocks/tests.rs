//! Random operations on blocks, against memory that says what was written where.

use proptest::prelude::*;

use super::*;

/// The content of a position of a block: the tokens up to it, and the weights of each.
type Content = Vec<(u32, u32)>;

const SIZE: usize = 4;
const COUNT: usize = 8;
const CHAINS: usize = 5;

#[derive(Debug, Default)]
struct Sequence {
    chain: Chain,
    tokens: Vec<u32>,
    /// The content that each of its positions must have.
    content: Content,
    /// It has been given places in this step.
    served: bool,
}

#[derive(Debug)]
struct World {
    blocks: Blocks,
    memory: Vec<Vec<Content>>,
    weights: u32,
    sequences: Vec<Sequence>,
    copies: Vec<(u32, u32)>,
    writes: Vec<(u32, usize, Content)>,
}

#[derive(Clone, Debug)]
enum Op {
    /// A new prompt in a place that is free.
    Begin(usize, Vec<u32>),
    /// Up to so many tokens get places.
    Serve(usize, usize),
    /// One more token is known.
    Sample(usize, u32),
    Release(usize),
    NewWeights,
    EndStep,
}

fn op() -> impl Strategy<Value = Op> {
    let chain = 0..CHAINS;
    prop_oneof![
        3 => (chain.clone(), prop::collection::vec(0u32..2, 1..20)).prop_map(|(c, t)| Op::Begin(c, t)),
        6 => (chain.clone(), 1usize..12).prop_map(|(c, n)| Op::Serve(c, n)),
        2 => (chain.clone(), 0u32..2).prop_map(|(c, t)| Op::Sample(c, t)),
        2 => chain.prop_map(Op::Release),
        1 => Just(Op::NewWeights),
        5 => Just(Op::EndStep),
    ]
}

impl World {
    fn new() -> Self {
        Self {
            blocks: Blocks::new(COUNT, SIZE),
            memory: vec![vec![vec![]; SIZE]; COUNT],
            weights: 0,
            sequences: (0..CHAINS).map(|_| Sequence::default()).collect(),
            copies: vec![],
            writes: vec![],
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Begin(at, tokens) if self.sequences[at].tokens.is_empty() => {
                self.sequences[at].tokens = tokens;
            }
            Op::Sample(at, token) => {
                let it = &mut self.sequences[at];
                if it.tokens.len() < COUNT * SIZE && it.chain.tokens() == it.tokens.len() {
                    it.tokens.push(token);
                }
            }
            Op::Serve(at, most) => self.serve(at, most),
            // As in a lane: nobody ends and no weights come before a step's tokens are computed.
            Op::Release(at) if !self.sequences[at].served => {
                let mut ended = std::mem::take(&mut self.sequences[at]);
                self.blocks.release(&mut ended.chain);
            }
            Op::NewWeights if self.writes.is_empty() && self.copies.is_empty() => {
                self.weights += 1;
                self.blocks.forget();
            }
            Op::EndStep => self.end_step(),
            _ => {}
        }
        self.check_counts();
    }

    fn serve(&mut self, at: usize, most: usize) {
        let (blocks, weights) = (&mut self.blocks, self.weights);
        let it = &mut self.sequences[at];
        let know = |it: &mut Sequence| {
            let from = it.content.len();
            let new = it.tokens[from..it.chain.tokens()].iter();
            it.content.extend(new.map(|token| (*token, weights)));
        };
        let before = it.chain.tokens();
        let taken = blocks.take_over(&mut it.chain, &it.tokens);
        assert_eq!(it.chain.tokens(), before + taken);
        know(it);
        it.served |= taken > 0;
        if let Some(tail) = blocks.tail(&it.chain, &it.tokens) {
            if !tail.computed {
                return;
            }
            let available = blocks.available();
            match blocks.branch(&mut it.chain, tail) {
                Some(copy) => self.copies.extend(copy),
                None => return assert_eq!(available, 0),
            }
            know(it);
            it.served = true;
        }
        let from = it.chain.tokens();
        let next = &it.tokens[from..it.tokens.len().min(from + most)];
        let wanted = (from + next.len()).div_ceil(SIZE) - it.chain.blocks().len();
        let room = blocks.available() >= wanted;
        assert_eq!(blocks.append(&mut it.chain, next), room);
        if !room {
            return assert_eq!(it.chain.tokens(), from);
        }
        it.served |= !next.is_empty();
        let to = from + next.len();
        know(it);
        for position in from..to {
            let block = it.chain.blocks()[position / SIZE];
            let content = it.content[..=position].to_vec();
            assert!(
                !self
                    .writes
                    .iter()
                    .any(|(b, p, _)| (*b, *p) == (block, position % SIZE)),
                "two write one place"
            );
            self.writes.push((block, position % SIZE, content));
        }
    }

    fn end_step(&mut self) {
        for (from, to) in self.copies.drain(..) {
            self.memory[to as usize] = self.memory[from as usize].clone();
        }
        for (block, at, content) in self.writes.drain(..) {
            self.memory[block as usize][at] = content;
        }
        self.blocks.computed();
        for it in &mut self.sequences {
            it.served = false;
            for position in 0..it.chain.tokens() {
                let block = it.chain.blocks()[position / SIZE] as usize;
                let content = &self.memory[block][position % SIZE];
                assert_eq!(
                    content,
                    &it.content[..=position],
                    "what a sequence reads is its own"
                );
            }
        }
    }

    /// Against what the chains themselves say.
    fn check_counts(&self) {
        let mut holders = vec![0; COUNT];
        for it in &self.sequences {
            assert_eq!(it.chain.blocks().len(), it.chain.tokens().div_ceil(SIZE));
            it.chain
                .blocks()
                .iter()
                .for_each(|b| holders[*b as usize] += 1);
        }
        let mut unheld: Vec<u32> = self.blocks.kept.values().copied().collect();
        unheld.extend(&self.blocks.empty);
        unheld.sort_unstable();
        let want = (0..COUNT as u32).filter(|b| holders[*b as usize] == 0);
        assert_eq!(
            unheld,
            want.collect::<Vec<_>>(),
            "none lost, none given twice"
        );
        let mut tokens = 0;
        for (block, holders) in self.blocks.all.iter().zip(&holders) {
            assert_eq!(block.holders, *holders);
            assert!(
                *holders < 2 || block.tokens.len() == SIZE,
                "shared blocks are full"
            );
            tokens += if *holders > 0 { block.tokens.len() } else { 0 };
        }
        assert_eq!(self.blocks.held_tokens(), tokens);
        assert_eq!(
            self.blocks.shared(),
            holders.iter().filter(|n| **n > 1).count()
        );
        let mut found: Vec<u32> = self.blocks.following.values().flatten().copied().collect();
        found.sort_unstable();
        let all = self.blocks.all.iter().zip(0u32..);
        let findable = all.filter(|(block, _)| block.before.is_some());
        assert_eq!(found, findable.map(|(_, at)| at).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// SEMANTICS 82.
    #[test]
    fn no_block_is_lost_or_written_by_two_and_each_sequence_reads_its_own_tokens(
        ops in prop::collection::vec(op(), 0..80),
    ) {
        let mut world = World::new();
        ops.into_iter().for_each(|op| world.run(op));
        world.run(Op::EndStep);
        (0..CHAINS).for_each(|at| world.run(Op::Release(at)));
        prop_assert_eq!(world.blocks.available(), COUNT);
    }
}

fn filled(blocks: &mut Blocks, tokens: &[u32]) -> Chain {
    let mut chain = Chain::default();
    assert!(blocks.append(&mut chain, tokens));
    blocks.computed();
    chain
}

#[test]
fn what_is_taken_over_ends_before_the_last_token() {
    let mut blocks = Blocks::new(8, 4);
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8];
    let first = filled(&mut blocks, &prompt);
    let mut second = Chain::default();
    assert_eq!(blocks.take_over(&mut second, &prompt), 4);
    let tail = blocks.tail(&second, &prompt).unwrap();
    assert_eq!(
        (tail.block, tail.tokens, tail.computed),
        (first.blocks[1], 3, true)
    );
    let copy = blocks.branch(&mut second, tail).unwrap();
    assert_eq!(copy, Some((first.blocks[1], second.blocks[1])));
    assert_eq!(
        (second.tokens(), blocks.shared(), blocks.held_tokens()),
        (7, 1, 11)
    );
}

#[test]
fn the_end_of_what_was_kept_longest_makes_room_first() {
    let mut blocks = Blocks::new(3, 2);
    let mut old = filled(&mut blocks, &[1, 2, 3, 4]);
    blocks.release(&mut old);
    let new = filled(&mut blocks, &[9, 9, 9]);
    assert_eq!((new.blocks.len(), blocks.kept()), (2, 1));
    assert_eq!(
        blocks.known(&[1, 2, 3, 4]),
        2,
        "the beginning is still there"
    );
}

#[test]
fn the_last_block_that_is_left_is_taken_itself() {
    let mut blocks = Blocks::new(1, 4);
    let mut ended = filled(&mut blocks, &[1, 2, 3]);
    blocks.release(&mut ended);
    let mut chain = Chain::default();
    let tail = blocks.tail(&chain, &[1, 2, 7]).unwrap();
    assert_eq!(blocks.branch(&mut chain, tail), Some(None));
    assert!(blocks.append(&mut chain, &[7]));
    assert_eq!(blocks.known(&[1, 2, 3]), 2);
}
