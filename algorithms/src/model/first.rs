//! First parameters of a model, tensor by tensor: a rank draws what it keeps, and no more.

use std::collections::HashMap;
use std::ops::Range;

use super::normal::Normal;

/// Initial values of a model by a seed: normal with deviation 0.02, residual projections scaled down by the root of twice
/// the number of layers (Radford et al. 2019), norms one, value head zero. A number follows from its place in the whole
/// model, so ranks that draw parts of it have those of one device.
#[derive(Debug)]
pub struct SeededValues {
    normal: Normal,
    tensors: HashMap<String, Values>,
}

/// Initial values of a tensor, whose rows are so long.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) cols: usize,
    pub(super) kind: ValueKind,
}

/// A kind of initial values.
#[derive(Debug)]
pub(super) enum ValueKind {
    /// One value.
    Same(f32),
    /// All of them.
    Told(Vec<f32>),
    /// Drawn, the first with this number.
    Drawn { first: u64, deviation: f32 },
}

impl SeededValues {
    /// Those of tensors with these values, by a seed.
    pub(super) fn of(tensors: HashMap<String, Values>, seed: u64) -> Self {
        Self {
            tensors,
            normal: Normal::new(seed),
        }
    }

    /// The values of a box of a tensor, row by row: see [`Model::fill`](super::Model::fill).
    ///
    /// # Panics
    /// If the model has no such tensor.
    pub fn read(&mut self, name: &str, part: &[Range<usize>]) -> Vec<f32> {
        let tensor = self.tensors.get(name);
        let Values { cols, kind } = tensor.expect("a tensor of the model");
        let len = part.iter().map(ExactSizeIterator::len).product();
        let mut values = Vec::with_capacity(len);
        let rows = box_runs(*cols, part);
        match kind {
            ValueKind::Same(value) => values.resize(len, *value),
            ValueKind::Told(all) => rows.for_each(|run| values.extend_from_slice(&all[run])),
            ValueKind::Drawn { first, deviation } => rows.for_each(|run| {
                self.normal.seek(first + run.start as u64);
                let drawn = std::iter::repeat_with(|| deviation * self.normal.draw());
                values.extend(drawn.take(run.len()));
            }),
        }
        values
    }
}

/// The runs of a box of a tensor with rows of so many elements, as intervals of all of its elements.
pub(crate) fn box_runs(
    cols: usize,
    part: &[Range<usize>],
) -> impl Iterator<Item = Range<usize>> + use<> {
    let (rows, of_row) = match part {
        [rows, of_row] => (rows.clone(), of_row.clone()),
        [own] => (own.clone(), 0..1),
        _ => unreachable!("tensors have one dimension or two, not {part:?}"),
    };
    // Whole rows lie one behind the other.
    let whole = of_row.len() == cols;
    let step = if whole { rows.len().max(1) } else { 1 };
    rows.clone().step_by(step).map(move |row| {
        let begin = row * cols + of_row.start;
        begin..begin + (step - 1) * cols + of_row.len()
    })
}

#[cfg(test)]
mod tests;
