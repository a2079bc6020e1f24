//! A named tensor on a mesh: its shape, and a placement for each dimension of the mesh. Checked once,
//! when it is made.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use odeon_collective::Reduce;
use odeon_mesh::Mesh;
use serde::{Deserialize, Serialize};

use crate::index::{self, LocalIndex};
use crate::{Placement, ShardingError};

/// A tensor with placements: which elements each rank of a mesh holds.
///
/// Placements apply in the order of the mesh's dimensions: each cuts what those before it left, but a
/// [`Placement::Ragged`] one cuts last. So `[Ragged, Shard(0)]` on `{fsdp, ep}` is veScale's strided
/// ragged shard: experts are dealt out first, and the rows that are left are gathered when needed.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Form", into = "Form")]
pub struct Sharding(Arc<Form>);

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Form {
    name: String,
    mesh: Mesh,
    shape: Vec<usize>,
    placements: Vec<Placement>,
}

impl Sharding {
    /// A tensor of this name and shape, in elements, with one placement for each dimension of the mesh.
    ///
    /// # Errors
    /// [`ShardingError`], of the placement that cannot be.
    pub fn new(
        name: impl Into<String>,
        mesh: Mesh,
        shape: impl Into<Vec<usize>>,
        placements: impl Into<Vec<Placement>>,
    ) -> Result<Self, ShardingError> {
        Self::try_from(Form {
            name: name.into(),
            mesh,
            shape: shape.into(),
            placements: placements.into(),
        })
    }

    /// The same tensor with other placements.
    ///
    /// # Errors
    /// [`ShardingError`], of the placement that cannot be.
    pub fn placed(&self, placements: impl Into<Vec<Placement>>) -> Result<Self, ShardingError> {
        Self::try_from(Form {
            placements: placements.into(),
            ..Form::clone(&self.0)
        })
    }

    /// The same tensor as random operations leave it: addends become copies, since a drawn number is no
    /// sum. All else stays.
    #[must_use]
    pub fn drawn(&self) -> Self {
        let mut form = Form::clone(&self.0);
        for placement in &mut form.placements {
            if matches!(placement, Placement::Partial(_)) {
                *placement = Placement::Replicate;
            }
        }
        // Copies cut nothing, so what was right stays so.
        Self(Arc::new(form))
    }

