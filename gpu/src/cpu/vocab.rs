//! Log-probabilities and entropies over a vocabulary taken in chunks, so that the logits of all
//! rows never exist at once.

use odeon_simd::simd;

use super::attention::softmax_row;
use super::gemm::{product, wide_product};
use super::pool::{Pool, rows_per_block};
use super::simd::{exp, madd, max, reduce};
use crate::backend::{MatMul, Store, VocabGrad, VocabStats};

/// Vocabulary entries of a chunk.
const CHUNK: usize = 2048;
/// Rows of a forward task.
const FORWARD_ROWS: usize = 128;
/// Logits of a backward chunk: 4 MiB.
const BACKWARD_LOGITS: usize = 1 << 20;

pub(super) fn forward(
    pool: &Pool,
    scale: f32,
    x: &[f32],
    w: &[f32],
    labels: &[u32],
    out: VocabStats<&mut [f32]>,
) {
    let rows = labels.len();
    if rows == 0 {
        return;
    }
    let inputs = x.len() / rows;
    let outputs = w.len() / inputs;
    let lse = super::pool::Shared::new(out.logsumexp);
    let block = FORWARD_ROWS.min(rows.div_ceil(pool.threads()));
    pool.blocks2(
        (out.logprob, block),
        (out.entropy, block),
        |i, logprob, entropy| {
            let (first, rows) = (i * block, logprob.len());
            let x = &x[first * inputs..][..rows * inputs];
            let labels = &labels[first..][..rows];
            // SAFETY: these rows belong to this task alone.
            let lse = unsafe { lse.slice(first, rows) };
            pool.scratch(rows * (CHUNK.min(outputs) + 3), |scratch| {
                let (sums, logits) = scratch.split_at_mut(3 * rows);
                let sums = sums.as_chunks_mut::<3>().0;
                sums.fill([f32::NEG_INFINITY, 0.0, 0.0]);
                for start in (0..outputs).step_by(CHUNK) {
                    let cols = CHUNK.min(outputs - start);
                    let w = &w[start * inputs..][..cols * inputs];
                    let call = MatMul::linear(rows, cols, inputs).scaled(scale);
                    product(pool, call, x, w, logits);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let logits = &logits[r * cols..][..cols];
                        add_chunk(logits, sums);
                        if let Some(z) = (labels[r] as usize).checked_sub(start)
                            && z < cols
                        {
                            logprob[r] = logits[z];
                        }
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    let sums = Sums::of(sums);
                    (lse[r], entropy[r]) = (sums.lse, sums.entropy);
                    logprob[r] -= sums.lse;
                }
            });
        },
    );
}

pub(super) fn backward(
    pool: &Pool,
    scale: f32,
    x: &[f32],
    w: &[f32],
    labels: &[u32],
    saved: &VocabStats<&[f32]>,
    grad: VocabGrad<&[f32], &mut [f32]>,
) {
    let rows = labels.len();
    if rows == 0 {
        return;
    }
    let inputs = x.len() / rows;
    let outputs = w.len() / inputs;
    let VocabGrad {
        logprob: dlogprob,
        entropy: dentropy,
        mut dx,
        mut dw,
    } = grad;
    let chunk = CHUNK.min(outputs);
    let block = (BACKWARD_LOGITS / chunk).clamp(1, rows);
    pool.scratch(block * chunk, |logits| {
        for first in (0..rows).step_by(block) {
            let rows = block.min(rows - first);
            let x = &x[first * inputs..][..rows * inputs];
            for start in (0..outputs).step_by(chunk) {
                let cols = chunk.min(outputs - start);
                let range = start * inputs..(start + cols) * inputs;
                let logits = &mut logits[..rows * cols];
                let call = MatMul::linear(rows, cols, inputs).scaled(scale);
                wide_product(pool, call, x, &w[range.clone()], logits);
                let task_rows = rows_per_block(cols);
                pool.blocks(logits, task_rows * cols, |i, logits| {
                    for (r, logits) in logits.chunks_exact_mut(cols).enumerate() {
                        let row = first + i * task_rows + r;
                        let dlogprob = dlogprob.map_or(0.0, |d| d[row]);
                        let dentropy = dentropy.map_or(0.0, |d| d[row]);
                        let (lse, h) = (saved.logsumexp[row], saved.entropy[row]);
                        grad_row(logits, lse, h, dlogprob, dentropy);
                        if let Some(z) = (labels[row] as usize).checked_sub(start)
                            && z < cols
                        {
                            logits[z] += dlogprob;
                        }
                    }
                });
                if let Some((dx, store)) = &mut dx {
                    let store = if start == 0 { *store } else { Store::Add };
                    let call = MatMul::linear_dx(rows, cols, inputs)
                        .scaled(scale)
                        .stored(store);
                    let dx = &mut dx[first * inputs..][..rows * inputs];
                    wide_product(pool, call, logits, &w[range.clone()], dx);
                }
                if let Some(dw) = &mut dw {
                    let call = MatMul::linear_dw(rows, cols, inputs)
                        .scaled(scale)
                        .stored(Store::Add);
                    let dw = &mut dw[range];
                    wide_product(pool, call, logits, x, dw);
                }
            }
        }
    });
}

