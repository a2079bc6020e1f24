//! Gradients that are not taken: those that are not finite or far too large, and a look at each rank's own.
//!
//! Sums over ranks spread what is wrong with one gradient over all of them. So a guarded step looks at what the passes
//! of this rank have left before any of it is added to that of others; and since a gradient that is refused changes no
//! parameter, the step can be computed once more, which tells a fault of a machine from one of the data.

use odeon_gpu::Backend;
use serde::{Deserialize, Serialize};

use super::Trainer;

/// Rules by which a step takes the gradient of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradientGuard {
    /// The largest norm that is taken; `None` takes all that are finite.
    pub norm_max: Option<f32>,
    /// A norm that is taken all the same, as far as a part in a thousand: that of the step before this repetition.
    pub known: Option<f32>,
    /// A fault that this rank commits on purpose.
    pub drill: Option<GradientFault>,
}

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
    /// The sum of its squares.
    pub squares: f64,
    /// The tensor that explains them, where they are not finite or beyond what is taken.
    pub worst: Option<WorstTensor>,
}

/// The tensor with the worst gradient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstTensor {
    /// Its name.
    pub name: String,
    /// The tensors whose gradient is not finite. The backward pass goes from the last tensor to the first, so the worst
    /// is the last of them; where none is, it is the one with the largest squares.
    pub not_finite: usize,
    /// All tensors that have any gradient.
    pub of: usize,
}

impl GradientGuard {
    /// Returns true where a gradient of this norm may change parameters.
    #[must_use]
    pub fn takes(&self, norm: f32) -> bool {
        let is_known = |known: f32| (norm - known).abs() <= 1e-3 * known;
        let is_small = self.norm_max.is_none_or(|most| norm <= most);
        norm.is_finite() && (is_small || self.known.is_some_and(is_known))
    }
}

impl<B: Backend> Trainer<B> {
    /// Sets the rules of the steps from now on; `None` takes every gradient that is finite, and looks at none.
    pub const fn guard(&mut self, guard: Option<GradientGuard>) {
        self.guard = guard;
    }

    /// Set where steps are guarded: their plan has a look at this rank's own gradient.
    #[must_use]
    pub const fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Looks at the gradient as it is, after the fault of a drill.
    pub(super) fn look_at_gradient(&mut self) -> GradientLook {
        let guard = self.guard.unwrap_or_default();
        if let Some(fault) = guard.drill {
            self.commit(fault);
        }
        let backend = self.model().backend().clone();
        let gradient = self.trained_gradient();
        let of = |range| backend.scope(|| backend.sum_squares(B::view(gradient, range)));
        let squares = of(0..B::len(gradient));
        let most = guard.norm_max.map_or(f64::INFINITY, f64::from);
        if squares.is_finite() && squares.sqrt() <= most {
            return GradientLook {
                squares,
                worst: None,
            };
        }
        let entries = self.trained_layout().entries().iter();
        let each = entries.map(|entry| (entry, of(entry.range.clone())));
        let each: Vec<_> = each.filter(|(_, squares)| *squares != 0.0).collect();
        let not_finite = || each.iter().filter(|(_, squares)| !squares.is_finite());
        let worst = not_finite()
            .next_back()
            .or_else(|| each.iter().max_by(|a, b| a.1.total_cmp(&b.1)));
        GradientLook {
            squares,
            worst: worst.map(|(entry, _)| WorstTensor {
                name: entry.name.clone(),
                not_finite: not_finite().count(),
                of: each.len(),
            }),
        }
    }

    fn commit(&mut self, fault: GradientFault) {
        let backend = self.model().backend().clone();
        let gradient = self.trained_gradient_mut();
        let numbers = backend.to_vec(gradient);
        let (at, number) = match fault {
            GradientFault::Nan => (numbers.len() / 2, f32::NAN),
            GradientFault::Bit => {
                // Of a number of 2 or more that bit is set already.
                let all = numbers.iter().enumerate().filter(|(_, it)| it.abs() < 2.0);
                let largest = all.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
                let (at, number) = largest.unwrap_or((0, &1.0));
                (at, f32::from_bits(number.to_bits() | 1 << 30))
            }
        };
        backend.write(B::view_mut(gradient, at..at + 1), &[number]);
    }
}
