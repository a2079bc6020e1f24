//! Sampling: weights packed once for products with few rows, and attention over a key-value cache.

#[cfg(target_arch = "x86_64")]
mod kernels;

use odeon_simd::simd;
#[cfg(target_arch = "x86_64")]
use odeon_simd::{Isa, isa};

use super::attention::softmax_row;
use super::buffer::CpuBuffer;
use super::gemm::bf16;
use super::pool::{Pool, Shared};
use super::simd::madd;
use crate::backend::{AttentionShape, CacheRow, MatMul, Precision, Store, Strides};
use crate::block_table::BlockTable;

/// Weight rows of a panel: one AVX-512 register, two AVX2 registers.
pub(super) const PANEL: usize = 16;
/// Positions whose scores are summed together; blocks of the cache are a multiple.
const POSITIONS: usize = 16;
/// Elements of values summed together.
const STEP: usize = 32;

/// A weight `[outputs, inputs]` as panels: `[inputs, 16 outputs]` in f32, or as products in bf16 read them. The last
/// one is padded with zeros.
#[derive(Debug)]
pub struct PackedWeight {
    outputs: usize,
    inputs: usize,
    panels: CpuBuffer,
}

impl PackedWeight {
    pub(super) fn new(pool: &Pool, outputs: usize, inputs: usize) -> Self {
        let panels = CpuBuffer::zeros(panels_len(pool, [outputs, inputs]));
        Self {
            outputs,
            inputs,
            panels,
        }
    }

    /// Outputs of the product.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Inputs of the product.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }
}

pub(super) fn repack(pool: &Pool, weight: &[f32], packed: &mut PackedWeight) {
    let shape = [packed.outputs, packed.inputs];
    pack(pool, shape, weight, packed.panels.as_mut_slice());
}

/// Numbers of memory for the panels of a weight `[outputs, inputs]`.
pub(super) fn panels_len(pool: &Pool, [outputs, inputs]: [usize; 2]) -> usize {
    match pool.precision() {
        Precision::F32 => outputs.next_multiple_of(PANEL) * inputs,
        Precision::Bf16 => bf16::panels_len(outputs, inputs),
    }
}

/// Writes a weight `[outputs, inputs]` as panels.
pub(super) fn pack(pool: &Pool, [outputs, inputs]: [usize; 2], weight: &[f32], panels: &mut [f32]) {
    assert_eq!(weight.len(), outputs * inputs, "a weight of this shape");
    if pool.precision() == Precision::Bf16 {
        let right = (weight, Strides::transposed(inputs));
        return bf16::pack(Some(pool), [outputs, inputs], right, panels);
    }
    pool.blocks(panels, PANEL * inputs, |i, panel| {
        let rows = &weight[i * PANEL * inputs..];
        let mut filled = 0;
        for (c, row) in rows.chunks_exact(inputs).take(PANEL).enumerate() {
            for (k, w) in row.iter().enumerate() {
                panel[k * PANEL + c] = *w;
            }
            filled = c + 1;
        }
        if filled < PANEL {
            for outputs in panel.chunks_exact_mut(PANEL) {
                outputs[filled..].fill(0.0);
            }
        }
    });
}

pub(super) fn packed_linear(pool: &Pool, x: &[f32], w: &PackedWeight, y: &mut [f32], store: Store) {
    let panels = w.panels.as_slice();
    linear(pool, [w.outputs, w.inputs], x, panels, y, (1.0, store));
}

