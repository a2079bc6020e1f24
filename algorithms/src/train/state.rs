//! A trainer's numbers in parts, as checkpoints hold them, and what must be the same for a trainer to go
//! on from them.

use std::ops::Range;

use odeon_gpu::{Backend, Layout};
use thiserror::Error;

use super::Trainer;
use super::optimizer::{StateForm, scales_of, scales_shape};
use crate::model::{Adapters, LoraConfig, Model};
use crate::weights::StoredType;

/// Why a trainer cannot go on from a state. It is unchanged.
#[derive(Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum StateError {
    /// The state is of a model of another size. Use the settings that it was made with.
    #[error(
        "the state is of {found} trained parameters, and this trainer has {expected}: use the \
         settings that it was made with, or begin anew"
    )]
    Parameters {
        /// In the state.
        found: u64,
        /// In the trainer.
        expected: u64,
    },
    /// The moments are another optimiser's. Use the settings that it was made with.
    #[error(
        "the state is of {found}, and this trainer uses {expected}: use the settings that it was \
         made with, or begin anew"
    )]
    Optimizer {
        /// In the state.
        found: &'static str,
        /// In the trainer.
        expected: &'static str,
    },
    /// The state has other adapters, or one side has none. Use the settings that it was made with.
    #[error(
        "the state is of {}, and this trainer has {}: use the settings that it was made with, or \
         begin anew", described(*found), described(*expected)
    )]
    Adapters {
        /// In the state.
        found: Option<LoraConfig>,
        /// In the trainer.
        expected: Option<LoraConfig>,
    },
    /// The adapters were trained on other frozen weights: the model that the run began with has
    /// been replaced. Put it back.
    #[error(
        "the adapters belong to other weights than the model's (CRC-32 {found:08x}, not \
         {expected:08x}): put the model back that the run began with, or begin anew"
    )]
    Base {
        /// Of the weights that the adapters belong to.
        found: u32,
        /// Of the trainer's.
        expected: u32,
    },
}

fn described(adapters: Option<LoraConfig>) -> String {
    adapters.map_or_else(
        || "no adapters".to_owned(),
        |LoraConfig { rank, alpha }| format!("adapters of rank {rank} and alpha {alpha}"),
    )
}

/// Everything of a trainer that must be the same in a state that it goes on from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateOwner {
    /// Number of trained parameters.
    pub parameters: u64,
    /// The optimiser, by its [name](super::Optimizer::name).
    pub optimizer: &'static str,
    /// The adapters, where these are what is trained.
    pub adapters: Option<LoraConfig>,
    /// CRC-32 of the weights that are frozen below adapters; 0 without adapters.
    pub base: u32,
}

/// Numbers of a trainer, one for each trained parameter, in the order of
/// [`trained_layout`](Trainer::trained_layout). Of what an optimiser keeps a trainer that
/// [shares](Trainer::sharing) it has those of its [part](Trainer::part); one whose model is a
/// [shard](Model::into_shard) has of all numbers what is [held](Trainer::held).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// The trained parameters themselves: those of the adapters, where there are adapters.
    Parameters,
    /// One of the buffers that the optimiser keeps, by its place in
    /// [`Optimizer::state`](super::Optimizer::state).
    State(usize),
}

impl<B: Backend> Trainer<B> {
    /// Names, shapes and places of the trained parameters.
    #[must_use]
    pub fn trained_layout(&self) -> &Layout {
        let model = self.model();
        model
            .adapters()
            .map_or_else(|| model.layout(), Adapters::layout)
    }

    /// Reads some of the numbers of a trainer, wherever its device has them.
    ///
    /// # Panics
    /// When there are fewer, or they are another rank's, or the optimiser keeps no such buffer of numbers.
    pub fn read_part(&self, part: StatePart, at: usize, out: &mut [f32]) {
        let model = self.model();
        let (buffer, from) = match part {
            StatePart::Parameters => {
                let adapters = model.adapters();
                (adapters.map_or_else(|| model.params(), Adapters::params), 0)
            }
            StatePart::State(number) => self.optimizer.kept(number),
        };
        if out.is_empty() {
            return;
        }
        let at = kept_at(model, at) - from;
        model
            .backend()
            .read(B::view(buffer, at..at + out.len()), out);
    }

