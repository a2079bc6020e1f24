//! Moments in bytes: tiles of 32 x 32 numbers, each with a scale.
//!
//! ```text
//!  number = scale of its tile * value of its code        one of 256 values, between 0 or -1 and 1
//! ```
//!
//! The values are those of dynamic tree quantisation, as bitsandbytes has them: seven decimal orders below 1, with more
//! values in the upper ones (T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv
//! [2110.02861](https://arxiv.org/abs/2110.02861)). Blocks are tiles in place of runs, so that they do not depend on
//! where ranks cut between rows (veScale-FSDP, arXiv 2602.22437). Everything is computed by the processor in one order of
//! operations, so that bits are the same wherever a tile lies.

use std::ops::Range;
use std::sync::LazyLock;

use odeon_gpu::UpdateRule;

use super::holding::{HeldTensor, Holding};

/// Rows and columns of a tile.
pub(super) const TILE: usize = 32;

/// Decimal orders that the codes reach over.
const ORDERS: i32 = 7;

/// The values of the codes of a moment, in their order.
#[derive(Debug)]
pub(super) struct CodeBook {
    values: [f32; 256],
    /// The middles between neighbours.
    middles: [f32; 255],
    /// The code of zero.
    zero: u8,
}

/// Codes of a moment of either sign.
pub(super) static SIGNED: LazyLock<CodeBook> = LazyLock::new(|| CodeBook::new(true));

/// Codes of a moment that is never below zero.
pub(super) static UNSIGNED: LazyLock<CodeBook> = LazyLock::new(|| CodeBook::new(false));

impl CodeBook {
    /// In the order `k` from the lowest there are `2^k` values of each sign, or twice as many of one: the middles of as many equal
    /// parts between a tenth of the order's end and that end. Zero and one complete them.
    fn new(signed: bool) -> Self {
        let mut values = vec![0.0f64, 1.0];
        for order in 0..ORDERS {
            let parts = match signed {
                true => 1 << order,
                false => 2 << order,
            };
            let end = 10f64.powi(order + 1 - ORDERS);
            let part = |at: u32| end * (0.1 + 0.9 * (f64::from(at) + 0.5) / f64::from(parts));
            let positive = (0..parts).map(part);
            values.extend(positive.clone());
            if signed {
                values.extend(positive.map(|value| -value));
            }
        }
        values.sort_by(f64::total_cmp);
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        let values: [f32; 256] = values.try_into().expect("2 + 2 (2^7 - 1) values");
        let zero = values.partition_point(|value| *value < 0.0);
        Self {
            middles: std::array::from_fn(|at| 0.5 * (values[at] + values[at + 1])),
            zero: zero as u8,
            values,
        }
    }

    /// The value of a code.
    pub(super) fn value(&self, code: u8) -> f32 {
        self.values[usize::from(code)]
    }

    /// The code of the nearest value.
    fn nearest(&self, value: f32) -> u8 {
        self.middles.partition_point(|middle| *middle < value) as u8
    }

    /// The same, but of what is above zero no code of zero: a step is divided by a root of it.
    fn nearest_above(&self, value: f32) -> u8 {
        let nearest = self.nearest(value);
        match value > 0.0 && nearest == self.zero {
            true => nearest + 1,
            false => nearest,
        }
    }
}

/// The shape of the scales of a tensor.
pub(crate) fn scales_shape(shape: &[usize]) -> Vec<usize> {
    shape.iter().map(|length| length.div_ceil(TILE)).collect()
}

/// The scales of some whole tiles of a tensor, by the elements of these.
pub(crate) fn scales_of(shape: &[usize], elements: &Range<usize>) -> Range<usize> {
    let columns = shape.get(1).copied().unwrap_or(1);
    if elements.is_empty() {
        return 0..0;
    }
    let across = columns.div_ceil(TILE);
    let rows = elements.start / columns..elements.end / columns;
    rows.start / TILE * across..rows.end.div_ceil(TILE) * across
}

/// Bytes of both moments of a holding.
pub(super) fn bytes(holding: &Holding) -> usize {
    let of = |held: &HeldTensor| {
        let scales = scales_of(&held.shape, &held.elements);
        2 * (held.elements.len() + 4 * scales.len())
    };
    holding.tensors.iter().map(of).sum()
}

/// The first and the second moment of the tensors of a rank.
#[derive(Debug)]
pub(crate) struct TiledMoments {
    pub(crate) tensors: Vec<TiledTensor>,
}

