//! The forward and the backward pass of a recording.

use std::mem;
use std::ops::Range;

use super::params::{PassParams, Resident, SetNeeds};
use super::{Arena, CustomOp, LinearExtras, Op, Param, Plan, Tape, Var, VocabVars};
use crate::backend::{Addends, Backend, MatMul, Store, VocabGrad, VocabStats};

impl<B: Backend> Tape<B> {
    /// Writes an input.
    pub fn write(&self, backend: &B, arena: &mut Arena<B>, plan: &Plan, v: Var, values: &[f32]) {
        let slot = plan.values[v.0].expect("the input is read by an operation");
        backend.write(B::view_mut(&mut arena.slots[slot], 0..self.len(v)), values);
    }

    /// Reads an activation that the plan keeps.
    #[must_use]
    pub fn read(&self, backend: &B, arena: &Arena<B>, plan: &Plan, v: Var) -> Vec<f32> {
        let mut values = vec![0.0; self.len(v)];
        let slot = plan.values[v.0].expect("the activation is kept by the plan");
        backend.read(B::view(&arena.slots[slot], 0..self.len(v)), &mut values);
        values
    }

    /// Reads the gradient of a [learnt input](Tape::learnt_input); zeros where none came to it.
    #[must_use]
    pub fn read_gradient(&self, backend: &B, arena: &Arena<B>, plan: &Plan, v: Var) -> Vec<f32> {
        let mut values = vec![0.0; self.len(v)];
        if let Some(slot) = plan.grads[v.0].filter(|_| arena.live[v.0]) {
            backend.read(B::view(&arena.slots[slot], 0..self.len(v)), &mut values);
        }
        values
    }

    /// Gives the loss gradient of a root. An unseeded root counts as zero.
    pub fn seed(&self, backend: &B, arena: &mut Arena<B>, plan: &Plan, v: Var, values: &[f32]) {
        // A root that no trainable parameter influences has no gradient to give.
        if let Some(slot) = plan.grads[v.0] {
            backend.write(B::view_mut(&mut arena.slots[slot], 0..self.len(v)), values);
            arena.live[v.0] = true;
        }
    }

    /// Computes all activations.
    ///
    /// # Panics
    /// If the arena was not prepared for the plan, or `params` lacks a set.
    pub fn forward(&self, backend: &B, arena: &mut Arena<B>, plan: &Plan, params: &[&B::Buffer]) {
        self.forward_over(backend, arena, plan, &mut Resident(params));
    }

    /// The same over parameter sets that come when they are read.
    ///
    /// # Panics
    /// If the arena was not prepared for the plan, or `params` lacks a set.
    pub fn forward_over(
        &self,
        backend: &B,
        arena: &mut Arena<B>,
        plan: &Plan,
        params: &mut dyn PassParams<B>,
    ) {
        let mut run = Run {
            tape: self,
            backend,
            arena,
            plan,
            values: &plan.values,
            params,
        };
        let mut sets = self.ops.iter().flat_map(Op::sets);
        run.params.announce(&mut sets);
        for (i, op) in self.ops.iter().enumerate() {
            op.sets().for_each(|set| run.params.bring(backend, set));
            run.forward(op);
            run.leave(i);
        }
        run.params.end(backend);
    }

    /// Adds the gradient of every trainable parameter to `gradients`, one buffer a parameter set,
    /// from the seeded roots.
    ///
    /// # Panics
    /// If a trainable set has no gradient buffer.
    pub fn backward(
        &self,
        backend: &B,
        arena: &mut Arena<B>,
        plan: &Plan,
        params: &[&B::Buffer],
        gradients: &mut [Option<B::Buffer>],
    ) {
        self.backward_over(backend, arena, plan, &mut Resident(params), gradients);
    }

    /// The same over parameter sets that come when they are read, and whose gradients go when they are complete.
    ///
    /// # Panics
    /// If a trainable set has no gradient buffer when it has been brought.
    pub fn backward_over(
        &self,
        backend: &B,
        arena: &mut Arena<B>,
        plan: &Plan,
        params: &mut dyn PassParams<B>,
        gradients: &mut [Option<B::Buffer>],
    ) {
        let mut run = Run {
            tape: self,
            backend,
            arena,
            plan,
            values: &plan.values_back,
            params,
        };
        let mut sets = self.ops.iter().rev().flat_map(Op::sets);
        run.params.announce(&mut sets);
        for (i, op) in self.ops.iter().enumerate().rev() {
            run.come(i);
            run.recompute(self.run_until(i), gradients);
            if run.is_reached(op) {
                for set in op.sets() {
                    let needs = run.needs(i, set);
                    run.params.bring_back(backend, set, needs, gradients);
                }
                run.backward(i, op, gradients);
            }
        }
        run.params.end_back(backend, gradients);
    }
}

