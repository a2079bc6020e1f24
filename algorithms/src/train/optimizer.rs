//! Optimisers, one file each: settings, what is kept for each parameter, and the update.
//!
//! A rule that treats each element by itself ([`ElementRule`]) is text of one
//! [`update_rule!`](macro@odeon_gpu::update_rule) for every device. Any other is a [`Stepper`] over the
//! operations of [`Backend`]. The list at the end of this file is the only one that knows all.

mod adamw;
mod lion;
mod muon;
mod partition;

use std::fmt::Debug;
use std::ops::Range;

use odeon_gpu::{Backend, Layout, STATES_ALIGN, TensorEntry, UpdateRule};
use serde::{Deserialize, Serialize};

use crate::setting::{Chosen, SettingError};

pub use adamw::AdamW;
pub use lion::Lion;
pub use muon::Muon;
use partition::Cost;
pub use partition::Partition;

/// Numbers of one step.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Number of the step, from 1.
    number: u64,
    /// Learning rate.
    lr: f32,
    /// Factor on the gradients, for clipping and averaging.
    grad_scale: f32,
}

/// An optimiser, by its settings.
trait Rule: Copy + Default {
    /// Its name in sentences.
    const NAME: &'static str;
    /// Names of the buffers that it keeps, each as long as the parameters, in the order of states; the
    /// same names stand in checkpoints of pretraining. Those of PyTorch, where that has them.
    const STATE: &'static [&'static str];

    /// Checks the settings.
    fn check(&self) -> Result<(), SettingError>;

    /// The cost of an update of a tensor that is moved as a whole, and so is with one rank; `None` where each
    /// element is treated by itself.
    fn whole(&self, _: &TensorEntry) -> Option<Cost> {
        None
    }

    /// Prepares steps over a part of parameters that lie like this, of which matrices decay. No tensor is cut
    /// that is moved as a [whole](Self::whole).
    fn stepper<B: Backend>(
        &self,
        backend: &B,
        layout: &Layout,
        part: &Range<usize>,
        weight_decay: f32,
    ) -> Box<dyn Stepper<B>>;
}

/// The buffers that an optimiser keeps of its part of the parameters.
#[derive(Debug)]
struct Kept<'a, B: Backend> {
    /// The parameter that they begin with.
    from: usize,
    /// In the order of [`Rule::STATE`].
    buffers: &'a mut [B::Buffer],
}

/// Steps of an optimiser over the parameters of one model.
trait Stepper<B: Backend>: Debug + Send + Sync {
    /// Takes one.
    fn step(
        &mut self,
        backend: &B,
        step: Step,
        params: &mut B::Buffer,
        grads: &B::Buffer,
        kept: Kept<'_, B>,
    );
}

/// An optimiser that treats each element by itself.
trait ElementRule: Copy + Debug + Send + Sync + 'static {
    /// Its arithmetic.
    type Update: UpdateRule;

    /// The numbers of a step, for parameters with this weight decay.
    fn update(&self, step: Step, weight_decay: f32) -> Self::Update;
}

/// A run of parameters that share a weight decay.
#[derive(Clone, Debug, PartialEq)]
struct Segment {
    range: Range<usize>,
    weight_decay: f32,
}

/// Runs of a part of the tensors that are chosen: matrices have the weight decay, norms and biases none.
fn segments(
    layout: &Layout,
    part: &Range<usize>,
    weight_decay: f32,
    chosen: impl Fn(&TensorEntry) -> bool,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> = vec![];
    for entry in layout.entries().iter().filter(|entry| chosen(entry)) {
        let range = entry.range.start.max(part.start)..entry.range.end.min(part.end);
        if range.is_empty() {
            continue;
        }
        let weight_decay = if entry.shape.len() == 2 {
            weight_decay
        } else {
            0.0
        };
        match segments.last_mut() {
            Some(last) if last.weight_decay == weight_decay && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => segments.push(Segment {
                range,
                weight_decay,
            }),
        }
    }
    segments
}

/// The steps of a rule for elements.
#[derive(Debug)]
struct Elementwise<R> {
    rule: R,
    segments: Vec<Segment>,
}

impl<R: ElementRule> Elementwise<R> {
    fn over(rule: R, segments: Vec<Segment>) -> Self {
        Self { rule, segments }
    }
}

impl<B: Backend, R: ElementRule> Stepper<B> for Elementwise<R> {
    fn step(
        &mut self,
        backend: &B,
        step: Step,
        params: &mut B::Buffer,
        grads: &B::Buffer,
        kept: Kept<'_, B>,
    ) {
        let runs = self.segments.iter().map(|segment| {
            let update = self.rule.update(step, segment.weight_decay);
            (segment.range.clone(), update)
        });
        let runs: Vec<_> = runs.collect();
        let mut buffers: Vec<&mut B::Buffer> = kept.buffers.iter_mut().collect();
        backend.update(&runs, params, grads, kept.from, &mut buffers);
    }
}

