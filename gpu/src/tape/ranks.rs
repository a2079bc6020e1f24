//! Ranks that compute passes together, and recording of what they do where each has a part of the matrices.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::exchange::add_rows;
use super::run::Run;
use super::{Op, Param, Tape, Var, VocabVars};
use crate::backend::{ABSENT_ROW, Backend};

/// Ranks that compute each pass of one model together: with a part of its matrices each (tensor parallelism,
/// Megatron-LM, arXiv [1909.08053](https://arxiv.org/abs/1909.08053)), with some of its experts each, or with some of
/// the rows of each sequence. All of them record the same operations in the same order, each over parameters and
/// rows of its own.
///
/// A pass cannot end in the middle. So a collective that fails leaves anything in what it writes, keeps the reason
/// for whoever runs the pass, and waits for nobody from then on.
pub trait PassRanks<B: Backend>: fmt::Debug + Send + Sync {
    /// The number of this rank among them, from 0.
    fn rank(&self) -> usize;

    /// Number of them.
    fn count(&self) -> usize;

    /// Adds up part of a buffer over all of them, one by one; each has the sums then, the same to the bit.
    fn sum(&self, backend: &B, numbers: &mut B::Buffer, range: Range<usize>);

    /// Adds up the first `len` numbers of a buffer, which has an equal run for each rank, one behind the other. Each has
    /// the sums of its own run then, and of the others' anything.
    fn scatter(&self, backend: &B, numbers: &mut B::Buffer, len: usize);

    /// Gives each rank's run of such a buffer to all.
    fn gather(&self, backend: &B, numbers: &mut B::Buffer, len: usize);

    /// Gives each rank's shard of so many numbers to all: they lie in `all` one behind the other then. Answers the bytes
    /// that were copied before and behind the collective; those that it writes itself are not among them.
    fn gather_shards(
        &self,
        backend: &B,
        shard: B::View<'_>,
        len: usize,
        all: &mut B::Buffer,
    ) -> usize {
        let own = self.rank() * len..(self.rank() + 1) * len;
        backend.copy(shard, B::view_mut(all, own));
        self.gather(backend, all, self.count() * len);
        size_of::<f32>() * len
    }

    /// Adds up such a buffer over all of them, and adds to this rank's shard the sums that are its own. Of `all` it
    /// leaves anything. Answers the bytes that were copied before and behind the collective.
    fn reduce_shards(
        &self,
        backend: &B,
        all: &mut B::Buffer,
        len: usize,
        shard: B::ViewMut<'_>,
    ) -> usize {
        let own = self.rank() * len..(self.rank() + 1) * len;
        self.scatter(backend, all, self.count() * len);
        backend.axpy(1.0, B::view(all, own), shard);
        0
    }

    /// Waits for what another thread does with these ranks.
    fn wait(&self, until: &mut (dyn FnMut() + Send)) {
        until();
    }

    /// Sends each rank its run of numbers, and receives one from each. Runs lie one behind the other from the begin of
    /// a buffer on, in the order of ranks: `sends[r]` numbers go to rank `r`, and `receives[r]` come from it.
    fn exchange(
        &self,
        backend: &B,
        from: &B::Buffer,
        sends: &[usize],
        to: &mut B::Buffer,
        receives: &[usize],
    );

    /// Tells each rank as many counts, and hears as many from each, both in the order of ranks. Where it fails all
    /// that is heard is 0.
    fn tell(&self, backend: &B, counts: &[u32]) -> Vec<u32>;
}

impl<B: Backend> Tape<B> {
    /// Adds rows up over ranks, which each have computed an addend of all of them, and leaves each rank its share: the
    /// first has the first rows, and so on, as many as any other. On the way back all have the gradient of all rows.
    /// The residual is of the share; it is added to that.
    ///
    /// # Panics
    /// If the rows are not to be shared evenly, or something else reads `x`; or if the residual is of another shape.
    pub fn scatter_sum(
        &mut self,
        x: Var,
        residual: Option<Var>,
        ranks: Arc<dyn PassRanks<B>>,
    ) -> Var {
        let (rows, cols) = self.shape(x);
        assert!(
            rows.is_multiple_of(ranks.count()),
            "as many rows on each rank"
        );
        let share = (rows / ranks.count(), cols);
        let shape = residual.map_or(share, |it| self.shape(it));
        assert_eq!(shape, share, "residual shaped as the output");
        self.read_alone(x);
        residual.into_iter().for_each(|it| self.read_by(it));
        let out = self.var(share.0, share.1);
        self.ops.push(Op::ScatterSum {
            x,
            residual,
            ranks,
            out,
        });
        out
    }

