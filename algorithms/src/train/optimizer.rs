//! Optimisers, one file each: settings, what is kept for each parameter, and the update.
//!
//! A rule that treats each element by itself ([`ElementRule`]) is text of one
//! [`update_rule!`](macro@odeon_gpu::update_rule) for every device. Any other is a [`Stepper`] over the
//! operations of [`Backend`]. The list at the end of this file is the only one that knows all.

mod adam8bit;
mod adamw;
mod holding;
mod lion;
mod muon;
mod partition;
mod tiles;

use std::fmt::Debug;
use std::ops::Range;

use odeon_gpu::{Backend, Layout, TensorEntry, UpdateRule};
use serde::{Deserialize, Serialize};

use crate::model::Keepers;
use crate::setting::{Chosen, SettingError};

pub use adam8bit::Adam8bit;
pub use adamw::AdamW;
use holding::HeldTensor;
pub(super) use holding::Holding;
pub use lion::Lion;
pub use muon::Muon;
pub use partition::Partition;
use partition::{Cost, Cutting};
use tiles::TiledMoments;
pub(super) use tiles::{scales_of, scales_shape};

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
    /// Names of what it keeps, in the order of states; the same names stand in checkpoints. Those of PyTorch,
    /// where that has them.
    const STATE: &'static [&'static str];

    /// Checks the settings.
    fn check(&self) -> Result<(), SettingError>;

    /// The places where ranks that share the optimiser's state may cut a tensor.
    fn cutting(&self, _: &TensorEntry) -> Cutting {
        Cutting::Anywhere
    }

    /// The form of one of its states.
    fn form(_state: usize) -> StateForm {
        StateForm::Numbers
    }

    /// Bytes of all that it keeps from step to step of a holding.
    fn bytes(&self, holding: &Holding) -> usize {
        4 * (holding.part.end - holding.begin()) * Self::STATE.len()
    }

    /// Prepares steps over parameters of which matrices decay.
    fn stepper<B: Backend>(
        &self,
        backend: &B,
        holding: &Holding,
        weight_decay: f32,
    ) -> Box<dyn Stepper<B>>;
}

/// A form in which an optimiser keeps a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateForm {
    /// A number for each parameter.
    Numbers,
    /// A byte for each parameter, of this moment.
    Codes(usize),
    /// A number for each tile of parameters, of this moment.
    Scales(usize),
}

/// Everything that an optimiser keeps of its part of the parameters.
#[derive(Debug)]
struct Kept<'a, B: Backend> {
    /// The parameter that buffers begin with.
    from: usize,
    /// In the order of [`Rule::STATE`], where that is of numbers.
    buffers: &'a mut [B::Buffer],
    /// Moments in tiles, where it keeps such.
    tiled: Option<&'a mut TiledMoments>,
    /// The ranks that keep shards of the same tensors.
    keepers: &'a Keepers<B>,
}

/// Steps of an optimiser over the parameters of one model.
trait Stepper<B: Backend>: Debug + Send + Sync {
    /// Numbers that it has room for beside what it keeps.
    #[cfg(test)]
    fn room(&self) -> usize {
        0
    }

