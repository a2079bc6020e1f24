//! The backward pass in two: gradients of rows, for which others wait, before the gradients of the weights of products
//! (zero-bubble pipelines, arXiv [2401.10241](https://arxiv.org/abs/2401.10241)).
//!
//! The first keeps what the second reads: the gradient of what each product has made, and the rows that went into it.
//! Sums are the same in the same order, so gradients are those of one pass to the bit. Norms, embeddings and the head
//! have both gradients of one reading of their rows, and add theirs in the first pass.

use std::mem;
use std::ops::Range;

use super::division::Division;
use super::params::{PassParams, SetNeeds};
use super::plan::{Life, Order, Plan};
use super::run::Run;
use super::{Arena, LinearExtras, Op, Param, Tape, Var};
use crate::backend::{Backend, MatMul, Store};

impl<B: Backend> Tape<B> {
    /// Places as of [`plan_training`](Self::plan_training), for a backward pass that is divided like this.
    #[must_use]
    pub fn plan_divided(&self, trainable: &[bool], roots: &[Var], division: Division<'_>) -> Plan {
        let wants = self.wants_gradient(trainable);
        self.plan(trainable, roots, &wants, division)
    }

    /// Computes the gradients of all rows from the seeded roots, and adds to `gradients` those of parameters which are
    /// not the weights of products. The gradients of [learnt inputs](Self::learnt_input) can be read then.
    ///
    /// # Panics
    /// If the plan is not [divided](Self::plan_divided), or a trainable set has no gradient buffer.
    pub fn backward_inputs(
        &self,
        backend: &B,
        arena: &mut Arena<B>,
        plan: &Plan,
        params: &mut dyn PassParams<B>,
        gradients: &mut [Option<B::Buffer>],
    ) {
        assert!(plan.order.is_divided, "a divided plan");
        self.backward_over(backend, arena, plan, params, gradients);
    }

    /// Adds to `gradients` what [`backward_inputs`](Self::backward_inputs) has left: those of the weights of products.
    /// It may come any time later, as long as nothing else is done with the arena.
    ///
    /// # Panics
    /// If the plan is not [divided](Self::plan_divided), or a trainable set has no gradient buffer when it has been
    /// brought.
    pub fn backward_weights(
        &self,
        backend: &B,
        arena: &mut Arena<B>,
        plan: &Plan,
        params: &mut dyn PassParams<B>,
        gradients: &mut [Option<B::Buffer>],
    ) {
        assert!(plan.order.is_divided, "a divided plan");
        let mut run = Run {
            tape: self,
            backend,
            arena,
            plan,
            values: &plan.values_back,
            params,
        };
        let needs = SetNeeds {
            reads: false,
            adds: true,
        };
        for (at, op) in self.ops.iter().enumerate().rev() {
            if plan.order.later[at].is_some() && run.is_reached(op) {
                for set in op.sets().filter(|set| plan.trainable[*set]) {
                    run.params.bring_back(backend, set, needs, gradients);
                }
                run.weights_backward(at, op, gradients);
            }
        }
        run.params.end_back(backend, gradients);
    }

    /// The operations whose weights get their gradient later.
    pub(super) fn late(
        &self,
        reached: &[bool],
        trainable: &[bool],
        division: Division<'_>,
    ) -> Vec<bool> {
        let is_late = |op: &Op<B>| match division {
            Division::Whole => false,
            Division::Resident => op.is_product() && op.sets().any(|set| trainable[set]),
            Division::Sets { later } => {
                let waits = op.is_product() || op.is_norm();
                waits && op.sets().any(|set| trainable[set] && later[set])
            }
        };
        let all = self.ops.iter().zip(reached);
        all.map(|(op, reached)| *reached && is_late(op)).collect()
    }

    /// Keeps what is read later until then.
    pub(super) fn live_until_later(
        &self,
        order: &Order,
        values: (&mut [Option<Life>], &mut [Option<Life>]),
        grads: &mut [Option<Life>],
    ) {
        let (values, again) = values;
        for (op, later) in self.ops.iter().zip(&order.later) {
            let (Some((x, out)), Some(later)) = (op.product_of_rows(), *later) else {
                continue;
            };
            let of = match order.leaves[x.0] {
                true => &mut *again,
                false => &mut *values,
            };
            Life::extend(&mut of[x.0], later);
            Life::extend(&mut grads[out.0], later);
        }
    }

    /// For each operation whose gradient of weights waits apart: their number, and for how long.
    pub(super) fn lives_apart(&self, order: &Order) -> Vec<Option<(usize, Life)>> {
        let of = |(at, op): (usize, &Op<B>)| {
            let (first, last) = order.backward[at].zip(order.later[at])?;
            let len = op.norm_params().map(|it| it.range.len()).sum();
            op.is_norm().then_some((len, Life { first, last }))
        };
        self.ops.iter().enumerate().map(of).collect()
    }
}

impl<B: Backend> Op<B> {
    /// True for products with weights.
    const fn is_product(&self) -> bool {
        matches!(
            self,
            Self::Linear { .. } | Self::Experts { .. } | Self::Spread { .. }
        )
    }