pub(super) struct Run<'a, B: Backend> {
    pub(super) tape: &'a Tape<B>,
    pub(super) backend: &'a B,
    pub(super) arena: &'a mut Arena<B>,
    pub(super) plan: &'a Plan,
    /// Where values are in this pass.
    pub(super) values: &'a [Option<usize>],
    pub(super) params: &'a mut dyn PassParams<B>,
}

/// A gradient taken out of the arena to be written.
pub(super) struct Taken<B: Backend> {
    pub(super) slot: usize,
    pub(super) len: usize,
    pub(super) buffer: B::Buffer,
    pub(super) store: Store,
}

impl<B: Backend> Taken<B> {
    pub(super) fn dst(&mut self) -> (B::ViewMut<'_>, Store) {
        (B::view_mut(&mut self.buffer, 0..self.len), self.store)
    }
}

/// Where the gradient of rows goes, which nobody may want.
pub(super) enum RowsGrad<B: Backend> {
    Wanted(Taken<B>),
    Spare(B::Buffer, usize),
}

impl<B: Backend> RowsGrad<B> {
    pub(super) fn dst(&mut self) -> (B::ViewMut<'_>, Store) {
        match self {
            Self::Wanted(taken) => taken.dst(),
            Self::Spare(buffer, len) => (B::view_mut(buffer, 0..*len), Store::Set),
        }
    }
}

