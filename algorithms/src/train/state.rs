//! A trainer's state as bytes: what a checkpoint holds beside the model's own weights.
//!
//! ```text
//! "ODTRAIN2"                   8 bytes
//! steps taken                  u64
//! trained parameters, n        u64
//! optimiser                    u64, its number in the list of all (0 AdamW, 1 Muon, 2 Lion)
//! rank of the adapters         u64, 0 without
//! alpha of the adapters        f32, 0 without
//! CRC-32 of the frozen weights u32, 0 without adapters
//! adapters                     n f32, nothing without
//! what the optimiser keeps     n f32 for each buffer of its, in its order
//! CRC-32 of all before         u32
//! ```
//!
//! All little-endian. Numbers pass through in pieces: nothing is held twice.

use std::io::{self, Read, Write};

use odeon_gpu::Backend;
use thiserror::Error;

use super::{Optimizer, Trainer};
use crate::model::{Adapters, LoraConfig, Model};

/// Why a trainer did not take a state. After [`Damaged`](Self::Damaged) and [`Read`](Self::Read) its
/// adapters and moments are undefined; otherwise it is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// The bytes cannot be read.
    #[error("the state cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The bytes are no state, cut off, or not those that were written. Restore them from a copy,
    /// or begin anew.
    #[error("the state is damaged: {0}; restore it from a copy, or begin anew")]
    Damaged(&'static str),
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

/// The head before the numbers.
struct Head {
    step: u64,
    parameters: u64,
    optimizer: u64,
    adapters: Option<LoraConfig>,
    base: u32,
}

/// Numbers of a trainer, one for each trained parameter, in layout order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// The parameters themselves.
    Parameters,
    /// One of the buffers that the optimiser keeps, by its place in [`Optimizer::state`].
    State(usize),
}

impl<B: Backend> Trainer<B> {
    /// Reads some of the numbers of a trainer without adapters, wherever its device has them.
    ///
    /// # Panics
    /// When there are fewer, the optimiser keeps no such buffer, or the trainer has adapters.
    pub fn read_part(&self, part: StatePart, at: usize, out: &mut [f32]) {
        assert!(!self.model().has_adapters(), "adapters are no part of it");
        let backend = self.model().backend();
        let buffer = match part {
            StatePart::Parameters => self.model().params(),
            StatePart::State(number) => &self.optimizer.state[number],
        };
        backend.read(B::view(buffer, at..at + out.len()), out);
    }

    /// Replaces some of these numbers.
    ///
    /// # Panics
    /// As [`read_part`](Self::read_part).
    pub fn write_part(&mut self, part: StatePart, at: usize, numbers: &[f32]) {
        assert!(!self.model().has_adapters(), "adapters are no part of it");
        let model = self.scorer.model_mut();
        let backend = model.backend().clone();
        let buffer = match part {
            StatePart::Parameters => model.trained().1,
            StatePart::State(number) => &mut self.optimizer.state[number],
        };
        backend.write(B::view_mut(buffer, at..at + numbers.len()), numbers);
    }

    /// Goes on as after so many steps: with moments that were [written](Self::write_part) as they
    /// were then.
    pub fn resume_at(&mut self, step: u64) {
        self.step = step;
    }

