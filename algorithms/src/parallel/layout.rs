//! Meshes over which a model is laid out.

use odeon_mesh::{DP, Mesh, MeshError, PP, TP};

/// Why a model cannot be laid out like this. Nothing has happened; the mesh has to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The mesh cannot be, or has no such rank.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A mesh has more ranks than are planned for.
    #[error("{mesh} has {} ranks, and {RANKS_MAX} are the most", mesh.len())]
    TooLarge {
        /// The mesh.
        mesh: Mesh,
    },
    /// The mesh cuts something else than samples, layers and matrices, or in another order.
    #[error(
        "a model is laid out over dp, pp and tp, in this order and each at most once, and not over {mesh}"
    )]
    Dimensions {
        /// The mesh.
        mesh: Mesh,
    },
    /// The generation groups do not divide those of training.
    #[error(
        "{what} parallelism of {generation} for generation does not divide the {training} of \
         training, {mesh}; choose a divisor"
    )]
    NotDivided {
        /// `tensor` or `pipeline`; `model` where both are meant.
        what: &'static str,
        /// Ranks of a group in generation.
        generation: usize,
        /// Ranks of a group in training.
        training: usize,
        /// The mesh of training.
        mesh: Mesh,
    },
}

/// The mesh with all of its dimensions: those that it leaves out have size 1.
pub(super) fn complete(mesh: &Mesh) -> Result<Mesh, LayoutError> {
    let known = [DP, PP, TP];
    let places: Option<Vec<usize>> = mesh
        .dims()
        .iter()
        .map(|dim| known.iter().position(|name| *name == dim.name))
        .collect();
    if !places.is_some_and(|places| places.is_sorted()) {
        return Err(LayoutError::Dimensions { mesh: mesh.clone() });
    }
    if mesh.len() > RANKS_MAX {
        return Err(LayoutError::TooLarge { mesh: mesh.clone() });
    }
    Ok(Mesh::new(known.map(|dim| (dim, mesh.size(dim))))?)
}

/// Keeps what is allocated for a layout small, and products of its sizes far from overflow.
const RANKS_MAX: usize = 1 << 20;
