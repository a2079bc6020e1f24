//! The operations every device implements.
//!
//! Conventions: activations are row-major `[rows, columns]` f32, one row a token, sequences packed
//! one after the other without padding. Weights are `[outputs, inputs]`, as Hugging Face stores
//! them. Index lists (tokens, positions, bounds) are small host slices.
//! An operation that produces a gradient takes a [`Store`]: the first contribution to a gradient
//! overwrites it, later ones add, so gradients need no clearing pass.
//! Each operation is deterministic for a fixed number of threads.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::block_table::BlockTable;
use crate::dropout::DropoutMask;
use crate::score_blocks::ScoreBlocks;
use crate::spans::RowSpans;
use crate::update_rule::UpdateRule;

/// The choice of some experts for each row, by a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteShape {
    /// Logits of a row.
    pub experts: usize,
    /// Experts that a row goes to; at least one, at most all.
    pub top: usize,
}

/// A row of no entry of a table: one that is looked up is zero, and what is added to it is nobody's.
pub const ABSENT_ROW: u32 = u32::MAX;

/// The way a result is stored: it replaces what the destination holds, or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Overwrite.
    Set,
    /// Accumulate.
    Add,
}

/// Element steps of a matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// From a row to the next.
    pub row: usize,
    /// From a column to the next.
    pub col: usize,
    /// From a matrix of the batch to the next.
    pub batch: usize,
}

impl Strides {
    /// A single row-major matrix with `columns` columns.
    #[must_use]
    pub fn rows(columns: usize) -> Self {
        Self {
            row: columns,
            col: 1,
            batch: 0,
        }
    }

    /// The transpose of a single row-major matrix that has `columns` columns in memory.
    #[must_use]
    pub fn transposed(columns: usize) -> Self {
        Self {
            row: 1,
            col: columns,
            batch: 0,
        }
    }

    /// The same steps inside a matrix, `batch` elements between matrices.
    #[must_use]
    pub fn batched(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Elements from the first to one past the last that a `batch x rows x cols` access touches.
    #[must_use]
    pub fn extent(self, batch: usize, rows: usize, cols: usize) -> usize {
        if batch * rows * cols == 0 {
            return 0;
        }
        (batch - 1) * self.batch + (rows - 1) * self.row + (cols - 1) * self.col + 1
    }
}

/// A batch of strided products, `c[m, n] = scale * a[m, k] b[k, n]`, stored or added.
#[derive(Clone, Copy, Debug)]
pub struct MatMul {
    /// Number of independent products.
    pub batch: usize,
    /// Rows of `a` and `c`.
    pub m: usize,
    /// Columns of `b` and `c`.
    pub n: usize,
    /// Columns of `a` and rows of `b`.
    pub k: usize,
    /// Steps of `a`.
    pub a: Strides,
    /// Steps of `b`.
    pub b: Strides,
    /// Steps of `c`; matrices of the batch must not overlap.
    pub c: Strides,
    /// Factor on the product.
    pub scale: f32,
    /// Overwrite or accumulate.
    pub store: Store,
}

impl MatMul {
    /// `y[rows, outputs] = x[rows, inputs] W^T` for a weight `W[outputs, inputs]`.
    #[must_use]
    pub fn linear(rows: usize, outputs: usize, inputs: usize) -> Self {
        Self {
            batch: 1,
            m: rows,
            n: outputs,
            k: inputs,
            a: Strides::rows(inputs),
            b: Strides::transposed(inputs),
            c: Strides::rows(outputs),
            scale: 1.0,
            store: Store::Set,
        }
    }

    /// `dx[rows, inputs] = dy[rows, outputs] W`: the input gradient of [`linear`](Self::linear).
    #[must_use]
    pub fn linear_dx(rows: usize, outputs: usize, inputs: usize) -> Self {
        Self {
            n: inputs,
            k: outputs,
            a: Strides::rows(outputs),
            b: Strides::rows(inputs),
            c: Strides::rows(inputs),
            ..Self::linear(rows, outputs, inputs)
        }
    }

