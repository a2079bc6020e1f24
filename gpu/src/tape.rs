//! Records the fused operations of one step and runs them forward and backward.
//!
//! Recording is cheap (a step has about a hundred operations) and is done for every step, so shapes
//! may change. [`Tape::plan_training`] or [`Tape::plan_inference`] then gives every activation and
//! gradient a slot of the arena that is free during its lifetime.

mod away;
mod divided;
mod division;
mod dropout;
mod exchange;
mod order;
mod params;
mod places;
mod plan;
mod ranks;
mod ring;
mod route;
mod run;
mod spread;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::{
    ABSENT_ROW, AttentionShape, Backend, HeadNormShape, RopeShape, RouteShape, Store,
};
use crate::dropout::DropoutMask;
use crate::spans::RowSpans;

pub use division::Division;
pub use exchange::Moves;
pub use params::{PassParams, Resident, SetNeeds};
pub use plan::{Arena, Plan};
pub use ranks::PassRanks;
use ring::Ring;
pub use route::Routed;
pub use spread::OwnExperts;

/// A recorded activation, row-major `[rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Var(usize);

/// Part of a flat parameter buffer.
///
/// A tape runs over several buffers (sets), for instance frozen base weights and trained adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    set: usize,
    range: Range<usize>,
}

impl Param {
    /// Elements `range` of parameter set `set`.
    #[must_use]
    pub fn new(set: usize, range: Range<usize>) -> Self {
        Self { set, range }
    }