    /// Writes all that is needed to go on from here, beside the model's own weights: the step, the
    /// moments, and the adapters with a checksum of the weights that they belong to.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_state(&self, out: impl Write) -> io::Result<()> {
        let head = self.head();
        let adapters = head.adapters.unwrap_or(NO_ADAPTERS);
        let mut out = Summed::new(out);
        out.write(MAGIC)?;
        out.write(&head.step.to_le_bytes())?;
        out.write(&head.parameters.to_le_bytes())?;
        out.write(&head.optimizer.to_le_bytes())?;
        out.write(&(adapters.rank as u64).to_le_bytes())?;
        out.write(&adapters.alpha.to_le_bytes())?;
        out.write(&head.base.to_le_bytes())?;
        let model = self.model();
        for buffer in self.state_buffers() {
            read_pieces(model.backend(), buffer, |bytes| out.write(bytes))?;
        }
        let sum = out.sum.finalize();
        out.inner.write_all(&sum.to_le_bytes())?;
        out.inner.flush()
    }

    /// Goes on from what [`write_state`](Self::write_state) wrote. The model must have the weights
    /// of that time: with adapters those that it began with, else the trained ones.
    ///
    /// # Errors
    /// [`StateError`] says whose state it is, or that it is damaged.
    pub fn read_state(&mut self, from: impl Read) -> Result<(), StateError> {
        let mut from = Summed::new(from);
        if from.array()? != *MAGIC {
            return Err(StateError::Damaged("it does not begin like one"));
        }
        let (step, parameters) = (
            u64::from_le_bytes(from.array()?),
            u64::from_le_bytes(from.array()?),
        );
        let optimizer = u64::from_le_bytes(from.array()?);
        let rank = u64::from_le_bytes(from.array()?);
        let alpha = f32::from_le_bytes(from.array()?);
        let base = u32::from_le_bytes(from.array()?);
        let found = (rank > 0).then_some(LoraConfig {
            rank: usize::try_from(rank).unwrap_or(usize::MAX),
            alpha,
        });
        let own = self.head();
        if found != own.adapters {
            return Err(StateError::Adapters {
                found,
                expected: own.adapters,
            });
        }
        if parameters != own.parameters {
            return Err(StateError::Parameters {
                found: parameters,
                expected: own.parameters,
            });
        }
        if optimizer != own.optimizer {
            let [found, expected] = [optimizer, own.optimizer].map(Optimizer::name_of);
            return Err(StateError::Optimizer { found, expected });
        }
        if base != own.base {
            return Err(StateError::Base {
                found: base,
                expected: own.base,
            });
        }
        let model = self.scorer.model_mut();
        let backend = model.backend().clone();
        let adapters = model.adapters_mut();
        let buffers = adapters.into_iter().map(|a| a.layout_and_params_mut().1);
        for buffer in buffers.chain(&mut self.optimizer.state) {
            write_pieces(&backend, buffer, |bytes| from.fill(bytes))?;
        }
        let sum = from.sum.clone().finalize();
        if u32::from_le_bytes(from.array()?) != sum {
            return Err(StateError::Damaged("its checksum is another"));
        }
        self.step = step;
        Ok(())
    }

    fn head(&self) -> Head {
        let model = self.model();
        let adapters = model.adapters().map(Adapters::config);
        Head {
            step: self.step,
            parameters: model.trainable_parameters() as u64,
            optimizer: self.config.optimizer.number(),
            adapters,
            base: if adapters.is_some() {
                checksum(model)
            } else {
                0
            },
        }
    }

    /// In the order of the file.
    fn state_buffers(&self) -> impl Iterator<Item = &B::Buffer> {
        let adapters = self.model().adapters().map(Adapters::params);
        adapters.into_iter().chain(&self.optimizer.state)
    }
}

/// CRC-32 of a model's own weights, adapters left out.
fn checksum<B: Backend>(model: &Model<B>) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    let summed: Result<(), std::convert::Infallible> =
        read_pieces(model.backend(), model.params(), |bytes| {
            sum.update(bytes);
            Ok(())
        });
    match summed {
        Ok(()) => sum.finalize(),
    }
}

/// Hands out a buffer's bytes, piece by piece.
fn read_pieces<B: Backend, E>(
    backend: &B,
    buffer: &B::Buffer,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let len = B::len(buffer);
    let mut numbers = vec![0.0; PIECE.min(len)];
    let mut bytes = Vec::with_capacity(4 * numbers.len());
    for start in (0..len).step_by(PIECE) {
        let end = (start + PIECE).min(len);
        let piece = &mut numbers[..end - start];
        backend.read(B::view(buffer, start..end), piece);
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|number| number.to_le_bytes()));
        take(&bytes)?;
    }
    Ok(())
}

/// Fills a buffer from bytes, piece by piece.
fn write_pieces<B: Backend, E>(
    backend: &B,
    buffer: &mut B::Buffer,
    mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let len = B::len(buffer);
    let mut bytes = vec![0; 4 * PIECE.min(len)];
    let mut numbers = Vec::with_capacity(PIECE.min(len));
    for start in (0..len).step_by(PIECE) {
        let end = (start + PIECE).min(len);
        let piece = &mut bytes[..4 * (end - start)];
        fill(piece)?;
        numbers.clear();
        let fours = piece.as_chunks::<4>().0.iter();
        numbers.extend(fours.map(|four| f32::from_le_bytes(*four)));
        backend.write(B::view_mut(buffer, start..end), &numbers);
    }
    Ok(())
}

/// Bytes on their way, and their checksum.
struct Summed<T> {
    inner: T,
    sum: crc32fast::Hasher,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            sum: crc32fast::Hasher::new(),
        }
    }
}

impl<T: Write> Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: Read> Summed<T> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StateError> {
        let filled = self.inner.read_exact(bytes);
        filled.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StateError::Damaged("it is cut off"),
            _ => StateError::Read(error),
        })?;
        self.sum.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
}

const MAGIC: &[u8; 8] = b"ODTRAIN2";

const NO_ADAPTERS: LoraConfig = LoraConfig {
    rank: 0,
    alpha: 0.0,
};

/// Numbers in a piece: a few hundred KiB, which stay in the cache.
const PIECE: usize = 64 << 10;