    /// The numbers of a tensor, by its number in the [layout](Self::trained_layout), that this rank has: it may have
    /// none of them, else one run.
    ///
    /// # Panics
    /// If there is no such tensor.
    #[must_use]
    pub fn held(&self, part: StatePart, tensor: usize) -> Range<usize> {
        if let Some(shard) = self.model().shard() {
            return shard.held(tensor);
        }
        let range = self.trained_layout().entries()[tensor].range.clone();
        match part {
            StatePart::Parameters => range,
            StatePart::State(_) => {
                let part = self.part();
                let start = range.start.max(part.start).min(range.end);
                start..range.end.min(part.end).max(start)
            }
        }
    }

    /// Replaces some of these numbers.
    ///
    /// # Panics
    /// As [`read_part`](Self::read_part).
    pub fn write_part(&mut self, part: StatePart, at: usize, numbers: &[f32]) {
        if numbers.is_empty() {
            return;
        }
        let model = self.scorer.model_mut();
        let backend = model.backend().clone();
        let at = kept_at(model, at);
        let (buffer, from) = match part {
            StatePart::Parameters => (model.trained().1, 0),
            StatePart::State(number) => self.optimizer.kept_mut(number),
        };
        let at = at - from..at - from + numbers.len();
        backend.write(B::view_mut(buffer, at), numbers);
    }

    /// The form in which these numbers are kept.
    fn form(&self, part: StatePart) -> StateForm {
        match part {
            StatePart::Parameters => StateForm::Numbers,
            StatePart::State(number) => self.config.optimizer.form(number),
        }
    }

    /// Bytes of an element of a [stored](Self::stored) tensor: 4 of a little-endian `f32`, or 1 of a code.
    #[must_use]
    pub fn stored_bytes(&self, part: StatePart) -> usize {
        match self.form(part) {
            StateForm::Numbers | StateForm::Scales(_) => 4,
            StateForm::Codes(_) => 1,
        }
    }

    /// The shape of what checkpoints store of a tensor of this shape: its own, or fewer of what is kept of blocks.
    #[must_use]
    pub fn stored_shape(&self, part: StatePart, shape: &[usize]) -> Vec<usize> {
        match self.form(part) {
            StateForm::Numbers | StateForm::Codes(_) => shape.to_vec(),
            StateForm::Scales(_) => scales_shape(shape),
        }
    }

    /// The elements that this rank has of what is stored of a tensor, by its number in the
    /// [layout](Self::trained_layout): none, or one run.
    ///
    /// # Panics
    /// If there is no such tensor.
    #[must_use]
    pub fn stored(&self, part: StatePart, tensor: usize) -> Range<usize> {
        let (held, entry) = (
            self.held(part, tensor),
            &self.trained_layout().entries()[tensor],
        );
        let own = held.start - entry.range.start..held.end - entry.range.start;
        match self.form(part) {
            StateForm::Numbers | StateForm::Codes(_) => own,
            StateForm::Scales(_) => scales_of(&entry.shape, &own),
        }
    }