    /// Elements of its set's buffer.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// The terms that a linear operation adds to the product, see [`Tape::linear_with`].
#[derive(Clone, Debug, PartialEq)]
pub struct LinearExtras {
    /// Added to each row.
    pub bias: Option<Param>,
    /// Added element by element.
    pub residual: Option<Var>,
    /// Factor on the product alone.
    pub scale: f32,
}

impl Default for LinearExtras {
    fn default() -> Self {
        Self {
            bias: None,
            residual: None,
            scale: 1.0,
        }
    }
}

/// Log-probabilities and entropies of rows, see [`Tape::vocab`].
#[derive(Clone, Copy, Debug)]
pub struct VocabVars {
    /// Log-probability of each row's label, `[rows, 1]`.
    pub logprob: Var,
    /// Entropy of each row's distribution in nats, `[rows, 1]`.
    pub entropy: Var,
}

/// An operation that the caller brings: the way to a new architecture without a new back-end.
pub trait CustomOp<B: Backend>: fmt::Debug + Send + Sync {
    /// Writes the output.
    fn forward(&self, backend: &B, inputs: &[B::View<'_>], out: B::ViewMut<'_>);

    /// Writes or adds the gradient of each input that wants one.
    fn backward(
        &self,
        backend: &B,
        inputs: &[B::View<'_>],
        out: B::View<'_>,
        dout: B::View<'_>,
        dinputs: Vec<Option<(B::ViewMut<'_>, Store)>>,
    );
}

/// A place in a recording, see [`Tape::recompute`] and [`Tape::offload`].
#[derive(Clone, Copy, Debug)]
pub struct TapeMark(usize);

/// A recording of fused operations.
#[derive(Debug)]
pub struct Tape<B: Backend> {
    vars: Vec<Shape>,
    ops: Vec<Op<B>>,
    /// Lists of rows that are known only when it runs.
    lists: usize,
    /// Inputs that get a gradient.
    learnt: Vec<Var>,
    /// Runs of operations that are computed again on the way back.
    recomputed: Vec<Range<usize>>,
    /// Runs of operations whose values leave the device meanwhile.
    offloaded: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    cols: usize,
    readers: usize,
    exclusive: bool,
}

/// Numbers of rows.
#[derive(Clone, Debug)]
enum Rows {
    /// Known when they were recorded.
    Fixed(Arc<[u32]>),
    /// The rows that experts take, in this list of the arena.
    Taken(usize),
    /// The places of their weights, in this list.
    Slots(usize),
}

#[derive(Debug)]
enum Op<B: Backend> {
    Embed {
        table: Param,
        rows: Arc<[u32]>,
        residual: Option<Var>,
        out: Var,
    },
    Select {
        x: Var,
        rows: Rows,
        out: Var,
    },
    Combine {
        x: Var,
        weights: Var,
        rows: Rows,
        residual: Option<Var>,
        out: Var,
    },
    Route {
        x: Var,
        shape: RouteShape,
        list: usize,
        out: Var,
    },
    Experts {
        x: Var,
        weights: Vec<Param>,
        list: usize,
        out: Var,
    },
    Linear {
        x: Var,
        weight: Param,
        extras: LinearExtras,
        out: Var,
    },
    RmsNorm {
        x: Var,
        weight: Param,
        eps: f32,
        out: Var,
        inv_rms: Var,
    },
    LayerNorm {
        x: Var,
        weight: Param,
        bias: Param,
        eps: f32,
        out: Var,
        moments: Var,
    },
    HeadNorm {
        x: Var,
        weight: Param,
        shape: HeadNormShape,
        out: Var,
        inv_rms: Var,
    },
    Rope {
        x: Var,
        shape: RopeShape,
        positions: Arc<[u32]>,
    },
    Attention {
        qkv: Var,
        shape: AttentionShape,
        spans: RowSpans,
        out: Var,
        lse: Var,
    },
    SwiGlu {
        x: Var,
        out: Var,
    },
    Gelu {
        x: Var,
        out: Var,
    },
    Dropout {
        x: Var,
        residual: Option<Var>,
        mask: DropoutMask,
        out: Var,
    },
    Vocab {
        x: Var,
        head: Param,
        scale: f32,
        labels: Arc<[u32]>,
        out: VocabVars,
        lse: Var,
        /// Those that each have a part of the head, where it is cut.
        ranks: Option<Arc<dyn PassRanks<B>>>,
    },
    ScatterSum {
        x: Var,
        residual: Option<Var>,
        ranks: Arc<dyn PassRanks<B>>,
        out: Var,
    },
    GatherRows {
        x: Var,
        ranks: Arc<dyn PassRanks<B>>,
        out: Var,
    },
    Exchange {
        x: Var,
        moves: Moves,
        ranks: Arc<dyn PassRanks<B>>,
        out: Var,
    },
    Ring {
        qkv: Var,
        ring: Ring<B>,
        out: Var,
        lse: Var,
    },
    /// Experts of which each rank has some.
    Spread {
        x: Var,
        experts: OwnExperts,
        list: usize,
        ranks: Arc<dyn PassRanks<B>>,
        out: Var,
    },
    Custom {
        op: Box<dyn CustomOp<B>>,
        inputs: Vec<Var>,
        out: Var,
    },
}

impl<B: Backend> Default for Tape<B> {
    fn default() -> Self {
        Self {
            vars: Vec::new(),
            ops: Vec::new(),
            lists: 0,
            learnt: Vec::new(),
            recomputed: Vec::new(),
            offloaded: Vec::new(),
        }
    }
}

impl<B: Backend> Tape<B> {
    /// An empty recording.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `[rows, cols]` of an activation.
    #[must_use]
    pub fn shape(&self, v: Var) -> (usize, usize) {
        (self.vars[v.0].rows, self.vars[v.0].cols)
    }

    /// An activation that the caller writes before the forward pass; it gets no gradient.
    pub fn input(&mut self, rows: usize, cols: usize) -> Var {
        self.var(rows, cols)
    }

    /// An activation that the caller writes before the forward pass, and whose gradient it
    /// [reads](Self::read_gradient) behind the backward pass: what another recording has made.
    pub fn learnt_input(&mut self, rows: usize, cols: usize) -> Var {
        let input = self.var(rows, cols);
        self.learnt.push(input);
        input
    }

    /// Rows of an embedding table `[vocabulary, cols]`.
    ///
    /// # Panics
    /// If a token is [absent](crate::ABSENT_ROW).
    pub fn embed(&mut self, table: Param, cols: usize, tokens: Arc<[u32]>) -> Var {
        assert!(!tokens.contains(&ABSENT_ROW), "tokens of the vocabulary");
        self.embed_of(table, cols, tokens, None)
    }

    /// Rows of a table `[entries, cols]`, each added to a row of `x`.
    ///
    /// # Panics
    /// If there is not one entry a row of `x`, or one is [absent](crate::ABSENT_ROW).
    pub fn embed_onto(&mut self, x: Var, table: Param, entries: Arc<[u32]>) -> Var {
        let (rows, cols) = self.shape(x);
        assert_eq!(rows, entries.len(), "one entry a row");
        assert!(!entries.contains(&ABSENT_ROW), "entries of the table");
        self.read_by(x);
        self.embed_of(table, cols, entries, Some(x))
    }

    fn embed_of(
        &mut self,
        table: Param,
        cols: usize,
        rows: Arc<[u32]>,
        residual: Option<Var>,
    ) -> Var {
        let out = self.var(rows.len(), cols);
        self.ops.push(Op::Embed {
            table,
            rows,
            residual,
            out,
        });
        out
    }

    /// Some rows of an activation, in any order and number.
    ///
    /// # Panics
    /// If a row is [absent](crate::ABSENT_ROW).
    pub fn select(&mut self, x: Var, rows: Arc<[u32]>) -> Var {
        assert!(!rows.contains(&ABSENT_ROW), "rows that are there");
        let count = rows.len();
        self.select_of(x, Rows::Fixed(rows), count)
    }

    fn select_of(&mut self, x: Var, rows: Rows, count: usize) -> Var {
        self.read_by(x);
        let out = self.var(count, self.vars[x.0].cols);
        self.ops.push(Op::Select { x, rows, out });
        out
    }

    /// `out[rows[i]] = sum of weights[i] * x[i]`: brings the rows that experts made of
    /// [`select`](Self::select)ed tokens back to `tokens` tokens, each with its weight.
    ///
    /// # Panics
    /// If there is not one weight and one token a row.
    pub fn combine(&mut self, x: Var, weights: Var, rows: Arc<[u32]>, tokens: usize) -> Var {
        assert_eq!(rows.len(), self.shape(x).0, "one token a row");
        assert!(
            rows.iter().all(|&row| (row as usize) < tokens),
            "rows of tokens that exist"
        );
        self.combine_of(x, weights, Rows::Fixed(rows), None, tokens)
    }

    fn combine_of(
        &mut self,
        x: Var,
        weights: Var,
        rows: Rows,
        residual: Option<Var>,
        tokens: usize,
    ) -> Var {
        let (taken, cols) = self.shape(x);
        assert_eq!(self.shape(weights), (taken, 1), "one weight a row");
        for v in [x, weights].into_iter().chain(residual) {
            self.read_by(v);
        }
        let out = self.var(tokens, cols);
        self.ops.push(Op::Combine {
            x,
            weights,
            rows,
            residual,
            out,
        });
        out
    }

    /// `x W^T` for a weight `[outputs, inputs]`.
    pub fn linear(&mut self, x: Var, weight: Param, outputs: usize) -> Var {
        self.linear_with(x, weight, outputs, LinearExtras::default())
    }

    /// `scale * x W^T + bias + residual`.
    ///
    /// # Panics
    /// If the weight or an extra does not fit the shapes.
    pub fn linear_with(
        &mut self,
        x: Var,
        weight: Param,
        outputs: usize,
        extras: LinearExtras,
    ) -> Var {
        let (rows, inputs) = self.shape(x);
        assert_eq!(
            weight.range.len(),
            outputs * inputs,
            "weight of outputs by inputs"
        );
        self.read_by(x);
        if let Some(residual) = extras.residual {
            assert_eq!(
                self.shape(residual),
                (rows, outputs),
                "residual shaped as the output"
            );
            self.read_by(residual);
        }
        let out = self.var(rows, outputs);
        self.ops.push(Op::Linear {
            x,
            weight,
            extras,
            out,
        });
        out
    }

    /// RMSNorm of each row.
    pub fn rms_norm(&mut self, x: Var, weight: Param, eps: f32) -> Var {
        self.read_by(x);
        let (rows, cols) = self.shape(x);
        assert_eq!(weight.range.len(), cols, "one weight a column");
        let (out, inv_rms) = (self.var(rows, cols), self.var(rows, 1));
        self.ops.push(Op::RmsNorm {
            x,
            weight,
            eps,
            out,
            inv_rms,
        });
        out
    }

    /// Layer norm of each row.
    pub fn layer_norm(&mut self, x: Var, weight: Param, bias: Param, eps: f32) -> Var {
        self.read_by(x);
        let (rows, cols) = self.shape(x);
        assert!(
            weight.range.len() == cols && bias.range.len() == cols,
            "one weight and one bias a column"
        );
        let (out, moments) = (self.var(rows, cols), self.var(rows, 2));
        self.ops.push(Op::LayerNorm {
            x,
            weight,
            bias,
            eps,
            out,
            moments,
        });
        out
    }

    /// RMSNorm of each query and key head of the packed rows `[queries | keys | values]`: the weight
    /// of queries stands before that of keys. Nothing else may read `x`.
    pub fn head_norm(&mut self, x: Var, weight: Param, shape: HeadNormShape) -> Var {
        self.read_by(x);
        let (rows, cols) = self.shape(x);
        assert_eq!(
            cols,
            shape.attention.qkv_cols(),
            "rows of queries, keys and values"
        );
        let (out, inv_rms) = (self.var(rows, cols), self.var(rows, shape.heads()));
        self.ops.push(Op::HeadNorm {
            x,
            weight,
            shape,
            out,
            inv_rms,
        });
        out
    }

    /// Rotary embedding in place, so before anything else reads `x`.
    ///
    /// # Panics
    /// If another operation has read `x`, or there is not one position a row.
    pub fn rope(&mut self, x: Var, shape: RopeShape, positions: Arc<[u32]>) {
        assert_eq!(
            self.vars[x.0].readers, 0,
            "rope changes rows that something has read"
        );
        assert_eq!(
            self.shape(x),
            (positions.len(), shape.row_stride),
            "one position a row"
        );
        self.ops.push(Op::Rope {
            x,
            shape,
            positions,
        });
    }

    /// Causal attention inside each sequence of the packed rows `[queries | keys | values]`, see
    /// [`Backend::attention`]. Nothing else may read `qkv`.
    pub fn attention(&mut self, qkv: Var, shape: AttentionShape, spans: RowSpans) -> Var {
        let (rows, cols) = self.shape(qkv);
        assert_eq!(cols, shape.qkv_cols(), "rows of queries, keys and values");
        assert_eq!(spans.rows(), rows, "spans cover the rows");
        self.read_alone(qkv);
        let (out, lse) = (
            self.var(rows, shape.out_cols()),
            self.var(rows, shape.heads),
        );
        self.ops.push(Op::Attention {
            qkv,
            shape,
            spans,
            out,
            lse,
        });
        out
    }

    /// `silu(gate) * up` of rows `[gate | up]`. Nothing else may read `x`.
    pub fn swiglu(&mut self, x: Var) -> Var {
        let (rows, cols) = self.shape(x);
        self.read_alone(x);
        let out = self.var(rows, cols / 2);
        self.ops.push(Op::SwiGlu { x, out });
        out
    }

    /// GELU of each element, see [`Backend::gelu`]. Nothing else may read `x`.
    pub fn gelu(&mut self, x: Var) -> Var {
        let (rows, cols) = self.shape(x);
        self.read_alone(x);
        let out = self.var(rows, cols);
        self.ops.push(Op::Gelu { x, out });
        out
    }

    /// Log-probability of each row's label and entropy under the logits `scale * x head^T`.
    pub fn vocab(&mut self, x: Var, head: Param, scale: f32, labels: Arc<[u32]>) -> VocabVars {
        let rows = self.vars[x.0].rows;
        assert_eq!(labels.len(), rows, "one label a row");
        self.read_by(x);
        let out = VocabVars {
            logprob: self.var(rows, 1),
            entropy: self.var(rows, 1),
        };
        let lse = self.var(rows, 1);
        self.ops.push(Op::Vocab {
            x,
            head,
            scale,
            labels,
            out,
            lse,
            ranks: None,
        });
        out
    }

    /// An operation of the caller's with an output `[rows, cols]`.
    ///
    /// # Panics
    /// If an input stands twice: its two gradients would need the same memory.
    pub fn custom(
        &mut self,
        op: Box<dyn CustomOp<B>>,
        inputs: Vec<Var>,
        rows: usize,
        cols: usize,
    ) -> Var {
        for (i, &x) in inputs.iter().enumerate() {
            assert!(
                !inputs[..i].contains(&x),
                "a custom operation reads each input once"
            );
            self.read_by(x);
        }
        let out = self.var(rows, cols);
        self.ops.push(Op::Custom { op, inputs, out });
        out
    }

    fn len(&self, v: Var) -> usize {
        self.vars[v.0].rows * self.vars[v.0].cols
    }

    fn var(&mut self, rows: usize, cols: usize) -> Var {
        self.vars.push(Shape {
            rows,
            cols,
            readers: 0,
            exclusive: false,
        });
        Var(self.vars.len() - 1)
    }

    fn read_by(&mut self, v: Var) {
        let var = &mut self.vars[v.0];
        assert!(
            !var.exclusive,
            "these rows already have a reader that wants them alone"
        );
        var.readers += 1;
    }

    fn read_alone(&mut self, v: Var) {
        assert_eq!(
            self.vars[v.0].readers, 0,
            "these rows already have a reader"
        );
        self.read_by(v);
        self.vars[v.0].exclusive = true;
    }
}

impl<B: Backend> Op<B> {
    /// Activations read by the forward pass; the ones that may carry a gradient back.
    fn inputs(&self) -> Vec<Var> {
        match self {
            Self::Embed { residual, .. } => residual.iter().copied().collect(),
            Self::Combine {
                x,
                weights,
                residual,
                ..
            } => [*x, *weights].into_iter().chain(*residual).collect(),
            Self::Linear { x, extras, .. } => std::iter::once(*x).chain(extras.residual).collect(),
            Self::ScatterSum { x, residual, .. } | Self::Dropout { x, residual, .. } => {
                std::iter::once(*x).chain(*residual).collect()
            }
            Self::Select { x, .. }
            | Self::Route { x, .. }
            | Self::Experts { x, .. }
            | Self::RmsNorm { x, .. }
            | Self::HeadNorm { x, .. }
            | Self::Rope { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::SwiGlu { x, .. }
            | Self::Gelu { x, .. }
            | Self::GatherRows { x, .. }
            | Self::Exchange { x, .. }
            | Self::Spread { x, .. }
            | Self::Vocab { x, .. } => vec![*x],
            Self::Attention { qkv, .. } | Self::Ring { qkv, .. } => vec![*qkv],
            Self::Custom { inputs, .. } => inputs.clone(),
        }
    }

    /// Activations written by the forward pass that carry a gradient.
    fn outputs(&self) -> Vec<Var> {
        match self {
            Self::Embed { out, .. }
            | Self::Select { out, .. }
            | Self::Combine { out, .. }
            | Self::Route { out, .. }
            | Self::Experts { out, .. }
            | Self::Linear { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::HeadNorm { out, .. }
            | Self::Attention { out, .. }
            | Self::Ring { out, .. }
            | Self::LayerNorm { out, .. }
            | Self::SwiGlu { out, .. }
            | Self::Gelu { out, .. }
            | Self::Dropout { out, .. }
            | Self::Exchange { out, .. }
            | Self::Spread { out, .. }
            | Self::ScatterSum { out, .. }
            | Self::GatherRows { out, .. }
            | Self::Custom { out, .. } => vec![*out],
            Self::Vocab { out, .. } => vec![out.logprob, out.entropy],
            Self::Rope { .. } => vec![],
        }
    }

    /// Written beside the outputs for the backward pass.
    fn saved(&self) -> Option<Var> {
        match self {
            Self::RmsNorm { inv_rms, .. } | Self::HeadNorm { inv_rms, .. } => Some(*inv_rms),
            Self::LayerNorm { moments, .. } => Some(*moments),
            Self::Attention { lse, .. } | Self::Ring { lse, .. } | Self::Vocab { lse, .. } => {
                Some(*lse)
            }
            _ => None,
        }
    }

    /// Values that the backward pass reads.
    fn backward_reads(&self) -> Vec<Var> {
        match self {
            Self::Embed { .. }
            | Self::Select { .. }
            | Self::Rope { .. }
            | Self::Dropout { .. }
            | Self::ScatterSum { .. }
            | Self::GatherRows { .. }
            | Self::Exchange { .. }
            | Self::Spread { .. } => vec![],
            Self::Linear { x, .. }
            | Self::Experts { x, .. }
            | Self::SwiGlu { x, .. }
            | Self::Gelu { x, .. } => vec![*x],
            Self::LayerNorm { x, moments, .. } => vec![*x, *moments],
            Self::Route { out, .. } => vec![*out],
            Self::Combine { x, weights, .. } => vec![*x, *weights],
            Self::RmsNorm { x, inv_rms, .. } | Self::HeadNorm { x, inv_rms, .. } => {
                vec![*x, *inv_rms]
            }
            Self::Attention { qkv, out, lse, .. } | Self::Ring { qkv, out, lse, .. } => {
                vec![*qkv, *out, *lse]
            }
            Self::Vocab { x, out, lse, .. } => vec![*x, out.logprob, out.entropy, *lse],
            Self::Custom { inputs, out, .. } => inputs
                .iter()
                .copied()
                .chain(std::iter::once(*out))
                .collect(),
        }
    }

    /// Parameter sets it reads.
    fn sets(&self) -> impl Iterator<Item = usize> {
        let (a, b) = match self {
            Self::Embed { table: p, .. }
            | Self::RmsNorm { weight: p, .. }
            | Self::HeadNorm { weight: p, .. }
            | Self::Vocab { head: p, .. } => (Some(p.set), None),
            Self::LayerNorm { weight, bias, .. } => (Some(weight.set), Some(bias.set)),
            Self::Experts { weights, .. } => (weights.first().map(|w| w.set), None),
            Self::Spread { experts, .. } => (experts.down.first().map(|w| w.set), None),
            Self::Linear { weight, extras, .. } => {
                (Some(weight.set), extras.bias.as_ref().map(|b| b.set))
            }
            _ => (None, None),
        };
        a.into_iter().chain(b)
    }
}

#[cfg(test)]
mod tests;