/// `y = scale x W^T` for a weight in panels, or that much more.
pub(super) fn linear(
    pool: &Pool,
    [outputs, inputs]: [usize; 2],
    x: &[f32],
    panels: &[f32],
    y: &mut [f32],
    (scale, store): (f32, Store),
) {
    let rows = x.len() / inputs;
    assert!(
        x.len() == rows * inputs && y.len() == rows * outputs,
        "one output row an input row"
    );
    if pool.precision() == Precision::Bf16 {
        let call = MatMul::linear(rows, outputs, inputs).scaled(scale);
        return bf16::linear(pool, call.stored(store), x, panels, y);
    }
    let count = outputs.div_ceil(PANEL);
    // A task of some panels amortises its start; the sums do not depend on the cut.
    let group = count.div_ceil(4 * pool.threads()).max(1);
    let tasks = if pool.threads() == 1 {
        1
    } else {
        count.div_ceil(group)
    };
    let group = if tasks == 1 { count } else { group };
    let y = Shared::new(y);
    pool.for_each(tasks, |task| {
        for p in task * group..count.min((task + 1) * group) {
            let panel = &panels[p * PANEL * inputs..][..PANEL * inputs];
            let cols = PANEL.min(outputs - p * PANEL);
            let max = block_rows();
            let blocks = rows.div_ceil(max);
            for b in 0..blocks {
                let (from, to) = (b * rows / blocks, (b + 1) * rows / blocks);
                let mut sums = [[0.0; PANEL]; MAX_ROWS];
                let x = &x[from * inputs..to * inputs];
                panel_product(inputs, x, panel, &mut sums[..to - from]);
                for (r, sums) in sums[..to - from].iter_mut().enumerate() {
                    if scale != 1.0 {
                        sums.iter_mut().for_each(|sum| *sum *= scale);
                    }
                    // SAFETY: these columns of a row belong to this panel, so to this task.
                    let y = unsafe { y.slice((from + r) * outputs + p * PANEL, cols) };
                    match store {
                        Store::Set => y.copy_from_slice(&sums[..cols]),
                        Store::Add => y.iter_mut().zip(sums).for_each(|(y, s)| *y += *s),
                    }
                }
            }
        }
    });
}

/// Rows whose sums fit the registers of the widest instruction set.
const MAX_ROWS: usize = 12;

fn block_rows() -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa() == Isa::V3 {
        return 6;
    }
    MAX_ROWS
}

/// `sums[r] = x[r] panel`, each sum in order of the inputs.
fn panel_product(inputs: usize, x: &[f32], panel: &[f32], sums: &mut [[f32; PANEL]]) {
    assert!(
        x.len() == sums.len() * inputs && panel.len() == PANEL * inputs,
        "operands fit"
    );
    #[cfg(target_arch = "x86_64")]
    match isa() {
        // SAFETY: the processor has the features, and the assertion bounds every access.
        Isa::V4 => return unsafe { kernels::v4(inputs, x, panel, sums) },
        // SAFETY: as above.
        Isa::V3 => return unsafe { kernels::v3(inputs, x, panel, sums) },
        Isa::Baseline => {}
    }
    for (x, sums) in x.chunks_exact(inputs).zip(sums) {
        for (x, panel) in x.iter().zip(panel.as_chunks::<PANEL>().0) {
            sums.iter_mut().zip(panel).for_each(|(s, w)| *s += x * w);
        }
    }
}

pub(super) fn cache_block(wanted: usize) -> usize {
    wanted.max(1).next_multiple_of(POSITIONS)
}

/// Keys of a block are stored transposed, `[kv head, element, position]`, and behind them its
/// values, `[kv head, position, element]`, so that both products run along memory.
pub(super) fn cache_len(shape: AttentionShape, tokens: usize) -> usize {
    2 * shape.kv_heads * shape.head_dim * tokens
}

pub(super) fn append(
    shape: AttentionShape,
    table: &BlockTable,
    rows: &[CacheRow],
    qkv: &[f32],
    cache: &mut [f32],
) {
    let AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
        ..
    } = shape;
    let tokens = table.tokens();
    let block_len = cache_len(shape, tokens);
    for (row, qkv) in rows.iter().zip(qkv.chunks_exact(shape.qkv_cols())) {
        let (block, at) = table.place(row.slot, row.position);
        let (keys, values) = cache[block * block_len..][..block_len].split_at_mut(block_len / 2);
        let (_, qkv) = qkv.split_at(heads * dim);
        let (k, v) = qkv.split_at(kv_heads * dim);
        for (k, keys) in k.iter().zip(keys.chunks_exact_mut(tokens)) {
            keys[at] = *k;
        }
        for (v, values) in v
            .chunks_exact(dim)
            .zip(values.chunks_exact_mut(tokens * dim))
        {
            values[at * dim..][..dim].copy_from_slice(v);
        }
    }
}

pub(super) fn attention(
    pool: &Pool,
    shape: AttentionShape,
    table: &BlockTable,
    rows: &[CacheRow],
    qkv: &[f32],
    cache: &[f32],
    out: &mut [f32],
) {
    let tokens = table.tokens();
    assert!(
        tokens.is_multiple_of(POSITIONS),
        "blocks of a multiple of {POSITIONS} positions"
    );
    pool.blocks(out, shape.out_cols(), |i, out| {
        let known = rows[i].position as usize + 1;
        let row = Row {
            shape,
            tokens,
            blocks: &table.blocks(rows[i].slot)[..known.div_ceil(tokens)],
            cache,
            known,
        };
        attend(pool, row, &qkv[i * shape.qkv_cols()..], out, None);
    });
}

