//! Ranks and coordinates: pure arithmetic.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::shape::{self, Shape};

/// Named dimensions with their sizes. Ranks count through them in row-major order: the last
/// dimension changes fastest. Make one with [`mesh!`](crate::mesh).
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Mesh(Arc<Parts>);

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Parts {
    dims: Vec<Dim>,
    /// Coordinates along dimensions that were sliced away; they name a rank for people.
    fixed: Vec<(String, usize)>,
}

/// One dimension of a [`Mesh`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dim {
    /// Its name: `dp`, `tp`.
    pub name: String,
    /// The number of coordinates along it; never 0.
    pub size: usize,
}

/// Why a mesh cannot be made, or a call does not fit one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MeshError {
    /// A dimension without coordinates would leave no rank.
    #[error("dimension `{0}` has size 0")]
    EmptyDim(String),
    /// Two dimensions have one name.
    #[error("dimension `{0}` is named twice")]
    RepeatedDim(String),
    /// The number of ranks does not fit into a `usize`.
    #[error("the mesh has too many ranks")]
    TooLarge,
    /// The mesh has no dimension of this name.
    #[error("no dimension `{name}`; the mesh is {mesh}")]
    UnknownDim {
        /// The name that was asked for.
        name: String,
        /// The mesh.
        mesh: String,
    },
    /// The dimension ends before this coordinate.
    #[error("no coordinate {at} along `{dim}`, which has {size}")]
    NoCoordinate {
        /// Along which dimension.
        dim: String,
        /// The coordinate that was asked for; negative ones count from the end.
        at: i64,
        /// The number of coordinates along the dimension.
        size: usize,
    },
    /// The mesh ends before this rank.
    #[error("no rank {rank}; the mesh has {ranks}")]
    NoRank {
        /// The rank that was asked for.
        rank: usize,
        /// The number of ranks in the mesh.
        ranks: usize,
    },
    /// Another number of actors than ranks.
    #[error("{members} actors for {ranks} ranks")]
    Members {
        /// The number of actors.
        members: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// Another number of messages than the dispatch needs.
    #[error("{messages} messages where the dispatch needs {needed}")]
    Messages {
        /// The number of messages.
        messages: usize,
        /// The number of messages that it needs.
        needed: usize,
    },
    /// Parts were named for another number of ranks.
    #[error("parts for {given} ranks, where there are {ranks}")]
    Parts {
        /// For how many.
        given: usize,
        /// The number of ranks in the mesh.
        ranks: usize,
    },
    /// Rows of a part would be lost, or come back more than once.
    #[error("part {part} has {answers} ranks whose answers count, where one is needed")]
    Uncollected {
        /// The part.
        part: usize,
        /// The number of ranks that answer for it.
        answers: usize,
    },
    /// Every answer that should be collected is one that nobody was asked for.
    #[error("the ranks to collect from are not asked")]
    NothingCollected,
    /// A quorum of more answers than can come.
    #[error("a quorum of {quorum} answers of {asked}")]
    Quorum {
        /// The number of answers that are wanted.
        quorum: usize,
        /// The number of answers that can come.
        asked: usize,
    },
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

    pub(super) fn position(&self, dim: &str) -> Result<usize, MeshError> {
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

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh{self}")
    }
}

impl Shape for Mesh {
    const SHAPE: u64 = shape::name("odeon.Mesh");
}