impl<B: Backend> Run<'_, B> {
    /// Computes again what the way back reads of a run of operations, if it comes to any of them.
    fn recompute(&mut self, run: Range<usize>, gradients: &mut [Option<B::Buffer>]) {
        let ops = &self.tape.ops[run.clone()];
        if !ops.iter().any(|op| self.is_reached(op)) {
            return;
        }
        for (op, again) in ops.iter().zip(&self.plan.order.again[run]) {
            if again.is_some() {
                let needs = SetNeeds {
                    reads: true,
                    adds: false,
                };
                for set in op.sets() {
                    self.params.bring_back(self.backend, set, needs, gradients);
                }
                self.forward(op);
            }
        }
    }

    fn forward(&mut self, op: &Op<B>) {
        let backend = self.backend;
        match op {
            Op::Embed {
                table,
                rows,
                residual,
                out,
            } => {
                let cols = self.tape.vars[out.0].cols;
                self.produce([*out], |run, [out]| {
                    backend.gather(cols, rows, run.param(table), out);
                });
                if let Some(residual) = residual {
                    self.produce([*out], |run, [out]| {
                        backend.axpy(1.0, run.value(*residual), out);
                    });
                }
            }
            Op::Select { x, rows, out } => {
                let cols = self.tape.vars[out.0].cols;
                self.produce([*out], |run, [out]| {
                    backend.gather(cols, run.rows(rows), run.value(*x), out);
                });
            }
            Op::Combine {
                x,
                weights,
                rows,
                residual,
                out,
            } => {
                let len = self.tape.len(*out);
                let cols = self.tape.vars[out.0].cols;
                let slot = self.values[out.0].expect("an output has a place");
                let mut dst = mem::take(&mut self.arena.slots[slot]);
                let begun = B::view_mut(&mut dst, 0..len);
                match residual {
                    Some(residual) => backend.copy(self.value(*residual), begun),
                    None => backend.fill(begun, 0.0),
                }
                let (view, rows) = (B::view_mut(&mut dst, 0..len), self.rows(rows));
                backend.combine(cols, rows, self.value(*weights), self.value(*x), view);
                self.arena.slots[slot] = dst;
            }
            Op::Route {
                x,
                shape,
                list,
                out,
            } => self.route(*x, *shape, *list, *out),
            Op::Experts {
                x,
                weights,
                list,
                out,
            } => self.experts(*x, weights, *list, *out),
            Op::Linear {
                x,
                weight,
                extras,
                out,
            } => self.linear(*x, weight, extras, *out),
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
                inv_rms,
            } => {
                self.produce([*out, *inv_rms], |run, [out, inv_rms]| {
                    backend.rms_norm(*eps, run.value(*x), run.param(weight), out, inv_rms);
                });
            }
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
                moments,
            } => {
                self.produce([*out, *moments], |run, [out, moments]| {
                    let (weight, bias) = (run.param(weight), run.param(bias));
                    backend.layer_norm(*eps, run.value(*x), weight, bias, out, moments);
                });
            }
            Op::HeadNorm {
                x,
                weight,
                shape,
                out,
                inv_rms,
            } => {
                self.produce([*out, *inv_rms], |run, [out, inv_rms]| {
                    let weight = run.param(weight);
                    backend.head_norm(*shape, run.value(*x), weight, out, inv_rms);
                });
            }
            Op::Rope {
                x,
                shape,
                positions,
            } => {
                self.produce([*x], |_, [x]| backend.rope(shape, positions, x));
            }
            Op::Attention {
                qkv,
                shape,
                spans,
                out,
                lse,
            } => {
                self.produce([*out, *lse], |run, [out, lse]| {
                    backend.attention(*shape, spans, run.value(*qkv), out, lse);
                });
            }
            Op::SwiGlu { x, out } => {
                let cols = self.tape.vars[out.0].cols;
                self.produce([*out], |run, [out]| {
                    backend.swiglu(cols, run.value(*x), out);
                });
            }
            Op::Gelu { x, out } => {
                self.produce([*out], |run, [out]| backend.gelu(run.value(*x), out));
            }
            Op::Dropout {
                x,
                residual,
                mask,
                out,
            } => self.dropout(*x, *residual, mask, *out),
            Op::Vocab {
                x,
                head,
                scale,
                labels,
                out: VocabVars { logprob, entropy },
                lse,
                ranks,
            } => {
                self.produce(
                    [*logprob, *entropy, *lse],
                    |run, [logprob, entropy, logsumexp]| {
                        let out = VocabStats {
                            logprob,
                            entropy,
                            logsumexp,
                        };
                        backend.vocab(*scale, run.value(*x), run.param(head), labels, out);
                    },
                );
                if let Some(ranks) = ranks {
                    let entries = head.range.len() / self.tape.vars[x.0].cols;
                    self.vocab_of_all([*logprob, *entropy, *lse], labels, entries, &**ranks);
                }
            }
            Op::ScatterSum {
                x,
                residual,
                ranks,
                out,
            } => self.scatter_sum(*x, *residual, &**ranks, *out),
            Op::GatherRows { x, ranks, out } => self.gather_rows(*x, &**ranks, *out),
            Op::Exchange {
                x,
                moves,
                ranks,
                out,
            } => self.exchange(*x, moves, &**ranks, *out),
            Op::Ring {
                qkv,
                ring,
                out,
                lse,
            } => self.ring(*qkv, ring, [*out, *lse]),
            Op::Spread {
                x,
                experts,
                list,
                ranks,
                out,
            } => self.spread(*x, experts, *list, &**ranks, *out),
            Op::Custom { op, inputs, out } => {
                self.produce([*out], |run, [out]| {
                    let inputs: Vec<_> = inputs.iter().map(|&x| run.value(x)).collect();
                    op.forward(backend, &inputs, out);
                });
            }
        }
    }

    fn linear(&mut self, x: Var, weight: &Param, extras: &LinearExtras, out: Var) {
        let backend = self.backend;
        let (rows, inputs) = self.tape.shape(x);
        let outputs = self.tape.vars[out.0].cols;
        let slot = self.values[out.0].expect("an output has a place");
        let mut dst = mem::take(&mut self.arena.slots[slot]);
        let call = MatMul::linear(rows, outputs, inputs).scaled(extras.scale);
        let add = Addends {
            bias: extras.bias.as_ref().map(|bias| self.param(bias)),
            residual: extras.residual.map(|residual| self.value(residual)),
        };
        backend.linear(call, self.value(x), self.param(weight), add, &mut dst);
        self.arena.slots[slot] = dst;
    }

    /// True where the gradient of what an operation has made is there.
    pub(super) fn is_reached(&self, op: &Op<B>) -> bool {
        op.made().any(|v| self.arena.live[v.0])
    }

    fn backward(&mut self, at: usize, op: &Op<B>, gradients: &mut [Option<B::Buffer>]) {
        let backend = self.backend;
        // It changes rows in place, and so the gradient of these.
        if let Op::Rope {
            x,
            shape,
            positions,
        } = op
        {
            let mut dx = self.take_grad(*x).expect("a live gradient has a place");
            backend.rope_backward(shape, positions, dx.dst().0);
            self.put(Some(dx));
            return;
        }
        match op {
            Op::Embed {
                table,
                rows,
                residual,
                out,
            } => {
                if let Some(dtable) = self.param_grad(gradients, table) {
                    let cols = self.tape.vars[out.0].cols;
                    backend.scatter_add(cols, rows, self.grad(*out), dtable);
                }
                self.residual_backward(*residual, *out);
            }
            Op::Select { x, rows, out } => {
                if let Some(mut dx) = self.take_grad(*x) {
                    if dx.store == Store::Set {
                        backend.fill(dx.dst().0, 0.0);
                    }
                    let cols = self.tape.vars[x.0].cols;
                    backend.scatter_add(cols, self.rows(rows), self.grad(*out), dx.dst().0);
                    self.put(Some(dx));
                }
            }
            Op::Combine {
                x,
                weights,
                rows,
                residual,
                out,
            } => {
                let (mut dx, mut dweights) = (self.take_grad(*x), self.take_grad(*weights));
                backend.combine_backward(
                    self.tape.vars[out.0].cols,
                    self.rows(rows),
                    self.value(*weights),
                    self.value(*x),
                    self.grad(*out),
                    dx.as_mut().map(Taken::dst),
                    dweights.as_mut().map(Taken::dst),
                );
                self.put(dx);
                self.put(dweights);
                self.residual_backward(*residual, *out);
            }
            Op::Route {
                x,
                shape,
                list,
                out,
            } => {
                if let Some(mut dx) = self.take_grad(*x) {
                    let chosen = self.arena.lists[*list].chosen();
                    let (weights, dweights) = (self.value(*out), self.grad(*out));
                    backend.route_backward(*shape, chosen, weights, dweights, dx.dst());
                    self.put(Some(dx));
                }
            }
            Op::Experts {
                x,
                weights,
                list,
                out,
            } => self.experts_backward(at, *x, (weights, *list), *out, gradients),
            Op::Linear {
                x,
                weight,
                extras,
                out,
            } => {
                if self.plan.order.later[at].is_none() {
                    self.linear_weights(*x, weight, extras, *out, gradients);
                }
                self.linear_backward(*x, weight, extras, *out);
            }
            Op::RmsNorm {
                x,
                weight,
                out,
                inv_rms,
                ..
            } => {
                let (mut dx, mut apart) = (self.rows_grad(*x), self.take_apart(at));
                let (x, inv_rms) = (self.value(*x), self.value(*inv_rms));
                let dweight = self.norm_grad(&mut apart, gradients, weight);
                let (weight, dy) = (self.param(weight), self.grad(*out));
                backend.rms_norm_backward(x, weight, inv_rms, dy, dx.dst(), dweight);
                self.put_rows(dx);
                self.put_apart(apart);
            }
            Op::LayerNorm {
                x,
                weight,
                bias,
                out,
                moments,
                ..
            } => {
                let (mut dx, mut apart) = (self.rows_grad(*x), self.take_apart(at));
                let cols = weight.range.len();
                let dbias = apart.as_mut().map(|it| it.part(cols..2 * cols));
                if let Some(dbias) = dbias.or_else(|| self.param_grad(gradients, bias)) {
                    backend.sum_rows(self.grad(*out), dbias);
                }
                let (x, moments) = (self.value(*x), self.value(*moments));
                let dweight = self.norm_grad(&mut apart, gradients, weight);
                let (weight, dy) = (self.param(weight), self.grad(*out));
                backend.layer_norm_backward(x, weight, moments, dy, dx.dst(), dweight);
                self.put_rows(dx);
                self.put_apart(apart);
            }
            Op::HeadNorm {
                x,
                weight,
                shape,
                out,
                inv_rms,
            } => {
                let (mut dx, mut apart) = (self.rows_grad(*x), self.take_apart(at));
                let passed = (self.value(*x), self.value(*inv_rms));
                let dweight = self.norm_grad(&mut apart, gradients, weight);
                let (weight, dy) = (self.param(weight), self.grad(*out));
                backend.head_norm_backward(*shape, passed, weight, dy, dx.dst().0, dweight);
                self.put_rows(dx);
                self.put_apart(apart);
            }
            Op::Attention {
                qkv,
                shape,
                spans,
                out,
                lse,
            } => {
                if let Some(mut dqkv) = self.take_grad(*qkv) {
                    backend.attention_backward(
                        *shape,
                        spans,
                        self.value(*qkv),
                        self.value(*out),
                        self.value(*lse),
                        self.grad(*out),
                        dqkv.dst().0,
                    );
                    self.put(Some(dqkv));
                }
            }
            Op::SwiGlu { x, out } => {
                if let Some(mut dx) = self.take_grad(*x) {
                    let cols = self.tape.vars[out.0].cols;
                    backend.swiglu_backward(cols, self.value(*x), self.grad(*out), dx.dst().0);
                    self.put(Some(dx));
                }
            }
            Op::Gelu { x, out } => {
                if let Some(mut dx) = self.take_grad(*x) {
                    backend.gelu_backward(self.value(*x), self.grad(*out), dx.dst().0);
                    self.put(Some(dx));
                }
            }
            Op::Dropout {
                x,
                residual,
                mask,
                out,
            } => self.dropout_backward(*x, *residual, mask, *out),
            Op::Vocab {
                x,
                head,
                scale,
                labels,
                out,
                lse,
                ..
            } => {
                let mut dx = self.take_grad(*x);
                let saved = VocabStats {
                    logprob: self.value(out.logprob),
                    entropy: self.value(out.entropy),
                    logsumexp: self.value(*lse),
                };
                let grad = VocabGrad {
                    logprob: self.arena.live[out.logprob.0].then(|| self.grad(out.logprob)),
                    entropy: self.arena.live[out.entropy.0].then(|| self.grad(out.entropy)),
                    dx: dx.as_mut().map(Taken::dst),
                    dw: self.param_grad(gradients, head),
                };
                let (x, head) = (self.value(*x), self.param(head));
                backend.vocab_backward(*scale, x, head, labels, saved, grad);
                self.put(dx);
            }
            Op::Exchange {
                x,
                moves,
                ranks,
                out,
            } => self.exchange_backward(*x, moves, &**ranks, *out),
            Op::Ring {
                qkv,
                ring,
                out,
                lse,
            } => self.ring_backward(*qkv, ring, [*out, *lse]),
            Op::Spread {
                x,
                experts,
                list,
                ranks,
                out,
            } => self.spread_backward(at, *x, (experts, *list), &**ranks, (*out, gradients)),
            Op::Custom { op, inputs, out } => self.custom_backward(op.as_ref(), inputs, *out),
            Op::ScatterSum {
                x,
                residual,
                ranks,
                out,
            } => self.scatter_sum_backward(*x, *residual, &**ranks, *out),
            Op::GatherRows { x, ranks, out } => self.gather_rows_backward(*x, &**ranks, *out),
            Op::Rope { .. } => unreachable!("handled above"),
        }
    }

    fn linear_backward(&mut self, x: Var, weight: &Param, extras: &LinearExtras, out: Var) {
        let backend = self.backend;
        let (rows, inputs) = self.tape.shape(x);
        let outputs = self.tape.vars[out.0].cols;
        if let Some(mut dx) = self.take_grad(x) {
            let store = dx.store;
            let call = MatMul::linear_dx(rows, outputs, inputs)
                .scaled(extras.scale)
                .stored(store);
            backend.matmul(call, self.grad(out), self.param(weight), dx.dst().0);
            self.put(Some(dx));
        }
        self.residual_backward(extras.residual, out);
    }

    /// The gradient of a sum is that of its residual, too.
    pub(super) fn residual_backward(&mut self, residual: Option<Var>, out: Var) {
        let backend = self.backend;
        let Some(residual) = residual else {
            return;
        };
        if self.plan.grads[residual.0] == self.plan.grads[out.0] {
            self.arena.live[residual.0] = true;
        } else if let Some(mut dr) = self.take_grad(residual) {
            match dr.dst() {
                (dst, Store::Set) => backend.copy(self.grad(out), dst),
                (dst, Store::Add) => backend.axpy(1.0, self.grad(out), dst),
            }
            self.put(Some(dr));
        }
    }

    fn custom_backward(&mut self, op: &dyn CustomOp<B>, inputs: &[Var], out: Var) {
        let mut taken: Vec<_> = inputs.iter().map(|&x| self.take_grad(x)).collect();
        let values: Vec<_> = inputs.iter().map(|&x| self.value(x)).collect();
        let grads = taken
            .iter_mut()
            .map(|t| t.as_mut().map(Taken::dst))
            .collect();
        op.backward(
            self.backend,
            &values,
            self.value(out),
            self.grad(out),
            grads,
        );
        drop(values);
        taken.into_iter().for_each(|t| self.put(t));
    }
}
