//! Placements, redistributions and draws that cannot be.

use odeon_collective::CollectiveError;
use odeon_mesh::MeshError;
use thiserror::Error;

use crate::{Placement, Sharding};

/// A placement that cannot be, or an act that has no meaning with it. It names the tensor, and says
/// what to do. Nothing was moved, unless it is [`Self::Collective`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShardingError {
    /// There is not one placement for each dimension of the mesh.
    #[error(
        "tensor `{tensor}` has {placements} placements on the mesh {mesh}: give one for each dimension"
    )]
    Count {
        /// The tensor.
        tensor: String,
        /// Number of placements.
        placements: usize,
        /// The mesh.
        mesh: String,
    },
    /// The number of elements does not fit into a `usize`.
    #[error("tensor `{tensor}` of shape {shape:?} has too many elements: give a smaller shape")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The tensor lacks the dimension that a placement cuts.
    #[error(
        "tensor `{tensor}` is {placement} along `{along}`, but its dimensions are numbered from 0 and there are {dims}"
    )]
    NoDim {
        /// The tensor.
        tensor: String,
        /// The placement.
        placement: Box<Placement>,
        /// The dimension of the mesh.
        along: String,
        /// Number of dimensions of the tensor.
        dims: usize,
    },
    /// A dimension does not consist of so many equal parts.
    #[error(
        "tensor `{tensor}` is {placement} along `{along}`, but {extent} indices are not so many equal parts: give a \
         number that divides them"
    )]
    Parts {
        /// The tensor.
        tensor: String,
        /// The placement.
        placement: Box<Placement>,
        /// The dimension of the mesh.
        along: String,
        /// Number of indices of the dimension of the tensor.
        extent: usize,
    },
    /// A dimension of the tensor was cut across its parts before.
    #[error(
        "tensor `{tensor}` is {placement} along `{along}`, but that dimension was cut before into slices that hold no \
         equal parts: cut by parts first, along an earlier dimension of the mesh"
    )]
    PartsAreGone {
        /// The tensor.
        tensor: String,
        /// The placement.
        placement: Box<Placement>,
        /// The dimension of the mesh.
        along: String,
    },
    /// The leading dimensions of a ragged placement, or its units, do not fit.
    #[error("tensor `{tensor}` is {placement} along `{along}`: {why}")]
    Ragged {
        /// The tensor.
        tensor: String,
        /// The placement.
        placement: Box<Placement>,
        /// The dimension of the mesh.
        along: String,
        /// The rule that it breaks, and what to give.
        why: String,
    },
    /// Addends along two dimensions are reduced in ways whose order matters.
    #[error(
        "tensor `{tensor}` is {first} and {second} at once, and the order of these two matters: reduce one of them first"
    )]
    MixedPartials {
        /// The tensor.
        tensor: String,
        /// The first of both.
        first: Box<Placement>,
        /// The other.
        second: Box<Placement>,
    },
    /// Two descriptions are not of one tensor.
    #[error(
        "tensor `{tensor}` cannot become `{other}`, which differs in its {what}: redistribution changes placements alone"
    )]
    Different {
        /// The tensor.
        tensor: String,
        /// The tensor that it should become.
        other: String,
        /// The property that differs.
        what: &'static str,
    },
    /// No data can turn one placement into the other.
    #[error("tensor `{tensor}` cannot go from {from} to {to} along `{along}`: {why}")]
    NoMeaning {
        /// The tensor.
        tensor: String,
        /// The dimension of the mesh.
        along: String,
        /// The placement that it has.
        from: Box<Placement>,
        /// The placement that was asked for.
        to: Box<Placement>,
        /// The reason, and what to do.
        why: &'static str,
    },
    /// The groups of the mesh cannot give each other what they need.
    #[error(
        "there is no way from {from} to {to}: redistribute to Replicate first, one dimension of the mesh after the \
         other"
    )]
    NoWay {
        /// The tensor as it is.
        from: Box<Sharding>,
        /// The tensor as it was asked for.
        to: Box<Sharding>,
    },
    /// Random numbers were asked for a tensor of addends.
    #[error(
        "tensor `{tensor}` is {placement} along `{along}`, and numbers drawn for addends would be reduced to others: \
         draw with `Sharding::drawn`, which is Replicate there"
    )]
    DrawnAddends {
        /// The tensor.
        tensor: String,
        /// The placement.
        placement: Box<Placement>,
        /// The dimension of the mesh.
        along: String,
    },
    /// A buffer has another length than the local part.
    #[error(
        "tensor `{tensor}` has {needs} elements here, but the buffer has {has}: give the whole local part"
    )]
    Length {
        /// The tensor.
        tensor: String,
        /// Elements of the buffer.
        has: usize,
        /// Elements of the local part.
        needs: usize,
    },
    /// The caller has no communicator for some dimensions of the mesh.
    #[error(
        "tensor `{tensor}` moves along {dims:?}, for which no communicator was given: give one of ranks {ranks:?}"
    )]
    NoCommunicator {
        /// The tensor.
        tensor: String,
        /// The dimensions of the mesh.
        dims: Vec<String>,
        /// The ranks of the mesh that it connects, in its order.
        ranks: Vec<usize>,
    },
    /// A communicator has another size, or this rank another place in it.
    #[error(
        "tensor `{tensor}` moves along {dims:?} as number {position} of {size}, but the communicator has it as {rank} \
         of {world}: give one of the ranks of the group, in their order"
    )]
    WrongCommunicator {
        /// The tensor.
        tensor: String,
        /// The dimensions of the mesh.
        dims: Vec<String>,
        /// The place of this rank in the group.
        position: usize,
        /// Ranks of the group.
        size: usize,
        /// The rank of the communicator.
        rank: usize,
        /// Its number of ranks.
        world: usize,
    },
    /// The mesh has no such rank or dimension.
    #[error("`{name}`: {error}")]
    Mesh {
        /// The tensor, or the gradient.
        name: String,
        /// The error of the mesh.
        error: Box<MeshError>,
    },
    /// A collective failed. The local part is lost; the communicator stays broken.
    #[error("tensor `{tensor}` moves along {dims:?}: {error}")]
    Collective {
        /// The tensor.
        tensor: String,
        /// The dimensions of the mesh.
        dims: Vec<String>,
        /// The failure.
        error: Box<CollectiveError>,
    },
}
