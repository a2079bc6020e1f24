//! The part of a job's state that a rank has or wants: boxes and flat ranges of tensors.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use odeon_algorithms::parallel::{ByteRun, ModelSpec, Region, Shards};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

/// The `state` of a role's parameters. What an optimizer keeps of them has states of its own, such
/// as `exp_avg`, with the same names of tensors.
pub const MODEL: &str = "model";

/// A tensor of a job, shown as `role/state/tensor`: `actor/exp_avg/model.norm.weight`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TensorName {
    /// Whose it is: `actor`, `critic`, `reference`, `reward`.
    pub role: String,
    /// Which of the role's states: [`MODEL`], or one of the optimizer's.
    pub state: String,
    /// The tensor in it.
    pub tensor: String,
}

/// Parts of all tensors that a rank has, or wants. A tensor is known by its number: its place in
/// the order in which it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    pub(crate) parts: Vec<StatePart>,
}

/// The tensors that a rank has of one state of one role.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct StatePart {
    pub(crate) role: String,
    pub(crate) state: String,
    pub(crate) tensors: Vec<LocalTensor>,
}

/// The part of one tensor that a rank has. One that has several boxes of a tensor has several of
/// these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalTensor {
    /// The tensor's name in its state.
    pub name: String,
    /// Its elements.
    pub dtype: Dtype,
    /// Extents of the whole tensor, outermost first.
    pub shape: Vec<usize>,
    /// Which part of it.
    pub held: Held,
}

/// A part of a tensor, whose bytes lie one after the other, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// A box.
    Region(Region),
    /// Elements of the flattened tensor, cut anywhere, as ZeRO and FSDP do. May be empty.
    Flat(Range<usize>),
}

/// Why what a rank says it has is nothing that there can be. Nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// A role or a state has no name, or one that could not be told apart in files.
    #[error("`{name}` cannot name a role or a state: letters, digits, `_`, `-` and `.` only")]
    Name {
        /// The name.
        name: String,
    },
    /// Elements are not whole bytes.
    #[error("tensor `{name}`: elements of {dtype:?} are not whole bytes")]
    Dtype {
        /// The tensor.
        name: String,
        /// Its elements.
        dtype: Dtype,
    },
    /// The part is not in the tensor, or the tensor is larger than memory.
    #[error("tensor `{name}` of shape {shape:?} has no part {held}")]
    Outside {
        /// The tensor.
        name: String,
        /// Its extents.
        shape: Vec<usize>,
        /// The part.
        held: String,
    },
}

/// Where the bytes of a rank are that are to be saved: on the heap, on a device.
///
/// [`copy`](Self::copy) is all that a save keeps the caller waiting for, so it should be as fast as
/// the link is. It is called from several threads at once.
pub trait Source: Send + Sync {
    /// Copies bytes `range` of what the rank has of a tensor into `out`, which is as long.
    ///
    /// # Errors
    /// What went wrong, in words. The save fails then and the checkpoint before stays in force.
    fn copy(&self, tensor: usize, range: Range<usize>, out: &mut [u8]) -> Result<(), String>;
}

/// Where the bytes belong that are loaded.
pub trait Target: Send + Sync {
    /// Copies `runs` out of `bytes` into what the rank has of a tensor. It is called from several
    /// threads at once, never twice for the same bytes.
    ///
    /// # Errors
    /// What went wrong, in words. The load fails then.
    fn write(
        &self,
        tensor: usize,
        bytes: &[u8],
        runs: &mut dyn Iterator<Item = ByteRun>,
    ) -> Result<(), String>;

    /// Has `fill` fill bytes `range` of what the rank has of a tensor, where that can be done without
    /// a copy. What cannot says so by this default, which copies.
    ///
    /// # Errors
    /// What `fill` says, or went wrong, in words.
    fn fill(
        &self,
        tensor: usize,
        range: Range<usize>,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut bytes = vec![0; range.len()];
        fill(&mut bytes)?;
        let run = ByteRun {
            source: 0,
            target: range.start,
            bytes: range.len(),
        };
        self.write(tensor, &bytes, &mut std::iter::once(run))
    }
}

/// Buffers on the heap, one for each tensor by its number.
#[derive(Debug, Default)]
pub struct Buffers {
    buffers: Vec<Mutex<Vec<u8>>>,
}

impl Local {
    /// Adds tensors of one state of one role, after those that are there.
    ///
    /// # Errors
    /// [`LocalError`]; nothing was added then.
    pub fn add(
        &mut self,
        role: &str,
        state: &str,
        tensors: Vec<LocalTensor>,
    ) -> Result<(), LocalError> {
        for name in [role, state] {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(LocalError::Name { name: name.into() });
            }
        }
        for tensor in &tensors {
            tensor.check()?;
        }
        self.parts.push(StatePart {
            role: role.into(),
            state: state.into(),
            tensors,
        });
        Ok(())
    }

    /// Adds what a rank has of a model by a layout, all of one type, one tensor for each box.
    ///
    /// # Errors
    /// [`LocalError`]; nothing was added then.
    pub fn add_shards(
        &mut self,
        role: &str,
        state: &str,
        model: &ModelSpec,
        shards: &Shards,
        dtype: Dtype,
    ) -> Result<(), LocalError> {
        let held = shards.as_slice().iter().map(|shard| {
            let tensor = &model.tensors()[shard.tensor];
            LocalTensor {
                name: tensor.name.clone(),
                dtype,
                shape: tensor.shape.clone(),
                held: Held::Region(shard.region.clone()),
            }
        });
        self.add(role, state, held.collect())
    }

    /// The tensors by their numbers, with their roles and states.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &str, &LocalTensor)> {
        self.parts.iter().flat_map(|part| {
            let tensors = part.tensors.iter();
            tensors.map(|tensor| (part.role.as_str(), part.state.as_str(), tensor))
        })
    }

    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tensors().map(|(.., tensor)| tensor.bytes()).sum()
    }
}

