//! Recording of numbers that are dropped.

use super::run::Run;
use super::{Op, Tape, Var};
use crate::backend::{Backend, Store};
use crate::dropout::DropoutMask;

impl<B: Backend> Tape<B> {
    /// The numbers of `x` that a mask keeps, see [`Backend::dropout`], and the residual, which is whole.
    ///
    /// # Panics
    /// If the mask has not one place a row, or the residual is of another shape, or `x` itself.
    pub fn dropout(&mut self, x: Var, residual: Option<Var>, mask: DropoutMask) -> Var {
        let (rows, cols) = self.shape(x);
        assert_eq!(mask.cols(rows * cols), cols, "one place a row");
        self.read_by(x);
        if let Some(residual) = residual {
            let fits = residual != x && self.shape(residual) == (rows, cols);
            assert!(fits, "residual shaped as the output");
            self.read_by(residual);
        }
        let out = self.var(rows, cols);
        self.ops.push(Op::Dropout {
            x,
            residual,
            mask,
            out,
        });
        out
    }
}

impl<B: Backend> Run<'_, B> {
    pub(super) fn dropout(&mut self, x: Var, residual: Option<Var>, mask: &DropoutMask, out: Var) {
        let backend = self.backend;
        if let Some(residual) = residual {
            self.produce([out], |run, [out]| backend.copy(run.value(residual), out));
        }
        let store = match residual {
            Some(_) => Store::Add,
            None => Store::Set,
        };
        self.produce([out], |run, [out]| {
            backend.dropout(mask, run.value(x), (out, store));
        });
    }

    pub(super) fn dropout_backward(
        &mut self,
        x: Var,
        residual: Option<Var>,
        mask: &DropoutMask,
        out: Var,
    ) {
        if let Some(mut dx) = self.take_grad(x) {
            self.backend.dropout(mask, self.grad(out), dx.dst());
            self.put(Some(dx));
        }
        self.residual_backward(residual, out);
    }
}
