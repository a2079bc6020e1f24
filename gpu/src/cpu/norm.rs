//! Row-wise operations: RMSNorm, rotary embedding, SwiGLU, GELU.

use odeon_simd::simd;

use super::pool::{Pool, rows_per_block};
use super::simd::{madd, reduce, sigmoid};
use crate::backend::{RopeShape, RopeStyle, Store};

pub(super) fn forward(
    pool: &Pool,
    eps: f32,
    x: &[f32],
    weight: &[f32],
    y: &mut [f32],
    inv_rms: &mut [f32],
) {
    let cols = weight.len();
    assert!(
        x.len() == y.len() && x.len() == inv_rms.len() * cols,
        "rows of one width"
    );
    let rows = rows_per_block(cols);
    pool.blocks2((y, rows * cols), (inv_rms, rows), |i, y, inv| {
        norm_rows(eps, &x[i * rows * cols..][..y.len()], weight, y, inv);
    });
}

pub(super) fn backward(
    pool: &Pool,
    x: &[f32],
    weight: &[f32],
    inv_rms: &[f32],
    dy: &[f32],
    (dx, store): (&mut [f32], Store),
    dweight: Option<&mut [f32]>,
) {
    let cols = weight.len();
    assert!(
        x.len() == dx.len() && x.len() == inv_rms.len() * cols,
        "rows of one width"
    );
    let rows = rows_per_block(cols);
    let blocks = inv_rms.len().div_ceil(rows);
    pool.scratch(blocks * cols, |partial| {
        partial.fill(0.0);
        pool.blocks2((dx, rows * cols), (partial, cols), |i, dx, dw| {
            let at = i * rows * cols..i * rows * cols + dx.len();
            let inv = &inv_rms[i * rows..];
            norm_rows_backward(&x[at.clone()], weight, inv, &dy[at], dx, store, dw);
        });
        if let Some(dweight) = dweight {
            for block in partial.chunks_exact(cols) {
                dweight
                    .iter_mut()
                    .zip(block)
                    .for_each(|(sum, part)| *sum += part);
            }
        }
    });
}

simd! {
    fn norm_rows(eps: f32, x: &[f32], weight: &[f32], y: &mut [f32], inv_rms: &mut [f32]) {
        let cols = weight.len();
        let rows = x.chunks_exact(cols).zip(y.chunks_exact_mut(cols));
        for ((x, y), inv_rms) in rows.zip(inv_rms) {
            let squares = reduce(cols, |s, i| madd::<FMA>(x[i], x[i], s));
            let inv = 1.0 / (squares / cols as f32 + eps).sqrt();
            *inv_rms = inv;
            for i in 0..cols {
                y[i] = x[i] * inv * weight[i];
            }
        }
    }

    fn norm_rows_backward(
        x: &[f32],
        weight: &[f32],
        inv_rms: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        store: Store,
        dweight: &mut [f32],
    ) {
        let cols = weight.len();
        let rows = x.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols));
        for (((x, dy), dx), inv) in rows.zip(inv_rms) {
            let dweight = &mut dweight[..cols];
            let inv = *inv;
            let dot = reduce(cols, |s, i| madd::<FMA>(dy[i] * weight[i], x[i], s));
            let pull = dot * inv * inv * inv / cols as f32;
            match store {
                Store::Set => {
                    for i in 0..cols {
                        dweight[i] = madd::<FMA>(dy[i], x[i] * inv, dweight[i]);
                        dx[i] = dy[i] * weight[i] * inv - x[i] * pull;
                    }
                }
                Store::Add => {
                    for i in 0..cols {
                        dweight[i] = madd::<FMA>(dy[i], x[i] * inv, dweight[i]);
                        dx[i] += dy[i] * weight[i] * inv - x[i] * pull;
                    }
                }
            }
        }
    }

    pub(super) fn swiglu(cols: usize, x: &[f32], y: &mut [f32]) {
        for (x, y) in x.chunks_exact(2 * cols).zip(y.chunks_exact_mut(cols)) {
            let (gate, up) = x.split_at(cols);
            for i in 0..cols {
                y[i] = gate[i] * sigmoid::<FMA>(gate[i]) * up[i];
            }
        }
    }

    pub(super) fn swiglu_backward(cols: usize, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        let rows = x.chunks_exact(2 * cols).zip(dx.chunks_exact_mut(2 * cols));
        for ((x, dx), dy) in rows.zip(dy.chunks_exact(cols)) {
            let (gate, up) = x.split_at(cols);
            let (dgate, dup) = dx.split_at_mut(cols);
            for i in 0..cols {
                let s = sigmoid::<FMA>(gate[i]);
                dup[i] = dy[i] * gate[i] * s;
                dgate[i] = dy[i] * up[i] * s * (1.0 + gate[i] * (1.0 - s));
            }
        }
    }

    pub(super) fn gelu(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y = x * sigmoid::<FMA>(GELU * (x + CUBE * x * x * x));
        }
    }

    pub(super) fn gelu_backward(x: &[f32], dy: &[f32], dx: &mut [f32]) {
        for ((x, dy), dx) in x.iter().zip(dy).zip(dx) {
            let s = sigmoid::<FMA>(GELU * (x + CUBE * x * x * x));
            let inner = GELU * (1.0 + 3.0 * CUBE * x * x);
            *dx = dy * (s + x * s * (1.0 - s) * inner);
        }
    }

    fn rotate_half(cos: &[f32], sin: &[f32], head: &mut [f32]) {
        let half = cos.len();
        let (low, high) = head.split_at_mut(half);
        for i in 0..half {
            let (a, b) = (low[i], high[i]);
            low[i] = a * cos[i] - b * sin[i];
            high[i] = b * cos[i] + a * sin[i];
        }
    }

    fn rotate_pairs(cos: &[f32], sin: &[f32], head: &mut [f32]) {
        for (pair, (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin)) {
            let [a, b] = *pair;
            *pair = [a * cos - b * sin, b * cos + a * sin];
        }
    }
}

/// `2 sqrt(2/pi)`: `(1 + tanh(z))/2` is the logistic function of `2 z`.
const GELU: f32 = 1.595_769_2;
/// Factor on the cube in the approximation of GELU.
const CUBE: f32 = 0.044_715;

/// Turns by `direction * position * frequency`, angles in f32 as the published models compute them.
pub(super) fn rope(
    pool: &Pool,
    shape: &RopeShape,
    positions: &[u32],
    direction: f32,
    rows: &mut [f32],
) {
    shape.check(positions.len(), rows.len());
    let RopeShape {
        heads,
        head_dim,
        row_stride,
        ref frequencies,
        magnitude,
        style,
    } = *shape;
    let half = head_dim / 2;
    let block_rows = rows_per_block(row_stride);
    pool.blocks(rows, block_rows * row_stride, |block, rows| {
        let positions = &positions[block * block_rows..];
        pool.scratch(2 * half, |table| {
            let (cos, sin) = table.split_at_mut(half);
            let mut known = None;
            for (row, &position) in rows.chunks_exact_mut(row_stride).zip(positions) {
                if known != Some(position) {
                    known = Some(position);
                    for i in 0..half {
                        let (s, c) = (position as f32 * frequencies[i]).sin_cos();
                        (cos[i], sin[i]) = (magnitude * c, magnitude * direction * s);
                    }
                }
                for head in row[..heads * head_dim].chunks_exact_mut(head_dim) {
                    match style {
                        RopeStyle::HalfSplit => rotate_half(cos, sin, head),
                        RopeStyle::Interleaved => rotate_pairs(cos, sin, head),
                    }
                }
            }
        });
    });
}
