//! The choice of experts, and its gradient.

use odeon_simd::simd;

use super::pool::{Pool, rows_per_block};
use super::simd::exp;
use crate::backend::{RouteShape, Store};

pub(super) fn forward(
    pool: &Pool,
    RouteShape { experts, top }: RouteShape,
    logits: &[f32],
    chosen: &mut [u32],
    weights: &mut [f32],
) {
    assert!(1 <= top && top <= experts, "some of the experts");
    assert!(
        logits.len() * top == chosen.len() * experts && weights.len() == chosen.len(),
        "one row of choices a row"
    );
    let rows = rows_per_block(experts);
    pool.blocks(chosen, rows * top, |i, block| {
        let logits = logits[i * rows * experts..].chunks_exact(experts);
        let rows = logits.zip(block.chunks_exact_mut(top));
        rows.for_each(|(logits, chosen)| choose(logits, chosen));
    });
    let chosen = &*chosen;
    pool.blocks(weights, rows * top, |i, block| {
        let logits = logits[i * rows * experts..].chunks_exact(experts);
        let chosen = chosen[i * rows * top..].chunks_exact(top);
        let rows = logits.zip(chosen).zip(block.chunks_exact_mut(top));
        rows.for_each(|((logits, chosen), weights)| weigh(logits, chosen, weights));
    });
}

pub(super) fn backward(
    pool: &Pool,
    RouteShape { experts, top }: RouteShape,
    chosen: &[u32],
    weights: &[f32],
    dweights: &[f32],
    (dlogits, store): (&mut [f32], Store),
) {
    pool.row_blocks(dlogits, experts, |first, block| {
        for (row, dlogits) in (first..).zip(block.chunks_exact_mut(experts)) {
            if store == Store::Set {
                dlogits.fill(0.0);
            }
            let own = row * top..(row + 1) * top;
            let (chosen, weights) = (&chosen[own.clone()], &weights[own.clone()]);
            let dweights = &dweights[own];
            let products = weights.iter().zip(dweights).map(|(w, dw)| w * dw);
            let mean: f32 = products.sum();
            for ((expert, w), dw) in chosen.iter().zip(weights).zip(dweights) {
                dlogits[*expert as usize] += w * (dw - mean);
            }
        }
    });
}

/// The places of the largest, from the first to the last; of equals the lowest first. What is no
/// number counts as the largest, so that it shows in the result.
fn choose(logits: &[f32], chosen: &mut [u32]) {
    let key = |at: usize| {
        if logits[at].is_nan() {
            f32::INFINITY
        } else {
            logits[at]
        }
    };
    let mut last = (f32::INFINITY, None);
    for place in chosen {
        let mut best = None;
        for at in 0..logits.len() {
            let left = key(at) < last.0 || (key(at) == last.0 && last.1.is_none_or(|l| at > l));
            if left && best.is_none_or(|best| key(at) > key(best)) {
                best = Some(at);
            }
        }
        let best = best.expect("no more are chosen than there are");
        *place = best as u32;
        last = (key(best), Some(best));
    }
}

simd! {
    /// Softmax over the chosen logits of a row.
    fn weigh(logits: &[f32], chosen: &[u32], weights: &mut [f32]) {
        let most = logits[chosen[0] as usize];
        let mut sum = 0.0;
        for (weight, expert) in weights.iter_mut().zip(chosen) {
            *weight = exp::<FMA>(logits[*expert as usize] - most);
            sum += *weight;
        }
        for weight in weights.iter_mut() {
            *weight /= sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equals_the_lowest_is_chosen_first_and_no_number_is_not_hidden() {
        let mut chosen = [9; 3];
        choose(&[1.0, 2.0, 0.5, 2.0, 2.0], &mut chosen);
        assert_eq!(chosen, [1, 3, 4]);
        choose(&[0.0, f32::NEG_INFINITY, f32::NAN], &mut chosen);
        assert_eq!(chosen, [2, 0, 1]);
        let mut weights = [0.0; 3];
        weigh(&[0.0, f32::NEG_INFINITY, f32::NAN], &chosen, &mut weights);
        assert!(weights.iter().all(|weight| weight.is_nan()));
    }
}
