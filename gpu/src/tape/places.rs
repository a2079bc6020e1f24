//! Values and gradients of a pass that runs, where they lie.

use std::mem;
use std::ops::Range;

use super::run::{RowsGrad, Run, Taken};
use super::{Param, Rows, Var};
use crate::backend::{Backend, Store};

impl<B: Backend> Run<'_, B> {
    /// Takes the places of `outs` out of the arena while `work` writes them.
    pub(super) fn produce<const N: usize>(
        &mut self,
        outs: [Var; N],
        work: impl FnOnce(&Self, [B::ViewMut<'_>; N]),
    ) {
        let slots = outs.map(|v| self.values[v.0].expect("an output has a place"));
        let mut buffers = slots.map(|slot| mem::take(&mut self.arena.slots[slot]));
        let mut lens = outs.iter().map(|v| self.tape.len(*v));
        let views = buffers
            .each_mut()
            .map(|buffer| B::view_mut(buffer, 0..lens.next().expect("as many lengths as outputs")));
        work(self, views);
        for (slot, buffer) in slots.into_iter().zip(buffers) {
            self.arena.slots[slot] = buffer;
        }
    }

    pub(super) fn value(&self, v: Var) -> B::View<'_> {
        let slot = self.values[v.0].expect("a value that is read has a place");
        B::view(&self.arena.slots[slot], 0..self.tape.len(v))
    }

    /// The buffer that a value is in, from its begin on.
    pub(super) fn value_buffer(&self, v: Var) -> &B::Buffer {
        &self.arena.slots[self.values[v.0].expect("a value that is read has a place")]
    }

    /// Takes the buffer of an output out of the arena, and says where it was.
    pub(super) fn take_value(&mut self, v: Var) -> (usize, B::Buffer) {
        let slot = self.values[v.0].expect("an output has a place");
        (slot, mem::take(&mut self.arena.slots[slot]))
    }

    pub(super) fn put_value(&mut self, slot: usize, buffer: B::Buffer) {
        self.arena.slots[slot] = buffer;
    }

    /// Takes the buffer of a gradient that is there out of the arena, and says where it was.
    pub(super) fn take_grad_buffer(&mut self, v: Var) -> (usize, B::Buffer) {
        let slot = self.plan.grads[v.0].expect("a gradient that is read has a place");
        (slot, mem::take(&mut self.arena.slots[slot]))
    }

    /// The buffer that the gradient of a value is in, from its begin on.
    pub(super) fn grad_buffer(&self, v: Var) -> &B::Buffer {
        &self.arena.slots[self.plan.grads[v.0].expect("a gradient that is read has a place")]
    }

    /// Some rows of a value of so many columns.
    pub(super) fn value_rows(&self, v: Var, rows: &Range<usize>, cols: usize) -> B::View<'_> {
        let slot = self.values[v.0].expect("a value that is read has a place");
        B::view(&self.arena.slots[slot], rows.start * cols..rows.end * cols)
    }

    /// Some rows of the gradient of a value of so many columns.
    pub(super) fn grad_rows(&self, v: Var, rows: &Range<usize>, cols: usize) -> B::View<'_> {
        let slot = self.plan.grads[v.0].expect("a gradient that is read has a place");
        B::view(&self.arena.slots[slot], rows.start * cols..rows.end * cols)
    }

    pub(super) fn rows<'r>(&'r self, rows: &'r Rows) -> &'r [u32] {
        match rows {
            Rows::Fixed(rows) => rows,
            Rows::Taken(list) => self.arena.lists[*list].rows(),
            Rows::Slots(list) => self.arena.lists[*list].slots(),
        }
    }

    pub(super) fn grad(&self, v: Var) -> B::View<'_> {
        let slot = self.plan.grads[v.0].expect("a gradient that is read has a place");
        B::view(&self.arena.slots[slot], 0..self.tape.len(v))
    }

    pub(super) fn param(&self, p: &Param) -> B::View<'_> {
        B::view(self.params.buffer(p.set), p.range.clone())
    }

    /// Part of the gradient buffer, if the parameter is trained.
    pub(super) fn param_grad<'g>(
        &self,
        gradients: &'g mut [Option<B::Buffer>],
        p: &Param,
    ) -> Option<B::ViewMut<'g>> {
        self.plan.trainable[p.set].then(|| {
            let buffer = gradients[p.set]
                .as_mut()
                .expect("a trained set has a gradient buffer");
            B::view_mut(buffer, p.range.clone())
        })
    }

    /// Takes a wanted gradient out of the arena; it is live from now on.
    pub(super) fn take_grad(&mut self, v: Var) -> Option<Taken<B>> {
        let slot = self.plan.grads[v.0]?;
        let store = if mem::replace(&mut self.arena.live[v.0], true) {
            Store::Add
        } else {
            Store::Set
        };
        Some(Taken {
            slot,
            len: self.tape.len(v),
            buffer: mem::take(&mut self.arena.slots[slot]),
            store,
        })
    }

    /// The same for an operation that writes the gradient of its rows in any case: that of a weight
    /// alone still passes through their memory.
    pub(super) fn rows_grad(&mut self, v: Var) -> RowsGrad<B> {
        let taken = self.take_grad(v);
        let len = self.tape.len(v);
        match taken {
            Some(taken) => RowsGrad::Wanted(taken),
            None => RowsGrad::Spare(self.backend.alloc(len), len),
        }
    }

    pub(super) fn put_rows(&mut self, rows: RowsGrad<B>) {
        if let RowsGrad::Wanted(taken) = rows {
            self.put(Some(taken));
        }
    }

    pub(super) fn put(&mut self, taken: Option<Taken<B>>) {
        if let Some(Taken { slot, buffer, .. }) = taken {
            self.arena.slots[slot] = buffer;
        }
    }
}