pub(super) fn softmax(
    pool: &Pool,
    scales: &[f32],
    x: &[f32],
    probs: &mut [f32],
    logsumexp: &mut [f32],
) {
    let cols = x.len() / scales.len().max(1);
    assert!(
        x.len() == cols * scales.len() && x.len() == probs.len(),
        "one scale a row"
    );
    let rows = rows_per_block(cols);
    pool.blocks2(
        (probs, rows * cols),
        (logsumexp, rows),
        |i, probs, logsumexp| {
            let x = &x[i * rows * cols..];
            let rows = probs
                .chunks_exact_mut(cols)
                .zip(x.chunks_exact(cols))
                .zip(logsumexp);
            for (((probs, x), lse), scale) in rows.zip(&scales[i * rows_per_block(cols)..]) {
                scale_row(*scale, x, probs);
                let (top, sum) = softmax_row(probs, 0..cols);
                *lse = top + sum.ln();
                scale_in_place(1.0 / sum, probs);
            }
        },
    );
}

/// A row's logarithm of the sum of exponentials, and its entropy.
pub(super) struct Sums {
    pub(super) lse: f32,
    pub(super) entropy: f32,
}

/// Those of a whole row of logits.
pub(super) fn score_row(logits: &[f32]) -> Sums {
    let mut sums = [f32::NEG_INFINITY, 0.0, 0.0];
    add_chunk(logits, &mut sums);
    Sums::of(&sums)
}

impl Sums {
    /// Of what [`add_chunk`] has added up.
    fn of([top, sum, weighted]: &[f32; 3]) -> Self {
        Self {
            lse: top + sum.ln(),
            // The weighted sum is of logits less the maximum.
            entropy: sum.ln() - weighted / sum,
        }
    }
}

simd! {
    fn scale_row(scale: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = scale * x;
        }
    }

    fn scale_in_place(scale: f32, x: &mut [f32]) {
        for x in x {
            *x *= scale;
        }
    }

    /// Adds a chunk of logits to `[maximum, sum of e^(z - max), sum of e^(z - max) (z - max)]`.
    fn add_chunk(logits: &[f32], sums: &mut [f32; 3]) {
        let [old_top, sum, weighted] = *sums;
        let top = old_top.max(max(logits));
        // Of the old sums, relative to the new maximum; the first chunk has none.
        let (shift, keep) = if old_top == f32::NEG_INFINITY {
            (0.0, 0.0)
        } else {
            (old_top - top, exp::<FMA>(old_top - top))
        };
        let len = logits.len();
        let add = reduce(len, |s, i| s + exp::<FMA>(logits[i] - top));
        let add_weighted = reduce(len, |s, i| {
            let z = logits[i] - top;
            madd::<FMA>(exp::<FMA>(z), z, s)
        });
        *sums = [top, sum * keep + add, (weighted + shift * sum) * keep + add_weighted];
    }

    /// Turns logits into their gradient, all but the label's own `dlogprob`.
    fn grad_row(logits: &mut [f32], lse: f32, entropy: f32, dlogprob: f32, dentropy: f32) {
        for z in logits {
            let logp = *z - lse;
            let pull = madd::<FMA>(dentropy, logp + entropy, dlogprob);
            *z = -exp::<FMA>(logp) * pull;
        }
    }
}