    /// The name of the tensor, as in a checkpoint.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The mesh.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.0.mesh
    }

    /// The shape of the whole tensor, in elements.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Elements of the whole tensor; 1 of one without dimensions.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape().iter().product()
    }

    /// The placement along each dimension of the mesh.
    #[must_use]
    pub fn placements(&self) -> &[Placement] {
        &self.0.placements
    }

    /// The elements of a rank, and where they lie.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`]: there is no such rank.
    pub fn local(&self, rank: usize) -> Result<LocalIndex, ShardingError> {
        self.check_rank(rank)?;
        Ok(self.index(rank))
    }

    /// The ranks that hold the same numbers as this one, itself among them, in their order: those along
    /// all dimensions of the mesh in which the tensor is [`Placement::Replicate`].
    ///
    /// # Errors
    /// [`ShardingError::Mesh`]: there is no such rank.
    pub fn copies(&self, rank: usize) -> Result<Vec<usize>, ShardingError> {
        self.check_rank(rank)?;
        let dims = self.mesh().dims().iter().zip(self.placements());
        let free: Vec<&str> = dims
            .filter(|(_, placement)| **placement == Placement::Replicate)
            .map(|(dim, _)| &*dim.name)
            .collect();
        let group = self.mesh().group(rank, &free);
        group.map_err(|error| self.mesh_error(error))
    }

    /// Returns true when ranks that differ along these dimensions of the mesh alone hold no element
    /// together.
    pub(crate) fn is_apart(&self, dims: &[&str]) -> bool {
        let mut all = self.mesh().dims().iter().zip(self.placements());
        all.all(|(dim, placement)| placement.is_cut() || !dims.contains(&&*dim.name))
    }

    fn check_rank(&self, rank: usize) -> Result<(), ShardingError> {
        let ranks = self.mesh().len();
        if rank < ranks {
            return Ok(());
        }
        Err(self.mesh_error(odeon_mesh::MeshError::NoRank { rank, ranks }))
    }

    pub(crate) fn mesh_error(&self, error: odeon_mesh::MeshError) -> ShardingError {
        ShardingError::Mesh {
            name: self.name().to_owned(),
            error: Box::new(error),
        }
    }

    /// The elements of a rank that the mesh has.
    pub(crate) fn index(&self, rank: usize) -> LocalIndex {
        let held = self.held(rank);
        let ragged = self.ragged().map(|(along, dims, units)| {
            let extents = index::extents(&held);
            let rows: usize = extents[..dims].iter().product();
            let at = self.mesh().coordinate(rank, along);
            (dims, share(rows, units, at))
        });
        LocalIndex::new(self.shape().to_vec(), held, ragged)
    }

    /// The ragged placement: the dimension of the mesh, the leading dimensions, the units.
    fn ragged(&self) -> Option<(&str, usize, &[usize])> {
        let mut dims = self.mesh().dims().iter().zip(self.placements());
        dims.find_map(|(dim, placement)| match placement {
            Placement::Ragged { dims, units } => Some((&*dim.name, *dims, &**units)),
            _ => None,
        })
    }

    /// The indices of each dimension of the tensor that a rank holds before a ragged cut.
    fn held(&self, rank: usize) -> Vec<Vec<Range<usize>>> {
        let mut held: Vec<Vec<Range<usize>>> = self
            .shape()
            .iter()
            .map(|extent| std::iter::once(0..*extent).collect())
            .collect();
        for (along, placement) in self.mesh().dims().iter().zip(self.placements()) {
            let at = self.mesh().coordinate(rank, &along.name);
            match placement {
                Placement::Shard(dim) => {
                    held[*dim] = index::taken(&held[*dim], 1, at, along.size);
                }
                Placement::Interleaved { dim, parts } => {
                    held[*dim] = index::taken(&held[*dim], *parts, at, along.size);
                }
                Placement::Replicate | Placement::Partial(_) | Placement::Ragged { .. } => {}
            }
        }
        held
    }

    fn check(&self) -> Result<(), ShardingError> {
        let (tensor, mesh) = (self.name().to_owned(), self.mesh());
        if self.placements().len() != mesh.dims().len() {
            return Err(ShardingError::Count {
                tensor,
                placements: self.placements().len(),
                mesh: mesh.to_string(),
            });
        }
        let mut sizes = self.shape().iter();
        // Also where some dimension is empty, so that products of some of them can be taken.
        if sizes
            .try_fold(1usize, |all, size| all.checked_mul((*size).max(1)))
            .is_none()
        {
            return Err(ShardingError::TooLarge {
                tensor,
                shape: self.shape().to_vec(),
            });
        }
        self.check_cuts()?;
        self.check_partials()?;
        self.check_ragged()
    }

    fn check_cuts(&self) -> Result<(), ShardingError> {
        // The number of parts that every slice of a dimension has, once it is cut.
        let mut cut: BTreeMap<usize, usize> = BTreeMap::new();
        for (along, placement) in self.mesh().dims().iter().zip(self.placements()) {
            let Some(dim) = placement.cut_dim() else {
                continue;
            };
            let tensor = self.name().to_owned();
            let (along, placement) = (along.name.clone(), Box::new(placement.clone()));
            let Some(&extent) = self.shape().get(dim) else {
                return Err(ShardingError::NoDim {
                    tensor,
                    placement,
                    along,
                    dims: self.shape().len(),
                });
            };
            let Placement::Interleaved { parts, .. } = *placement else {
                cut.insert(dim, 1);
                continue;
            };
            if parts == 0 || !extent.is_multiple_of(parts) {
                return Err(ShardingError::Parts {
                    tensor,
                    placement,
                    along,
                    extent,
                });
            }
            if cut.insert(dim, parts).is_some_and(|before| before != parts) {
                return Err(ShardingError::PartsAreGone {
                    tensor,
                    placement,
                    along,
                });
            }
        }
        Ok(())
    }

    fn check_partials(&self) -> Result<(), ShardingError> {
        let mut partials = self.placements().iter().filter_map(|placement| {
            let Placement::Partial(reduce) = placement else {
                return None;
            };
            let linear = matches!(reduce, Reduce::Sum | Reduce::Mean);
            Some((placement, if linear { Reduce::Sum } else { *reduce }))
        });
        let Some((first, kind)) = partials.next() else {
            return Ok(());
        };
        match partials.find(|(_, other)| *other != kind) {
            None => Ok(()),
            Some((second, _)) => Err(ShardingError::MixedPartials {
                tensor: self.name().to_owned(),
                first: Box::new(first.clone()),
                second: Box::new(second.clone()),
            }),
        }
    }

    fn check_ragged(&self) -> Result<(), ShardingError> {
        let dims = self.mesh().dims().iter().zip(self.placements());
        let mut found = dims.filter(|(_, placement)| matches!(placement, Placement::Ragged { .. }));
        let Some((along, placement)) = found.next() else {
            return Ok(());
        };
        let refuse = |why: String| {
            Err(ShardingError::Ragged {
                tensor: self.name().to_owned(),
                placement: Box::new(placement.clone()),
                along: along.name.clone(),
                why,
            })
        };
        if let Some((second, _)) = found.next() {
            return refuse(format!(
                "it is ragged along `{}` too: one dimension of the mesh may be",
                second.name
            ));
        }
        let Placement::Ragged { dims, units } = placement else {
            return Ok(());
        };
        let rank = self.shape().len();
        if *dims == 0 || *dims > rank {
            return refuse(format!("give 1 to {rank} leading dimensions to cut as one"));
        }
        if units.len() != along.size {
            return refuse(format!("give units for each of {} ranks", along.size));
        }
        let total = units
            .iter()
            .try_fold(0usize, |sum, unit| sum.checked_add(*unit));
        let Some(total) = total.filter(|total| *total > 0) else {
            return refuse("give units whose sum is above 0 and fits a number".to_owned());
        };
        for rank in self.mesh().ranks() {
            if self.mesh().coordinate(rank.index(), &along.name) > 0 {
                continue;
            }
            let extents = index::extents(&self.held(rank.index()));
            let rows: usize = extents[..*dims].iter().product();
            if !rows.is_multiple_of(total) {
                return refuse(format!(
                    "{rows} rows are left to cut for {rank}: give units whose sum divides them"
                ));
            }
            if let Some(why) = self.crossed(&extents, *dims, units) {
                return refuse(why);
            }
        }
        Ok(())
    }

    /// The reason why a ragged cut goes through a dimension that another placement cuts.
    fn crossed(&self, extents: &[usize], dims: usize, units: &[usize]) -> Option<String> {
        let cut = self.placements().iter().filter_map(Placement::cut_dim);
        let rows: usize = extents[..dims].iter().product();
        for dim in cut.filter(|dim| *dim > 0 && *dim < dims) {
            // Between indices of the dimensions before it: so many rows.
            let block: usize = extents[dim..dims].iter().product();
            let ends = (0..units.len()).map(|at| share(rows, units, at).end);
            if block > 0 && ends.into_iter().any(|end| !end.is_multiple_of(block)) {
                return Some(format!(
                    "its cuts go through dimension {dim}, which is cut by itself: flatten {dim} leading dimensions, or \
                     give units that cut at multiples of {block} rows"
                ));
            }
        }
        None
    }
}

/// The rows of a rank along a ragged dimension. The sum of the units divides the rows.
fn share(rows: usize, units: &[usize], at: usize) -> Range<usize> {
    let total: usize = units.iter().sum();
    let each = rows / total;
    let start: usize = units[..at].iter().sum();
    start * each..(start + units[at]) * each
}

impl TryFrom<Form> for Sharding {
    type Error = ShardingError;

    fn try_from(form: Form) -> Result<Self, ShardingError> {
        let sharding = Self(Arc::new(form));
        sharding.check()?;
        Ok(sharding)
    }
}

impl From<Sharding> for Form {
    fn from(sharding: Sharding) -> Self {
        Arc::unwrap_or_clone(sharding.0)
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} [", self.name(), self.shape())?;
        for (nth, (dim, placement)) in self.mesh().dims().iter().zip(self.placements()).enumerate()
        {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{}: {placement}", dim.name)?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({self})")
    }
}
