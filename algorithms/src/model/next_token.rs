//! A head that predicts one token further (multi-token prediction, DeepSeek-V3, arXiv
//! [2412.19437](https://arxiv.org/abs/2412.19437), section 2.2).
//!
//! ```text
//!  row of token i behind all layers ── norm ──> h_proj ─┐
//!  embedding of token i + 1 ────────── norm ──> e_proj ─┴─> a layer ──> norm ──> head ──> token i + 2
//! ```
//!
//! Embedding and head are the model's own. The layer sees the rows of a sequence up to its own, as others do.

use std::ops::Range;
use std::sync::Arc;

use super::batch::Batch;

/// Tensors of the head that are not those of its layer, below the name of that, with their shapes.
pub(crate) fn tensors(dim: usize) -> [(&'static str, Vec<usize>); 5] {
    [
        ("hnorm.weight", vec![dim]),
        ("enorm.weight", vec![dim]),
        ("h_proj.weight", vec![dim, dim]),
        ("e_proj.weight", vec![dim, dim]),
        ("shared_head.norm.weight", vec![dim]),
    ]
}

/// The tokens whose logarithms of probability the head gives, of those that a batch predicts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NextTargets {
    /// The numbers of these tokens among those that the batch predicts.
    pub(crate) predicted: Vec<usize>,
    /// The rows that predict them, which are one before those of the model's own head.
    pub(crate) rows: Arc<[u32]>,
    pub(crate) labels: Arc<[u32]>,
    /// For each row the token behind its own, or its own where there is none.
    pub(crate) tokens: Arc<[u32]>,
}

impl NextTargets {
    /// Those of a batch. Where there are none one row stands in, whose numbers nobody asks for.
    pub(crate) fn of(batch: &Batch) -> Self {
        let mut tokens = batch.tokens().to_vec();
        let mut is_first = vec![false; tokens.len()];
        for span in batch.spans().iter() {
            let Range { start, end } = span.rows;
            if start < end {
                is_first[start] = true;
                tokens[start..end - 1].copy_from_slice(&batch.tokens()[start + 1..end]);
            }
        }
        let rows = batch.rows().iter().enumerate();
        let there = rows.filter(|(_, row)| !is_first[**row as usize]);
        let (predicted, rows): (Vec<_>, Vec<_>) = there.map(|(at, row)| (at, row - 1)).unzip();
        let labels = predicted.iter().map(|at| batch.labels()[*at]);
        let (labels, rows) = match predicted.is_empty() {
            true => (vec![0], vec![0]),
            false => (labels.collect(), rows),
        };
        Self {
            predicted,
            rows: rows.into(),
            labels: labels.into(),
            tokens: tokens.into(),
        }
    }

    /// The gradient of each logarithm, by those of the model's own, times a weight.
    pub(crate) fn gradient(&self, own: &[f32], weight: f32) -> Vec<f32> {
        match self.predicted.is_empty() {
            true => vec![0.0],
            false => self.predicted.iter().map(|at| weight * own[*at]).collect(),
        }
    }

    /// The loss of the head, which weighs each token as the model's own loss does, by the gradient of that.
    pub(crate) fn loss(&self, own: &[f32], logprobs: &[f32]) -> f64 {
        let pairs = self.predicted.iter().zip(logprobs);
        let each = pairs.map(|(at, logprob)| f64::from(own[*at]) * f64::from(*logprob));
        each.sum()
    }
}

#[cfg(test)]
mod tests;
