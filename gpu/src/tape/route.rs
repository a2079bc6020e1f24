//! Recording of rows that a router sends to experts, and what is done with them. Which rows an expert takes is known only when
//! the recording runs; how many are taken in all is known before, so memory is planned as ever.

use std::mem;

use super::run::Run;
use super::{Op, Param, Rows, Tape, Var};
use crate::backend::{Backend, MatMul, RouteShape};
use crate::dispatch::Dispatch;

/// Rows on their way to the experts that a router chooses for them, see [`Tape::route`].
#[derive(Clone, Copy, Debug)]
pub struct Routed {
    pub(super) shape: RouteShape,
    /// Which of the arena's lists.
    pub(super) list: usize,
    pub(super) rows: usize,
    /// Of each taken row.
    pub(super) weights: Var,
}

impl Routed {
    /// Rows that experts take in all: each row once for each of its experts.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.rows * self.shape.top
    }
}

impl<B: Backend> Tape<B> {
    /// Chooses for each row the experts of the `top` largest of its logits, and their weights; see
    /// [`Backend::route`].
    ///
    /// # Panics
    /// If there are not as many logits as `top`, or `top` is zero.
    pub fn route(&mut self, logits: Var, top: usize) -> Routed {
        let (rows, experts) = self.shape(logits);
        assert!(1 <= top && top <= experts, "some of the experts");
        self.read_by(logits);
        let (shape, list) = (RouteShape { experts, top }, self.lists);
        self.lists += 1;
        let by_row = self.var(rows * top, 1);
        self.ops.push(Op::Route {
            x: logits,
            shape,
            list,
            out: by_row,
        });
        let weights = self.select_of(by_row, Rows::Slots(list), rows * top);
        Routed {
            shape,
            list,
            rows,
            weights,
        }
    }

    /// The taken rows of `x`, expert by expert.
    ///
    /// # Panics
    /// If `x` has other rows than were routed.
    pub fn dispatch(&mut self, x: Var, routed: &Routed) -> Var {
        assert_eq!(self.shape(x).0, routed.rows, "the rows that were routed");
        self.select_of(x, Rows::Taken(routed.list), routed.taken())
    }

    /// `x W^T` of taken rows, each by its expert's weight `[outputs, inputs]`.
    ///
    /// # Panics
    /// If there is not one weight of that size an expert, all of one parameter set.
    pub fn experts(&mut self, x: Var, routed: &Routed, weights: Vec<Param>, outputs: usize) -> Var {
        let (rows, inputs) = self.shape(x);
        assert_eq!(rows, routed.taken(), "rows that experts take");
        assert_eq!(weights.len(), routed.shape.experts, "one weight an expert");
        assert!(
            weights
                .iter()
                .all(|w| w.range.len() == outputs * inputs && w.set == weights[0].set),
            "weights of outputs by inputs"
        );
        self.read_by(x);
        let out = self.var(rows, outputs);
        self.ops.push(Op::Experts {
            x,
            weights,
            list: routed.list,
            out,
        });
        out
    }

    /// The residual, where there is one, plus the sum of what a row's experts have made of it, each times its
    /// weight, in the order of the experts.
    ///
    /// # Panics
    /// If `made` are not the taken rows, or the residual is of another shape.
    pub fn collect(&mut self, made: Var, routed: &Routed, residual: Option<Var>) -> Var {
        let (taken, cols) = self.shape(made);
        assert_eq!(taken, routed.taken(), "rows that experts took");
        let shape = residual.map_or((routed.rows, cols), |it| self.shape(it));
        assert_eq!(shape, (routed.rows, cols), "residual shaped as the output");
        let rows = Rows::Taken(routed.list);
        self.combine_of(made, routed.weights, rows, residual, routed.rows)
    }
}

impl<B: Backend> Run<'_, B> {
    pub(super) fn route(&mut self, x: Var, shape: RouteShape, list: usize, out: Var) {
        let lists = &mut self.arena.lists;
        if lists.len() <= list {
            lists.resize_with(list + 1, Dispatch::default);
        }
        let mut dispatch = mem::take(&mut lists[list]);
        let (backend, rows) = (self.backend, self.tape.vars[x.0].rows);
        self.produce([out], |run, [out]| {
            dispatch.route(backend, shape, rows, run.value(x), out);
        });
        self.arena.lists[list] = dispatch;
    }

    pub(super) fn experts(&mut self, x: Var, weights: &[Param], list: usize, out: Var) {
        let backend = self.backend;
        let (inputs, outputs) = (self.tape.vars[x.0].cols, self.tape.vars[out.0].cols);
        let slot = self.values[out.0].expect("an output has a place");
        let mut dst = mem::take(&mut self.arena.slots[slot]);
        for (expert, taken) in self.arena.lists[list].experts() {
            let y = B::view_mut(&mut dst, taken.start * outputs..taken.end * outputs);
            let x = self.value_rows(x, &taken, inputs);
            let call = MatMul::linear(taken.len(), outputs, inputs);
            backend.matmul(call, x, self.param(&weights[expert]), y);
        }
        self.arena.slots[slot] = dst;
    }

    pub(super) fn experts_backward(
        &mut self,
        at: usize,
        x: Var,
        (weights, list): (&[Param], usize),
        out: Var,
        gradients: &mut [Option<B::Buffer>],
    ) {
        let backend = self.backend;
        let (inputs, outputs) = (self.tape.vars[x.0].cols, self.tape.vars[out.0].cols);
        if self.plan.order.later[at].is_none() {
            self.experts_weights(x, weights, list, out, gradients);
        }
        let Some(mut dx) = self.take_grad(x) else {
            return;
        };
        for (expert, taken) in self.arena.lists[list].experts() {
            let own = taken.start * inputs..taken.end * inputs;
            let call = MatMul::linear_dx(taken.len(), outputs, inputs).stored(dx.store);
            let (dy, weight) = (
                self.grad_rows(out, &taken, outputs),
                self.param(&weights[expert]),
            );
            let dst = B::view_mut(&mut dx.buffer, own);
            backend.matmul(call, dy, weight, dst);
        }
        self.put(Some(dx));
    }
}
