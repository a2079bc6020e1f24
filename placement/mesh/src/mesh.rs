//! Ranks and coordinates: pure arithmetic.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{At, Coordinate, MeshError, Rank};

/// Named dimensions with their sizes. Ranks count through them in row-major order: the last
/// dimension changes fastest. Make one with [`mesh!`](crate::mesh).
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Mesh(pub(crate) Arc<Parts>);

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Parts {
    pub(crate) dims: Vec<Dim>,
    /// Coordinates along dimensions that were sliced away; they name a rank for people.
    pub(crate) fixed: Vec<(String, usize)>,
}

/// One dimension of a [`Mesh`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dim {
    /// Its name: `dp`, `tp`.
    pub name: String,
    /// The number of coordinates along it; never 0.
    pub size: usize,
}

impl Mesh {
    /// A mesh with these dimensions, slowest first. Without any, it has one rank.
    ///
    /// # Errors
    /// A size is 0, a name comes twice, or there are too many ranks.
    pub fn new<N: Into<String>>(
        dims: impl IntoIterator<Item = (N, usize)>,
    ) -> Result<Self, MeshError> {
        let dims = dims
            .into_iter()
            .map(|(name, size)| Dim {
                name: name.into(),
                size,
            })
            .collect();
        Parts {
            dims,
            fixed: vec![],
        }
        .try_into()
    }

    /// The number of ranks; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mesh is never empty")]
    pub fn len(&self) -> usize {
        self.dims().iter().map(|dim| dim.size).product()
    }

    /// The dimensions, slowest first.
    #[must_use]
    pub fn dims(&self) -> &[Dim] {
        &self.0.dims
    }

    /// The size of a dimension.
    ///
    /// # Errors
    /// There is no such dimension.
    pub fn size_of(&self, dim: &str) -> Result<usize, MeshError> {
        Ok(self.dims()[self.position(dim)?].size)
    }

    /// All ranks in order.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = Rank> + use<> {
        let mesh = self.clone();
        (0..self.len()).map(move |index| Rank {
            index,
            mesh: mesh.clone(),
        })
    }

    /// The rank of this number.
    #[must_use]
    pub fn rank(&self, index: usize) -> Option<Rank> {
        (index < self.len()).then(|| Rank {
            index,
            mesh: self.clone(),
        })
    }

    /// The rank at these coordinates, one for each dimension.
    #[must_use]
    pub fn rank_at(&self, coordinates: &[usize]) -> Option<Rank> {
        let fits = coordinates.len() == self.dims().len()
            && coordinates
                .iter()
                .zip(self.dims())
                .all(|(at, dim)| *at < dim.size);
        let index = coordinates
            .iter()
            .zip(self.dims())
            .fold(0, |index, (at, dim)| {
                usize::wrapping_add(usize::wrapping_mul(index, dim.size), *at)
            });
        fits.then(|| Rank {
            index,
            mesh: self.clone(),
        })
    }

    /// The mesh that is left when some coordinates are held, and the ranks of this mesh that are on
    /// it, in its order.
    ///
    /// # Errors
    /// There is no such dimension or coordinate, or one is named twice.
    pub fn slice(&self, at: &At) -> Result<(Self, Vec<usize>), MeshError> {
        let held = self.held(at)?;
        let mut parts = Parts {
            dims: vec![],
            fixed: self.0.fixed.clone(),
        };
        for (dim, held) in self.dims().iter().zip(&held) {
            match held {
                Some(at) => parts.fixed.push((dim.name.clone(), *at)),
                None => parts.dims.push(dim.clone()),
            }
        }
        let on = |rank: &Rank| {
            rank.coordinates()
                .iter()
                .zip(&held)
                .all(|(at, held)| held.is_none_or(|held| held == *at))
        };
        let ranks = self.ranks().filter(on).map(|rank| rank.index).collect();
        Ok((Self(Arc::new(parts)), ranks))
    }

    /// The coordinate that each dimension is held at.
    fn held(&self, at: &At) -> Result<Vec<Option<usize>>, MeshError> {
        let mut held = vec![None; self.dims().len()];
        for (name, Coordinate(at)) in &at.0 {
            let position = self.position(name)?;
            let size = self.dims()[position].size;
            let counted = if *at < 0 {
                at.checked_add_unsigned(size as u64)
            } else {
                Some(*at)
            };
            let counted = counted
                .and_then(|at| usize::try_from(at).ok())
                .filter(|at| *at < size)
                .ok_or_else(|| MeshError::NoCoordinate {
                    dim: name.clone(),
                    at: *at,
                    size,
                })?;
            if held[position].replace(counted).is_some() {
                return Err(MeshError::RepeatedDim(name.clone()));
            }
        }
        Ok(held)
    }

    pub(crate) fn position(&self, dim: &str) -> Result<usize, MeshError> {
        self.dims()
            .iter()
            .position(|known| known.name == dim)
            .ok_or_else(|| MeshError::UnknownDim {
                name: dim.to_owned(),
                mesh: self.to_string(),
            })
    }
}

impl TryFrom<Parts> for Mesh {
    type Error = MeshError;

    fn try_from(parts: Parts) -> Result<Self, MeshError> {
        let mut ranks = 1usize;
        for (index, dim) in parts.dims.iter().enumerate() {
            if dim.size == 0 {
                return Err(MeshError::EmptyDim(dim.name.clone()));
            }
            let fixed = parts.fixed.iter().map(|(name, _)| name);
            let mut others = parts.dims[..index].iter().map(|dim| &dim.name).chain(fixed);
            if others.any(|name| *name == dim.name) {
                return Err(MeshError::RepeatedDim(dim.name.clone()));
            }
            ranks = ranks.checked_mul(dim.size).ok_or(MeshError::TooLarge)?;
        }
        Ok(Self(Arc::new(parts)))
    }
}

impl From<Mesh> for Parts {
    fn from(mesh: Mesh) -> Self {
        Arc::unwrap_or_clone(mesh.0)
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, dim) in self.dims().iter().enumerate() {
            write!(
                f,
                "{}{}: {}",
                if index == 0 { "" } else { ", " },
                dim.name,
                dim.size
            )?;
        }
        f.write_str("}")
    }
}

/// Reads what a mesh is displayed as: `{dp: 2, tp: 4}`.
impl FromStr for Mesh {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        let not_one = || MeshError::Unread(text.to_owned());
        let dims = text.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
        let dims = dims.ok_or_else(not_one)?;
        let dims = dims.split(", ").filter(|dim| !dim.is_empty()).map(|dim| {
            let (name, size) = dim.split_once(": ").ok_or_else(not_one)?;
            Ok((name, size.parse().map_err(|_| not_one())?))
        });
        Self::new(dims.collect::<Result<Vec<(&str, usize)>, MeshError>>()?)
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh{self}")
    }
}
