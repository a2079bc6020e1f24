//! Groups, blocks and matrices that cannot be.

use thiserror::Error;

/// A group of tensors that no buffer can hold. Nothing was planned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupBufferError {
    /// Nobody would hold the buffer.
    #[error("a buffer over 0 ranks: give 1 at least")]
    NoRanks,
    /// Shards cannot be multiples of nothing.
    #[error("the alignment is 0 elements: give 1 where the collective prefers none")]
    NoAlignment,
    /// The group has no tensor.
    #[error("a group without tensors")]
    NoTensors,
    /// Two tensors have one name.
    #[error("tensor `{name}` is named twice")]
    RepeatedTensor {
        /// The name.
        name: String,
    },
    /// A tensor has nothing that a rank could hold.
    #[error("tensor `{name}` has no elements")]
    EmptyTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor would be cut into blocks of nothing.
    #[error("tensor `{name}` has blocks of 0 elements: give 1 where it may be cut anywhere")]
    NoBlock {
        /// The tensor.
        name: String,
    },
    /// Blocks do not make up their tensor, and a short last one was not allowed.
    #[error(
        "tensor `{name}` of {elements} elements does not divide into blocks of {block}: {rest} are \
         left; choose another block, or allow a short last one"
    )]
    UnevenBlock {
        /// The tensor.
        name: String,
        /// Its elements.
        elements: usize,
        /// The elements of a block.
        block: usize,
        /// The elements that are left behind the last whole block.
        rest: usize,
    },
    /// Sizes whose places cannot be counted.
    #[error(
        "{elements} elements in shards of multiples of {alignment} over {ranks} ranks are too many \
         to count"
    )]
    TooLarge {
        /// The elements of all tensors, or the greatest number where they overflow.
        elements: usize,
        /// The number of ranks.
        ranks: usize,
        /// The alignment of the collective, in elements.
        alignment: usize,
    },
}

/// A block that cannot lie beside a cut along another dimension.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// A block of nothing.
    #[error("a block of 0 elements")]
    NoBlock,
    /// The tensor has no such dimension, or it is the first one, along which a ragged cut itself runs.
    #[error("no dimension {dim} behind the first one of a tensor with {dims}")]
    NoDim {
        /// The dimension that was asked for.
        dim: usize,
        /// The number of dimensions of the tensor.
        dims: usize,
    },
    /// A dimension without an index.
    #[error("dimension {dim} has size 0")]
    EmptyDim {
        /// The dimension.
        dim: usize,
    },
    /// The common multiple is more than a `usize` holds.
    #[error("a common multiple of {block} and {slice} elements is too large")]
    TooLarge {
        /// The elements of the block.
        block: usize,
        /// The elements of one slice, or the greatest number where they overflow.
        slice: usize,
    },
}

/// Matrices to which no roots can be given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MatrixRootsError {
    /// Nobody could be a root.
    #[error("roots among 0 ranks: give 1 at least")]
    NoRanks,
    /// A matrix has no rows or no columns.
    #[error("matrix `{name}` is {rows} x {columns}")]
    EmptyMatrix {
        /// The matrix.
        name: String,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
    /// The operations of all matrices up to this one are more than a `u128` counts.
    #[error("up to matrix `{name}` of {rows} x {columns} there are too many operations to count")]
    TooLarge {
        /// The matrix.
        name: String,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
}
