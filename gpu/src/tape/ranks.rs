//! Recording of what ranks compute together, each with a part of the matrices.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::run::Run;
use super::{Op, Param, Tape, Var, VocabVars};
use crate::backend::{ABSENT_ROW, Backend};

/// The ranks that compute each pass of one model together (tensor parallelism, Megatron-LM, arXiv
/// [1909.08053](https://arxiv.org/abs/1909.08053)). All of them record the same operations in the same order,
/// each over parameters of its own.
pub trait TensorRanks<B: Backend>: fmt::Debug + Send + Sync {
    /// The number of this rank among them, from 0.
    fn rank(&self) -> usize;

    /// Number of them.
    fn count(&self) -> usize;

    /// Adds up part of a buffer over all of them, one by one; each has the sums then, the same to the bit.
    ///
    /// A pass cannot end in the middle. So one that fails leaves anything in these numbers, keeps the reason
    /// for whoever runs the pass, and waits for nobody from then on.
    fn sum(&self, backend: &B, numbers: &mut B::Buffer, range: Range<usize>);
}

impl<B: Backend> Tape<B> {
    /// Adds rows up over ranks, which each have computed an addend; and on the way back their gradient, of
    /// which each rank has the part that its own readers give. In place, so before anything else reads `x`.
    ///
    /// # Panics
    /// If another operation has read `x`.
    pub fn sum(&mut self, x: Var, ranks: Arc<dyn TensorRanks<B>>) {
        assert_eq!(
            self.vars[x.0].readers, 0,
            "a sum changes rows that something has read"
        );
        self.ops.push(Op::Sum { x, ranks });
    }

    /// The same as [`embed`](Self::embed) of a table of which each rank has a part, this one the entries from
    /// `first` on. Rows of other entries are zero: their [`sum`](Self::sum) is what is looked up.
    pub fn embed_part(&mut self, table: Param, cols: usize, tokens: &[u32], first: u32) -> Var {
        let entries = (table.range.len() / cols) as u32;
        let own = tokens
            .iter()
            .map(|token| match token.wrapping_sub(first) {
                own if own < entries => own,
                _ => ABSENT_ROW,
            })
            .collect();
        self.embed_of(table, cols, own, None)
    }

    /// The same as [`vocab`](Self::vocab) under a head of which each rank has a part, this one the entries from
    /// `first` on. All ranks have the scores of the whole; each has a part of the gradient of `x`.
    pub fn vocab_part(
        &mut self,
        x: Var,
        head: Param,
        scale: f32,
        labels: &[u32],
        (first, ranks): (u32, Arc<dyn TensorRanks<B>>),
    ) -> VocabVars {
        // Labels of other ranks become entries that there are none of.
        let own = labels.iter().map(|label| label.wrapping_sub(first));
        let out = self.vocab(x, head, scale, own.collect());
        let Some(Op::Vocab { ranks: of, .. }) = self.ops.last_mut() else {
            unreachable!("it was recorded just now")
        };
        *of = Some(ranks);
        out
    }
}

impl<B: Backend> Run<'_, B> {
    /// Turns the log-probabilities, entropies and log-sum-exps of a rank's part of the entries into those of all
    /// entries. A rank tells of each row three numbers: with the log-sum-exp `l` and the entropy `h` of its part
    /// these are `l`, the mean logit `l - h`, and the label's logit where that is its own.
    pub(super) fn vocab_of_all(
        &mut self,
        outs: [Var; 3],
        labels: &[u32],
        entries: usize,
        ranks: &dyn TensorRanks<B>,
    ) {
        let (backend, rows) = (self.backend, labels.len());
        let mut told = vec![0.0; ranks.count() * rows * 3];
        let [logprobs, entropies, sums] = outs.map(|out| {
            let mut numbers = vec![0.0; rows];
            backend.read(self.value(out), &mut numbers);
            numbers
        });
        let own = told.as_chunks_mut::<3>().0[ranks.rank() * rows..].iter_mut();
        for (row, own) in own.take(rows).enumerate() {
            let picked = match (labels[row] as usize) < entries {
                true => logprobs[row] + sums[row],
                false => 0.0,
            };
            *own = [sums[row], sums[row] - entropies[row], picked];
        }
        let mut all = backend.buffer(&told);
        ranks.sum(backend, &mut all, 0..told.len());
        let told = backend.to_vec(&all);
        let of_all: Vec<[f32; 3]> = (0..rows)
            .map(|row| whole(told.as_chunks::<3>().0.iter().skip(row).step_by(rows)))
            .collect();
        self.produce(outs, |_, outs| {
            for (number, out) in outs.into_iter().enumerate() {
                let column: Vec<f32> = of_all.iter().map(|it| it[number]).collect();
                backend.write(out, &column);
            }
        });
    }
}

/// Log-probability, entropy and log-sum-exp of a row, by what each rank has told of it.
fn whole<'a>(parts: impl Iterator<Item = &'a [f32; 3]> + Clone) -> [f32; 3] {
    let parts = parts.map(|part| part.map(f64::from));
    let top = parts
        .clone()
        .fold(f64::NEG_INFINITY, |top, [sum, ..]| top.max(sum));
    let (mut total, mut weighted, mut picked) = (0.0, 0.0, 0.0);
    for [sum, mean, own] in parts {
        let weight = (sum - top).exp();
        total += weight;
        weighted += weight * mean;
        picked += own;
    }
    let sum = top + total.ln();
    let entropy = sum - weighted / total;
    [picked - sum, entropy, sum].map(|number| number as f32)
}