    /// `dW[outputs, inputs] = dy^T x`: the weight gradient of [`linear`](Self::linear).
    #[must_use]
    pub fn linear_dw(rows: usize, outputs: usize, inputs: usize) -> Self {
        Self {
            m: outputs,
            n: inputs,
            k: rows,
            a: Strides::transposed(outputs),
            b: Strides::rows(inputs),
            c: Strides::rows(inputs),
            ..Self::linear(rows, outputs, inputs)
        }
    }

    /// The same product times a factor.
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// The same product with another way of storing.
    #[must_use]
    pub fn stored(self, store: Store) -> Self {
        Self { store, ..self }
    }
}

/// Which pairs of a head rotary embedding turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopeStyle {
    /// Element `i` with `i + dim/2`: Hugging Face Llama and Qwen weights.
    #[default]
    HalfSplit,
    /// Element `2i` with `2i + 1`: the original RoFormer paper, and GGUF files of Llama.
    Interleaved,
}

/// Rotary position embedding (Su et al. 2021, RoFormer) of the leading heads of each row, in place.
///
/// Pair `i` of a head at position `p` turns by `p * frequencies[i]`.
#[derive(Clone, Debug)]
pub struct RopeShape {
    /// Heads to turn, from the start of the row (queries, then keys).
    pub heads: usize,
    /// Elements of a head, even.
    pub head_dim: usize,
    /// Elements from a row to the next.
    pub row_stride: usize,
    /// Radians a position, one number a pair; see [`RopeShape::plain`].
    pub frequencies: Arc<[f32]>,
    /// Factor on what was turned, queries and keys alike: 1, unless positions are stretched in a way
    /// that asks for another.
    pub magnitude: f32,
    /// Pairing.
    pub style: RopeStyle,
}

impl RopeShape {
    /// The frequencies of the paper, `theta^(-2i/head_dim)`.
    #[must_use]
    pub fn plain(theta: f32, head_dim: usize) -> Arc<[f32]> {
        let of = |pair| f64::from(theta).powf(-2.0 * pair as f64 / head_dim as f64) as f32;
        (0..head_dim / 2).map(of).collect()
    }

    pub(crate) fn check(&self, positions: usize, elements: usize) {
        assert_eq!(elements, positions * self.row_stride, "one position a row");
        assert!(
            self.head_dim.is_multiple_of(2) && self.heads * self.head_dim <= self.row_stride,
            "heads fit the row"
        );
        assert_eq!(self.frequencies.len(), self.head_dim / 2, "one a pair");
    }
}

/// RMSNorm of each query and key head by itself, over rows that hold `[queries | keys | values]`: one
/// weight for all query heads, one for all key heads (Qwen3). Values stay as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNormShape {
    /// The rows.
    pub attention: AttentionShape,
    /// Added to the mean square.
    pub eps: f32,
}

impl HeadNormShape {
    /// Heads that are normed: numbers of `inv_rms` in a row.
    #[must_use]
    pub fn heads(self) -> usize {
        self.attention.heads + self.attention.kv_heads
    }

    /// Panics unless weights and rows fit.
    pub(crate) fn check(self, weight: usize, elements: usize, inv_rms: usize) {
        let own = 2 * self.attention.head_dim;
        assert_eq!(weight, own, "one weight an element of a query and of a key");
        let rows = elements / self.attention.qkv_cols();
        assert!(
            elements == rows * self.attention.qkv_cols() && inv_rms == rows * self.heads(),
            "rows of queries, keys and values, and a number for each head that is normed"
        );
    }
}

/// Causal grouped-query attention over rows that hold `[queries | keys | values]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Positions that a row sees, its own among them and the last of all; none where it sees all.
    pub window: Option<NonZeroU32>,
}

impl AttentionShape {
    /// Which of the `known` positions up to its own a row sees.
    #[must_use]
    pub fn seen(self, known: usize) -> Range<usize> {
        let window = self.window.map_or(known, |window| window.get() as usize);
        known.saturating_sub(window)..known
    }

