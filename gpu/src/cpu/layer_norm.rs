//! Layer normalisation.

use odeon_simd::simd;

use super::pool::{Pool, rows_per_block};
use super::simd::{madd, reduce};
use crate::backend::Store;

/// Numbers of a row that are kept: its mean and the inverse of its deviation.
const MOMENTS: usize = 2;

pub(super) fn forward(
    pool: &Pool,
    eps: f32,
    x: &[f32],
    [weight, bias]: [&[f32]; 2],
    y: &mut [f32],
    moments: &mut [f32],
) {
    let cols = weight.len();
    assert!(
        bias.len() == cols && x.len() == y.len() && MOMENTS * x.len() == moments.len() * cols,
        "rows of one width"
    );
    let rows = rows_per_block(cols);
    pool.blocks2(
        (y, rows * cols),
        (moments, rows * MOMENTS),
        |i, y, moments| {
            let x = &x[i * rows * cols..][..y.len()];
            norm_rows(eps, x, weight, bias, y, moments);
        },
    );
}

pub(super) fn backward(
    pool: &Pool,
    x: &[f32],
    weight: &[f32],
    moments: &[f32],
    dy: &[f32],
    (dx, store): (&mut [f32], Store),
    dweight: Option<&mut [f32]>,
) {
    let cols = weight.len();
    assert!(
        x.len() == dx.len() && MOMENTS * x.len() == moments.len() * cols,
        "rows of one width"
    );
    let rows = rows_per_block(cols);
    let blocks = (moments.len() / MOMENTS).div_ceil(rows);
    pool.scratch(blocks * cols, |partial| {
        partial.fill(0.0);
        pool.blocks2((dx, rows * cols), (partial, cols), |i, dx, dw| {
            let at = i * rows * cols..i * rows * cols + dx.len();
            let moments = &moments[i * rows * MOMENTS..];
            norm_rows_backward(&x[at.clone()], weight, moments, &dy[at], dx, store, dw);
        });
        if let Some(dweight) = dweight {
            for block in partial.chunks_exact(cols) {
                let sums = dweight.iter_mut().zip(block);
                sums.for_each(|(sum, part)| *sum += part);
            }
        }
    });
}

simd! {
    fn norm_rows(
        eps: f32,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        y: &mut [f32],
        moments: &mut [f32],
    ) {
        let cols = weight.len();
        let bias = &bias[..cols];
        let rows = x.chunks_exact(cols).zip(y.chunks_exact_mut(cols));
        for ((x, y), moments) in rows.zip(moments.as_chunks_mut::<MOMENTS>().0) {
            let mean = reduce(cols, |s, i| s + x[i]) / cols as f32;
            let squares = reduce(cols, |s, i| madd::<FMA>(x[i] - mean, x[i] - mean, s));
            let inv = 1.0 / (squares / cols as f32 + eps).sqrt();
            *moments = [mean, inv];
            for i in 0..cols {
                y[i] = madd::<FMA>((x[i] - mean) * inv, weight[i], bias[i]);
            }
        }
    }

    fn norm_rows_backward(
        x: &[f32],
        weight: &[f32],
        moments: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        store: Store,
        dweight: &mut [f32],
    ) {
        let cols = weight.len();
        let rows = x.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols));
        for (((x, dy), dx), [mean, inv]) in rows.zip(moments.as_chunks::<MOMENTS>().0) {
            let dweight = &mut dweight[..cols];
            let (mean, inv) = (*mean, *inv);
            let sum = reduce(cols, |s, i| madd::<FMA>(dy[i], weight[i], s)) / cols as f32;
            let dot = reduce(cols, |s, i| madd::<FMA>(dy[i] * weight[i], x[i] - mean, s));
            let pull = dot * inv * inv / cols as f32;
            match store {
                Store::Set => {
                    for i in 0..cols {
                        dweight[i] = madd::<FMA>(dy[i], (x[i] - mean) * inv, dweight[i]);
                        dx[i] = inv * (dy[i] * weight[i] - sum - (x[i] - mean) * pull);
                    }
                }
                Store::Add => {
                    for i in 0..cols {
                        dweight[i] = madd::<FMA>(dy[i], (x[i] - mean) * inv, dweight[i]);
                        dx[i] += inv * (dy[i] * weight[i] - sum - (x[i] - mean) * pull);
                    }
                }
            }
        }
    }
}
