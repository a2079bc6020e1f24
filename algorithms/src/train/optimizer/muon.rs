//! Muon: momentum made orthogonal, for the matrices of hidden layers.

use std::ops::Range;

use odeon_gpu::{Backend, Layout, MatMul, Store, Strides, TensorEntry};
use serde::{Deserialize, Serialize};

use super::{AdamW, Cost, Elementwise, Kept, Rule, Step, Stepper, segments};
use crate::setting::{Bounds, SettingError};

/// Muon (Jordan et al. 2024) in the form of Liu et al. 2025 (Muon is Scalable for LLM Training), for the
/// matrices of the layers: Nesterov momentum, and an update scaled to the size that AdamW's has, so that
/// both share a learning rate and a weight decay.
///
/// ```text
/// M <- momentum M + G
/// O  = orthogonal(G + momentum M)
/// W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(rows, cols)) O
/// ```
///
/// Embeddings, heads, norms and biases move by AdamW. The first moments of matrices are their momentum,
/// and their second stay zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// Decay of the momentum.
    pub momentum: f32,
    /// Settings for the other parameters.
    pub adamw: AdamW,
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            adamw: AdamW::default(),
        }
    }
}

impl Rule for Muon {
    const NAME: &'static str = "Muon";
    const STATE: &'static [&'static str] = AdamW::STATE;

    fn check(&self) -> Result<(), SettingError> {
        Bounds::check_all("muon", [("momentum", self.momentum, Bounds::Decay)])?;
        self.adamw.check()
    }

    /// Products on the short side: about as many operations an element as that is long, where moments take
    /// a few.
    fn whole(&self, entry: &TensorEntry) -> Option<Cost> {
        let short = entry.shape.iter().min().copied().unwrap_or(0);
        is_hidden(entry).then(|| entry.range.len() as Cost * (4 + short as Cost))
    }

    fn stepper<B: Backend>(
        &self,
        backend: &B,
        layout: &Layout,
        part: &Range<usize>,
        weight_decay: f32,
    ) -> Box<dyn Stepper<B>> {
        let own = |entry: &&TensorEntry| {
            let range = &entry.range;
            is_hidden(entry) && part.start <= range.start && range.end <= part.end
        };
        let hidden = layout.entries().iter().filter(own);
        let matrices = hidden.map(|entry| Matrix {
            range: entry.range.clone(),
            cols: entry.shape[1],
        });
        let matrices: Vec<Matrix> = matrices.collect();
        let others = segments(layout, part, weight_decay, |entry| !is_hidden(entry));
        Box::new(MuonSteps {
            momentum: self.momentum,
            weight_decay,
            scratch: Scratch::new(backend, &matrices),
            matrices,
            others: Elementwise::over(self.adamw, others),
        })
    }
}

/// True of the matrices of layers.
fn is_hidden(entry: &TensorEntry) -> bool {
    entry.shape.len() == 2 && entry.name.starts_with("model.layers.")
}

/// A row-major matrix inside the flat buffers.
#[derive(Clone, Debug, PartialEq)]
struct Matrix {
    /// Elements of the flat buffer.
    range: Range<usize>,
    /// Columns; the rows follow from the range.
    cols: usize,
}

/// Memory that a step needs beside the flat buffers, kept from step to step.
#[derive(Debug)]
struct Scratch<B: Backend> {
    /// The matrix on its way to an orthogonal one, and its next iterate.
    iterate: [B::Buffer; 2],
    /// The Gram matrix of the short side, and the polynomial of it.
    gram: [B::Buffer; 2],
}

impl<B: Backend> Scratch<B> {
    /// Room for any of the matrices.
    fn new(backend: &B, matrices: &[Matrix]) -> Self {
        let most = |len: &dyn Fn(&Matrix) -> usize| matrices.iter().map(len).max().unwrap_or(0);
        let (whole, gram) = (
            most(&|m| m.range.len()),
            most(&|m| m.cols.min(m.range.len() / m.cols).pow(2)),
        );
        Self {
            iterate: [backend.alloc(whole), backend.alloc(whole)],
            gram: [backend.alloc(gram), backend.alloc(gram)],
        }
    }
}

#[derive(Debug)]
struct MuonSteps<B: Backend> {
    momentum: f32,
    weight_decay: f32,
    matrices: Vec<Matrix>,
    scratch: Scratch<B>,
    others: Elementwise<AdamW>,
}

