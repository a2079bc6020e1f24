//! Gives activations and gradients places in memory before anything runs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::division::Division;
use super::ring::Travelling;
use super::spread::Arrived;
use super::{Op, Tape, Var};
use crate::backend::Backend;
use crate::dispatch::Dispatch;

/// Where every value and gradient of a recording lies, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) values: Vec<Option<usize>>,
    /// Where values are on the way back: elsewhere where they are computed again.
    pub(super) values_back: Vec<Option<usize>>,
    pub(super) grads: Vec<Option<usize>>,
    pub(super) trainable: Vec<bool>,
    pub(super) order: Order,
    /// For each norm whose gradients wait apart where they do so, and their number.
    pub(super) apart: Vec<Option<(usize, usize)>>,
    /// For each list where the rows are kept that it brings from other ranks.
    pub(super) arrivals: Vec<usize>,
    /// Numbers of each of these places, if as many rows come as go.
    arriving: Vec<usize>,
    slots: Vec<usize>,
}

impl Plan {
    /// Bytes of activations and gradients that the step needs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        4 * self.slots.iter().sum::<usize>()
    }

    /// Bytes of activations that wait in memory of the host for the way back, which are not among these.
    #[must_use]
    pub fn offloaded_bytes(&self) -> usize {
        4 * self.order.away.lens.iter().sum::<usize>()
    }

    /// Bytes of rows that come from other ranks to experts, if as many come as go: they are beside these.
    #[must_use]
    pub fn arriving_bytes(&self) -> usize {
        4 * self.arriving.iter().sum::<usize>()
    }
}

/// When each operation runs. The forward pass has as many times as there are operations, and the way back those behind
/// them.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// When the way back comes to each operation; `None` where no gradient does.
    pub(super) backward: Vec<Option<usize>>,
    /// When each runs once more before that.
    pub(super) again: Vec<Option<usize>>,
    /// When the gradients of its weights are computed, where that is later.
    pub(super) later: Vec<Option<usize>>,
    pub(super) is_divided: bool,
    /// Set for values that go when the forward pass has read them: they are made again, come back, or are not read any
    /// more.
    pub(super) leaves: Vec<bool>,
    /// Those that come back, from memory of the host.
    pub(super) away: Away,
    /// When what comes before the way back comes to each operation does.
    pub(super) come: Vec<Option<usize>>,
    /// Behind all gradients of rows.
    pub(super) rows_end: usize,
    /// Behind all of them.
    pub(super) end: usize,
}

/// When values leave the device, and when they are here again.
#[derive(Clone, Debug, Default)]
pub(super) struct Away {
    /// Behind each operation of the forward pass those that it is the last to read.
    pub(super) leave: Vec<Vec<usize>>,
    /// Before the way back comes to each operation those that come.
    pub(super) come: Vec<Vec<usize>>,
    /// For each value that leaves its place in memory of the host.
    pub(super) places: Vec<Option<usize>>,
    /// Numbers of each of these places.
    pub(super) lens: Vec<usize>,
}

impl Away {
    /// True for values that leave.
    pub(super) fn has(&self, v: usize) -> bool {
        self.places[v].is_some()
    }
}

/// Memory of activations and gradients, kept from step to step.
#[derive(Debug)]
pub struct Arena<B: Backend> {
    pub(super) slots: Vec<B::Buffer>,
    pub(super) live: Vec<bool>,
    /// What routers have chosen, of the pass that runs.
    pub(super) lists: Vec<Dispatch>,
    /// Rows that have come from other ranks to experts, by their place in the plan.
    pub(super) arrived: Vec<Arrived<B>>,
    /// What goes around a ring, of the operation that runs.
    pub(super) travelling: Travelling<B>,
    /// Memory of the host for values that leave the device.
    pub(super) away: Vec<Vec<f32>>,
}

impl<B: Backend> Default for Arena<B> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            live: Vec::new(),
            lists: Vec::new(),
            arrived: Vec::new(),
            travelling: Travelling::default(),
            away: Vec::new(),
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
        let away = &plan.order.away.lens;
        if self.away.len() < away.len() {
            self.away.resize_with(away.len(), Vec::new);
        }
        for (place, &len) in self.away.iter_mut().zip(away) {
            if place.len() < len {
                *place = vec![0.0; len];
            }
        }
        self.live.clear();
        self.live.resize(plan.grads.len(), false);
    }

    /// Bytes held on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        4 * self.slots.iter().map(B::len).sum::<usize>()
    }

    /// Bytes of memory of the host that it holds for values that leave the device.
    #[must_use]
    pub fn offloaded_bytes(&self) -> usize {
        4 * self.away.iter().map(Vec::len).sum::<usize>()
    }
}

