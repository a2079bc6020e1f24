//! Shards: the parts of a model that a rank has.

use odeon_mesh::{Mesh, MeshError, PP, TP};
use serde::{Deserialize, Serialize};
use std::ops::Range;

use super::{
    grouping::Groups,
    layout::LayoutError,
    region::Region,
    spec::{Cut, Home, ModelSpec},
    window::{Window, WindowError},
};

/// All that a rank has of a model: boxes that lie in one buffer, one after the other, without gaps,
/// in the order of the tensors and, within a tensor, of their offsets.
///
/// Those that were sent are as good as who has sent them; [`between`](super::between) compares them
/// with the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shards {
    shards: Vec<Shard>,
}

/// A box of a tensor in a rank's buffer, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which tensor of the model, by its place in the list.
    pub tensor: usize,
    /// Which box of it.
    pub region: Region,
    /// Where the box begins in the buffer.
    pub start_bytes: usize,
    /// Bytes of one element.
    pub element_bytes: usize,
}

/// One of `of` parts, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    index: usize,
    of: usize,
}

/// Why a model cannot be cut like this. Nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The layout does not fit, or the rank is not in it.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Some stage would have no layer.
    #[error("{layers} layers cannot be spread over {stages} stages; use at most {layers}")]
    Layers {
        /// Layers of the model.
        layers: usize,
        /// Stages of the pipeline.
        stages: usize,
    },
    /// Some rank would have nothing of a tensor.
    #[error(
        "tensor `{tensor}` has {units} units of {unit} along dimension {dim} and cannot be split \
         over {ranks} tensor ranks; use at most {units}"
    )]
    Units {
        /// The tensor's name.
        tensor: String,
        /// The dimension along which it is cut.
        dim: usize,
        /// Indices that stay together.
        unit: usize,
        /// Number of such units.
        units: usize,
        /// Ranks of a stage.
        ranks: usize,
    },
    /// A box is of no tensor of the model.
    #[error("the model has {tensors} tensors and none with number {tensor}")]
    NoTensor {
        /// Its number.
        tensor: usize,
        /// Number of tensors.
        tensors: usize,
    },
    /// A box is not in its tensor, or empty.
    #[error("the box {region} is empty or not in tensor `{tensor}` of shape {shape:?}")]
    Outside {
        /// The tensor's name.
        tensor: String,
        /// Its extents.
        shape: Vec<usize>,
        /// The box.
        region: Region,
    },
}

impl ModelSpec {
    /// The shards of a rank: `share` of each tensor of `stage`.
    ///
    /// # Errors
    /// [`CutError::Layers`] or [`CutError::Units`].
    pub fn shards(&self, stage: Part, share: Part) -> Result<Shards, CutError> {
        let layers = self.layers();
        if layers < stage.of {
            return Err(CutError::Layers {
                layers,
                stages: stage.of,
            });
        }
        let mut shards = Shards::default();
        for (index, tensor) in self.tensors().iter().enumerate() {
            let shape = tensor.shape.as_slice();
            let region = match tensor.cut {
                Cut::Whole => Region::whole(shape),
                Cut::Cover { dim, unit } => {
                    let units = share.cover(shape[dim] / unit);
                    Region::cut(shape, dim, units.start * unit..units.end * unit)
                }
                Cut::Split { dim, unit } => {
                    let units = shape[dim] / unit;
                    if units < share.of {
                        return Err(CutError::Units {
                            tensor: tensor.name.clone(),
                            dim,
                            unit,
                            units,
                            ranks: share.of,
                        });
                    }
                    let units = share.split(units);
                    Region::cut(shape, dim, units.start * unit..units.end * unit)
                }
            };
            if stage.has(tensor.home, layers) {
                shards.push(index, region, tensor.element_bytes);
            }
        }
        Ok(shards)
    }

    /// The shards of a rank when all tensors, one after the other, are cut into equal ranges of
    /// elements, wherever that is: ZeRO (arXiv 1910.02054). A range of a tensor is several boxes
    /// ([`Region::of_flat`]); the buffer is the range. Where the elements cannot be divided evenly,
    /// ranges differ by one.
    #[must_use]
    pub fn flat(&self, share: Part) -> Shards {
        let range = share.split(self.elements());
        let starts = self.starts();
        let first = starts.partition_point(|&start| start <= range.start).max(1) - 1;
        let mut shards = Shards::default();
        let tensors = self.tensors().iter().enumerate().skip(first);
        for (index, tensor) in tensors.take_while(|(index, _)| starts[*index] < range.end) {
            let start = starts[index];
            let from = range.start.max(start) - start;
            let to = range.end.min(starts[index + 1]) - start;
            for region in Region::of_flat(from..to, &tensor.shape) {
                shards.push(index, region, tensor.element_bytes);
            }
        }
        shards
    }

    /// All of the model in one buffer.
    #[must_use]
    pub fn whole(&self) -> Shards {
        self.flat(Part::WHOLE)
    }

    /// Any boxes of the model's tensors, in one buffer in the order of [`Shards`].
    ///
    /// # Errors
    /// [`CutError::NoTensor`] or [`CutError::Outside`].
    pub fn place(&self, mut boxes: Vec<(usize, Region)>) -> Result<Shards, CutError> {
        boxes.sort();
        let mut shards = Shards::default();
        for (index, region) in boxes {
            let Some(tensor) = self.tensors().get(index) else {
                return Err(CutError::NoTensor {
                    tensor: index,
                    tensors: self.tensors().len(),
                });
            };
            if !region.is_in(&tensor.shape) || region.elements() == 0 {
                return Err(CutError::Outside {
                    tensor: tensor.name.clone(),
                    shape: tensor.shape.clone(),
                    region,
                });
            }
            shards.push(index, region, tensor.element_bytes);
        }
        Ok(shards)
    }