    /// Reads bytes of what this rank [has stored](Self::stored) of a tensor, from the element of this number among
    /// these on.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn read_stored(&self, part: StatePart, tensor: usize, at: usize, out: &mut [u8]) {
        let numbers = |moment: usize| &self.optimizer.tiled().tensors[tensor].moments[moment];
        match self.form(part) {
            StateForm::Numbers => {
                let begin = self.held(part, tensor).start + at;
                let mut numbers = vec![0.0; PIECE.min(out.len() / 4)];
                for (at, out) in (begin..).step_by(PIECE).zip(out.chunks_mut(4 * PIECE)) {
                    let numbers = &mut numbers[..out.len() / 4];
                    self.read_part(part, at, numbers);
                    StoredType::F32.write(numbers, out);
                }
            }
            StateForm::Codes(moment) => {
                out.copy_from_slice(&numbers(moment).codes[at..at + out.len()]);
            }
            StateForm::Scales(moment) => {
                let scales = &numbers(moment).scales[at..at + out.len() / 4];
                StoredType::F32.write(scales, out);
            }
        }
    }

    /// Replaces some of these.
    ///
    /// # Panics
    /// As [`read_stored`](Self::read_stored).
    pub fn write_stored(&mut self, part: StatePart, tensor: usize, at: usize, bytes: &[u8]) {
        let mut numbers = vec![];
        let form = self.form(part);
        if !matches!(form, StateForm::Codes(_)) {
            StoredType::F32.read(bytes, &mut numbers);
        }
        let (moment, begin) = match form {
            StateForm::Numbers => {
                let begin = self.held(part, tensor).start + at;
                return self.write_part(part, begin, &numbers);
            }
            StateForm::Codes(moment) | StateForm::Scales(moment) => (moment, at),
        };
        let kept = &mut self.optimizer.tiled_mut().tensors[tensor].moments[moment];
        match form {
            StateForm::Codes(_) => kept.codes[begin..begin + bytes.len()].copy_from_slice(bytes),
            _ => kept.scales[begin..begin + numbers.len()].copy_from_slice(&numbers),
        }
    }

    /// Goes on as after so many steps: with numbers that were [written](Self::write_part) as they
    /// were then.
    pub fn resume_at(&mut self, step: u64) {
        self.step = step;
    }

    /// Everything that a state must share with this trainer.
    #[must_use]
    pub fn owner(&self) -> StateOwner {
        let model = self.model();
        let adapters = model.adapters().map(Adapters::config);
        // Of a part the state has the whole.
        let parameters = model.part().map_or_else(
            || self.trained_layout().len(),
            |part| {
                let tensors = part.tensors().iter();
                tensors.map(|it| it.shape.iter().product::<usize>()).sum()
            },
        );
        StateOwner {
            parameters: parameters as u64,
            optimizer: self.config.optimizer.name(),
            adapters,
            base: adapters.map_or(0, |_| checksum(model)),
        }
    }

    /// Checks that this trainer can go on from a state of that owner.
    ///
    /// # Errors
    /// [`StateError`] says what differs.
    pub fn check_owner(&self, found: &StateOwner) -> Result<(), StateError> {
        let own = self.owner();
        if found.adapters != own.adapters {
            return Err(StateError::Adapters {
                found: found.adapters,
                expected: own.adapters,
            });
        }
        if found.parameters != own.parameters {
            return Err(StateError::Parameters {
                found: found.parameters,
                expected: own.parameters,
            });
        }
        if found.optimizer != own.optimizer {
            return Err(StateError::Optimizer {
                found: found.optimizer,
                expected: own.optimizer,
            });
        }
        if found.base != own.base {
            return Err(StateError::Base {
                found: found.base,
                expected: own.base,
            });
        }
        Ok(())
    }
}

/// Where a trained parameter lies among those that this rank keeps.
fn kept_at<B: Backend>(model: &Model<B>, at: usize) -> usize {
    model.shard().map_or(at, |shard| shard.kept_at(at))
}

/// CRC-32 of a model's own weights, adapters left out.
fn checksum<B: Backend>(model: &Model<B>) -> u32 {
    let (backend, params) = (model.backend(), model.params());
    let len = B::len(params);
    let mut sum = crc32fast::Hasher::new();
    let mut numbers = vec![0.0; PIECE.min(len)];
    let mut bytes = Vec::with_capacity(4 * numbers.len());
    for start in (0..len).step_by(PIECE) {
        let end = (start + PIECE).min(len);
        let piece = &mut numbers[..end - start];
        backend.read(B::view(params, start..end), piece);
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|number| number.to_le_bytes()));
        sum.update(&bytes);
    }
    sum.finalize()
}

/// Numbers in a piece: a few hundred KiB, which stay in the cache.
const PIECE: usize = 64 << 10;
