//! Gradients that a run takes, and steps that are computed once more since theirs was not.

use odeon::Failure;
use odeon_diagnosis::run::{RankGradient, RepeatedStep, UsualNorm};

use super::rank::{OwnGradient, Train, Trained};
use super::report::Report;

/// Gradients that change the weights.
#[derive(Clone, Debug)]
pub struct GradientRules {
    /// The norms of the last steps: a gradient far beyond them is computed once more.
    pub usual: UsualNorm,
    /// Set where it is taken when it was the same twice; else the step changes nothing.
    pub takes_spikes: bool,
    /// Steps in a row that may change nothing, after which the run fails; 0 has it go on for ever.
    pub refused_max: u64,
    /// Steps that were begun before: faults that are committed on purpose are committed once.
    pub furthest: u64,
}

impl GradientRules {
    /// The same after the steps that a run has told.
    #[must_use]
    pub fn after(mut self, told: &[Report]) -> Self {
        for report in told {
            if let Report::Step(step) = report {
                // One beyond what was usual then was not taken where spikes are not.
                let most = self.usual.most().filter(|_| !self.takes_spikes);
                if most.is_none_or(|most| step.grad_norm <= most) {
                    self.usual.note(step.step, step.grad_norm);
                }
                self.furthest = self.furthest.max(step.step);
            }
        }
        self
    }
}

/// The gradients of a run so far. It outlives the ranks.
#[derive(Debug)]
pub(super) struct Gradients {
    rules: GradientRules,
    /// Steps in a row that have changed nothing.
    refused: u64,
}

impl Gradients {
    pub(super) const fn new(rules: GradientRules) -> Self {
        Self { rules, refused: 0 }
    }

    /// The order to train on the step after so many.
    pub(super) fn order(&mut self, steps: u64, spans: bool) -> Train {
        let drills = steps >= self.rules.furthest;
        self.rules.furthest = self.rules.furthest.max(steps + 1);
        Train {
            step: steps,
            spans,
            norm_max: self.rules.usual.most().map(|most| most as f32),
            takes_spikes: self.rules.takes_spikes,
            drills,
        }
    }

    /// Takes in what the ranks tell of the step that was ordered. Answers it where it was computed twice.
    pub(super) fn note(&mut self, order: &Train, parts: &[Trained]) -> Option<RepeatedStep> {
        let of_all = parts.first()?;
        if of_all.is_taken {
            self.refused = 0;
            self.rules.usual.note(order.step + 1, of_all.grad_norm);
        } else {
            self.refused += 1;
        }
        let first = of_all.first_try.as_ref()?;
        let ranks = parts.iter().map(|part| {
            let first = part.first_try.as_ref().map(|it| &it.gradient);
            [first.unwrap_or(&part.gradient), &part.gradient].map(own)
        });
        Some(RepeatedStep {
            norms: [first.grad_norm, of_all.grad_norm],
            norm_max: order.norm_max.map(f64::from),
            ranks: ranks.collect(),
            is_taken: of_all.is_taken,
        })
    }

    /// Forgets steps after so many, which are made again.
    pub(super) fn back_to(&mut self, steps: u64) {
        self.rules.usual.back_to(steps);
        self.refused = 0;
    }

    /// Checks that steps still change anything.
    ///
    /// # Errors
    /// Too many in a row have not.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let most = self.rules.refused_max;
        if most == 0 || self.refused < most {
            return Ok(());
        }
        let why = format!(
            "{most} steps in a row have changed nothing, since their gradients were not taken \
             (pretrain.refused_max): the findings say why; go back to an older checkpoint, or change \
             the data or pretrain.lr"
        );
        Err(Failure::error(why).fatal())
    }
}

fn own(gradient: &OwnGradient) -> RankGradient {
    RankGradient {
        norm: gradient.squares.sqrt(),
        tensor: gradient.tensor.clone(),
    }
}