    /// Returns true when shards are as [`ModelSpec::place`] makes them.
    pub(super) fn made(&self, shards: &Shards) -> bool {
        let boxes = shards
            .shards
            .iter()
            .map(|shard| (shard.tensor, shard.region.clone()));
        self.place(boxes.collect())
            .is_ok_and(|made| made == *shards)
    }
}

impl ModelSpec {
    /// The shards of a rank of a mesh: its stage along `pp`, its part of matrices along `tp`. Ranks that
    /// differ along other dimensions have the same.
    ///
    /// # Errors
    /// [`CutError`] when there is no such rank, or the model cannot be cut like this.
    pub fn shards_on(&self, mesh: &Mesh, rank: usize) -> Result<Shards, CutError> {
        if rank >= mesh.len() {
            let ranks = mesh.len();
            return Err(LayoutError::from(MeshError::NoRank { rank, ranks }).into());
        }
        let along = |dim| Part::of(mesh.coordinate(rank, dim), mesh.size(dim));
        self.shards(along(PP), along(TP))
    }
}

impl Groups {
    /// The shards of a rank while it generates.
    ///
    /// # Errors
    /// [`CutError`] when there is no such rank, or the model cannot be cut like this.
    pub fn shards(&self, model: &ModelSpec, rank: usize) -> Result<Shards, CutError> {
        model.shards_on(self.generation(), rank)
    }
}

impl Shards {
    /// The boxes in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Shard] {
        &self.shards
    }

    /// The boxes of one tensor.
    #[must_use]
    pub fn of(&self, tensor: usize) -> &[Shard] {
        let first = self.shards.partition_point(|shard| shard.tensor < tensor);
        let rest = &self.shards[first..];
        &rest[..rest.partition_point(|shard| shard.tensor == tensor)]
    }

    /// Bytes of the buffer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.last().map_or(0, Shard::end_bytes)
    }

    /// Bytes that are in both.
    #[must_use]
    pub fn common_bytes(&self, other: &Self) -> usize {
        let common = |shard: &Shard| -> usize {
            let others = other.of(shard.tensor).iter();
            let pieces = others.filter_map(|other| shard.region.intersection(&other.region));
            pieces
                .map(|piece| piece.elements() * shard.element_bytes)
                .sum()
        };
        self.shards.iter().map(common).sum()
    }

    fn push(&mut self, tensor: usize, region: Region, element_bytes: usize) {
        self.shards.push(Shard {
            tensor,
            region,
            start_bytes: self.bytes(),
            element_bytes,
        });
    }
}

impl Shard {
    /// Bytes of the box.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.region.elements() * self.element_bytes
    }

    /// Where the box ends in the buffer.
    #[must_use]
    pub fn end_bytes(&self) -> usize {
        self.start_bytes + self.bytes()
    }

    /// Where a part of the box lies in the buffer. Both are relative to the tensor.
    ///
    /// # Errors
    /// [`WindowError::Outside`] when the part is not in the box.
    pub fn window(&self, part: &Region) -> Result<Window, WindowError> {
        if part.intersection(&self.region).as_ref() != Some(part) {
            return Err(WindowError::Outside {
                region: part.clone(),
                shape: self.region.lengths(),
            });
        }
        Ok(self.inside(part))
    }

    /// Where a part lies that is known to be in the box.
    pub(super) fn inside(&self, part: &Region) -> Window {
        Window::inside(
            self.start_bytes,
            self.element_bytes,
            self.region.lengths(),
            part.relative_to(&self.region),
        )
    }
}

impl Part {
    /// The only one.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// Part `index` of `of`; `None` when there is no such part.
    #[must_use]
    pub fn new(index: usize, of: usize) -> Option<Self> {
        (index < of).then_some(Self { index, of })
    }

    /// A part that is known to be there.
    pub(super) const fn of(index: usize, of: usize) -> Self {
        debug_assert!(index < of, "no such part");
        Self { index, of }
    }

    /// See [`Cut::Split`]. Parts for a divisor are unions of these, since their bounds are among
    /// the bounds of these.
    fn split(self, units: usize) -> Range<usize> {
        self.floor(self.index, units)..self.floor(self.index + 1, units)
    }

    /// See [`Cut::Cover`].
    fn cover(self, units: usize) -> Range<usize> {
        let end = self.wide(self.index + 1, units).div_ceil(self.of as u128);
        self.floor(self.index, units)..end as usize
    }

    /// See [`Home`].
    fn has(self, home: Home, layers: usize) -> bool {
        let (first, last) = (self.index == 0, self.index + 1 == self.of);
        match home {
            Home::First => first,
            Home::Layer(layer) => self.split(layers).contains(&layer),
            Home::Last => last,
            Home::Ends => first || last,
        }
    }

    /// `floor(index * units / of)`, at most `units`.
    fn floor(self, index: usize, units: usize) -> usize {
        (self.wide(index, units) / self.of as u128) as usize
    }

    /// Without overflow.
    fn wide(self, index: usize, units: usize) -> u128 {
        index as u128 * units as u128
    }
}