impl<B: Backend> Tape<B> {
    /// Places for a forward and a backward pass. `trainable` says which parameter sets get
    /// gradients; `roots` are the activations whose gradient the caller will
    /// [`seed`](Tape::seed) and whose values may be read afterwards.
    #[must_use]
    pub fn plan_training(&self, trainable: &[bool], roots: &[Var]) -> Plan {
        let wants = self.wants_gradient(trainable);
        self.plan(trainable, roots, &wants, Division::Whole)
    }

    /// Places for a forward pass alone, after which the values of `keep` may be read.
    #[must_use]
    pub fn plan_inference(&self, keep: &[Var]) -> Plan {
        let wants = vec![false; self.vars.len()];
        self.plan(&[], keep, &wants, Division::Whole)
    }

    /// For each activation, true when a trainable parameter or a learnt input stands upstream of it.
    pub(super) fn wants_gradient(&self, trainable: &[bool]) -> Vec<bool> {
        let mut wants = vec![false; self.vars.len()];
        self.learnt.iter().for_each(|v| wants[v.0] = true);
        for op in &self.ops {
            let want =
                op.sets().any(|set| trainable[set]) || op.inputs().iter().any(|v| wants[v.0]);
            op.outputs().iter().for_each(|v| wants[v.0] = want);
        }
        wants
    }

    pub(super) fn plan(
        &self,
        trainable: &[bool],
        keep: &[Var],
        wants: &[bool],
        division: Division<'_>,
    ) -> Plan {
        let order = self.order(keep, wants, trainable, division);
        let mut lives = self.lives(keep, wants, &order);
        let values = (&mut lives.values[..], &mut lives.again[..]);
        self.live_until_later(&order, values, &mut lives.grads);
        let apart = self.lives_apart(&order);
        let firsts = first_of_shares(&self.residual_shares(&lives.grads, &order));
        // Gradients in one place are there from the begin of the first to the end of the last.
        for (v, first) in firsts.iter().enumerate().filter(|(v, first)| *v != **first) {
            let of_heir = lives.grads[v].take();
            for t in of_heir.into_iter().flat_map(|life| [life.first, life.last]) {
                Life::extend(&mut lives.grads[*first], t);
            }
        }
        let vars = self.vars.len();
        let mut plan = Plan {
            values: vec![None; vars],
            values_back: vec![None; vars],
            grads: vec![None; vars],
            trainable: trainable.to_vec(),
            slots: Vec::new(),
            arrivals: vec![],
            arriving: vec![],
            apart: vec![None; self.ops.len()],
            order,
        };
        (plan.arrivals, plan.arriving) = self.arrivals(&plan.order);
        let mut wanted = self.wanted(&lives);
        for (at, apart) in apart.into_iter().enumerate() {
            wanted.extend(apart.map(|(len, life)| (len, life, Kept::Apart, at)));
        }
        // The largest first, so that each finds the smallest place that is free all the time.
        wanted.sort_by_key(|(len, life, ..)| (Reverse(*len), life.first));
        let mut slots = Slots::default();
        for (len, life, kept, v) in wanted {
            let slot = slots.take(len, life);
            match kept {
                Kept::Value => plan.values[v] = Some(slot),
                Kept::Again => plan.values_back[v] = Some(slot),
                Kept::Gradient => plan.grads[v] = Some(slot),
                Kept::Apart => plan.apart[v] = Some((slot, len)),
            }
        }
        for (v, first) in firsts.into_iter().enumerate() {
            plan.grads[v] = plan.grads[first];
        }
        let pairs = plan.values_back.iter_mut().zip(&plan.values);
        for (v, (back, value)) in pairs.enumerate() {
            if !plan.order.leaves[v] {
                *back = *value;
            }
        }
        plan.slots = slots.lens;
        plan
    }

    /// Values and gradients with their lengths and lives.
    fn wanted(&self, lives: &Lives) -> Vec<(usize, Life, Kept, usize)> {
        let all = [
            (Kept::Value, &lives.values),
            (Kept::Again, &lives.again),
            (Kept::Gradient, &lives.grads),
        ];
        let mut wanted = vec![];
        for (kept, lives) in all {
            for (v, life) in lives.iter().enumerate() {
                wanted.extend(life.map(|life| (self.len(Var(v)), life, kept, v)));
            }
        }
        wanted
    }