    /// The rows that go into a product and those that come of it, where both are activations.
    pub(super) const fn product_of_rows(&self) -> Option<(Var, Var)> {
        match self {
            Self::Linear { x, out, .. } | Self::Experts { x, out, .. } => Some((*x, *out)),
            _ => None,
        }
    }

    fn is_norm(&self) -> bool {
        self.norm_params().next().is_some()
    }

    /// Parameters of a norm.
    fn norm_params(&self) -> impl Iterator<Item = &Param> {
        let (weight, bias) = match self {
            Self::RmsNorm { weight, .. } | Self::HeadNorm { weight, .. } => (Some(weight), None),
            Self::LayerNorm { weight, bias, .. } => (Some(weight), Some(bias)),
            _ => (None, None),
        };
        weight.into_iter().chain(bias)
    }
}

/// Gradients of a norm that wait apart, taken out of the arena.
pub(super) struct Apart<B: Backend> {
    slot: usize,
    buffer: B::Buffer,
}

impl<B: Backend> Apart<B> {
    pub(super) fn part(&mut self, part: Range<usize>) -> B::ViewMut<'_> {
        B::view_mut(&mut self.buffer, part)
    }
}

impl<B: Backend> Run<'_, B> {
    /// The needs of an operation of a backward pass in its sets, before the gradients that come later.
    pub(super) fn needs(&self, at: usize, set: usize) -> SetNeeds {
        SetNeeds {
            reads: true,
            adds: self.plan.trainable[set] && self.plan.order.later[at].is_none(),
        }
    }

    /// The place of a norm's gradients, all zero, where these wait apart.
    pub(super) fn take_apart(&mut self, at: usize) -> Option<Apart<B>> {
        let (slot, len) = self.plan.apart[at]?;
        let mut buffer = mem::take(&mut self.arena.slots[slot]);
        self.backend.fill(B::view_mut(&mut buffer, 0..len), 0.0);
        Some(Apart { slot, buffer })
    }

    /// Where the gradient of a norm's weight is added.
    pub(super) fn norm_grad<'g>(
        &self,
        apart: &'g mut Option<Apart<B>>,
        gradients: &'g mut [Option<B::Buffer>],
        weight: &Param,
    ) -> Option<B::ViewMut<'g>> {
        match apart {
            Some(apart) => Some(apart.part(0..weight.range.len())),
            None => self.param_grad(gradients, weight),
        }
    }

    pub(super) fn put_apart(&mut self, apart: Option<Apart<B>>) {
        if let Some(Apart { slot, buffer }) = apart {
            self.arena.slots[slot] = buffer;
        }
    }

    /// Adds the gradients of an operation's weights that were left.
    fn weights_backward(&mut self, at: usize, op: &Op<B>, gradients: &mut [Option<B::Buffer>]) {
        match op {
            Op::Linear {
                x,
                weight,
                extras,
                out,
            } => self.linear_weights(*x, weight, extras, *out, gradients),
            Op::Experts {
                x,
                weights,
                list,
                out,
            } => self.experts_weights(*x, weights, *list, *out, gradients),
            Op::Spread { experts, list, .. } => self.spread_weights(experts, *list, gradients),
            _ => {
                let Some((slot, _)) = self.plan.apart[at] else {
                    return;
                };
                let mut begin = 0;
                for param in op.norm_params() {
                    let kept = begin..begin + param.range.len();
                    begin = kept.end;
                    if let Some(sum) = self.param_grad(gradients, param) {
                        let kept = B::view(&self.arena.slots[slot], kept);
                        self.backend.axpy(1.0, kept, sum);
                    }
                }
            }
        }
    }

    /// Adds the gradients of a product's weight and bias.
    pub(super) fn linear_weights(
        &self,
        x: Var,
        weight: &Param,
        extras: &LinearExtras,
        out: Var,
        gradients: &mut [Option<B::Buffer>],
    ) {
        let backend = self.backend;
        let (rows, inputs) = self.tape.shape(x);
        let outputs = self.tape.shape(out).1;
        if let Some(dw) = self.param_grad(gradients, weight) {
            let call = MatMul::linear_dw(rows, outputs, inputs).scaled(extras.scale);
            backend.matmul(call.stored(Store::Add), self.grad(out), self.value(x), dw);
        }
        if let Some(bias) = &extras.bias
            && let Some(db) = self.param_grad(gradients, bias)
        {
            backend.sum_rows(self.grad(out), db);
        }
    }

    /// The same of experts.
    pub(super) fn experts_weights(
        &self,
        x: Var,
        weights: &[Param],
        list: usize,
        out: Var,
        gradients: &mut [Option<B::Buffer>],
    ) {
        let (inputs, outputs) = (self.tape.shape(x).1, self.tape.shape(out).1);
        for (expert, taken) in self.arena.lists[list].experts() {
            if let Some(dw) = self.param_grad(gradients, &weights[expert]) {
                let call = MatMul::linear_dw(taken.len(), outputs, inputs).stored(Store::Add);
                let (dy, x) = (
                    self.grad_rows(out, &taken, outputs),
                    self.value_rows(x, &taken, inputs),
                );
                self.backend.matmul(call, dy, x, dw);
            }
        }
    }
}
