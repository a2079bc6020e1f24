//! The operations in f64, written for reading.

use crate::backend::{AttentionShape, HeadNormShape, MatMul, RopeShape, RopeStyle, Store};
use crate::spans::RowSpans;

pub(super) fn matmul(call: MatMul, a: &[f64], b: &[f64], c: &mut [f64]) {
    for batch in 0..call.batch {
        for i in 0..call.m {
            for j in 0..call.n {
                let sum: f64 = (0..call.k)
                    .map(|k| {
                        a[batch * call.a.batch + i * call.a.row + k * call.a.col]
                            * b[batch * call.b.batch + k * call.b.row + j * call.b.col]
                    })
                    .sum();
                let c = &mut c[batch * call.c.batch + i * call.c.row + j * call.c.col];
                let old = if call.store == Store::Add { *c } else { 0.0 };
                *c = old + f64::from(call.scale) * sum;
            }
        }
    }
}

pub(super) fn rms_norm(eps: f64, x: &[f64], weight: &[f64]) -> Vec<f64> {
    let cols = weight.len();
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(cols) {
        let mean = row.iter().map(|v| v * v).sum::<f64>() / cols as f64;
        y.extend(
            row.iter()
                .zip(weight)
                .map(|(v, w)| v / (mean + eps).sqrt() * w),
        );
    }
    y
}

pub(super) fn layer_norm(eps: f64, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let cols = weight.len();
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(cols) {
        let mean = row.iter().sum::<f64>() / cols as f64;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / cols as f64;
        let affine = weight.iter().zip(bias);
        let normed = row.iter().map(|v| (v - mean) / (variance + eps).sqrt());
        y.extend(normed.zip(affine).map(|(v, (w, b))| v * w + b));
    }
    y
}

pub(super) fn gelu(x: &[f64]) -> Vec<f64> {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let one = |v: &f64| 0.5 * v * (1.0 + (root * (v + 0.044_715 * v * v * v)).tanh());
    x.iter().map(one).collect()
}

pub(super) fn rope(shape: &RopeShape, positions: &[u32], direction: f64, rows: &mut [f64]) {
    let dim = shape.head_dim;
    for (row, &position) in rows.chunks_exact_mut(shape.row_stride).zip(positions) {
        for head in row.chunks_exact_mut(dim).take(shape.heads) {
            for i in 0..dim / 2 {
                let (a, b) = match shape.style {
                    RopeStyle::HalfSplit => (i, i + dim / 2),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                let frequency = f64::from(shape.frequencies[i]);
                let (sin, cos) = (direction * f64::from(position) * frequency).sin_cos();
                let [sin, cos] = [sin, cos].map(|it| f64::from(shape.magnitude) * it);
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
            }
        }
    }
}

/// Rows with their query and key heads normed.
pub(super) fn head_norm(shape: HeadNormShape, x: &[f64], weight: &[f64]) -> Vec<f64> {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
        ..
    } = shape.attention;
    let mut y = x.to_vec();
    for (at, head) in y.chunks_exact_mut(dim).enumerate() {
        let weight = match at % (heads + 2 * kv_heads) {
            number if number < heads => &weight[..dim],
            number if number < heads + kv_heads => &weight[dim..],
            _ => continue,
        };
        head.copy_from_slice(&rms_norm(f64::from(shape.eps), head, weight));
    }
    y
}

/// Outputs and log-sum-exps.
pub(super) fn attention(
    shape: AttentionShape,
    spans: &RowSpans,
    qkv: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
        ..
    } = shape;
    let width = shape.qkv_cols();
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for span in spans.iter() {
        for row in span.rows.clone() {
            let seen: Vec<usize> = span
                .prefix
                .clone()
                .chain(span.rows.start..row + 1)
                .collect();
            let seen = &seen[shape.seen(seen.len())];
            for head in 0..heads {
                let kv = head / (heads / kv_heads);
                let q = &qkv[row * width + head * dim..][..dim];
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|t| {
                        let k = &qkv[t * width + (heads + kv) * dim..][..dim];
                        q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt()
                    })
                    .collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                lse.push(top + sum.ln());
                for d in 0..dim {
                    let v = scores.iter().zip(seen).map(|(s, t)| {
                        let v = t * width + (heads + kv_heads + kv) * dim + d;
                        (s - top).exp() / sum * qkv[v]
                    });
                    out.push(v.sum());
                }
            }
        }
    }
    (out, lse)
}

pub(super) fn swiglu(cols: usize, x: &[f64]) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks_exact(2 * cols) {
        let (gate, up) = row.split_at(cols);
        y.extend(gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u));
    }
    y
}

/// Log-probabilities, entropies and log-sum-exps.
pub(super) fn vocab(
    scale: f64,
    x: &[f64],
    w: &[f64],
    labels: &[u32],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let inputs = x.len() / labels.len();
    let (mut logprob, mut entropy, mut lse) = (Vec::new(), Vec::new(), Vec::new());
    for (x, &label) in x.chunks_exact(inputs).zip(labels) {
        let logits: Vec<f64> = w
            .chunks_exact(inputs)
            .map(|w| scale * x.iter().zip(w).map(|(a, b)| a * b).sum::<f64>())
            .collect();
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total = top + logits.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
        lse.push(total);
        logprob.push(logits[label as usize] - total);
        entropy.push(
            -logits
                .iter()
                .map(|z| (z - total).exp() * (z - total))
                .sum::<f64>(),
        );
    }
    (logprob, entropy, lse)
}

pub(super) fn combine(
    cols: usize,
    rows: &[u32],
    weights: &[f64],
    src: &[f64],
    held: &[f64],
) -> Vec<f64> {
    let mut out = held.to_vec();
    for (i, &row) in rows.iter().enumerate() {
        for c in 0..cols {
            out[row as usize * cols + c] += weights[i] * src[i * cols + c];
        }
    }
    out
}
