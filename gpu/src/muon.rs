//! Muon: momentum made orthogonal, for the matrices of hidden layers.
//!
//! Composed of the operations of [`Backend`], so every device has it.

use std::ops::Range;

use crate::backend::{Backend, MatMul, Store, Strides};

/// One step of Muon (Jordan et al. 2024) in the form of Liu et al. 2025 (Muon is Scalable for LLM
/// Training): Nesterov momentum, and an update scaled to the size that AdamW's has, so that both
/// share a learning rate and a weight decay.
///
/// ```text
/// M <- momentum M + G
/// O  = orthogonal(G + momentum M)
/// W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(rows, cols)) O
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Muon {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the momentum.
    pub momentum: f32,
    /// Factor on the gradients, for clipping and averaging.
    pub grad_scale: f32,
}

/// A row-major matrix inside the flat buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Elements of the flat buffer.
    pub range: Range<usize>,
    /// Columns; the rows follow from the range.
    pub cols: usize,
    /// Decoupled weight decay.
    pub weight_decay: f32,
}

/// Memory that a step needs beside the flat buffers, kept from step to step.
#[derive(Debug)]
pub struct MuonScratch<B: Backend> {
    /// The matrix on its way to an orthogonal one, and its next iterate.
    iterate: [B::Buffer; 2],
    /// The Gram matrix of the short side, and the polynomial of it.
    gram: [B::Buffer; 2],
}

impl<B: Backend> MuonScratch<B> {
    /// Room for any of the matrices.
    #[must_use]
    pub fn new(backend: &B, matrices: &[Matrix]) -> Self {
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

impl Muon {
    /// One step over the named matrices of the flat buffers; the rest stays untouched.
    pub fn step<B: Backend>(
        self,
        backend: &B,
        matrices: &[Matrix],
        params: &mut B::Buffer,
        grads: &B::Buffer,
        momenta: &mut B::Buffer,
        scratch: &mut MuonScratch<B>,
    ) {
        for matrix in matrices {
            let at = || matrix.range.clone();
            let len = matrix.range.len();
            backend.scale(self.momentum, B::view_mut(momenta, at()));
            backend.axpy(
                self.grad_scale,
                B::view(grads, at()),
                B::view_mut(momenta, at()),
            );
            let [x, _] = &mut scratch.iterate;
            backend.copy(B::view(grads, at()), B::view_mut(x, 0..len));
            backend.scale(self.grad_scale, B::view_mut(x, 0..len));
            backend.axpy(
                self.momentum,
                B::view(momenta, at()),
                B::view_mut(x, 0..len),
            );
            orthogonalise(backend, len / matrix.cols, matrix.cols, scratch);
            let largest = matrix.cols.max(len / matrix.cols);
            let size = 0.2 * (largest as f32).sqrt();
            backend.scale(
                1.0 - self.lr * matrix.weight_decay,
                B::view_mut(params, at()),
            );
            let update = B::view(&scratch.iterate[0], 0..len);
            backend.axpy(-self.lr * size, update, B::view_mut(params, at()));
        }
    }
}

/// Coefficients of Jordan's quintic, which brings every singular value near one in five rounds.
pub(crate) const QUINTIC: [f32; 3] = [3.4445, -4.7750, 2.0315];
pub(crate) const ROUNDS: usize = 5;

/// Newton-Schulz on the first iterate, `X <- a X + (b A + c A^2) X` with `A = X X^T`, the products
/// taken on the short side.
fn orthogonalise<B: Backend>(backend: &B, rows: usize, cols: usize, scratch: &mut MuonScratch<B>) {
    let len = rows * cols;
    let [a, b, c] = QUINTIC;
    let MuonScratch {
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
