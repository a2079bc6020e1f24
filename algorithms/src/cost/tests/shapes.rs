//! Measured shapes of one kind on one card, as rows that all kinds share.

use std::path::Path;

use super::super::card::{AllReduce, DecodeAttention, PrefillAttention, Product};
use super::super::shard::{all_reduce, decode_attention, prefill_attention, product};
use super::super::{Card, Sequences};
use super::measured::*;

/// The work of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Product,
    Decode,
    Prefill,
    AllReduce,
}

/// A measurement: up to four numbers of the shape, in the order of the module `measured`, and
/// microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    numbers: [u32; 4],
    pub(super) micros: f64,
}

impl Shape {
    /// True for an all-reduce of 16 MiB and more.
    pub(super) fn is_large(&self) -> bool {
        self.numbers[1] >= 16 << 20
    }
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Product, Self::Decode, Self::Prefill, Self::AllReduce];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::AllReduce => "all-reduce",
        }
    }

    /// Microseconds by the formula, with the card's constants.
    pub(super) fn said(self, card: &Card, shape: &Shape) -> f64 {
        let [a, b, c, d] = shape.numbers.map(f64::from);
        1e6 * match self {
            Self::Product => product(card, a, b, c),
            Self::Decode => decode_attention(card, a, b, c, HEAD),
            Self::Prefill => {
                let prompts = Sequences::equal(shape.numbers[0].into(), shape.numbers[1].into());
                prefill_attention(card, prompts.tokens as f64, prompts.squares, [c, d], HEAD)
            }
            Self::AllReduce => all_reduce(card, shape.numbers[0], b),
        }
    }

    /// The numbers from which a fit begins: the same for all cards.
    pub(super) fn start(self) -> &'static [f64] {
        match self {
            Self::Product => &[5e-6, 0.8, 0.7, 3.0],
            Self::Decode => &[1e-5, 0.8, 3e-8, 2.0],
            Self::Prefill => &[1e-5, 0.6, 0.4],
            Self::AllReduce => &[5e-6, 5e-6, 5e-6, 0.7, 0.7, 0.7, 3e-6],
        }
    }

    /// The card with these constants for the kind.
    pub(super) fn with(self, mut card: Card, numbers: &[f64]) -> Card {
        let kernels = &mut card.kernels;
        match (self, numbers) {
            (Self::Product, &[floor, bandwidth, flops, knee]) => {
                kernels.product = Product {
                    floor,
                    bandwidth,
                    flops,
                    knee,
                };
            }
            (Self::Decode, &[floor, bandwidth, head, knee]) => {
                kernels.decode = DecodeAttention {
                    floor,
                    bandwidth,
                    head,
                    knee,
                };
            }
            (Self::Prefill, &[floor, flops, bandwidth]) => {
                kernels.prefill = PrefillAttention {
                    floor,
                    flops,
                    bandwidth,
                };
            }
            (Self::AllReduce, &[a, b, c, d, e, f, ramp]) => {
                kernels.all_reduce = AllReduce {
                    start: [a, b, c],
                    nvlink: [d, e, f],
                    ramp,
                };
            }
            _ => unreachable!("as many as at the start"),
        }
        card
    }

    /// The part of the shape that is held out as a whole: the matrix of a product for all numbers of
    /// rows, the sequences of attention for all numbers of heads, the bytes of an all-reduce for all
    /// groups.
    pub(super) fn family(self, shape: &Shape) -> [u32; 2] {
        let [a, b, c, _] = shape.numbers;
        match self {
            Self::Product => [b, c],
            Self::Decode | Self::Prefill => [a, b],
            Self::AllReduce => [b, 0],
        }
    }
}

/// The shapes of a kind that were measured on a card: the sample in the tree, or all where
/// `ODEON_COST_TABLES` names the folder that `scripts/cost-tables` makes.
pub(super) fn shapes(card: &Card, kind: Kind) -> Vec<Shape> {
    match std::env::var_os("ODEON_COST_TABLES") {
        Some(folder) => table(Path::new(&folder), card, kind),
        None => sample(card, kind),
    }
}

fn table(folder: &Path, card: &Card, kind: Kind) -> Vec<Shape> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(folder)
        .join(format!("{}.csv", card.name.to_lowercase()));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run scripts/cost-tables", path.display()));
    let of_kind = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(',')?;
        (name == kind.name()).then_some(rest)
    });
    let shape = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse().expect("scripts/cost-tables wrote it");
        Shape {
            numbers: std::array::from_fn(number),
            micros: fields[4].parse().expect("scripts/cost-tables wrote it"),
        }
    };
    of_kind.map(shape).collect()
}

fn sample(card: &Card, kind: Kind) -> Vec<Shape> {
    match (&*card.name, kind) {
        ("H100", Kind::Product) => three(H100_PRODUCTS),
        ("H100", Kind::Decode) => three(H100_DECODE),
        ("H100", Kind::Prefill) => four(H100_PREFILL),
        ("H100", Kind::AllReduce) => two(H100_ALL_REDUCE),
        ("H200", Kind::Product) => three(H200_PRODUCTS),
        ("H200", Kind::Decode) => three(H200_DECODE),
        ("H200", Kind::Prefill) => four(H200_PREFILL),
        ("H200", Kind::AllReduce) => two(H200_ALL_REDUCE),
        ("A100", Kind::Product) => three(A100_PRODUCTS),
        ("A100", Kind::Decode) => three(A100_DECODE),
        ("A100", Kind::Prefill) => four(A100_PREFILL),
        ("A100", Kind::AllReduce) => two(A100_ALL_REDUCE),
        _ => panic!("nobody measured {}", card.name),
    }
}

pub(super) fn two(rows: &[(u32, u32, f64)]) -> Vec<Shape> {
    let shape = |&(a, b, micros)| Shape {
        numbers: [a, b, 0, 0],
        micros,
    };
    rows.iter().map(shape).collect()
}

pub(super) fn three(rows: &[(u32, u32, u32, f64)]) -> Vec<Shape> {
    let shape = |&(a, b, c, micros)| Shape {
        numbers: [a, b, c, 0],
        micros,
    };
    rows.iter().map(shape).collect()
}

fn four(rows: &[(u32, u32, u32, u32, f64)]) -> Vec<Shape> {
    let shape = |&(a, b, c, d, micros)| Shape {
        numbers: [a, b, c, d],
        micros,
    };
    rows.iter().map(shape).collect()
}

/// Elements of the heads that were measured.
const HEAD: f64 = 128.0;
