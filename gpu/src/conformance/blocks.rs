//! Attention to keys and values that lie apart.

use std::num::NonZeroU32;
use std::ops::Range;

use super::checks::{view, view_mut};
use super::{Noise, backward, close, dot, forward, gradient_close, reference, wide};
use crate::backend::{AttentionShape, Backend};
use crate::score_blocks::ScoreBlocks;
use crate::spans::RowSpans;

/// Attention block by block is that over all rows, and so are its gradients: of packed sequences that are cut anywhere,
/// with and without grouped queries and windows, and with rows that see nothing at first.
pub fn block_attention<B: Backend>(b: &B) {
    // One token; a short one; one that is cut twice; an empty one; one that ends the rows.
    let small = Case {
        spans: RowSpans::apart([0, 1, 9, 60, 60, 84].as_slice()),
        cuts: [21, 42, 63],
    };
    for heads in [
        (2, 2, 4),
        (6, 2, 8),
        (2, 1, 33),
        (2, 1, 80),
        (1, 1, 128),
        (1, 1, 160),
    ] {
        small.check(b, None, heads);
    }
    // Parts of more than a tile, and one of a few rows.
    let large = Case {
        spans: RowSpans::apart([0, 150, 153, 230].as_slice()),
        cuts: [70, 141, 220],
    };
    for window in [None, Some(1), Some(5), Some(66), Some(100)] {
        large.check(b, window, (3, 1, 8));
    }
    large.check(b, Some(72), (2, 1, 33));
}

/// Sequences of which two ranks have two parts each: one the first and the last, the other those between.
struct Case {
    spans: RowSpans,
    cuts: [usize; 3],
}

impl Case {
    fn runs(&self) -> [Vec<Range<usize>>; 2] {
        let [first, second, third] = self.cuts;
        let all = self.spans.rows();
        [
            vec![0..first, third..all],
            vec![first..second, second..third],
        ]
    }

    fn check<B: Backend>(
        &self,
        b: &B,
        window: Option<u32>,
        (heads, kv_heads, head_dim): (usize, usize, usize),
    ) {
        let shape = AttentionShape {
            heads,
            kv_heads,
            head_dim,
            window: window.and_then(NonZeroU32::new),
        };
        let mut noise = Noise(23);
        let len = self.spans.rows() * shape.qkv_cols();
        let qkv: Vec<f32> = noise.vec(len).iter().map(|v| 2.0 * v).collect();
        let dout = noise.vec(self.spans.rows() * shape.out_cols());
        let (want, want_lse) = reference::attention(shape, &self.spans, &wide(&qkv));
        let mut dqkv = vec![0.0; len];
        let queries_cols = heads * head_dim;
        for (rank, own) in self.runs().iter().enumerate() {
            let passed = self.passed(b, shape, rank, [&qkv, &dout]);
            let pick = |numbers: &[f64], cols| rows_of(numbers, own, cols);
            let of_rank = pick(&want, shape.out_cols());
            close("block attention", forward(b, 2), &passed.out, &of_rank);
            let of_rank = pick(&want_lse, heads);
            close("block attention lse", forward(b, 2), &passed.lse, &of_rank);
            add_rows(
                &mut dqkv,
                own,
                &passed.dqkv,
                shape.qkv_cols(),
                0..queries_cols,
            );
            for (runs, dkv) in self.runs().iter().zip(&passed.dkv) {
                add_rows(
                    &mut dqkv,
                    runs,
                    dkv,
                    shape.qkv_cols(),
                    queries_cols..shape.qkv_cols(),
                );
            }
        }
        gradient_close("block attention dqkv", backward(b, 3), &dqkv, &qkv, |qkv| {
            dot(&reference::attention(shape, &self.spans, qkv).0, &dout)
        });
    }

    /// A rank's pass forward and backward. The first has its own keys before those of the other, and the second after
    /// them.
    fn passed<B: Backend>(
        &self,
        b: &B,
        shape: AttentionShape,
        rank: usize,
        [qkv, dout]: [&[f32]; 2],
    ) -> Passed {
        let (runs, width) = (self.runs(), shape.qkv_cols());
        let own = &runs[rank];
        let queries = b.buffer(&rows_of(qkv, own, width));
        let kv_of = |runs: &Vec<Range<usize>>| {
            let rows = rows_of(qkv, runs, width);
            let rows = rows.chunks_exact(width);
            let kv = rows.flat_map(|row| row[shape.out_cols()..].to_vec());
            b.buffer(&kv.collect::<Vec<f32>>())
        };
        let kv = runs.each_ref().map(kv_of);
        let blocks = runs
            .each_ref()
            .map(|keys| ScoreBlocks::between(&self.spans, own, keys));
        let rows = B::len(&queries) / width;
        let mut out = b.alloc(rows * shape.out_cols());
        let mut lse = b.buffer(&vec![f32::NEG_INFINITY; rows * shape.heads]);
        for (kv, blocks) in kv.iter().zip(&blocks) {
            for blocks in blocks {
                let (out, lse) = (view_mut::<B>(&mut out), view_mut::<B>(&mut lse));
                b.block_attention(shape, blocks, view::<B>(&queries), view::<B>(kv), out, lse);
            }
        }
        // What is there is added to.
        let mut dqkv = b.buffer(&vec![1.0; rows * width]);
        let dout = b.buffer(&rows_of(dout, own, shape.out_cols()));
        let dkv = kv.iter().zip(&blocks).map(|(kv, blocks)| {
            let mut dkv = b.buffer(&vec![1.0; B::len(kv)]);
            for blocks in blocks {
                let passed = [&queries, kv, &out, &lse].map(|it| view::<B>(it));
                let (dq, dkv) = (view_mut::<B>(&mut dqkv), view_mut::<B>(&mut dkv));
                b.block_attention_backward(shape, blocks, passed, view::<B>(&dout), dq, dkv);
            }
            less_one(&b.to_vec(&dkv))
        });
        let dkv = dkv.collect();
        let dqkv = less_one(&b.to_vec(&dqkv));
        let mut rows = dqkv.chunks_exact(width);
        let untouched = rows.all(|row| row[shape.out_cols()..].iter().all(|d| *d == 0.0));
        assert!(untouched, "queries have a gradient here, and nothing else");
        let rows = dqkv.chunks_exact(width);
        let dq = rows.flat_map(|row| row[..shape.out_cols()].to_vec());
        Passed {
            out: b.to_vec(&out),
            lse: b.to_vec(&lse),
            dqkv: dq.collect(),
            dkv,
        }
    }
}

/// What a rank has in the end: gradients of its queries, and of the keys and values of each rank.
struct Passed {
    out: Vec<f32>,
    lse: Vec<f32>,
    dqkv: Vec<f32>,
    dkv: Vec<Vec<f32>>,
}

fn less_one(numbers: &[f32]) -> Vec<f32> {
    numbers.iter().map(|number| number - 1.0).collect()
}

/// The rows of some runs.
fn rows_of<T: Copy>(numbers: &[T], runs: &[Range<usize>], cols: usize) -> Vec<T> {
    let runs = runs.iter();
    let rows = runs.flat_map(|run| numbers[run.start * cols..run.end * cols].iter().copied());
    rows.collect()
}

/// Adds some columns of the rows of runs.
fn add_rows(all: &mut [f32], runs: &[Range<usize>], own: &[f32], width: usize, cols: Range<usize>) {
    let rows = runs.iter().cloned().flatten();
    for (row, own) in rows.zip(own.chunks_exact(cols.len())) {
        let all = &mut all[row * width..][cols.clone()];
        all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
    }
}
