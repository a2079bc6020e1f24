//! Gives activations and gradients places in memory before anything runs.

use super::ring::Travelling;
use super::spread::Arrived;
use super::{Op, Tape, Var};
use crate::backend::Backend;
use crate::dispatch::Dispatch;

/// Where every value and gradient of a recording lies, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) values: Vec<Option<usize>>,
    pub(super) grads: Vec<Option<usize>>,
    pub(super) trainable: Vec<bool>,
    slots: Vec<usize>,
}

impl Plan {
    /// Bytes of activations and gradients that the step needs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        4 * self.slots.iter().sum::<usize>()
    }
}

/// Memory of activations and gradients, kept from step to step.
#[derive(Debug)]
pub struct Arena<B: Backend> {
    pub(super) slots: Vec<B::Buffer>,
    pub(super) live: Vec<bool>,
    /// What routers have chosen, of the pass that runs.
    pub(super) lists: Vec<Dispatch>,
    /// Rows that have come from other ranks to experts, by the number of the list that sent them.
    pub(super) arrived: Vec<Arrived<B>>,
    /// What goes around a ring, of the operation that runs.
    pub(super) travelling: Travelling<B>,
}

impl<B: Backend> Default for Arena<B> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            live: Vec::new(),
            lists: Vec::new(),
            arrived: Vec::new(),
            travelling: Travelling::default(),
        }
    }
}

impl<B: Backend> Arena<B> {
    /// Makes room for a plan. A plan of a shape that has run allocates nothing.
    pub fn prepare(&mut self, backend: &B, plan: &Plan) {
        if self.slots.len() < plan.slots.len() {
            self.slots.resize_with(plan.slots.len(), B::Buffer::default);
        }
        for (slot, &len) in self.slots.iter_mut().zip(&plan.slots) {
            if B::len(slot) < len {
                *slot = B::Buffer::default();
                *slot = backend.alloc(len);
            }
        }
        self.live.clear();
        self.live.resize(plan.grads.len(), false);
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        4 * self.slots.iter().map(B::len).sum::<usize>()
    }
}

impl<B: Backend> Tape<B> {
    /// Places for a forward and a backward pass. `trainable` says which parameter sets get
    /// gradients; `roots` are the activations whose gradient the caller will
    /// [`seed`](Tape::seed) and whose values may be read afterwards.
    #[must_use]
    pub fn plan_training(&self, trainable: &[bool], roots: &[Var]) -> Plan {
        let wants = self.wants_gradient(trainable);
        self.plan(trainable, roots, &wants)
    }

    /// Places for a forward pass alone, after which the values of `keep` may be read.
    #[must_use]
    pub fn plan_inference(&self, keep: &[Var]) -> Plan {
        self.plan(&[], keep, &vec![false; self.vars.len()])
    }

    /// For each activation, true when a trainable parameter or a learnt input stands upstream of it.
    fn wants_gradient(&self, trainable: &[bool]) -> Vec<bool> {
        let mut wants = vec![false; self.vars.len()];
        self.learnt.iter().for_each(|v| wants[v.0] = true);
        for op in &self.ops {
            let want =
                op.sets().any(|set| trainable[set]) || op.inputs().iter().any(|v| wants[v.0]);
            op.outputs().iter().for_each(|v| wants[v.0] = want);
        }
        wants
    }

