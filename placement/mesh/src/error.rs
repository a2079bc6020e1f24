//! Meshes and coordinates that cannot be.

use thiserror::Error;

/// A mesh that cannot be, or something that a mesh has not. Nothing was made of it.
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
    /// A text is not what a mesh is displayed as.
    #[error("`{0}` is no mesh: one is written as `{{dp: 2, tp: 4}}`")]
    Unread(String),
    /// Dimensions are joined that do not lie side by side.
    #[error("dimensions {dims} do not lie side by side in {mesh}: join neighbours, in their order")]
    Apart {
        /// Their names.
        dims: String,
        /// The mesh.
        mesh: String,
    },
    /// A dimension is split into parts whose sizes do not make it up.
    #[error("dimension `{dim}` of size {size} cannot be split into {parts}, which are {product}")]
    Uneven {
        /// The dimension.
        dim: String,
        /// Its size.
        size: usize,
        /// The parts with their sizes.
        parts: String,
        /// The product of the sizes.
        product: usize,
    },
}