    /// Takes one. Ranks that keep shards of the same tensors take it together.
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

/// Runs of the tensors that are chosen, as far as the rank keeps them: matrices have the weight decay, norms and biases
/// none.
fn segments(
    holding: &Holding,
    weight_decay: f32,
    chosen: impl Fn(&HeldTensor) -> bool,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> = vec![];
    let there = holding.tensors.iter().filter(|it| !it.elements.is_empty());
    for held in there.filter(|it| chosen(it)) {
        let range = held.at..held.at + held.elements.len();
        let weight_decay = match held.is_matrix() {
            true => weight_decay,
            false => 0.0,
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
    /// The parameter that buffers begin with.
    begin: usize,
    /// In the order of [`Optimizer::state`], where that is of numbers.
    state: Vec<B::Buffer>,
    tiled: Option<TiledMoments>,
}

impl<B: Backend> Prepared<B> {
    /// Moments of zero.
    pub(super) fn new(
        optimizer: Optimizer,
        backend: &B,
        holding: &Holding,
        weight_decay: f32,
    ) -> Self {
        let states = 0..optimizer.state().len();
        let in_numbers = |state: &usize| optimizer.form(*state) == StateForm::Numbers;
        let (numbers, tiled): (Vec<_>, Vec<_>) = states.partition(in_numbers);
        let len = holding.part.end - holding.begin();
        Self {
            stepper: optimizer.stepper(backend, holding, weight_decay),
            state: numbers.iter().map(|_| backend.alloc(len)).collect(),
            tiled: (!tiled.is_empty()).then(|| TiledMoments::new(holding)),
            part: holding.part.clone(),
            begin: holding.begin(),
        }
    }

    /// The part of the parameters that it moves.
    pub(super) fn part(&self) -> &Range<usize> {
        &self.part
    }

    /// Gives the memory of what it keeps back.
    pub(super) fn clear(&mut self) {
        self.state.clear();
        self.tiled = None;
    }

    /// One of the buffers that it keeps, in the order of [`Optimizer::state`], and the parameter that it
    /// begins with.
    ///
    /// # Panics
    /// If that is not of numbers.
    pub(super) fn kept(&self, number: usize) -> (&B::Buffer, usize) {
        (&self.state[number], self.begin)
    }

    /// The same to write to.
    ///
    /// # Panics
    /// If that is not of numbers.
    pub(super) fn kept_mut(&mut self, number: usize) -> (&mut B::Buffer, usize) {
        (&mut self.state[number], self.begin)
    }

    /// Bytes of buffers that it has.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        let numbers: usize = self.state.iter().map(B::len).sum();
        4 * (numbers + self.stepper.room())
    }

    /// The moments in tiles.
    ///
    /// # Panics
    /// If there are none.
    pub(super) fn tiled(&self) -> &TiledMoments {
        self.tiled.as_ref().expect("moments in tiles")
    }

    /// The same to write to.
    ///
    /// # Panics
    /// If there are none.
    pub(super) fn tiled_mut(&mut self) -> &mut TiledMoments {
        self.tiled.as_mut().expect("moments in tiles")
    }

    /// Takes the step of this number, from 1. Ranks that keep shards of the same tensors take it together.
    pub(super) fn step(
        &mut self,
        backend: &B,
        (number, lr, grad_scale): (u64, f32, f32),
        params: &mut B::Buffer,
        grads: &B::Buffer,
        keepers: &Keepers<B>,
    ) {
        let step = Step {
            number,
            lr,
            grad_scale,
        };
        let kept = Kept {
            from: self.begin,
            buffers: &mut self.state,
            tiled: self.tiled.as_mut(),
            keepers,
        };
        self.stepper.step(backend, step, params, grads, kept);
    }
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

            /// Names of what it keeps, as checkpoints have them.
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
                        Partition::new(layout, ranks, |entry| Rule::cutting(rule, entry))
                    })*
                }
            }

            /// The form of one of its states.
            pub(super) fn form(&self, state: usize) -> StateForm {
                match self {
                    $(Self::$optimizer(_) => <$optimizer as Rule>::form(state),)*
                }
            }

            /// Bytes of all that it keeps from step to step of a holding.
            pub(super) fn bytes(&self, holding: &Holding) -> usize {
                match self {
                    $(Self::$optimizer(rule) => rule.bytes(holding),)*
                }
            }

            fn cutting(&self, entry: &TensorEntry) -> Cutting {
                match self {
                    $(Self::$optimizer(rule) => rule.cutting(entry),)*
                }
            }

            fn stepper<B: Backend>(
                &self,
                backend: &B,
                holding: &Holding,
                weight_decay: f32,
            ) -> Box<dyn Stepper<B>> {
                match self {
                    $(Self::$optimizer(rule) => rule.stepper(backend, holding, weight_decay),)*
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

impl Optimizer {
    /// Rows of matrices that shards of the parameters keep together; 1 where they are cut between any.
    #[must_use]
    pub fn rows_together(&self) -> usize {
        let any = TensorEntry {
            name: String::new(),
            shape: vec![],
            range: 0..0,
        };
        match self.cutting(&any) {
            Cutting::Rows(rows) => rows,
            Cutting::Anywhere | Cutting::Whole(_) => 1,
        }
    }

    /// True where it moves each number by itself, so that ranks may have any part of a matrix.
    #[must_use]
    pub fn is_elementwise(&self) -> bool {
        matches!(self, Self::AdamW(_) | Self::Lion(_))
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
    /// AdamW for every parameter, with moments in bytes.
    Adam8bit "adam8bit";
}

#[cfg(test)]
mod tests;