    /// Elements of a row of queries, keys and values.
    #[must_use]
    pub fn qkv_cols(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of a row of keys and values alone.
    #[must_use]
    pub fn kv_cols(self) -> usize {
        2 * self.kv_heads * self.head_dim
    }

    /// Elements of a row of outputs.
    #[must_use]
    pub fn out_cols(self) -> usize {
        self.heads * self.head_dim
    }

    /// Factor on the scores, `1/sqrt(head_dim)`.
    #[must_use]
    pub fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// Where the fused vocabulary operation puts its results, one number a row.
#[derive(Debug)]
pub struct VocabStats<V> {
    /// Log-probability of the row's label.
    pub logprob: V,
    /// Entropy of the row's distribution, in nats.
    pub entropy: V,
    /// Log of the sum of exponentials of the row's logits, kept for the backward pass.
    pub logsumexp: V,
}

/// Gradients that come into and leave the backward pass of the fused vocabulary operation.
#[derive(Debug)]
pub struct VocabGrad<V, M> {
    /// Loss gradient with respect to each row's log-probability; absent means zero.
    pub logprob: Option<V>,
    /// Loss gradient with respect to each row's entropy; absent means zero.
    pub entropy: Option<V>,
    /// Gradient of the hidden rows, if wanted.
    pub dx: Option<(M, Store)>,
    /// Gradient of the head `[vocabulary, inputs]`, if wanted; always added to.
    pub dw: Option<M>,
}

/// To what numbers are rounded: the operands of products before they are multiplied, whose sums are f32, and parameters
/// before passes read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Precision {
    /// Not at all.
    #[default]
    F32,
    /// To bf16: eight significant bits.
    Bf16,
}

impl Precision {
    /// Largest relative error of one rounding.
    #[must_use]
    pub fn roundoff(self) -> f64 {
        match self {
            Self::F32 => 0.0,
            Self::Bf16 => 1.0 / 256.0,
        }
    }
}

/// The terms that a linear operation adds to its product.
#[derive(Clone, Copy, Debug)]
pub struct Addends<V> {
    /// Added to each row, one number a column.
    pub bias: Option<V>,
    /// Added element by element.
    pub residual: Option<V>,
}

/// A device's memory and its implementation of the operations.
///
/// Implementations are checked by [`conformance`](crate::conformance).
pub trait Backend: Clone + Debug + Send + Sync + 'static {
    /// Owned device memory; the default is empty.
    type Buffer: Default + Debug + Send + Sync;
    /// Shared part of a buffer.
    type View<'a>: Copy + Debug + Send + Sync;
    /// Exclusive part of a buffer.
    type ViewMut<'a>: Debug + Send;
    /// A weight rearranged for products with few rows.
    type Packed: Debug + Send + Sync;

