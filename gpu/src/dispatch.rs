//! Rows on their way to the experts that a router has chosen for them.

use std::ops::Range;

use crate::backend::{Backend, RouteShape};

/// The rows that each expert takes, known once a router's logits are: a row is taken once for each of
/// its experts.
///
/// Taken rows stand expert by expert, and of one expert in the order of the rows. So the results of
/// a row's experts are added in the order of the experts, whatever other rows there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    top: usize,
    /// By row, then from the most to the least likely.
    chosen: Vec<u32>,
    rows: Vec<u32>,
    slots: Vec<u32>,
    /// One more than there are experts.
    starts: Vec<usize>,
}

impl Dispatch {
    /// Chooses experts for each row of `logits[rows, experts]`, and writes their weights in the
    /// order of the rows; see [`Backend::route`]. The device is waited for: which rows an expert
    /// takes is for the host to know.
    pub fn route<B: Backend>(
        &mut self,
        backend: &B,
        shape: RouteShape,
        rows: usize,
        logits: B::View<'_>,
        weights: B::ViewMut<'_>,
    ) {
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        chosen.resize(rows * shape.top, 0);
        backend.route(shape, logits, &mut chosen, weights);
        self.sort(shape, chosen);
    }

    /// Groups rows by their experts.
    fn sort(&mut self, shape: RouteShape, chosen: Vec<u32>) {
        self.top = shape.top;
        self.starts.clear();
        self.starts.resize(shape.experts + 1, 0);
        for expert in &chosen {
            self.starts[*expert as usize + 1] += 1;
        }
        for expert in 0..shape.experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        let mut next = self.starts.clone();
        self.slots.clear();
        self.slots.resize(chosen.len(), 0);
        for (slot, expert) in chosen.iter().enumerate() {
            let place = &mut next[*expert as usize];
            self.slots[*place] = slot as u32;
            *place += 1;
        }
        self.rows.clear();
        let top = shape.top as u32;
        self.rows.extend(self.slots.iter().map(|slot| slot / top));
        self.chosen = chosen;
    }

    /// The experts of each row, one row after the other, each from the most to the least likely.
    #[must_use]
    pub fn chosen(&self) -> &[u32] {
        &self.chosen
    }

    /// The row of each taken row.
    #[must_use]
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The place of each taken row in [`chosen`](Self::chosen).
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Number of experts.
    #[must_use]
    pub fn all_experts(&self) -> usize {
        self.starts.len() - 1
    }

    /// Experts that take any row, each with the taken rows that are its own.
    pub fn experts(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let bounds = self.starts.windows(2).enumerate();
        bounds
            .map(|(expert, bounds)| (expert, bounds[0]..bounds[1]))
            .filter(|(_, taken)| !taken.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_by_expert_and_then_in_their_order() {
        let mut dispatch = Dispatch::default();
        let shape = RouteShape { experts: 4, top: 2 };
        dispatch.sort(shape, vec![3, 0, 0, 1, 1, 3]);
        assert_eq!(dispatch.rows(), [0, 1, 1, 2, 0, 2]);
        assert_eq!(dispatch.slots(), [1, 2, 3, 4, 0, 5]);
        let experts: Vec<_> = dispatch.experts().collect();
        assert_eq!(experts, [(0, 0..2), (1, 2..4), (3, 4..6)]);
    }
}
