//! Values that leave the device between the forward pass and the way back.

use std::ops::Range;

use super::plan::Away;
use super::run::Run;
use super::{Tape, TapeMark, Var};
use crate::backend::Backend;

impl<B: Backend> Tape<B> {
    /// Has what was recorded since then leave the device when the forward pass has read it for the last time, where the way
    /// back reads it. It is here again when the way back has come to what was recorded behind the run that reads it first:
    /// one run ahead of its use. What the last run needs stays, and so does what is
    /// [computed again](Self::recompute). Numbers are the same to the bit.
    ///
    /// # Panics
    /// If part of it is to leave already.
    pub fn offload(&mut self, since: TapeMark) {
        let run = since.0..self.ops.len();
        let before = self.offloaded.last().map_or(0, |run| run.end);
        assert!(before <= run.start, "runs follow each other");
        if !run.is_empty() {
            self.offloaded.push(run);
        }
    }

    /// The values that leave, where the way back comes to these operations and has these read again; `leaves` are those
    /// that are not kept in any case.
    pub(super) fn away(
        &self,
        keep: &[Var],
        reached: &[bool],
        [again, leaves]: [&[bool]; 2],
    ) -> Away {
        let (ops, vars) = (self.ops.len(), self.vars.len());
        let mut away = Away {
            leave: vec![vec![]; ops],
            come: vec![vec![]; ops],
            places: vec![None; vars],
            lens: vec![],
        };
        let mut made = vec![false; vars];
        let runs = self.offloaded.iter().cloned();
        runs.flatten()
            .for_each(|i| self.ops[i].made().for_each(|v| made[v.0] = true));
        keep.iter().for_each(|v| made[v.0] = false);
        let (mut last, mut back) = (vec![0; vars], vec![None; vars]);
        for (i, op) in self.ops.iter().enumerate() {
            let read = op.inputs().into_iter();
            read.chain(op.made()).for_each(|v| last[v.0] = i);
            if reached[i] {
                let read = op.backward_reads().into_iter();
                read.for_each(|v| back[v.0] = Some(i));
            }
        }
        // What is computed again is read when the way back comes to the end of its run.
        for run in &self.recomputed {
            for i in run.clone().filter(|i| again[*i]) {
                let read = self.ops[i].inputs().into_iter();
                read.for_each(|v| back[v.0] = back[v.0].max(Some(run.end - 1)));
            }
        }
        for v in (0..vars).filter(|v| made[*v] && !leaves[*v]) {
            let Some(first) = back[v].and_then(|op| self.run_before(op)) else {
                continue;
            };
            away.leave[last[v]].push(v);
            away.come[first].push(v);
            away.places[v] = Some(away.lens.len());
            away.lens.push(self.len(Var(v)));
        }
        away
    }

    /// The operation with which the way back enters the run before that of another one: what this reads comes then.
    fn run_before(&self, op: usize) -> Option<usize> {
        let own = self.offloaded.partition_point(|run| run.end <= op);
        let is_own = |run: &Range<usize>| run.contains(&op);
        self.offloaded.get(own).filter(|run| is_own(run))?;
        let next = self.offloaded.get(own + 1)?;
        Some(next.end - 1)
    }
}

impl<B: Backend> Run<'_, B> {
    /// Moves what no operation of the forward pass reads behind this one to memory of the host.
    pub(super) fn leave(&mut self, at: usize) {
        for v in &self.plan.order.away.leave[at] {
            let place = self.plan.order.away.places[*v].expect("what leaves has a place");
            let slot = self.values[*v].expect("a value that is read has a place");
            let len = self.plan.order.away.lens[place];
            let from = B::view(&self.arena.slots[slot], 0..len);
            self.backend.read(from, &mut self.arena.away[place][..len]);
        }
    }

    /// Brings what the way back will read behind this operation.
    pub(super) fn come(&mut self, at: usize) {
        for v in &self.plan.order.away.come[at] {
            let place = self.plan.order.away.places[*v].expect("what comes has a place");
            let slot = self.values[*v].expect("a value that is read has a place");
            let len = self.plan.order.away.lens[place];
            let to = B::view_mut(&mut self.arena.slots[slot], 0..len);
            self.backend.write(to, &self.arena.away[place][..len]);
        }
    }
}