    fn plan(&self, trainable: &[bool], keep: &[Var], wants: &[bool]) -> Plan {
        let ops = self.ops.len();
        let backward_time = |i: usize| 2 * ops - i;
        // Values: written at `first`, not read after `last`.
        let mut values = vec![None::<Life>; self.vars.len()];
        let mut grads = vec![None::<Life>; self.vars.len()];
        let mut written = vec![false; self.vars.len()];
        for (i, op) in self.ops.iter().enumerate() {
            for v in op.outputs().into_iter().chain(op.saved()) {
                written[v.0] = true;
                Life::extend(&mut values[v.0], i);
            }
            for v in op.inputs() {
                if !written[v.0] {
                    Life::extend(&mut values[v.0], 0);
                }
                Life::extend(&mut values[v.0], i);
            }
        }
        for v in keep {
            Life::extend(&mut values[v.0], 2 * ops + 1);
            if wants[v.0] {
                Life::extend(&mut grads[v.0], ops);
            }
        }
        // Which operations a gradient reaches, from the last to the first.
        for (i, op) in self.ops.iter().enumerate().rev() {
            let t = backward_time(i);
            let reached = op.outputs().iter().any(|v| grads[v.0].is_some())
                || matches!(op, Op::Rope { x, .. } if grads[x.0].is_some());
            if !reached {
                continue;
            }
            for v in op.outputs() {
                if grads[v.0].is_some() {
                    Life::extend(&mut grads[v.0], t);
                }
            }
            for v in op.inputs() {
                if wants[v.0] {
                    Life::extend(&mut grads[v.0], t);
                }
            }
            for v in op.backward_reads() {
                Life::extend(&mut values[v.0], t);
            }
        }
        // Read behind the pass.
        for v in &self.learnt {
            if grads[v.0].is_some() {
                Life::extend(&mut grads[v.0], 2 * ops + 1);
            }
        }
        let shares = self.residual_shares(&grads);
        let mut slots = Slots::default();
        let mut plan = Plan {
            values: vec![None; self.vars.len()],
            grads: vec![None; self.vars.len()],
            trainable: trainable.to_vec(),
            slots: Vec::new(),
        };
        let mut starts = vec![Vec::new(); 2 * ops + 2];
        let mut ends = vec![Vec::new(); 2 * ops + 2];
        for (v, life) in values.iter().enumerate() {
            if let Some(life) = life {
                starts[life.first].push((v, false));
                ends[life.last].push((v, false));
            }
        }
        for (v, life) in grads.iter().enumerate() {
            if let Some(life) = life {
                starts[life.first].push((v, true));
                ends[life.last].push((v, true));
            }
        }
        let mut inherited = vec![false; self.vars.len()];
        for t in 0..starts.len() {
            for &(v, grad) in &starts[t] {
                let slot = match shares[v] {
                    Some(from) if grad => {
                        inherited[from] = true;
                        plan.grads[from]
                    }
                    _ => Some(slots.take(self.len(Var(v)))),
                };
                if grad {
                    plan.grads[v] = slot;
                } else {
                    plan.values[v] = slot;
                }
            }
            for &(v, grad) in &ends[t] {
                let slot = if grad { plan.grads[v] } else { plan.values[v] };
                if let Some(slot) = slot
                    && !(grad && inherited[v])
                {
                    slots.free.push(slot);
                }
            }
        }
        plan.slots = slots.lens;
        plan
    }

    /// For each activation whose gradient starts as the gradient of a sum it is the residual of:
    /// that sum. The two gradients share memory instead of being copied.
    fn residual_shares(&self, grads: &[Option<Life>]) -> Vec<Option<usize>> {
        let mut shares = vec![None; self.vars.len()];
        for (i, op) in self.ops.iter().enumerate() {
            let (x, residual, out) = match op {
                Op::Linear { x, extras, out, .. } => (Some(*x), extras.residual, out),
                Op::Combine {
                    x, residual, out, ..
                } => (Some(*x), *residual, out),
                Op::Embed { residual, out, .. } | Op::ScatterSum { residual, out, .. } => {
                    (None, *residual, out)
                }
                _ => continue,
            };
            let (Some(residual), Some(_)) = (residual, grads[out.0]) else {
                continue;
            };
            if Some(residual) != x
                && grads[residual.0].is_some_and(|life| life.first == 2 * self.ops.len() - i)
            {
                shares[residual.0] = Some(out.0);
            }
        }
        shares
    }
}

#[derive(Clone, Copy, Debug)]
struct Life {
    first: usize,
    last: usize,
}

impl Life {
    fn extend(life: &mut Option<Self>, t: usize) {
        let life = life.get_or_insert(Self { first: t, last: t });
        life.first = life.first.min(t);
        life.last = life.last.max(t);
    }
}

#[derive(Debug, Default)]
struct Slots {
    lens: Vec<usize>,
    free: Vec<usize>,
}

impl Slots {
    /// The smallest free slot that fits, else the largest one, enlarged.
    fn take(&mut self, len: usize) -> usize {
        let lens = &self.lens;
        let best = (0..self.free.len()).min_by_key(|&i| {
            let held = lens[self.free[i]];
            if held >= len {
                (false, held)
            } else {
                (true, usize::MAX - held)
            }
        });
        let Some(best) = best else {
            self.lens.push(len);
            return self.lens.len() - 1;
        };
        let slot = self.free.swap_remove(best);
        self.lens[slot] = self.lens[slot].max(len);
        slot
    }
}
