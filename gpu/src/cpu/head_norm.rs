//! RMSNorm of each query and key head by itself.

use odeon_simd::simd;

use super::pool::{Pool, rows_per_block};
use super::simd::{madd, reduce};
use crate::backend::HeadNormShape;

pub(super) fn forward(
    pool: &Pool,
    shape: HeadNormShape,
    x: &[f32],
    weight: &[f32],
    (y, inv_rms): (&mut [f32], &mut [f32]),
) {
    assert_eq!(x.len(), y.len(), "as many rows");
    shape.check(weight.len(), x.len(), inv_rms.len());
    let (cols, heads) = (shape.attention.qkv_cols(), shape.heads());
    let rows = rows_per_block(cols);
    pool.blocks2((y, rows * cols), (inv_rms, rows * heads), |i, y, inv| {
        let x = &x[i * rows * cols..][..y.len()];
        let of_rows = x.chunks_exact(cols).zip(y.chunks_exact_mut(cols));
        for ((x, y), inv) in of_rows.zip(inv.chunks_exact_mut(heads)) {
            norm_row(shape, x, weight, y, inv);
        }
    });
}

pub(super) fn backward(
    pool: &Pool,
    shape: HeadNormShape,
    (x, inv_rms): (&[f32], &[f32]),
    weight: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    dweight: Option<&mut [f32]>,
) {
    assert!(x.len() == dx.len() && x.len() == dy.len(), "as many rows");
    shape.check(weight.len(), x.len(), inv_rms.len());
    let (cols, heads, dim) = (
        shape.attention.qkv_cols(),
        shape.heads(),
        shape.attention.head_dim,
    );
    let rows = rows_per_block(cols);
    let blocks = (x.len() / cols).div_ceil(rows);
    pool.scratch(blocks * 2 * dim, |partial| {
        partial.fill(0.0);
        pool.blocks2((dx, rows * cols), (partial, 2 * dim), |i, dx, sums| {
            let at = i * rows * cols..i * rows * cols + dx.len();
            let inv = &inv_rms[i * rows * heads..];
            let of_rows = x[at.clone()]
                .chunks_exact(cols)
                .zip(dy[at].chunks_exact(cols));
            let of_rows = of_rows
                .zip(dx.chunks_exact_mut(cols))
                .zip(inv.chunks_exact(heads));
            for (((x, dy), dx), inv) in of_rows {
                norm_row_backward(shape, (x, inv), weight, dy, dx, sums);
            }
        });
        if let Some(dweight) = dweight {
            for sums in partial.chunks_exact(2 * dim) {
                dweight
                    .iter_mut()
                    .zip(sums)
                    .for_each(|(sum, part)| *sum += part);
            }
        }
    });
}

simd! {
    fn norm_row(
        shape: HeadNormShape,
        x: &[f32],
        weight: &[f32],
        y: &mut [f32],
        inv_rms: &mut [f32],
    ) {
        let (dim, queries) = (shape.attention.head_dim, shape.attention.heads);
        let normed = shape.heads() * dim;
        y[normed..].copy_from_slice(&x[normed..]);
        let heads = x[..normed].chunks_exact(dim).zip(y[..normed].chunks_exact_mut(dim));
        for (head, ((x, y), inv_rms)) in heads.zip(inv_rms).enumerate() {
            let weight = &weight[usize::from(head >= queries) * dim..][..dim];
            let squares = reduce(dim, |s, i| madd::<FMA>(x[i], x[i], s));
            let inv = 1.0 / (squares / dim as f32 + shape.eps).sqrt();
            *inv_rms = inv;
            for i in 0..dim {
                y[i] = x[i] * inv * weight[i];
            }
        }
    }

    fn norm_row_backward(
        shape: HeadNormShape,
        passed: (&[f32], &[f32]),
        weight: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        sums: &mut [f32],
    ) {
        let ((x, inv_rms), dim) = (passed, shape.attention.head_dim);
        let normed = shape.heads() * dim;
        dx[normed..].copy_from_slice(&dy[normed..]);
        let heads = x[..normed].chunks_exact(dim).zip(dy[..normed].chunks_exact(dim));
        let heads = heads.zip(dx[..normed].chunks_exact_mut(dim)).zip(inv_rms);
        for (head, (((x, dy), dx), inv)) in heads.enumerate() {
            let which = usize::from(head >= shape.attention.heads);
            let (weight, inv) = (&weight[which * dim..][..dim], *inv);
            let sums = &mut sums[which * dim..][..dim];
            let dot = reduce(dim, |s, i| madd::<FMA>(dy[i] * weight[i], x[i], s));
            let pull = dot * inv * inv * inv / dim as f32;
            for i in 0..dim {
                sums[i] = madd::<FMA>(dy[i], x[i] * inv, sums[i]);
                dx[i] = dy[i] * weight[i] * inv - x[i] * pull;
            }
        }
    }
}
