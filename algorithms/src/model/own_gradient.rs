//! Looks at the gradient of one rank, before that of others is added, and faults of it that are committed on purpose.

use std::ops::Range;

use odeon_gpu::Backend;
use serde::{Deserialize, Serialize};

/// A fault of the gradient of one rank, committed to try what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientFault {
    /// A number in the middle of it becomes NaN.
    Nan,
    /// The highest bit of the exponent of its largest number below 2 becomes 1, as in a memory that fails.
    Bit,
}

/// A look at the gradient of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientLook {
    /// The sum of its squares. Of a rank that keeps shards it is that of the gradients of single batches, which are added
    /// up over ranks one by one.
    pub squares: f64,
    /// The tensor that explains them, where they are not finite or beyond what is taken.
    pub worst: Option<WorstTensor>,
}

/// The tensor with the worst gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorstTensor {
    /// Its name.
    pub name: String,
    /// The sum of the squares of its gradient.
    pub squares: f64,
    /// The tensors whose gradient is not finite. The backward pass goes from the last tensor to the first, so the worst
    /// is the last of them; where none is, it is the one with the largest squares.
    pub not_finite: usize,
    /// All tensors that have any gradient, of those that were looked at.
    pub of: usize,
}

impl GradientLook {
    /// A look at tensors in a buffer, given by their names and places. They are looked at one by one where all together
    /// are not finite or have a norm of more than `most`.
    pub(crate) fn at<'a, B: Backend>(
        backend: &B,
        gradient: &B::Buffer,
        tensors: impl Iterator<Item = (&'a str, Range<usize>)> + Clone,
        most: f64,
    ) -> Self {
        let of = |range| backend.scope(|| backend.sum_squares(B::view(gradient, range)));
        // Neighbours are looked at as one.
        let mut together: Vec<Range<usize>> = vec![];
        for (_, range) in tensors.clone() {
            match together.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => together.push(range),
            }
        }
        let squares: f64 = together.into_iter().map(of).sum();
        if squares.is_finite() && squares.sqrt() <= most {
            return Self {
                squares,
                worst: None,
            };
        }
        let each = tensors.map(|(name, range)| (name, of(range)));
        let each: Vec<_> = each.filter(|(_, squares)| *squares != 0.0).collect();
        let not_finite = || each.iter().filter(|(_, squares)| !squares.is_finite());
        let worst = not_finite()
            .next_back()
            .or_else(|| each.iter().max_by(|a, b| a.1.total_cmp(&b.1)));
        Self {
            squares,
            worst: worst.map(|(name, squares)| WorstTensor {
                name: (*name).to_owned(),
                squares: *squares,
                not_finite: not_finite().count(),
                of: each.len(),
            }),
        }
    }

    /// With a look at tensors that the backward pass has come to later.
    pub(crate) fn and_then(self, later: Self) -> Self {
        let worst = match (self.worst, later.worst) {
            (Some(first), Some(later)) => {
                let is_first = match (first.not_finite, later.not_finite) {
                    (0, 0) => first.squares >= later.squares,
                    (first, _) => first > 0,
                };
                let (not_finite, of) = (first.not_finite + later.not_finite, first.of + later.of);
                let worst = if is_first { first } else { later };
                Some(WorstTensor {
                    not_finite,
                    of,
                    ..worst
                })
            }
            (first, later) => first.or(later),
        };
        Self {
            squares: self.squares + later.squares,
            worst,
        }
    }
}

impl GradientFault {
    /// Has some numbers of a gradient suffer it.
    pub(crate) fn commit<B: Backend>(
        self,
        backend: &B,
        gradient: &mut B::Buffer,
        place: Range<usize>,
    ) {
        let all = backend.to_vec(gradient);
        let numbers = &all[place.clone()];
        let (at, number) = match self {
            Self::Nan => (numbers.len() / 2, f32::NAN),
            Self::Bit => {
                // Of a number of 2 or more that bit is set already.
                let all = numbers.iter().enumerate().filter(|(_, it)| it.abs() < 2.0);
                let largest = all.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
                let (at, number) = largest.unwrap_or((0, &1.0));
                (at, f32::from_bits(number.to_bits() | 1 << 30))
            }
        };
        let at = place.start + at;
        backend.write(B::view_mut(gradient, at..at + 1), &[number]);
    }
}

/// Has shards be looked at before their gradients are added up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardGuard {
    /// The norm beyond which tensors are looked at one by one.
    pub(crate) most: f64,
    /// A fault that this rank commits on purpose, once.
    pub(crate) drill: Option<GradientFault>,
}