    /// The rows of all ranks, of which each has its share; the other way round than
    /// [`scatter_sum`](Self::scatter_sum), also on the way back: there gradients are added up, of which each rank has
    /// the part that its own readers give.
    pub fn gather_rows(&mut self, x: Var, ranks: Arc<dyn PassRanks<B>>) -> Var {
        let (rows, cols) = self.shape(x);
        self.read_by(x);
        let out = self.var(rows * ranks.count(), cols);
        self.ops.push(Op::GatherRows { x, ranks, out });
        out
    }

    /// The same as [`embed`](Self::embed) of a table of which each rank has a part, this one the entries from
    /// `first` on. Rows of other entries are zero: their [sum](Self::scatter_sum) is what is looked up.
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
        (first, ranks): (u32, Arc<dyn PassRanks<B>>),
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
    pub(super) fn scatter_sum(
        &mut self,
        x: Var,
        residual: Option<Var>,
        ranks: &dyn PassRanks<B>,
        out: Var,
    ) {
        let backend = self.backend;
        let (slot, mut all) = self.take_value(x);
        ranks.scatter(backend, &mut all, self.tape.len(x));
        let own = self.run_of(ranks.rank(), out);
        self.produce([out], |_, [out]| backend.copy(B::view(&all, own), out));
        if let Some(residual) = residual {
            self.produce([out], |run, [out]| {
                backend.axpy(1.0, run.value(residual), out);
            });
        }
        self.put_value(slot, all);
    }

    pub(super) fn scatter_sum_backward(
        &mut self,
        x: Var,
        residual: Option<Var>,
        ranks: &dyn PassRanks<B>,
        out: Var,
    ) {
        let backend = self.backend;
        if let Some(mut dx) = self.take_grad(x) {
            // Nothing else reads it, so nothing is there yet.
            let own = self.run_of(ranks.rank(), out);
            backend.copy(self.grad(out), B::view_mut(&mut dx.buffer, own));
            ranks.gather(backend, &mut dx.buffer, dx.len);
            self.put(Some(dx));
        }
        self.residual_backward(residual, out);
    }

    pub(super) fn gather_rows(&mut self, x: Var, ranks: &dyn PassRanks<B>, out: Var) {
        let backend = self.backend;
        let own = self.run_of(ranks.rank(), x);
        let (slot, mut all) = self.take_value(out);
        backend.copy(self.value(x), B::view_mut(&mut all, own));
        ranks.gather(backend, &mut all, self.tape.len(out));
        self.put_value(slot, all);
    }

    pub(super) fn gather_rows_backward(&mut self, x: Var, ranks: &dyn PassRanks<B>, out: Var) {
        let backend = self.backend;
        let Some(mut dx) = self.take_grad(x) else {
            return;
        };
        let own = self.run_of(ranks.rank(), x);
        // Nothing reads the gradient of all rows any more.
        let (slot, mut all) = self.take_grad_buffer(out);
        ranks.scatter(backend, &mut all, self.tape.len(out));
        add_rows(backend, B::view(&all, own), dx.dst());
        self.put_value(slot, all);
        self.put(Some(dx));
    }

    /// Where the rows of a rank lie among those of all, by the shape of what it has.
    fn run_of(&self, rank: usize, own: Var) -> Range<usize> {
        let len = self.tape.len(own);
        rank * len..(rank + 1) * len
    }

    /// Turns the log-probabilities, entropies and log-sum-exps of a rank's part of the entries into those of all
    /// entries. A rank tells of each row three numbers: with the log-sum-exp `l` and the entropy `h` of its part
    /// these are `l`, the mean logit `l - h`, and the label's logit where that is its own.
    pub(super) fn vocab_of_all(
        &mut self,
        outs: [Var; 3],
        labels: &[u32],
        entries: usize,
        ranks: &dyn PassRanks<B>,
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