impl LocalTensor {
    /// Bytes of one element.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        element_bytes(self.dtype).unwrap_or_default()
    }

    /// Bytes of the part.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let elements = match &self.held {
            Held::Region(region) => region.elements(),
            Held::Flat(range) => range.len(),
        };
        elements * self.element_bytes()
    }

    /// The boxes of the part, none of them empty, each with the byte of the part at which it begins.
    #[must_use]
    pub fn boxes(&self) -> Vec<(Region, usize)> {
        let boxes = match &self.held {
            Held::Region(region) => vec![region.clone()],
            Held::Flat(range) => Region::of_flat(range.clone(), &self.shape),
        };
        let mut start = 0;
        let placed = boxes.into_iter().map(|region| {
            let at = start;
            start += region.elements() * self.element_bytes();
            (region, at)
        });
        placed.filter(|(region, _)| region.elements() > 0).collect()
    }

    pub(crate) fn check(&self) -> Result<(), LocalError> {
        let Some(element_bytes) = element_bytes(self.dtype) else {
            return Err(LocalError::Dtype {
                name: self.name.clone(),
                dtype: self.dtype,
            });
        };
        let bytes = bytes_of(&self.shape, element_bytes);
        let inside = bytes.is_some_and(|bytes| match &self.held {
            Held::Region(region) => region.is_in(&self.shape),
            Held::Flat(range) => range.start <= range.end && range.end * element_bytes <= bytes,
        });
        if inside {
            return Ok(());
        }
        Err(LocalError::Outside {
            name: self.name.clone(),
            shape: self.shape.clone(),
            held: match &self.held {
                Held::Region(region) => region.to_string(),
                Held::Flat(range) => format!("{range:?}"),
            },
        })
    }
}

/// Without the type of its elements, which cannot be hashed and hardly tells tensors apart.
impl Hash for LocalTensor {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, &self.shape, &self.held).hash(state);
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.role, self.state, self.tensor)
    }
}

impl Source for Vec<Bytes> {
    fn copy(&self, tensor: usize, range: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        copy_from(self.get(tensor).map(Bytes::as_ref), tensor, range, out)
    }
}

impl Source for Vec<Vec<u8>> {
    fn copy(&self, tensor: usize, range: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        copy_from(self.get(tensor).map(Vec::as_slice), tensor, range, out)
    }
}

fn copy_from(
    from: Option<&[u8]>,
    tensor: usize,
    range: Range<usize>,
    out: &mut [u8],
) -> Result<(), String> {
    let piece = from.and_then(|bytes| bytes.get(range.clone()));
    let piece = piece.ok_or_else(|| format!("tensor {tensor} has no bytes {range:?}"))?;
    out.copy_from_slice(piece);
    Ok(())
}

impl Buffers {
    /// Zeroes, as many as what a rank wants has bytes.
    #[must_use]
    pub fn zeroed(local: &Local) -> Self {
        let sizes = local.tensors().map(|(.., tensor)| tensor.bytes());
        Self::new(sizes.map(|bytes| vec![0; bytes]).collect())
    }

    /// Buffers that are there already, so that nothing is allocated.
    #[must_use]
    pub fn new(buffers: Vec<Vec<u8>>) -> Self {
        Self {
            buffers: buffers.into_iter().map(Mutex::new).collect(),
        }
    }

    /// The buffers, filled.
    #[must_use]
    pub fn into_inner(self) -> Vec<Vec<u8>> {
        let buffers = self.buffers.into_iter();
        buffers
            .map(|buffer| buffer.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }
}

impl Target for Buffers {
    fn write(
        &self,
        tensor: usize,
        bytes: &[u8],
        runs: &mut dyn Iterator<Item = ByteRun>,
    ) -> Result<(), String> {
        let buffer = self.buffers.get(tensor);
        let buffer = buffer.ok_or_else(|| format!("there is no buffer for tensor {tensor}"))?;
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        for run in runs {
            let from = bytes.get(run.source..run.source + run.bytes);
            let end = run.target + run.bytes;
            let (Some(from), Some(to)) = (from, buffer.get_mut(run.target..end)) else {
                return Err(format!(
                    "the buffer of tensor {tensor} ends before byte {end}"
                ));
            };
            to.copy_from_slice(from);
        }
        Ok(())
    }

    fn fill(
        &self,
        tensor: usize,
        range: Range<usize>,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let buffer = self.buffers.get(tensor);
        let buffer = buffer.ok_or_else(|| format!("there is no buffer for tensor {tensor}"))?;
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let end = range.end;
        let out = buffer.get_mut(range);
        fill(out.ok_or_else(|| format!("the buffer of tensor {tensor} ends before byte {end}"))?)
    }
}

/// Bytes of one element, where that is a whole number.
pub(crate) fn element_bytes(dtype: Dtype) -> Option<usize> {
    let bits = dtype.bitsize();
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Bytes of a tensor, unless it is larger than memory.
pub(crate) fn bytes_of(shape: &[usize], element_bytes: usize) -> Option<usize> {
    let largest = shape.iter().try_fold(element_bytes, |bytes, &extent| {
        bytes.checked_mul(extent.max(1))
    })?;
    Some(if shape.contains(&0) { 0 } else { largest })
}