/// A row of a sequence that attends to positions in blocks.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) shape: AttentionShape,
    /// Positions of a block.
    pub(super) tokens: usize,
    pub(super) blocks: &'a [u32],
    pub(super) cache: &'a [f32],
    /// Positions that it sees, its own among them.
    pub(super) known: usize,
}

/// Attention of a row, and the logarithms of the sums of its heads where they are wanted.
pub(super) fn attend(
    pool: &Pool,
    row: Row<'_>,
    qkv: &[f32],
    out: &mut [f32],
    mut lse: Option<&mut [f32]>,
) {
    let Row {
        shape,
        tokens,
        blocks,
        cache,
        known,
    } = row;
    let dim = shape.head_dim;
    let block_len = cache_len(shape, tokens);
    let q = &qkv[..shape.heads * dim];
    pool.scratch(blocks.len() * tokens, |scores| {
        let heads = q.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
        for (head, (q, out)) in heads.enumerate() {
            let kv = head / (shape.heads / shape.kv_heads);
            let mut pages = Pages {
                tokens,
                block_len,
                first: kv * tokens * dim,
                blocks,
                cache,
            };
            score_row(pages, shape.scale(), q, scores);
            let (top, sum) = softmax_row(scores, shape.seen(known));
            if let Some(lse) = &mut lse {
                lse[head] = top + sum.ln();
            }
            pages.first += block_len / 2;
            weigh_values(pages, 1.0 / sum, &scores[..known], out);
        }
    });
}

/// Keys or values of one head of a sequence.
#[derive(Clone, Copy)]
struct Pages<'a> {
    /// Positions of a block.
    tokens: usize,
    block_len: usize,
    /// Of the head in a block.
    first: usize,
    blocks: &'a [u32],
    cache: &'a [f32],
}

simd! {
    /// `scores[t] = scale * sum over d of q[d] keys[d, t]`.
    fn score_row(pages: Pages<'_>, scale: f32, q: &[f32], scores: &mut [f32]) {
        let Pages { tokens, block_len, first, blocks, cache } = pages;
        for (block, scores) in blocks.iter().zip(scores.chunks_exact_mut(tokens)) {
            let keys = &cache[*block as usize * block_len + first..][..q.len() * tokens];
            for (b, scores) in scores.as_chunks_mut::<POSITIONS>().0.iter_mut().enumerate() {
                let mut sums = [0.0; POSITIONS];
                for (q, keys) in q.iter().zip(keys.chunks_exact(tokens)) {
                    let keys = &keys.as_chunks::<POSITIONS>().0[b];
                    for l in 0..POSITIONS {
                        sums[l] = madd::<FMA>(*q, keys[l], sums[l]);
                    }
                }
                for l in 0..POSITIONS {
                    scores[l] = sums[l] * scale;
                }
            }
        }
    }

    /// `out[d] = scale * sum over t of probs[t] values[t, d]`.
    fn weigh_values(pages: Pages<'_>, scale: f32, probs: &[f32], out: &mut [f32]) {
        let Pages { tokens, block_len, first, blocks, cache } = pages;
        let dim = out.len();
        let (whole, rest) = out.as_chunks_mut::<STEP>();
        for (b, out) in whole.iter_mut().enumerate() {
            let mut sums = [0.0; STEP];
            for (block, probs) in blocks.iter().zip(probs.chunks(tokens)) {
                let values = &cache[*block as usize * block_len + first..][..probs.len() * dim];
                for (p, values) in probs.iter().zip(values.chunks_exact(dim)) {
                    let values = &values.as_chunks::<STEP>().0[b];
                    for l in 0..STEP {
                        sums[l] = madd::<FMA>(*p, values[l], sums[l]);
                    }
                }
            }
            for l in 0..STEP {
                out[l] = sums[l] * scale;
            }
        }
        if !rest.is_empty() {
            rest.fill(0.0);
            let from = dim - rest.len();
            for (block, probs) in blocks.iter().zip(probs.chunks(tokens)) {
                let values = &cache[*block as usize * block_len + first..][..probs.len() * dim];
                for (p, values) in probs.iter().zip(values.chunks_exact(dim)) {
                    for (o, v) in rest.iter_mut().zip(&values[from..]) {
                        *o = madd::<FMA>(*p, *v, *o);
                    }
                }
            }
            rest.iter_mut().for_each(|o| *o *= scale);
        }
    }
}