    /// For each list the place of what it brings from other ranks, and the numbers of each place, if as many rows come
    /// as go. Those that are computed again have one together.
    fn arrivals(&self, order: &Order) -> (Vec<usize>, Vec<usize>) {
        let (mut arrivals, mut numbers) = (vec![0; self.lists], vec![0]);
        for (op, again) in self.ops.iter().zip(&order.again) {
            let Op::Spread {
                x, experts, list, ..
            } = op
            else {
                continue;
            };
            let len = Arrived::<B>::len(self.shape(*x), experts.inner);
            match again {
                // What is read later stays.
                Some(_) if !order.is_divided => numbers[0] = numbers[0].max(len),
                _ => {
                    arrivals[*list] = numbers.len();
                    numbers.push(len);
                }
            }
        }
        (arrivals, numbers)
    }

    /// From when to when each value and gradient is there.
    fn lives(&self, keep: &[Var], wants: &[bool], order: &Order) -> Lives {
        let mut values = vec![None::<Life>; self.vars.len()];
        let mut again = vec![None::<Life>; self.vars.len()];
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
            Life::extend(&mut values[v.0], order.end);
            if wants[v.0] {
                Life::extend(&mut grads[v.0], self.ops.len());
            }
        }
        // On the way back a value is read where it was left, or where it is made again.
        let mut read_back = |v: Var, t| match order.leaves[v.0] {
            true => Life::extend(&mut again[v.0], t),
            false => Life::extend(&mut values[v.0], t),
        };
        for (i, op) in self.ops.iter().enumerate().rev() {
            if let Some(t) = order.come[i] {
                let come = order.away.come[i].iter();
                come.for_each(|v| read_back(Var(*v), t));
            }
            if let Some(t) = order.again[i] {
                let read = op.inputs().into_iter();
                read.chain(op.made()).for_each(|v| read_back(v, t));
            }
            if let Some(t) = order.backward[i] {
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
                op.backward_reads()
                    .into_iter()
                    .for_each(|v| read_back(v, t));
            }
        }
        // Read behind the pass.
        for v in &self.learnt {
            if grads[v.0].is_some() {
                Life::extend(&mut grads[v.0], order.rows_end);
            }
        }
        Lives {
            values,
            again,
            grads,
        }
    }

    /// For each activation whose gradient starts as the gradient of a sum it is the residual of:
    /// that sum. The two gradients share memory instead of being copied.
    fn residual_shares(&self, grads: &[Option<Life>], order: &Order) -> Vec<Option<usize>> {
        let mut shares = vec![None; self.vars.len()];
        for (i, op) in self.ops.iter().enumerate() {
            let (x, residual, out) = match op {
                Op::Linear { x, extras, out, .. } => (Some(*x), extras.residual, out),
                Op::Combine {
                    x, residual, out, ..
                }
                | Op::Dropout {
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
            // What is read later must not change until then.
            if order.later[i].is_some() {
                continue;
            }
            if Some(residual) != x
                && grads[residual.0].is_some_and(|life| Some(life.first) == order.backward[i])
            {
                shares[residual.0] = Some(out.0);
            }
        }
        shares
    }
}

/// Lives of values until the forward pass is over or for good, of those that are computed again, and of gradients.
struct Lives {
    values: Vec<Option<Life>>,
    again: Vec<Option<Life>>,
    grads: Vec<Option<Life>>,
}

/// One of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Value,
    Again,
    Gradient,
    Apart,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Life {
    pub(super) fn extend(life: &mut Option<Self>, t: usize) {
        let life = life.get_or_insert(Self { first: t, last: t });
        life.first = life.first.min(t);
        life.last = life.last.max(t);
    }
}

/// For each gradient the first of those that are in one place with it.
fn first_of_shares(shares: &[Option<usize>]) -> Vec<usize> {
    let first = |mut v: usize| {
        while let Some(from) = shares[v] {
            v = from;
        }
        v
    };
    (0..shares.len()).map(first).collect()
}

/// Places in memory, each with what it holds and when (greedy by size, arXiv
/// [2001.03288](https://arxiv.org/abs/2001.03288)).
#[derive(Debug, Default)]
struct Slots {
    lens: Vec<usize>,
    /// From when to when each is taken.
    taken: Vec<BTreeMap<usize, usize>>,
}

impl Slots {
    /// The smallest place that is free for that long, or a new one. Lengths are asked for from the longest on, so each
    /// place is long enough.
    fn take(&mut self, len: usize, life: Life) -> usize {
        let is_free = |taken: &BTreeMap<usize, usize>| {
            let before = taken.range(..=life.last).next_back();
            before.is_none_or(|(_, last)| *last < life.first)
        };
        let slot = self.taken.iter().rposition(is_free).unwrap_or_else(|| {
            self.lens.push(len);
            self.taken.push(BTreeMap::new());
            self.lens.len() - 1
        });
        self.taken[slot].insert(life.first, life.last);
        slot
    }
}