/// One place on a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "(Mesh, usize)", into = "(Mesh, usize)")]
pub struct Rank {
    index: usize,
    mesh: Mesh,
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

impl Shape for Rank {
    const SHAPE: u64 = shape::name("odeon.Rank");
}

/// Coordinates along some dimensions. Make one with [`at!`](crate::at).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At(Vec<(String, Coordinate)>);

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

/// A [`Mesh`]: `mesh! { dp: 2, tp: 4 }`. Panics when a size is 0 or a name comes twice; sizes that
/// a user gives go through [`Mesh::new`].
#[macro_export]
macro_rules! mesh {
    ($($name:ident : $size:expr),* $(,)?) => {{
        let dims: Vec<(&str, usize)> = vec![$((stringify!($name), $size)),*];
        match $crate::group::Mesh::new(dims) {
            Ok(mesh) => mesh,
            Err(error) => panic!("{error}"),
        }
    }};
}

/// Coordinates: `at!(dp = 0, tp = -1)`. Negative ones count from the end.
#[macro_export]
macro_rules! at {
    ($($name:ident = $at:expr),* $(,)?) => {
        $crate::group::At::new([$((stringify!($name), $crate::group::Coordinate::from($at))),*])
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::net::wire::codec;

    const NAMES: [&str; 4] = ["dp", "pp", "tp", "ep"];

    fn any_mesh() -> impl Strategy<Value = Mesh> {
        prop::collection::vec(1usize..6, 0..=4)
            .prop_map(|sizes| Mesh::new(NAMES.into_iter().zip(sizes)).unwrap())
    }

    proptest! {
        #[test]
        fn ranks_and_coordinates_are_a_bijection(mesh in any_mesh()) {
            let mut seen = std::collections::BTreeSet::new();
            for rank in mesh.ranks() {
                let coordinates = rank.coordinates();
                prop_assert_eq!(mesh.rank_at(&coordinates), Some(rank.clone()));
                for (dim, at) in mesh.dims().iter().zip(&coordinates) {
                    prop_assert!(*at < dim.size);
                    prop_assert_eq!(rank.coordinate(&dim.name), Some(*at));
                }
                // Row-major: coordinates grow in the order of ranks.
                prop_assert!(seen.last().is_none_or(|last| *last < coordinates));
                seen.insert(coordinates);
            }
            prop_assert_eq!(seen.len(), mesh.len());
            prop_assert!(mesh.rank(mesh.len()).is_none());
            let outside: Vec<_> = mesh.dims().iter().map(|dim| dim.size).collect();
            prop_assert!(outside.is_empty() || mesh.rank_at(&outside).is_none());
        }

        #[test]
        fn slices_along_a_dimension_partition_the_ranks(
            mesh in any_mesh(), pick in any::<prop::sample::Index>(),
        ) {
            prop_assume!(!mesh.dims().is_empty());
            let dim = mesh.dims()[pick.index(mesh.dims().len())].clone();
            let mut seen = vec![];
            for at in 0..dim.size {
                let (slice, ranks) = mesh.slice(&At::new([(&dim.name, at.into())])).unwrap();
                prop_assert_eq!(slice.len(), ranks.len());
                prop_assert_eq!(slice.len() * dim.size, mesh.len());
                prop_assert!(ranks.is_sorted());
                for (inner, outer) in slice.ranks().zip(&ranks) {
                    let outer = mesh.rank(*outer).unwrap();
                    // A rank of a slice has the coordinates it had, the fixed one too.
                    for dim in mesh.dims() {
                        prop_assert_eq!(inner.coordinate(&dim.name), outer.coordinate(&dim.name));
                    }
                }
                let from_end = at as i64 - dim.size as i64;
                let negative = At::new([(&dim.name, Coordinate(from_end))]);
                prop_assert_eq!(mesh.slice(&negative).unwrap(), (slice, ranks.clone()));
                seen.extend(ranks);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..mesh.len()).collect::<Vec<_>>());
        }

        #[test]
        fn slicing_twice_is_slicing_once(mesh in any_mesh(), picks in any::<[prop::sample::Index; 4]>()) {
            prop_assume!(mesh.dims().len() >= 2);
            let dims = mesh.dims();
            let (a, b) = (&dims[0], &dims[dims.len() - 1]);
            let (i, j) = (picks[0].index(a.size), picks[1].index(b.size));
            let (once, ranks) =
                mesh.slice(&At::new([(&a.name, i.into()), (&b.name, j.into())])).unwrap();
            let (first, outer) = mesh.slice(&At::new([(&a.name, i.into())])).unwrap();
            let (second, inner) = first.slice(&At::new([(&b.name, j.into())])).unwrap();
            prop_assert_eq!(once, second);
            prop_assert_eq!(ranks, inner.into_iter().map(|rank| outer[rank]).collect::<Vec<_>>());
        }

        #[test]
        fn a_mesh_and_its_ranks_travel(mesh in any_mesh(), pick in any::<prop::sample::Index>()) {
            let rank = mesh.rank(pick.index(mesh.len())).unwrap();
            let bytes = codec::encode(&(&mesh, &rank)).unwrap();
            prop_assert_eq!(codec::decode::<(Mesh, Rank)>(&bytes).unwrap(), (mesh, rank));
        }
    }

    #[test]
    fn bad_meshes_and_slices_are_refused() {
        let check = |dims: &[(&str, usize)], expect: MeshError| {
            assert_eq!(Mesh::new(dims.iter().copied()), Err(expect));
        };
        check(&[("dp", 0)], MeshError::EmptyDim("dp".to_owned()));
        check(
            &[("dp", 2), ("dp", 3)],
            MeshError::RepeatedDim("dp".to_owned()),
        );
        check(&[("a", usize::MAX), ("b", 2)], MeshError::TooLarge);

        let mesh = mesh! { dp: 2, tp: 4 };
        assert_eq!(
            mesh.slice(&at!(pp = 0)).unwrap_err().to_string(),
            "no dimension `pp`; the mesh is {dp: 2, tp: 4}"
        );
        for at in [at!(dp = 2), at!(dp = -3), at!(dp = usize::MAX)] {
            assert!(matches!(
                mesh.slice(&at),
                Err(MeshError::NoCoordinate { size: 2, .. })
            ));
        }
        assert_eq!(
            mesh.slice(&at!(dp = 0, dp = 1)),
            Err(MeshError::RepeatedDim("dp".to_owned()))
        );
    }

    #[test]
    fn a_hostile_mesh_or_rank_is_not_decoded() {
        let empty = Parts {
            dims: vec![Dim {
                name: "dp".to_owned(),
                size: 0,
            }],
            fixed: vec![],
        };
        assert!(codec::decode::<Mesh>(&codec::encode(&empty).unwrap()).is_err());
        let outside = (mesh! { dp: 2 }, 2usize);
        assert!(codec::decode::<Rank>(&codec::encode(&outside).unwrap()).is_err());
    }

    #[test]
    fn a_rank_names_its_coordinates() {
        let mesh = mesh! { dp: 2, tp: 4 };
        assert_eq!(mesh.rank(6).unwrap().to_string(), "rank 6 (dp=1, tp=2)");
        let (slice, _) = mesh.slice(&at!(dp = 1)).unwrap();
        assert_eq!(slice.rank(2).unwrap().to_string(), "rank 2 (dp=1, tp=2)");
        assert_eq!(mesh! {}.rank(0).unwrap().to_string(), "rank 0");
    }
}
