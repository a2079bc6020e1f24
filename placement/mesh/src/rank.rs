//! One rank of a mesh, and coordinates along some of its dimensions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Mesh, MeshError};

/// One place on a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "(Mesh, usize)", into = "(Mesh, usize)")]
pub struct Rank {
    pub(crate) index: usize,
    pub(crate) mesh: Mesh,
}

impl Rank {
    /// Its number: the row-major index.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// The mesh it lies on.
    #[must_use]
    pub const fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Its coordinates, one for each dimension.
    #[must_use]
    pub fn coordinates(&self) -> Vec<usize> {
        let mut rest = self.index;
        let mut coordinates: Vec<_> = self
            .mesh
            .dims()
            .iter()
            .rev()
            .map(|dim| {
                let at = rest % dim.size;
                rest /= dim.size;
                at
            })
            .collect();
        coordinates.reverse();
        coordinates
    }

    /// Its coordinate along a dimension, also along one that was sliced away.
    #[must_use]
    pub fn coordinate(&self, dim: &str) -> Option<usize> {
        let fixed = || {
            self.mesh
                .0
                .fixed
                .iter()
                .find(|(name, _)| name == dim)
                .map(|(_, at)| *at)
        };
        self.mesh
            .position(dim)
            .ok()
            .map(|position| self.coordinates()[position])
            .or_else(fixed)
    }

    /// Its coordinate along a dimension that the caller knows to be there.
    ///
    /// # Panics
    /// The mesh has no such dimension.
    #[must_use]
    pub fn along(&self, dim: &str) -> usize {
        self.coordinate(dim)
            .unwrap_or_else(|| panic!("no dimension `{dim}`; the mesh is {}", self.mesh))
    }
}

impl TryFrom<(Mesh, usize)> for Rank {
    type Error = MeshError;

    fn try_from((mesh, index): (Mesh, usize)) -> Result<Self, MeshError> {
        mesh.rank(index).ok_or_else(|| MeshError::NoRank {
            rank: index,
            ranks: mesh.len(),
        })
    }
}

impl From<Rank> for (Mesh, usize) {
    fn from(rank: Rank) -> Self {
        (rank.mesh, rank.index)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.index)?;
        let names = self.mesh.dims().iter().map(|dim| dim.name.as_str());
        let fixed = self
            .mesh
            .0
            .fixed
            .iter()
            .map(|(name, at)| (name.as_str(), *at));
        for (index, (name, at)) in fixed.chain(names.zip(self.coordinates())).enumerate() {
            write!(f, "{}{name}={at}", if index == 0 { " (" } else { ", " })?;
        }
        let named = !self.mesh.dims().is_empty() || !self.mesh.0.fixed.is_empty();
        f.write_str(if named { ")" } else { "" })
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rank({self})")
    }
}

/// Coordinates along some dimensions. Make one with [`at!`](crate::at).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At(pub(crate) Vec<(String, Coordinate)>);

impl At {
    /// Holds each of these dimensions at a coordinate.
    pub fn new<N: Into<String>>(at: impl IntoIterator<Item = (N, Coordinate)>) -> Self {
        Self(at.into_iter().map(|(name, at)| (name.into(), at)).collect())
    }
}

/// A place along a dimension: 0 is the first, -1 the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coordinate(pub i64);

impl From<i32> for Coordinate {
    fn from(at: i32) -> Self {
        Self(at.into())
    }
}

impl From<usize> for Coordinate {
    fn from(at: usize) -> Self {
        // No dimension is that long, so it is refused where it is used.
        Self(at.try_into().unwrap_or(i64::MAX))
    }
}