impl<B: Backend> Stepper<B> for MuonSteps<B> {
    fn step(
        &mut self,
        backend: &B,
        step: Step,
        params: &mut B::Buffer,
        grads: &B::Buffer,
        kept: Kept<'_, B>,
    ) {
        let Kept { from, buffers } = kept;
        let of_others = Kept {
            from,
            buffers: &mut *buffers,
        };
        self.others.step(backend, step, params, grads, of_others);
        let [momenta, _] = buffers else {
            panic!("two buffers of state")
        };
        let Self {
            momentum,
            weight_decay,
            matrices,
            scratch,
            ..
        } = self;
        for matrix in matrices {
            let at = || matrix.range.clone();
            let held = || matrix.range.start - from..matrix.range.end - from;
            let len = matrix.range.len();
            backend.scale(*momentum, B::view_mut(momenta, held()));
            backend.axpy(
                step.grad_scale,
                B::view(grads, at()),
                B::view_mut(momenta, held()),
            );
            let [x, _] = &mut scratch.iterate;
            backend.copy(B::view(grads, at()), B::view_mut(x, 0..len));
            backend.scale(step.grad_scale, B::view_mut(x, 0..len));
            backend.axpy(*momentum, B::view(momenta, held()), B::view_mut(x, 0..len));
            orthogonalise(backend, len / matrix.cols, matrix.cols, scratch);
            let largest = matrix.cols.max(len / matrix.cols);
            let size = 0.2 * (largest as f32).sqrt();
            backend.scale(1.0 - step.lr * *weight_decay, B::view_mut(params, at()));
            let update = B::view(&scratch.iterate[0], 0..len);
            backend.axpy(-step.lr * size, update, B::view_mut(params, at()));
        }
    }
}

/// Coefficients of Jordan's quintic, which brings every singular value near one in five rounds.
const QUINTIC: [f32; 3] = [3.4445, -4.7750, 2.0315];
const ROUNDS: usize = 5;

/// Newton-Schulz on the first iterate, `X <- a X + (b A + c A^2) X` with `A = X X^T`, the products
/// taken on the short side.
fn orthogonalise<B: Backend>(backend: &B, rows: usize, cols: usize, scratch: &mut Scratch<B>) {
    let len = rows * cols;
    let [a, b, c] = QUINTIC;
    let Scratch {
        iterate: [x, next],
        gram: [gram, poly],
    } = scratch;
    let norm = backend.sum_squares(B::view(x, 0..len)).sqrt();
    backend.scale(
        1.0 / (norm as f32).max(f32::MIN_POSITIVE),
        B::view_mut(x, 0..len),
    );
    let wide = rows <= cols;
    let (side, depth) = if wide { (rows, cols) } else { (cols, rows) };
    let (straight, turned) = (Strides::rows(cols), Strides::transposed(cols));
    let product = |m, n, k, a, b| MatMul {
        m,
        n,
        k,
        a,
        b,
        c: Strides::rows(n),
        ..MatMul::linear(m, n, k)
    };
    let square = product(side, side, side, Strides::rows(side), Strides::rows(side));
    let (outer, update) = if wide {
        (
            product(side, side, depth, straight, turned),
            product(rows, cols, rows, Strides::rows(side), straight),
        )
    } else {
        (
            product(side, side, depth, turned, straight),
            product(rows, cols, cols, straight, Strides::rows(side)),
        )
    };
    for _ in 0..ROUNDS {
        let small = side * side;
        backend.matmul(
            outer,
            B::view(x, 0..len),
            B::view(x, 0..len),
            B::view_mut(gram, 0..small),
        );
        let gram_view = B::view(gram, 0..small);
        backend.matmul(
            square.scaled(c),
            gram_view,
            gram_view,
            B::view_mut(poly, 0..small),
        );
        backend.axpy(b, gram_view, B::view_mut(poly, 0..small));
        backend.copy(B::view(x, 0..len), B::view_mut(next, 0..len));
        backend.scale(a, B::view_mut(next, 0..len));
        let (x_view, poly_view) = (B::view(x, 0..len), B::view(poly, 0..small));
        let (left, right) = if wide {
            (poly_view, x_view)
        } else {
            (x_view, poly_view)
        };
        backend.matmul(
            update.stored(Store::Add),
            left,
            right,
            B::view_mut(next, 0..len),
        );
        std::mem::swap(x, next);
    }
}
