//! Gradients that are not taken: those that are not finite or far too large, and a look at each rank's own.
//!
//! Sums over ranks spread what is wrong with one gradient over all of them. So a guarded step looks at what the passes
//! of this rank have left before any of it is added to that of others; and since a gradient that is refused changes no
//! parameter, the step can be computed once more, which tells a fault of a machine from one of the data.

use odeon_gpu::Backend;

use super::Trainer;
use crate::model::{GradientFault, GradientLook, ShardGuard};

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

impl GradientGuard {
    /// The norm beyond which tensors are looked at one by one.
    fn most(&self) -> f64 {
        self.norm_max.map_or(f64::INFINITY, f64::from)
    }

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
    pub fn guard(&mut self, guard: Option<GradientGuard>) {
        self.guard = guard;
        let (model, gathered) = self.scorer.gathering();
        // What is added up beside passes is looked at before that.
        gathered.guard(
            guard
                .filter(|_| model.shard().is_some())
                .map(|it| ShardGuard {
                    most: it.most(),
                    drill: it.drill,
                }),
        );
    }

    /// Set where steps are guarded: their plan has a look at this rank's own gradient.
    #[must_use]
    pub const fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Looks at the gradient as it is, after the fault of a drill.
    pub(super) fn look_at_gradient(&mut self) -> GradientLook {
        if self.model().shard().is_some() {
            return self.scorer.gathering().1.take_look();
        }
        let guard = self.guard.unwrap_or_default();
        let backend = self.model().backend().clone();
        if let Some(fault) = guard.drill {
            let gradient = self.trained_gradient_mut();
            let all = 0..B::len(gradient);
            fault.commit(&backend, gradient, all);
        }
        let entries = self.trained_layout().entries().iter();
        let tensors = entries.map(|entry| (entry.name.as_str(), entry.range.clone()));
        GradientLook::at(&backend, self.trained_gradient(), tensors, guard.most())
    }
}
