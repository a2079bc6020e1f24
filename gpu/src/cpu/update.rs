//! Elementwise updates and reductions over flat buffers.

use odeon_simd::simd;

use super::pool::{BLOCK, Pool};
use super::simd::{LANES, madd, reduce};
use crate::backend::AdamW;

simd! {
    /// `dst += scale * src`.
    pub(super) fn axpy(scale: f32, src: &[f32], dst: &mut [f32]) {
        let len = dst.len();
        let src = &src[..len];
        for i in 0..len {
            dst[i] = madd::<FMA>(scale, src[i], dst[i]);
        }
    }

    /// `dst *= scale`.
    pub(super) fn scale(scale: f32, dst: &mut [f32]) {
        dst.iter_mut().for_each(|d| *d *= scale);
    }

    /// Sum of products.
    pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
        let b = &b[..a.len()];
        reduce(a.len(), |sum, i| madd::<FMA>(a[i], b[i], sum))
    }

    fn block_squares(src: &[f32]) -> f64 {
        let mut lanes = [0.0f64; LANES];
        let (whole, rest) = src.as_chunks::<LANES>();
        for chunk in whole {
            for l in 0..LANES {
                let v = f64::from(chunk[l]);
                lanes[l] += v * v;
            }
        }
        let rest: f64 = rest.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        lanes.iter().sum::<f64>() + rest
    }

    fn adamw_block(
        call: AdamW,
        weight_decay: f32,
        params: &mut [f32],
        grads: &[f32],
        moment1: &mut [f32],
        moment2: &mut [f32],
    ) {
        let len = params.len();
        let (grads, moment1, moment2) = (&grads[..len], &mut moment1[..len], &mut moment2[..len]);
        let AdamW { lr, beta1, beta2, eps, grad_scale, step } = call;
        let correct1 = (1.0 - f64::from(beta1).powf(step as f64)) as f32;
        let correct2 = (1.0 - f64::from(beta2).powf(step as f64)) as f32;
        let (rate, root2, keep) = (lr / correct1, correct2.sqrt(), 1.0 - lr * weight_decay);
        for i in 0..len {
            let g = grads[i] * grad_scale;
            let m = beta1 * moment1[i] + (1.0 - beta1) * g;
            let v = beta2 * moment2[i] + (1.0 - beta2) * g * g;
            moment1[i] = m;
            moment2[i] = v;
            params[i] = params[i] * keep - rate * m / (v.sqrt() / root2 + eps);
        }
    }
}

pub(super) fn sum_squares(pool: &Pool, src: &[f32]) -> f64 {
    let mut partial = vec![0.0f64; src.len().div_ceil(BLOCK)];
    pool.blocks(&mut partial, 1, |i, sum| {
        sum[0] = block_squares(&src[i * BLOCK..src.len().min((i + 1) * BLOCK)]);
    });
    partial.iter().sum()
}

pub(super) fn adamw(
    pool: &Pool,
    call: AdamW,
    weight_decay: f32,
    params: &mut [f32],
    grads: &[f32],
    moment1: &mut [f32],
    moment2: &mut [f32],
) {
    // Three destinations: the first two are zipped, the third is cut by hand.
    let moment2 = super::pool::Shared::new(moment2);
    pool.blocks2((params, BLOCK), (moment1, BLOCK), |i, params, moment1| {
        // SAFETY: block `i` of the second moment belongs to this task alone.
        let moment2 = unsafe { moment2.slice(i * BLOCK, params.len()) };
        adamw_block(
            call,
            weight_decay,
            params,
            &grads[i * BLOCK..],
            moment1,
            moment2,
        );
    });
}
