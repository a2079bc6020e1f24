//! The ranks along some dimensions, and dimensions that are joined or split.

use crate::mesh::Parts;
use crate::{Dim, Mesh, MeshError};

impl Mesh {
    /// The size of a dimension; 1 for one that the mesh has not, along which all stand at 0.
    #[must_use]
    pub fn size(&self, dim: &str) -> usize {
        self.size_of(dim).unwrap_or(1)
    }

    /// The coordinate of a rank along a dimension; 0 along one that the mesh has not.
    #[must_use]
    pub fn coordinate(&self, rank: usize, dim: &str) -> usize {
        let (stride, size) = self.stride(dim);
        rank / stride % size
    }

    /// The rank that is like this one but stands at another coordinate along a dimension: the last one
    /// where the dimension ends before it.
    #[must_use]
    pub fn moved(&self, rank: usize, dim: &str, to: usize) -> usize {
        let (stride, size) = self.stride(dim);
        rank - self.coordinate(rank, dim) * stride + to.min(size - 1) * stride
    }

    /// The ranks that differ from this one along these dimensions alone, itself among them, in their
    /// order: a group for collectives along those. A dimension that the mesh has not adds nobody.
    ///
    /// # Errors
    /// [`MeshError::NoRank`].
    pub fn group(&self, rank: usize, dims: &[&str]) -> Result<Vec<usize>, MeshError> {
        if rank >= self.len() {
            let ranks = self.len();
            return Err(MeshError::NoRank { rank, ranks });
        }
        let free = self.dims().iter().filter(|dim| dims.contains(&&*dim.name));
        let first = free
            .clone()
            .fold(rank, |at, dim| self.moved(at, &dim.name, 0));
        Ok(free.fold(vec![first], |ranks, dim| {
            let along = |rank: &usize| {
                let (stride, _) = self.stride(&dim.name);
                let rank = *rank;
                (0..dim.size).map(move |at| rank + at * stride)
            };
            ranks.iter().flat_map(along).collect()
        }))
    }

    /// All groups along these dimensions, by their first ranks: each rank is in one of them.
    #[must_use]
    pub fn groups(&self, dims: &[&str]) -> Vec<Vec<usize>> {
        let is_first = |rank: &usize| dims.iter().all(|dim| self.coordinate(*rank, dim) == 0);
        let firsts = (0..self.len()).filter(is_first);
        firsts
            .map(|rank| self.group(rank, dims).unwrap_or_default())
            .collect()
    }

    /// The mesh in which neighbouring dimensions are one. Ranks keep their numbers.
    ///
    /// # Errors
    /// [`MeshError::UnknownDim`], [`MeshError::Apart`], or [`MeshError::RepeatedDim`] where the new name
    /// is that of another dimension.
    pub fn flatten(&self, dims: &[&str], into: &str) -> Result<Self, MeshError> {
        let Some(first) = dims.first() else {
            return Ok(self.clone());
        };
        let from = self.position(first)?;
        for (nth, dim) in dims.iter().enumerate() {
            if self.position(dim)? != from + nth {
                return Err(MeshError::Apart {
                    dims: dims.join(", "),
                    mesh: self.to_string(),
                });
            }
        }
        let joined = &self.dims()[from..from + dims.len()];
        let whole = Dim {
            name: into.to_owned(),
            size: joined.iter().map(|dim| dim.size).product(),
        };
        self.replaced(from, dims.len(), vec![whole])
    }

    /// The mesh in which a dimension is several, the slowest first. Ranks keep their numbers.
    ///
    /// # Errors
    /// [`MeshError::UnknownDim`], [`MeshError::Uneven`], [`MeshError::EmptyDim`], or
    /// [`MeshError::RepeatedDim`].
    pub fn split(&self, dim: &str, parts: &[(&str, usize)]) -> Result<Self, MeshError> {
        let at = self.position(dim)?;
        let size = self.dims()[at].size;
        let product = parts
            .iter()
            .try_fold(1usize, |all, (_, part)| all.checked_mul(*part))
            .ok_or(MeshError::TooLarge)?;
        let into = parts.iter().map(|(name, size)| Dim {
            name: (*name).to_owned(),
            size: *size,
        });
        if product != size {
            let named: Vec<String> = parts
                .iter()
                .map(|(name, of)| format!("{name}: {of}"))
                .collect();
            return Err(MeshError::Uneven {
                dim: dim.to_owned(),
                size,
                parts: named.join(", "),
                product,
            });
        }
        self.replaced(at, 1, into.collect())
    }

    fn replaced(&self, at: usize, count: usize, by: Vec<Dim>) -> Result<Self, MeshError> {
        let mut parts = Parts::clone(&self.0);
        parts.dims.splice(at..at + count, by);
        parts.try_into()
    }

    /// The distance of neighbours along a dimension, and its size.
    fn stride(&self, dim: &str) -> (usize, usize) {
        let mut stride = 1;
        for other in self.dims().iter().rev() {
            if other.name == dim {
                return (stride, other.size);
            }
            stride *= other.size;
        }
        (1, 1)
    }
}