    /// Memory for `len` elements, zero.
    fn alloc(&self, len: usize) -> Self::Buffer;
    /// Memory for parameters, zero. They change seldom, so a back-end may keep them in a second
    /// format too.
    fn parameters(&self, len: usize) -> Self::Buffer {
        self.alloc(len)
    }
    /// To what it rounds operands of products, attention among them.
    fn precision(&self) -> Precision {
        Precision::F32
    }
    /// Elements of a buffer.
    fn len(buffer: &Self::Buffer) -> usize;
    /// The elements, if the host can read them where they lie.
    fn host(_: &Self::Buffer) -> Option<&[f32]> {
        None
    }
    /// The elements, if the host can change them where they lie.
    fn host_mut(_: &mut Self::Buffer) -> Option<&mut [f32]> {
        None
    }
    /// Part of a buffer.
    fn view(buffer: &Self::Buffer, range: Range<usize>) -> Self::View<'_>;
    /// Part of a buffer, to write.
    fn view_mut(buffer: &mut Self::Buffer, range: Range<usize>) -> Self::ViewMut<'_>;
    /// Copies host elements to the device.
    fn write(&self, dst: Self::ViewMut<'_>, src: &[f32]);
    /// Copies device elements to the host.
    fn read(&self, src: Self::View<'_>, dst: &mut [f32]);
    /// Runs `work` where the operations run, so that a run of operations enters the pool once.
    fn scope<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R;
    /// Number of parts to split `rows` independent rows of decoding into, each run as one task.
    fn lanes(&self, rows: usize) -> usize;
    /// Runs independent tasks, each on one thread, all done on return.
    fn run_lanes<T: Send>(&self, tasks: &mut [T], work: impl Fn(&Self, &mut T) + Sync);

    /// A new buffer with these elements.
    fn buffer(&self, values: &[f32]) -> Self::Buffer {
        let mut buffer = self.alloc(values.len());
        self.write(Self::view_mut(&mut buffer, 0..values.len()), values);
        buffer
    }

    /// A whole buffer on the host.
    fn to_vec(&self, buffer: &Self::Buffer) -> Vec<f32> {
        let len = Self::len(buffer);
        let mut values = vec![0.0; len];
        self.read(Self::view(buffer, 0..len), &mut values);
        values
    }

    /// Batched, strided matrix product.
    fn matmul(&self, call: MatMul, a: Self::View<'_>, b: Self::View<'_>, c: Self::ViewMut<'_>);

    /// A product with what is added to it: `y = call(x, w) + bias + residual`, `y` the first
    /// `call.m * call.n` elements of a buffer. `call` describes contiguous rows of `y`; its way of
    /// storing does not matter.
    fn linear(
        &self,
        call: MatMul,
        x: Self::View<'_>,
        w: Self::View<'_>,
        add: Addends<Self::View<'_>>,
        y: &mut Self::Buffer,
    ) {
        let len = call.m * call.n;
        let store = match add.residual {
            Some(residual) => {
                self.copy(residual, Self::view_mut(y, 0..len));
                Store::Add
            }
            None => Store::Set,
        };
        self.matmul(call.stored(store), x, w, Self::view_mut(y, 0..len));
        if let Some(bias) = add.bias {
            self.add_bias(bias, Self::view_mut(y, 0..len));
        }
    }

    /// Copies.
    fn copy(&self, src: Self::View<'_>, dst: Self::ViewMut<'_>);
    /// Sets every element.
    fn fill(&self, dst: Self::ViewMut<'_>, value: f32);
    /// `dst *= scale`.
    fn scale(&self, scale: f32, dst: Self::ViewMut<'_>);
    /// `dst += scale * src`.
    fn axpy(&self, scale: f32, src: Self::View<'_>, dst: Self::ViewMut<'_>);
    /// Rounds numbers to bf16, to the nearest and of two that are as near to the even one. Two lie in each number of
    /// `dst`, which has half as many: the first in its low half.
    fn narrow(&self, src: Self::View<'_>, dst: Self::ViewMut<'_>);
    /// Numbers that were [rounded](Self::narrow) to bf16, one by one.
    fn widen(&self, src: Self::View<'_>, dst: Self::ViewMut<'_>);
    /// Adds `bias[cols]` to each row.
    fn add_bias(&self, bias: Self::View<'_>, rows: Self::ViewMut<'_>);
    /// `dst[cols] += sum over rows`: the gradient of [`add_bias`](Self::add_bias).
    fn sum_rows(&self, rows: Self::View<'_>, dst: Self::ViewMut<'_>);
    /// Sum of squares, accumulated in f64: the gradient norm.
    fn sum_squares(&self, src: Self::View<'_>) -> f64;

    /// `y = x / rms(x) * weight` a row (Zhang and Sennrich 2019); `inv_rms[rows]` is kept for the
    /// backward pass.
    fn rms_norm(
        &self,
        eps: f32,
        x: Self::View<'_>,
        weight: Self::View<'_>,
        y: Self::ViewMut<'_>,
        inv_rms: Self::ViewMut<'_>,
    );
    /// Backward of [`rms_norm`](Self::rms_norm). With [`Store::Add`] it is fused with the residual
    /// branch: `dx` already holds that branch's gradient. `dweight` is added to.
    fn rms_norm_backward(
        &self,
        x: Self::View<'_>,
        weight: Self::View<'_>,
        inv_rms: Self::View<'_>,
        dy: Self::View<'_>,
        dx: (Self::ViewMut<'_>, Store),
        dweight: Option<Self::ViewMut<'_>>,
    );

    /// `y = (x - mean) / deviation * weight + bias` a row (Ba et al. 2016), with
    /// `deviation = sqrt(variance + eps)`. The mean and `1 / deviation` of each row are kept in
    /// `moments[rows, 2]` for the backward pass.
    #[allow(clippy::too_many_arguments, reason = "an operation with five operands")]
    fn layer_norm(
        &self,
        eps: f32,
        x: Self::View<'_>,
        weight: Self::View<'_>,
        bias: Self::View<'_>,
        y: Self::ViewMut<'_>,
        moments: Self::ViewMut<'_>,
    );
    /// Backward of [`layer_norm`](Self::layer_norm), stored as that of
    /// [`rms_norm`](Self::rms_norm_backward). The gradient of the bias is
    /// [`sum_rows`](Self::sum_rows) of `dy`.
    fn layer_norm_backward(
        &self,
        x: Self::View<'_>,
        weight: Self::View<'_>,
        moments: Self::View<'_>,
        dy: Self::View<'_>,
        dx: (Self::ViewMut<'_>, Store),
        dweight: Option<Self::ViewMut<'_>>,
    );

    /// Turns the leading heads of each row by its position, in place.
    fn rope(&self, shape: &RopeShape, positions: &[u32], rows: Self::ViewMut<'_>);
    /// Turns them back: the gradient of [`rope`](Self::rope).
    fn rope_backward(&self, shape: &RopeShape, positions: &[u32], rows: Self::ViewMut<'_>);

    /// `y = x` with queries and keys normed per head; `weight[2 head_dim]` is that of queries, then that
    /// of keys. `inv_rms[rows, heads that are normed]` is kept for the backward pass.
    fn head_norm(
        &self,
        shape: HeadNormShape,
        x: Self::View<'_>,
        weight: Self::View<'_>,
        y: Self::ViewMut<'_>,
        inv_rms: Self::ViewMut<'_>,
    );
    /// Backward of [`head_norm`](Self::head_norm), which `passed` its `x` and `inv_rms`; overwrites `dx`, and adds to `dweight`.
    fn head_norm_backward(
        &self,
        shape: HeadNormShape,
        passed: (Self::View<'_>, Self::View<'_>),
        weight: Self::View<'_>,
        dy: Self::View<'_>,
        dx: Self::ViewMut<'_>,
        dweight: Option<Self::ViewMut<'_>>,
    );

    /// True where spans may have a prefix ([`RowSpans::sharing`]).
    fn shares_prefixes(&self) -> bool {
        false
    }

    /// Causal attention inside each span and to its prefix. `lse[rows, heads]` keeps the log of each softmax
    /// denominator (Dao et al. 2022) for the backward pass, which recomputes the probabilities tile by tile.
    ///
    /// # Panics
    /// If a span has a prefix and the back-end [does not](Self::shares_prefixes) read any.
    fn attention(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: Self::View<'_>,
        out: Self::ViewMut<'_>,
        lse: Self::ViewMut<'_>,
    );
    /// Backward of [`attention`](Self::attention); overwrites `dqkv`.
    #[allow(clippy::too_many_arguments, reason = "an operation with six operands")]
    fn attention_backward(
        &self,
        shape: AttentionShape,
        spans: &RowSpans,
        qkv: Self::View<'_>,
        out: Self::View<'_>,
        lse: Self::View<'_>,
        dout: Self::View<'_>,
        dqkv: Self::ViewMut<'_>,
    );

    /// Attention of the queries of `qkv` to keys and values `[keys | values]` that lie apart from them, in `kv`, merged
    /// by log-sum-exp into what `out` and `lse` hold of others (Liu et al. 2023, Ring Attention). A row that has seen
    /// nothing holds zeros and minus infinity.
    fn block_attention(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        qkv: Self::View<'_>,
        kv: Self::View<'_>,
        out: Self::ViewMut<'_>,
        lse: Self::ViewMut<'_>,
    );
    /// Backward of [`block_attention`](Self::block_attention): `passed` are its `qkv` and `kv`, and `out` and `lse` as
    /// they are when the rows have seen all. Adds to the gradient of the queries in `dqkv`, and to that of keys and
    /// values.
    fn block_attention_backward(
        &self,
        shape: AttentionShape,
        blocks: &ScoreBlocks,
        passed: [Self::View<'_>; 4],
        dout: Self::View<'_>,
        dqkv: Self::ViewMut<'_>,
        dkv: Self::ViewMut<'_>,
    );

    /// `y = silu(gate) * up` for rows `[gate | up]` of `2 * cols` elements (Shazeer 2020).
    fn swiglu(&self, cols: usize, x: Self::View<'_>, y: Self::ViewMut<'_>);
    /// Backward of [`swiglu`](Self::swiglu); overwrites `dx`.
    fn swiglu_backward(
        &self,
        cols: usize,
        x: Self::View<'_>,
        dy: Self::View<'_>,
        dx: Self::ViewMut<'_>,
    );

    /// `y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`: the approximation of GELU by a tangent
    /// (Hendrycks and Gimpel 2016), which GPT-2 has.
    fn gelu(&self, x: Self::View<'_>, y: Self::ViewMut<'_>);
    /// Backward of [`gelu`](Self::gelu); overwrites `dx`.
    fn gelu_backward(&self, x: Self::View<'_>, dy: Self::View<'_>, dx: Self::ViewMut<'_>);

    /// `y = x / (1 - p)` where the mask keeps a number, else zero; set, or added to what `y` has. Its own gradient.
    fn dropout(&self, mask: &DropoutMask, x: Self::View<'_>, y: (Self::ViewMut<'_>, Store));

    /// `dst[i] = table[rows[i]]`: embedding look-up, or a selection of rows. An [absent](ABSENT_ROW) row is zero.
    fn gather(&self, cols: usize, rows: &[u32], table: Self::View<'_>, dst: Self::ViewMut<'_>);
    /// `table[rows[i]] += src[i]`: the gradient of [`gather`](Self::gather). An [absent](ABSENT_ROW) row gets
    /// nothing.
    fn scatter_add(&self, cols: usize, rows: &[u32], src: Self::View<'_>, table: Self::ViewMut<'_>);

    /// Chooses the experts of each row of `x[rows, experts]`: those of the `top` largest logits, of
    /// equal ones the lowest first. `chosen[rows, top]` is their numbers, from the largest logit
    /// down, and `weights[rows, top]` the softmax over these logits alone. That is the softmax over
    /// all experts, its `top` largest divided by their sum (Jiang et al. 2024, Mixtral of Experts,
    /// section 2.1). Waits for the device.
    fn route(
        &self,
        shape: RouteShape,
        x: Self::View<'_>,
        chosen: &mut [u32],
        weights: Self::ViewMut<'_>,
    );
    /// Backward of [`route`](Self::route), the choice held fixed:
    /// `dx[r, chosen[r, i]] = w[r, i] (dw[r, i] - sum over j of w[r, j] dw[r, j])`, and zero for the
    /// other experts.
    fn route_backward(
        &self,
        shape: RouteShape,
        chosen: &[u32],
        weights: Self::View<'_>,
        dweights: Self::View<'_>,
        dx: (Self::ViewMut<'_>, Store),
    );

    /// `dst[rows[i]] += weights[i] * src[i]`: the results of a mixture's experts, weighted and
    /// brought back to their tokens (Shazeer et al. 2017). A token may stand several times, once an
    /// expert; [`gather`](Self::gather) is the way there.
    fn combine(
        &self,
        cols: usize,
        rows: &[u32],
        weights: Self::View<'_>,
        src: Self::View<'_>,
        dst: Self::ViewMut<'_>,
    );
    /// Backward of [`combine`](Self::combine): `dsrc[i] = weights[i] * dout[rows[i]]` and
    /// `dweights[i] = src[i] . dout[rows[i]]`, each if wanted.
    #[allow(clippy::too_many_arguments, reason = "an operation with six operands")]
    fn combine_backward(
        &self,
        cols: usize,
        rows: &[u32],
        weights: Self::View<'_>,
        src: Self::View<'_>,
        dout: Self::View<'_>,
        dsrc: Option<(Self::ViewMut<'_>, Store)>,
        dweights: Option<(Self::ViewMut<'_>, Store)>,
    );

    /// Log-probability, entropy and log-sum-exp of `scale * x W^T` a row, the vocabulary taken in
    /// chunks, so that the logits of all rows never exist at once. A label may be of no entry: then the
    /// log-probability is any number.
    fn vocab(
        &self,
        scale: f32,
        x: Self::View<'_>,
        w: Self::View<'_>,
        labels: &[u32],
        out: VocabStats<Self::ViewMut<'_>>,
    );
    /// Backward of [`vocab`](Self::vocab): recomputes each chunk of logits and uses
    /// `dlogp/dz_j = 1[j = label] - p_j` and `dH/dz_j = -p_j (ln p_j + H)`.
    fn vocab_backward(
        &self,
        scale: f32,
        x: Self::View<'_>,
        w: Self::View<'_>,
        labels: &[u32],
        saved: VocabStats<Self::View<'_>>,
        grad: VocabGrad<Self::View<'_>, Self::ViewMut<'_>>,
    );

    /// Probabilities of `scales[row] * x` a row, and the log of the sum of their exponentials.
    fn softmax(
        &self,
        scales: &[f32],
        x: Self::View<'_>,
        probs: Self::ViewMut<'_>,
        logsumexp: Self::ViewMut<'_>,
    );

    /// One optimiser step: each rule over its run of the flat buffers; the rest stays untouched.
    /// `states` are what the rule keeps, in its order: of the parameters from number `from` on, a multiple
    /// of [`STATES_ALIGN`](crate::STATES_ALIGN), to the last of the runs. A rank that keeps those of a part
    /// alone has shorter ones.
    fn update<R: UpdateRule>(
        &self,
        runs: &[(Range<usize>, R)],
        params: &mut Self::Buffer,
        grads: &Self::Buffer,
        from: usize,
        states: &mut [&mut Self::Buffer],
    );

    /// Rearranges a weight `[outputs, inputs]` for [`packed_linear`](Self::packed_linear).
    fn pack(&self, outputs: usize, inputs: usize, weight: Self::View<'_>) -> Self::Packed;
    /// Rearranges again into the same memory, after the weights changed.
    fn repack(&self, weight: Self::View<'_>, packed: &mut Self::Packed);
    /// `y = x W^T`, stored or added, for few rows. A row's result is bit for bit the same whatever
    /// other rows stand in the call, so sampling does not depend on the batch.
    fn packed_linear(
        &self,
        x: Self::View<'_>,
        w: &Self::Packed,
        y: Self::ViewMut<'_>,
        store: Store,
    );
    /// Positions of a block of the key-value cache, as near above those wanted as operations take.
    fn cache_block(&self, wanted: usize) -> usize;
    /// Elements of a block of so many positions in one layer.
    fn cache_len(&self, shape: AttentionShape, tokens: usize) -> usize;
    /// Copies blocks of `len` elements, each `(from, to)` in this order.
    fn cache_copy(&self, len: usize, copies: &[(u32, u32)], cache: Self::ViewMut<'_>);
    /// Writes each row's key and value into its sequence's blocks.
    ///
    /// `rows[i]` says which sequence of the table row `i` of `qkv` belongs to and at which position.
    fn cache_append(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: Self::View<'_>,
        cache: Self::ViewMut<'_>,
    );
    /// Attention of each row's queries over its sequence's blocks, positions up to its own. A row's
    /// result is bit for bit the same wherever the blocks lie.
    fn cache_attention(
        &self,
        shape: AttentionShape,
        table: &BlockTable,
        rows: &[CacheRow],
        qkv: Self::View<'_>,
        cache: Self::View<'_>,
        out: Self::ViewMut<'_>,
    );
}

/// Where a row of a decoding step stands in the key-value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRow {
    /// Which sequence of the table.
    pub slot: u32,
    /// Position of the row's token, from 0.
    pub position: u32,
}