/// Rows of a tensor whose tiles a rank keeps.
#[derive(Debug)]
pub(crate) struct TiledTensor {
    /// Columns of the tensor.
    columns: usize,
    /// Where its numbers begin in the buffers of parameters and gradients.
    pub(super) at: usize,
    /// Set of a matrix, which has the weight decay.
    pub(super) decays: bool,
    /// The first and the second.
    pub(crate) moments: [TiledMoment; 2],
}

/// A moment of some rows of a tensor.
#[derive(Debug)]
pub(crate) struct TiledMoment {
    /// A byte for each number.
    pub(crate) codes: Vec<u8>,
    /// A scale for each tile.
    pub(crate) scales: Vec<f32>,
}

/// Numbers of a tile, row by row.
type Tile = [f32; TILE * TILE];

impl TiledMoments {
    /// Moments of zero.
    ///
    /// # Panics
    /// If a tile is cut.
    pub(super) fn new(holding: &Holding) -> Self {
        let tensor = |held: &HeldTensor| {
            let [rows, columns] = held.rows_and_columns();
            let Range { start, end } = held.elements;
            let is_edge = |at: usize| at == rows * columns || at.is_multiple_of(TILE * columns);
            let whole = start == end || (is_edge(start) && is_edge(end));
            assert!(whole, "{}: a tile is on one rank", held.name);
            let scales = scales_of(&held.shape, &held.elements).len();
            TiledTensor {
                columns,
                at: held.at,
                decays: held.is_matrix(),
                moments: [&*SIGNED, &*UNSIGNED].map(|book| TiledMoment {
                    codes: vec![book.zero; end - start],
                    scales: vec![0.0; scales],
                }),
            }
        };
        Self {
            tensors: holding.tensors.iter().map(tensor).collect(),
        }
    }
}

impl TiledTensor {
    /// Numbers of it that the rank keeps.
    pub(super) fn len(&self) -> usize {
        self.moments[0].codes.len()
    }

    /// Changes parameters and moments, tile by tile.
    pub(super) fn update(&mut self, update: impl UpdateRule, params: &mut [f32], grads: &[f32]) {
        let across = self.columns.div_ceil(TILE);
        for scale in 0..self.moments[0].scales.len() {
            let (row, column) = (scale / across * TILE, scale % across * TILE);
            let width = TILE.min(self.columns - column);
            let rows = (row..row + TILE)
                .map(|row| row * self.columns + column)
                .take_while(|at| *at < self.len());
            let rows: Vec<Range<usize>> = rows.map(|at| at..at + width).collect();
            let len = rows.len() * width;
            let [mut p, mut g, mut first, mut second] = [[0.0; TILE * TILE]; 4];
            for (to, row) in rows.iter().enumerate() {
                let to = to * width..(to + 1) * width;
                p[to.clone()].copy_from_slice(&params[row.clone()]);
                g[to].copy_from_slice(&grads[row.clone()]);
            }
            let [of_first, of_second] = &mut self.moments;
            of_first.decode(&SIGNED, scale, &rows, &mut first);
            of_second.decode(&UNSIGNED, scale, &rows, &mut second);
            let mut states = [&mut first[..len], &mut second[..len]];
            update.apply(&mut p[..len], &g[..len], &mut states);
            of_first.encode(scale, &rows, &first[..len], |value| SIGNED.nearest(value));
            of_second.encode(scale, &rows, &second[..len], |value| {
                UNSIGNED.nearest_above(value)
            });
            for (from, row) in rows.into_iter().enumerate() {
                params[row].copy_from_slice(&p[from * width..(from + 1) * width]);
            }
        }
    }
}

impl TiledMoment {
    /// The numbers of a tile.
    fn decode(&self, book: &CodeBook, scale: usize, rows: &[Range<usize>], numbers: &mut Tile) {
        let codes = rows.iter().flat_map(|row| &self.codes[row.clone()]);
        for (number, code) in numbers.iter_mut().zip(codes) {
            *number = self.scales[scale] * book.value(*code);
        }
    }

    /// Replaces the numbers of a tile. One that is not finite makes the scale so, which shows.
    fn encode(
        &mut self,
        scale: usize,
        rows: &[Range<usize>],
        numbers: &[f32],
        code: impl Fn(f32) -> u8,
    ) {
        let most = numbers.iter().fold(0.0f32, |most, number| {
            match most.is_nan() || number.is_nan() {
                true => f32::NAN,
                false => most.max(number.abs()),
            }
        });
        self.scales[scale] = most;
        let codes = rows.iter().flat_map(Clone::clone);
        for (at, number) in codes.zip(numbers) {
            self.codes[at] = code(match most > 0.0 {
                true => number / most,
                false => 0.0,
            });
        }
    }
}