/// An optimiser made ready for a part of one model's parameters, with what it keeps of them.
#[derive(Debug)]
pub(super) struct Prepared<B: Backend> {
    stepper: Box<dyn Stepper<B>>,
    part: Range<usize>,
    /// In the order of [`Optimizer::state`].
    state: Vec<B::Buffer>,
}

impl<B: Backend> Prepared<B> {
    /// Zeros for a part of parameters that lie like this.
    pub(super) fn new(
        optimizer: Optimizer,
        backend: &B,
        layout: &Layout,
        part: Range<usize>,
        weight_decay: f32,
    ) -> Self {
        let kept = optimizer.state().iter();
        let len = part.end - begin_of(&part);
        Self {
            stepper: optimizer.stepper(backend, layout, &part, weight_decay),
            state: kept.map(|_| backend.alloc(len)).collect(),
            part,
        }
    }

    /// The part of the parameters that it moves.
    pub(super) fn part(&self) -> &Range<usize> {
        &self.part
    }

    /// Gives the memory of what it keeps back.
    pub(super) fn clear(&mut self) {
        self.state.clear();
    }

    /// One of the buffers that it keeps, in the order of [`Optimizer::state`], and the parameter that it
    /// begins with.
    pub(super) fn kept(&self, number: usize) -> (&B::Buffer, usize) {
        (&self.state[number], begin_of(&self.part))
    }

    /// The same to write to.
    pub(super) fn kept_mut(&mut self, number: usize) -> (&mut B::Buffer, usize) {
        (&mut self.state[number], begin_of(&self.part))
    }

    /// Takes the step of this number, from 1.
    pub(super) fn step(
        &mut self,
        backend: &B,
        (number, lr, grad_scale): (u64, f32, f32),
        params: &mut B::Buffer,
        grads: &B::Buffer,
    ) {
        let step = Step {
            number,
            lr,
            grad_scale,
        };
        let kept = Kept {
            from: begin_of(&self.part),
            buffers: &mut self.state,
        };
        self.stepper.step(backend, step, params, grads, kept);
    }
}

/// The parameter that the buffers of a part begin with: cards read vectors.
const fn begin_of(part: &Range<usize>) -> usize {
    part.start - part.start % STATES_ALIGN
}

/// Makes the choice of an optimiser out of the list of all.
macro_rules! optimizers {
    ($($(#[$meta:meta])* $optimizer:ident $word:literal;)*) => {
        /// An update rule, which turns gradients into steps.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Optimizer {
            $($(#[$meta])* #[serde(rename = $word)] $optimizer($optimizer),)*
        }

        impl Chosen for Optimizer {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn named(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$optimizer($optimizer::default())),)*
                    _ => None,
                }
            }

            fn check(&self) -> Result<(), SettingError> {
                match self {
                    $(Self::$optimizer(rule) => Rule::check(rule),)*
                }
            }
        }

        impl Optimizer {
            /// Its name in sentences.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$optimizer(_) => <$optimizer as Rule>::NAME,)*
                }
            }

            /// Names of what it keeps for each parameter.
            #[must_use]
            pub fn state(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$optimizer(_) => <$optimizer as Rule>::STATE,)*
                }
            }

            /// Parts of trained parameters that lie like this, for so many ranks.
            ///
            /// # Panics
            /// If there are no ranks.
            #[must_use]
            pub fn partition(&self, layout: &Layout, ranks: usize) -> Partition {
                match self {
                    $(Self::$optimizer(rule) => {
                        Partition::new(layout, ranks, |entry| Rule::whole(rule, entry))
                    })*
                }
            }

            fn stepper<B: Backend>(
                &self,
                backend: &B,
                layout: &Layout,
                part: &Range<usize>,
                weight_decay: f32,
            ) -> Box<dyn Stepper<B>> {
                match self {
                    $(Self::$optimizer(rule) => rule.stepper(backend, layout, part, weight_decay),)*
                }
            }
        }
    };
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::AdamW(AdamW::default())
    }
}

// All optimisers.
optimizers! {
    /// AdamW for every parameter.
    AdamW "adamw";
    /// Muon for the matrices of the layers; AdamW for embeddings, heads, norms and biases.
    Muon "muon";
    /// Lion for every parameter, at a learning rate of a third to a tenth of AdamW's.
    Lion "lion";
}

#[cfg(test)]
mod tests;
