//! The order of a forward and a backward pass, and what is computed again on the way back.

use std::iter;
use std::ops::Range;

use super::division::Division;
use super::plan::Order;
use super::{Op, Tape, TapeMark, Var};
use crate::backend::Backend;

impl<B: Backend> Tape<B> {
    /// The place that the recording has come to.
    #[must_use]
    pub fn mark(&self) -> TapeMark {
        TapeMark(self.ops.len())
    }

    /// Has what was recorded since then computed again on the way back, in place of keeping what it makes until then
    /// (arXiv [1604.06174](https://arxiv.org/abs/1604.06174)). What other operations read of it is kept all the same, and
    /// what the way back does not need is not computed again. Numbers are the same to the bit.
    ///
    /// # Panics
    /// If part of it is to be computed again already.
    pub fn recompute(&mut self, since: TapeMark) {
        let run = since.0..self.ops.len();
        let before = self.recomputed.last().map_or(0, |run| run.end);
        assert!(before <= run.start, "runs follow each other");
        if !run.is_empty() {
            self.recomputed.push(run);
        }
    }

    /// The order of a pass whose roots are `keep`, where these values want a gradient.
    pub(super) fn order(
        &self,
        keep: &[Var],
        wants: &[bool],
        trainable: &[bool],
        division: Division<'_>,
    ) -> Order {
        let reached = self.reached(keep, wants);
        let late = self.late(&reached, trainable, division);
        let mut leaves = self.leaving(keep);
        let runs_again = self.running_again(&reached, &leaves);
        let away = self.away(keep, &reached, [&runs_again, &leaves]);
        for (v, leaves) in leaves.iter_mut().enumerate() {
            *leaves |= away.has(v);
        }
        let ops = self.ops.len();
        let mut order = Order {
            backward: vec![None; ops],
            again: vec![None; ops],
            later: vec![None; ops],
            is_divided: division != Division::Whole,
            leaves,
            away,
            come: vec![None; ops],
            rows_end: ops,
            end: ops,
        };
        // Roots get their gradients in between.
        let mut time = ops;
        let mut next = || {
            time += 1;
            time
        };
        for i in (0..ops).rev() {
            order.come[i] = (!order.away.come[i].is_empty()).then(&mut next);
            for j in self.run_until(i) {
                order.again[j] = runs_again[j].then(&mut next);
            }
            order.backward[i] = reached[i].then(&mut next);
        }
        order.rows_end = next();
        for i in (0..ops).rev() {
            order.later[i] = late[i].then(&mut next);
        }
        order.end = next();
        order
    }

    /// What is computed again when the way back comes to this operation, the last of a run.
    pub(super) fn run_until(&self, op: usize) -> Range<usize> {
        let at = self
            .recomputed
            .binary_search_by_key(&(op + 1), |run| run.end);
        at.map_or(0..0, |at| self.recomputed[at].clone())
    }

    /// Operations that a gradient comes to.
    fn reached(&self, keep: &[Var], wants: &[bool]) -> Vec<bool> {
        let mut has_gradient = vec![false; self.vars.len()];
        for v in keep {
            has_gradient[v.0] = wants[v.0];
        }
        let mut reached = vec![false; self.ops.len()];
        for (op, reached) in self.ops.iter().zip(&mut reached).rev() {
            *reached = op.made().any(|v| has_gradient[v.0]);
            if *reached {
                for v in op.inputs() {
                    has_gradient[v.0] |= wants[v.0];
                }
            }
        }
        reached
    }

    /// Values that runs make for themselves alone.
    fn leaving(&self, keep: &[Var]) -> Vec<bool> {
        let mut maker = vec![None; self.vars.len()];
        for (number, run) in self.recomputed.iter().enumerate() {
            for op in &self.ops[run.clone()] {
                op.made().for_each(|v| maker[v.0] = Some(number));
            }
        }
        let mut leaves: Vec<bool> = maker.iter().map(Option::is_some).collect();
        keep.iter().for_each(|v| leaves[v.0] = false);
        let mut runs = self.recomputed.iter().enumerate().peekable();
        for (i, op) in self.ops.iter().enumerate() {
            runs.next_if(|(_, run)| run.end == i);
            let own = runs.peek().filter(|(_, run)| run.contains(&i));
            let own = own.map(|(number, _)| *number);
            for v in op.inputs() {
                leaves[v.0] &= maker[v.0] == own;
            }
        }
        // An operation is computed again as a whole.
        for op in &self.ops {
            if op.made().any(|v| !leaves[v.0]) {
                op.made().for_each(|v| leaves[v.0] = false);
            }
        }
        leaves
    }

    /// Operations that make what the way back reads and is not there any more.
    fn running_again(&self, reached: &[bool], leaves: &[bool]) -> Vec<bool> {
        let mut read = vec![false; self.vars.len()];
        for (op, _) in self
            .ops
            .iter()
            .zip(reached)
            .filter(|(_, reached)| **reached)
        {
            op.backward_reads().iter().for_each(|v| read[v.0] = true);
        }
        let mut again = vec![false; self.ops.len()];
        for i in self.recomputed.iter().cloned().flatten().rev() {
            let op = &self.ops[i];
            again[i] = op.made().any(|v| leaves[v.0] && read[v.0]);
            if again[i] {
                op.inputs().iter().for_each(|v| read[v.0] = true);
            }
        }
        again
    }
}

impl<B: Backend> Op<B> {
    /// Values that it writes.
    pub(super) fn made(&self) -> impl Iterator<Item = Var> {
        let in_place = match self {
            Self::Rope { x, .. } => Some(*x),
            _ => None,
        };
        let made = self.outputs().into_iter().chain(self.saved());
        made.chain(iter::once(in_place).flatten())
    }
}
