//! Elementwise updates and reductions over flat buffers.

use odeon_simd::simd;

use super::pool::{BLOCK, Pool, Shared};
use super::simd::{LANES, madd, reduce};
use crate::update_rule::UpdateRule;

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

    fn rule_block<R: UpdateRule>(
        rule: R,
        params: &mut [f32],
        grads: &[f32],
        states: &mut [&mut [f32]],
    ) {
        rule.apply(params, grads, states);
    }
}

pub(super) fn sum_squares(pool: &Pool, src: &[f32]) -> f64 {
    let mut partial = vec![0.0f64; src.len().div_ceil(BLOCK)];
    pool.blocks(&mut partial, 1, |i, sum| {
        sum[0] = block_squares(&src[i * BLOCK..src.len().min((i + 1) * BLOCK)]);
    });
    partial.iter().sum()
}

/// One step of a rule over slices of one length, in blocks.
pub(super) fn update(
    pool: &Pool,
    rule: impl UpdateRule,
    params: &mut [f32],
    grads: &[f32],
    states: &mut [&mut [f32]],
) {
    assert!(
        states.iter().all(|state| state.len() == params.len()),
        "operands of one length"
    );
    let states: Vec<Shared> = states.iter_mut().map(|state| Shared::new(state)).collect();
    pool.blocks(params, BLOCK, |i, params| {
        let block = states.iter().map(|state| {
            // SAFETY: block `i` of each belongs to this task alone.
            unsafe { state.slice(i * BLOCK, params.len()) }
        });
        let mut block: Vec<&mut [f32]> = block.collect();
        rule_block(rule, params, &grads[i * BLOCK..], &mut block);
    });
}
